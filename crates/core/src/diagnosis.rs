//! Findings: the problems of a run, worst first, readable in ten seconds.
//!
//! The rules are pure functions of totals, and dashboards and reports share them. Failures are
//! attributed as follows:
//!
//! * To a node, if most tasks that end there fail, although the same jobs succeed on at least as
//!   many other nodes as they fail on. Only such jobs count: a job that fails everywhere says
//!   nothing about a node.
//! * Otherwise to the job, including its failures on a broken node, unless the job succeeds on
//!   other nodes.

mod blame;
mod exact;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub(crate) use blame::{Blame, Peers};

use crate::resource::amount::Amount;
use crate::words::{self, number, part};

/// Fewer failures than this say nothing about a node.
const NODE_FAILURES_MIN: u64 = 3;
/// A job succeeds on a node if at least this many of its tasks have finished there, and at least
/// [`WELL_FACTOR`] times as many as have failed.
const WELL_MIN: u64 = 3;
/// See [`WELL_MIN`].
const WELL_FACTOR: u64 = 4;
/// If at least one in this many ended tasks of a job has failed, the job has more than a few bad
/// inputs.
const MANY_FAILURES: u64 = 20;

/// Tasks of one job with the same outcome on one worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// The id of the job.
    pub job: u32,
    /// The id of the worker.
    pub worker: u32,
    /// The host of the worker.
    pub host: String,
    /// A short form of the error. `None` if the tasks finished.
    pub error: Option<String>,
    /// The number of tasks.
    pub count: u64,
}

/// The task counts of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobFacts<'a> {
    /// The id of the job.
    pub id: u32,
    /// The name of the job.
    pub name: &'a str,
    /// The number of waiting tasks.
    pub waiting: u64,
    /// The number of running tasks.
    pub running: u64,
    /// The number of finished tasks.
    pub finished: u64,
    /// The number of failed tasks.
    pub failed: u64,
    /// The total number of tasks.
    pub total: u64,
    /// Probable mistakes found at its submission.
    pub notes: &'a [Box<str>],
}

impl JobFacts<'_> {
    /// Returns whether tasks are waiting and none is running.
    #[must_use]
    pub const fn is_starving(&self) -> bool {
        self.waiting > 0 && self.running == 0
    }
}

/// Facts about all workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerFacts {
    /// The number of workers that have not ended.
    pub connected: u64,
    /// The number of workers that ended without being asked to.
    pub lost: u64,
    /// The number of workers that have ever connected.
    pub total: u64,
    /// The host of the most recently lost worker.
    pub last_lost: String,
    /// The number of tasks that did not react to SIGKILL and still hold their resources.
    pub unkillable: u64,
    /// The host of the first such task.
    pub first_unkillable: String,
    /// The number of workers that do not enforce memory limits although some jobs have them.
    pub unlimited: u64,
    /// The host of the first such worker, and the reason.
    pub first_unlimited: (String, &'static str),
}

/// Facts about a queue of automatic allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueFacts<'a> {
    /// The id of the queue.
    pub id: u32,
    /// The name of the queue. May be empty.
    pub name: &'a str,
    /// Whether the user or the server paused it.
    pub is_paused: bool,
    /// Whether the batch system rejects submissions, or its allocations fail.
    pub is_failing: bool,
    /// Why it requests or does not request allocations.
    pub reason: &'a str,
}

impl QueueFacts<'_> {
    /// Returns whether it gets no allocations because it is paused or the batch system rejects
    /// them.
    #[must_use]
    pub const fn is_starving(&self) -> bool {
        self.is_paused || self.is_failing
    }
}

/// Returns the essence of a queue's reason: the error of the batch system's command, if any.
#[must_use]
pub fn queue_reason(reason: &str) -> &str {
    let Some((_, told)) = reason.split_once("Stderr: ") else {
        return reason;
    };
    let (complaint, rest) = told.split_once("; Stdout:").unwrap_or((told, ""));
    match (complaint.trim(), rest.trim()) {
        ("", "") => reason,
        ("", printed) => printed,
        (complaint, _) => complaint,
    }
}

/// Why no task of a job runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The id of the job.
    pub job: u32,
    /// A short text such as `they ask for 64 cpus, no worker has more than 8`.
    pub why: String,
}

/// Returns the text for tasks that request more of a resource than any worker has.
#[must_use]
pub fn lacking(resource: &str, asked: Amount, most: Amount) -> String {
    // If no worker has any, the smallest amount stands for `all`.
    let asked = match (asked, most) {
        (Amount(1), Amount::ZERO) => format!("all {resource}"),
        _ => words::amount(resource, asked),
    };
    if most.0 == 0 {
        format!("they ask for {asked}, no worker has any")
    } else {
        let most = words::quantity(resource, most);
        format!("they ask for {asked}, no worker has more than {most}")
    }
}

/// Whether a broken node is in quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// The node gets tasks.
    No,
    /// The node gets no tasks until a probe task succeeds there.
    UntilProbed,
    /// The node gets no tasks until its own check passes.
    UntilFit,
    /// The node gets no tasks until a time that a user has set.
    OnRequest,
}

/// A node that the server or its worker found broken, or that a user put in quarantine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenNode {
    /// The name of the host.
    pub host: String,
    /// The id of the worker there.
    pub worker: u32,
    /// The reason, without a subject or a final period. May be empty.
    pub why: String,
    /// Whether the node gets tasks.
    pub aside: Aside,
    /// Whether the reason is a check of the node or its clock, rather than failed tasks.
    pub is_by_check: bool,
}

/// A journal that currently cannot be written.
#[derive(Clone, Copy, Debug)]
pub struct JournalFacts<'a> {
    /// The path of the file.
    pub path: &'a str,
    /// Why it cannot be written. `None` if its disk hangs.
    pub reason: Option<&'a str>,
}

/// The input of the rules.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// All jobs.
    pub jobs: &'a [JobFacts<'a>],
    /// All workers.
    pub workers: &'a WorkerFacts,
    /// All queues.
    pub queues: &'a [QueueFacts<'a>],
    /// The outcomes of tasks.
    pub shares: &'a [Share],
    /// Nodes that the server reports as broken.
    pub broken: &'a [BrokenNode],
    /// Why jobs do not run. `None` if unknown, because no server can be queried.
    pub obstacles: Option<&'a [Obstacle]>,
    /// The number of contradictions that the server has found in its state.
    pub internal_errors: u64,
    /// The journal, if it currently cannot be written.
    pub journal: Option<JournalFacts<'a>>,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Work is lost.
    Error,
    /// Work proceeds more slowly than it could.
    Warning,
}

/// The heading of findings about nodes that a user put in quarantine.
pub const SET_ASIDE: &str = "Node set aside";

/// The subject of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A node where tasks fail that succeed elsewhere, or that a user put in quarantine.
    Node {
        /// The name of the host.
        host: String,
        /// The id of a worker on the node.
        worker: u32,
        /// Whether a user put the node in quarantine, and neither the server nor its worker found a
        /// problem.
        is_asked: bool,
    },
    /// A job with many failed tasks.
    FailingJob(u32),
    /// A job with some failed tasks.
    FailedTasks(u32),
    /// Workers that were lost.
    LostWorkers,
    /// Tasks that cannot be killed.
    Unkillable,
    /// Workers that do not enforce memory limits.
    MemoryLimits,
    /// A job that probably does not do what its user intended.
    NotedJob(u32),
    /// A queue that gets no allocations.
    Queue(u32),
    /// A job without running tasks.
    StarvingJob(u32),
    /// A contradiction in the server's state.
    Internal,
    /// The journal, which currently cannot be written.
    Journal {
        /// Whether its disk hangs.
        hangs: bool,
    },
}

impl Subject {
    /// Returns the heading of findings about the subject.
    #[must_use]
    pub const fn heading(&self) -> &'static str {
        match self {
            Self::Node { is_asked: true, .. } => SET_ASIDE,
            Self::Node { .. } => "Broken node",
            Self::FailingJob(_) => "Failing job",
            Self::FailedTasks(_) => "Failures in job",
            Self::LostWorkers => "Lost worker",
            Self::Unkillable => "Unkillable task",
            Self::MemoryLimits => "No memory limits on",
            Self::NotedJob(_) => "Doubtful job",
            Self::Queue(_) => "Starving queue",
            Self::StarvingJob(_) => "Starving job",
            Self::Internal => "Defect of the",
            Self::Journal { hangs: true } => "Hanging journal",
            Self::Journal { hangs: false } => "Unwritable journal",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.subject.heading(),
            self.title,
            self.text
        )
    }
}

/// A problem. `Display` shows it as a complete sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The subject.
    pub subject: Subject,
    /// The name of the subject: a host, a job or a queue.
    pub title: String,
    /// A sentence without a subject or a final period.
    pub text: String,
    /// The number of affected tasks.
    pub part: u64,
    /// The total that `part` is a part of.
    pub whole: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Ends {
    good: u64,
    bad: u64,
}

impl Ends {
    const fn add(&mut self, share: &Share) {
        if share.error.is_some() {
            self.bad += share.count;
        } else {
            self.good += share.count;
        }
    }

    const fn count(&mut self, is_bad: bool) {
        if is_bad {
            self.bad += 1;
        } else {
            self.good += 1;
        }
    }

    const fn total(self) -> u64 {
        self.good + self.bad
    }

    const fn is_well(self) -> bool {
        self.good >= WELL_MIN && self.good >= self.bad.saturating_mul(WELL_FACTOR)
    }

    const fn is_mostly_bad(self) -> bool {
        self.bad > self.good
    }
}

/// The outcomes by job and host.
type ByJob<'a> = BTreeMap<u32, BTreeMap<&'a str, Ends>>;

/// Returns the hosts that are probably broken.
#[must_use]
pub fn suspect_hosts(shares: &[Share]) -> BTreeSet<&str> {
    let mut jobs = ByJob::new();
    for share in shares {
        let hosts = jobs.entry(share.job).or_default();
        hosts.entry(&share.host).or_default().add(share);
    }
    let mut telling = BTreeMap::<&str, Ends>::new();
    for hosts in jobs.values() {
        let well = hosts.values().filter(|ends| ends.is_well()).count();
        let bad = hosts.values().filter(|ends| ends.is_mostly_bad()).count();
        if well == 0 || well < bad {
            // A job that fails on most nodes is itself at fault.
            continue;
        }
        for (host, ends) in hosts {
            let sum = telling.entry(host).or_default();
            sum.good += ends.good;
            sum.bad += ends.bad;
        }
    }
    telling.retain(|_, ends| ends.is_mostly_bad() && ends.bad >= NODE_FAILURES_MIN);
    telling.into_keys().collect()
}

/// Returns all findings, most severe first.
#[must_use]
pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let suspects = suspect_hosts(facts.shares);
    let own_fault = failing_by_themselves(facts.shares, &suspects);
    // The journal comes first: nothing new starts while it cannot be written, and other findings
    // may be outdated.
    let mut found: Vec<Finding> = facts.journal.map(held_journal).into_iter().collect();
    let mut broken = broken_nodes(facts.shares, &suspects, &own_fault);
    note_set_aside(&mut broken, facts.broken);
    found.append(&mut broken);
    let mut failing: Vec<Finding> = failing_jobs(facts, &suspects, &own_fault);
    failing.sort_by_key(|finding| {
        std::cmp::Reverse(finding.part.saturating_mul(1_000) / finding.whole.max(1))
    });
    found.append(&mut failing);
    found.extend(facts.queues.iter().filter_map(starving_queue));
    found.extend(lost_workers(facts.workers));
    found.extend(unkillable_tasks(facts.workers));
    found.extend(missing_limits(facts.workers));
    found.extend(starving_jobs(facts));
    found.extend(facts.jobs.iter().filter_map(acknowledged_job));
    found.extend(internal_errors(facts.internal_errors));
    found.sort_by_key(|finding| finding.severity);
    found
}

/// Returns a sentence such as `none of 3 waiting tasks runs: they ask for …` or `its waiting task
/// does not run: it asks for …`. It names the job only if `job` is given.
#[must_use]
pub fn why_waiting(waiting: u64, job: Option<u32>, why: &str) -> String {
    let of_job = job.map_or(String::new(), |job| format!(" of job {job}"));
    if waiting != 1 {
        return format!(
            "none of {} waiting tasks{of_job} runs: {why}",
            number(waiting)
        );
    }
    let why = match why.strip_prefix("they ask ") {
        Some(rest) => format!("it asks {rest}"),
        None => why
            .replace("they request", "it requests")
            .replace("their requested", "its requested"),
    };
    let its = if job.is_some() { "the" } else { "its" };
    format!("{its} waiting task{of_job} does not run: {why}")
}

fn most_common<'a>(shares: impl Iterator<Item = &'a Share>) -> Option<&'a str> {
    let mut errors = BTreeMap::<&str, u64>::new();
    for share in shares {
        if let Some(error) = &share.error {
            *errors.entry(error).or_default() += share.count;
        }
    }
    let most = errors.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(error, _)| error)
}

fn mostly(why: Option<&str>) -> String {
    why.map_or(String::new(), |why| format!(", mostly: {why}"))
}

/// Returns the jobs that fail on nodes that are not suspected, or that ran on no such node.
fn failing_by_themselves(shares: &[Share], suspects: &BTreeSet<&str>) -> BTreeSet<u32> {
    let mut elsewhere = BTreeMap::<u32, Ends>::new();
    for share in shares {
        let ends = elsewhere.entry(share.job).or_default();
        if !suspects.contains(share.host.as_str()) {
            ends.add(share);
        }
    }
    elsewhere.retain(|_, ends| ends.good == 0 || ends.is_mostly_bad());
    elsewhere.into_keys().collect()
}

fn broken_nodes(
    shares: &[Share],
    suspects: &BTreeSet<&str>,
    own_fault: &BTreeSet<u32>,
) -> Vec<Finding> {
    let nodes = suspects.iter().map(|host| {
        let there = || {
            let found = shares.iter().filter(|share| share.host == *host);
            found.filter(|share| !own_fault.contains(&share.job))
        };
        let mut ends = Ends::default();
        there().for_each(|share| ends.add(share));
        let whole = ends.good + ends.bad;
        Finding {
            severity: Severity::Error,
            subject: Subject::Node {
                host: (*host).to_owned(),
                worker: there().map(|share| share.worker).max().unwrap_or(0),
                is_asked: false,
            },
            title: (*host).to_owned(),
            text: format!(
                "{} failed there{}; the same jobs succeed elsewhere",
                part(ends.bad, whole, "task"),
                mostly(most_common(there())),
            ),
            part: ends.bad,
            whole,
        }
    });
    nodes.filter(|finding| finding.part > 0).collect()
}

/// Adds the server's findings about broken nodes.
fn note_set_aside(found: &mut Vec<Finding>, broken: &[BrokenNode]) {
    for node in broken {
        let state = match node.aside {
            Aside::UntilProbed => "it gets no tasks until a probe task succeeds there",
            Aside::UntilFit => "it gets no tasks until that is over",
            Aside::OnRequest => "it gets no tasks until then",
            Aside::No => "it gets tasks all the same",
        };
        let is_asked = node.aside == Aside::OnRequest;
        let known = found.iter_mut().find(|finding| finding.title == node.host);
        if let Some(known) = known {
            // Failures there are already a finding, and the check explains them.
            if node.is_by_check && !node.why.is_empty() {
                known.text.push_str("; ");
                known.text.push_str(&node.why);
            }
            if is_asked {
                known.text.push_str("; it was set aside ");
                known.text.push_str(&node.why);
            }
            known.text.push_str("; ");
            known.text.push_str(state);
            continue;
        }
        let why = if node.why.is_empty() {
            String::new()
        } else {
            format!("{}; ", node.why)
        };
        found.push(Finding {
            // A node in quarantine loses no more tasks.
            severity: match node.aside {
                Aside::UntilProbed | Aside::UntilFit | Aside::OnRequest => Severity::Warning,
                Aside::No => Severity::Error,
            },
            subject: Subject::Node {
                host: node.host.clone(),
                worker: node.worker,
                is_asked,
            },
            title: node.host.clone(),
            text: format!("{why}{state}"),
            part: 1,
            whole: 1,
        });
    }
}

fn failing_jobs(
    facts: &Facts<'_>,
    suspects: &BTreeSet<&str>,
    own_fault: &BTreeSet<u32>,
) -> Vec<Finding> {
    let mut own = BTreeMap::<u32, Vec<&Share>>::new();
    for share in facts.shares.iter().filter(|share| share.error.is_some()) {
        // The totals may be older than the counts. Until there are totals for a job, only its
        // counts are known.
        let shares = own.entry(share.job).or_default();
        if own_fault.contains(&share.job) || !suspects.contains(share.host.as_str()) {
            shares.push(share);
        }
    }
    let jobs = facts.jobs.iter().filter(|job| job.failed > 0);
    let is_suspect = |share: &&Share| suspects.contains(share.host.as_str());
    jobs.filter_map(|job| {
        let own = own.get(&job.id).map(Vec::as_slice);
        let mut found = failing_job(job, own)?;
        // Whether it would succeed elsewhere is unknown.
        if own.is_some_and(|own| !own.is_empty() && own.iter().all(is_suspect)) {
            found.text.push_str("; all of them on broken nodes");
        }
        Some(found)
    })
    .collect()
}

/// Returns the finding about a failing job. `own` are the failures attributed to the job, or `None`
/// if they are not known yet.
fn failing_job(job: &JobFacts<'_>, own: Option<&[&Share]>) -> Option<Finding> {
    let left = own.map_or(job.failed, |own| own.iter().map(|share| share.count).sum());
    if left == 0 {
        return None;
    }
    let ended = job.failed + job.finished;
    let is_bad = left.saturating_mul(MANY_FAILURES) >= ended;
    Some(Finding {
        severity: if is_bad {
            Severity::Error
        } else {
            Severity::Warning
        },
        subject: if is_bad {
            Subject::FailingJob(job.id)
        } else {
            Subject::FailedTasks(job.id)
        },
        title: title(job),
        text: format!(
            "{} failed{}",
            part(left, job.total, "task"),
            mostly(most_common(own.unwrap_or_default().iter().copied())),
        ),
        part: left,
        whole: job.total,
    })
}

fn title(job: &JobFacts<'_>) -> String {
    format!("{} {}", job.id, job.name)
}

/// Returns the finding about probable mistakes that the client of a job found.
fn acknowledged_job(job: &JobFacts<'_>) -> Option<Finding> {
    (!job.notes.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::NotedJob(job.id),
        title: title(job),
        text: job.notes.join("; "),
        part: job.total,
        whole: job.total,
    })
}

fn starving_queue(queue: &QueueFacts<'_>) -> Option<Finding> {
    if !queue.is_starving() {
        return None;
    }
    let space = if queue.name.is_empty() { "" } else { " " };
    let what = if queue.is_paused {
        "asks for no allocations"
    } else {
        "gets no allocations"
    };
    Some(Finding {
        severity: Severity::Error,
        subject: Subject::Queue(queue.id),
        title: format!("{}{space}{}", queue.id, queue.name),
        text: format!("{what}: {}", queue_reason(queue.reason)),
        part: 0,
        whole: 0,
    })
}

fn lost_workers(workers: &WorkerFacts) -> Option<Finding> {
    (workers.lost > 0).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::LostWorkers,
        title: workers.last_lost.clone(),
        text: if workers.lost == 1 {
            "its connection broke, or it sent no heartbeat".to_owned()
        } else {
            let lost = number(workers.lost);
            format!("{lost} workers were lost, this one last")
        },
        part: workers.lost,
        whole: workers.total,
    })
}

fn internal_errors(count: u64) -> Option<Finding> {
    (count > 0).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::Internal,
        title: "server".to_owned(),
        text: format!(
            "contradictions in its own state: {}; please report what its log says about them",
            number(count)
        ),
        part: count,
        whole: count,
    })
}

fn held_journal(journal: JournalFacts<'_>) -> Finding {
    let hangs = journal.reason.is_none();
    let what = match journal.reason {
        Some(reason) => {
            format!("it cannot be written ({reason}), which is tried again until it can")
        }
        None => "its disk or file system does not answer".to_owned(),
    };
    Finding {
        severity: Severity::Error,
        subject: Subject::Journal { hangs },
        title: journal.path.to_owned(),
        text: format!(
            "{what}; the server answers queries from memory, changes wait, no task starts, and running tasks continue"
        ),
        part: 1,
        whole: 1,
    }
}

fn unkillable_tasks(workers: &WorkerFacts) -> Option<Finding> {
    let what = "it sleeps in the kernel, most likely for a file system that does not answer, or has become another user; \
                its resources stay reserved";
    (workers.unkillable > 0).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::Unkillable,
        title: workers.first_unkillable.clone(),
        text: match workers.unkillable - 1 {
            0 => what.to_owned(),
            more => format!("{what}; {} more like it", number(more)),
        },
        part: workers.unkillable,
        whole: workers.unkillable,
    })
}

fn missing_limits(workers: &WorkerFacts) -> Option<Finding> {
    let (first, why) = &workers.first_unlimited;
    let others = match workers.unlimited.checked_sub(1)? {
        0 => String::new(),
        more => format!("; {} more workers like it", number(more)),
    };
    Some(Finding {
        severity: Severity::Warning,
        subject: Subject::MemoryLimits,
        title: first.clone(),
        text: format!("tasks that ask for `mem` can use more there: {why}{others}"),
        part: workers.unlimited,
        whole: workers.connected,
    })
}

/// Returns the findings about jobs without running tasks. If the reason is unknown, there is a
/// finding only when no task of any job runs, because it is normal to wait for other jobs.
fn starving_jobs(facts: &Facts<'_>) -> Vec<Finding> {
    let has_worker = facts.workers.connected > 0;
    let known: BTreeMap<u32, &str> = facts
        .obstacles
        .unwrap_or_default()
        .iter()
        .map(|known| (known.job, known.why.as_str()))
        .collect();
    let is_idle = facts.jobs.iter().all(|job| job.running == 0);
    let mut found = Vec::new();
    for job in facts.jobs.iter().filter(|job| job.is_starving()) {
        let why = match known.get(&job.id) {
            Some(why) => (*why).to_owned(),
            None if !has_worker => "there is no worker".to_owned(),
            None if facts.obstacles.is_none() && is_idle => {
                format!("see `hq task explain {}.TASK`", job.id)
            }
            None => continue,
        };
        found.push(Finding {
            severity: Severity::Warning,
            subject: Subject::StarvingJob(job.id),
            title: title(job),
            text: why_waiting(job.waiting, None, &why),
            part: job.waiting,
            whole: job.total,
        });
    }
    found
}

#[cfg(test)]
mod tests;
