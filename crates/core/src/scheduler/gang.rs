//! Nodes for multi-node tasks: start where enough workers of a group are empty, else empty some.
//!
//! Each round decides again which workers are reserved for waiting multi-node tasks, but never gives up for
//! another what is being emptied for an equally urgent one: those that were reserved before come first, then
//! those that will be empty soonest. Reserved workers get only more urgent work.

use std::collections::{BTreeMap, BTreeSet};

use super::worker_plan::WorkerPlan;
use crate::class::{QueueKey, VariantDemand};
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;

/// Multi-node tasks for which workers are reserved at a time.
const RESERVED_TASKS_MAX: u32 = 64;

/// A multi-node task that can start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangStart {
    /// Queue of its task.
    pub key: QueueKey,
    /// Variant of the request.
    pub variant: u32,
    /// Nodes, the root first; all of one group and empty.
    pub workers: Vec<WorkerId>,
}

/// Finds nodes within one round.
#[derive(Debug)]
pub(super) struct GangPlanner<'a> {
    /// Workers that are neither reserved nor given away, by group, the soonest empty first.
    groups: BTreeMap<&'a str, Vec<Node<'a>>>,
    /// Queues with ready tasks; what was reserved for others is free.
    queues: BTreeSet<QueueKey>,
    now: Time,
    reserved_tasks: u32,
    pub(super) starts: Vec<GangStart>,
    pub(super) reserved: BTreeMap<WorkerId, QueueKey>,
}

/// A worker as a possible node.
#[derive(Clone, Copy, Debug)]
struct Node<'a> {
    is_busy: bool,
    running: u32,
    id: WorkerId,
    worker: &'a Worker,
}

impl Node<'_> {
    /// The soonest empty first.
    const fn order(&self) -> (bool, u32, WorkerId) {
        (self.is_busy, self.running, self.id)
    }
}

/// Nodes for one task.
struct Choice<'a> {
    group: &'a str,
    nodes: BTreeSet<WorkerId>,
    /// Nodes that are not empty.
    busy: usize,
    /// Nodes that are not empty and were not reserved for this queue before.
    fresh: usize,
}

impl<'a> GangPlanner<'a> {
    pub(super) fn new(
        workers: impl Iterator<Item = &'a Worker>,
        queues: impl Iterator<Item = QueueKey>,
        now: Time,
    ) -> Self {
        let mut groups: BTreeMap<&str, Vec<Node<'_>>> = BTreeMap::new();
        // With one that may be broken all of its nodes would wait for nothing.
        let able = workers.filter(|worker| worker.accepts_work() && worker.is_trusted());
        for worker in able {
            // A backlog is no hindrance to others, but a node must be empty.
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
            starts: Vec::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// Whether a task as urgent as this, for a part of a worker, waits on one that is not reserved.
    pub(super) fn waits_somewhere(&self, key: QueueKey) -> bool {
        let nodes = self.groups.values().flatten();
        nodes
            .filter(|node| node.worker.reserved_for().is_none())
            .any(|node| {
                let mut waiting = node.worker.waiting();
                waiting.any(|(other, _)| other.priority == key.priority)
            })
    }

    /// Whether a worker is a node of a task that starts.
    pub(super) fn is_given(&self, id: WorkerId) -> bool {
        self.starts.iter().any(|start| start.workers.contains(&id))
    }

    /// Notes which workers were given something in this round; `plans` by ascending id.
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
            // A node that was given small tasks in this round is no longer among the first.
            if has_changed {
                group.sort_unstable_by_key(Node::order);
            }
        }
    }

    /// Finds nodes for up to `ready` tasks of one queue, of which up to `start_max` start; returns how many
    /// do. Workers are reserved for as many more as they were before, and for others as long as there are fewer
    /// than `reserve_max`.
    pub(super) fn plan(
        &mut self,
        key: QueueKey,
        (number, demand): (u32, &VariantDemand),
        (ready, start_max): (u64, u64),
        reserve_max: u32,
    ) -> u64 {
        let before = self.reserved_before(key).div_ceil(demand.n_nodes.max(1));
        let (mut started, mut reserved) = (0, 0);
        while started + u64::from(reserved) < ready {
            let Some(choice) = self.choose(key, demand) else {
                break;
            };
            // Emptying workers for many tasks at once would idle the cluster; what is being emptied goes on.
            let may_keep = self.reserved_tasks < RESERVED_TASKS_MAX
                && (reserved < before || self.reserved_tasks < reserve_max);
            if choice.busy > 0 && !may_keep || choice.busy == 0 && started >= start_max {
                break;
            }
            // Taken or reserved: no other task of this round gets these nodes.
            if let Some(members) = self.groups.get_mut(choice.group) {
                members.retain(|node| !choice.nodes.contains(&node.worker.id));
            }
            // All nodes are empty.
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

    /// The nodes that are empty soonest, of the group that is; a group in which some are being emptied
    /// goes before others.
    fn choose(&self, key: QueueKey, demand: &VariantDemand) -> Option<Choice<'a>> {
        let count = demand.n_nodes as usize;
        let mut best: Option<Choice<'a>> = None;
        for (group, nodes) in &self.groups {
            let usable = |node: &&Node<'_>| node.worker.has_time(demand, self.now);
            // Empty and reserved for this, empty, reserved for this, others.
            let mut ranks: [Vec<WorkerId>; 4] = Default::default();
            for node in nodes.iter().filter(usable) {
                let reserved = node.worker.reserved_for();
                let reserved = reserved.filter(|key| self.queues.contains(key));
                let rank = match reserved {
                    Some(other) if other == key => usize::from(node.is_busy) * 2,
                    // A worker that is emptied for another task that is as urgent is not taken away: both would wait
                    // for ever.
                    Some(other) if other.priority <= key.priority => continue,
                    Some(_) | None => usize::from(node.is_busy) * 2 + 1,
                };
                ranks[rank].push(node.worker.id);
                // Nodes come empty ones first: enough of them are known.
                if ranks[0].len() + ranks[1].len() >= count {
                    break;
                }
            }
            let busy = count.saturating_sub(ranks[0].len() + ranks[1].len());
            let fresh = busy.saturating_sub(ranks[2].len());
            // The group has too few nodes that may be taken.
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
            // Empty ones before busy ones, then those of which most are reserved for it already.
            if best.as_ref().is_none_or(|best| rank(&choice) < rank(best)) {
                best = Some(choice);
            }
            // It can start here and now: no other group is better.
            if busy == 0 {
                break;
            }
        }
        best
    }
}
