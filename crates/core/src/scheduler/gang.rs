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
    /// Workers that are neither kept nor given away, by group.
    groups: BTreeMap<Box<str>, Vec<WorkerId>>,
    kept_tasks: u32,
    pub(super) starts: Vec<GangStart>,
    pub(super) kept: BTreeMap<WorkerId, QueueKey>,
}

/// What is known of the workers within one round.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) workers: &'a BTreeMap<WorkerId, Worker>,
    pub(super) lanes: &'a [Lane<'a>],
    pub(super) now: Time,
}

/// One worker as a possible node; the least comes first.
type Rank = (bool, bool, usize, WorkerId);

impl GangPlanner {
    pub(super) fn new(workers: &BTreeMap<WorkerId, Worker>) -> Self {
        let mut groups: BTreeMap<Box<str>, Vec<WorkerId>> = BTreeMap::new();
        for worker in workers.values().filter(|worker| worker.accepts_work()) {
            match groups.get_mut(&worker.config.group) {
                Some(group) => group.push(worker.id),
                None => {
                    groups.insert(worker.config.group.clone(), vec![worker.id]);
                }
            }
        }
        Self {
            groups,
            ..Self::default()
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
                members.retain(|id| !taken.contains(id));
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
        let mut best: Option<(usize, Box<str>, Vec<WorkerId>)> = None;
        for (group, members) in &self.groups {
            if members.len() < count {
                continue;
            }
            let mut ranks: Vec<Rank> = members
                .iter()
                .filter_map(|id| known.workers.get(id))
                .filter(|worker| worker.has_time(demand, known.now))
                .map(|worker| rank(worker, key, known.lanes))
                .collect();
            if ranks.len() < count {
                continue;
            }
            ranks.sort_unstable();
            ranks.truncate(count);
            let busy = ranks.iter().filter(|(is_busy, ..)| *is_busy).count();
            if best.as_ref().is_none_or(|(least, ..)| busy < *least) {
                let ids = ranks.into_iter().map(|(.., id)| id).collect();
                best = Some((busy, group.clone(), ids));
            }
            if busy == 0 {
                break;
            }
        }
        best.map(|(busy, group, ids)| (group, ids, busy == 0))
    }
}

fn rank(worker: &Worker, key: QueueKey, lanes: &[Lane<'_>]) -> Rank {
    let untouched = lanes
        .binary_search_by_key(&worker.id, |lane| lane.worker.id)
        .ok()
        .and_then(|at| lanes.get(at))
        .is_none_or(Lane::is_untouched);
    let is_busy = !worker.assigned().is_empty() || !untouched;
    let kept_before = worker.reserved == Some(key);
    (is_busy, !kept_before, worker.assigned().len(), worker.id)
}
