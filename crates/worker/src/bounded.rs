//! Runs calls that may block forever and bounds how long the caller waits for them.

use std::time::Duration;

/// How long to wait for the removal of the working directory, whose file system may hang. A later
/// worker removes a directory that is left over.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Drops, on a separate thread, a value whose `drop` removes the working directory.
pub(crate) async fn remove_in_time(dropped: impl Send + 'static) {
    let remove = move || drop(dropped);
    in_time("removing the working directory", REMOVAL_TIMEOUT, remove).await;
}

/// Runs blocking work on a separate thread and waits at most `limit` for it.
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
