//! How a worker ends, and how it reacts to the loss of its server.

use std::time::Duration;

use super::effect::{Effect, ExitReason, Holding, StartedRow};
use super::input::Interrupt;
use super::running::{EndCause, Phase};
use super::{Mode, WorkerState};
use crate::outcome::Outcome;
use crate::time::{Time, nanos};
use crate::worker_config::OnServerLost;

/// How long a stopping worker waits for its tasks. Tasks usually end within a second.
const STOP_LIMIT: Duration = Duration::from_secs(5);

impl WorkerState {
    pub(super) fn on_server_lost(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // Declined tasks belong to the server again.
        self.declined.clear();
        // This also applies to a draining or stopping worker, because its reports would reach no
        // server.
        self.serverless_since.get_or_insert(now);
        if self.mode != Mode::Active {
            return;
        }
        self.is_held = false;
        // Tasks that have not started belong to the server again, which will assign them after a
        // reconnect.
        self.backlog.drain();
        let known = std::mem::take(&mut self.templates);
        effects.extend(known.into_keys().map(Effect::DropTemplate));
        match self.on_server_lost {
            OnServerLost::Stop => self.begin_stopping(now, ExitReason::ServerLost, effects),
            OnServerLost::FinishRunning | OnServerLost::Reconnect => self.mode = Mode::Detached,
        }
    }

    /// Handles the announced shutdown of the server.
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

    /// Reports all completions so far, because none can be reported after the goodbye.
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
        // The last report precedes the goodbye, because the server does not listen afterwards.
        effects.extend(self.outbox.take(now).into_iter().map(Effect::Report));
        self.serverless_since = Some(now);
        effects.push(Effect::Farewell);
    }

    /// Returns whether the server has announced its shutdown, so that the worker does not look for
    /// it. Must be called before the loss of the server is applied.
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

    /// Returns whether the worker only waits for tasks that it has asked to end.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.mode, Mode::Stopping { .. })
    }

    /// Returns the time by which every task of a stopping worker has received SIGKILL, because all
    /// grace periods are over. Before that, a task may be saving its data, which looks like a
    /// hanging file system from outside.
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

    /// Handles a lost server that cannot come back. Running tasks may finish, but no more tasks
    /// start.
    pub(super) fn on_server_gone(&mut self) {
        if self.mode == Mode::Detached {
            self.mode = Mode::Draining(ExitReason::ServerLost);
        }
    }

    /// Returns the worker's state for the server that it reconnects to. The state is complete:
    /// earlier unreported events are included or void.
    ///
    /// Unacknowledged completions appear only as instances that seem to be launching. The
    /// completions themselves follow in reports. This way, the server does not consider these
    /// instances lost, and the registration stays small however many there are.
    pub fn holding(&mut self, now: Time) -> Holding {
        self.outbox.rewind();
        let mut holding = Holding {
            launching: self.spent.iter().copied().collect(),
            ..Holding::default()
        };
        // A restarted server that does not know about a kill must not adopt the killed task,
        // because it would wait for a completion that does not count.
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
                // The task may not have started. Its completion or the end of the worker counts.
                Phase::Ending(EndCause::Killed | EndCause::TimeLimit | EndCause::WorkerEnd) => {
                    holding.launching.push(task.key);
                }
                Phase::Ending(EndCause::Void) => {}
            }
        }
        // On the wire, neighboring entries of one job share a group.
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
        // The server repeats the hold if it still applies.
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
        // These tasks are reported when the worker ends. Before that, the server would only send
        // them again.
        self.declined.extend(self.backlog.drain());
        for token in self.running.tokens() {
            self.end_task(token, EndCause::WorkerEnd, effects);
        }
    }
}
