//! Evidence against single workers, gathered as tasks end: whether jobs that fail on one worker
//! succeed elsewhere.
//!
//! Each worker has a *run*: the task outcomes on it since failures began to outnumber successes. A
//! run starts with a failure, and is over when as many tasks have succeeded as have failed. This is
//! Page's cumulative sum (1954) with steps of one, so a node that breaks after a good week is found
//! as fast as one that never worked.
//!
//! The exact test of [`exact`] compares a run with the outcomes of the same jobs on other workers.
//! The test is repeated often, for many workers. Its level is therefore divided among all possible
//! tests (Bonferroni): among the workers, and for each worker among its runs and the tests of each
//! run, with shares of 1 / (i · (i + 1)), which add up to one. If the tasks of a job fail
//! independently of the node, the probability that any worker comes under suspicion stays below the
//! level, no matter how long the job lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Ends;
use super::exact::{Stratum, p_value};
use crate::id::{JobId, WorkerId};

/// The significance level of a suspicion. Failed tasks are then retried elsewhere, and their
/// outcomes decide.
const SUSPECT_LEVEL: f64 = 0.05;
/// The significance level of blame, if the retries agree.
const GUILTY_LEVEL: f64 = 0.01;
/// The minimum excess of failures over successes to suspect a worker.
const SUSPECT_EXCESS: u32 = 2;
/// The minimum excess of failures over successes to blame a worker.
const GUILTY_EXCESS: u32 = 3;
/// The excess that suffices for a suspicion while almost nothing is known about other workers.
/// Short failures can empty a queue before any task has ended elsewhere.
const UNKNOWN_EXCESS: u32 = 5;
/// With fewer outcomes elsewhere than this, the other workers count as unknown.
const KNOWN_MIN: u64 = 3;
/// The upper bound of the excess, so that a repaired node is not distrusted for as long as it was
/// broken.
const EXCESS_MAX: u32 = 16;
/// The maximum numbers of compared outcomes and jobs in a run. More would only cost time.
const RUN_MAX: u64 = 128;
const RUN_JOBS_MAX: usize = 64;
/// The maximum number of recorded pairs of a job and a worker, which take a few megabytes. Beyond
/// it, the oldest jobs are dropped.
const CELLS_MAX: usize = 1 << 16;

/// The outcomes of the last tasks of one job on one worker. Each outcome is a bit, which is set for
/// a failure. The newest outcome is the lowest bit.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    bits: u64,
    len: u8,
}

impl Recent {
    /// Adds an outcome, and returns the one that drops out.
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

/// The outcomes of the tasks of one job.
#[derive(Clone, Default, Debug)]
struct JobEnds {
    /// The latest outcomes on each worker.
    recent: BTreeMap<WorkerId, Recent>,
    /// The sum of the latest outcomes.
    sum: Ends,
    /// All outcomes so far.
    ever: Ends,
    /// Whether its tasks that failed on a suspected worker also failed elsewhere.
    is_to_blame: bool,
}

/// The outcomes of one job in a run.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The compared outcomes.
    own: Ends,
    /// All outcomes, including those that are not compared.
    all: Ends,
    /// The outcomes of the job before the run, on any worker.
    before: Ends,
}

/// The task outcomes on a worker since failures began to outnumber successes.
#[derive(Clone, Default, Debug)]
struct Run {
    /// The number of the run on this worker, counted from 1.
    number: u64,
    /// Failures minus successes. 0 if there is no run.
    excess: u32,
    /// The compared outcomes, at most [`RUN_MAX`].
    ends: Ends,
    jobs: BTreeMap<JobId, Part>,
    /// Whether the last task failed.
    is_last_bad: bool,
    /// The number of tests without a new outcome on this worker, and the number of successes
    /// elsewhere at the last test.
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
    /// The workers with an excess of at least [`UNKNOWN_EXCESS`].
    failing: BTreeSet<WorkerId>,
}

/// The workers that a worker is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Peers<'a> {
    /// Returns the number of running tasks of a job on the examined worker.
    pub(crate) running: &'a dyn Fn(JobId) -> u32,
    /// The number of workers that may be examined, including this one.
    pub(crate) count: usize,
    /// The suspected workers among them. Failures there say nothing about a job.
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

    /// Stores the error of a failure, unless the last stored error is from the same job.
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

    /// Returns an error of the worker's run, from the job that failed last.
    pub(crate) fn an_error(&self, worker: WorkerId) -> &str {
        let error = self.runs.get(&worker).and_then(|run| run.error.as_ref());
        error.map_or("", |(_, error)| error)
    }

    /// Adds an outcome to its job, and returns the earlier outcomes.
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

    /// Returns whether failures on a worker are so frequent, or so rare elsewhere, that retries
    /// elsewhere must decide.
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
        // Most failing jobs fail everywhere, and then the test would only cost time.
        elsewhere.good >= elsewhere.bad && self.is_significant(worker, run, peers, SUSPECT_LEVEL)
    }

    /// Returns whether the failures of a worker cannot be due to chance.
    pub(crate) fn is_guilty(&self, worker: WorkerId, peers: Peers<'_>) -> bool {
        let run = self.run(worker, GUILTY_EXCESS);
        run.is_some_and(|run| self.is_significant(worker, run, peers, GUILTY_LEVEL))
    }

    /// Returns whether the jobs of the worker's run have succeeded elsewhere since the run began.
    pub(crate) fn succeeds_elsewhere(&self, worker: WorkerId) -> bool {
        self.since_it_began(worker).is_well()
    }

    /// Returns the outcomes elsewhere of the jobs of the worker's run since the run began.
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

    /// Returns the outcomes of a job elsewhere since its first outcome in the run.
    fn of_job_since(&self, job: JobId, part: &Part) -> Ends {
        let now = self.jobs.get(&job).map_or(part.before, |ends| ends.ever);
        let since = |now: u64, before: u64, own: u64| now.saturating_sub(before + own);
        Ends {
            good: since(now.good, part.before.good, part.all.good),
            bad: since(now.bad, part.before.bad, part.all.bad),
        }
    }

    /// If the run is full, replaces a job that also fails elsewhere with one that is not compared
    /// yet.
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

    /// Returns the numbers of failures and of all outcomes in the worker's run.
    pub(crate) fn run_ends(&self, worker: WorkerId) -> (u64, u64) {
        let run = self.runs.get(&worker);
        let parts = run.into_iter().flat_map(|run| run.jobs.values());
        parts.fold((0, 0), |(bad, ends), part| {
            (bad + part.all.bad, ends + part.all.total())
        })
    }

    /// Returns whether failures prevail on any worker.
    pub(crate) fn is_any_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Returns the next `max` workers after this one on which failures prevail, and the last of
    /// them if there are more. Takes O(`max`).
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

    /// Returns whether the last task there failed and no job of its run has a running task there,
    /// so that no further outcome will decide.
    pub(crate) fn has_nothing_more_to_show(
        &self,
        worker: WorkerId,
        runs_there: impl Fn(JobId) -> bool,
    ) -> bool {
        let run = self.runs.get(&worker);
        run.is_some_and(|run| run.is_last_bad && !run.jobs.keys().any(|job| runs_there(*job)))
    }

    /// Returns whether another failure on a worker adds evidence. If its run is full, only outcomes
    /// elsewhere do.
    pub(crate) fn is_news(&mut self, worker: WorkerId) -> bool {
        let run = self.runs.get(&worker);
        run.is_none_or(|run| run.ends.total() < RUN_MAX) || self.begin_look(worker)
    }

    /// Counts a test of a worker's run if the successes of its jobs elsewhere have grown by half
    /// since the last test.
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

    /// Returns whether failures currently prevail on a worker.
    pub(crate) fn is_failing(&self, worker: WorkerId) -> bool {
        self.runs.get(&worker).is_some_and(|run| run.excess > 0)
    }

    /// Blames the jobs of a worker's run, because tasks that failed there also fail elsewhere.
    pub(crate) fn blame_jobs(&mut self, worker: WorkerId) {
        let run = self.runs.get(&worker);
        for job in run.into_iter().flat_map(|run| run.jobs.keys()) {
            if let Some(job) = self.jobs.get_mut(job) {
                job.is_to_blame = true;
            }
        }
    }

    /// Starts over, because the failures were not the worker's fault, or their cause is gone.
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
            // Failures are short. If some inputs are bad, the first tasks to end on a node are
            // therefore failures. So tasks that have been running since then count as successes,
            // except replacements of failed tasks.
            let all = count(part.all.total());
            let running_on = (peers.running)(*job).saturating_sub(all);
            Stratum {
                here: count(part.own.total()).saturating_add(running_on),
                here_bad: count(part.own.bad),
                elsewhere: count(elsewhere.total()),
                elsewhere_bad: count(elsewhere.bad),
            }
        });
        // A test without a new outcome counts separately.
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

    /// Returns the latest outcomes of a job on other workers that are not suspected.
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

    /// Returns whether a further job would not be compared.
    fn is_full(&self) -> bool {
        self.ends.total() >= RUN_MAX || self.jobs.len() >= RUN_JOBS_MAX
    }

    /// Removes a job. The rest counts as a new run.
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

/// Converts a number for arithmetic. Values above four billion make no difference.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
