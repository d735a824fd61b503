//! Reads tasks and events, from the server or from the store.

use hq_core::range::IdArray;
use hq_core::task::TaskState;
use hq_core::words::number;
use hq_protocol::client::{self, task_page};
use hq_protocol::common;
use hq_store::reader::run::{self, EventRow};
use hq_store::reader::{self, UsageStep};
use serde_json::Value;

use super::filter::TaskFilter;
use super::model::{TaskPage, TaskRow, TasksOf, TasksWanted, UsageView};
use crate::client::{AllocInfo, Client};
use crate::error::CliResult;
use crate::failures::error_words;
use crate::output::curve::curve_of;
use crate::output::view::params_text;
use crate::source::{Ask, Queue};
use crate::text::clean;

/// The maximum number of tasks in a text search, which takes the server a few seconds.
const SEARCHED_MAX: usize = 100_000;
/// The maximum number of rows to read from the store for one list.
const STORED_MAX: u32 = 20_000;
/// The number of time steps in the history.
const PAST_STEPS: i64 = 240;

/// Returns tasks of a job from the server, including waiting tasks.
pub(super) async fn tasks_of_job(
    client: &mut Client,
    job: u32,
    wanted: TasksWanted,
) -> CliResult<TaskPage> {
    let filter = TaskFilter::parse(&wanted.filter);
    let states = filter.states.iter();
    let mut request = client::TaskPage {
        tasks: filter.ids.and_then(id_array),
        states: states
            .map(|state| client::TaskState::from(*state).into())
            .collect(),
        limit: if filter.has_texts() {
            0
        } else {
            u32::try_from(wanted.count).unwrap_or(u32::MAX)
        },
        ..page_of(job)
    };
    let (mut rows, mut searched) = (Vec::new(), 0);
    let is_cut = loop {
        let page = client.ask(request.clone()).await?;
        searched += page.tasks.len();
        let found = page.tasks.into_iter().map(|task| row(job, task));
        rows.extend(found.filter(|row| filter.matches(row)));
        match page.next_cursor {
            None => break None,
            Some(_) if rows.len() >= wanted.count => break Some("there are more"),
            Some(_) if searched >= SEARCHED_MAX => break Some("not all were searched"),
            Some(cursor) => request.cursor = cursor,
        }
    };
    Ok(TaskPage {
        wanted,
        rows,
        is_cut,
    })
}

/// Returns a request for tasks of a job.
pub(super) fn page_of(job: u32) -> client::TaskPage {
    client::TaskPage {
        job: Some(task_page::Job::Id(job)),
        ..client::TaskPage::default()
    }
}

pub(super) fn id_array((first, last): (u32, u32)) -> Option<common::IdArray> {
    let ids = IdArray::consecutive(first, (last - first).saturating_add(1));
    Some((&ids.ok()?).into())
}

fn row(job: u32, task: client::TaskInfo) -> TaskRow {
    let host = task.workers.first().map(|worker| clean(&worker.hostname));
    TaskRow {
        job,
        task: task.id,
        state: TaskState::from(task.state()),
        host: host.unwrap_or_default(),
        started_ns: task.started_unix_ns,
        ended_ns: task.finished_unix_ns,
        error: clean(&error_words(task.error.as_deref().unwrap_or_default())),
        params: params_of(&task),
    }
}

/// Returns the name of a task of a job file, or the parameters of a task of an array.
pub(super) fn params_of(task: &client::TaskInfo) -> String {
    let name = task.name.clone();
    clean(&name.unwrap_or_else(|| params_text(&task.params)))
}

/// Returns tasks that were started, from the store.
pub(super) async fn started_tasks(
    asked: &mut impl Ask,
    wanted: TasksWanted,
    at_ns: i64,
) -> CliResult<TaskPage> {
    let filter = TaskFilter::parse(&wanted.filter);
    let found = asked.ask(match wanted.of {
        TasksOf::Job(job) => run::tasks_of_job(job, at_ns, STORED_MAX),
        TasksOf::Worker(worker) => run::tasks_of_worker(worker, at_ns, STORED_MAX),
    });
    let found = found.await?;
    let is_cut = found.len() >= STORED_MAX as usize;
    let rows = found.into_iter().map(stored_row);
    Ok(TaskPage {
        rows: rows.filter(|row| filter.matches(row)).collect(),
        wanted,
        is_cut: is_cut.then_some("not all were searched"),
    })
}

/// Returns a started task of the store.
pub(super) fn stored_row(row: run::TaskRow) -> TaskRow {
    let took_ns = |us: u64| us.saturating_mul(1_000);
    let run_us = row.run_us.filter(|_| row.state != TaskState::Running);
    TaskRow {
        job: row.job,
        task: row.task,
        state: row.state,
        host: clean(row.host.as_deref().unwrap_or("?")),
        started_ns: Some(row.started_ns),
        ended_ns: run_us.map(|us| row.started_ns.saturating_add_unsigned(took_ns(us))),
        error: clean(&row.error.unwrap_or_default()),
        params: String::new(),
    }
}

/// Returns the resource usage of a task over time: each attempt that has a curve.
pub(super) async fn usage(client: &mut Client, job: u32, task: u32) -> CliResult<UsageView> {
    let request = client::TaskPage {
        tasks: id_array((task, task)),
        // Earlier attempts are only part of the definition.
        with_definition: true,
        with_curves: true,
        ..page_of(job)
    };
    let found = client.ask(request).await?.tasks.into_iter().next();
    // A forgotten task has no known resource usage.
    Ok(usage_of(job, task, &found.unwrap_or_default()))
}

fn usage_of(job: u32, task: u32, found: &client::TaskInfo) -> UsageView {
    let earlier = found.attempts.iter().map(|attempt| attempt.curve.as_ref());
    let curves = (1..).zip(earlier.chain([found.curve.as_ref()]).map(curve_of));
    UsageView {
        job,
        task,
        attempts: found.attempts.len() + 1,
        curves: curves
            .filter_map(|(number, curve)| Some((number, curve?)))
            .collect(),
    }
}

/// Returns the queues of automatic allocation. The reply may wait for a batch system.
pub(super) async fn queues(client: &mut Client) -> CliResult<Vec<Queue>> {
    let found = client.ask(client::AllocListQuery {}).await?;
    let mut rows = Vec::new();
    for queue in found.queues {
        let info = client.alloc(AllocInfo(queue.id)).await?;
        rows.push(Queue {
            id: queue.id,
            is_paused: queue.is_paused,
            is_failing: queue.is_failing(),
            reason: clean(&queue.reason),
            name: clean(&queue.spec.and_then(|spec| spec.name).unwrap_or_default()),
            allocations: info.allocations,
        });
    }
    Ok(rows)
}

/// Returns the history between two moments in steps of equal width, for the charts.
pub(super) async fn past(
    asked: &mut impl Ask,
    (from_ns, to_ns): (i64, i64),
) -> CliResult<Vec<UsageStep>> {
    let width = ((to_ns - from_ns) / PAST_STEPS).max(1);
    let changes = asked.ask(reader::steps(from_ns, to_ns, width)).await?;
    let workers = asked.ask(run::lives(from_ns, to_ns)).await?;
    Ok(reader::usage(
        &changes, &workers, from_ns, width, PAST_STEPS,
    ))
}

/// Returns the number of tasks of an event: those submitted or dropped.
fn event_tasks(data: &Value) -> Option<u64> {
    // Each range is `[first, count, step]`.
    if let Some(ranges) = data.get("ranges").and_then(Value::as_array) {
        return ranges.iter().map(|range| range.get(1)?.as_u64()).sum();
    }
    let ids = data.pointer("/submit_desc/task_desc/ids/ranges")?;
    let ranges = ids.as_array()?.iter();
    ranges.map(|range| range.get("count")?.as_u64()).sum()
}

/// Describes an event: its job or worker, names, and numbers.
pub(super) fn event_text(event: &EventRow) -> String {
    const NAMES: [(&str, &str); 5] = [
        ("/job_desc/name", ""),
        ("/name", ""),
        ("/configuration/hostname", "on "),
        ("/reason", ""),
        ("/allocation-id", "allocation "),
    ];
    let mut parts = Vec::new();
    let data = &event.data;
    parts.extend(event.job.map(|job| format!("job {job}")));
    parts.extend(event.worker.map(|worker| format!("worker {worker}")));
    for (path, before) in NAMES {
        let text = data.pointer(path).and_then(Value::as_str);
        let text = text.filter(|text| !text.is_empty());
        parts.extend(text.map(|text| format!("{before}{}", clean(text))));
    }
    let tasks = event_tasks(data).filter(|tasks| *tasks > 1);
    parts.extend(tasks.map(|tasks| format!("{} tasks", number(tasks))));
    let queue = data.get("queue-id").and_then(Value::as_u64);
    parts.extend(queue.map(|queue| format!("queue {queue}")));
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
            let event = EventRow {
                job: Some(4),
                data,
                ..EventRow::default()
            };
            assert_eq!(event_text(&event), expected);
        }
    }

    #[test]
    fn attempts_are_numbered_and_those_without_a_curve_left_out() {
        let curve = |memory_peak_kib| {
            Some(common::Curve {
                spacing_ms: 2_000,
                memory_peak_kib,
                memory: vec![255].into(),
                cpu: vec![0].into(),
                ..common::Curve::default()
            })
        };
        let attempt = |curve| client::TaskAttempt {
            curve,
            ..client::TaskAttempt::default()
        };
        let mut task = client::TaskInfo {
            attempts: vec![attempt(None), attempt(curve(7))],
            curve: curve(8),
            ..client::TaskInfo::default()
        };
        let peaks = |view: &UsageView| -> Vec<(usize, u64)> {
            let curves = view.curves.iter();
            curves
                .map(|(number, curve)| (*number, curve.memory_peak_kib))
                .collect()
        };
        let all = usage_of(1, 2, &task);
        assert_eq!((all.attempts, peaks(&all)), (3, vec![(2, 7), (3, 8)]));
        // The current attempt has no curve yet.
        task.curve = None;
        assert_eq!(peaks(&usage_of(1, 2, &task)), [(2, 7)]);
        assert!(peaks(&usage_of(1, 2, &client::TaskInfo::default())).is_empty());
    }
}
