//! What makes a round look at which workers, so that its cost follows what changed.
//!
//! A worker that was tried against everything that is ready gains room only by its own reports. A queue
//! that was empty may have something for any worker; for one that was not nobody had room.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::WorkerId;
use crate::scheduler::solve::RoundPlan;
use crate::scheduler::window::{SEARCH_WIDENED_MAX, Window};
use crate::scheduler::worker_plan::Seen;
use crate::time::Time;
use crate::worker::{Worker, Workers};

/// How often plans for multi-node tasks are looked at again, as long as there are some that wait.
const PLANS_CHECK: Duration = Duration::from_millis(250);

/// Most tasks that one round hands out, and about how many it asks back; what is left follows in the
/// next, so that nobody waits long.
pub(super) const ROUND_TASKS_MAX: u64 = 1_024;

/// How much a scheduling round had to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundSize {
    /// Workers that may have had room.
    pub workers: usize,
    /// Requests of one priority of which tasks were ready.
    pub queues: usize,
    /// Whether it looked for nodes for multi-node tasks, among all workers.
    pub with_gangs: bool,
    /// Multi-node tasks that it started.
    pub gangs: usize,
}

/// What the next round looks at, and when it is due without any other input.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTriggers {
    /// A queue that was empty got something since the last round.
    ready: bool,
    /// Any queue did.
    more: bool,
    /// Something changed for multi-node tasks.
    plans: bool,
    /// When to look at the plans for them again.
    plans_at: Option<Time>,
    /// Workers that may have room.
    room: BTreeSet<WorkerId>,
    /// Those of them whose turn comes first: the last round did not come to them.
    passed_over: BTreeSet<WorkerId>,
    /// How often the number of steps of a search is doubled, because the last ones met nothing that fits.
    search_widened: u32,
    /// Workers that take enough or nothing.
    demanding: BTreeSet<WorkerId>,
    /// The last round was cut: go on at this time, that is, at once.
    again_at: Option<Time>,
}

impl RoundTriggers {
    /// A queue that was empty got something, or was hidden from rounds until now.
    pub(super) const fn note_ready(&mut self) {
        self.ready = true;
    }

    /// Tasks were added to a queue that has some.
    pub(super) const fn note_more(&mut self) {
        self.more = true;
    }

    /// What waits or what could serve it changed for multi-node tasks.
    pub(super) const fn note_plans(&mut self) {
        self.plans = true;
    }

    /// A worker may have room.
    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.room.insert(worker);
    }

    /// The same for several.
    pub(super) fn note_rooms(&mut self, workers: impl IntoIterator<Item = WorkerId>) {
        self.room.extend(workers);
    }

    /// A worker joins.
    pub(super) fn add(&mut self, worker: &Worker) {
        if worker.config.min_utilization > 0.0 {
            self.demanding.insert(worker.id);
        }
        if worker.accepts_work() {
            self.room.insert(worker.id);
        }
    }

    /// A worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.room.remove(&worker);
        self.passed_over.remove(&worker);
        self.demanding.remove(&worker);
    }

    /// The next round is due at once.
    pub(super) const fn go_on(&mut self, now: Time) {
        self.again_at = Some(now);
    }

    /// When the next round is due without any other input.
    pub(super) fn due_at(&self) -> Option<Time> {
        [self.again_at, self.plans_at].into_iter().flatten().min()
    }

    /// Begins a round; says whether it looks at every worker.
    pub(super) fn begin(&mut self, workers: &Workers) -> bool {
        let is_everyone = std::mem::take(&mut self.ready);
        self.again_at = None;
        // Those that have not had their turn since the last time are there already.
        if is_everyone && self.room.len() < workers.live().len() {
            let able = workers.live().values();
            let able = able.filter(|worker| worker.accepts_work());
            self.room.extend(able.map(|worker| worker.id));
        } else if self.more {
            // These had room for a part of what they want, and wait until there is enough.
            self.room.extend(&self.demanding);
        }
        self.more = false;
        is_everyone
    }

    /// Whether any worker may have room.
    pub(super) fn has_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// No multi-node task waits.
    pub(super) const fn drop_plans(&mut self) {
        self.plans_at = None;
    }

    /// Whether a round looks for nodes for multi-node tasks.
    pub(super) fn are_plans_due(
        &mut self,
        now: Time,
        is_everyone: bool,
        workers: &Workers,
    ) -> bool {
        let has_changed = std::mem::take(&mut self.plans);
        let is_time = self.plans_at.is_none_or(|at| at <= now);
        // An empty worker may complete a set of nodes: it would idle until the timer otherwise.
        let are_due = has_changed || is_everyone || is_time || self.is_any_empty(workers);
        if are_due {
            self.plans_at = Some(now + PLANS_CHECK);
        }
        are_due
    }

    /// Whether a worker of the next round is empty.
    fn is_any_empty(&self, workers: &Workers) -> bool {
        let mut workers = self.room.iter().filter_map(|id| workers.get(*id));
        workers.any(|worker| worker.assigned().is_empty() && worker.accepts_work())
    }

    /// Workers that may have room; those that the last round passed over have their turn first.
    pub(super) fn rooms(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let others = self.room.iter();
        let others = others.filter(|id| !self.passed_over.contains(id));
        self.passed_over.iter().chain(others).copied()
    }

    /// How often the number of steps of a search is doubled.
    pub(super) const fn search_widened(&self) -> u32 {
        self.search_widened
    }

    /// Decides which workers have to be looked at again, and whether at once. `is_over` = nothing is ready any more.
    pub(super) fn note_round(
        &mut self,
        now: Time,
        window: &Window,
        answer: &RoundPlan,
        is_over: bool,
    ) {
        let is_idle = answer.placements.is_empty() && answer.gangs.is_empty();
        let has_more = !window.is_all && !is_idle;
        // The search gave up before it met anything that fits. What does fit may come behind thousands of requests that
        // just do not: an idle worker and its task have to meet, even if it takes a longer step.
        let is_blind = is_idle && window.rooms.values().any(Seen::is_blind);
        let is_wider = is_blind && self.search_widened < SEARCH_WIDENED_MAX;
        self.search_widened = match is_blind {
            true => self.search_widened + u32::from(is_wider),
            false => 0,
        };
        let stay = answer.is_cut || has_more || is_wider || window.is_behind || is_over;
        let is_partial = window.rooms.len() < self.room.len();
        if !stay {
            // They were tried against all that is left.
            for id in window.rooms.keys() {
                self.room.remove(id);
            }
        }
        if !is_partial {
            self.passed_over.clear();
        // A new cycle: all others have their turn before those of this round have another.
        } else if self.passed_over.is_empty() {
            self.passed_over = self.room.clone();
        }
        for id in window.rooms.keys() {
            self.passed_over.remove(id);
        }
        if !is_over && (stay || is_partial) {
            self.go_on(now);
        }
    }
}
