//! Workers that failed what they got before anything had ended elsewhere: short failures can empty a queue in a moment.
//! They are looked at again when more is known of others.

use std::time::Duration;

use super::{Ctx, QuarantineMode, RUNNING_MAX, ServerState, Suspicions};

/// How soon after a task has gone well elsewhere they are looked at: more is known then, and many ends are one look.
const LOOK_DELAY: Duration = Duration::from_millis(100);
/// Workers that are looked at each time.
const LOOK_MAX: usize = 16;

impl ServerState {
    /// A task went well on a worker, which says something about others.
    pub(super) fn note_good_for_others(&mut self, ctx: &Ctx<'_>) {
        if self.suspicions.blame.is_any_failing() {
            let due = ctx.now.mono + LOOK_DELAY;
            self.suspicions.look_at.get_or_insert(due);
        }
    }

    /// Tells of workers that seem broken, though nothing more has failed there.
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
            // Whoever runs more of it, or has gone on with something that went well, is judged by how that ends.
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
