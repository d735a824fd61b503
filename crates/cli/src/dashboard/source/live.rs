//! A running server as the source.

use hq_core::words::number;
use hq_protocol::client::{self, alloc_reply, alloc_request};
use hq_protocol::common::{ResourceDescriptor, resource_item::Kind};
use hq_store::reader::run;
use hq_store::rows::Rows;

use super::Ask;
use crate::client::Client;
use crate::dashboard::model::{
    AllocationRow, EndedShare, EventRow, JobRow, LoadRow, QueueRow, ResourceRow, Snapshot,
    WorkerRow, clean,
};
use crate::error::{CliError, CliResult};
use crate::output::pace;
use crate::output::view::{quarantine_word, totals};
use crate::parse::selector::Selector;

/// Longest run of a query of the dashboard.
const SQL_TIME_MAX_NS: u64 = 20_000_000_000;
/// Maximum number of rows of a query. No query needs as many, because the server aggregates.
const SQL_ROWS_MAX: u64 = 100_000;

impl Ask for Client {
    type Error = CliError;

    async fn all_rows(&mut self, sql: &str) -> CliResult<Rows> {
        match self.some_rows(sql).await? {
            (rows, false) => Ok(rows),
            (_, true) => Err(CliError::new(format!(
                "There are more than {SQL_ROWS_MAX} rows of one kind, which is too much to show"
            ))),
        }
    }

    async fn some_rows(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
        let query = client::SqlQuery {
            sql: sql.to_owned(),
            time_limit_ns: SQL_TIME_MAX_NS,
            row_limit: SQL_ROWS_MAX,
        };
        let table = self.sql(query).await?;
        let rows = serde_json::from_str(&table.rows_json)
            .map_err(|e| CliError::caused("The server sent no table", &e))?;
        Ok((Rows::new(rows), table.is_cut))
    }
}

/// All jobs and workers.
pub(crate) async fn snapshot(client: &mut Client, now_ns: i64) -> CliResult<Snapshot> {
    let all = Selector::All.to_message();
    let jobs = client.job_list(all.clone()).await?.into_iter();
    let jobs = jobs.map(|summary| job(summary, now_ns)).collect();
    let workers = client
        .workers(all, true)
        .await?
        .workers
        .into_iter()
        .map(worker)
        .collect();
    Ok(Snapshot {
        now_ns,
        jobs,
        workers,
        queues: Vec::new(),
        internal_errors: 0,
    })
}

fn job(job: client::JobSummary, now_ns: i64) -> JobRow {
    let pace = pace::pace(&job, now_ns);
    JobRow {
        id: job.id,
        name: clean(&job.name),
        is_open: job.is_open,
        counts: totals(&job),
        pace,
    }
}

fn worker(worker: client::WorkerInfo) -> WorkerRow {
    use client::worker_info::State;
    let ended = match worker.state() {
        State::Running => None,
        State::ConnectionLost => Some("connection lost"),
        State::HeartbeatLost => Some("heartbeat lost"),
        State::IdleTimeout => Some("idle timeout"),
        State::Stopped => Some("stopped"),
        State::TimeLimitReached => Some("time limit"),
    };
    let is_lost = match worker.state() {
        State::ConnectionLost | State::HeartbeatLost => true,
        State::Running | State::IdleTimeout | State::Stopped | State::TimeLimitReached => false,
    };
    let quarantine = quarantine_word(&worker);
    let config = worker.config.unwrap_or_default();
    let runtime = worker.runtime.unwrap_or_default();
    let mut resources = config.resources.as_ref().map(resources).unwrap_or_default();
    for item in &mut resources {
        let found = runtime
            .resources
            .iter()
            .find(|used| used.resource == item.name);
        item.used = found.map(|used| used.used_units);
    }
    WorkerRow {
        id: worker.id,
        host: clean(&config.hostname),
        ended: ended.map(str::to_owned),
        is_lost,
        started_ns: worker.started_unix_ns,
        running: runtime.running_tasks,
        is_draining: worker.is_draining,
        quarantine: quarantine.map(str::to_lowercase),
        load: runtime.load.map(|load| LoadRow {
            cpus: load.cpu_share / 100,
            gpus: load.gpu_share.map(|share| share / 100),
            memory_used_bytes: load.memory_used_bytes,
            memory_total_bytes: load.memory_total_bytes,
        }),
        resources,
        allocation: config.allocation.map(|allocation| clean(&allocation.id)),
    }
}

fn resources(descriptor: &ResourceDescriptor) -> Vec<ResourceRow> {
    const WHOLE: u64 = hq_core::resource::amount::UNITS_PER_WHOLE;
    let rows = descriptor.items.iter().map(|item| {
        let (total, groups) = match &item.kind {
            Some(Kind::List(list)) => (list.values.len() as u64 * WHOLE, Vec::new()),
            Some(Kind::Range(span)) => {
                let count = u64::from(span.end.saturating_sub(span.start)) + 1;
                (count * WHOLE, Vec::new())
            }
            Some(Kind::Groups(groups)) => {
                let sizes: Vec<usize> = groups
                    .groups
                    .iter()
                    .map(|group| group.values.len())
                    .collect();
                (sizes.iter().sum::<usize>() as u64 * WHOLE, sizes)
            }
            Some(Kind::SumUnits(units)) => (*units, Vec::new()),
            None => (0, Vec::new()),
        };
        ResourceRow {
            name: clean(&item.name),
            total,
            used: None,
            groups,
        }
    });
    rows.collect()
}

/// Queues of automatic allocation; the reply may wait for a batch system.
pub(crate) async fn queues(client: &mut Client) -> CliResult<Vec<QueueRow>> {
    let list = alloc_request::Request::List(client::AllocListQuery {});
    let alloc_reply::Reply::Queues(found) = client.alloc(list).await? else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for queue in found.queues {
        let info = client.alloc(alloc_request::Request::Info(queue.id)).await?;
        let allocations = match info {
            alloc_reply::Reply::Allocations(found) => found.allocations,
            alloc_reply::Reply::Done(_)
            | alloc_reply::Reply::Added(_)
            | alloc_reply::Reply::Queues(_)
            | alloc_reply::Reply::LogDir(_) => Vec::new(),
        };
        let is_failing = queue.is_failing();
        let name = queue.spec.and_then(|spec| spec.name).unwrap_or_default();
        rows.push(QueueRow {
            id: queue.id,
            name: clean(&name),
            is_paused: queue.is_paused,
            is_failing,
            reason: clean(&queue.reason),
            allocations: allocations.into_iter().map(allocation).collect(),
        });
    }
    Ok(rows)
}

fn allocation(allocation: client::AllocAllocation) -> AllocationRow {
    use client::alloc_allocation::State;
    let state = match allocation.state() {
        State::Queued => "queued",
        State::Running => "running",
        State::Finished => "finished",
        State::Failed => "failed",
    };
    AllocationRow {
        id: clean(&allocation.id),
        state: state.to_owned(),
        workers: allocation.workers,
        queued_ns: Some(allocation.queued_unix_ns),
        started_ns: allocation.started_unix_ns,
        ended_ns: allocation.ended_unix_ns,
    }
}

/// Ended tasks by job, worker and outcome, up to the time `at`.
pub(crate) async fn ended<A: Ask>(asked: &mut A, at_ns: i64) -> Result<Vec<EndedShare>, A::Error> {
    let rows = asked.ask(run::ended(at_ns)).await?;
    let shares = rows.into_iter().map(|row| EndedShare {
        job: row.job,
        worker: row.worker,
        host: clean(row.host.as_deref().unwrap_or("?")),
        error: row.error.map(|error| clean(&error)),
        count: row.count,
    });
    Ok(shares.collect())
}

/// The last events that are not about single tasks, oldest first.
pub(crate) async fn events<A: Ask>(asked: &mut A, at_ns: i64) -> Result<Vec<EventRow>, A::Error> {
    let rows = asked.ask(run::events(at_ns)).await?;
    let mut events: Vec<EventRow> = rows
        .iter()
        .map(|row| EventRow {
            at_ns: row.at_ns,
            job: row.job,
            worker: row.worker,
            kind: clean(&row.kind),
            text: event_text(row.job, row.worker, &row.data),
        })
        .collect();
    events.reverse();
    Ok(events)
}

/// Number of tasks of an event: submitted or dropped ones.
fn event_tasks(data: &serde_json::Value) -> Option<u64> {
    // `[first, count, step]` each.
    let dropped = data.get("ranges").and_then(serde_json::Value::as_array);
    if let Some(ranges) = dropped {
        return ranges.iter().map(|range| range.get(1)?.as_u64()).sum();
    }
    let ids = data.pointer("/submit_desc/task_desc/ids/ranges")?;
    let ranges = ids.as_array()?.iter();
    ranges.map(|range| range.get("count")?.as_u64()).sum()
}

fn event_text(job: Option<u32>, worker: Option<u32>, data: &serde_json::Value) -> String {
    let mut parts = Vec::new();
    if let Some(job) = job {
        parts.push(format!("job {job}"));
    }
    if let Some(worker) = worker {
        parts.push(format!("worker {worker}"));
    }
    let found = |path: &str| data.pointer(path).and_then(serde_json::Value::as_str);
    let names = [
        ("/job_desc/name", ""),
        ("/name", ""),
        ("/configuration/hostname", "on "),
        ("/reason", ""),
        ("/allocation-id", "allocation "),
    ];
    for (path, before) in names {
        if let Some(text) = found(path).filter(|text| !text.is_empty()) {
            parts.push(format!("{before}{}", clean(text)));
        }
    }
    if let Some(tasks) = event_tasks(data).filter(|tasks| *tasks > 1) {
        parts.push(format!("{} tasks", number(tasks)));
    }
    if let Some(queue) = data.get("queue-id").and_then(serde_json::Value::as_u64) {
        parts.push(format!("queue {queue}"));
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_say_how_many_tasks_they_are_about() {
        let ids = json!({"ranges": [{"start": 1, "count": 30, "step": 1}, {"start": 90, "count": 2, "step": 5}]});
        let created =
            json!({"job_desc": {"name": "j"}, "submit_desc": {"task_desc": {"ids": ids}}});
        for (data, expected) in [
            (created, "job 4  j  32 tasks"),
            (
                json!({"ranges": [[1, 24, 1], [90, 3, 2]]}),
                "job 4  27 tasks",
            ),
            (json!({"ranges": [[7, 1, 1]]}), "job 4"),
            (json!({"ranges": "none"}), "job 4"),
            (json!({}), "job 4"),
        ] {
            assert_eq!(event_text(Some(4), None, &data), expected);
        }
    }
}
