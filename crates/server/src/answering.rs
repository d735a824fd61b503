//! Counts the requests in progress, so that a shutdown can wait for them.

use tokio::sync::watch;

/// The number of requests in progress that change something.
#[derive(Clone, Debug)]
pub(crate) struct Answering(watch::Sender<usize>);

/// A guard that counts one request until it is dropped.
pub(crate) struct RequestInFlight(watch::Sender<usize>);

impl Answering {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Counts one more request until the returned guard is dropped.
    pub(crate) fn count(&self) -> RequestInFlight {
        self.0.send_modify(|count| *count += 1);
        RequestInFlight(self.0.clone())
    }

    /// Waits until no request is in progress.
    pub(crate) async fn none(&self) {
        // This cannot fail, because a sender exists.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
