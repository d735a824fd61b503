//! A journal file as the source, as of any time in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::task::TaskState;
use hq_protocol::Message as _;
use hq_protocol::client::AllocQueueRecord;
use hq_store::StoreError;
use hq_store::reader::{self, QueryLimits};
use hq_store::statement::fill;
use serde_json::Value;

use super::rows::Rows;
use super::{Ask, STATE_SQL};
use crate::dashboard::model::{
    AllocationRow, Counts, JobRow, QueueRow, ResourceRow, Snapshot, WorkerRow, clean,
};
use crate::error::{CliError, CliResult};

/// The rows are for the jobs of a journal, each of which is a row here and in the model.
const LIMITS: QueryLimits = QueryLimits {
    time: Duration::from_secs(60),
    rows: 5_000_000,
    bytes: 4 << 30,
};

/// What tasks of a job ask for, by job and variant: units of each resource, `None` = all that there is. Graphs are
/// not told of.
pub(crate) type Requests = BTreeMap<(u32, u32), BTreeMap<String, Option<u64>>>;

/// An open journal.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: std::path::PathBuf,
    /// Of the jobs up to some id.
    requests: (u32, Requests),
}

impl Ask for JournalFile {
    type Error = CliError;

    async fn ask(&mut self, sql: &str) -> CliResult<Rows> {
        match self.ask_some(sql).await? {
            (rows, false) => Ok(rows),
            (_, true) => Err(CliError::new(format!(
                "The journal has more than {} rows of one kind, which is too much to show; `hq query --journal` reads parts of it",
                LIMITS.rows
            ))),
        }
    }

    async fn ask_some(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
        let connection = reader::open_for_reading(&self.path).map_err(|e| store_error(&e))?;
        let table = reader::query(&connection, sql, LIMITS)
            .map_err(|text| CliError::new(format!("The journal cannot be read: {text}")))?;
        Ok((Rows::new(table.rows), table.is_cut))
    }
}

fn store_error(error: &StoreError) -> CliError {
    CliError::new(error.to_string())
}

impl JournalFile {
    /// Opens it; a server may be writing it.
    pub(crate) fn open(path: &Path) -> CliResult<Self> {
        reader::open_for_reading(path).map_err(|e| store_error(&e))?;
        Ok(Self {
            path: path.to_path_buf(),
            requests: (0, Requests::new()),
        })
    }

    /// Times of the first and of the last thing in it.
    pub(crate) async fn span(&mut self) -> CliResult<(i64, i64)> {
        let sql = "SELECT min(a), max(b) FROM (SELECT min(at_unix_ns) AS a, max(at_unix_ns) AS b FROM event_log \
                   UNION ALL SELECT min(started_unix_ns), \
                   max(started_unix_ns + coalesce(run_us, 0) * 1000) FROM task_data)";
        let rows = self.ask(sql).await?;
        let row = rows.iter().next();
        Ok(row.map_or((0, 0), |row| (row.int(0), row.int(1))))
    }

    /// Everything as it was then.
    pub(crate) async fn snapshot(&mut self, at_ns: i64) -> CliResult<Snapshot> {
        let jobs = self.jobs(at_ns).await?;
        let last = jobs.last().map_or(0, |job| job.id);
        if last > self.requests.0 {
            self.requests = (last, self.requests(None).await?);
        }
        Ok(Snapshot {
            now_ns: at_ns,
            jobs,
            workers: self.workers(at_ns).await?,
            queues: self.queues(at_ns).await?,
        })
    }

    /// What jobs of the journal ask for; `None` = all.
    pub(crate) async fn requests(&mut self, jobs: Option<&[u32]>) -> CliResult<Requests> {
        let which = jobs.map_or(String::new(), |jobs| {
            let ids: Vec<String> = jobs.iter().map(u32::to_string).collect();
            format!(" AND e.job IN ({})", ids.join(", "))
        });
        let sql = format!(
            "SELECT e.job, v.key, json_extract(r.value, '$.resource'), json_extract(r.value, '$.policy') \
             FROM event_log e, json_each(json_extract(e.data, '$.submit_desc.task_desc.resources.variants')) v, \
             json_each(json_extract(v.value, '$.resources')) r WHERE e.type = 'job-created'{which}"
        );
        let mut found = Requests::new();
        for row in self.ask(&sql).await?.iter() {
            let policy: Value = row
                .text(3)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            let units = policy
                .as_object()
                .and_then(|policy| policy.values().next())
                .and_then(Value::as_u64);
            let amounts = found.entry((row.small(0), row.small(1))).or_default();
            amounts.insert(clean(row.text(2).unwrap_or_default()), units);
        }
        Ok(found)
    }

    async fn jobs(&mut self, at_ns: i64) -> CliResult<Vec<JobRow>> {
        let at = [("?T", at_ns)];
        let sql = "SELECT j.id, j.name, j.is_open, (SELECT coalesce(sum(s.task_count), 0) FROM submit_data s \
                   WHERE s.job = j.id AND s.at_unix_ns <= ?T) FROM job_data j \
                   WHERE j.is_forgotten = 0 AND j.submitted_unix_ns <= ?T ORDER BY j.id";
        let mut jobs: Vec<JobRow> = self
            .ask(&fill(sql, &at))
            .await?
            .iter()
            .map(|row| JobRow {
                id: row.small(0),
                name: clean(row.text(1).unwrap_or_default()),
                is_open: row.int(2) != 0,
                counts: Counts {
                    waiting: row.uint(3),
                    ..Counts::default()
                },
            })
            .collect();
        let sql = format!(
            "SELECT job, {STATE_SQL} AS now, count(*) FROM task_data GROUP BY 1, 2 ORDER BY 1"
        );
        for row in self.ask(&fill(&sql, &at)).await?.iter() {
            if row.int(1) != i64::from(TaskState::Waiting.number()) {
                shift(&mut jobs, row.small(0), row.int(1), row.uint(2));
            }
        }
        // Those that were started have a row, which tells the same.
        let sql = "SELECT d.job, d.state, sum(d.count) - (SELECT count(*) FROM task_data t WHERE t.job = d.job \
                   AND t.state = d.state AND t.started_unix_ns <= ?T) FROM dropped_data d \
                   WHERE d.at_unix_ns <= ?T GROUP BY 1, 2";
        for row in self.ask(&fill(sql, &at)).await?.iter() {
            shift(&mut jobs, row.small(0), row.int(1), row.uint(2));
        }
        Ok(jobs)
    }

    async fn workers(&mut self, at_ns: i64) -> CliResult<Vec<WorkerRow>> {
        let sql = "SELECT w.id, w.hostname, w.started_unix_ns, \
                   CASE WHEN w.ended_unix_ns <= ?T THEN coalesce(w.reason, 'ended') END, w.config \
                   FROM worker_data w WHERE w.started_unix_ns <= ?T ORDER BY w.id";
        let running = format!(
            "SELECT worker, job, variant, count(*) FROM task_data WHERE {STATE_SQL} = :running GROUP BY 1, 2, 3"
        );
        let at = [("?T", at_ns)];
        let mut workers: Vec<WorkerRow> = self
            .ask(&fill(sql, &at))
            .await?
            .iter()
            .map(|row| {
                let config: Value = row
                    .text(4)
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default();
                WorkerRow {
                    id: row.small(0),
                    host: clean(row.text(1).unwrap_or_default()),
                    started_ns: row.int(2),
                    ended: row.text(3).map(words),
                    resources: resources(&config),
                    ..WorkerRow::default()
                }
            })
            .collect();
        for row in self.ask(&fill(&running, &at)).await?.iter() {
            let id = row.small(0);
            if let Ok(at) = workers.binary_search_by_key(&id, |worker| worker.id) {
                let request = self.requests.1.get(&(row.small(1), row.small(2)));
                workers[at].running += row.small(3);
                take(&mut workers[at].resources, request, row.uint(3));
            }
        }
        Ok(workers)
    }

    async fn queues(&mut self, at_ns: i64) -> CliResult<Vec<QueueRow>> {
        let at = [("?T", at_ns)];
        let sql = "SELECT id, record FROM queue_data ORDER BY id LIMIT 1000";
        // Journals of the first version have no such table.
        let rows = self.ask(sql).await.unwrap_or_default();
        let mut queues: Vec<QueueRow> = rows
            .iter()
            .map(|row| queue(row.small(0), row.text(1), at_ns))
            .collect();
        let sql = "SELECT queue, id, worker_count, queued_unix_ns, started_unix_ns, ended_unix_ns FROM allocation_data \
                   WHERE queued_unix_ns <= ?T ORDER BY queued_unix_ns LIMIT 10000";
        for row in self.ask(&fill(sql, &at)).await?.iter() {
            let before = |column| row.time(column).filter(|time| *time <= at_ns);
            let (started, ended) = (before(4), before(5));
            let state = if ended.is_some() {
                "finished"
            } else if started.is_some() {
                "running"
            } else {
                "queued"
            };
            let found = queues.iter_mut().find(|queue| queue.id == row.small(0));
            if let Some(queue) = found {
                queue.allocations.push(AllocationRow {
                    id: clean(row.text(1).unwrap_or_default()),
                    state: state.to_owned(),
                    workers: row.small(2),
                    queued_ns: row.time(3),
                    started_ns: started,
                    ended_ns: ended,
                });
            }
        }
        Ok(queues)
    }
}

/// A queue by its record in hexadecimal digits: what it is called, and why it got nothing then.
fn queue(id: u32, record: Option<&str>, at_ns: i64) -> QueueRow {
    let record = record.and_then(|digits| {
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        AllocQueueRecord::decode(bytes?.as_slice()).ok()
    });
    let Some(record) = record else {
        return QueueRow {
            id,
            reason: "it was removed".to_owned(),
            ..QueueRow::default()
        };
    };
    let failing = record.failure;
    let failing = failing.filter(|failure| failure.since_unix_ns <= at_ns);
    let reason = match (&record.paused, failing) {
        (Some(why), _) => why.clone(),
        (None, Some(failure)) => format!("after a failure: {}", failure.last),
        (None, None) => String::new(),
    };
    QueueRow {
        id,
        name: clean(&record.spec.and_then(|spec| spec.name).unwrap_or_default()),
        is_paused: record.paused.is_some(),
        reason: clean(&reason.trim_end().replace('\n', "; ")),
        allocations: Vec::new(),
    }
}

/// Counts what so many tasks use of a worker's resources. Of a task of which the journal does not tell one cpu is
/// counted, and what it uses of others is not known.
fn take(
    resources: &mut [ResourceRow],
    request: Option<&BTreeMap<String, Option<u64>>>,
    tasks: u64,
) {
    for resource in resources {
        let units = match request {
            Some(request) => match request.get(&resource.name) {
                Some(units) => Some(units.unwrap_or(resource.total)),
                None => Some(0),
            },
            None => (resource.name == "cpus").then_some(UNITS_PER_WHOLE),
        };
        let used = |units: u64| units.saturating_mul(tasks);
        resource.used = resource
            .used
            .zip(units)
            .map(|(before, units)| before.saturating_add(used(units)).min(resource.total));
    }
}

/// Counts waiting tasks of a job in another state.
fn shift(jobs: &mut [JobRow], job: u32, state: i64, count: u64) {
    if let Ok(at) = jobs.binary_search_by_key(&job, |job| job.id) {
        let counts = &mut jobs[at].counts;
        let moved = count.min(counts.waiting);
        counts.waiting -= moved;
        *counts.of(state) += moved;
    }
}

/// `ConnectionLost` as `connection lost`.
fn words(reason: &str) -> String {
    let mut text = String::new();
    for (at, c) in reason.char_indices() {
        if c.is_uppercase() && at > 0 {
            text.push(' ');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// Of a worker's configuration as the events show it.
pub(crate) fn resources(config: &Value) -> Vec<ResourceRow> {
    let items = config
        .pointer("/resources/resources")
        .and_then(Value::as_array);
    let rows = items.into_iter().flatten().map(|item| {
        let kind = item.get("kind").unwrap_or(&Value::Null);
        let number = |path: &str| kind.pointer(path).and_then(Value::as_u64);
        let sizes: Vec<usize> = kind
            .pointer("/Groups/groups")
            .and_then(Value::as_array)
            .map(|groups| {
                groups
                    .iter()
                    .map(|group| group.as_array().map_or(0, Vec::len))
                    .collect()
            })
            .unwrap_or_default();
        let list = kind
            .pointer("/List/values")
            .and_then(Value::as_array)
            .map(Vec::len);
        let range = number("/Range/start").zip(number("/Range/end"));
        let count = list
            .map(|length| length as u64)
            .or(range.map(|(start, end)| end.saturating_sub(start) + 1))
            .unwrap_or(sizes.iter().sum::<usize>() as u64);
        ResourceRow {
            name: clean(item.get("name").and_then(Value::as_str).unwrap_or_default()),
            total: number("/Sum/size").unwrap_or(count * UNITS_PER_WHOLE),
            used: Some(0),
            groups: sizes,
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_tells_what_is_used_as_far_as_it_is_known() {
        let resource = |name: &str, total| ResourceRow {
            name: name.into(),
            total: total * UNITS_PER_WHOLE,
            used: Some(0),
            groups: Vec::new(),
        };
        let mut all = [resource("cpus", 8), resource("mem", 100)];
        let used = |all: &[ResourceRow]| {
            let used = |one: &ResourceRow| one.used.map(|units| units / UNITS_PER_WHOLE);
            all.iter().map(used).collect::<Vec<_>>()
        };
        let request = [("cpus".to_owned(), Some(2 * UNITS_PER_WHOLE))];
        let request = BTreeMap::from(request);
        take(&mut all, Some(&request), 3);
        assert_eq!(used(&all), [Some(6), Some(0)]);
        // A graph, of which the journal does not tell.
        take(&mut all, None, 1);
        assert_eq!(used(&all), [Some(7), None]);
        let request = BTreeMap::from([("cpus".to_owned(), None)]);
        take(&mut all, Some(&request), 1);
        assert_eq!(used(&all), [Some(8), None], "never more than there is");
    }
}
