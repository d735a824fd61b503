//! A server whose state is on a disk and that crashes: between any two effects, and between
//! commits.
//!
//! A crash drops the state, everything uncommitted and everything in transit. The restored state
//! must contain everything that was reported to anyone, and tasks on workers that reconnect must
//! continue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::World;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::{Job, TaskSlot};
use crate::server_state::{Change, Effect, Gate, Reply, ServerState};
use crate::task::{Phase, TaskRecord, TaskState};
use crate::time::{Now, Time};
use crate::worker_config::OnServerLost;
use crate::worker_state;

/// Where changes are stored.
pub trait Disk: Debug {
    /// Stores changes, all or nothing.
    fn commit(&mut self, changes: &[Change]);
    /// Begins to store changes and fails, e.g. out of space: none of them is stored.
    fn fail(&mut self, changes: &[Change]);
    /// The state of a server that starts now.
    fn restore(&mut self, now: Now) -> ServerState;
}

/// Changes that are stored together.
#[derive(Debug)]
struct Batch {
    number: u64,
    at: Time,
    changes: Vec<Change>,
}

/// A disk and the effects that wait for it.
#[derive(Debug)]
pub(super) struct Durability {
    disk: Box<dyn Disk>,
    gate: Gate<Effect>,
    /// Batches that are not committed.
    pending: Vec<Batch>,
    last: u64,
    /// Effects until the next crash; `None` = no crash is planned.
    crash_in: Option<u32>,
    /// Commits follow each change, and no more crashes occur.
    is_healed: bool,
    /// Jobs that were reported to a client.
    told_jobs: BTreeSet<JobId>,
    /// Final states at the last time at which everything was committed.
    stored_finals: BTreeMap<(JobId, u32), Vec<Option<TaskState>>>,
    /// Instances that ran on each worker at the last crash, and should continue.
    expected: BTreeMap<WorkerId, Vec<(TaskKey, InstanceId)>>,
}

impl Durability {
    pub(super) fn new(disk: Box<dyn Disk>) -> Self {
        Self {
            disk,
            gate: Gate::default(),
            pending: Vec::new(),
            last: 0,
            crash_in: None,
            is_healed: false,
            told_jobs: BTreeSet::new(),
            stored_finals: BTreeMap::new(),
            expected: BTreeMap::new(),
        }
    }
}

impl World {
    /// Carries effects out, or makes them wait for the disk.
    pub(super) fn hand_over(&mut self, effects: Vec<Effect>) {
        let Some(durable) = &mut self.durable else {
            for effect in effects {
                self.carry_out(effect);
            }
            return;
        };
        let (mut changes, mut rest) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Persist(change) => changes.push(change),
                Effect::Free(_) => {}
                Effect::Reply(..)
                | Effect::WatchUpdate(..)
                | Effect::Registered { .. }
                | Effect::ToWorker(..)
                | Effect::Notify(_)
                | Effect::Allocate(_)
                | Effect::DropWorker(..) => rest.push(effect),
            }
        }
        if !changes.is_empty() {
            durable.last += 1;
            durable.gate.note(durable.last, &changes);
            durable.pending.push(Batch {
                number: durable.last,
                at: self.now.mono,
                changes,
            });
        }
        let ready: Vec<Effect> = rest
            .into_iter()
            .filter_map(|effect| durable.gate.pass(effect.wait(), effect))
            .collect();
        let is_healed = durable.is_healed;
        for effect in ready {
            if self.crash_is_due() {
                return;
            }
            self.carry_out(effect);
        }
        if is_healed {
            self.commit(usize::MAX);
        }
    }

    /// Tells the server since when the disk delays messages to workers.
    pub(super) fn note_unsent(&mut self) {
        let durable = self.durable.as_ref();
        let durable = durable.filter(|durable| durable.gate.keeps_from_workers());
        let first = durable.and_then(|durable| durable.pending.first());
        self.state.note_unsent(first.map(|batch| batch.at));
    }

    /// Counts down to a planned crash.
    fn crash_is_due(&mut self) -> bool {
        let Some(left) = self.durable.as_mut().and_then(|d| d.crash_in.as_mut()) else {
            return false;
        };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.crash();
        true
    }

    /// Some of what waits is committed.
    pub(super) fn commit_some(&mut self) {
        let some = self.rng.below(3) as usize;
        self.commit(some);
    }

    /// After some more effects the server crashes.
    pub(super) fn plan_crash(&mut self) {
        let effects = self.rng.below(12);
        if let Some(durable) = &mut self.durable {
            durable.crash_in.get_or_insert(effects);
        }
    }

    /// Commits the first batches, one by one, and releases the effects that waited for them.
    pub(super) fn commit(&mut self, batches: usize) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let count = batches.min(durable.pending.len());
        let mut changes = Vec::new();
        for batch in durable.pending.drain(..count) {
            changes.extend(batch.changes);
            durable.gate.advance(batch.number);
        }
        durable.disk.commit(&changes);
        if durable.pending.is_empty() {
            durable.stored_finals.clone_from(&self.finals);
        }
        while let Some(effect) = self.durable.as_mut().and_then(|d| d.gate.next_ready()) {
            if self.crash_is_due() {
                return;
            }
            self.carry_out(effect);
        }
    }

    /// A write fails: everything waits, and is retried later.
    pub(super) fn fail_to_commit(&mut self) {
        if let Some(durable) = &mut self.durable {
            let pending = durable.pending.iter();
            let changes: Vec<Change> = pending.flat_map(|batch| batch.changes.clone()).collect();
            durable.disk.fail(&changes);
        }
    }

    pub(super) fn note_reply(&mut self, reply: &Reply) {
        let Reply::Submitted(job) = reply else {
            return;
        };
        // Even across crashes: ids follow the order of answers, and no id is assigned twice.
        assert!(
            *job > self.last_told,
            "{job} comes behind {}",
            self.last_told
        );
        self.last_told = *job;
        // It may have been forgotten before its client learns of it.
        if let Some(durable) = &mut self.durable
            && self.state.jobs().contains_key(job)
        {
            durable.told_jobs.insert(*job);
        }
    }

    /// No client relies on these jobs anymore.
    pub(super) fn note_untold(&mut self, jobs: &[JobId]) {
        if let Some(durable) = &mut self.durable {
            durable.told_jobs.retain(|job| !jobs.contains(job));
        }
    }

    /// Tasks that ran on a worker when the server crashed.
    pub(super) fn take_expected(&mut self, id: WorkerId) -> Vec<(TaskKey, InstanceId)> {
        let expected = self.durable.as_mut().and_then(|d| d.expected.remove(&id));
        expected.unwrap_or_default()
    }

    /// No more crashes.
    pub(super) fn heal_disk(&mut self) {
        if let Some(durable) = &mut self.durable {
            durable.is_healed = true;
            durable.crash_in = None;
        }
        self.commit(usize::MAX);
    }

    pub(super) fn crash(&mut self) {
        self.note(|| "  the server crashes".into());
        let running: Vec<(WorkerId, TaskKey, InstanceId)> = self
            .nodes
            .values()
            .filter(|node| node.config.on_server_lost == OnServerLost::Reconnect)
            .filter_map(|node| Some((node.id?, node)))
            .flat_map(|(id, node)| {
                node.running()
                    .map(move |(key, instance)| (id, key, instance))
            })
            .filter(|(id, task, instance)| self.is_due(*id, *task, *instance))
            .collect();
        let earlier = self.take_all_expected();
        let before = self.state.clone();
        let Some(durable) = &mut self.durable else {
            return;
        };
        let was_all_stored = durable.pending.is_empty();
        durable.pending.clear();
        durable.gate = Gate::default();
        durable.crash_in = None;
        durable.last = 0;
        self.state = super::limited(durable.disk.restore(self.now));
        self.summary.crashes += 1;
        for job in &durable.told_jobs {
            assert!(self.state.jobs().contains_key(job), "{job} was told");
        }
        if was_all_stored {
            check_restored(&before, &self.state);
        }
        self.finals.clone_from(&durable.stored_finals);
        // Their removal is stored, other changes are not noted yet; all reported jobs exist.
        let known = self.state.jobs();
        self.finals.retain(|(job, _), _| known.contains_key(job));
        for (id, task, instance) in earlier.into_iter().chain(running) {
            let all = durable.expected.entry(id).or_default();
            if !all.contains(&(task, instance)) {
                all.push((task, instance));
            }
        }
        self.owed.clear();
        self.watching.clear();
        self.looked_at = None;
        self.registered.clear();
        self.links.clear();
        self.orphans.clear();
        self.check_acknowledged();
        self.state.check_invariants();
        self.check_finals();
        for number in self.nodes.keys().copied().collect::<Vec<_>>() {
            let node = self.nodes.get_mut(&number).expect("just listed");
            node.is_answered = false;
            if node.link.take().is_some() && node.id.is_some() {
                self.tell_node(number, worker_state::Input::ServerLost);
            }
        }
    }

    /// Acknowledged ends are on the disk: the task is over, or at a later instance.
    fn check_acknowledged(&self) {
        for (task, instance) in &self.acknowledged {
            let later = self.record(*task).map(TaskRecord::instance) > Some(*instance);
            assert!(
                later || self.is_final(*task),
                "the end of {task} instance {instance} was acknowledged"
            );
        }
    }

    /// Expected instances of workers that did not reconnect between two crashes; they still may.
    fn take_all_expected(&mut self) -> Vec<(WorkerId, TaskKey, InstanceId)> {
        let expected = self
            .durable
            .as_mut()
            .map(|d| std::mem::take(&mut d.expected));
        let expected = expected.into_iter().flatten();
        expected
            .flat_map(|(id, tasks)| tasks.into_iter().map(move |(task, i)| (id, task, i)))
            .filter(|(id, task, instance)| {
                let mut nodes = self.nodes.values().filter(|node| node.id == Some(*id));
                nodes.any(|node| node.running().any(|run| run == (*task, *instance)))
            })
            .collect()
    }
}

/// Everything was stored: the restored state equals the previous one, task by task. Dispatched
/// tasks without a start are not stored; a run that does not continue is superseded.
fn check_restored(before: &ServerState, after: &ServerState) {
    for job in before.jobs().values() {
        let again = after.jobs().get(&job.id).expect("every job is there again");
        for (submit, number) in job.submits.iter().zip(0..) {
            for index in 0..submit.tasks.len() {
                let slot = TaskSlot::new(number, index);
                let Some(was) = job.record(slot) else {
                    continue;
                };
                let what = format!("task {index} of submit {number} of job {}", job.id);
                let is = again.record(slot);
                let counted = |record: TaskRecord| (record.crash_count(), record.retry_count());
                let none = (0, 0);
                assert_eq!(is.map_or(none, counted), counted(was), "counts of {what}");
                let attempts = |job: &Job| job.submits[number as usize].tasks.attempts(index).len();
                assert_eq!(attempts(again), attempts(job), "attempts of {what}");
                let scale = |job: &Job| job.submits[number as usize].asks.own(index).scale;
                assert_eq!(scale(again), scale(job), "what {what} gets");
                // A canceled task may have run: the end of this run is not stored.
                let is_settled = matches!(was.phase(), Phase::Finished | Phase::Failed);
                let is_under_way = !is_settled && was.phase() != Phase::Waiting;
                let instance = again.instance(slot);
                // Workers that are not expected may have started waiting tasks, and only the next
                // instance of all is stored.
                let first = |job: &Job| job.submits[number as usize].tasks.first_instance();
                let is_skipped = instance == first(again) && instance > was.instance();
                let is_next = (is_under_way || first(again) > first(job))
                    && instance == was.instance().next();
                // That a task returned to waiting is not stored, and after its cancel nothing
                // further is.
                let is_canceled = was.phase().is_terminal() && !is_settled;
                assert!(
                    instance == was.instance()
                        || is_next
                        || is_skipped
                        || is_canceled && instance < was.instance(),
                    "instance of {what}: {instance:?}, it was {was:?}"
                );
                if was.phase().is_terminal() {
                    assert_eq!(again.phase(slot), Some(was.phase()), "phase of {what}");
                }
            }
        }
    }
}
