//! Why a queue asks, or does not ask, for allocations: one line for people.

use std::fmt;
use std::time::Duration;

use crate::scheduler::demand::Unfit;

/// The reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// `hq alloc pause`.
    PausedByUser,
    /// Paused in an earlier life of the server, for this reason.
    PausedBefore(Box<str>),
    /// Too many refused submissions; the last one.
    PausedBySubmissions(String),
    /// Too many failed allocations; the last one.
    PausedByAllocations(String),
    /// It is not known whether a submission happened.
    Unsure(String),
    /// Enough allocations wait in the batch system.
    Backlog {
        /// How many.
        waiting: u32,
        /// How many may.
        max: u32,
        /// What the batch system says of the first.
        hint: String,
    },
    /// There are enough workers.
    WorkerCount {
        /// How many.
        workers: u32,
        /// How many may be.
        max: u32,
    },
    /// A pause after a failure.
    BackOff {
        /// How much longer.
        left: Duration,
        /// The failure.
        why: String,
    },
    /// The queue is new.
    NotAsked,
    /// There is no work that existing workers cannot take.
    NoTasks,
    /// Allocations are being asked for; again, if there was a failure.
    Asking(Option<String>),
    /// Workers on their way will take what waits.
    Covered,
    /// Tasks wait that its workers cannot run.
    Unfit(u64, Unfit),
    /// Other queues serve what waits.
    OtherQueues,
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
            Self::BackOff { left, why } => {
                write!(
                    f,
                    "next attempt in {} s, after a failure: {}",
                    left.as_secs(),
                    Line(why)
                )
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
            Self::Unfit(waiting, unfit) => write!(f, "{waiting} tasks wait, but {}", Why(unfit)),
            Self::OtherQueues => f.write_str("other queues serve what waits"),
        }
    }
}

struct Why<'a>(&'a Unfit);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unfit::Time(needed) => write!(
                f,
                "one asks for {} s, longer than workers of this queue live",
                needed.as_secs()
            ),
            Unfit::Resource(name) => {
                write!(
                    f,
                    "one asks for more `{name}` than a worker of this queue has"
                )
            }
            Unfit::Nodes(nodes) => {
                write!(
                    f,
                    "one asks for {nodes} nodes, more than --max-workers-per-alloc"
                )
            }
            Unfit::Utilization => f.write_str("too few for --min-utilization"),
        }
    }
}

/// A text of several lines in one.
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
