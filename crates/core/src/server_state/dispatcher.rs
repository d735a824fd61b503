//! The ready queue, and the input that rounds need to hand out its tasks.
//!
//! A task is in the ready queue exactly if it waits and nothing holds it back; very large jobs get there and leave in
//! portions. Who may get what is decided by [`solve`], of which this keeps the input between rounds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Ctx;
use super::assign::AssignLimit;
use super::draft::Prepared;
use super::portions::{PortionMax, Portions, Unqueued};
use super::reservations::Reservations;
use super::retract::{Retraction, retract_overtaken};
use super::triggers::{ROUND_TASKS_MAX, RoundSize, RoundTriggers};
use crate::class::{Class, ClassId, Classes, Offer, QueueKey};
use crate::id::{JobId, WorkerId};
use crate::job::{Job, SharedTemplate, Submit, TaskSlot};
use crate::range::IndexSet;
use crate::resource::descriptor::ResourceDescriptor;
use crate::resource::request::RequestVariants;
use crate::scheduler::queue::{ReadyQueue, TakenRange};
use crate::scheduler::solve::{GangStart, Placement, RoundInput, RoundPlan, solve};
use crate::scheduler::window::{Window, window};
use crate::time::Time;
use crate::worker::{Worker, Workers};

/// Pieces of a submit that are moved from one queue to another at once, in about a millisecond.
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

/// One round: what it looked at, and what it decided.
pub(super) struct Round {
    window: Window,
    plan: RoundPlan,
}

impl Round {
    /// Multi-node tasks that start.
    pub(super) fn gangs(&self) -> &[GangStart] {
        &self.plan.gangs
    }

    /// Tasks that are handed out, in the order in which they are to be taken from the ready queue.
    pub(super) fn placements(&self) -> &[Placement] {
        &self.plan.placements
    }
}

/// Requests and what offers of workers mean for them.
impl Dispatcher {
    /// Interned request classes.
    pub(super) const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The requests of a queue.
    pub(super) fn class(&self, key: QueueKey) -> Option<&Arc<Class>> {
        self.classes.get(key.class)
    }

    /// Numbers a request; equal ones have one number.
    pub(super) fn intern(&mut self, request: &RequestVariants) -> ClassId {
        self.classes.intern(request)
    }

    /// The offers of a worker, by resource number.
    pub(super) fn offers(&mut self, resources: &ResourceDescriptor) -> Vec<Offer> {
        self.classes.offers(resources)
    }

    /// Queue of a task.
    pub(super) fn queue_key(job: &Job, slot: TaskSlot) -> Option<QueueKey> {
        let template = job.submit(slot)?.template(slot.index)?;
        Some(QueueKey::new(template.task.priority, template.class))
    }
}

/// The ready queue.
impl Dispatcher {
    /// The ready queue; tasks that are on their way in or out may be missing or left over, see [`Self::is_unsettled`].
    pub(super) const fn ready(&self) -> &ReadyQueue {
        &self.ready
    }

    /// Puts tasks into the ready queue.
    pub(super) fn enqueue(&mut self, key: QueueKey, job: JobId, submit: u32, indices: Range<u32>) {
        let is_first = self
            .ready
            .insert(key, job, submit, indices.start, indices.end);
        let class = self.classes.get(key.class);
        // The number of nodes tells which of very many queues could start.
        if let Some(n_nodes) = class.and_then(|class| class.nodes_min()) {
            self.ready.note_multi_node(key, n_nodes);
            self.triggers.note_plans();
        }
        // A queue that was empty may have something for any worker; others were tried before.
        if is_first {
            self.triggers.note_ready();
        } else {
            self.triggers.note_more();
        }
    }

    /// Takes tasks out to hand them out.
    pub(super) fn take(&mut self, key: QueueKey, count: u64) -> Vec<TakenRange> {
        self.ready.take(key, count)
    }

    /// Takes all of a submit out of a queue, to be put into another one; `None` = it is in too many pieces, or has ended.
    pub(super) fn take_submit(
        &mut self,
        key: QueueKey,
        job: JobId,
        submit: u32,
    ) -> Option<IndexSet> {
        // Tasks that leave are looked for queue by queue.
        if self.portions.is_leaving(job, submit) {
            return None;
        }
        self.ready.remove_submit(key, job, submit, MOVED_RANGES_MAX)
    }

    /// A task has ended before it was handed out.
    pub(super) fn remove(&mut self, key: QueueKey, job: JobId, slot: TaskSlot) {
        // It is not there while another task, another job or a delay holds it back.
        self.ready.remove(key, job, slot.submit, slot.index);
    }

    /// The first `submits` submits of a job have ended: their tasks leave the ready queue.
    pub(super) fn leave_queue(&mut self, job: JobId, submits: u32) {
        // First: what is not queued yet would get into the queue behind those that leave.
        self.portions.forget_unqueued(job);
        if self.portions.leave(&mut self.ready, job, submits) {
            // Rounds left out what else is in these queues.
            self.triggers.note_ready();
        }
        self.note_plans_changed();
    }

    /// Held tasks are ready now, or all tasks that were not handed out are there again.
    pub(super) const fn note_ready(&mut self) {
        self.triggers.note_ready();
    }
}

/// Work in portions.
impl Dispatcher {
    /// Tasks, templates or jobs of one portion.
    pub(super) const fn portion_max(&self) -> u32 {
        self.portion_max.0
    }

    /// Whether something is left to do in portions.
    #[cfg(test)]
    pub(super) fn is_any_portion_left(&self) -> bool {
        self.portions.is_any_left()
    }

    /// Whether tasks are missing in the ready queue, or some are there that have ended.
    pub(super) fn is_unsettled(&self) -> bool {
        self.portions.is_queue_unsettled()
    }

    /// The highest priority of which the ready queue may have tasks that have ended.
    pub(super) fn first_leaving(&self) -> Option<Reverse<i32>> {
        self.portions.first_leaving(&self.ready)
    }

    /// Leaves a submit to be queued in portions.
    pub(super) fn note_unqueued(&mut self, at: (JobId, u32), submit: &Submit, is_start: bool) {
        self.portions.note_unqueued(at, submit, is_start);
    }

    /// A submit of which not every task was looked at.
    pub(super) fn first_unqueued(&self) -> Option<Unqueued> {
        self.portions.first_unqueued()
    }

    /// Tasks of a submit before `next` were looked at; `None` = all.
    pub(super) fn note_looked_at(&mut self, at: (JobId, u32), next: Option<u32>) {
        self.portions.note_looked_at(at, next);
    }

    /// Leaves the templates of these submits to be dropped by these workers.
    pub(super) fn note_dropped(
        &mut self,
        workers: impl Iterator<Item = WorkerId>,
        submits: &[Submit],
    ) {
        self.portions.note_dropped(workers, submits);
    }

    /// Leaves a forgotten job to be freed.
    pub(super) fn discard_job(&mut self, job: Job) {
        self.portions.discard_job(job);
    }

    /// Leaves templates to be freed.
    pub(super) fn discard(&mut self, templates: Vec<Arc<SharedTemplate>>) {
        self.portions.discard(templates);
    }

    /// Leaves a submit that is refused to be freed.
    pub(super) fn discard_refused(&mut self, prepared: Prepared) {
        self.portions.discard_refused(prepared);
    }

    /// Does one portion of what needs no job.
    pub(super) fn do_portion(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers) {
        let most = self.portion_max.0;
        if self.portions.leave_portion(&mut self.ready, most) {
            // Rounds left out what else is in these queues.
            self.triggers.note_ready();
        }
        self.portions.drop_portion(ctx, workers);
        self.portions.free_portion(most);
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

    /// Something happened to a worker or a queue that may be part of a plan for multi-node tasks.
    pub(super) fn note_plans_changed(&mut self) {
        // Without reserved workers there is no plan that could be wrong.
        if !self.reservations.reserved().is_empty() {
            self.triggers.note_plans();
        }
    }

    /// When the next round is due without any other input.
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

    /// Plans one round, and reserves workers as it says; `None` = there is nothing to plan.
    pub(super) fn plan(&mut self, now: Time, workers: &mut Workers) -> Option<Round> {
        self.last_round = RoundSize::default();
        let is_everyone = self.triggers.begin(workers);
        // Before the window is chosen: it looks requests up in the index.
        self.ready.follow(&self.classes);
        let has_gangs = self.ready.has_multi_node();
        if !has_gangs {
            self.triggers.drop_plans();
            // Workers that were reserved for the last of them are free.
            self.reserve_workers(workers, &BTreeMap::new());
        }
        let with_gangs = has_gangs && self.triggers.are_plans_due(now, is_everyone, workers);
        // Nothing to give, or nobody to give it to.
        if self.ready.is_empty() || !with_gangs && !self.triggers.has_room() {
            return None;
        }
        // They give up what they have not started, and are looked at as the nodes that they will be.
        if with_gangs {
            let reserved = self.reservations.reserved().iter().copied();
            self.triggers.note_rooms(reserved);
        }
        let cluster = (&self.classes, workers.live());
        let how = (with_gangs, self.triggers.search_widened());
        let mut window = window(&self.ready, cluster, self.triggers.rooms(), how, now);
        // Nothing may overtake what is still on its way into the queue.
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
            // A round that did not look for nodes does not know who should stay reserved.
            self.reserve_workers(workers, &plan.reserved);
        }
        Some(Round { window, plan })
    }

    fn reserve_workers(&mut self, workers: &mut Workers, wanted: &BTreeMap<WorkerId, QueueKey>) {
        let freed = self.reservations.reserve_workers(workers, wanted);
        self.triggers.note_rooms(freed);
    }

    /// Takes over what a round decided that workers keep room for, and retracts what is in the way.
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

    /// What was handed out since then may not have been sent yet.
    pub(super) const fn note_unsent(&mut self, since: Option<Time>) {
        self.retraction.note_unsent(since);
    }

    /// A round was carried out; `has_handed_out` = some workers were given something.
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

    /// Ends scheduling after a batch of inputs: takes tasks back where others wait for the room. `has_more` = there is
    /// other work to be done at once.
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
        // Workers with room behind the round found nothing in the queue: only backlogs of others can
        // help.
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

    /// Panics unless a task is in the ready queue exactly if it should be; while a portion of its submit is left to
    /// be done it may be late.
    pub(super) fn check_task(&self, job: &Job, slot: TaskSlot, should_be_ready: bool) {
        let key = Self::queue_key(job, slot).expect("every task has a template");
        let is_ready = self.ready.contains(key, job.id, slot.submit, slot.index);
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
