//! A journal file as a source of facts, at any time within it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::job::TaskTotals;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_protocol::Message as _;
use hq_protocol::client::{
    self, AllocAllocation, AllocQueueRecord, JobSummary, ResourceUse, RuntimeInfo, WorkerInfo,
    alloc_allocation, worker_info::State,
};
use hq_protocol::common::{self, IndexGroup, IndexGroups, ResourceItem, resource_item::Kind};
use hq_store::StoreError;
use hq_store::reader::run;
use hq_store::reader::{self, QueryLimits};
use hq_store::rows::Rows;
use serde_json::Value;

use super::{Ask, Queue, Snapshot};
use crate::error::{CliError, CliResult};
use crate::output::view::{total_units, worker_state_name};
use crate::text::clean;

/// The limits of queries. The rows describe the jobs of a journal; each job is also a row of the
/// model.
const LIMITS: QueryLimits = QueryLimits {
    time: Duration::from_secs(60),
    rows: 5_000_000,
    bytes: 4 << 30,
};

/// The requests of tasks by job and variant: the units of each resource, or `None` for all units.
/// Graphs are not included.
pub(crate) type Requests = BTreeMap<(u32, u32), BTreeMap<String, Option<u64>>>;

/// An open journal.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    /// The requests of the jobs up to some id.
    requests: (u32, Requests),
}

impl Ask for JournalFile {
    async fn rows(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
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
    /// Opens a journal. A server may be writing to it.
    pub(crate) fn open(path: &Path) -> CliResult<Self> {
        reader::open_for_reading(path).map_err(|e| store_error(&e))?;
        Ok(Self {
            path: path.to_path_buf(),
            requests: (0, Requests::new()),
        })
    }

    /// Returns the times of the first and the last event.
    pub(crate) async fn span(&mut self) -> CliResult<(i64, i64)> {
        Ok(self.ask_one(run::span()).await?.unwrap_or_default())
    }

    /// Returns all jobs and workers as they were at that time.
    pub(crate) async fn snapshot(&mut self, at_ns: i64) -> CliResult<Snapshot> {
        let jobs = self.jobs(at_ns).await?;
        let last = jobs.last().map_or(0, |job| job.id);
        if last > self.requests.0 {
            self.requests = (last, self.requests().await?);
        }
        Ok(Snapshot {
            now_ns: at_ns,
            jobs,
            workers: self.workers(at_ns).await?,
        })
    }

    async fn requests(&mut self) -> CliResult<Requests> {
        let mut found = Requests::new();
        for row in self.ask(run::requests()).await? {
            let amounts = found.entry((row.job, row.variant)).or_default();
            amounts.insert(clean(&row.resource), row.units);
        }
        Ok(found)
    }

    async fn jobs(&mut self, at_ns: i64) -> CliResult<Vec<JobSummary>> {
        let jobs = self.ask(run::jobs(at_ns)).await?;
        let mut rows = self.ask(run::states(at_ns)).await?;
        rows.extend(self.ask(run::dropped_sums(at_ns)).await?);
        let counts = run::counts(&jobs, rows);
        let jobs = jobs.into_iter().zip(counts);
        let jobs = jobs.map(|(row, counts)| JobSummary {
            id: row.id,
            name: clean(&row.name),
            is_open: row.is_open,
            stats: Some(stats(counts)),
            ..JobSummary::default()
        });
        Ok(jobs.collect())
    }

    async fn workers(&mut self, at_ns: i64) -> CliResult<Vec<WorkerInfo>> {
        let rows = self.ask(run::workers(at_ns)).await?;
        let mut workers: Vec<WorkerInfo> = rows.into_iter().map(worker).collect();
        for row in self.ask(run::running(at_ns)).await? {
            if let Ok(at) = workers.binary_search_by_key(&row.worker, |worker| worker.id) {
                let request = self.requests.1.get(&(row.job, row.variant));
                take(&mut workers[at], request, row.count);
            }
        }
        Ok(workers)
    }

    /// Returns the queues of automatic allocation.
    pub(crate) async fn queues(&mut self, at_ns: i64) -> CliResult<Vec<Queue>> {
        // Journals of the first version have no such table.
        let rows = self.ask(run::queues()).await.unwrap_or_default();
        let rows = rows.into_iter();
        let mut queues: Vec<Queue> = rows
            .map(|row| queue(row.id, row.record.as_deref(), at_ns))
            .collect();
        for row in self.ask(run::allocations(at_ns)).await? {
            let state = match (row.started_ns, row.ended_ns) {
                (_, Some(_)) => alloc_allocation::State::Finished,
                (Some(_), None) => alloc_allocation::State::Running,
                (None, None) => alloc_allocation::State::Queued,
            };
            if let Some(queue) = queues.iter_mut().find(|queue| queue.id == row.queue) {
                queue.allocations.push(AllocAllocation {
                    id: clean(&row.id),
                    state: state.into(),
                    workers: row.worker_count,
                    queued_unix_ns: row.queued_ns.unwrap_or(at_ns),
                    started_unix_ns: row.started_ns,
                    ended_unix_ns: row.ended_ns,
                    ..AllocAllocation::default()
                });
            }
        }
        Ok(queues)
    }
}

fn stats(counts: TaskTotals) -> client::TaskStats {
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    client::TaskStats {
        running: small(counts.running),
        finished: small(counts.finished),
        failed: small(counts.failed),
        canceled: small(counts.canceled),
        aborted: small(counts.aborted),
        waiting: small(counts.waiting),
    }
}

fn worker(row: run::WorkerRow) -> WorkerInfo {
    let items = resources(&row.config);
    let used = items.iter().map(|item| ResourceUse {
        resource: item.name.clone(),
        used_units: 0,
    });
    WorkerInfo {
        id: row.id,
        state: row.ended.map_or(State::Running, |why| state(&why)).into(),
        started_unix_ns: row.started_ns,
        runtime: Some(RuntimeInfo {
            resources: used.collect(),
            ..RuntimeInfo::default()
        }),
        config: Some(common::WorkerConfig {
            hostname: clean(&row.host),
            resources: Some(common::ResourceDescriptor {
                items,
                ..common::ResourceDescriptor::default()
            }),
            ..common::WorkerConfig::default()
        }),
        ..WorkerInfo::default()
    }
}

/// Returns the state of a worker that ended for this reason, such as `ConnectionLost`.
fn state(reason: &str) -> State {
    let states = [
        State::ConnectionLost,
        State::HeartbeatLost,
        State::IdleTimeout,
        State::TimeLimitReached,
    ];
    let name = |state: &State| worker_state_name(*state).replace(' ', "");
    let mut states = states.into_iter();
    let found = states.find(|state| name(state).eq_ignore_ascii_case(reason));
    found.unwrap_or(State::Stopped)
}

/// Returns a queue from its record: its name, and why it requested nothing at that time.
fn queue(id: u32, record: Option<&[u8]>, at_ns: i64) -> Queue {
    let decoded = record.and_then(|bytes| AllocQueueRecord::decode(bytes).ok());
    let record = decoded.filter(|record| !record.is_removed);
    let Some(record) = record else {
        return Queue {
            id,
            reason: "it was removed".to_owned(),
            ..Queue::default()
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
    Queue {
        id,
        name: clean(&record.spec.and_then(|spec| spec.name).unwrap_or_default()),
        is_paused: record.paused.is_some(),
        is_failing,
        reason: clean(&reason.trim_end().replace('\n', "; ")),
        allocations: Vec::new(),
    }
}

/// Counts the resources of a worker that `tasks` use. A task without a known request counts as one
/// cpu, and its use of other resources is unknown.
fn take(worker: &mut WorkerInfo, request: Option<&BTreeMap<String, Option<u64>>>, tasks: u32) {
    let (Some(runtime), Some(config)) = (&mut worker.runtime, &worker.config) else {
        return;
    };
    runtime.running_tasks += tasks;
    let items = config.resources.iter().flat_map(|all| &all.items);
    let totals: BTreeMap<&str, u64> = items
        .map(|item| (item.name.as_str(), total_units(item)))
        .collect();
    runtime.resources.retain_mut(|used| {
        let total = totals.get(used.resource.as_str()).copied().unwrap_or(0);
        let units = match request.map(|request| request.get(&used.resource)) {
            Some(Some(units)) => Some(units.unwrap_or(total)),
            Some(None) => Some(0),
            None => (used.resource == "cpus").then_some(UNITS_PER_WHOLE),
        };
        let more = units.unwrap_or(0).saturating_mul(tasks.into());
        used.used_units = used.used_units.saturating_add(more).min(total);
        units.is_some()
    });
}

/// Returns the resources from a worker's configuration in an event.
fn resources(config: &Value) -> Vec<ResourceItem> {
    let items = config
        .pointer("/resources/resources")
        .and_then(Value::as_array);
    let rows = items.into_iter().flatten().map(|item| {
        let kind = item.get("kind").unwrap_or(&Value::Null);
        let number = |path: &str| kind.pointer(path).and_then(Value::as_u64);
        let array = |path: &str| kind.pointer(path).and_then(Value::as_array);
        let range = number("/Range/start").zip(number("/Range/end"));
        let kind = if let Some(groups) = array("/Groups/groups") {
            let group = |group: &Value| IndexGroup {
                values: vec![String::new(); group.as_array().map_or(0, Vec::len)],
            };
            Kind::Groups(IndexGroups {
                groups: groups.iter().map(group).collect(),
            })
        } else if let Some(units) = number("/Sum/size") {
            Kind::SumUnits(units)
        } else {
            let count = array("/List/values").map(|values| values.len() as u64);
            let count = count.or(range.map(|(start, end)| end.saturating_sub(start) + 1));
            Kind::SumUnits(count.unwrap_or(0).saturating_mul(UNITS_PER_WHOLE))
        };
        ResourceItem {
            name: clean(item.get("name").and_then(Value::as_str).unwrap_or_default()),
            kind: Some(kind),
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_runs_tells_what_is_used_as_far_as_it_is_known() {
        let sum = |name, count: u64| json!({"name": name, "kind": {"Sum": {"size": count * UNITS_PER_WHOLE}}});
        let mut worker = worker(run::WorkerRow {
            id: 1,
            host: "n1".to_owned(),
            started_ns: 0,
            ended: None,
            config: json!({"resources": {"resources": [sum("cpus", 8), sum("mem", 100)]}}),
        });
        let used = |worker: &WorkerInfo| {
            let used =
                |one: super::super::Resource<'_>| one.used.map(|units| units / UNITS_PER_WHOLE);
            super::super::resources(worker)
                .map(used)
                .collect::<Vec<_>>()
        };
        let request = [("cpus".to_owned(), Some(2 * UNITS_PER_WHOLE))];
        let request = BTreeMap::from(request);
        take(&mut worker, Some(&request), 3);
        assert_eq!(used(&worker), [Some(6), Some(0)]);
        // The task belongs to a graph, whose requests the journal does not contain.
        take(&mut worker, None, 1);
        assert_eq!(used(&worker), [Some(7), None]);
        let request = BTreeMap::from([("cpus".to_owned(), None)]);
        take(&mut worker, Some(&request), 1);
        assert_eq!(used(&worker), [Some(8), None], "never more than there is");
    }

    #[test]
    fn the_reason_of_an_end_is_a_state() {
        assert_eq!(state("HeartbeatLost"), State::HeartbeatLost);
        assert_eq!(state("TimeLimitReached"), State::TimeLimitReached);
        assert_eq!(state("ended"), State::Stopped);
    }
}
