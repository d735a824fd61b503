//! Workers that failed what they got before anything had ended elsewhere: short failures can empty a queue in a moment.
//!
//! They are sent nothing ahead as long as it goes on, and looked at again when more is known of others.

use std::time::Duration;

use super::{Ctx, ServerState};
use crate::id::WorkerId;

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
        let (last, wanted) = self
            .suspicions
            .blame
            .worth_another_look(self.suspicions.looked, LOOK_MAX);
        self.suspicions.look_at = last.map(|_| ctx.now.mono + LOOK_DELAY);
        self.suspicions.looked = last;
        for id in wanted {
            let case = self.suspicions.cases.get(&id);
            let is_told = case.is_some_and(|case| case.told.is_some());
            let is_trusted = self.workers.get(id).is_some_and(|w| w.is_trusted());
            if is_trusted && !is_told && self.is_suspect(id) && self.seems_broken(id) {
                self.tell(ctx, id);
            }
        }
    }

    /// Sends a worker nothing ahead while failures prevail there, unless they do so on most: the queue would soon be empty.
    pub(in crate::server_state) fn hold_back(&mut self, id: WorkerId) {
        let count = self.workers.live().len();
        let is_held = self.suspicions.blame.is_failing_alone(id, count);
        if let Some(worker) = self.workers.get_mut(id) {
            worker.set_held_back(is_held);
        }
    }
}
