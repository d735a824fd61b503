//! Requests being answered: a shutdown waits for them.

use tokio::sync::watch;

/// Number of requests being answered that change something.
#[derive(Clone, Debug)]
pub(crate) struct Answering(watch::Sender<usize>);

/// Counts one of them until dropped.
pub(crate) struct RequestInFlight(watch::Sender<usize>);

impl Answering {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Counts one more, until the result is dropped.
    pub(crate) fn count(&self) -> RequestInFlight {
        self.0.send_modify(|count| *count += 1);
        RequestInFlight(self.0.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
