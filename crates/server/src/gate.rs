//! Nothing reveals a stored change before it is on disk: what follows from a change waits here.
//!
//! Two queues, each in order. What goes to workers waits for changes that somebody was promised
//! ([`ChangeKind::is_urgent`]), which are committed at once: a worker must not run tasks of a submit
//! that a crash would undo. What tells of results (replies, updates, answers, acknowledgements of
//! reports) waits for every earlier change. Without a store nothing waits.
//!
//! [`ChangeKind::is_urgent`]: hq_core::server_state::ChangeKind::is_urgent

use std::collections::VecDeque;

use hq_core::server_state::Change;
use hq_store::{Health, Progress, StoreHandle};
use tokio::sync::watch;

/// For what a message has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Changes that somebody was promised.
    Urgent,
    /// Every change that was made before.
    All,
}

/// The store as the core's thread sees it, with what waits for it.
pub(crate) struct Gate<T> {
    store: Option<StoreHandle>,
    progress: Option<watch::Receiver<Progress>>,
    committed: u64,
    /// Numbers of the last change of each kind.
    last: u64,
    last_urgent: u64,
    for_urgent: VecDeque<(u64, T)>,
    for_all: VecDeque<(u64, T)>,
}

impl<T> Gate<T> {
    /// Lets everything pass at once.
    pub(crate) fn open() -> Self {
        Self::new(None)
    }

    pub(crate) fn new(store: Option<(StoreHandle, watch::Receiver<Progress>)>) -> Self {
        let (store, progress) = store.unzip();
        Self {
            store,
            progress,
            committed: 0,
            last: 0,
            last_urgent: 0,
            for_urgent: VecDeque::new(),
            for_all: VecDeque::new(),
        }
    }

    /// Hands changes to the store; what is passed afterwards waits for them.
    pub(crate) fn store(&mut self, changes: Vec<Change>) {
        let Some(store) = self.store.as_mut().filter(|_| !changes.is_empty()) else {
            return;
        };
        let is_urgent = changes.iter().any(|change| change.kind.is_urgent());
        self.last = store.store(changes);
        if is_urgent {
            self.last_urgent = self.last;
        }
    }

    /// Gives the message back if it may go now; otherwise keeps it.
    pub(crate) fn pass(&mut self, wait: Wait, message: T) -> Option<T> {
        let (queue, number) = match wait {
            Wait::Urgent => (&mut self.for_urgent, self.last_urgent),
            Wait::All => (&mut self.for_all, self.last),
        };
        if queue.is_empty() && number <= self.committed {
            return Some(message);
        }
        queue.push_back((number, message));
        None
    }

    /// A message that may go meanwhile.
    pub(crate) fn next(&mut self) -> Option<T> {
        for queue in [&mut self.for_urgent, &mut self.for_all] {
            if queue
                .front()
                .is_some_and(|(number, _)| *number <= self.committed)
            {
                return queue.pop_front().map(|(_, message)| message);
            }
        }
        None
    }

    /// Waits until the store has got on. Pending for ever without one.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn advanced(&mut self) {
        match &mut self.progress {
            Some(progress) => {
                if progress.changed().await.is_err() {
                    // The writer ended; its last report stays.
                    std::future::pending::<()>().await;
                }
                self.committed = progress.borrow_and_update().committed;
            }
            None => std::future::pending().await,
        }
    }

    /// How the store is; good without one.
    pub(crate) fn health(&self) -> Health {
        self.progress
            .as_ref()
            .map_or(Health::Good, |progress| progress.borrow().health.clone())
    }
}
