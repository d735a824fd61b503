//! All workers of a server, live and ended, with lookup tables.
//!
//! Tables by a worker's connection, orders or multi-node role are updated together with it. All
//! other data of a live worker, such as its tasks, is its own: see [`Workers::get_mut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Assigned, Duty, GangNode, LinkEnd, Worker};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::time::{Time, Timestamp};

/// Ended workers that are kept in full, about 2 KB each.
pub const ENDED_WORKERS_MAX: usize = 10_000;

/// Every worker that the server knows of.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Separate from ended ones, so that full scans skip those.
    live: BTreeMap<WorkerId, Worker>,
    /// Recently ended workers; earlier ones are reduced to their host name and a count.
    ended: BTreeMap<WorkerId, Worker>,
    ended_counts: BTreeMap<LostReason, u64>,
    last_lost: Option<WorkerId>,
    /// Host names of workers of earlier runs of this server, and of workers that ended long ago.
    former_hosts: BTreeMap<WorkerId, Box<str>>,
    /// Highest id in use; 0 = none.
    last_id: u32,
    /// Time of each live worker's loss without a sign of life.
    deadlines: BTreeSet<(Time, WorkerId)>,
    /// Live workers whose duty is to drain.
    draining: BTreeSet<WorkerId>,
    /// Nodes of each dispatched multi-node task, the root first; a lost node stays listed.
    nodes: BTreeMap<TaskKey, Vec<WorkerId>>,
    /// Workers of an earlier run that are still expected back.
    awaited: BTreeSet<WorkerId>,
    /// Whether one of them was given up without a report.
    has_unheard: bool,
    /// When a worker that was away came back last.
    last_return: Option<Time>,
}

/// Remains of a worker that is gone.
pub(crate) struct LostWorker {
    /// Tasks that it was assigned.
    pub(crate) tasks: BTreeMap<TaskKey, Assigned>,
    /// Queues with reservations on it.
    pub(crate) reservations: Vec<QueueKey>,
    /// Whether it is of an earlier run of the server and never connected to this one.
    pub(crate) was_restored: bool,
}

impl Workers {
    /// Workers that are connected or expected back.
    #[must_use]
    pub const fn live(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.live
    }

    /// The last [`ENDED_WORKERS_MAX`] workers of this run of the server that have ended.
    #[must_use]
    pub const fn ended(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.ended
    }

    /// Number of ended workers of this run of the server, by reason.
    #[must_use]
    pub const fn ended_counts(&self) -> &BTreeMap<LostReason, u64> {
        &self.ended_counts
    }

    /// The worker with the highest id that ended neither on request nor with a goodbye.
    #[must_use]
    pub const fn last_lost(&self) -> Option<WorkerId> {
        self.last_lost
    }

    /// Highest id ever given out.
    #[must_use]
    pub const fn last_id(&self) -> Option<WorkerId> {
        if self.last_id == 0 {
            None
        } else {
            Some(WorkerId(self.last_id))
        }
    }

    /// A live worker.
    #[must_use]
    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.live.get(&id)
    }

    /// A live worker, to change its own data: its tasks, reports and templates.
    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.live.get_mut(&id)
    }

    /// All live workers, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.live.values_mut()
    }

    /// A worker of this run of the server, live or ended.
    #[must_use]
    pub fn known(&self, id: WorkerId) -> Option<&Worker> {
        self.live.get(&id).or_else(|| self.ended.get(&id))
    }

    /// Host name of a worker, including workers of an earlier run.
    #[must_use]
    pub fn hostname(&self, id: WorkerId) -> Option<&str> {
        let known = self.known(id).map(|worker| &*worker.config.hostname);
        known.or_else(|| self.former_hosts.get(&id).map(|name| &**name))
    }

    /// Workers that match a selector, live or ended; `all` = all known ones.
    #[must_use]
    pub fn find(&self, selector: &Selector) -> Selected<WorkerId> {
        let within = |span: RangeInclusive<u32>| {
            let span = WorkerId(*span.start())..=WorkerId(*span.end());
            let ended = self.ended.range(span.clone());
            let live = self.live.range(span).map(|(id, _)| id.0);
            let mut known: Vec<u32> = live.chain(ended.map(|(id, _)| id.0)).collect();
            // Live and ended ones alternate, and sets of ids are looked up in order.
            known.sort_unstable();
            known
        };
        let found = match selector {
            Selector::All => Selected::all(within(0..=u32::MAX)),
            Selector::Last => {
                let last = self.last_id().map(|id| IdArray::single(id.0));
                Selected::of_ids(&last.unwrap_or_default(), within)
            }
            Selector::Ids(ids) => Selected::of_ids(ids, within),
        };
        found.filter_map(|id| Some(WorkerId(id)))
    }

    /// Workers that match the selector of a command; `all` = live workers.
    pub(crate) fn select(&self, selector: &Selector) -> Selected<WorkerId> {
        match selector {
            Selector::All => Selected::all(self.live.keys().copied().collect()),
            Selector::Last | Selector::Ids(_) => self.find(selector),
        }
    }

    /// The id of the next worker; `None` after four billion workers.
    pub(crate) fn next_id(&mut self) -> Option<WorkerId> {
        self.last_id = self.last_id.checked_add(1)?;
        Some(WorkerId(self.last_id))
    }

    /// Continues ids after these: the first new worker gets the highest earlier id plus two.
    pub(crate) fn restore_last_id(&mut self, last: WorkerId) {
        self.last_id = self.last_id.max(last.0.saturating_add(1));
    }

    /// Remembers the host of a worker of an earlier run.
    pub(crate) fn restore_hostname(&mut self, id: WorkerId, hostname: Box<str>) {
        self.former_hosts.insert(id, hostname);
    }

    /// Adds a worker that has just registered.
    pub(crate) fn add(&mut self, worker: Worker) {
        if let Some(at) = worker.lost_at() {
            self.deadlines.insert((at, worker.id));
        }
        self.live.insert(worker.id, worker);
    }

    /// Adds a worker of an earlier run that is expected back.
    pub(crate) fn add_awaited(&mut self, worker: Worker) {
        self.awaited.insert(worker.id);
        self.add(worker);
    }

    /// Changes a live worker's connection state and updates the table of deadlines; `None` if it is
    /// not live.
    fn change_life<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.live.get_mut(&id)?;
        // Always updates the table, because it is sorted by the deadline.
        let before = worker.lost_at();
        let result = change(worker);
        let after = worker.lost_at();
        if before != after {
            if let Some(at) = before {
                self.deadlines.remove(&(at, id));
            }
            self.deadlines.extend(after.map(|at| (at, id)));
        }
        Some(result)
    }

    /// Notes a sign of life.
    pub(crate) fn note_heartbeat(&mut self, id: WorkerId, now: Time) {
        self.change_life(id, |worker| worker.prolong(now));
    }

    /// Its connection ended, and it may come back.
    pub(crate) fn disconnect(&mut self, id: WorkerId, now: Time, how: LinkEnd) {
        self.change_life(id, |worker| worker.disconnect(now, how));
    }

    /// Notes its reconnect with this registration number. Returns whether it is of an earlier run
    /// of the server; `None` = it is not live.
    pub(crate) fn reconnect(&mut self, id: WorkerId, now: Time, registration: u64) -> Option<bool> {
        let was_restored = self.change_life(id, |worker| worker.reconnect(now, registration));
        if was_restored.is_some() {
            self.last_return = Some(now);
        }
        was_restored
    }

    /// Extends the deadline of an overdue worker while others reconnect. Returns whether it did.
    pub(crate) fn await_turn(&mut self, id: WorkerId, now: Time) -> bool {
        let Some(returned) = self.last_return else {
            return false;
        };
        let has_time = self.change_life(id, |worker| worker.await_turn(returned, now));
        has_time.unwrap_or(false)
    }

    /// Extends the deadline of an overdue worker once, and if the server notices late. Returns
    /// whether it did.
    pub(crate) fn doubt(&mut self, id: WorkerId, now: Time, late: Duration) -> bool {
        let has_time = self.change_life(id, |worker| worker.doubt(now, late));
        has_time.unwrap_or(false)
    }

    /// Time of the first loss without a sign of life.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// At most `most` overdue workers, with their deadlines.
    pub(crate) fn overdue(&self, now: Time, most: usize) -> Vec<(Time, WorkerId)> {
        let due = self.deadlines.iter().take_while(|(time, _)| *time <= now);
        due.take(most).copied().collect()
    }

    /// Drains a worker. Returns whether that is new; `None` = it has ended or is about to.
    pub(crate) fn drain(&mut self, id: WorkerId) -> Option<bool> {
        let worker = self.live.get_mut(&id)?;
        match worker.duty() {
            Duty::Serve => {
                worker.set_duty(Duty::Drain);
                self.draining.insert(id);
                Some(true)
            }
            Duty::Drain => Some(false),
            // It ends already, and sooner than by draining.
            Duty::Stop { .. } => None,
        }
    }

    /// Asks a worker to stop; returns whether that is new.
    pub(crate) fn stop(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.live.get_mut(&id).filter(|w| !w.is_stopping()) else {
            return false;
        };
        // A drained worker that stops is still shown as draining.
        let after_drain = worker.is_draining();
        worker.set_duty(Duty::Stop { after_drain });
        // It stops now, and is no longer draining.
        self.draining.remove(&id);
        true
    }

    /// Draining workers that were not asked to stop yet.
    #[must_use]
    pub const fn draining(&self) -> &BTreeSet<WorkerId> {
        &self.draining
    }

    /// Makes workers nodes of a multi-node task, the root first.
    pub(crate) fn set_nodes(&mut self, task: TaskKey, members: Vec<WorkerId>) {
        for (id, is_root) in members
            .iter()
            .zip(std::iter::once(true).chain(std::iter::repeat(false)))
        {
            match self.live.get_mut(id) {
                Some(worker) => worker.set_node(GangNode { task, is_root }),
                None => bug!("worker {id} is gone, but becomes a node of {task}"),
            }
        }
        self.nodes.insert(task, members);
    }

    /// Multi-node tasks that have nodes.
    pub(crate) fn multi_node_tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        self.nodes.keys().copied()
    }

    /// Frees the nodes of a multi-node task: returns the live ones, and which was the root. `None`
    /// = it had none.
    pub(crate) fn release_nodes(&mut self, task: TaskKey) -> Option<Vec<(WorkerId, bool)>> {
        let members = self.nodes.remove(&task)?;
        let freed = members.into_iter().filter_map(|id| {
            // Lost meanwhile, or reconnected as a node of another task.
            let node = self.live.get_mut(&id)?.release_node(task)?;
            Some((id, node.is_root))
        });
        Some(freed.collect())
    }

    /// A worker is gone for good. `None` = it was not live.
    pub(crate) fn lose(
        &mut self,
        id: WorkerId,
        at: Timestamp,
        reason: LostReason,
    ) -> Option<LostWorker> {
        // Its end clears them, but others still count them.
        let reservations = self.live.get(&id)?.reservations().collect();
        let (tasks, was_restored) = self.change_life(id, |worker| worker.end(at, reason))?;
        self.draining.remove(&id);
        *self.ended_counts.entry(reason).or_default() += 1;
        // Workers are not lost in the order of their ids; users look for the newest.
        if reason.is_lost() {
            self.last_lost = self.last_lost.max(Some(id));
        }
        self.ended.extend(self.live.remove_entry(&id));
        // An allocation queue creates thousands of workers in a year.
        while self.ended.len() > ENDED_WORKERS_MAX
            && let Some((id, oldest)) = self.ended.pop_first()
        {
            self.former_hosts.insert(id, oldest.config.hostname.clone());
        }
        Some(LostWorker {
            tasks,
            reservations,
            was_restored,
        })
    }

    /// Number of workers of an earlier run that are still expected back.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// A worker reconnected and reported its tasks (`is_heard`), or is given up. Returns whether it
    /// was the last expected one; `None` if it was not expected.
    pub(crate) fn stop_awaiting(&mut self, id: WorkerId, is_heard: bool) -> Option<bool> {
        if !self.awaited.remove(&id) {
            return None;
        }
        self.has_unheard |= !is_heard;
        Some(self.awaited.is_empty())
    }

    /// Whether a worker was given up whose started tasks are unknown.
    pub(crate) const fn has_unheard(&self) -> bool {
        self.has_unheard
    }

    /// Sets whether such a worker exists whose possibly started tasks have no new instances yet.
    pub(crate) const fn set_unheard(&mut self, has_unheard: bool) {
        self.has_unheard = has_unheard;
    }

    /// Panics unless the indexes agree with the workers.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self, classes: &crate::class::Classes) {
        for worker in self.live.values() {
            worker.check_books(classes);
            crate::scheduler::worker_plan::check_room(worker, classes);
            assert!(worker.is_live(), "ended workers are kept apart");
        }
        for worker in self.ended.values() {
            assert!(!worker.is_live(), "only ended workers are kept apart");
            assert!(worker.assigned().is_empty(), "ended workers hold no task");
            let nothing = super::Dedication::None;
            assert_eq!(worker.dedication(), nothing, "nor anything else");
        }
        let deadlines = self.live.values();
        let deadlines = deadlines.filter_map(|worker| Some((worker.lost_at()?, worker.id)));
        assert_eq!(
            deadlines.collect::<BTreeSet<_>>(),
            self.deadlines,
            "deadlines"
        );
        let draining = self.live.values().filter(|w| w.duty() == Duty::Drain);
        let draining = draining.map(|worker| worker.id);
        assert_eq!(
            draining.collect::<BTreeSet<_>>(),
            self.draining,
            "who drains"
        );
        self.check_nodes();
    }

    /// Each node of a multi-node task knows it, and has no other task. (After a restart it can have
    /// more: the task had ended, the node got others, and the server crashed before it stored the
    /// end.)
    #[cfg(any(test, feature = "testing"))]
    fn check_nodes(&self) {
        for (task, members) in &self.nodes {
            let root = members.first().and_then(|id| self.live.get(id));
            let root = root.expect("a multi-node task has a root");
            let assigned = root.assigned().get(task);
            let was_restored = assigned.expect("the root has it").was_restored();
            let others = |worker: &Worker| {
                let mut given = worker.assigned().keys();
                !was_restored && given.any(|other| other != task)
            };
            assert!(!others(root), "the root is given nothing else");
            for worker in members.iter().skip(1).filter_map(|id| self.live.get(id)) {
                assert!(!others(worker), "node {} is given nothing", worker.id);
                assert_eq!(worker.node().map(|node| node.task), Some(*task));
                assert_eq!(worker.config.group, root.config.group);
            }
        }
        for worker in self.live.values() {
            let task = worker.node().map(|node| node.task);
            assert!(task.is_none_or(|task| self.nodes.contains_key(&task)));
        }
    }
}
