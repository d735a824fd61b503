//! End of a worker, and reaction to the loss of its server.

use std::time::Duration;

use super::effect::{Effect, ExitReason, Holding, StartedRow};
use super::input::Interrupt;
use super::running::{EndCause, Phase};
use super::{Mode, WorkerState};
use crate::outcome::Outcome;
use crate::time::{Time, nanos};
use crate::worker_config::OnServerLost;

/// Longest wait of a stopping worker for its tasks; the usual sequence takes a second.
const STOP_LIMIT: Duration = Duration::from_secs(5);

impl WorkerState {
    pub(super) fn on_server_lost(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // Tasks that were sent but are not here belong to the server again.
        self.declined.clear();
        // Also for a draining or stopping worker: reports would reach no server.
        self.serverless_since.get_or_insert(now);
        if self.mode != Mode::Active {
            return;
        }
        self.is_held = false;
        // Unstarted tasks belong to the server again; it assigns them again after a reconnect.
        self.backlog.drain();
        let known = std::mem::take(&mut self.templates);
        effects.extend(known.into_keys().map(Effect::DropTemplate));
        match self.on_server_lost {
            OnServerLost::Stop => self.begin_stopping(now, ExitReason::ServerLost, effects),
            OnServerLost::FinishRunning | OnServerLost::Reconnect => self.mode = Mode::Detached,
        }
    }

    /// The server shuts down on request, and the results of running tasks are not wanted.
    pub(super) fn on_server_ends(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match (self.on_server_lost, self.mode) {
            (OnServerLost::FinishRunning, Mode::Active | Mode::Detached | Mode::Draining(_)) => {
                self.on_server_goodbye(now, effects)
            }
            (_, Mode::Stopping { .. } | Mode::Exited) => {}
            (
                OnServerLost::Stop | OnServerLost::Reconnect,
                Mode::Active | Mode::Detached | Mode::Draining(_),
            ) => self.begin_stopping(now, ExitReason::ServerEnded, effects),
        }
    }

    /// Ends up to now are reported; after the goodbye none could be.
    fn on_server_goodbye(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // No server is connected.
        if self.serverless_since.is_some() {
            return;
        }
        let returned = self.backlog.drain();
        self.outbox.push_retracted(returned);
        self.outbox.release_all_ends();
        if !matches!(self.mode, Mode::Draining(_)) {
            self.mode = Mode::Draining(ExitReason::ServerLost);
        }
        // The last report precedes the farewell: afterwards the server does not listen.
        effects.extend(self.outbox.take(now).into_iter().map(Effect::Report));
        self.serverless_since = Some(now);
        effects.push(Effect::Farewell);
    }

    /// Whether the server has said that it ends: then there is none to look for. To be asked before the loss of the server
    /// is applied.
    #[must_use]
    pub const fn is_dismissed(&self) -> bool {
        let has_taken_leave = self.serverless_since.is_some();
        let is_ended = matches!(
            self.mode,
            Mode::Stopping {
                reason: ExitReason::ServerEnded,
                ..
            }
        );
        has_taken_leave || is_ended
    }

    /// Whether it only waits for the ends of its tasks, which were asked to end.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.mode, Mode::Stopping { .. })
    }

    /// While it stops: when every task has received SIGKILL, because all grace periods are over.
    /// Before that, a task may be saving its data, which looks like a hung file system from
    /// outside.
    #[must_use]
    pub fn all_killed_at(&self) -> Option<Time> {
        let Mode::Stopping { deadline, .. } = self.mode else {
            return None;
        };
        let graces = self.running.iter().map(|(_, task)| {
            let template = self.templates.get(&task.template);
            template.map_or(STOP_LIMIT, |known| known.work.task.stop.grace)
        });
        let longest = graces.max();
        let left = STOP_LIMIT.saturating_sub(longest.unwrap_or_default());
        Some(Time(deadline.0.saturating_sub(nanos(left))))
    }

    /// The server has no location to return to: running tasks may end, nothing more starts.
    pub(super) fn on_server_gone(&mut self) {
        if self.mode == Mode::Detached {
            self.mode = Mode::Draining(ExitReason::ServerLost);
        }
    }

    /// State for the server that the worker reconnects to. It is complete: earlier unreported news
    /// is in it or void.
    ///
    /// For unacknowledged ends it lists only the instances, as if they were being launched; the
    /// ends follow in reports, however many they are. So the server does not take them for lost,
    /// and the registration stays small.
    pub fn holding(&mut self, now: Time) -> Holding {
        self.outbox.rewind();
        let mut holding = Holding {
            launching: self.spent.iter().copied().collect(),
            ..Holding::default()
        };
        // A restarted server that does not know of a kill must not adopt the killed task: it would
        // wait for an end that it does not count.
        let ended = self.outbox.ended();
        let ended = ended.filter(|ended| ended.outcome != Outcome::Killed);
        holding.launching.extend(ended.map(|ended| ended.key));
        for (_, task) in self.running.iter() {
            if task.variant != 0 {
                holding.variants.push((task.key, task.variant));
            }
            match task.phase {
                Phase::Starting => holding.launching.push(task.key),
                Phase::Running { since, .. } => holding.started.push(StartedRow {
                    key: task.key,
                    age: now.since(since),
                }),
                // It may not have started; its end, or that of the worker, counts.
                Phase::Ending(EndCause::Killed | EndCause::TimeLimit | EndCause::WorkerEnd) => {
                    holding.launching.push(task.key);
                }
                Phase::Ending(EndCause::Void) => {}
            }
        }
        // Neighbors of one job share a group on the wire.
        holding.launching.sort_unstable();
        holding.started.sort_unstable_by_key(|row| row.key);
        holding
    }

    pub(super) fn on_server_back(&mut self, reattached: bool, effects: &mut Vec<Effect>) {
        if !reattached {
            self.outbox.clear();
            self.spent.clear();
            for token in self.running.tokens() {
                self.end_task(token, EndCause::Void, effects);
            }
        }
        // The server repeats it if it still holds.
        self.is_held = false;
        self.serverless_since = None;
        if self.mode == Mode::Detached {
            self.mode = Mode::Active;
            self.may_start = true;
        }
    }

    pub(super) fn on_interrupt(
        &mut self,
        now: Time,
        interrupt: Interrupt,
        effects: &mut Vec<Effect>,
    ) {
        match (interrupt, self.mode) {
            (Interrupt::Drain, Mode::Active | Mode::Detached) => {
                let returned = self.backlog.drain();
                self.outbox.push_retracted(returned);
                self.mode = Mode::Draining(ExitReason::Interrupted);
            }
            (Interrupt::Drain, Mode::Draining(_) | Mode::Stopping { .. }) => {}
            (Interrupt::Terminate, Mode::Active | Mode::Detached | Mode::Draining(_)) => {
                self.begin_stopping(now, ExitReason::Interrupted, effects);
            }
            (Interrupt::Terminate, Mode::Stopping { reason, .. }) => {
                self.mode = Mode::Stopping {
                    reason,
                    deadline: now,
                };
            }
            (Interrupt::Preempt, Mode::Active | Mode::Detached | Mode::Draining(_)) => {
                self.begin_stopping(now, ExitReason::Preempted, effects);
            }
            (Interrupt::Signalled, Mode::Active | Mode::Detached | Mode::Draining(_)) => {
                self.outbox.await_answer();
            }
            (Interrupt::Preempt | Interrupt::Signalled, Mode::Stopping { .. })
            | (_, Mode::Exited) => {}
        }
    }

    pub(super) fn begin_stopping(
        &mut self,
        now: Time,
        reason: ExitReason,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(self.mode, Mode::Stopping { .. } | Mode::Exited) {
            return;
        }
        self.mode = Mode::Stopping {
            reason,
            deadline: now + STOP_LIMIT,
        };
        match reason {
            // The same signal, or the end of the allocation, made these tasks fail.
            ExitReason::Interrupted | ExitReason::Preempted | ExitReason::TimeLimit => {
                self.spent.extend(self.outbox.take_held());
            }
            ExitReason::Stopped
            | ExitReason::IdleTimeout
            | ExitReason::ServerLost
            | ExitReason::ServerEnded => self.outbox.release_all_ends(),
        }
        // Reported at the end: until then the server would only send it again.
        self.declined.extend(self.backlog.drain());
        for token in self.running.tokens() {
            self.end_task(token, EndCause::WorkerEnd, effects);
        }
    }
}
