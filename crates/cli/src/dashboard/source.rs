//! From answers of a server, or rows of a journal file, to the model.
//!
//! Details of jobs come from the store in both cases, by SQL that runs beside the core of the server: one
//! pass over the tasks of a job, whose result does not grow with them.

pub(crate) mod file;
pub(crate) mod live;
pub(crate) mod obstacle;
pub(crate) mod past;
pub(crate) mod rows;

use super::model::{Counts, FailureRow, JobView};
use hq_core::task::TaskState;
use hq_store::reader::{self, RUN_BOUNDS, failure_words, run_bin_sql};
use hq_store::statement::fill;
use rows::Rows;

/// Bins of a job's strip: more than any terminal shows cells in three rows.
pub(crate) const BINS: i64 = 600;
/// Failures of a job that are listed.
pub(crate) const FAILURES_MAX: usize = reader::FAILURES_MAX as usize;

/// Tasks that ended by themselves, by job, worker and how.
pub(crate) const ENDED_SQL: &str = "SELECT e.job, e.worker, w.hostname, e.state, e.outcome, e.message, e.n FROM \
     (SELECT job, worker, state, outcome, max(message) AS message, count(*) AS n FROM task_data \
      WHERE state IN (:finished, :failed) AND coalesce(started_unix_ns, 0) + coalesce(run_us, 0) * 1000 <= ?T \
      GROUP BY job, worker, state, outcome ORDER BY state DESC, n DESC LIMIT 5000) e \
     LEFT JOIN worker_data w ON w.id = e.worker";

/// State of a task at the time `?T`.
pub(crate) const STATE_SQL: &str = "CASE WHEN started_unix_ns IS NULL OR started_unix_ns > ?T THEN :waiting \
     WHEN state IN (:finished, :failed) AND started_unix_ns + run_us * 1000 > ?T THEN :running ELSE state END";

/// Ranges of ids that a job was given: `[{"start": …, "count": …}]` or `n_tasks` of each submit.
pub(crate) const IDS_SQL: &str = "SELECT min(task), max(task), (SELECT coalesce(sum(task_count), 0) FROM submit_data \
     WHERE job = ?J) FROM task_data WHERE job = ?J";
pub(crate) const SUBMITS_SQL: &str = "SELECT json_extract(r.value, '$.start'), json_extract(r.value, '$.count') FROM \
     (SELECT data FROM event_log WHERE type = 'job-created' AND job = ?J) e, \
     json_each(json_extract(e.data, '$.submit_desc.task_desc.ids.ranges')) r";

fn strip_sql() -> String {
    let bin = run_bin_sql();
    format!(
        "SELECT (task - ?L) * {BINS} / ?S AS bin, {STATE_SQL} AS now, \
         CASE WHEN state IN (:finished, :failed) THEN {bin} ELSE -1 END AS took, count(*) \
         FROM task_data WHERE job = ?J GROUP BY 1, 2, 3"
    )
}

pub(crate) const DROPPED_SQL: &str =
    "SELECT first, count, step, state FROM dropped_data WHERE job = ?J AND at_unix_ns <= ?T";

pub(crate) fn failures_sql() -> String {
    format!(
        "SELECT t.task, t.instance, t.outcome, t.message, w.hostname, t.run_us, \
         t.started_unix_ns + t.run_us * 1000 AS ended FROM task_data t \
         LEFT JOIN worker_data w ON w.id = t.worker \
         WHERE t.job = ?J AND t.state = :failed AND t.started_unix_ns + t.run_us * 1000 <= ?T \
         ORDER BY ended DESC LIMIT {FAILURES_MAX}"
    )
}

/// Whether a column holds the state of a failed task.
pub(crate) fn is_failed(state: i64) -> bool {
    TaskState::from_number(state) == Some(TaskState::Failed)
}

/// Words for the outcome of a failed task, as the store numbers it.
pub(crate) fn outcome_words(code: i64, message: Option<&str>) -> String {
    super::model::clean(&failure_words(code, message))
}

/// Asks for rows: a server, or a file.
pub(crate) trait Ask {
    /// Why there is no answer, for people.
    type Error;
    /// Runs one query; more rows than there may be are an error.
    async fn ask(&mut self, sql: &str) -> Result<Rows, Self::Error>;
    /// Runs one query; says whether there are more rows than those.
    async fn ask_some(&mut self, sql: &str) -> Result<(Rows, bool), Self::Error>;
}

/// Details of a job as of the time `at`.
pub(crate) async fn job_view<A: Ask>(
    asked: &mut A,
    job: u32,
    at_ns: i64,
) -> Result<JobView, A::Error> {
    let base = [("?J", i64::from(job)), ("?T", at_ns)];
    let touched = asked.ask(&fill(IDS_SQL, &base)).await?;
    // An open job may have any number of submits, and one that was canceled any number of gaps.
    let (submits, are_cut) = asked.ask_some(&fill(SUBMITS_SQL, &base)).await?;
    let (first, last) = id_span(&touched, &submits);
    let span = i64::from(last) - i64::from(first) + 1;
    let bins = usize::try_from(span.min(BINS)).unwrap_or(1);
    let mut view = JobView {
        job,
        ids: (first, last),
        bins: vec![Counts::default(); bins],
        run_times: RUN_BOUNDS
            .iter()
            .chain([&u64::MAX])
            .map(|bound| (*bound, 0))
            .collect(),
        ..JobView::default()
    };
    let values = [
        ("?J", i64::from(job)),
        ("?T", at_ns),
        ("?L", i64::from(first)),
        ("?S", span.max(BINS)),
    ];
    let strip = asked.ask(&fill(&strip_sql(), &values)).await?;
    for row in strip.iter() {
        add_to_strip(&mut view, row.int(0), row.int(1), row.int(2), row.uint(3));
    }
    let (dropped, is_cut) = asked.ask_some(&fill(DROPPED_SQL, &base)).await?;
    view.is_partial = are_cut || is_cut;
    fill_waiting(&mut view, &submits, span.max(BINS));
    for row in dropped.iter() {
        drop_from_strip(
            &mut view,
            (row.int(0), row.int(1), row.int(2)),
            row.int(3),
            span.max(BINS),
        );
    }
    let failures = asked.ask(&fill(&failures_sql(), &base)).await?;
    view.failures = failures
        .iter()
        .map(|row| FailureRow {
            task: row.small(0),
            instance: row.small(1),
            error: outcome_words(row.int(2), row.text(3)),
            host: row.text(4).unwrap_or("?").to_owned(),
            run_us: row.uint(5),
            ended_ns: row.int(6),
        })
        .collect();
    Ok(view)
}

/// Lowest and highest id: of the submits, or else of the tasks that were started.
fn id_span(touched: &Rows, submits: &Rows) -> (u32, u32) {
    let (mut first, mut last) = (u32::MAX, 0);
    for row in submits.iter() {
        let (start, count) = (row.int(0), row.int(1));
        let end = start + count.max(1) - 1;
        first = first.min(u32::try_from(start).unwrap_or(0));
        last = last.max(u32::try_from(end).unwrap_or(u32::MAX));
    }
    if let Some(row) = touched.iter().next() {
        let total = row.int(2).max(1);
        if row.has(0) {
            first = first.min(row.small(0));
            last = last.max(row.small(1));
        }
        if first == u32::MAX {
            // A graph of which nothing was started: the usual ids.
            (first, last) = (0, u32::try_from(total - 1).unwrap_or(u32::MAX));
        }
        if submits.is_empty() {
            let end = i64::from(first) + total - 1;
            last = last.max(u32::try_from(end).unwrap_or(u32::MAX));
        }
    }
    (first.min(last), last)
}

fn add_to_strip(view: &mut JobView, bin: i64, state: i64, took: i64, count: u64) {
    let last = view.bins.len().saturating_sub(1);
    let bin = usize::try_from(bin).unwrap_or(0).min(last);
    if let Some(counts) = view.bins.get_mut(bin) {
        *counts.of(state) += count;
    }
    let state = TaskState::from_number(state);
    let ended = matches!(state, Some(TaskState::Finished | TaskState::Failed));
    if let Some(took) = usize::try_from(took).ok().filter(|_| ended)
        && let Some((_, tasks)) = view.run_times.get_mut(took)
    {
        *tasks += count;
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

/// What has no row waits.
fn fill_waiting(view: &mut JobView, submits: &Rows, span: i64) {
    let first = i64::from(view.ids.0);
    let last = i64::from(view.ids.1);
    for (number, counts) in view.bins.iter_mut().enumerate() {
        let ids = bin_span(number, span);
        let mut given = 0;
        for row in submits.iter() {
            let start = row.int(0) - first;
            given += overlap(ids, (start, start + row.int(1)));
        }
        if submits.is_empty() {
            given = overlap(ids, (0, last - first + 1));
        }
        counts.waiting += given.saturating_sub(counts.total());
    }
}

/// Tasks that were canceled or aborted before they were started.
fn drop_from_strip(
    view: &mut JobView,
    (first, count, step): (i64, i64, i64),
    state: i64,
    span: i64,
) {
    let step = step.max(1);
    let start = first - i64::from(view.ids.0);
    for (number, counts) in view.bins.iter_mut().enumerate() {
        let ids = bin_span(number, span);
        let dropped = overlap(ids, (start, start + (count - 1) * step + 1)) / step.unsigned_abs();
        let moved = dropped.min(counts.waiting);
        counts.waiting -= moved;
        *counts.of(state) += moved;
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

        async fn ask(&mut self, sql: &str) -> Result<Rows, String> {
            let found = self.0.iter().find(|(word, _)| sql.contains(word));
            Ok(found.map(|(_, rows)| rows.clone()).unwrap_or_default())
        }

        async fn ask_some(&mut self, sql: &str) -> Result<(Rows, bool), String> {
            Ok((self.ask(sql).await?, sql.contains("dropped_data")))
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
        view.bins.iter().for_each(|bin| sum.add(bin));
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
        let states: Vec<_> = view.bins.iter().map(|bin| bin.state(false)).collect();
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
