//! The end of the server when somebody wants it, in two steps: workers are asked to end, and have a moment to go.
//!
//! ```text
//!  serving ── Ending ──▶ nothing is handed out, workers go ── Ended ──▶ who has not gone is given up
//! ```
//!
//! A worker that goes says so, with the ends that were not told yet; what it ran waits again. One that is to let its
//! tasks end says so at once, with the ends until then. So a server that is started later waits for no worker that was
//! told to end. Those that are kept are not told: their tasks go on,
//! and they look for the next server.

use super::{Ctx, ServerState, WorkerCommand};
use crate::id::WorkerId;
use crate::outcome::LostReason;

/// How the server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// Workers are told to end.
    WithWorkers,
    /// Workers wait for the next server.
    WithoutWorkers,
}

impl ServerState {
    pub(super) fn on_ending(&mut self, ctx: &mut Ctx<'_>, keep_workers: bool) {
        // There is no further portion, and clients wait for their answers.
        self.submit_rest(ctx);
        self.sweep_rest(ctx);
        self.resubmit_rest(ctx);
        if keep_workers {
            // A worker that was told that all workers end is not told otherwise.
            self.ending.get_or_insert(Ending::WithoutWorkers);
            return;
        }
        // Also if workers were to be kept at first: they can still be told.
        self.ending = Some(Ending::WithWorkers);
        for id in self.workers.live().keys().copied().collect::<Vec<_>>() {
            self.dismiss(ctx, id);
        }
    }

    /// Tells a worker that has just registered that the server ends, if that is so.
    pub(super) fn dismiss_if_ending(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        if self.ending == Some(Ending::WithWorkers) {
            self.dismiss(ctx, id);
        }
    }

    fn dismiss(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        // A worker that cannot hear it now looks for the server later; one that was told to end before knows enough.
        let can_hear = self.workers.get(id).is_some_and(|worker| !worker.is_away());
        if can_hear && self.workers.stop(id) {
            ctx.send(id, WorkerCommand::ServerEnds);
        }
    }

    /// Connected workers that were told to end and have not gone yet.
    #[must_use]
    pub fn leaving(&self) -> usize {
        let workers = self.workers.live().values();
        workers
            .filter(|worker| worker.is_stopping() && !worker.is_away())
            .count()
    }

    /// Gives up the workers that were told to end: the next server does not wait for them.
    pub(super) fn give_up_leaving(&mut self, ctx: &mut Ctx<'_>) {
        let told = self.workers.live().values();
        let told = told.filter(|worker| worker.is_stopping());
        for id in told.map(|worker| worker.id).collect::<Vec<_>>() {
            self.lose_worker(ctx, id, LostReason::Stopped);
        }
    }
}
