//! Converts replies of a server, or rows of a journal file, into the model.
//!
//! In both cases, SQL queries to the store return the details of jobs. They run outside the
//! server's core thread: each is one pass over the tasks of a job, and the size of its result does
//! not depend on their number.

pub(crate) mod file;
pub(crate) mod live;
pub(crate) mod obstacle;
pub(crate) mod past;
pub(crate) mod tasks;
pub(crate) mod usage;

use hq_core::task::TaskState;
use hq_store::reader::run::{self, DroppedRow, IdsRow, StripRow, TouchedRow};
use hq_store::reader::{self, RUN_BOUNDS};
use hq_store::rows::Rows;
use hq_store::statement::Query;

use super::model::{Counts, FailureRow, JobView, clean};

/// Bins of a job's strip: more than any terminal shows cells in three rows.
pub(crate) const BINS: i64 = 600;
/// Failures of a job that are listed.
pub(crate) const FAILURES_MAX: usize = reader::FAILURES_MAX as usize;

/// Queries a store: a server's or a journal file.
pub(crate) trait Ask {
    /// Error of a query, as text for people.
    type Error;
    /// Runs one statement; too many rows are an error.
    async fn all_rows(&mut self, sql: &str) -> Result<Rows, Self::Error>;
    /// Runs one statement; returns whether more rows exist.
    async fn some_rows(&mut self, sql: &str) -> Result<(Rows, bool), Self::Error>;

    /// All rows of a query.
    async fn ask<R>(&mut self, query: Query<R>) -> Result<Vec<R>, Self::Error> {
        Ok(query.read(&self.all_rows(query.sql()).await?))
    }

    /// The row of a query that has one.
    async fn ask_one<R>(&mut self, query: Query<R>) -> Result<Option<R>, Self::Error> {
        Ok(self.ask(query).await?.into_iter().next())
    }

    /// Rows of a query; returns whether more exist.
    async fn ask_some<R>(&mut self, query: Query<R>) -> Result<(Vec<R>, bool), Self::Error> {
        let (rows, is_cut) = self.some_rows(query.sql()).await?;
        Ok((query.read(&rows), is_cut))
    }
}

/// Details of a job as of the time `at`.
pub(crate) async fn job_view<A: Ask>(
    asked: &mut A,
    job: u32,
    at_ns: i64,
) -> Result<JobView, A::Error> {
    let touched = asked.ask_one(run::touched(job)).await?;
    // An open job may have any number of submits, and a canceled job any number of gaps.
    let (submits, are_cut) = asked.ask_some(run::submitted_ids(job)).await?;
    let are_ids_known = !submits.is_empty() || touched.is_some_and(|found| found.ids.is_some());
    let (first, last) = id_span(touched, &submits);
    let span = i64::from(last) - i64::from(first) + 1;
    let bins = usize::try_from(span.min(BINS)).unwrap_or(1);
    let mut view = JobView {
        job,
        ids: (first, last),
        are_ids_known,
        bins: vec![Counts::default(); bins],
        run_times: RUN_BOUNDS
            .iter()
            .chain([&u64::MAX])
            .map(|bound| (*bound, 0))
            .collect(),
        ..JobView::default()
    };
    let strip = run::strip(job, at_ns, first, BINS, span.max(BINS));
    for row in asked.ask(strip).await? {
        add_to_strip(&mut view, row);
    }
    let (dropped, is_cut) = asked.ask_some(run::dropped(job, at_ns)).await?;
    view.is_partial = are_cut || is_cut;
    fill_waiting(&mut view, &submits, span.max(BINS));
    for row in dropped {
        drop_from_strip(&mut view, row, span.max(BINS));
    }
    let failures = asked.ask(run::failures(job, at_ns)).await?;
    view.failures = failures
        .into_iter()
        .map(|row| FailureRow {
            task: row.task,
            instance: row.instance,
            error: clean(&row.error),
            host: row.host.unwrap_or_else(|| "?".to_owned()),
            run_us: row.run_us,
            ended_ns: row.ended_ns,
            params: String::new(),
        })
        .collect();
    Ok(view)
}

/// Lowest and highest id: of the submits, otherwise of the started tasks.
fn id_span(touched: Option<TouchedRow>, submits: &[IdsRow]) -> (u32, u32) {
    let (mut first, mut last) = (u32::MAX, 0);
    for ids in submits {
        let end = ids.start + ids.count.max(1) - 1;
        first = first.min(u32::try_from(ids.start).unwrap_or(0));
        last = last.max(u32::try_from(end).unwrap_or(u32::MAX));
    }
    if let Some(touched) = touched {
        let total = touched.task_count.max(1);
        if let Some((lowest, highest)) = touched.ids {
            first = first.min(lowest);
            last = last.max(highest);
        }
        if first == u32::MAX {
            // A graph without started tasks: assumes the usual ids.
            (first, last) = (0, u32::try_from(total - 1).unwrap_or(u32::MAX));
        }
        if submits.is_empty() {
            let end = i64::from(first) + total - 1;
            last = last.max(u32::try_from(end).unwrap_or(u32::MAX));
        }
    }
    (first.min(last), last)
}

fn add_to_strip(view: &mut JobView, row: StripRow) {
    let last = view.bins.len().saturating_sub(1);
    let bin = usize::try_from(row.bin).unwrap_or(0).min(last);
    if let Some(counts) = view.bins.get_mut(bin) {
        *counts.of(row.state) += row.count;
    }
    let ended = matches!(row.state, TaskState::Finished | TaskState::Failed);
    if let Some(took) = row.took.filter(|_| ended)
        && let Some((_, tasks)) = view.run_times.get_mut(took)
    {
        *tasks += row.count;
    }
}

/// Ids of a bin: from the first up to, but not including, the second, counted from the lowest id.
fn bin_span(bin: usize, span: i64) -> (i64, i64) {
    let at = |bin: usize| {
        let bin = i64::try_from(bin).unwrap_or(i64::MAX / BINS);
        (bin * span + BINS - 1) / BINS
    };
    (at(bin), at(bin + 1))
}

fn overlap(a: (i64, i64), b: (i64, i64)) -> u64 {
    u64::try_from(a.1.min(b.1) - a.0.max(b.0)).unwrap_or(0)
}

/// Counts tasks without a row as waiting.
fn fill_waiting(view: &mut JobView, submits: &[IdsRow], span: i64) {
    let first = i64::from(view.ids.0);
    let last = i64::from(view.ids.1);
    for (number, counts) in view.bins.iter_mut().enumerate() {
        let ids = bin_span(number, span);
        let mut given = 0;
        for row in submits {
            let start = row.start - first;
            given += overlap(ids, (start, start + row.count));
        }
        if submits.is_empty() {
            given = overlap(ids, (0, last - first + 1));
        }
        counts.waiting += given.saturating_sub(counts.total());
    }
}

/// Tasks that were canceled or aborted before they started.
fn drop_from_strip(view: &mut JobView, row: DroppedRow, span: i64) {
    let step = row.step.max(1);
    let start = row.first - i64::from(view.ids.0);
    for (number, counts) in view.bins.iter_mut().enumerate() {
        let ids = bin_span(number, span);
        let end = start + (row.count - 1) * step + 1;
        let dropped = overlap(ids, (start, end)) / step.unsigned_abs();
        counts.shift(dropped, row.state);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Answers by the first word that the query contains.
    struct Fake(Vec<(&'static str, Rows)>);

    impl Ask for Fake {
        type Error = String;

        async fn all_rows(&mut self, sql: &str) -> Result<Rows, String> {
            let found = self.0.iter().find(|(word, _)| sql.contains(word));
            Ok(found.map(|(_, rows)| rows.clone()).unwrap_or_default())
        }

        async fn some_rows(&mut self, sql: &str) -> Result<(Rows, bool), String> {
            Ok((self.all_rows(sql).await?, sql.contains("dropped_data")))
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
            .block_on(job_view(&mut fake, 7, 1_000))
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
        let mut sum = Counts::default();
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
            ("LEFT JOIN", json!([[4, 1, 127, null, "n2", 1_500, 900]])),
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
