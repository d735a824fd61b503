//! Handles answers of batch systems and events of workers.

use std::sync::Arc;
use std::time::Duration;

use super::allocation::{
    Allocation, ENDING_MAX, Ending, LEAVE_GRACE, MISSING_MAX, Phase, QUEUED_ERRORS_MAX,
    RUNNING_ERRORS_MAX, TRIES_MAX,
};
use super::input::{AllocationEvent, Effect, LookupOutcome, Report, SubmitOutcome};
use super::queue::{Queue, retry_pause};
use super::{AutoallocState, STRAYS_MAX};
use crate::batch::job_parts;
use crate::id::{AllocationKey, WorkerId};
use crate::time::Now;
use crate::worker_config::WorkerConfig;

/// The minimum time between the two failed searches that prove that no job was submitted.
const ABSENT_APART: Duration = Duration::from_secs(60);
/// The pause between two queries for a job that is about to end.
const ENDING_LOOK: Duration = Duration::from_secs(2);
/// The grace period of an allocation that must not be canceled.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The pause between a surprising answer and the second query.
const SECOND_LOOK: Duration = Duration::from_secs(10);

/// How a worker was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loss {
    /// Whether the worker left without a goodbye.
    pub(super) crashed: bool,
    /// Whether the worker was lost too soon to have worked.
    pub(super) is_fast: bool,
    /// Whether the worker received at least one task.
    pub(super) used: bool,
}

impl AutoallocState {
    fn allocation_mut(&mut self, key: AllocationKey) -> Option<&mut Allocation> {
        let queue = self.queues.get_mut(&key.queue)?;
        queue.allocations.get_mut(&key.number)
    }

    /// Ends an allocation on evidence.
    pub(super) fn end(
        &mut self,
        now: Now,
        key: AllocationKey,
        failed: bool,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(queue) = self.queues.get_mut(&key.queue) {
            queue.end(now, key.number, failed, effects);
        }
    }

    /// Ends an allocation for users, and cancels it after `grace` unless the batch system confirms
    /// its end before then.
    fn leave(
        &mut self,
        now: Now,
        key: AllocationKey,
        failed: bool,
        grace: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(queue) = self.queues.get_mut(&key.queue) {
            queue.leave(now, key.number, failed, grace, effects);
        }
    }

    pub(super) fn on_submitted(
        &mut self,
        now: Now,
        key: AllocationKey,
        outcome: SubmitOutcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(queue) = self.queues.get_mut(&key.queue) else {
            return;
        };
        let waits_for_answer = |q: &Queue| {
            let allocation = q.allocations.get(&key.number);
            allocation.is_some_and(|a| a.phase == Phase::Submitting)
        };
        if !waits_for_answer(queue) {
            return;
        }
        match outcome {
            SubmitOutcome::Accepted(job) => self.on_accepted(now, key, job, effects),
            SubmitOutcome::Refused(text) => {
                queue.drop_refused(key.number, effects);
                tracing::error!(
                    "Failed to submit allocation into queue {}: {text}",
                    key.queue
                );
                queue.on_submit_failed(now, &text);
                effects.push(Effect::Changed(key.queue));
            }
            SubmitOutcome::Unreachable(text) => {
                queue.drop_refused(key.number, effects);
                tracing::warn!(
                    "Nothing was submitted into queue {}; the next attempt is in a minute: {text}",
                    key.queue
                );
                queue.on_unreachable(now, &text);
                effects.push(Effect::Changed(key.queue));
            }
            SubmitOutcome::Unclear(text) => {
                tracing::warn!(
                    "It is not known whether an allocation was submitted into queue {}; looking for \
                     it. {text}",
                    key.queue
                );
                queue.plan.clear();
                queue.note_failure(&text);
                if let Some(allocation) = queue.allocations.get_mut(&key.number) {
                    allocation.phase = Phase::unsure(now);
                }
            }
        }
    }

    fn on_accepted(
        &mut self,
        now: Now,
        key: AllocationKey,
        job: Box<str>,
        effects: &mut Vec<Effect>,
    ) {
        let refresh = self.limits.refresh;
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        allocation.phase = Phase::Queued;
        allocation.record.job = Some(job.clone());
        allocation.next_poll = now.mono + refresh.min(Duration::from_secs(120));
        let workers = allocation.record.workers;
        let id: Box<str> = job_parts(&job).0.into();
        tracing::info!(
            "Queued {workers} worker(s) into queue {}: allocation ID {id}",
            key.queue
        );
        effects.push(Effect::Event(AllocationEvent::Queued {
            key,
            job: id,
            workers,
        }));
        effects.push(Effect::Changed(key.queue));
        let Some(queue) = self.queues.get_mut(&key.queue) else {
            return;
        };
        queue.on_submit_ok();
        if queue.is_retired() {
            queue.leave(now, key.number, true, Duration::ZERO, effects);
            return;
        }
        queue.submit_next(now, effects);
        // The allocation's workers may have connected before the answer arrived.
        let is_ours = |stray: &str| self.find_job(stray) == Some(key);
        let early: Vec<Box<str>> = self
            .strays
            .keys()
            .filter(|job| is_ours(job))
            .cloned()
            .collect();
        for job in early {
            for (worker, config) in self.strays.remove(&job).unwrap_or_default() {
                self.on_worker(now, &job, worker, config, effects);
            }
        }
    }

    pub(super) fn on_looked(
        &mut self,
        now: Now,
        key: AllocationKey,
        outcome: LookupOutcome,
        effects: &mut Vec<Effect>,
    ) {
        let is_retired = self.queue(key.queue).is_none();
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        let Phase::Unsure {
            since,
            next,
            absent,
            errors,
        } = &mut allocation.phase
        else {
            return;
        };
        let refused = match outcome {
            LookupOutcome::Found(job) => return self.on_accepted(now, key, job, effects),
            LookupOutcome::Absent => {
                *absent += 1;
                *next = (*since + ABSENT_APART).max(now.mono + SECOND_LOOK);
                (*absent >= 2 && now.mono.since(*since) >= ABSENT_APART)
                    .then(|| "the submission was not answered, and there is no such job".to_owned())
            }
            LookupOutcome::Error(text) => {
                *errors += 1;
                *next = now.mono + retry_pause(*errors);
                let told = format!("The search for the job of allocation {key} failed: {text}");
                if *errors == 1 {
                    tracing::warn!("{told}");
                }
                // Without an answer, another submission might create a second job.
                if !is_retired || *errors < TRIES_MAX {
                    if let Some(queue) = self.queues.get_mut(&key.queue) {
                        queue.note_failure(&told);
                    }
                    return;
                }
                Some(text.to_string())
            }
        };
        if let Some(text) = refused {
            allocation.phase = Phase::Submitting;
            self.on_submitted(now, key, SubmitOutcome::Refused(text.into()), effects);
        }
    }

    pub(super) fn on_canceled(
        &mut self,
        now: Now,
        key: AllocationKey,
        result: Result<(), Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        match (allocation.phase, result) {
            (
                Phase::Leaving {
                    failed,
                    asked: true,
                    ..
                },
                Ok(()),
            ) => {
                self.end(now, key, failed, effects);
                self.note_change(now);
            }
            (Phase::Leaving { tries, .. }, Err(text)) => {
                if tries == 1 {
                    tracing::warn!("Allocation {key} could not be canceled: {text}");
                }
            }
            // The cancellation is retried at the next deadline.
            (
                Phase::Leaving { .. }
                | Phase::Submitting
                | Phase::Unsure { .. }
                | Phase::Queued
                | Phase::Running
                | Phase::Ended { .. },
                _,
            ) => {}
        }
    }

    pub(super) fn on_report(
        &mut self,
        now: Now,
        key: AllocationKey,
        report: Report,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        allocation.polling = None;
        let is_news = match allocation.phase {
            // Why it ended, or why the server canceled it, says more than that it has ended.
            Phase::Ended { .. } | Phase::Leaving { asked: true, .. } => false,
            // If it has workers, the query was sent before the first of them connected.
            Phase::Submitting
            | Phase::Unsure { .. }
            | Phase::Queued
            | Phase::Running
            | Phase::Leaving { asked: false, .. } => {
                !matches!(report, Report::Queued(_)) || allocation.connected.is_empty()
            }
        };
        if let Some(words) = report.words()
            && is_news
            && allocation.explain(words)
        {
            effects.push(Effect::Changed(key.queue));
        }
        match (allocation.phase, allocation.ending) {
            (Phase::Leaving { failed, .. }, _) => {
                self.on_report_of_leaving(now, key, failed, &report, effects);
            }
            (Phase::Submitting | Phase::Unsure { .. } | Phase::Ended { .. }, _) => {}
            // The query was sent before the last worker left.
            (Phase::Queued | Phase::Running, Some(ending)) if !ending.asked => {
                allocation.next_poll = now.mono;
            }
            (Phase::Queued | Phase::Running, Some(ending)) => {
                self.on_report_of_ending(now, key, ending, report, effects);
            }
            (Phase::Queued | Phase::Running, None) => {
                self.on_report_of_living(now, key, report, effects);
            }
        }
    }

    /// Handles a report on an allocation that has ended for users.
    fn on_report_of_leaving(
        &mut self,
        now: Now,
        key: AllocationKey,
        failed: bool,
        report: &Report,
        effects: &mut Vec<Effect>,
    ) {
        let is_retired = self.queue(key.queue).is_none();
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        let is_asked = matches!(allocation.phase, Phase::Leaving { asked: true, .. });
        match report {
            // Other users' jobs are not canceled.
            Report::Finished(_) | Report::Failed { .. } | Report::Foreign(_) => {
                self.end(now, key, failed, effects);
                self.note_change(now);
            }
            // The report is doubtful, but canceling an absent job does no harm.
            Report::Missing => allocation.cancel_now(now),
            Report::Queued(_) if !is_retired && !is_asked && !allocation.is_doubtful => {
                allocation.wait_again();
                allocation.next_poll = now.mono;
                effects.push(Effect::Changed(key.queue));
            }
            Report::Queued(_)
            | Report::Running
            | Report::Suspended(_)
            | Report::Completing(_)
            | Report::Unreadable(_) => {
                // The batch system answers again.
                if allocation.is_doubtful {
                    allocation.cancel_now(now);
                }
            }
            // The batch system may not know the job, but canceling an absent job does no harm.
            Report::Silent | Report::Error(_) => {
                allocation.errors += 1;
                if allocation.errors >= RUNNING_ERRORS_MAX && !allocation.is_doubtful {
                    allocation.cancel_now(now);
                }
            }
        }
    }

    /// Handles a report on an allocation whose last worker has left. If it is requeued or
    /// suspended, it still belongs to us.
    fn on_report_of_ending(
        &mut self,
        now: Now,
        key: AllocationKey,
        ending: Ending,
        report: Report,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        let is_late = now.mono.since(ending.since) >= ENDING_MAX;
        let grace = match report {
            Report::Queued(_) => {
                allocation.wait_again();
                effects.push(Effect::Changed(key.queue));
                return;
            }
            Report::Suspended(_) => {
                allocation.ending = None;
                return;
            }
            Report::Completing(_) if !is_late => {
                allocation.next_poll = now.mono + ENDING_LOOK;
                return;
            }
            Report::Unreadable(_) => {
                allocation.next_poll = now.mono + SECOND_LOOK;
                return;
            }
            Report::Finished(_) | Report::Failed { .. } | Report::Foreign(_) => None,
            // Its script may keep running after the worker has ended, or the job is about to be
            // requeued.
            Report::Running if !ending.crashed => Some(NEVER),
            // Its job may still exist, and its workers may return.
            Report::Running
            | Report::Completing(_)
            | Report::Missing
            | Report::Silent
            | Report::Error(_) => Some(LEAVE_GRACE),
        };
        allocation.ending = None;
        match grace {
            None => self.end(now, key, ending.failed, effects),
            Some(grace) => self.leave(now, key, ending.failed, grace, effects),
        }
        let text = "all its workers were lost within a minute";
        self.count_end(now, key, !ending.failed, text);
    }

    fn on_report_of_living(
        &mut self,
        now: Now,
        key: AllocationKey,
        report: Report,
        effects: &mut Vec<Effect>,
    ) {
        let refresh = self.limits.refresh;
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        match report {
            Report::Queued(_) => {
                (allocation.missing, allocation.errors) = (0, 0);
                // From now on, a server observes the allocation.
                allocation.is_unwatched = false;
                if allocation.phase == Phase::Running && allocation.connected.is_empty() {
                    allocation.wait_again();
                    effects.push(Effect::Changed(key.queue));
                }
            }
            Report::Running | Report::Suspended(_) | Report::Completing(_) => {
                (allocation.missing, allocation.errors) = (0, 0);
                if allocation.phase == Phase::Queued {
                    allocation.start(now);
                    effects.push(Effect::Changed(key.queue));
                }
            }
            Report::Finished(_) => self.on_ended(now, key, None, effects),
            Report::Failed { text, may_return } => {
                self.on_ended(now, key, Some((text, may_return)), effects);
            }
            Report::Missing => {
                allocation.missing += 1;
                allocation.next_poll = now.mono + refresh.min(SECOND_LOOK);
                // Connected workers are stronger evidence than a batch system that does not know
                // the job.
                if allocation.missing >= MISSING_MAX && allocation.connected.is_empty() {
                    self.on_vanished(now, key, "the batch system no longer knows it", effects);
                }
            }
            // Another user's job must not be canceled.
            Report::Foreign(text) => self.on_ended(now, key, Some((text, false)), effects),
            Report::Silent => {
                let text = "the batch system says nothing of it";
                self.on_status_error(now, key, text, true, effects);
            }
            // The job exists, even if the rest of the answer is unreadable.
            Report::Unreadable(text) => {
                (allocation.missing, allocation.errors) = (0, 0);
                tracing::debug!(allocation = %key, "status: {text}");
            }
            Report::Error(text) => self.on_status_error(now, key, &text, false, effects),
        }
    }

    fn on_status_error(
        &mut self,
        now: Now,
        key: AllocationKey,
        text: &str,
        is_silence: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        allocation.errors += 1;
        allocation.next_poll = allocation
            .next_poll
            .min(now.mono + retry_pause(allocation.errors).max(SECOND_LOOK * 3));
        tracing::debug!(allocation = %key, "status: {text}");
        let started = allocation.phase == Phase::Running;
        let errors_max = if started {
            RUNNING_ERRORS_MAX
        } else {
            QUEUED_ERRORS_MAX
        };
        // Connected workers are stronger evidence than a batch system that does not answer.
        if allocation.errors <= errors_max || !allocation.connected.is_empty() {
            return;
        }
        allocation.explain(text);
        let job = allocation.job_id().unwrap_or_default();
        tracing::warn!(
            "Allocation {job} of queue {} is given up: its state could not be learned: {text}",
            key.queue
        );
        if is_silence {
            // The job may simply be waiting, so it is not canceled, and its workers are still
            // accepted.
            self.end(now, key, !started, effects);
        } else {
            // The job is replaced, and canceled as soon as the batch system answers again.
            allocation.is_doubtful = true;
            self.leave(now, key, !started, NEVER, effects);
        }
        // Nothing suggests that the next allocation would fail, so this one is replaced without
        // delay.
        if let Some(queue) = self.queues.get_mut(&key.queue) {
            queue.note_failure(text);
        }
        self.note_change(now);
    }

    /// Handles an allocation that is probably gone. It is canceled to be certain.
    fn on_vanished(&mut self, now: Now, key: AllocationKey, text: &str, effects: &mut Vec<Effect>) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        allocation.explain(text);
        let worked = allocation.seen > 0;
        let job = allocation.job_id().unwrap_or_default();
        tracing::warn!("Allocation {job} of queue {} is gone: {text}", key.queue);
        self.leave(now, key, !worked, Duration::ZERO, effects);
        self.count_end(now, key, worked, text);
    }

    /// Handles the end of a job that the batch system reports. `failure` contains the reason, and
    /// whether the job may start again.
    fn on_ended(
        &mut self,
        now: Now,
        key: AllocationKey,
        failure: Option<(Box<str>, bool)>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        let worked = allocation.seen > 0 && failure.is_none();
        let failed = failure.is_some();
        let (text, may_return) =
            failure.unwrap_or_else(|| ("it ended without having started a worker".into(), false));
        if failed {
            let job = allocation.job_id().unwrap_or_default();
            tracing::warn!("Allocation {job} of queue {} failed: {text}", key.queue);
        }
        if may_return {
            self.leave(now, key, failed, Duration::ZERO, effects);
        } else {
            self.end(now, key, failed, effects);
        }
        self.count_end(now, key, worked, &text);
    }

    /// Counts the end of an allocation as a success or a failure of the queue.
    fn count_end(&mut self, now: Now, key: AllocationKey, worked: bool, text: &str) {
        let fails_max = self.limits.allocation_fails_max;
        if let Some(queue) = self.queue_mut(key.queue) {
            let known = queue.allocations.get_mut(&key.number);
            let known = known.map(|allocation| {
                if !worked && allocation.record.reason.is_empty() {
                    allocation.explain(text);
                }
                &*allocation
            });
            let known = known.map(|a| (a.is_unwatched, a.is_useless, a.used));
            if let Some((true, _, _)) = known {
                // No server observed the allocation, so it is neither a failure nor a success.
                tracing::debug!(allocation = %key, "ended without a server: {text}");
            } else if let Some((_, true, false)) = known {
                // The failure was counted when the workers took no tasks.
            } else if let (true, Some((_, _, false))) = (worked, known) {
                // This is not a success if the tasks that waited then are still waiting, which the
                // scheduler's next answer shows.
                queue.unused_end = Some(key.number);
            } else if worked {
                queue.on_allocation_ok();
            } else {
                queue.on_allocation_failed(now, text, fails_max);
            }
        }
        self.note_change(now);
    }

    pub(super) fn on_worker(
        &mut self,
        now: Now,
        job: &str,
        worker: WorkerId,
        config: Arc<WorkerConfig>,
        effects: &mut Vec<Effect>,
    ) {
        self.note_change(now);
        let Some(key) = self.find_job(job) else {
            self.on_stray(now, job, worker, config);
            return;
        };
        let Some(queue) = self.queues.get_mut(&key.queue) else {
            return;
        };
        queue.note_offer(&config);
        let Some(allocation) = queue.allocations.get_mut(&key.number) else {
            return;
        };
        let host = &config.hostname;
        if allocation.connected.insert(worker, host.clone()).is_some() {
            return;
        }
        let is_shared = allocation
            .connected
            .values()
            .filter(|other| *other == host)
            .count()
            > 1;
        if is_shared && !std::mem::replace(&mut queue.is_shared_host_told, true) {
            tracing::warn!(
                "Several workers of allocation {} of queue {} are on {host}: a task on several nodes gets that host \
                 more than once. Ask for different nodes, on PBS with `-- -l place=scatter:excl`",
                job_parts(job).0,
                key.queue,
            );
        }
        allocation.seen = allocation.seen.saturating_add(1);
        allocation.last_came = Some(now.mono);
        (allocation.missing, allocation.is_unwatched) = (0, false);
        allocation.ending = None;
        let is_leaving = matches!(allocation.phase, Phase::Leaving { asked: true, .. });
        if allocation.phase == Phase::Running || is_leaving {
            return;
        }
        let was_over = allocation.phase != Phase::Queued;
        allocation.explain("");
        allocation.start(now);
        // Earlier losses say nothing about the current workers.
        (allocation.lost, allocation.lost_fast) = (0, 0);
        if !was_over {
            let job = job_parts(job).0.into();
            effects.push(Effect::Event(AllocationEvent::Started { key, job }));
        }
        effects.push(Effect::Changed(key.queue));
    }

    /// Handles a worker of an unknown job.
    fn on_stray(&mut self, now: Now, job: &str, worker: WorkerId, config: Arc<WorkerConfig>) {
        let mut is_unclear = false;
        for queue in self.queues.values_mut() {
            for allocation in queue.allocations.values_mut() {
                is_unclear |= allocation.phase == Phase::Submitting;
                if let Phase::Unsure { next, .. } = &mut allocation.phase {
                    is_unclear = true;
                    *next = now.mono;
                }
            }
        }
        if is_unclear {
            if self.strays.len() < STRAYS_MAX || self.strays.contains_key(job) {
                let of_job = self.strays.entry(job.into()).or_default();
                of_job.push((worker, config));
            }
        } else {
            self.strays.clear();
            let id = job_parts(job).0;
            tracing::warn!("Worker {worker} connected from an unknown allocation {id}");
        }
    }

    pub(super) fn on_worker_lost(&mut self, now: Now, job: &str, worker: WorkerId, loss: Loss) {
        self.note_change(now);
        if let Some(strays) = self.strays.get_mut(job) {
            strays.retain(|(other, _)| *other != worker);
        }
        let Some(key) = self.find_job(job) else {
            return;
        };
        let Some(allocation) = self.allocation_mut(key) else {
            return;
        };
        if allocation.connected.remove(&worker).is_none() || allocation.phase != Phase::Running {
            return;
        }
        allocation.lost = allocation.lost.saturating_add(1);
        allocation.used |= loss.used;
        if loss.is_fast {
            allocation.lost_fast = allocation.lost_fast.saturating_add(1);
        }
        if loss.crashed {
            // The whole allocation may be gone.
            allocation.next_poll = allocation.next_poll.min(now.mono + SECOND_LOOK);
        }
        if allocation.lost < allocation.record.workers || !allocation.connected.is_empty() {
            return;
        }
        allocation.ending = Some(Ending {
            since: now.mono,
            failed: allocation.lost_fast >= allocation.lost,
            crashed: loss.crashed,
            asked: false,
        });
        if allocation.polling.is_none() {
            allocation.next_poll = now.mono;
        }
    }
}
