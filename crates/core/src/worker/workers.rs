//! All workers of a server, live and ended, with lookup tables.
//!
//! A worker's connection, orders and multi-node role are updated together with the tables that
//! depend on them. All other data of a live worker, such as its tasks, can be changed separately;
//! see [`Workers::get_mut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Assigned, Duty, GangNode, LinkEnd, Worker};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::selector::{Selected, Selector};
use crate::time::{Time, Timestamp};

/// The maximum number of ended workers that are kept in full, about 2 KB each.
pub const ENDED_WORKERS_MAX: usize = 10_000;

/// All workers that the server knows.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Live workers. They are separate from ended ones, so that full scans skip those.
    live: BTreeMap<WorkerId, Worker>,
    /// The workers that ended recently. Earlier ones are reduced to their host names and a count.
    ended: BTreeMap<WorkerId, Worker>,
    ended_counts: BTreeMap<LostReason, u64>,
    /// Whether ended workers of earlier runs were restored, so that the state is only read.
    is_record: bool,
    last_lost: Option<WorkerId>,
    /// The host names of workers of earlier server runs, and of workers that ended long ago.
    former_hosts: BTreeMap<WorkerId, Box<str>>,
    /// The highest id in use. 0 if there is none.
    last_id: u32,
    /// When each live worker will be lost unless it gives a sign of life.
    deadlines: BTreeSet<(Time, WorkerId)>,
    /// The live workers whose duty is to drain.
    draining: BTreeSet<WorkerId>,
    /// The nodes of each dispatched multi-node task, the root first. A lost node stays listed.
    nodes: BTreeMap<TaskKey, Vec<WorkerId>>,
    /// The workers of an earlier server run that are still expected back.
    awaited: BTreeSet<WorkerId>,
    /// Whether the server has given up one of them without receiving a report.
    has_unheard: bool,
    /// When a worker last came back after it had been away.
    last_return: Option<Time>,
}

/// The remains of a worker that is gone.
pub(crate) struct LostWorker {
    pub(crate) id: WorkerId,
    pub(crate) reason: LostReason,
    /// The tasks that were assigned to it.
    pub(crate) tasks: BTreeMap<TaskKey, Assigned>,
    /// The queues with reservations on it.
    pub(crate) reservations: Vec<QueueKey>,
    /// Whether it is a worker of an earlier server run that never connected to this one.
    was_restored: bool,
}

impl LostWorker {
    /// Returns whether the loss counts as a crash of the tasks that ran there. The end of a server
    /// does not.
    pub(crate) const fn is_crash(&self) -> bool {
        self.reason.is_crash() && !self.was_restored
    }
}

impl Workers {
    /// Returns the workers that are connected or expected back.
    #[must_use]
    pub const fn live(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.live
    }

    /// Returns the last [`ENDED_WORKERS_MAX`] workers of this server run that have ended.
    #[must_use]
    pub const fn ended(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.ended
    }

    /// Returns the workers that waiting tasks are compared with: the live ones, or if a state that
    /// is only read has none, the ended ones.
    #[must_use]
    pub fn comparable(&self) -> &BTreeMap<WorkerId, Worker> {
        if self.is_record && self.live.is_empty() {
            return &self.ended;
        }
        &self.live
    }

    /// Returns the number of ended workers of this server run, by reason.
    #[must_use]
    pub const fn ended_counts(&self) -> &BTreeMap<LostReason, u64> {
        &self.ended_counts
    }

    /// Returns the worker with the highest id that ended neither on request nor with a goodbye.
    #[must_use]
    pub const fn last_lost(&self) -> Option<WorkerId> {
        self.last_lost
    }

    /// Returns the highest id that has ever been assigned.
    #[must_use]
    pub const fn last_id(&self) -> Option<WorkerId> {
        if self.last_id == 0 {
            None
        } else {
            Some(WorkerId(self.last_id))
        }
    }

    /// Returns a live worker.
    #[must_use]
    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.live.get(&id)
    }

    /// Returns a live worker for changes to data on which no table depends: its tasks, reports and
    /// templates.
    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.live.get_mut(&id)
    }

    /// Returns a mutable iterator over all live workers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.live.values_mut()
    }

    /// Returns a worker of this server run, live or ended.
    #[must_use]
    pub fn known(&self, id: WorkerId) -> Option<&Worker> {
        self.live.get(&id).or_else(|| self.ended.get(&id))
    }

    /// Returns the host name of a worker. This includes workers of earlier server runs.
    #[must_use]
    pub fn hostname(&self, id: WorkerId) -> Option<&str> {
        let known = self.known(id).map(|worker| &*worker.config.hostname);
        known.or_else(|| self.former_hosts.get(&id).map(|name| &**name))
    }

    /// Returns the workers that match a selector, live or ended. `all` selects all known workers.
    #[must_use]
    pub fn find(&self, selector: &Selector) -> Selected<WorkerId> {
        let within = |span: RangeInclusive<u32>| {
            let span = WorkerId(*span.start())..=WorkerId(*span.end());
            let ended = self.ended.range(span.clone());
            let live = self.live.range(span).map(|(id, _)| id.0);
            let mut known: Vec<u32> = live.chain(ended.map(|(id, _)| id.0)).collect();
            // Live and ended workers alternate, and sets of ids are looked up in order.
            known.sort_unstable();
            known
        };
        let found = selector.find(self.last_id().map(WorkerId::as_u32), within);
        found.filter_map(|id| Some(WorkerId(id)))
    }

    /// Returns the workers that match the selector of a command. `all` selects the live workers.
    pub(crate) fn select(&self, selector: &Selector) -> Selected<WorkerId> {
        match selector {
            Selector::All => Selected::all(self.live.keys().copied().collect()),
            Selector::Last | Selector::Ids(_) => self.find(selector),
        }
    }

    /// Returns the id of the next worker, or `None` after four billion workers.
    pub(crate) fn next_id(&mut self) -> Option<WorkerId> {
        self.last_id = self.last_id.checked_add(1)?;
        Some(WorkerId(self.last_id))
    }

    /// Continues after the ids of an earlier run. The first new worker gets the highest earlier id
    /// plus two.
    pub(crate) fn restore_last_id(&mut self, last: WorkerId) {
        self.last_id = self.last_id.max(last.0.saturating_add(1));
    }

    /// Stores the host of a worker of an earlier server run.
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

    /// Adds a worker of an earlier server run that is expected back.
    pub(crate) fn add_awaited(&mut self, worker: Worker) {
        self.awaited.insert(worker.id);
        self.add(worker);
    }

    /// Adds a worker that ended. The state is only read from now on.
    pub(crate) fn add_ended(&mut self, worker: Worker, at: Timestamp, reason: LostReason) {
        let id = worker.id;
        self.is_record = true;
        self.add(worker);
        self.lose(id, at, reason);
    }

    /// Changes a live worker's connection state and updates the table of deadlines. Returns `None`
    /// if the worker is not live.
    fn change_life<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.live.get_mut(&id)?;
        // The table is always updated, because it is sorted by the deadline.
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

    /// Notes that a worker's connection has ended. The worker may come back.
    pub(crate) fn disconnect(&mut self, id: WorkerId, now: Time, how: LinkEnd) {
        self.change_life(id, |worker| worker.disconnect(now, how));
    }

    /// Notes that a worker reconnected with this registration number. Returns whether it is a
    /// worker of an earlier server run, or `None` if it is not live.
    pub(crate) fn reconnect(&mut self, id: WorkerId, now: Time, registration: u64) -> Option<bool> {
        let was_restored = self.change_life(id, |worker| worker.reconnect(now, registration));
        if was_restored.is_some() {
            self.last_return = Some(now);
        }
        was_restored
    }

    /// Extends the deadline of an overdue worker while other workers are reconnecting. Returns
    /// whether the deadline was extended.
    pub(crate) fn await_turn(&mut self, id: WorkerId, now: Time) -> bool {
        let Some(returned) = self.last_return else {
            return false;
        };
        let has_time = self.change_life(id, |worker| worker.await_turn(returned, now));
        has_time.unwrap_or(false)
    }

    /// Extends the deadline of an overdue worker if the server notices late, or once if the worker
    /// is connected. Returns whether the deadline was extended.
    pub(crate) fn doubt(&mut self, id: WorkerId, now: Time, late: Duration) -> bool {
        let has_time = self.change_life(id, |worker| worker.doubt(now, late));
        has_time.unwrap_or(false)
    }

    /// Returns when the next worker will be lost unless it gives a sign of life.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Returns at most `most` overdue workers, with their deadlines.
    pub(crate) fn overdue(&self, now: Time, most: usize) -> Vec<(Time, WorkerId)> {
        let due = self.deadlines.iter().take_while(|(time, _)| *time <= now);
        due.take(most).copied().collect()
    }

    /// Drains a worker. Returns whether this is new, or `None` if the worker has ended or is about
    /// to end.
    pub(crate) fn drain(&mut self, id: WorkerId) -> Option<bool> {
        let worker = self.live.get_mut(&id)?;
        match worker.duty() {
            Duty::Serve => {
                worker.set_duty(Duty::Drain);
                self.draining.insert(id);
                Some(true)
            }
            Duty::Drain => Some(false),
            // The worker is already ending, and sooner than by draining.
            Duty::Stop { .. } => None,
        }
    }

    /// Asks a worker to stop. Returns whether this is new.
    pub(crate) fn stop(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.live.get_mut(&id).filter(|w| !w.is_stopping()) else {
            return false;
        };
        // A drained worker that stops is still shown as draining.
        let after_drain = worker.is_draining();
        worker.set_duty(Duty::Stop { after_drain });
        // The worker stops now, so it is no longer draining.
        self.draining.remove(&id);
        true
    }

    /// Returns the draining workers that have not been asked to stop.
    #[must_use]
    pub const fn draining(&self) -> &BTreeSet<WorkerId> {
        &self.draining
    }

    /// Makes workers the nodes of a multi-node task, the root first.
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

    /// Returns the multi-node tasks that have nodes.
    pub(crate) fn multi_node_tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        self.nodes.keys().copied()
    }

    /// Frees the nodes of a multi-node task. Returns the live ones, with a flag for the root, or
    /// `None` if the task had no nodes.
    pub(crate) fn release_nodes(&mut self, task: TaskKey) -> Option<Vec<(WorkerId, bool)>> {
        let members = self.nodes.remove(&task)?;
        let freed = members.into_iter().filter_map(|id| {
            // A node may have been lost in the meantime, or may have reconnected as a node of
            // another task.
            let node = self.live.get_mut(&id)?.release_node(task)?;
            Some((id, node.is_root))
        });
        Some(freed.collect())
    }

    /// Notes that a worker is gone for good. Returns `None` if it was not live.
    pub(crate) fn lose(
        &mut self,
        id: WorkerId,
        at: Timestamp,
        reason: LostReason,
    ) -> Option<LostWorker> {
        // The reservations are cleared when the worker ends, but are still counted elsewhere.
        let reservations = self.live.get(&id)?.reservations().collect();
        let (tasks, was_restored) = self.change_life(id, |worker| worker.end(at, reason))?;
        self.draining.remove(&id);
        *self.ended_counts.entry(reason).or_default() += 1;
        // Workers are not lost in the order of their ids, and users look for the newest one.
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
            id,
            reason,
            tasks,
            reservations,
            was_restored,
        })
    }

    /// Returns the number of workers of an earlier server run that are still expected back.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Returns an awaited worker with this hash of its secret.
    pub(crate) fn awaited_with(&self, digest: Option<[u8; 32]>) -> Option<WorkerId> {
        let digest = Some(digest?);
        let has_digest = |id: &&WorkerId| {
            let worker = self.live.get(id);
            worker.is_some_and(|worker| worker.config.return_digest == digest)
        };
        self.awaited.iter().find(has_digest).copied()
    }

    /// Notes that a worker has reconnected and reported its tasks (`is_heard`), or that it is given
    /// up. Returns whether it was the last expected worker, or `None` if it was not expected.
    pub(crate) fn stop_awaiting(&mut self, id: WorkerId, is_heard: bool) -> Option<bool> {
        if !self.awaited.remove(&id) {
            return None;
        }
        self.has_unheard |= !is_heard;
        Some(self.awaited.is_empty())
    }

    /// Returns whether a worker was given up whose started tasks are unknown.
    pub(crate) const fn has_unheard(&self) -> bool {
        self.has_unheard
    }

    /// Sets whether there is such a worker whose possibly started tasks have no new instances yet.
    pub(crate) const fn set_unheard(&mut self, has_unheard: bool) {
        self.has_unheard = has_unheard;
    }

    /// Panics if the indexes do not agree with the workers.
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

    /// Checks that each node of a multi-node task knows its task, and has no other task. (After a
    /// restart, it can have more tasks: the task had ended, the node got other tasks, and the
    /// server crashed before it stored the end.)
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
