//! Automatic allocation as a part of the server's state.
//!
//! [`AutoallocState`] decides. This module reports work and workers to it, answers its questions
//! about the demand, and stores its changes. Commands of batch systems become effects, and their
//! answers are inputs. Each round stores a changed queue once.

use super::{AllocationChange, ChangeKind, Ctx, ServerState};
use crate::autoalloc::{AutoallocState, Effect, Input, Limits, QueueCommand, QueueRecord};
use crate::id::{QueueId, WorkerId};
use crate::refusal::Refusal;
use crate::time::Now;

impl ServerState {
    /// Sets the limits of automatic allocation and the directory for its allocations. Must be
    /// called before [`Self::restore_queue`].
    pub fn set_allocation(&mut self, limits: Limits, dir: &[u8]) {
        self.autoalloc = AutoallocState::new(limits, dir);
    }

    /// Restores a queue of an earlier server. Without a record, this only prevents reuse of its id.
    pub fn restore_queue(&mut self, now: Now, id: QueueId, record: Option<QueueRecord>) {
        self.autoalloc.restore_last_queue(id.0);
        if let Some(record) = record {
            self.autoalloc.restore_queue(now, record);
        }
    }

    /// Returns the queues of automatic allocation.
    #[must_use]
    pub const fn queues(&self) -> &AutoallocState {
        &self.autoalloc
    }

    /// Changes a queue. Returns the id of a new one.
    ///
    /// # Errors
    ///
    /// Returns the reason why nothing has changed.
    pub(super) fn change_queue(
        &mut self,
        ctx: &mut Ctx<'_>,
        command: QueueCommand,
    ) -> Result<Option<QueueId>, Refusal> {
        if self.is_ending() {
            return Err(Refusal::shutting_down());
        }
        let mut effects = Vec::new();
        let missing = |queue, change| {
            let text = format!("Queue {queue} that should have been {change} was not found");
            Refusal::not_found(text)
        };
        let mut added = None;
        let queue = match command {
            QueueCommand::Add(params) => {
                let queue = self.autoalloc.add_queue(ctx.now, params.clone());
                added = Some(queue);
                let created = AllocationChange::QueueCreated { queue, params };
                ctx.persist(ChangeKind::Allocation(created));
                queue
            }
            QueueCommand::Remove { queue, force } => {
                self.autoalloc
                    .remove_queue(ctx.now, queue, force, &mut effects)?;
                let removed = AllocationChange::QueueRemoved(queue);
                ctx.persist(ChangeKind::Allocation(removed));
                queue
            }
            QueueCommand::Pause(queue) if self.autoalloc.pause(queue) => queue,
            QueueCommand::Resume(queue) if self.autoalloc.resume(ctx.now, queue) => queue,
            QueueCommand::Pause(queue) => return Err(missing(queue, "paused")),
            QueueCommand::Resume(queue) => return Err(missing(queue, "resumed")),
        };
        effects.push(Effect::Changed(queue));
        self.carry_out_allocation(ctx, effects);
        Ok(added)
    }

    /// Applies an input of automatic allocation.
    pub(super) fn allocate(&mut self, ctx: &mut Ctx<'_>, input: Input) {
        let mut effects = Vec::new();
        self.autoalloc.note(ctx.now, input, &mut effects);
        self.carry_out_allocation(ctx, effects);
    }

    /// Tells automatic allocation that a worker has registered or is lost.
    pub(super) fn note_worker_of_queue(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let Some(worker) = self.workers.known(id).filter(|_| self.ending.is_none()) else {
            return;
        };
        let Some(allocation) = &worker.config.allocation else {
            self.autoalloc.note_change(ctx.now);
            return;
        };
        let job = allocation.job();
        let input = match worker.ended() {
            None => Input::WorkerConnected {
                job,
                worker: id,
                config: worker.config.clone(),
            },
            Some((at, reason)) => Input::WorkerLost {
                job,
                worker: id,
                crashed: reason.is_crash(),
                lived: at.since(worker.started),
                used: worker.was_used(),
            },
        };
        self.allocate(ctx, input);
    }

    /// Requests the allocations that waiting tasks need, and stores the changed queues. Must come
    /// after the round of the scheduler, whose result it uses.
    pub(super) fn settle_queues(&mut self, ctx: &mut Ctx<'_>) {
        // While the server is shutting down, only answers of batch systems count.
        if self.ending.is_none() {
            let is_partial = self.is_demand_partial();
            if std::mem::replace(&mut self.was_demand_partial, is_partial) && !is_partial {
                // The last demand may have been incomplete.
                self.autoalloc.note_change(ctx.now);
            }
            let mut effects = Vec::new();
            self.autoalloc.act(ctx.now, &mut effects);
            self.carry_out_allocation(ctx, effects);
        }
        if let Some(kinds) = self.autoalloc.finish_round() {
            self.offers.set_queues(kinds);
            self.learning.note_offers(ctx.now.mono);
        }
        for queue in std::mem::take(&mut self.changed_queues) {
            let record = self.autoalloc.record(queue).map(Box::new);
            let stored = AllocationChange::QueueStored { queue, record };
            ctx.persist(ChangeKind::Allocation(stored));
        }
    }

    fn carry_out_allocation(&mut self, ctx: &mut Ctx<'_>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::AskDemand(queries) => {
                    let found = self.demand(ctx.now.mono, &queries);
                    self.allocate(ctx, Input::Demand(found));
                }
                Effect::Event(event) => {
                    tracing::debug!(?event, "allocation");
                    ctx.persist(ChangeKind::Allocation(AllocationChange::Event(event)));
                }
                Effect::Changed(queue) => {
                    self.changed_queues.insert(queue);
                }
                Effect::Submit { .. }
                | Effect::Look(_)
                | Effect::Poll { .. }
                | Effect::Cancel { .. }
                | Effect::Retire(_) => ctx.emit(super::Effect::Allocate(effect)),
            }
        }
    }
}
