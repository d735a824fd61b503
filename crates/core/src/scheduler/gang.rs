//! Finds nodes for multi-node tasks. A task starts in a group with enough empty workers. If there
//! is no such group, workers are drained for the task.
//!
//! Each round decides anew which workers are reserved for waiting multi-node tasks. However, a
//! worker that is being drained is never given to another task of equal priority. Workers that are
//! already reserved are chosen first, followed by the workers that will be empty soonest. A
//! reserved worker only gets more urgent tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::worker_plan::WorkerPlan;
use crate::class::{QueueKey, VariantDemand};
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;

/// The maximum number of multi-node tasks that workers are reserved for.
const RESERVED_TASKS_MAX: u32 = 64;

/// A multi-node task that can start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangStart {
    /// The queue of the task.
    pub key: QueueKey,
    /// The variant of the request.
    pub variant: u32,
    /// The nodes, root first. All of them are empty and in the same group.
    pub workers: Vec<WorkerId>,
}

/// Plans the multi-node tasks of one round.
#[derive(Debug)]
pub(super) struct GangPlanner<'a> {
    /// The workers that are neither reserved nor taken, by group. In each group, the workers that
    /// will be empty soonest come first.
    groups: BTreeMap<&'a str, Vec<Node<'a>>>,
    /// The queues with ready tasks. Reservations for any other queue are void.
    queues: BTreeSet<QueueKey>,
    now: Time,
    reserved_tasks: u32,
    /// The number of tasks with reservations from which on no further task gets new ones.
    pub(super) reserve_max: u32,
    pub(super) starts: Vec<GangStart>,
    pub(super) reserved: BTreeMap<WorkerId, QueueKey>,
}

/// A worker that may become a node of a multi-node task.
#[derive(Clone, Copy, Debug)]
struct Node<'a> {
    is_busy: bool,
    running: u32,
    id: WorkerId,
    worker: &'a Worker,
}

impl Node<'_> {
    /// Returns the sort key. Workers that will be empty soonest come first.
    const fn order(&self) -> (bool, u32, WorkerId) {
        (self.is_busy, self.running, self.id)
    }
}

/// The nodes chosen for one task.
struct Choice<'a> {
    group: &'a str,
    nodes: BTreeSet<WorkerId>,
    /// The number of nodes that are not empty.
    busy: usize,
    /// The number of busy nodes that are not reserved for this queue yet.
    fresh: usize,
}

impl<'a> GangPlanner<'a> {
    pub(super) fn new(
        workers: impl Iterator<Item = &'a Worker>,
        queues: impl Iterator<Item = QueueKey>,
        now: Time,
    ) -> Self {
        let mut groups: BTreeMap<&str, Vec<Node<'_>>> = BTreeMap::new();
        // A node that may be broken could keep the other nodes waiting.
        let able = workers.filter(|worker| worker.accepts_work() && worker.is_trusted());
        for worker in able {
            // A backlog does not matter for other tasks, but a node must be empty.
            let is_busy = !worker.assigned().is_empty();
            let group = groups.entry(&worker.config.group).or_default();
            group.push(Node {
                is_busy,
                running: worker.running(),
                id: worker.id,
                worker,
            });
        }
        for group in groups.values_mut() {
            group.sort_unstable_by_key(Node::order);
        }
        Self {
            groups,
            queues: queues.collect(),
            now,
            reserved_tasks: 0,
            reserve_max: u32::MAX,
            starts: Vec::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// Returns whether a single-node task of at least this priority waits on an unreserved worker.
    pub(super) fn waits_somewhere(&self, key: QueueKey) -> bool {
        let nodes = self.groups.values().flatten();
        nodes
            .filter(|node| node.worker.reserved_for().is_none())
            .any(|node| {
                let mut waiting = node.worker.waiting();
                waiting.any(|(other, _)| other.priority == key.priority)
            })
    }

    /// Returns whether a worker is a node of a task that starts.
    pub(super) fn is_given(&self, id: WorkerId) -> bool {
        self.starts.iter().any(|start| start.workers.contains(&id))
    }

    /// Notes which workers got tasks in this round. `plans` is sorted by worker id.
    pub(super) fn note_given(&mut self, plans: &[WorkerPlan<'_>]) {
        let is_given = |id: WorkerId| {
            let at = plans.binary_search_by_key(&id, |plan| plan.worker.id).ok();
            at.and_then(|at| plans.get(at))
                .is_some_and(|plan| !plan.is_untouched())
        };
        for group in self.groups.values_mut() {
            let mut has_changed = false;
            for node in group.iter_mut().filter(|node| !node.is_busy) {
                node.is_busy = is_given(node.worker.id);
                has_changed |= node.is_busy;
            }
            // A node that got small tasks in this round no longer belongs at the front.
            if has_changed {
                group.sort_unstable_by_key(Node::order);
            }
        }
    }

    /// Finds nodes for up to `ready` tasks of one queue, starts up to `start_max` of them, and
    /// returns how many it started. For the remaining tasks, it renews existing reservations and
    /// adds new ones while fewer than [`Self::reserve_max`] tasks have reservations.
    pub(super) fn plan(
        &mut self,
        key: QueueKey,
        number: u32,
        demand: &VariantDemand,
        ready: u64,
        start_max: u64,
    ) -> u64 {
        let before = self.reserved_before(key).div_ceil(demand.n_nodes.max(1));
        let (mut started, mut reserved) = (0, 0);
        while started + u64::from(reserved) < ready {
            let Some(choice) = self.choose(key, demand) else {
                break;
            };
            // Draining workers for many tasks at once would leave the cluster idle. Drains in
            // progress continue.
            let may_keep = self.reserved_tasks < RESERVED_TASKS_MAX
                && (reserved < before || self.reserved_tasks < self.reserve_max);
            if choice.busy > 0 && !may_keep || choice.busy == 0 && started >= start_max {
                break;
            }
            // These nodes are now taken or reserved, so no other task gets them in this round.
            if let Some(members) = self.groups.get_mut(choice.group) {
                members.retain(|node| !choice.nodes.contains(&node.worker.id));
            }
            // All nodes are empty, so the task can start.
            if choice.busy == 0 {
                started += 1;
                self.starts.push(GangStart {
                    key,
                    variant: number,
                    workers: choice.nodes.into_iter().collect(),
                });
            } else {
                reserved += 1;
                self.reserved_tasks += 1;
                self.reserved
                    .extend(choice.nodes.into_iter().map(|id| (id, key)));
            }
        }
        started
    }

    fn reserved_before(&self, key: QueueKey) -> u32 {
        let nodes = self.groups.values().flatten();
        let reserved = nodes.filter(|node| node.worker.reserved_for() == Some(key));
        u32::try_from(reserved.count()).unwrap_or(u32::MAX)
    }

    /// Chooses the nodes of one group that will be empty soonest. Prefers groups whose nodes are
    /// already being drained.
    fn choose(&self, key: QueueKey, demand: &VariantDemand) -> Option<Choice<'a>> {
        let count = demand.n_nodes as usize;
        let mut best: Option<Choice<'a>> = None;
        for (group, nodes) in &self.groups {
            let usable = |node: &&Node<'_>| node.worker.has_time(demand, self.now);
            // The ranks, in order: empty and reserved for this queue, empty and not reserved for
            // it, busy and reserved for it, and busy and not reserved for it.
            let mut ranks: [Vec<WorkerId>; 4] = Default::default();
            for node in nodes.iter().filter(usable) {
                let reserved = node.worker.reserved_for();
                let reserved = reserved.filter(|key| self.queues.contains(key));
                let rank = match reserved {
                    Some(other) if other == key => usize::from(node.is_busy) * 2,
                    // A worker that is being drained for another task of equal priority stays
                    // reserved for that task. Otherwise, both tasks could wait forever.
                    Some(other) if other.priority <= key.priority => continue,
                    Some(_) | None => usize::from(node.is_busy) * 2 + 1,
                };
                ranks[rank].push(node.worker.id);
                // Nodes are sorted with empty ones first, so the remaining nodes are not needed.
                if ranks[0].len() + ranks[1].len() >= count {
                    break;
                }
            }
            let busy = count.saturating_sub(ranks[0].len() + ranks[1].len());
            let fresh = busy.saturating_sub(ranks[2].len());
            // The group has too few available nodes.
            if ranks[3].len() < fresh {
                continue;
            }
            let rank = |choice: &Choice<'_>| (choice.busy > 0, choice.fresh, choice.busy);
            let choice = Choice {
                group,
                nodes: ranks.into_iter().flatten().take(count).collect(),
                busy,
                fresh,
            };
            // Groups with the most empty nodes come first, then those with the most reservations
            // for this queue.
            if best.as_ref().is_none_or(|best| rank(&choice) < rank(best)) {
                best = Some(choice);
            }
            // The task can start immediately, and no other group is better.
            if busy == 0 {
                break;
            }
        }
        best
    }
}
