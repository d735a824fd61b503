//! Limits on running tasks and on starts: those of the server (`hq limit`) and those of one job
//! (`--max-running`, `--max-rate`).
//!
//! The limits of a submit form a *limit set*. All tasks with the same set are alike, so the ready
//! queue groups them, and knows how many tasks of a group may start. A task takes its *places* when
//! it leaves the ready queue for a worker, and gives them back when that worker no longer has it.
//! A task that was sent behind another one of its submit takes over the places of that task.
//!
//! A rate is a token bucket. It holds the starts of one second, or one start, and is empty at
//! first. Starts that cost more than the bucket holds leave a debt.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bound::{Bound, LimitUse, Rate, SetId, UNLIMITED};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{JobId, WorkerId};
use crate::job::SubmitAt;
use crate::time::{Time, nanos};
pub use state::LimitState;

/// The size of a token bucket.
const BURST: Duration = Duration::from_secs(1);
/// The shortest pause between two rounds that wait for tokens.
const WAKE_MIN: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LimitId(u32);

/// Each limit of a set, with the amount that a task takes.
type Parts = Box<[(LimitId, u32)]>;

#[derive(Clone, Debug, Default)]
struct Limit {
    /// The name. `None` for the limit of one job.
    name: Option<Box<str>>,
    max: Option<u64>,
    bucket: Option<Bucket>,
    /// The places that are taken, also while nothing bounds them.
    used: u64,
    /// The places that are taken, by job.
    users: BTreeMap<JobId, u64>,
    sets: BTreeSet<SetId>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: Rate,
    /// The content in nanoseconds of waiting. Negative after starts that cost more than it held.
    level: i64,
    at: Time,
}

#[derive(Clone, Debug, Default)]
struct Set {
    parts: Parts,
    /// How many of its tasks may start, as the ready queue knows it.
    available: u64,
    /// The number of its tasks in the ready queue.
    queued: u64,
    queues: BTreeSet<QueueKey>,
    /// The number of submits with this set, and of places that its tasks have taken.
    references: u64,
    /// When the next token arrives for which its tasks wait.
    wake: Option<Time>,
}

#[derive(Clone, Debug)]
struct LimitedSubmit {
    /// The limits of the server.
    uses: Vec<(LimitId, u32)>,
    set: SetId,
}

/// Places of a task that may still run on a lost worker.
#[derive(Clone, Copy, Debug)]
struct Kept {
    worker: WorkerId,
    set: SetId,
    job: JobId,
}

/// All limits, and the places that tasks take.
#[derive(Clone, Debug, Default)]
pub struct TaskLimits {
    limits: BTreeMap<LimitId, Limit>,
    names: BTreeMap<Box<str>, LimitId>,
    jobs: BTreeMap<JobId, LimitId>,
    submits: BTreeMap<SubmitAt, LimitedSubmit>,
    /// The limit sets that submits of each job have or had. A job may have very many submits, but
    /// few sets.
    job_sets: BTreeSet<(JobId, SetId)>,
    sets: BTreeMap<SetId, Set>,
    by_parts: BTreeMap<Parts, SetId>,
    /// The limits that have changed since the ready queue was updated.
    changed: BTreeSet<LimitId>,
    /// The sets with new tasks that have to wait, perhaps for a token.
    waiting: BTreeSet<SetId>,
    wakes: BTreeSet<(Time, SetId)>,
    kept: BTreeMap<Time, Vec<Kept>>,
    last_limit: u32,
    last_set: u32,
    now: Time,
    /// Whether workers of an earlier server run may have tasks that this run does not know of.
    is_closed: bool,
    /// Until when tasks of workers that an earlier server run has lost may run.
    closed_until: Option<Time>,
}

impl Bucket {
    fn capacity(&self) -> i64 {
        let capacity = self.rate.interval_ns().max(nanos(BURST));
        i64::try_from(capacity).unwrap_or(i64::MAX)
    }

    fn level_at(&self, now: Time) -> i64 {
        let gained = i64::try_from(nanos(now.since(self.at))).unwrap_or(i64::MAX);
        self.level.saturating_add(gained).min(self.capacity())
    }

    /// Returns the level at which a task with this amount may start.
    fn cost(&self, amount: u32) -> i64 {
        let cost = self.rate.interval_ns().saturating_mul(u64::from(amount));
        i64::try_from(cost).unwrap_or(i64::MAX).min(self.capacity())
    }

    /// Returns the level of a bucket with another rate that holds as many starts.
    fn starts_at_rate(&self, rate: Rate, now: Time) -> i64 {
        let level = i128::from(self.level_at(now)) * i128::from(rate.interval_ns());
        let level = level / i128::from(self.rate.interval_ns());
        i64::try_from(level).unwrap_or(i64::MAX)
    }

    fn starts(&self, amount: u32, now: Time) -> u64 {
        let starts = self.level_at(now) / self.cost(amount).max(1);
        u64::try_from(starts).unwrap_or(0)
    }

    fn take(&mut self, amount: u64, now: Time) {
        let cost = self.rate.interval_ns().saturating_mul(amount);
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        (self.level, self.at) = (self.level_at(now).saturating_sub(cost), now);
    }

    /// Returns when one more task than now may start.
    fn next_at(&self, amount: u32, now: Time) -> Time {
        let (level, cost) = (self.level_at(now), self.cost(amount).max(1));
        let missing = if level < 0 {
            cost.saturating_sub(level)
        } else {
            cost - level % cost
        };
        now + Duration::from_nanos(u64::try_from(missing).unwrap_or(0)).max(WAKE_MIN)
    }
}

impl Limit {
    /// Returns for how many tasks there are places.
    fn places(&self, amount: u32) -> u64 {
        self.max.map_or(u64::MAX, |max| {
            // A task that counts more than the limit, which was lowered, runs alone.
            let amount = u64::from(amount).min(max).max(1);
            max.saturating_sub(self.used) / amount
        })
    }

    fn starts(&self, amount: u32, now: Time) -> u64 {
        let bucket = self.bucket.as_ref();
        self.places(amount)
            .min(bucket.map_or(u64::MAX, |bucket| bucket.starts(amount, now)))
    }

    fn set(&mut self, max: Option<u32>, rate: Option<Rate>, now: Time) {
        self.max = max.map(u64::from);
        let before = self.bucket;
        self.bucket = rate.map(|rate| Bucket {
            rate,
            level: match before {
                Some(before) => before.starts_at_rate(rate, now),
                // A new limit lets one task start. After a restart, that task may have started.
                None if now == Time(0) => 0,
                None => i64::try_from(rate.interval_ns()).unwrap_or(i64::MAX),
            },
            at: now,
        });
    }

    fn bound(&self) -> Option<Bound> {
        let max = self.max.and_then(|max| u32::try_from(max).ok());
        let rate = self.bucket.map(|bucket| Bound::Rate(bucket.rate));
        max.map(Bound::Running).or(rate)
    }
}

/// The limits and the submits that they apply to.
impl TaskLimits {
    /// Sets or removes a limit of the server.
    pub(crate) fn set(&mut self, name: &str, bound: Option<Bound>, now: Time) {
        let id = self.named(name);
        let (max, rate) = match bound {
            Some(Bound::Running(max)) => (Some(max), None),
            Some(Bound::Rate(rate)) => (None, Some(rate)),
            None => (None, None),
        };
        self.set_limit(id, max, rate, now);
        self.forget_limit(id);
    }

    fn set_limit(&mut self, id: LimitId, max: Option<u32>, rate: Option<Rate>, now: Time) {
        if let Some(limit) = self.limits.get_mut(&id) {
            limit.set(max, rate, now);
            self.changed.insert(id);
        }
    }

    fn named(&mut self, name: &str) -> LimitId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = self.add_limit(Some(name.into()));
        self.names.insert(name.into(), id);
        id
    }

    fn add_limit(&mut self, name: Option<Box<str>>) -> LimitId {
        self.last_limit += 1;
        let id = LimitId(self.last_limit);
        let limit = Limit {
            name,
            ..Limit::default()
        };
        self.limits.insert(id, limit);
        id
    }

    /// Forgets a limit that bounds nothing and that no submit refers to.
    fn forget_limit(&mut self, id: LimitId) {
        let Some(limit) = self.limits.get(&id) else {
            return;
        };
        if limit.bound().is_some() || !limit.sets.is_empty() {
            return;
        }
        if let Some(name) = self.limits.remove(&id).and_then(|limit| limit.name) {
            self.names.remove(&name);
        }
    }

    /// Notes the limits of a new submit.
    pub(crate) fn add_submit(&mut self, at: SubmitAt, uses: &[LimitUse]) {
        let parts = uses.iter();
        let uses: Vec<_> = parts
            .map(|part| (self.named(&part.name), part.amount))
            .collect();
        let is_limited = !uses.is_empty() || self.jobs.contains_key(&at.job);
        if is_limited {
            let set = self.intern(at.job, &uses);
            self.note_set(at, uses, set);
        }
    }

    fn note_set(&mut self, at: SubmitAt, uses: Vec<(LimitId, u32)>, set: SetId) {
        self.reference(set, 1);
        self.job_sets.insert((at.job, set));
        self.submits.insert(at, LimitedSubmit { uses, set });
    }

    fn intern(&mut self, job: JobId, uses: &[(LimitId, u32)]) -> SetId {
        let own = self.jobs.get(&job).map(|id| (*id, 1));
        let mut parts: Vec<_> = uses.iter().copied().chain(own).collect();
        parts.sort_unstable();
        let parts: Parts = parts.into();
        if let Some(set) = self.by_parts.get(&parts) {
            return *set;
        }
        self.last_set += 1;
        let id = SetId(self.last_set);
        for (limit, _) in &parts {
            if let Some(limit) = self.limits.get_mut(limit) {
                limit.sets.insert(id);
            }
        }
        self.by_parts.insert(parts.clone(), id);
        let set = Set {
            parts,
            ..Set::default()
        };
        self.sets.insert(id, set);
        let available = self.starts(id);
        if let Some(set) = self.sets.get_mut(&id) {
            set.available = available;
        }
        id
    }

    /// Sets the limits of a job. Returns the submits whose tasks get another limit set, which the
    /// caller must move with [`Self::move_submit`].
    pub(crate) fn set_job(
        &mut self,
        job: JobId,
        max: Option<u32>,
        rate: Option<Rate>,
        submits: u32,
        now: Time,
    ) -> Vec<SubmitAt> {
        let known = self.jobs.get(&job).copied();
        if known.is_none() && max.is_none() && rate.is_none() {
            return Vec::new();
        }
        let id = known.unwrap_or_else(|| self.add_limit(None));
        self.jobs.insert(job, id);
        self.set_limit(id, max, rate, now);
        let all = (0..submits).map(|number| SubmitAt { job, number });
        if known.is_some() {
            Vec::new()
        } else {
            all.collect()
        }
    }

    /// Gives a submit the limit set that its job's limits result in.
    pub(crate) fn move_submit(&mut self, at: SubmitAt) {
        let known = self.submits.get(&at);
        let uses = known.map_or_else(Vec::new, |known| known.uses.clone());
        let before = self.set_of(at);
        let set = self.intern(at.job, &uses);
        self.note_set(at, uses, set);
        self.dereference(before, 1);
    }

    /// Forgets the submits of a job.
    pub(crate) fn forget_job(&mut self, job: JobId) {
        let own = SubmitAt { job, number: 0 }..=SubmitAt {
            job,
            number: u32::MAX,
        };
        let submits: Vec<SubmitAt> = self.submits.range(own).map(|(at, _)| *at).collect();
        let limit = self.jobs.remove(&job);
        if let Some(id) = limit {
            // Tasks of the job that workers are killing no longer need to be bounded.
            self.set_limit(id, None, None, self.now);
        }
        for at in submits {
            if let Some(submit) = self.submits.remove(&at) {
                self.dereference(submit.set, 1);
            }
        }
        for set in self.sets_of(job) {
            self.job_sets.remove(&(job, set));
        }
        limit.into_iter().for_each(|id| self.forget_limit(id));
    }

    /// Returns the limit set of a submit.
    pub(crate) fn set_of(&self, at: SubmitAt) -> SetId {
        self.submits.get(&at).map_or(UNLIMITED, |submit| submit.set)
    }

    /// Returns the limit sets of a job's submits.
    pub(crate) fn sets_of(&self, job: JobId) -> BTreeSet<SetId> {
        let sets = self
            .job_sets
            .range((job, UNLIMITED)..=(job, SetId(u32::MAX)));
        sets.map(|(_, set)| *set).collect()
    }

    fn reference(&mut self, set: SetId, count: u64) {
        if let Some(set) = self.sets.get_mut(&set) {
            set.references += count;
        }
    }

    fn dereference(&mut self, id: SetId, count: u64) {
        let Some(set) = self.sets.get_mut(&id) else {
            return;
        };
        match set.references.checked_sub(count) {
            Some(left) => set.references = left,
            None => bug!("limit set {id:?} has {} references", set.references),
        }
        if set.references > 0 || set.queued > 0 {
            return;
        }
        let Some(set) = self.sets.remove(&id) else {
            return;
        };
        set.wake.map(|at| self.wakes.remove(&(at, id)));
        self.waiting.remove(&id);
        self.by_parts.remove(&set.parts);
        for (limit, _) in set.parts {
            if let Some(limit) = self.limits.get_mut(&limit) {
                limit.sets.remove(&id);
            }
            self.forget_limit(limit);
        }
    }
}

/// Places of tasks.
impl TaskLimits {
    /// Returns how many tasks of a set may start now.
    pub(crate) fn starts(&self, id: SetId) -> u64 {
        if id == UNLIMITED {
            return u64::MAX;
        }
        let Some(set) = self.sets.get(&id) else {
            bug!("there is no limit set {id:?}");
            return u64::MAX;
        };
        if self.is_closed || self.closed_until.is_some_and(|until| until > self.now) {
            return 0;
        }
        let starts = set.parts.iter().filter_map(|(limit, amount)| {
            let limit = self.limits.get(limit)?;
            Some(limit.starts(*amount, self.now))
        });
        starts.min().unwrap_or(u64::MAX)
    }

    /// Returns whether a set's tasks must start when they take their places, because other jobs
    /// could use the places meanwhile, or because starts have a rate.
    pub(crate) fn is_scarce(&self, id: SetId) -> bool {
        let set = self.sets.get(&id);
        set.is_some_and(|set| {
            let mut limits = set.parts.iter().filter_map(|(id, _)| self.limits.get(id));
            limits.any(|limit| limit.name.is_some() || limit.bucket.is_some())
        })
    }

    /// Returns how many tasks of a set run if all places of one of its limits are taken. `None` if
    /// places are free, if tasks take more than the limit, or if starts have a rate.
    pub(crate) fn full_places(&self, id: SetId) -> Option<u64> {
        let set = self.sets.get(&id)?;
        let mut places = None;
        for (id, amount) in &set.parts {
            let limit = self.limits.get(id)?;
            let max = limit.max.unwrap_or(u64::MAX);
            if limit.bucket.is_some() || limit.used > max {
                return None;
            }
            // The rest may be too small for one more task.
            if limit.starts(*amount, self.now) == 0 {
                let tasks = limit.used / u64::from(*amount);
                places = Some(places.unwrap_or(u64::MAX).min(tasks.max(1)));
            }
        }
        places
    }

    /// Takes the places and tokens of tasks of a job.
    pub(crate) fn take(&mut self, id: SetId, job: JobId, count: u64) {
        self.change_places(id, job, count, true);
        let Some(set) = self.sets.get(&id) else {
            return;
        };
        for (id, amount) in &set.parts {
            let bucket = self.limits.get_mut(id);
            if let Some(bucket) = bucket.and_then(|limit| limit.bucket.as_mut()) {
                bucket.take(u64::from(*amount) * count, self.now);
            }
        }
    }

    /// Takes the place of a task that has started already.
    pub(crate) fn take_place(&mut self, id: SetId, job: JobId) {
        self.change_places(id, job, 1, true);
    }

    /// Gives back the places of tasks of a job.
    pub(crate) fn give_back(&mut self, id: SetId, job: JobId, count: u64) {
        self.change_places(id, job, count, false);
        if id != UNLIMITED {
            self.dereference(id, count);
        }
    }

    fn change_places(&mut self, id: SetId, job: JobId, count: u64, is_taken: bool) {
        let Some(set) = self.sets.get_mut(&id).filter(|_| id != UNLIMITED) else {
            return;
        };
        set.references += if is_taken { count } else { 0 };
        for (id, amount) in &set.parts {
            let Some(limit) = self.limits.get_mut(id) else {
                continue;
            };
            let places = u64::from(*amount) * count;
            let own = limit.users.entry(job).or_default();
            if is_taken {
                limit.used += places;
                *own += places;
            } else if let (Some(used), Some(left)) =
                (limit.used.checked_sub(places), own.checked_sub(places))
            {
                (limit.used, *own) = (used, left);
            } else {
                bug!("job {job} gives back {places} places of a limit, but has {own}");
            }
            if *own == 0 {
                limit.users.remove(&job);
            }
            self.changed.insert(*id);
        }
    }

    /// Keeps the place of a task on a lost worker until nothing of it can run there.
    pub(crate) fn keep(&mut self, worker: WorkerId, set: SetId, job: JobId, until: Time) {
        if set != UNLIMITED {
            let kept = Kept { worker, set, job };
            self.kept.entry(until).or_default().push(kept);
        }
    }

    /// Notes whether workers may have tasks that the server does not know of.
    pub(crate) fn close(&mut self, is_closed: bool) {
        if self.is_closed != is_closed {
            self.is_closed = is_closed;
            self.changed.extend(self.limits.keys());
        }
    }

    /// Starts no task with a limit until this time.
    pub(crate) fn close_until(&mut self, until: Time) {
        self.closed_until = self.closed_until.max(Some(until));
        self.changed.extend(self.limits.keys());
    }
}

/// What the ready queue needs.
impl TaskLimits {
    /// Returns how many tasks of a set may start, as of the last update.
    pub(crate) fn available(&self, id: SetId) -> u64 {
        self.sets.get(&id).map_or(u64::MAX, |set| set.available)
    }

    /// Notes the number of queued tasks of a set in one queue, before and after a change.
    pub(crate) fn note_queued(&mut self, id: SetId, key: QueueKey, before: u64, after: u64) {
        let Some(set) = self.sets.get_mut(&id) else {
            return;
        };
        set.queued = (set.queued + after).saturating_sub(before);
        if set.queued > set.available && set.wake.is_none() {
            self.waiting.insert(id);
        }
        match (before, after) {
            (0, 1..) => set.queues.insert(key),
            (1.., 0) => set.queues.remove(&key),
            _ => return,
        };
    }

    /// Advances the time, and returns the sets for which another number of tasks may start, with
    /// that number. `true` as the last value means that waiting tasks may start.
    pub(crate) fn update(&mut self, now: Time) -> (Vec<(SetId, u64)>, bool) {
        self.now = self.now.max(now);
        while let Some(entry) = self.kept.first_entry()
            && *entry.key() <= now
        {
            for kept in entry.remove() {
                self.give_back(kept.set, kept.job, 1);
            }
        }
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
            self.changed.extend(self.limits.keys());
        }
        let mut stale = std::mem::take(&mut self.waiting);
        for id in std::mem::take(&mut self.changed) {
            stale.extend(
                self.limits
                    .get(&id)
                    .into_iter()
                    .flat_map(|limit| &limit.sets),
            );
        }
        while let Some((_, id)) = self.wakes.first().filter(|(at, _)| *at <= now) {
            stale.insert(*id);
            self.wakes.pop_first();
        }
        let (mut found, mut may_start) = (Vec::new(), false);
        for id in stale {
            let starts = self.starts(id);
            self.plan_wake(id, starts);
            let Some(set) = self.sets.get(&id) else {
                continue;
            };
            if starts != set.available {
                may_start |= starts > set.available && set.available < set.queued;
                found.push((id, starts));
            }
        }
        (found, may_start)
    }

    /// Plans the next update of a set whose tasks wait for tokens.
    fn plan_wake(&mut self, id: SetId, starts: u64) {
        let now = self.now;
        let Some(set) = self.sets.get_mut(&id) else {
            return;
        };
        let limits = &self.limits;
        let next = set.parts.iter().filter_map(|(id, amount)| {
            let bucket = limits.get(id)?.bucket?;
            (bucket.starts(*amount, now) <= starts).then(|| bucket.next_at(*amount, now))
        });
        let next = next.max().filter(|_| starts < set.queued);
        let before = std::mem::replace(&mut set.wake, next);
        self.wakes.extend(next.map(|at| (at, id)));
        if let Some(before) = before.filter(|_| before != next) {
            self.wakes.remove(&(before, id));
        }
    }

    /// Notes how many tasks of a set may start, and returns the queues with such tasks.
    pub(crate) fn set_available(&mut self, id: SetId, available: u64) -> Vec<QueueKey> {
        let Some(set) = self.sets.get_mut(&id) else {
            return Vec::new();
        };
        set.available = available;
        set.queues.iter().copied().collect()
    }

    /// Returns the queues with tasks that share a limit with this set.
    pub(crate) fn rivals(&self, id: SetId) -> impl Iterator<Item = (SetId, QueueKey)> + '_ {
        let set = self.sets.get(&id).into_iter();
        let limits = set.flat_map(|set| &set.parts);
        let sets = limits
            .flat_map(|(id, _)| self.limits.get(id))
            .flat_map(|limit| &limit.sets);
        sets.flat_map(|id| {
            let queues = self.sets.get(id).into_iter().flat_map(|set| &set.queues);
            queues.map(|key| (*id, *key))
        })
    }

    /// Returns when the limits change if no task ends.
    pub(crate) fn due_at(&self) -> Option<Time> {
        let wake = self.wakes.first().map(|(at, _)| *at);
        let kept = self.kept.keys().next().copied();
        [wake, kept, self.closed_until].into_iter().flatten().min()
    }
}

/// Places that are planned for tasks, to count each place once.
#[derive(Debug, Default)]
pub(crate) struct PlannedPlaces(BTreeMap<LimitId, u64>);

impl TaskLimits {
    /// Plans the start of tasks of a set. Returns how many of them may start.
    pub(crate) fn plan(&self, planned: &mut PlannedPlaces, id: SetId, count: u64) -> u64 {
        let parts = self.sets.get(&id).map_or(&[][..], |set| &set.parts);
        let mut starts = count.min(self.starts(id));
        for (id, amount) in parts {
            let PlannedPlaces(planned) = planned;
            let taken = planned.get(id).copied().unwrap_or(0) / u64::from(*amount);
            let left = self
                .limits
                .get(id)
                .map(|limit| limit.starts(*amount, self.now));
            starts = starts.min(left.unwrap_or(u64::MAX).saturating_sub(taken));
        }
        for (id, amount) in parts {
            *planned.0.entry(*id).or_default() += u64::from(*amount) * starts;
        }
        starts
    }
}

/// Checks for tests.
#[cfg(any(test, feature = "testing"))]
impl TaskLimits {
    /// Panics unless the places are those of these tasks on workers and of the kept ones.
    pub(crate) fn check(&self, placed: impl Iterator<Item = (JobId, SetId)>) {
        let kept = self
            .kept
            .values()
            .flatten()
            .map(|kept| (kept.job, kept.set));
        let mut users: BTreeMap<(LimitId, JobId), u64> = BTreeMap::new();
        let limited = placed.chain(kept).filter(|(_, set)| *set != UNLIMITED);
        for (job, set) in limited {
            let set = self
                .sets
                .get(&set)
                .expect("the set of a placed task exists");
            for (limit, amount) in &set.parts {
                *users.entry((*limit, job)).or_default() += u64::from(*amount);
            }
        }
        for (id, limit) in &self.limits {
            let known = limit.users.iter();
            for (job, used) in known {
                assert_eq!(
                    users.remove(&(*id, *job)),
                    Some(*used),
                    "places of job {job}"
                );
            }
            assert_eq!(limit.used, limit.users.values().sum::<u64>());
        }
        assert!(users.is_empty(), "places that nobody has taken: {users:?}");
    }
}

/// Questions of users.
impl TaskLimits {
    /// Returns a limit of the server. `None` if it does not exist.
    #[must_use]
    pub fn bound(&self, name: &str) -> Option<Bound> {
        self.limits.get(self.names.get(name)?)?.bound()
    }

    /// Returns the limits of the server, by name.
    pub fn named_limits(&self) -> impl Iterator<Item = LimitState> + '_ {
        self.names.values().filter_map(|id| self.state_of(*id))
    }

    /// Returns the number of the server's limits.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn state_of(&self, id: LimitId) -> Option<LimitState> {
        let limit = self.limits.get(&id)?;
        let mut lost: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for kept in self.kept.values().flatten() {
            let parts = self.sets.get(&kept.set).map_or(&[][..], |set| &set.parts);
            for (_, amount) in parts.iter().filter(|(of, _)| *of == id) {
                *lost.entry(kept.worker).or_default() += u64::from(*amount);
            }
        }
        let sets = limit.sets.iter().filter_map(|id| self.sets.get(id));
        Some(LimitState {
            name: limit.name.clone().unwrap_or_default(),
            bound: limit.bound(),
            used: limit.used,
            users: limit
                .users
                .iter()
                .map(|(job, used)| (*job, *used))
                .collect(),
            lost: lost.into_iter().collect(),
            ready: sets.map(|set| set.queued).sum(),
            next_in: None,
            amount: 1,
        })
    }

    /// Returns whether no task with a limit starts, because workers of an earlier server run may
    /// have tasks that this run does not know of.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed || self.closed_until.is_some_and(|until| until > self.now)
    }
}
