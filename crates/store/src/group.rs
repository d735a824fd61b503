//! Converts changes to rows, which are the contents of one transaction of the writer.

mod finished;
mod job;
mod rows;
mod worker;

use std::collections::BTreeMap;

use hq_core::autoalloc::AllocationEvent;
use hq_core::id::{InstanceId, JobId, TaskKey, WorkerId};
use hq_core::server_state::{AllocationChange, Change, ChangeKind, NoticeKey, NoticeOutcome};
use hq_core::task::{Attempt, TaskState};
use hq_core::template::NotifyEvent;
use hq_core::time::Timestamp;
use hq_protocol::{Message as _, client};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::encode;
use crate::event::Event;
use crate::meta;
use rows::{EndRow, Start, kib, micros, millis};

/// The maximum number of ranges of canceled or aborted tasks in one event. Large jobs can have very
/// many ranges, for example if every other task had finished.
const RANGES_PER_EVENT: usize = 1_000;

/// The minimum length of a stretch that is stored directly, without storing rows first. Compaction
/// folds rows into longer stretches but never merges stretches, and a server reads each of them
/// when it starts.
const STRETCH_MIN: u32 = 32;

/// The changes of one transaction.
pub(crate) struct Group<'a> {
    connection: &'a Connection,
    seq: &'a mut i64,
    starts: BTreeMap<TaskKey, Start>,
    /// Task ends that have not been written yet, because their neighbors may follow.
    ends: Vec<EndRow<'a>>,
    /// The minimum length of a stretch.
    stretch_min: u32,
    events: Option<&'a mut Vec<Event>>,
}

/// Writes changes in the caller's transaction. `seq` is the number of the next event. Also appends
/// the events to `events`, for live readers.
pub(crate) fn write(
    connection: &Connection,
    seq: &mut i64,
    changes: &[Change],
    events: Option<&mut Vec<Event>>,
) -> rusqlite::Result<()> {
    write_with(STRETCH_MIN, connection, seq, changes, events)
}

/// Does the same as [`write()`], with a given minimum length of a stretch. In simulated worlds, only
/// a few tasks finish at once.
pub(crate) fn write_with(
    stretch_min: u32,
    connection: &Connection,
    seq: &mut i64,
    changes: &[Change],
    events: Option<&mut Vec<Event>>,
) -> rusqlite::Result<()> {
    let mut group = Group::new(connection, seq);
    group.stretch_min = stretch_min;
    group.events = events;
    for change in changes {
        group.apply(change)?;
    }
    group.write_tasks()?;
    // The number of the next event is stored together with the events, so that each number is used
    // only once.
    if !changes.is_empty() {
        meta::set(connection, "next_seq", *seq)?;
    }
    Ok(())
}

impl<'a> Group<'a> {
    pub(crate) fn new(connection: &'a Connection, seq: &'a mut i64) -> Self {
        Self {
            connection,
            seq,
            starts: BTreeMap::new(),
            ends: Vec::new(),
            stretch_min: STRETCH_MIN,
            events: None,
        }
    }

    fn next_seq(&mut self) -> i64 {
        let seq = *self.seq;
        *self.seq += 1;
        seq
    }

    fn run(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<usize> {
        // A busy server runs the same few statements thousands of times per second. Parsing them
        // would take longer than running them.
        self.connection.prepare_cached(sql)?.execute(values)
    }

    pub(crate) fn event(
        &mut self,
        at: Timestamp,
        kind: &'static str,
        job: Option<JobId>,
        worker: Option<WorkerId>,
        data: &Value,
    ) -> rusqlite::Result<()> {
        self.event_text(at, kind, job, worker, data.to_string())
    }

    fn event_text(
        &mut self,
        at: Timestamp,
        kind: &'static str,
        job: Option<JobId>,
        worker: Option<WorkerId>,
        data: String,
    ) -> rusqlite::Result<()> {
        let seq = self.next_seq();
        let (job, worker) = (job.map(JobId::as_u32), worker.map(WorkerId::as_u32));
        if let Some(events) = &mut self.events {
            events.push(Event {
                seq,
                at,
                kind: kind.into(),
                job,
                worker,
                data: Some(data.clone()),
                ..Event::default()
            });
        }
        // The event is stored even if there are no live readers, because later ones read it from
        // the file.
        let values = params![seq, at.0, kind, job, worker, data];
        self.run("INSERT INTO event_log VALUES (?, ?, ?, ?, ?, ?)", values)?;
        Ok(())
    }

    /// Sends an event to live readers without storing it.
    fn publish(&mut self, at: Timestamp, data: &Value) -> rusqlite::Result<()> {
        // The event is not stored, so it reuses the number of the previous event.
        let seq = *self.seq - 1;
        if let Some(events) = &mut self.events {
            events.push(Event {
                seq,
                at,
                data: Some(data.to_string()),
                ..Event::default()
            });
        }
        Ok(())
    }

    fn apply(&mut self, change: &'a Change) -> rusqlite::Result<()> {
        let (at, db) = (change.at, self.connection);
        match &change.kind {
            ChangeKind::TaskStarted {
                task,
                instance,
                variant,
                worker,
                nodes,
            } => self.start(at, *task, (*instance, *variant, *worker), nodes),
            ChangeKind::TaskEnded { .. } => self.note_end(change),
            ChangeKind::NodesAssigned {
                task,
                instance,
                variant,
                nodes,
            } => self.assign_nodes(*task, (*instance, *variant), nodes),
            ChangeKind::TaskRequeued { .. } => self.requeue(change),
            ChangeKind::TasksDropped { job, ids, to } => self.drop_tasks(at, *job, ids, *to),
            ChangeKind::StartsUnknown(are) => meta::set_flag(db, meta::STARTS_UNKNOWN, *are),
            ChangeKind::WorkerConnected { worker, config } => self.connected(at, *worker, config),
            ChangeKind::WorkerLost { worker, reason } => self.lost(at, *worker, *reason),
            ChangeKind::WorkerOverview { worker, usage } => self.overview(at, *worker, usage),
            ChangeKind::WorkerDraining(worker) => self.draining(at, *worker),
            ChangeKind::WorkerQuarantined(quarantine) => self.quarantined(at, quarantine),
            ChangeKind::WorkerReleased { worker, why } => self.released(at, *worker, why),
            ChangeKind::WorkerSuspected { worker, why } => self.suspected(at, *worker, why),
            ChangeKind::Allocation(change) => self.apply_allocation(at, change),
            ChangeKind::ProblemAcknowledged { problem, part } => self.acknowledge(problem, *part),
            ChangeKind::TokenChanged { name, record } => {
                meta::note_token(db, name, record.as_deref())
            }
            ChangeKind::JobOpened {
                job,
                name,
                max_fails,
            } => self.add_job(at, *job, name, *max_fails, true),
            ChangeKind::Submitted { .. } => self.submit(change),
            ChangeKind::SubmitKeyed { job, key } => meta::note_key(db, *job, key),
            ChangeKind::SubmitRepeated {
                job,
                number,
                instance,
            } => meta::note_instance(db, meta::REPEATED, (*job, *number), *instance),
            ChangeKind::WaitingSuperseded { job, number, first } => {
                meta::note_instance(db, meta::FIRST_INSTANCE, (*job, *number), *first)
            }
            ChangeKind::JobResubmitted { job, new } => meta::note_resubmitted(db, *job, *new),
            ChangeKind::EntriesDropped { job, number, calls } => {
                self.drop_entries(*job, *number, calls)
            }
            ChangeKind::LimitChanged { name, bounds } => self.limit(at, name, *bounds),
            ChangeKind::JobRevised(revised) => self.revised(at, revised),
            ChangeKind::TasksHeld(job, held) => self.held(at, *job, held),
            ChangeKind::JobClosed(job) => self.closed(at, *job),
            ChangeKind::JobCanceled { job, reason } => self.canceled(at, *job, reason),
            ChangeKind::JobCompleted(job) => self.completed(at, *job),
            ChangeKind::JobNotified {
                key,
                event,
                outcome,
            } => self.notified(*key, *event, outcome),
            ChangeKind::JobsForgotten(jobs) => self.forget(jobs),
            ChangeKind::JobIdle(job) => self.publish(at, &json!({"job_id": job.as_u32()})),
            ChangeKind::TaskNotified {
                task,
                worker,
                message,
            } => self.publish(at, &notification_json(*task, *worker, message)),
        }
    }

    /// Records the start of a task. Its row is written together with the task's end if that follows
    /// in the same group.
    fn start(
        &mut self,
        at: Timestamp,
        task: TaskKey,
        start: (InstanceId, u32, WorkerId),
        nodes: &[WorkerId],
    ) -> rusqlite::Result<()> {
        let (instance, variant, worker) = start;
        // The start is numbered now, although its row is written later or with the end, so that
        // events are in the same order as the changes.
        let seq = self.next_seq();
        if let Some(events) = &mut self.events {
            events.push(Event {
                seq,
                at,
                kind: "task-started".into(),
                job: Some(task.job.as_u32()),
                task: Some(task.task.as_u32()),
                instance: Some(instance.as_u32()),
                worker: Some(worker.as_u32()),
                variant: Some(variant),
                data: (!nodes.is_empty()).then(|| workers_json(nodes)),
            });
        }
        let start = Start {
            at,
            instance,
            variant,
            worker,
            seq,
        };
        match self.starts.insert(task, start) {
            // An instance that started and was abandoned in the same group still needs a row.
            Some(earlier) => rows::write_starts(self.connection, [(task, earlier)]),
            None => Ok(()),
        }
    }

    fn assign_nodes(
        &self,
        task: TaskKey,
        (instance, variant): (InstanceId, u32),
        nodes: &[WorkerId],
    ) -> rusqlite::Result<()> {
        let (job, id) = (task.job.as_u32(), task.task.as_u32());
        // The root worker comes first.
        for (node, position) in nodes.iter().zip(0_u32..) {
            self.run(
                "INSERT OR REPLACE INTO node_data VALUES (?, ?, ?, ?, ?, ?)",
                params![job, id, instance.as_u32(), position, node.as_u32(), variant],
            )?;
        }
        Ok(())
    }

    /// When a user acknowledges a problem, stores its extent. With `None`, removes it.
    fn acknowledge(&self, problem: &str, part: Option<u64>) -> rusqlite::Result<()> {
        let key = format!("{}{problem}", meta::ACKNOWLEDGED);
        match part {
            Some(part) => {
                // The value is limited to SQLite's largest number.
                let part = i64::try_from(part).unwrap_or(i64::MAX);
                meta::set(self.connection, &key, part)
            }
            None => meta::remove(self.connection, &key),
        }
    }

    fn notified(
        &mut self,
        key: NoticeKey,
        event: NotifyEvent,
        outcome: &NoticeOutcome,
    ) -> rusqlite::Result<()> {
        let (job, at) = (key.job.as_u32(), outcome.at);
        let event = event.name();
        self.run(
            "INSERT OR REPLACE INTO notification_data VALUES (?, ?, ?, ?, ?, ?)",
            params![
                job,
                key.number,
                event,
                outcome.attempts,
                at.0,
                outcome.error
            ],
        )?;
        let data = json!({
            "job_id": job, "notification": key.number, "event": event,
            "attempts": outcome.attempts, "error": outcome.error,
        });
        self.event(at, "job-notified", Some(key.job), None, &data)
    }

    fn apply_allocation(
        &mut self,
        at: Timestamp,
        change: &AllocationChange,
    ) -> rusqlite::Result<()> {
        match change {
            AllocationChange::QueueStored { queue, record } => {
                let encode = |record| client::AllocQueueRecord::from(record).encode_to_vec();
                let record = record.as_deref().map(encode);
                self.run(
                    "INSERT OR REPLACE INTO queue_data VALUES (?, ?)",
                    params![queue.as_u32(), record],
                )?;
                Ok(())
            }
            AllocationChange::QueueCreated { queue, params } => {
                let params = encode::queue_params(params);
                let data = json!({"queue-id": queue.as_u32(), "params": params});
                self.event(at, "autoalloc-queue-created", None, None, &data)
            }
            AllocationChange::QueueRemoved(queue) => {
                let id = queue.as_u32();
                // The row is kept, so that no other queue gets the same id.
                self.run("INSERT OR REPLACE INTO queue_data VALUES (?, NULL)", [id])?;
                let data = json!({"queue-id": id});
                self.event(at, "autoalloc-queue-removed", None, None, &data)
            }
            AllocationChange::Event(event) => self.allocation_event(at, event),
        }
    }

    fn allocation_event(&mut self, at: Timestamp, event: &AllocationEvent) -> rusqlite::Result<()> {
        let (key, job, kind) = match event {
            AllocationEvent::Queued { key, job, workers } => {
                self.run(
                    "INSERT OR REPLACE INTO allocation_data \
                     VALUES (?, ?, ?, 'queued', ?, NULL, NULL)",
                    params![key.queue.as_u32(), job, workers, at.0],
                )?;
                let data = json!({"queue-id": key.queue.as_u32(), "allocation-id": job,
                                  "worker-count": workers});
                return self.event(at, "autoalloc-allocation-queued", None, None, &data);
            }
            AllocationEvent::Started { key, job } => {
                let sql = "UPDATE allocation_data SET state = 'running', started_unix_ns = ? \
                           WHERE queue = ? AND id = ?";
                self.run(sql, params![at.0, key.queue.as_u32(), job])?;
                (key, job, "autoalloc-allocation-started")
            }
            AllocationEvent::Finished { key, job } => {
                let sql = "UPDATE allocation_data SET state = 'ended', ended_unix_ns = ? \
                           WHERE queue = ? AND id = ?";
                self.run(sql, params![at.0, key.queue.as_u32(), job])?;
                (key, job, "autoalloc-allocation-finished")
            }
        };
        let data = json!({"queue-id": key.queue.as_u32(), "allocation-id": job});
        self.event(at, kind, None, None, &data)
    }

    /// Writes the collected task ends, and the starts of tasks that did not end in this group. Most
    /// short tasks are written only once.
    fn write_tasks(&mut self) -> rusqlite::Result<()> {
        let ends = std::mem::take(&mut self.ends);
        finished::write(self.connection, ends, self.stretch_min)?;
        rows::write_starts(self.connection, std::mem::take(&mut self.starts))
    }

    /// Records the end of a task. It is written together with its neighbors if they follow in the
    /// same group.
    fn note_end(&mut self, change: &'a Change) -> rusqlite::Result<()> {
        let ChangeKind::TaskEnded {
            task,
            crash_count,
            end,
            is_finished,
            instance,
            worker,
            awaited: _,
        } = &change.kind
        else {
            return Ok(());
        };
        let (task, worker, is_finished) = (*task, *worker, *is_finished);
        // A start and an end in the same group are stored in one row, which includes the number of
        // the start.
        let start = self.starts.remove(&task);
        let seq = self.next_seq();
        if let Some(events) = &mut self.events {
            let (code, message) = encode::outcome_code(&end.outcome);
            let kind = if is_finished {
                "task-finished"
            } else {
                "task-failed"
            };
            let data = json!({"outcome": code, "message": message});
            events.push(Event {
                seq,
                at: end.at,
                kind: kind.into(),
                job: Some(task.job.as_u32()),
                task: Some(task.task.as_u32()),
                worker: Some(worker.as_u32()),
                data: (!is_finished).then(|| data.to_string()),
                ..Event::default()
            });
        }
        self.ends.push(EndRow {
            task,
            instance: *instance,
            worker,
            crash_count: *crash_count,
            end,
            is_finished,
            start: start.map(|start| (start.variant, start.seq)),
            seq,
        });
        Ok(())
    }

    fn requeue(&mut self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::TaskRequeued {
            task,
            instance,
            crash_count,
            retry_count,
            attempt,
            grown,
        } = &change.kind
        else {
            return Ok(());
        };
        // Write the starts first, because this change may requeue a task that started in the same
        // group.
        self.write_tasks()?;
        let (job, id) = (task.job.as_u32(), task.task.as_u32());
        self.run(
            "INSERT OR IGNORE INTO attempt_data (job, task, instance, worker, variant, \
             started_unix_ns, start_seq) SELECT job, task, instance, worker, variant, \
             started_unix_ns, start_seq FROM task_row_data WHERE job = ? AND task = ? AND state = ?",
            params![job, id, TaskState::Running.number()],
        )?;
        if let Some(attempt) = attempt {
            // This follows the row above, because it completes that row.
            self.end_attempt(*task, attempt)?;
        }
        self.run(
            "INSERT INTO task_row_data (job, task, state, instance, crash_count, retry_count, worker, \
             variant) VALUES (?1, ?2, ?6, ?3, ?4, ?5, 0, 0) ON CONFLICT DO UPDATE SET state = ?6, \
             instance = ?3, crash_count = ?4, retry_count = ?5, start_seq = NULL",
            params![
                job,
                id,
                instance.as_u32(),
                crash_count,
                retry_count,
                TaskState::Waiting.number()
            ],
        )?;
        let Some(grant) = grown else { return Ok(()) };
        self.run(
            "INSERT OR REPLACE INTO grown_data VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![
                job,
                id,
                instance.as_u32(),
                grant.scale.memory,
                grant.scale.time,
                // The value is limited to SQLite's largest number.
                grant
                    .memory
                    .map(|amount| i64::try_from(amount.0).unwrap_or(i64::MAX)),
                grant
                    .time_limit
                    .map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)),
            ],
        )?;
        Ok(())
    }

    fn end_attempt(&self, task: TaskKey, attempt: &Attempt) -> rusqlite::Result<()> {
        let end = &attempt.end;
        let (code, message) = encode::outcome_code(&end.outcome);
        self.run(
            "UPDATE attempt_data SET started_unix_ns = ?, run_us = ?, outcome = ?, message = ?, \
             max_rss_kib = ?, user_ms = ?, system_ms = ? \
             WHERE job = ? AND task = ? AND instance = ?",
            params![
                end.at.minus(end.run).0,
                micros(end.run),
                code,
                message,
                kib(end.usage.max_rss_kib),
                millis(end.usage.user),
                millis(end.usage.system),
                task.job.as_u32(),
                task.task.as_u32(),
                attempt.instance.as_u32()
            ],
        )?;
        Ok(())
    }

    fn drop_tasks(
        &mut self,
        at: Timestamp,
        job: JobId,
        ids: &hq_core::range::IdArray,
        to: TaskState,
    ) -> rusqlite::Result<()> {
        // As for a task that is requeued.
        self.write_tasks()?;
        let (state, seq) = (to.number(), *self.seq);
        // This stores ranges instead of tasks: a waiting job with a million tasks is dropped with
        // one row.
        for range in ids.ranges() {
            let (first, count, step) = (range.first(), range.count(), range.step());
            self.run(
                "INSERT INTO dropped_data VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![seq, job.as_u32(), first, count, step, state, at.0],
            )?;
            // Tasks that ended in the meantime keep their outcome. Only tasks that ran have a run
            // time.
            self.run(
                "UPDATE task_row_data SET state = ?1, \
                 run_us = CASE state WHEN ?6 THEN max(0, (?8 - started_unix_ns) / 1000) END \
                 WHERE job = ?2 AND task BETWEEN ?3 AND ?4 AND state IN (?5, ?6) AND (task - ?3) % ?7 = 0",
                params![
                    state,
                    job.as_u32(),
                    first,
                    range.last(),
                    TaskState::Waiting.number(),
                    TaskState::Running.number(),
                    step,
                    at.0
                ],
            )?;
            // Queries find nodes through the row of their task, but tasks that never started have
            // no such row.
            self.run(
                "DELETE FROM node_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3 \
                 AND (task - ?2) % ?4 = 0 AND NOT EXISTS (SELECT 1 FROM task_row_data t \
                 WHERE t.job = ?1 AND t.task = node_data.task)",
                params![job.as_u32(), first, range.last(), step],
            )?;
        }
        let kind = if to == TaskState::Canceled {
            "task-canceled"
        } else {
            "task-aborted"
        };
        // Each event must fit into one line.
        for ranges in ids.ranges().chunks(RANGES_PER_EVENT) {
            let ranges = ranges.iter();
            let ranges: Value = ranges
                .map(|range| json!([range.first(), range.count(), range.step()]))
                .collect();
            let data = json!({"job": job.as_u32(), "ranges": ranges});
            self.event(at, kind, Some(job), None, &data)?;
        }
        Ok(())
    }
}

fn notification_json(task: TaskKey, worker: WorkerId, message: &[u8]) -> Value {
    json!({
        "task_id": {"job_id": task.job.as_u32(), "job_task_id": task.task.as_u32()},
        "worker_id": worker.as_u32(),
        "message": message,
    })
}

fn workers_json(nodes: &[WorkerId]) -> String {
    let workers: Vec<u32> = nodes.iter().map(|node| node.as_u32()).collect();
    json!({"workers": workers}).to_string()
}

#[cfg(test)]
mod tests;
