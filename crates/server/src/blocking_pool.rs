//! Runs long work for single clients on a few dedicated threads.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of threads. It is small because they compete with other threads for cpus. Further
/// work waits.
const AT_ONCE: usize = 2;

/// Runs work outside the threads that all clients depend on.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPool {
    permits: Arc<Semaphore>,
    /// The permit to resubmit large jobs. Only one request holds it at a time, because it keeps the
    /// tasks of these jobs in memory twice.
    resubmits: Arc<Semaphore>,
}

impl BlockingPool {
    pub(crate) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            resubmits: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs work when a thread is free. Returns `None` if the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let permit = self.acquire().await?;
        Self::run_on(permit, work).await
    }

    /// Waits for a free thread. Used for work on large data, which should be fetched only when a
    /// thread is free. Returns `None` if the server ends.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Runs work with a permit from [`Self::acquire`].
    pub(crate) async fn run_on<T: Send + 'static>(
        permit: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let done = tokio::task::spawn_blocking(move || {
            // The permit is held even if the client disconnects in the meantime.
            let _permit = permit;
            work()
        });
        done.await.ok()
    }

    /// Waits until no other request holds copies of large jobs for resubmission.
    pub(crate) async fn acquire_for_resubmit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.resubmits).acquire_owned().await.ok()
    }
}
