//! Holds tasks to the memory that they asked for, by watching their process trees.
//!
//! A thread looks at the resident memory of all watched trees a few times a second. That counts pages
//! that processes share more than once, and those of files, which the kernel takes back when it needs memory.
//! So a tree is only found guilty by its proportional share of memory that no file stands behind, which the
//! kernel computes on request, at a cost: it walks all pages of a process. Processes that leave both the tree and the session of their task are
//! not seen. A tree that grows fast can exceed its limit by what it touches between two looks.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hq_core::worker_state::LaunchToken;
use tokio::sync::mpsc;

use super::processes::{Families, KIB, Process, Processes};

/// Pause between two looks: short enough that a task touches little in between, long enough that some
/// hundred processes cost about a percent of a cpu.
const PERIOD: Duration = Duration::from_millis(100);
/// Pause after a look that took long, as a multiple of it, so that watching costs 4 % of a cpu at most.
const REST: u32 = 25;
/// The longest pause all the same: a task that grows meanwhile must not take the machine's memory first.
const REST_MAX: Duration = Duration::from_secs(2);
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
    task_score: Option<i16>,
}

impl MemoryWatch {
    /// Starts the thread. What it finds goes to `found`, each tree once.
    pub(super) fn start(found: mpsc::UnboundedSender<MemoryOveruse>) -> std::io::Result<Self> {
        let task_score = task_score();
        // Behind the score of tasks, which is derived from what this process had.
        protect_worker();
        let shared = Arc::new(Shared::default());
        let watcher = Watcher {
            shared: Arc::clone(&shared),
            processes: Processes::new("/proc"),
            found,
            acquitted: BTreeMap::new(),
        };
        thread::Builder::new()
            .name("hq-memory".into())
            .spawn(move || watcher.run())?;
        Ok(Self { shared, task_score })
    }

    /// The score that tasks start with, if any.
    pub(super) const fn task_score(&self) -> Option<i16> {
        self.task_score
    }

    /// Watches a tree from now on; `limit` in KiB.
    pub(super) fn add(&self, token: LaunchToken, pid: u32, limit: u64) {
        self.shared
            .lock()
            .tasks
            .insert(token, Watched { pid, limit });
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

/// The pause after a look that took so long.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(REST).clamp(PERIOD, REST_MAX)
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

fn protect_worker() {
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
            let start = Instant::now();
            self.acquitted.retain(|token, _| tasks.contains_key(token));
            for excess in self.look(&tasks) {
                // Found once: the next look may come before it is dead.
                self.shared.lock().tasks.remove(&excess.token);
                if self.found.send(excess).is_err() {
                    return;
                }
            }
            thread::sleep(pause_after(start.elapsed()));
        }
    }

    /// The trees that use too much.
    fn look(&mut self, tasks: &BTreeMap<LaunchToken, Watched>) -> Vec<MemoryOveruse> {
        let families = Families::new(self.processes.look());
        let mut found = Vec::new();
        for (token, task) in tasks {
            let tree = families.tree(task.pid);
            let sum = |of: &dyn Fn(&Process) -> u64| tree.iter().copied().map(of).sum::<u64>();
            // Each look is dearer than the one before.
            if sum(&|process| process.rss) <= task.limit {
                continue;
            }
            let own = sum(&|process| self.processes.own(process.pid).unwrap_or(process.rss));
            if own <= task.limit || self.is_acquitted(*token, own) {
                continue;
            }
            let used = sum(&|process| {
                let share = self.processes.share(process.pid);
                share.unwrap_or_else(|| self.processes.own(process.pid).unwrap_or(process.rss))
            });
            if used <= task.limit {
                let until = Instant::now() + ACQUITTED;
                self.acquitted.insert(*token, Acquittal { own, until });
            } else {
                found.push(MemoryOveruse {
                    token: *token,
                    used,
                    limit: task.limit,
                });
            }
        }
        found
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
            acquitted: BTreeMap::new(),
        };
        (dir, watcher)
    }

    fn watched(limit: u64) -> BTreeMap<LaunchToken, Watched> {
        BTreeMap::from([(LaunchToken(1), Watched { pid: 10, limit })])
    }

    #[test]
    fn looks_cost_little_and_pauses_end() {
        let pause = |milliseconds| pause_after(Duration::from_millis(milliseconds));
        assert_eq!(pause(1), PERIOD);
        assert_eq!(pause(20), Duration::from_millis(500));
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
        assert_eq!(watcher.look(&watched(300)).len(), 1, "by resident memory");
        fs::remove_file(dir.path().join("10/stat")).expect("is there");
        assert!(watcher.look(&watched(0)).is_empty());
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
