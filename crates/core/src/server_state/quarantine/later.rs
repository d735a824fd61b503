//! Checks failing workers again when more is known about other workers. Short failing tasks can
//! empty a queue before any task has ended on another worker.

use std::time::Duration;

use super::{Ctx, QuarantineMode, RUNNING_MAX, ServerState, Suspicions};

/// The delay of the check after a success on another worker. It collects more evidence, and one
/// check covers many completions.
const LOOK_DELAY: Duration = Duration::from_millis(100);
/// The maximum number of workers examined by one check.
const LOOK_MAX: usize = 16;

impl ServerState {
    /// Schedules a check after a success on a worker, which is evidence against failing workers.
    pub(super) fn note_good_for_others(&mut self, ctx: &Ctx<'_>) {
        if self.suspicions.blame.is_any_failing() {
            let due = ctx.now.mono + LOOK_DELAY;
            self.suspicions.look_at.get_or_insert(due);
        }
    }

    /// Reports workers that seem broken without waiting for new failures on them.
    pub(in crate::server_state) fn look_again(&mut self, ctx: &mut Ctx<'_>) {
        if self.suspicions.look_at.is_none_or(|due| due > ctx.now.mono) {
            return;
        }
        let now = ctx.now.mono;
        if self.suspicions.mode == QuarantineMode::Off {
            self.suspicions.look_at = None;
            return;
        }
        let Suspicions {
            blame,
            cases,
            looked,
            ..
        } = &mut self.suspicions;
        let (last, mut wanted) = blame.failing_behind(*looked, LOOK_MAX);
        *looked = last;
        wanted.retain(|id| {
            let is_told = cases.get(id).is_some_and(|case| case.told.is_some());
            let worker = self.workers.get(*id).filter(|worker| worker.is_trusted());
            // If a worker has more running tasks of these jobs, or continued after a success, the
            // outcome of those tasks decides.
            let is_wanted = worker.is_some_and(|worker| {
                let runs_there = |job| worker.running_of(job, RUNNING_MAX) > 0;
                !is_told && blame.has_nothing_more_to_show(*id, runs_there)
            });
            is_wanted && blame.begin_look(*id)
        });
        self.suspicions.look_at = last.map(|_| now + LOOK_DELAY);
        for id in wanted {
            if self.is_suspect(id) && self.seems_broken(id) {
                self.tell(ctx, id);
            }
        }
    }
}
