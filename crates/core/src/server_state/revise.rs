//! Changes of jobs and tasks after their submit (`hq job set`).
//!
//! Waiting tasks leave the ready queue and enter it again with their new request. What workers have
//! received and not started comes back. Running tasks keep their requests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::submit::number_templates;
use super::{ChangeKind, ChangedTasks, Ctx, ServerState, WorkerCommand};
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{Affected, Job, JobChange, JobRevised, KeptChanges, SubmitAt, TaskAt, TaskChange};
use crate::range::IdArray;
use crate::refusal::Refusal;
use crate::time::Time;
use crate::worker::Worker;

/// A change needs this many unused numbers of templates.
const TEMPLATES_MIN: u32 = 1 << 28;

impl ServerState {
    /// Changes a job, and those of `tasks` that have not ended. `None` means all tasks.
    pub(super) fn change_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        tasks: Option<&IdArray>,
        change: &JobChange,
    ) -> Result<ChangedTasks, Refusal> {
        let Some(job) = self.jobs.get_mut(id) else {
            return Err(Refusal::not_found(format!("job {id} not found")));
        };
        if u32::MAX - self.last_template < TEMPLATES_MIN {
            let text = "the server has given almost all numbers to templates; restart it";
            return Err(Refusal::unavailable(text));
        }
        if job.is_completed() {
            return Err(Refusal::conflict(format!("job {id} has ended")));
        }
        let (found, mut of_tasks) = match change.tasks.is_empty() {
            true => <_>::default(),
            false => job.revise(tasks, &change.tasks).map_err(|why| {
                let text = format!("the tasks of job {id} cannot be changed: {why}");
                Refusal::invalid(text)
            })?,
        };
        let (answer, of_job) = (ChangedTasks::of(job, &found), job.replaced(change));
        if let Some(name) = &change.name {
            job.name.clone_from(name);
        }
        let is_limited = change.max_running.is_some() || change.max_rate.is_some();
        if is_limited {
            let max = change.max_running.unwrap_or(job.max_running);
            let rate = change.max_rate.unwrap_or(job.max_rate);
            job.limits_set_at = u32::try_from(job.submits.len()).ok();
            self.limit_job(ctx.now.mono, id, max, rate);
            // Tasks of other jobs may have been sent behind others because this job had no place.
            let is_shared = !self.dispatcher.limits().uses_of(id).is_empty();
            self.recall_behind(ctx, (!is_shared).then_some(id));
            self.dispatcher.note_ready();
        }
        self.apply_changes(ctx, (id, &answer.running), &found, &change.tasks);
        if of_tasks.is_empty() {
            of_tasks.push(TaskChange::default());
        }
        if !change.is_of_tasks() || !found.changed.is_empty() {
            let before = of_tasks.into_iter().map(|tasks| JobChange {
                tasks,
                ..of_job.clone()
            });
            ctx.persist(ChangeKind::JobRevised(Box::new(JobRevised {
                job: id,
                tasks: answer.changed.clone(),
                before: before.collect(),
                after: change.clone(),
                kept: self.jobs.get(id).map(Job::kept_changes).unwrap_or_default(),
            })));
            self.autoalloc.note_change(ctx.now);
        }
        Ok(answer)
    }

    /// Makes the new values of tasks effective.
    fn apply_changes(
        &mut self,
        ctx: &mut Ctx<'_>,
        (id, running): (JobId, &IdArray),
        found: &Affected,
        change: &TaskChange,
    ) {
        let submits = self.jobs.get(id).map_or(0, |job| job.submits.len());
        for number in 0..u32::try_from(submits).unwrap_or(u32::MAX) {
            self.complete_revisions(SubmitAt { job: id, number });
        }
        // Also a new time limit makes a template, which needs the class of its request.
        self.dispatcher.remove_tasks(id, &found.waiting);
        let waiting = found.waiting.iter().map(|part| (part, true));
        let active = found.running.iter().map(|part| (part, false));
        for ((number, tasks), is_waiting) in waiting.chain(active) {
            let at = SubmitAt {
                job: id,
                number: *number,
            };
            let submit = self.jobs.submit(at);
            let is_divided = submit.is_some_and(|submit| self.is_divided(submit));
            for (from, to) in tasks.ranges() {
                // Waiting tasks of large graphs are interned in portions, unless the job waits for
                // workers after a restart, which may have its tasks.
                if !is_waiting || !is_divided || self.jobs.is_submit_held(at) {
                    self.intern(at, from..to);
                }
                self.ask_again(Some(ctx.now.mono), at, from, to);
                if is_waiting {
                    self.review(ctx, at, from..to, true);
                }
            }
        }
        if change.concerns_workers() {
            self.retract_tasks(ctx, id, &found.waiting);
        }
        if change.time_limit.is_some() {
            let job = self.jobs.get(id);
            let slots = running.iter().filter_map(|task| job?.find(TaskId(task)));
            self.send_time_limits(ctx, slots.map(|slot| slot.of(id)));
        }
    }

    /// Makes the templates of new changes of a submit.
    fn complete_revisions(&mut self, at: SubmitAt) {
        if let Some(submit) = self.jobs.submit_mut(at) {
            submit.complete_revisions(
                |count| number_templates(&mut self.last_template, count),
                |requests| self.dispatcher.intern(requests),
            );
        }
    }

    /// Sends running tasks their new time limits, which may have grown.
    fn send_time_limits(&self, ctx: &mut Ctx<'_>, running: impl Iterator<Item = TaskAt>) {
        let mut all = BTreeMap::<(WorkerId, Option<Duration>), Vec<(TaskKey, InstanceId)>>::new();
        for at in running {
            let limit = self.jobs.definition(at).and_then(|task| task.time_limit);
            if let Some((worker, instance)) = self.holder(at) {
                all.entry((worker, limit)).or_default().push(instance);
            }
        }
        for ((worker, limit), tasks) in all {
            let found = self.workers.get(worker);
            if found.is_some_and(|worker| worker.config.takes_signals && !worker.is_away()) {
                ctx.send(worker, WorkerCommand::TimeLimit(tasks, limit));
            }
        }
    }

    /// Sends a worker that is back the time limits of its tasks that may have changed meanwhile.
    pub(super) fn repeat_time_limits(&self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let tasks = self.workers.get(id).into_iter().flat_map(Worker::assigned);
        let tasks = tasks.map(|(task, assigned)| assigned.slot.of(task.job));
        let changed = tasks.filter(|at| {
            let submit = self.jobs.submit(at.submit());
            submit.is_some_and(|submit| submit.revisions.is_some())
        });
        self.send_time_limits(ctx, changed);
    }

    /// Restores the changes of a job. Must be called after its submits, and before its tasks. Ignores
    /// unknown jobs and tasks.
    pub fn restore_changes(&mut self, id: JobId, kept: &KeptChanges) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let submits = job.restore_changes(&kept.tasks);
        if let Some(set_at) = kept.limits_set_at {
            let later = job.submits.iter().skip(set_at as usize);
            let mut limits = later.map(|submit| &submit.limits);
            if !limits.any(|later| later.max_running.is_some() || later.max_rate.is_some()) {
                job.limits_set_at = Some(set_at);
                self.limit_job(Time(0), id, kept.max_running, kept.max_rate);
            }
        }
        for number in submits {
            let at = SubmitAt { job: id, number };
            self.complete_revisions(at);
            self.intern(at, 0..u32::MAX);
            self.ask_again(None, at, 0, u32::MAX);
        }
    }
}

impl Job {
    /// Returns the values of the job that a change replaces.
    fn replaced(&self, change: &JobChange) -> JobChange {
        JobChange {
            name: change.name.as_ref().map(|_| self.name.clone()),
            max_running: change.max_running.map(|_| self.max_running),
            max_rate: change.max_rate.map(|_| self.max_rate),
            tasks: TaskChange::default(),
        }
    }

    /// Returns all changes that apply to the job.
    fn kept_changes(&self) -> KeptChanges {
        KeptChanges {
            limits_set_at: self.limits_set_at,
            max_running: self.max_running,
            max_rate: self.max_rate,
            tasks: self.changes(),
        }
    }
}
