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
    /// The groups with the same limits of the server, by the set of these limits.
    families: BTreeMap<SetId, Family>,
    len: u64,
    /// The families with tasks that the limits of the server also let start.
    open: Members,
}

/// Groups with the same limits of the server. The limits of their jobs differ.
#[derive(Clone, PartialEq, Debug, Default)]
struct Family {
    len: u64,
    /// The groups, as far as the limits of their jobs let tasks start.
    groups: Members,
}

/// The startable tasks of several groups or families.
#[derive(Clone, PartialEq, Debug, Default)]
struct Members {
    startable: u64,
    /// The first entry of each group or family with such tasks.
    fronts: BTreeSet<(Entry, SetId)>,
}

/// The startable tasks of one group or family, and their first entry.
#[derive(Clone, Copy)]
struct Member {
    startable: u64,
    front: Option<Entry>,
}

/// A group of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupAt {
    /// The limits.
    pub(super) set: SetId,
    /// The limits of the server among them.
    pub(super) family: SetId,
    /// How many tasks of the group the limit of the job lets start.
    pub(super) allowed: u64,
    /// How many tasks of the family the limits of the server let start.
    pub(super) available: u64,
}

impl Group {
    pub(super) fn front(&self) -> Option<Entry> {
        self.entries.keys().next().copied()
    }

    fn member(&self, allowed: u64) -> Member {
        Member {
            startable: self.len.min(allowed),
            front: self.front().filter(|_| allowed > 0),
        }
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
        self.plain.len + limited.map_or(0, |limited| limited.open.startable)
    }

    /// Returns the number of tasks that may be sent ahead of their turn. Tasks that share limits with
    /// other jobs may not. `None` if no task of the queue has limits.
    pub(super) fn ahead(&self) -> Option<u64> {
        self.limited.as_ref()?;
        Some(self.plain.len + self.allowed(UNLIMITED))
    }

    /// Returns the number of tasks that may start and have the same limits of the server as a
    /// group.
    pub(super) fn startable_with(&self, at: GroupAt) -> u64 {
        match at.set {
            UNLIMITED => self.plain.len,
            _ => self.allowed(at.family).min(at.available),
        }
    }

    /// Returns the number of tasks of a family that the limits of their jobs let start.
    pub(super) fn allowed(&self, family: SetId) -> u64 {
        self.family(family)
            .map_or(0, |family| family.groups.startable)
    }

    fn family(&self, id: SetId) -> Option<&Family> {
        self.limited.as_ref()?.families.get(&id)
    }

    /// Returns the number of tasks.
    pub(super) fn len(&self) -> u64 {
        let limited = self.limited.as_ref();
        self.plain.len + limited.map_or(0, |limited| limited.len)
    }

    /// Returns the families, with the number of tasks that the limits of their jobs let start.
    pub(super) fn families(&self) -> impl Iterator<Item = (SetId, u64)> {
        let families = self.limited.iter().flat_map(|limited| &limited.families);
        families.map(|(set, family)| (*set, family.groups.startable))
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

    /// Returns the number of tasks with these limits of the server.
    pub(super) fn family_len(&self, family: SetId) -> u64 {
        self.family(family).map_or(0, |family| family.len)
    }

    /// Returns the first submit whose tasks may start.
    pub(super) fn front(&self) -> Option<Entry> {
        let family = self.next_family(None, |_| true).map(|(entry, _)| entry);
        self.plain.front().into_iter().chain(family).min()
    }

    /// Returns the first wanted family after `behind` whose tasks may start, with its first entry.
    pub(super) fn next_family(
        &self,
        behind: Option<(Entry, SetId)>,
        is_wanted: impl Fn(SetId) -> bool,
    ) -> Option<(Entry, SetId)> {
        let from = behind.map_or(Unbounded, Excluded);
        let mut open = self.limited.as_ref()?.open.fronts.range((from, Unbounded));
        open.find(|(_, family)| is_wanted(*family)).copied()
    }

    /// Returns the first submit of a set. For a family, only submits whose job's limit lets tasks
    /// start are considered.
    pub(super) fn front_of(&self, set: SetId) -> Option<Entry> {
        match self.family(set) {
            Some(family) => family.groups.fronts.first().map(|(entry, _)| *entry),
            None => self.group(set)?.front(),
        }
    }

    /// Returns the first submit of a family after `behind` whose job's limit lets tasks start, with
    /// its set.
    pub(super) fn front_behind(
        &self,
        behind: Option<(Entry, SetId)>,
        family: SetId,
    ) -> Option<(Entry, SetId)> {
        let fronts = &self.family(family)?.groups.fronts;
        let from = behind.map_or(Unbounded, Excluded);
        fronts.range((from, Unbounded)).next().copied()
    }

    /// Changes a group of tasks with `f`, and updates the counts.
    pub(super) fn edit<R>(&mut self, at: GroupAt, f: impl FnOnce(&mut Group) -> R) -> R {
        if at.set == UNLIMITED {
            return f(&mut self.plain);
        }
        let limited = self.limited.get_or_insert_default();
        let group = limited.groups.entry(at.set).or_default();
        let family = limited.families.entry(at.family).or_default();
        let (before, len) = (group.member(at.allowed), group.len);
        let result = f(group);
        let after = group.member(at.allowed);
        limited.len = limited.len + group.len - len;
        family.len = family.len + group.len - len;
        let is_empty = (group.len == 0, family.len == 0);
        limited.replace(at, before, after);
        if is_empty.0 {
            limited.groups.remove(&at.set);
        }
        if is_empty.1 {
            limited.families.remove(&at.family);
        }
        if limited.groups.is_empty() {
            self.limited = None;
        }
        result
    }

    /// Notes that the limit of a job lets another number of tasks of a group start. Returns the
    /// number of its tasks.
    pub(super) fn set_allowed(&mut self, at: GroupAt, after: u64) -> u64 {
        let limited = self.limited.as_mut();
        let found = limited.and_then(|limited| {
            let group = limited.groups.get(&at.set)?;
            let (before, after) = (group.member(at.allowed), group.member(after));
            let len = group.len;
            limited.replace(at, before, after);
            Some(len)
        });
        found.unwrap_or(0)
    }

    /// Notes that the limits of the server let another number of tasks of a family start. Returns
    /// the number that the limits of their jobs let start.
    pub(super) fn set_available(&mut self, at: GroupAt, after: u64) -> u64 {
        let limited = self.limited.as_mut();
        let found = limited.and_then(|limited| {
            let groups = &limited.families.get(&at.family)?.groups;
            let (before, after) = (groups.member(at.available), groups.member(after));
            limited.open.replace(at.family, before, after);
            Some(groups.startable)
        });
        found.unwrap_or(0)
    }

    /// Returns whether the numbers agree with the tasks.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self, limits: &TaskLimits) {
        let Some(limited) = &self.limited else {
            return;
        };
        let mut seen = LimitedGroups::default();
        for (set, group) in &limited.groups {
            let at = limits.group_at(*set);
            seen.families.entry(at.family).or_default().len += group.len;
            seen.replace(at, Group::default().member(0), group.member(at.allowed));
        }
        assert_eq!(limited.families, seen.families);
        assert_eq!(limited.open, seen.open);
    }
}

impl LimitedGroups {
    /// Notes a change of a group.
    fn replace(&mut self, at: GroupAt, before: Member, after: Member) {
        let Some(family) = self.families.get_mut(&at.family) else {
            return;
        };
        let own_before = family.groups.member(at.available);
        family.groups.replace(at.set, before, after);
        let own_after = family.groups.member(at.available);
        self.open.replace(at.family, own_before, own_after);
    }
}

impl Members {
    /// Notes a change of a group or family.
    fn replace(&mut self, id: SetId, before: Member, after: Member) {
        self.startable = self.startable + after.startable - before.startable;
        if before.front != after.front {
            before.front.map(|front| self.fronts.remove(&(front, id)));
            self.fronts.extend(after.front.map(|front| (front, id)));
        }
    }

    fn member(&self, available: u64) -> Member {
        let front = self.fronts.first().filter(|_| available > 0);
        Member {
            startable: self.startable.min(available),
            front: front.map(|(entry, _)| *entry),
        }
    }
}
