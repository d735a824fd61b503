//! Findings: the problems of a run, worst first, readable in ten seconds.
//!
//! Pure rules over sums, shared by dashboards and reports. Who is to blame for failures:
//!
//! * A node, if most of what ends there fails although the same jobs go well on at least as many other nodes as
//!   they fail on. Only these jobs count: a job that fails everywhere says nothing about a node.
//! * Otherwise the job. What failed of it on a broken node counts, too, unless it goes well on other nodes.

mod blame;
mod exact;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub(crate) use blame::{Blame, Peers};

use crate::resource::amount::Amount;
use crate::words::{self, number, part};

/// Fewer failures than this say nothing about a node.
const NODE_FAILURES_MIN: u64 = 3;
/// A job goes well on a node if at least this many of its tasks finished there,
const WELL_MIN: u64 = 3;
/// and this many times as many as failed.
const WELL_FACTOR: u64 = 4;
/// A job with this part of failures, as a divisor, has more than a few bad inputs.
const MANY_FAILURES: u64 = 20;

/// Tasks of one job that ended in the same way on one worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Id of the job.
    pub job: u32,
    /// Id of the worker.
    pub worker: u32,
    /// Host of the worker.
    pub host: String,
    /// The error in a few words; `None` = finished.
    pub error: Option<String>,
    /// Number of tasks.
    pub count: u64,
}

/// A job with the counts of its tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobFacts<'a> {
    /// Job id.
    pub id: u32,
    /// Name of the job.
    pub name: &'a str,
    /// Tasks that wait.
    pub waiting: u64,
    /// Tasks that run.
    pub running: u64,
    /// Tasks that finished.
    pub finished: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// All tasks.
    pub total: u64,
    /// What looked like a mistake when it was submitted.
    pub notes: &'a [Box<str>],
}

impl JobFacts<'_> {
    /// Tasks wait and none runs.
    #[must_use]
    pub const fn is_starving(&self) -> bool {
        self.waiting > 0 && self.running == 0
    }
}

/// All workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerFacts<'a> {
    /// Workers that have not ended.
    pub connected: u64,
    /// Those that ended without being asked to.
    pub lost: u64,
    /// All that there ever were.
    pub total: u64,
    /// Host of the last one that was lost.
    pub last_lost: &'a str,
    /// Tasks that outlived SIGKILL and keep what they use.
    pub unkillable: u64,
    /// Where the first of them is.
    pub first_unkillable: &'a str,
    /// Workers that do not enforce the memory limits that tasks of some job have.
    pub unlimited: u64,
    /// The first of them, and why not.
    pub first_unlimited: (&'a str, &'a str),
}

/// A queue of automatic allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueFacts<'a> {
    /// Queue id.
    pub id: u32,
    /// Name of the queue; may be empty.
    pub name: &'a str,
    /// It asks for nothing.
    pub is_paused: bool,
    /// The batch system refuses, or its allocations fail.
    pub is_failing: bool,
    /// Why nothing, or what, is being asked for.
    pub reason: &'a str,
}

impl QueueFacts<'_> {
    /// It gets no allocations: it is paused, or the batch system refuses.
    #[must_use]
    pub const fn is_starving(&self) -> bool {
        self.is_paused || self.is_failing
    }
}

/// The essence of the reason of a queue: what the command of the batch system complained of, if it did.
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

/// Why nothing of a job runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// Id of the job.
    pub job: u32,
    /// In a few words, such as `they ask for 64 cpus, no worker has more than 8`.
    pub why: String,
}

/// That tasks ask for more of a resource than any worker has.
#[must_use]
pub fn lacking(resource: &str, asked: Amount, most: Amount) -> String {
    let asked = words::amount(resource, asked);
    if most.0 == 0 {
        format!("they ask for {asked}, no worker has any")
    } else {
        let most = words::quantity(resource, most);
        format!("they ask for {asked}, no worker has more than {most}")
    }
}

/// Whether a broken node gets tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// It does.
    No,
    /// None until one that is tried there goes well.
    UntilProbed,
    /// None until it finds nothing wrong with itself.
    UntilFit,
    /// None until the time is over for which somebody asked.
    OnRequest,
}

/// A node that the server, or the worker there, found to be broken, or that somebody set aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenNode {
    /// Host name.
    pub host: String,
    /// The worker there.
    pub worker: u32,
    /// Why, a sentence without subject and full stop; may be empty.
    pub why: String,
    /// Whether it gets no tasks.
    pub aside: Aside,
    /// Whether the node itself, or its clock, says so, and not the tasks that failed there.
    pub is_by_check: bool,
}

/// A journal that takes nothing now.
#[derive(Clone, Copy, Debug)]
pub struct JournalFacts<'a> {
    /// The file.
    pub path: &'a str,
    /// Why it cannot be written; `None` = its disk does not answer.
    pub reason: Option<&'a str>,
}

/// All that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// All jobs.
    pub jobs: &'a [JobFacts<'a>],
    /// All workers.
    pub workers: WorkerFacts<'a>,
    /// All queues.
    pub queues: &'a [QueueFacts<'a>],
    /// How tasks ended.
    pub shares: &'a [Share],
    /// Nodes of which the server says that they are broken.
    pub broken: &'a [BrokenNode],
    /// Why jobs do not run; `None` = nobody can be asked.
    pub obstacles: Option<&'a [Obstacle]>,
    /// Contradictions that the server found in its state.
    pub internal_errors: u64,
    /// The journal, if it takes nothing now.
    pub journal: Option<JournalFacts<'a>>,
}

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Work is lost.
    Error,
    /// Work does not go on as it might.
    Warning,
}

/// Heading of findings about nodes that somebody set aside.
pub const SET_ASIDE: &str = "Node set aside";

/// Subject of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A node on which tasks fail that go well elsewhere, or that somebody set aside; its last worker.
    Node {
        /// Host name.
        host: String,
        /// A worker on it.
        worker: u32,
        /// Somebody set it aside; neither the server nor its worker has found anything wrong with it.
        is_asked: bool,
    },
    /// A job of which many tasks failed.
    FailingJob(u32),
    /// A job of which some tasks failed.
    FailedTasks(u32),
    /// Workers that were lost.
    LostWorkers,
    /// Tasks that cannot be killed.
    Unkillable,
    /// Workers that do not enforce memory limits.
    MemoryLimits,
    /// A job that may not do what was meant.
    NotedJob(u32),
    /// A queue that gets no allocations.
    Queue(u32),
    /// A job of which nothing runs.
    StarvingJob(u32),
    /// The server contradicts itself.
    Internal,
    /// The journal, which takes nothing now.
    Journal {
        /// Its disk does not answer; otherwise it cannot be written.
        hangs: bool,
    },
}

impl Subject {
    /// Heading of findings about it.
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

/// One thing that is wrong. `Display` is the whole sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The subject.
    pub subject: Subject,
    /// Its name: a host, a job, a queue.
    pub title: String,
    /// A sentence without subject and full stop.
    pub text: String,
    /// Tasks that are touched.
    pub part: u64,
    /// Number of which they are a part.
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

/// Ends by job and host.
type ByJob<'a> = BTreeMap<u32, BTreeMap<&'a str, Ends>>;

/// Hosts whose node seems broken.
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
            // It fails on most nodes: that is its own fault.
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

/// All findings, worst first.
#[must_use]
pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let suspects = suspect_hosts(facts.shares);
    let own_fault = failing_by_themselves(facts.shares, &suspects);
    // First of all: while nothing is stored nothing new starts, and what is known of the rest may be old.
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
    found.extend(lost_workers(&facts.workers));
    found.extend(unkillable_tasks(&facts.workers));
    found.extend(missing_limits(&facts.workers));
    found.extend(starving_jobs(facts));
    found.extend(facts.jobs.iter().filter_map(noted_job));
    found.extend(internal_errors(facts.internal_errors));
    found.sort_by_key(|finding| finding.severity);
    found
}

/// `none of 3 waiting tasks runs: they ask for …`, `its waiting task does not run: it asks for …`; with the job where
/// that is not named before.
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
        None => why.replace("that they ask for", "that it asks for"),
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

/// Jobs that do not go well on nodes that are not suspected, or did not run on any.
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
                "{} failed there{}; the same jobs go well elsewhere",
                part(ends.bad, whole, "task"),
                mostly(most_common(there())),
            ),
            part: ends.bad,
            whole,
        }
    });
    nodes.filter(|finding| finding.part > 0).collect()
}

/// Adds what the server says of broken nodes.
fn note_set_aside(found: &mut Vec<Finding>, broken: &[BrokenNode]) {
    for node in broken {
        let state = match node.aside {
            Aside::UntilProbed => "it gets no tasks until one that is tried on it goes well",
            Aside::UntilFit => "it gets no tasks until that is over",
            Aside::OnRequest => "it gets no tasks until then",
            Aside::No => "it gets tasks all the same",
        };
        let is_asked = node.aside == Aside::OnRequest;
        let known = found.iter_mut().find(|finding| finding.title == node.host);
        if let Some(known) = known {
            // What fails there is known; what is wrong with the node explains it.
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
            // Nothing is lost there any more.
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
        // The sums may be older than the counts: until a job has any, the counts are all that is known.
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
        // Nobody knows whether it would go well elsewhere.
        if own.is_some_and(|own| !own.is_empty() && own.iter().all(is_suspect)) {
            found.text.push_str("; all of them on broken nodes");
        }
        Some(found)
    })
    .collect()
}

/// `own` are the failures that it is to blame for; `None` = not known yet.
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

/// What its client thought to be a mistake.
fn noted_job(job: &JobFacts<'_>) -> Option<Finding> {
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

fn lost_workers(workers: &WorkerFacts<'_>) -> Option<Finding> {
    (workers.lost > 0).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::LostWorkers,
        title: workers.last_lost.to_owned(),
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
            "{what}; questions are answered from memory, changes wait, nothing new is started, and what runs goes on"
        ),
        part: 1,
        whole: 1,
    }
}

fn unkillable_tasks(workers: &WorkerFacts<'_>) -> Option<Finding> {
    let what = "it sleeps in the kernel, most likely for a file system that does not answer, or has become another user; \
                what it uses stays taken";
    (workers.unkillable > 0).then(|| Finding {
        severity: Severity::Warning,
        subject: Subject::Unkillable,
        title: workers.first_unkillable.to_owned(),
        text: match workers.unkillable - 1 {
            0 => what.to_owned(),
            more => format!("{what}; {} more like it", number(more)),
        },
        part: workers.unkillable,
        whole: workers.unkillable,
    })
}

fn missing_limits(workers: &WorkerFacts<'_>) -> Option<Finding> {
    let (first, why) = workers.first_unlimited;
    let others = match workers.unlimited.checked_sub(1)? {
        0 => String::new(),
        more => format!("; {} more workers like it", number(more)),
    };
    Some(Finding {
        severity: Severity::Warning,
        subject: Subject::MemoryLimits,
        title: first.to_owned(),
        text: format!("tasks that ask for `mem` can use more there: {why}{others}"),
        part: workers.unlimited,
        whole: workers.connected,
    })
}

/// Jobs of which nothing runs. Where nobody can be asked for the reason, only if nothing runs at all: it is normal
/// that jobs wait for others.
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
            _ if !has_worker => "there is no worker".to_owned(),
            Some(why) => (*why).to_owned(),
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
