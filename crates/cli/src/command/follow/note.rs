//! Notes that are shown while a command waits: for what, and what is in the way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use hq_core::range::IdArray;
use hq_protocol::access::ServerDir;
use hq_protocol::client;

use crate::client::Client;
use crate::command::situation;
use crate::output::pace;
use crate::parse::selector::Selector;

/// Nobody wonders about a wait that is shorter.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Pauses between looks for another reason: doubled from the first to the last, so that many
/// clients that wait for days cost the server nothing.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The followed jobs as they were last seen.
pub(super) type Seen = RefCell<BTreeMap<u32, client::JobSummary>>;

/// Tells what is waited for after a moment, and again whenever the reason is another one. Never
/// ends.
///
/// The connection that follows cannot be asked anything, so each look has its own.
///
/// Where a bar shows the counts, only a reason is worth a line.
pub(super) async fn tell(
    dir: &ServerDir,
    seen: &Seen,
    has_bar: bool,
    mut show: impl FnMut(&str),
) -> Infallible {
    tokio::time::sleep(SILENCE_MAX).await;
    let mut last: Option<Option<String>> = None;
    let mut pause = PAUSE_MIN;
    loop {
        // Whether the server is away is told by the one who follows.
        if let Some((text, reason)) = look(dir, seen).await
            && last.as_ref() != Some(&reason)
        {
            match (&reason, &last) {
                (Some(reason), _) => show(&format!("{text}: {reason}")),
                (None, None) if !has_bar => show(&text),
                // It goes on.
                (None, _) => {}
            }
            last = Some(reason);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The aim of the wait, and the reason why it takes time, if there is one to tell.
async fn look(dir: &ServerDir, seen: &Seen) -> Option<(String, Option<String>)> {
    let ids: Vec<u32> = seen.borrow().keys().copied().collect();
    let ids = IdArray::from_sorted(ids)
        .ok()
        .filter(|ids| !ids.is_empty())?;
    let mut client = Client::connect(dir).await.ok()?;
    let jobs = client
        .job_list(Selector::Ids(ids).to_message())
        .await
        .ok()?;
    let open: Vec<_> = jobs.into_iter().filter(situation::is_unfinished).collect();
    if open.is_empty() {
        return None;
    }
    let reason = situation::reason(&mut client, &open).await.ok()?;
    let mut text = situation::awaited(&open);
    let now = client.server_info().await.ok()?.now_unix_ns;
    if let Some(pace) = pace::text(open.iter(), now) {
        text.push_str(&format!("; {pace}"));
    }
    Some((text, reason))
}
