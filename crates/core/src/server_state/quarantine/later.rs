//! Workers that failed what they got before anything had ended elsewhere: short failures can empty a queue in a moment.
//! They are looked at again when more is known of others.

use std::time::Duration;

use super::{Ctx, QuarantineMode, ServerState, Suspicions};
use crate::id::WorkerId;
use crate::worker::Worker;

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
        let Suspicions {
            blame,
            cases,
            mode,
            looked,
            ..
        } = &mut self.suspicions;
        if *mode == QuarantineMode::Off {
            self.suspicions.look_at = None;
            return;
        }
        let may_be_told = |id: WorkerId| {
            let is_told = cases.get(&id).is_some_and(|case| case.told.is_some());
            !is_told && self.workers.get(id).is_some_and(Worker::is_trusted)
        };
        let (last, wanted) = blame.worth_another_look(*looked, LOOK_MAX, may_be_told);
        self.suspicions.look_at = last.map(|_| ctx.now.mono + LOOK_DELAY);
        self.suspicions.looked = last;
        for id in wanted {
            if self.is_suspect(id) && self.seems_broken(id) {
                self.tell(ctx, id);
            }
        }
    }
}
