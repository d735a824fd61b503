//! How a lost server is reached again, and what is said about it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::Connection;
use hq_spawn::keeper::KeeperContext;
use tokio::time::Instant;

use super::describe;
use crate::server_link::{ConnectError, Redial};

/// Pauses between attempts to reach a lost server: doubled from the first to the last, and each shortened
/// by chance, so that a thousand workers do not come at the same moment.
pub(super) const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(100);
pub(super) const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks whether a stopped front process was continued. Nobody waits for a stopped worker; one look
/// reads one small file of /proc.
const STOPPED_PAUSE: Duration = Duration::from_millis(200);

/// Registrations that may come to nothing before it is said, and how often it is said then.
const REFUSALS_SILENT: u32 = 3;
const REFUSAL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// How long the directory of the server must be gone until it counts: longer than somebody needs to move
/// it, or a file system to come back.
pub(super) const GONE_MIN: Duration = Duration::from_secs(60);

/// Registrations of a worker that comes back which came to nothing.
#[derive(Default)]
pub(super) struct Refusals {
    count: u32,
    last_warning: Option<Instant>,
}

impl Refusals {
    /// Logs a failure: one or two are usual while a server starts, and nobody sees more if nothing is said.
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
            "The server is reached but does not take this worker back ({} attempts so far): {why}",
            self.count
        );
    }
}

/// Tries until there is a connection again, or the server has been gone for [`GONE_MIN`].
///
/// A worker whose front process is stopped makes no attempt: it would register, send no heartbeat, be given up as lost
/// and come again as another worker, for as long as the front is stopped.
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

/// Whether the front process is stopped. A worker without one never seems stopped.
pub(super) fn is_stopped(keeper: Option<&KeeperContext>) -> bool {
    keeper.is_some_and(KeeperContext::front_is_stopped)
}

/// A random part of a pause.
fn shortened(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause * u32::try_from(random).unwrap_or(1_000) / 1_000
}
