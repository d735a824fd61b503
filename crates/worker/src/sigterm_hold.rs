//! Ends of tasks that the batch system may have caused.
//!
//! A batch system that ends a job sends SIGTERM to every process in it, tasks included. A task that ends
//! by it just before the worker hears of its own end would count as failed. One that no longer knows a job,
//! as after a crash of its controller, sends SIGKILL at once, and the worker may have a moment to report what
//! happened to its task before it happens to itself. So, inside an allocation, such ends wait for a moment:
//! either the worker is ended, and then the task was ended with it, or they count.

use std::time::Duration;

use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchToken};
use tokio::time::Instant;

/// How long an end waits: longer than it takes to ask the batch system.
const WAIT: Duration = Duration::from_millis(1_500);

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// How shells report signals.
const SIGKILL_CODE: i32 = 128 + SIGKILL;
const SIGTERM_CODE: i32 = 128 + SIGTERM;

/// Ends of tasks that wait until it is clear whether the worker is being ended, too.
#[derive(Debug, Default)]
pub(crate) struct SigtermHold {
    events: Vec<LaunchEvent>,
    until: Option<Instant>,
}

impl SigtermHold {
    /// Moves ends that the batch system may have caused from `events` into the hold. A task that is being ended is not suspect.
    pub(crate) fn take_suspects(
        &mut self,
        events: &mut Vec<LaunchEvent>,
        is_ending: impl Fn(LaunchToken) -> bool,
    ) {
        let is_suspect = |event: &LaunchEvent| match event {
            LaunchEvent::Exited { token, status, .. } => {
                let by_signal = matches!(
                    status,
                    ExitStatus::Signal(SIGKILL | SIGTERM)
                        | ExitStatus::Code(SIGKILL_CODE | SIGTERM_CODE)
                );
                by_signal && !is_ending(*token)
            }
            LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => false,
        };
        if !events.iter().any(is_suspect) {
            return;
        }
        let (held, rest) = events.drain(..).partition(is_suspect);
        *events = rest;
        self.events.extend::<Vec<LaunchEvent>>(held);
        self.until.get_or_insert_with(|| Instant::now() + WAIT);
    }

    /// Time at which the held ends count; `None` without any.
    pub(crate) const fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Ends the wait and returns the held ends.
    pub(crate) fn release(&mut self) -> Vec<LaunchEvent> {
        self.until = None;
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_core::outcome::Usage;
    use hq_core::time::Time;

    fn exited(token: u64, status: ExitStatus) -> LaunchEvent {
        LaunchEvent::Exited {
            token: LaunchToken(token),
            status,
            ended: Time(0),
            run: Duration::ZERO,
            usage: Usage::default(),
            message: None,
        }
    }

    #[test]
    fn only_ends_by_the_signals_of_batch_systems_that_nobody_asked_for_are_in_doubt() {
        let mut held_ends = SigtermHold::default();
        let all = [
            exited(1, ExitStatus::Signal(15)),
            exited(2, ExitStatus::Code(143)),
            exited(3, ExitStatus::Signal(11)),
            exited(4, ExitStatus::Code(0)),
            exited(5, ExitStatus::Signal(15)),
            exited(6, ExitStatus::Signal(9)),
            exited(7, ExitStatus::Code(137)),
        ];
        let mut events = all.to_vec();
        held_ends.take_suspects(&mut events, |token| token == LaunchToken(5));
        assert_eq!(events, [all[2].clone(), all[3].clone(), all[4].clone()]);
        assert!(held_ends.until().is_some());
        let held = [0, 1, 5, 6].map(|at: usize| all[at].clone());
        assert_eq!(held_ends.release(), held);
        assert_eq!((held_ends.until(), held_ends.release()), (None, Vec::new()));
    }
}
