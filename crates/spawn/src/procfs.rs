//! Reads `/proc`: parents, sessions, environments and children of other processes.
//!
//! Any result may already be outdated when it is returned. A caller that acts on it must first pin
//! the process with a pidfd and then check again ([`kill_if`]).

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use crate::event::ExitStatus;
use crate::raw;
use crate::sys;

/// A process, as shown by `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: libc::pid_t,
    pub(crate) parent: libc::pid_t,
    pub(crate) group: libc::pid_t,
    pub(crate) session: libc::pid_t,
    /// The state letter: `R`, `S`, `D`, `T`, `Z`, …
    pub(crate) state: u8,
    /// The start time, in clock ticks since boot.
    pub(crate) began: u64,
}

impl Process {
    /// Reads a process. Returns `None` if it does not exist (anymore).
    pub(crate) fn read(pid: libc::pid_t) -> Option<Self> {
        parse_stat(pid, &read_stat(pid).ok()?)
    }

    /// Returns whether the process has ended and only waits to be reaped.
    pub(crate) const fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Returns whether the process cannot currently be ended by a signal from this process. Short
    /// sleeps in the kernel are normal.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.hangs() || self.is_of_another_user()
    }

    /// Returns whether the process is in uninterruptible sleep in the kernel, for example because a
    /// file server does not respond.
    pub(crate) const fn hangs(&self) -> bool {
        self.state == b'D'
    }

    /// Returns whether this process may not send it signals, because a setuid program has changed
    /// its user.
    pub(crate) fn is_of_another_user(&self) -> bool {
        let asked = sys::kill(self.pid, 0);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
    }
}

/// Returns the text that [`parse_stat`] parses.
pub(crate) fn read_stat(pid: libc::pid_t) -> io::Result<Vec<u8>> {
    if pid == sys::getpid() {
        // An emulator of a single process generates this file itself, with a start time slightly
        // later than the one the kernel shows to other processes. It does not replace the file of
        // the first thread.
        return fs::read(format!("/proc/{pid}/task/{pid}/stat"));
    }
    fs::read(format!("/proc/{pid}/stat"))
}

pub(crate) fn parse_stat(pid: libc::pid_t, text: &[u8]) -> Option<Process> {
    // The name in parentheses may contain any characters, including parentheses.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = text
        .get(after_name..)?
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let [parent, group, session] = [number()?, number()?, number()?];
    // This is field 22 of proc(5); six fields are already consumed.
    let began = fields.nth(15)?;
    Some(Process {
        pid,
        parent,
        group,
        session,
        state,
        began: std::str::from_utf8(began).ok()?.parse().ok()?,
    })
}

/// Returns the name of the program that a process runs. Every user may read it.
pub(crate) fn program_of(pid: libc::pid_t) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Returns how a process ended that cannot be reaped yet. Returns `None` if access is denied.
pub(crate) fn exit_status(pid: libc::pid_t) -> Option<ExitStatus> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(text.get(after_name..)?).ok()?;
    // This is field 52 of proc(5), in the format of wait(2).
    let status: i32 = fields.split_whitespace().nth(49)?.parse().ok()?;
    Some(match status & 0x7f {
        0 => ExitStatus::Code(status >> 8 & 0xff),
        signal => ExitStatus::Signal {
            signal,
            core_dumped: status & 0x80 != 0,
        },
    })
}

/// Returns all visible processes. This takes about 10 µs per process.
pub(crate) fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect()
}

/// Processes by parent. With this map, finding the descendants of many processes is no slower than
/// finding those of one.
#[derive(Debug)]
pub(crate) struct Families(HashMap<libc::pid_t, Vec<Process>>);

impl Families {
    pub(crate) fn new(processes: &[Process]) -> Self {
        let mut children: HashMap<libc::pid_t, Vec<Process>> = HashMap::new();
        for process in processes {
            children.entry(process.parent).or_default().push(*process);
        }
        Self(children)
    }

    /// Removes and returns the descendants of `root`, without `root` itself. Parents precede
    /// children.
    pub(crate) fn take_descendants(&mut self, root: libc::pid_t) -> Vec<Process> {
        let mut found = Vec::new();
        let mut next = root;
        let mut looked_at = 0;
        loop {
            // Removing the entries ensures that the loop terminates, even if the snapshot, which is
            // not taken atomically, contains a cycle.
            found.append(&mut self.0.remove(&next).unwrap_or_default());
            let Some(process) = found.get(looked_at) else {
                return found;
            };
            next = process.pid;
            looked_at += 1;
        }
    }
}

/// Returns the initial environment of a process, or `None` if it cannot be read or is empty.
pub(crate) fn environment(pid: libc::pid_t) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ"))
        .ok()
        .filter(|text| !text.is_empty())
}

/// Returns whether `/proc` shows the pid namespace of this process. It may have been mounted in a
/// different one.
pub(crate) fn shows_this_namespace() -> bool {
    let own = sys::getpid().to_string();
    fs::read_link("/proc/self").is_ok_and(|shown| shown.as_os_str() == own.as_str())
}

/// Returns whether a process is known to have the same clock origin as this one, because it is in
/// the same time namespace.
///
/// Returns `false` for a process that denies access, and for one that has ended.
pub(crate) fn has_our_clock(pid: libc::pid_t) -> bool {
    let clock = |process: &str| fs::read_link(format!("/proc/{process}/ns/time"));
    match clock("self") {
        Ok(own) => clock(&pid.to_string()).is_ok_and(|clock| clock == own),
        // Time namespaces do not exist before Linux 5.6.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The fields of `/proc/PID/status`, which every user may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    /// The real user id.
    pub(crate) user: u32,
    /// Whether the process is in the pid namespace of `/proc` and not in a nested one.
    pub(crate) is_in_this_namespace: bool,
}

/// Returns the whole text. It contains the name of the process, which may consist of any bytes.
fn status_text(pid: libc::pid_t) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn status(pid: libc::pid_t) -> Option<Status> {
    let text = status_text(pid)?;
    let fields = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace())
    };
    Some(Status {
        user: fields("Uid:")?.next()?.parse().ok()?,
        // There is one id for each namespace of the process. Kernels before 4.1 lack the field;
        // assume the same namespace in that case.
        is_in_this_namespace: fields("NSpid:").is_none_or(|ids| ids.count() == 1),
    })
}

/// Returns the soft and hard limits on file locks of a process; see `label.rs`.
pub(crate) fn labels(pid: libc::pid_t) -> Option<[u64; 2]> {
    if let Ok(limit) = sys::limit_of(pid, raw::RLIMIT_LOCKS) {
        return Some([limit.soft, limit.hard]);
    }
    // For a process that has changed its user, prlimit is denied, but this file is readable.
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max file locks"))?;
    let mut fields = line
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(u64::MAX));
    Some([fields.next()?, fields.next()?])
}

/// Returns the process of a pidfd that this process has open. Returns `None` if the process has
/// ended, or if the descriptor is not a pidfd.
pub(crate) fn pid_of(pidfd: RawFd) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // The value is -1 if the process has been reaped.
    pid.trim().parse().ok()
}

/// Returns the process that traces another one.
pub(crate) fn tracer_of(pid: libc::pid_t) -> Option<u32> {
    let text = status_text(pid)?;
    let tracer = text
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|pid| *pid != 0)
}

/// Sends SIGKILL to a process. `still_meant` must confirm this once the process id can no longer be
/// reused.
///
/// Without pidfds (before Linux 5.3), the id may be reused in the few microseconds between the
/// check and the signal.
pub(crate) fn kill_if(pid: libc::pid_t, still_meant: impl FnOnce() -> bool) -> bool {
    match sys::pidfd_open(pid) {
        Ok(fd) => still_meant() && sys::pidfd_send_signal(fd.as_fd(), libc::SIGKILL).is_ok(),
        // The kernel is old, or a sandbox forbids unknown calls.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            still_meant() && sys::kill(pid, libc::SIGKILL).is_ok()
        }
        // The process has ended, or `/proc` shows ids of another namespace. In that case, the id
        // may belong to any process.
        Err(_) => false,
    }
}

/// The children of this process's main thread, read through a file that stays open.
///
/// The kernel assigns orphans to the first living thread. As long as the main thread does not
/// create processes itself, an empty list means that no orphan was adopted. A single system call is
/// then enough for a whole batch of ended children.
#[derive(Debug)]
pub(crate) struct MainThreadChildren {
    file: OwnedFd,
    buffer: Vec<u8>,
}

impl MainThreadChildren {
    /// Fails if the kernel was built without `CONFIG_PROC_CHILDREN`.
    pub(crate) fn open() -> io::Result<Self> {
        let pid = sys::getpid();
        let path = CString::new(format!("/proc/{pid}/task/{pid}/children"))?;
        Ok(Self {
            file: sys::open(&path, libc::O_RDONLY)?,
            buffer: vec![0; 4096],
        })
    }

    /// Replaces the contents of `into` with the ids of the children.
    pub(crate) fn read(&mut self, into: &mut Vec<libc::pid_t>) -> io::Result<()> {
        into.clear();
        let mut filled = 0;
        loop {
            let offset = i64::try_from(filled).unwrap_or(i64::MAX);
            let read = sys::pread(self.file.as_fd(), &mut self.buffer[filled..], offset)?;
            if read == 0 {
                break;
            }
            filled += read;
            if filled == self.buffer.len() {
                self.buffer.resize(filled * 2, 0);
            }
        }
        let text = std::str::from_utf8(&self.buffer[..filled]).unwrap_or_default();
        into.extend(
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<libc::pid_t>().ok()),
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_spaces_and_parentheses() {
        let text = b"7 (a) b (c)) S 1 2 3 0 -1 4194304 8 9 10 11 12 13 14 15 16 17 18 0 4711 22";
        let process = parse_stat(7, text).unwrap();
        assert_eq!(
            process,
            Process {
                pid: 7,
                parent: 1,
                group: 2,
                session: 3,
                state: b'S',
                began: 4711,
            }
        );
        assert!(parse_stat(7, b"7 (short) S 1").is_none());
        assert!(parse_stat(7, b"").is_none());
    }

    #[test]
    fn the_status_is_known_of_a_process_whose_name_is_no_text() {
        let own = libc::pid_t::try_from(std::process::id()).unwrap();
        let name = fs::read("/proc/self/comm").unwrap();
        fs::write("/proc/self/comm", b"r\xc3\xa9cup\xc3").unwrap();
        let found = status(own);
        fs::write("/proc/self/comm", name).unwrap();
        assert!(found.is_some());
    }

    #[test]
    fn descendants_are_found_through_all_generations_and_cycles_end() {
        let process = |pid, parent| Process {
            pid,
            parent,
            group: pid,
            session: pid,
            state: b'S',
            began: 0,
        };
        let all = [
            process(2, 1),
            process(3, 2),
            process(4, 3),
            process(5, 1),
            process(6, 7),
            process(7, 6),
        ];
        let pids = |root| {
            Families::new(&all)
                .take_descendants(root)
                .iter()
                .map(|process| process.pid)
                .collect::<Vec<_>>()
        };
        assert_eq!(pids(2), [3, 4]);
        assert_eq!(pids(5), Vec::<libc::pid_t>::new());
        assert_eq!(pids(6), [7, 6]);
    }

    #[test]
    fn this_process_has_a_status_and_a_label_like_its_children() {
        let own = status(sys::getpid()).unwrap();
        assert!(own.is_in_this_namespace && shows_this_namespace());
        assert_eq!(status(1).map(|init| init.is_in_this_namespace), Some(true));
        assert_eq!(labels(sys::getpid()), labels(0));
    }

    #[test]
    fn this_process_began_when_others_see_that_it_did() {
        let mut command = std::process::Command::new("sh");
        let seen = command.args(["-c", "cat /proc/$PPID/stat"]).output();
        let seen = parse_stat(1, &seen.unwrap().stdout).unwrap();
        let own = Process::read(sys::getpid()).unwrap();
        assert_eq!(own.began, seen.began, "also under an emulator");
        assert_eq!(own.parent, seen.parent);
    }

    #[test]
    fn this_process_is_listed_with_its_parent() {
        let own = Process::read(sys::getpid()).unwrap();
        assert!(!own.is_dead());
        assert!(all_processes().iter().any(|process| process.pid == own.pid));
        assert!(
            Families::new(&all_processes())
                .take_descendants(own.parent)
                .iter()
                .any(|process| process.pid == own.pid)
        );
    }
}
