//! Handles what depends only on the state and the time: expired limits, starts and reports.
//!
//! A round examines the first task of each class in start order. A task that does not fit blocks
//! its class and reserves the resources that it needs: immediately against tasks of lower priority,
//! and after [`PATIENCE`] against tasks of the same priority. Small tasks can therefore use
//! resources that a large task cannot use, but do not starve it. They may take as many of these
//! resources as the large task will not need later (`resource::shadow`). A round costs O((classes +
//! started tasks) log classes), plus O(lanes) for each blocked class that precedes one with room.
//! Rounds run only after a task has arrived, left or ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use super::backlog::QueueKey;
use super::effect::{Effect, ExitReason, LaunchTask};
use super::entry::Class;
use super::running::{EndCause, Phase, RunningTask};
use super::{LaunchToken, Mode, WorkerState};
use crate::limits::LAUNCHED_MAX;
use crate::resource::pool::Reservation;
use crate::time::Time;
use crate::worker_config::OnServerLost;

/// How long tasks of the same priority may overtake a task that does not fit. This is long enough
/// to keep short tasks flowing, and short enough to keep a large task from starving.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an idle worker without unreported events waits for a lost server. A reboot or a repair
/// of the server's machine takes less time.
const SERVERLESS_MAX: Duration = Duration::from_secs(3_600);

/// The resources reserved for blocked tasks in a round.
#[derive(Debug, Default)]
struct Round {
    /// The resources reserved against all later tasks.
    reserved: Reservation,
    /// The resources reserved only against lower priorities.
    level: Reservation,
    level_priority: Option<Reverse<i32>>,
}

/// The first task of a class.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ClassHead {
    key: QueueKey,
    class: Arc<Class>,
    /// Whether it could start if there were no reservations.
    is_hopeful: bool,
}

impl Round {
    fn enter(&mut self, priority: Reverse<i32>) {
        // The reservations of a level apply to all less urgent tasks.
        if self.level_priority != Some(priority) {
            self.reserved.absorb(&mut self.level);
            self.level_priority = Some(priority);
        }
    }
}

impl WorkerState {
    /// Updates the state to the current time. This is the last step of every input.
    pub(super) fn advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // The order matters: expired limits, then starts, and only then idleness.
        self.end_overdue_tasks(now, effects);
        self.outbox.release_ends(now);
        if self.life_end.is_some_and(|end| end <= now) {
            self.begin_stopping(now, ExitReason::TimeLimit, effects);
        }
        self.withdraw_held_up(now, effects);
        self.give_back_held_up(now);
        self.check_time_requests(now);
        self.start_tasks(now, effects);
        self.note_idle(now);
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            self.begin_stopping(now, ExitReason::IdleTimeout, effects);
        }
        if self
            .abandon_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.begin_stopping(now, ExitReason::ServerLost, effects);
        }
        let exit = self.exit_reason(now);
        if exit.is_some() {
            // The declined tasks are sent with the last report, so that the server does not have to
            // wait for the loss of this worker.
            let declined = std::mem::take(&mut self.declined);
            self.outbox.push_retracted(declined);
        }
        if exit.is_some() || self.report_due().is_some_and(|due| due <= now) {
            effects.extend(self.outbox.take(now).into_iter().map(Effect::Report));
        }
        if let Some(reason) = exit {
            self.mode = Mode::Exited;
            effects.push(Effect::Exit(reason));
        }
    }

    pub(super) fn idle_deadline(&self) -> Option<Time> {
        match self.mode {
            Mode::Detached if self.on_server_lost == OnServerLost::FinishRunning => None,
            Mode::Active | Mode::Detached => Some(self.idle_since? + self.idle_timeout?),
            Mode::Draining(_) | Mode::Stopping { .. } | Mode::Exited => None,
        }
    }

    /// Returns when a worker without a server ends, provided that it runs no tasks and has no
    /// unreported events.
    pub(super) fn abandon_deadline(&self) -> Option<Time> {
        if self.mode != Mode::Detached {
            return None;
        }
        if self.on_server_lost == OnServerLost::FinishRunning {
            let lost = self.serverless_since?;
            let since = self.idle_since.unwrap_or(lost).max(lost);
            let is_done = self.running.is_empty() && !self.outbox.has_held();
            return is_done.then_some(since + self.server_wait);
        }
        if !self.outbox.is_settled() {
            return None;
        }
        // There must be no unreported completions, because they would be lost with the worker.
        Some(self.idle_since?.max(self.serverless_since?) + SERVERLESS_MAX)
    }

    /// Returns when waiting events must be sent. Returns `None` while disconnected.
    pub(super) fn report_due(&self) -> Option<Time> {
        // An otherwise idle worker reports a single task immediately. Other reports are collected.
        let starved = self.running.is_empty()
            || self.backlog.ready_len() == 0 && self.running.nothing_ahead();
        match self.mode {
            _ if self.serverless_since.is_some() => None,
            Mode::Detached | Mode::Exited => None,
            Mode::Active | Mode::Draining(_) | Mode::Stopping { .. } => {
                self.outbox.due(starved, &self.backlog)
            }
        }
    }

    /// Returns when the time requests of waiting tasks are compared with the worker's remaining
    /// lifetime.
    pub(super) fn check_due(&self) -> Option<Time> {
        // Without a limit, no task can take too long.
        self.life_end?;
        (!self.backlog.is_empty()).then_some(self.next_time_request_check)
    }

    fn exit_reason(&self, now: Time) -> Option<ExitReason> {
        match self.mode {
            Mode::Draining(reason) if self.running.is_empty() && !self.outbox.has_held() => {
                Some(reason)
            }
            Mode::Stopping { reason, deadline } if self.running.is_empty() || deadline <= now => {
                Some(reason)
            }
            Mode::Active
            | Mode::Detached
            | Mode::Draining(_)
            | Mode::Stopping { .. }
            | Mode::Exited => None,
        }
    }

    fn end_overdue_tasks(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(token) = self.running.overdue(now) {
            self.end_task(token, EndCause::TimeLimit, effects);
        }
    }

    /// Returns to the server the successors that wait for long tasks.
    fn give_back_held_up(&mut self, now: Time) {
        if !self.backlog.has_successors() {
            self.next_successor_check = None;
            return;
        }
        if self.next_successor_check.is_none_or(|due| due > now) {
            return;
        }
        let (mut long, mut next) = (Vec::new(), None::<Time>);
        for (_, task) in self.running.iter() {
            let Some(due) = self.held_up_from(task) else {
                continue;
            };
            if due <= now {
                long.push(task.key);
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        self.next_successor_check = next;
        for key in long {
            self.give_up_successors(key);
        }
    }

    /// Returns when the successors of a running task will have waited too long.
    fn held_up_from(&self, task: &RunningTask) -> Option<Time> {
        match task.phase {
            Phase::Running { since, .. } if self.backlog.is_any_behind(task.key) => {
                Some(since + self.successor_patience)
            }
            Phase::Running { .. } | Phase::Starting | Phase::Ending(_) => None,
        }
    }

    /// Notes that a successor waits for a task, which may be running, to end.
    pub(super) fn note_awaited(&mut self, token: LaunchToken) {
        let task = self.running.get(token);
        let due = task.and_then(|task| self.held_up_from(task));
        let due = [due, self.next_successor_check].into_iter().flatten();
        self.next_successor_check = due.min();
    }

    /// Periodically returns tasks that wait for room but no longer fit into the remaining time,
    /// because other workers may have room.
    fn check_time_requests(&mut self, now: Time) {
        if self.life_end.is_some() && self.next_time_request_check <= now {
            self.next_time_request_check = now + self.time_request_check;
            self.return_tasks_that_take_too_long(now);
        }
    }

    fn return_tasks_that_take_too_long(&mut self, now: Time) {
        let Some(end) = self.life_end else {
            return;
        };
        let life = end.since(now);
        let heads = self.backlog.heads();
        let expired: Vec<Arc<Class>> = heads
            .map(|(_, class)| class)
            .filter(|class| class.min_time > life)
            .collect();
        for class in expired {
            let returned = self.backlog.drain_class(&class);
            self.may_start = true;
            for key in returned {
                self.give_back(key);
            }
        }
    }

    fn note_idle(&mut self, now: Time) {
        let is_needed = self.is_held || self.is_relaying;
        if !self.running.is_empty() || !self.backlog.is_empty() || is_needed {
            // A held worker is not idle, because a node of a multi-node task must not leave the
            // others. A relay is not idle, because its workers may have no other route to the
            // server.
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(now);
        }
    }

    /// Starts every task that can start now. Does nothing unless something has changed since the
    /// last round.
    fn start_tasks(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !self.may_start || self.mode != Mode::Active || self.outbox.is_full() {
            return;
        }
        let room = LAUNCHED_MAX.saturating_sub(self.running.len());
        if room == 0 {
            // The next acknowledgement or completion triggers a round.
            return;
        }
        // These tasks still fit into the remaining time when they arrived.
        self.return_tasks_that_take_too_long(now);
        // Only arrivals, departures and completions of tasks set this again, because the next round
        // would otherwise have the same result.
        self.may_start = false;
        let mut heads: Vec<Reverse<ClassHead>> = Vec::new();
        for (key, class) in self.backlog.heads() {
            let is_hopeful = self.could_start(&class);
            heads.push(Reverse(ClassHead {
                key,
                class,
                is_hopeful,
            }));
        }
        let mut hopeful = heads.iter().filter(|head| head.0.is_hopeful).count();
        let mut heads = BinaryHeap::from(heads);
        let mut round = Round::default();
        let mut launches = Vec::new();
        let mut any_blocked = false;
        while launches.len() < room
            && let Some(Reverse(head)) = heads.pop()
        {
            let ClassHead { key, class, .. } = head;
            round.enter(key.priority);
            let started = self
                .start_first(now, &class, &round.reserved)
                // No task that waits longer could use this room.
                .or_else(|| (!any_blocked).then(|| self.start_ahead(&class)).flatten());
            if let Some(launch) = started {
                launches.push(launch);
                if let Some(key) = self.backlog.head(&class) {
                    let is_hopeful = true;
                    heads.push(Reverse(ClassHead {
                        key,
                        class,
                        is_hopeful,
                    }));
                } else {
                    hopeful -= 1;
                }
                continue;
            }
            if !std::mem::replace(&mut any_blocked, true) {
                self.withdraw_less_urgent(key.priority, effects);
            }
            let patient = self.backlog.note_blocked(&class, now) < PATIENCE;
            // Once no remaining class could start even alone, the rest need not be tried.
            hopeful -= usize::from(head.is_hopeful);
            if hopeful == 0 {
                // Later requests cannot start even without reservations.
                for Reverse(head) in heads {
                    self.backlog.note_blocked(&head.class, now);
                }
                break;
            }
            let kept_from = if patient {
                &mut round.level
            } else {
                &mut round.reserved
            };
            let held = self.running.lanes().map(|(_, lane)| lane.grant.as_ref());
            self.pools.reserve(&class.request, kept_from, held);
        }
        if !launches.is_empty() {
            effects.push(Effect::Launch(launches));
        }
    }

    /// Returns whether the first task of a class could start without reservations.
    fn could_start(&self, class: &Class) -> bool {
        self.is_short(class) || self.pools.fits(&class.request, &Reservation::default())
    }

    fn start_first(
        &mut self,
        now: Time,
        class: &Arc<Class>,
        reserved: &Reservation,
    ) -> Option<LaunchTask> {
        if !self.pools.fits(&class.request, reserved) || self.backlog.head(class).is_none() {
            return None;
        }
        let grant = Arc::new(self.pools.take(&class.request)?);
        let lane = self.running.open_lane(grant, Arc::clone(class), now);
        self.launch_first(class, lane)
    }

    /// Panics if the accounting is wrong. Used in tests and simulations.
    ///
    /// # Panics
    ///
    /// Panics if resources have leaked, or if a table disagrees with its source.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_invariants(&self) {
        self.backlog.check();
        for key in self.backlog.awaited() {
            assert!(self.knows(key), "{key}, which others wait for, is here");
        }
        let mut pools = self.pools.clone();
        let mut used = std::collections::BTreeMap::new();
        for (token, task) in self.running.iter() {
            assert_eq!(
                self.running.token_of(task.key),
                Some(token),
                "index of {}",
                task.key
            );
            assert!(
                self.running.lane(task.lane).is_some(),
                "{} has a lane",
                task.key
            );
        }
        self.running.check();
        for (_, lane) in self.running.lanes() {
            for entry in &lane.grant.entries {
                for granted in &entry.indices {
                    *used.entry((entry.pool, granted.index)).or_insert(0) += granted.units;
                }
            }
            pools.release(&lane.grant);
        }
        assert!(
            used.values().all(|units| *units <= 10_000),
            "an index is given twice"
        );
        assert!(
            pools.is_all_free(),
            "free and granted resources are all resources"
        );
    }
}
