//! Rebuilds a damaged file from all rows that can be verified, and reports the losses.
//!
//! It reads all pages without SQLite. First it follows the trees; then it reads the pages that no
//! tree reaches, and assigns their rows to tables by their columns. It checks each row, drops rows
//! that refer to lost ones, and lists the missing rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use hq_core::range::IdArray;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Transaction, params_from_iter};

use crate::lock::{Lock, with_suffix};
use crate::pages::{Key, Pages, Record, Step, Walk};
use crate::stretch::{self, Stretch};
use crate::{StoreError, encode, history, load, meta, schema};

/// A table and the format of its stored rows. The types are `i` (number), `t` (text), `b` (bytes)
/// and `*` (anything). Capital letters may be null. `n` is always null because it is the row id.
/// `+` is a number that rows of earlier releases do not have, and that is 0 for them.
struct TableShape {
    name: &'static str,
    has_rowid: bool,
    types: &'static str,
}

/// The name of the table of tasks that have one row each.
const ROWS: &str = "task_row_data";
/// The name of the same table up to version 9.
const ROWS_EARLIER: &str = "task_data";
/// The name of the table of tasks that are stored in columns. A repair expands them into rows, and
/// compaction folds these rows again.
const STRETCHES: &str = "stretch_data";

const SHAPES: &[TableShape] = &[
    TableShape {
        name: "meta",
        has_rowid: false,
        types: "t*",
    },
    TableShape {
        name: "job_data",
        has_rowid: true,
        types: "ntIiTiIi",
    },
    TableShape {
        name: "submit_data",
        has_rowid: true,
        types: "iiiibi",
    },
    TableShape {
        name: ROWS,
        has_rowid: false,
        types: "iiiiiiiIIITIIIIIi",
    },
    TableShape {
        name: STRETCHES,
        has_rowid: true,
        types: "iiiiibibibibibibibibi+",
    },
    TableShape {
        name: "attempt_data",
        has_rowid: false,
        types: "iiiiiIIIITIII",
    },
    TableShape {
        name: "dropped_data",
        has_rowid: true,
        types: "iiiiiii",
    },
    TableShape {
        name: "worker_data",
        has_rowid: true,
        types: "ntiITtB",
    },
    TableShape {
        name: "allocation_data",
        has_rowid: false,
        types: "ititIII",
    },
    TableShape {
        name: "event_log",
        has_rowid: true,
        types: "nitIIt",
    },
    TableShape {
        name: "node_data",
        has_rowid: false,
        types: "iiiiii",
    },
    TableShape {
        name: "value_data",
        has_rowid: false,
        types: "iiiib",
    },
    TableShape {
        name: "curve_data",
        has_rowid: false,
        types: "iiiiiiiiiibb",
    },
    TableShape {
        name: "gpu_curve_data",
        has_rowid: false,
        types: "iiiiiiiiibb",
    },
    TableShape {
        name: "grown_data",
        has_rowid: false,
        types: "iiiiiII",
    },
    TableShape {
        name: "queue_data",
        has_rowid: true,
        types: "nB",
    },
    TableShape {
        name: "notification_data",
        has_rowid: false,
        types: "iitiiT",
    },
];

/// The lost results of one job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostResults {
    /// The id of the job.
    pub job: u32,
    /// The tasks that have no record in the ranges where records are missing.
    pub tasks: IdArray,
    /// Whether all of these tasks had a record. If not, some may never have started.
    pub is_exact: bool,
}

/// The result of a repair. `Display` formats it for users, with one fact per line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// The path of the damaged file.
    pub set_aside: PathBuf,
    /// The number of rows that were kept, by table.
    pub kept: BTreeMap<&'static str, u64>,
    /// The number of ranges of missing rows.
    pub gaps: u64,
    /// The jobs whose record is lost although other rows refer to them.
    pub lost_jobs: Vec<u32>,
    /// The lost or invalid submits, by job and position. Their tasks are also lost.
    pub lost_submits: Vec<(u32, u32)>,
    /// The lost results. These tasks are waiting again.
    pub lost_results: Vec<LostResults>,
    /// The number of lost events, including starts and ends of tasks. `None` if it is unknown.
    pub lost_events: Option<u64>,
    /// Whether the write-ahead log is lost, and with it an unknown number of changes.
    pub has_lost_log: bool,
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = |table| self.kept.get(table).copied().unwrap_or(0);
        writeln!(
            f,
            "kept: {} jobs, {} task records, {} earlier attempts, {} workers, {} other events",
            kept("job_data"),
            kept(ROWS),
            kept("attempt_data"),
            kept("worker_data"),
            kept("event_log")
        )?;
        for job in &self.lost_jobs {
            writeln!(f, "dropped: job {job}, because its own record is lost")?;
        }
        for (job, number) in &self.lost_submits {
            writeln!(
                f,
                "dropped: submit {number} of job {job} with its tasks; the job is open, so you can submit them again"
            )?;
        }
        for lost in &self.lost_results {
            let (count, words) = (
                lost.tasks.len(),
                if lost.is_exact { "" } else { "at most " },
            );
            let (job, tasks) = (lost.job, &lost.tasks);
            writeln!(
                f,
                "dropped: {words}{count} results of job {job}: tasks {tasks}, which wait again"
            )?;
        }
        if self.has_lost_log {
            writeln!(
                f,
                "its write-ahead log is lost: an unknown number of the latest jobs, results and events is missing"
            )?;
        }
        match self.lost_events.filter(|_| !self.has_lost_log) {
            None if self.has_lost_log => {}
            Some(0) => writeln!(f, "no event is missing")?,
            Some(count) => writeln!(
                f,
                "dropped: {count} events, starts and ends of tasks included"
            )?,
            None => writeln!(f, "the number of missing events is unknown")?,
        }
        write!(f, "the damaged file is now {}", self.set_aside.display())
    }
}

/// Repairs a file that no server uses, including its write-ahead log. The damaged file is kept
/// under a different name.
///
/// # Errors
///
/// Returns an error if no page can be read, or if the new file cannot be written next to the old
/// one.
pub(crate) fn repair(
    lock: &Lock,
    given: &Path,
    has_lost_log: bool,
) -> Result<RepairReport, StoreError> {
    let create = |path: &Path, source| StoreError::Create {
        path: path.to_path_buf(),
        source,
    };
    let path = lock.path();
    let pages = Pages::open(lock).map_err(|error| StoreError::Open {
        path: given.to_path_buf(),
        reason: error.to_string(),
    })?;
    let fresh = sibling_path(path, "repaired");
    for stale in with_companions(&fresh) {
        // These files were left by an interrupted repair.
        let _ = std::fs::remove_file(stale);
    }
    hq_private::new_file(&fresh).map_err(|error| create(&fresh, error))?;
    let mut report = rebuild(&pages, &fresh).map_err(StoreError::sql(&fresh))?;
    report.has_lost_log = has_lost_log;
    if report.kept.values().all(|count| *count == 0) && !pages.is_ours() {
        let _ = std::fs::remove_file(&fresh);
        return Err(StoreError::NotOurs {
            path: given.to_path_buf(),
            reason: "it contains no records of a journal".to_owned(),
        });
    }
    drop(pages);
    report.set_aside = free_name(path);
    note(&fresh, &report).map_err(StoreError::sql(&fresh))?;
    swap(path, &fresh, &report.set_aside).map_err(|error| create(path, error))?;
    Ok(report)
}

/// Copies all rows into a new file.
fn rebuild(pages: &Pages, fresh: &Path) -> rusqlite::Result<RepairReport> {
    let mut connection = Connection::open(fresh)?;
    schema::prepare(&connection)?;
    schema::migrate(&mut connection, 0)?;
    let transaction = connection.transaction()?;
    let mut inserts = BTreeMap::new();
    for shape in SHAPES {
        inserts.insert(shape.name, insert(&transaction, shape)?);
    }
    let mut salvage = Salvage {
        transaction: &transaction,
        inserts,
        reached: pages.free(),
        gaps: Vec::new(),
        report: RepairReport::default(),
    };
    salvage.take_trees(pages)?;
    salvage.take_orphans(pages)?;
    let (gaps, mut report) = (salvage.gaps, salvage.report);
    report.gaps = gaps.len() as u64;
    drop_dangling(&transaction, &mut report)?;
    name_lost_results(&transaction, &gaps, &mut report)?;
    mend_counters(&transaction, &mut report)?;
    for shape in SHAPES {
        let sql = format!("SELECT count(*) FROM {}", shape.name);
        let count: u32 = transaction.query_row(&sql, [], |row| row.get(0))?;
        report.kept.insert(shape.name, u64::from(count));
    }
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(report)
}

/// A range where rows of a table are missing.
struct Gap {
    table: &'static str,
    low: Option<Key>,
    high: Option<Key>,
}

struct Salvage<'a> {
    transaction: &'a Transaction<'a>,
    /// The insert statements by table.
    inserts: BTreeMap<&'static str, String>,
    /// The pages that were processed.
    reached: BTreeSet<u32>,
    gaps: Vec<Gap>,
    report: RepairReport,
}

impl Salvage<'_> {
    fn take_trees(&mut self, pages: &Pages) -> rusqlite::Result<()> {
        self.reached.insert(1);
        for (name, root) in pages.roots() {
            let name = present_name(&name);
            let shape = SHAPES.iter().find(|shape| shape.name == name);
            for step in Walk::new(pages, root) {
                match (step, shape) {
                    (Step::Page(number, page), shape) => {
                        self.reached.insert(number);
                        self.reached.extend(&page.overflow);
                        for record in &page.records {
                            match (record, shape) {
                                (Some(record), Some(shape)) => {
                                    // Interior pages of tables contain keys without rows.
                                    if !record.values.is_empty() && !self.take(shape, record)? {
                                        self.note_broken(shape, record);
                                    }
                                }
                                (None, Some(shape)) => self.note_gap(shape, None, None),
                                (_, None) => {}
                            }
                        }
                    }
                    (Step::Lost(low, high), Some(shape)) => self.note_gap(shape, low, high),
                    (Step::Lost(..), None) => {}
                }
            }
        }
        Ok(())
    }

    fn note_broken(&mut self, shape: &TableShape, record: &Record) {
        let low = record
            .key()
            .map(|(first, second)| (first, second.saturating_sub(1)));
        let high = record
            .key()
            .map(|(first, second)| (first, second.saturating_add(1)));
        self.note_gap(shape, low, high);
    }

    fn note_gap(&mut self, shape: &TableShape, low: Option<Key>, high: Option<Key>) {
        // The keys of stretches do not identify the job of the missing rows.
        let is_known = shape.name != STRETCHES;
        let (low, high) = (low.filter(|_| is_known), high.filter(|_| is_known));
        self.gaps.push(Gap {
            table: shape.name,
            low,
            high,
        });
    }

    /// Copies rows from pages that no tree reaches.
    fn take_orphans(&mut self, pages: &Pages) -> rusqlite::Result<()> {
        for number in 2..=pages.count() {
            if self.reached.contains(&number) {
                continue;
            }
            let Some(page) = pages.page(number) else {
                continue;
            };
            for record in page.records.iter().flatten() {
                for shape in SHAPES {
                    if self.take(shape, record)? {
                        break;
                    }
                }
            }
        }
        let roots = pages.roots();
        let has = |wanted: &str| roots.iter().any(|(name, _)| name == wanted);
        for shape in SHAPES {
            let name = shape.name;
            // In earlier releases, all tasks are in rows.
            let is_there = if [ROWS, STRETCHES].contains(&name) {
                has(name) || has(ROWS_EARLIER)
            } else {
                has(name)
            };
            if !is_there {
                self.note_gap(shape, None, None);
            }
        }
        Ok(())
    }

    /// Inserts a row if it fits the table and its key is not used yet. Returns whether it fits.
    fn take(&self, shape: &TableShape, record: &Record) -> rusqlite::Result<bool> {
        let Some(values) = fitting(shape, record) else {
            return Ok(false);
        };
        if shape.name == STRETCHES {
            return self.take_stretch(&values);
        }
        let sql = self.inserts.get(shape.name).map_or("", String::as_str);
        let mut statement = self.transaction.prepare_cached(sql)?;
        statement.execute(params_from_iter(values))?;
        Ok(true)
    }

    /// Inserts the tasks of a stretch if its checksum matches.
    fn take_stretch(&self, values: &[Value]) -> rusqlite::Result<bool> {
        let values: Vec<ValueRef<'_>> = values.iter().map(ValueRef::from).collect();
        let columns = values.get(..stretch::WIDTH).unwrap_or_default();
        let Some(found) = Stretch::of(columns) else {
            return Ok(false);
        };
        found.write_rows(self.transaction)?;
        Ok(true)
    }
}

/// Returns the current name of a table.
fn present_name(name: &str) -> &str {
    if name == ROWS_EARLIER { ROWS } else { name }
}

/// Returns an `INSERT` statement for all columns. The row id comes last in tables that have one.
fn insert(db: &Transaction<'_>, shape: &TableShape) -> rusqlite::Result<String> {
    let sql = "SELECT group_concat(name, ', ' ORDER BY cid) FROM pragma_table_info(?)";
    let columns: String = db.query_row(sql, [shape.name], |row| row.get(0))?;
    let (rowid, mark) = if shape.has_rowid && !shape.types.starts_with('n') {
        (", rowid", ", ?")
    } else {
        ("", "")
    };
    let marks = vec!["?"; shape.types.len()].join(", ");
    let name = shape.name;
    Ok(format!(
        "INSERT OR IGNORE INTO {name} ({columns}{rowid}) VALUES ({marks}{mark})"
    ))
}

/// Returns the values to insert, if the record has the right format and plausible contents.
fn fitting(shape: &TableShape, record: &Record) -> Option<Vec<Value>> {
    let later = shape.types.get(record.values.len()..)?;
    if record.rowid.is_some() != shape.has_rowid || later.contains(|kind| kind != '+') {
        return None;
    }
    let mut values = Vec::with_capacity(shape.types.len() + 1);
    for (value, kind) in record.values.iter().zip(shape.types.chars()) {
        let fits = match value {
            Value::Null => kind.is_ascii_uppercase() || kind == 'n',
            Value::Integer(_) => matches!(kind, 'i' | 'I' | '+' | '*'),
            Value::Text(text) => matches!(kind, 't' | 'T' | '*') && !text.contains('\0'),
            Value::Blob(_) => matches!(kind, 'b' | 'B'),
            Value::Real(_) => false,
        };
        if !fits {
            return None;
        }
        values.push(match (kind, record.rowid) {
            ('n', Some(rowid)) => Value::Integer(rowid),
            _ => value.clone(),
        });
    }
    values.extend(later.chars().map(|_| Value::Integer(0)));
    let is_valid = match (shape.name, values.as_slice()) {
        ("submit_data", [.., Value::Blob(spec), Value::Integer(check)]) => {
            encode::checksum(spec) == *check
        }
        ("job_data", job) => is_job(job),
        ("event_log", [.., Value::Text(data)]) => is_json(data),
        ("worker_data", [.., Value::Text(config), _]) => is_json(config),
        (ROWS, [_, _, Value::Integer(state), ..]) => (0..=5).contains(state),
        _ => true,
    };
    if shape.has_rowid && !shape.types.starts_with('n') {
        values.push(Value::Integer(record.rowid?));
    }
    is_valid.then_some(values)
}

/// Returns whether a row is a job. A lease has the same types.
fn is_job(values: &[Value]) -> bool {
    /// The times of jobs are in nanoseconds since 1970; a lease has a heartbeat count in this
    /// column.
    const SUBMITTED_MIN: i64 = 1_000_000_000_000_000;
    let is_flag = |value: &Value| matches!(value, Value::Integer(0 | 1));
    let [
        _,
        _,
        _,
        is_open,
        _,
        Value::Integer(submitted),
        _,
        is_forgotten,
    ] = values
    else {
        return false;
    };
    is_flag(is_open) && is_flag(is_forgotten) && *submitted >= SUBMITTED_MIN
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok()
}

/// Drops the rows of lost jobs and submits.
fn drop_dangling(db: &Transaction<'_>, report: &mut RepairReport) -> rusqlite::Result<()> {
    for table in [
        "submit_data",
        ROWS,
        "attempt_data",
        "node_data",
        "value_data",
        "curve_data",
        "gpu_curve_data",
        "grown_data",
        "dropped_data",
        "notification_data",
    ] {
        let dangling = "job NOT IN (SELECT id FROM job_data)";
        let sql = format!("SELECT DISTINCT job FROM {table} WHERE {dangling}");
        let jobs: Vec<u32> = list(db, &sql)?;
        report.lost_jobs.extend(jobs);
        db.execute(&format!("DELETE FROM {table} WHERE {dangling}"), [])?;
    }
    report.lost_jobs.sort_unstable();
    report.lost_jobs.dedup();
    // Submits are numbered, and events record their number. Submits of forgotten jobs may be
    // missing, because compaction deletes them before the job.
    let sql = "SELECT j.id, \
        (SELECT count(*) FROM event_log e WHERE e.job = j.id AND e.type = 'job-created'), \
        max((SELECT coalesce(max(number) + 1, 0) FROM submit_data s WHERE s.job = j.id), \
        EXISTS (SELECT 1 FROM task_row_data t WHERE t.job = j.id)) FROM job_data j \
        WHERE j.is_forgotten = 0";
    let jobs: Vec<(u32, u32, u32)> = {
        let mut statement = db.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        rows.collect::<Result<_, _>>()?
    };
    for (job, told, found) in jobs {
        for number in 0..told.max(found) {
            let sql = "SELECT count(*) FROM submit_data WHERE job = ? AND number = ?";
            let count: u32 = db.query_row(sql, (job, number), |row| row.get(0))?;
            if count == 0 {
                report.lost_submits.push((job, number));
                // Otherwise, the job would seem to have completed successfully without these tasks.
                let sql = "UPDATE job_data SET is_open = 1, completed_unix_ns = NULL WHERE id = ?";
                db.execute(sql, [job])?;
            }
        }
    }
    Ok(())
}

fn list(db: &Transaction<'_>, sql: &str) -> rusqlite::Result<Vec<u32>> {
    let mut statement = db.prepare(sql)?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}

/// Lists the tasks whose records are missing and makes them wait again. Drops records of tasks that
/// do not belong to any submit.
fn name_lost_results(
    db: &Transaction<'_>,
    gaps: &[Gap],
    report: &mut RepairReport,
) -> rusqlite::Result<()> {
    let sql = "SELECT id, completed_unix_ns IS NOT NULL FROM job_data WHERE is_forgotten = 0";
    let jobs: Vec<(u32, bool)> = {
        let mut statement = db.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<Result<_, _>>()?
    };
    let has_lost_drops = gaps.iter().any(|gap| gap.table == "dropped_data");
    for (job, is_completed) in jobs {
        let ids = load::submitted_ids(db, job)?;
        let present: BTreeSet<u32> = {
            let mut statement =
                db.prepare_cached("SELECT task FROM task_row_data WHERE job = ?")?;
            let rows = statement.query_map([job], |row| row.get(0))?;
            rows.collect::<Result<_, _>>()?
        };
        for stray in present.iter().filter(|task| !ids.contains(task)) {
            let sql = "DELETE FROM task_row_data WHERE job = ? AND task = ?";
            db.prepare_cached(sql)?.execute((job, stray))?;
        }
        let gone: Vec<u32> = ids
            .iter()
            .filter(|task| !present.contains(task) && in_gap(gaps, job, **task))
            .copied()
            .collect();
        let dropped = dropped_ids(db, job)?;
        let gone = gone.into_iter().filter(|task| !dropped.contains(task));
        let tasks = IdArray::from_sorted(gone).unwrap_or_default();
        if tasks.is_empty() {
            continue;
        }
        db.execute(
            "UPDATE job_data SET completed_unix_ns = NULL WHERE id = ?",
            [job],
        )?;
        report.lost_results.push(LostResults {
            job,
            tasks,
            is_exact: is_completed && !has_lost_drops,
        });
    }
    Ok(())
}

fn in_gap(gaps: &[Gap], job: u32, task: u32) -> bool {
    let key = (i64::from(job), i64::from(task));
    gaps.iter()
        .filter(|gap| [ROWS, STRETCHES].contains(&gap.table))
        .any(|gap| gap.low.is_none_or(|low| low < key) && gap.high.is_none_or(|high| key < high))
}

/// Returns the canceled and aborted tasks, which do not need a record.
fn dropped_ids(db: &Transaction<'_>, job: u32) -> rusqlite::Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    let mut statement =
        db.prepare_cached("SELECT first, count, step FROM dropped_data WHERE job = ?")?;
    let mut rows = statement.query([job])?;
    while let Some(row) = rows.next()? {
        let (first, count, step): (u32, u32, u32) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let all = (0..count).map(|n| first.saturating_add(n.saturating_mul(step)));
        ids.extend(all);
    }
    Ok(ids)
}

/// Restores counters that must not decrease, and counts missing events.
fn mend_counters(db: &Transaction<'_>, report: &mut RepairReport) -> rusqlite::Result<()> {
    let highest = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let last_job = highest(
        "SELECT max(coalesce((SELECT max(id) FROM job_data), 0), \
         coalesce((SELECT max(job) FROM event_log), 0))",
    )?;
    let last_worker = highest(
        "SELECT max(coalesce((SELECT max(id) FROM worker_data), 0), \
         coalesce((SELECT max(worker) FROM task_row_data), 0))",
    )?;
    let last_seq = highest("SELECT coalesce(max(seq), 0) FROM events")?;
    let events = highest("SELECT count(*) FROM events")?;
    let stored_seq = meta::number(db, "next_seq")?;
    report.lost_events = (stored_seq > 0).then(|| {
        let pruned = meta::number(db, "pruned_count").unwrap_or(0);
        u64::try_from(stored_seq - 1 - pruned - events).unwrap_or(0)
    });
    for (key, value) in [
        ("last_job", last_job),
        ("last_worker", last_worker),
        ("next_seq", last_seq + 1),
    ] {
        let value = value.max(meta::number(db, key)?);
        meta::set(db, key, value)?;
    }
    if meta::text(db, "server_uid")?.is_none() {
        // Each start of a server is recorded as an event with its uid.
        db.execute(
            "INSERT INTO meta SELECT 'server_uid', json_extract(data, '$.server_uid') FROM event_log \
             WHERE type = 'server-start' AND json_extract(data, '$.server_uid') IS NOT NULL \
             ORDER BY seq DESC LIMIT 1",
            [],
        )?;
    }
    // A repaired file is complete without the log.
    history::mark_log(db, None)?;
    meta::remove(db, history::LOG_BASE)?;
    // The next repair must not count known losses again.
    let next_seq = meta::number(db, "next_seq")?;
    meta::set(db, "pruned_count", next_seq - 1 - events)
}

/// Stores the report for the next start of a server.
fn note(fresh: &Path, report: &RepairReport) -> rusqlite::Result<()> {
    let connection = Connection::open(fresh)?;
    meta::set(&connection, meta::REPAIRED, report.to_string())?;
    connection.close().map_err(|(_, error)| error)
}

/// Renames the log so that its name matches the damaged file that was set aside.
pub(crate) fn set_log_aside(path: &Path, given: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Create {
        path: given.to_path_buf(),
        source,
    };
    let log = with_suffix(path, "-wal");
    std::fs::rename(&log, with_suffix(&free_name(path), "-wal")).map_err(failed)?;
    match std::fs::remove_file(with_suffix(path, "-shm")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Replaces the damaged file with the new one. If the process crashes at any point, at least one of
/// the two files exists.
fn swap(path: &Path, fresh: &Path, aside: &Path) -> io::Result<()> {
    File::open(fresh)?.sync_all()?;
    for companion in ["-wal", "-shm"] {
        let from = with_suffix(path, companion);
        if from.exists() {
            std::fs::rename(&from, with_suffix(aside, companion))?;
        }
    }
    std::fs::hard_link(path, aside).or_else(|_| std::fs::copy(path, aside).map(|_| ()))?;
    std::fs::rename(fresh, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn sibling_path(path: &Path, word: &str) -> PathBuf {
    with_suffix(path, &format!(".{word}"))
}

fn with_companions(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-journal"].map(|suffix| with_suffix(path, suffix))
}

/// Returns the first unused name among `FILE.damaged-1`, `FILE.damaged-2`, and so on.
fn free_name(path: &Path) -> PathBuf {
    (1_u32..)
        .map(|number| sibling_path(path, &format!("damaged-{number}")))
        .find(|name| !name.exists())
        .unwrap_or_else(|| sibling_path(path, "damaged"))
}

#[cfg(test)]
mod tests;
