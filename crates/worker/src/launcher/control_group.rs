//! Enforces memory limits of tasks with control groups, if this process may create them.
//!
//! Requires version 2, a group delegated to this user (`Delegate=yes` in systemd, most containers),
//! and the memory controller in that group; see the kernel's `cgroup-v2.rst`. In a tree with
//! delegated controllers, only leaves may contain processes, so this process and its front process
//! move into a leaf. Other processes are never moved.
//!
//! ```text
//!  ours ─┬─ hq-NS-NAME-worker     this process and its front, if they were in `ours`
//!        └─ hq-NS-NAME ─┬─ 17     a task, with its limit
//!                       └─ 18
//! ```
//!
//! NS identifies the namespaces where NAME is unique, because workers in several containers may
//! share a group.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::processes::{self, KIB};

/// Why control groups cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// Only version 1 of control groups is mounted, or no version at all.
    #[error("there are no control groups of version 2")]
    NoVersion2,
    /// The controller is bound to version 1, or was not delegated.
    #[error("the control group {0} has no memory controller")]
    NoMemory(PathBuf),
    /// Processes of other programs are in the group.
    #[error("other processes are in the control group {0}")]
    Shared(PathBuf),
    /// The group belongs to another user.
    #[error("the control group {0} cannot be used: {1}")]
    NotOurs(PathBuf, io::Error),
}

/// The maximum number of empty groups that are kept for later tasks.
const IDLE_MAX: usize = 512;
/// A group is reused only if the memory still charged to it is at most the limit divided by this.
/// Cached files and kernel objects of an ended task would count toward the next one.
const CHARGED_MAX: u64 = 16;

/// Control groups for tasks. Creating and removing one costs more than a short task, so groups are
/// reused.
#[derive(Debug)]
pub(super) struct ControlGroups {
    base: PathBuf,
    /// Empty groups for later tasks.
    idle: Vec<TaskGroup>,
    /// Groups of ended tasks that still contain an exiting process.
    leftovers: Vec<PathBuf>,
}

/// The control group of one task.
#[derive(Debug)]
pub(super) struct TaskGroup {
    dir: PathBuf,
    /// A descriptor of the directory, for the spawn engine.
    pub(super) fd: Arc<OwnedFd>,
    /// The memory limit in KiB.
    pub(super) limit: u64,
}

impl ControlGroups {
    /// Prepares this process's group for the groups of tasks. `root` is `/`, and `name` is unique
    /// per worker.
    pub(super) fn find(root: &Path, name: &str) -> Result<Self, Unusable> {
        let ours = own_group(root).ok_or(Unusable::NoVersion2)?;
        if !lists_memory(&ours.join("cgroup.controllers")) {
            return Err(Unusable::NoMemory(ours));
        }
        let not_ours = |error| Unusable::NotOurs(ours.clone(), error);
        let prefix = prefix(root);
        // Sweep before creating the new group: a worker that was killed could not remove its own.
        sweep(root, &ours, &prefix);
        let base = ours.join(format!("{prefix}{name}"));
        if !lists_memory(&ours.join("cgroup.subtree_control")) && hand_memory_on(&ours).is_err() {
            // The kernel requires that a group has no processes of its own before it delegates a
            // controller.
            step_aside(&ours, &format!("{prefix}{name}-worker"))?;
            hand_memory_on(&ours).map_err(not_ours)?;
        }
        fs::create_dir(&base).map_err(not_ours)?;
        let groups = Self {
            base,
            idle: Vec::new(),
            leftovers: Vec::new(),
        };
        hand_memory_on(&groups.base).map_err(not_ours)?;
        Ok(groups)
    }

    /// Returns the parent of the groups of tasks.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// Returns a group with a limit of `limit` KiB including swap. `name` is used if it must be
    /// created.
    pub(super) fn get(&mut self, name: &str, limit: u64) -> io::Result<TaskGroup> {
        // Requested limits rarely change, and writing a limit costs as much as creating a group.
        let known = self.idle.iter().rposition(|group| group.limit == limit);
        if let Some(at) = known {
            let group = self.idle.swap_remove(at);
            // Another process may have removed the empty group.
            if group.dir.is_dir() {
                return Ok(group);
            }
        }
        self.make(name, limit)
    }

    fn make(&self, name: &str, limit: u64) -> io::Result<TaskGroup> {
        let dir = self.base.join(name);
        if let Err(error) = fs::create_dir(&dir) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            // Another process has removed the empty parent group.
            fs::create_dir(&self.base)?;
            hand_memory_on(&self.base)?;
            fs::create_dir(&dir)?;
        }
        let fill = || {
            // The limits must be set before the group contains processes. Later, the kernel might
            // have to reclaim memory.
            let bytes = limit.saturating_mul(KIB);
            fs::write(dir.join("memory.max"), bytes.to_string())?;
            // This file is missing without swap, or before Linux 4.19.
            let _ = fs::write(dir.join("memory.swap.max"), "0");
            let _ = fs::write(dir.join("memory.oom.group"), "1");
            fs::File::open(&dir)
        };
        match fill() {
            Ok(file) => Ok(TaskGroup {
                fd: Arc::new(file.into()),
                limit,
                dir,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// Takes back the group of an ended task. Either keeps it for a later task, or kills its
    /// processes and removes it, at the latest when the next group is taken back.
    pub(super) fn take_back(&mut self, group: TaskGroup, has_exceeded: bool) {
        if !has_exceeded && self.idle.len() < IDLE_MAX && group.is_as_new() {
            self.idle.push(group);
            return;
        }
        self.leftovers.push(group.dir.clone());
        // A group exists until its last process is reaped. The removal is retried at the next end.
        self.leftovers.retain(|dir| !remove(dir));
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        self.idle.clear();
        for dir in &self.leftovers {
            remove(dir);
        }
        // If this fails, an empty group remains. It costs nothing and is removed with its parent.
        let _ = fs::remove_dir(&self.base);
    }
}

impl TaskGroup {
    /// Returns whether no memory of the previous task would count toward the next one.
    fn is_as_new(&self) -> bool {
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let is_empty = || {
            read("cgroup.events")
                .lines()
                .any(|line| line == "populated 0")
        };
        let charged = || read("memory.current").trim().parse::<u64>().ok();
        let is_small = |bytes: u64| bytes / KIB <= self.limit / CHARGED_MAX;
        is_empty() && charged().is_some_and(is_small)
    }

    /// Returns the memory that the task used, in KiB, if the OOM killer killed any of its processes
    /// because of the limit.
    pub(super) fn excess(&self) -> Option<u64> {
        let events = fs::read_to_string(self.dir.join("memory.events")).ok()?;
        // Reaching the limit does not mean exceeding it: the kernel first reclaims memory.
        if oom_kills(&events) == 0 {
            return None;
        }
        // This file exists since Linux 5.19. Without it, assume that the task has used all of its
        // limit.
        let peak = fs::read_to_string(self.dir.join("memory.peak")).ok();
        let peak = peak.and_then(|text| text.trim().parse::<u64>().ok());
        Some(peak.map_or(self.limit, |bytes| bytes / KIB))
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Returns the number of OOM kills in a group, from its `memory.events`.
fn oom_kills(events: &str) -> u64 {
    let mut lines = events.lines();
    let found = lines.find_map(|line| line.strip_prefix("oom_kill "));
    found
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns the directory of this process's version 2 group.
pub(super) fn own_group(root: &Path) -> Option<PathBuf> {
    group_of(root, &|line| line.strip_prefix("0::"), &|kind| {
        kind.starts_with("cgroup2 ")
    })
}

/// Returns the directory of this process's group in the version 1 memory controller.
pub(super) fn own_memory_group_v1(root: &Path) -> Option<PathBuf> {
    group_of(root, &memory_membership_v1, &|kind| {
        let options = kind.rsplit(' ').next().unwrap_or_default();
        kind.starts_with("cgroup ") && names_memory(options)
    })
}

/// Returns the group if `line`, in the form `NUMBER:CONTROLLERS:PATH`, is that of the memory
/// controller.
fn memory_membership_v1(line: &str) -> Option<&str> {
    let (_, line) = line.split_once(':')?;
    let (names, path) = line.split_once(':')?;
    names_memory(names).then_some(path)
}

fn names_memory(names: &str) -> bool {
    names.split(',').any(|name| name == "memory")
}

/// Returns the directory of the group that `membership` finds in `/proc/self/cgroup`, below the
/// mount of this kind.
fn group_of(
    root: &Path,
    membership: &dyn for<'a> Fn(&'a str) -> Option<&'a str>,
    is_kind: &dyn Fn(&str) -> bool,
) -> Option<PathBuf> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let memberships = read("proc/self/cgroup");
    let path = memberships.lines().find_map(membership)?;
    let mounts = read("proc/self/mountinfo");
    // See `proc_pid_mountinfo(5)`: the 4th and 5th fields are the root of the mount and the mount
    // point.
    let (top, point) = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        is_kind(kind).then_some(())?;
        Some((fields.next()?, fields.next()?))
    })?;
    let inside = Path::new(path).strip_prefix(top).unwrap_or(Path::new(path));
    let inside = inside.strip_prefix("/").unwrap_or(inside);
    let point = Path::new(point).strip_prefix("/").ok()?;
    let dir = root.join(point).join(inside);
    dir.is_dir().then_some(dir)
}

fn lists_memory(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().any(|name| name == "memory")
}

/// Enables the memory controller for child groups.
fn hand_memory_on(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.subtree_control"), "+memory")
}

/// Moves this process and its front process into a separate group.
fn step_aside(ours: &Path, aside: &str) -> Result<(), Unusable> {
    let not_ours = |error| Unusable::NotOurs(ours.to_owned(), error);
    let front = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let inside = fs::read_to_string(ours.join("cgroup.procs")).map_err(not_ours)?;
    let inside: Vec<i32> = inside.lines().filter_map(|pid| pid.parse().ok()).collect();
    let own = i32::try_from(std::process::id()).ok();
    if inside
        .iter()
        .any(|pid| Some(*pid) != own && Some(*pid) != front)
    {
        // Processes of other programs cannot be moved, and prevent the group from delegating the
        // controller.
        return Err(Unusable::Shared(ours.to_owned()));
    }
    let aside = ours.join(aside);
    fs::create_dir(&aside).map_err(not_ours)?;
    for pid in inside {
        fs::write(aside.join("cgroup.procs"), pid.to_string()).map_err(not_ours)?;
    }
    Ok(())
}

/// Returns the prefix of group names of workers in this process's pid and time namespaces. Process
/// ids and start times are only meaningful there.
fn prefix(root: &Path) -> String {
    // The link looks like `pid:[4026531836]`. Time namespaces exist since Linux 5.6.
    let number = |kind: &str| {
        let link = fs::read_link(root.join("proc/self/ns").join(kind)).ok()?;
        let link = link.to_str()?;
        let digits = link.split_once('[')?.1.strip_suffix(']')?;
        digits.parse::<u64>().ok()
    };
    let [pid, time] = ["pid", "time"].map(|kind| number(kind).unwrap_or(0));
    format!("hq-{pid:x}.{time:x}-")
}

/// Removes groups of this user's dead workers. If such groups remained, they would keep the parent
/// group alive, and a batch system could not remove it. Groups of workers in other namespaces stay,
/// because the state of these workers is unknown.
fn sweep(root: &Path, ours: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(ours) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(prefix));
        // The group has another name, or belongs to another namespace.
        let Some((pid, began)) = name.and_then(crate::leftovers::process_of) else {
            continue;
        };
        if is_alive(root, pid, began) {
            continue;
        }
        for inner in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
                // A group with processes stays, and so does its parent.
                let _ = fs::remove_dir(inner.path());
            }
        }
        let _ = fs::remove_dir(entry.path());
    }
}

/// Returns whether the process still exists, or `true` if that is unknown. Compares the start time,
/// because pids are reused.
fn is_alive(root: &Path, pid: u32, began: u64) -> bool {
    match fs::read(root.join(format!("proc/{pid}/stat"))) {
        Ok(stat) => processes::began(&processes::lossy(stat))
            .is_none_or(|found| began == 0 || found == began),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Kills all processes of a group and removes it. Returns whether it is gone.
fn remove(dir: &Path) -> bool {
    // This file exists since Linux 5.14. On older kernels, only the spawn engine kills leftover
    // processes.
    if let Ok(mut kill) = fs::File::options()
        .write(true)
        .open(dir.join("cgroup.kill"))
    {
        let _ = kill.write_all(b"1");
    }
    match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests;
