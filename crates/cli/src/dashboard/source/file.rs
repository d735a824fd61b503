//! A journal file as the source, at any time within it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_protocol::Message as _;
use hq_protocol::client::AllocQueueRecord;
use hq_store::StoreError;
use hq_store::reader::run;
use hq_store::reader::{self, QueryLimits};
use hq_store::rows::Rows;
use serde_json::Value;

use super::Ask;
use crate::dashboard::model::{
    AllocationRow, JobRow, QueueRow, ResourceRow, Snapshot, WorkerRow, clean,
};
use crate::error::{CliError, CliResult};

/// The rows describe the jobs of a journal; each job is also a row of the model.
const LIMITS: QueryLimits = QueryLimits {
    time: Duration::from_secs(60),
    rows: 5_000_000,
    bytes: 4 << 30,
};

/// Requests of tasks by job and variant: units of each resource, `None` for all units. Graphs are
/// not included.
pub(crate) type Requests = BTreeMap<(u32, u32), BTreeMap<String, Option<u64>>>;

/// An open journal.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: std::path::PathBuf,
    /// Requests of the jobs up to some id.
    requests: (u32, Requests),
}

impl Ask for JournalFile {
    type Error = CliError;

    async fn all_rows(&mut self, sql: &str) -> CliResult<Rows> {
        match self.some_rows(sql).await? {
            (rows, false) => Ok(rows),
            (_, true) => Err(CliError::new(format!(
                "The journal has more than {} rows of one kind, which is too much to show; `hq query --journal` reads parts of it",
                LIMITS.rows
            ))),
        }
    }

    async fn some_rows(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
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
    /// Opens a journal; a server may be writing it.
    pub(crate) fn open(path: &Path) -> CliResult<Self> {
        reader::open_for_reading(path).map_err(|e| store_error(&e))?;
        Ok(Self {
            path: path.to_path_buf(),
            requests: (0, Requests::new()),
        })
    }

    /// Times of the first and the last event.
    pub(crate) async fn span(&mut self) -> CliResult<(i64, i64)> {
        Ok(self.ask_one(run::span()).await?.unwrap_or_default())
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
            internal_errors: 0,
        })
    }

    /// Requests of the given jobs of the journal; `None` for all jobs.
    pub(crate) async fn requests(&mut self, jobs: Option<&[u32]>) -> CliResult<Requests> {
        let mut found = Requests::new();
        for row in self.ask(run::requests(jobs)).await? {
            let amounts = found.entry((row.job, row.variant)).or_default();
            amounts.insert(clean(&row.resource), row.units);
        }
        Ok(found)
    }

    async fn jobs(&mut self, at_ns: i64) -> CliResult<Vec<JobRow>> {
        let jobs = self.ask(run::jobs(at_ns)).await?;
        let mut rows = self.ask(run::states(at_ns)).await?;
        rows.extend(self.ask(run::dropped_sums(at_ns)).await?);
        let counts = run::counts(&jobs, rows);
        let jobs = jobs.into_iter().zip(counts).map(|(row, counts)| JobRow {
            id: row.id,
            name: clean(&row.name),
            is_open: row.is_open,
            counts,
            pace: None,
        });
        Ok(jobs.collect())
    }

    async fn workers(&mut self, at_ns: i64) -> CliResult<Vec<WorkerRow>> {
        let workers = self.ask(run::workers(at_ns)).await?.into_iter();
        let mut workers: Vec<WorkerRow> = workers
            .map(|row| WorkerRow {
                id: row.id,
                host: clean(&row.host),
                started_ns: row.started_ns,
                is_lost: row.ended.as_deref().is_some_and(reader::is_lost_name),
                ended: row.ended.as_deref().map(words),
                resources: resources(&row.config),
                ..WorkerRow::default()
            })
            .collect();
        for row in self.ask(run::running(at_ns)).await? {
            if let Ok(at) = workers.binary_search_by_key(&row.worker, |worker| worker.id) {
                let request = self.requests.1.get(&(row.job, row.variant));
                workers[at].running += row.count;
                take(&mut workers[at].resources, request, row.count.into());
            }
        }
        Ok(workers)
    }

    async fn queues(&mut self, at_ns: i64) -> CliResult<Vec<QueueRow>> {
        // Journals of the first version have no such table.
        let rows = self.ask(run::queues()).await.unwrap_or_default();
        let mut queues: Vec<QueueRow> = rows
            .into_iter()
            .map(|row| queue(row.id, row.record.as_deref(), at_ns))
            .collect();
        for row in self.ask(run::allocations(at_ns)).await? {
            let state = match (row.started_ns, row.ended_ns) {
                (_, Some(_)) => "finished",
                (Some(_), None) => "running",
                (None, None) => "queued",
            };
            let found = queues.iter_mut().find(|queue| queue.id == row.queue);
            if let Some(queue) = found {
                queue.allocations.push(AllocationRow {
                    id: clean(&row.id),
                    state: state.to_owned(),
                    workers: row.worker_count,
                    queued_ns: row.queued_ns,
                    started_ns: row.started_ns,
                    ended_ns: row.ended_ns,
                });
            }
        }
        Ok(queues)
    }
}

/// A queue from its record: its name, and why it requested nothing at that time.
fn queue(id: u32, record: Option<&[u8]>, at_ns: i64) -> QueueRow {
    let record = record.and_then(|bytes| AllocQueueRecord::decode(bytes).ok());
    let Some(record) = record else {
        return QueueRow {
            id,
            reason: "it was removed".to_owned(),
            ..QueueRow::default()
        };
    };
    let failing = record.failure;
    let failing = failing.filter(|failure| failure.since_unix_ns <= at_ns);
    let is_failing = failing.is_some();
    let reason = match (&record.paused, failing) {
        (Some(why), _) => why.clone(),
        (None, Some(failure)) => format!("after a failure: {}", failure.last),
        (None, None) => String::new(),
    };
    QueueRow {
        id,
        name: clean(&record.spec.and_then(|spec| spec.name).unwrap_or_default()),
        is_paused: record.paused.is_some(),
        is_failing,
        reason: clean(&reason.trim_end().replace('\n', "; ")),
        allocations: Vec::new(),
    }
}

/// Counts the resources of a worker that `count` tasks use. A task without a known request counts
/// as one cpu, and its use of other resources is unknown.
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

/// Resources from a worker's configuration in an event.
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
        // A graph, whose requests the journal does not contain.
        take(&mut all, None, 1);
        assert_eq!(used(&all), [Some(7), None]);
        let request = BTreeMap::from([("cpus".to_owned(), None)]);
        take(&mut all, Some(&request), 1);
        assert_eq!(used(&all), [Some(8), None], "never more than exist");
    }
}
