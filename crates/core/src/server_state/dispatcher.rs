//! The ready queue, and the state that rounds need to dispatch its tasks.
//!
//! A task is in the ready queue if and only if it waits and nothing holds it back. [`solve`]
//! decides which tasks go to which worker. This module keeps the input of [`solve`] between rounds.
//!
//! A graph of very many tasks enters the ready queue in portions, so that no request waits long.
//! Until the graph is complete, nothing less urgent than its missing tasks is dispatched. In the
//! same way, tasks of a large job that have ended leave the queue in portions. Until all of them
//! have left, only tasks more urgent than the first of them are dispatched.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Ctx;
use super::assign::AssignLimit;
use super::reservations::Reservations;
use super::retract::{Retraction, retract_overtaken};
use super::triggers::{ROUND_TASKS_MAX, RoundSize, RoundTriggers};
use crate::bug;
use crate::class::{Class, ClassId, Classes, Offer, QueueKey};
use crate::id::{JobId, WorkerId};
use crate::job::{Job, SubmitAt, TaskAt, TaskSlot};
use crate::range::IndexSet;
use crate::resource::descriptor::ResourceDescriptor;
use crate::resource::request::RequestVariants;
use crate::scheduler::queue::{ReadyQueue, TakenRange};
use crate::scheduler::solve::{GangStart, Placement, RoundInput, RoundPlan, solve};
use crate::scheduler::task_limits::TaskLimits;
use crate::scheduler::window::{Window, WindowInput, window};
use crate::time::Time;
#[cfg(any(test, feature = "testing"))]
use crate::worker::Turn;
use crate::worker::{LostWorker, Worker, Workers};

/// The size of a portion, in examined tasks of graphs, tasks removed from the queue, submits or
/// jobs. Each takes about 2 µs.
const PORTION_MAX: u32 = 1_024;

/// The maximum number of ranges of a submit that move between queues at once. This takes about a
/// millisecond.
const MOVED_RANGES_MAX: usize = 4_096;

/// The ready queue and the state that rounds need.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatcher {
    classes: Classes,
    ready: ReadyQueue,
    triggers: RoundTriggers,
    reservations: Reservations,
    retraction: Retraction,
    /// The submits with tasks that have not been examined yet.
    unqueued: BTreeMap<SubmitAt, Unqueued>,
    /// The jobs with ended tasks in the ready queue.
    leaving: BTreeMap<JobId, Leaving>,
    /// The number of tasks that may still leave the ready queue in this batch.
    leave_left: usize,
    /// A smaller value than [`PORTION_MAX`], for tests.
    portion_max: Option<u32>,
    /// The maximum size of an assignment in bytes.
    assign_limit: AssignLimit,
    last_round: RoundSize,
}

/// The unexamined tasks of a submit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unqueued {
    /// The index of the first unexamined task.
    pub(super) next: u32,
    /// Whether the tasks may include some that were ready before and are in no queue, after a
    /// submit, a restart or a release.
    pub(super) is_start: bool,
    /// The highest priority of the submit. For a blocked submit, this is the lowest possible
    /// priority.
    pub(super) most_urgent: Reverse<i32>,
}

/// The tasks of a job that must leave the ready queue.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// The number of submits whose tasks leave, counted from the first. Later submits stay.
    submits: u32,
    /// The last queue from which the tasks have been removed.
    done_to: Option<QueueKey>,
    /// Whether the job is forgotten when its tasks have left.
    is_forgotten: bool,
}

/// One scheduling round: its window and its decisions.
pub(super) struct Round {
    window: Window,
    plan: RoundPlan,
}

impl Round {
    /// Returns the multi-node tasks that start.
    pub(super) fn gangs(&self) -> &[GangStart] {
        &self.plan.gangs
    }

    /// Returns the dispatched tasks, in the order they are removed from the ready queue.
    pub(super) fn placements(&self) -> &[Placement] {
        &self.plan.placements
    }
}

/// Requests and their relation to the offers of workers.
impl Dispatcher {
    /// Returns the interned request classes.
    pub(super) const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns the requests of a queue.
    pub(super) fn class(&self, key: QueueKey) -> Option<&Arc<Class>> {
        self.classes.get(key.class)
    }

    /// Returns the class of a request. Equal requests share one class.
    pub(super) fn intern(&mut self, request: &RequestVariants) -> ClassId {
        self.classes.intern(request)
    }

    /// Returns the offers of a worker, by resource number.
    pub(super) fn offers(&mut self, resources: &ResourceDescriptor) -> Vec<Offer> {
        self.classes.offers(resources)
    }

    /// Returns the queue of a task; see [`crate::job::Submit::queue_key`].
    pub(super) fn queue_key(job: &Job, slot: TaskSlot) -> Option<QueueKey> {
        job.submit(slot)?.queue_key(slot.index)
    }
}

/// The ready queue.
impl Dispatcher {
    /// Returns the ready queue. Tasks that enter or leave in portions may be missing or left over;
    /// see [`Self::is_unsettled`].
    pub(super) const fn ready(&self) -> &ReadyQueue {
        &self.ready
    }

    /// Puts tasks into the ready queue.
    pub(super) fn enqueue(&mut self, key: QueueKey, at: SubmitAt, indices: Range<u32>) {
        let Range { start, end } = indices;
        let is_first = self.ready.insert(key, at.job, at.number, start, end);
        let class = self.classes.get(key.class);
        // The number of nodes shows which of very many queues could start a task.
        if let Some(n_nodes) = class.and_then(|class| class.nodes_min()) {
            self.ready.note_multi_node(key, n_nodes);
            self.triggers.note_plans();
        }
        // A new queue may fit any worker. Existing queues were tried before.
        if is_first {
            self.triggers.note_ready();
        } else {
            self.triggers.note_more();
        }
    }

    /// Takes tasks out of the ready queue for dispatch, and the places of their limits. `starts`
    /// says whether they start now.
    pub(super) fn take(&mut self, key: QueueKey, count: u64, starts: bool) -> Vec<TakenRange> {
        let taken = self.ready.take(key, count, starts);
        let found: u64 = taken
            .iter()
            .map(|range| u64::from(range.to - range.from))
            .sum();
        // Two queues share a limit, and the round saw the same free places for both. The room is
        // still free for other tasks.
        if found < count && starts {
            self.triggers.note_ready();
        }
        taken
    }

    /// Takes all tasks of a submit out of a queue in order to move them. Returns `None` if there
    /// are too many ranges or the submit has ended.
    pub(super) fn take_submit(&mut self, key: QueueKey, at: SubmitAt) -> Option<IndexSet> {
        // Tasks that leave in portions are searched for queue by queue.
        if self.is_leaving(at) {
            return None;
        }
        self.ready
            .remove_submit(key, at.job, at.number, MOVED_RANGES_MAX)
    }

    /// Removes a task that ended before its dispatch.
    pub(super) fn remove(&mut self, key: QueueKey, at: TaskAt) {
        // The task is not in the queue while another task, another job, a delay or a user holds it
        // back.
        self.ready
            .remove(key, at.job, at.slot.submit, at.slot.index);
    }

    /// Removes tasks of a job, given by submit, from the ready queue.
    pub(super) fn remove_tasks(&mut self, job: JobId, tasks: &BTreeMap<u32, IndexSet>) {
        self.ready.remove_tasks(job, tasks);
        // These tasks may have hidden other tasks from rounds, and nodes may be reserved for them.
        self.triggers.note_ready();
        self.note_plans_changed();
    }

    /// Removes the tasks of the first `submits` submits of a job, which have ended, from the ready
    /// queue.
    pub(super) fn leave_queue(&mut self, job: JobId, submits: u32) {
        // Unqueued tasks must be dropped first. Otherwise they would enter the queue after the
        // leaving ones were removed.
        self.unqueued.retain(|at, _| at.job != job);
        let leaving = Leaving {
            submits,
            done_to: None,
            is_forgotten: false,
        };
        let was_leaving = self.leaving.insert(job, leaving).is_some();
        // If many jobs end at once, the first may use up the rest of this batch.
        let has_left = self.leave(job);
        // Earlier rounds left out the other tasks in these queues, or kept room for these tasks.
        if has_left && was_leaving || !self.reservations.counts().is_empty() {
            self.triggers.note_ready();
        }
        self.note_plans_changed();
    }

    /// Notes that held tasks were released, or that all undispatched tasks are back.
    pub(super) const fn note_ready(&mut self) {
        self.triggers.note_ready();
    }
}

/// Limits of tasks.
impl Dispatcher {
    /// Returns the limits, and the places that tasks take.
    pub(super) const fn limits(&self) -> &TaskLimits {
        self.ready.limits()
    }

    /// Returns the limits, to change them. The next round sees the changes.
    pub(super) const fn limits_mut(&mut self) -> &mut TaskLimits {
        self.ready.limits_mut()
    }

    /// Notes how many tasks with limits may start now. This must follow each change of places.
    pub(super) fn update_limits(&mut self, now: Time) {
        // The tasks that may start now may fit on any worker.
        if self.ready.update_limits(now) {
            self.triggers.note_ready();
        }
    }

    /// Gives a submit another limit set, after the limits of its job have changed.
    pub(super) fn move_submits(&mut self, job: JobId, submits: &[SubmitAt]) {
        self.ready.move_submits(job, submits);
    }

    /// Takes the next task of a submit to send it behind another one; see
    /// [`ReadyQueue::take_behind`].
    pub(super) fn take_behind(
        &mut self,
        key: QueueKey,
        at: SubmitAt,
        behind: u32,
        allowed: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        self.ready.take_behind(key, at, behind, allowed)
    }

    /// Forgets a job that has ended.
    pub(super) fn forget_job(&mut self, job: JobId) {
        match self.leaving.get_mut(&job) {
            // Its tasks are found by their limits.
            Some(leaving) => leaving.is_forgotten = true,
            None => self.ready.limits_mut().forget_job(job),
        }
    }
}

/// Work that is done in portions.
impl Dispatcher {
    /// Returns the number of tasks, submits or jobs in one portion.
    pub(super) fn portion_max(&self) -> u32 {
        self.portion_max.unwrap_or(PORTION_MAX)
    }

    /// Returns whether tasks are missing in the ready queue, or ended tasks are left over in it.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unqueued.is_empty() || !self.leaving.is_empty()
    }

    /// Notes that a submit must be queued in portions.
    pub(super) fn note_unqueued(&mut self, at: SubmitAt, rest: Unqueued) {
        // A pass in progress continues where it is, unless earlier tasks were blocked until now.
        let known = self.unqueued.entry(at).or_insert(rest);
        let is_new = rest.is_start && !known.is_start;
        if known.most_urgent != rest.most_urgent
            || is_new
            || rest.is_start && rest.next < known.next
        {
            *known = rest;
        }
    }

    /// Takes a submit with tasks that have not been examined yet.
    pub(super) fn take_unqueued(&mut self) -> Option<(SubmitAt, Unqueued)> {
        self.unqueued.pop_first()
    }

    /// Returns the highest priority at which ended tasks may be left in the ready queue.
    pub(super) fn first_leaving(&self) -> Option<Reverse<i32>> {
        let leaving = self.leaving.iter();
        let next = leaving.filter_map(|(id, leaving)| self.ready.next_of(*id, leaving.done_to));
        next.map(|key| key.priority).min()
    }

    /// Returns whether an ended task of this submit may be in the ready queue.
    fn is_leaving(&self, at: SubmitAt) -> bool {
        let leaving = self.leaving.get(&at.job);
        leaving.is_some_and(|leaving| at.number < leaving.submits)
    }

    /// Removes a portion of the ended tasks from the ready queue.
    pub(super) fn leave_portion(&mut self) {
        self.leave_left = self.portion_max() as usize;
        while let Some((id, _)) = self.leaving.first_key_value()
            && self.leave(*id)
        {
            // Earlier rounds left out the other tasks in these queues.
            self.triggers.note_ready();
        }
    }

    /// Removes some tasks of a job from the ready queue. Returns whether no more are left.
    fn leave(&mut self, id: JobId) -> bool {
        let Some(leaving) = self.leaving.get_mut(&id) else {
            bug!("job {id} does not leave the ready queue");
            return true;
        };
        let (done_to, left) = (&mut leaving.done_to, &mut self.leave_left);
        let is_done = self.ready.remove_some(id, leaving.submits, done_to, left);
        if is_done
            && self
                .leaving
                .remove(&id)
                .is_some_and(|leaving| leaving.is_forgotten)
        {
            self.ready.limits_mut().forget_job(id);
        }
        is_done
    }

    /// Removes from a round the queues that are less urgent than a possibly missing task, and the
    /// queues that may contain ended tasks.
    fn narrow(&self, window: &mut Window) {
        let urgencies = self.unqueued.values().map(|rest| rest.most_urgent);
        // A missing task may have this priority, so nothing less urgent may be dispatched first.
        if let Some(most_urgent) = urgencies.min() {
            window.queues.retain(|(key, _)| key.priority <= most_urgent);
            window.is_behind = true;
        }
        // The counts of these queues include tasks that have ended.
        if let Some(first) = self.first_leaving() {
            window.queues.retain(|(key, _)| key.priority < first);
            window.is_behind = true;
        }
    }
}

/// Scheduling rounds.
impl Dispatcher {
    /// Adds a worker that has joined.
    pub(super) fn add_worker(&mut self, worker: &Worker) {
        self.triggers.add(worker);
    }

    /// Forgets a worker that has ended, with its reservations.
    pub(super) fn forget_worker(&mut self, lost: &LostWorker) {
        self.note_plans_changed();
        self.triggers.forget(lost.id);
        let reservations = lost.reservations.iter().copied();
        self.reservations.forget(lost.id, reservations);
    }

    /// Notes that a worker may have room.
    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.triggers.note_room(worker);
    }

    /// Invalidates plans for multi-node tasks after workers or queues have changed.
    pub(super) fn note_plans_changed(&mut self) {
        // Without reserved workers, no plan can be outdated.
        if !self.reservations.reserved().is_empty() {
            self.triggers.note_plans();
        }
    }

    /// Returns the time of the next round if no further inputs arrive.
    pub(super) fn due_at(&self) -> Option<Time> {
        let limits = self.ready.limits().due_at();
        let times = [self.triggers.due_at(), self.retraction.due_at(), limits];
        times.into_iter().flatten().min()
    }

    /// Returns the size of the last round.
    pub(super) const fn last_round(&self) -> RoundSize {
        self.last_round
    }

    /// Returns the maximum size of an assignment in bytes.
    pub(super) const fn assign_limit(&self) -> AssignLimit {
        self.assign_limit
    }

    /// Plans one round and applies the plan's reservations of workers. Returns `None` if there is
    /// nothing to plan.
    pub(super) fn plan(&mut self, now: Time, workers: &mut Workers) -> Option<Round> {
        self.last_round = RoundSize::default();
        self.update_limits(now);
        let is_everyone = self.triggers.begin(workers);
        // This must happen before the window is chosen, which uses the index.
        self.ready.follow(&self.classes);
        let has_gangs = self.ready.has_multi_node();
        if !has_gangs {
            self.triggers.drop_plans();
            // Workers that were reserved for the last multi-node task are free.
            self.reserve_workers(workers, &BTreeMap::new());
        }
        let with_gangs = has_gangs && self.triggers.are_plans_due(now, is_everyone, workers);
        // There are no tasks, or no workers with room.
        if self.ready.is_empty() || !with_gangs && !self.triggers.has_room() {
            return None;
        }
        // Reserved workers return tasks that have not started, and count as the nodes that they
        // will become.
        if with_gangs {
            let reserved = self.reservations.reserved().iter().copied();
            self.triggers.note_rooms(reserved);
        }
        let input = WindowInput {
            ready: &self.ready,
            classes: &self.classes,
            workers: workers.live(),
            with_gangs,
            widened: self.triggers.search_widened(),
            now,
        };
        let mut window = window(input, self.triggers.rooms());
        // Nothing may overtake tasks that are still entering the queue.
        self.narrow(&mut window);
        let keys = window.queues.iter().map(|(key, _)| *key);
        let plan = solve(&RoundInput {
            queues: &window.queues,
            ahead: &self.ready.ahead(keys),
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

    /// Applies the reservations of a round, and retracts tasks that conflict with them.
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

    /// Sets the time since which dispatched tasks may be unsent.
    pub(super) const fn note_unsent(&mut self, since: Option<Time>) {
        self.retraction.note_unsent(since);
    }

    /// Ends a round. `has_handed_out` says whether some workers got tasks.
    pub(super) fn end_round(
        &mut self,
        now: Time,
        workers: &Workers,
        round: &Round,
        has_handed_out: bool,
    ) {
        // A task that was counted as fitting may turn out not to fit.
        if has_handed_out {
            self.retraction.note_handed_out(now);
        }
        let tried = round.window.rooms.keys();
        for worker in tried.filter_map(|id| workers.get(*id)) {
            self.retraction.note_tried(worker);
        }
        let is_over = self.ready.is_empty();
        self.triggers
            .note_round(now, &round.window, &round.plan, has_handed_out, is_over);
    }

    /// Ends scheduling after a batch of inputs. Retracts tasks from workers where other tasks wait
    /// for the room. `has_more` says whether other work is due immediately.
    pub(super) fn finish(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers, has_more: bool) {
        let now = ctx.now.mono;
        let has_more = has_more || self.triggers.examines_all();
        if has_more || self.ready.is_behind() || self.ready.is_freeing() || self.is_unsettled() {
            self.triggers.go_on(now);
        }
        if self.reservations.drain_reserved(ctx, workers) {
            self.triggers.go_on(now);
        }
        // Workers that have room after the round found nothing in the queue. They can only be
        // filled from the backlogs of other workers.
        let has_room = self.triggers.has_room();
        self.retraction
            .rebalance_in_time(ctx, workers, &self.classes, has_room);
    }
}

/// Methods for tests.
#[cfg(any(test, feature = "testing"))]
impl Dispatcher {
    pub(super) const fn limit_assignments(&mut self, bytes: usize) {
        self.assign_limit.0 = bytes;
    }

    pub(super) const fn limit_portions(&mut self, count: u32) {
        self.portion_max = Some(count);
    }

    /// Panics unless a task is in the ready queue if and only if it should be. The task may be late
    /// while a portion of its submit is left.
    pub(super) fn check_task(&self, job: &Job, slot: TaskSlot, should_be_ready: bool) {
        let is_ready = Self::queue_key(job, slot)
            .is_some_and(|key| self.ready.contains(key, job.id, slot.submit, slot.index));
        let is_late = if is_ready {
            self.is_leaving(slot.of(job.id).submit())
        } else {
            let rest = self.unqueued.get(&slot.of(job.id).submit());
            rest.is_some_and(|rest| slot.index >= rest.next)
        };
        assert!(
            is_ready == should_be_ready || is_late,
            "task {slot:?} of job {} is ready exactly if it waits unblocked",
            job.id
        );
    }

    /// Panics unless the dispatcher's state agrees with the workers.
    pub(super) fn check(&self, workers: &Workers) {
        workers.check(&self.classes);
        self.reservations.check(workers);
        self.ready.check();
        let assigned = workers.live().values().flat_map(Worker::assigned);
        let placed = assigned.filter(|(_, assigned)| assigned.turn == Turn::Now);
        self.limits()
            .check(placed.map(|(task, assigned)| (task.job, assigned.limits)));
    }
}
