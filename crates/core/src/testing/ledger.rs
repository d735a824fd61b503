//! An in-memory store: the changes in order, and the resulting state.
//!
//! It is the reference for the real store, which keeps the same data in tables, and the disk of
//! tests that need no real one. It is as simple as possible: a change is applied to one record, and
//! a restore passes on all records in the required order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sim::Disk;
use crate::bound::Bound;
use crate::growth::Scale;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{Held, JobRevised, KeptChanges};
use crate::quarantine::Quarantine;
use crate::range::{IdArray, IndexSet};
use crate::server_state::{
    Change, ChangeKind, JobRecord, NoticeKey, NoticeOutcome, ServerState, StoredNodes, StoredTask,
    StoredWorker, SubmitKey,
};
use crate::task::{Attempt, TaskState};
use crate::template::{SubmitBody, SubmitSpec, SubmitTarget};
use crate::time::{Now, Timestamp};

#[derive(Clone, Debug)]
struct StoredJob {
    record: JobRecord,
    submits: Vec<(IdArray, Arc<SubmitSpec>)>,
    tasks: BTreeMap<TaskId, StoredTask>,
    attempts: BTreeMap<TaskId, Vec<Attempt>>,
    grown: BTreeMap<TaskId, Vec<(InstanceId, Scale)>>,
    dropped: Vec<(IdArray, TaskState, Timestamp)>,
    notified: Vec<(NoticeKey, NoticeOutcome)>,
    repeated: Vec<(u32, InstanceId)>,
    first_instances: BTreeMap<u32, InstanceId>,
    keys: Vec<SubmitKey>,
    resubmitted_as: Option<JobId>,
    held: Vec<Held>,
    changes: KeptChanges,
}

impl StoredJob {
    fn revise(&mut self, revised: &JobRevised) {
        self.changes = revised.kept.clone();
        if let Some(name) = &revised.after.name {
            self.record.name = name.clone();
        }
    }

    fn drop_entries(&mut self, number: u32, calls: &IndexSet) {
        if let Some((_, spec)) = self.submits.get_mut(number as usize)
            && let SubmitBody::Array(array) = &mut Arc::make_mut(spec).body
        {
            array.entries = array.entries.take().map(|entries| entries.without(calls));
        }
    }
}

#[derive(Clone, Debug)]
struct StoredLife {
    worker: StoredWorker,
    has_ended: bool,
    is_draining: bool,
}

/// The committed changes and state.
#[derive(Clone, Debug)]
pub struct Ledger {
    uid: Box<str>,
    last_job: JobId,
    last_worker: WorkerId,
    jobs: BTreeMap<JobId, StoredJob>,
    workers: BTreeMap<WorkerId, StoredLife>,
    quarantines: BTreeMap<WorkerId, Quarantine>,
    limits: BTreeMap<Box<str>, Bound>,
    are_starts_unknown: bool,
}

impl StoredJob {
    fn drop_tasks(&mut self, ids: &IdArray, to: TaskState, at: Timestamp) {
        let is_dropped = |task: TaskId| {
            let mut ranges = ids.ranges().iter();
            ranges.any(|range| range.position(task.0).is_some())
        };
        let dropped = self.tasks.iter_mut();
        for (_, stored) in dropped.filter(|(task, _)| is_dropped(**task)) {
            let ran = stored
                .started
                .filter(|_| stored.state == TaskState::Running);
            if matches!(stored.state, TaskState::Waiting | TaskState::Running) {
                stored.run_until_dropped = ran.map(|started| at.since(started));
                stored.state = to;
            }
        }
        self.dropped.push((ids.clone(), to, at));
    }
}

impl Ledger {
    /// Creates an empty store for the server with this uid.
    #[must_use]
    pub fn new(uid: &str) -> Self {
        Self {
            uid: uid.into(),
            last_job: JobId(0),
            last_worker: WorkerId(0),
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            quarantines: BTreeMap::new(),
            limits: BTreeMap::new(),
            are_starts_unknown: false,
        }
    }

    fn add_job(&mut self, record: JobRecord) {
        let id = record.id;
        self.last_job = self.last_job.max(id);
        let job = StoredJob {
            record,
            submits: Vec::new(),
            tasks: BTreeMap::new(),
            attempts: BTreeMap::new(),
            grown: BTreeMap::new(),
            dropped: Vec::new(),
            notified: Vec::new(),
            repeated: Vec::new(),
            first_instances: BTreeMap::new(),
            keys: Vec::new(),
            resubmitted_as: None,
            held: Vec::new(),
            changes: KeptChanges::default(),
        };
        self.jobs.insert(id, job);
    }

    fn apply(&mut self, change: &Change) {
        let at = change.at;
        match &change.kind {
            ChangeKind::WorkerConnected { .. }
            | ChangeKind::WorkerLost { .. }
            | ChangeKind::WorkerDraining(_)
            | ChangeKind::WorkerQuarantined(_)
            | ChangeKind::WorkerReleased { .. } => self.apply_to_worker(change),
            ChangeKind::JobOpened { .. } | ChangeKind::Submitted { .. } => self.add(change),
            ChangeKind::JobResubmitted { job, new } => {
                self.job(*job, |job| job.resubmitted_as = Some(*new));
            }
            ChangeKind::SubmitRepeated {
                job,
                number,
                instance,
            } => self.job(*job, |job| job.repeated.push((*number, *instance))),
            ChangeKind::EntriesDropped { job, number, calls } => {
                self.job(*job, |job| job.drop_entries(*number, calls));
            }
            ChangeKind::LimitChanged { name, bounds } => self.set_limit(name, bounds[1]),
            ChangeKind::JobRevised(revised) => self.job(revised.job, |job| job.revise(revised)),
            ChangeKind::TasksHeld(job, held) => {
                self.job(*job, |job| job.held.push(held.clone()));
            }
            ChangeKind::WaitingSuperseded { job, number, first } => self.job(*job, |job| {
                job.first_instances.insert(*number, *first);
            }),
            ChangeKind::StartsUnknown(are_unknown) => self.are_starts_unknown = *are_unknown,
            ChangeKind::SubmitKeyed { job, key } => {
                self.job(*job, |job| job.keys.push(key.clone()));
            }
            ChangeKind::JobsForgotten(jobs) => self.jobs.retain(|id, _| !jobs.contains(id)),
            ChangeKind::JobClosed(job) => self.job(*job, |job| job.record.is_open = false),
            ChangeKind::JobCompleted(job) => {
                self.job(*job, |job| job.record.is_completed = true);
            }
            ChangeKind::JobCanceled { job, reason } => self.job(*job, |job| {
                if !reason.is_empty() {
                    job.record.cancel_reason = Some(reason.clone());
                }
            }),
            ChangeKind::JobNotified { key, outcome, .. } => {
                self.job(key.job, |job| job.notified.push((*key, outcome.clone())));
            }
            ChangeKind::TasksDropped { job, ids, to } => {
                self.job(*job, |job| job.drop_tasks(ids, *to, at));
            }
            ChangeKind::TaskStarted { .. } => self.apply_start(change),
            ChangeKind::NodesAssigned {
                task,
                instance,
                variant,
                nodes,
            } => self.task(*task, |stored| {
                stored.nodes = Some(StoredNodes {
                    instance: *instance,
                    variant: *variant,
                    workers: nodes.to_vec(),
                });
            }),
            ChangeKind::TaskEnded { .. } => self.apply_end(change),
            ChangeKind::TaskRequeued { .. } => self.apply_requeue(change),
            ChangeKind::WorkerOverview { .. }
            | ChangeKind::WorkerSuspected { .. }
            | ChangeKind::JobIdle(_)
            | ChangeKind::ProblemAcknowledged { .. }
            | ChangeKind::TokenChanged { .. }
            | ChangeKind::TaskNotified { .. }
            | ChangeKind::Allocation(_) => {}
        }
    }

    fn apply_to_worker(&mut self, change: &Change) {
        if let ChangeKind::WorkerConnected { worker, config } = &change.kind {
            self.last_worker = *worker;
            let worker = StoredWorker {
                id: *worker,
                config: (**config).clone(),
                started: change.at,
            };
            let life = StoredLife {
                worker,
                has_ended: false,
                is_draining: false,
            };
            self.workers.insert(life.worker.id, life);
        }
        if let ChangeKind::WorkerLost { worker, .. } = &change.kind
            && let Some(life) = self.workers.get_mut(worker)
        {
            life.has_ended = true;
        }
        if let ChangeKind::WorkerQuarantined(quarantine) = &change.kind {
            let quarantine = (**quarantine).clone();
            self.quarantines.insert(quarantine.worker, quarantine);
        }
        if let ChangeKind::WorkerReleased { worker, .. } = &change.kind {
            self.quarantines.remove(worker);
        }
        if let ChangeKind::WorkerDraining(worker) = &change.kind
            && let Some(life) = self.workers.get_mut(worker)
        {
            life.is_draining = true;
        }
    }

    fn add(&mut self, change: &Change) {
        if let ChangeKind::JobOpened {
            job,
            name,
            max_fails,
        } = &change.kind
        {
            self.add_job(record(*job, name, *max_fails, true, change.at));
        }
        if let ChangeKind::Submitted {
            job,
            is_new,
            name,
            max_fails,
            ids,
            spec,
            ..
        } = &change.kind
        {
            if *is_new {
                let is_open = matches!(spec.target, SubmitTarget::SelfClosing { .. });
                self.add_job(record(*job, name, *max_fails, is_open, change.at));
            }
            let submit = (ids.clone(), Arc::clone(spec));
            self.job(*job, |job| job.submits.push(submit));
        }
    }

    fn apply_start(&mut self, change: &Change) {
        if let ChangeKind::TaskStarted {
            task,
            instance,
            variant,
            worker,
            ..
        } = &change.kind
        {
            self.task(*task, |stored| {
                stored.state = TaskState::Running;
                stored.instance = *instance;
                stored.variant = *variant;
                stored.worker = *worker;
                stored.started = Some(change.at);
            });
        }
    }

    fn apply_end(&mut self, change: &Change) {
        if let ChangeKind::TaskEnded {
            task,
            instance,
            worker,
            crash_count,
            end,
            is_finished,
            ..
        } = &change.kind
        {
            self.task(*task, |stored| {
                stored.state = match is_finished {
                    true => TaskState::Finished,
                    false => TaskState::Failed,
                };
                stored.instance = *instance;
                stored.worker = *worker;
                stored.crash_count = *crash_count;
                stored.started = Some(end.at.minus(end.run));
                stored.end = Some(end.clone());
            });
        }
    }

    fn apply_requeue(&mut self, change: &Change) {
        if let ChangeKind::TaskRequeued {
            task,
            instance,
            crash_count,
            retry_count,
            attempt,
            grown,
        } = &change.kind
        {
            self.task(*task, |stored| {
                stored.state = TaskState::Waiting;
                stored.instance = *instance;
                stored.crash_count = *crash_count;
                stored.retry_count = *retry_count;
            });
            self.job(task.job, |job| {
                let attempts = job.attempts.entry(task.task).or_default();
                attempts.extend(attempt.clone());
                if let Some(grant) = grown {
                    let grown = job.grown.entry(task.task).or_default();
                    grown.push((*instance, grant.scale));
                }
            });
        }
    }

    /// Changes the record of a job, unless the job has been forgotten.
    fn job(&mut self, id: JobId, change: impl FnOnce(&mut StoredJob)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            change(job);
        }
    }

    /// Changes the record of a task, which is created on first use.
    fn task(&mut self, key: TaskKey, change: impl FnOnce(&mut StoredTask)) {
        self.job(key.job, |job| {
            let stored = job.tasks.entry(key.task).or_insert_with(|| {
                let nodes = StoredNodes {
                    instance: InstanceId(0),
                    variant: 0,
                    workers: Vec::new(),
                };
                StoredTask {
                    nodes: None,
                    ..StoredTask::with_nodes(key.task, nodes)
                }
            });
            change(stored);
        });
    }

    fn set_limit(&mut self, name: &str, bound: Option<Bound>) {
        self.limits.remove(name);
        let bound = bound.map(|bound| (name.into(), bound));
        self.limits.extend(bound);
    }

    fn restore_workers(&mut self, state: &mut ServerState, now: Now) {
        for (name, bound) in &self.limits {
            state.restore_limit(name, *bound);
        }
        for (id, life) in &mut self.workers {
            state.restore_worker(*id, life.worker.config.hostname.clone());
            if life.has_ended {
                continue;
            }
            if !state.restore_connected_worker(now, life.worker.clone()) {
                life.has_ended = true;
                self.are_starts_unknown = true;
                state.restore_starts_unknown();
            } else if life.is_draining {
                state.restore_draining(*id);
            }
        }
        for quarantine in self.quarantines.values() {
            state.restore_quarantine(now, quarantine.clone());
        }
    }
}

impl Disk for Ledger {
    fn commit(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply(change);
        }
    }

    fn fail(&mut self, _: &[Change]) {}

    fn restore(&mut self, now: Now) -> ServerState {
        let mut state = ServerState::new(&self.uid);
        if self.last_job == JobId(0) && self.last_worker == WorkerId(0) {
            return state;
        }
        state.restore_counters(self.last_job, self.last_worker);
        for job in self.jobs.values() {
            state.restore_job(job.record.clone());
        }
        for (id, job) in &self.jobs {
            for (ids, spec) in &job.submits {
                let restored = state.restore_submit(*id, ids.clone(), spec);
                restored.expect("what was accepted is valid");
            }
            state.restore_changes(*id, &job.changes);
            for held in &job.held {
                state.restore_held(*id, held);
            }
            for (number, instance) in &job.repeated {
                state.restore_repeated(*id, *number, *instance);
            }
            for (number, first) in &job.first_instances {
                state.restore_first_instance(*id, *number, *first);
            }
        }
        if self.are_starts_unknown {
            state.restore_starts_unknown();
        }
        self.restore_workers(&mut state, now);
        for (id, job) in &self.jobs {
            for (task, grown) in &job.grown {
                for grown in grown {
                    let restored = state.restore_grown(*id, *task, grown.0, grown.1);
                    restored.expect("a known task");
                }
            }
            for task in job.tasks.values() {
                state.restore_task(*id, task).expect("a known task");
            }
            for (task, attempts) in &job.attempts {
                for attempt in attempts {
                    let restored = state.restore_attempt(*id, *task, attempt.clone());
                    restored.expect("a known task");
                }
            }
            for (ids, to, at) in &job.dropped {
                state.restore_dropped(*id, ids, *to, *at);
            }
            if let Some(new) = job.resubmitted_as {
                state.restore_resubmitted(*id, new);
            }
            for key in &job.keys {
                state.restore_submit_key(*id, key.clone());
            }
            for (key, outcome) in &job.notified {
                state.restore_notified(*key, outcome.clone());
            }
        }
        state.finish_restore(now);
        state
    }
}

fn record(
    id: JobId,
    name: &str,
    max_fails: Option<u32>,
    is_open: bool,
    submitted: Timestamp,
) -> JobRecord {
    JobRecord {
        id,
        name: name.into(),
        max_fails,
        is_open,
        cancel_reason: None,
        submitted,
        is_completed: false,
    }
}
