//! The end of a task instance, and its text for users.

use std::fmt;
use std::time::Duration;

/// The reason why a worker is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LostReason {
    /// The worker was stopped with `hq worker stop`.
    Stopped,
    /// The connection was closed without a goodbye.
    ConnectionLost,
    /// The worker gave no sign of life for
    /// [`WorkerConfig::silence_max`](crate::worker_config::WorkerConfig::silence_max).
    HeartbeatLost,
    /// The worker was idle for longer than its idle timeout.
    IdleTimeout,
    /// The worker reached its time limit.
    TimeLimitReached,
    /// The batch system ended the worker's allocation. This is shown like a lost connection.
    AllocationEnded,
}

impl LostReason {
    /// Returns whether the worker ended neither on request nor with a goodbye.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        match self {
            Self::ConnectionLost | Self::HeartbeatLost => true,
            Self::Stopped | Self::IdleTimeout | Self::TimeLimitReached | Self::AllocationEnded => {
                false
            }
        }
    }

    /// Returns whether the worker reached an end of its lifetime that was known in advance.
    #[must_use]
    pub const fn is_end_of_life(self) -> bool {
        match self {
            Self::TimeLimitReached | Self::AllocationEnded => true,
            Self::Stopped | Self::IdleTimeout | Self::ConnectionLost | Self::HeartbeatLost => false,
        }
    }

    /// Returns the name in events and rows of workers, such as `ConnectionLost`. The end of an
    /// allocation has the same name as a lost connection.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stopped => "Stopped",
            Self::ConnectionLost | Self::AllocationEnded => "ConnectionLost",
            Self::HeartbeatLost => "HeartbeatLost",
            Self::IdleTimeout => "IdleTimeout",
            Self::TimeLimitReached => "TimeLimitReached",
        }
    }

    /// Returns the reason with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Stopped,
            Self::ConnectionLost,
            Self::HeartbeatLost,
            Self::IdleTimeout,
            Self::TimeLimitReached,
        ];
        all.into_iter().find(|reason| reason.name() == name)
    }

    /// Returns the words that follow "the worker was lost:".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Stopped => "it was stopped",
            Self::ConnectionLost => "its connection closed",
            Self::HeartbeatLost => "it sent no heartbeat",
            Self::IdleTimeout => "it was idle for too long",
            Self::TimeLimitReached => "its time limit was reached",
            Self::AllocationEnded => "the batch system ended its allocation",
        }
    }

    /// Returns the error of an attempt on this worker that is followed by another attempt.
    #[must_use]
    pub fn attempt_error(self) -> String {
        format!("{WORKER_LOST}{}.", self.words())
    }

    /// Returns whether the loss counts toward the crash limit of the tasks that ran there.
    #[must_use]
    pub const fn is_crash(self) -> bool {
        matches!(self, Self::ConnectionLost | Self::HeartbeatLost)
    }
}

/// The outcome of an instance, as the worker reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The task finished with exit code 0.
    Finished,
    /// The task failed with a nonzero exit code.
    ExitCode(i32),
    /// The task was terminated by this signal.
    Signal(i32),
    /// The task reached its time limit.
    TimeLimit,
    /// The task ran out of memory and was killed by the kernel, or by the worker. In the latter
    /// case, the text contains the usage and the limit.
    OutOfMemory(Option<Box<str>>),
    /// The task could not start, or failed with a message of its own, which is shown unchanged.
    Message(Box<str>),
    /// The task was killed at the server's request (cancel, abort, worker stop).
    Killed,
}

/// The prefix of [`LostReason::attempt_error`].
const WORKER_LOST: &str = "The worker was lost: ";

/// The start of a line in the text of each [`Outcome::OutOfMemory`].
const OUT_OF_MEMORY: &str = "Out of memory: ";

/// Returns whether the error text of an attempt says that it ran out of memory.
#[must_use]
pub fn is_out_of_memory(error: &str) -> bool {
    error.lines().any(|line| line.starts_with(OUT_OF_MEMORY))
}

/// The start of the error text of a call whose value was lost elsewhere.
pub const VALUE_MISSING: &str = "A value that the call needs is not there";

/// The start of the line that a worker adds to the error of a task that failed on a full file
/// system.
pub const NO_ROOM: &str = "No room is left on the file system of ";

impl Outcome {
    /// Returns whether a call could not begin because another worker's value was missing.
    #[must_use]
    pub fn is_value_missing(&self) -> bool {
        self.text()
            .is_some_and(|text| text.starts_with(VALUE_MISSING))
    }

    /// Returns whether the worker's lifetime was over, judging by the text of
    /// [`LostReason::attempt_error`].
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let ends = [LostReason::TimeLimitReached, LostReason::AllocationEnded];
        self.text()
            .is_some_and(|text| ends.iter().any(|reason| text == reason.attempt_error()))
    }

    /// Returns whether the worker was lost, judging by the text of [`LostReason::attempt_error`].
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.text()
            .is_some_and(|text| text.starts_with(WORKER_LOST))
    }

    /// Returns the worker's text, if any.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Message(text) | Self::OutOfMemory(Some(text)) => Some(text),
            Self::Finished
            | Self::ExitCode(_)
            | Self::Signal(_)
            | Self::TimeLimit
            | Self::OutOfMemory(None)
            | Self::Killed => None,
        }
    }

    /// Returns the text that `task info` and JSON show as the error. Empty for `Finished` and
    /// `Killed`.
    #[must_use]
    pub fn error_text(&self) -> String {
        match self {
            Self::Finished | Self::Killed => String::new(),
            Self::ExitCode(code) => format!("Program terminated with exit code {code}."),
            Self::Signal(signal) => format!(
                "Program terminated with exit code -1. Received signal {signal} ({}).",
                SignalName(*signal)
            ),
            Self::TimeLimit => "Time limit reached".to_string(),
            Self::OutOfMemory(Some(words)) => format!(
                "{OUT_OF_MEMORY}{words}. Ask for more with `--resource mem=…`, in MiB."
            ),
            Self::OutOfMemory(None) => "Program terminated with exit code -1. Received signal 9 (SIGKILL).\n\
                                  Out of memory: the kernel ended it to get memory back. Ask for more \
                                  with `--resource mem=…`, or run fewer tasks at a time."
                .to_string(),
            Self::Message(text) => text.to_string(),
        }
    }
}

/// The number of an [`Outcome`] without its text: the exit code, the negated signal number, or a
/// special number below those of all signals.
///
/// The store and its views use these numbers. In the messages of workers, two of them are swapped;
/// see [`wire`](Self::wire). Neither set can change, because files and other releases use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutcomeCode(i32);

/// The negated largest signal number that the wire carries.
const SIGNAL_LAST: i32 = -127;

impl OutcomeCode {
    /// The code of [`Outcome::Finished`].
    pub const FINISHED: Self = Self(0);
    /// The code of [`Outcome::TimeLimit`].
    pub const TIME_LIMIT: Self = Self(-1_000);
    /// The code of [`Outcome::Message`].
    pub const MESSAGE: Self = Self(-1_001);
    /// The code of [`Outcome::Killed`].
    pub const KILLED: Self = Self(-1_002);
    /// The code of [`Outcome::OutOfMemory`].
    pub const OUT_OF_MEMORY: Self = Self(-1_003);

    /// The wire numbers of [`MESSAGE`](Self::MESSAGE) and [`KILLED`](Self::KILLED).
    const WIRE_MESSAGE: i32 = Self::KILLED.0;
    const WIRE_KILLED: i32 = Self::MESSAGE.0;

    /// Returns the code of an outcome.
    #[must_use]
    pub const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Finished => Self::FINISHED,
            Outcome::ExitCode(code) if *code < 0 => Self(0),
            Outcome::ExitCode(code) => Self(*code),
            Outcome::Signal(signal) if *signal > 0 => Self(-*signal),
            Outcome::Signal(signal) => Self(*signal),
            Outcome::TimeLimit => Self::TIME_LIMIT,
            Outcome::Message(_) => Self::MESSAGE,
            Outcome::Killed => Self::KILLED,
            Outcome::OutOfMemory(_) => Self::OUT_OF_MEMORY,
        }
    }

    /// Returns the code from a row of the store. Clamps numbers beyond 32 bits.
    #[must_use]
    pub fn from_number(number: i64) -> Self {
        Self(i32::try_from(number).unwrap_or(if number < 0 { -i32::MAX } else { i32::MAX }))
    }

    /// Returns the number that the store writes.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns the outcome. `text` is the stored text, if any.
    #[must_use]
    pub fn outcome(self, text: Option<Box<str>>) -> Outcome {
        match self {
            Self::FINISHED => Outcome::Finished,
            Self::TIME_LIMIT => Outcome::TimeLimit,
            Self::MESSAGE => Outcome::Message(text.unwrap_or_default()),
            Self::KILLED => Outcome::Killed,
            Self::OUT_OF_MEMORY => Outcome::OutOfMemory(text),
            Self(code) if code > 0 => Outcome::ExitCode(code),
            Self(code) => Outcome::Signal(code.saturating_neg()),
        }
    }

    /// Returns the number of an outcome in a worker's report. Clamps numbers that no kernel yields.
    #[must_use]
    pub fn wire(outcome: &Outcome) -> i32 {
        match outcome {
            Outcome::ExitCode(code) => (*code).max(1),
            Outcome::Signal(signal) => signal.saturating_neg().clamp(SIGNAL_LAST, -1),
            Outcome::Message(_) => Self::WIRE_MESSAGE,
            Outcome::Killed => Self::WIRE_KILLED,
            Outcome::Finished | Outcome::TimeLimit | Outcome::OutOfMemory(_) => Self::of(outcome).0,
        }
    }

    /// Returns the code for a number in a worker's report, or `None` if the number is unknown.
    #[must_use]
    pub const fn from_wire(number: i32) -> Option<Self> {
        match number {
            Self::WIRE_MESSAGE => Some(Self::MESSAGE),
            Self::WIRE_KILLED => Some(Self::KILLED),
            SIGNAL_LAST.. => Some(Self(number)),
            _ if number == Self::TIME_LIMIT.0 || number == Self::OUT_OF_MEMORY.0 => {
                Some(Self(number))
            }
            _ => None,
        }
    }
}

/// The resource usage of an ended instance, according to the kernel's accounting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The largest resident set of the process or of a reaped child, in KiB.
    pub max_rss_kib: u64,
    /// The CPU time in user mode.
    pub user: Duration,
    /// The CPU time in the kernel.
    pub system: Duration,
}

/// The numbers of the signals that can be sent to tasks.
pub const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// The Linux name of a signal number. Unnamed signals are shown as `SIG<n>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalName(pub i32);

/// The names of the signals, starting at 1.
const SIGNAL_NAMES: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP \
    TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS";

impl std::str::FromStr for SignalName {
    type Err = String;

    /// Parses `SIGTERM`, `term` or `15`.
    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_uppercase();
        let name = match upper.starts_with("SIG") {
            true => upper,
            false => format!("SIG{upper}"),
        };
        let named = || SIGNALS.map(Self).find(|signal| signal.to_string() == name);
        let found = text.parse().ok().map(Self).or_else(named);
        found
            .filter(|Self(number)| SIGNALS.contains(number))
            .ok_or_else(|| {
                format!(
                    "expected a signal such as SIGTERM, or a number from 1 to 64, found `{text}`"
                )
            })
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = usize::try_from(self.0 - 1).ok();
        match place.and_then(|place| SIGNAL_NAMES.split(' ').nth(place)) {
            Some(name) => write!(f, "SIG{name}"),
            None => write!(f, "SIG{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_the_outcomes_that_they_are_of() {
        let text = || Some("why".into());
        let all = [
            (Outcome::Finished, 0),
            (Outcome::ExitCode(1), 1),
            (Outcome::ExitCode(i32::MAX), i32::MAX),
            (Outcome::Signal(9), -9),
            (Outcome::TimeLimit, -1_000),
            (Outcome::Message("why".into()), -1_001),
            (Outcome::Killed, -1_002),
            (Outcome::OutOfMemory(text()), -1_003),
        ];
        for (outcome, number) in all {
            let code = OutcomeCode::of(&outcome);
            assert_eq!(code.number(), number, "files keep it: {outcome:?}");
            assert_eq!(OutcomeCode::from_number(number.into()), code);
            assert_eq!(code.outcome(text()), outcome);
            let wire = OutcomeCode::wire(&outcome);
            assert_eq!(OutcomeCode::from_wire(wire), Some(code), "{outcome:?}");
        }
        // Other releases use these numbers.
        assert_eq!(OutcomeCode::wire(&Outcome::Killed), -1_001);
        assert_eq!(OutcomeCode::wire(&Outcome::Message("".into())), -1_002);
        for unknown in [-128, -999, -1_004, i32::MIN] {
            assert_eq!(OutcomeCode::from_wire(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn error_texts_follow_the_documented_words() {
        assert_eq!(
            Outcome::ExitCode(3).error_text(),
            "Program terminated with exit code 3."
        );
        assert_eq!(
            Outcome::Signal(9).error_text(),
            "Program terminated with exit code -1. Received signal 9 (SIGKILL)."
        );
        assert_eq!(SignalName(64).to_string(), "SIG64");
        assert_eq!(SignalName(0).to_string(), "SIG0");
    }
}
