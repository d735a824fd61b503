//! Looks from time to time whether something is wrong with the node: no room for temporary files, a file system that does not
//! answer or only with errors.
//!
//! A look may block for ever, so each has a thread of its own, not one of the runtime's, of which a node without free processes has only
//! one. No directory is looked at again before that has come back. What it means is decided in [`hq_core::node_check`].

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_core::node_check::{NodeFault, Room};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// Working directories of tasks that are looked at, those of the latest tasks.
const RECENT_MAX: usize = 4;
/// Looks under way at one time: each that hangs keeps a thread.
const LOOKS_MAX: usize = 12;
/// Stack of such a thread, in bytes.
const STACK: usize = 64 << 10;
/// A file system that takes longer does not answer: longer than one that is only busy.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Bounds of the pause between two looks. As often as every second heartbeat is soon enough, and does not burden a server of files.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Errors that say that a file system is broken. Others are about the directory, which a user may have removed.
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

/// What is expected of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// Its file system answers.
    Read,
    /// There is room, too.
    Room,
    /// And the worker can write there.
    Write,
}

/// Result of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Answer {
    room: Room,
    is_read_only: bool,
}

/// Working directories of the latest tasks.
#[derive(Debug, Default)]
pub(crate) struct RecentDirs(Mutex<VecDeque<PathBuf>>);

impl RecentDirs {
    /// A task is about to start there.
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

/// Looks at the node on a task of its own. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct NodeChecks {
    faults: watch::Receiver<Vec<NodeFault>>,
    looking: JoinHandle<()>,
}

impl NodeChecks {
    /// Begins: with the directory of the worker, that for temporary files, the one in which the worker was started, and those in
    /// which tasks run.
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

    /// All that is wrong at this time.
    pub(crate) fn faults(&self) -> Vec<NodeFault> {
        self.faults.borrow().clone()
    }

    /// Waits until it is something else.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
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

/// A look under way.
struct Look {
    since: Instant,
    wanted: Use,
    answer: oneshot::Receiver<Result<Answer, Errno>>,
}

impl Look {
    /// Begins; `None` if there is no thread for it, because tasks use up all that the user may have.
    fn begin(
        wanted: Use,
        ask: impl FnOnce() -> Result<Answer, Errno> + Send + 'static,
    ) -> Option<Self> {
        let (sender, answer) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("node-check".to_owned())
            .stack_size(STACK);
        let look = move || {
            // Nobody may be waiting any more.
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
    let mut looks: BTreeMap<PathBuf, Look> = BTreeMap::new();
    let mut known: BTreeMap<PathBuf, Vec<NodeFault>> = BTreeMap::new();
    loop {
        ticks.tick().await;
        // First what has come back since the last time, then who is asked again.
        collect(&mut looks, &mut known);
        let dirs = recent.all();
        known.retain(|path, _| places.contains_key(path) || dirs.contains(path));
        let of_tasks = dirs.into_iter().map(|dir| (dir, Use::Read));
        let own = places.iter().map(|(dir, wanted)| (dir.clone(), *wanted));
        for (dir, wanted) in own.chain(of_tasks) {
            if looks.len() < LOOKS_MAX && !looks.contains_key(&dir) {
                let path = dir.clone();
                looks.extend(Look::begin(wanted, move || ask(&path)).map(|look| (dir, look)));
            }
        }
        // Most answer at once.
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
            // What is left of a full disk changes all the time: the next heartbeat says it.
            *before = found;
            !is_same
        });
    }
}

/// Takes the answers that are there.
fn collect(looks: &mut BTreeMap<PathBuf, Look>, known: &mut BTreeMap<PathBuf, Vec<NodeFault>>) {
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

/// Asks a file system. Blocks for as long as it likes.
fn ask(dir: &Path) -> Result<Answer, Errno> {
    let found = statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Answer {
        room: Room {
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
            room: Room {
                total_bytes: 1 << 40,
                ..Room::default()
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
        let look = Look::begin(Use::Room, move || {
            // As long as the file system does not answer.
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
