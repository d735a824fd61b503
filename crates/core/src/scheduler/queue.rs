//! Ready tasks by priority and class, stored as ranges.
//!
//! Tasks are ordered by priority (highest first), then by job and by task number (lowest first).
//! The cost of every operation is logarithmic in the number of (job, submit) entries and ranges,
//! and independent of the number of tasks.
//!
//! Limits bound how many of the ready tasks may start, see [`TaskLimits`]. Tasks that may not start
//! are in the queue, but the counts that rounds see do not include them.
//!
//! If there are many queues, they are also in a [`RequestIndex`], which lets a round find the
//! relevant ones. The index is updated in bounded steps, see [`ReadyQueue::follow`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::class_queue::{ClassQueue, Entry, Group};
use super::index::{DeferredFree, RequestIndex};
use super::task_limits::{PlannedPlaces, TaskLimits};
use crate::bound::{SetId, UNLIMITED};
use crate::class::{ClassId, Classes, QueueKey};
use crate::id::JobId;
use crate::job::SubmitAt;
use crate::range::IndexSet;
use crate::time::Time;

/// Consecutive indices of one submit that were taken from a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenRange {
    /// The id of the job.
    pub job: JobId,
    /// The number of the submit within the job.
    pub submit: u32,
    /// The first index.
    pub from: u32,
    /// The index after the last one.
    pub to: u32,
}

/// The maximum number of queues that a round examines completely. With more queues, it uses the
/// index.
pub(crate) const QUEUES_SEEN_MAX: usize = 256;
/// The number of queues below which the index is dropped. It is lower than [`QUEUES_SEEN_MAX`] to
/// avoid repeated rebuilds.
const QUEUES_INDEXED_MIN: usize = QUEUES_SEEN_MAX / 2;
/// How many queues one step adds to the index, which takes a few milliseconds.
const FOLLOWED_MAX: usize = 1_024;

/// How many requests of an index are freed in one step, about 0.3 µs each.
const FREED_MAX: usize = 8_192;

impl TakenRange {
    /// Returns the submit.
    pub(crate) const fn at(self) -> SubmitAt {
        submit_at(self.job, self.submit)
    }
}

const fn submit_at(job: JobId, number: u32) -> SubmitAt {
    SubmitAt { job, number }
}

/// The number of groups of tasks that are skipped when tasks are sent ahead of their turn.
const SKIPPED_MAX: u32 = 64;

/// The number of queues with tasks of the same limits that are compared before a task is sent
/// behind another one.
const RIVALS_MAX: usize = 64;

/// The maximum number of sets of jobs (see [`TaskLimits::spread`]) whose places count only once when
/// workers are requested.
const SPREAD_MAX: usize = 256;

/// The index and the changes that it does not contain yet.
#[derive(Clone, Debug, Default)]
struct Indexed {
    index: RequestIndex,
    /// The queues that appeared or disappeared since the last step.
    changed: BTreeSet<QueueKey>,
    /// All queues up to this one have been added.
    built_to: Option<QueueKey>,
    is_built: bool,
}

/// The progress of taking tasks from a queue. Its families are merged in the order of their entries.
#[derive(Debug, Default)]
struct Walk {
    /// The next entry of each family seen, and of the tasks without limits.
    fronts: BTreeSet<(Entry, SetId)>,
    seen: BTreeSet<SetId>,
    /// The last family seen.
    behind: Option<(Entry, SetId)>,
    /// The next one. `Some(None)` if all have been seen.
    next: Option<Option<(Entry, SetId)>>,
}

/// All ready tasks.
#[derive(Clone, Debug, Default)]
pub struct ReadyQueue {
    queues: BTreeMap<QueueKey, ClassQueue>,
    /// The queues with tasks of each job.
    by_job: BTreeSet<(JobId, QueueKey)>,
    /// The queues of multi-node tasks, with their minimum number of nodes.
    multi_node: BTreeMap<QueueKey, u32>,
    /// The same queues by their number of nodes.
    by_nodes: BTreeSet<(u32, QueueKey)>,
    len: u64,
    limits: TaskLimits,
    indexed: Option<Box<Indexed>>,
    /// Discarded indexes, which are freed in steps because freeing a large one takes a long time.
    freed: Vec<DeferredFree>,
}

impl ReadyQueue {
    /// Adds the indices `from..to` of a submit. Returns whether these are the only tasks of the queue
    /// that may start, among those with the same limits of the server.
    pub fn insert(&mut self, key: QueueKey, job: JobId, submit: u32, from: u32, to: u32) -> bool {
        if from >= to {
            return false;
        }
        let is_new = !self.queues.contains_key(&key);
        let set = self.limits.set_of(submit_at(job, submit));
        let at = self.limits.group_at(set);
        let before = self.queues.entry(key).or_default().startable_with(at);
        self.edit(key, set, |group| group.insert((job, submit), from, to));
        self.by_job.insert((job, key));
        // The index contains queues but not task counts.
        if is_new {
            self.note_changed(key);
        }
        let queue = self.queues.get(&key);
        before == 0 && queue.is_some_and(|queue| queue.startable_with(at) > 0)
    }

    /// Changes the tasks of a queue with one limit set.
    fn edit<R>(&mut self, key: QueueKey, set: SetId, f: impl FnOnce(&mut Group) -> R) -> Option<R> {
        let queue = self.queues.get_mut(&key)?;
        let at = self.limits.group_at(set);
        let lens = |queue: &ClassQueue| {
            let len = queue.group(set).map_or(0, |group| group.len);
            (len, queue.family_len(at.family))
        };
        let before = lens(queue);
        let result = queue.edit(at, f);
        let after = lens(queue);
        self.len = self.len + after.0 - before.0;
        self.limits.note_queued(at.family, key, before.1, after.1);
        if at.family != set {
            self.limits.note_queued(set, key, before.0, after.0);
        }
        Some(result)
    }

    /// Notes that each task of a queue takes at least `n_nodes` whole nodes.
    pub fn note_multi_node(&mut self, key: QueueKey, n_nodes: u32) {
        self.multi_node.insert(key, n_nodes);
        self.by_nodes.insert((n_nodes, key));
    }

    /// Removes one index. Returns whether it was present.
    pub fn remove(&mut self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        let set = self.limits.set_of(submit_at(job, submit));
        let change = |set: &mut IndexSet| set.remove(index);
        let removed = self.edit(key, set, |group| group.change((job, submit), change));
        self.forget_entry(key, job);
        removed.flatten().unwrap_or(false)
    }

    /// Removes indices of a job, given by submit, from its queues. Takes time linear in the number of
    /// queues and entries of the job, and of removed ranges.
    pub(crate) fn remove_tasks(&mut self, job: JobId, tasks: &BTreeMap<u32, IndexSet>) {
        let sets = self.sets_of(job);
        let mut done_to = None;
        while let Some(key) = self.next_of(job, done_to) {
            done_to = Some(key);
            for set in &sets {
                self.edit(key, *set, |group| remove_from(group, job, tasks));
            }
            self.forget_entry(key, job);
        }
    }

    /// Removes all tasks of a submit from a queue. If they form more than `most` ranges, removes
    /// none of them and returns `None`.
    pub fn remove_submit(
        &mut self,
        key: QueueKey,
        job: JobId,
        submit: u32,
        most: usize,
    ) -> Option<IndexSet> {
        let set = self.limits.set_of(submit_at(job, submit));
        let queue = self.queues.get(&key);
        let group = queue.and_then(|queue| queue.group(set));
        let found = group.and_then(|group| group.entries.get(&(job, submit)));
        if found.is_some_and(|set| set.ranges().nth(most).is_some()) {
            return None;
        }
        let taken = self.edit(key, set, |group| {
            group.change((job, submit), std::mem::take)
        });
        self.forget_entry(key, job);
        Some(taken.flatten().unwrap_or_default())
    }

    /// Removes the tasks of the first `submits` submits of a job, starting after the queue
    /// `done_to`. Removes at most `left` entries (one submit in one queue). Returns whether no such
    /// tasks are left.
    pub fn remove_some(
        &mut self,
        job: JobId,
        submits: u32,
        done_to: &mut Option<QueueKey>,
        left: &mut usize,
    ) -> bool {
        let sets = self.sets_of(job);
        while let Some(key) = self.next_of(job, *done_to) {
            for set in &sets {
                let is_done = self.edit(key, *set, |group| {
                    while let Some((entry, _)) =
                        group.entries.range((job, 0)..(job, submits)).next()
                    {
                        // The next call continues with this queue.
                        if *left == 0 {
                            return false;
                        }
                        *left -= 1;
                        let entry = *entry;
                        group.change(entry, std::mem::take);
                    }
                    true
                });
                if is_done == Some(false) {
                    return false;
                }
            }
            self.forget_entry(key, job);
            *done_to = Some(key);
        }
        true
    }

    /// Returns the limit sets of a job's tasks.
    fn sets_of(&self, job: JobId) -> BTreeSet<SetId> {
        let mut sets = self.limits.sets_of(job);
        sets.insert(UNLIMITED);
        sets
    }

    /// Returns the next less urgent queue that has tasks of a job.
    pub(crate) fn next_of(&self, job: JobId, behind: Option<QueueKey>) -> Option<QueueKey> {
        let first = Included((job, QueueKey::new(i32::MAX, ClassId(0))));
        let from = behind.map_or(first, |key| Excluded((job, key)));
        let last = Included((job, QueueKey::new(i32::MIN, ClassId(u32::MAX))));
        let mut of_job = self.by_job.range((from, last));
        of_job.next().map(|(_, key)| *key)
    }

    /// Takes up to `limit` tasks in order, and the places of their limits. `starts` says whether
    /// they start now. Otherwise, tasks stay whose places other jobs could use.
    pub fn take(&mut self, key: QueueKey, mut limit: u64, starts: bool) -> Vec<TakenRange> {
        let mut taken = Vec::new();
        let mut walk = Walk::default();
        let mut skipped = 0;
        // An earlier submit is used up before a later one, as far as its limits allow.
        while limit > 0
            && skipped < SKIPPED_MAX
            && let Some((entry, set)) = self.next_front(key, &mut walk, starts)
        {
            let (job, submit) = entry;
            let mut most = limit.min(self.limits.starts(set));
            // The other groups are not searched to the end, because each of very many jobs may have
            // a rate.
            if set != UNLIMITED && !starts && self.limits.is_scarce(set) {
                most = 0;
                skipped += 1;
            }
            let width = u32::try_from(most).unwrap_or(u32::MAX);
            let pop = |set: &mut IndexSet| set.pop_front(width);
            let range = match most {
                0 => None,
                _ => self.edit(key, set, |group| group.change(entry, pop)),
            };
            if let Some((from, to)) = range.flatten().flatten() {
                taken.push(TakenRange {
                    job,
                    submit,
                    from,
                    to,
                });
                limit -= u64::from(to - from);
                self.limits.take(set, job, u64::from(to - from));
            }
            let queue = self.queues.get(&key);
            let group = queue.and_then(|queue| queue.group(set));
            let has_more = group.is_some_and(|group| group.entries.contains_key(&entry));
            let family = self.limits.group_at(set).family;
            if most > 0 && has_more {
                walk.fronts.insert((entry, set));
            } else if set != UNLIMITED && self.limits.starts(family) > 0 {
                let next = queue.and_then(|queue| queue.front_behind(Some((entry, set)), family));
                walk.fronts.extend(next);
            }
            if !has_more {
                self.forget_entry(key, job);
            }
        }
        taken
    }

    /// Returns the next submit whose tasks may be taken, with its limit set.
    fn next_front(&self, key: QueueKey, walk: &mut Walk, starts: bool) -> Option<(Entry, SetId)> {
        let queue = self.queues.get(&key)?;
        let plain = queue.group(UNLIMITED).and_then(Group::front);
        walk.fronts.extend(plain.map(|entry| (entry, UNLIMITED)));
        if !starts {
            // Tasks that share limits with other jobs must not be sent ahead of their turn.
            if walk.seen.insert(UNLIMITED) {
                walk.fronts.extend(queue.front_behind(None, UNLIMITED));
            }
            return walk.fronts.pop_first();
        }
        if walk.next.is_none() {
            let is_new = |family| !walk.seen.contains(&family);
            walk.next = Some(queue.next_family(walk.behind, is_new));
        }
        if let Some(Some(next)) = walk.next
            && walk.fronts.first().is_none_or(|first| next.0 < first.0)
        {
            walk.behind = Some(next);
            walk.next = None;
            walk.seen.insert(next.1);
            walk.fronts.extend(queue.front_behind(None, next.1));
        }
        walk.fronts.pop_first()
    }

    /// Updates `by_job` and the queues after tasks of a job have been removed.
    fn forget_entry(&mut self, key: QueueKey, job: JobId) {
        let Some(queue) = self.queues.get(&key) else {
            return;
        };
        // Another submit of the job may still have tasks here.
        if !queue.has_job(job, &self.limits.sets_of(job)) {
            self.by_job.remove(&(job, key));
        }
        if queue.len() > 0 {
            return;
        }
        self.queues.remove(&key);
        if let Some(n_nodes) = self.multi_node.remove(&key) {
            self.by_nodes.remove(&(n_nodes, key));
        }
        self.note_changed(key);
    }

    fn note_changed(&mut self, key: QueueKey) {
        // A queue that the build has not reached yet will be added later.
        if let Some(indexed) = &mut self.indexed
            && (indexed.is_built || indexed.built_to.is_some_and(|to| key <= to))
        {
            indexed.changed.insert(key);
        }
    }

    /// Applies a bounded number of changes to the index, if there are enough queues to need one.
    pub(crate) fn follow(&mut self, classes: &Classes) {
        self.free_some();
        // If there are few queues, a round examines all of them, and the index only costs memory.
        if self.queues.len() < QUEUES_INDEXED_MIN {
            let indexed = self.indexed.take();
            self.freed
                .extend(indexed.map(|indexed| indexed.index.into_deferred_free()));
            return;
        }
        // A round still examines all queues, so an index would only cost time.
        if self.indexed.is_none() && self.queues.len() <= QUEUES_SEEN_MAX {
            return;
        }
        let indexed = self.indexed.get_or_insert_default();
        // Changes come first, because they affect queues that rounds already use.
        let mut left = FOLLOWED_MAX;
        while left > 0
            && let Some(key) = indexed.changed.pop_first()
        {
            left -= 1;
            let Some(class) = classes.get(key.class) else {
                continue;
            };
            // The queue may have disappeared and reappeared since the change was noted.
            if self.queues.contains_key(&key) {
                indexed.index.insert(key, class);
            } else {
                indexed.index.remove(key, class);
            }
        }
        if indexed.is_built {
            return;
        }
        // The most urgent queues are added first, so that only the least urgent ones are missing at
        // first.
        let from = indexed.built_to.map_or(Unbounded, Excluded);
        let mut rest = self.queues.range((from, Unbounded));
        for (key, _) in rest.by_ref().take(left) {
            if let Some(class) = classes.get(key.class) {
                indexed.index.insert(*key, class);
            }
            indexed.built_to = Some(*key);
        }
        indexed.is_built = rest.next().is_none();
    }

    fn free_some(&mut self) {
        let mut left = FREED_MAX;
        while left > 0
            && let Some(rubble) = self.freed.last_mut()
        {
            // A large index takes several steps, with rounds in between.
            if rubble.free(&mut left) {
                self.freed.pop();
            }
        }
    }

    /// Returns whether an index is being freed.
    pub(crate) fn is_freeing(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Returns the index, or `None` if there are too few queues.
    pub(crate) fn index(&self) -> Option<&RequestIndex> {
        self.indexed.as_ref().map(|indexed| &indexed.index)
    }

    /// Returns whether the index is out of date.
    pub(crate) fn is_behind(&self) -> bool {
        let behind = |indexed: &Indexed| !indexed.is_built || !indexed.changed.is_empty();
        self.indexed.as_deref().is_some_and(behind)
    }

    /// Returns the number of queues.
    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Returns whether any multi-node tasks are ready.
    pub(crate) fn has_multi_node(&self) -> bool {
        !self.multi_node.is_empty()
    }

    /// Returns the queues of multi-node tasks, most urgent first.
    pub(crate) fn multi_node(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.multi_node.keys().copied()
    }

    /// Returns the most urgent queue for each number of nodes up to `n_nodes`, large numbers first.
    pub(crate) fn multi_node_up_to(&self, n_nodes: u32) -> impl Iterator<Item = QueueKey> + '_ {
        let first = |n_nodes: u32| (n_nodes, QueueKey::new(i32::MAX, ClassId(0)));
        let mut end = n_nodes.checked_add(1).map(first);
        std::iter::from_fn(move || {
            let (found, _) = self.by_nodes.range(..end?).next_back()?;
            end = Some(first(*found));
            let (_, key) = self.by_nodes.range(first(*found)..).next()?;
            Some(*key)
        })
    }

    /// Returns the number of tasks of a queue that may start.
    pub(crate) fn count(&self, key: QueueKey) -> u64 {
        self.queues.get(&key).map_or(0, ClassQueue::startable)
    }

    /// Returns how many tasks of each queue may be sent ahead of their turn, for queues with limited
    /// tasks.
    pub(crate) fn ahead(&self, keys: impl Iterator<Item = QueueKey>) -> BTreeMap<QueueKey, u64> {
        let limited = keys.filter_map(|key| Some((key, self.queues.get(&key)?.ahead()?)));
        limited.collect()
    }

    /// Returns the earliest job with a task of a queue that may start.
    pub(crate) fn first_job(&self, key: QueueKey) -> Option<JobId> {
        let (job, _) = self.queues.get(&key)?.front()?;
        Some(job)
    }

    /// Returns the given queues with their counts, in the order of [`ReadyQueue::counts_by_age`].
    pub(crate) fn by_age(&self, keys: impl Iterator<Item = QueueKey>) -> Vec<(QueueKey, u64)> {
        let found = keys.filter_map(|key| Some((key, self.queues.get(&key)?)));
        sorted_by_age(found)
    }

    /// Returns each queue with its number of tasks that may start, if there are any, in order of
    /// priority.
    pub fn counts(&self) -> impl Iterator<Item = (QueueKey, u64)> + '_ {
        let counts = self.queues.iter();
        let counts = counts.map(|(key, queue)| (*key, queue.startable()));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Returns the keys of the queues, most urgent first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.queues.keys().copied()
    }

    /// Returns the numbers of tasks that may start if tasks of all these queues start, most urgent
    /// first. Places of a limit that several queues share count once.
    pub(crate) fn needed(
        &self,
        keys: impl Iterator<Item = QueueKey>,
    ) -> impl Iterator<Item = (QueueKey, u64)> {
        let mut planned = PlannedPlaces::default();
        let queues = keys.filter_map(|key| Some((key, self.queues.get(&key)?)));
        let counts = queues.map(move |(key, queue)| {
            let mut families: BTreeMap<SetId, u64> = queue.families().collect();
            let most = if families.is_empty() { 0 } else { SPREAD_MAX };
            for set in self.limits.spread().take(most) {
                let at = self.limits.group_at(set);
                let tasks = queue.group(set).map_or(0, |group| group.len);
                let tasks = tasks.min(at.allowed);
                // Places of the job are for tasks that the limits of the server let start.
                let may_start = self.limits.left(&planned, at.family).min(tasks);
                let surplus = tasks - self.limits.plan(&mut planned, set, may_start);
                families.entry(at.family).and_modify(|all| *all -= surplus);
            }
            let families = families.into_iter();
            let limited = families.map(|(set, all)| self.limits.plan(&mut planned, set, all));
            let plain = queue.group(UNLIMITED).map_or(0, |group| group.len);
            (key, plain + limited.sum::<u64>())
        });
        counts.filter(|(_, count)| *count > 0)
    }

    /// Returns the same counts, sorted by priority and then by the earliest job.
    #[must_use]
    pub fn counts_by_age(&self) -> Vec<(QueueKey, u64)> {
        // Every round begins with this call, so it avoids lookups.
        sorted_by_age(self.queues.iter().map(|(key, queue)| (*key, queue)))
    }

    /// Returns whether no task is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the number of ready tasks, including those whose limits let none of them start.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether a task is ready.
    #[must_use]
    pub fn contains(&self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        let set = self.limits.set_of(submit_at(job, submit));
        let queue = self.queues.get(&key);
        let group = queue.and_then(|queue| queue.group(set));
        let indices = group.and_then(|group| group.entries.get(&(job, submit)));
        indices.is_some_and(|indices| indices.contains(index))
    }
}

/// Limits of tasks.
impl ReadyQueue {
    /// Returns the limits and the places that tasks take.
    pub(crate) const fn limits(&self) -> &TaskLimits {
        &self.limits
    }

    /// Returns the limits, to change them. The changes take effect with [`Self::update_limits`].
    pub(crate) const fn limits_mut(&mut self) -> &mut TaskLimits {
        &mut self.limits
    }

    /// Notes how many tasks may start now. Returns whether tasks that waited for a limit may start.
    pub(crate) fn update_limits(&mut self, now: Time) -> bool {
        let mut may_start = false;
        for (set, after) in self.limits.update(now) {
            let at = self.limits.group_at(set);
            let before = self.limits.set_available(set, after);
            // The number of tasks that could start if this set had enough places.
            let mut bounded = 0;
            for key in self.limits.queues_of(set) {
                let queue = self.queues.get_mut(key);
                bounded += queue.map_or(0, |queue| match at.family == set {
                    true => queue.set_available(at, after),
                    false => queue.set_allowed(at, after),
                });
            }
            may_start |= after > before && bounded > before;
        }
        may_start
    }

    /// Gives all submits of a job other limit sets, after the limits of the job have changed.
    pub(crate) fn move_submits(&mut self, job: JobId, submits: &[SubmitAt]) {
        let sets = self.sets_of(job);
        let (mut moved, mut done_to) = (Vec::new(), None);
        while let Some(key) = self.next_of(job, done_to) {
            done_to = Some(key);
            for set in &sets {
                let group = self.queues.get(&key).and_then(|queue| queue.group(*set));
                let entries = group.map(|group| group.entries.range((job, 0)..=(job, u32::MAX)));
                let entries: Vec<Entry> =
                    entries.into_iter().flatten().map(|(at, _)| *at).collect();
                for entry in entries {
                    let take = |group: &mut Group| group.change(entry, std::mem::take);
                    let indices = self.edit(key, *set, take).flatten();
                    moved.extend(indices.map(|indices| (key, entry.1, indices)));
                }
            }
        }
        for at in submits {
            self.limits.move_submit(*at);
        }
        for (key, submit, indices) in moved {
            for (from, to) in indices.ranges() {
                self.insert(key, job, submit, from, to);
            }
        }
    }

    /// Takes the next task of a submit to send it behind another task of the submit, whose places
    /// it takes over. `behind` such tasks have been sent already. Returns `None` if places are free,
    /// if a task of another submit comes first, or if no task with an index that is `allowed` comes
    /// next.
    pub(crate) fn take_behind(
        &mut self,
        key: QueueKey,
        at: SubmitAt,
        behind: u32,
        allowed: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let set = self.limits.set_of(at);
        let places = self.limits.full_places(set)?;
        if self.limits.is_closed() {
            return None;
        }
        let entry = (at.job, at.number);
        let is_later = |(other, rival): (SetId, QueueKey)| {
            let queue = self.queues.get(&rival);
            let front = queue.and_then(|queue| queue.front_of(other));
            front.is_none_or(|front| (key.priority, entry) <= (rival.priority, front))
        };
        let rivals: Vec<_> = self.limits.rivals(set).take(RIVALS_MAX).collect();
        if rivals.len() == RIVALS_MAX || !rivals.into_iter().all(is_later) {
            return None;
        }
        let group = self.queues.get(&key)?.group(set)?;
        let indices = group.entries.get(&entry)?;
        let (index, _) = indices.ranges().next()?;
        // The tasks that run should get equally many, and the last ones the first free places.
        let share = (u64::from(indices.len()) + u64::from(behind)) / places;
        if u64::from(behind) >= share || !allowed(index) {
            return None;
        }
        self.edit(key, set, |group| {
            group.change(entry, |indices| indices.remove(index))
        });
        self.forget_entry(key, at.job);
        Some(index)
    }

    /// Panics if the numbers of tasks that may start are wrong.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        let queues = self.queues.values();
        queues.for_each(|queue| queue.check(&self.limits));
        let len: u64 = self.queues.values().map(ClassQueue::len).sum();
        assert_eq!(len, self.len, "number of ready tasks");
    }
}

/// Removes held indices of a job, given by submit, from tasks with the same limits.
fn remove_from(group: &mut Group, job: JobId, held: &BTreeMap<u32, IndexSet>) {
    let entries = group.entries.range((job, 0)..=(job, u32::MAX));
    let entries: Vec<Entry> = entries.map(|(entry, _)| *entry).collect();
    for entry in entries {
        let Some(held) = held.get(&entry.1) else {
            continue;
        };
        group.change(entry, |indices| {
            let found = indices.ranges();
            let found = found.flat_map(|(from, to)| held.within(from, to));
            for (from, to) in found.collect::<Vec<_>>() {
                indices.remove_range(from, to);
            }
        });
    }
}

/// Sorts the queues with tasks that may start by priority, and within a priority by their earliest
/// job.
fn sorted_by_age<'a>(
    queues: impl Iterator<Item = (QueueKey, &'a ClassQueue)>,
) -> Vec<(QueueKey, u64)> {
    let heads = queues.filter_map(|(key, queue)| {
        let earliest = queue.front()?;
        Some((key.priority, earliest, key.class, queue.startable()))
    });
    let mut heads: Vec<_> = heads.collect();
    heads.sort_unstable();
    let row = |(priority, _, class, len)| (QueueKey { priority, class }, len);
    heads.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: QueueKey = QueueKey::new(0, ClassId(0));
    const HIGH: QueueKey = QueueKey::new(5, ClassId(1));

    #[test]
    fn takes_earlier_jobs_and_lower_tasks_first() {
        let mut queue = ReadyQueue::default();
        queue.insert(LOW, JobId(2), 0, 0, 10);
        queue.insert(LOW, JobId(1), 1, 5, 7);
        queue.insert(HIGH, JobId(3), 0, 0, 1);
        assert_eq!(
            queue
                .counts()
                .map(|(key, n)| (key.priority.0, n))
                .collect::<Vec<_>>(),
            [(5, 1), (0, 12)]
        );
        let taken = queue.take(LOW, 4, true);
        assert_eq!(
            taken,
            [
                TakenRange {
                    job: JobId(1),
                    submit: 1,
                    from: 5,
                    to: 7
                },
                TakenRange {
                    job: JobId(2),
                    submit: 0,
                    from: 0,
                    to: 2
                }
            ]
        );
        assert_eq!(queue.len(), 9);
    }

    #[test]
    fn the_earliest_job_goes_first_whatever_its_requests_are() {
        let mut queue = ReadyQueue::default();
        let (old, new) = (QueueKey::new(0, ClassId(0)), QueueKey::new(0, ClassId(1)));
        queue.insert(old, JobId(2), 0, 0, 10);
        queue.insert(new, JobId(1), 0, 0, 5);
        queue.insert(HIGH, JobId(3), 0, 0, 1);
        assert_eq!(queue.counts_by_age(), [(HIGH, 1), (new, 5), (old, 10)]);
    }

    #[test]
    fn counts_follow_every_way_in_and_out() {
        let mut queue = ReadyQueue::default();
        let counts = |queue: &ReadyQueue| (queue.count(LOW), queue.count(HIGH), queue.len());
        queue.insert(LOW, JobId(1), 0, 0, 10);
        queue.insert(LOW, JobId(1), 0, 5, 12);
        queue.insert(LOW, JobId(2), 0, 0, 3);
        queue.insert(HIGH, JobId(2), 0, 7, 9);
        assert_eq!(counts(&queue), (15, 2, 17));
        assert!(queue.remove(LOW, JobId(1), 0, 4));
        assert_eq!(counts(&queue), (14, 2, 16));
        assert!(
            !queue.remove(LOW, JobId(1), 0, 4),
            "it is not there any more"
        );
        assert_eq!(counts(&queue), (14, 2, 16));
        queue.take(LOW, 12, true);
        assert_eq!(counts(&queue), (2, 2, 4));
        let (mut done_to, mut left) = (None, 1);
        assert!(!queue.remove_some(JobId(2), 1, &mut done_to, &mut left));
        assert_eq!(counts(&queue), (2, 0, 2), "the most urgent queue first");
        left = 10;
        assert!(queue.remove_some(JobId(2), 1, &mut done_to, &mut left));
        assert_eq!(counts(&queue), (0, 0, 0));
    }

    #[test]
    fn removing_leaves_no_empty_queue() {
        let mut queue = ReadyQueue::default();
        queue.insert(LOW, JobId(1), 0, 0, 2);
        queue.insert(HIGH, JobId(1), 1, 0, 1);
        queue.insert(HIGH, JobId(2), 0, 0, 1);
        assert!(queue.remove(LOW, JobId(1), 0, 1));
        assert!(!queue.remove(LOW, JobId(1), 0, 1));
        let (mut done_to, mut left) = (None, 10);
        assert!(queue.remove_some(JobId(1), 2, &mut done_to, &mut left));
        assert_eq!(left, 8);
        assert_eq!(queue.len(), 1);
        queue.remove(HIGH, JobId(2), 0, 0);
        assert!(queue.is_empty());
    }
}
