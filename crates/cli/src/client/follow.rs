//! Follows jobs until they end, even across restarts of the server.
//!
//! When the connection breaks, the client looks for the server in the same server directory, with
//! increasing pauses, and follows the same jobs again. A different server in the same directory is
//! ignored.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use hq_core::range::IdArray;
use hq_protocol::client;
use tokio::time::Instant;

use super::Client;
use crate::error::{CliError, CliResult};
use crate::parse::selector::Selector;

/// How long a server may be away. This is enough for a restart on a busy node.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between attempts doubles from this value up to the maximum. Each pause is shortened
/// randomly.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl Client {
    /// Follows jobs until they have ended. Calls `on_update` for every update.
    pub(crate) async fn follow(
        &mut self,
        mut watch: client::Watch,
        mut on_update: impl FnMut(&client::WatchUpdate) -> CliResult<()>,
    ) -> CliResult<()> {
        let mut is_return = false;
        loop {
            let followed = self.follow_once(&mut watch, is_return, &mut on_update);
            let result = followed.await;
            is_return = true;
            match result {
                Err(error) if self.may_return() => self.come_back(error).await?,
                result => return result,
            }
        }
    }

    async fn follow_once(
        &mut self,
        watch: &mut client::Watch,
        is_return: bool,
        on_update: &mut impl FnMut(&client::WatchUpdate) -> CliResult<()>,
    ) -> CliResult<()> {
        self.watch(watch.clone()).await?;
        let mut is_first = true;
        loop {
            let mut update = self.next_update().await?;
            if is_return {
                // Jobs that are missing now have been forgotten meanwhile, so they have ended.
                update.not_found = None;
            }
            if std::mem::replace(&mut is_first, false) {
                // After a restart, `all` and `last` may select other jobs.
                watch.jobs = name_jobs(&update).or(watch.jobs.take());
            }
            on_update(&update)?;
            if update.done {
                return Ok(());
            }
        }
    }

    /// Returns whether the connection broke and the server may be found again.
    pub(crate) const fn may_return(&self) -> bool {
        self.is_lost && self.dir.is_some()
    }

    /// Replaces a broken connection with one to the same server, and logs that.
    pub(crate) async fn come_back(&mut self, lost: CliError) -> CliResult<()> {
        if self.dir.is_some() {
            tracing::warn!("Lost the server, waiting for it to come back");
        }
        self.come_back_quietly(lost).await?;
        tracing::info!("Connected to the server again");
        Ok(())
    }

    /// Like `come_back`, but without a log message, because another connection reports the loss.
    pub(crate) async fn come_back_quietly(&mut self, lost: CliError) -> CliResult<()> {
        let Some(dir) = self.dir.clone() else {
            return Err(lost);
        };
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSE_MIN;
        loop {
            tokio::time::sleep(shortened(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
            match Self::connect_any(&dir).await {
                Ok(found) if found.server_uid == self.server_uid => {
                    *self = found;
                    return Ok(());
                }
                Ok(_) => {
                    return Err(CliError::new(
                        "The server was replaced by another one, which does not have these jobs",
                    ));
                }
                Err(_) if Instant::now() < until => {}
                Err(_) => return Err(lost),
            }
        }
    }
}

/// Selects the jobs of an update by their ids.
fn name_jobs(update: &client::WatchUpdate) -> Option<client::Selector> {
    let mut ids: Vec<u32> = update
        .jobs
        .iter()
        .filter_map(|job| Some(job.summary.as_ref()?.id))
        .collect();
    ids.sort_unstable();
    let ids = IdArray::from_sorted(ids)
        .ok()
        .filter(|ids| !ids.is_empty())?;
    Some(Selector::Ids(ids).to_message())
}

/// Shortens a pause randomly.
fn shortened(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause * u32::try_from(random).unwrap_or(1_000) / 1_000
}
