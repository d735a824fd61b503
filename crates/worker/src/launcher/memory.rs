//! Enforces memory limits of tasks by watching their process trees.
//!
//! A thread looks for the processes of all watched trees about ten times a second. Every few
//! milliseconds in between, it glances at the resident memory of the known processes, because many
//! programs allocate and exit within a few tens of milliseconds.
//!
//! Resident memory counts shared pages more than once, and includes file pages, which the kernel
//! can reclaim. Therefore a tree exceeds its limit only if its proportional share of anonymous
//! memory does. The kernel computes that share on request, which is expensive because it walks all
//! pages of a process.
//!
//! Processes that leave both the tree and the session of their task are not seen. A fast growing
//! tree can exceed its limit by the memory that it touches between two glances.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hq_core::worker_state::LaunchToken;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use super::processes::{Families, KIB, Process, Processes};

/// The shortest pause between two looks at all processes of the machine.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The shortest pause between two glances at the known processes. A program can touch some tens of
/// MiB during that time.
const GLANCE_PAUSE: Duration = Duration::from_millis(5);
/// The pause after a look or a glance, as a multiple of its CPU time. Watching thus costs at most 2
/// % of a cpu.
const REST: u32 = 50;
/// The longest pause. A task that grows during this pause must not exhaust the machine's memory.
const REST_MAX: Duration = Duration::from_secs(2);
/// Shares of memory that differ by less than one part in this many count as the same memory. They
/// are not exactly equal, because the parent may have other threads.
const SAME_MEMORY: u64 = 64;
/// After a tree's shares were found below the limit, how long the tree is not checked again unless
/// its resident memory grows.
const ACQUITTED: Duration = Duration::from_secs(2);
/// Added to the OOM score of tasks (-1000 to 1000), so that the kernel prefers to kill them.
const TASK_SCORE: i16 = 500;
/// The OOM score of the worker, if it is permitted to lower it.
const WORKER_SCORE: &str = "-500";

/// A process tree that used more memory than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryOveruse {
    pub(super) token: LaunchToken,
    /// The memory in use, in KiB.
    pub(super) used: u64,
    /// The memory that the task requested, in KiB.
    pub(super) limit: u64,
}

impl MemoryOveruse {
    /// Returns a text for users.
    pub(super) fn words(self) -> Box<str> {
        let [used, limit] = [self.used, self.limit].map(mib);
        format!("used {used} of {limit} MiB").into()
    }
}

/// Formats KiB as MiB with one decimal, or none if it is zero.
fn mib(kib: u64) -> String {
    let tenths = kib * 10 / KIB;
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    }
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    pid: u32,
    limit: u64,
    since: Instant,
}

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    tasks: BTreeMap<LaunchToken, Watched>,
    is_over: bool,
}

/// Watches trees until dropped.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    shared: Arc<Shared>,
    /// The OOM score of tasks. It is set with the first task that has a limit.
    task_score: OnceLock<Option<i16>>,
}

impl MemoryWatch {
    /// Starts the thread. It sends each tree that exceeds its limit to `found`, once.
    pub(super) fn start(found: mpsc::UnboundedSender<MemoryOveruse>) -> io::Result<Self> {
        let processes = Processes::new("/proc");
        if processes.get(std::process::id()).is_none() {
            return Err(io::Error::other("/proc does not show processes"));
        }
        let shared = Arc::new(Shared::default());
        let watcher = Watcher {
            shared: Arc::clone(&shared),
            processes,
            found,
            members: BTreeMap::new(),
            acquitted: BTreeMap::new(),
        };
        thread::Builder::new()
            .name("hq-memory".into())
            .spawn(move || watcher.run())?;
        Ok(Self {
            shared,
            task_score: OnceLock::new(),
        })
    }

    /// Makes the kernel kill tasks before this worker when memory runs out. It is called for each
    /// task with a limit. Workers without such tasks avoid the cost: creating a child that sets a
    /// score is slower.
    pub(super) fn protect_worker(&self) {
        self.task_score.get_or_init(|| {
            let score = task_score();
            // This must follow the computation of the tasks' score, which is derived from this
            // process's original score.
            lower_own_score();
            score
        });
    }

    /// Returns the initial score of tasks, if any. Tasks without a limit need it as well,
    /// because the worker lowered its own.
    pub(super) fn task_score(&self) -> Option<i16> {
        self.task_score.get().copied().flatten()
    }

    /// Starts to watch a tree. `limit` is in KiB.
    pub(super) fn add(&self, token: LaunchToken, pid: u32, limit: u64) {
        let since = Instant::now();
        let watched = Watched { pid, limit, since };
        self.shared.lock().tasks.insert(token, watched);
        self.shared.changed.notify_one();
    }

    /// Stops watching a tree.
    pub(super) fn remove(&self, token: LaunchToken) {
        self.shared.lock().tasks.remove(&token);
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code can panic while the data is inconsistent.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the pause after a look or glance that used this CPU time.
fn pause_after(took: Duration, shortest: Duration) -> Duration {
    took.saturating_mul(REST).clamp(shortest, REST_MAX)
}

/// Returns the score that makes the kernel prefer tasks, or `None` if it cannot be set here.
fn task_score() -> Option<i16> {
    let path = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(path).ok()?;
    // This writes the current score back, only to find out whether that is permitted.
    fs::write(path, &own).ok()?;
    // Only privileged processes may lower the score, and tasks inherit the worker's. In containers,
    // it often starts higher.
    own.trim().parse().ok().map(|own: i16| own.max(TASK_SCORE))
}

fn lower_own_score() {
    if fs::write("/proc/self/oom_score_adj", WORKER_SCORE).is_err() {
        tracing::debug!(
            "only tasks are marked for the kernel to end first; the worker stays as it is"
        );
    }
}

struct Watcher {
    shared: Arc<Shared>,
    processes: Processes,
    found: mpsc::UnboundedSender<MemoryOveruse>,
    /// The processes of the trees at the last look.
    members: BTreeMap<LaunchToken, Vec<u32>>,
    /// Trees with high resident memory whose shares were below the limit.
    acquitted: BTreeMap<LaunchToken, Acquittal>,
}

/// A tree whose shares were summed up and found to be small enough.
#[derive(Clone, Copy, Debug)]
struct Acquittal {
    /// The resident memory at that check, in KiB.
    own: u64,
    /// When to check again even if the memory has not grown.
    until: Instant,
}

impl Watcher {
    fn run(mut self) {
        let mut next_look = Instant::now();
        loop {
            let tasks = {
                let mut state = self.shared.lock();
                while state.tasks.is_empty() && !state.is_over {
                    let waited = self.shared.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                if state.is_over {
                    return;
                }
                // The map is copied so that tasks can start and end during the look.
                state.tasks.clone()
            };
            let now = Instant::now();
            // For short tasks, a glance at their first processes is enough.
            let mut ages = tasks
                .values()
                .map(|task| now.saturating_duration_since(task.since));
            let is_look = now >= next_look && ages.any(|age| age >= LOOK_PAUSE);
            // CPU time is used instead of elapsed time, because waiting on a busy machine costs
            // other processes nothing.
            let before = cpu_time();
            self.acquitted.retain(|token, _| tasks.contains_key(token));
            let found = if is_look {
                self.look(&tasks)
            } else {
                self.check(&tasks)
            };
            for excess in found {
                // Each tree is reported only once, because the process may still be alive at the
                // next look.
                self.shared.lock().tasks.remove(&excess.token);
                if self.found.send(excess).is_err() {
                    return;
                }
            }
            let took = cpu_time().saturating_sub(before);
            thread::sleep(if is_look {
                next_look = Instant::now() + pause_after(took, LOOK_PAUSE);
                GLANCE_PAUSE
            } else {
                pause_after(took, GLANCE_PAUSE)
            });
        }
    }

    /// Finds the processes of all trees. Returns the trees that exceed their limit.
    fn look(&mut self, tasks: &BTreeMap<LaunchToken, Watched>) -> Vec<MemoryOveruse> {
        let families = Families::new(self.processes.look());
        self.members.clear();
        let mut found = Vec::new();
        for (token, task) in tasks {
            let tree: Vec<Process> = families.tree(task.pid).into_iter().copied().collect();
            found.extend(self.judge(*token, task.limit, &tree));
            let members = tree.iter().map(|process| process.pid);
            self.members.insert(*token, members.collect());
        }
        found
    }

    /// Checks the processes that the last look found, and the first process of each task that has
    /// started since. Returns the trees that exceed their limit.
    fn check(&mut self, tasks: &BTreeMap<LaunchToken, Watched>) -> Vec<MemoryOveruse> {
        let mut found = Vec::new();
        for (token, task) in tasks {
            let root = [task.pid];
            let members = self.members.get(token).map_or(&root[..], Vec::as_slice);
            let known = members.iter().filter_map(|pid| self.processes.get(*pid));
            let tree: Vec<Process> = known.collect();
            found.extend(self.judge(*token, task.limit, &tree));
        }
        found
    }

    /// Returns the memory use of a tree if it exceeds the limit.
    fn judge(&mut self, token: LaunchToken, limit: u64, tree: &[Process]) -> Option<MemoryOveruse> {
        // The checks below are ordered by increasing cost.
        if tree.iter().map(|process| process.rss).sum::<u64>() <= limit {
            return None;
        }
        // An exited process has no memory.
        let own = tree.iter().filter_map(|one| self.processes.own(one.pid));
        let own = own.sum();
        if own <= limit || self.is_acquitted(token, own) {
            return None;
        }
        let used = match (tree, self.used(tree)) {
            // The process has exited in the meantime, and shared nothing with other processes of
            // its tree.
            ([_], 0) => own,
            (_, used) => used,
        };
        if used <= limit {
            let until = Instant::now() + ACQUITTED;
            self.acquitted.insert(token, Acquittal { own, until });
            return None;
        }
        Some(MemoryOveruse { token, used, limit })
    }

    /// Returns the memory of processes in KiB, counting shared pages proportionally.
    fn used(&self, tree: &[Process]) -> u64 {
        let share = |process: &Process| {
            let share = self.processes.share(process.pid);
            // The share of another user's process cannot be read.
            share.or_else(|| self.processes.own(process.pid))
        };
        let shares: BTreeMap<u32, u64> = tree
            .iter()
            .filter_map(|process| Some((process.pid, share(process)?)))
            .collect();
        let is_same = |one: u64, other: u64| one.abs_diff(other) <= other / SAME_MEMORY;
        // Between `vfork` and `execve`, a process uses the memory of its parent. Both report all of
        // it, and report nothing as shared.
        let is_in_parent = |process: &Process| {
            let own = shares.get(&process.pid).zip(shares.get(&process.parent));
            own.is_some_and(|(own, parent)| {
                let undivided = || self.processes.own(process.pid).unwrap_or(0);
                is_same(*own, *parent) && is_same(*own, undivided())
            })
        };
        let counted = tree.iter().filter(|process| !is_in_parent(process));
        counted.filter_map(|process| shares.get(&process.pid)).sum()
    }

    fn is_acquitted(&self, token: LaunchToken, own: u64) -> bool {
        let last = self.acquitted.get(&token);
        last.is_some_and(|last| own <= last.own + last.own / 50 && Instant::now() < last.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a machine of processes `(pid, parent, session, pages, share)`.
    fn machine(processes: &[(u32, u32, u32, u64, u64)]) -> (tempfile::TempDir, Watcher) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (pid, parent, session, pages, share) in processes {
            let own = dir.path().join(pid.to_string());
            fs::create_dir(&own).expect("writable");
            let zeros = "0 ".repeat(17);
            let stat = format!("{pid} (a) b) S {parent} {session} {session} {zeros}{pages} 0\n");
            fs::write(own.join("stat"), stat).expect("writable");
            let rollup = format!(
                "00-ff ---p [rollup]\nRss: 9 kB\nPss: 99999 kB\nPss_Anon: {share} kB\nPss_Shmem: 0 kB\nSwapPss: 1 kB\n"
            );
            fs::write(own.join("smaps_rollup"), rollup).expect("writable");
            let anon = pages * 4;
            let status =
                format!("Name: a\nRssAnon:\t{anon} kB\nRssFile:\t99 kB\nRssShmem:\t0 kB\n");
            fs::write(own.join("status"), status).expect("writable");
        }
        fs::create_dir(dir.path().join("sys")).expect("writable");
        let (found, _) = mpsc::unbounded_channel();
        let watcher = Watcher {
            shared: Arc::new(Shared::default()),
            processes: Processes::with_pages(dir.path(), 4),
            found,
            members: BTreeMap::new(),
            acquitted: BTreeMap::new(),
        };
        (dir, watcher)
    }

    fn watched(limit: u64) -> BTreeMap<LaunchToken, Watched> {
        let since = Instant::now();
        let pid = 10;
        BTreeMap::from([(LaunchToken(1), Watched { pid, limit, since })])
    }

    #[test]
    fn looks_cost_little_and_pauses_end() {
        let pause = |millis| pause_after(Duration::from_millis(millis), LOOK_PAUSE);
        assert_eq!(pause(0), LOOK_PAUSE);
        assert_eq!(pause(10), Duration::from_millis(500));
        // Such a long look can happen on a machine that swaps.
        assert_eq!(pause(60_000), REST_MAX);
    }

    #[test]
    fn a_tree_counts_with_its_session_and_its_share() {
        // 11 is a child, 12 is its child in another session, 13 is an orphan in the session, and
        // 20 is unrelated.
        let all = [
            (10, 1, 10, 100, 90),
            (11, 10, 10, 100, 90),
            (12, 11, 12, 100, 90),
            (13, 1, 10, 100, 90),
            (20, 1, 20, 9_000, 9_000),
        ];
        let (_dir, mut watcher) = machine(&all);
        assert!(watcher.look(&watched(1_600)).is_empty(), "resident memory");
        assert!(watcher.look(&watched(364)).is_empty(), "shared pages");
        watcher.acquitted.clear();
        let found = watcher.look(&watched(363));
        let (used, limit) = (364, 363);
        assert_eq!(
            found,
            [MemoryOveruse {
                token: LaunchToken(1),
                used,
                limit
            }]
        );
    }

    #[test]
    fn processes_that_vanish_are_no_trouble() {
        let (dir, mut watcher) = machine(&[(10, 1, 10, 100, 0)]);
        fs::remove_file(dir.path().join("10/smaps_rollup")).expect("is there");
        assert_eq!(watcher.look(&watched(300)).len(), 1, "by its own memory");
        // How much memory of an ended process was file pages is unknown.
        fs::remove_file(dir.path().join("10/status")).expect("is there");
        assert!(watcher.look(&watched(300)).is_empty());
        fs::remove_file(dir.path().join("10/stat")).expect("is there");
        assert!(watcher.look(&watched(0)).is_empty());
    }

    #[test]
    fn a_process_in_the_memory_of_its_parent_does_not_count() {
        let used = |shares: [u64; 2]| {
            let [parent, child] = shares;
            let all = [(10, 1, 10, 100, parent), (11, 10, 10, 100, child)];
            let (_dir, mut watcher) = machine(&all);
            let found = watcher.look(&watched(100));
            found.iter().map(|one| one.used).collect::<Vec<_>>()
        };
        assert_eq!(used([400, 402]), [401], "between `vfork` and `execve`");
        assert_eq!(used([200, 200]), [402], "forked a moment ago");
        assert_eq!(used([400, 300]), [702], "two programs");
    }

    #[test]
    fn a_glance_sees_the_processes_of_the_last_look_and_of_new_tasks() {
        let all = [
            (10, 1, 10, 10, 40),
            (11, 10, 10, 100, 400),
            (12, 10, 10, 1, 4),
        ];
        let (dir, mut watcher) = machine(&all);
        assert!(
            watcher.check(&watched(100)).is_empty(),
            "only its root is known"
        );
        assert_eq!(watcher.check(&watched(30)).len(), 1);
        assert!(watcher.look(&watched(1_000)).is_empty());
        fs::remove_dir_all(dir.path().join("12")).expect("is there");
        let found = watcher.check(&watched(400));
        assert_eq!(found.iter().map(|one| one.used).collect::<Vec<_>>(), [442]);
    }

    #[test]
    fn pages_of_files_do_not_count() {
        let (dir, mut watcher) = machine(&[(10, 1, 10, 100_000, 90)]);
        let own = |name: &str| dir.path().join("10").join(name);
        let status = "RssAnon: 300 kB\nRssFile: 399700 kB\nRssShmem: 0 kB\n";
        fs::write(own("status"), status).expect("writable");
        assert!(watcher.look(&watched(300)).is_empty());
        assert!(watcher.acquitted.is_empty(), "nothing had to be summed up");
        let before = "Rss: 400000 kB\nPss: 399900 kB\n";
        fs::write(own("smaps_rollup"), before).expect("writable");
        let found = watcher.look(&watched(199));
        assert_eq!(found.len(), 1, "before Linux 5.3");
        assert_eq!(found[0].used, 200);
    }

    #[test]
    fn what_was_acquitted_is_not_summed_up_at_once_again() {
        let (dir, mut watcher) = machine(&[(10, 1, 10, 100, 90)]);
        assert!(watcher.look(&watched(300)).is_empty());
        let rollup = dir.path().join("10/smaps_rollup");
        fs::write(&rollup, "Pss_Anon: 350 kB\nPss_Shmem: 0 kB\n").expect("writable");
        assert!(
            watcher.look(&watched(300)).is_empty(),
            "it seems to use no more"
        );
        fs::write(
            dir.path().join("10/status"),
            "RssAnon: 410 kB\nRssShmem: 0 kB\n",
        )
        .expect("writable");
        fs::write(
            dir.path().join("10/stat"),
            format!("10 (a) S 1 10 10 {}110 0\n", "0 ".repeat(17)),
        )
        .expect("writable");
        assert_eq!(watcher.look(&watched(300)).len(), 1);
    }

    #[test]
    fn words_have_both_numbers() {
        let excess = |used, limit| MemoryOveruse {
            token: LaunchToken(0),
            used,
            limit,
        };
        assert_eq!(&*excess(409_700, 204_800).words(), "used 400 of 200 MiB");
        assert_eq!(&*excess(1_500, 1_024).words(), "used 1.4 of 1 MiB");
    }
}
