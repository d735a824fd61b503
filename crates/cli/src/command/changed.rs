//! Requests that hold, release or change tasks of a job, and the tasks that they concerned.

use std::ops::RangeInclusive;

use hq_core::range::{IdArray, IdRange, IndexSet};
use hq_core::server_state::HELD_RANGES_MAX;
use hq_protocol::{client, common};

use super::missing::Missing;
use super::task::IDS_SHOWN_MAX;
use crate::client::{Client, Question};
use crate::error::CliResult;
use crate::output::format::{cut, joined_ids};
use crate::parse::selector::Selector;

/// The ids of tasks in answers of the server.
#[derive(Default)]
pub(super) struct Ids(common::IdArray);

impl Ids {
    fn add(&mut self, found: Option<common::IdArray>) {
        self.0.ranges.extend(found.unwrap_or_default().ranges);
    }

    pub(super) fn count(&self) -> u64 {
        let counts = self.0.ranges.iter().map(|range| u64::from(range.count));
        counts.sum()
    }

    /// Returns a text such as `tasks 1-4 of job 2`, or `None` without ids.
    pub(super) fn shown(&self, job: u32) -> Option<String> {
        let noun = match self.count() {
            0 => return None,
            1 => "task",
            2.. => "tasks",
        };
        let ids = joined_ids(set([&self.0]).iter());
        let ids = cut(&ids, IDS_SHOWN_MAX).unwrap_or(ids);
        Some(format!("{noun} {ids} of job {job}"))
    }
}

/// The tasks that requests concerned; see [`client::ChangedTasks`].
#[derive(Default)]
pub(super) struct Changed {
    pub(super) changed: Ids,
    pub(super) sent: Ids,
    pub(super) running: Ids,
}

impl Changed {
    /// Sends a request for all tasks of a job, or for each portion of `tasks`.
    pub(super) async fn ask<Q: Question<Answer = client::ChangedTasks>>(
        client: &mut Client,
        tasks: Option<&IdArray>,
        request: impl Fn(Option<common::IdArray>) -> Q,
    ) -> CliResult<Self> {
        let portions = match tasks {
            Some(tasks) => portions(tasks).map(|part| Some((&part).into())).collect(),
            None => vec![None],
        };
        let mut all = Self::default();
        for part in portions {
            let answer = client.ask(request(part)).await?;
            all.changed.add(answer.changed);
            all.sent.add(answer.sent);
            all.running.add(answer.running);
        }
        Ok(all)
    }

    /// Returns the other `tasks` that a job has, and those that it does not have.
    pub(super) async fn others(
        &self,
        client: &mut Client,
        (job, tasks): (u32, &IdArray),
    ) -> CliResult<(Ids, Missing)> {
        let found = set([&self.changed.0, &self.running.0]);
        let (_, others) = tasks.split(|span| members(&found, &span));
        if others.is_empty() {
            return Ok(<_>::default());
        }
        let all = client::TaskIds {
            jobs: Some(Selector::one(job).to_message()),
            states: Vec::new(),
        };
        let known = client.ask(all).await?.jobs;
        let known = set(known.iter().filter_map(|job| job.ids.as_ref()));
        let (mut others, missing) = others.split(|span| members(&known, &span));
        // A user may name ids in any order.
        others.sort_unstable();
        let others = IdArray::from_sorted(others).unwrap_or_default();
        let missing = Missing::of(Some(&(&missing).into()));
        Ok((Ids((&others).into()), missing))
    }
}

/// Returns the ids as a set, which is small even for millions of consecutive ids.
fn set<'a>(found: impl IntoIterator<Item = &'a common::IdArray>) -> IndexSet {
    let mut set = IndexSet::new();
    for range in found.into_iter().flat_map(|found| &found.ranges) {
        let (first, step) = (range.first, range.step.max(1));
        match step {
            1 => set.insert_range(first, first.saturating_add(range.count)),
            _ => (0..range.count).for_each(|at| set.insert(first.saturating_add(at * step))),
        }
    }
    set
}

fn members(set: &IndexSet, span: &RangeInclusive<u32>) -> Vec<u32> {
    let found = set.within(*span.start(), span.end().saturating_add(1));
    found.flat_map(|(from, to)| from..to).collect()
}

/// Splits tasks into portions that the server accepts. The ids of a stepped range count one by one.
fn portions(tasks: &IdArray) -> impl Iterator<Item = IdArray> {
    let ranges = tasks.ranges().iter().copied();
    let (stepped, dense): (Vec<IdRange>, Vec<IdRange>) = ranges.partition(|range| range.step() > 1);
    let max = u32::try_from(HELD_RANGES_MAX).unwrap_or(u32::MAX);
    let parts = stepped.into_iter().flat_map(move |range| {
        let starts = (0..range.count()).step_by(HELD_RANGES_MAX);
        starts.filter_map(move |from| range.part(from, range.count().min(from.saturating_add(max))))
    });
    let dense: Vec<_> = dense.chunks(HELD_RANGES_MAX).map(<[_]>::to_vec).collect();
    let all = dense.into_iter().chain(parts.map(|part| vec![part]));
    all.filter_map(|ranges| IdArray::new(ranges).ok())
}
