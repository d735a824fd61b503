//! The ready queue, and the state that rounds need to dispatch its tasks.
//!
//! A task is in the ready queue if and only if it waits and nothing holds it back; very large jobs
//! enter and leave it in portions. [`solve`] decides who gets what; this module keeps its input
//! between rounds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Ctx;
use super::assign::AssignLimit;
use super::portions::{PortionMax, Portions, Unqueued};
use super::reservations::Reservations;
use super::retract::{Retraction, retract_overtaken};
use super::triggers::{ROUND_TASKS_MAX, RoundSize, RoundTriggers};
use crate::class::{Class, ClassId, Classes, Offer, QueueKey};
use crate::id::{JobId, WorkerId};
use crate::job::{Job, TaskSlot};
use crate::range::IndexSet;
use crate::resource::descriptor::ResourceDescriptor;
use crate::resource::request::RequestVariants;
use crate::scheduler::queue::{ReadyQueue, TakenRange};
use crate::scheduler::solve::{GangStart, Placement, RoundInput, RoundPlan, solve};
use crate::scheduler::window::{Window, window};
use crate::time::Time;
use crate::worker::{Worker, Workers};

/// Limit of ranges of a submit that move between queues at once, about a millisecond.
const MOVED_RANGES_MAX: usize = 4_096;

/// The ready queue and everything that rounds remember.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatcher {
    classes: Classes,
    ready: ReadyQueue,
    triggers: RoundTriggers,
    reservations: Reservations,
    retraction: Retraction,
    portions: Portions,
    portion_max: PortionMax,
    /// Most bytes of one assignment.
    assign_limit: AssignLimit,
    last_round: RoundSize,
}

/// One round: its window and its decisions.
pub(super) struct Round {
    window: Window,
    plan: RoundPlan,
}

impl Round {
    /// Multi-node tasks that start.
    pub(super) fn gangs(&self) -> &[GangStart] {
        &self.plan.gangs
    }

    /// Dispatched tasks, in the order of removal from the ready queue.
    pub(super) fn placements(&self) -> &[Placement] {
        &self.plan.placements
    }
}

/// Requests and their relation to offers of workers.
impl Dispatcher {
    /// Interned request classes.
    pub(super) const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The requests of a queue.
    pub(super) fn class(&self, key: QueueKey) -> Option<&Arc<Class>> {
        self.classes.get(key.class)
    }

    /// The class of a request; equal requests share one.
    pub(super) fn intern(&mut self, request: &RequestVariants) -> ClassId {
        self.classes.intern(request)
    }

    /// The offers of a worker, by resource number.
    pub(super) fn offers(&mut self, resources: &ResourceDescriptor) -> Vec<Offer> {
        self.classes.offers(resources)
    }

    /// Queue of a task; see [`crate::job::Submit::queue_key`].
    pub(super) fn queue_key(job: &Job, slot: TaskSlot) -> Option<QueueKey> {
        job.submit(slot)?.queue_key(slot.index)
    }
}

/// The ready queue.
impl Dispatcher {
    /// The ready queue; tasks that enter or leave in portions may be missing or left over, see
    /// [`Self::is_unsettled`].
    pub(super) const fn ready(&self) -> &ReadyQueue {
        &self.ready
    }

    /// Puts tasks into the ready queue.
    pub(super) fn enqueue(&mut self, key: QueueKey, job: JobId, submit: u32, indices: Range<u32>) {
        let is_first = self
            .ready
            .insert(key, job, submit, indices.start, indices.end);
        let class = self.classes.get(key.class);
        // The number of nodes shows which of very many queues could start.
        if let Some(n_nodes) = class.and_then(|class| class.nodes_min()) {
            self.ready.note_multi_node(key, n_nodes);
            self.triggers.note_plans();
        }
        // A new queue may fit any worker; existing ones were tried before.
        if is_first {
            self.triggers.note_ready();
        } else {
            self.triggers.note_more();
        }
    }

    /// Takes tasks out for dispatch.
    pub(super) fn take(&mut self, key: QueueKey, count: u64) -> Vec<TakenRange> {
        self.ready.take(key, count)
    }

    /// Takes all tasks of a submit out of a queue, to move them; `None` = too many ranges, or it
    /// has ended.
    pub(super) fn take_submit(
        &mut self,
        key: QueueKey,
        job: JobId,
        submit: u32,
    ) -> Option<IndexSet> {
        // Leaving tasks are searched queue by queue.
        if self.portions.is_leaving(job, submit) {
            return None;
        }
        self.ready.remove_submit(key, job, submit, MOVED_RANGES_MAX)
    }

    /// Removes a task that ended before its dispatch.
    pub(super) fn remove(&mut self, key: QueueKey, job: JobId, slot: TaskSlot) {
        // It is not there while another task, another job or a delay holds it back.
        self.ready.remove(key, job, slot.submit, slot.index);
    }

    /// The first `submits` submits of a job have ended: their tasks leave the ready queue.
    pub(super) fn leave_queue(&mut self, job: JobId, submits: u32) {
        // First: unqueued tasks would enter the queue after the leaving ones were removed.
        self.portions.forget_unqueued(job);
        if self.portions.leave(&mut self.ready, job, submits) {
            // Rounds left out what else is in these queues.
            self.triggers.note_ready();
        }
        self.note_plans_changed();
    }

    /// Held tasks were released, or all undispatched tasks are back.
    pub(super) const fn note_ready(&mut self) {
        self.triggers.note_ready();
    }
}

/// Work in portions.
impl Dispatcher {
    /// Tasks, submits or jobs of one portion.
    pub(super) const fn portion_max(&self) -> u32 {
        self.portion_max.0
    }

    /// Whether tasks are missing in the ready queue, or ended ones are left over.
    pub(super) fn is_unsettled(&self) -> bool {
        self.portions.is_any_left()
    }

    /// The highest priority at which ended tasks may be left in the ready queue.
    pub(super) fn first_leaving(&self) -> Option<Reverse<i32>> {
        self.portions.first_leaving(&self.ready)
    }

    /// Leaves a submit to be queued in portions; nothing below this priority overtakes it.
    pub(super) fn note_unqueued(&mut self, at: (JobId, u32), priority: i32, is_start: bool) {
        self.portions.note_unqueued(at, priority, is_start);
    }

    /// A submit with tasks that were not examined yet.
    pub(super) fn first_unqueued(&self) -> Option<Unqueued> {
        self.portions.first_unqueued()
    }

    /// Tasks of a submit before `next` were examined; `None` = all.
    pub(super) fn note_looked_at(&mut self, at: (JobId, u32), next: Option<u32>) {
        self.portions.note_looked_at(at, next);
    }

    /// Removes a portion of the ended tasks from the ready queue.
    pub(super) fn leave_portion(&mut self) {
        if self
            .portions
            .leave_portion(&mut self.ready, self.portion_max.0)
        {
            // Rounds left out what else is in these queues.
            self.triggers.note_ready();
        }
    }
}

/// Rounds.
impl Dispatcher {
    /// A worker joins.
    pub(super) fn add_worker(&mut self, worker: &Worker) {
        self.triggers.add(worker);
    }

    /// A worker is gone, with its reservations.
    pub(super) fn forget_worker(
        &mut self,
        worker: WorkerId,
        reservations: impl Iterator<Item = QueueKey>,
    ) {
        self.note_plans_changed();
        self.triggers.forget(worker);
        self.reservations.forget(worker, reservations);
    }

    /// A worker may have room.
    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.triggers.note_room(worker);
    }

    /// Invalidates plans for multi-node tasks after a change of workers or queues.
    pub(super) fn note_plans_changed(&mut self) {
        // Without reserved workers no plan can be outdated.
        if !self.reservations.reserved().is_empty() {
            self.triggers.note_plans();
        }
    }

    /// Time of the next round without further inputs.
    pub(super) fn due_at(&self) -> Option<Time> {
        let times = [self.triggers.due_at(), self.retraction.due_at()];
        times.into_iter().flatten().min()
    }

    /// Size of the last round.
    pub(super) const fn last_round(&self) -> RoundSize {
        self.last_round
    }

    /// Most bytes of one assignment.
    pub(super) const fn assign_limit(&self) -> AssignLimit {
        self.assign_limit
    }

    /// Plans one round and applies its reservations of workers; `None` = nothing to plan.
    pub(super) fn plan(&mut self, now: Time, workers: &mut Workers) -> Option<Round> {
        self.last_round = RoundSize::default();
        let is_everyone = self.triggers.begin(workers);
        // Before the window is chosen, which uses the index.
        self.ready.follow(&self.classes);
        let has_gangs = self.ready.has_multi_node();
        if !has_gangs {
            self.triggers.drop_plans();
            // Workers reserved for the last of them are free.
            self.reserve_workers(workers, &BTreeMap::new());
        }
        let with_gangs = has_gangs && self.triggers.are_plans_due(now, is_everyone, workers);
        // No tasks, or no workers with room.
        if self.ready.is_empty() || !with_gangs && !self.triggers.has_room() {
            return None;
        }
        // They return tasks that have not started, and count as the nodes that they will be.
        if with_gangs {
            let reserved = self.reservations.reserved().iter().copied();
            self.triggers.note_rooms(reserved);
        }
        let cluster = (&self.classes, workers.live());
        let how = (with_gangs, self.triggers.search_widened());
        let mut window = window(&self.ready, cluster, self.triggers.rooms(), how, now);
        // Nothing may overtake tasks that are still on their way into the queue.
        self.portions.narrow(&mut window, &self.ready);
        let plan = solve(&RoundInput {
            queues: &window.queues,
            classes: &self.classes,
            workers: workers.live(),
            rooms: &window.rooms,
            reservation_counts: self.reservations.counts(),
            reservation_cursor: self.reservations.cursor(),
            with_gangs,
            tasks_max: ROUND_TASKS_MAX,
            now,
        });
        self.last_round = RoundSize {
            workers: window.rooms.len(),
            queues: window.queues.len(),
            with_gangs,
            gangs: plan.gangs.len(),
        };
        if with_gangs {
            // A round without multi-node tasks cannot decide these reservations.
            self.reserve_workers(workers, &plan.reserved);
        }
        Some(Round { window, plan })
    }

    fn reserve_workers(&mut self, workers: &mut Workers, wanted: &BTreeMap<WorkerId, QueueKey>) {
        let freed = self.reservations.reserve_workers(workers, wanted);
        self.triggers.note_rooms(freed);
    }

    /// Applies the reservations of a round, and retracts tasks in their way.
    pub(super) fn update_reservations(
        &mut self,
        ctx: &mut Ctx<'_>,
        workers: &mut Workers,
        Round { plan, .. }: &Round,
    ) {
        self.reservations
            .update(ctx, workers, &plan.reservations, plan.reservation_cursor);
        for (worker, queues) in &plan.overtaken {
            retract_overtaken(ctx, workers, *worker, queues);
        }
    }

    /// Sets since when dispatched tasks may be unsent.
    pub(super) const fn note_unsent(&mut self, since: Option<Time>) {
        self.retraction.note_unsent(since);
    }

    /// Ends a round; `has_handed_out` = some workers got tasks.
    pub(super) fn end_round(
        &mut self,
        now: Time,
        workers: &Workers,
        round: &Round,
        has_handed_out: bool,
    ) {
        // A task that was counted as fitting can turn out not to fit.
        if has_handed_out {
            self.retraction.note_handed_out(now);
        }
        let tried = round.window.rooms.keys();
        for worker in tried.filter_map(|id| workers.get(*id)) {
            self.retraction.note_tried(worker);
        }
        let is_over = self.ready.is_empty();
        self.triggers
            .note_round(now, &round.window, &round.plan, is_over);
    }

    /// Ends scheduling after a batch of inputs: retracts tasks where others wait for the room.
    /// `has_more` = other work is due at once.
    pub(super) fn finish(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers, has_more: bool) {
        let now = ctx.now.mono;
        if has_more
            || self.ready.is_behind()
            || self.ready.is_freeing()
            || self.portions.is_any_left()
        {
            self.triggers.go_on(now);
        }
        if self.reservations.drain_reserved(ctx, workers) {
            self.triggers.go_on(now);
        }
        // Workers with room after the round found nothing in the queue: only other workers'
        // backlogs can help.
        let has_room = self.triggers.has_room();
        self.retraction
            .rebalance_in_time(ctx, workers, &self.classes, has_room);
    }
}

/// For tests.
#[cfg(any(test, feature = "testing"))]
impl Dispatcher {
    pub(super) const fn limit_assignments(&mut self, bytes: usize) {
        self.assign_limit.0 = bytes;
    }

    pub(super) const fn limit_portions(&mut self, count: u32) {
        self.portion_max.0 = count;
    }

    /// Panics unless a task is in the ready queue if and only if it should be; it may be late while
    /// a portion of its submit is left.
    pub(super) fn check_task(&self, job: &Job, slot: TaskSlot, should_be_ready: bool) {
        let is_ready = Self::queue_key(job, slot)
            .is_some_and(|key| self.ready.contains(key, job.id, slot.submit, slot.index));
        let is_late = if is_ready {
            self.portions.is_leaving(job.id, slot.submit)
        } else {
            self.portions.is_unqueued(job.id, slot)
        };
        assert!(
            is_ready == should_be_ready || is_late,
            "task {slot:?} of job {} is ready exactly if it waits unblocked",
            job.id
        );
    }

    /// Panics unless what is remembered agrees with the workers.
    pub(super) fn check(&self, workers: &Workers) {
        workers.check(&self.classes);
        self.reservations.check(workers);
    }
}
