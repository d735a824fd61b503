//! All workers of a server: those that are live, those that have ended, and what is looked up about them.
//!
//! Indexes by a worker's life, duty or part in a multi-node task; they change together with it. The
//! rest of a live worker, such as the account of what it was given, is its own: see [`Workers::get_mut`].

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

/// Ended workers of which everything is kept, about 2 KB each.
pub const ENDED_WORKERS_MAX: usize = 10_000;

/// Every worker that the server knows of.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Kept apart from ended ones so that full scans cost nothing for those.
    live: BTreeMap<WorkerId, Worker>,
    /// The last that have ended; of earlier ones only the host name is kept, and how many there were.
    ended: BTreeMap<WorkerId, Worker>,
    ended_counts: BTreeMap<LostReason, u64>,
    last_lost: Option<WorkerId>,
    /// Host names of workers of earlier runs of this server, and of those that ended long ago.
    former_hosts: BTreeMap<WorkerId, Box<str>>,
    /// The highest id that was given out; 0 = none.
    last_id: u32,
    /// When each live worker is lost without a sign of life.
    deadlines: BTreeSet<(Time, WorkerId)>,
    /// Live workers whose duty is to drain.
    draining: BTreeSet<WorkerId>,
    /// Nodes of each multi-node task that is handed out, the root first; a node that is lost stays listed.
    nodes: BTreeMap<TaskKey, Vec<WorkerId>>,
    /// Workers of an earlier run of the server that have neither come back nor been given up.
    awaited: BTreeSet<WorkerId>,
    /// One of them was given up without a word.
    has_unheard: bool,
    /// When a worker that was away came back last.
    last_return: Option<Time>,
}

/// Remains of a worker that is gone.
pub(crate) struct LostWorker {
    /// Tasks that it was assigned.
    pub(crate) tasks: BTreeMap<TaskKey, Assigned>,
    /// Queues for which it had reservations.
    pub(crate) reservations: Vec<QueueKey>,
    /// It is of an earlier run of the server and never came back.
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

    /// How many workers of this run of the server have ended, for each reason.
    #[must_use]
    pub const fn ended_counts(&self) -> &BTreeMap<LostReason, u64> {
        &self.ended_counts
    }

    /// The worker with the highest id that ended without being asked to and without saying so.
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

    /// A live worker, to change its own accounts: what it was given, what it reported, what it knows.
    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.live.get_mut(&id)
    }

    /// All live workers, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.live.values_mut()
    }

    /// A worker of this run of the server, whether it has ended or not.
    #[must_use]
    pub fn known(&self, id: WorkerId) -> Option<&Worker> {
        self.live.get(&id).or_else(|| self.ended.get(&id))
    }

    /// Host name of a worker, also of one of an earlier run of this server.
    #[must_use]
    pub fn hostname(&self, id: WorkerId) -> Option<&str> {
        let known = self.known(id).map(|worker| &*worker.config.hostname);
        known.or_else(|| self.former_hosts.get(&id).map(|name| &**name))
    }

    /// Workers that a selector names, whether they have ended or not; `all` = all that are known.
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

    /// Workers that a selector of a command names; `all` = live workers.
    pub(crate) fn select(&self, selector: &Selector) -> Selected<WorkerId> {
        match selector {
            Selector::All => Selected::all(self.live.keys().copied().collect()),
            Selector::Last | Selector::Ids(_) => self.find(selector),
        }
    }

    /// The id of the next worker; `None` after four billion of them.
    pub(crate) fn next_id(&mut self) -> Option<WorkerId> {
        self.last_id = self.last_id.checked_add(1)?;
        Some(WorkerId(self.last_id))
    }

    /// Ids go on behind these: the first new worker gets the highest earlier id plus two.
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

    /// Adds a worker of an earlier run of the server, which is expected back.
    pub(crate) fn add_awaited(&mut self, worker: Worker) {
        self.awaited.insert(worker.id);
        self.add(worker);
    }

    /// Changes a live worker's life and keeps the index of deadlines true; `None` if it is not live.
    fn change_life<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.live.get_mut(&id)?;
        // Whatever changes, the index follows: nobody else may touch what it is sorted by.
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

    /// Notes that it is connected again, with a registration of this number. Returns whether it is of an earlier run
    /// of the server; `None` = it is not live.
    pub(crate) fn reconnect(&mut self, id: WorkerId, now: Time, registration: u64) -> Option<bool> {
        let was_restored = self.change_life(id, |worker| worker.reconnect(now, registration));
        if was_restored.is_some() {
            self.last_return = Some(now);
        }
        was_restored
    }

    /// Gives one that is overdue more time if others come back at present. Returns whether it has any.
    pub(crate) fn await_turn(&mut self, id: WorkerId, now: Time) -> bool {
        let Some(returned) = self.last_return else {
            return false;
        };
        let has_time = self.change_life(id, |worker| worker.await_turn(returned, now));
        has_time.unwrap_or(false)
    }

    /// Gives one that is overdue more time the first time, and if the server notices that late. Returns whether it has any.
    pub(crate) fn doubt(&mut self, id: WorkerId, now: Time, late: Duration) -> bool {
        let has_time = self.change_life(id, |worker| worker.doubt(now, late));
        has_time.unwrap_or(false)
    }

    /// When the first worker is lost without a sign of life.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Workers that should have shown a sign of life by now, at most so many, and when.
    pub(crate) fn overdue(&self, now: Time, most: usize) -> Vec<(Time, WorkerId)> {
        let due = self.deadlines.iter().take_while(|(time, _)| *time <= now);
        due.take(most).copied().collect()
    }

    /// Asks a worker to drain. Returns whether that is new; `None` = it has ended or is about to.
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
        // Who drained and stops now is still shown as draining.
        let after_drain = worker.is_draining();
        worker.set_duty(Duty::Stop { after_drain });
        // It is told to stop now, and drains no longer.
        self.draining.remove(&id);
        true
    }

    /// Workers that drain and were not told to stop yet.
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

    /// Gives the nodes of a multi-node task back: those that are live, and whether the command ran there. `None` = it
    /// had none.
    pub(crate) fn release_nodes(&mut self, task: TaskKey) -> Option<Vec<(WorkerId, bool)>> {
        let members = self.nodes.remove(&task)?;
        let freed = members.into_iter().filter_map(|id| {
            // Lost meanwhile, or it was and is back as a node of another task.
            let node = self.live.get_mut(&id)?.release_node(task)?;
            Some((id, node.is_root))
        });
        Some(freed.collect())
    }

    /// A worker is gone for ever. `None` = it was not live.
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
        // Workers are not lost in the order of their ids; people look for the newest.
        if reason.is_lost() {
            self.last_lost = self.last_lost.max(Some(id));
        }
        self.ended.extend(self.live.remove_entry(&id));
        // An allocation queue makes thousands of workers in a year.
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

    /// Workers of an earlier run of the server that are still waited for.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// A worker came back and said what it has (`is_heard`), or is given up. Returns whether it was the last that was waited for;
    /// `None` if it was not waited for.
    pub(crate) fn stop_awaiting(&mut self, id: WorkerId, is_heard: bool) -> Option<bool> {
        if !self.awaited.remove(&id) {
            return None;
        }
        self.has_unheard |= !is_heard;
        Some(self.awaited.is_empty())
    }

    /// Whether a worker was given up of which nobody knows what it has started.
    pub(crate) const fn has_unheard(&self) -> bool {
        self.has_unheard
    }

    /// Notes that there is such a worker, or that what it may have started has other instances by now.
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

    /// Each node of a multi-node task knows it, and is given nothing else. (It can have more after a restart: the
    /// task has ended, the node was sent others, and the server crashed before it had stored the end.)
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
