//! Evidence against single workers, gathered as tasks end: does what fails on one of them go well elsewhere?
//!
//! For each worker there is a *run*: what ended there since failures began to prevail. It begins with a failure and is over
//! when as many tasks went well as failed: Page's cumulative sum (1954) with steps of one, so that a node that breaks after a
//! good week is found as fast as one that never worked. A run is compared with what ended of the same jobs on others, by the
//! exact test of [`exact`]. Everything is looked at again and again, on many workers; the level of the test is
//! divided among all that could be looked at (Bonferroni): among the workers, and for each of them among its runs
//! and the looks at each, with shares of 1 / (i · (i + 1)), which add up to one. So the chance that a
//! job whose tasks fail independently of where they run brings any worker under suspicion is below the level,
//! however long it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Ends;
use super::exact::{Stratum, p_value};
use crate::id::{JobId, WorkerId};

/// Level at which a worker is suspected: then what fails there is tried elsewhere, which decides.
const SUSPECT_LEVEL: f64 = 0.05;
/// Level at which it is to blame, if that agrees.
const GUILTY_LEVEL: f64 = 0.01;
/// A worker is not suspected before it has failed this many tasks more than went well,
const SUSPECT_EXCESS: u32 = 2;
/// and not to blame before this many.
const GUILTY_EXCESS: u32 = 3;
/// Where nearly nothing is known of others, this many failures suffice for a suspicion: short failures can empty a
/// queue before anything has ended elsewhere.
const UNKNOWN_EXCESS: u32 = 5;
/// Fewer ends elsewhere are next to nothing.
const KNOWN_MIN: u64 = 3;
/// More do not count, so that a node that was repaired is not distrusted for as long as it was broken.
const EXCESS_MAX: u32 = 16;
/// Ends of a run that are compared, and their jobs: more would only cost time.
const RUN_MAX: u64 = 128;
const RUN_JOBS_MAX: usize = 64;
/// Pairs of a job and a worker of which ends are kept, a few megabytes; what is beyond drops the oldest jobs.
const CELLS_MAX: usize = 1 << 16;

/// How the last tasks of one job ended on one worker: a bit each, the newest lowest, set for a failure.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    bits: u64,
    len: u8,
}

impl Recent {
    /// Adds an end; returns the one that it pushes out.
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
    /// On each worker, the last ones.
    recent: BTreeMap<WorkerId, Recent>,
    /// Their sum.
    sum: Ends,
    /// All that there ever were.
    ever: Ends,
    /// Tasks of it that failed on a suspected worker failed elsewhere, too.
    is_to_blame: bool,
}

/// Part of a run that is of one job.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Those that are compared.
    own: Ends,
    /// All there.
    all: Ends,
    /// Ends of the job before that, on any worker.
    before: Ends,
}

/// Ends on a worker since failures began to prevail.
#[derive(Clone, Default, Debug)]
struct Run {
    /// Number among the worker's runs, from 1.
    number: u64,
    /// Failures minus tasks that went well; 0 = none is under way.
    excess: u32,
    /// Ends that are compared, at most [`RUN_MAX`].
    ends: Ends,
    jobs: BTreeMap<JobId, Part>,
    /// How the last task ended.
    is_last_bad: bool,
    /// Looks without another end, and what was known of others at the last one.
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

/// Those with whom a worker is compared.
#[derive(Clone, Copy)]
pub(crate) struct Peers<'a> {
    /// How many tasks of a job run on the worker itself.
    pub(crate) running: &'a dyn Fn(JobId) -> u32,
    /// Workers that could be looked at, itself included.
    pub(crate) count: usize,
    /// Those of them that are suspected themselves: what fails there says nothing about a job.
    pub(crate) doubtful: &'a [WorkerId],
}

impl Blame {
    /// Notes how a task ended on a worker.
    pub(crate) fn note(&mut self, worker: WorkerId, job: JobId, is_bad: bool) {
        let before = self.count_end(worker, job, is_bad);
        if is_bad {
            self.make_room(worker, job);
        }
        let Some(run) = self.runs.get_mut(&worker).filter(|run| run.excess > 0) else {
            // While nothing fails there is nothing to weigh.
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

    /// Keeps the error of a failure if it is another job's than the one before on this worker.
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

    /// An error of its run, of the job that failed last.
    pub(crate) fn an_error(&self, worker: WorkerId) -> &str {
        let error = self.runs.get(&worker).and_then(|run| run.error.as_ref());
        error.map_or("", |(_, error)| error)
    }

    /// Adds an end to those of its job; returns what had ended before.
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

    /// Whether so much fails on a worker, or so much that goes well elsewhere, that it should be found out whose fault it is.
    pub(crate) fn is_suspect(&self, worker: WorkerId, peers: Peers<'_>) -> bool {
        let Some(run) = self.run(worker, SUSPECT_EXCESS) else {
            return false;
        };
        // Where most of them fail it is not their fault.
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
        // Most failures are those of jobs that fail everywhere: the test would only cost time.
        elsewhere.good >= elsewhere.bad && self.is_significant(worker, run, peers, SUSPECT_LEVEL)
    }

    /// Whether it cannot be chance that so much fails on a worker.
    pub(crate) fn is_guilty(&self, worker: WorkerId, peers: Peers<'_>) -> bool {
        let run = self.run(worker, GUILTY_EXCESS);
        run.is_some_and(|run| self.is_significant(worker, run, peers, GUILTY_LEVEL))
    }

    /// Whether the jobs of its run went well elsewhere since it began.
    pub(crate) fn goes_well_elsewhere(&self, worker: WorkerId) -> bool {
        self.since_it_began(worker).is_well()
    }

    /// Ends of the jobs of its run elsewhere since it began.
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

    /// Ends of a job elsewhere since a part of a run began.
    fn of_job_since(&self, job: JobId, part: &Part) -> Ends {
        let now = self.jobs.get(&job).map_or(part.before, |ends| ends.ever);
        let since = |now: u64, before: u64, own: u64| now.saturating_sub(before + own);
        Ends {
            good: since(now.good, part.before.good, part.all.good),
            bad: since(now.bad, part.before.bad, part.all.bad),
        }
    }

    /// A run that is full makes room for a job of which nothing is compared, in the place of one that fails elsewhere, too.
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

    /// The next workers behind this one on which failures prevail; and the last of them, if there are more. O(`max`).
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

    /// Whether the last task that ended there failed, and none of the jobs of its run still run there: no end that is to come
    /// decides.
    pub(crate) fn has_nothing_more_to_show(
        &self,
        worker: WorkerId,
        runs_there: impl Fn(JobId) -> bool,
    ) -> bool {
        let run = self.runs.get(&worker);
        run.is_some_and(|run| run.is_last_bad && !run.jobs.keys().any(|job| runs_there(*job)))
    }

    /// Whether a further failure on a worker can tell anything new: once as much is compared as can be, only what is known of
    /// others can.
    pub(crate) fn is_news(&mut self, worker: WorkerId) -> bool {
        let run = self.runs.get(&worker);
        run.is_none_or(|run| run.ends.total() < RUN_MAX) || self.begin_look(worker)
    }

    /// Counts a look at a worker's run if half as many tasks again of its jobs have gone well elsewhere as at the last one.
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

    /// Whether failures prevail on a worker at the moment.
    pub(crate) fn is_failing(&self, worker: WorkerId) -> bool {
        self.runs.get(&worker).is_some_and(|run| run.excess > 0)
    }

    /// Tasks that failed there fail elsewhere, too: the jobs of its run are to blame.
    pub(crate) fn blame_jobs(&mut self, worker: WorkerId) {
        let run = self.runs.get(&worker);
        for job in run.into_iter().flat_map(|run| run.jobs.keys()) {
            if let Some(job) = self.jobs.get_mut(job) {
                job.is_to_blame = true;
            }
        }
    }

    /// Its failures were somebody else's fault, or are mended: evidence is gathered from the beginning.
    pub(crate) fn clear(&mut self, worker: WorkerId) {
        self.failing.remove(&worker);
        if let Some(run) = self.runs.get_mut(&worker) {
            run.end();
        }
    }

    /// A worker is gone.
    pub(crate) fn forget_worker(&mut self, worker: WorkerId) {
        self.failing.remove(&worker);
        self.runs.remove(&worker);
    }

    fn run(&self, worker: WorkerId, excess_min: u32) -> Option<&Run> {
        let run = self.runs.get(&worker)?;
        // What a job failed that has left the run is in the excess, but no evidence.
        let is_much = run.excess >= excess_min && run.ends.bad >= u64::from(excess_min);
        is_much.then_some(run)
    }

    fn is_significant(&self, worker: WorkerId, run: &Run, peers: Peers<'_>, level: f64) -> bool {
        let strata = run.jobs.iter().map(|(job, part)| {
            let elsewhere = self.elsewhere_of(worker, *job, peers.doubtful);
            // Failures are short: the first ends of a node are failures wherever some inputs are bad. What runs on since then
            // counts as if it had gone well; not what began in the place of others that failed.
            let all = count(part.all.total());
            let running_on = (peers.running)(*job).saturating_sub(all);
            Stratum {
                here: count(part.own.total()).saturating_add(running_on),
                here_bad: count(part.own.bad),
                elsewhere: count(elsewhere.total()),
                elsewhere_bad: count(elsewhere.bad),
            }
        });
        // Looks without another end have numbers of their own.
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

    /// The last ends of a job on others that are not suspected themselves.
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

    /// Whether another job would not be compared.
    fn is_full(&self) -> bool {
        self.ends.total() >= RUN_MAX || self.jobs.len() >= RUN_JOBS_MAX
    }

    /// Compares a job no longer: what is left is another run.
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

/// For arithmetic: more than four billion make no difference.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
