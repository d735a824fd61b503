//! Keeps the file as small as its contents.
//!
//! Compaction folds finished tasks into stretches, which take up less space. It deletes the rows of
//! forgotten jobs, the oldest completed jobs when the file reaches its maximum size, and the oldest
//! worker overviews when they take up too much of it. It then returns free pages to the file
//! system. Each step takes a few milliseconds between commits, so no commit has to wait long. A
//! crash between two steps leaves jobs that are marked as forgotten; the next server deletes them.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::lease;

mod fold;
mod sweep;

use fold::Fold;
#[cfg(any(test, feature = "testing"))]
pub(crate) use fold::fold_all;
use sweep::{Scope, Sweep};

/// The minimum interval between two checks of the file size.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval between the starts of two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a failed step, for example if the disk is full.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);
/// The pause between two steps.
const STEP_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two steps of a prune that a client waits for.
const PRUNE_PAUSE: Duration = Duration::from_millis(2);
/// The minimum number of tasks that finish between two passes over all rows. If the last pass left
/// more rows than that, at least as many tasks must finish, so a pass costs no more than the tasks
/// that have finished since.
const FOLD_MIN: u64 = 1_024;
/// The pause after a step of a fold, as a multiple of the step's duration, so that commits get most
/// of the thread's time.
const FOLD_PAUSE: u32 = 2;
/// The number of pages that one step returns to the file system.
const STEP_PAGES: u32 = 256;
/// The number of free pages kept for new rows: 1 MiB, or a share of the file if that is more.
const RESERVE_PAGES: u64 = 256;
/// The share of the file that may be free: one page in this many.
const RESERVE_SHARE: u64 = 4;
/// An idle file with fewer free pages than this gets spare pages.
const SPARE_PAGES_MIN: u64 = 16;
/// The number of spare pages to add. Commits use them without growing the file. A prune returns
/// them, so it shrinks the file even if the deleted rows shared all their pages with other rows.
const SPARE_PAGES: u64 = 64;
/// The maximum size in pages (4 MiB) of a file that a prune rewrites as a whole, which makes the
/// file as small as possible.
const REWRITE_PAGES_MAX: u64 = 1_024;
/// The size at which the server warns, in percent of the maximum.
const WARN_PERCENT: u64 = 80;
/// The size of a full file after its reduction, in percent of the maximum.
const TARGET_PERCENT: u64 = 75;
/// The maximum share of worker overviews, in percent of the maximum size.
const OVERVIEW_PERCENT: u64 = 25;
/// The maximum size of all worker overviews in bytes, even in a file without a maximum size.
const OVERVIEW_BYTES_MAX: u64 = 1 << 30;
/// The approximate size of a task in bytes, used to choose how many jobs to drop.
const TASK_LEN: u64 = 100;
/// The approximate size of a job in bytes.
const JOB_LEN: u64 = 1_000;
/// The approximate size of an overview without its text, in bytes.
const OVERVIEW_LEN: u64 = 50;

/// The result of a prune.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// The number of jobs that were dropped.
    pub jobs: u64,
}

/// The current phase of the compaction.
#[derive(Debug)]
enum Phase {
    Idle,
    /// Folds rows into stretches.
    Fold(Fold),
    /// Deletes rows.
    Sweep(Sweep),
    /// Returns free pages.
    Shrink,
    /// Rewrites the file.
    Rewrite,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StepOutcome {
    /// Whether the writer should now checkpoint the write-ahead log.
    pub(crate) has_finished: bool,
    /// The result of the prune, if one has just ended.
    pub(crate) pruned: Option<Pruned>,
}

/// Runs compaction step by step. A step only commits if no other server has taken over the store.
#[derive(Debug)]
pub(crate) struct Compactor {
    fence: i64,
    /// The maximum size of the file in bytes. `None` means unlimited.
    size_max: Option<u64>,
    phase: Phase,
    looked: Option<Instant>,
    swept: Option<Instant>,
    /// Whether jobs have been forgotten since the last sweep. A new server does not know this and
    /// assumes that some have.
    is_sweep_wanted: bool,
    is_warned: bool,
    /// Whether jobs were dropped that may have been the last to refer to a lost worker.
    has_dropped: bool,
    /// The number of overviews in the file. `None` if they have not been counted yet.
    overviews: Option<u64>,
    /// The number of tasks that have finished since the last fold began, and the number of rows
    /// that this fold left.
    finished: u64,
    left: u64,
    prune: Option<Pruned>,
    pause_until: Option<Instant>,
}

impl Compactor {
    pub(crate) const fn new(fence: i64, size_max: Option<u64>) -> Self {
        Self {
            fence,
            size_max,
            phase: Phase::Idle,
            looked: None,
            swept: None,
            is_sweep_wanted: true,
            is_warned: false,
            has_dropped: false,
            overviews: None,
            finished: 0,
            left: 0,
            prune: None,
            pause_until: None,
        }
    }

    /// Schedules a fold if an earlier server left rows of tasks.
    pub(crate) fn note_rows(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let sql = "SELECT EXISTS (SELECT 1 FROM task_row_data)";
        if db.query_row(sql, [], |row| row.get(0))? {
            self.finished = FOLD_MIN;
        }
        Ok(())
    }

    pub(crate) const fn add_finished(&mut self, count: u64) {
        self.finished += count;
    }

    /// Requests a sweep of forgotten jobs.
    pub(crate) const fn want_sweep(&mut self) {
        self.is_sweep_wanted = true;
    }

    pub(crate) fn add_overviews(&mut self, count: u64) {
        if let Some(overviews) = &mut self.overviews {
            *overviews += count;
        }
    }

    /// Returns whether [`Compactor::step`] has work to do now.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
            && self.pause_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Returns the time that is left for commits before the next step. Returns `None` if there is
    /// no next step.
    pub(crate) fn pause_len(&self) -> Option<Duration> {
        if matches!(self.phase, Phase::Idle) {
            return None;
        }
        if let (Phase::Fold(_), Some(until)) = (&self.phase, self.pause_until) {
            return Some(until.saturating_duration_since(Instant::now()));
        }
        let pause = if self.prune.is_some() {
            PRUNE_PAUSE
        } else {
            STEP_PAUSE
        };
        self.is_busy().then_some(pause)
    }

    /// Schedules another fold if one was interrupted.
    fn end_fold(&mut self) {
        if matches!(self.phase, Phase::Fold(_)) {
            self.finished += FOLD_MIN.max(self.left);
        }
    }

    /// Abandons the current phase after a failed step, which was rolled back, and starts again
    /// after a pause. A prune is also abandoned.
    pub(crate) fn give_up(&mut self) {
        self.end_fold();
        self.phase = Phase::Idle;
        self.is_sweep_wanted = true;
        self.swept = None;
        self.overviews = None;
        self.prune = None;
        self.pause_until = Some(Instant::now() + FAILURE_PAUSE);
    }

    /// Looks for work, at most once per interval. Returns `false` if another server has taken over
    /// the store.
    pub(crate) fn look(&mut self, db: &mut Connection, path: &Path) -> rusqlite::Result<bool> {
        let is_recent = |last: Option<Instant>, span| last.is_some_and(|at| at.elapsed() < span);
        let is_paused = self.pause_until.is_some_and(|until| Instant::now() < until);
        let is_idle = matches!(self.phase, Phase::Idle);
        if !is_idle || is_paused || is_recent(self.looked, LOOK_INTERVAL) {
            return Ok(true);
        }
        self.pause_until = None;
        self.looked = Some(Instant::now());
        let overviews = self.check_overviews(db)?;
        // Drop jobs only if the file is still too large without these overviews.
        if overviews == 0 && !self.check_size(db, path)? {
            return Ok(false);
        }
        let is_due = self.is_sweep_wanted && !is_recent(self.swept, SWEEP_INTERVAL);
        if is_due || overviews > 0 {
            let scope = Scope {
                with_workers: self.has_dropped,
                is_prune: false,
                overviews,
            };
            self.phase = Phase::Sweep(Sweep::new(&db.transaction()?, scope)?);
            self.swept = Some(Instant::now());
            self.is_sweep_wanted = false;
            self.has_dropped = false;
        } else if matches!(self.phase, Phase::Idle) && self.finished >= FOLD_MIN.max(self.left) {
            self.phase = Phase::Fold(Fold::new());
            self.finished = 0;
        }
        Ok(true)
    }

    fn check_size(&mut self, db: &mut Connection, path: &Path) -> rusqlite::Result<bool> {
        let Some(size_max) = self.size_max else {
            return Ok(true);
        };
        let size = Size::of(db)?;
        let (used, file) = (size.used(), path.display());
        if size.pages * size.page_len > size_max && size.free > size.reserve(Some(size_max)) {
            self.phase = Phase::Shrink;
        }
        if used < percent(size_max, TARGET_PERCENT) {
            self.is_warned = false;
        }
        if used > size_max {
            let target = percent(size_max, TARGET_PERCENT);
            let Some(dropped) = forget_oldest(db, self.fence, used, target)? else {
                return Ok(false);
            };
            if dropped > 0 {
                tracing::warn!(
                    "The journal `{file}` has reached its maximum size of {}; the {dropped} oldest \
                     completed jobs are dropped from it",
                    Bytes(size_max)
                );
                self.is_sweep_wanted = true;
                self.swept = None;
                self.has_dropped = true;
            } else if !self.is_warned {
                tracing::warn!(
                    "The journal `{file}` is larger than {}, but it contains no completed jobs; \
                     nothing is dropped",
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
        Ok(true)
    }

    /// Returns how many of the oldest overviews exceed the limit. Forgetting a job does not remove
    /// any overviews, and a worker may send one every second.
    fn check_overviews(&mut self, db: &Connection) -> rusqlite::Result<u64> {
        let count = match self.overviews {
            Some(count) => count,
            None => {
                let sql = "SELECT count(*) FROM event_log INDEXED BY event_overview \
                           WHERE type = 'worker-overview'";
                let count: u32 = db.query_row(sql, [], |row| row.get(0))?;
                *self.overviews.insert(count.into())
            }
        };
        if count == 0 {
            return Ok(0);
        }
        let sql = "SELECT coalesce(avg(len), 0) FROM (SELECT length(data) AS len FROM event_log \
                   INDEXED BY event_overview WHERE type = 'worker-overview' ORDER BY seq DESC LIMIT 100)";
        let len = db
            .prepare_cached(sql)?
            .query_row([], |row| row.get::<_, f64>(0))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length"
        )]
        let len = len as u64 + OVERVIEW_LEN;
        let share = self.size_max.map(|max| percent(max, OVERVIEW_PERCENT));
        let count_max = share.unwrap_or(u64::MAX).min(OVERVIEW_BYTES_MAX) / len;
        if count <= count_max {
            return Ok(0);
        }
        // Deletes more than necessary, so that this rarely happens.
        let kept = percent(count_max, TARGET_PERCENT);
        self.overviews = Some(kept);
        Ok(count - kept)
    }

    /// Starts to delete all completed and forgotten jobs, lost workers and overviews.
    /// [`StepOutcome::pruned`] reports when this is done. Returns `false` if another server has
    /// taken over the store.
    pub(crate) fn prune(&mut self, db: &mut Connection) -> rusqlite::Result<bool> {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let jobs = transaction.execute(
            "UPDATE job_data SET is_forgotten = 1 WHERE completed_unix_ns IS NOT NULL AND is_forgotten = 0",
            [],
        )?;
        let forgotten: u32 = transaction.query_row(
            "SELECT count(*) FROM job_data WHERE is_forgotten",
            [],
            |row| row.get(0),
        )?;
        if !lease::renew(&transaction, self.fence, true)? {
            return Ok(false);
        }
        let scope = Scope {
            is_prune: true,
            ..Scope::default()
        };
        let sweep = Sweep::new(&transaction, scope)?;
        transaction.commit()?;
        // This prune may replace one that is still running and has already deleted some of the
        // jobs.
        let earlier = self
            .prune
            .take()
            .map_or(0, |prune| prune.jobs + jobs as u64);
        let jobs = earlier.max(forgotten.into());
        self.prune = Some(Pruned { jobs });
        self.end_fold();
        self.phase = Phase::Sweep(sweep);
        self.overviews = Some(0);
        self.pause_until = None;
        Ok(true)
    }

    /// Runs one step. Returns `Ok(None)` if another server has taken over the store.
    ///
    /// The commit is synced even if no client waits for it. Otherwise, a power loss could leave two
    /// incomplete transactions in the log, this one and the next, which would look like damage; see
    /// `log`.
    pub(crate) fn step(&mut self, db: &mut Connection) -> rusqlite::Result<Option<StepOutcome>> {
        self.pause_until = None;
        let began = Instant::now();
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let is_prune = self.prune.is_some();
        let is_done = match &mut self.phase {
            Phase::Idle => return Ok(Some(StepOutcome::default())),
            Phase::Fold(fold) => fold.step(&transaction)?,
            Phase::Sweep(sweep) => sweep.step(&transaction)?,
            Phase::Shrink => shrink_some(&transaction, is_prune, self.size_max)?,
            Phase::Rewrite => true,
        };
        if !lease::renew(&transaction, self.fence, true)? {
            return Ok(None);
        }
        transaction.commit()?;
        if !is_done {
            if matches!(self.phase, Phase::Fold(_)) {
                self.pause_until = Some(Instant::now() + began.elapsed() * FOLD_PAUSE);
            }
            return Ok(Some(StepOutcome::default()));
        }
        let has_finished = matches!(self.phase, Phase::Shrink | Phase::Rewrite);
        self.phase = match &self.phase {
            Phase::Fold(fold) => {
                self.left = fold.left;
                // Tasks that finish in the meantime use the free pages.
                if self.finished < FOLD_MIN && fold.folded > 0 {
                    Phase::Shrink
                } else {
                    Phase::Idle
                }
            }
            Phase::Sweep(_) if is_prune && Size::of(db)?.pages <= REWRITE_PAGES_MAX => {
                Phase::Rewrite
            }
            Phase::Sweep(_) => Phase::Shrink,
            Phase::Rewrite => {
                // VACUUM cannot run in the fenced transaction. It only moves pages, so a server
                // that takes over in between loses nothing.
                db.execute_batch("VACUUM")?;
                Phase::Idle
            }
            Phase::Shrink | Phase::Idle => Phase::Idle,
        };
        Ok(Some(StepOutcome {
            has_finished,
            pruned: self.prune.take_if(|_| has_finished),
        }))
    }

    /// Adds spare pages to the file. Returns `false` if another server has taken over the store.
    pub(crate) fn top_up(&self, db: &mut Connection) -> rusqlite::Result<bool> {
        if !matches!(self.phase, Phase::Idle) || Size::of(db)?.free >= SPARE_PAGES_MIN {
            return Ok(true);
        }
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let len = SPARE_PAGES * Size::of(&transaction)?.page_len;
        transaction.execute_batch(&format!(
            "CREATE TABLE spare (bytes BLOB); INSERT INTO spare VALUES (zeroblob({len})); DROP TABLE spare"
        ))?;
        let is_ours = lease::renew(&transaction, self.fence, true)?;
        if is_ours {
            transaction.commit()?;
        }
        Ok(is_ours)
    }
}

/// Returns the size of the file after a full checkpoint, in bytes.
pub(crate) fn file_len(db: &Connection) -> rusqlite::Result<u64> {
    let size = Size::of(db)?;
    Ok(size.pages * size.page_len)
}

fn percent(of: u64, percent: u64) -> u64 {
    of / 100 * percent
}

/// Displays a number of bytes with a binary unit.
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

    /// Returns the number of bytes in use.
    const fn used(&self) -> u64 {
        self.pages.saturating_sub(self.free) * self.page_len
    }

    /// Returns the number of free pages that may be kept for new rows without exceeding the maximum
    /// size.
    fn reserve(&self, size_max: Option<u64>) -> u64 {
        let wanted = RESERVE_PAGES.max(self.pages / RESERVE_SHARE);
        let Some(size_max) = size_max else {
            return wanted;
        };
        let room = size_max.saturating_sub(self.used()) / self.page_len.max(1);
        // This must be at least the number of spare pages of an idle file. Otherwise, pages would
        // be added and returned alternately forever.
        wanted.min(room).max(SPARE_PAGES)
    }
}

/// Marks completed jobs as forgotten, oldest first, until the rest is expected to fit. Returns the
/// number of jobs, or `None` if another server has taken over the store.
fn forget_oldest(
    db: &mut Connection,
    fence: i64,
    used: u64,
    target: u64,
) -> rusqlite::Result<Option<u64>> {
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
    if !lease::renew(&transaction, fence, true)? {
        return Ok(None);
    }
    transaction.commit()?;
    Ok(Some(victims.len() as u64))
}

/// Returns some free pages to the file system. Returns `true` when few enough are left.
fn shrink_some(
    db: &Transaction<'_>,
    is_prune: bool,
    size_max: Option<u64>,
) -> rusqlite::Result<bool> {
    let size = Size::of(db)?;
    let reserve = if is_prune { 0 } else { size.reserve(size_max) };
    if size.free <= reserve {
        return Ok(true);
    }
    let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({STEP_PAGES})"))?;
    // Each row stands for one page.
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    drop(rows);
    // A file created by an early release cannot return single pages.
    Ok(Size::of(db)?.free == size.free)
}

#[cfg(test)]
mod tests;
