//! How a task is stopped, and after which outcomes it is retried.

use std::fmt;
use std::time::Duration;

use crate::growth::GrowSpec;
use crate::outcome::{Outcome, SignalName};

/// The longest wait before another attempt, no matter how often the delay has doubled.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// How a running task is asked to end before it is killed by a time limit, a cancel or the end of
/// its worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StopSpec {
    /// The signal for its process group.
    pub signal: i32,
    /// The time from the signal to SIGKILL.
    pub grace: Duration,
}

impl Default for StopSpec {
    /// Returns SIGINT, with a second to react.
    fn default() -> Self {
        Self {
            signal: 2,
            grace: Duration::from_secs(1),
        }
    }
}

/// The reason why an attempt counts as failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RetryCause {
    /// The exit code is in this range, both ends included.
    ExitCodes(u8, u8),
    /// The task was terminated by any signal.
    AnySignal,
    /// The task was terminated by this signal.
    Signal(u8),
    /// The time limit was reached.
    TimeLimit,
    /// The task ran out of memory.
    OutOfMemory,
    /// The program could not be started.
    Start,
    /// The worker was lost and the crash limit allows no restart.
    Lost,
}

impl fmt::Display for RetryCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExitCodes(1, u8::MAX) => f.write_str("exit"),
            Self::ExitCodes(first, last) if first == last => write!(f, "{first}"),
            Self::ExitCodes(first, last) => write!(f, "{first}-{last}"),
            Self::AnySignal => f.write_str("signal"),
            Self::Signal(number) => fmt::Display::fmt(&SignalName(i32::from(*number)), f),
            Self::TimeLimit => f.write_str("timeout"),
            Self::OutOfMemory => f.write_str("oom"),
            Self::Start => f.write_str("start"),
            Self::Lost => f.write_str("lost"),
        }
    }
}

/// The number of retries of a failed task, their causes and their delays.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RetrySpec {
    /// The number of attempts after the first one.
    pub limit: u16,
    /// The failures after which another attempt may follow.
    pub on: Vec<RetryCause>,
    /// The wait before the second attempt. It doubles from attempt to attempt, up to ten minutes.
    pub delay: Duration,
    /// The growth of the request for another attempt.
    pub grow: GrowSpec,
}

impl RetrySpec {
    /// The default causes of retries: everything that the program did or that happened to it. This
    /// excludes programs that could not be started, and lost workers, which the crash limit covers.
    pub const DEFAULT_ON: [RetryCause; 4] = [
        RetryCause::ExitCodes(1, u8::MAX),
        RetryCause::AnySignal,
        RetryCause::TimeLimit,
        RetryCause::OutOfMemory,
    ];

    /// Returns whether an attempt with this outcome may be retried. `ran` says whether the program
    /// had started.
    #[must_use]
    pub fn allows(&self, outcome: &Outcome, ran: bool) -> bool {
        let is_met = |cause: &RetryCause| match (cause, outcome) {
            (RetryCause::ExitCodes(first, last), Outcome::ExitCode(code)) => {
                (i32::from(*first)..=i32::from(*last)).contains(code)
            }
            // A message of the task replaces its exit code.
            (RetryCause::ExitCodes(1, u8::MAX), Outcome::Message(_)) => ran,
            (RetryCause::AnySignal, Outcome::Signal(_))
            | (RetryCause::TimeLimit, Outcome::TimeLimit)
            | (RetryCause::OutOfMemory, Outcome::OutOfMemory(_)) => true,
            (RetryCause::Signal(number), Outcome::Signal(signal)) => i32::from(*number) == *signal,
            (RetryCause::Start, Outcome::Message(_)) => !ran,
            _ => false,
        };
        self.on.iter().any(is_met)
    }

    /// Returns whether a loss beyond the crash limit may be retried.
    #[must_use]
    pub fn allows_loss(&self) -> bool {
        self.on.contains(&RetryCause::Lost)
    }

    /// Returns the wait before the retry with this number, counted from 1.
    #[must_use]
    pub fn delay_before(&self, retry: u16) -> Duration {
        let factor = 1_u32
            .checked_shl(u32::from(retry.saturating_sub(1)))
            .unwrap_or(u32::MAX);
        self.delay.saturating_mul(factor).min(DELAY_MAX)
    }
}

impl Default for RetrySpec {
    /// Returns a specification without retries.
    fn default() -> Self {
        Self {
            limit: 0,
            on: Self::DEFAULT_ON.to_vec(),
            delay: Duration::from_secs(1),
            grow: GrowSpec::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_match_their_outcomes() {
        let on = |cause| RetrySpec {
            on: vec![cause],
            ..RetrySpec::default()
        };
        let allows = |cause, outcome: &Outcome| on(cause).allows(outcome, true);
        assert!(allows(RetryCause::ExitCodes(3, 5), &Outcome::ExitCode(4)));
        assert!(!allows(RetryCause::ExitCodes(3, 5), &Outcome::ExitCode(6)));
        assert!(allows(RetryCause::Signal(9), &Outcome::Signal(9)));
        assert!(!allows(RetryCause::Signal(9), &Outcome::Signal(15)));
        assert!(!allows(RetryCause::AnySignal, &Outcome::OutOfMemory(None)));
        let words = Outcome::Message("own words".into());
        assert!(allows(RetryCause::ExitCodes(1, 255), &words));
        assert!(!allows(RetryCause::ExitCodes(1, 3), &words));
        assert!(on(RetryCause::Start).allows(&words, false));
        assert!(!RetrySpec::default().allows(&words, false));
    }

    #[test]
    fn the_delay_doubles_up_to_its_limit() {
        let spec = RetrySpec::default();
        assert_eq!(spec.delay_before(1), Duration::from_secs(1));
        assert_eq!(spec.delay_before(4), Duration::from_secs(8));
        assert_eq!(spec.delay_before(500), DELAY_MAX);
    }
}
