//! Holds tasks to the memory that they asked for, by watching their process trees.
//!
//! A thread looks for the processes of all watched trees some ten times a second, and in between, every few
//! milliseconds, glances at the resident memory of the processes that it knows: many programs take what they need
//! within some tens of milliseconds and exit. Resident memory counts pages that processes share more than once, and those
//! of files, which the kernel takes back when it needs memory. So a tree is only found guilty by its proportional
//! share of memory that no file stands behind, which the kernel computes on request, at a cost: it walks all pages
//! of a process. Processes that leave both the tree and the session of their task are not seen. A tree that grows
//! fast can exceed its limit by what it touches between two glances.

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

/// Shortest pause between two looks at all processes of the machine.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Shortest pause between two glances at the processes that are known: a program touches some ten MiB in it.
const GLANCE_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a look or a glance that took long, as a multiple of it, so that each of them costs 2 % of a cpu at most.
const REST: u32 = 50;
/// The longest pause all the same: a task that grows meanwhile must not take the machine's memory first.
const REST_MAX: Duration = Duration::from_secs(2);
/// Shares of memory that differ by less than this part, as a divisor, are taken for the same memory: the parent may have other threads.
const SAME_MEMORY: u64 = 64;
/// How long a tree whose shares were small enough is believed to use no more, unless it seems to.
const ACQUITTED: Duration = Duration::from_secs(2);
/// Added to the readiness of tasks to be chosen when the machine runs out of memory: -1000 to 1000.
const TASK_SCORE: i16 = 500;
/// The same of the worker, where it has the right to lower it.
const WORKER_SCORE: &str = "-500";

/// A process tree that used more memory than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryOveruse {
    pub(super) token: LaunchToken,
    /// Memory in use, in KiB.
    pub(super) used: u64,
    /// Memory that the task asked for, in KiB.
    pub(super) limit: u64,
}

impl MemoryOveruse {
    /// Text for users.
    pub(super) fn words(self) -> Box<str> {
        let [used, limit] = [self.used, self.limit].map(mib);
        format!("used {used} of {limit} MiB").into()
    }
}

/// MiB with one decimal, or none if it is zero.
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
    /// The score of tasks, from the first task with a limit on.
    task_score: OnceLock<Option<i16>>,
}

impl MemoryWatch {
    /// Starts the thread. What it finds goes to `found`, each tree once.
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

    /// Has the kernel end tasks before this worker when memory runs out. To be called for each task with a limit. Workers
    /// without such tasks save the price: a child that sets a score is created in a slower way.
    pub(super) fn protect_worker(&self) {
        self.task_score.get_or_init(|| {
            let score = task_score();
            // Behind the score of tasks, which is derived from what this process had.
            lower_own_score();
            score
        });
    }

    /// The score that tasks start with, if any. Those without a limit have it as well: the worker's own is lower.
    pub(super) fn task_score(&self) -> Option<i16> {
        self.task_score.get().copied().flatten()
    }

    /// Watches a tree from now on; `limit` in KiB.
    pub(super) fn add(&self, token: LaunchToken, pid: u32, limit: u64) {
        let since = Instant::now();
        let watched = Watched { pid, limit, since };
        self.shared.lock().tasks.insert(token, watched);
        self.shared.changed.notify_one();
    }

    /// The tree has ended.
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
        // Nothing in here is left half done by a panic.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The pause after a look or glance that took so long.
fn pause_after(took: Duration, shortest: Duration) -> Duration {
    took.saturating_mul(REST).clamp(shortest, REST_MAX)
}

/// The score that has the kernel choose a task, if it must end something; `None` if it cannot be set here.
fn task_score() -> Option<i16> {
    let path = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(path).ok()?;
    // Written back as it is, only to see whether that is allowed at all.
    fs::write(path, &own).ok()?;
    // Only privileged processes may lower it, and tasks inherit ours: containers begin with one that is set for them.
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
    /// Processes of the trees at the last look.
    members: BTreeMap<LaunchToken, Vec<u32>>,
    /// Trees that seemed to use too much and did not.
    acquitted: BTreeMap<LaunchToken, Acquittal>,
}

/// A tree whose shares were summed up and found to be small enough.
#[derive(Clone, Copy, Debug)]
struct Acquittal {
    /// Memory that it seemed to use, in KiB.
    own: u64,
    /// When its shares are summed up again even if that has not grown.
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
                // A copy, so that tasks can start and end during the look.
                state.tasks.clone()
            };
            let now = Instant::now();
            // Short tasks need no look at all processes: a glance at their own is enough.
            let mut ages = tasks
                .values()
                .map(|task| now.saturating_duration_since(task.since));
            let is_look = now >= next_look && ages.any(|age| age >= LOOK_PAUSE);
            // Not by the clock: on a busy machine this thread waits, which costs others nothing.
            let before = cpu_time();
            self.acquitted.retain(|token, _| tasks.contains_key(token));
            let found = if is_look {
                self.look(&tasks)
            } else {
                self.glance(&tasks)
            };
            for excess in found {
                // Found once: the next look may come before it is dead.
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

    /// Finds the processes of all trees; returns the trees that use too much.
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

    /// Checks the processes that the last look found, and the first process of each task that has started since; returns
    /// the trees that use too much.
    fn glance(&mut self, tasks: &BTreeMap<LaunchToken, Watched>) -> Vec<MemoryOveruse> {
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

    /// What a tree uses, if that is more than its limit.
    fn judge(&mut self, token: LaunchToken, limit: u64, tree: &[Process]) -> Option<MemoryOveruse> {
        // Each step is dearer than the one before.
        if tree.iter().map(|process| process.rss).sum::<u64>() <= limit {
            return None;
        }
        // A process that is gone has nothing.
        let own = tree.iter().filter_map(|one| self.processes.own(one.pid));
        let own = own.sum();
        if own <= limit || self.is_acquitted(token, own) {
            return None;
        }
        let used = match (tree, self.used(tree)) {
            // It has ended meanwhile, and shared nothing with others of its tree.
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

    /// Memory of processes, in KiB: what they share counts in part.
    fn used(&self, tree: &[Process]) -> u64 {
        let share = |process: &Process| {
            let share = self.processes.share(process.pid);
            // That of another user cannot be asked for.
            share.or_else(|| self.processes.own(process.pid))
        };
        let shares: BTreeMap<u32, u64> = tree
            .iter()
            .filter_map(|process| Some((process.pid, share(process)?)))
            .collect();
        let is_same = |one: u64, other: u64| one.abs_diff(other) <= other / SAME_MEMORY;
        // Between `vfork` and `execve` a process is in the memory of its parent: both show all of it, and nothing as shared.
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

    /// A machine of processes `(pid, parent, session, pages, share)`.
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
        // On a machine that swaps, say.
        assert_eq!(pause(60_000), REST_MAX);
    }

    #[test]
    fn a_tree_counts_with_its_session_and_its_share() {
        // 11 is a child, 12 its child in another session, 13 an orphan of the session; 20 is not ours.
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
        // How much of an ended process was files is unknown.
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
            watcher.glance(&watched(100)).is_empty(),
            "only its root is known"
        );
        assert_eq!(watcher.glance(&watched(30)).len(), 1);
        assert!(watcher.look(&watched(1_000)).is_empty());
        fs::remove_dir_all(dir.path().join("12")).expect("is there");
        let found = watcher.glance(&watched(400));
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
