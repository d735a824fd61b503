//! Checks the node periodically for full temporary directories, and for file systems that hang or
//! only return errors.
//!
//! A check may block forever, so each runs on a separate thread. It does not use the runtime's
//! blocking threads, because there is only one on a node that has run out of processes. A directory
//! is not checked again before the previous check has returned. [`hq_core::node_check`] interprets
//! the results.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_core::node_check::{DiskSpace, NodeFault};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// The number of tasks' recent working directories that are checked.
const RECENT_MAX: usize = 4;
/// The maximum number of concurrent checks. Each check that hangs occupies a thread.
const LOOKS_MAX: usize = 12;
/// The stack size of such a thread, in bytes.
const STACK: usize = 64 << 10;
/// A file system that does not answer for this long counts as hanging. One that is only busy
/// answers earlier.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The bounds of the pause between two checks. Within them, a check at every second heartbeat is
/// often enough and does not burden file servers.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Errors of a broken file system. Other errors concern the directory, which a user may have
/// removed.
const BROKEN: [Errno; 9] = [
    Errno::STALE,
    Errno::IO,
    Errno::NOTCONN,
    Errno::TIMEDOUT,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::REMOTEIO,
    Errno::NODEV,
    Errno::NXIO,
];

/// The checks of a directory. Each variant includes the previous ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// Checks that its file system answers.
    Read,
    /// Checks that it has free space.
    Room,
    /// Checks that the worker can write to it.
    Write,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Answer {
    room: DiskSpace,
    is_read_only: bool,
}

/// The working directories of the most recent tasks.
#[derive(Debug, Default)]
pub(crate) struct RecentDirs(Mutex<VecDeque<PathBuf>>);

impl RecentDirs {
    /// Records the directory of a task that is about to start.
    pub(crate) fn note(&self, dir: PathBuf) -> PathBuf {
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !dirs.contains(&dir) {
            dirs.truncate(RECENT_MAX - 1);
            dirs.push_front(dir.clone());
        }
        dir
    }

    fn all(&self) -> Vec<PathBuf> {
        let dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        dirs.iter().cloned().collect()
    }
}

/// Checks the node on a separate tokio task, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct NodeChecks {
    faults: watch::Receiver<Vec<NodeFault>>,
    looking: JoinHandle<()>,
}

impl NodeChecks {
    /// Starts to check the worker's directory, the directory for temporary files, the directory
    /// where the worker was started, and the working directories of tasks.
    pub(crate) fn start(work_dir: &Path, recent: Arc<RecentDirs>, heartbeat: Duration) -> Self {
        let mut places = BTreeMap::new();
        if let Ok(dir) = std::env::current_dir() {
            places.insert(dir, Use::Read);
        }
        places.insert(std::env::temp_dir(), Use::Room);
        places.insert(work_dir.to_owned(), Use::Write);
        let (sender, faults) = watch::channel(Vec::new());
        let pause = (heartbeat * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        Self {
            faults,
            looking: tokio::spawn(look(places, recent, pause, sender)),
        }
    }

    /// Returns all current problems of the node.
    pub(crate) fn faults(&self) -> Vec<NodeFault> {
        self.faults.borrow().clone()
    }

    /// Waits until the set of problems changes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn changed(&mut self) {
        if self.faults.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for NodeChecks {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// A running check.
struct RunningCheck {
    since: Instant,
    wanted: Use,
    answer: oneshot::Receiver<Result<Answer, Errno>>,
}

impl RunningCheck {
    /// Starts a check. Returns `None` if no thread can be created because tasks have used up the
    /// user's limit.
    fn begin(
        wanted: Use,
        ask: impl FnOnce() -> Result<Answer, Errno> + Send + 'static,
    ) -> Option<Self> {
        let (sender, answer) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("node-check".to_owned())
            .stack_size(STACK);
        let look = move || {
            // This fails if the result is no longer needed.
            let _ = sender.send(ask());
        };
        thread.spawn(look).ok()?;
        Some(Self {
            since: Instant::now(),
            wanted,
            answer,
        })
    }
}

async fn look(
    places: BTreeMap<PathBuf, Use>,
    recent: Arc<RecentDirs>,
    pause: Duration,
    faults: watch::Sender<Vec<NodeFault>>,
) {
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks: BTreeMap<PathBuf, RunningCheck> = BTreeMap::new();
    let mut known: BTreeMap<PathBuf, Vec<NodeFault>> = BTreeMap::new();
    loop {
        ticks.tick().await;
        // Collect results before starting new checks.
        collect(&mut looks, &mut known);
        let dirs = recent.all();
        known.retain(|path, _| places.contains_key(path) || dirs.contains(path));
        let of_tasks = dirs.into_iter().map(|dir| (dir, Use::Read));
        let own = places.iter().map(|(dir, wanted)| (dir.clone(), *wanted));
        for (dir, wanted) in own.chain(of_tasks) {
            if looks.len() < LOOKS_MAX && !looks.contains_key(&dir) {
                let path = dir.clone();
                looks.extend(
                    RunningCheck::begin(wanted, move || ask(&path)).map(|look| (dir, look)),
                );
            }
        }
        // Most checks return immediately.
        tokio::time::sleep(PAUSE_MIN / 4).await;
        collect(&mut looks, &mut known);
        let hanging = looks
            .iter()
            .filter(|(_, look)| look.since.elapsed() >= ANSWER_MAX);
        let hanging = hanging.map(|(dir, _)| NodeFault::Hangs(shown(dir)));
        let found: Vec<NodeFault> = hanging.chain(known.values().flatten().cloned()).collect();
        faults.send_if_modified(|before| {
            let is_same = before.len() == found.len()
                && before
                    .iter()
                    .zip(&found)
                    .all(|(one, other)| one.is_like(other));
            // The free space of a full disk changes constantly. The next heartbeat reports it.
            *before = found;
            !is_same
        });
    }
}

/// Collects the available results.
fn collect(
    looks: &mut BTreeMap<PathBuf, RunningCheck>,
    known: &mut BTreeMap<PathBuf, Vec<NodeFault>>,
) {
    looks.retain(|dir, look| match look.answer.try_recv() {
        Ok(answer) => {
            let before = known.get(dir).is_some_and(|faults| !faults.is_empty());
            let faults = judge(dir, look.wanted, answer, before);
            known.insert(dir.clone(), faults);
            false
        }
        Err(TryRecvError::Empty) => true,
        Err(TryRecvError::Closed) => false,
    });
}

fn judge(dir: &Path, wanted: Use, answer: Result<Answer, Errno>, was_full: bool) -> Vec<NodeFault> {
    let path = shown(dir);
    let answer = match answer {
        Ok(answer) => answer,
        Err(errno) if BROKEN.contains(&errno) => {
            let error = std::io::Error::from(errno).to_string().into();
            return vec![NodeFault::Broken { path, error }];
        }
        Err(_) => return Vec::new(),
    };
    let full = (wanted >= Use::Room).then(|| answer.room.fault(&path, was_full));
    let is_read_only = wanted == Use::Write && answer.is_read_only;
    let read_only = is_read_only.then_some(NodeFault::ReadOnly(path));
    full.flatten().into_iter().chain(read_only).collect()
}

/// Checks a file system. May block indefinitely.
fn ask(dir: &Path) -> Result<Answer, Errno> {
    let found = statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Answer {
        room: DiskSpace {
            free_bytes: bytes(found.f_bavail),
            total_bytes: bytes(found.f_blocks),
            free_files: found.f_favail,
            total_files: found.f_files,
        },
        is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

fn shown(dir: &Path) -> Box<str> {
    dir.to_string_lossy().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_expected_of_a_directory_is_a_fault() {
        let full = Answer {
            room: DiskSpace {
                total_bytes: 1 << 40,
                ..DiskSpace::default()
            },
            is_read_only: true,
        };
        let count = |wanted| judge(Path::new("/x"), wanted, Ok(full), false).len();
        assert_eq!([Use::Read, Use::Room, Use::Write].map(count), [0, 1, 2]);
        let fails = |errno| judge(Path::new("/x"), Use::Write, Err(errno), false);
        assert_eq!(fails(Errno::NOENT), [], "a user may have removed it");
        let [NodeFault::Broken { error, .. }] = &fails(Errno::STALE)[..] else {
            panic!("a stale handle is a fault");
        };
        assert!(error.contains("Stale"), "{error}");
    }

    #[test]
    fn the_directories_of_the_latest_tasks_are_known() {
        let recent = RecentDirs::default();
        for number in [1, 2, 1, 3, 4, 5, 5] {
            recent.note(format!("/{number}").into());
        }
        let names: Vec<PathBuf> = ["/5", "/4", "/3", "/2"].map(PathBuf::from).into();
        assert_eq!(recent.all(), names);
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_a_fault_and_comes_back() {
        let dir = PathBuf::from("/x");
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let look = RunningCheck::begin(Use::Room, move || {
            // Blocks as long as the simulated file system does not answer.
            let _ = receiver.recv();
            Err(Errno::STALE)
        });
        let look = look.expect("a thread");
        let (mut looks, mut known) = (BTreeMap::from([(dir.clone(), look)]), BTreeMap::new());
        collect(&mut looks, &mut known);
        assert_eq!((looks.len(), known.len()), (1, 0), "nobody waits for it");
        drop(sender);
        while !looks.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            collect(&mut looks, &mut known);
        }
        assert_eq!(known[&dir].len(), 1);
    }
}
