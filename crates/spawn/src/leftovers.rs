//! Kills processes that were left behind by the tasks of a killed launcher, when the next launcher
//! starts on the machine.
//!
//! A launcher that is killed together with its front process (see [`crate::keeper`]) cannot end any
//! process. Its direct children are killed by their parent-death signal. Their descendants keep
//! running, on CPUs that are assigned to other tasks. They are identified by the label that they
//! inherited (see `label.rs`): it names their launcher, and a launcher that no longer exists has no
//! tasks. An environment variable would not work, because it is passed on to other machines and to
//! batch jobs (`srun`, `sbatch`, `qsub -V`, `at`). Processes there are legitimate, and their
//! launcher is not visible. A resource limit is inherited only by descendants of the process.
//!
//! The search covers only processes of the same user in the same pid namespace. It excludes
//! processes that entered the namespace from another one, because the launcher of a process in a
//! container has a different id there. Nothing is killed from inside a task or in a pid namespace
//! that a task has created, because the enclosing launcher may not be visible there either. Nothing
//! is killed if `/proc` shows another namespace.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::keeper;
use crate::label;
use crate::procfs::{self, Process};
use crate::sys;

/// The maximum number of scans of all processes. A process may fork while the list is being read.
/// The tasks of a launcher inside a task are only recognized as leftovers after that launcher has
/// ended.
const ROUNDS: usize = 10;

/// The pause between two scans. SIGKILL takes effect within a fraction of a millisecond.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// The maximum number of ancestors to follow. No process has that many.
const ANCESTORS_MAX: usize = 10_000;

/// Uniquely identifies a process. The process id alone may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// The process id.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub began: u64,
}

impl Launched {
    /// Returns this process, or `None` if `/proc` does not show it.
    #[must_use]
    pub fn own() -> Option<Self> {
        let process = Process::read(sys::getpid())?;
        Some(Self {
            pid: process.pid.unsigned_abs(),
            began: process.began,
        })
    }
}

/// A process that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The process id.
    pub pid: u32,
    /// The name of the process (`comm`).
    pub program: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.program, self.pid)
    }
}

/// Kills the processes left behind by tasks whose launchers no longer exist, and returns them.
#[must_use]
pub fn kill() -> Vec<Ended> {
    let own = sys::getpid();
    let is_out_of_sight = !procfs::shows_this_namespace() || [own, 1].into_iter().any(is_in_task);
    if is_out_of_sight {
        return Vec::new();
    }
    let user = procfs::status(own).map(|status| status.user);
    let is_leftover = |pid| is_leftover(pid, user);
    let mut killed: Vec<Ended> = Vec::new();
    for _ in 0..ROUNDS {
        let before = killed.len();
        for process in procfs::all_processes() {
            let pid = process.pid;
            let is_candidate = pid != own && !process.is_dead();
            if !is_candidate || !is_leftover(pid) {
                continue;
            }
            let ended = Ended {
                pid: pid.unsigned_abs(),
                program: procfs::program_of(pid).unwrap_or_default(),
            };
            // A process that has not ended since the last round is listed only once.
            if procfs::kill_if(pid, || is_leftover(pid)) && !killed.contains(&ended) {
                killed.push(ended);
            }
        }
        if killed.len() == before {
            break;
        }
        sys::pause(ROUND_PAUSE);
    }
    killed
}

/// Returns whether a process of this user belongs to a task whose launcher no longer exists, and no
/// other process will end it.
fn is_leftover(pid: libc::pid_t, user: Option<u32>) -> bool {
    let is_gone = label_of(pid)
        .and_then(label::launcher_of)
        .is_some_and(|(launcher, is_launcher)| !is_alive(launcher, is_launcher));
    let is_ours = || {
        let status = procfs::status(pid);
        status.is_some_and(|status| Some(status.user) == user && status.is_in_this_namespace)
    };
    is_gone && is_ours() && was_born_here(pid) && !is_being_ended(pid)
}

fn is_alive(pid: libc::pid_t, is_launcher: impl Fn(u64) -> bool) -> bool {
    let text = match procfs::read_stat(pid) {
        Ok(text) => text,
        // Any other error (no descriptors, no memory) does not reveal anything about the process.
        Err(error) => {
            let is_gone = error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ESRCH);
            // `/proc` may hide unreadable programs and processes that this user must not trace
            // (`hidepid`). `kill` sees all of them.
            return !is_gone || exists(pid);
        }
    };
    let Some(process) = procfs::parse_stat(pid, &text) else {
        return true;
    };
    if process.is_dead() {
        return false;
    }
    // In another time namespace, the clock has a different origin, so the start time that the
    // launcher recorded differs from the one visible here.
    is_launcher(process.began) || !procfs::has_our_clock(pid)
}

fn exists(pid: libc::pid_t) -> bool {
    let signalled = sys::kill(pid, 0);
    !signalled.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

/// Returns whether the ancestors of a process lead to the init process of this pid namespace. If a
/// process entered the namespace (`nsenter`, `apptainer exec instance://…`), its ancestors and
/// launcher are not visible.
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

/// Returns whether a front process that has lost its worker is about to end this process. Such a
/// process is not a leftover and is not reported.
fn is_being_ended(pid: libc::pid_t) -> bool {
    let Some(mut below) = Process::read(pid) else {
        return false;
    };
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = Process::read(below.parent) else {
            return false;
        };
        let name = procfs::program_of(parent.pid).unwrap_or_default();
        if name.as_bytes() == keeper::FRONT_NAME.to_bytes() {
            // While the worker lives, it is the front's only child and cleans up its orphans
            // itself. A stopped front does not end any process.
            let has_no_worker = below.is_dead() || is_in_task(below.pid);
            return has_no_worker && !matches!(parent.state, b'T' | b't');
        }
        below = parent;
    }
    false
}

/// Returns whether a process belongs to a task, even if it has lowered the limit that contains the
/// label.
fn is_in_task(pid: libc::pid_t) -> bool {
    let labels = procfs::labels(pid).unwrap_or_default();
    labels
        .into_iter()
        .any(|label| label::launcher_of(label).is_some())
}

/// Returns the label that a process got from its nearest launcher.
fn label_of(pid: libc::pid_t) -> Option<u64> {
    let [soft, _] = procfs::labels(pid)?;
    label::launcher_of(soft).map(|_| soft)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_process_is_alive_until_it_has_ended() {
        let own = Launched::own().unwrap();
        assert!(is_alive(sys::getpid(), |began| began == own.began));
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let began = Process::read(pid).unwrap().began;
        assert!(is_alive(pid, |found| found == began));
        let is_successor = is_alive(pid, |found| found == began + 1);
        assert!(!is_successor, "its id belongs to another process");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid, |found| found == began));
    }

    #[test]
    fn a_process_with_another_clock_may_be_the_launcher() {
        let mut child = match std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--time", "--boottime", "1000"])
            .args([
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                "echo $$; exec sleep 1000",
            ])
            .stdout(std::process::Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(error) => return println!("not run: {error}"),
        };
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        let found = line.trim().parse().map(|pid| is_alive(pid, |_| false));
        child.kill().unwrap();
        child.wait().unwrap();
        match found {
            Ok(is_alive) => assert!(is_alive),
            Err(_) => println!("not run: there are no time namespaces here"),
        }
    }

    #[test]
    fn a_process_of_a_task_is_one_also_with_a_lower_limit() {
        let own = Launched::own().unwrap();
        let labels = label::Labels::new(sys::getpid(), own.began).unwrap();
        let label = labels.next();
        let script = format!(
            "ulimit -x {}; ulimit -Sx 5; echo; exec sleep 1000",
            label.value()
        );
        let mut child = std::process::Command::new("bash")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut line = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let found = (label_of(pid), is_in_task(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (None, true));
    }

    /// Starts a process with the name of a front, with a task below it, or with a worker in
    /// between.
    fn front(launcher: libc::pid_t, between: &str) -> (std::process::Child, [libc::pid_t; 2]) {
        let began = Launched::own().unwrap().began;
        let labels = label::Labels::new(launcher, began).unwrap();
        let task = format!(
            "ulimit -x {}; echo $$; exec sleep 1000",
            labels.next().value()
        );
        let script = format!("printf hq-keeper > /proc/$$/comm; {between} bash -c '{task}' & wait");
        let mut child = std::process::Command::new("bash")
            .args(["-c", &script])
            .process_group(0)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        let pids = [child.id().cast_signed(), line.trim().parse().unwrap()];
        (child, pids)
    }

    #[test]
    fn what_a_front_without_worker_ends_is_left_to_it() {
        for (between, expected) in [("", true), ("timeout --foreground 1000", false)] {
            let (mut child, [front, task]) = front(sys::getpid(), between);
            let found = is_being_ended(task);
            sys::kill(front, libc::SIGSTOP).unwrap();
            while Process::read(front).unwrap().state != b'T' {
                sys::pause(Duration::from_millis(1));
            }
            let is_ended_by_stopped = is_being_ended(task);
            sys::kill(-front, libc::SIGKILL).unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{between}");
            assert!(!is_ended_by_stopped, "{between}");
        }
        assert!(!is_being_ended(sys::getpid()));
        // The launcher of this task has an id that no process has.
        let (mut child, [front, task]) = front((1 << 22) - 1, "");
        let user = procfs::status(task).map(|status| status.user);
        let is_told = is_leftover(task, user);
        sys::kill(-front, libc::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(!is_told);
    }

    #[test]
    fn a_process_that_cannot_be_seen_may_exist() {
        assert!(exists(sys::getpid()) && exists(1));
        // This id is above the maximum process id of Linux.
        assert!(!exists(1 << 23));
    }
}
