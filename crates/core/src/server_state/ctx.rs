//! The context of one input: the time and the effects.

use super::change::{Change, ChangeKind};
use super::effect::{Effect, Freed, WorkerCommand};
use crate::id::WorkerId;
use crate::time::{Now, Timestamp};

/// The context of one input, or of the end of a batch, while it is being handled.
pub(super) struct Ctx<'a> {
    /// Both clocks, which stand still while the input is handled.
    pub(super) now: Now,
    effects: &'a mut Vec<Effect>,
}

impl<'a> Ctx<'a> {
    pub(super) const fn new(now: Now, effects: &'a mut Vec<Effect>) -> Self {
        Self { now, effects }
    }

    /// Appends an effect. Effects are carried out in this order.
    pub(super) fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Appends several effects.
    pub(super) fn emit_all(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.effects.extend(effects);
    }

    /// Frees a value. If that takes long, the value is freed outside the state.
    pub(super) fn free(&mut self, freed: Freed) {
        if freed.is_large() {
            self.emit(Effect::Free(freed));
        }
    }

    /// Stores a change that happens now.
    pub(super) fn persist(&mut self, kind: ChangeKind) {
        self.persist_at(self.now.wall, kind);
    }

    /// Stores a change that happened elsewhere at this time.
    pub(super) fn persist_at(&mut self, at: Timestamp, kind: ChangeKind) {
        self.emit(Effect::Persist(Change { at, kind }));
    }

    /// Sends a message to a worker.
    pub(super) fn send(&mut self, worker: WorkerId, command: WorkerCommand) {
        self.emit(Effect::ToWorker(worker, command));
    }
}
