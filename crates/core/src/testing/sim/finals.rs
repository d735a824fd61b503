//! Invariants of tasks: of ended ones after every step, of the others when they start, and when
//! their workers reconnect.

use super::World;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::TaskSlot;
use crate::server_state::{Input, LinkId, Reattach};
use crate::task::{Phase, TaskRecord};
use crate::worker_config::WorkerConfig;

impl World {
    /// A program starts: this instance must never have run before, anywhere.
    pub(super) fn note_run(&mut self, run: (TaskKey, InstanceId), worker: Option<WorkerId>) {
        let is_new = self.runs.insert(run);
        let (task, instance) = run;
        assert!(is_new, "{task} instance {instance} starts once");
        self.check_order(task, instance, worker);
    }

    /// The dependencies of a starting program have run, and no valid instance has depended on its
    /// outcome yet.
    fn check_order(&self, task: TaskKey, instance: InstanceId, worker: Option<WorkerId>) {
        let job = self.state.jobs().get(&task.job);
        let found = job.and_then(|job| {
            let slot = job.find(task.task)?;
            let submit = job.submits.get(slot.submit as usize)?;
            Some((job, slot, submit))
        });
        let Some((job, slot, submit)) = found else {
            // Its worker has not learned yet that it was forgotten.
            return;
        };
        if job.instance(slot) != instance {
            // Its worker has not learned yet that it was given up.
            return;
        }
        for dep in submit.deps(slot.index) {
            let dep = TaskKey::new(task.job, dep);
            let found = job.find(dep.task).expect("it was submitted");
            let is_told = job.phase(found) == Some(Phase::Finished);
            // After a crash only its worker may know it, possibly as an instance that the restart
            // superseded and that is retracted when the worker reconnects.
            let InstanceId(current) = job.instance(found);
            let first = if job.is_untouched(found) { 0 } else { current };
            let is_kept = worker.is_some_and(|worker| {
                let mut instances = (first..=current).map(InstanceId);
                instances.any(|instance| self.succeeded.contains(&(dep, worker, instance)))
            });
            assert!(is_told || is_kept, "{task} starts before {dep} is done");
        }
        for follower in submit.graph().map_or(&[][..], |g| g.dependents(slot.index)) {
            let follower = TaskSlot::new(slot.submit, *follower);
            let phase = job.phase(follower);
            let counts = matches!(phase, Some(Phase::Running | Phase::Finished));
            assert!(
                !counts,
                "{task} starts, but {follower:?} that follows it is {phase:?}"
            );
        }
    }

    /// A worker reconnects: the instances that the server expects there continue.
    pub(super) fn check_reattached(
        &mut self,
        link: LinkId,
        config: WorkerConfig,
        reattach: Box<Reattach>,
    ) {
        let id = reattach.worker;
        let started = reattach.report.started.iter();
        let mut runs: Vec<(TaskKey, InstanceId)> =
            started.map(|row| (row.task, row.instance)).collect();
        let mut through_crash = self.take_expected(id);
        through_crash.retain(|run| runs.contains(run));
        runs.retain(|(task, instance)| self.is_due(id, *task, *instance));
        self.was_reattached = false;
        let crashes = self.summary.crashes;
        self.apply(Input::WorkerReattached(link, config, reattach));
        if self.was_reattached && self.summary.crashes == crashes {
            self.summary.went_on += through_crash.len() as u64;
            runs.extend(through_crash);
            for (task, instance) in runs {
                let goes_on = self.is_due(id, task, instance) || self.is_final(task);
                assert!(goes_on, "{task} instance {instance} goes on on {id}");
            }
        }
    }

    /// Whether the server considers this the current instance of an unfinished task.
    pub(super) fn is_due(&self, id: WorkerId, task: TaskKey, instance: InstanceId) -> bool {
        self.record(task).is_some_and(|record| {
            record.worker() == id
                && record.instance() == instance
                && (record.phase().is_sent() || record.phase() == Phase::Running)
        })
    }

    /// Whether the task is over.
    pub(super) fn is_final(&self, task: TaskKey) -> bool {
        self.state.jobs().get(&task.job).is_none_or(|job| {
            job.find(task.task)
                .and_then(|slot| job.phase(slot))
                .is_some_and(Phase::is_terminal)
        })
    }

    pub(super) fn record(&self, task: TaskKey) -> Option<TaskRecord> {
        let job = self.state.jobs().get(&task.job)?;
        job.record(job.find(task.task)?)
    }

    /// A client forgets these jobs.
    pub(super) fn note_forgotten(&mut self, jobs: &[JobId]) {
        self.finals.retain(|(job, _), _| !jobs.contains(job));
        self.note_untold(jobs);
    }

    /// Final states must not change, and no success is recorded that no worker had.
    ///
    /// Checks every task after every input, so it goes by position and looks up only new ones.
    pub(super) fn check_finals(&mut self) {
        for job in self.state.jobs().values() {
            for (submit, number) in job.submits.iter().zip(0..) {
                let len = submit.tasks.len();
                let seen = self.finals.entry((job.id, number)).or_default();
                seen.resize(len as usize, None);
                for (from, to, phase) in submit.tasks.runs(0, len) {
                    let now = phase.is_terminal().then(|| phase.state());
                    for index in from..to {
                        let seen = &mut seen[index as usize];
                        if *seen == now {
                            continue;
                        }
                        let slot = TaskSlot::new(number, index);
                        let task = job.key(slot).expect("index is in range").task;
                        let key = TaskKey::new(job.id, task);
                        assert!(seen.is_none(), "final state of {key} never changes");
                        *seen = now;
                        if let (Some(record), Some(template)) =
                            (job.record(slot), submit.definition(index))
                        {
                            let retries = record.retry_count();
                            assert!(retries <= template.retry.limit, "retries of {key}");
                        }
                        if phase == Phase::Finished {
                            let record = job.record(slot).expect("it ran");
                            let run = (key, record.worker(), record.instance());
                            assert!(self.succeeded.contains(&run), "{run:?} really succeeded");
                        }
                    }
                }
            }
        }
        let known = self.state.jobs();
        assert!(
            self.finals.keys().all(|(job, _)| known.contains_key(job)),
            "jobs do not vanish"
        );
    }
}
