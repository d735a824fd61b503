//! Rebuilds the state from stored records, without I/O. The records are restored in this order:
//! jobs, submits, workers, tasks, and finally [`ServerState::finish_restore`]. Inconsistent records
//! are rejected and change nothing.

use std::sync::Arc;

use super::dispatcher::Dispatcher;
use super::prepared::{Prepared, PreparedTasks};
use super::submit::check_new;
use super::{Ctx, ServerState, SubmitKey};
use crate::bug;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{Held, Job, SubmitAt, TaskAt};
use crate::outcome::LostReason;
use crate::range::IdArray;
use crate::task::{Attempt, Phase, StoredTask, TaskEnd, TaskState};
use crate::template::{SubmitSpec, SubmitTarget};
use crate::time::{Now, Time, Timestamp};
use crate::worker::{Assigned, Worker};
use crate::worker_config::{OnServerLost, WorkerConfig};

/// A stored job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRecord {
    /// The id of the job.
    pub id: JobId,
    /// The name of the job.
    pub name: Box<str>,
    /// The number of failed tasks that are tolerated.
    pub max_fails: Option<u32>,
    /// Whether clients can add submits.
    pub is_open: bool,
    /// The latest reason of a cancel.
    pub cancel_reason: Option<Box<str>>,
    /// When the job was submitted or opened.
    pub submitted: Timestamp,
    /// Whether the completion of the job has been recorded.
    pub is_completed: bool,
}

/// A worker that was connected when the server ended.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredWorker {
    /// The id of the worker.
    pub id: WorkerId,
    /// The configuration that the worker reported.
    pub config: WorkerConfig,
    /// When the worker registered.
    pub started: Timestamp,
}

/// A record that contradicts other records. `Display` names the record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// The job does not exist.
    #[error("job {0} is not stored")]
    NoJob(JobId),
    /// The submit cannot be rebuilt.
    #[error("a submit of job {0} is not valid")]
    BadSubmit(JobId),
    /// The task does not exist.
    #[error("task {1} of job {0} belongs to no stored submit")]
    NoTask(JobId, TaskId),
}

impl ServerState {
    /// Continues the ids after these. The id of the first new worker is the highest earlier id plus
    /// two.
    pub fn restore_counters(&mut self, last_job: JobId, last_worker: WorkerId) {
        self.jobs.restore_last_id(last_job);
        self.workers.restore_last_id(last_worker);
    }

    /// Restores the host name of a worker of an earlier run.
    pub fn restore_worker(&mut self, id: WorkerId, hostname: Box<str>) {
        self.workers.restore_hostname(id, hostname);
    }

    /// Expects a worker back if it will reconnect. Returns whether it is expected. Must be called
    /// after the last submit and before the first task is restored.
    pub fn restore_connected_worker(&mut self, now: Now, stored: StoredWorker) -> bool {
        // Such a worker ended its tasks when it lost the server.
        if stored.config.on_server_lost == OnServerLost::Stop {
            return false;
        }
        let worker = self.stored_worker(now, stored);
        self.dispatcher.add_worker(&worker);
        self.workers.add_awaited(worker);
        true
    }

    /// Restores a worker that ended. This state is only read: waiting tasks are compared with such
    /// workers if no worker is live.
    pub fn restore_ended_worker(
        &mut self,
        now: Now,
        stored: StoredWorker,
        (at, reason): (Timestamp, LostReason),
    ) {
        let worker = self.stored_worker(now, stored);
        self.workers.add_ended(worker, at, reason);
    }

    fn stored_worker(&mut self, now: Now, stored: StoredWorker) -> Worker {
        let offers = self.dispatcher.offers(&stored.config.resources);
        let config = Arc::new(stored.config);
        Worker::restored(stored.id, config, offers, now, stored.started)
    }

    /// Adds a job without tasks.
    pub fn restore_job(&mut self, record: JobRecord) {
        let id = record.id;
        let (max_fails, is_open) = (record.max_fails, record.is_open);
        let mut job = Job::new(id, record.name, max_fails, is_open, record.submitted);
        job.cancel_reason = record.cancel_reason;
        job.restore_completion(record.is_completed);
        self.jobs.add(job);
    }

    /// Restores which job resubmitted tasks of this job. Ignores unknown jobs.
    pub fn restore_resubmitted(&mut self, id: JobId, new: JobId) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.resubmitted_as = Some(new);
        }
    }

    /// Restores the key of a submit. Ignores unknown jobs.
    pub fn restore_submit_key(&mut self, job: JobId, key: SubmitKey) {
        if self.jobs.get(job).is_some() {
            self.submit_keys.note(job, key);
        }
    }

    /// Restores a submit, with all tasks waiting. Only arrays need `ids`, because a graph contains
    /// its ids.
    ///
    /// # Errors
    ///
    /// Returns a [`RestoreError`] if the job or the submit is not valid.
    pub fn restore_submit(
        &mut self,
        id: JobId,
        ids: IdArray,
        spec: &Arc<SubmitSpec>,
    ) -> Result<(), RestoreError> {
        let bad = |_| RestoreError::BadSubmit(id);
        let prepared = Prepared::accepted(Arc::clone(spec)).map_err(bad)?;
        let job = self.jobs.get(id).ok_or(RestoreError::NoJob(id))?;
        let ids = match &prepared.tasks {
            // The ids that the array was assigned when it was submitted.
            PreparedTasks::Array(_) => ids,
            PreparedTasks::Graph(graph) => graph.ids.clone(),
        };
        check_new(job, &ids).map_err(bad)?;
        let header = self.header(job, spec);
        let submit = self.build(header, ids, prepared);
        if let Some(at) = self.jobs.add_submit(id, submit) {
            self.limit_submit(Time(0), at);
            self.intern(at, 0..u32::MAX);
            self.begin_learning(Time(0), at);
        }
        // Only the first submit of a self-closing job has this target.
        if let SubmitTarget::SelfClosing { tasks_max, .. } = spec.target
            && let Some(job) = self.jobs.get_mut(id)
        {
            (job.closes_itself, job.tasks_max) = (true, tasks_max);
        }
        Ok(())
    }

    /// Restores that a later attempt repeated a submit. Ignores unknown submits.
    pub fn restore_repeated(&mut self, id: JobId, number: u32, instance: InstanceId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let submit = job.submits.get(number as usize);
        if submit.is_some_and(|submit| submit.origin.is_some()) {
            job.note_repeated(number, instance);
        }
    }

    /// Restores a hold or release of tasks. Must be called in the order of these changes, after the
    /// submits of the job. Ignores unknown jobs and tasks.
    pub fn restore_held(&mut self, id: JobId, held: &Held) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.restore_held(held);
        }
    }

    /// Restores the first instance of a submit's tasks. Must be called before any of the tasks is
    /// restored. Ignores unknown submits.
    pub fn restore_first_instance(&mut self, id: JobId, number: u32, first: InstanceId) {
        if let Some(submit) = self.jobs.submit_mut(SubmitAt { job: id, number }) {
            submit.tasks.restore_first_instance(first);
        }
    }

    /// Records that a worker of an earlier run was given up or is not expected back, and that tasks
    /// which it may have started have no new instance yet.
    pub const fn restore_starts_unknown(&mut self) {
        self.workers.set_unheard(true);
    }

    /// Restores the state of a task. A running task continues if its worker is expected back.
    /// Otherwise it waits again, with the next instance.
    ///
    /// # Errors
    ///
    /// Returns a [`RestoreError`] if the job or the task does not exist.
    pub fn restore_task(&mut self, id: JobId, stored: &StoredTask) -> Result<(), RestoreError> {
        let job = self.jobs.get_mut(id).ok_or(RestoreError::NoJob(id))?;
        let slot = job
            .find(stored.task)
            .ok_or(RestoreError::NoTask(id, stored.task))?;
        let is_gang = Dispatcher::queue_key(job, slot)
            .and_then(|key| self.dispatcher.class(key))
            .is_some_and(|class| class.is_multi_node());
        if let Some(nodes) = stored.nodes.as_ref().filter(|_| is_gang) {
            job.set_nodes(slot, &nodes.workers);
        }
        // The worker of the task is expected back.
        let goes_on = stored.state == TaskState::Running
            && !is_gang
            && self.workers.get(stored.worker).is_some();
        if let Some(record) = job.touch(slot) {
            record.restore(stored, goes_on || is_gang);
        }
        let is_fresh = job.instance(slot) != stored.instance;
        if stored.state == TaskState::Waiting {
            job.skip_superseded(slot);
        }
        // The worker counts as a worker of the job, even if it did not finish the task.
        if stored.started.is_some() {
            job.workers.insert(stored.worker);
        }
        let phase = match stored.state {
            // A task that continues becomes running again below.
            TaskState::Waiting | TaskState::Running => Phase::Waiting,
            TaskState::Finished => Phase::Finished,
            TaskState::Failed => Phase::Failed,
            TaskState::Canceled => Phase::Canceled,
            TaskState::Aborted => Phase::Aborted,
        };
        if let Some(end) = &stored.end {
            job.restore_end(slot, end);
            job.idle_since = job.idle_since.max(end.at);
        }
        let at = slot.of(id);
        if is_fresh {
            self.jobs.note_fresh(at);
        }
        self.jobs.set_phase(at, phase);
        if goes_on {
            self.restore_running(at, stored);
        }
        // This also applies to a waiting task, because its nodes may have received it.
        if is_gang && !phase.is_terminal() {
            self.restore_gang(at, stored);
        }
        Ok(())
    }

    /// Restores that consecutive tasks, starting with `first`, finished with this instance number
    /// on their worker.
    ///
    /// # Errors
    ///
    /// Returns a [`RestoreError`] if the job or one of the tasks does not exist. The other tasks
    /// are restored.
    pub fn restore_finished(
        &mut self,
        first: TaskKey,
        instance: InstanceId,
        ends: impl Iterator<Item = (WorkerId, TaskEnd)>,
    ) -> Result<(), RestoreError> {
        let id = first.job;
        let job = self.jobs.get_mut(id).ok_or(RestoreError::NoJob(id))?;
        let missing = job.restore_finished(first.task, instance, ends);
        self.jobs.note_changed(id);
        missing.map_or(Ok(()), |task| Err(RestoreError::NoTask(id, task)))
    }

    /// Restores a task that runs on a worker that is expected back.
    fn restore_running(&mut self, at: TaskAt, stored: &StoredTask) {
        let TaskAt { job: id, slot } = at;
        let job = self.jobs.get_mut(id);
        let (Some(job), Some(worker)) = (job, self.workers.get_mut(stored.worker)) else {
            bug!(
                "job {id} or worker {} is gone while it is restored",
                stored.worker
            );
            return;
        };
        let key = Dispatcher::queue_key(job, slot);
        let class = key.and_then(|key| Some((key, self.dispatcher.class(key)?)));
        let Some((key, class)) = class else {
            bug!("task {} of job {id} has no request", stored.task);
            return;
        };
        let set = self.dispatcher.limits().set_of(at.submit());
        let assigned = Assigned::restored(slot, key, stored.variant, stored.instance, set);
        let task = TaskKey::new(id, stored.task);
        worker.assign(task, assigned, class);
        worker.start(task, stored.instance, self.dispatcher.classes());
        job.note_sent_to(stored.worker);
        self.dispatcher.limits_mut().take_place(set, id);
        self.jobs.set_phase(at, Phase::Running);
    }

    /// Restores a multi-node task. It continues on the nodes that are expected back if its root is
    /// one of them. Otherwise it waits, with an unused instance number.
    fn restore_gang(&mut self, at: TaskAt, stored: &StoredTask) {
        let TaskAt { job: id, slot } = at;
        let Some(job) = self.jobs.get_mut(id) else {
            bug!("job {id} is gone while its tasks are restored");
            return;
        };
        let nodes = stored.current_nodes();
        let instance = nodes.map_or(stored.instance, |nodes| nodes.instance);
        let key = Dispatcher::queue_key(job, slot);
        let class = key.and_then(|key| self.dispatcher.class(key)).cloned();
        let members: Vec<WorkerId> = nodes
            .into_iter()
            .flat_map(|nodes| &nodes.workers)
            .filter(|id| self.workers.get(**id).is_some_and(|w| w.node().is_none()))
            .copied()
            .collect();
        let root = nodes.and_then(|nodes| nodes.workers.first());
        // Without the root, nothing would report the end of the task.
        let root = root.filter(|root| members.first() == Some(root)).copied();
        let was_started = stored.state == TaskState::Running && stored.instance == instance;
        let Some(record) = job.touch(slot) else {
            bug!("job {id} has no task at {slot:?} while it is restored");
            return;
        };
        record.resume(instance);
        let worker = root.and_then(|root| self.workers.get_mut(root));
        let (Some(nodes), Some(key), Some(class), Some(worker)) = (nodes, key, class, worker)
        else {
            // If the root does return, its reports about that instance are ignored.
            if nodes.is_some() || was_started {
                record.supersede();
            }
            job.skip_superseded(slot);
            if nodes.is_some() || was_started {
                self.jobs.note_fresh(at);
            }
            return;
        };
        record.assign(worker.id);
        let task = TaskKey::new(id, stored.task);
        let set = self.dispatcher.limits().set_of(at.submit());
        self.dispatcher.limits_mut().take_place(set, id);
        let assigned = Assigned::restored(slot, key, nodes.variant, instance, set);
        worker.assign(
            task,
            Assigned {
                placed: true,
                ..assigned
            },
            &class,
        );
        job.note_sent_to(worker.id);
        let phase = if was_started {
            worker.start(task, instance, self.dispatcher.classes());
            Phase::Running
        } else {
            Phase::Placed
        };
        self.jobs.set_phase(at, phase);
        self.workers.set_nodes(task, members);
    }

    /// Marks multi-node tasks whose nodes are expected back as placed. When they were sent is not
    /// stored.
    fn place_gangs(&mut self, now: Timestamp) {
        let tasks: Vec<TaskKey> = self.workers.multi_node_tasks().collect();
        for task in tasks {
            let job = self.jobs.get_mut(task.job);
            let found = job.and_then(|job| Some((job.find(task.task)?, job)));
            let record = found.and_then(|(slot, job)| job.touch(slot));
            if let Some(record) = record.filter(|record| record.phase() == Phase::Placed) {
                record.place(now);
            }
        }
    }

    /// Restores an earlier attempt of a task. Must be called in ascending order of instance.
    ///
    /// # Errors
    ///
    /// Returns a [`RestoreError`] if the job or the task does not exist.
    pub fn restore_attempt(
        &mut self,
        id: JobId,
        task: TaskId,
        attempt: Attempt,
    ) -> Result<(), RestoreError> {
        let job = self.jobs.get(id).ok_or(RestoreError::NoJob(id))?;
        let slot = job.find(task).ok_or(RestoreError::NoTask(id, task))?;
        if attempt.end.outcome.is_cut_off() {
            let next = attempt.instance.next();
            self.note_cut_off(None, slot.of(id), next, attempt.worker, attempt.end.run);
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.restore_attempt(slot, attempt);
        }
        Ok(())
    }

    /// Restores canceled or aborted tasks. Skips ids that are unknown or whose tasks have ended
    /// otherwise.
    pub fn restore_dropped(&mut self, id: JobId, ids: &IdArray, to: TaskState, at: Timestamp) {
        let phase = match to {
            TaskState::Aborted => Phase::Aborted,
            TaskState::Canceled
            | TaskState::Waiting
            | TaskState::Running
            | TaskState::Finished
            | TaskState::Failed => Phase::Canceled,
        };
        self.jobs.restore_dropped(id, ids, phase, at);
    }

    /// Restores the remaining delays of failed tasks. Two servers share only the wall clock, so no
    /// task waits longer than its full delay.
    fn restore_delays(&mut self, now: Now) {
        let mut delayed = Vec::new();
        for job in self.jobs.all().values().filter(|job| !job.is_idle()) {
            for (number, submit) in (0..).zip(&job.submits) {
                for (index, last) in submit.tasks.last_attempts() {
                    let record = submit.tasks.record(index);
                    let retries = record.map_or(0, |record| record.retry_count());
                    let is_waiting = submit.tasks.phase(index) == Some(Phase::Waiting);
                    // Tasks of a lost worker run again without a delay.
                    if retries == 0 || !is_waiting || last.end.outcome.is_loss() {
                        continue;
                    }
                    let task = submit.definition(index);
                    let delay = task.map(|task| task.retry.delay_before(retries));
                    let age = now.wall.since(last.end.at);
                    let left = delay.unwrap_or_default().saturating_sub(age);
                    let submit = SubmitAt {
                        job: job.id,
                        number,
                    };
                    delayed.push((now.mono + left, submit.task(index)));
                }
            }
        }
        for (until, at) in delayed.into_iter().filter(|(until, _)| *until > now.mono) {
            self.jobs.delay(until, at);
        }
    }

    /// Queues the ready tasks. Must be called once, after the last record.
    pub fn finish_restore(&mut self, now: Now) {
        // The consequences of stored changes are stored as well, because their cause may be
        // forgotten before the next restart.
        let mut effects = Vec::new();
        let ctx = &mut Ctx::new(now, &mut effects);
        // Only after the last record is it known which tasks have finished, and therefore which
        // dependents are ready.
        self.jobs.replay_graphs();
        // The next server could not distinguish these instances from instances that were started.
        for at in self.jobs.all_fresh() {
            self.note_requeued(ctx, at, None);
        }
        self.restore_delays(now);
        for id in self.jobs.all().keys().copied().collect::<Vec<_>>() {
            self.learn_again(now.mono, id);
            self.hold_job(ctx, id);
            // The end of the job's last task was stored, but possibly not its consequences.
            self.close_if_over(ctx, id);
        }
        if self.workers.awaited() == 0 {
            self.note_all_let_go(ctx);
        }
        self.close_limits(now);
        self.place_gangs(now.wall);
        self.jobs.finish_restore(now.wall);
        self.restore_owed_notices(ctx);
        self.owed = effects;
        self.dispatcher.note_ready();
    }
}
