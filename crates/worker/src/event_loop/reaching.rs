//! Reconnects to a lost server and logs the attempts.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::Connection;
use hq_spawn::keeper::KeeperContext;
use tokio::time::Instant;

use super::describe;
use crate::server_link::{ConnectError, Redial};

/// The pause between attempts to reach a lost server doubles from this value up to the maximum.
/// Each pause is shortened randomly, so that a thousand workers do not reconnect at the same
/// moment.
pub(super) const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(100);
pub(super) const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pause between two checks whether a suspended front process was resumed. Each check reads one
/// small file in /proc.
const STOPPED_PAUSE: Duration = Duration::from_millis(200);

/// The number of failed registrations before the worker warns, and the interval of further
/// warnings.
const REFUSALS_SILENT: u32 = 3;
const REFUSAL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// How long the server's directory must be missing before the server counts as gone. This is longer
/// than moving the directory or an outage of its file system usually takes.
pub(super) const GONE_MIN: Duration = Duration::from_secs(60);

/// Failed registrations of a reconnecting worker.
#[derive(Default)]
pub(super) struct Refusals {
    count: u32,
    last_warning: Option<Instant>,
}

impl Refusals {
    /// Logs a failure. One or two are normal while a server starts; more need attention.
    pub(super) fn note(&mut self, why: &str) {
        self.count += 1;
        let is_time = self
            .last_warning
            .is_none_or(|last| last.elapsed() >= REFUSAL_WARNING_INTERVAL);
        if self.count < REFUSALS_SILENT || !is_time {
            tracing::debug!("cannot register again yet: {why}");
            return;
        }
        self.last_warning = Some(Instant::now());
        tracing::warn!(
            "The server answers but does not accept this worker again ({} attempts so far): {why}",
            self.count
        );
    }
}

/// Retries until there is a connection or the server's directory has been missing for [`GONE_MIN`].
///
/// A worker whose front process is suspended makes no attempt. Otherwise it would register, send no
/// heartbeat, be declared lost and register as a new worker, over and over.
pub(super) async fn reach_again<S>(
    mut redial: Redial<S>,
    mut pause: Duration,
    keeper: Option<Arc<KeeperContext>>,
) -> Option<(Redial<S>, Connection<S>)> {
    let mut gone_since: Option<Instant> = None;
    loop {
        tokio::time::sleep(shortened(pause)).await;
        while is_stopped(keeper.as_deref()) {
            tokio::time::sleep(STOPPED_PAUSE).await;
        }
        match redial.dial().await {
            Ok(connection) => return Some((redial, connection)),
            Err(error) => {
                tracing::debug!("the server cannot be reached yet: {}", describe(&error));
                if !matches!(error, ConnectError::Gone) {
                    gone_since = None;
                } else if gone_since.get_or_insert_with(Instant::now).elapsed() >= GONE_MIN {
                    return None;
                }
            }
        }
        pause = (pause * 2).min(REDIAL_PAUSE_MAX);
    }
}

/// Returns whether there is a front process and it is suspended.
pub(super) fn is_stopped(keeper: Option<&KeeperContext>) -> bool {
    keeper.is_some_and(KeeperContext::front_is_stopped)
}

/// Shortens a pause randomly.
fn shortened(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause * u32::try_from(random).unwrap_or(1_000) / 1_000
}
