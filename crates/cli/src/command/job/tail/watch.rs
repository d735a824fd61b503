//! Watches the job, on a task of its own: while the server is away, what was read is printed.

use hq_protocol::client;
use tokio::sync::mpsc;

use crate::client::{Client, WatchOptions};
use crate::error::{CliError, CliResult};

/// A change of the job.
pub(super) struct News {
    pub(super) update: client::WatchUpdate,
    /// The first one after the server was away: of what ended in between nobody tells.
    pub(super) is_back: bool,
}

/// Changes of the job, across restarts of the server.
pub(super) struct Watch {
    news: mpsc::Receiver<CliResult<News>>,
}

impl Watch {
    pub(super) fn start(client: Client, jobs: client::Selector) -> Self {
        // One is looked at while the next one is on its way.
        let (news_tx, news) = mpsc::channel(1);
        tokio::spawn(keep_watching(client, jobs, news_tx));
        Self { news }
    }

    /// The next change; after the one that is `done` there is none.
    ///
    /// # Cancel safety
    ///
    /// None is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> CliResult<News> {
        let ended = || Err(CliError::new("Nobody watches the job any more"));
        self.news.recv().await.unwrap_or_else(ended)
    }
}

async fn keep_watching(
    mut client: Client,
    jobs: client::Selector,
    news: mpsc::Sender<CliResult<News>>,
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
            // Nobody listens any more: the command ends.
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
    news: &mpsc::Sender<CliResult<News>>,
) -> CliResult<()> {
    let options = WatchOptions {
        until_idle: true,
        with_progress: true,
        with_outcomes: true,
        with_ranges: true,
        ..WatchOptions::default()
    };
    client.watch(jobs, options).await?;
    loop {
        let update = client.next_update().await?;
        let is_last = update.done;
        let next = News {
            update,
            is_back: std::mem::take(&mut is_back),
        };
        if news.send(Ok(next)).await.is_err() || is_last {
            return Ok(());
        }
    }
}
