//! Runs calls that may block forever and waits for them for a bounded time.

use std::time::Duration;

/// Longest wait for the removal of the working directory, whose file system may hang. A later
/// worker removes a directory that is left over.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Drops a value whose `drop` removes the working directory, on a thread of its own.
pub(crate) async fn remove_in_time(dropped: impl Send + 'static) {
    let remove = move || drop(dropped);
    in_time("removing the working directory", REMOVAL_TIMEOUT, remove).await;
}

/// Runs blocking work on a thread of its own and waits for it at most `limit`.
pub(crate) async fn in_time(what: &str, limit: Duration, work: impl FnOnce() + Send + 'static) {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => tracing::error!("{what} failed"),
        Err(_) => tracing::warn!(
            "{what} takes longer than {} s; the worker ends without waiting for it",
            limit.as_secs()
        ),
    }
}
