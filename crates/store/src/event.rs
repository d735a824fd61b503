//! Journal events and their representation as JSON lines.
//!
//! Canceled and aborted tasks are kept as ranges here, however many there are; [`write_line`]
//! expands them while it writes. The writer thread creates events but does not format them: each
//! reader formats its own lines.

use std::borrow::Cow;
use std::io::{self, Write};

use hq_core::range::IdRange;
use hq_core::task::TaskState;
use hq_core::time::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::{Map, Value, json};

use crate::encode;
use crate::statement::each;
use crate::stretch::{self, Stretch};

/// The maximum number of tasks that [`Event::bounded_line`] lists individually.
const TASKS_NAMED_MAX: u64 = 1_000;
/// A text that occurs in each line about canceled or aborted tasks, and in hardly any other line.
const RANGES_MARK: &str = "\"ranges\":[[";

/// A journal event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Event {
    pub(crate) seq: i64,
    pub(crate) at: Timestamp,
    /// If empty, the event is only sent to live readers and not stored.
    pub(crate) kind: Cow<'static, str>,
    pub(crate) job: Option<u32>,
    pub(crate) task: Option<u32>,
    pub(crate) instance: Option<u32>,
    pub(crate) worker: Option<u32>,
    pub(crate) variant: Option<u32>,
    /// The data as JSON.
    pub(crate) data: Option<String>,
}

/// A task that finished or failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    /// The id of the job.
    pub job: u32,
    /// The worker that ran the task.
    pub worker: u32,
    /// The column `outcome` of a failed task.
    pub failure: Option<i64>,
    /// The column `message` of a failed task.
    pub message: Option<Box<str>>,
    /// When the task ended.
    pub at: Timestamp,
}

impl Event {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            at: Timestamp(row.get(0)?),
            kind: row.get::<_, String>(1)?.into(),
            job: row.get(2)?,
            task: row.get(3)?,
            instance: row.get(4)?,
            worker: row.get(5)?,
            variant: row.get(6)?,
            data: row.get(7)?,
            seq: row.get(8)?,
        })
    }

    /// Returns the event number. Numbers increase and may have gaps.
    #[must_use]
    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.kind.len() + self.data.as_ref().map_or(0, String::len)
    }

    /// Returns the event as JSON without a line feed. Canceled and aborted tasks are kept as
    /// ranges: see [`write_line`].
    #[must_use]
    pub fn line(&self) -> String {
        let mut data = self.data();
        let mut event = Map::new();
        match &*self.kind {
            "task-started" => {
                event.insert("job".into(), json!(self.job));
                event.insert("task".into(), json!(self.task));
                event.insert("instance".into(), json!(self.instance));
                match data.remove("workers") {
                    Some(workers) => event.insert("workers".into(), workers),
                    None => event.insert("worker".into(), json!(self.worker)),
                };
                if let Some(variant) = self.variant.filter(|variant| *variant != 0) {
                    event.insert("variant".into(), json!(variant));
                }
            }
            "task-finished" | "task-failed" => {
                event.insert("job".into(), json!(self.job));
                event.insert("task".into(), json!(self.task));
                if self.kind == "task-failed" {
                    let (code, message) = failure(&data);
                    let outcome = encode::outcome_of(code, message.map(str::to_owned));
                    event.insert("error".into(), Value::String(outcome.error_text()));
                }
            }
            _ => event.append(&mut data),
        }
        self.wrap(event)
    }

    /// Returns the event as JSON for readers of single events. It lists canceled and aborted tasks
    /// up to a limit. A line of more than `len_max` bytes is reduced to the kind of event and
    /// `is_cut`.
    #[must_use]
    pub fn bounded_line(&self, len_max: usize) -> String {
        let ranges = matches!(&*self.kind, "task-canceled" | "task-aborted")
            .then(|| DroppedTasks::of(&self.data()))
            .flatten();
        let mut event = Map::new();
        match ranges {
            Some(tasks) if tasks.count() <= TASKS_NAMED_MAX => {
                let tasks = tasks.iter();
                let tasks = tasks.map(|task| json!({"job_id": self.job, "job_task_id": task}));
                event.insert("tasks".into(), tasks.collect());
            }
            Some(tasks) => {
                event = self.key_fields();
                event.insert("task_count".into(), json!(tasks.count()));
            }
            None => {
                let data_len = self.data.as_ref().map_or(0, String::len);
                let line = (data_len <= len_max).then(|| self.line());
                match line.filter(|line| line.len() <= len_max) {
                    Some(line) => return line,
                    None => event = self.key_fields(),
                }
            }
        }
        self.wrap(event)
    }

    fn key_fields(&self) -> Map<String, Value> {
        let job = self.job.map(|job| ("job".to_owned(), json!(job)));
        job.into_iter()
            .chain([("is_cut".to_owned(), json!(true))])
            .collect()
    }

    fn wrap(&self, mut event: Map<String, Value>) -> String {
        if !self.kind.is_empty() {
            event.insert("type".into(), json!(self.kind));
        }
        json!({"event": event, "time": time_text(self.at)}).to_string()
    }

    fn data(&self) -> Map<String, Value> {
        let text = self.data.as_deref();
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Returns the task that ended, if this event is the end of a task.
    #[must_use]
    pub fn ended(&self) -> Option<EndedTask> {
        let mut task = EndedTask {
            job: self.job?,
            worker: self.worker.unwrap_or(0),
            failure: None,
            message: None,
            at: self.at,
        };
        match &*self.kind {
            "task-finished" => Some(task),
            "task-failed" => {
                let data = self.data();
                let (code, message) = failure(&data);
                task.failure = Some(code);
                task.message = message.map(Into::into);
                Some(task)
            }
            _ => None,
        }
    }
}

/// Returns the columns `outcome` and `message` of a failure.
fn failure(data: &Map<String, Value>) -> (i64, Option<&str>) {
    let code = data.get("outcome").and_then(Value::as_i64).unwrap_or(0);
    (code, data.get("message").and_then(Value::as_str))
}

/// Canceled or aborted tasks: `{"job": j, "ranges": [[first, count, step], …]}`.
struct DroppedTasks {
    job: u32,
    ranges: Vec<IdRange>,
}

impl DroppedTasks {
    /// Parses the data. Returns `None` if it has another form, because the file may be damaged.
    fn of(data: &Map<String, Value>) -> Option<Self> {
        let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let range = |range: &Value| {
            let part = |at| range.get(at).and_then(number);
            IdRange::new(part(0)?, part(1)?, part(2)?).ok()
        };
        let ranges = data.get("ranges")?.as_array()?.iter();
        Some(Self {
            job: data.get("job").and_then(number)?,
            ranges: ranges.map(range).collect::<Option<_>>()?,
        })
    }

    fn count(&self) -> u64 {
        let counts = self.ranges.iter().map(|range| u64::from(range.count()));
        counts.sum()
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(IdRange::iter)
    }
}

/// Writes a line returned by [`Event::line`] as users see it: with each canceled or aborted task,
/// and with the event number if it is given. Expands ranges without buffering.
///
/// # Errors
///
/// Returns an error if writing fails.
pub fn write_line(out: &mut impl Write, line: &str, seq: Option<u64>) -> io::Result<()> {
    if seq.is_none() && !line.contains(RANGES_MARK) {
        return writeln!(out, "{line}");
    }
    let Ok(mut whole) = serde_json::from_str::<Map<String, Value>>(line) else {
        return writeln!(out, "{line}");
    };
    if let Some(seq) = seq {
        whole.insert("seq".into(), json!(seq));
    }
    let event = whole.get("event").and_then(Value::as_object);
    let kind = event.and_then(|event| event.get("type"));
    let dropped = kind
        .filter(|kind| matches!(kind.as_str(), Some("task-canceled" | "task-aborted")))
        .and_then(|kind| Some((kind.clone(), DroppedTasks::of(event?)?)));
    let Some((kind, tasks)) = dropped else {
        return writeln!(out, "{}", Value::Object(whole));
    };
    whole.remove("event");
    write!(out, "{{\"event\":{{\"tasks\":[")?;
    let mut separator = "";
    for task in tasks.iter() {
        let job = tasks.job;
        write!(
            out,
            "{separator}{{\"job_id\":{job},\"job_task_id\":{task}}}"
        )?;
        separator = ",";
    }
    write!(out, "],\"type\":{kind}}}")?;
    for (key, value) in whole {
        write!(out, ",{}:{value}", Value::String(key))?;
    }
    writeln!(out, "}}")
}

/// Formats a time as `2026-11-21T08:15:50.314Z`.
fn time_text(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default();
    format!("{time:.3}")
}

/// Calls `take` with the events after `after` up to `upto`, in order. Stops early if it returns
/// `false`. Returns the number of events.
///
/// # Errors
///
/// Returns an error if the store cannot be read.
pub fn events_since(
    connection: &Connection,
    after: i64,
    upto: i64,
    take: &mut dyn FnMut(Event) -> bool,
) -> rusqlite::Result<u64> {
    if after >= upto {
        // Task events are not indexed by number, so a search that finds nothing would scan all
        // tasks.
        return Ok(0);
    }
    let sql = "SELECT at_unix_ns, type, job, task, instance, worker, variant, data, seq FROM events \
               WHERE seq > ? AND seq <= ? ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([after, upto])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        if !take(Event::read(row)?) {
            break;
        }
    }
    Ok(count)
}

/// Calls `take` with each finished or failed task up to the event number `upto`. Scans all tasks.
///
/// # Errors
///
/// Returns an error if the store cannot be read.
pub fn ended_tasks(
    connection: &Connection,
    upto: i64,
    take: &mut dyn FnMut(EndedTask),
) -> rusqlite::Result<()> {
    let sql = "SELECT job, worker, state, outcome, message, coalesce(started_unix_ns, 0) + coalesce(run_us, 0) * 1000 FROM task_row_data \
               WHERE state IN (?, ?) AND coalesce(end_seq, 0) <= ?";
    // This must read a single snapshot: a task that is folded in the meantime would be counted
    // twice.
    let moment = connection.unchecked_transaction()?;
    let mut statement = moment.prepare(sql)?;
    let (finished, failed) = (TaskState::Finished.number(), TaskState::Failed.number());
    let mut rows = statement.query(params![finished, failed, upto])?;
    while let Some(row) = rows.next()? {
        let has_failed = row.get::<_, u8>(2)? == failed;
        take(EndedTask {
            job: row.get(0)?,
            worker: row.get(1)?,
            failure: if has_failed { Some(row.get(3)?) } else { None },
            message: if has_failed {
                row.get::<_, Option<String>>(4)?.map(Into::into)
            } else {
                None
            },
            at: Timestamp(row.get(5)?),
        });
    }
    ended_together(&moment, upto, take)
}

/// Does the same as [`ended_tasks`], for tasks in stretches.
fn ended_together(
    connection: &Connection,
    upto: i64,
    take: &mut dyn FnMut(EndedTask),
) -> rusqlite::Result<()> {
    let sql = stretch::select(connection, "stretch_data s")?;
    each(connection, &sql, |row| {
        let Some(found) = Stretch::read(row)? else {
            // `hq journal check` reports such a stretch.
            return Ok(());
        };
        for (worker, at, end_seq) in found.ends() {
            if end_seq <= upto {
                take(EndedTask {
                    job: found.shared.job,
                    worker,
                    failure: None,
                    message: None,
                    at,
                });
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(ranges: &Value) -> Event {
        Event {
            seq: 7,
            kind: "task-canceled".into(),
            job: Some(3),
            data: Some(json!({"job": 3, "ranges": ranges}).to_string()),
            ..Event::default()
        }
    }

    fn written(event: &Event, seq: Option<u64>) -> String {
        let mut out = Vec::new();
        write_line(&mut out, &event.line(), seq).expect("memory");
        String::from_utf8(out).expect("JSON")
    }

    #[test]
    fn canceled_tasks_are_named_one_by_one_only_where_they_are_written() {
        let event = dropped(&json!([[4, 2, 3], [9, 1, 1]]));
        assert_eq!(
            event.line(),
            r#"{"event":{"job":3,"ranges":[[4,2,3],[9,1,1]],"type":"task-canceled"},"time":"1970-01-01T00:00:00.000Z"}"#
        );
        let named = r#"{"event":{"tasks":[{"job_id":3,"job_task_id":4},{"job_id":3,"job_task_id":7},{"job_id":3,"job_task_id":9}],"type":"task-canceled"},"time":"1970-01-01T00:00:00.000Z""#;
        assert_eq!(written(&event, None), format!("{named}}}\n"));
        let with_number: Value =
            serde_json::from_str(&written(&event, Some(7))).expect("it is JSON");
        assert_eq!(with_number["seq"], 7);
        assert_eq!(event.bounded_line(100_000), format!("{named}}}"));
    }

    #[test]
    fn an_event_of_all_tasks_that_there_can_be_is_small_until_it_is_written() {
        let event = dropped(&json!([[0, u32::MAX, 1]]));
        assert!(event.size() < 400 && event.line().len() < 400);
        assert_eq!(
            event.bounded_line(100_000),
            r#"{"event":{"is_cut":true,"job":3,"task_count":4294967295,"type":"task-canceled"},"time":"1970-01-01T00:00:00.000Z"}"#
        );
        // A writer that accepts only a few bytes per call, like a full pipe.
        struct Pipe(usize);
        impl Write for Pipe {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = write_line(&mut Pipe(100_000), &event.line(), None).expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn ranges_that_cannot_be_are_written_as_they_are() {
        for ranges in [
            json!([[u32::MAX, 2, 1]]),
            json!([[0, 0, 1]]),
            json!([[1, 1]]),
            json!([["x", 1, 1]]),
        ] {
            let event = dropped(&ranges);
            assert_eq!(written(&event, None).trim_end(), event.line());
        }
    }

    #[test]
    fn a_long_event_is_reduced_to_what_it_is() {
        let event = Event {
            kind: "job-created".into(),
            job: Some(3),
            data: Some(json!({"job": 3, "name": "x".repeat(500)}).to_string()),
            ..Event::default()
        };
        assert_eq!(event.bounded_line(1_000), event.line());
        assert_eq!(
            event.bounded_line(400),
            r#"{"event":{"is_cut":true,"job":3,"type":"job-created"},"time":"1970-01-01T00:00:00.000Z"}"#
        );
    }
}
