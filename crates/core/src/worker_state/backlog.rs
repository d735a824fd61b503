//! Assigned tasks that have not started. They are stored as ranges until single tasks are removed.
//!
//! Tasks with the same resource request, time request and kind form a class. If the first task of a
//! class does not fit, no task of the class does. Within a class, tasks are ordered by priority
//! (highest first), job, first task id of the assignment, and arrival. An assignment takes one
//! entry, however many ids it has.
//!
//! Adding an assignment costs O(log entries) unless the id spans of a job overlap. Taking the first
//! task costs O(log entries). Looking up an instance costs O(log entries) plus the number of
//! entries of its job whose spans contain the id.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Class, NewEntry};
use super::input::{InstanceKey, WorkTemplate};
use super::successors::{Successor, Successors};
use crate::bug;
use crate::id::JobId;
use crate::job::TemplateId;
use crate::range::{IdArray, IndexSet};
use crate::template::Entries;
use crate::time::Time;

/// The position of an entry in the start order of its class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct QueueKey {
    pub(super) priority: Reverse<i32>,
    pub(super) job: JobId,
    /// The lowest id of the assignment.
    first: u32,
    arrival: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    what: NewEntry,
    /// The positions of the waiting tasks among the ids.
    left: IndexSet,
}

/// A task taken from the backlog.
#[derive(Clone, Debug)]
pub(super) struct BacklogTask {
    /// Whether the task arrived in an assignment of many tasks.
    pub(super) is_one_of_many: bool,
    pub(super) template: Arc<WorkTemplate>,
    pub(super) key: InstanceKey,
    pub(super) variant: u32,
    pub(super) entries: Option<(Entries, u32)>,
    pub(super) nodes: Arc<[Box<str>]>,
}

#[derive(Clone, Debug, Default)]
struct ClassQueue {
    entries: BTreeMap<QueueKey, Entry>,
    /// The time since which there has been no room for the first task of the class.
    blocked_since: Option<Time>,
}

/// The entries of one job, sorted by their lowest id.
#[derive(Clone, Debug, Default)]
struct JobIndex {
    by_first: BTreeMap<(u32, u64), (Arc<Class>, QueueKey)>,
    /// The largest distance between the first and the last id of any entry so far, which bounds
    /// lookups.
    span_max: u32,
}

/// All waiting tasks of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    /// The classes that have entries.
    classes: BTreeMap<Arc<Class>, ClassQueue>,
    jobs: BTreeMap<JobId, JobIndex>,
    arrivals: u64,
    /// The number of tasks in the classes.
    len: u64,
    /// The tasks that also wait for another task.
    successors: Successors,
}

impl Backlog {
    /// Returns the number of waiting tasks.
    pub(super) fn len(&self) -> u64 {
        self.len + self.successors.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of tasks that only wait for room.
    pub(super) const fn ready_len(&self) -> u64 {
        self.len
    }

    /// Returns whether a task of this job waits for room.
    pub(super) fn has_job(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Returns the number of tasks that wait for other tasks on this worker.
    pub(super) fn successors_len(&self) -> u64 {
        self.successors.len()
    }

    pub(super) fn has_successors(&self) -> bool {
        self.successors.len() > 0
    }

    /// Adds a task that waits for another task on this worker. Its own successors may already have
    /// been added.
    pub(super) fn push_behind(&mut self, after: InstanceKey, successor: Successor) {
        self.successors.add(after, successor);
    }

    /// Returns whether a task waits for this instance.
    pub(super) fn is_any_behind(&self, key: InstanceKey) -> bool {
        self.successors.is_any_behind(key)
    }

    /// Makes the successors of a finished instance wait for room. Returns whether there are any.
    pub(super) fn go_on_from(&mut self, key: InstanceKey) -> bool {
        let behind = self.successors.take_behind(key);
        let is_any = !behind.is_empty();
        for Successor { class, entry, .. } in behind {
            self.push(class, entry, &[]);
        }
        is_any
    }

    /// Removes all direct and indirect successors of an instance.
    pub(super) fn drop_behind(&mut self, key: InstanceKey) -> Vec<InstanceKey> {
        self.successors.drop_behind(key)
    }

    /// Adds an assignment, except for the positions in `skip` and for instances that already wait.
    /// Returns the number of new tasks.
    pub(super) fn push(&mut self, class: Class, entry: NewEntry, skip: &[u32]) -> u32 {
        let mut left = IndexSet::new();
        left.insert_range(0, entry.ids.len());
        for position in skip {
            left.remove(*position);
        }
        let (first, last) = span(&entry.ids);
        let job = entry.template.job;
        // If a task was received twice, for example after a reconnect, it waits only once.
        self.leave_out_waiting(job, first, last, &entry, &mut left);
        if left.is_empty() {
            return 0;
        }
        let added = left.len();
        let arrival = self.arrivals;
        self.arrivals += 1;
        let key = QueueKey {
            priority: Reverse(entry.template.task.priority),
            job,
            first,
            arrival,
        };
        // Entries share their class, because a million assignments may have the same one.
        let class = match self.classes.get_key_value(&class) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(class),
        };
        let queue = self.classes.entry(Arc::clone(&class)).or_default();
        queue.entries.insert(key, Entry { what: entry, left });
        let index = self.jobs.entry(job).or_default();
        index.by_first.insert((first, arrival), (class, key));
        // The maximum never shrinks. It bounds the search below, where a bound that is too large
        // only costs time.
        index.span_max = index.span_max.max(last - first);
        self.len += u64::from(added);
        added
    }

    fn leave_out_waiting(
        &self,
        job: JobId,
        first: u32,
        last: u32,
        entry: &NewEntry,
        left: &mut IndexSet,
    ) {
        let Some(index) = self.jobs.get(&job) else {
            return;
        };
        // Entries that start before this id end before the ids in question.
        let from = first.saturating_sub(index.span_max);
        for (class, key) in index
            .by_first
            .range((from, 0)..=(last, u64::MAX))
            // Entries come in the order of their lowest ids, across classes.
            .map(|(_, v)| v)
        {
            let Some(other) = self
                .classes
                .get(class)
                .and_then(|queue| queue.entries.get(key))
            else {
                bug!("an entry of job {job} is found by its ids, but is gone");
                continue;
            };
            // Another attempt of the same task counts as a different task here.
            if other.what.instance != entry.instance {
                continue;
            }
            let waits = |id: u32| {
                other
                    .what
                    .ids
                    .position(id)
                    .is_some_and(|position| other.left.contains(position))
            };
            for (position, id) in (0..).zip(entry.ids.iter()) {
                if waits(id) {
                    left.remove(position);
                }
            }
        }
    }

    /// Returns the first entry of each class, in no particular order.
    pub(super) fn heads(&self) -> impl Iterator<Item = (QueueKey, Arc<Class>)> + '_ {
        self.classes.iter().filter_map(|(class, queue)| {
            let (key, _) = queue.entries.first_key_value()?;
            Some((*key, Arc::clone(class)))
        })
    }

    /// Returns the first entry of one class.
    pub(super) fn head(&self, class: &Class) -> Option<QueueKey> {
        self.classes
            .get(class)?
            .entries
            .first_key_value()
            .map(|(key, _)| *key)
    }

    /// Returns the template of the first task of a class.
    pub(super) fn head_template(&self, class: &Class) -> Option<TemplateId> {
        self.first(class).map(|entry| entry.what.template.id)
    }

    /// Returns whether the first task of a class arrived in an assignment of many tasks.
    pub(super) fn is_head_one_of_many(&self, class: &Class) -> bool {
        self.first(class)
            .is_some_and(|entry| entry.what.is_of_many())
    }

    fn first(&self, class: &Class) -> Option<&Entry> {
        self.classes.get(class)?.entries.values().next()
    }

    /// Removes and returns the first task of a class.
    pub(super) fn pop(&mut self, class: &Class) -> Option<BacklogTask> {
        let queue = self.classes.get_mut(class)?;
        // A task of the class starts, so the waiting time of the next task begins now.
        queue.blocked_since = None;
        let (key, entry) = queue.entries.iter_mut().next()?;
        let key = *key;
        let (position, _) = entry.left.pop_front(1)?;
        let popped = entry.popped(position)?;
        if entry.left.is_empty() {
            self.remove_entry(class, key);
        }
        self.len -= 1;
        Some(popped)
    }

    /// Notes that there is no room for the first task of a class. Returns how long this has been
    /// the case.
    pub(super) fn note_blocked(&mut self, class: &Class, now: Time) -> Duration {
        let Some(queue) = self.classes.get_mut(class) else {
            return Duration::ZERO;
        };
        now.since(*queue.blocked_since.get_or_insert(now))
    }

    /// Removes one instance but keeps its successors. Returns `false` if it does not wait here.
    pub(super) fn remove(&mut self, wanted: InstanceKey) -> bool {
        if self.successors.remove(wanted) {
            return true;
        }
        let Some((class, key, position)) = self.find(wanted) else {
            return false;
        };
        let queue = self.classes.get_mut(&class);
        let Some(entry) = queue.and_then(|queue| queue.entries.get_mut(&key)) else {
            return false;
        };
        entry.left.remove(position);
        if entry.left.is_empty() {
            self.remove_entry(&class, key);
        }
        self.len -= 1;
        true
    }

    /// Removes and returns all tasks of a class.
    pub(super) fn drain_class(&mut self, class: &Class) -> Vec<InstanceKey> {
        let keys: Vec<QueueKey> = match self.classes.get(class) {
            Some(queue) => queue.entries.keys().copied().collect(),
            None => Vec::new(),
        };
        let entries: Vec<Entry> = keys
            .into_iter()
            .filter_map(|key| self.remove_entry(class, key))
            .collect();
        let drained: Vec<InstanceKey> = entries.iter().flat_map(Entry::waiting).collect();
        self.len -= drained.len() as u64;
        drained
    }

    /// Removes and returns all tasks.
    pub(super) fn drain(&mut self) -> Vec<InstanceKey> {
        let drained = self
            .classes
            .values()
            .flat_map(|queue| queue.entries.values())
            .flat_map(Entry::waiting)
            .chain(self.successors.drain())
            .collect();
        self.classes.clear();
        self.jobs.clear();
        self.len = 0;
        drained
    }

    pub(super) fn contains(&self, key: InstanceKey) -> bool {
        self.successors.contains(key) || self.find(key).is_some()
    }

    /// Returns the predecessors of all successors. Used in tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn awaited(&self) -> impl Iterator<Item = InstanceKey> + '_ {
        self.successors.awaited()
    }

    /// Puts a removed instance back in its place. Returns `false` if all other tasks of its
    /// assignment were removed as well.
    pub(super) fn put_back(
        &mut self,
        key: InstanceKey,
        template: TemplateId,
        variant: u32,
    ) -> bool {
        // The task may have been assigned again in another entry, where it did not wait before.
        let is_origin = |entry: &Entry, position| {
            let is_same = (entry.what.template.id, entry.what.variant) == (template, variant);
            is_same && !entry.left.contains(position)
        };
        let Some((class, queue, position)) = self.find_in(key, is_origin) else {
            return false;
        };
        let entries = self.classes.get_mut(&class).map(|class| &mut class.entries);
        let Some(entry) = entries.and_then(|entries| entries.get_mut(&queue)) else {
            return false;
        };
        entry.left.insert(position);
        self.len += 1;
        true
    }

    fn find(&self, wanted: InstanceKey) -> Option<(Arc<Class>, QueueKey, u32)> {
        self.find_in(wanted, |entry, position| entry.left.contains(position))
    }

    /// Returns a matching entry that contains an instance, and the position of the instance in it.
    fn find_in(
        &self,
        wanted: InstanceKey,
        fits: impl Fn(&Entry, u32) -> bool,
    ) -> Option<(Arc<Class>, QueueKey, u32)> {
        let id = wanted.task.task.0;
        let index = self.jobs.get(&wanted.task.job)?;
        let from = id.saturating_sub(index.span_max);
        let candidates = index.by_first.range((from, 0)..=(id, u64::MAX)).rev();
        candidates.map(|(_, value)| value).find_map(|(class, key)| {
            let entry = self.classes.get(class)?.entries.get(key)?;
            let position = entry.what.ids.position(id)?;
            let found = entry.what.instance == wanted.instance && fits(entry, position);
            found.then(|| (Arc::clone(class), *key, position))
        })
    }

    fn remove_entry(&mut self, class: &Class, key: QueueKey) -> Option<Entry> {
        let queue = self.classes.get_mut(class)?;
        let entry = queue.entries.remove(&key);
        if queue.entries.is_empty() {
            // The waiting time is dropped, so that a later task of the class does not inherit it.
            self.classes.remove(class);
        }
        if let Some(index) = self.jobs.get_mut(&key.job) {
            index.by_first.remove(&(key.first, key.arrival));
            if index.by_first.is_empty() {
                self.jobs.remove(&key.job);
            }
        }
        entry
    }

    /// Panics if the counters and indexes disagree. Used in tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self) {
        let entries = self.classes.values().flat_map(|queue| &queue.entries);
        let len: u64 = entries
            .clone()
            .map(|(_, entry)| u64::from(entry.left.len()))
            .sum();
        assert_eq!(len, self.len, "waiting tasks");
        let indexed: usize = self.jobs.values().map(|index| index.by_first.len()).sum();
        assert_eq!(indexed, entries.count(), "every entry is indexed by job");
        assert!(self.classes.values().all(|queue| !queue.entries.is_empty()));
        self.successors.check();
    }
}

impl Entry {
    fn key_at(&self, position: u32) -> Option<InstanceKey> {
        let id = self.what.ids.get(position)?;
        Some(InstanceKey::new(
            self.what.template.job,
            id,
            self.what.instance,
        ))
    }

    fn popped(&self, position: u32) -> Option<BacklogTask> {
        Some(BacklogTask {
            is_one_of_many: self.what.is_of_many(),
            template: Arc::clone(&self.what.template),
            key: self.key_at(position)?,
            variant: self.what.variant,
            entries: self.what.entries.clone().map(|entries| (entries, position)),
            nodes: Arc::clone(&self.what.nodes),
        })
    }

    fn waiting(&self) -> impl Iterator<Item = InstanceKey> + '_ {
        self.left
            .iter()
            .filter_map(|position| self.key_at(position))
    }
}

/// Returns the lowest and the highest id, or 0 and 0 if there are no ids.
pub(super) fn span(ids: &IdArray) -> (u32, u32) {
    let first = ids.ranges().iter().map(crate::range::IdRange::first).min();
    (first.unwrap_or(0), ids.max().unwrap_or(0))
}
