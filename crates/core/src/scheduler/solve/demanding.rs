//! Fills workers that must be busy enough to run any task (`--min-utilization`).
//!
//! The best mix is not always enough: three tasks with 3 cpus leave a quarter of 12 cpus idle while
//! a task with 12 cpus waits. Other mixes are tried until one is enough: first the mix that uses
//! the most cpus, and then mixes without the most urgent tasks, which cannot use such a worker now.
//! See `docs/scheduling.md`.

use super::super::pack::{Bin, Candidate, most_cpus};
use super::super::worker_plan::WorkerPlan;
use super::{Level, Round, levels};

/// The maximum number of consecutive priority levels that are skipped to find enough less urgent
/// tasks for a worker.
const LEVELS_MAX: usize = 8;
/// The maximum number of additional levels skipped for all workers of a round, about 50 µs each.
pub(super) const MORE_LEVELS_MAX: usize = 64;

/// A way to fill a worker to at least its minimum utilization.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// The first level with tasks for the worker.
    first: usize,
    /// Whether to take the mix that uses the most cpus instead of the most valuable one.
    is_for_cpus: bool,
}

impl<'a> Round<'a> {
    /// Gives tasks to workers with a minimum utilization.
    pub(super) fn fill_demanding(&mut self, plans: &mut [WorkerPlan<'a>]) {
        for plan in plans {
            self.fill_enough(plan);
        }
    }

    fn fill_enough(&mut self, plan: &mut WorkerPlan<'a>) {
        // No task and no worker has ever named cpus, so the utilization is 0.
        let Some(cpus) = self.input.classes.find_resource("cpus") else {
            return;
        };
        let cpus = cpus.0 as usize;
        let levels = levels(self.input.queues).into_iter();
        // Requests that have no room now have no room in a mix either.
        let levels: Vec<_> = levels.filter(|level| self.may_fill(*level, plan)).collect();
        let (left, tasks_left) = (self.left.clone(), self.tasks_left);
        let placed = self.placements.len();
        let untouched = plan.clone();
        for first in self.first_levels(&levels, cpus, plan) {
            for is_for_cpus in [false, true] {
                self.follow(Attempt { first, is_for_cpus }, &levels, cpus, plan);
                let share = plan.busy_share(cpus);
                // The worker is busy enough, so this attempt is kept. No tasks are sent ahead,
                // because the worker may be less busy than required after a task ends.
                if share >= f64::from(plan.worker.config.min_utilization) && !plan.is_untouched() {
                    return;
                }
                // The worker is not busy enough, so this attempt is undone.
                self.left.clone_from(&left);
                self.tasks_left = tasks_left;
                self.placements.truncate(placed);
                *plan = untouched.clone();
            }
        }
    }

    /// Returns the levels to start with, in order. They include a level where the tasks of one
    /// request are enough, if there is one.
    fn first_levels(&mut self, levels: &[Level], cpus: usize, plan: &WorkerPlan<'a>) -> Vec<usize> {
        let more = levels
            .len()
            .saturating_sub(LEVELS_MAX)
            .min(self.levels_left);
        self.levels_left -= more;
        let looked = LEVELS_MAX + more;
        let mut first: Vec<usize> = (0..levels.len().min(looked)).collect();
        let rest = levels.iter().enumerate().skip(looked);
        let enough = rest.clone().find(|(_, level)| {
            level
                .queues()
                .any(|queue| self.is_enough(queue, cpus, plan))
        });
        first.extend(enough.map(|(at, _)| at));
        first
    }

    /// Returns whether the tasks of one queue that fit on a worker keep it busy enough.
    fn is_enough(&self, queue: usize, cpus: usize, plan: &WorkerPlan<'a>) -> bool {
        let key = self.input.queues[queue].0;
        let variants = self.classes[queue]
            .into_iter()
            .flat_map(|class| &class.variants);
        variants.zip(0_u32..).any(|(variant, number)| {
            let room = u64::from(plan.room(variant)).min(self.left[queue]);
            let one = plan.costs(variant).find(|(slot, _)| *slot == cpus);
            let units = one.map_or(0, |(_, units)| units);
            let units = units.saturating_mul(i64::try_from(room).unwrap_or(i64::MAX));
            room > 0
                && plan.serves(key.class, number, variant, self.input.now)
                && plan.busy_share_with(cpus, units)
                    >= f64::from(plan.worker.config.min_utilization)
        })
    }

    fn follow(
        &mut self,
        attempt: Attempt,
        levels: &[Level],
        cpus: usize,
        plan: &mut WorkerPlan<'a>,
    ) {
        let mut rest = levels.iter().skip(attempt.first).copied();
        // The mix that uses the most cpus may be enough when the most valuable one is not.
        if attempt.is_for_cpus
            && let Some(level) = rest.next()
        {
            self.fill_with_cpus(level, cpus, plan);
        }
        for level in rest {
            self.fill(level, plan);
        }
    }

    /// Gives a worker the mix of a level that uses the most cpus.
    fn fill_with_cpus(&mut self, level: Level, cpus: usize, plan: &mut WorkerPlan<'a>) {
        let Some((first, _)) = self.input.queues.get(level.start) else {
            return;
        };
        if self.is_used_up() || !plan.admits(*first) {
            return;
        }
        plan.note_reservations(|key| self.position(key).is_some());
        plan.enter(*first, self.input.classes);
        let available = plan.available_all();
        let bin = Bin {
            offers: plan.worker.offers(),
            available: &available,
            resource_weights: &[],
        };
        let mut candidates = Vec::new();
        for queue in level.queues() {
            let (key, _) = self.input.queues[queue];
            let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                continue;
            };
            let mut variants = class.variants.iter().zip(0_u32..);
            let usable = variants.find(|(variant, number)| {
                plan.serves(key.class, *number, variant, self.input.now) && plan.room(variant) > 0
            });
            if let Some((variant, number)) = usable {
                let left = self.left[queue];
                candidates.push(Candidate::new(queue, number, variant, left, bin));
            }
        }
        let counts = most_cpus(bin, cpus, &mut candidates, &mut self.budget);
        for (candidate, count) in candidates.iter().zip(counts) {
            self.place(candidate.queue, candidate.number, count, plan);
        }
    }
}
