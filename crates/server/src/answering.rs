//! Requests that are being answered: a server that ends does not cut them off.

use tokio::sync::watch;

/// How many requests that change something are being answered.
#[derive(Clone, Debug)]
pub(crate) struct Answering(watch::Sender<usize>);

/// One of them, until it is dropped.
pub(crate) struct BeingAnswered(watch::Sender<usize>);

impl Answering {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Counts one more, until the result is dropped.
    pub(crate) fn count(&self) -> BeingAnswered {
        self.0.send_modify(|count| *count += 1);
        BeingAnswered(self.0.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for BeingAnswered {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
