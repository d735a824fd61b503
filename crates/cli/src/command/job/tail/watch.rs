//! Watches the job in a separate task, so that printing continues while the server is away.

use hq_protocol::client;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::error::{CliError, CliResult};

/// A change of a job.
pub(super) struct JobUpdate {
    pub(super) update: client::WatchUpdate,
    /// Whether this is the first update after the server was away. Tasks that ended meanwhile were
    /// not reported.
    pub(super) is_back: bool,
}

/// Changes of the job, across restarts of the server.
pub(super) struct Watch {
    news: mpsc::Receiver<CliResult<JobUpdate>>,
}

impl Watch {
    pub(super) fn start(client: Client, jobs: client::Selector) -> Self {
        // One update is processed while the next one arrives.
        let (news_tx, news) = mpsc::channel(1);
        tokio::spawn(keep_watching(client, jobs, news_tx));
        Self { news }
    }

    /// Returns the next update. The last one has `done` set.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no update.
    pub(super) async fn next(&mut self) -> CliResult<JobUpdate> {
        let ended = || {
            Err(CliError::new(
                "The connection that follows the job has ended",
            ))
        };
        self.news.recv().await.unwrap_or_else(ended)
    }
}

async fn keep_watching(
    mut client: Client,
    jobs: client::Selector,
    news: mpsc::Sender<CliResult<JobUpdate>>,
) {
    let mut is_back = false;
    loop {
        let Err(error) = watch_once(&mut client, jobs.clone(), is_back, &news).await else {
            return;
        };
        let returned = if client.may_return() {
            client.come_back(error).await
        } else {
            Err(error)
        };
        if let Err(error) = returned {
            // If the receiver has ended, the command is ending.
            let _ = news.send(Err(error)).await;
            return;
        }
        is_back = true;
    }
}

async fn watch_once(
    client: &mut Client,
    jobs: client::Selector,
    mut is_back: bool,
    news: &mpsc::Sender<CliResult<JobUpdate>>,
) -> CliResult<()> {
    let watch = client::Watch {
        jobs: Some(jobs),
        until_idle: true,
        with_progress: true,
        with_outcomes: true,
        with_ranges: true,
        ..client::Watch::default()
    };
    client.watch(watch).await?;
    loop {
        let update = client.next_update().await?;
        let is_last = update.done;
        let next = JobUpdate {
            update,
            is_back: std::mem::take(&mut is_back),
        };
        if news.send(Ok(next)).await.is_err() || is_last {
            return Ok(());
        }
    }
}
