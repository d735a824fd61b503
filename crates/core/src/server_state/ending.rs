//! Shutdown of the server in two steps: workers are asked to end, and get a moment to leave.
//!
//! ```text
//!  serving ── Ending ──▶ workers leave ── Ended ──▶ the rest are given up
//! ```
//!
//! A leaving worker sends a goodbye with its unreported task ends, and its running tasks wait
//! again. A worker that lets its tasks end reports this immediately. Therefore the next server does
//! not wait for a worker that was asked to end. With `keep_workers`, nothing is sent: tasks
//! continue, and the workers look for the next server.

use super::{Ctx, ServerState, WorkerCommand};
use crate::id::WorkerId;
use crate::outcome::LostReason;

/// How the server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The workers are asked to end.
    WithWorkers,
    /// The workers wait for the next server.
    WithoutWorkers,
}

impl ServerState {
    /// Returns whether the server is shutting down.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    pub(super) fn on_ending(&mut self, ctx: &mut Ctx<'_>, keep_workers: bool) {
        self.autoalloc.stop_submitting();
        // No further steps follow, and clients wait for their answers.
        while self.unanswered() > 0 {
            self.go_on(ctx, usize::MAX);
        }
        if keep_workers {
            // A request to end cannot be withdrawn.
            self.ending.get_or_insert(Ending::WithoutWorkers);
            return;
        }
        // This applies even if the workers were kept at first, because they can still be asked.
        self.ending = Some(Ending::WithWorkers);
        for id in self.workers.live().keys().copied().collect::<Vec<_>>() {
            self.dismiss(ctx, id);
        }
    }

    /// Asks a worker that has just registered to end, if the server is shutting down with its
    /// workers.
    pub(super) fn dismiss_if_ending(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        if self.ending == Some(Ending::WithWorkers) {
            self.dismiss(ctx, id);
        }
    }

    fn dismiss(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        // A worker that cannot receive the command now looks for the server later. A worker that
        // was asked before is not asked again.
        let can_hear = self.workers.get(id).is_some_and(|worker| !worker.is_away());
        if can_hear && self.workers.stop(id) {
            ctx.send(id, WorkerCommand::ServerEnds);
        }
    }

    /// Returns the number of connected workers that were asked to end and have not left yet.
    #[must_use]
    pub fn leaving(&self) -> usize {
        let workers = self.workers.live().values();
        workers
            .filter(|worker| worker.is_stopping() && !worker.is_away())
            .count()
    }

    /// Gives up the workers that were asked to end, so that the next server does not wait for them.
    pub(super) fn give_up_leaving(&mut self, ctx: &mut Ctx<'_>) {
        let told = self.workers.live().values();
        let told = told.filter(|worker| worker.is_stopping());
        for id in told.map(|worker| worker.id).collect::<Vec<_>>() {
            self.lose_worker(ctx, id, LostReason::Stopped);
        }
    }
}
