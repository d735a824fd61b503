//! How a task instance ended, and the words in which users are told.

use std::fmt;
use std::time::Duration;

/// Reason why a worker is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LostReason {
    /// `hq worker stop`.
    Stopped,
    /// The connection closed without a goodbye.
    ConnectionLost,
    /// No heartbeat for two periods.
    HeartbeatLost,
    /// Idle for longer than its idle timeout.
    IdleTimeout,
    /// Its time limit was reached.
    TimeLimitReached,
    /// The batch system ended the allocation around it; shown like a lost connection.
    AllocationEnded,
}

impl LostReason {
    /// Whether nobody asked it to end and it did not say that it would.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        match self {
            Self::ConnectionLost | Self::HeartbeatLost => true,
            Self::Stopped | Self::IdleTimeout | Self::TimeLimitReached | Self::AllocationEnded => {
                false
            }
        }
    }

    /// What to say after "the worker was lost:".
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

    /// Whether tasks that ran there count it towards their crash limit.
    #[must_use]
    pub const fn is_crash(self) -> bool {
        matches!(self, Self::ConnectionLost | Self::HeartbeatLost)
    }
}

/// End of one instance as the worker reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Exit code 0.
    Finished,
    /// Exit code other than 0.
    ExitCode(i32),
    /// Ended by this signal.
    Signal(i32),
    /// The time limit of the task ran out.
    TimeLimit,
    /// Ended for want of memory: by the kernel, or by the worker, which then says how much it used of
    /// what it asked for.
    OutOfMemory(Option<Box<str>>),
    /// Could not start, or failed with a message of its own; the text is shown as it is.
    Message(Box<str>),
    /// Killed because the server asked for it (cancel, abort, worker stop).
    Killed,
}

impl Outcome {
    /// The words that the worker adds, if it does.
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

    /// Text that `task info` and JSON show as the error; empty for `Finished` and `Killed`.
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
                "Out of memory: {words}. Ask for more with `--resource mem=…`, in MiB."
            ),
            Self::OutOfMemory(None) => "Program terminated with exit code -1. Received signal 9 (SIGKILL).\n\
                                  Out of memory: the kernel ended it to get memory back. Ask for more \
                                  with `--resource mem=…`, or run fewer tasks at a time."
                .to_string(),
            Self::Message(text) => text.to_string(),
        }
    }
}

/// What an ended instance used, as the kernel accounted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Largest resident set of the process or a waited-for child, in KiB.
    pub max_rss_kib: u64,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
}

/// Linux name of a signal number, `SIG<n>` for those without a name.
#[derive(Clone, Copy, Debug)]
pub struct SignalName(pub i32);

const SIGNAL_NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0 - 1)
            .ok()
            .and_then(|i| SIGNAL_NAMES.get(i));
        match name {
            Some(name) => f.write_str(name),
            None => write!(f, "SIG{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
