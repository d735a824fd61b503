//! Processes that a finished task left behind.
//!
//! Two situations. In a process that adopts orphans (a child subreaper, see `keeper`) whatever outlives its parent
//! becomes a child of our main thread. One look at that thread's list of children, per batch of ended tasks, then
//! tells that nothing was left, which is the normal case. If the list is not empty, every orphan is attributed
//! once: by session or group, which no process outside the task can have, by the label that it has inherited from the
//! task (see `label.rs`), or by the task's marker in its environment. Orphans of ended tasks are killed with all their descendants; those of running tasks stay.
//!
//! In any other process orphans go elsewhere, and only the task's process group can be ended.
//!
//! Children that share our own session and carry no marker were made by somebody else in this process (a
//! `std::process::Command`, say). They are neither killed nor reaped.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::event::Token;
use crate::label::Label;
use crate::live::Running;
use crate::procfs::{self, Families, MainThreadChildren, Process};
use crate::sys::{self, WaitFor};

/// How long orphans of an ended task are looked for. A process that was forking while its siblings were killed
/// shows up within milliseconds.
const FOLLOW_UP: Duration = Duration::from_secs(2);

/// Pause between two looks during that time.
const FOLLOW_UP_PAUSE: Duration = Duration::from_millis(10);

/// Pause between two looks for ended orphans of running tasks, which would otherwise stay zombies until a task ends.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// How long an orphan that cannot be attributed is looked at again: the environment is empty during execve.
const DOUBT: Duration = Duration::from_secs(2);

/// Whom an adopted process belongs to. Valid until we reap it: nobody else can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Task(Token),
    /// A child of this process that no task is responsible for.
    Foreign,
    /// An orphan that cannot be attributed.
    Unknown,
}

/// As much of a task as attribution needs.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) token: Token,
    pub(crate) pid: libc::pid_t,
    pub(crate) leader: bool,
    pub(crate) marker: Option<Vec<u8>>,
    pub(crate) label: Option<u64>,
}

impl From<&Running> for Task {
    fn from(child: &Running) -> Self {
        Self {
            token: child.token,
            pid: child.pid,
            leader: child.leader,
            marker: child.marker.clone(),
            label: child.label.as_ref().map(Label::value),
        }
    }
}

/// The launcher's own children.
#[derive(Debug)]
pub(crate) struct Census {
    pub(crate) running: Vec<Task>,
    /// Ended ones that have not been reaped. When the thread that created one has ended, it is found among the children
    /// of the main thread like an orphan; but its status belongs to somebody.
    pub(crate) ending: Vec<libc::pid_t>,
}

/// An adopted process.
#[derive(Debug)]
struct Adopted {
    owner: Owner,
    since: Instant,
}

impl Adopted {
    fn is_certain(&self) -> bool {
        self.owner != Owner::Unknown || self.since.elapsed() >= DOUBT
    }
}

/// Finds and ends what tasks leave behind.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// `None` when orphans do not come to this process, or cannot be listed.
    children: Option<MainThreadChildren>,
    own_session: libc::pid_t,
    /// Children of the main thread, sorted.
    adopted: Vec<libc::pid_t>,
    known: HashMap<libc::pid_t, Adopted>,
    /// Tasks that ended a moment ago, and until when their orphans are looked for.
    ended: Vec<(Task, Instant)>,
}

impl Orphans {
    pub(crate) fn new() -> Self {
        let children = if sys::adopts_orphans() {
            MainThreadChildren::open().ok()
        } else {
            None
        };
        Self {
            children,
            own_session: sys::session_of(0).unwrap_or(0),
            adopted: Vec::new(),
            known: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// Whether orphans come to this process and can be listed.
    pub(crate) const fn adopting(&self) -> bool {
        self.children.is_some()
    }

    /// Called with children that have ended and are not reaped yet. Ends what they left behind.
    ///
    /// Answers with the number of leaked processes of each task that had any, as far as it is known already:
    /// without adoption [`count_left`] counts after the child was reaped.
    pub(crate) fn on_ended(
        &mut self,
        batch: &[Running],
        any_running: bool,
        census: impl FnOnce() -> Census,
    ) -> HashMap<Token, u32> {
        if !self.adopting() {
            for child in batch.iter().filter(|child| child.leader) {
                // The unreaped leader keeps the number from being used again.
                let _ = sys::kill(-child.pid, libc::SIGKILL);
            }
            return HashMap::new();
        }
        self.list();
        if self.adopted.is_empty() {
            self.known.clear();
            return HashMap::new();
        }
        let until = Instant::now() + FOLLOW_UP;
        self.ended
            .extend(batch.iter().map(|child| (Task::from(child), until)));
        self.sweep(any_running, census)
    }

    /// Called from time to time: reaps ended orphans, ends late ones. Answers when to call again.
    pub(crate) fn tick(&mut self, any_running: bool, census: impl FnOnce() -> Census) -> Duration {
        self.list();
        if self.adopted.is_empty() {
            self.known.clear();
        } else {
            self.sweep(any_running, census);
        }
        let now = Instant::now();
        self.ended.retain(|(_, until)| *until > now);
        self.pause()
    }

    /// How long the next look at the orphans may wait.
    pub(crate) fn pause(&self) -> Duration {
        if self.follows_up() {
            FOLLOW_UP_PAUSE
        } else {
            IDLE_PAUSE
        }
    }

    /// Whether orphans of ended tasks are looked for.
    pub(crate) fn follows_up(&self) -> bool {
        !self.ended.is_empty() && !self.adopted.is_empty()
    }

    fn list(&mut self) {
        if let Some(children) = &mut self.children
            && let Err(error) = children.read(&mut self.adopted)
        {
            tracing::warn!(%error, "cannot list adopted processes");
            self.adopted.clear();
        }
        self.adopted.sort_unstable();
    }

    /// Attributes new orphans, kills those of ended tasks, reaps the dead.
    fn sweep(&mut self, any_running: bool, census: impl FnOnce() -> Census) -> HashMap<Token, u32> {
        let adopted = &self.adopted;
        self.known
            .retain(|pid, _| adopted.binary_search(pid).is_ok());
        if self.known.len() < self.adopted.len() || !self.known.values().all(Adopted::is_certain) {
            let census = census();
            let index = Index::new(self.ended.iter().map(|(task, _)| task), &census);
            for pid in &self.adopted {
                let before = self.known.get(pid);
                if before.is_none_or(|adopted| !adopted.is_certain()) {
                    let since = before.map_or_else(Instant::now, |adopted| adopted.since);
                    let owner = index.owner(*pid, self.own_session);
                    tracing::debug!(pid, ?owner, "adopted a process");
                    self.known.insert(*pid, Adopted { owner, since });
                }
            }
        }
        let ended: HashSet<Token> = self.ended.iter().map(|(task, _)| task.token).collect();
        // Unattributed ones count for the task that ended last; without one the token is nobody's.
        let culprit = self
            .ended
            .last()
            .map_or(Token(u64::MAX), |(task, _)| task.token);
        let condemned: Vec<_> = self
            .known
            .iter()
            .filter_map(|(pid, adopted)| match &adopted.owner {
                Owner::Task(token) => ended.contains(token).then_some((*pid, *token)),
                // With no task left that it could belong to, it is a leftover of one that ended.
                Owner::Unknown if !any_running => Some((*pid, culprit)),
                Owner::Unknown | Owner::Foreign => None,
            })
            .collect();
        let killed = kill_trees(&condemned);
        self.reap();
        killed
    }

    /// Reaps adopted processes that have ended.
    fn reap(&mut self) {
        self.known.retain(|pid, adopted| {
            adopted.owner == Owner::Foreign
                || matches!(sys::wait(WaitFor::Pid(*pid), libc::WNOHANG), Ok(None))
        });
    }
}

/// Who is who, built only when an orphan appears that was not seen before.
struct Index<'a> {
    by_leader: HashMap<libc::pid_t, Token>,
    by_label: HashMap<u64, Token>,
    by_marker: HashMap<&'a [u8], Token>,
    own: HashSet<libc::pid_t>,
}

impl<'a> Index<'a> {
    fn new(ended: impl Iterator<Item = &'a Task>, census: &'a Census) -> Self {
        let running = &census.running;
        let mut index = Self {
            by_leader: HashMap::new(),
            by_label: HashMap::new(),
            by_marker: HashMap::new(),
            own: running.iter().map(|task| task.pid).collect(),
        };
        index.own.extend(&census.ending);
        // Running tasks come last and win: an ended one's number may have been used again.
        for task in ended.chain(running) {
            if task.leader {
                index.by_leader.insert(task.pid, task.token);
            }
            if let Some(label) = task.label {
                index.by_label.insert(label, task.token);
            }
            if let Some(marker) = &task.marker {
                index.by_marker.insert(marker, task.token);
            }
        }
        index
    }

    fn owner(&self, pid: libc::pid_t, own_session: libc::pid_t) -> Owner {
        if self.own.contains(&pid) {
            // Not an orphan at all: created by the main thread, or by one that has ended.
            return Owner::Foreign;
        }
        let Some(process) = Process::read(pid) else {
            return Owner::Unknown;
        };
        let by_leader = self
            .by_leader
            .get(&process.session)
            .or_else(|| self.by_leader.get(&process.group));
        if let Some(token) = by_leader {
            return Owner::Task(*token);
        }
        // The soft limit first: it is that of the innermost launcher.
        let labels = procfs::labels(pid).unwrap_or_default();
        if let Some(token) = labels.iter().find_map(|label| self.by_label.get(label)) {
            return Owner::Task(*token);
        }
        let environment = procfs::environment(pid).unwrap_or_default();
        let by_marker = environment
            .split(|byte| *byte == 0)
            .find_map(|entry| self.by_marker.get(entry));
        match by_marker {
            Some(token) => Owner::Task(*token),
            None if process.session == own_session => Owner::Foreign,
            None => Owner::Unknown,
        }
    }
}

/// Kills adopted processes and all their descendants; answers how many of each task were alive.
fn kill_trees(condemned: &[(libc::pid_t, Token)]) -> HashMap<Token, u32> {
    let mut killed = HashMap::new();
    if condemned.is_empty() {
        return killed;
    }
    let processes = procfs::all_processes();
    let mut families = Families::new(&processes);
    let alive: HashSet<libc::pid_t> = processes
        .iter()
        .filter(|process| !process.is_dead())
        .map(|process| process.pid)
        .collect();
    let own = sys::getpid();
    for (root, token) in condemned {
        let count: &mut u32 = killed.entry(*token).or_default();
        // Its number cannot be recycled: it is our child and only we reap it.
        if alive.contains(root) && sys::kill(*root, libc::SIGKILL).is_ok() {
            *count += 1;
        }
        for process in families.take_descendants(*root) {
            let still_meant = || {
                Process::read(process.pid)
                    // Its parent may have been killed just above; then it has come to us.
                    .is_some_and(|now| now.parent == process.parent || now.parent == own)
            };
            if !process.is_dead() && procfs::kill_if(process.pid, still_meant) {
                *count += 1;
            }
        }
    }
    killed
}

/// For a task that led a group, was reaped, and whose orphans do not come to us: how many members of its session
/// are left. They have been sent SIGKILL or are now.
///
/// Costs one system call when there is none.
pub(crate) fn count_left(leader: libc::pid_t) -> u32 {
    if sys::kill(-leader, 0).is_err() {
        return 0;
    }
    let belongs = |process: &Process| process.group == leader || process.session == leader;
    let mut count = 0;
    for process in procfs::all_processes() {
        if belongs(&process) && process.pid != leader {
            count += 1;
            procfs::kill_if(process.pid, || {
                Process::read(process.pid).is_some_and(|now| belongs(&now))
            });
        }
    }
    // The group answered, so somebody was there, even if gone by now.
    count.max(1)
}

/// Kills the descendants of children that are about to be killed, where orphans do not come to us: afterwards
/// nothing would connect them to their task any more.
pub(crate) fn kill_descendants_of(tasks: &[Task]) {
    let processes = procfs::all_processes();
    let mut families = Families::new(&processes);
    for task in tasks {
        for process in families.take_descendants(task.pid) {
            procfs::kill_if(process.pid, || {
                Process::read(process.pid).is_some_and(|now| now.parent == process.parent)
            });
        }
    }
    let markers: HashSet<&[u8]> = tasks
        .iter()
        .filter_map(|task| task.marker.as_deref())
        .collect();
    let labels: HashSet<u64> = tasks.iter().filter_map(|task| task.label).collect();
    let own: HashSet<libc::pid_t> = tasks.iter().map(|task| task.pid).collect();
    if markers.is_empty() {
        return;
    }
    let is_marked = |pid: libc::pid_t| {
        let found = procfs::labels(pid).unwrap_or_default();
        found.iter().any(|label| labels.contains(label))
            || procfs::environment(pid).is_some_and(|environment| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|entry| markers.contains(entry))
            })
    };
    for process in processes {
        if !own.contains(&process.pid) && is_marked(process.pid) {
            procfs::kill_if(process.pid, || is_marked(process.pid));
        }
    }
}
