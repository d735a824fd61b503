//! Work of one client that takes long and needs nothing that others wait for: on threads of its own, a few at a time.

use std::sync::Arc;

use hq_protocol::admission::{Permit, actor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request_shares::SEATS;

/// Does work beside the threads on which all wait.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// Held by the request whose large jobs are submitted again: their tasks are in memory twice.
    again: Arc<Semaphore>,
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self {
            again: Arc::new(Semaphore::new(1)),
        }
    }

    /// Does it when there is a seat. `None` = the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let seat = self.seat().await;
        Self::run_on(seat, work).await
    }

    /// Waits for a seat, for work whose data are large: they are to be fetched once there is one.
    pub(crate) async fn seat(&self) -> Permit {
        SEATS.enter(actor()).await
    }

    /// Does work on such a seat.
    pub(crate) async fn run_on<T: Send + 'static>(
        seat: Permit,
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

#[cfg(test)]
mod tests {
    use hq_protocol::admission::{Holder, acting_as};

    use super::*;

    #[tokio::test]
    async fn a_lesser_right_leaves_a_seat_to_the_owner() {
        let beside = Beside::new();
        let _held = acting_as(Holder::Other(0), beside.seat()).await;
        tokio::select! {
            biased;
            _ = acting_as(Holder::Other(1), beside.seat()) => panic!("one seat is for all lesser rights"),
            done = beside.run(|| 1) => assert_eq!(done, Some(1)),
        }
    }
}
