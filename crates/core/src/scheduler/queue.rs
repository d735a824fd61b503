//! Ready tasks by priority and class, stored as ranges.
//!
//! Tasks are ordered by priority (highest first), then by job and by task number (lowest first).
//! The cost of every operation is logarithmic in the number of (job, submit) entries and ranges,
//! and independent of the number of tasks.
//!
//! If there are many queues, they are also in a [`RequestIndex`], which lets a round find the
//! relevant ones. The index is updated in bounded steps, see [`ReadyQueue::follow`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::index::{DeferredFree, RequestIndex};
use crate::class::{ClassId, Classes, QueueKey};
use crate::id::JobId;
use crate::range::IndexSet;

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

#[derive(Clone, Debug, Default)]
struct ClassQueue {
    entries: BTreeMap<(JobId, u32), IndexSet>,
    len: u64,
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
    indexed: Option<Box<Indexed>>,
    /// Discarded indexes, which are freed in steps because freeing a large one takes a long time.
    freed: Vec<DeferredFree>,
}

impl ReadyQueue {
    /// Adds the indices `from..to` of a submit. Returns whether the queue was empty.
    pub fn insert(&mut self, key: QueueKey, job: JobId, submit: u32, from: u32, to: u32) -> bool {
        if from >= to {
            return false;
        }
        let queue = self.queues.entry(key).or_default();
        let is_first = queue.len == 0;
        let set = queue.entries.entry((job, submit)).or_default();
        // These are the first tasks of this submit here, so the job may be new to the queue.
        if set.is_empty() {
            self.by_job.insert((job, key));
        }
        let before = set.len();
        set.insert_range(from, to);
        let added = u64::from(set.len() - before);
        queue.len += added;
        self.len += added;
        // The index contains queues but not task counts.
        if is_first {
            self.note_changed(key);
        }
        is_first
    }

    /// Notes that each task of a queue takes at least `n_nodes` whole nodes.
    pub fn note_multi_node(&mut self, key: QueueKey, n_nodes: u32) {
        self.multi_node.insert(key, n_nodes);
        self.by_nodes.insert((n_nodes, key));
    }

    /// Removes one index. Returns whether it was present.
    pub fn remove(&mut self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        let Some(queue) = self.queues.get_mut(&key) else {
            return false;
        };
        let Some(set) = queue.entries.get_mut(&(job, submit)) else {
            return false;
        };
        let removed = set.remove(index);
        queue.len -= u64::from(removed);
        self.len -= u64::from(removed);
        if set.is_empty() {
            queue.entries.remove(&(job, submit));
            self.forget_entry(key, job);
        }
        removed
    }

    /// Removes indices of a job, given by submit, from its queues. Takes time linear in the number of
    /// queues and entries of the job, and of removed ranges.
    pub(crate) fn remove_held(&mut self, job: JobId, held: &BTreeMap<u32, IndexSet>) {
        let mut done_to = None;
        while let Some(key) = self.next_of(job, done_to) {
            done_to = Some(key);
            let Some(queue) = self.queues.get_mut(&key) else {
                continue;
            };
            let mut ended = Vec::new();
            for ((_, submit), set) in queue.entries.range_mut((job, 0)..=(job, u32::MAX)) {
                let Some(held) = held.get(submit) else {
                    continue;
                };
                let found = set.ranges().flat_map(|(from, to)| held.within(from, to));
                let before = set.len();
                for (from, to) in found.collect::<Vec<_>>() {
                    set.remove_range(from, to);
                }
                let removed = u64::from(before - set.len());
                queue.len -= removed;
                self.len -= removed;
                if set.is_empty() {
                    ended.push(*submit);
                }
            }
            for submit in ended {
                queue.entries.remove(&(job, submit));
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
        let Some(queue) = self.queues.get_mut(&key) else {
            return Some(IndexSet::new());
        };
        let found = queue.entries.get(&(job, submit));
        if found.is_some_and(|set| set.ranges().nth(most).is_some()) {
            return None;
        }
        let Some(set) = queue.entries.remove(&(job, submit)) else {
            return Some(IndexSet::new());
        };
        queue.len -= u64::from(set.len());
        self.len -= u64::from(set.len());
        self.forget_entry(key, job);
        Some(set)
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
        while let Some(key) = self.next_of(job, *done_to) {
            if let Some(queue) = self.queues.get_mut(&key) {
                let of_job = (job, 0)..(job, submits);
                while let Some((entry, _)) = queue.entries.range(of_job.clone()).next() {
                    // The next call continues with this queue.
                    if *left == 0 {
                        return false;
                    }
                    *left -= 1;
                    let entry = *entry;
                    if let Some(set) = queue.entries.remove(&entry) {
                        queue.len -= u64::from(set.len());
                        self.len -= u64::from(set.len());
                    }
                }
            }
            self.forget_entry(key, job);
            *done_to = Some(key);
        }
        true
    }

    /// Returns the next less urgent queue that has tasks of a job.
    pub(crate) fn next_of(&self, job: JobId, behind: Option<QueueKey>) -> Option<QueueKey> {
        let first = Included((job, QueueKey::new(i32::MAX, ClassId(0))));
        let from = behind.map_or(first, |key| Excluded((job, key)));
        let last = Included((job, QueueKey::new(i32::MIN, ClassId(u32::MAX))));
        let mut of_job = self.by_job.range((from, last));
        of_job.next().map(|(_, key)| *key)
    }

    /// Takes up to `limit` tasks in order.
    pub fn take(&mut self, key: QueueKey, mut limit: u64) -> Vec<TakenRange> {
        let mut taken = Vec::new();
        let Some(queue) = self.queues.get_mut(&key) else {
            return taken;
        };
        let mut ended = Vec::new();
        while limit > 0 {
            let Some(mut entry) = queue.entries.first_entry() else {
                break;
            };
            let (job, submit) = *entry.key();
            let width = u32::try_from(limit).unwrap_or(u32::MAX);
            if let Some((from, to)) = entry.get_mut().pop_front(width) {
                taken.push(TakenRange {
                    job,
                    submit,
                    from,
                    to,
                });
                limit -= u64::from(to - from);
                queue.len -= u64::from(to - from);
                self.len -= u64::from(to - from);
            }
            // An earlier submit is used up before a later one.
            if entry.get().is_empty() {
                entry.remove();
                ended.push(job);
            }
        }
        for job in ended {
            self.forget_entry(key, job);
        }
        taken
    }

    /// Updates `by_job` after tasks of a job have been removed.
    fn forget_entry(&mut self, key: QueueKey, job: JobId) {
        let Some(queue) = self.queues.get(&key) else {
            return;
        };
        let mut of_job = queue.entries.range((job, 0)..=(job, u32::MAX));
        // Another submit of the job may still have tasks here.
        if of_job.next().is_none() {
            self.by_job.remove(&(job, key));
        }
        if !queue.entries.is_empty() {
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

    /// Returns the number of ready tasks of a queue.
    pub(crate) fn count(&self, key: QueueKey) -> u64 {
        self.queues.get(&key).map_or(0, |queue| queue.len)
    }

    /// Returns the earliest job with a ready task of a queue.
    pub(crate) fn first_job(&self, key: QueueKey) -> Option<JobId> {
        let ((job, _), _) = self.queues.get(&key)?.entries.first_key_value()?;
        Some(*job)
    }

    /// Returns the given queues with their counts, in the order of [`ReadyQueue::counts_by_age`].
    pub(crate) fn by_age(&self, keys: impl Iterator<Item = QueueKey>) -> Vec<(QueueKey, u64)> {
        let found = keys.filter_map(|key| Some((key, self.queues.get(&key)?)));
        sorted_by_age(found)
    }

    /// Returns each queue with its number of ready tasks, in order of priority.
    pub fn counts(&self) -> impl Iterator<Item = (QueueKey, u64)> + '_ {
        self.queues.iter().map(|(key, queue)| (*key, queue.len))
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

    /// Returns the number of ready tasks.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether a task is ready.
    #[must_use]
    pub fn contains(&self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        self.queues
            .get(&key)
            .and_then(|queue| queue.entries.get(&(job, submit)))
            .is_some_and(|set| set.contains(index))
    }
}

/// Sorts queues by priority, and within a priority by their earliest job.
fn sorted_by_age<'a>(
    queues: impl Iterator<Item = (QueueKey, &'a ClassQueue)>,
) -> Vec<(QueueKey, u64)> {
    let heads = queues.map(|(key, queue)| {
        let earliest = queue.entries.keys().next().copied();
        (key.priority, earliest, key.class, queue.len)
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
        let taken = queue.take(LOW, 4);
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
        queue.take(LOW, 12);
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
