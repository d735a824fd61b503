//! Keeping the file as small as what it has to hold.
//!
//! Rows of forgotten jobs go; so do the oldest completed jobs when the file reaches its largest size. Pages
//! that are free then go back to the file system. All in steps of a few milliseconds between commits, so
//! that nobody waits for it. A crash between two steps leaves jobs that are marked as forgotten, and the
//! next server goes on with them.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior};

use crate::group::set_number;
use crate::{lease, load};

/// Least time between two looks at the size.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between the beginnings of two sweeps: each reads the log of events once.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a step that could not be done, e.g. for want of room.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);
/// Rows that one step deletes.
const STEP_ROWS: u32 = 2_000;
/// Pages that one step gives back.
const STEP_PAGES: u32 = 256;
/// Free pages that are kept for what comes next: 1 MiB, or a share of the file if that is more.
const RESERVE_PAGES: u64 = 256;
/// Part of the file that may be free: one in this many pages.
const RESERVE_SHARE: u64 = 4;
/// Percent of the largest size at which people are warned, and to which the file is emptied.
const WARN_PERCENT: u64 = 80;
const TARGET_PERCENT: u64 = 75;
/// Bytes that a task and a job cost roughly; only to choose how many jobs are enough.
const TASK_LEN: u64 = 100;
const JOB_LEN: u64 = 1_000;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    /// Rows of forgotten jobs are deleted.
    Sweep,
    /// Free pages are given back.
    Shrink,
}

/// Does one step after the other.
#[derive(Debug)]
pub(crate) struct Compactor {
    /// Bytes that the file may have; `None` = any number.
    size_max: Option<u64>,
    phase: Phase,
    looked: Option<Instant>,
    swept: Option<Instant>,
    /// Whether something was forgotten since the last sweep; a new server does not know.
    is_sweep_wanted: bool,
    is_warned: bool,
    /// Whether lost workers may have lost their last task.
    has_dropped: bool,
    pause_until: Option<Instant>,
}

impl Compactor {
    pub(crate) const fn new(size_max: Option<u64>) -> Self {
        Self {
            size_max,
            phase: Phase::Idle,
            looked: None,
            swept: None,
            is_sweep_wanted: true,
            is_warned: false,
            has_dropped: false,
            pause_until: None,
        }
    }

    /// Jobs were forgotten.
    pub(crate) const fn want_sweep(&mut self) {
        self.is_sweep_wanted = true;
    }

    /// Whether [`Compactor::step`] has something to do now.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase != Phase::Idle && self.pause_until.is_none_or(|until| Instant::now() >= until)
    }

    /// The last step failed; the next one can wait.
    pub(crate) fn pause(&mut self) {
        self.pause_until = Some(Instant::now() + FAILURE_PAUSE);
    }

    /// Looks what there is to do, at most once in a while.
    pub(crate) fn look(&mut self, db: &mut Connection, path: &Path) -> rusqlite::Result<()> {
        let is_recent = |last: Option<Instant>, span| last.is_some_and(|at| at.elapsed() < span);
        if self.phase != Phase::Idle || is_recent(self.looked, LOOK_INTERVAL) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        self.look_at_size(db, path)?;
        if self.is_sweep_wanted && !is_recent(self.swept, SWEEP_INTERVAL) {
            self.swept = Some(Instant::now());
            self.is_sweep_wanted = false;
            self.phase = Phase::Sweep;
        }
        Ok(())
    }

    fn look_at_size(&mut self, db: &mut Connection, path: &Path) -> rusqlite::Result<()> {
        let Some(size_max) = self.size_max else {
            return Ok(());
        };
        let size = Size::of(db)?;
        let (used, file) = (size.used(), path.display());
        if used < percent(size_max, TARGET_PERCENT) {
            self.is_warned = false;
        }
        if used > size_max {
            let dropped = forget_oldest(db, used, percent(size_max, TARGET_PERCENT))?;
            if dropped > 0 {
                tracing::warn!(
                    "The journal `{file}` has reached its largest size of {}; the {dropped} oldest \
                     completed jobs are dropped from it",
                    Bytes(size_max)
                );
                self.is_sweep_wanted = true;
                self.swept = None;
                self.has_dropped = true;
            } else if !self.is_warned {
                tracing::warn!(
                    "The journal `{file}` is larger than {}, but nothing in it is completed; it is \
                     all kept",
                    Bytes(size_max)
                );
            }
            self.is_warned = true;
        } else if used > percent(size_max, WARN_PERCENT) && !self.is_warned {
            self.is_warned = true;
            tracing::warn!(
                "The journal `{file}` has {} of at most {}; when it is full, the oldest completed \
                 jobs are dropped from it. See `hq server start --journal-max-size`",
                Bytes(used),
                Bytes(size_max)
            );
        }
        Ok(())
    }

    /// One step; returns whether the write-ahead log should be moved into the file now. `Ok(None)` if
    /// another server has taken the store over.
    pub(crate) fn step(
        &mut self,
        db: &mut Connection,
        fence: i64,
    ) -> rusqlite::Result<Option<bool>> {
        self.pause_until = None;
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let is_done = match self.phase {
            Phase::Idle => return Ok(Some(false)),
            Phase::Sweep => sweep_some(&transaction, self.has_dropped)?,
            Phase::Shrink => shrink_some(&transaction)?,
        };
        if !lease::renew(&transaction, fence, true)? {
            return Ok(None);
        }
        transaction.commit()?;
        let was = self.phase;
        if is_done {
            self.phase = match was {
                Phase::Sweep => Phase::Shrink,
                Phase::Shrink | Phase::Idle => Phase::Idle,
            };
            self.has_dropped = false;
        }
        Ok(Some(is_done && was == Phase::Shrink))
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    of / 100 * percent
}

/// Bytes for people.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes >= 10 << 30 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes >= 10 << 20 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} KiB", bytes >> 10),
        }
    }
}

/// How large a file is, in pages.
struct Size {
    pages: u64,
    free: u64,
    page_len: u64,
}

impl Size {
    fn of(db: &Connection) -> rusqlite::Result<Self> {
        let number = |name| db.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
        Ok(Self {
            pages: number("page_count")?.into(),
            free: number("freelist_count")?.into(),
            page_len: number("page_size")?.into(),
        })
    }

    /// Bytes that hold something.
    const fn used(&self) -> u64 {
        self.pages.saturating_sub(self.free) * self.page_len
    }
}

/// Marks completed jobs as forgotten, oldest first, until what is left should be small enough. Returns how
/// many.
fn forget_oldest(db: &mut Connection, used: u64, target: u64) -> rusqlite::Result<u64> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut victims: Vec<u32> = Vec::new();
    let mut freed = 0;
    {
        let sql = "SELECT j.id, coalesce(sum(s.task_count), 0), coalesce(sum(length(s.spec)), 0) \
                   FROM job_data j LEFT JOIN submit_data s ON s.job = j.id \
                   WHERE j.completed_unix_ns IS NOT NULL AND j.is_forgotten = 0 \
                   GROUP BY j.id ORDER BY j.completed_unix_ns, j.id";
        let mut jobs = transaction.prepare_cached(sql)?;
        let mut rows = jobs.query([])?;
        while let Some(row) = rows.next()? {
            if used.saturating_sub(freed) <= target {
                break;
            }
            let (tasks, spec_len): (u32, u32) = (row.get(1)?, row.get(2)?);
            freed += JOB_LEN + u64::from(tasks) * TASK_LEN + u64::from(spec_len);
            victims.push(row.get(0)?);
        }
    }
    for job in &victims {
        transaction
            .prepare_cached("UPDATE job_data SET is_forgotten = 1 WHERE id = ?")?
            .execute([job])?;
    }
    transaction.commit()?;
    Ok(victims.len() as u64)
}

/// Deletes some rows of forgotten jobs; says whether none is left.
fn sweep_some(db: &Transaction<'_>, with_workers: bool) -> rusqlite::Result<bool> {
    let mut removed_events = 0;
    // With its key and the events that a row stands for.
    let tables = [
        (
            "task_data",
            "task",
            "(start_seq IS NOT NULL) + (end_seq IS NOT NULL)",
        ),
        ("attempt_data", "task, instance", "start_seq IS NOT NULL"),
        ("node_data", "task, instance, position", "0"),
        ("dropped_data", "rowid", "0"),
        ("notification_data", "number", "0"),
        ("submit_data", "rowid", "0"),
    ];
    let mut is_done = true;
    for (table, key, events) in tables {
        let sql = format!(
            "SELECT job FROM {table} WHERE job IN (SELECT id FROM job_data WHERE is_forgotten) LIMIT 1"
        );
        let job: Option<u32> = db
            .prepare_cached(&sql)?
            .query_row([], |row| row.get(0))
            .optional()?;
        let Some(job) = job else { continue };
        is_done = false;
        let sql = format!(
            "DELETE FROM {table} WHERE job = ?1 AND ({key}) IN \
             (SELECT {key} FROM {table} WHERE job = ?1 LIMIT {STEP_ROWS}) RETURNING {events}"
        );
        let mut statement = db.prepare_cached(&sql)?;
        let mut rows = statement.query([job])?;
        while let Some(row) = rows.next()? {
            removed_events += row.get::<_, i64>(0)?;
        }
        break;
    }
    if is_done {
        removed_events += sweep_events(db, with_workers)?;
    }
    if removed_events > 0 {
        let pruned = load::meta_number(db, "pruned_count")?;
        set_number(db, "pruned_count", pruned + removed_events)?;
    }
    Ok(is_done)
}

/// The last step of a sweep, in one go: events of forgotten jobs, the jobs themselves, and workers of which
/// nothing tells any more. Returns how many events went.
fn sweep_events(db: &Transaction<'_>, with_workers: bool) -> rusqlite::Result<i64> {
    let sql = "SELECT EXISTS (SELECT 1 FROM job_data WHERE is_forgotten)";
    if !db.query_row(sql, [], |row| row.get(0))? {
        return Ok(0);
    }
    let forgotten = "SELECT id FROM job_data WHERE is_forgotten";
    let mut removed = db.execute(
        &format!("DELETE FROM event_log WHERE job IN ({forgotten})"),
        [],
    )?;
    db.execute("DELETE FROM job_data WHERE is_forgotten", [])?;
    if with_workers {
        db.execute(
            "DELETE FROM worker_data WHERE ended_unix_ns IS NOT NULL \
             AND id NOT IN (SELECT worker FROM task_data) \
             AND id NOT IN (SELECT worker FROM attempt_data) \
             AND id NOT IN (SELECT worker FROM node_data)",
            [],
        )?;
        removed += db.execute(
            "DELETE FROM event_log WHERE worker IS NOT NULL \
             AND worker NOT IN (SELECT id FROM worker_data)",
            [],
        )?;
    }
    Ok(i64::try_from(removed).unwrap_or(0))
}

/// Gives some free pages back; says whether enough of them are gone.
fn shrink_some(db: &Transaction<'_>) -> rusqlite::Result<bool> {
    let size = Size::of(db)?;
    let reserve = RESERVE_PAGES.max(size.pages / RESERVE_SHARE);
    if size.free <= reserve {
        return Ok(true);
    }
    let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({STEP_PAGES})"))?;
    // Each row is a page.
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    drop(rows);
    // Files that an older version made cannot give single pages back.
    Ok(Size::of(db)?.free == size.free)
}

#[cfg(test)]
mod tests;
