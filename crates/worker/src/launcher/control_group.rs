//! Holds tasks to the memory that they asked for by control groups, where this process may make some.
//!
//! Needs version 2, a group that was given to this user (`Delegate=yes` of systemd, most containers), and
//! the memory controller in it; see `cgroup-v2.rst` of the kernel. Processes may only be in the leaves of a
//! tree that hands controllers on, so this process and its front move into one, but nobody else is moved.
//!
//! ```text
//!  ours ─┬─ hq-NS-NAME-worker     this process and its front, if they were in `ours`
//!        └─ hq-NS-NAME ─┬─ 17     a task, with its limit
//!                       └─ 18
//! ```
//!
//! NS stands for the namespaces in which NAME means something: workers of several containers may share a group.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::processes::{self, KIB};

/// Why there are no control groups to use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// Version 1, or none at all.
    #[error("there are no control groups of version 2")]
    NoVersion2,
    /// The controller is used by version 1, or was not handed down.
    #[error("the control group {0} has no memory controller")]
    NoMemory(PathBuf),
    /// Others would have to be moved.
    #[error("other processes are in the control group {0}")]
    Shared(PathBuf),
    /// It belongs to somebody else.
    #[error("the control group {0} cannot be used: {1}")]
    NotOurs(PathBuf, io::Error),
}

/// Most groups that are kept for later tasks.
const IDLE_MAX: usize = 512;
/// A group is used again if at most this part of its limit, as a divisor, is still charged to it: files in memory and
/// kernel objects of an ended task would count for the next one.
const CHARGED_MAX: u64 = 16;

/// Control groups for tasks. Making and removing one costs more than a short task, so groups are used again.
#[derive(Debug)]
pub(super) struct ControlGroups {
    base: PathBuf,
    /// Empty groups for later tasks.
    idle: Vec<TaskGroup>,
    /// Groups of ended tasks in which a process is still about to end.
    leftovers: Vec<PathBuf>,
}

/// The control group of one task.
#[derive(Debug)]
pub(super) struct TaskGroup {
    dir: PathBuf,
    /// Descriptor of the directory, for the spawn engine.
    pub(super) fd: Arc<OwnedFd>,
    /// In KiB.
    pub(super) limit: u64,
}

impl ControlGroups {
    /// Prepares the group of this process for groups of tasks. `root` is `/`, `name` what no other worker
    /// is called.
    pub(super) fn find(root: &Path, name: &str) -> Result<Self, Unusable> {
        let ours = own_group(root).ok_or(Unusable::NoVersion2)?;
        if !lists_memory(&ours.join("cgroup.controllers")) {
            return Err(Unusable::NoMemory(ours));
        }
        let not_ours = |error| Unusable::NotOurs(ours.clone(), error);
        let prefix = prefix(root);
        // Before the new one: a worker that was killed here could not remove its own.
        sweep(root, &ours, &prefix);
        let base = ours.join(format!("{prefix}{name}"));
        if !lists_memory(&ours.join("cgroup.subtree_control")) && hand_memory_on(&ours).is_err() {
            // The kernel lets only groups without processes of their own hand a controller on.
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

    /// Where the groups of tasks are.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// A group for a task that may use `limit` KiB, swap included; `name` if it has to be made.
    pub(super) fn get(&mut self, name: &str, limit: u64) -> io::Result<TaskGroup> {
        // Limits are as good as never changed back and forth, and writing one costs as much as making a group.
        let known = self.idle.iter().rposition(|group| group.limit == limit);
        if let Some(at) = known {
            let group = self.idle.swap_remove(at);
            // Somebody may have removed it: it was empty.
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
            // Somebody has removed the empty group around it.
            fs::create_dir(&self.base)?;
            hand_memory_on(&self.base)?;
            fs::create_dir(&dir)?;
        }
        let fill = || {
            // Before anybody is in it: afterwards the kernel might have to take memory away.
            let bytes = limit.saturating_mul(KIB);
            fs::write(dir.join("memory.max"), bytes.to_string())?;
            // Not there without swap, or before Linux 4.19.
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

    /// Takes the group of an ended task back: for a later task, or else ends what is left in it and removes it, at the
    /// latest when the next one is.
    pub(super) fn take_back(&mut self, group: TaskGroup, has_exceeded: bool) {
        if !has_exceeded && self.idle.len() < IDLE_MAX && group.is_as_new() {
            self.idle.push(group);
            return;
        }
        self.leftovers.push(group.dir.clone());
        // A group stays as long as a process in it has not been reaped; the next end tries again.
        self.leftovers.retain(|dir| !remove(dir));
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        self.idle.clear();
        for dir in &self.leftovers {
            remove(dir);
        }
        // If this fails, an empty group is left, which costs nothing and ends with the one around it.
        let _ = fs::remove_dir(&self.base);
    }
}

impl TaskGroup {
    /// Whether nothing of the task that was in it would count for another one.
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

    /// Memory that the task used, in KiB, if the kernel had to end some of it because that was too much.
    pub(super) fn excess(&self) -> Option<u64> {
        let events = fs::read_to_string(self.dir.join("memory.events")).ok()?;
        // Reaching the limit is no excess: the kernel first takes back what it can.
        if oom_kills(&events) == 0 {
            return None;
        }
        // Since Linux 5.19; what is held to a limit has used all of it.
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

/// Processes of a group that were ended for lack of memory, from its `memory.events`.
fn oom_kills(events: &str) -> u64 {
    let mut lines = events.lines();
    let found = lines.find_map(|line| line.strip_prefix("oom_kill "));
    found
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Directory of the version 2 group that this process is in.
pub(super) fn own_group(root: &Path) -> Option<PathBuf> {
    group_of(root, &|line| line.strip_prefix("0::"), &|kind| {
        kind.starts_with("cgroup2 ")
    })
}

/// The same of the memory controller of version 1.
pub(super) fn own_memory_group_v1(root: &Path) -> Option<PathBuf> {
    group_of(root, &memory_membership_v1, &|kind| {
        let options = kind.rsplit(' ').next().unwrap_or_default();
        kind.starts_with("cgroup ") && names_memory(options)
    })
}

/// The group in a line `NUMBER:CONTROLLERS:PATH`, if it is that of the memory controller.
fn memory_membership_v1(line: &str) -> Option<&str> {
    let (_, line) = line.split_once(':')?;
    let (names, path) = line.split_once(':')?;
    names_memory(names).then_some(path)
}

fn names_memory(names: &str) -> bool {
    names.split(',').any(|name| name == "memory")
}

/// Directory of the group that `membership` finds in a line of `/proc/self/cgroup`, below the mount of this kind.
fn group_of(
    root: &Path,
    membership: &dyn for<'a> Fn(&'a str) -> Option<&'a str>,
    is_kind: &dyn Fn(&str) -> bool,
) -> Option<PathBuf> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let memberships = read("proc/self/cgroup");
    let path = memberships.lines().find_map(membership)?;
    let mounts = read("proc/self/mountinfo");
    // See `proc_pid_mountinfo(5)`: the root of the mount and the mount point are the 4th and 5th field.
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

/// Lets the groups inside one have limits of memory.
fn hand_memory_on(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.subtree_control"), "+memory")
}

/// Moves this process and its front into a group of their own.
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
        // They are not ours to move, and would keep the group from handing anything on.
        return Err(Unusable::Shared(ours.to_owned()));
    }
    let aside = ours.join(aside);
    fs::create_dir(&aside).map_err(not_ours)?;
    for pid in inside {
        fs::write(aside.join("cgroup.procs"), pid.to_string()).map_err(not_ours)?;
    }
    Ok(())
}

/// How the names of groups begin whose workers have process ids and beginnings as they are seen here: those of the same
/// pid and time namespace.
fn prefix(root: &Path) -> String {
    // A link such as `pid:[4026531836]`; before Linux 5.6 there is none for the time.
    let number = |kind: &str| {
        let link = fs::read_link(root.join("proc/self/ns").join(kind)).ok()?;
        let link = link.to_str()?;
        let digits = link.split_once('[')?.1.strip_suffix(']')?;
        digits.parse::<u64>().ok()
    };
    let [pid, time] = ["pid", "time"].map(|kind| number(kind).unwrap_or(0));
    format!("hq-{pid:x}.{time:x}-")
}

/// Removes groups of workers of this user that no longer run: what they leave would stay as long as the group around
/// it, and keep a batch system from removing that. Whether others run cannot be seen.
fn sweep(root: &Path, ours: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(ours) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(prefix));
        // Groups of other names and namespaces belong to others.
        let Some((pid, began)) = name.and_then(crate::leftovers::process_of) else {
            continue;
        };
        if is_alive(root, pid, began) {
            continue;
        }
        for inner in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
                // One in which processes still are stays, and so does what it is in.
                let _ = fs::remove_dir(inner.path());
            }
        }
        let _ = fs::remove_dir(entry.path());
    }
}

/// Whether the process still exists, as far as can be told: in doubt it does. Its number alone may be used again.
fn is_alive(root: &Path, pid: u32, began: u64) -> bool {
    match fs::read(root.join(format!("proc/{pid}/stat"))) {
        Ok(stat) => processes::began(&processes::lossy(stat))
            .is_none_or(|found| began == 0 || found == began),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Ends all that is in a group and removes it; returns whether it is gone.
fn remove(dir: &Path) -> bool {
    // Since Linux 5.14; before, the spawn engine alone ends what a task leaves.
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
