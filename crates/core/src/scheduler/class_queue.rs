//! The ready tasks of one priority and class, as ranges per submit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

#[cfg(any(test, feature = "testing"))]
use super::task_limits::TaskLimits;
use crate::bound::{SetId, UNLIMITED};
use crate::id::JobId;
use crate::range::IndexSet;

/// The id of a job and the number of a submit.
pub(super) type Entry = (JobId, u32);

/// Ready tasks with the same limits.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) entries: BTreeMap<Entry, IndexSet>,
    /// The number of tasks.
    pub(super) len: u64,
}

/// The ready tasks of one class.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassQueue {
    /// The tasks without limits.
    plain: Group,
    /// The tasks with limits. There are few queues with such tasks.
    limited: Option<Box<LimitedGroups>>,
}

/// The ready tasks with limits.
#[derive(Clone, Debug, Default)]
struct LimitedGroups {
    groups: BTreeMap<SetId, Group>,
    len: u64,
    /// The number of tasks that may start: of each group, at most what its limits leave.
    startable: u64,
    /// The first entry of each group with tasks that may start.
    fronts: BTreeSet<(Entry, SetId)>,
}

impl Group {
    pub(super) fn front(&self) -> Option<Entry> {
        self.entries.keys().next().copied()
    }

    /// Adds indices of a submit.
    pub(super) fn insert(&mut self, entry: Entry, from: u32, to: u32) {
        let set = self.entries.entry(entry).or_default();
        let before = set.len();
        set.insert_range(from, to);
        self.len += u64::from(set.len() - before);
    }

    /// Changes the tasks of a submit with `f`. An empty entry is removed.
    pub(super) fn change<R>(
        &mut self,
        entry: Entry,
        f: impl FnOnce(&mut IndexSet) -> R,
    ) -> Option<R> {
        let set = self.entries.get_mut(&entry)?;
        let before = set.len();
        let result = f(set);
        self.len -= u64::from(before - set.len());
        if set.is_empty() {
            self.entries.remove(&entry);
        }
        Some(result)
    }
}

impl ClassQueue {
    /// Returns the number of tasks that may start.
    pub(super) fn startable(&self) -> u64 {
        let limited = self.limited.as_ref();
        self.plain.len + limited.map_or(0, |limited| limited.startable)
    }

    /// Returns the number of tasks.
    pub(super) fn len(&self) -> u64 {
        let limited = self.limited.as_ref();
        self.plain.len + limited.map_or(0, |limited| limited.len)
    }

    /// Returns the number of tasks of each limit set.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (SetId, u64)> + '_ {
        let limited = self.limited.iter().flat_map(|limited| &limited.groups);
        let limited = limited.map(|(set, group)| (*set, group.len));
        [(UNLIMITED, self.plain.len)].into_iter().chain(limited)
    }

    pub(super) fn group(&self, set: SetId) -> Option<&Group> {
        match set {
            UNLIMITED => Some(&self.plain),
            _ => self.limited.as_ref()?.groups.get(&set),
        }
    }

    /// Returns whether a submit with one of these sets has tasks here.
    pub(super) fn has_job(&self, job: JobId, sets: &BTreeSet<SetId>) -> bool {
        let mut sets = sets.iter().copied().chain([UNLIMITED]);
        sets.any(|set| {
            let group = self.group(set);
            let entries = group.map(|group| group.entries.range((job, 0)..=(job, u32::MAX)));
            entries.is_some_and(|mut entries| entries.next().is_some())
        })
    }

    /// Returns the first submit with tasks that may start, and its limit set.
    pub(super) fn front(&self) -> Option<(Entry, SetId)> {
        let plain = self.plain.front().map(|entry| (entry, UNLIMITED));
        let limited = self.limited.as_ref();
        let limited = limited.and_then(|limited| limited.fronts.first().copied());
        [plain, limited].into_iter().flatten().min()
    }

    /// Returns the first submit after `behind` whose tasks may start, and its limit set.
    pub(super) fn front_behind(&self, behind: (Entry, SetId)) -> Option<(Entry, SetId)> {
        let plain = self.plain.front().map(|entry| (entry, UNLIMITED));
        let limited = self.limited.as_ref();
        let behind_it = (Excluded(behind), Unbounded);
        let limited = limited.and_then(|limited| limited.fronts.range(behind_it).next().copied());
        let plain = plain.filter(|plain| *plain > behind);
        [plain, limited].into_iter().flatten().min()
    }

    /// Changes a group of tasks with `f`, and notes the consequences.
    pub(super) fn edit<R>(
        &mut self,
        set: SetId,
        available: u64,
        f: impl FnOnce(&mut Group) -> R,
    ) -> R {
        if set == UNLIMITED {
            return f(&mut self.plain);
        }
        let limited = self.limited.get_or_insert_default();
        let group = limited.groups.entry(set).or_default();
        let (len, front) = (group.len, group.front());
        let result = f(group);
        let (new_len, new_front) = (group.len, group.front());
        limited.len = limited.len + new_len - len;
        limited.startable = limited.startable + new_len.min(available) - len.min(available);
        if front != new_front && available > 0 {
            front.map(|front| limited.fronts.remove(&(front, set)));
            limited.fronts.extend(new_front.map(|front| (front, set)));
        }
        if new_len == 0 {
            limited.groups.remove(&set);
        }
        if limited.groups.is_empty() {
            self.limited = None;
        }
        result
    }

    /// Notes that another number of tasks of a group may start.
    pub(super) fn set_available(&mut self, set: SetId, before: u64, after: u64) {
        let Some(limited) = self.limited.as_mut() else {
            return;
        };
        let Some(group) = limited.groups.get(&set) else {
            return;
        };
        limited.startable = limited.startable + group.len.min(after) - group.len.min(before);
        let front = group.front().map(|front| (front, set));
        match (before, after) {
            (0, 1..) => limited.fronts.extend(front),
            (1.., 0) => {
                front.map(|front| limited.fronts.remove(&front));
            }
            _ => {}
        }
    }

    /// Returns whether the numbers agree with the tasks.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self, limits: &TaskLimits) {
        let Some(limited) = &self.limited else {
            return;
        };
        let groups = limited.groups.iter();
        let startable = groups.map(|(set, group)| group.len.min(limits.available(*set)));
        assert_eq!(limited.startable, startable.sum::<u64>());
        let open = limited
            .groups
            .iter()
            .filter(|(set, _)| limits.available(**set) > 0);
        let fronts = open.filter_map(|(set, group)| Some((group.front()?, *set)));
        assert_eq!(limited.fronts, fronts.collect());
    }
}
