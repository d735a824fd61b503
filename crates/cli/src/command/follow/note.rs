//! Explains what a waiting command is waiting for, and what prevents progress.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use hq_core::range::IdArray;
use hq_protocol::access::ServerDir;
use hq_protocol::client;

use crate::client::{Client, JobList, ServerInfo};
use crate::command::situation;
use crate::output::pace;
use crate::parse::selector::Selector;

/// A wait shorter than this needs no explanation.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(1);
/// The pause between queries for a new reason doubles from this value up to the maximum, so that
/// many clients that wait for days do not put load on the server.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The last known summaries of the followed jobs.
pub(super) type LastSummaries = RefCell<BTreeMap<u32, client::JobSummary>>;

/// After a moment, prints what the command is waiting for. Prints the reason again whenever it
/// changes. Never returns.
///
/// The connection that follows the jobs cannot be queried, so each query opens its own.
///
/// If a bar shows the counts, only reasons are printed.
pub(super) async fn print_obstacles(
    dir: &ServerDir,
    seen: &LastSummaries,
    has_bar: bool,
    mut show: impl FnMut(&str),
) -> Infallible {
    tokio::time::sleep(SILENCE_MAX).await;
    let mut last: Option<Option<String>> = None;
    let mut pause = PAUSE_MIN;
    loop {
        // The task that follows the jobs reports a lost server.
        if let Some((text, reason)) = look(dir, seen).await
            && last.as_ref() != Some(&reason)
        {
            match (&reason, &last) {
                (Some(reason), _) => show(&format!("{text}: {reason}")),
                (None, None) if !has_bar => show(&text),
                // The job is making progress.
                (None, _) => {}
            }
            last = Some(reason);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the awaited event and, if known, the reason for the wait.
async fn look(dir: &ServerDir, seen: &LastSummaries) -> Option<(String, Option<String>)> {
    let ids: Vec<u32> = seen.borrow().keys().copied().collect();
    let ids = IdArray::from_sorted(ids)
        .ok()
        .filter(|ids| !ids.is_empty())?;
    let mut client = Client::connect(dir).await.ok()?;
    let jobs = client.ask(JobList(&Selector::Ids(ids))).await.ok()?.jobs;
    let open: Vec<_> = jobs.into_iter().filter(situation::is_unfinished).collect();
    if open.is_empty() {
        return None;
    }
    let reason = situation::reason(&mut client, &open).await.ok()?;
    let mut text = situation::awaited(&open);
    let now = client.ask(ServerInfo).await.ok()?.now_unix_ns;
    if let Some(pace) = pace::text(open.iter(), now) {
        text.push_str(&format!("; {pace}"));
    }
    Some((text, reason))
}
