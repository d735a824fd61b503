//! Limits on running tasks and on starts: those of the server (`hq limit`) and those of one job
//! (`--max-running`, `--max-rate`).
//!
//! The limits of a submit form a *limit set*. All tasks with the same set are alike, so the ready
//! queue groups them. Sets with the same limits of the server form a *family*: very many jobs may
//! share these limits and each have one of their own as well. The queue knows how many tasks of a
//! group the limit of the job lets start, and how many of a family the limits of the server let
//! start. Taking or giving back a place costs the same for one job as for many. It takes time in
//! proportion to the queues with tasks of the family.
//!
//! A task takes its *places* when it leaves the ready queue for a worker, and gives them back when
//! that worker no longer has it. A task that was sent behind another one of its submit takes over
//! the places of that task.
//!
//! A rate is a token bucket. It holds the starts of one second, or one start, and is empty at
//! first. Starts that cost more than the bucket holds leave a debt.

mod limit;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use super::class_queue::GroupAt;
use crate::bound::{Bound, LimitUse, Rate, SetId, UNLIMITED};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{JobId, WorkerId};
use crate::job::SubmitAt;
use crate::time::Time;
use limit::Limit;
pub use state::LimitState;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LimitId(u32);

/// Each limit of a set, with the amount that a task takes.
type Parts = Box<[(LimitId, u32)]>;

#[derive(Clone, Debug, Default)]
struct Set {
    /// The limit of a job, or limits of the server.
    parts: Parts,
    /// The family, if this is the set of a job with a limit.
    family: Option<SetId>,
    /// How many of its tasks `parts` alone would let start, as of the last update.
    available: u64,
    /// The number of its tasks in the ready queue. For a family, of all its sets.
    queued: u64,
    queues: BTreeSet<QueueKey>,
    /// The number of submits with this set, of its tasks that hold places, and of sets of this
    /// family.
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
    families: BTreeMap<Parts, SetId>,
    /// The sets of jobs with a limit, by that limit and the family.
    of_jobs: BTreeMap<(LimitId, SetId), SetId>,
    /// The limits that have changed since the ready queue was updated.
    changed: BTreeSet<LimitId>,
    /// The sets with new tasks that have to wait, perhaps for a token.
    waiting: BTreeSet<SetId>,
    wakes: BTreeSet<(Time, SetId)>,
    /// The sets of jobs whose own limit applies to several groups of queues.
    spread: BTreeSet<SetId>,
    kept: BTreeMap<Time, Vec<Kept>>,
    last_limit: u32,
    last_set: u32,
    now: Time,
    /// Whether workers of an earlier server run may have tasks that this run does not know of.
    is_closed: bool,
    /// Until when tasks of workers that an earlier server run has lost may run.
    closed_until: Option<Time>,
}

/// Returns a set, and its family if that is another set.
fn levels(sets: &BTreeMap<SetId, Set>, id: SetId) -> impl Iterator<Item = &Set> {
    let set = sets.get(&id);
    let family = set.and_then(|set| sets.get(&set.family?));
    family.into_iter().chain(set)
}

/// Returns the limits of a set, with the amount that a task takes.
fn parts(sets: &BTreeMap<SetId, Set>, id: SetId) -> impl Iterator<Item = &(LimitId, u32)> {
    levels(sets, id).flat_map(|set| &set.parts)
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
        let mut parts = uses.to_vec();
        parts.sort_unstable();
        let family = match uses {
            [] => UNLIMITED,
            _ => self.intern_parts(None, parts.into()),
        };
        match self.jobs.get(&job) {
            Some(own) => self.intern_parts(Some(family), [(*own, 1)].into()),
            None => family,
        }
    }

    fn intern_parts(&mut self, family: Option<SetId>, parts: Parts) -> SetId {
        let known = match family {
            None => self.families.get(&parts).copied(),
            Some(family) => {
                let own = parts.first().map(|(own, _)| (*own, family));
                own.and_then(|own| self.of_jobs.get(&own).copied())
            }
        };
        if let Some(known) = known {
            return known;
        }
        self.last_set += 1;
        let id = SetId(self.last_set);
        for (limit, _) in &parts {
            if let Some(limit) = self.limits.get_mut(limit) {
                limit.sets.insert(id);
            }
        }
        match family {
            Some(family) => {
                let own = parts.first().map(|(own, _)| ((*own, family), id));
                self.of_jobs.extend(own);
                self.reference(family, 1);
            }
            None => {
                self.families.insert(parts.clone(), id);
            }
        }
        let mut set = Set {
            parts,
            family,
            ..Set::default()
        };
        set.available = self.allows(&set);
        self.sets.insert(id, set);
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
        self.spread.remove(&id);
        for (limit, _) in &set.parts {
            if let Some(limit) = self.limits.get_mut(limit) {
                limit.sets.remove(&id);
            }
            self.forget_limit(*limit);
        }
        match set.family {
            Some(family) => {
                let own = set.parts.first();
                own.map(|(own, _)| self.of_jobs.remove(&(*own, family)));
                self.dereference(family, 1);
            }
            None => {
                self.families.remove(&set.parts);
            }
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
        let starts = levels(&self.sets, id).map(|set| self.allows(set)).min();
        starts.unwrap_or_else(|| {
            bug!("there is no limit set {id:?}");
            u64::MAX
        })
    }

    /// Returns how many tasks these limits alone would let start.
    fn allows(&self, set: &Set) -> u64 {
        if self.is_closed() {
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
        let mut limits = parts(&self.sets, id).filter_map(|(id, _)| self.limits.get(id));
        limits.any(|limit| limit.name.is_some() || limit.bucket.is_some())
    }

    /// Returns how many tasks of a set run if all places of one of its limits are taken. `None` if
    /// places are free, if tasks take more than the limit, or if starts have a rate.
    pub(crate) fn full_places(&self, id: SetId) -> Option<u64> {
        let mut places = None;
        for (id, amount) in parts(&self.sets, id) {
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
        for (id, amount) in parts(&self.sets, id) {
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
        self.reference(id, if is_taken { count } else { 0 });
        for (id, amount) in parts(&self.sets, id) {
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
        let before = self.is_closed();
        self.is_closed = is_closed;
        self.note_closed(before);
    }

    /// Notes changed limits if starts are possible now and were not before, or the reverse.
    fn note_closed(&mut self, before: bool) {
        if self.is_closed() != before {
            self.changed.extend(self.limits.keys());
        }
    }

    /// Starts no task with a limit until this time.
    pub(crate) fn close_until(&mut self, until: Time) {
        let before = self.is_closed();
        self.closed_until = self.closed_until.max(Some(until));
        self.note_closed(before);
    }
}

/// What the ready queue needs.
impl TaskLimits {
    /// Returns how the ready queue groups the tasks of a set.
    pub(super) fn group_at(&self, set: SetId) -> GroupAt {
        let available = |set| self.sets.get(&set).map_or(u64::MAX, |set| set.available);
        let family = self.sets.get(&set).and_then(|set| set.family);
        GroupAt {
            set,
            family: family.unwrap_or(set),
            allowed: family.map_or(u64::MAX, |_| available(set)),
            available: available(family.unwrap_or(set)),
        }
    }

    /// Notes the number of queued tasks of a set or family in one queue, before and after a change.
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
        if let Some((own, _)) = set.parts.first().filter(|_| set.family.is_some()) {
            let own = *own;
            self.note_spread(id, own, before == 0);
        }
    }

    /// Notes that tasks of a job's set have entered a queue without such tasks, or have left one.
    fn note_spread(&mut self, id: SetId, own: LimitId, is_added: bool) {
        let Some(limit) = self.limits.get_mut(&own) else {
            return;
        };
        limit.groups = match is_added {
            true => limit.groups + 1,
            false => limit.groups.saturating_sub(1),
        };
        match (limit.groups, is_added) {
            (2, true) => self.spread.extend(&limit.sets),
            (2.., true) => self.spread.extend([id]),
            (1, false) => limit.sets.iter().for_each(|set| {
                self.spread.remove(set);
            }),
            (_, _) => {}
        }
    }

    /// Returns the sets of jobs whose own limit applies to several groups of queues.
    pub(super) fn spread(&self) -> impl Iterator<Item = SetId> {
        self.spread.iter().copied()
    }

    /// Advances the time, and returns the sets and families that let another number of tasks start,
    /// with that number.
    pub(crate) fn update(&mut self, now: Time) -> Vec<(SetId, u64)> {
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
        let mut found = Vec::new();
        for id in stale {
            let Some(starts) = self.sets.get(&id).map(|set| self.allows(set)) else {
                continue;
            };
            self.plan_wake(id, starts);
            let before = self.sets.get(&id).map(|set| set.available);
            found.extend((before != Some(starts)).then_some((id, starts)));
        }
        found
    }

    /// Plans the next update of a set whose tasks wait for tokens.
    fn plan_wake(&mut self, id: SetId, starts: u64) {
        let now = self.now;
        let Some(set) = self.sets.get_mut(&id) else {
            return;
        };
        let limits = &self.limits;
        let next = set.parts.iter().filter_map(|(id, amount)| {
            // The content of a full bucket does not grow.
            let bucket = limits
                .get(id)?
                .bucket
                .filter(|bucket| !bucket.is_full(now))?;
            (bucket.starts(*amount, now) <= starts).then(|| bucket.next_at(*amount, now))
        });
        let next = next.max().filter(|_| starts < set.queued);
        let before = std::mem::replace(&mut set.wake, next);
        self.wakes.extend(next.map(|at| (at, id)));
        if let Some(before) = before.filter(|_| before != next) {
            self.wakes.remove(&(before, id));
        }
    }

    /// Notes how many tasks a set or family lets start. Returns the number before.
    pub(super) fn set_available(&mut self, id: SetId, available: u64) -> u64 {
        let set = self.sets.get_mut(&id);
        set.map_or(available, |set| {
            std::mem::replace(&mut set.available, available)
        })
    }

    /// Returns the queues with tasks of a set or family.
    pub(super) fn queues_of(&self, id: SetId) -> impl Iterator<Item = &QueueKey> {
        self.sets.get(&id).into_iter().flat_map(|set| &set.queues)
    }

    /// Returns the queues with tasks that share a limit with this set, with their sets or families.
    pub(crate) fn rivals(&self, id: SetId) -> impl Iterator<Item = (SetId, QueueKey)> + '_ {
        let sets = parts(&self.sets, id)
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
    /// Returns how many tasks of a family, or of a job's set with regard to the job's limit only, may
    /// start in addition to the planned ones.
    pub(crate) fn left(&self, PlannedPlaces(planned): &PlannedPlaces, id: SetId) -> u64 {
        let Some(set) = self.sets.get(&id) else {
            return u64::MAX;
        };
        let left = set.parts.iter().map(|(id, amount)| {
            let taken = planned.get(id).copied().unwrap_or(0);
            let limit = self.limits.get(id);
            let starts = limit.map_or(u64::MAX, |limit| limit.starts(*amount, self.now));
            starts.saturating_sub(taken.div_ceil(u64::from(*amount)))
        });
        left.min().unwrap_or(u64::MAX).min(self.allows(set))
    }

    /// Plans the start of tasks of a family, or of a job's set with regard to the job's limit only.
    /// Returns how many of them may start.
    pub(crate) fn plan(&self, planned: &mut PlannedPlaces, id: SetId, count: u64) -> u64 {
        let Some(set) = self.sets.get(&id) else {
            return count;
        };
        let starts = count.min(self.left(planned, id));
        let PlannedPlaces(planned) = planned;
        for (id, amount) in &set.parts {
            *planned.entry(*id).or_default() += u64::from(*amount) * starts;
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
            assert!(
                self.sets.contains_key(&set),
                "the set of a placed task exists"
            );
            for (limit, amount) in parts(&self.sets, set) {
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
        let limits = self.names.values().filter_map(|id| self.limits.get(id));
        limits.filter(|limit| limit.bound().is_some()).count()
    }

    fn state_of(&self, id: LimitId) -> Option<LimitState> {
        let limit = self.limits.get(&id)?;
        let mut lost: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for kept in self.kept.values().flatten() {
            for (_, amount) in parts(&self.sets, kept.set).filter(|(of, _)| *of == id) {
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
