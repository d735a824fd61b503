//! Finds and kills processes that an ended task left behind.
//!
//! In a process that adopts orphans (a child subreaper, see `keeper`), a process that outlives its
//! parent becomes a child of the main thread. That thread's list of children is read once per batch
//! of ended tasks. Normally it is empty, which shows that no process was left behind. If the kernel
//! has no such list, see `adopted.rs`. If the list is not empty, each orphan is attributed once: by
//! the label that it inherited from the task (see `label.rs`), by the session or group of the task,
//! or by the task's marker in its environment. Orphans of ended tasks are killed with all their
//! descendants; orphans of running tasks are kept.
//!
//! In a process that does not adopt orphans, they go to another process, and only the task's
//! process group can be killed.
//!
//! Children in this process's own session and without a marker were created by other code of this
//! process (for example, with `std::process::Command`). They are neither killed nor reaped.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::adopted::{Adopted, Created};
use crate::event::Token;
use crate::label::Label;
use crate::live::Running;
use crate::procfs::{self, Families, Process};
use crate::sys::{self, WaitFor};

/// How long to search for orphans of an ended task. A process that was forking while its siblings
/// were killed appears within milliseconds.
const FOLLOW_UP: Duration = Duration::from_secs(2);

/// The interval of the search.
const FOLLOW_UP_PAUSE: Duration = Duration::from_millis(10);

/// The interval at which ended orphans of running tasks are reaped. Otherwise they would stay
/// zombies until a task ends.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// How long to retry attributing an orphan. During execve, a process's environment is empty.
const DOUBT: Duration = Duration::from_secs(2);

/// The owner of an adopted process. The process id stays valid until this process reaps it, because
/// no other process can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Task(Token),
    /// A child of this process that belongs to no task.
    Foreign,
    /// An orphan that cannot be attributed.
    Unknown,
}

/// The attributes of a task that are needed to attribute orphans.
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
    /// Children that have ended but have not been reaped. If the thread that created such a child
    /// has ended, the child appears among the children of the main thread like an orphan, but its
    /// status must not be lost.
    pub(crate) ending: Vec<libc::pid_t>,
    /// The known ids of children in creation. Empty if the kernel lists adopted processes.
    pub(crate) creating: Vec<libc::pid_t>,
    /// Whether there are children whose ids are not known yet.
    pub(crate) has_nameless: bool,
}

impl Census {
    fn created(&self) -> Created {
        let running = self.running.iter().map(|task| task.pid);
        let others = self.ending.iter().chain(&self.creating).copied();
        Created {
            pids: running.chain(others).collect(),
            has_nameless: self.has_nameless,
        }
    }
}

/// An adopted process.
#[derive(Debug)]
struct Orphan {
    owner: Owner,
    since: Instant,
}

impl Orphan {
    fn is_certain(&self) -> bool {
        self.owner != Owner::Unknown || self.since.elapsed() >= DOUBT
    }
}

/// Finds and kills the processes that tasks leave behind.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// `None` if this process does not adopt orphans.
    children: Option<Adopted>,
    own_session: libc::pid_t,
    /// The adopted processes, sorted by id.
    adopted: Vec<libc::pid_t>,
    known: HashMap<libc::pid_t, Orphan>,
    /// Recently ended tasks, each with the time until which its orphans are searched for.
    ended: Vec<(Task, Instant)>,
}

impl Orphans {
    /// Creates the state. If `may_list` is set, the kernel's list of children is used if there is
    /// one.
    pub(crate) fn new(may_list: bool) -> Self {
        Self {
            children: sys::adopts_orphans().then(|| Adopted::new(may_list)),
            own_session: sys::session_of(0).unwrap_or(0),
            adopted: Vec::new(),
            known: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// Returns whether this process adopts orphans.
    pub(crate) const fn adopting(&self) -> bool {
        self.children.is_some()
    }

    /// Returns whether this process adopts orphans and can find them only by scanning all
    /// processes.
    pub(crate) fn is_seeking(&self) -> bool {
        self.children
            .as_ref()
            .is_some_and(|adopted| !adopted.is_listed())
    }

    /// Kills the processes left behind by children that have ended. Must be called before these
    /// children are reaped.
    ///
    /// Returns the number of leaked processes for each task that has any, if already known. In a
    /// process that does not adopt orphans, [`count_left`] counts them after the child has been
    /// reaped.
    pub(crate) fn on_ended(
        &mut self,
        batch: &[Running],
        any_running: impl Fn() -> bool,
        census: impl Fn() -> Census,
    ) -> HashMap<Token, u32> {
        let kill_groups = || {
            for child in batch.iter().filter(|child| child.leader) {
                // The leader has not been reaped yet, so its id cannot be reused.
                let _ = sys::kill(-child.pid, libc::SIGKILL);
            }
        };
        if !self.adopting() {
            kill_groups();
            return HashMap::new();
        }
        let is_seeking = self.is_seeking();
        let is_fresh = self.list(&census);
        let until = Instant::now() + FOLLOW_UP;
        let ended = batch.iter().map(|child| (Task::from(child), until));
        if !is_seeking && self.adopted.is_empty() {
            self.known.clear();
            return HashMap::new();
        }
        self.ended.extend(ended);
        let killed = if is_fresh {
            self.sweep(any_running, census)
        } else {
            HashMap::new()
        };
        if is_seeking {
            // Most of the remaining processes are in the group. The search finds the others within
            // two seconds.
            kill_groups();
        }
        killed
    }

    /// Reaps ended orphans and kills late ones. Must be called regularly. Returns when to call it
    /// again.
    pub(crate) fn tick(
        &mut self,
        any_running: impl Fn() -> bool,
        census: impl Fn() -> Census,
    ) -> Duration {
        let is_fresh = self.list(&census);
        if self.adopted.is_empty() {
            self.known.clear();
        } else if is_fresh {
            self.sweep(any_running, census);
        }
        let now = Instant::now();
        self.ended.retain(|(_, until)| *until > now);
        self.pause()
    }

    /// Returns the maximum time until the next search for orphans.
    pub(crate) fn pause(&self) -> Duration {
        if !self.follows_up() {
            return IDLE_PAUSE;
        }
        let until_due = self.children.as_ref().and_then(Adopted::until_due);
        until_due.map_or(FOLLOW_UP_PAUSE, |until_due| until_due.max(FOLLOW_UP_PAUSE))
    }

    /// Returns whether a search for orphans of ended tasks is active.
    pub(crate) fn follows_up(&self) -> bool {
        !self.ended.is_empty() && (self.is_seeking() || !self.adopted.is_empty())
    }

    /// Updates the list of adopted processes. Returns `false` if the list is still that of an
    /// earlier scan.
    fn list(&mut self, census: impl Fn() -> Census) -> bool {
        let Some(children) = &mut self.children else {
            return true;
        };
        children.read(&mut self.adopted, &self.known, || census().created())
    }

    /// Attributes new orphans, kills orphans of ended tasks, and reaps dead ones.
    fn sweep(
        &mut self,
        any_running: impl Fn() -> bool,
        census: impl Fn() -> Census,
    ) -> HashMap<Token, u32> {
        // This is read after the scan, because a task may have started in the meantime and may own
        // an orphan.
        let any_running = any_running();
        let adopted = &self.adopted;
        self.known
            .retain(|pid, _| adopted.binary_search(pid).is_ok());
        if self.known.len() < self.adopted.len() || !self.known.values().all(Orphan::is_certain) {
            let census = census();
            let index = Index::new(self.ended.iter().map(|(task, _)| task), &census);
            for pid in &self.adopted {
                let before = self.known.get(pid);
                if before.is_none_or(|orphan| !orphan.is_certain()) {
                    let since = before.map_or_else(Instant::now, |orphan| orphan.since);
                    let owner = index.owner(*pid, self.own_session);
                    tracing::debug!(pid, ?owner, "adopted a process");
                    self.known.insert(*pid, Orphan { owner, since });
                }
            }
        }
        let ended: HashSet<Token> = self.ended.iter().map(|(task, _)| task.token).collect();
        // Orphans without an owner are counted for the task that ended last. If no task has ended,
        // the token is not that of any task.
        let culprit = self
            .ended
            .last()
            .map_or(Token(u64::MAX), |(task, _)| task.token);
        let condemned: Vec<_> = self
            .known
            .iter()
            .filter_map(|(pid, orphan)| match &orphan.owner {
                Owner::Task(token) => ended.contains(token).then_some((*pid, *token)),
                // No running task can own it, so an ended task left it behind.
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
        self.known.retain(|pid, orphan| {
            orphan.owner == Owner::Foreign
                || matches!(sys::wait(WaitFor::Pid(*pid), libc::WNOHANG), Ok(None))
        });
    }
}

/// Finds the owners of processes. The index is built only when a new orphan appears.
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
        // Running tasks come last and take precedence, because the id of an ended task may have
        // been reused.
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
            // This is not an orphan: the main thread or a thread that has ended created it.
            return Owner::Foreign;
        }
        let Some(process) = Process::read(pid) else {
            return Owner::Unknown;
        };
        // Check the soft limit first, because it belongs to the innermost launcher. Check the label
        // before the session, because a later task's session may reuse the id of an ended task.
        let labels = procfs::labels(pid).unwrap_or_default();
        if let Some(token) = labels.iter().find_map(|label| self.by_label.get(label)) {
            return Owner::Task(*token);
        }
        let by_leader = self
            .by_leader
            .get(&process.session)
            .or_else(|| self.by_leader.get(&process.group));
        if let Some(token) = by_leader {
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

/// Kills adopted processes and all their descendants. Returns how many processes of each task were
/// alive.
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
        let is_ours = || Process::read(*root).is_some_and(|now| now.parent == own);
        if alive.contains(root) && procfs::kill_if(*root, is_ours) {
            *count += 1;
        }
        for process in families.take_descendants(*root) {
            let still_meant = || {
                Process::read(process.pid)
                    // Its parent may have been killed just above; in that case, this process has
                    // adopted it.
                    .is_some_and(|now| now.parent == process.parent || now.parent == own)
            };
            if !process.is_dead() && procfs::kill_if(process.pid, still_meant) {
                *count += 1;
            }
        }
    }
    killed
}

/// Counts the remaining members of the session of a reaped task that led a group, in a process that
/// does not adopt orphans. They have been sent SIGKILL, either before or by this function.
///
/// Makes only one system call if there are no such processes.
pub(crate) fn count_left(leader: libc::pid_t) -> u32 {
    count_left_among(leader, procfs::all_processes)
}

/// Does the same with the processes that `look` finds.
fn count_left_among(leader: libc::pid_t, look: impl FnOnce() -> Vec<Process>) -> u32 {
    if sys::kill(-leader, 0).is_err() {
        return 0;
    }
    // The kernel does not reuse an id while a group or session uses it. If there is a process with
    // this id, nothing was left behind, and the group is a different one.
    let is_used_again = || Process::read(leader).is_some();
    let belongs = |process: &Process| process.group == leader || process.session == leader;
    let mut count = 0;
    for process in look() {
        if belongs(&process) && process.pid != leader {
            count += 1;
            procfs::kill_if(process.pid, || {
                Process::read(process.pid).is_some_and(|now| belongs(&now)) && !is_used_again()
            });
        }
    }
    if is_used_again() {
        return 0;
    }
    // The signal was delivered to the group, so it had at least one member.
    count.max(1)
}

/// Kills the descendants of children that are about to be killed, in a process that does not adopt
/// orphans. Once their parent has died, they can no longer be attributed to their task.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell that leads a group. Dropping this value kills the group.
    struct Leader(Child);

    impl Leader {
        fn start(script: &str) -> Self {
            let mut command = Command::new("bash");
            command.args(["-c", script]).process_group(0);
            Self(command.stdin(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> libc::pid_t {
            self.0.id().cast_signed()
        }
    }

    impl Drop for Leader {
        fn drop(&mut self) {
            let _ = sys::kill(-self.pid(), libc::SIGKILL);
            let _ = self.0.wait();
        }
    }

    fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "waited too long");
            sys::pause(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_number_that_another_process_has_by_now_names_nothing_that_was_left() {
        let other = Leader::start("sleep 1000 & wait");
        let pid = other.pid();
        let child = eventually(|| {
            let processes = procfs::all_processes();
            processes.into_iter().find(|process| process.parent == pid)
        });
        assert_eq!(count_left(pid), 0);
        let is_dead = Process::read(child.pid).map(|now| now.is_dead());
        assert_eq!(is_dead, Some(false), "it belongs to the other process");
    }

    /// Children of a leader that has ended. Dropping this value kills them.
    struct OrphanedChildren {
        leader: libc::pid_t,
        children: Vec<Process>,
    }

    impl OrphanedChildren {
        /// Runs `script`, which starts children and waits. The leader ends once they are ready.
        fn behind(
            mut command: Command,
            script: &str,
            is_ready: impl Fn(libc::pid_t, &[Process]) -> bool,
        ) -> Self {
            command.args(["bash", "-c", script]).stdin(Stdio::null());
            let mut shell = command.spawn().unwrap();
            let leader = shell.id().cast_signed();
            let children = eventually(|| {
                let mut found = procfs::all_processes();
                found.retain(|process| process.parent == leader);
                is_ready(leader, &found).then_some(found)
            });
            let left = Self { leader, children };
            shell.kill().unwrap();
            shell.wait().unwrap();
            left
        }

        fn wait_until_killed(&self) {
            for child in &self.children {
                eventually(|| {
                    let now = Process::read(child.pid);
                    now.is_none_or(|now| now.is_dead()).then_some(())
                });
            }
        }
    }

    impl Drop for OrphanedChildren {
        fn drop(&mut self) {
            for child in &self.children {
                let is_same =
                    || Process::read(child.pid).is_some_and(|now| now.began == child.began);
                procfs::kill_if(child.pid, is_same);
            }
        }
    }

    /// Returns the `setsid` program, whose child leads a session and a group.
    fn of_its_own_session() -> Command {
        Command::new("setsid")
    }

    /// Returns the `env` program, run in a new group of this session.
    fn of_its_own_group() -> Command {
        let mut command = Command::new("env");
        command.process_group(0);
        command
    }

    #[test]
    fn all_that_is_left_of_a_session_counts_in_whatever_group_it_is() {
        let two_groups = "sleep 1000 & set -m; sleep 1000 & wait";
        let is_ready = |leader, children: &[Process]| {
            let in_group = children.iter().filter(|child| child.group == leader);
            children.len() == 2 && in_group.count() == 1
        };
        let left = OrphanedChildren::behind(of_its_own_session(), two_groups, is_ready);
        assert_eq!(count_left(left.leader), 2);
        left.wait_until_killed();
    }

    #[test]
    fn all_that_is_left_of_a_group_counts_in_whatever_session_it_is() {
        let script = "sleep 1000 & sleep 1000 & wait";
        let is_ready = |leader, children: &[Process]| {
            let in_session = children.iter().any(|child| child.session == leader);
            children.len() == 2 && !in_session
        };
        let left = OrphanedChildren::behind(of_its_own_group(), script, is_ready);
        assert_eq!(count_left(left.leader), 2);
        left.wait_until_killed();
    }

    #[test]
    fn what_was_left_and_ends_before_it_is_seen_counts() {
        let is_ready = |_, children: &[Process]| children.len() == 1;
        let left = OrphanedChildren::behind(of_its_own_group(), "sleep 1000 & wait", is_ready);
        assert_eq!(count_left_among(left.leader, Vec::new), 1);
        assert_eq!(count_left(left.leader), 1, "and once, if it is seen");
        left.wait_until_killed();
    }

    #[test]
    fn a_label_tells_more_than_the_number_of_a_session() {
        const LABEL: u64 = 4711;
        let orphan = Leader::start(&format!("ulimit -x {LABEL}; exec sleep 1000"));
        let pid = orphan.pid();
        let is_labelled = || procfs::labels(pid) == Some([LABEL; 2]);
        eventually(|| is_labelled().then_some(()));
        let task = |token, pid, label| Task {
            token: Token(token),
            pid,
            leader: true,
            marker: None,
            label,
        };
        // A running task started the process. An ended task had the same id.
        let ended = task(1, pid, Some(1));
        let census = Census {
            running: vec![task(2, 1, Some(LABEL))],
            ending: Vec::new(),
            creating: Vec::new(),
            has_nameless: false,
        };
        let index = Index::new(std::iter::once(&ended), &census);
        assert_eq!(index.owner(pid, 0), Owner::Task(Token(2)));
    }

    #[test]
    fn what_has_the_marker_of_a_task_is_killed_before_the_task_itself() {
        let marker = format!("MARKER_OF_A_TEST={}", std::process::id());
        let start = || {
            let leader = Leader::start(&format!("exec env {marker} sleep 1000"));
            eventually(|| {
                let environment = procfs::environment(leader.pid())?;
                let mut entries = environment.split(|byte| *byte == 0);
                entries.find(|entry| *entry == marker.as_bytes()).map(drop)
            });
            leader
        };
        let (task, other) = (start(), start());
        kill_descendants_of(&[Task {
            token: Token(1),
            pid: task.pid(),
            leader: true,
            marker: Some(marker.clone().into_bytes()),
            label: None,
        }]);
        let is_alive = |pid| Process::read(pid).is_some_and(|now| !now.is_dead());
        eventually(|| (!is_alive(other.pid())).then_some(()));
        assert!(is_alive(task.pid()), "it is ended by its own signal");
    }

    #[test]
    fn an_orphan_of_nobody_lives_as_long_as_tasks_run() {
        let orphan = Leader::start("exec sleep 1000");
        let mut orphans = Orphans {
            children: None,
            // No process has this session id, so the orphan counts as foreign. 0 is a valid
            // session: it comes from outside the pid namespace, for example for a process started
            // by `docker exec`.
            own_session: -1,
            adopted: vec![orphan.pid()],
            known: HashMap::new(),
            ended: Vec::new(),
        };
        let census = no_processes;
        let is_alive = || Process::read(orphan.pid()).is_some_and(|now| !now.is_dead());
        assert!(orphans.sweep(|| true, census).is_empty());
        assert!(is_alive(), "it may belong to one of them");
        let killed = orphans.sweep(|| false, census);
        assert_eq!(killed, HashMap::from([(Token(u64::MAX), 1)]));
        eventually(|| (!is_alive()).then_some(()));
    }

    #[test]
    fn a_task_that_begins_while_orphans_are_sought_keeps_its_own() {
        let orphan = Leader::start("exec sleep 1000");
        let doubtful = Orphan {
            owner: Owner::Unknown,
            since: Instant::now(),
        };
        let mut orphans = Orphans {
            children: Some(Adopted::Sought(Instant::now())),
            own_session: -1,
            adopted: Vec::new(),
            known: HashMap::from([(orphan.pid(), doubtful)]),
            ended: Vec::new(),
        };
        // The first task starts after all processes have been scanned.
        let has_begun = Cell::new(false);
        let census = || {
            has_begun.set(true);
            // The scan must not find children of other tests in this process.
            let has_nameless = true;
            Census {
                has_nameless,
                ..no_processes()
            }
        };
        let killed = orphans.on_ended(&[], || has_begun.get(), census);
        assert_eq!(orphans.adopted, [orphan.pid()]);
        assert!(killed.is_empty(), "it may be of that task");
    }

    #[test]
    fn a_child_of_others_in_this_process_is_left_to_them() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        eventually(|| Process::read(pid).filter(Process::is_dead));
        let mut orphans = Orphans {
            children: None,
            own_session: sys::session_of(0).unwrap(),
            adopted: vec![pid],
            known: HashMap::new(),
            ended: Vec::new(),
        };
        assert!(orphans.sweep(|| false, no_processes).is_empty());
        assert!(child.wait().unwrap().success(), "its status is there");
    }

    #[test]
    fn a_task_answers_for_orphans_until_its_time_is_over() {
        let orphan = Leader::start("exec sleep 1000");
        let is_alive = || Process::read(orphan.pid()).is_some_and(|now| !now.is_dead());
        let task = Task {
            token: Token(1),
            pid: orphan.pid(),
            leader: true,
            marker: None,
            label: None,
        };
        let now = Instant::now();
        let mut orphans = Orphans {
            children: None,
            own_session: -1,
            adopted: Vec::new(),
            known: HashMap::new(),
            ended: vec![(task.clone(), now)],
        };
        let pause = orphans.tick(|| true, no_processes);
        assert_eq!(pause, IDLE_PAUSE, "nothing is followed up");
        // Its id may by now belong to another group.
        orphans.adopted.push(orphan.pid());
        orphans.tick(|| true, no_processes);
        let owner = orphans.known.get(&orphan.pid()).map(|orphan| orphan.owner);
        assert_eq!(owner, Some(Owner::Unknown));
        assert!(is_alive(), "it may belong to a task that runs");
        let later = now + 1_000 * FOLLOW_UP;
        orphans.known.clear();
        orphans.ended.push((task, later));
        let pause = orphans.tick(|| true, no_processes);
        eventually(|| (!is_alive()).then_some(()));
        assert_eq!(orphans.ended.len(), 1);
        assert_eq!(pause, FOLLOW_UP_PAUSE, "there may be more");
    }

    /// Returns a census without processes of the launcher.
    fn no_processes() -> Census {
        Census {
            running: Vec::new(),
            ending: Vec::new(),
            creating: Vec::new(),
            has_nameless: false,
        }
    }
}
