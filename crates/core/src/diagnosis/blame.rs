//! Evidence against single workers, gathered as tasks end: do jobs that fail on one worker succeed
//! elsewhere?
//!
//! Each worker has a *run*: the ends on it since failures began to prevail. A run starts with a
//! failure and is over when as many tasks succeeded as failed. This is Page's cumulative sum (1954)
//! with steps of one, so a node that breaks after a good week is found as fast as one that never
//! worked.
//!
//! The exact test of [`exact`] compares a run with the ends of the same jobs on other workers. The
//! test is repeated often, for many workers. So its level is divided among all possible tests
//! (Bonferroni): among the workers, and for each among its runs and the looks at each run, with
//! shares of 1 / (i · (i + 1)), which add up to one. Hence a job whose tasks fail independently of
//! the node brings any worker under suspicion with a probability below the level, however long it
//! lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Ends;
use super::exact::{Stratum, p_value};
use crate::id::{JobId, WorkerId};

/// Significance level of a suspicion. Failed tasks are then retried elsewhere, which decides.
const SUSPECT_LEVEL: f64 = 0.05;
/// Significance level of blame, if the retries agree.
const GUILTY_LEVEL: f64 = 0.01;
/// Minimum excess of failures over successes to suspect a worker.
const SUSPECT_EXCESS: u32 = 2;
/// Minimum excess of failures over successes to blame a worker.
const GUILTY_EXCESS: u32 = 3;
/// Excess that suffices for a suspicion while next to nothing is known of other workers: short
/// failures can empty a queue before any task has ended elsewhere.
const UNKNOWN_EXCESS: u32 = 5;
/// Fewer ends elsewhere count as unknown.
const KNOWN_MIN: u64 = 3;
/// Upper bound of the excess, so that a repaired node is not distrusted for as long as it was
/// broken.
const EXCESS_MAX: u32 = 16;
/// Limit of compared ends of a run, and of their jobs: more would only cost time.
const RUN_MAX: u64 = 128;
const RUN_JOBS_MAX: usize = 64;
/// Limit of recorded pairs of job and worker, a few megabytes; beyond it the oldest jobs are
/// dropped.
const CELLS_MAX: usize = 1 << 16;

/// Outcomes of the last tasks of one job on one worker: a bit each, the newest lowest, set for a
/// failure.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    bits: u64,
    len: u8,
}

impl Recent {
    /// Adds an outcome; returns the one that drops out.
    fn push(&mut self, is_bad: bool) -> Option<bool> {
        let is_full = u32::from(self.len) == u64::BITS;
        let oldest = is_full.then_some(self.bits >> (u64::BITS - 1) == 1);
        self.bits = (self.bits << 1) | u64::from(is_bad);
        self.len += u8::from(!is_full);
        oldest
    }

    fn ends(self) -> Ends {
        let bad = u64::from(self.bits.count_ones());
        Ends {
            good: u64::from(self.len) - bad,
            bad,
        }
    }
}

/// Ends of the tasks of one job.
#[derive(Clone, Default, Debug)]
struct JobEnds {
    /// The last ones on each worker.
    recent: BTreeMap<WorkerId, Recent>,
    /// Their sum.
    sum: Ends,
    /// All ends so far.
    ever: Ends,
    /// Whether its tasks that failed on a suspected worker also failed elsewhere.
    is_to_blame: bool,
}

/// The ends of one job in a run.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Compared ends.
    own: Ends,
    /// All ends.
    all: Ends,
    /// Ends of the job before the run, on any worker.
    before: Ends,
}

/// Ends on a worker since failures began to prevail.
#[derive(Clone, Default, Debug)]
struct Run {
    /// Number of the run on this worker, from 1.
    number: u64,
    /// Failures minus successes; 0 = no run.
    excess: u32,
    /// Compared ends, at most [`RUN_MAX`].
    ends: Ends,
    jobs: BTreeMap<JobId, Part>,
    /// Whether the last task failed.
    is_last_bad: bool,
    /// Tests without a new end on this worker, and successes elsewhere at the last one.
    looks: u64,
    known: u64,
    /// An error of the job that failed last.
    error: Option<(JobId, Box<str>)>,
}

/// The evidence against every worker.
#[derive(Clone, Default, Debug)]
pub(crate) struct Blame {
    jobs: BTreeMap<JobId, JobEnds>,
    cells: usize,
    runs: BTreeMap<WorkerId, Run>,
    /// Workers with an excess of at least [`UNKNOWN_EXCESS`].
    failing: BTreeSet<WorkerId>,
}

/// The workers that one is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Peers<'a> {
    /// Number of running tasks of a job on the examined worker.
    pub(crate) running: &'a dyn Fn(JobId) -> u32,
    /// Number of workers that may be examined, including this one.
    pub(crate) count: usize,
    /// Suspected workers among them: failures there say nothing about a job.
    pub(crate) doubtful: &'a [WorkerId],
}

impl Blame {
    /// Records how a task ended on a worker.
    pub(crate) fn note(&mut self, worker: WorkerId, job: JobId, is_bad: bool) {
        let before = self.count_end(worker, job, is_bad);
        if is_bad {
            self.make_room(worker, job);
        }
        let Some(run) = self.runs.get_mut(&worker).filter(|run| run.excess > 0) else {
            // Without failures there is no run.
            if is_bad {
                let run = self.runs.entry(worker).or_default();
                run.number += 1;
                run.add(job, is_bad, before);
            }
            return;
        };
        run.add(job, is_bad, before);
        if run.excess == 0 {
            run.end();
        }
        if run.excess >= UNKNOWN_EXCESS {
            self.failing.insert(worker);
        } else {
            self.failing.remove(&worker);
        }
    }

    /// Stores the error of a failure, unless the last stored one is of the same job.
    pub(crate) fn note_error(
        &mut self,
        worker: WorkerId,
        job: JobId,
        error: impl FnOnce() -> Box<str>,
    ) {
        if let Some(run) = self.runs.get_mut(&worker)
            && run.error.as_ref().is_none_or(|(of, _)| *of != job)
        {
            run.error = Some((job, error()));
        }
    }

    /// An error of its run, from the job that failed last.
    pub(crate) fn an_error(&self, worker: WorkerId) -> &str {
        let error = self.runs.get(&worker).and_then(|run| run.error.as_ref());
        error.map_or("", |(_, error)| error)
    }

    /// Adds an end to its job; returns the ends before.
    fn count_end(&mut self, worker: WorkerId, job: JobId, is_bad: bool) -> Ends {
        let ends = self.jobs.entry(job).or_default();
        let before = ends.ever;
        let known = ends.recent.len();
        let oldest = ends.recent.entry(worker).or_default().push(is_bad);
        self.cells += ends.recent.len() - known;
        ends.sum.count(is_bad);
        ends.ever.count(is_bad);
        match oldest {
            Some(true) => ends.sum.bad -= 1,
            Some(false) => ends.sum.good -= 1,
            None => {}
        }
        while self.cells > CELLS_MAX
            && let Some((_, oldest)) = self.jobs.pop_first()
        {
            self.cells -= oldest.recent.len();
        }
        before
    }

    /// Whether failures on a worker are so frequent, or so rare elsewhere, that retries elsewhere
    /// must decide.
    pub(crate) fn is_suspect(&self, worker: WorkerId, peers: Peers<'_>) -> bool {
        let Some(run) = self.run(worker, SUSPECT_EXCESS) else {
            return false;
        };
        // If most workers fail, the workers are not at fault.
        if self.failing.len().saturating_mul(2) > peers.count {
            return false;
        }
        // Two broken nodes must not excuse each other.
        let failing = self.failing.iter().copied();
        let failing = failing.filter(|other| !peers.doubtful.contains(other));
        let doubtful: Vec<WorkerId> = peers.doubtful.iter().copied().chain(failing).collect();
        let peers = Peers {
            doubtful: &doubtful,
            ..peers
        };
        let elsewhere = self.elsewhere(worker, run, peers);
        if elsewhere.total() < KNOWN_MIN {
            let job = |id| self.jobs.get(id);
            let mut jobs = run.jobs.keys();
            return self.run(worker, UNKNOWN_EXCESS).is_some()
                && jobs.any(|id| job(id).is_none_or(|job| !job.is_to_blame));
        }
        // Most failing jobs fail everywhere: then the test would only cost time.
        elsewhere.good >= elsewhere.bad && self.is_significant(worker, run, peers, SUSPECT_LEVEL)
    }

    /// Whether the failures of a worker cannot be chance.
    pub(crate) fn is_guilty(&self, worker: WorkerId, peers: Peers<'_>) -> bool {
        let run = self.run(worker, GUILTY_EXCESS);
        run.is_some_and(|run| self.is_significant(worker, run, peers, GUILTY_LEVEL))
    }

    /// Whether the jobs of its run succeeded elsewhere since the run began.
    pub(crate) fn succeeds_elsewhere(&self, worker: WorkerId) -> bool {
        self.since_it_began(worker).is_well()
    }

    /// Ends elsewhere of the jobs of its run, since the run began.
    fn since_it_began(&self, worker: WorkerId) -> Ends {
        let run = self.runs.get(&worker);
        let parts = run.into_iter().flat_map(|run| &run.jobs);
        parts.fold(Ends::default(), |sum, (job, part)| {
            let elsewhere = self.of_job_since(*job, part);
            Ends {
                good: sum.good + elsewhere.good,
                bad: sum.bad + elsewhere.bad,
            }
        })
    }

    /// Ends of a job elsewhere since its first end in the run.
    fn of_job_since(&self, job: JobId, part: &Part) -> Ends {
        let now = self.jobs.get(&job).map_or(part.before, |ends| ends.ever);
        let since = |now: u64, before: u64, own: u64| now.saturating_sub(before + own);
        Ends {
            good: since(now.good, part.before.good, part.all.good),
            bad: since(now.bad, part.before.bad, part.all.bad),
        }
    }

    /// In a full run, replaces a job that fails elsewhere as well by one that is not compared yet.
    fn make_room(&mut self, worker: WorkerId, job: JobId) {
        let Some(run) = self.runs.get(&worker) else {
            return;
        };
        if !run.is_full() || run.jobs.contains_key(&job) {
            return;
        }
        let says_nothing = |(id, part): &(&JobId, &Part)| {
            let is_to_blame = self.jobs.get(id).is_none_or(|job| job.is_to_blame);
            let elsewhere = self.of_job_since(**id, part);
            is_to_blame || (elsewhere.is_mostly_bad() && elsewhere.bad >= part.own.bad)
        };
        let found = run.jobs.iter().find(says_nothing).map(|(id, _)| *id);
        if let Some((id, run)) = found.zip(self.runs.get_mut(&worker)) {
            run.remove(id);
        }
    }

    /// Failures and ends of its run.
    pub(crate) fn run_ends(&self, worker: WorkerId) -> (u64, u64) {
        let run = self.runs.get(&worker);
        let parts = run.into_iter().flat_map(|run| run.jobs.values());
        parts.fold((0, 0), |(bad, ends), part| {
            (bad + part.all.bad, ends + part.all.total())
        })
    }

    /// Whether failures prevail on any worker.
    pub(crate) fn is_any_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// The next `max` workers after this one with prevailing failures, and the last of them if
    /// there are more. O(`max`).
    pub(crate) fn failing_behind(
        &self,
        behind: Option<WorkerId>,
        max: usize,
    ) -> (Option<WorkerId>, Vec<WorkerId>) {
        let first = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let mut all = self.failing.range((first, Bound::Unbounded));
        let some: Vec<WorkerId> = all.by_ref().take(max).copied().collect();
        (all.next().and(some.last().copied()), some)
    }

    /// Whether the last task there failed and no job of its run has a running task there: no
    /// further end will decide.
    pub(crate) fn has_nothing_more_to_show(
        &self,
        worker: WorkerId,
        runs_there: impl Fn(JobId) -> bool,
    ) -> bool {
        let run = self.runs.get(&worker);
        run.is_some_and(|run| run.is_last_bad && !run.jobs.keys().any(|job| runs_there(*job)))
    }

    /// Whether another failure on a worker adds evidence. In a full run only ends elsewhere do.
    pub(crate) fn is_news(&mut self, worker: WorkerId) -> bool {
        let run = self.runs.get(&worker);
        run.is_none_or(|run| run.ends.total() < RUN_MAX) || self.begin_look(worker)
    }

    /// Counts a test of a worker's run if the successes of its jobs elsewhere grew by half since
    /// the last one.
    pub(crate) fn begin_look(&mut self, worker: WorkerId) -> bool {
        let known = self.since_it_began(worker).good;
        let Some(run) = self.runs.get_mut(&worker) else {
            return false;
        };
        let is_worth_it = known >= KNOWN_MIN && known * 2 >= run.known * 3;
        if is_worth_it {
            run.looks += 1;
            run.known = known;
        }
        is_worth_it
    }

    /// Whether failures prevail on a worker at present.
    pub(crate) fn is_failing(&self, worker: WorkerId) -> bool {
        self.runs.get(&worker).is_some_and(|run| run.excess > 0)
    }

    /// Blames the jobs of its run: tasks that failed there also fail elsewhere.
    pub(crate) fn blame_jobs(&mut self, worker: WorkerId) {
        let run = self.runs.get(&worker);
        for job in run.into_iter().flat_map(|run| run.jobs.keys()) {
            if let Some(job) = self.jobs.get_mut(job) {
                job.is_to_blame = true;
            }
        }
    }

    /// Starts over: the failures were not the worker's fault, or their cause is gone.
    pub(crate) fn clear(&mut self, worker: WorkerId) {
        self.failing.remove(&worker);
        if let Some(run) = self.runs.get_mut(&worker) {
            run.end();
        }
    }

    /// Forgets a worker that is gone.
    pub(crate) fn forget_worker(&mut self, worker: WorkerId) {
        self.failing.remove(&worker);
        self.runs.remove(&worker);
    }

    fn run(&self, worker: WorkerId, excess_min: u32) -> Option<&Run> {
        let run = self.runs.get(&worker)?;
        // The excess includes failures of jobs that have left the run, which are no evidence.
        let is_much = run.excess >= excess_min && run.ends.bad >= u64::from(excess_min);
        is_much.then_some(run)
    }

    fn is_significant(&self, worker: WorkerId, run: &Run, peers: Peers<'_>, level: f64) -> bool {
        let strata = run.jobs.iter().map(|(job, part)| {
            let elsewhere = self.elsewhere_of(worker, *job, peers.doubtful);
            // Failures are short: where some inputs are bad, the first ends of a node are failures.
            // So tasks that have been running since then count as successes, except replacements of
            // failed tasks.
            let all = count(part.all.total());
            let running_on = (peers.running)(*job).saturating_sub(all);
            Stratum {
                here: count(part.own.total()).saturating_add(running_on),
                here_bad: count(part.own.bad),
                elsewhere: count(elsewhere.total()),
                elsewhere_bad: count(elsewhere.bad),
            }
        });
        // A test without a new end counts as a look of its own.
        let shares = [run.number, run.ends.total() + run.looks].map(|i| f64::from(count(i)));
        let divisor: f64 = shares.iter().map(|i| i * (i + 1.0)).product();
        let workers = f64::from(count(peers.count as u64));
        p_value(strata) <= level / (workers.max(1.0) * divisor)
    }

    fn elsewhere(&self, worker: WorkerId, run: &Run, peers: Peers<'_>) -> Ends {
        let mut sum = Ends::default();
        for job in run.jobs.keys() {
            let ends = self.elsewhere_of(worker, *job, peers.doubtful);
            sum.good += ends.good;
            sum.bad += ends.bad;
        }
        sum
    }

    /// The last ends of a job on other workers that are not suspected.
    fn elsewhere_of(&self, worker: WorkerId, job: JobId, doubtful: &[WorkerId]) -> Ends {
        let Some(ends) = self.jobs.get(&job) else {
            return Ends::default();
        };
        let mut sum = ends.sum;
        let others = doubtful.iter().filter(|other| **other != worker);
        for other in others.chain([&worker]) {
            let left_out = ends.recent.get(other).map_or(Ends::default(), |r| r.ends());
            sum.good -= left_out.good;
            sum.bad -= left_out.bad;
        }
        sum
    }
}

impl Run {
    fn add(&mut self, job: JobId, is_bad: bool, before: Ends) {
        self.excess = if is_bad {
            (self.excess + 1).min(EXCESS_MAX)
        } else {
            self.excess.saturating_sub(1)
        };
        self.is_last_bad = is_bad;
        let is_compared = self.ends.total() < RUN_MAX;
        if is_compared && self.jobs.len() < RUN_JOBS_MAX {
            self.jobs.entry(job).or_insert(Part {
                own: Ends::default(),
                all: Ends::default(),
                before,
            });
        }
        let Some(part) = self.jobs.get_mut(&job) else {
            return;
        };
        part.all.count(is_bad);
        if is_compared {
            self.ends.count(is_bad);
            part.own.count(is_bad);
        }
    }

    /// Whether a further job would not be compared.
    fn is_full(&self) -> bool {
        self.ends.total() >= RUN_MAX || self.jobs.len() >= RUN_JOBS_MAX
    }

    /// Removes a job: the rest is another run.
    fn remove(&mut self, job: JobId) {
        if let Some(part) = self.jobs.remove(&job) {
            self.ends.good -= part.own.good;
            self.ends.bad -= part.own.bad;
            self.number += 1;
            (self.looks, self.known) = (0, 0);
            self.error = None;
        }
    }

    fn end(&mut self) {
        self.excess = 0;
        self.ends = Ends::default();
        self.jobs.clear();
        (self.looks, self.known) = (0, 0);
        self.error = None;
    }
}

/// For arithmetic: values above four billion make no difference.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
