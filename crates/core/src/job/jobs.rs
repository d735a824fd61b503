//! All jobs of a server and what follows from their tasks: sums, delayed retries, waiting submits.
//!
//! A visible phase changes only here, so that counters, sums and the list of changed jobs agree
//! with the tasks. Records outside the counters, such as that of an attempt, are changed on the job
//! itself: see [`Jobs::get_mut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::followers::Followers;
use super::{Job, Submit, TaskSlot, Totals};
use crate::bug;
use crate::id::{JobId, TaskId};
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::task::Phase;
use crate::time::{Time, Timestamp};

/// Every job that is not forgotten.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    all: BTreeMap<JobId, Job>,
    /// Highest id in use; 0 = none.
    last_id: u32,
    /// As of the last [`Jobs::take_changed`].
    totals: Totals,
    /// Jobs that changed since then.
    changed: BTreeSet<JobId>,
    /// Failed tasks that wait for their next attempt, by the earliest time of that attempt.
    delayed: BTreeSet<(Time, JobId, TaskSlot)>,
    /// The same by task.
    next_attempts: BTreeMap<(JobId, TaskSlot), Time>,
    followers: Followers,
    /// Only after a restart: jobs with tasks that may be on workers which have not reconnected, and
    /// their number of submits at the restart. No task of these submits is dispatched.
    held: BTreeMap<JobId, u32>,
    /// Held tasks whose current instance was never sent to a worker.
    fresh: BTreeMap<JobId, BTreeSet<TaskSlot>>,
}

impl Jobs {
    /// All of them.
    #[must_use]
    pub const fn all(&self) -> &BTreeMap<JobId, Job> {
        &self.all
    }

    /// A job by its id.
    #[must_use]
    pub fn get(&self, id: JobId) -> Option<&Job> {
        self.all.get(&id)
    }

    /// A job, to change records outside the counters: task and notification records.
    pub(crate) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.all.get_mut(&id)
    }

    /// Phase of a task.
    pub(crate) fn phase(&self, id: JobId, slot: TaskSlot) -> Option<Phase> {
        self.all.get(&id)?.phase(slot)
    }

    /// Highest id ever given out.
    #[must_use]
    pub const fn last_id(&self) -> Option<JobId> {
        if self.last_id == 0 {
            None
        } else {
            Some(JobId(self.last_id))
        }
    }

    /// The id of the next job; `None` after four billion jobs.
    #[must_use]
    pub fn next_id(&self) -> Option<JobId> {
        self.last_id.checked_add(1).map(JobId)
    }

    /// Continues ids after this one.
    pub(crate) fn restore_last_id(&mut self, last: JobId) {
        self.last_id = self.last_id.max(last.0);
    }

    /// Jobs that match a selector. O(known jobs within its ranges + ranges).
    #[must_use]
    pub fn find(&self, selector: &Selector) -> Selected<JobId> {
        let within = |span: RangeInclusive<u32>| {
            let span = JobId(*span.start())..=JobId(*span.end());
            self.all.range(span).map(|(id, _)| id.0)
        };
        let found = match selector {
            Selector::All => Selected::all(within(0..=u32::MAX).collect()),
            Selector::Last => {
                // The job that was created last, even if it is forgotten: another job would
                // surprise the user.
                let last = self.last_id().map(|id| IdArray::single(id.0));
                Selected::of_ids(&last.unwrap_or_default(), within)
            }
            Selector::Ids(ids) => Selected::of_ids(ids, within),
        };
        found.filter_map(|id| Some(JobId(id)))
    }

    /// Jobs that match the selector of a command; for `all`, jobs that `matches` accepts.
    pub(crate) fn select(
        &self,
        selector: &Selector,
        matches: impl Fn(&Job) -> bool,
    ) -> Selected<JobId> {
        match selector {
            Selector::All => {
                let jobs = self.all.values().filter(|job| matches(job));
                Selected::all(jobs.map(|job| job.id).collect())
            }
            Selector::Last | Selector::Ids(_) => self.find(selector),
        }
    }

    /// Adds a job.
    pub(crate) fn add(&mut self, job: Job) {
        self.last_id = self.last_id.max(job.id.0);
        // Also without tasks: it counts among the jobs, and watchers of all jobs are notified.
        self.changed.insert(job.id);
        self.all.insert(job.id, job);
    }

    /// Adds waiting tasks to a job; returns the number of the submit.
    pub(crate) fn add_submit(&mut self, id: JobId, submit: Submit) -> Option<u32> {
        self.changed.insert(id);
        Some(self.all.get_mut(&id)?.add_submit(submit))
    }

    /// Closes a job; returns whether it was open. `None` = unknown job.
    pub(crate) fn close(&mut self, id: JobId) -> Option<bool> {
        let job = self.all.get_mut(&id)?;
        let was_open = std::mem::replace(&mut job.is_open, false);
        if was_open {
            self.changed.insert(id);
        }
        Some(was_open)
    }

    /// Drops a job.
    pub(crate) fn forget(&mut self, id: JobId) -> Option<Job> {
        let mut job = self.all.remove(&id)?;
        // Tasks that ended since the last time still count as ended.
        self.totals.count(&mut job);
        // Its ended tasks stay counted, the job itself does not.
        self.totals.forget(&mut job);
        self.changed.insert(id);
        Some(job)
    }

    /// Changes the phase of one task.
    pub(crate) fn set_phase(&mut self, id: JobId, slot: TaskSlot, phase: Phase) {
        let Some(job) = self.all.get_mut(&id) else {
            bug!("job {id} is gone, but a task of it becomes {phase:?}");
            return;
        };
        // Users see no difference between waiting and queued, nor between placed and running.
        if job.set_phase(slot, phase) {
            self.changed.insert(id);
        }
    }

    /// Ends one unfinished task at the moment `at`.
    pub(crate) fn end_one(&mut self, id: JobId, slot: TaskSlot, to: Phase, at: Timestamp) {
        if let Some(job) = self.all.get_mut(&id) {
            job.cut_short(slot, at);
        }
        self.set_phase(id, slot, to);
    }

    /// Ends every unfinished task of a job; returns which.
    pub(crate) fn end_all(&mut self, id: JobId, to: Phase, at: Timestamp) -> IdArray {
        let Some(job) = self.all.get_mut(&id) else {
            bug!("job {id} is gone, but its tasks become {to:?}");
            return IdArray::default();
        };
        // Before they end: afterwards they look like earlier ends.
        let ids = job.unfinished_ids();
        job.end_all(to, at);
        self.changed.insert(id);
        ids
    }

    /// Ends the unfinished tasks of parts of a submit; returns their ids.
    pub(crate) fn end_parts(
        &mut self,
        (id, number): (JobId, u32),
        parts: &[Range<u32>],
        to: Phase,
        at: Timestamp,
    ) -> IdArray {
        let Some(job) = self.all.get_mut(&id) else {
            bug!("job {id} is gone, but tasks of its submit {number} become {to:?}");
            return IdArray::default();
        };
        self.changed.insert(id);
        job.end_parts(number, parts, to, at)
    }

    /// Ends the unfinished ones among `ids` as in an earlier run; skips unknown ids.
    pub(crate) fn restore_dropped(&mut self, id: JobId, ids: &IdArray, to: Phase, at: Timestamp) {
        // A job that is not stored has no tasks that could end.
        if let Some(job) = self.all.get_mut(&id) {
            job.restore_dropped(ids, to, at);
            self.changed.insert(id);
        }
    }

    /// Marks a job as changed for its watchers.
    pub(crate) fn note_changed(&mut self, id: JobId) {
        self.changed.insert(id);
    }

    /// Jobs that changed since the last time; brings the totals up to date.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<JobId> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            // A job that was forgotten is counted already.
            if let Some(job) = self.all.get_mut(id) {
                self.totals.count(job);
            }
        }
        changed
    }

    /// Sums over all jobs, as of the last [`Jobs::take_changed`].
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Counts an instance that was started.
    pub(crate) const fn count_started(&mut self) {
        self.totals.started += 1;
    }

    /// Counts the usage of an instance that the end of its worker cut off.
    pub(crate) fn count_cut_off(&mut self, cpu_time: Duration) {
        self.totals.cut_off = self.totals.cut_off.saturating_add(cpu_time);
    }

    /// Rebuilds dependency counts of restored jobs from their stored phases.
    pub(crate) fn replay_graphs(&mut self) {
        for job in self.all.values_mut() {
            job.replay_graphs();
        }
    }

    /// Finishes a restore after the last record: completions were reported by the earlier run, and
    /// its ends do not count for this one.
    pub(crate) fn finish_restore(&mut self, now: Timestamp) {
        for job in self.all.values_mut() {
            job.finish_restore(now);
            self.totals.replace(job);
        }
    }

    /// Delays the next attempt of a task.
    pub(crate) fn delay(&mut self, until: Time, id: JobId, slot: TaskSlot) {
        self.delayed.insert((until, id, slot));
        if let Some(earlier) = self
            .next_attempts
            .insert((id, slot), until)
            .filter(|earlier| *earlier != until)
        {
            self.delayed.remove(&(earlier, id, slot));
        }
    }

    /// Whether the next attempt of a task is delayed.
    pub(crate) fn is_delayed(&self, id: JobId, slot: TaskSlot) -> bool {
        self.next_attempt(id, slot).is_some()
    }

    /// Time of the next attempt of a task, if it is delayed.
    #[must_use]
    pub fn next_attempt(&self, id: JobId, slot: TaskSlot) -> Option<Time> {
        self.next_attempts.get(&(id, slot)).copied()
    }

    /// A task whose delay is over. It may have ended meanwhile.
    pub(crate) fn next_retry(&mut self, now: Time) -> Option<(JobId, TaskSlot)> {
        let (time, id, slot) = self.delayed.first().copied()?;
        // They are in the order of their times.
        if time > now {
            return None;
        }
        self.delayed.pop_first();
        self.next_attempts.remove(&(id, slot));
        Some((id, slot))
    }

    /// When the first wait for another attempt is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.delayed.first().map(|(time, ..)| *time)
    }

    /// Makes a submit wait for its other jobs, unless they have completed.
    pub(crate) fn follow(&mut self, id: JobId, number: u32) {
        let submit = self.all.get(&id);
        let submit = submit.and_then(|job| job.submits.get(number as usize));
        for condition in submit.into_iter().flat_map(|submit| &submit.after) {
            let awaited = self.all.get(&condition.job);
            // The caller handles jobs that have completed or were forgotten at once.
            if awaited.is_some_and(|job| !job.is_completed()) {
                let follower = (id, number);
                self.followers
                    .add(condition.job, follower, condition.is_each);
            }
        }
    }

    /// Submits that wait for a job.
    pub(crate) fn followers_of(&self, id: JobId) -> Vec<(JobId, u32)> {
        self.followers.of(id)
    }

    /// Whether any submit waits for a job, or has not learned of its end.
    pub(crate) fn is_followed(&self, id: JobId) -> bool {
        self.followers.is_followed(id)
    }

    /// Whether the end of a task of this job can release a submit.
    pub(crate) fn is_end_awaited(&self, id: JobId) -> bool {
        // The last end of a job also releases submits that wait for the whole job.
        let is_completed = self.all.get(&id).is_some_and(Job::is_completed);
        self.followers.want_end(id, is_completed)
    }

    /// Records the end of a task, or of the rest of a job, for its followers.
    pub(crate) fn note_end(&mut self, id: JobId, task: Option<TaskId>) {
        self.followers.note(id, task);
    }

    /// Ends that were noted since the last time, in their order.
    pub(crate) fn take_ends(&mut self) -> Vec<(JobId, Option<TaskId>)> {
        self.followers.take_ends()
    }

    /// Forgets the followers of a completed job after all were handled.
    pub(crate) fn forget_followers(&mut self, id: JobId) {
        self.followers.remove(id);
    }

    /// Holds the first `submits` submits of a job until [`Jobs::take_held`].
    pub(crate) fn hold(&mut self, id: JobId, submits: u32) {
        self.held.insert(id, submits);
    }

    /// Whether no task of a submit may be dispatched or aborted yet.
    pub(crate) fn is_submit_held(&self, id: JobId, number: u32) -> bool {
        let submits = self.held.get(&id);
        submits.is_some_and(|submits| number < *submits)
    }

    /// Whether the submit of a task is held.
    pub(crate) fn is_held(&self, id: JobId, slot: TaskSlot) -> bool {
        self.is_submit_held(id, slot.submit)
    }

    /// Notes a new instance of a task. If the task is held, the instance is not sent before its
    /// release.
    pub(crate) fn note_superseded(&mut self, id: JobId, slot: TaskSlot) {
        self.totals.superseded += 1;
        if self.is_held(id, slot) {
            self.note_fresh(id, slot);
        }
    }

    /// Notes that the current instance of a held task was never sent to a worker.
    pub(crate) fn note_fresh(&mut self, id: JobId, slot: TaskSlot) {
        self.fresh.entry(id).or_default().insert(slot);
    }

    /// All held tasks whose current instance was never sent to a worker.
    pub(crate) fn all_fresh(&self) -> Vec<(JobId, TaskSlot)> {
        let of_jobs = self.fresh.iter();
        let all = of_jobs.flat_map(|(id, slots)| slots.iter().map(|slot| (*id, *slot)));
        all.collect()
    }

    /// Removes and returns such tasks of a job that is released.
    pub(crate) fn take_fresh(&mut self, id: JobId) -> BTreeSet<TaskSlot> {
        self.fresh.remove(&id).unwrap_or_default()
    }

    /// Lets go what was held.
    pub(crate) fn take_held(&mut self) -> BTreeMap<JobId, u32> {
        std::mem::take(&mut self.held)
    }

    /// Panics unless the totals match the jobs, and unchanged jobs have up-to-date totals.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        let mut fresh = Totals::default();
        for job in self.all.values() {
            if let Some((counts, state)) = job.counted {
                fresh.tasks.add(counts.totals());
                fresh.jobs.add(state);
            }
            if !self.changed.contains(&job.id) {
                let now = Some((*job.counts(), job.state()));
                assert_eq!(job.counted, now, "the sums know of job {}", job.id);
            }
        }
        assert_eq!(
            (fresh.tasks, fresh.jobs),
            (self.totals.tasks, self.totals.jobs),
            "the sums equal the jobs' own counts"
        );
    }
}
