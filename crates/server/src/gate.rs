//! The core thread's view of the store, and the messages that wait for the store.
//!
//! [`Gate`] in core decides which effect waits for which commit, but has no access to a store. This
//! module connects it to one: it passes changes to the store, reads the writer's progress, releases
//! messages, and measures how long commits take.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hq_core::server_state::{Change, Gate, Wait};
use hq_store::{Health, Progress, StoreHandle};
use tokio::sync::watch;

use crate::stats::Durations;

/// The maximum number of batches whose commits are timed. More batches wait only if the disk is
/// full.
const TIMED_MAX: usize = 4_096;

/// How long queries wait for a commit before they are answered without it. A sync on a busy file
/// system can take a second or two.
pub(crate) const STALL: Duration = Duration::from_secs(3);

/// Keeps messages until the changes that they reveal are on disk. Without a store, no message
/// waits.
pub(crate) struct StoreGate<T> {
    store: Option<StoreHandle>,
    progress: Option<watch::Receiver<Progress>>,
    gate: Gate<T>,
    /// Whether the writer has ended and its last report has been read.
    has_ended: bool,
    /// The numbers of uncommitted batches, in order, each with the time when it was decided.
    timed: VecDeque<(u64, Instant)>,
    /// The number of the last batch beyond those in `timed`, and the time when the first batch
    /// beyond them was decided.
    untimed: Option<(u64, Instant)>,
    /// When the store last made progress.
    advanced_at: Option<Instant>,
    commits: Durations,
}

impl<T> StoreGate<T> {
    pub(crate) fn new(
        store: Option<(StoreHandle, watch::Receiver<Progress>)>,
        commits: Durations,
    ) -> Self {
        let (store, progress) = store.unzip();
        Self {
            store,
            progress,
            gate: Gate::default(),
            has_ended: false,
            timed: VecDeque::new(),
            untimed: None,
            advanced_at: None,
            commits,
        }
    }

    /// Passes changes that were decided at this time to the store. Later messages wait for them.
    pub(crate) fn store(&mut self, changes: Vec<Change>, decided_at: Instant) {
        let Some(store) = self.store.as_mut().filter(|_| !changes.is_empty()) else {
            return;
        };
        let number = store.next_number();
        self.gate.note(number, &changes);
        if self.timed.len() < TIMED_MAX && self.untimed.is_none() {
            self.timed.push_back((number, decided_at));
        } else {
            let (last, _) = self.untimed.get_or_insert((number, decided_at));
            *last = number;
        }
        store.store(changes);
    }

    /// Returns the message if it can be sent now. Otherwise keeps it.
    pub(crate) fn pass(&mut self, wait: Wait, message: T) -> Option<T> {
        self.gate.pass(wait, message)
    }

    /// Returns the time since which messages to workers may have been waiting, or `None` if no
    /// message is waiting.
    pub(crate) fn unsent_since(&self) -> Option<Instant> {
        let first = self.timed.front().or(self.untimed.as_ref());
        let first = first.map(|(_, at)| *at);
        first.filter(|_| self.gate.keeps_from_workers())
    }

    /// Requests an immediate commit of the changes that messages wait for.
    pub(crate) fn commit_now(&self) {
        if let Some(store) = self.store.as_ref().filter(|_| self.gate.is_waiting()) {
            store.commit_now();
        }
    }

    /// Returns when the store will count as stalled unless it commits first. `None` if it has no
    /// pending changes.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        let (_, start) = self.timed.front().or(self.untimed.as_ref())?;
        // A slow store that makes progress is not stalled, even if changes wait for earlier
        // commits.
        Some(self.advanced_at.map_or(*start, |at| at.max(*start)) + STALL)
    }

    /// Returns whether the store is stalled: its disk is full, or has not answered for some time.
    pub(crate) fn is_held(&self) -> bool {
        let is_over = |at: Instant| at <= Instant::now();
        self.health() != Health::Good || self.stalls_at().is_some_and(is_over)
    }

    /// Returns the next released message.
    pub(crate) fn next(&mut self) -> Option<T> {
        self.gate.next_ready()
    }

    /// Waits until the store makes progress. Never returns without a store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost.
    pub(crate) async fn advanced(&mut self) {
        match &mut self.progress {
            Some(progress) => {
                if progress.changed().await.is_err() {
                    // The writer has ended. Its last report remains readable.
                    std::future::pending::<()>().await;
                }
                self.note_progress();
            }
            None => std::future::pending().await,
        }
    }

    /// Returns, without waiting, whether the store has made progress since the last check.
    pub(crate) fn look(&mut self) -> bool {
        let Some(progress) = &self.progress else {
            return false;
        };
        // An error means that the writer has ended. Its last report may not have been read yet.
        let has_changed = progress
            .has_changed()
            .unwrap_or_else(|_| !std::mem::replace(&mut self.has_ended, true));
        if has_changed {
            self.note_progress();
        }
        has_changed
    }

    fn note_progress(&mut self) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        let committed = progress.borrow_and_update().committed;
        self.gate.advance(committed);
        while let Some((_, start)) = self.timed.pop_front_if(|(n, _)| *n <= committed) {
            self.commits.observe(start.elapsed());
            self.advanced_at = Some(Instant::now());
        }
        self.untimed.take_if(|(last, _)| *last <= committed);
    }

    /// Returns the state of the store. Without a store, it is healthy.
    pub(crate) fn health(&self) -> Health {
        self.progress
            .as_ref()
            .map_or(Health::Good, |progress| progress.borrow().health.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::stats::Stats;
    use hq_core::id::JobId;
    use hq_core::server_state::ChangeKind;
    use hq_store::Store;

    /// Returns a gate for a store whose progress the test controls.
    pub(crate) fn gate<T>() -> (tempfile::TempDir, watch::Sender<Progress>, StoreGate<T>) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state.db")).expect("a new store");
        let at = Clock::new().now().wall;
        let handle = store.start("test", &[], at, |_| ()).expect("a writer");
        let (progress, seen) = watch::channel(Progress {
            committed: 0,
            health: Health::Good,
        });
        let gate = StoreGate::new(Some((handle, seen)), Stats::new().commits.clone());
        (dir, progress, gate)
    }

    #[test]
    fn the_last_report_of_a_writer_that_has_ended_is_seen_once() {
        let (_dir, progress, mut gate) = gate::<()>();
        assert!(!gate.look());
        progress.send_modify(|progress| progress.health = Health::Broken("gone".into()));
        drop(progress);
        assert!(
            gate.look(),
            "no other source reports it while work is pending"
        );
        assert!(matches!(gate.health(), Health::Broken(_)));
        assert!(!gate.look(), "and nothing new follows");
    }

    #[tokio::test]
    async fn a_batch_is_timed_until_it_is_on_disk() {
        let (_dir, progress, mut gate) = gate::<()>();
        let at = Clock::new().now().wall;
        assert_eq!(gate.stalls_at(), None, "it has nothing to do");
        let before = Instant::now();
        for _ in 0..2 {
            let kind = ChangeKind::JobsForgotten(vec![JobId(1)]);
            gate.store(vec![Change { at, kind }], Instant::now());
        }
        let first = gate.stalls_at().expect("one is on its way");
        assert!(first >= before + STALL);
        let advanced = Instant::now();
        progress.send_modify(|progress| progress.committed = 1);
        gate.advanced().await;
        let second = gate.stalls_at().expect("one is left");
        assert!(second >= advanced + STALL, "a slow store gets on");
        progress.send_modify(|progress| progress.committed = 2);
        gate.advanced().await;
        assert_eq!(gate.stalls_at(), None, "all is on disk");
    }
}
