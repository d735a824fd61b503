//! Sends tasks ahead of their turn: to the same worker as their predecessor, and together with it.
//!
//! Between the end of a task and the start of its dependent, there is a round trip to the server
//! and the work of the server. This takes as long as a short program runs. In a *stretch* of a
//! graph, each task is the only dependent of the previous task, so nothing else needs the previous
//! task's end first. The first few tasks of a stretch are therefore sent together, each with the
//! instance of its predecessor, and the worker starts each task when its predecessor has finished.
//!
//! If the limits of a submit let no more of its tasks run, the next ones are sent behind its
//! running tasks in the same way, and take over their places.
//!
//! A successor takes the place of its predecessor: it has the same request, and before its turn it
//! counts neither as placed nor as backlog ([`Turn`]). If the predecessor does not finish on the
//! worker, the worker returns the successor. Successors are only sent
//!
//! - to a worker that keeps task ends until they are stored, because a successor starts before the
//!   previous end is committed (see [`super::gate`]), or to any worker if nothing is stored;
//! - while tasks of the job take less than a tenth of a second on average. The worker returns
//!   successors that wait longer, because no round takes them into account and more urgent tasks
//!   may arrive;
//! - while no other task could use the room. Otherwise the room would not be idle, and one long
//!   chain must not occupy a worker alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::assign::{AssignBatch, Run, assignment, name_task};
use super::schedule::send;
use super::{AwaitedEnds, Ctx, Dispatcher, ServerState, WorkerCommand};
use crate::bound::{SetId, UNLIMITED};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::{Job, Jobs, TaskAt, TaskSlot};
use crate::scheduler::solve::Placement;
use crate::task::Phase;
use crate::template::{CrashLimit, TaskTemplate};
use crate::time::Time;
use crate::worker::{Assigned, Turn, Worker, Workers};
use crate::worker_state::SUCCESSOR_PATIENCE;

/// The number of tasks of a stretch that are sent at once. At most twice as many are on the worker,
/// because the worker runs one portion while the next one is on its way.
const PORTION: u32 = 16;

/// The number of queues examined to find out whether other tasks could use the room. If there are
/// more queues, other tasks are assumed to use it.
const QUEUES_LOOKED_AT: usize = 64;

/// The tasks whose successors can be sent.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    found: Vec<(WorkerId, TaskAt)>,
    /// The task that was sent behind each task because of its limits.
    behind: BTreeMap<TaskAt, TaskAt>,
    /// The reverse of `behind`.
    before: BTreeMap<TaskAt, TaskAt>,
    /// The entries of `behind` whose first task has ended since the last call of
    /// [`ServerState::send_successors`].
    ended: BTreeMap<TaskAt, TaskAt>,
    portion: u32,
    /// The maximum mean run time of a job's tasks at which successors are sent.
    run_max: Duration,
}

/// A task to send behind another task of its job.
struct Successor {
    at: TaskAt,
    turn: Turn,
    awaits: AwaitedEnds,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            behind: BTreeMap::new(),
            before: BTreeMap::new(),
            ended: BTreeMap::new(),
            portion: PORTION,
            run_max: SUCCESSOR_PATIENCE,
        }
    }
}

impl Heads {
    /// Notes a dispatched task. A task that may itself have to wait on its worker gets no
    /// successors there.
    pub(super) fn note_handed_out(
        &mut self,
        placement: &Placement,
        job: &Job,
        slot: TaskSlot,
        limits: SetId,
    ) {
        let has_next = limits != UNLIMITED || job.sole_dependent(slot).is_some();
        if placement.placed && has_next {
            self.push(placement.worker, slot.of(job.id));
        }
    }

    /// Notes that a task was sent behind another one because of its limits.
    fn add_behind(&mut self, at: TaskAt, next: TaskAt) {
        if let Some(earlier) = self.before.insert(next, at) {
            self.behind.remove(&earlier);
        }
        if let Some(earlier) = self.behind.insert(at, next) {
            self.before.remove(&earlier);
        }
    }

    /// Forgets and returns the task that was sent behind a task because of its limits.
    pub(super) fn take_behind(&mut self, at: TaskAt) -> Option<TaskAt> {
        let next = self.behind.remove(&at)?;
        self.before.remove(&next);
        self.ended.insert(at, next);
        Some(next)
    }

    /// Notes a task to which more successors can be sent.
    pub(super) fn push(&mut self, worker: WorkerId, at: TaskAt) {
        self.found.push((worker, at));
    }

    /// Asks workers to return the tasks of a job, or of all jobs, that were sent behind others
    /// because of their limits.
    pub(super) fn recall_behind(
        &self,
        ctx: &mut Ctx<'_>,
        workers: &mut Workers,
        jobs: &Jobs,
        job: Option<JobId>,
    ) {
        let mut recalled: BTreeMap<WorkerId, Vec<(TaskKey, InstanceId)>> = BTreeMap::new();
        let (first, last) = job.map_or((0, u32::MAX), |job| (job.0, job.0));
        let first = TaskSlot::new(0, 0).of(JobId(first));
        let last = TaskSlot::new(u32::MAX, u32::MAX).of(JobId(last));
        for (at, _) in self.before.range(first..=last) {
            let Some((task, record)) = jobs.dispatched(*at) else {
                continue;
            };
            let worker = workers.get_mut(record.worker());
            if let Some(worker) = worker.filter(|worker| worker.has_later(task))
                && let Some(back) = worker.take_unstarted_one(task)
            {
                recalled.entry(worker.id).or_default().push(back);
            }
        }
        for (worker, tasks) in recalled {
            ctx.send(worker, WorkerCommand::Retract(tasks));
        }
    }

    /// Lowers the portion regardless of run times, for small tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn limit(&mut self, portion: u32) {
        self.portion = portion;
        self.run_max = Duration::MAX;
    }
}

impl ServerState {
    /// Notes that the predecessor of a dispatched task has finished.
    pub(super) fn take_turn(&mut self, now: Time, at: TaskAt) {
        let Some((task, record)) = self.jobs.dispatched(at) else {
            return;
        };
        let worker = record.worker();
        let Some(holder) = self.workers.get_mut(worker) else {
            return;
        };
        match holder.take_turn(task, now) {
            Turn::Now => return,
            Turn::Later => {}
            Turn::LaterWithMore => self.heads.push(worker, at),
        }
        let limits = holder.assigned().get(&task).map(|assigned| assigned.limits);
        let limits = limits.unwrap_or_default();
        self.dispatcher.limits_mut().take_place(limits, at.job);
        if let Some(job) = self.jobs.get_mut(at.job) {
            job.ahead.note_turn();
        }
    }

    /// Makes sent-ahead dependents of a failed task wait again. Their worker returns them without
    /// being asked.
    pub(super) fn forget_successors(&mut self, id: JobId, slots: &[TaskSlot]) {
        for at in slots.iter().map(|slot| slot.of(id)) {
            let is_later = self.jobs.dispatched(at).is_some_and(|(task, record)| {
                let worker = self.workers.get(record.worker());
                record.phase() == Phase::Queued && worker.is_some_and(|w| w.has_later(task))
            });
            if is_later {
                self.jobs.set_phase(at, Phase::Waiting);
            }
        }
    }

    /// Sends the successors of dispatched tasks.
    pub(super) fn send_successors(&mut self, ctx: &mut Ctx<'_>) {
        let heads = std::mem::take(&mut self.heads.found);
        let mut batches = BTreeMap::<WorkerId, AssignBatch>::new();
        // This is computed once for all tasks of a worker.
        let mut are_free = BTreeMap::<WorkerId, bool>::new();
        for (worker, at) in heads {
            let is_free = *are_free.entry(worker).or_insert_with(|| {
                let worker = self.workers.get(worker);
                worker.is_some_and(|w| self.gets_successors(w) && !self.is_room_wanted(w))
            });
            if is_free {
                self.send_stretch(ctx.now.mono, worker, at, &mut batches);
            }
        }
        self.heads.ended.clear();
        for (worker, batch) in batches {
            send(ctx, worker, batch);
        }
    }

    /// Returns whether a worker gets tasks ahead of their turn.
    fn gets_successors(&self, worker: &Worker) -> bool {
        worker.config.takes_successors
            && (worker.keeps_ends() || self.is_volatile)
            && worker.is_trusted()
            && worker.accepts_work()
            && worker.reserved_for().is_none()
    }

    /// Returns whether a task waits for room on the worker, or is ready and could run there.
    fn is_room_wanted(&self, worker: &Worker) -> bool {
        if worker.backlog_len() > 0 || self.dispatcher.is_unsettled() {
            return true;
        }
        let mut queues = self.dispatcher.ready().counts();
        let mut looked_at = queues.by_ref().take(QUEUES_LOOKED_AT);
        let could_run = |key: QueueKey| {
            let class = self.dispatcher.class(key);
            class.is_none_or(|class| {
                let mut variants = class.variants.iter();
                variants.any(|variant| worker.capacity(variant) > 0)
            })
        };
        looked_at.any(|(key, _)| could_run(key)) || queues.next().is_some()
    }

    /// Sends the next tasks of the stretch that begins with a task, unless the worker has enough.
    fn send_stretch(
        &mut self,
        now: Time,
        id: WorkerId,
        head: TaskAt,
        batches: &mut BTreeMap<WorkerId, AssignBatch>,
    ) {
        let Some(head) = self.front(head) else {
            return;
        };
        let awaits = self.awaited_ends_of(id, head);
        let portion = self.heads.portion;
        let (mut at, mut there) = (head, 0);
        while let Some(next) = self.sent_behind(id, at) {
            there += 1;
            at = next;
        }
        while there < 2 * portion {
            let next = self.successor(now, id, at);
            let Some(next) = next.or_else(|| self.limited_successor(now, id, at, there)) else {
                return;
            };
            there += 1;
            let turn = if there % portion == 0 {
                Turn::LaterWithMore
            } else {
                Turn::Later
            };
            let batch = batches
                .entry(id)
                .or_insert(AssignBatch::new(self.dispatcher.assign_limit()));
            let successor = Successor {
                at: next,
                turn,
                awaits,
            };
            if self
                .hand_out_behind(now, id, at, successor, batch)
                .is_none()
            {
                bug!("the successor of {at:?} cannot be handed out");
                return;
            }
            at = next;
        }
    }

    /// Returns the task ends that the message with a task may still wait for. A successor must not
    /// be sent before that message. A running or ready task is on the worker, and so are all tasks
    /// sent after it.
    fn awaited_ends_of(&self, id: WorkerId, at: TaskAt) -> AwaitedEnds {
        let (worker, job) = (self.workers.get(id), self.jobs.get(at.job));
        let task = job.and_then(|job| job.key(at.slot));
        let assigned = task.and_then(|task| worker?.assigned().get(&task));
        assigned.map_or(AwaitedEnds::None, |assigned| assigned.awaits)
    }

    /// Returns the first unfinished task of a stretch. Its end may be reported together with the
    /// ends of its successors.
    fn front(&self, head: TaskAt) -> Option<TaskAt> {
        let job = self.jobs.get(head.job)?;
        let mut front = head.slot;
        for _ in 0..=2 * self.heads.portion {
            if job.phase(front) != Some(Phase::Finished) {
                return Some(front.of(job.id));
            }
            let behind = self.heads.ended.get(&front.of(job.id));
            let behind = behind.map(|next| next.slot);
            front = behind.or_else(|| job.sole_dependent(front))?;
        }
        None
    }

    /// Returns the successor of a task, if it was sent to this worker and its turn is later.
    fn sent_behind(&self, id: WorkerId, at: TaskAt) -> Option<TaskAt> {
        let (worker, job) = (self.workers.get(id)?, self.jobs.get(at.job)?);
        let behind = self.heads.behind.get(&at).map(|next| next.slot);
        let next = behind.or_else(|| job.sole_dependent(at.slot))?;
        worker.has_later(job.key(next)?).then_some(next.of(job.id))
    }

    /// Returns the successor of a dispatched task, if it can be sent after the task.
    fn successor(&self, now: Time, id: WorkerId, at: TaskAt) -> Option<TaskAt> {
        let (worker, job, at) = (self.workers.get(id)?, self.jobs.get(at.job)?, at.slot);
        let next = job.sole_dependent(at)?;
        let submit = job.submit(next)?;
        // The other dependencies of the successor have finished, and it waits for no job.
        if submit.graph()?.unfinished(next.index) != 1 || !submit.after.is_empty() {
            return None;
        }
        // For long tasks the round trip does not matter, and the worker would return their
        // successors.
        let run_max = self.heads.run_max;
        if !job.ahead.pays(now) || job.mean_run().is_some_and(|run| run > run_max) {
            return None;
        }
        // A task that was lost with its worker may have caused the loss. Its next loss must be
        // counted separately.
        if job.was_tried(at) {
            return None;
        }
        let is_waiting = job.phase(next) == Some(Phase::Waiting);
        // Task ends on other workers must be stored first.
        if !is_waiting || self.is_kept_back(job, next) || job.follows_others(next, Some(id)) {
            return None;
        }
        let before = worker.assigned().get(&job.key(at)?)?;
        let is_alike = before.key.class == Dispatcher::queue_key(job, next)?.class;
        // A multi-node task gets its own nodes.
        if self.dispatcher.class(before.key)?.is_multi_node() {
            return None;
        }
        // A successor of a task in a later variant is placed by a round, because the first variant
        // may have room by then.
        let may = before.variant == 0
            && may_precede(&*job.submit(at)?.definition(at.index)?)
            && may_go_ahead(&*submit.definition(next.index)?);
        (is_alike && may).then_some(next.of(job.id))
    }

    /// Takes the next task of the same submit from the ready queue, if only the limits of the
    /// submit keep it from running and it can be sent after this task.
    fn limited_successor(
        &mut self,
        now: Time,
        id: WorkerId,
        at: TaskAt,
        behind: u32,
    ) -> Option<TaskAt> {
        let (worker, job) = (self.workers.get(id)?, self.jobs.get(at.job)?);
        let before = *worker.assigned().get(&job.key(at.slot)?)?;
        let submit = job.submit(at.slot)?;
        let run_max = self.heads.run_max;
        let is_long = !job.ahead.pays(now) || job.mean_run().is_some_and(|run| run > run_max);
        let is_sole = before.variant == 0
            && !self.dispatcher.class(before.key)?.is_multi_node()
            && before.limits == self.dispatcher.limits().set_of(at.submit());
        let may = may_precede(&*submit.definition(at.slot.index)?) && !job.was_tried(at.slot);
        if is_long || !is_sole || !may {
            return None;
        }
        let allowed = |index| {
            let next = TaskSlot::new(at.slot.submit, index);
            let may = submit
                .definition(index)
                .is_some_and(|task| may_go_ahead(&task));
            may && !job.was_tried(next) && !job.follows_others(next, Some(id))
        };
        let (key, submit) = (before.key, at.submit());
        let index = self.dispatcher.take_behind(key, submit, behind, allowed)?;
        let next = submit.task(index);
        self.heads.add_behind(at, next);
        Some(next)
    }

    fn is_kept_back(&self, job: &Job, slot: TaskSlot) -> bool {
        let at = slot.of(job.id);
        let is_held = job
            .submit(slot)
            .is_some_and(|submit| submit.held.contains(slot.index));
        is_held || self.jobs.is_held(at) || self.jobs.is_delayed(at)
    }

    /// Dispatches a task to the worker of its predecessor.
    fn hand_out_behind(
        &mut self,
        now: Time,
        id: WorkerId,
        at: TaskAt,
        successor: Successor,
        batch: &mut AssignBatch,
    ) -> Option<()> {
        let Successor {
            at: TaskAt {
                job: job_id,
                slot: next,
            },
            turn,
            awaits,
        } = successor;
        let (job, worker) = (self.jobs.get_mut(job_id)?, self.workers.get_mut(id)?);
        let (task, before) = (name_task(job, next)?, job.key(at.slot)?);
        let key = Dispatcher::queue_key(job, next)?;
        let before_it = *worker.assigned().get(&before)?;
        let class = self.dispatcher.class(key)?;
        let limits = self.dispatcher.limits().set_of(next.of(job_id).submit());
        let instance = job.hand_out(next, id, None)?;
        let assigned = Assigned {
            slot: next,
            key,
            instance,
            placed: false,
            turn,
            started: false,
            awaits,
            retracting: false,
            at: now,
            limits,
            ..before_it
        };
        worker.assign(TaskKey::new(job_id, task.id), assigned, class);
        if worker.learn_template(job_id, task.template.id) {
            batch.add_template(Arc::clone(&task.template));
        }
        let run = Run {
            template: task.template,
            instance,
            awaits,
            from: next.index,
            to: next.index + 1,
            bytes: task.bytes,
        };
        let mut assignment = assignment(job, next.submit, &run, before_it.variant);
        assignment.follows = Some((before.task, before_it.instance));
        batch.add(assignment, awaits);
        Some(())
    }
}

/// Returns whether other tasks may start after a task before its end is reported.
const fn may_precede(task: &TaskTemplate) -> bool {
    // If its worker were lost before the report, the task would count as failed although it
    // finished.
    !fails_if_lost(task)
}

/// Returns whether a task may be sent before its predecessor has ended.
const fn may_go_ahead(task: &TaskTemplate) -> bool {
    // A call may need a value that is reported only with the end. In addition, a task that starts
    // while its worker is unreachable starts again when that worker is declared lost.
    !task.is_call && !fails_if_lost(task)
}

const fn fails_if_lost(task: &TaskTemplate) -> bool {
    matches!(
        task.crash_limit,
        CrashLimit::NeverRestart | CrashLimit::Max(1)
    )
}
