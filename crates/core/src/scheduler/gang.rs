//! Nodes for multi-node tasks: start where enough workers of a group are empty, else empty some.
//!
//! Each round decides anew which workers are kept for waiting multi-node tasks, preferring those that
//! were kept before and those that will be empty soonest. Kept workers get only more urgent work.

use std::collections::{BTreeMap, BTreeSet};

use super::VariantDemand;
use super::lane::Lane;
use super::queue::QueueKey;
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;

/// Multi-node tasks for which workers are kept at a time.
const KEPT_TASKS_MAX: u32 = 64;

/// A multi-node task that can start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangStart {
    /// Which tasks; one of them starts.
    pub key: QueueKey,
    /// Which variant of the request.
    pub variant: u32,
    /// Its nodes, the root first; all of one group and empty.
    pub workers: Vec<WorkerId>,
}

/// Finds nodes within one round.
#[derive(Debug, Default)]
pub(super) struct GangPlanner {
    /// Workers that are neither kept nor given away, by group, the soonest empty first.
    groups: BTreeMap<Box<str>, Vec<Node>>,
    kept_tasks: u32,
    pub(super) starts: Vec<GangStart>,
    pub(super) kept: BTreeMap<WorkerId, QueueKey>,
}

/// A worker as a possible node; the least comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Node {
    is_busy: bool,
    assigned: usize,
    id: WorkerId,
}

/// What is known of the workers within one round.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) workers: &'a BTreeMap<WorkerId, Worker>,
    pub(super) now: Time,
}

impl GangPlanner {
    pub(super) fn new(workers: &BTreeMap<WorkerId, Worker>) -> Self {
        let mut groups: BTreeMap<Box<str>, Vec<Node>> = BTreeMap::new();
        for worker in workers.values().filter(|worker| worker.accepts_work()) {
            let assigned = worker.assigned().len();
            let node = Node {
                is_busy: assigned > 0,
                assigned,
                id: worker.id,
            };
            match groups.get_mut(&worker.config.group) {
                Some(group) => group.push(node),
                None => {
                    groups.insert(worker.config.group.clone(), vec![node]);
                }
            }
        }
        for group in groups.values_mut() {
            group.sort_unstable();
        }
        Self {
            groups,
            ..Self::default()
        }
    }

    /// Notes which workers were given something in this round; `lanes` by ascending id.
    pub(super) fn note_given(&mut self, lanes: &[Lane<'_>]) {
        let is_given = |id: WorkerId| {
            let at = lanes.binary_search_by_key(&id, |lane| lane.worker.id).ok();
            at.and_then(|at| lanes.get(at))
                .is_some_and(|lane| !lane.is_untouched())
        };
        for group in self.groups.values_mut() {
            let mut has_changed = false;
            for node in group.iter_mut().filter(|node| !node.is_busy) {
                node.is_busy = is_given(node.id);
                has_changed |= node.is_busy;
            }
            if has_changed {
                group.sort_unstable();
            }
        }
    }

    /// Finds nodes for up to `ready` tasks of one queue; returns how many start. `keep_max` tasks that
    /// cannot start get workers kept for them.
    pub(super) fn plan(
        &mut self,
        key: QueueKey,
        (number, demand): (u32, &VariantDemand),
        ready: u64,
        keep_max: u32,
        known: Known<'_>,
    ) -> u64 {
        let (mut started, mut kept) = (0, 0);
        while started + u64::from(kept) < ready {
            let Some((group, chosen, all_empty)) = self.choose(key, demand, known) else {
                break;
            };
            if !all_empty && (kept >= keep_max || self.kept_tasks >= KEPT_TASKS_MAX) {
                break;
            }
            let taken: BTreeSet<WorkerId> = chosen.iter().copied().collect();
            if let Some(members) = self.groups.get_mut(&group) {
                members.retain(|node| !taken.contains(&node.id));
            }
            if all_empty {
                started += 1;
                self.starts.push(GangStart {
                    key,
                    variant: number,
                    workers: taken.into_iter().collect(),
                });
            } else {
                kept += 1;
                self.kept_tasks += 1;
                self.kept.extend(taken.into_iter().map(|id| (id, key)));
            }
        }
        started
    }

    /// The nodes that are empty soonest, of the group that is.
    fn choose(
        &self,
        key: QueueKey,
        demand: &VariantDemand,
        known: Known<'_>,
    ) -> Option<(Box<str>, Vec<WorkerId>, bool)> {
        let count = demand.n_nodes as usize;
        let worker = |node: &Node| known.workers.get(&node.id);
        let mut best: Option<(usize, Box<str>, Vec<WorkerId>)> = None;
        for (group, nodes) in &self.groups {
            if nodes.len() < count {
                continue;
            }
            let usable = nodes.iter().filter(|node| {
                demand.min_time_ns == 0
                    || worker(node).is_some_and(|worker| worker.has_time(demand, known.now))
            });
            // Empty ones, then those that were kept for this queue before, then the others.
            let mut chosen: Vec<WorkerId> = Vec::with_capacity(count);
            let (mut kept, mut others) = (Vec::new(), Vec::new());
            for node in usable {
                if chosen.len() == count {
                    break;
                }
                let was_kept = || worker(node).is_some_and(|w| w.reserved == Some(key));
                match node.is_busy {
                    false => chosen.push(node.id),
                    true if was_kept() => kept.push(node.id),
                    true => others.push(node.id),
                }
            }
            let busy = count - chosen.len();
            chosen.extend(kept.into_iter().chain(others).take(busy));
            if chosen.len() < count {
                continue;
            }
            if best.as_ref().is_none_or(|(least, ..)| busy < *least) {
                best = Some((busy, group.clone(), chosen));
            }
            if busy == 0 {
                break;
            }
        }
        best.map(|(busy, group, ids)| (group, ids, busy == 0))
    }
}
