//! Restores a [`ServerState`] from rows. Records that do not fit are dropped and counted; they
//! never cause a panic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hq_core::growth::Scale;
use hq_core::id::{InstanceId, JobId, QueueId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{LostReason, Outcome, Usage};
use hq_core::range::{IdArray, IdRange};
use hq_core::server_state::{
    JobRecord, NoticeKey, NoticeOutcome, ServerState, StoredNodes, StoredTask, StoredWorker,
    SubmitKey,
};
use hq_core::task::{Attempt, TaskEnd, TaskState};
use hq_core::template::{ArrayIds, SubmitBody, SubmitSpec};
use hq_core::time::{Now, Timestamp};
use hq_core::worker_config::OnServerLost;
use hq_protocol::client::submit::Body;
use hq_protocol::{Message as _, client};
use rusqlite::{Connection, Row, params};

use crate::encode;
use crate::memory;
use crate::meta::{self, draining_key};
use crate::statement::each;
use crate::stretch::{self, Stretch, StretchKey};

/// The contents of a store.
#[derive(Debug)]
pub struct Loaded {
    /// The restored state.
    pub state: ServerState,
    /// The report of a repair since the last start.
    pub repaired: Option<String>,
    /// Whether an earlier server used the store.
    pub is_restored: bool,
    /// The number of invalid records, which were dropped.
    pub dropped_count: u64,
    /// The allocation queues with their stored records. `None` means that the queue was removed.
    pub queues: Vec<(QueueId, Option<Vec<u8>>)>,
    /// The names of tokens for programs, with their stored records.
    pub tokens: Vec<(String, String)>,
    /// The workers that were connected and will not reconnect.
    pub gone_workers: Vec<WorkerId>,
    /// The stretches that cannot be read. Their tasks are waiting again.
    /// [`Store::load`](crate::Store::load) moves this list into the store.
    pub(crate) unreadable: Vec<StretchKey>,
}

/// Returns whether a server has used the store. Damage may have destroyed its uid, so rows are
/// checked as well.
pub(crate) fn is_used(connection: &Connection) -> rusqlite::Result<bool> {
    let has_uid = meta::text(connection, "server_uid")?.is_some();
    let sql = "SELECT EXISTS (SELECT 1 FROM job_data)";
    Ok(has_uid || connection.query_row(sql, [], |row| row.get(0))?)
}

/// Restores the state. With `is_record`, it shows the end of a journal: ended workers are kept, and
/// all connected workers are expected back, so that their tasks still run.
pub(crate) fn load(
    connection: &Connection,
    uid: &str,
    now: Now,
    is_record: bool,
) -> rusqlite::Result<Loaded> {
    let mut loaded = Loaded {
        state: ServerState::new(uid),
        repaired: meta::text(connection, meta::REPAIRED)?,
        is_restored: is_used(connection)?,
        dropped_count: 0,
        queues: Vec::new(),
        tokens: Vec::new(),
        gone_workers: Vec::new(),
        unreadable: Vec::new(),
    };
    if !loaded.is_restored {
        return Ok(loaded);
    }
    let id =
        |key| Ok::<_, rusqlite::Error>(u32::try_from(meta::number(connection, key)?).unwrap_or(0));
    // Forgotten jobs are included, because a new job with the same id would otherwise inherit their
    // remaining rows.
    let highest = "SELECT COALESCE(MAX(id), 0) FROM job_data";
    let highest: u32 = connection.query_row(highest, [], |row| row.get(0))?;
    let (last_job, last_worker) = (id("last_job")?.max(highest), WorkerId(id("last_worker")?));
    let last_job = JobId(last_job);
    loaded.state.restore_counters(last_job, last_worker);
    load_jobs(connection, &mut loaded)?;
    load_submit_keys(connection, &mut loaded)?;
    // The state requires this order: repeats belong to submits, and tasks belong to submits and may
    // still be running on workers.
    load_limits(connection, &mut loaded)?;
    load_submits(connection, &mut loaded)?;
    load_repeated(connection, &mut loaded)?;
    load_first_instances(connection, &mut loaded)?;
    load_workers(connection, &mut loaded, now, is_record)?;
    // This must precede the loading of tasks, because their grants decide whether they are resumed
    // or queued.
    load_grown(connection, &mut loaded)?;
    load_tasks(connection, &mut loaded)?;
    load_stretches(connection, &mut loaded)?;
    load_attempts(connection, &mut loaded)?;
    load_dropped(connection, &mut loaded)?;
    // This must follow the submits, which number the notifications of a job.
    load_notified(connection, &mut loaded)?;
    loaded.state.finish_restore(now);
    let mut queues = connection.prepare("SELECT id, record FROM queue_data ORDER BY id")?;
    let rows = queues.query_map([], |row| Ok((QueueId(row.get(0)?), row.get(1)?)))?;
    loaded.queues = rows.collect::<Result<_, _>>()?;
    loaded.tokens = meta::texts(connection, meta::TOKEN)?;
    Ok(loaded)
}

impl Loaded {
    /// Counts a record that was dropped because it is invalid.
    fn count<E>(&mut self, restored: Result<(), E>) {
        self.dropped_count += u64::from(restored.is_err());
    }
}

fn load_workers(
    connection: &Connection,
    loaded: &mut Loaded,
    now: Now,
    is_record: bool,
) -> rusqlite::Result<()> {
    let sql = "SELECT id, hostname, started_unix_ns, ended_unix_ns, registration, reason \
               FROM worker_data";
    each(connection, sql, |row| {
        let id = WorkerId(row.get(0)?);
        let hostname: String = row.get(1)?;
        // Ended workers are also restored, because results refer to their hosts for as long as they
        // are kept.
        loaded.state.restore_worker(id, hostname.into());
        let ended = row.get::<_, Option<i64>>(3)?.map(Timestamp);
        if ended.is_some() && !is_record {
            return Ok(());
        }
        let started = Timestamp(row.get(2)?);
        let registration: Option<Vec<u8>> = row.get(4)?;
        let config = registration.and_then(|bytes| encode::registration_of(&bytes));
        let stored = config.map(|config| StoredWorker {
            id,
            config,
            started,
        });
        if let Some(at) = ended {
            let reason: Option<String> = row.get(5)?;
            // Other workers ended with their server.
            let reason = reason.and_then(|name| LostReason::from_name(&name));
            let end = (at, reason.unwrap_or(LostReason::Stopped));
            if let Some(stored) = stored {
                loaded.state.restore_ended_worker(now, stored, end);
            }
            return Ok(());
        }
        let is_awaited = stored.is_some_and(|mut stored| {
            if is_record {
                stored.config.on_server_lost = OnServerLost::Reconnect;
            }
            loaded.state.restore_connected_worker(now, stored)
        });
        if !is_awaited {
            // The worker ended with the server, or its registration cannot be read. The server does
            // not wait for it, and it is unknown which tasks it started.
            loaded.gone_workers.push(id);
            loaded.state.restore_starts_unknown();
        } else if meta::number(connection, &draining_key(id))? != 0 {
            loaded.state.restore_draining(id);
        }
        Ok(())
    })?;
    for quarantine in meta::quarantines(connection)? {
        loaded.state.restore_quarantine(now, quarantine);
    }
    Ok(())
}

/// Records that workers ended with an earlier server, and that it is unknown which tasks they
/// started.
pub(crate) fn note_gone(
    connection: &Connection,
    workers: &[WorkerId],
    at: Timestamp,
) -> rusqlite::Result<()> {
    for worker in workers {
        connection.execute(
            "UPDATE worker_data SET ended_unix_ns = ?, reason = 'ServerLost' WHERE id = ?",
            params![at.0, worker.as_u32()],
        )?;
    }
    if !workers.is_empty() {
        meta::set(connection, meta::STARTS_UNKNOWN, 1)?;
    }
    Ok(())
}

fn load_notified(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = "SELECT job, number, at_unix_ns, attempts, error FROM notification_data";
    each(connection, sql, |row| {
        let key = NoticeKey {
            job: JobId(row.get(0)?),
            number: row.get(1)?,
        };
        let outcome = NoticeOutcome {
            at: Timestamp(row.get(2)?),
            attempts: row.get(3)?,
            error: row.get::<_, Option<String>>(4)?.map(Into::into),
        };
        loaded.state.restore_notified(key, outcome);
        Ok(())
    })
}

fn load_jobs(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = "SELECT id, name, max_fails, is_open, cancel_reason, submitted_unix_ns, \
               completed_unix_ns IS NOT NULL FROM job_data WHERE is_forgotten = 0";
    each(connection, sql, |row| {
        loaded.state.restore_job(JobRecord {
            id: JobId(row.get(0)?),
            name: row.get::<_, String>(1)?.into(),
            max_fails: row.get(2)?,
            is_open: row.get(3)?,
            cancel_reason: row.get::<_, Option<String>>(4)?.map(Into::into),
            submitted: Timestamp(row.get(5)?),
            is_completed: row.get(6)?,
        });
        Ok(())
    })?;
    for (job, new) in meta::numbers(connection, meta::RESUBMITTED)? {
        if let (Ok(job), Ok(new)) = (job.parse(), u32::try_from(new)) {
            loaded.state.restore_resubmitted(JobId(job), JobId(new));
        }
    }
    Ok(())
}

/// Restores the submit keys, except those of jobs that were dropped from the file.
fn load_submit_keys(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    for (place, digest) in meta::texts(connection, meta::SUBMIT_KEY)? {
        let found = place.split_once('_');
        if let Some((Ok(job), name)) = found.map(|(job, name)| (job.parse(), name)) {
            let key = SubmitKey {
                name: name.into(),
                digest: digest.into(),
            };
            loaded.state.restore_submit_key(JobId(job), key);
        }
    }
    Ok(())
}

/// Decoding a spec of more bytes than this may need more than the reserve of [`memory`].
const LARGE_SPEC: usize = 1 << 20;
/// The number of copies of a spec that are in memory during decoding: the message, the growing
/// lists, and the result.
const DECODED_COPIES: u64 = 4;
/// A graph with more templates than this may need more than that reserve.
const LARGE_GRAPH: usize = 10_000;
/// The measured memory use of a task with its own template, in bytes.
const TEMPLATE_LEN: u64 = 2 << 10;

fn load_limits(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    for (name, bound) in meta::texts(connection, meta::LIMIT)? {
        match bound.parse() {
            Ok(bound) => loaded.state.restore_limit(&name, bound),
            Err(error) => tracing::error!(name, bound, %error, "a stored limit was dropped"),
        }
    }
    Ok(())
}

fn load_submits(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = "SELECT s.job, s.spec, s.spec_check FROM submit_data s JOIN job_data j ON j.id = s.job \
               WHERE j.is_forgotten = 0 ORDER BY s.job, s.number";
    each(connection, sql, |row| {
        let job = JobId(row.get(0)?);
        let bytes = row.get_ref(1)?.as_blob().unwrap_or_default();
        let check: i64 = row.get(2)?;
        // During decoding, no SQLite statement runs, so the memory guard would not notice that
        // memory is low.
        if bytes.len() > LARGE_SPEC {
            memory::expect(DECODED_COPIES * bytes.len() as u64)?;
        }
        let message = Some(bytes)
            // If a corrupt spec could still be decoded, it would run a command that no user has
            // submitted.
            .filter(|bytes| encode::checksum(bytes) == check)
            .and_then(|bytes| client::Submit::decode(bytes).ok());
        if let Some(Body::Graph(graph)) = message.as_ref().and_then(|submit| submit.body.as_ref())
            && graph.templates.len() > LARGE_GRAPH
        {
            memory::expect(TEMPLATE_LEN * graph.templates.len() as u64)?;
        }
        let restored = message
            .and_then(spec_of)
            .and_then(|(ids, spec)| loaded.state.restore_submit(job, ids, &Arc::new(spec)).ok());
        if restored.is_none() {
            tracing::error!(%job, "a stored submit is unreadable and was dropped");
            loaded.dropped_count += 1;
        }
        Ok(())
    })
}

fn load_repeated(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    for (job, number, instance) in instances_of_submits(connection, meta::REPEATED)? {
        loaded.state.restore_repeated(job, number, instance);
    }
    for (job, kept) in meta::revised(connection)? {
        loaded.state.restore_changes(job, &kept);
    }
    for (job, held) in meta::held(connection)? {
        loaded.state.restore_held(job, &held);
    }
    Ok(())
}

fn load_first_instances(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    for (job, number, first) in instances_of_submits(connection, meta::FIRST_INSTANCE)? {
        loaded.state.restore_first_instance(job, number, first);
    }
    if meta::number(connection, meta::STARTS_UNKNOWN)? != 0 {
        loaded.state.restore_starts_unknown();
    }
    Ok(())
}

/// Returns the instances that are stored for submits under keys of the form
/// `<prefix><job>_<number>`.
fn instances_of_submits(
    connection: &Connection,
    begin: &str,
) -> rusqlite::Result<Vec<(JobId, u32, InstanceId)>> {
    let parsed = |(key, instance): (String, i64)| {
        let (job, number) = key.split_once('_')?;
        let instance = u32::try_from(instance).ok()?;
        let (job, number) = (job.parse().ok()?, number.parse().ok()?);
        Some((JobId(job), number, InstanceId(instance)))
    };
    let kept = meta::numbers(connection, begin)?;
    Ok(kept.into_iter().filter_map(parsed).collect())
}

/// Returns the ids of all tasks of a job, based on its submits.
pub(crate) fn submitted_ids(connection: &Connection, job: u32) -> rusqlite::Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    let mut statement = connection.prepare_cached("SELECT spec FROM submit_data WHERE job = ?")?;
    let mut rows = statement.query([job])?;
    while let Some(row) = rows.next()? {
        let Some((array, spec)) = decode_spec(row.get_ref(0)?.as_blob().unwrap_or_default()) else {
            continue;
        };
        match spec.body {
            SubmitBody::Array(_) => ids.extend(array.iter()),
            SubmitBody::Graph(graph) => ids.extend(graph.tasks.iter().map(|task| task.id.as_u32())),
        }
    }
    Ok(ids)
}

fn decode_spec(bytes: &[u8]) -> Option<(IdArray, SubmitSpec)> {
    spec_of(client::Submit::decode(bytes).ok()?)
}

fn spec_of(message: client::Submit) -> Option<(IdArray, SubmitSpec)> {
    let spec = SubmitSpec::try_from(message).ok()?;
    let ids = match &spec.body {
        SubmitBody::Array(array) => match &array.ids {
            ArrayIds::Given(ids) => ids.clone(),
            ArrayIds::Next(count) => IdArray::consecutive(0, *count).ok()?,
        },
        // The tasks of a graph contain their ids.
        SubmitBody::Graph(_) => IdArray::default(),
    };
    Some((ids, spec))
}

fn load_tasks(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    // CROSS makes the query go job by job, in the order rows are stored. Otherwise,
    // SQLite's planner would look up the job of each task.
    let sql = "SELECT t.job, task, state, instance, worker, crash_count, started_unix_ns, run_us, \
               outcome, message, max_rss_kib, user_ms, system_ms, retry_count, variant \
               FROM job_data j \
               CROSS JOIN task_row_data t ON t.job = j.id WHERE j.is_forgotten = 0";
    let mut nodes = load_nodes(connection)?;
    each(connection, sql, |row| {
        let job = JobId(row.get(0)?);
        let mut stored = stored_task(row)?;
        // The remaining nodes belong to tasks that were assigned nodes but never started.
        stored.nodes = nodes.remove(&(job, stored.task));
        let restored = loaded.state.restore_task(job, &stored);
        loaded.count(restored);
        Ok(())
    })?;
    for ((job, task), nodes) in nodes {
        let stored = StoredTask::with_nodes(task, nodes);
        let restored = loaded.state.restore_task(job, &stored);
        loaded.count(restored);
    }
    Ok(())
}

fn load_stretches(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = stretch::select(
        connection,
        "job_data j CROSS JOIN stretch_data s ON s.job = j.id WHERE j.is_forgotten = 0 \
         ORDER BY j.id, s.first",
    )?;
    each(connection, &sql, |row| {
        let Some(found) = Stretch::read(row)? else {
            loaded.dropped_count += 1;
            loaded.unreadable.push((row.get(0)?, row.get(1)?));
            return Ok(());
        };
        let ends = found.tasks().map(|(_, values)| finished(*values));
        let first = TaskKey::new(JobId(found.shared.job), TaskId(found.first));
        let instance = InstanceId(found.shared.instance);
        let restored = loaded.state.restore_finished(first, instance, ends);
        loaded.count(restored);
        Ok(())
    })
}

/// Returns the worker and the end of a task in a stretch.
fn finished(values: stretch::Values) -> (WorkerId, TaskEnd) {
    let [worker, started, run, rss, user, system, ..] = values.map(|value| unsigned(Some(value)));
    let run = Duration::from_micros(run);
    let end = TaskEnd {
        outcome: Outcome::Finished,
        at: Timestamp(started.cast_signed()).plus(run),
        run,
        usage: Usage {
            max_rss_kib: rss,
            user: Duration::from_millis(user),
            system: Duration::from_millis(system),
        },
    };
    (WorkerId(u32::try_from(worker).unwrap_or(u32::MAX)), end)
}

/// Returns the nodes of multi-node tasks, for the latest instance that has any.
fn load_nodes(connection: &Connection) -> rusqlite::Result<BTreeMap<(JobId, TaskId), StoredNodes>> {
    let sql = "SELECT n.job, task, instance, worker, variant FROM node_data n \
               JOIN job_data j ON j.id = n.job WHERE j.is_forgotten = 0 \
               ORDER BY n.job, task, instance, position";
    let mut all: BTreeMap<(JobId, TaskId), StoredNodes> = BTreeMap::new();
    each(connection, sql, |row| {
        let task = (JobId(row.get(0)?), TaskId(row.get(1)?));
        let (instance, variant) = (InstanceId(row.get(2)?), row.get(4)?);
        // Rows are in the order of instances. The last one is used, because earlier attempts had
        // other nodes.
        let found = all.remove(&task).filter(|found| found.instance == instance);
        let mut nodes = found.unwrap_or(StoredNodes {
            instance,
            variant,
            workers: Vec::new(),
        });
        nodes.workers.push(WorkerId(row.get(3)?));
        all.insert(task, nodes);
        Ok(())
    })?;
    Ok(all)
}

fn stored_task(row: &Row<'_>) -> rusqlite::Result<StoredTask> {
    let state = encode::state_of(row.get(2)?);
    let started: Option<i64> = row.get(6)?;
    let has_end = matches!(state, TaskState::Finished | TaskState::Failed);
    let is_dropped = matches!(state, TaskState::Canceled | TaskState::Aborted);
    let run: Option<i64> = row.get(7)?;
    let end = if has_end {
        Some(stored_end(row, 6)?)
    } else {
        None
    };
    Ok(StoredTask {
        task: TaskId(row.get(1)?),
        state,
        instance: InstanceId(row.get(3)?),
        worker: WorkerId(row.get(4)?),
        variant: row.get(14)?,
        crash_count: row.get(5)?,
        retry_count: row.get(13)?,
        started: started.map(Timestamp),
        end,
        run_until_dropped: run
            // If the task was not dropped, the column is part of the task's end.
            .filter(|_| is_dropped)
            .map(|us| Duration::from_micros(unsigned(Some(us)))),
        nodes: None,
    })
}

/// Reads the end of a task from its columns: start, run time, outcome, message, memory, user time
/// and system time.
fn stored_end(row: &Row<'_>, first: usize) -> rusqlite::Result<TaskEnd> {
    let started: Option<i64> = row.get(first)?;
    let run = Duration::from_micros(unsigned(row.get(first + 1)?));
    let millis = |at| {
        let value: Option<u32> = row.get(at)?;
        Ok::<_, rusqlite::Error>(Duration::from_millis(u64::from(value.unwrap_or(0))))
    };
    let code: i64 = row.get::<_, Option<i64>>(first + 2)?.unwrap_or(0);
    Ok(TaskEnd {
        outcome: encode::outcome_of(code, row.get(first + 3)?),
        // Only the start and the duration are stored; their sum is the time of the end.
        at: Timestamp(started.unwrap_or(0)).plus(run),
        run,
        usage: Usage {
            max_rss_kib: unsigned(row.get(first + 4)?),
            user: millis(first + 5)?,
            system: millis(first + 6)?,
        },
    })
}

fn load_attempts(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = "SELECT a.job, task, instance, worker, started_unix_ns, run_us, outcome, message, \
               max_rss_kib, user_ms, system_ms FROM attempt_data a \
               JOIN job_data j ON j.id = a.job WHERE j.is_forgotten = 0 AND outcome IS NOT NULL \
               ORDER BY a.job, task, instance";
    each(connection, sql, |row| {
        let attempt = Attempt {
            instance: InstanceId(row.get(2)?),
            worker: WorkerId(row.get(3)?),
            end: stored_end(row, 4)?,
        };
        let (job, task) = (JobId(row.get(0)?), TaskId(row.get(1)?));
        let restored = loaded.state.restore_attempt(job, task, attempt);
        loaded.count(restored);
        Ok(())
    })
}

/// Converts from SQLite's signed numbers. The store never writes numbers below 0.
fn unsigned(value: Option<i64>) -> u64 {
    u64::try_from(value.unwrap_or(0)).unwrap_or(0)
}

fn load_grown(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql = "SELECT g.job, task, instance, memory_permille, time_permille FROM grown_data g \
               JOIN job_data j ON j.id = g.job WHERE j.is_forgotten = 0 ORDER BY g.job, task, instance";
    each(connection, sql, |row| {
        let (job, task) = (JobId(row.get(0)?), TaskId(row.get(1)?));
        let instance = InstanceId(row.get(2)?);
        let scale = Scale::new(row.get(3)?, row.get(4)?);
        let restored = scale.map(|scale| loaded.state.restore_grown(job, task, instance, scale));
        if !matches!(restored, Some(Ok(()))) {
            loaded.dropped_count += 1;
        }
        Ok(())
    })
}

fn load_dropped(connection: &Connection, loaded: &mut Loaded) -> rusqlite::Result<()> {
    let sql =
        "SELECT job, first, count, step, state, at_unix_ns, seq FROM dropped_data ORDER BY rowid";
    // The rows of one change are consecutive and must be applied together.
    let mut group: Option<(i64, JobId, TaskState, Timestamp, Vec<IdRange>)> = None;
    each(connection, sql, |row| {
        let Ok(range) = IdRange::new(row.get(1)?, row.get(2)?, row.get(3)?) else {
            loaded.dropped_count += 1;
            return Ok(());
        };
        let seq: i64 = row.get(6)?;
        match &mut group {
            // If the ranges were applied one by one, the state would not notice that the whole job
            // ended.
            Some((last, .., ranges)) if *last == seq => ranges.push(range),
            _ => {
                // The next group begins, so this one is complete.
                apply_dropped(&mut loaded.state, group.take());
                let state = encode::state_of(row.get(4)?);
                group = Some((
                    seq,
                    JobId(row.get(0)?),
                    state,
                    Timestamp(row.get(5)?),
                    vec![range],
                ));
            }
        }
        Ok(())
    })?;
    apply_dropped(&mut loaded.state, group);
    Ok(())
}

fn apply_dropped(
    state: &mut ServerState,
    group: Option<(i64, JobId, TaskState, Timestamp, Vec<IdRange>)>,
) {
    if let Some((_, job, to, at, ranges)) = group
        && let Ok(ids) = IdArray::new(ranges)
    {
        state.restore_dropped(job, &ids, to, at);
    }
}

#[cfg(test)]
mod tests;
