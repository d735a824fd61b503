//! Successors: assigned tasks that follow other tasks on the same worker.
//!
//! A task with one dependency may be sent together with that dependency. When the dependency has
//! finished on this worker, the task waits for room without asking the server. If the dependency
//! ends in any other way, or leaves the worker, its successors return to the server.

use std::collections::BTreeMap;

use super::entry::{Class, NewEntry};
use super::input::InstanceKey;

/// All successors of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Successors {
    /// The successors of each predecessor.
    behind: BTreeMap<InstanceKey, Vec<Successor>>,
    /// The predecessor of each successor.
    follows: BTreeMap<InstanceKey, InstanceKey>,
}

/// A task with a predecessor.
#[derive(Clone, Debug)]
pub(super) struct Successor {
    pub(super) key: InstanceKey,
    pub(super) class: Class,
    /// The entry, which contains only this task.
    pub(super) entry: NewEntry,
}

impl Successors {
    pub(super) fn len(&self) -> u64 {
        self.follows.len() as u64
    }

    pub(super) fn contains(&self, key: InstanceKey) -> bool {
        self.follows.contains_key(&key)
    }

    /// Returns whether an instance has a successor.
    pub(super) fn is_any_behind(&self, key: InstanceKey) -> bool {
        self.behind.contains_key(&key)
    }

    pub(super) fn add(&mut self, after: InstanceKey, successor: Successor) {
        self.follows.insert(successor.key, after);
        self.behind.entry(after).or_default().push(successor);
    }

    /// Removes and returns the successors of a finished instance.
    pub(super) fn take_behind(&mut self, after: InstanceKey) -> Vec<Successor> {
        let behind = self.behind.remove(&after).unwrap_or_default();
        for successor in &behind {
            self.follows.remove(&successor.key);
        }
        behind
    }

    /// Removes and returns all direct and indirect successors of an instance.
    pub(super) fn drop_behind(&mut self, after: InstanceKey) -> Vec<InstanceKey> {
        let mut dropped = Vec::new();
        let mut next = vec![after];
        while let Some(after) = next.pop() {
            let behind = self.take_behind(after);
            next.extend(behind.iter().map(|successor| successor.key));
            dropped.extend(behind.into_iter().map(|successor| successor.key));
        }
        dropped
    }

    /// Removes one successor but keeps its own successors. Returns `false` if it does not exist.
    pub(super) fn remove(&mut self, key: InstanceKey) -> bool {
        let Some(after) = self.follows.remove(&key) else {
            return false;
        };
        if let Some(behind) = self.behind.get_mut(&after) {
            behind.retain(|successor| successor.key != key);
            if behind.is_empty() {
                self.behind.remove(&after);
            }
        }
        true
    }

    /// Removes and returns all successors.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = InstanceKey> + use<> {
        self.behind.clear();
        std::mem::take(&mut self.follows).into_keys()
    }

    /// Panics if the two maps disagree. Used in tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self) {
        let pairs = self.behind.iter().flat_map(|(after, behind)| {
            assert!(!behind.is_empty(), "nothing is kept behind {after}");
            behind.iter().map(|successor| (successor.key, *after))
        });
        assert_eq!(pairs.collect::<BTreeMap<_, _>>(), self.follows);
    }

    /// Returns the predecessors of all successors. Used in tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn awaited(&self) -> impl Iterator<Item = InstanceKey> + '_ {
        self.behind.keys().copied()
    }
}
