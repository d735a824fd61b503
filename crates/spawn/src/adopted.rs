//! Which processes this one has adopted: the children that its launcher did not create.
//!
//! The kernel lists the children of each thread, and orphans go to the main thread, which creates none itself. Kernels
//! without `CONFIG_PROC_CHILDREN` have no such list. There all processes are looked at, which costs milliseconds and finds
//! the launcher's children, too: so the looks are few, and those are left out.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::procfs::{self, MainThreadChildren};
use crate::sys;

/// Shortest and longest pause between two looks at all processes. The longest one leaves time for a second look while the
/// orphans of an ended task are looked for.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Length of a pause, as a multiple of the look before it.
const REST: u32 = 25;

/// The children that the launcher has created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Created {
    /// Ids of children, as far as known.
    pub(crate) pids: HashSet<libc::pid_t>,
    /// There are some in creation whose ids are not known.
    pub(crate) has_nameless: bool,
}

/// How adopted processes are found.
#[derive(Debug)]
pub(crate) enum Adopted {
    /// The kernel lists them.
    Listed(MainThreadChildren),
    /// They are among all processes; the next look is due at this time.
    Sought(Instant),
}

impl Adopted {
    /// `may_list`: the kernel's list is used if there is one.
    pub(crate) fn new(may_list: bool) -> Self {
        let listed = may_list.then(MainThreadChildren::open);
        match listed {
            Some(Ok(children)) => Self::Listed(children),
            Some(Err(error)) => {
                tracing::debug!(%error, "the kernel does not list children; all processes are looked at");
                Self::Sought(Instant::now())
            }
            None => Self::Sought(Instant::now()),
        }
    }

    pub(crate) const fn is_listed(&self) -> bool {
        matches!(self, Self::Listed(_))
    }

    /// Replaces `into` by the ids of the adopted processes, in order; leaves it alone and returns `false` if it is not
    /// time for a look. `known` are ids in it that were found to be adopted before.
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
                // Counted afterwards: children that were created meanwhile are not among those that were found.
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

    /// How long until the next look, if it has to be waited for.
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
