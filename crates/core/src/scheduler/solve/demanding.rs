//! Work for a worker that takes enough of it or nothing.
//!
//! What goes best together is not always enough: three tasks of 3 cpus leave a quarter of 12 cpus idle, and
//! behind them waits a task of 12. Other mixes follow until one is enough: those with the most cpus, then
//! without the most urgent tasks, which cannot use such a worker now. See `docs/scheduling.md`.

use super::super::lane::Lane;
use super::super::pack::{Candidate, Site, most_cpus};
use super::{Round, levels};

/// Levels of priority that are left out, one after the other, to find enough among less urgent tasks.
const LEVELS_MAX: usize = 8;

/// A way to fill such a worker.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// The first level that gets something.
    first: usize,
    /// Whether the mix with the most cpus is taken of it, instead of the most valuable one.
    is_for_cpus: bool,
}

impl<'a> Round<'a> {
    /// Gives work to a worker that wants enough of it or none.
    pub(super) fn fill_demanding(&mut self, lane: &mut Lane<'a>) {
        let Some(cpus) = self.question.classes.find_resource("cpus") else {
            return;
        };
        let cpus = cpus.0 as usize;
        let levels = levels(self.question.queues);
        let (left, tasks_left) = (self.left.clone(), self.tasks_left);
        let placed = self.placements.len();
        let untouched = lane.clone();
        let plans = (0..levels.len().min(LEVELS_MAX))
            .flat_map(|first| [false, true].map(|is_for_cpus| Plan { first, is_for_cpus }));
        for plan in plans {
            let mut rest = levels.iter().skip(plan.first).cloned();
            if plan.is_for_cpus
                && let Some(level) = rest.next()
            {
                self.fill_with_cpus(level, cpus, lane);
            }
            for level in rest {
                self.fill(level, lane);
            }
            let share = lane.busy_share(cpus);
            if share >= f64::from(lane.worker.config.min_utilization) && !lane.is_untouched() {
                self.send_ahead_alone(lane);
                return;
            }
            self.left.clone_from(&left);
            self.tasks_left = tasks_left;
            self.placements.truncate(placed);
            *lane = untouched.clone();
        }
    }

    /// Gives a worker the mix of a level that takes the most cpus.
    fn fill_with_cpus(&mut self, level: std::ops::Range<usize>, cpus: usize, lane: &mut Lane<'a>) {
        let Some((first, _)) = self.question.queues.get(level.start) else {
            return;
        };
        if self.is_used_up() || !lane.admits(*first) {
            return;
        }
        lane.note_claims(|key| self.positions.contains_key(&key));
        lane.enter(*first, self.question.classes);
        let available = lane.available_all();
        let site = Site {
            offers: lane.worker.offers(),
            available: &available,
            worths: &[],
        };
        let mut candidates = Vec::new();
        for queue in level {
            let (key, _) = self.question.queues[queue];
            let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                continue;
            };
            let mut variants = class.variants.iter().zip(0_u32..);
            let usable = variants.find(|(variant, number)| {
                lane.serves(key.class, *number, variant, self.question.now)
                    && lane.room(variant) > 0
            });
            if let Some((variant, number)) = usable {
                let left = self.left[queue];
                candidates.push(Candidate::new(queue, number, variant, left, site));
            }
        }
        let counts = most_cpus(site, cpus, &mut candidates, &mut self.budget);
        for (candidate, count) in candidates.iter().zip(counts) {
            self.place(candidate.queue, candidate.number, count, lane);
        }
    }
}
