//! Closing, canceling and forgetting jobs, and stopping workers.

use std::collections::BTreeMap;

use super::after::{persist_dropped, sorted_ids};
use super::{
    ChangeKind, Ctx, Freed, JobResult, Reply, ServerState, Signaled, StopResult, WorkerCommand,
};
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{Job, JobState, TaskAt, TaskSlot};
use crate::outcome::SignalName;
use crate::range::{IdArray, IdRange, IndexSet};
use crate::selector::{Selected, Selector};
use crate::task::{Phase, TaskState};

impl ServerState {
    /// Closes a job. Returns `None` if the job does not exist.
    pub(super) fn close_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) -> Option<JobResult> {
        if !self.jobs.close(id)? {
            return Some(JobResult::Already(id));
        }
        ctx.persist(ChangeKind::JobClosed(id));
        let job = self.jobs.get_mut(id)?;
        // Completion is only noted here, because the last task ended while the job was open.
        if job.is_completed() {
            job.note_completed();
            self.complete_job(ctx, id);
            self.jobs.note_end(id, None);
            self.drop_templates(ctx, id);
        }
        Some(JobResult::Ok {
            job: id,
            canceled: 0,
            already_finished: 0,
            killed: 0,
        })
    }

    /// Records the completion of a job, and drops the arguments of its calls.
    pub(super) fn complete_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let job = self.jobs.get_mut(id);
        let dropped = job.map_or_else(Vec::new, Job::drop_all_entries);
        persist_entries_dropped(ctx, id, dropped);
        ctx.persist(ChangeKind::JobCompleted(id));
        self.forget_learned(id);
    }

    /// Closes a self-closing job once it has no task left that could add others.
    pub(super) fn close_if_over(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let job = self.jobs.get(id);
        if job.is_some_and(|job| job.closes_itself && job.is_open && job.is_idle()) {
            self.close_job(ctx, id);
        }
    }

    /// Cancels a job. Returns `None` if the job does not exist.
    pub(super) fn cancel_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        reason: &str,
    ) -> Option<JobResult> {
        let job = self.jobs.get(id)?;
        let unfinished = job.counts().unfinished();
        let already_finished = job.counts().total() - unfinished;
        let is_completed = job.is_completed();
        // The tasks of a job that failed because of `--max-fails` keep their grace period.
        let killed = match (unfinished, job.counts().canceled) {
            (0, 1..) => self.kill_now(ctx, id),
            _ => 0,
        };
        if is_completed && killed == 0 {
            return Some(JobResult::Already(id));
        }
        // An open job without unfinished tasks is unchanged, because no task was canceled.
        if unfinished > 0 {
            let canceled = ChangeKind::JobCanceled {
                job: id,
                reason: reason.into(),
            };
            ctx.persist(canceled);
            self.end_job(ctx, id, Phase::Canceled);
            // A cancel without a reason keeps the reason of an earlier cancel.
            if let Some(job) = self.jobs.get_mut(id).filter(|_| !reason.is_empty()) {
                job.cancel_reason = Some(reason.into());
            }
        }
        Some(JobResult::Ok {
            job: id,
            canceled: unfinished,
            already_finished,
            killed,
        })
    }

    /// Cancels some tasks of a job in any state, and aborts their dependents. Unknown ids are not
    /// counted.
    pub(super) fn cancel_tasks(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        tasks: &IdArray,
        keep_running: bool,
    ) -> Selected<JobResult> {
        let Some(job) = self.jobs.get(id) else {
            return Selected {
                rows: Vec::new(),
                not_found: IdArray::single(id.0),
            };
        };
        let found = tasks.iter().map(TaskId);
        let found: Vec<_> = found
            .filter_map(|task| Some((task, job.find(task)?)))
            .collect();
        let (mut canceled, mut slots, mut over) = (Vec::new(), Vec::new(), 0);
        let mut killed = BTreeMap::<WorkerId, Vec<(TaskKey, InstanceId)>>::new();
        for (task, slot) in &found {
            let at = slot.of(id);
            match self.jobs.phase(at) {
                Some(Phase::Running) if keep_running => continue,
                Some(Phase::Waiting) => self.leave_queue(at),
                Some(Phase::Queued | Phase::Placed | Phase::Running) => {
                    if let Some((worker, task)) = self.holder(at) {
                        killed.entry(worker).or_default().push(task);
                    }
                }
                None | Some(Phase::Finished | Phase::Failed | Phase::Canceled | Phase::Aborted) => {
                    over += 1;
                    continue;
                }
            }
            self.jobs.end_one(at, Phase::Canceled, ctx.now.wall);
            self.audience.note_ended(id, IdRange::single(task.0));
            self.jobs.note_end(id, Some(*task));
            canceled.push(task.0);
            slots.push(*slot);
        }
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let result = JobResult::Ok {
            job: id,
            canceled: count(canceled.len()),
            already_finished: over,
            killed: 0,
        };
        if !canceled.is_empty() {
            let behind = self.end_canceled(ctx, id, canceled, &slots);
            for (worker, task) in behind {
                killed.entry(worker).or_default().push(task);
            }
            for (worker, tasks) in killed {
                ctx.send(worker, WorkerCommand::Kill(tasks));
            }
        }
        Selected::all(vec![result])
    }

    /// Drops the arguments of calls. Unknown ids are not counted.
    pub(super) fn drop_entries(&mut self, ctx: &mut Ctx<'_>, job: JobId, tasks: &IdArray) -> Reply {
        let found = self.jobs.get_mut(job);
        let (forgotten, dropped) =
            found.map_or_else(Default::default, |job| job.drop_entries(tasks));
        persist_entries_dropped(ctx, job, dropped);
        let ignored = tasks.len() - forgotten;
        Reply::Forgotten { forgotten, ignored }
    }

    /// Stores which tasks were canceled, and releases other tasks. Returns the dependents that were
    /// sent to workers without a reported start, which are aborted as well.
    fn end_canceled(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        canceled: Vec<u32>,
        slots: &[TaskSlot],
    ) -> Vec<(WorkerId, (TaskKey, InstanceId))> {
        let (ids, to) = (sorted_ids(id, canceled), TaskState::Canceled);
        ctx.persist(ChangeKind::TasksDropped { job: id, ids, to });
        // All dependents are collected in one walk. One walk per task would be quadratic along a
        // chain.
        let job = self.jobs.get(id);
        let dependents = job.map_or_else(Vec::new, |job| job.descendants_of_all(slots));
        let mut sent = Vec::new();
        for slot in &dependents {
            let at = slot.of(id);
            if !self.jobs.phase(at).is_some_and(Phase::is_sent) {
                continue;
            }
            sent.extend(self.holder(at));
            // That instance is void, so the task waits like the other dependents.
            self.jobs.set_phase(at, Phase::Waiting);
        }
        let aborted = self.abort_waiting(id, dependents);
        if !aborted.is_empty() {
            persist_dropped(ctx, id, sorted_ids(id, aborted));
        }
        // These tasks may have hidden other tasks from rounds, and nodes may be reserved for them.
        self.dispatcher.note_ready();
        self.dispatcher.note_plans_changed();
        self.note_job_progress(ctx, id);
        sent
    }

    /// Removes a waiting task from the ready queue, unless the task is held back.
    fn leave_queue(&mut self, at: TaskAt) {
        let job = self.jobs.get(at.job);
        if let Some(key) = job.and_then(|job| super::Dispatcher::queue_key(job, at.slot)) {
            self.dispatcher.remove(key, at);
        }
    }

    /// Sends a signal to those of these tasks that run. Unknown ids are ignored.
    pub(super) fn signal_tasks(
        &self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        tasks: &IdArray,
        signal: i32,
    ) -> Signaled {
        let (mut sent, mut unable) = (Vec::new(), Vec::new());
        let mut signaled = BTreeMap::<WorkerId, Vec<(TaskKey, InstanceId)>>::new();
        for task in tasks.iter() {
            let found = self.jobs.get(id).and_then(|job| job.find(TaskId(task)));
            let Some(at) = found.map(|slot| slot.of(id)) else {
                continue;
            };
            if self.jobs.phase(at) != Some(Phase::Running) {
                continue;
            }
            // Calls share an interpreter, which may have gone on to the next call.
            let is_call = self.jobs.definition(at).is_none_or(|task| task.is_call);
            let holder = self.holder(at).filter(|(worker, _)| {
                let worker = self.workers.get(*worker).filter(|_| !is_call);
                worker.is_some_and(|worker| worker.config.takes_signals && !worker.is_away())
            });
            match holder {
                Some((worker, instance)) => {
                    signaled.entry(worker).or_default().push(instance);
                    sent.push(task);
                }
                None => unable.push(task),
            }
        }
        for (worker, tasks) in signaled {
            let (name, count) = (SignalName(signal), tasks.len());
            tracing::info!("A client sends {name} to {count} tasks of job {id} on worker {worker}");
            ctx.send(worker, WorkerCommand::Signal(tasks, signal));
        }
        let sorted = |mut ids: Vec<u32>| {
            ids.sort_unstable();
            IdArray::from_sorted(ids).unwrap_or_default()
        };
        Signaled {
            sent: sorted(sent),
            unable: sorted(unable),
        }
    }

    /// Returns the connected worker with the current instance of a task, and the instance.
    pub(super) fn holder(&self, at: TaskAt) -> Option<(WorkerId, (TaskKey, InstanceId))> {
        let (task, record) = self.jobs.dispatched(at)?;
        let worker = self.workers.get(record.worker())?;
        Some((worker.id, (task, record.instance())))
    }

    /// Ends every unfinished task of a job, in any state.
    pub(super) fn end_job(&mut self, ctx: &mut Ctx<'_>, id: JobId, to: Phase) {
        // The ids must be reported while the phases still show which tasks are unfinished.
        self.audience.note_ended_job(id, self.jobs.all());
        let submits = self.jobs.get(id).map_or(0, |job| job.submits.len());
        let submits = u32::try_from(submits).unwrap_or(u32::MAX);
        // Only the current submits leave the queue. An open job can get more, which stay.
        self.dispatcher.leave_queue(id, submits);
        self.kill_assigned(ctx, id);
        let ids = self.jobs.end_all(id, to, ctx.now.wall);
        if !ids.is_empty() {
            let to = to.state();
            ctx.persist(ChangeKind::TasksDropped { job: id, ids, to });
        }
        self.jobs.note_end(id, None);
        self.note_job_progress(ctx, id);
    }

    /// Forgets a completed job in one of these states. Returns whether it was forgotten.
    pub(super) fn forget_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        states: &[TaskState],
    ) -> bool {
        let wanted = |state: JobState| match state {
            JobState::Finished => states.contains(&TaskState::Finished),
            JobState::Failed => states.contains(&TaskState::Failed),
            JobState::Canceled => states.contains(&TaskState::Canceled),
            JobState::Aborted => states.contains(&TaskState::Aborted),
            JobState::Waiting | JobState::Running | JobState::Opened => false,
        };
        let found = self.jobs.get(id);
        let Some(job) = found.filter(|job| job.is_completed() && wanted(job.state())) else {
            return false;
        };
        // For waiting submits, a forgotten job counts as finished. Held submits are examined only
        // when the workers are back.
        let is_needed = self.jobs.is_followed(id) || self.awaited_workers() > 0;
        // Followers that have not been notified of its end would mistake it for a success.
        if is_needed && job.state() != JobState::Finished {
            return false;
        }
        if let Some(job) = self.jobs.forget(id) {
            ctx.free(Freed::Job(Box::new(job)));
        }
        self.submit_keys.forget(id);
        self.dispatcher.forget_job(id);
        true
    }

    pub(super) fn stop_workers(
        &mut self,
        ctx: &mut Ctx<'_>,
        selector: &Selector,
    ) -> Selected<(WorkerId, StopResult)> {
        let workers = self.workers.select(selector);
        workers.filter_map(|id| Some((id, self.stop_worker(ctx, id))))
    }

    fn stop_worker(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) -> StopResult {
        // The worker has ended, or was asked before.
        if !self.workers.stop(id) {
            return StopResult::AlreadyStopped;
        }
        // If the worker was reserved for a multi-node task, the task needs another node.
        self.dispatcher.note_plans_changed();
        ctx.send(id, WorkerCommand::Stop);
        StopResult::Stopped
    }
}

/// Stores which calls of a job have lost their arguments.
fn persist_entries_dropped(ctx: &mut Ctx<'_>, job: JobId, dropped: Vec<(u32, IndexSet)>) {
    for (number, calls) in dropped {
        ctx.persist(ChangeKind::EntriesDropped { job, number, calls });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::range::{IdArray, IdRange};
    use crate::server_state::{
        Command, Effect, Input, LinkId, Reply, WatchSpec, WorkerCommand, WorkerMessage,
    };
    use crate::testing::{array_submit, request, template, worker_config};

    /// Creates a server with jobs 1 to 6 except 3, and with workers 1 to 3.
    fn server() -> ServerState {
        let mut state = ServerState::new("test");
        for link in 1..4 {
            let connected = Input::WorkerConnected(LinkId(link), worker_config(1));
            crate::testing::apply(&mut state, connected);
        }
        for _ in 0..6 {
            let submit = array_submit(0, template(&["true"]));
            request(&mut state, Command::Submit(Box::new(submit)));
        }
        let jobs = Selector::Ids(IdArray::single(3));
        let forget = Command::ForgetJobs {
            jobs,
            states: vec![TaskState::Finished],
        };
        request(&mut state, forget);
        state
    }

    fn commands(ids: &Selector) -> Vec<Command> {
        let jobs = || ids.clone();
        vec![
            Command::CloseJobs(jobs()),
            Command::CancelJobs {
                jobs: jobs(),
                reason: "".into(),
            },
            Command::Resubmit {
                jobs: jobs(),
                states: vec![TaskState::Failed],
                requests: Vec::new(),
            },
            Command::StopWorkers(jobs()),
            Command::DrainWorkers(jobs()),
            Command::Watch(WatchSpec {
                jobs: jobs(),
                until_idle: false,
                with_progress: true,
                with_outcomes: true,
                with_notifications: true,
                interval: Duration::ZERO,
            }),
        ]
    }

    /// Returns the number of rows of an answer and its unknown ids.
    fn answer(effects: &[Effect]) -> (usize, IdArray) {
        let found = effects.iter().find_map(|effect| {
            if let Effect::WatchUpdate(_, update) = effect {
                return Some((update.jobs.len(), &update.not_found));
            }
            let Effect::Reply(_, reply) = effect else {
                return None;
            };
            match reply {
                Reply::Jobs(jobs) => Some((jobs.rows.len(), &jobs.not_found)),
                Reply::Resubmitted(jobs) => Some((jobs.rows.len(), &jobs.not_found)),
                Reply::Workers(all) => Some((all.rows.len(), &all.not_found)),
                Reply::Submitted(_)
                | Reply::SubmittedAll(_)
                | Reply::Refused(_)
                | Reply::Queue(_)
                | Reply::Signaled(_)
                | Reply::Changed(_)
                | Reply::Limit(_)
                | Reply::Forgotten { .. } => None,
            }
        });
        let (rows, not_found) = found.expect("an answer");
        (rows, not_found.clone())
    }

    prop_compose! {
        /// Generates few or very many ids, close to existing ids or far from them.
        fn any_ids()(low in 0u32..8, count in prop_oneof![1u32..9, any::<u32>()], step in 1u32..4, far in any::<bool>()) -> IdArray {
            let step = if count > u32::MAX / 4 { 1 } else { step };
            let count = count.clamp(1, u32::MAX - 8);
            let near = IdRange::new(low, count, step).expect("fits");
            let mut ranges = vec![near];
            if far && near.last() < u32::MAX {
                ranges.extend(IdRange::new(u32::MAX, 1, 1));
            }
            IdArray::new(ranges).expect("disjoint")
        }
    }

    proptest! {
        #[test]
        fn an_answer_costs_what_exists_not_what_is_named(ids in any_ids()) {
            let state = server();
            let known_jobs = state.jobs().len();
            for command in commands(&Selector::Ids(ids.clone())) {
                let name = format!("{command:?}");
                let (rows, not_found) = answer(&request(&mut state.clone(), command));
                prop_assert!(rows <= known_jobs, "{name}");
                prop_assert_eq!(rows + not_found.len() as usize, ids.len() as usize, "{}", name);
                prop_assert!(not_found.ranges().len() <= ids.ranges().len() + known_jobs, "{}", name);
            }
        }
    }

    #[test]
    fn forgetting_counts_what_stays_and_what_is_missing() {
        let mut state = server();
        let open = Command::OpenJob {
            name: "open".into(),
            max_fails: None,
            key: None,
        };
        request(&mut state, open);
        let forget = |jobs| Command::ForgetJobs {
            jobs,
            states: vec![TaskState::Finished],
        };
        let counts = |effects: &[Effect]| {
            effects.iter().find_map(|effect| {
                let Effect::Reply(_, Reply::Forgotten { forgotten, ignored }) = effect else {
                    return None;
                };
                Some((*forgotten, *ignored))
            })
        };
        let wide = IdArray::new(vec![IdRange::new(5, u32::MAX - 5, 1).expect("fits")]);
        let wide = Selector::Ids(wide.expect("one range"));
        let effects = request(&mut state, forget(wide));
        assert_eq!(counts(&effects), Some((2, u32::MAX - 7)));
        let effects = request(&mut state, forget(Selector::All));
        assert_eq!(counts(&effects), Some((3, 1)), "the open job stays");
    }

    #[test]
    fn a_worker_hears_of_which_jobs_nobody_can_ask_for_values_any_more() {
        let mut state = server();
        let mut told = |held: &[u32]| {
            let message = WorkerMessage::Heartbeat {
                unkillable: Vec::new(),
                held: held.iter().copied().map(JobId).collect(),
                faults: Vec::new(),
                sent: None,
            };
            let input = Input::WorkerMessage(WorkerId(1), message);
            let effects = crate::testing::apply(&mut state, input);
            let mut pings = Vec::new();
            for effect in effects {
                if let Effect::ToWorker(_, WorkerCommand::Ping(forgotten)) = effect {
                    pings.push(forgotten);
                }
            }
            pings
        };
        assert_eq!(told(&[1, 2, 6]), [vec![]]);
        assert_eq!(told(&[1, 3, 7]), [vec![], vec![JobId(3), JobId(7)]]);
    }
}
