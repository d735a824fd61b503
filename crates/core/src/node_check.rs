//! The problems of a node, reported by the node itself or revealed by its clock.
//!
//! A worker checks its node and reports the result in each heartbeat. The server also derives the
//! offset of the node's clock from the heartbeats. A node that has recovered reports so in the next
//! heartbeat, so none of this is stored.

use std::fmt;
use std::time::Duration;

use crate::time::Timestamp;

/// If clocks differ by more than this, times in logs, file systems and certificates no longer fit
/// together.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(30);

/// The number of heartbeats that must agree on a clock offset. One heartbeat may have been delayed,
/// or the server's clock may just have been set.
const CLOCK_SAMPLES: usize = 3;

/// Heartbeats that arrive within this time count as one, and only the latest is used. They were
/// delayed together, most likely because the server was suspended.
const CLOCK_SPACING: Duration = Duration::from_millis(100);

/// A file system with less free space than this counts as full: a task that writes anything fails.
/// The limit for a small file system is a fraction of its size.
const ROOM_MIN: u64 = 16 << 20;
const ROOM_MIN_PART: u64 = 32;

/// A file system with fewer free files than this counts as full.
const FILES_MIN: u64 = 64;

/// A full file system counts as full until its free space is this many times the limit.
const RECOVERED_FACTOR: u64 = 2;

/// A problem of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeFault {
    /// A directory for temporary files is almost full.
    NoRoom {
        /// The directory.
        path: Box<str>,
        /// The free space.
        free_bytes: u64,
    },
    /// No more files can be created in this directory.
    NoFiles(Box<str>),
    /// The worker can no longer write to this directory.
    ReadOnly(Box<str>),
    /// The file system of this directory does not answer.
    Hangs(Box<str>),
    /// The file system returns an error, such as a stale file handle.
    Broken {
        /// The directory.
        path: Box<str>,
        /// The error message.
        error: Box<str>,
    },
    /// The node's clock differs from that of the server.
    Clock {
        /// The difference.
        by: Duration,
        /// Whether the node's clock is behind.
        is_behind: bool,
    },
}

impl NodeFault {
    /// Returns whether both are the same problem, possibly with different figures.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::NoRoom { path, .. }, Self::NoRoom { path: other, .. }) => path == other,
            (
                Self::Clock { is_behind, .. },
                Self::Clock {
                    is_behind: other, ..
                },
            ) => is_behind == other,
            _ => self == other,
        }
    }
}

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom { path, free_bytes } => {
                let kib = free_bytes >> 10;
                write!(f, "its disk is full: {kib} KiB are left in {path}")
            }
            Self::NoFiles(path) => write!(f, "its disk is full: no more files fit into {path}"),
            Self::ReadOnly(path) => write!(f, "its disk can only be read: {path}"),
            Self::Hangs(path) => write!(f, "the file system of {path} does not answer there"),
            Self::Broken { path, error } => {
                write!(f, "the file system of {path} is broken there: {error}")
            }
            Self::Clock { by, is_behind } => {
                let direction = if *is_behind { "behind" } else { "ahead of" };
                let seconds = by.as_secs();
                write!(f, "its clock is {seconds} s {direction} that of the server")
            }
        }
    }
}

/// Returns all problems as one sentence without a final period. Empty if there are none.
#[must_use]
pub fn sentence(faults: &[NodeFault]) -> String {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The free and total space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskSpace {
    /// How many bytes users may still write.
    pub free_bytes: u64,
    /// The total size in bytes.
    pub total_bytes: u64,
    /// How many files users may still create.
    pub free_files: u64,
    /// The total number of files. 0 means unlimited.
    pub total_files: u64,
}

impl DiskSpace {
    /// Returns the problem of a directory with this space. `was_full` means that it was full at the
    /// last check: usage that varies around the limit must not make the state of the node flap.
    #[must_use]
    pub fn fault(self, path: &str, was_full: bool) -> Option<NodeFault> {
        let factor = if was_full { RECOVERED_FACTOR } else { 1 };
        let least = |min: u64, total: u64| min.min(total / ROOM_MIN_PART).saturating_mul(factor);
        if self.free_bytes < least(ROOM_MIN, self.total_bytes) {
            return Some(NodeFault::NoRoom {
                path: path.into(),
                free_bytes: self.free_bytes,
            });
        }
        let has_files = self.free_files >= least(FILES_MIN, self.total_files);
        (!has_files).then(|| NodeFault::NoFiles(path.into()))
    }
}

/// The clock offset of a node, derived from its latest heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockWatch {
    /// The arrival time minus the send time by the node's clock, in nanoseconds: the delay plus the
    /// offset of that clock.
    late_ns: [Option<i64>; CLOCK_SAMPLES],
    /// When the latest heartbeat arrived.
    arrived: Timestamp,
}

impl ClockWatch {
    /// Notes a heartbeat.
    pub fn note(&mut self, arrived: Timestamp, sent: Timestamp) {
        if arrived.since(self.arrived) >= CLOCK_SPACING {
            self.late_ns.rotate_right(1);
        }
        self.arrived = arrived;
        if let Some(latest) = self.late_ns.first_mut() {
            *latest = Some(arrived.0.saturating_sub(sent.0));
        }
    }

    /// Returns the problem if all of the latest heartbeats show it.
    #[must_use]
    pub fn fault(&self) -> Option<NodeFault> {
        let mut least: Option<i64> = None;
        let mut most: Option<i64> = None;
        for late in self.late_ns {
            let late = late?;
            least = Some(least.map_or(late, |least| least.min(late)));
            most = Some(most.map_or(late, |most| most.max(late)));
        }
        let (least, most) = least.zip(most)?;
        let is_far = |late: i64| Duration::from_nanos(late.unsigned_abs()) > CLOCK_DIFFERENCE_MAX;
        let is_behind = least > 0;
        let is_off = is_far(least) && (is_behind || (most < 0 && is_far(most)));
        is_off.then(|| NodeFault::Clock {
            // The heartbeat with the shortest delay is the most exact.
            by: Duration::from_nanos(least.unsigned_abs()),
            is_behind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_until_there_is_clearly_room() {
        let room = |free_bytes, total_bytes| DiskSpace {
            free_bytes,
            total_bytes,
            ..DiskSpace::default()
        };
        let tib = 1 << 40;
        for (found, was_full, is_full) in [
            (room(ROOM_MIN - 1, tib), false, true),
            (room(ROOM_MIN, tib), false, false),
            (room(ROOM_MIN, tib), true, true),
            (room(2 * ROOM_MIN, tib), true, false),
            // A small file system is not always full.
            (room(8 << 20, 10 << 20), false, false),
            (room(100 << 10, 10 << 20), false, true),
            // Some file systems report no size, for example some that run in user space.
            (room(0, 0), false, false),
        ] {
            let fault = found.fault("/tmp", was_full);
            assert_eq!(fault.is_some(), is_full, "{found:?} {was_full}: {fault:?}");
        }
        let files = |free_files, total_files| DiskSpace {
            free_files,
            total_files,
            ..room(tib, tib)
        };
        let none = Some(NodeFault::NoFiles("/tmp".into()));
        assert_eq!(files(0, 1 << 20).fault("/tmp", false), none);
        assert_eq!(files(0, 0).fault("/tmp", false), None);
        assert_eq!(files(FILES_MIN, 1 << 20).fault("/tmp", false), None);
    }

    #[test]
    fn a_clock_is_off_if_all_heartbeats_say_so() {
        const SECOND: i64 = 1_000_000_000;
        let watched = |late: &[i64], spacing: i64| {
            let mut watch = ClockWatch::default();
            for (number, late) in (0..).zip(late) {
                let arrived = 1_000 * SECOND + number * spacing;
                watch.note(Timestamp(arrived), Timestamp(arrived - late * SECOND));
            }
            watch.fault()
        };
        let fault = |late: &[i64]| watched(late, SECOND);
        let off = |seconds, is_behind| {
            Some(NodeFault::Clock {
                by: Duration::from_secs(seconds),
                is_behind,
            })
        };
        assert_eq!(fault(&[90, 90]), None, "too few");
        assert_eq!(fault(&[0, 1, 2]), None);
        // The heartbeats were delayed, which says nothing about the clock.
        assert_eq!(fault(&[90, 90, 1]), None);
        assert_eq!(fault(&[1, 90, 95]), None);
        assert_eq!(fault(&[95, 90, 91]), off(90, true));
        assert_eq!(fault(&[-60, -59, -58]), off(60, false));
        assert_eq!(fault(&[-60, -60, 0]), None, "one of them says otherwise");
        assert_eq!(fault(&[-60, -60, 60]), None);
        // The server was suspended and receives all of them at once.
        assert_eq!(watched(&[90, 82, 74, 66], 1_000), None);
        // Earlier offsets are forgotten.
        assert_eq!(fault(&[90, 90, 90, 0, 0, 0]), None);
    }

    #[test]
    fn faults_are_the_same_whatever_their_measure() {
        let full = |path: &str, free_bytes| NodeFault::NoRoom {
            path: path.into(),
            free_bytes,
        };
        assert!(full("/a", 1).is_like(&full("/a", 2)));
        assert!(!full("/a", 1).is_like(&full("/b", 1)));
        assert!(!full("/a", 1).is_like(&NodeFault::NoFiles("/a".into())));
        let text = sentence(&[full("/a", 2_048), NodeFault::Hangs("/b".into())]);
        assert_eq!(
            text,
            "its disk is full: 2 KiB are left in /a; the file system of /b does not answer there"
        );
    }
}
