//! Details of a job from the store. The size of a result does not depend on the number of tasks.

use std::collections::{BTreeMap, BTreeSet};

use hq_core::job::TaskTotals;
use hq_core::range::IdArray;
use hq_core::task::TaskState;
use hq_store::reader::RUN_BOUNDS;
use hq_store::reader::run::{self, IdsRow, TouchedRow};

use super::model::JobView;
use super::read::{page_of, params_of, stored_row};
use crate::client::Client;
use crate::command::situation;
use crate::error::CliResult;
use crate::parse::selector::Selector;
use crate::source::Ask;
use crate::text::clean;

/// The number of bins of a job's strip. No terminal shows more cells in three rows.
const BINS: i64 = 600;

/// Returns the details of a job of a running server, which also knows why none of the tasks are
/// running and the parameters of failed tasks.
pub(super) async fn of_server(client: &mut Client, job: u32, now_ns: i64) -> CliResult<JobView> {
    let mut view = view(client, job, now_ns).await?;
    if let Some(summary) = client.job(&Selector::one(job)).await? {
        let mut waits = situation::hindrance(client, &summary).await?;
        if waits.is_none() {
            waits = situation::reason(client, &[summary]).await?;
        }
        view.waits = waits.map(|why| clean(&why));
    }
    let failed: BTreeSet<u32> = view.failures.iter().map(|failure| failure.task).collect();
    if failed.is_empty() {
        return Ok(view);
    }
    let mut page = page_of(job);
    page.tasks = IdArray::from_sorted(failed).ok().map(|ids| (&ids).into());
    let tasks = client.ask(page).await?.tasks;
    let params = tasks.iter().map(|task| (task.id, params_of(task)));
    let params: BTreeMap<u32, String> = params.collect();
    for failure in &mut view.failures {
        failure.params = params.get(&failure.task).cloned().unwrap_or_default();
    }
    Ok(view)
}

/// Returns the details of a job as of the time `at_ns`.
pub(super) async fn view(asked: &mut impl Ask, job: u32, at_ns: i64) -> CliResult<JobView> {
    let touched = asked.ask_one(run::touched(job)).await?;
    // An open job may have any number of submits, and a canceled job any number of gaps.
    let (submits, are_cut) = asked.ask_some(run::submitted_ids(job)).await?;
    let (first, last) = id_span(touched, &submits);
    let width = (i64::from(last) - i64::from(first) + 1).max(BINS);
    let bins = usize::try_from((i64::from(last - first) + 1).min(BINS)).unwrap_or(1);
    let mut view = JobView {
        job,
        ids: (first, last),
        are_ids_known: !submits.is_empty() || touched.is_some_and(|found| found.ids.is_some()),
        bins: vec![TaskTotals::default(); bins],
        run_times: RUN_BOUNDS
            .into_iter()
            .chain([u64::MAX])
            .map(|bound| (bound, 0))
            .collect(),
        ..JobView::default()
    };
    for row in asked
        .ask(run::strip(job, at_ns, first, BINS, width))
        .await?
    {
        let bin = usize::try_from(row.bin).unwrap_or(0).min(bins - 1);
        *view.bins[bin].of(row.state) += row.count;
        let ended = matches!(row.state, TaskState::Finished | TaskState::Failed);
        if let Some(took) = row.took.filter(|_| ended)
            && let Some((_, tasks)) = view.run_times.get_mut(took)
        {
            *tasks += row.count;
        }
    }
    // Tasks without a row are waiting, unless they were canceled or aborted before they started.
    let all = IdsRow {
        start: first.into(),
        count: i64::from(last - first) + 1,
    };
    let given = if submits.is_empty() {
        &[all][..]
    } else {
        &submits
    };
    let (dropped, is_cut) = asked.ask_some(run::dropped(job, at_ns)).await?;
    view.is_partial = are_cut || is_cut;
    for (bin, counts) in (0_i64..).zip(&mut view.bins) {
        let ids = |bin: i64| i64::from(first) + (bin * width + BINS - 1) / BINS;
        let ids = (ids(bin), ids(bin + 1));
        let given = given
            .iter()
            .map(|row| overlap(ids, (row.start, row.start + row.count)));
        counts.waiting += given.sum::<u64>().saturating_sub(counts.total());
        for row in &dropped {
            let step = row.step.max(1);
            let end = row.first + (row.count - 1) * step + 1;
            counts.shift(
                overlap(ids, (row.first, end)) / step.unsigned_abs(),
                row.state,
            );
        }
    }
    let failures = asked.ask(run::failures(job, at_ns)).await?.into_iter();
    view.failures = failures.map(stored_row).collect();
    Ok(view)
}

/// Returns the lowest and the highest id of the submits, or else of the started tasks.
fn id_span(touched: Option<TouchedRow>, submits: &[IdsRow]) -> (u32, u32) {
    let small = |id: i64| u32::try_from(id).unwrap_or(u32::MAX);
    let spans = submits
        .iter()
        .map(|ids| (small(ids.start), small(ids.start + ids.count.max(1) - 1)));
    let spans = spans.chain(touched.and_then(|touched| touched.ids));
    let span = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let total = touched.map_or(1, |touched| touched.task_count.max(1));
    // No task of this graph has started, so the usual ids are assumed.
    let (first, last) = span.unwrap_or((0, 0));
    if submits.is_empty() {
        return (first, last.max(small(i64::from(first) + total - 1)));
    }
    (first, last)
}

/// Returns the number of ids that two ranges share.
fn overlap(a: (i64, i64), b: (i64, i64)) -> u64 {
    u64::try_from(a.1.min(b.1) - a.0.max(b.0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use hq_store::rows::Rows;
    use serde_json::json;

    use super::*;

    /// Answers a query by the first word that it contains.
    struct Fake(Vec<(&'static str, Rows)>);

    impl Ask for Fake {
        async fn rows(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
            let found = self.0.iter().find(|(word, _)| sql.contains(word));
            let rows = found.map(|(_, rows)| rows.clone()).unwrap_or_default();
            Ok((rows, sql.contains("dropped_data")))
        }
    }

    fn view(answers: Vec<(&'static str, serde_json::Value)>) -> JobView {
        let answers = answers
            .into_iter()
            .map(|(word, rows)| (word, Rows::from_json(&rows)));
        let mut fake = Fake(answers.collect());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("runtime");
        runtime
            .block_on(super::view(&mut fake, 7, 1_000))
            .expect("an answer")
    }

    #[test]
    fn a_million_tasks_become_few_bins_that_add_up() {
        let view = view(vec![
            ("json_each", json!([[1, 1_000_000]])),
            ("min(task)", json!([[1, 500_000, 1_000_000]])),
            (
                "took",
                json!([[0, 2, 4, 1_600], [0, 3, 0, 1], [1, 1, -1, 10]]),
            ),
            ("dropped_data", json!([[900_001, 100_000, 1, 4]])),
        ]);
        let mut sum = TaskTotals::default();
        view.bins.iter().for_each(|bin| sum.add(*bin));
        assert_eq!((view.bins.len(), view.is_partial), (600, true));
        assert_eq!(sum.total(), 1_000_000);
        assert_eq!(
            (sum.finished, sum.failed, sum.running, sum.canceled),
            (1_600, 1, 10, 100_000)
        );
        assert_eq!(view.bins[599].canceled, view.bins[599].total());
        assert_eq!(
            (view.run_times[4], view.run_times[0]),
            ((1_000_000, 1_600), (1_000, 1))
        );
    }

    #[test]
    fn few_tasks_have_a_bin_each() {
        let view = view(vec![
            ("json_each", json!([[3, 4]])),
            ("min(task)", json!([[3, 4, 4]])),
            ("took", json!([[0, 2, 0, 1], [1, 3, 0, 1]])),
            ("LEFT JOIN", json!([[7, 4, 3, "n2", 900, 1_500, 127, null]])),
        ]);
        assert_eq!(view.ids, (3, 6));
        let states: Vec<_> = view
            .bins
            .iter()
            .map(|bin| bin.state(false).name())
            .collect();
        assert_eq!(states, ["finished", "failed", "waiting", "waiting"]);
        assert_eq!(view.failures[0].error, "exit code 127");
        assert_eq!(
            (view.failures[0].task, &view.failures[0].host[..]),
            (4, "n2")
        );
    }

    #[test]
    fn a_graph_of_which_nothing_ran_is_all_waiting() {
        let view = view(vec![("min(task)", json!([[null, null, 5]]))]);
        assert_eq!(view.bins.len(), 5);
        assert!(view.bins.iter().all(|bin| bin.waiting == 1));
    }
}
