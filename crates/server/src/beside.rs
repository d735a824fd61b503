//! Work of one client that takes long and needs nothing that others wait for: on threads of its own, a few at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Such work that is done at once. The threads stay, and take the place of others on their cpus; so more of it waits.
const AT_ONCE: usize = 2;

/// Does work beside the threads on which all wait.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    seats: Arc<Semaphore>,
    /// Held by the request whose large jobs are submitted again: their tasks are in memory twice.
    again: Arc<Semaphore>,
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self {
            seats: Arc::new(Semaphore::new(AT_ONCE)),
            again: Arc::new(Semaphore::new(1)),
        }
    }

    /// Does it when there is a seat. `None` = the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let seat = self.seat().await?;
        Self::run_on(seat, work).await
    }

    /// Waits for a seat, for work whose data are large: they are to be fetched once there is one. `None` = the server ends.
    pub(crate) async fn seat(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.seats).acquire_owned().await.ok()
    }

    /// Does work on such a seat.
    pub(crate) async fn run_on<T: Send + 'static>(
        seat: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let done = tokio::task::spawn_blocking(move || {
            // Also if the one who asked is gone meanwhile.
            let _seat = seat;
            work()
        });
        done.await.ok()
    }

    /// Waits until no other request has copies of large jobs to submit them again.
    pub(crate) async fn alone(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.again).acquire_owned().await.ok()
    }
}
