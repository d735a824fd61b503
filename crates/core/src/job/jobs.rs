//! All jobs of a server and the data derived from their tasks: sums, delayed retries and waiting
//! submits.
//!
//! A visible phase changes only here, so that counters, sums and the list of changed jobs agree
//! with the tasks. Records outside the counters, such as the record of an attempt, are changed on
//! the job itself; see [`Jobs::get_mut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use super::followers::Followers;
use super::{Job, Submit, SubmitAt, TaskAt, TaskSlot, Totals};
use crate::bug;
use crate::id::{JobId, TaskId, TaskKey};
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::task::{Phase, TaskRecord};
use crate::template::TaskTemplate;
use crate::time::{Time, Timestamp};

/// All jobs that have not been forgotten.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    all: BTreeMap<JobId, Job>,
    /// The highest id in use, or 0 if there is none.
    last_id: u32,
    /// The sums as of the last [`Jobs::take_changed`].
    totals: Totals,
    /// The jobs that have changed since then.
    changed: BTreeSet<JobId>,
    /// The failed tasks that wait for their next attempt, by the earliest time of that attempt.
    delayed: BTreeSet<(Time, TaskAt)>,
    /// The same times, by task.
    next_attempts: BTreeMap<TaskAt, Time>,
    followers: Followers,
    /// Set only after a restart: the jobs with tasks that may be on workers that have not
    /// reconnected, and the number of submits each had at the restart. No task of these submits is
    /// dispatched.
    held: BTreeMap<JobId, u32>,
    /// The held tasks whose current instance has never been sent to a worker.
    fresh: BTreeMap<JobId, BTreeSet<TaskSlot>>,
}

impl Jobs {
    /// Returns all jobs.
    #[must_use]
    pub const fn all(&self) -> &BTreeMap<JobId, Job> {
        &self.all
    }

    /// Returns the job with this id.
    #[must_use]
    pub fn get(&self, id: JobId) -> Option<&Job> {
        self.all.get(&id)
    }

    /// Returns a job whose records outside the counters can be changed: task and notification
    /// records.
    pub(crate) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.all.get_mut(&id)
    }

    /// Returns a submit.
    #[must_use]
    pub fn submit(&self, at: SubmitAt) -> Option<&Submit> {
        self.all.get(&at.job)?.submits.get(at.number as usize)
    }

    /// Returns a submit whose records outside the counters can be changed.
    pub(crate) fn submit_mut(&mut self, at: SubmitAt) -> Option<&mut Submit> {
        let job = self.all.get_mut(&at.job)?;
        job.submits.get_mut(at.number as usize)
    }

    /// Returns the phase of a task.
    pub(crate) fn phase(&self, at: TaskAt) -> Option<Phase> {
        self.all.get(&at.job)?.phase(at.slot)
    }

    /// Returns the key and the record of a task that was dispatched.
    pub(crate) fn dispatched(&self, at: TaskAt) -> Option<(TaskKey, TaskRecord)> {
        let job = self.all.get(&at.job)?;
        Some((job.key(at.slot)?, job.record(at.slot)?))
    }

    /// Returns the record of a task for changes.
    pub(crate) fn touch(&mut self, at: TaskAt) -> Option<&mut TaskRecord> {
        self.all.get_mut(&at.job)?.touch(at.slot)
    }

    /// Returns the definition of a task with the grant of its next instance, or of its last one.
    pub(crate) fn definition(&self, at: TaskAt) -> Option<Arc<TaskTemplate>> {
        self.submit(at.submit())?.definition(at.slot.index)
    }

    /// Returns the highest id ever assigned.
    #[must_use]
    pub const fn last_id(&self) -> Option<JobId> {
        if self.last_id == 0 {
            None
        } else {
            Some(JobId(self.last_id))
        }
    }

    /// Returns the id of the next job, or `None` after four billion jobs.
    #[must_use]
    pub fn next_id(&self) -> Option<JobId> {
        self.last_id.checked_add(1).map(JobId)
    }

    /// Continues with ids after this one.
    pub(crate) fn restore_last_id(&mut self, last: JobId) {
        self.last_id = self.last_id.max(last.0);
    }

    /// Returns the jobs that match a selector. Takes O(known jobs within its ranges + ranges).
    #[must_use]
    pub fn find(&self, selector: &Selector) -> Selected<JobId> {
        let within = |span: RangeInclusive<u32>| {
            let span = JobId(*span.start())..=JobId(*span.end());
            self.all.range(span).map(|(id, _)| id.0)
        };
        let found = selector.find(self.last_id().map(JobId::as_u32), within);
        found.filter_map(|id| Some(JobId(id)))
    }

    /// Returns the jobs that match a command's selector. For `all`, returns the jobs that `matches`
    /// accepts.
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
        // This also applies to a job without tasks: it counts as a job, and watchers of all jobs
        // are notified.
        self.changed.insert(job.id);
        self.all.insert(job.id, job);
    }

    /// Adds waiting tasks to a job. Returns the place of the submit.
    pub(crate) fn add_submit(&mut self, id: JobId, submit: Submit) -> Option<SubmitAt> {
        self.changed.insert(id);
        let number = self.all.get_mut(&id)?.add_submit(submit);
        Some(SubmitAt { job: id, number })
    }

    /// Closes a job. Returns whether it was open, or `None` if the job is unknown.
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
        // Tasks that have ended since the last call still count as ended.
        self.totals.count(&mut job);
        // The ended tasks of the job stay counted, but not the job itself.
        self.totals.forget(&mut job);
        self.changed.insert(id);
        Some(job)
    }

    /// Changes the phase of one task.
    pub(crate) fn set_phase(&mut self, at: TaskAt, phase: Phase) {
        let Some(job) = self.all.get_mut(&at.job) else {
            bug!("job {} is gone, but a task of it becomes {phase:?}", at.job);
            return;
        };
        // Users see no difference between waiting and queued, or between placed and running.
        if job.set_phase(at.slot, phase) {
            self.changed.insert(at.job);
        }
    }

    /// Ends one unfinished task.
    pub(crate) fn end_one(&mut self, at: TaskAt, to: Phase, now: Timestamp) {
        if let Some(job) = self.all.get_mut(&at.job) {
            job.cut_short(at.slot, now);
        }
        self.set_phase(at, to);
    }

    /// Ends every unfinished task of a job. Returns their ids.
    pub(crate) fn end_all(&mut self, id: JobId, to: Phase, at: Timestamp) -> IdArray {
        let Some(job) = self.all.get_mut(&id) else {
            bug!("job {id} is gone, but its tasks become {to:?}");
            return IdArray::default();
        };
        // The ids must be collected first, because these tasks are then no longer distinguishable
        // from tasks that ended earlier.
        let ids = job.unfinished_ids();
        job.end_all(to, at);
        self.changed.insert(id);
        ids
    }

    /// Ends the unfinished tasks in parts of a submit. Returns their ids.
    pub(crate) fn end_parts(
        &mut self,
        at: SubmitAt,
        parts: &[Range<u32>],
        to: Phase,
        now: Timestamp,
    ) -> IdArray {
        let Some(job) = self.all.get_mut(&at.job) else {
            bug!("{at:?} is gone, but tasks of it become {to:?}");
            return IdArray::default();
        };
        self.changed.insert(at.job);
        job.end_parts(at.number, parts, to, now)
    }

    /// Ends the unfinished tasks among `ids`, as in an earlier run. Skips unknown ids.
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

    /// Brings the totals up to date. Returns the jobs that have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<JobId> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            // A forgotten job has already been counted.
            if let Some(job) = self.all.get_mut(id) {
                self.totals.count(job);
            }
        }
        changed
    }

    /// Returns the sums over all jobs as of the last [`Jobs::take_changed`].
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Counts an instance that was started.
    pub(crate) const fn count_started(&mut self) {
        self.totals.started += 1;
    }

    /// Counts the usage of an instance that was cut off because its worker ended.
    pub(crate) fn count_cut_off(&mut self, cpu_time: Duration) {
        self.totals.cut_off = self.totals.cut_off.saturating_add(cpu_time);
    }

    /// Rebuilds the dependency counts of restored jobs from their stored phases.
    pub(crate) fn replay_graphs(&mut self) {
        for job in self.all.values_mut() {
            job.replay_graphs();
        }
    }

    /// Finishes a restore after the last record. The earlier run has reported its completions, and
    /// tasks that ended in it do not count for this run.
    pub(crate) fn finish_restore(&mut self, now: Timestamp) {
        for job in self.all.values_mut() {
            job.finish_restore(now);
            self.totals.replace(job);
        }
    }

    /// Delays the next attempt of a task.
    pub(crate) fn delay(&mut self, until: Time, at: TaskAt) {
        self.delayed.insert((until, at));
        let earlier = self.next_attempts.insert(at, until);
        if let Some(earlier) = earlier.filter(|earlier| *earlier != until) {
            self.delayed.remove(&(earlier, at));
        }
    }

    /// Returns whether the next attempt of a task is delayed.
    pub(crate) fn is_delayed(&self, at: TaskAt) -> bool {
        self.next_attempts.contains_key(&at)
    }

    /// Returns the time of the next attempt of a task, if the attempt is delayed.
    #[must_use]
    pub fn next_attempt(&self, at: TaskAt) -> Option<Time> {
        self.next_attempts.get(&at).copied()
    }

    /// Returns a task whose delay is over. The task may have ended meanwhile.
    pub(crate) fn next_retry(&mut self, now: Time) -> Option<TaskAt> {
        let (time, at) = self.delayed.first().copied()?;
        // The entries are in the order of their times.
        if time > now {
            return None;
        }
        self.delayed.pop_first();
        self.next_attempts.remove(&at);
        Some(at)
    }

    /// Returns when the first delay of an attempt is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.delayed.first().map(|(time, ..)| *time)
    }

    /// Makes a submit wait for the other jobs it depends on, unless they have completed.
    pub(crate) fn follow(&mut self, at: SubmitAt) {
        let job = self.all.get(&at.job);
        let submit = job.and_then(|job| job.submits.get(at.number as usize));
        for condition in submit.into_iter().flat_map(|submit| &submit.after) {
            let awaited = self.all.get(&condition.job);
            // The caller immediately handles jobs that have completed or were forgotten.
            if awaited.is_some_and(|job| !job.is_completed()) {
                self.followers.add(condition.job, at, condition.is_each);
            }
        }
    }

    /// Returns the submits that wait for a job.
    pub(crate) fn followers_of(&self, id: JobId) -> Vec<SubmitAt> {
        self.followers.of(id)
    }

    /// Returns whether any submit waits for a job or has not been notified of its end.
    pub(crate) fn is_followed(&self, id: JobId) -> bool {
        self.followers.is_followed(id)
    }

    /// Returns whether the end of a task of this job can release a submit.
    pub(crate) fn is_end_awaited(&self, id: JobId) -> bool {
        // The end of the last task also releases submits that wait for the whole job.
        let is_completed = self.all.get(&id).is_some_and(Job::is_completed);
        self.followers.want_end(id, is_completed)
    }

    /// Records for a job's followers that a task, or the rest of the job, has ended.
    pub(crate) fn note_end(&mut self, id: JobId, task: Option<TaskId>) {
        self.followers.note(id, task);
    }

    /// Returns the tasks and jobs whose ends were recorded since the last call, in order.
    pub(crate) fn take_ends(&mut self) -> Vec<(JobId, Option<TaskId>)> {
        self.followers.take_ends()
    }

    /// Forgets the followers of a completed job after all of them have been handled.
    pub(crate) fn forget_followers(&mut self, id: JobId) {
        self.followers.remove(id);
    }

    /// Holds the first `submits` submits of a job until [`Jobs::take_held`].
    pub(crate) fn hold(&mut self, id: JobId, submits: u32) {
        self.held.insert(id, submits);
    }

    /// Returns whether the tasks of a submit are held, so that none may be dispatched or aborted.
    pub(crate) fn is_submit_held(&self, at: SubmitAt) -> bool {
        let submits = self.held.get(&at.job);
        submits.is_some_and(|submits| at.number < *submits)
    }

    /// Returns whether the submit of a task is held.
    pub(crate) fn is_held(&self, at: TaskAt) -> bool {
        self.is_submit_held(at.submit())
    }

    /// Notes a new instance of a task. If the task is held, the instance is not sent until the task
    /// is released.
    pub(crate) fn note_superseded(&mut self, at: TaskAt) {
        self.totals.superseded += 1;
        if self.is_held(at) {
            self.note_fresh(at);
        }
    }

    /// Notes that the current instance of a held task has never been sent to a worker.
    pub(crate) fn note_fresh(&mut self, at: TaskAt) {
        self.fresh.entry(at.job).or_default().insert(at.slot);
    }

    /// Returns all held tasks whose current instance has never been sent to a worker.
    pub(crate) fn all_fresh(&self) -> Vec<TaskAt> {
        let of_jobs = self.fresh.iter();
        let all = of_jobs.flat_map(|(id, slots)| slots.iter().map(|slot| slot.of(*id)));
        all.collect()
    }

    /// Removes and returns the held tasks of a released job whose current instance has never been
    /// sent to a worker.
    pub(crate) fn take_fresh(&mut self, id: JobId) -> BTreeSet<TaskSlot> {
        self.fresh.remove(&id).unwrap_or_default()
    }

    /// Releases all held jobs. Returns the number of held submits of each.
    pub(crate) fn take_held(&mut self) -> BTreeMap<JobId, u32> {
        std::mem::take(&mut self.held)
    }

    /// Panics unless the totals match the jobs and the totals of unchanged jobs are up to date.
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
