//! Why a queue does or does not request allocations, as one line for users.

use std::fmt;
use std::time::Duration;

use crate::scheduler::demand::Unfit;
use crate::words::{self, count};

/// The reason, with figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A user paused the queue with `hq alloc pause`.
    PausedByUser,
    /// The queue was paused in an earlier run of the server, for this reason.
    PausedBefore(Box<str>),
    /// Too many submissions were rejected. Contains the text of the last rejection.
    PausedBySubmissions(String),
    /// Too many allocations failed. Contains the text of the last failure.
    PausedByAllocations(String),
    /// It is unknown whether a submission succeeded.
    Unsure(String),
    /// Enough allocations wait in the batch system.
    Backlog {
        /// The number of waiting allocations.
        waiting: u32,
        /// The maximum number of waiting allocations.
        max: u32,
        /// The batch system's reason for the first allocation.
        hint: String,
    },
    /// The worker limit has been reached.
    WorkerCount {
        /// The number of workers.
        workers: u32,
        /// The maximum number of workers.
        max: u32,
    },
    /// The queue pauses after a submission or an allocation that did not succeed.
    BackOff {
        /// The remaining pause.
        left: Duration,
        /// The answer of the batch system.
        why: String,
        /// Whether the queue is failing. It is not failing if it has allocations and the batch
        /// system merely accepts no more requests.
        is_failure: bool,
    },
    /// The queue is new.
    NotAsked,
    /// Existing workers can take all tasks.
    NoTasks,
    /// The queue requests allocations, or requests them again after a failure.
    Asking(Option<String>),
    /// Workers on their way will take the waiting tasks.
    Covered,
    /// The queue's workers cannot run the waiting tasks.
    Unfit {
        /// The number of waiting tasks.
        waiting: u64,
        /// The reason.
        unfit: Unfit,
        /// Whether the queue's options promise room for the tasks.
        is_failing: bool,
    },
    /// Other queues serve the waiting tasks.
    OtherQueues,
}

/// The kind of a [`Reason`], for decisions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReasonKind {
    /// A user paused the queue with `hq alloc pause`.
    PausedByUser,
    /// The queue was paused in an earlier run of the server.
    PausedBefore,
    /// Too many submissions were rejected.
    PausedBySubmissions,
    /// Too many allocations failed.
    PausedByAllocations,
    /// It is unknown whether a submission succeeded.
    Unsure,
    /// Enough allocations wait in the batch system, or it accepts no more requests for now.
    Backlog,
    /// The worker limit has been reached.
    WorkerCount,
    /// The queue pauses after a failure.
    BackOff,
    /// The queue is new.
    NotAsked,
    /// Existing workers can take all tasks.
    NoTasks,
    /// The queue requests allocations.
    Asking,
    /// The queue requests allocations again, after a failure.
    AskingAgain,
    /// Workers on their way will take the waiting tasks.
    Covered,
    /// The queue's workers cannot run the waiting tasks.
    Unfit,
    /// Other queues serve the waiting tasks.
    OtherQueues,
}

impl ReasonKind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::PausedByUser,
        Self::PausedBefore,
        Self::PausedBySubmissions,
        Self::PausedByAllocations,
        Self::Unsure,
        Self::Backlog,
        Self::WorkerCount,
        Self::BackOff,
        Self::NotAsked,
        Self::NoTasks,
        Self::Asking,
        Self::AskingAgain,
        Self::Covered,
        Self::Unfit,
        Self::OtherQueues,
    ];

    /// Returns the machine-readable name, such as `back-off`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PausedByUser => "paused-by-user",
            Self::PausedBefore => "paused-before",
            Self::PausedBySubmissions => "paused-by-submissions",
            Self::PausedByAllocations => "paused-by-allocations",
            Self::Unsure => "unsure",
            Self::Backlog => "backlog",
            Self::WorkerCount => "worker-count",
            Self::BackOff => "back-off",
            Self::NotAsked => "not-asked",
            Self::NoTasks => "no-tasks",
            Self::Asking => "asking",
            Self::AskingAgain => "asking-again",
            Self::Covered => "covered",
            Self::Unfit => "unfit",
            Self::OtherQueues => "other-queues",
        }
    }

    /// Returns whether the batch system rejects submissions or allocations fail.
    #[must_use]
    pub const fn is_failing(self) -> bool {
        match self {
            Self::PausedBySubmissions
            | Self::PausedByAllocations
            | Self::Unsure
            | Self::BackOff
            | Self::AskingAgain => true,
            Self::PausedByUser
            | Self::PausedBefore
            | Self::Backlog
            | Self::WorkerCount
            | Self::NotAsked
            | Self::NoTasks
            | Self::Asking
            | Self::Covered
            | Self::Unfit
            | Self::OtherQueues => false,
        }
    }
}

impl Reason {
    /// Returns the kind of the reason.
    #[must_use]
    pub const fn kind(&self) -> ReasonKind {
        match self {
            Self::PausedByUser => ReasonKind::PausedByUser,
            Self::PausedBefore(_) => ReasonKind::PausedBefore,
            Self::PausedBySubmissions(_) => ReasonKind::PausedBySubmissions,
            Self::PausedByAllocations(_) => ReasonKind::PausedByAllocations,
            Self::Unsure(_) => ReasonKind::Unsure,
            Self::Backlog { .. } => ReasonKind::Backlog,
            Self::WorkerCount { .. } => ReasonKind::WorkerCount,
            Self::BackOff {
                is_failure: false, ..
            } => ReasonKind::Backlog,
            Self::BackOff { .. } => ReasonKind::BackOff,
            Self::NotAsked => ReasonKind::NotAsked,
            Self::NoTasks => ReasonKind::NoTasks,
            Self::Asking(None) => ReasonKind::Asking,
            Self::Asking(Some(_)) => ReasonKind::AskingAgain,
            Self::Covered => ReasonKind::Covered,
            // The queue requests allocations again only after a pause.
            Self::Unfit {
                is_failing: true, ..
            } => ReasonKind::BackOff,
            Self::Unfit { .. } => ReasonKind::Unfit,
            Self::OtherQueues => ReasonKind::OtherQueues,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RESUME: &str = "`hq alloc resume` makes it active again";
        match self {
            Self::PausedByUser => write!(f, "paused by `hq alloc pause`; {RESUME}"),
            Self::PausedBefore(why) => f.write_str(why),
            Self::PausedBySubmissions(why) => {
                write!(
                    f,
                    "paused after too many failed submissions; {RESUME}; the last: {}",
                    Line(why)
                )
            }
            Self::PausedByAllocations(why) => {
                write!(
                    f,
                    "paused after too many failed allocations; {RESUME}; the last: {}",
                    Line(why)
                )
            }
            Self::Unsure(why) => write!(
                f,
                "it is not known whether the last submission happened, its job is being looked for: {}",
                Line(why)
            ),
            Self::Backlog { waiting, max, hint } => {
                write!(
                    f,
                    "{waiting} of at most {max} allocations wait in the batch system"
                )?;
                if hint.is_empty() {
                    return Ok(());
                }
                write!(f, " ({})", Line(hint))
            }
            Self::WorkerCount { workers, max } => {
                write!(
                    f,
                    "{workers} of at most {max} workers are queued or running"
                )
            }
            Self::BackOff {
                left,
                why,
                is_failure,
            } => {
                let cause = match is_failure {
                    true => "after a failure",
                    false => "the batch system accepts no more requests for now",
                };
                let left = left.as_secs();
                write!(f, "next attempt in {left} s, {cause}: {}", Line(why))
            }
            Self::NotAsked => f.write_str("nothing was decided yet"),
            Self::NoTasks => f.write_str("no task waits that connected workers cannot take"),
            Self::Asking(None) => f.write_str("allocations are being asked for"),
            Self::Asking(Some(why)) => write!(
                f,
                "allocations are being asked for again, after a failure: {}",
                Line(why)
            ),
            Self::Covered => f.write_str("workers that are on their way will take what waits"),
            Self::Unfit { waiting, unfit, .. } => {
                write!(f, "{} waiting, but {unfit}", count(*waiting, "task"))
            }
            Self::OtherQueues => f.write_str("other queues serve what waits"),
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time { needed, lifetime } => {
                let [needed, lifetime] = [*needed, *lifetime].map(words::duration);
                write!(
                    f,
                    "workers of this queue live {lifetime}; the task asks for {needed}"
                )
            }
            Self::Resource {
                name,
                needed,
                offered,
            } => {
                let [needed, offered] =
                    [*needed, *offered].map(|amount| words::amount(name, amount));
                write!(
                    f,
                    "workers of this queue offer {offered}; the task asks for {needed}"
                )
            }
            Self::Nodes { needed, most } => write!(
                f,
                "allocations of this queue have at most {} (--max-workers-per-alloc); the task asks for {needed}",
                count((*most).into(), "node")
            ),
            Self::Utilization => f.write_str("too few for --min-utilization"),
        }
    }
}

/// Joins the lines of a text into one line.
struct Line<'a>(&'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self
            .0
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        if let Some(first) = lines.next() {
            f.write_str(first)?;
        }
        lines.try_for_each(|line| write!(f, "; {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_batch_system_make_no_failure() {
        let hint = "launch_failed_requeued_held".to_owned();
        let waits = Reason::Backlog {
            waiting: 1,
            max: 1,
            hint,
        };
        assert!(waits.to_string().contains("fail"));
        assert!(!waits.kind().is_failing());
        let refused = Reason::BackOff {
            left: Duration::from_secs(9),
            why: "no such partition".to_owned(),
            is_failure: true,
        };
        assert!(refused.kind().is_failing());
        let names: std::collections::BTreeSet<_> =
            ReasonKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ReasonKind::ALL.len());
    }
}
