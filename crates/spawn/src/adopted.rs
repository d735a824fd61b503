//! Finds adopted processes: children of this process that its launcher did not create.
//!
//! The kernel lists the children of each thread. Orphans are assigned to the main thread, which
//! does not create any children itself. Kernels without `CONFIG_PROC_CHILDREN` have no such list.
//! All processes must then be scanned, which takes milliseconds and also finds the launcher's own
//! children. These scans are therefore rare, and the launcher's children are filtered out.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::procfs::{self, MainThreadChildren};
use crate::sys;

/// The minimum pause between two scans of all processes.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The maximum pause between two scans. It leaves time for a second scan while the orphans of an
/// ended task are searched for.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The length of a pause, as a multiple of the duration of the last scan.
const REST: u32 = 25;

/// The children that the launcher has created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Created {
    /// The known process ids of children.
    pub(crate) pids: HashSet<libc::pid_t>,
    /// Whether children are being created whose process ids are not known yet.
    pub(crate) has_nameless: bool,
}

/// How adopted processes are found.
#[derive(Debug)]
pub(crate) enum Adopted {
    /// The kernel lists them.
    Listed(MainThreadChildren),
    /// A scan of all processes finds them. Contains the time of the next scan.
    Sought(Instant),
}

impl Adopted {
    /// Chooses how to find adopted processes. If `may_list` is set, the kernel's list is used if
    /// there is one.
    pub(crate) fn new(may_list: bool) -> Self {
        let listed = may_list.then(MainThreadChildren::open);
        match listed {
            Some(Ok(children)) => Self::Listed(children),
            Some(Err(error)) => {
                tracing::debug!(%error, "the kernel does not list children; scanning all processes");
                Self::Sought(Instant::now())
            }
            None => Self::Sought(Instant::now()),
        }
    }

    pub(crate) const fn is_listed(&self) -> bool {
        matches!(self, Self::Listed(_))
    }

    /// Replaces the contents of `into` with the sorted ids of the adopted processes. If no scan is
    /// due, leaves it unchanged and returns `false`. `known` contains the ids that are already
    /// known to be adopted.
    pub(crate) fn read<T>(
        &mut self,
        into: &mut Vec<libc::pid_t>,
        known: &HashMap<libc::pid_t, T>,
        created: impl Fn() -> Created,
    ) -> bool {
        match self {
            Self::Listed(children) => {
                if let Err(error) = children.read(into) {
                    tracing::warn!(%error, "cannot list adopted processes");
                    into.clear();
                }
            }
            Self::Sought(due) => {
                let begin = Instant::now();
                if begin < *due {
                    return false;
                }
                let own = sys::getpid();
                let children = procfs::all_processes().into_iter();
                let children = children.filter(|process| process.parent == own);
                into.clear();
                into.extend(children.map(|process| process.pid));
                // This is read after the scan, so that it includes every child of the launcher that
                // the scan found.
                let created = created();
                into.retain(|pid| !created.pids.contains(pid));
                if created.has_nameless {
                    into.retain(|pid| known.contains_key(pid));
                }
                let took = begin.elapsed();
                *due = begin + took + took.saturating_mul(REST).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
        into.sort_unstable();
        true
    }

    /// Returns the time until the next scan if one is scheduled.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        match self {
            Self::Listed(_) => None,
            Self::Sought(due) => Some(due.saturating_duration_since(Instant::now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_without_a_list_but_not_those_of_the_launcher() {
        let mut children = [(); 3].map(|()| {
            std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap()
        });
        let [orphan, created, in_creation] =
            [0, 1, 2].map(|index| children[index].id().cast_signed());
        let mut adopted = Adopted::new(false);
        assert!(!adopted.is_listed());
        let mut found = Vec::new();
        let mut known = HashMap::new();
        let mut look = |known: &HashMap<_, _>, has_nameless| {
            adopted = Adopted::Sought(Instant::now());
            let is_new = adopted.read(&mut found, known, || Created {
                pids: [created, in_creation].into(),
                has_nameless,
            });
            assert!(is_new);
            [orphan, created, in_creation].map(|pid| found.contains(&pid))
        };
        assert_eq!(look(&known, false), [true, false, false]);
        assert_eq!(look(&known, true), [false; 3], "it may be in creation");
        known.insert(orphan, ());
        assert_eq!(look(&known, true), [true, false, false]);
        assert!(
            !adopted.read(&mut found, &known, Created::default),
            "too early"
        );
        assert!(adopted.until_due().is_some_and(|left| left <= PAUSE_MAX));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
