//! Closing, cancelling and forgetting jobs; stopping workers.

use super::change::persist;
use super::{ChangeKind, Effect, JobResult, Reply, ServerState, StopResult, WorkerCommand};
use crate::id::{JobId, WorkerId};
use crate::job::JobState;
use crate::outcome::LostReason;
use crate::selector::Selector;
use crate::task::{Phase, TaskState};
use crate::time::Now;

impl ServerState {
    pub(super) fn close_jobs(
        &mut self,
        now: Now,
        selector: &Selector,
        effects: &mut Vec<Effect>,
    ) -> Vec<JobResult> {
        let ids = self.select_jobs(selector, |job| job.is_open);
        ids.into_iter()
            .map(|id| self.close_job(now, id, effects))
            .collect()
    }

    fn close_job(&mut self, now: Now, id: JobId, effects: &mut Vec<Effect>) -> JobResult {
        let Some(job) = self.jobs.get_mut(&id) else {
            return JobResult::NotFound(id);
        };
        if !job.is_open {
            return JobResult::Already(id);
        }
        job.is_open = false;
        let completed = job.is_completed();
        self.changed.insert(id);
        persist(effects, now.wall, ChangeKind::JobClosed(id));
        if completed {
            job.completion_noted = true;
            persist(effects, now.wall, ChangeKind::JobCompleted(id));
            self.followers.note(id, None);
            self.drop_templates(id, effects);
        }
        JobResult::Ok {
            job: id,
            canceled: 0,
            already_finished: 0,
        }
    }

    pub(super) fn cancel_jobs(
        &mut self,
        now: Now,
        selector: &Selector,
        reason: &str,
        effects: &mut Vec<Effect>,
    ) -> Vec<JobResult> {
        let ids = self.select_jobs(selector, |job| !job.is_completed());
        ids.into_iter()
            .map(|id| self.cancel_job(now, id, reason, effects))
            .collect()
    }

    fn cancel_job(
        &mut self,
        now: Now,
        id: JobId,
        reason: &str,
        effects: &mut Vec<Effect>,
    ) -> JobResult {
        let Some(job) = self.jobs.get(&id) else {
            return JobResult::NotFound(id);
        };
        if job.is_completed() {
            return JobResult::Already(id);
        }
        let unfinished = job.counts().unfinished();
        let already_finished = job.counts().total() - unfinished;
        if unfinished > 0 {
            let canceled = ChangeKind::JobCanceled {
                job: id,
                reason: reason.into(),
            };
            persist(effects, now.wall, canceled);
            self.end_job(now, id, Phase::Canceled, effects);
            if let Some(job) = self.jobs.get_mut(&id).filter(|_| !reason.is_empty()) {
                job.cancel_reason = Some(reason.into());
            }
        }
        JobResult::Ok {
            job: id,
            canceled: unfinished,
            already_finished,
        }
    }

    /// Ends every unfinished task of a job, wherever it is.
    pub(super) fn end_job(&mut self, now: Now, id: JobId, to: Phase, effects: &mut Vec<Effect>) {
        self.watches.note_ended_job(id, &self.jobs);
        self.ready.remove_job(id);
        self.agenda.note_plans_changed();
        self.kill_assigned(id, effects);
        if let Some(job) = self.jobs.get_mut(&id) {
            let ids = job.unfinished_ids();
            job.end_all(to);
            if !ids.is_empty() {
                let to = to.state();
                persist(
                    effects,
                    now.wall,
                    ChangeKind::TasksDropped { job: id, ids, to },
                );
            }
        }
        self.followers.note(id, None);
        self.note_job_progress(now, id, effects);
    }

    pub(super) fn forget_jobs(
        &mut self,
        now: Now,
        selector: &Selector,
        states: &[TaskState],
        effects: &mut Vec<Effect>,
    ) -> Reply {
        let wanted = |state: JobState| match state {
            JobState::Finished => states.contains(&TaskState::Finished),
            JobState::Failed => states.contains(&TaskState::Failed),
            JobState::Canceled => states.contains(&TaskState::Canceled),
            JobState::Aborted => states.contains(&TaskState::Aborted),
            JobState::Waiting | JobState::Running | JobState::Opened => false,
        };
        let ids = self.select_jobs(selector, |job| job.is_completed() && wanted(job.state()));
        let (mut forgotten, mut ignored) = (0, 0);
        let mut dropped = Vec::new();
        for id in ids {
            let drop = self
                .jobs
                .get(&id)
                .is_some_and(|j| j.is_completed() && wanted(j.state()));
            if drop {
                if let Some(mut job) = self.jobs.remove(&id) {
                    self.totals.count(&mut job);
                    self.totals.forget(&mut job);
                }
                self.changed.insert(id);
                dropped.push(id);
                forgotten += 1;
            } else {
                ignored += 1;
            }
        }
        if !dropped.is_empty() {
            persist(effects, now.wall, ChangeKind::JobsForgotten(dropped));
        }
        Reply::Forgotten { forgotten, ignored }
    }

    pub(super) fn stop_workers(
        &mut self,
        selector: &Selector,
        effects: &mut Vec<Effect>,
    ) -> Vec<(WorkerId, StopResult)> {
        let ids = self.select_workers(selector);
        ids.into_iter()
            .map(|id| (id, self.stop_worker(id, effects)))
            .collect()
    }

    /// Ids that a selector names; `all` = those that are connected. Unknown ids stay in.
    pub(super) fn select_workers(&self, selector: &Selector) -> Vec<WorkerId> {
        match selector {
            Selector::Last => self.last_worker().into_iter().collect(),
            Selector::All => self.workers.keys().copied().collect(),
            Selector::Ids(ids) => ids.iter().map(WorkerId).collect(),
        }
    }

    fn stop_worker(&mut self, id: WorkerId, effects: &mut Vec<Effect>) -> StopResult {
        match self.workers.get_mut(&id) {
            None if self.ended_workers.contains_key(&id) => StopResult::AlreadyStopped,
            None => StopResult::NotFound,
            Some(worker) if worker.stopping.is_some() => StopResult::AlreadyStopped,
            Some(worker) => {
                worker.stopping = Some(LostReason::Stopped);
                self.agenda.note_plans_changed();
                effects.push(Effect::ToWorker(id, WorkerCommand::Stop));
                StopResult::Stopped
            }
        }
    }
}
