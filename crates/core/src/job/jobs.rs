//! All jobs of a server, and what follows from their tasks: sums, retries that wait, who waits for whom.
//!
//! A phase that people can see changes here only, so that counters, sums and the list of changed jobs agree with the tasks.
//! Records that are not counted, such as that of an attempt, are changed on the job itself: see [`Jobs::get_mut`].

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
    /// The highest id that was given out; 0 = none.
    last_id: u32,
    /// As of the last [`Jobs::take_changed`].
    totals: Totals,
    /// Jobs that changed since then.
    changed: BTreeSet<JobId>,
    /// Failed tasks that wait for their next attempt, by the time at which they may run.
    delayed: BTreeSet<(Time, JobId, TaskSlot)>,
    /// The same by task.
    next_attempts: BTreeMap<(JobId, TaskSlot), Time>,
    followers: Followers,
    /// After a restart: jobs of which some tasks may be on workers that have not come back, and how many submits they
    /// had. Nothing of these submits is handed out.
    held: BTreeMap<JobId, u32>,
    /// Held tasks that are at an instance that nobody has been given.
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

    /// One of them, to change records that are counted nowhere: those of tasks, and of notifications.
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

    /// The id of the next job; `None` after four billion of them.
    #[must_use]
    pub fn next_id(&self) -> Option<JobId> {
        self.last_id.checked_add(1).map(JobId)
    }

    /// Ids go on behind this one.
    pub(crate) fn restore_last_id(&mut self, last: JobId) {
        self.last_id = self.last_id.max(last.0);
    }

    /// Jobs that a selector names. O(known jobs within its ranges + ranges).
    #[must_use]
    pub fn find(&self, selector: &Selector) -> Selected<JobId> {
        let within = |span: RangeInclusive<u32>| {
            let span = JobId(*span.start())..=JobId(*span.end());
            self.all.range(span).map(|(id, _)| id.0)
        };
        let found = match selector {
            Selector::All => Selected::all(within(0..=u32::MAX).collect()),
            Selector::Last => {
                // The last one that was made, even if it is forgotten: another job would be a
                // surprise.
                let last = self.last_id().map(|id| IdArray::single(id.0));
                Selected::of_ids(&last.unwrap_or_default(), within)
            }
            Selector::Ids(ids) => Selected::of_ids(ids, within),
        };
        found.filter_map(|id| Some(JobId(id)))
    }

    /// Jobs that the selector of a command names; `all` = jobs for which `matches` holds.
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
        // Also without tasks: it counts among the jobs, and clients that watch all of them are notified.
        self.changed.insert(job.id);
        self.all.insert(job.id, job);
    }

    /// Adds tasks to a job, all waiting; returns the number of the submit.
    pub(crate) fn add_submit(&mut self, id: JobId, submit: Submit) -> Option<u32> {
        self.changed.insert(id);
        Some(self.all.get_mut(&id)?.add_submit(submit))
    }

    /// Closes a job; returns whether it was open. `None` = there is no such job.
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
        // Ended tasks stay counted; one job less exists.
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
        // Before they end: afterwards nothing tells them from those that had ended.
        let ids = job.unfinished_ids();
        job.end_all(to, at);
        self.changed.insert(id);
        ids
    }

    /// Ends every unfinished task of a submit; returns which.
    pub(crate) fn end_submit(
        &mut self,
        (id, number): (JobId, u32),
        to: Phase,
        at: Timestamp,
    ) -> IdArray {
        let Some(job) = self.all.get_mut(&id) else {
            bug!("job {id} is gone, but tasks of its submit {number} become {to:?}");
            return IdArray::default();
        };
        let ids = job.unfinished_ids_of(number);
        // A submit that has ended before changes nothing.
        if job.end_submit(number, to, at) > 0 {
            self.changed.insert(id);
        }
        ids
    }

    /// Ends the unfinished tasks of parts of a submit; returns the ids of the parts.
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

    /// Ends those of `ids` that have not ended, as they did in an earlier run; those that do not exist are left out.
    pub(crate) fn restore_dropped(&mut self, id: JobId, ids: &IdArray, to: Phase, at: Timestamp) {
        // A job that is not stored has no tasks that could end.
        if let Some(job) = self.all.get_mut(&id) {
            job.restore_dropped(ids, to, at);
            self.changed.insert(id);
        }
    }

    /// Notes that a job has changed for those who watch it.
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

    /// Counts what an instance had used that the end of its worker cut off.
    pub(crate) fn count_cut_off(&mut self, cpu_time: Duration) {
        self.totals.cut_off = self.totals.cut_off.saturating_add(cpu_time);
    }

    /// Prepares jobs of an earlier run of the server: phases are as they were stored.
    pub(crate) fn replay_graphs(&mut self) {
        for job in self.all.values_mut() {
            job.replay_graphs();
        }
    }

    /// Behind the last record: what is completed was told by the earlier run of the server, and what ended then does not
    /// count as ended in this one.
    pub(crate) fn finish_restore(&mut self, now: Timestamp) {
        for job in self.all.values_mut() {
            job.finish_restore(now);
            self.totals.replace(job);
        }
    }

    /// Lets a task wait for its next attempt until this time.
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

    /// Whether a task waits for the time of its next attempt.
    pub(crate) fn is_delayed(&self, id: JobId, slot: TaskSlot) -> bool {
        self.next_attempt(id, slot).is_some()
    }

    /// When the next attempt of a task begins, if it waits for that.
    #[must_use]
    pub fn next_attempt(&self, id: JobId, slot: TaskSlot) -> Option<Time> {
        self.next_attempts.get(&(id, slot)).copied()
    }

    /// Tasks of a submit that wait for the time of their next attempt, from `first` to below the index `end`.
    pub(crate) fn delayed_in(
        &self,
        id: JobId,
        first: TaskSlot,
        end: u32,
    ) -> impl Iterator<Item = u32> {
        let end = TaskSlot {
            index: end,
            ..first
        };
        let found = self.next_attempts.range((id, first)..(id, end));
        found.map(|((_, slot), _)| slot.index)
    }

    /// A task whose wait for another attempt is over. It may have ended meanwhile.
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

    /// Has a submit wait for the other jobs that it names, unless they have completed.
    pub(crate) fn follow(&mut self, id: JobId, number: u32) {
        let submit = self.all.get(&id);
        let submit = submit.and_then(|job| job.submits.get(number as usize));
        for condition in submit.into_iter().flat_map(|submit| &submit.after) {
            let awaited = self.all.get(&condition.job);
            // Jobs that have completed, or were forgotten, are looked at once, by the caller.
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

    /// Whether anybody waits for a job, or has not been notified of its end.
    pub(crate) fn is_followed(&self, id: JobId) -> bool {
        self.followers.is_followed(id)
    }

    /// Whether somebody can go on because a task of this job ended.
    pub(crate) fn is_end_awaited(&self, id: JobId) -> bool {
        // The last end of a job frees also those that wait for the whole.
        let is_completed = self.all.get(&id).is_some_and(Job::is_completed);
        self.followers.want_end(id, is_completed)
    }

    /// Notes the end of a task, or of the rest of a job, for those who wait for it.
    pub(crate) fn note_end(&mut self, id: JobId, task: Option<TaskId>) {
        self.followers.note(id, task);
    }

    /// Ends that were noted since the last time, in their order.
    pub(crate) fn take_ends(&mut self) -> Vec<(JobId, Option<TaskId>)> {
        self.followers.take_ends()
    }

    /// Everybody who waited for a job that has completed was looked at.
    pub(crate) fn forget_followers(&mut self, id: JobId) {
        self.followers.remove(id);
    }

    /// Holds the first `submits` submits of a job until [`Jobs::take_held`].
    pub(crate) fn hold(&mut self, id: JobId, submits: u32) {
        self.held.insert(id, submits);
    }

    /// Whether nothing of a submit may be handed out or given up yet.
    pub(crate) fn is_submit_held(&self, id: JobId, number: u32) -> bool {
        let submits = self.held.get(&id);
        submits.is_some_and(|submits| number < *submits)
    }

    /// Whether the submit of a task is held.
    pub(crate) fn is_held(&self, id: JobId, slot: TaskSlot) -> bool {
        self.is_submit_held(id, slot.submit)
    }

    /// A task has got another instance; if it is held, nobody is given that before it is let go.
    pub(crate) fn note_superseded(&mut self, id: JobId, slot: TaskSlot) {
        self.totals.superseded += 1;
        if self.is_held(id, slot) {
            self.note_fresh(id, slot);
        }
    }

    /// A task that is or will be held is at an instance that nobody has been given.
    pub(crate) fn note_fresh(&mut self, id: JobId, slot: TaskSlot) {
        self.fresh.entry(id).or_default().insert(slot);
    }

    /// All tasks that are at an instance that nobody has been given.
    pub(crate) fn all_fresh(&self) -> Vec<(JobId, TaskSlot)> {
        let of_jobs = self.fresh.iter();
        let all = of_jobs.flat_map(|(id, slots)| slots.iter().map(|slot| (*id, *slot)));
        all.collect()
    }

    /// Tasks of a job that is let go which are at an instance that nobody has been given.
    pub(crate) fn take_fresh(&mut self, id: JobId) -> BTreeSet<TaskSlot> {
        self.fresh.remove(&id).unwrap_or_default()
    }

    /// Lets go what was held.
    pub(crate) fn take_held(&mut self) -> BTreeMap<JobId, u32> {
        std::mem::take(&mut self.held)
    }

    /// Panics unless the totals are those of the jobs, and those of jobs that have not changed are up to date.
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
            "the sums are those of the jobs"
        );
    }
}
