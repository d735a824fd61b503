//! The current problems for all displays, found by the rules of [`hq_core::diagnosis`], with the
//! time since which they exist, whether they are over, and whether they are acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::diagnosis::{
    Aside, BrokenNode, Facts, Finding, JobFacts, JournalFacts, Obstacle, QueueFacts, Severity,
    Subject, WorkerFacts, find,
};
use hq_core::growth::MEMORY;
use hq_core::id::{JobId, TaskId, TaskKey, WorkerId};
use hq_core::node_check::sentence;
use hq_core::refusal::Refusal;
use hq_core::server_state::{ChangeKind, ServerState};
use hq_core::signature::{one_line, signature};
use hq_core::time::Timestamp;
use hq_core::worker_config::MemoryLimits;
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::{JobRef, Query, TaskPageQuery};
use hq_protocol::why_nothing_runs;
use hq_store::{StoreClient, reader};
use tokio::sync::Mutex;

use crate::alloc::AllocHandle;
use crate::core_handle::{CoreHandle, View};
use crate::questions::Questions;
use crate::shares::{Found, Shares};
use crate::words::{self, Words};
use crate::{journal_link, query};

/// The maximum number of waiting jobs that are explained, oldest first.
const EXPLAINED_MAX: usize = 10;
/// The maximum number of jobs examined in one step of the core's thread.
const JOBS_MAX: usize = 16_384;
/// The maximum numbers of submits per job, and of templates per submit, that are examined for
/// memory limits.
const SUBMITS_MAX: usize = 16;
const TEMPLATES_MAX: usize = 16;
/// The maximum number of problems for which the output of failed tasks is read, and of tasks per
/// problem.
const CAUSES_MAX: usize = 10;
const TASKS_READ_MAX: usize = 3;
/// The maximum number of submits of a job whose notes are examined.
const NOTED_SUBMITS_MAX: usize = 1_000;
/// The maximum number of notes that are shown for a job.
const NOTES_MAX: usize = 5;
/// How long silent workers are not asked again.
const SILENCE: Duration = Duration::from_secs(60);
/// The maximum number of cached causes.
const CAUSES_KEPT_MAX: usize = 1_000;
/// The maximum number of acknowledged problems. It is far more than a user acknowledges.
const ACKNOWLEDGED_MAX: usize = 1_000;

/// Returns whether a problem needs attention now.
pub(crate) const fn is_open(problem: &client::Problem) -> bool {
    !problem.is_over && !problem.is_acknowledged
}

/// A journal that currently cannot be written.
struct HeldJournal {
    path: String,
    /// Why the journal cannot be written. `None` if its disk hangs.
    reason: Option<String>,
    since: Timestamp,
}

impl HeldJournal {
    fn facts(&self) -> JournalFacts<'_> {
        JournalFacts {
            path: &self.path,
            reason: self.reason.as_deref(),
        }
    }
}

/// Finds problems and stores acknowledgements.
pub(crate) struct Problems {
    core: CoreHandle,
    store: Option<StoreClient>,
    alloc: Option<AllocHandle>,
    questions: Arc<Questions>,
    shares: Shares,
    /// The extent of each problem when it was acknowledged, by id. `None` until they are read from
    /// the store.
    acknowledged: Mutex<Option<BTreeMap<String, u64>>>,
    /// The last lines of failed tasks, by job and number of its failures.
    causes: Mutex<HashMap<(JobId, u32), Cause>>,
}

/// The data that is read from the state, except jobs.
struct Looked {
    workers: WorkerFacts,
    last_lost_at: Option<Timestamp>,
    broken: Vec<BrokenNode>,
}

struct Job {
    id: JobId,
    name: Box<str>,
    counts: hq_core::job::TaskCounts,
    submitted: Timestamp,
    is_completed: bool,
    resubmitted_as: Option<JobId>,
    failed_lowest: Vec<TaskId>,
    notes: Vec<Box<str>>,
}

impl Job {
    /// Returns the key of the cached cause. After another failure, the cause may be different.
    const fn cause_key(&self) -> (JobId, u32) {
        (self.id, self.counts.failed)
    }

    fn facts(&self) -> JobFacts<'_> {
        let counts = &self.counts;
        JobFacts {
            id: self.id.as_u32(),
            name: &self.name,
            waiting: counts.waiting.into(),
            running: counts.running.into(),
            finished: counts.finished.into(),
            failed: counts.failed.into(),
            total: counts.total().into(),
            notes: &self.notes,
        }
    }
}

impl Problems {
    pub(crate) fn new(
        core: CoreHandle,
        store: Option<StoreClient>,
        alloc: Option<AllocHandle>,
        questions: Arc<Questions>,
    ) -> Self {
        Self {
            core,
            store,
            alloc,
            questions,
            shares: Shares::default(),
            acknowledged: Mutex::default(),
            causes: Mutex::default(),
        }
    }

    /// Returns the outcomes of tasks. Without a store, there are none.
    pub(crate) async fn shares(&self) -> Result<Found, Refusal> {
        match &self.store {
            Some(store) => self.shares.get(&self.core, store).await,
            None => Ok(Found {
                shares: Vec::new(),
                spans: Vec::new(),
                is_cut: false,
            }),
        }
    }

    /// Returns all problems: first the unacknowledged ones, and within each part by severity. The
    /// flag is set if there were too many kinds of outcomes to examine all of them.
    pub(crate) async fn look(&self) -> Result<(Vec<client::Problem>, bool), Refusal> {
        let gone = |_| Refusal::shutting_down();
        let mut looked = self.core.query(read_state).await.map_err(gone)?;
        let mut troubled = Vec::new();
        let mut has_limits = false;
        let mut next = Some(JobId(0));
        while let Some(from) = next {
            let looks_for_limits = looked.workers.unlimited > 0 && !has_limits;
            // Only the last part waits for the store, on behalf of all parts.
            let read = move |view: &View<'_>| {
                let limits = looks_for_limits && has_limited_tasks(view, from);
                (read_jobs(view, from), limits)
            };
            let part = self.core.look(read, |part| part.0.1.is_none());
            let (part, limits) = part.await.map_err(gone)?;
            has_limits |= limits;
            troubled.extend(part.0);
            next = part.1;
        }
        let found = match self.shares().await {
            // Shows the problems that are known in memory, starting with the journal.
            Err(_) if self.journal_hangs_for().is_some() => Found::default(),
            found => found?,
        };
        let queues = self.queues().await;
        let jobs: Vec<JobFacts<'_>> = troubled.iter().map(Job::facts).collect();
        if !has_limits {
            looked.workers.unlimited = 0;
        }
        let queues: Vec<QueueFacts<'_>> = queues.iter().map(queue_facts).collect();
        let obstacles = self.obstacles(&jobs).await?;
        let held_journal = self.held_journal().await?;
        let findings = find(&Facts {
            jobs: &jobs,
            workers: &looked.workers,
            queues: &queues,
            shares: &found.shares,
            broken: &looked.broken,
            obstacles: Some(&obstacles),
            internal_errors: hq_core::bug::count(),
            journal: held_journal.as_ref().map(HeldJournal::facts),
        });
        let spans = Spans::of(&found);
        let mut problems: Vec<client::Problem> = findings
            .into_iter()
            .map(|finding| {
                let since = held_journal.as_ref().map(|journal| journal.since);
                problem(finding, &troubled, &spans, (looked.last_lost_at, since))
            })
            .collect();
        self.note_acknowledged(&mut problems).await?;
        problems.sort_by_key(|problem| (problem.is_over, problem.is_acknowledged));
        self.add_causes(&mut problems, &troubled).await;
        Ok((problems, found.is_cut))
    }

    fn journal_hangs_for(&self) -> Option<Duration> {
        self.store.as_ref()?.hangs_for()
    }

    /// Returns the journal if it currently cannot be written.
    async fn held_journal(&self) -> Result<Option<HeldJournal>, Refusal> {
        let Some(store) = &self.store else {
            return Ok(None);
        };
        let held = match (store.hangs_for(), store.trouble()) {
            (Some(span), _) => (span, None),
            (None, Some((span, reason))) => (span, Some(reason)),
            (None, None) => return Ok(None),
        };
        let now = self.core.look(|view| view.now.wall, |_| false).await;
        let now = now.map_err(|_| Refusal::shutting_down())?;
        Ok(Some(HeldJournal {
            path: store.path().display().to_string(),
            reason: held.1,
            since: now.minus(held.0),
        }))
    }

    async fn queues(&self) -> Vec<client::AllocQueue> {
        let Some(alloc) = &self.alloc else {
            return Vec::new();
        };
        // Fails only if the core has ended.
        let listed = alloc.list().await.unwrap_or_default();
        listed.into_iter().map(|(queue, _)| queue).collect()
    }

    /// Explains why the first waiting tasks of some jobs do not run.
    async fn obstacles(&self, jobs: &[JobFacts<'_>]) -> Result<Vec<Obstacle>, Refusal> {
        let mut found = Vec::new();
        let starving = jobs.iter().filter(|job| job.is_starving());
        for job in starving.take(EXPLAINED_MAX) {
            let page = TaskPageQuery {
                job: JobRef::Id(JobId(job.id)),
                tasks: None,
                states: vec![hq_core::task::TaskState::Waiting],
                cursor: 0,
                limit: 1,
                with_definition: false,
                with_curves: false,
                without_paths: false,
            };
            let Reply::TaskPage(page) = self.ask(Query::TaskPage(page)).await? else {
                continue;
            };
            let Some(task) = page.tasks.first().map(|task| task.id) else {
                continue;
            };
            let question = Query::Explain {
                job: JobRef::Id(JobId(job.id)),
                task: TaskId(task),
                until_able: true,
            };
            // The task may have started or been removed in the meantime.
            if let Reply::Explanation(explanation) = self.ask(question).await?
                && let Some(why) = why_nothing_runs(&explanation)
            {
                found.push(Obstacle { job: job.id, why });
            }
        }
        Ok(found)
    }

    async fn ask(&self, question: Query) -> Result<Reply, Refusal> {
        let answer = query::ask(&self.core, question).await;
        answer.map_err(|_| Refusal::shutting_down())
    }

    /// Marks acknowledged problems, unless they have grown since.
    async fn note_acknowledged(&self, problems: &mut [client::Problem]) -> Result<(), Refusal> {
        let mut known = self.acknowledged.lock().await;
        let known = match self.known(&mut known).await {
            // If the store hung before acknowledgements were read, no problem is hidden.
            Err(_) if self.journal_hangs_for().is_some() => return Ok(()),
            known => known?,
        };
        for problem in problems {
            let part = known.get(&problem.id);
            problem.is_acknowledged = part.is_some_and(|part| problem.part <= *part);
        }
        Ok(())
    }

    /// Returns the acknowledgements. Reads them from the store on first use.
    async fn known<'a>(
        &self,
        place: &'a mut Option<BTreeMap<String, u64>>,
    ) -> Result<&'a mut BTreeMap<String, u64>, Refusal> {
        if place.is_none()
            && let Some(store) = self.store.clone()
        {
            let read = |store: &StoreClient| reader::acknowledged(&store.read()?);
            let rows = journal_link::read_unless_it_hangs(store, read).await?;
            let rows = rows.map_err(Refusal::failed)?;
            *place = Some(rows.into_iter().collect());
        }
        Ok(place.get_or_insert_default())
    }

    /// Acknowledges a problem, or withdraws the acknowledgement. Returns when the change is on
    /// disk.
    pub(crate) async fn acknowledge(&self, id: &str, is_known: bool) -> Result<(), Refusal> {
        let part = if is_known {
            let (problems, _) = self.look().await?;
            let found = problems.iter().find(|problem| problem.id == id);
            let Some(found) = found else {
                return Err(Refusal::not_found(format!("there is no problem `{id}`")));
            };
            Some(found.part)
        } else {
            None
        };
        let mut place = self.acknowledged.lock().await;
        let known = self.known(&mut place).await?;
        match part {
            Some(_) if known.len() >= ACKNOWLEDGED_MAX && !known.contains_key(id) => {
                return Err(Refusal::too_large(format!(
                    "{ACKNOWLEDGED_MAX} problems are acknowledged, which is the limit. Take some back"
                )));
            }
            Some(part) => {
                known.insert(id.to_owned(), part);
            }
            None if known.remove(id).is_none() => {
                return Err(Refusal::not_found(format!(
                    "the problem `{id}` is not acknowledged"
                )));
            }
            None => {}
        }
        let change = ChangeKind::ProblemAcknowledged {
            problem: id.into(),
            part,
        };
        self.core.store(change, place).await
    }

    /// Adds the last lines of failed tasks to the first problems. All tasks are asked at the same
    /// time, so that silent nodes delay this only once.
    async fn add_causes(&self, problems: &mut [client::Problem], jobs: &[Job]) {
        let failing = problems.iter_mut().filter_map(|problem| {
            let is_failing = |job: &u32| problem.id == names(&Subject::FailedTasks(*job)).2;
            let job = JobId(problem.subject.filter(is_failing)?);
            let at = jobs.binary_search_by_key(&job, |job| job.id).ok()?;
            Some((problem, jobs.get(at)?))
        });
        let failing: Vec<(&mut client::Problem, &Job)> = failing.take(CAUSES_MAX).collect();
        let mut tasks = Vec::new();
        for (_, job) in &failing {
            let causes = self.causes.lock().await;
            let is_known = causes.get(&job.cause_key()).is_some_and(Cause::is_good);
            if !is_known {
                let first = job.failed_lowest.iter().take(TASKS_READ_MAX);
                tasks.extend(first.map(|task| TaskKey::new(job.id, *task)));
            }
        }
        let said = words::read(&self.core, &self.questions, &tasks).await;
        let mut causes = self.causes.lock().await;
        if causes.len() >= CAUSES_KEPT_MAX {
            causes.clear();
        }
        for (problem, job) in failing {
            let of_job = tasks.iter().zip(&said);
            let mut of_job = of_job.filter(|(task, _)| task.job == job.id).peekable();
            if of_job.peek().is_some() {
                let cause = Cause::of(of_job.map(|(_, words)| words));
                causes.insert(job.cause_key(), cause);
            }
            let known = causes.get(&job.cause_key());
            problem.cause = known.and_then(|known| known.text.clone());
        }
    }
}

/// The last lines of a job's failed tasks.
struct Cause {
    text: Option<String>,
    /// When workers that did not answer can be asked again. `None` if all of them answered.
    again: Option<Instant>,
}

impl Cause {
    fn of<'a>(said: impl Iterator<Item = &'a Words>) -> Self {
        let mut counts = BTreeMap::<String, (usize, &str)>::new();
        let mut again = None;
        for words in said {
            match words {
                Words::Said(line) => counts.entry(signature(line)).or_insert((0, line)).0 += 1,
                Words::Nothing => {}
                Words::Unknown => again = Some(Instant::now() + SILENCE),
            }
        }
        let most = counts.into_values().max_by_key(|(count, _)| *count);
        Self {
            text: most.map(|(_, example)| one_line(example)),
            again,
        }
    }

    fn is_good(&self) -> bool {
        self.again.is_none_or(|again| Instant::now() < again)
    }
}

/// When the first and the last failed task ended, by job and host, and when the last task of each
/// job ended.
#[derive(Default)]
struct Spans<'a> {
    failed: HashMap<(u32, &'a str), (Timestamp, Timestamp)>,
    last_end: HashMap<u32, Timestamp>,
}

impl<'a> Spans<'a> {
    fn of(found: &'a Found) -> Self {
        let mut spans = Self::default();
        for (share, span) in found.shares.iter().zip(&found.spans) {
            let last = spans.last_end.entry(share.job).or_insert(span.1);
            *last = span.1.max(*last);
            if share.error.is_some() {
                let known = spans.failed.entry((share.job, &share.host));
                let known = known.or_insert(*span);
                *known = (known.0.min(span.0), known.1.max(span.1));
            }
        }
        spans
    }

    /// Returns the first and the last failure of the selected jobs or hosts.
    fn failures(&self, wanted: impl Fn(u32, &str) -> bool) -> Option<(Timestamp, Timestamp)> {
        let found = self
            .failed
            .iter()
            .filter(|((job, host), _)| wanted(*job, host));
        found
            .map(|(_, span)| *span)
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

fn problem(
    finding: Finding,
    jobs: &[Job],
    spans: &Spans<'_>,
    (last_lost, hangs_since): (Option<Timestamp>, Option<Timestamp>),
) -> client::Problem {
    let job = |id: u32| {
        let at = jobs.binary_search_by_key(&JobId(id), |job| job.id).ok()?;
        jobs.get(at)
    };
    let span = match &finding.subject {
        Subject::Node { host, .. } => spans.failures(|_, other| other == host),
        Subject::FailingJob(id) | Subject::FailedTasks(id) => {
            spans.failures(|other, _| other == *id)
        }
        Subject::StarvingJob(id) => job(*id).map(|job| {
            let since = spans.last_end.get(id).copied().unwrap_or(job.submitted);
            (since.max(job.submitted), Timestamp(0))
        }),
        Subject::NotedJob(id) => job(*id).map(|job| (job.submitted, Timestamp(0))),
        Subject::Journal { .. } => hangs_since.map(|since| (since, Timestamp(0))),
        Subject::LostWorkers
        | Subject::Unkillable
        | Subject::MemoryLimits
        | Subject::Queue(_)
        | Subject::Internal => None,
    };
    let about = if let Subject::FailingJob(id) | Subject::FailedTasks(id) | Subject::NotedJob(id) =
        finding.subject
    {
        job(id)
    } else {
        None
    };
    let last = if finding.subject == Subject::LostWorkers {
        last_lost
    } else {
        span.map(|(_, last)| last).filter(|last| last.0 > 0)
    };
    let (host, worker) = if let Subject::Node { host, worker, .. } = &finding.subject {
        (Some(host.clone()), Some(*worker))
    } else {
        (None, None)
    };
    let (kind, number, id) = names(&finding.subject);
    client::Problem {
        id,
        is_error: finding.severity == Severity::Error,
        kind: kind.to_owned(),
        subject: number,
        host,
        worker,
        heading: finding.subject.heading().to_owned(),
        title: finding.title,
        text: finding.text,
        part: finding.part,
        whole: finding.whole,
        since_unix_ns: span.map(|(since, _)| since.0),
        last_unix_ns: last.map(|at| at.0),
        is_over: about.is_some_and(|job| job.is_completed),
        is_acknowledged: false,
        resubmitted_as: about.and_then(|job| Some(job.resubmitted_as?.as_u32())),
        cause: None,
    }
}

/// Reads jobs that may have problems, starting with the given job. Also returns the id to continue
/// with.
fn read_jobs(view: &View<'_>, from: JobId) -> (Vec<Job>, Option<JobId>) {
    let mut jobs = view.state.jobs().range(from..);
    let part = jobs.by_ref().take(JOBS_MAX);
    let troubled = part.filter_map(|(id, job)| {
        let counts = job.counts();
        let is_starving = counts.waiting > 0 && counts.running == 0;
        let submits = job.submits.iter().take(NOTED_SUBMITS_MAX);
        let notes = || submits.clone().flat_map(|submit| &submit.notes);
        let is_troubled = counts.failed > 0 || is_starving || notes().next().is_some();
        is_troubled.then(|| Job {
            id: *id,
            name: job.name.clone(),
            counts: *counts,
            submitted: job.submitted,
            is_completed: job.is_completed(),
            resubmitted_as: job.resubmitted_as,
            failed_lowest: job.failed_lowest().collect(),
            notes: notes().take(NOTES_MAX).cloned().collect(),
        })
    });
    (troubled.collect(), jobs.next().map(|(id, _)| *id))
}

/// Returns whether a task of these jobs, starting with the given one, has an enforced memory limit.
fn has_limited_tasks(view: &View<'_>, from: JobId) -> bool {
    let jobs = view.state.jobs().range(from..).take(JOBS_MAX);
    let submits = jobs.flat_map(|(_, job)| job.submits.iter().take(SUBMITS_MAX));
    let mut templates = submits.flat_map(|submit| submit.definitions().iter().take(TEMPLATES_MAX));
    templates.any(|task| task.has_memory_limit())
}

/// Counts the workers and reads their problems. Ended workers are only counted.
fn read_state(view: &View<'_>) -> Looked {
    let state = view.state;
    let ended = state.ended_counts();
    let lost = ended.iter().filter(|(reason, _)| reason.is_lost());
    let last_lost = state.last_lost().and_then(|id| state.hostname(id));
    let last_lost_at = state
        .last_lost()
        .and_then(|id| state.worker(id)?.ended())
        .map(|(at, _)| at);
    let unkillable = || {
        let workers = state.workers().values();
        workers.flat_map(|worker| worker.unkillable().iter().map(move |one| (worker, one)))
    };
    let first_unkillable = unkillable().next().map(|(worker, one)| {
        let place = one.whereabouts(&worker.config.hostname);
        format!("{} ({place})", one.task)
    });
    // A limit that a user has switched off is not listed.
    let is_listed = |limits: MemoryLimits| match limits {
        MemoryLimits::Declared | MemoryLimits::Impossible => limits.obstacle(),
        MemoryLimits::Unknown | MemoryLimits::Enforced | MemoryLimits::Off => None,
    };
    let mut unlimited = 0;
    let mut first_unlimited = (String::new(), "");
    for worker in state.workers().values() {
        let config = &worker.config;
        let has_memory = config
            .resources
            .items
            .iter()
            .any(|item| &*item.name == MEMORY);
        if let Some(why) = is_listed(config.memory_limits).filter(|_| has_memory) {
            if unlimited == 0 {
                first_unlimited = (format!("worker {} ({})", worker.id, config.hostname), why);
            }
            unlimited += 1;
        }
    }
    Looked {
        workers: WorkerFacts {
            connected: state.workers().len() as u64,
            lost: lost.map(|(_, count)| count).sum(),
            total: state.workers().len() as u64 + ended.values().sum::<u64>(),
            last_lost: last_lost.unwrap_or_default().to_owned(),
            unkillable: unkillable().count() as u64,
            first_unkillable: first_unkillable.unwrap_or_default(),
            unlimited,
            first_unlimited,
        },
        last_lost_at,
        broken: broken_nodes(state),
    }
}

fn broken_nodes(state: &ServerState) -> Vec<BrokenNode> {
    let node = |worker: WorkerId, why: &str, aside| BrokenNode {
        host: state.hostname(worker).unwrap_or("?").to_owned(),
        worker: worker.as_u32(),
        why: why.to_owned(),
        aside,
        is_by_check: false,
    };
    let aside = state.quarantines();
    let aside = aside.map(|quarantine| {
        let worker = quarantine.worker;
        match query::on_request(state, worker) {
            Some(asked) => node(worker, &asked, Aside::OnRequest),
            None => node(worker, &quarantine.why, Aside::UntilProbed),
        }
    });
    let told = state.suspicions();
    let told = told.map(|(worker, suspicion)| node(worker, &suspicion.why, Aside::No));
    let faulty = state.faulty_workers().map(|worker| {
        let aside = if worker.is_unfit() {
            Aside::UntilFit
        } else {
            Aside::No
        };
        BrokenNode {
            is_by_check: true,
            ..node(worker.id, &sentence(worker.node_faults()), aside)
        }
    });
    aside.chain(told).chain(faulty).collect()
}

fn queue_facts(queue: &client::AllocQueue) -> QueueFacts<'_> {
    let name = queue.spec.as_ref().and_then(|spec| spec.name.as_deref());
    QueueFacts {
        id: queue.id,
        name: name.unwrap_or_default(),
        is_paused: queue.is_paused,
        is_failing: queue.is_failing(),
        reason: &queue.reason,
    }
}

macro_rules! names {
    ($($kind:literal, $subject:pat => $number:expr, $id:expr;)*) => {
        /// The names of the kinds of problems.
        #[cfg(test)]
        pub(crate) const KINDS: &[&str] = &[$($kind),*];

        /// Returns the kind of a problem, the number of the job or queue that it is about, and its
        /// id, which does not change while the problem grows.
        fn names(subject: &Subject) -> (&'static str, Option<u32>, String) {
            match subject { $($subject => ($kind, $number, $id.into()),)* }
        }
    };
}
names! {
    "node", Subject::Node { host, .. } => None, format!("node-{host}");
    "failing-job", Subject::FailingJob(job) => Some(*job), format!("job-{job}-failures");
    "failed-tasks", Subject::FailedTasks(job) => Some(*job), format!("job-{job}-failures");
    "lost-workers", Subject::LostWorkers => None, "lost-workers";
    "unkillable", Subject::Unkillable => None, "unkillable";
    "memory-limits", Subject::MemoryLimits => None, "memory-limits";
    "queue", Subject::Queue(queue) => Some(*queue), format!("queue-{queue}");
    "starving-job", Subject::StarvingJob(job) => Some(*job), format!("job-{job}-waits");
    "doubtful-job", Subject::NotedJob(job) => Some(*job), format!("job-{job}-notes");
    "internal", Subject::Internal => None, "internal";
    "journal", Subject::Journal { .. } => None, "journal";
}

#[cfg(test)]
mod tests;
