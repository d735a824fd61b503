//! How a worker ends, and what the loss of its server means.

use std::time::Duration;

use super::effect::{Effect, ExitReason, Holding, StartedRow};
use super::input::Interrupt;
use super::running::{EndCause, Phase};
use super::{Mode, WorkerState};
use crate::outcome::Outcome;
use crate::time::{Time, nanos};
use crate::worker_config::OnServerLost;

/// Longest time a stopping worker waits for its tasks; the usual ladder takes a second.
const STOP_LIMIT: Duration = Duration::from_secs(5);

impl WorkerState {
    pub(super) fn on_server_lost(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // All that was sent and is not here is the server's again.
        self.declined.clear();
        // Also of a worker that drains or stops: what it reported now would reach nobody.
        self.serverless_since.get_or_insert(now);
        if self.mode != Mode::Active {
            return;
        }
        self.is_held = false;
        // Unstarted tasks are the server's again; a returning one assigns them again.
        self.backlog.drain();
        let known = std::mem::take(&mut self.templates);
        effects.extend(known.into_keys().map(Effect::DropTemplate));
        match self.on_server_lost {
            OnServerLost::Stop => self.begin_stopping(now, ExitReason::ServerLost, effects),
            OnServerLost::FinishRunning => self.mode = Mode::Draining(ExitReason::ServerLost),
            OnServerLost::Reconnect => self.mode = Mode::Detached,
        }
    }

    /// The server is about to end because somebody wants it to, and nobody will want what runs here.
    pub(super) fn on_server_ends(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match (self.on_server_lost, self.mode) {
            (OnServerLost::FinishRunning, Mode::Active | Mode::Detached | Mode::Draining(_)) => {
                self.let_server_go(now, effects)
            }
            (_, Mode::Stopping { .. } | Mode::Exited) => {}
            (
                OnServerLost::Stop | OnServerLost::Reconnect,
                Mode::Active | Mode::Detached | Mode::Draining(_),
            ) => self.begin_stopping(now, ExitReason::ServerEnded, effects),
        }
    }

    /// Ends up to now are reported; after the goodbye none could be.
    fn let_server_go(&mut self, now: Time, effects: &mut Vec<Effect>) {
        // Nobody is there to be told.
        if self.serverless_since.is_some() {
            return;
        }
        let returned = self.backlog.drain();
        self.outbox.push_retracted(returned);
        self.outbox.release_all_ends();
        if !matches!(self.mode, Mode::Draining(_)) {
            self.mode = Mode::Draining(ExitReason::ServerLost);
        }
        // The last report goes out before the farewell: afterwards nobody listens.
        effects.extend(self.outbox.take(now).into_iter().map(Effect::Report));
        self.serverless_since = Some(now);
        effects.push(Effect::Farewell);
    }

    /// Whether the server has said that it ends: then there is none to look for.
    #[must_use]
    pub const fn is_dismissed(&self) -> bool {
        matches!(
            self.mode,
            Mode::Stopping {
                reason: ExitReason::ServerEnded,
                ..
            }
        )
    }

    /// Whether it only waits for the ends of its tasks, which have been told to end.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.mode, Mode::Stopping { .. })
    }

    /// While it stops: the moment from which every task has had SIGKILL, because the grace of the last one is over.
    /// Before that a task may be saving what it has, which looks the same from outside as a hung file system.
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

    /// There is no place any more at which the server could come back: what runs may end, no more.
    pub(super) fn on_server_gone(&mut self) {
        if self.mode == Mode::Detached {
            self.mode = Mode::Draining(ExitReason::ServerLost);
        }
    }

    /// State that a server to which the worker returns must know. It is complete: news that came before it and was not reported
    /// is in it or void.
    ///
    /// Of ends that were not acknowledged only the instances are in it, as if they were being launched: the ends follow in
    /// reports, however many they are. So the server does not take them for lost, and the registration stays small.
    pub fn holding(&mut self, now: Time) -> Holding {
        self.outbox.rewind();
        let mut holding = Holding {
            launching: self.spent.iter().copied().collect(),
            ..Holding::default()
        };
        // The end of a task that was killed on request must not be taken over by a server that was restarted and does
        // not know of that: it would wait for an end that it leaves alone.
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
                // It may not have started; its end, or that of the worker, is what counts.
                Phase::Ending(EndCause::Killed | EndCause::TimeLimit | EndCause::WorkerEnd) => {
                    holding.launching.push(task.key);
                }
                Phase::Ending(EndCause::Void) => {}
            }
        }
        // Neighbours of one job share a group on the wire.
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
        // The server says so again if it still holds.
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
        // Said at the end: until then the server would only send it again.
        self.declined.extend(self.backlog.drain());
        for token in self.running.tokens() {
            self.end_task(token, EndCause::WorkerEnd, effects);
        }
    }
}
