//! Submits calls in batches. A batch contains the calls that arrived while the previous batch was
//! being submitted. Also cancels calls and releases their arguments, over the same connection, so
//! that neither can overtake the submit.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use hq_core::id::JobId;
use hq_core::range::IdArray;
use hq_core::server_state::CANCELED_MAX;
use hq_core::template::{ArrayIds, ArraySpec, Entries, SubmitBody, SubmitSpec, SubmitTarget};
use hq_protocol::client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Shared;
use super::talk::{answer, come_back, ids_of, tell};
use super::values::payload_of;
use crate::client::{Client, Question, ServerInfo};
use crate::command::submit::current_dir;
use crate::error::{Caused as _, CliError, CliResult};
use crate::submit::bare_submit;

/// Calls to submit to an open job, whose payloads are concatenated.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    pub(super) job: u32,
    #[serde(rename = "t")]
    pub(super) template: u64,
    /// The id of the first call. The ids of the others follow it.
    pub(super) first: u32,
    pub(super) lens: Vec<u64>,
    #[serde(skip)]
    pub(super) data: Vec<u8>,
}

/// Calls to cancel.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    /// The id of the request, which is answered when the calls are canceled.
    #[serde(default)]
    pub(super) id: Option<u64>,
    pub(super) job: u32,
    /// The calls, as first ids and counts.
    pub(super) tasks: Vec<(u32, u32)>,
    /// Whether running calls continue.
    #[serde(default)]
    pub(super) keep_running: bool,
}

/// Calls that have ended and whose arguments are no longer needed, as first ids and counts.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) job: u32,
    pub(super) tasks: Vec<(u32, u32)>,
}

/// Work that is done in order of arrival.
#[derive(Debug)]
pub(super) enum Work {
    Calls(Batch),
    Cancel(Cancel),
    Release(Release),
}

/// The maximum number of calls in one submit, and of bytes of their payloads.
const CALLS_MAX: usize = 20_000;
const BYTES_MAX: usize = 32 << 20;

impl Batch {
    /// Adds the calls of another batch. Returns the batch if it does not continue this one.
    fn add(&mut self, batch: Self) -> Option<Self> {
        let next = u64::from(self.first) + self.lens.len() as u64;
        let fits = batch.job == self.job
            && batch.template == self.template
            && u64::from(batch.first) == next
            && self.lens.len() + batch.lens.len() <= CALLS_MAX
            && self.data.len() + batch.data.len() <= BYTES_MAX;
        if !fits {
            return Some(batch);
        }
        self.lens.extend(&batch.lens);
        self.data.extend_from_slice(&batch.data);
        None
    }

    fn submit(&self, shared: &Shared) -> CliResult<client::Submit> {
        let unknown = || CliError::new("Calls of a template that was not named");
        let (template, limits) = shared.templates.get(self.template).ok_or_else(unknown)?;
        let count = u32::try_from(self.lens.len()).unwrap_or(u32::MAX);
        let ids = IdArray::consecutive(self.first, count).caused("Invalid ids of calls")?;
        let entries = Entries::new(self.data.clone(), self.lens.iter().copied())
            .ok_or_else(|| CliError::new("The lengths of calls do not add up"))?;
        let body = SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(ids),
            entries: Some(entries),
            template,
        });
        let target = SubmitTarget::Attach(JobId(self.job));
        let spec = SubmitSpec {
            limits,
            nonce: Some(RandomState::new().hash_one(self.first)),
            ..bare_submit(target, &current_dir()?, body)
        };
        Ok((&spec).into())
    }
}

/// Submits and cancels calls until the queue is closed.
pub(super) async fn submit_calls(shared: Shared, mut work: mpsc::Receiver<Work>) {
    let mut link = None;
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match work.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let mut joined = match first {
            Work::Calls(batch) => batch,
            Work::Cancel(wanted) => {
                let done = cancel(&shared, &mut link, &wanted).await;
                if let Err(error) = &done {
                    // Accepted calls run until they end, and their ends are reported.
                    let text = error.text().unwrap_or_default();
                    tracing::warn!("Calls were not canceled: {text}");
                }
                if wanted.id.is_some() {
                    answer(&shared, wanted.id, done.map(|()| Value::Null)).await;
                }
                continue;
            }
            Work::Release(wanted) => {
                if let Err(error) = release(&shared, &mut link, &wanted).await {
                    // The server keeps the arguments until the job is forgotten.
                    let text = error.text().unwrap_or_default();
                    tracing::debug!("arguments were not released: {text}");
                }
                continue;
            }
        };
        while next.is_none()
            && let Ok(following) = work.try_recv()
        {
            next = match following {
                Work::Calls(batch) => joined.add(batch).map(Work::Calls),
                other @ (Work::Cancel(_) | Work::Release(_)) => Some(other),
            };
        }
        let mut json = json!({
            "ev": "accepted", "job": joined.job, "first": joined.first, "count": joined.lens.len(),
        });
        match submit(&shared, &mut link, &joined).await {
            // Only this program can use ids for tasks of a server in the same process.
            Ok(Submitted::Made) if !shared.dialer.may_return() => continue,
            Ok(Submitted::Made) => {}
            Ok(Submitted::Taken { free }) => {
                json["ev"] = "taken".into();
                json["free"] = free.into();
            }
            Err(error) => {
                json["ev"] = "refused".into();
                json["text"] = error.text().into();
            }
        }
        tell(&shared, &json).await;
    }
}

/// The result of a submit.
enum Submitted {
    /// The calls are tasks of their job.
    Made,
    /// Another client has used some of these ids in the same job. Ids from `free` on are unused.
    Taken { free: u32 },
}

/// Submits calls, over a new connection if the old one broke. A server that was away may have
/// stored the first attempt. It then recognizes the nonce of the submit.
async fn submit(shared: &Shared, link: &mut Option<Link>, calls: &Batch) -> CliResult<Submitted> {
    let request = calls.submit(shared)?;
    let mut is_repeated = false;
    // Whether the server that may have stored the first attempt keeps nonces. It may have been
    // replaced by a later release.
    let mut is_kept = None;
    loop {
        let mut connected = reach(shared, link).await?;
        let is_kept = *is_kept.get_or_insert(connected.knows_nonces);
        let client = &mut connected.client;
        match client.submit(request.clone()).await {
            Ok(_) => {
                *link = Some(connected);
                return Ok(Submitted::Made);
            }
            Err(error) if client.is_lost() => {
                if !shared.dialer.may_return() {
                    return Err(error);
                }
                is_repeated = true;
            }
            Err(error) if error.text().is_some_and(|text| text.contains(TAKEN)) => {
                match find_holders(client, calls, is_repeated && !is_kept).await {
                    Ok(submitted) => {
                        *link = Some(connected);
                        return Ok(submitted);
                    }
                    // The next attempt would be rejected for the same reason.
                    Err(_) if client.is_lost() && shared.dialer.may_return() => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => {
                *link = Some(connected);
                return Err(error);
            }
        }
    }
}

/// A connection to the server.
struct Link {
    client: Client,
    /// Whether the server keeps the nonces of submits.
    knows_nonces: bool,
}

/// Returns the open connection, or opens one.
async fn reach(shared: &Shared, link: &mut Option<Link>) -> CliResult<Link> {
    if let Some(link) = link.take() {
        return Ok(link);
    }
    loop {
        let mut client = come_back(shared, None).await?;
        match client.ask(ServerInfo).await {
            Ok(info) => {
                return Ok(Link {
                    client,
                    knows_nonces: info.knows_nonces,
                });
            }
            Err(_) if client.is_lost() && shared.dialer.may_return() => {}
            Err(error) => return Err(error),
        }
    }
}

/// A part of the server's error about ids that the job already has.
const TAKEN: &str = "already exists in job";

/// Decides what to do if other tasks of the job have the ids of these calls. The ids may have been
/// used by a call that submits to its own job, or by another executor attached to the job.
async fn find_holders(
    client: &mut Client,
    calls: &Batch,
    may_be_ours: bool,
) -> CliResult<Submitted> {
    // A server of an earlier release does not recognize the calls of an attempt whose answer was
    // lost, and reports their ids as used.
    if may_be_ours && has_made(client, calls).await? {
        return Ok(Submitted::Made);
    }
    let ids = ids_of(client, calls.job).await?;
    let free = ids
        .and_then(|ids| ids.max())
        .map_or(Some(0), |last| last.checked_add(1));
    let free = free.ok_or_else(|| CliError::new("All task ids of the job are used up"))?;
    Ok(Submitted::Taken { free })
}

/// Returns whether the first and the last of these calls are tasks of the job. A submit is accepted
/// as a whole. Equal calls of two executors or two programs cannot be distinguished.
async fn has_made(client: &mut Client, calls: &Batch) -> CliResult<bool> {
    let payload = |len: u64, is_last: bool| {
        let len = usize::try_from(len).ok()?;
        let from = if is_last {
            calls.data.len().checked_sub(len)?
        } else {
            0
        };
        calls.data.get(from..from.checked_add(len)?)
    };
    let count = u32::try_from(calls.lens.len()).unwrap_or(u32::MAX);
    let last = calls.first.saturating_add(count.saturating_sub(1));
    let ends = [
        (calls.first, calls.lens.first(), false),
        (last, calls.lens.last(), true),
    ];
    for (task, len, is_last) in ends {
        let expected = len.and_then(|len| payload(*len, is_last));
        let found = payload_of(client, (calls.job, task)).await?;
        if found.as_deref() != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Cancels calls. Canceling twice does no harm.
async fn cancel(shared: &Shared, link: &mut Option<Link>, wanted: &Cancel) -> CliResult<()> {
    for tasks in portions(&wanted.tasks)? {
        let request = client::CancelTasks {
            job: wanted.job,
            tasks: Some((&tasks).into()),
            keep_running: wanted.keep_running,
        };
        ask(shared, link, request).await?;
    }
    Ok(())
}

/// Releases the arguments of calls. Releasing them twice does no harm.
async fn release(shared: &Shared, link: &mut Option<Link>, wanted: &Release) -> CliResult<()> {
    for tasks in portions(&wanted.tasks)? {
        let request = client::DropEntries {
            job: wanted.job,
            tasks: Some((&tasks).into()),
        };
        ask(shared, link, request).await?;
    }
    Ok(())
}

/// Asks the server, and repeats the question over a new connection if the old one broke.
async fn ask<Q: Question + Clone>(
    shared: &Shared,
    link: &mut Option<Link>,
    request: Q,
) -> CliResult<()> {
    loop {
        let mut connected = reach(shared, link).await?;
        let done = connected.client.ask(request.clone()).await;
        if done.is_err() && connected.client.is_lost() && shared.dialer.may_return() {
            continue;
        }
        *link = Some(connected);
        return done.map(|_| ());
    }
}

/// Splits ids into sets that the server accepts at once.
fn portions(ranges: &[(u32, u32)]) -> CliResult<Vec<IdArray>> {
    let ids = each_id(ranges);
    let invalid = |error| CliError::caused("Invalid ids of calls", &error);
    let portions = ids.chunks(CANCELED_MAX);
    portions
        .map(|ids| IdArray::from_sorted(ids.to_vec()).map_err(invalid))
        .collect()
}

/// Returns the ids of ranges that are given as first ids and counts, sorted and without duplicates.
pub(super) fn each_id(ranges: &[(u32, u32)]) -> Vec<u32> {
    let ids = ranges.iter().flat_map(|(first, count)| {
        let last = count.checked_sub(1).map(|more| first.saturating_add(more));
        // The highest `u32` is a valid id.
        last.into_iter().flat_map(|last| *first..=last)
    });
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(job: u32, first: u32, lens: &[u64]) -> Batch {
        let total: u64 = lens.iter().sum();
        Batch {
            job,
            template: 1,
            first,
            lens: lens.to_vec(),
            data: vec![0; usize::try_from(total).expect("small")],
        }
    }

    #[test]
    fn batches_become_one_only_if_they_follow_each_other() {
        let mut joined = batch(1, 0, &[1, 2]);
        assert!(joined.add(batch(1, 2, &[3])).is_none());
        assert_eq!((joined.lens.len(), joined.data.len()), (3, 6));
        assert!(joined.add(batch(1, 4, &[3])).is_some(), "one is missing");
        assert!(joined.add(batch(2, 3, &[3])).is_some(), "another job");
        assert_eq!(joined.lens.len(), 3);
    }

    #[test]
    fn the_highest_id_is_one_of_those_that_are_named() {
        let ids = each_id(&[(u32::MAX, 1), (u32::MAX - 2, 9), (7, 0)]);
        assert_eq!(ids, [u32::MAX - 2, u32::MAX - 1, u32::MAX]);
    }

    #[test]
    fn very_many_calls_are_canceled_in_portions() {
        let portions = portions(&[(5, 2_000), (5, 1), (0, 1)]).expect("valid");
        let lens: Vec<u32> = portions.iter().map(IdArray::len).collect();
        assert_eq!(lens, [1_000, 1_000, 1]);
        let all: Vec<u32> = portions.iter().flat_map(IdArray::iter).collect();
        assert_eq!(all, std::iter::once(0).chain(5..2_005).collect::<Vec<_>>());
    }
}
