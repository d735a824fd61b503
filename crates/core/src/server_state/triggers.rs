//! Selects the workers that a round examines, so that its cost depends on the number of changes.
//!
//! After a worker has been tried against all ready tasks, it gains room only by its own reports. A
//! queue that was empty and got tasks may fit on any worker. A queue that was not empty fits on
//! none of the workers that were tried.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::WorkerId;
use crate::scheduler::solve::RoundPlan;
use crate::scheduler::window::{SEARCH_WIDENED_MAX, Window};
use crate::scheduler::worker_plan::SeenPriority;
use crate::time::Time;
use crate::worker::{Worker, Workers};

/// The interval between new plans for multi-node tasks, while some tasks wait.
const PLANS_CHECK: Duration = Duration::from_millis(250);

/// The maximum number of tasks dispatched per round, and the approximate maximum number of
/// retracted tasks. The rest follows in the next round, so that no client waits long.
pub(super) const ROUND_TASKS_MAX: u64 = 1_024;

/// The amount of work of a scheduling round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundSize {
    /// The number of workers that may have room.
    pub workers: usize,
    /// The number of requests with ready tasks, counted per priority.
    pub queues: usize,
    /// Whether the round planned multi-node tasks, which involves all workers.
    pub with_gangs: bool,
    /// The number of multi-node tasks that the round started.
    pub gangs: usize,
}

/// The scope of the next round, and the time when it is due without other inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTriggers {
    /// Whether an empty queue has received tasks since the last round.
    ready: bool,
    /// Whether any queue has received tasks since the last round.
    more: bool,
    /// Whether something has changed that affects multi-node tasks.
    plans: bool,
    /// The time of the next plan for multi-node tasks.
    plans_at: Option<Time>,
    /// The workers that may have room.
    room: BTreeSet<WorkerId>,
    /// The workers whose turn comes first, because the last round did not reach them.
    passed_over: BTreeSet<WorkerId>,
    /// How many times the step limit of searches has been doubled because the last searches found
    /// nothing.
    search_widened: u32,
    /// The workers with a minimum utilization.
    demanding: BTreeSet<WorkerId>,
    /// The time at which to continue, if the last round was cut short. It is always the time of
    /// that round.
    again_at: Option<Time>,
}

impl RoundTriggers {
    /// Notes that an empty queue got tasks, or that a hidden queue is now visible to rounds.
    pub(super) const fn note_ready(&mut self) {
        self.ready = true;
    }

    /// Notes that tasks were added to a queue that is not empty.
    pub(super) const fn note_more(&mut self) {
        self.more = true;
    }

    /// Notes a change to multi-node tasks or to the workers that could run them.
    pub(super) const fn note_plans(&mut self) {
        self.plans = true;
    }

    /// Notes that a worker may have room.
    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.room.insert(worker);
    }

    /// Notes that several workers may have room.
    pub(super) fn note_rooms(&mut self, workers: impl IntoIterator<Item = WorkerId>) {
        self.room.extend(workers);
    }

    /// Adds a worker that has joined.
    pub(super) fn add(&mut self, worker: &Worker) {
        if worker.config.min_utilization > 0.0 {
            self.demanding.insert(worker.id);
        }
        if worker.accepts_work() {
            self.room.insert(worker.id);
        }
    }

    /// Removes a worker that is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.room.remove(&worker);
        self.passed_over.remove(&worker);
        self.demanding.remove(&worker);
    }

    /// Requests that the next round starts immediately.
    pub(super) const fn go_on(&mut self, now: Time) {
        self.again_at = Some(now);
    }

    /// Returns whether the next round examines every worker.
    pub(super) const fn examines_all(&self) -> bool {
        self.ready
    }

    /// Returns the time of the next round without other inputs.
    pub(super) fn due_at(&self) -> Option<Time> {
        [self.again_at, self.plans_at].into_iter().flatten().min()
    }

    /// Begins a round. Returns whether it examines every worker.
    pub(super) fn begin(&mut self, workers: &Workers) -> bool {
        let is_everyone = std::mem::take(&mut self.ready);
        self.again_at = None;
        // Workers that have not had their turn since the last such round are already in the set.
        if is_everyone && self.room.len() < workers.live().len() {
            let able = workers.live().values();
            let able = able.filter(|worker| worker.accepts_work());
            self.room.extend(able.map(|worker| worker.id));
        } else if self.more {
            // These workers had too little room for their minimum utilization, and wait for enough
            // tasks.
            self.room.extend(&self.demanding);
        }
        self.more = false;
        is_everyone
    }

    /// Returns whether any worker may have room.
    pub(super) fn has_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// Notes that no multi-node task waits.
    pub(super) const fn drop_plans(&mut self) {
        self.plans_at = None;
    }

    /// Returns whether a round plans multi-node tasks.
    pub(super) fn are_plans_due(
        &mut self,
        now: Time,
        is_everyone: bool,
        workers: &Workers,
    ) -> bool {
        let has_changed = std::mem::take(&mut self.plans);
        let is_time = self.plans_at.is_none_or(|at| at <= now);
        // An empty worker may complete a set of nodes. Without a plan, it would be idle until the
        // timer expires.
        let are_due = has_changed || is_everyone || is_time || self.is_any_empty(workers);
        if are_due {
            self.plans_at = Some(now + PLANS_CHECK);
        }
        are_due
    }

    /// Returns whether any worker of the next round is empty.
    fn is_any_empty(&self, workers: &Workers) -> bool {
        let mut workers = self.room.iter().filter_map(|id| workers.get(*id));
        workers.any(|worker| worker.assigned().is_empty() && worker.accepts_work())
    }

    /// Returns the workers that may have room. Workers that the last round did not reach come
    /// first.
    pub(super) fn rooms(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let others = self.room.iter();
        let others = others.filter(|id| !self.passed_over.contains(id));
        self.passed_over.iter().chain(others).copied()
    }

    /// Returns how many times the step limit of a search is doubled.
    pub(super) const fn search_widened(&self) -> u32 {
        self.search_widened
    }

    /// Decides which workers must be examined again, and whether immediately. `is_over` means that
    /// no ready tasks are left.
    pub(super) fn note_round(
        &mut self,
        now: Time,
        window: &Window,
        answer: &RoundPlan,
        has_handed_out: bool,
        is_over: bool,
    ) {
        let is_idle = !has_handed_out && answer.gangs.is_empty();
        let has_more = !window.is_all && !is_idle;
        // The search ran out of steps before it found a fit. Thousands of requests that are
        // slightly too large may precede one that fits. An idle worker must find its task even if
        // the step takes longer.
        let is_blind = is_idle && window.rooms.values().any(SeenPriority::is_blind);
        let is_wider = is_blind && self.search_widened < SEARCH_WIDENED_MAX;
        self.search_widened = match is_blind {
            true => self.search_widened + u32::from(is_wider),
            false => 0,
        };
        // The same round again would hand out nothing again.
        let is_cut = answer.is_cut && !is_idle;
        let stay = is_cut || has_more || is_wider || window.is_behind || is_over;
        let is_partial = window.rooms.len() < self.room.len();
        if !stay {
            // The workers were tried against everything that is left.
            for id in window.rooms.keys() {
                self.room.remove(id);
            }
        }
        if !is_partial {
            self.passed_over.clear();
        // In a new cycle, all other workers have their turn before the workers of this round.
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

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::sync::Arc;

    use super::*;
    use crate::class::{ClassId, Classes, QueueKey};
    use crate::scheduler::solve::Placement;
    use crate::testing::worker_config;
    use crate::time::Timestamp;

    const NOW: Time = Time(1_000_000_000);

    fn workers(count: u32) -> Workers {
        let (mut workers, mut classes) = (Workers::default(), Classes::default());
        for id in 1..=count {
            let config = worker_config(1);
            let offers = classes.offers(&config.resources);
            let id = WorkerId(id);
            workers.add(Worker::new(id, Arc::new(config), offers, NOW, Timestamp(0)));
        }
        workers
    }

    fn triggers(workers: &Workers) -> RoundTriggers {
        let mut triggers = RoundTriggers::default();
        for worker in workers.live().values() {
            triggers.add(worker);
        }
        triggers
    }

    /// Returns the window of a round that examined everything relevant to these workers.
    fn saw(workers: &[u32]) -> Window {
        let rooms = workers
            .iter()
            .map(|id| (WorkerId(*id), SeenPriority::default()));
        Window {
            rooms: rooms.collect(),
            is_all: true,
            ..Window::default()
        }
    }

    fn placed() -> RoundPlan {
        let placement = Placement {
            key: QueueKey::new(0, ClassId(0)),
            worker: WorkerId(1),
            variant: 0,
            count: 1,
            placed: true,
        };
        RoundPlan {
            placements: vec![placement],
            ..RoundPlan::default()
        }
    }

    fn rooms(triggers: &RoundTriggers) -> Vec<u32> {
        triggers.rooms().map(|id| id.0).collect()
    }

    #[test]
    fn a_worker_that_was_tried_against_everything_is_not_looked_at_again() {
        let workers = workers(2);
        let mut triggers = triggers(&workers);
        triggers.begin(&workers);
        triggers.note_round(NOW, &saw(&[1, 2]), &placed(), true, false);
        assert!(!triggers.has_room());
        assert_eq!(triggers.due_at(), None);
        triggers.note_room(WorkerId(2));
        assert_eq!(rooms(&triggers), [2]);
        assert!(!triggers.begin(&workers), "only that one");
        triggers.note_ready();
        assert!(triggers.begin(&workers), "an empty queue got something");
        assert_eq!(rooms(&triggers), [1, 2]);
    }

    #[test]
    fn a_worker_that_is_gone_has_no_room() {
        let workers = workers(2);
        let mut triggers = triggers(&workers);
        triggers.forget(WorkerId(2));
        assert_eq!(rooms(&triggers), [1]);
        triggers.forget(WorkerId(1));
        assert!(!triggers.has_room(), "no round examines an empty set");
    }

    #[test]
    fn a_round_that_did_not_come_to_an_end_goes_on_at_once_with_the_same_workers() {
        let workers = workers(1);
        let cut = |plan| RoundPlan {
            is_cut: true,
            ..plan
        };
        let behind = Window {
            is_behind: true,
            ..saw(&[1])
        };
        let part = Window {
            is_all: false,
            ..saw(&[1])
        };
        let idle = RoundPlan::default;
        let cases = [
            (saw(&[1]), cut(placed()), true),
            (saw(&[1]), cut(idle()), false),
            (behind, idle(), true),
            (part.clone(), placed(), true),
            (part, idle(), false),
            (saw(&[1]), placed(), false),
        ];
        for (window, plan, goes_on) in cases {
            let mut triggers = triggers(&workers);
            triggers.note_round(NOW, &window, &plan, !plan.placements.is_empty(), false);
            assert_eq!(triggers.due_at(), goes_on.then_some(NOW), "{plan:?}");
            assert_eq!(triggers.has_room(), goes_on, "{window:?}");
        }
    }

    #[test]
    fn with_nothing_left_workers_keep_their_room_and_no_round_follows() {
        let workers = workers(1);
        let mut triggers = triggers(&workers);
        triggers.note_round(NOW, &saw(&[1]), &placed(), true, true);
        assert!(triggers.has_room());
        assert_eq!(triggers.due_at(), None);
    }

    #[test]
    fn workers_that_a_round_passed_over_have_their_turn_before_the_others_have_another() {
        let workers = workers(4);
        let mut triggers = triggers(&workers);
        triggers.note_round(NOW, &saw(&[1, 2]), &placed(), true, false);
        triggers.note_rooms([WorkerId(1), WorkerId(2)]);
        assert_eq!(rooms(&triggers), [3, 4, 1, 2]);
        assert_eq!(triggers.due_at(), Some(NOW));
        triggers.note_round(NOW, &saw(&[3]), &placed(), true, false);
        triggers.note_room(WorkerId(3));
        assert_eq!(rooms(&triggers), [4, 1, 2, 3]);
        triggers.note_round(NOW, &saw(&[1, 2, 3, 4]), &placed(), true, false);
        triggers.note_rooms([WorkerId(4), WorkerId(2)]);
        assert_eq!(rooms(&triggers), [2, 4], "nobody was passed over");
    }

    #[test]
    fn a_search_that_met_nothing_looks_further_each_time_and_not_for_ever() {
        let workers = workers(1);
        let mut triggers = triggers(&workers);
        let blind = SeenPriority {
            fitting: Some(Reverse(i32::MAX)),
            ahead: None,
        };
        let window = Window {
            rooms: [(WorkerId(1), blind)].into_iter().collect(),
            ..Window::default()
        };
        let plan = RoundPlan::default();
        for widened in 1..=SEARCH_WIDENED_MAX {
            triggers.note_round(NOW, &window, &plan, !plan.placements.is_empty(), false);
            assert_eq!(triggers.search_widened(), widened);
            assert!(triggers.has_room() && triggers.due_at() == Some(NOW));
            triggers.begin(&workers);
        }
        triggers.note_round(NOW, &window, &plan, !plan.placements.is_empty(), false);
        assert_eq!(triggers.search_widened(), SEARCH_WIDENED_MAX);
        assert!(!triggers.has_room(), "it waits for something to change");
        triggers.note_round(NOW, &saw(&[1]), &plan, !plan.placements.is_empty(), false);
        assert_eq!(triggers.search_widened(), 0);
    }

    #[test]
    fn nodes_are_looked_for_when_something_changed_a_worker_is_empty_or_time_has_passed() {
        let none = Workers::default();
        let mut triggers = RoundTriggers::default();
        assert!(triggers.are_plans_due(NOW, false, &none), "the first time");
        assert_eq!(triggers.due_at(), Some(NOW + PLANS_CHECK));
        assert!(!triggers.are_plans_due(NOW, false, &none), "just now");
        triggers.note_plans();
        assert!(triggers.are_plans_due(NOW, false, &none), "a change");
        assert!(!triggers.are_plans_due(NOW, false, &none), "looked at");
        assert!(triggers.are_plans_due(NOW, true, &none), "all are tried");
        let later = NOW + PLANS_CHECK;
        assert!(triggers.are_plans_due(later, false, &none));
        let workers = workers(1);
        assert!(!triggers.are_plans_due(later, false, &workers));
        triggers.note_room(WorkerId(1));
        assert!(triggers.are_plans_due(later, false, &workers), "empty");
        triggers.forget(WorkerId(1));
        triggers.drop_plans();
        assert_eq!(triggers.due_at(), None);
    }

    #[test]
    fn workers_that_take_enough_or_nothing_are_tried_when_more_of_anything_is_there() {
        let (mut workers, mut classes) = (workers(1), Classes::default());
        let mut config = worker_config(1);
        config.min_utilization = 0.5;
        let offers = classes.offers(&config.resources);
        let demanding = Worker::new(WorkerId(2), Arc::new(config), offers, NOW, Timestamp(0));
        workers.add(demanding);
        let mut triggers = triggers(&workers);
        triggers.note_round(NOW, &saw(&[1, 2]), &placed(), true, false);
        triggers.begin(&workers);
        assert!(!triggers.has_room(), "nothing came");
        triggers.note_more();
        triggers.begin(&workers);
        assert_eq!(rooms(&triggers), [2]);
    }
}
