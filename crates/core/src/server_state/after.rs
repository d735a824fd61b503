//! Submits that wait for other jobs: as a whole (`--after`), or task by task (`--after-each`).
//!
//! A condition has no cost per task. The ends of awaited tasks and jobs are recorded and handled
//! when the batch settles, so chains of any length need no recursion.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::dispatcher::Unqueued;
use super::prepared::Prepared;
use super::{ChangeKind, Ctx, ServerState, SubmitRefusal};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{JobId, TaskId, TaskKey};
use crate::job::{Job, JobState, Submit, SubmitAt, TaskAt, TaskSlot};
use crate::range::{IdArray, IdRange};
use crate::task::{Phase, TaskState};
use crate::template::After;

/// The maximum number of tasks in a submit that waits task by task, because each of them is
/// examined.
const EACH_TASKS_MAX: u32 = 1 << 24;

/// If more tasks than this end at once, the tasks that wait for them are reviewed together.
const NOTED_MAX: u32 = 64;

/// The result of a condition for a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Free,
    Blocked,
    /// The awaited job or task failed, so the task can never run. Names the awaited job.
    Doomed(JobId),
}

/// Decisions about the waiting tasks of a submit that have not been applied yet, as index ranges.
#[derive(Default)]
struct Review {
    free: Vec<(QueueKey, u32, u32)>,
    doomed: Vec<Range<u32>>,
    culprit: Option<JobId>,
}

impl Review {
    /// Adds tasks that are free to run.
    fn release(&mut self, submit: &Submit, from: u32, to: u32) {
        // A single task has one request.
        if to - from > 1 {
            for (from, to) in submit.parts(from, to) {
                let key = submit.queue_key(from);
                self.free.extend(key.map(|key| (key, from, to)));
            }
            return;
        }
        match (self.free.last_mut(), submit.queue_key(from)) {
            (Some((last, _, end)), Some(key)) if *last == key && *end == from => *end = to,
            (_, key) => self.free.extend(key.map(|key| (key, from, to))),
        }
    }
}

impl ServerState {
    /// Rejects conditions that could never be met.
    pub(super) fn check_after(
        &self,
        job: JobId,
        prepared: &Prepared,
        ids: &IdArray,
    ) -> Result<(), SubmitRefusal> {
        for condition in &prepared.spec.after {
            let awaited = self
                .jobs
                .get(condition.job)
                .ok_or(SubmitRefusal::JobNotFound(condition.job))?;
            // Otherwise neither job would ever start.
            if self.waits_for(condition.job, job) {
                return Err(SubmitRefusal::AfterCycle(condition.job));
            }
            if !condition.is_each {
                continue;
            }
            // Each of the tasks would be examined whenever a task of the other job ends.
            if ids.len() > EACH_TASKS_MAX {
                return Err(SubmitRefusal::TooManyAfter);
            }
            // A task that does not exist never ends. In a repeated submit, the awaited tasks may
            // have ended and been forgotten.
            if !prepared.is_again
                && let Some(task) = awaited.first_missing(ids)
            {
                return Err(SubmitRefusal::AfterNoTask(task, condition.job));
            }
        }
        Ok(())
    }

    /// Returns whether `job` is `other` or waits for it, directly or indirectly.
    fn waits_for(&self, job: JobId, other: JobId) -> bool {
        // No job waits for a new job. Without this check, each job that is added to a long chain
        // would examine all of it.
        if job != other && !self.jobs.is_followed(other) {
            return false;
        }
        let mut seen = BTreeSet::from([job]);
        let mut stack = vec![job];
        while let Some(next) = stack.pop() {
            if next == other {
                return true;
            }
            let submits = self.jobs.get(next).into_iter().flat_map(|job| &job.submits);
            let awaited = submits
                .flat_map(|submit| &submit.after)
                .map(|after| after.job);
            stack.extend(awaited.filter(|job| seen.insert(*job)));
        }
        false
    }

    /// Queues the ready tasks of a new or restored submit, and aborts tasks that can never run.
    pub(super) fn start_submit(&mut self, ctx: &mut Ctx<'_>, at: SubmitAt) {
        self.jobs.follow(at);
        self.drop_doomed(ctx, at);
        self.review(ctx, at, 0..u32::MAX, true);
    }

    /// Aborts tasks with failed dependencies in earlier submits.
    fn drop_doomed(&mut self, ctx: &mut Ctx<'_>, at: SubmitAt) {
        let SubmitAt { job: id, number } = at;
        let Some(job) = self.jobs.get(id) else {
            // The job was canceled and forgotten while it waited.
            return;
        };
        let mut slots = job.doomed(number);
        if slots.is_empty() {
            return;
        }
        slots.extend(job.descendants_of_all(&slots));
        // After a restart, they may have ended before.
        if self.drop_waiting(ctx, id, slots) {
            self.note_job_progress(ctx, id);
        }
    }

    /// Handles all ends that were recorded since the last call.
    pub(super) fn follow_up(&mut self, ctx: &mut Ctx<'_>) {
        loop {
            // Ends that result from these are recorded as well, so chains of any length need no
            // recursion.
            let ends = self.jobs.take_ends();
            if ends.is_empty() {
                return;
            }
            for (job, task) in ends {
                for follower in self.jobs.followers_of(job) {
                    let part = match task {
                        None => Some(0..u32::MAX),
                        // A task of the awaited job need not have a counterpart.
                        Some(task) => self.part_of(follower, task),
                    };
                    if let Some(part) = part {
                        self.review(ctx, follower, part, false);
                    }
                }
                // The record of a job's completion comes after the records of its tasks.
                if task.is_none() && self.jobs.get(job).is_none_or(Job::is_completed) {
                    self.jobs.forget_followers(job);
                }
            }
        }
    }

    fn part_of(&self, at: SubmitAt, task: TaskId) -> Option<Range<u32>> {
        let slot = self.jobs.get(at.job)?.find(task)?;
        (slot.submit == at.number).then_some(slot.index..slot.index + 1)
    }

    /// Examines the waiting tasks in a part of a submit. `is_start` says whether they may include
    /// tasks that have been ready before and are in no queue.
    pub(super) fn review(
        &mut self,
        ctx: &mut Ctx<'_>,
        at: SubmitAt,
        part: Range<u32>,
        is_start: bool,
    ) {
        let SubmitAt { job: id, number } = at;
        // A held submit is examined when it is released.
        if self.jobs.is_submit_held(at) {
            return;
        }
        let Some(job) = self.jobs.get(id) else {
            // The job was canceled and forgotten while it waited.
            return;
        };
        let Some(submit) = job.submits.get(number as usize) else {
            bug!("job {id} waits with a submit {number} that it does not have");
            return;
        };
        let whole = self.verdict_of_whole(submit);
        if let Verdict::Doomed(culprit) = whole {
            // No task of this submit was ever dispatched.
            self.drop_submit(ctx, at, culprit);
            return;
        }
        let is_free = whole == Verdict::Free;
        if self.is_divided(submit) && (is_free || is_start) {
            // The requests of a blocked submit are interned too, because users may ask about them.
            let priority = if is_free {
                // The lowest priority marks a blocked submit.
                submit.priority_max.max(i32::MIN + 1)
            } else {
                i32::MIN
            };
            let rest = Unqueued {
                next: 0,
                is_start,
                most_urgent: Reverse(priority),
            };
            self.dispatcher.note_unqueued(at, rest);
        } else if is_free {
            let review = self.sort(at, submit, part, is_start);
            self.carry_out(ctx, at, review);
        }
    }

    /// Queues the free tasks, and aborts the tasks that will never run.
    fn carry_out(&mut self, ctx: &mut Ctx<'_>, at: SubmitAt, review: Review) {
        for (key, from, to) in review.free {
            self.dispatcher.enqueue(key, at, from..to);
        }
        if let Some(culprit) = review.culprit {
            self.drop_parts(ctx, at, review.doomed, culprit);
        }
    }

    /// Returns whether the tasks of a submit are queued in portions.
    pub(super) fn is_divided(&self, submit: &Submit) -> bool {
        let is_each = submit.after.iter().any(|after| after.is_each);
        submit.graph().is_some() && !is_each && submit.tasks.len() > self.dispatcher.portion_max()
    }

    /// Returns the verdict of the conditions that apply to all tasks of a submit alike.
    fn verdict_of_whole(&self, submit: &Submit) -> Verdict {
        let mut verdict = Verdict::Free;
        for after in submit.after.iter().filter(|after| !after.is_each) {
            // A forgotten job had completed, and its followers were handled at that time.
            let Some(job) = self.jobs.get(after.job) else {
                continue;
            };
            if !job.is_completed() {
                verdict = Verdict::Blocked;
            } else if !after.is_any && job.state() != JobState::Finished {
                return Verdict::Doomed(after.job);
            }
        }
        verdict
    }

    fn verdict_of_task(&self, submit: &Submit, index: u32) -> Verdict {
        let mut verdict = if submit.is_blocked(index) {
            Verdict::Blocked
        } else {
            Verdict::Free
        };
        let Some(task) = submit.ids.get(index).map(TaskId) else {
            return Verdict::Blocked;
        };
        for after in submit.after.iter().filter(|after| after.is_each) {
            let phase = self
                .jobs
                .get(after.job)
                .and_then(|job| job.phase(job.find(task)?));
            match phase {
                // The tasks of a forgotten job count as finished; see `forget_job`.
                None | Some(Phase::Finished) => {}
                Some(Phase::Waiting | Phase::Queued | Phase::Placed | Phase::Running) => {
                    verdict = Verdict::Blocked;
                }
                // The condition accepts any end.
                Some(Phase::Failed | Phase::Canceled | Phase::Aborted) if after.is_any => {}
                Some(Phase::Failed | Phase::Canceled | Phase::Aborted) => {
                    return Verdict::Doomed(after.job);
                }
            }
        }
        verdict
    }

    /// Decides about the waiting tasks in a part of a submit.
    fn sort(&self, at: SubmitAt, submit: &Submit, part: Range<u32>, is_start: bool) -> Review {
        let mut review = Review::default();
        for (from, to, phase) in submit.tasks.runs(part.start, part.end) {
            // Dispatched and ended tasks are not examined again.
            if phase != Phase::Waiting {
                continue;
            }
            let mut index = from;
            while index < to {
                // Tasks are decided in whole ranges. A million tasks of an array form only a few of
                // these.
                let end = index + self.alike(submit, index, to - index);
                // A delayed task has been ready before. Its timer releases it.
                let record = submit.tasks.record(index);
                let was_tried = record.is_some_and(|record| record.retry_count() > 0);
                if !was_tried || is_start && !self.jobs.is_delayed(at.task(index)) {
                    match self.verdict_of_task(submit, index) {
                        Verdict::Blocked => {}
                        Verdict::Free => review.release(submit, index, end),
                        Verdict::Doomed(culprit) => {
                            review.doomed.push(index..end);
                            review.culprit = Some(culprit);
                        }
                    }
                }
                index = end;
            }
        }
        review
    }

    /// Returns how many of up to `count` waiting tasks, starting with this one, have the same
    /// verdict. At least 1. In an array, these tasks were never dispatched and wait for neighboring
    /// tasks in the same phase.
    fn alike(&self, submit: &Submit, index: u32, count: u32) -> u32 {
        if submit.graph().is_some() {
            return 1;
        }
        let mut count = count.min(submit.tasks.untouched(index));
        count = submit.held.alike(index, count);
        if !submit.after.iter().any(|after| after.is_each) {
            return count.max(1);
        }
        let Some(ids) = submit.ids.range_from(index) else {
            return 1;
        };
        count = count.min(ids.count());
        for after in submit.after.iter().filter(|after| after.is_each) {
            // Every task of a forgotten job counts as finished.
            let Some(job) = self.jobs.get(after.job) else {
                continue;
            };
            let awaited = job.find(TaskId(ids.first()));
            let Some((slot, other)) = awaited.and_then(|slot| Some((slot, job.submit(slot)?)))
            else {
                return 1;
            };
            let there = other.ids.range_from(slot.index);
            let there = there.filter(|there| there.step() == ids.step());
            count = count.min(there.map_or(1, |there| there.count()));
            let end = slot.index.saturating_add(count);
            let run = other.tasks.runs(slot.index, end).next();
            count = count.min(run.map_or(1, |(from, to, _)| to - from));
        }
        count.max(1)
    }

    /// Examines a portion of the tasks of large submits.
    pub(super) fn queue_portion(&mut self, ctx: &mut Ctx<'_>) {
        let mut left = self.dispatcher.portion_max();
        while left > 0
            && let Some((at, rest)) = self.dispatcher.take_unqueued()
        {
            let part = rest.next..rest.next.saturating_add(left);
            self.intern(at, part.clone());
            let Some(submit) = self.jobs.submit(at) else {
                // The job was forgotten in the batch that recorded its submit.
                continue;
            };
            let next = part.end;
            left -= next.min(submit.tasks.len()).saturating_sub(rest.next);
            if next < submit.tasks.len() {
                self.dispatcher.note_unqueued(at, Unqueued { next, ..rest });
            }
            // A blocked submit is examined again when it is released.
            if self.verdict_of_whole(submit) == Verdict::Free {
                let review = self.sort(at, submit, part, rest.is_start);
                self.carry_out(ctx, at, review);
            }
        }
    }

    /// Aborts a submit that has never had a running task.
    fn drop_submit(&mut self, ctx: &mut Ctx<'_>, at: SubmitAt, culprit: JobId) {
        let id = at.job;
        let whole = 0..u32::MAX;
        let ids = self.end_parts(ctx, at, std::slice::from_ref(&whole));
        if ids.is_empty() {
            // The tasks have been canceled before.
            return;
        }
        persist_dropped(ctx, id, ids);
        self.jobs.note_end(id, None);
        self.note_dropped(ctx, id, culprit);
    }

    /// Aborts the unfinished tasks in parts of a submit, but not their dependents. Returns the task
    /// ids.
    fn end_parts(&mut self, ctx: &Ctx<'_>, at: SubmitAt, parts: &[Range<u32>]) -> IdArray {
        let ids = self.jobs.end_parts(at, parts, Phase::Aborted, ctx.now.wall);
        for range in ids.ranges() {
            self.audience.note_ended(at.job, *range);
        }
        ids
    }

    /// Aborts tasks of a submit and their dependents.
    fn drop_parts(
        &mut self,
        ctx: &mut Ctx<'_>,
        at: SubmitAt,
        parts: Vec<Range<u32>>,
        culprit: JobId,
    ) {
        let SubmitAt { job: id, number } = at;
        let has_dependents = |job: &Job| job.has_dependents(number);
        let ids = if self.jobs.get(id).is_some_and(has_dependents) {
            let slots = parts.into_iter().flatten();
            let mut slots: Vec<TaskSlot> = slots.map(|index| at.task(index).slot).collect();
            let job = self.jobs.get(id);
            slots.extend(job.map_or_else(Vec::new, |job| job.descendants_of_all(&slots)));
            let dropped = self.abort_waiting(id, slots);
            sorted_ids(id, dropped)
        } else {
            let ids = self.end_parts(ctx, at, &parts);
            if ids.len() <= NOTED_MAX {
                for task in ids.iter() {
                    self.jobs.note_end(id, Some(TaskId(task)));
                }
            } else {
                self.jobs.note_end(id, None);
            }
            ids
        };
        persist_dropped(ctx, id, ids);
        self.note_dropped(ctx, id, culprit);
    }

    /// Aborts the waiting tasks among `slots`. Returns whether there were any.
    pub(super) fn drop_waiting(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        slots: Vec<TaskSlot>,
    ) -> bool {
        let aborted = self.abort_waiting(id, slots);
        let is_any = !aborted.is_empty();
        if is_any {
            persist_dropped(ctx, id, sorted_ids(id, aborted));
        }
        is_any
    }

    /// Aborts the waiting tasks among `slots`. Returns their ids.
    pub(super) fn abort_waiting(&mut self, id: JobId, slots: Vec<TaskSlot>) -> Vec<u32> {
        let mut aborted = Vec::new();
        for slot in slots {
            let at = slot.of(id);
            // Two failed tasks may share dependents, which are aborted with the first.
            if self.jobs.phase(at) != Some(Phase::Waiting) {
                continue;
            }
            self.jobs.set_phase(at, Phase::Aborted);
            let job = self.jobs.get(id);
            let Some(TaskKey { task, .. }) = job.and_then(|job| job.key(slot)) else {
                bug!("job {id} has no task at {slot:?}, but it is given up");
                continue;
            };
            self.audience.note_ended(id, IdRange::single(task.0));
            self.jobs.note_end(id, Some(task));
            aborted.push(task.0);
        }
        aborted
    }

    fn note_dropped(&mut self, ctx: &mut Ctx<'_>, id: JobId, culprit: JobId) {
        if let Some(job) = self.jobs.get_mut(id)
            && job.cancel_reason.is_none()
        {
            job.cancel_reason =
                Some(format!("Job {culprit}, which it waits for, did not finish").into());
        }
        self.note_job_progress(ctx, id);
    }

    /// Returns whether a waiting task is blocked neither by tasks nor by jobs.
    pub(super) fn is_free(&self, at: TaskAt) -> bool {
        let submit = self.jobs.submit(at.submit());
        submit.is_some_and(|submit| {
            self.verdict_of_whole(submit) == Verdict::Free
                && self.verdict_of_task(submit, at.slot.index) == Verdict::Free
        })
    }

    /// Returns the number of a task's conditions on other jobs, and how many of them are unmet.
    #[must_use]
    pub fn awaited(&self, job: &Job, slot: TaskSlot) -> (u32, u32) {
        let Some(submit) = job.submit(slot) else {
            bug!("job {} has no task at {slot:?}", job.id);
            return (0, 0);
        };
        let is_pending = |after: &&After| {
            self.jobs.get(after.job).is_some_and(|awaited| {
                if !after.is_each {
                    return !awaited.is_completed();
                }
                let task = job.key(slot).and_then(|key| awaited.find(key.task));
                let phase = task.and_then(|slot| awaited.phase(slot));
                phase.is_some_and(|phase| !phase.is_terminal())
            })
        };
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        (
            count(submit.after.len()),
            count(submit.after.iter().filter(is_pending).count()),
        )
    }
}

/// Stores that tasks have been aborted.
pub(super) fn persist_dropped(ctx: &mut Ctx<'_>, job: JobId, ids: IdArray) {
    let to = TaskState::Aborted;
    ctx.persist(ChangeKind::TasksDropped { job, ids, to });
}

/// Returns tasks of a job as a set of ids. The ids are distinct.
pub(super) fn sorted_ids(job: JobId, mut tasks: Vec<u32>) -> IdArray {
    tasks.sort_unstable();
    IdArray::from_sorted(tasks).unwrap_or_else(|error| {
        bug!("tasks of job {job} have ids that are no set: {error}");
        IdArray::default()
    })
}
