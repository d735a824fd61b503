//! Runs long single-client work on a few threads of its own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of threads. They compete with the others for cpus, so further work waits.
const AT_ONCE: usize = 2;

/// Runs work outside the threads that all clients depend on.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPool {
    permits: Arc<Semaphore>,
    /// Held by the request that resubmits large jobs, whose tasks are in memory twice.
    resubmits: Arc<Semaphore>,
}

impl BlockingPool {
    pub(crate) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            resubmits: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs work when a thread is free. `None` = the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let permit = self.acquire().await?;
        Self::run_on(permit, work).await
    }

    /// Waits for a free thread, for work with large data that should be fetched only then. `None` =
    /// the server ends.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Runs work with such a permit.
    pub(crate) async fn run_on<T: Send + 'static>(
        permit: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let done = tokio::task::spawn_blocking(move || {
            // Held even if the requester is gone meanwhile.
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
