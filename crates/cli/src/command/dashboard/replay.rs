//! Feeds the dashboard from a journal, when the time of the replay moves.

use std::sync::mpsc::Sender;

use tokio::sync::mpsc::UnboundedReceiver;

use super::Message;
use super::PAST_STEPS;
use crate::dashboard::app::{Ask, Focus, News};
use crate::dashboard::source::file::JournalFile;
use crate::dashboard::source::{job_view, live, past, tasks};
use crate::error::CliResult;

/// Shows a journal at the requested times.
pub(super) async fn replay_file(
    mut file: JournalFile,
    (from_ns, to_ns): (i64, i64),
    mut asks: UnboundedReceiver<Ask>,
    tx: &Sender<Message>,
) {
    let mut focus = Focus {
        at_ns: Some(to_ns),
        ..Focus::default()
    };
    let mut has_past = false;
    loop {
        let at_ns = focus.at_ns.unwrap_or(to_ns);
        let news = match look_at(&mut file, &focus, at_ns).await {
            Ok(news) => news,
            Err(error) => vec![News::Trouble(error.text())],
        };
        for news in news {
            let _ = tx.send(Message::News(news));
        }
        if !has_past {
            has_past = true;
            if let Ok(steps) = past::past(&mut file, (from_ns, to_ns), PAST_STEPS).await {
                let _ = tx.send(Message::News(News::Past(steps)));
            }
        }
        // Only the newest question counts.
        let mut next = asks.recv().await;
        while let Ok(newer) = asks.try_recv() {
            next = Some(newer);
        }
        match next {
            Some(Ask::Look(wanted)) => focus = wanted,
            // The screen sends neither of these when it shows a journal.
            Some(Ask::Do(_) | Ask::Path(_)) => {}
            None => return,
        }
    }
}

async fn look_at(file: &mut JournalFile, focus: &Focus, at_ns: i64) -> CliResult<Vec<News>> {
    let mut news = vec![
        News::Snapshot(Box::new(file.snapshot(at_ns).await?)),
        News::Ended(live::ended(file, at_ns).await?),
        News::Events(live::events(file, at_ns).await?),
    ];
    if let Some(wanted) = focus.tasks.clone() {
        let page = tasks::of_store(file, wanted, at_ns).await?;
        news.push(News::Tasks(Box::new(page)));
    }
    if let Some(job) = focus.job {
        news.push(News::Job(Box::new(job_view(file, job, at_ns).await?)));
    }
    Ok(news)
}
