//! What tasks of a killed launcher left behind, ended when the next one starts on the machine.
//!
//! A launcher that is killed together with its front process (see [`crate::keeper`]) can end nothing any more. Its
//! direct children die by their parent-death signal; what those have started lives on, on CPUs that are handed out
//! again. Such processes are known by the label that they have inherited (see `label.rs`): it names their launcher, and a
//! launcher that does not exist any more has no tasks. An environment variable would not do. It travels to other machines
//! and into batch jobs (`srun`, `sbatch`, `qsub -V`, `at`), where what carries it may live with good reason and its launcher
//! cannot be seen; a limit stays with the children of the process.
//!
//! Only processes of the same user in the same pid namespace are looked at, and not those that entered it from another:
//! the launcher of one in a container cannot be seen by its id. Nothing is done from inside a task, where the launcher
//! around it may be out of sight as well.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use crate::label;
use crate::procfs::{self, Process};
use crate::sys;

/// Looks at all processes, at most: one may have forked while the list was being read, and a launcher inside a task
/// has to be gone before its own tasks are seen as leftovers.
const ROUNDS: usize = 10;

/// Pause between two rounds. SIGKILL takes effect within a fraction of a millisecond.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// Ancestors that are followed; none has so many.
const ANCESTORS_MAX: usize = 10_000;

/// A process named for good. Its id alone may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// Process id.
    pub pid: u32,
    /// When it began, in clock ticks since the machine was started.
    pub began: u64,
}

impl Launched {
    /// This process; `None` if `/proc` does not show it.
    #[must_use]
    pub fn own() -> Option<Self> {
        let process = Process::read(sys::getpid())?;
        Some(Self {
            pid: process.pid.unsigned_abs(),
            began: process.began,
        })
    }

    /// Whether it still exists, as far as can be told: in doubt it does.
    #[must_use]
    pub fn is_alive(self) -> bool {
        libc::pid_t::try_from(self.pid).is_ok_and(|pid| is_alive(pid, |began| began == self.began))
    }
}

/// Kills what is left of tasks whose launchers are gone; returns the number of processes.
#[must_use]
pub fn kill() -> usize {
    let own = sys::getpid();
    if label_of(own).is_some() {
        return 0;
    }
    let user = procfs::status(own).map(|status| status.user);
    let is_leftover = |pid: libc::pid_t| {
        let is_gone = label_of(pid)
            .and_then(label::launcher_of)
            .is_some_and(|(launcher, is_launcher)| !is_alive(launcher, is_launcher));
        let is_ours = || {
            let status = procfs::status(pid);
            status.is_some_and(|status| Some(status.user) == user && status.is_in_this_namespace)
        };
        is_gone && is_ours() && was_born_here(pid)
    };
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let before = killed.len();
        for process in procfs::all_processes() {
            let is_candidate = process.pid != own && !process.is_dead();
            if is_candidate
                && is_leftover(process.pid)
                && procfs::kill_if(process.pid, || is_leftover(process.pid))
            {
                killed.insert(process.pid);
            }
        }
        if killed.len() == before {
            break;
        }
        sys::pause(ROUND_PAUSE);
    }
    killed.len()
}

fn is_alive(pid: libc::pid_t, is_launcher: impl Fn(u64) -> bool) -> bool {
    let text = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        // Any other error (no descriptors, no memory) says nothing of the process.
        Err(error) => {
            let is_gone = error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ESRCH);
            return !is_gone;
        }
    };
    let Some(process) = procfs::parse_stat(pid, &text) else {
        return true;
    };
    if process.is_dead() {
        return false;
    }
    // One with the same program may be the launcher as seen from another time namespace, whose clock begins elsewhere.
    is_launcher(process.began) || program_of(pid) == program_of(sys::getpid())
}

/// Whether the ancestors of a process end at the first one of this pid namespace. Those of a process that entered it
/// (`nsenter`, `apptainer exec instance://…`) are out of sight, and so is its launcher.
fn was_born_here(pid: libc::pid_t) -> bool {
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        if pid == 1 {
            return true;
        }
        match Process::read(pid) {
            Some(process) if process.parent > 0 => pid = process.parent,
            _ => return false,
        }
    }
    false
}

fn program_of(pid: libc::pid_t) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/comm")).ok()
}

/// The label that a process was given by the launcher next to it.
fn label_of(pid: libc::pid_t) -> Option<u64> {
    let [soft, _] = procfs::labels(pid)?;
    label::launcher_of(soft).map(|_| soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_has_ended() {
        let own = Launched::own().unwrap();
        assert!(own.is_alive());
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Process::read(child.id().cast_signed()).unwrap();
        let other = Launched {
            pid: child.id(),
            began: process.began,
        };
        assert!(other.is_alive());
        let successor = Launched { began: 1, ..other };
        assert!(!successor.is_alive(), "its id belongs to somebody else");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!other.is_alive());
    }
}
