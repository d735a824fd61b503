//! The problems of a run, reported by a server or found in a journal.

use std::time::Duration;

use hq_core::diagnosis::{
    self, Facts, Finding, JobFacts, QueueFacts, Severity, Subject, WorkerFacts,
};
use hq_protocol::client::{self, Problem};

use super::{Obstacle, Queue, Share, Snapshot, host, is_lost};
use crate::output::format::{elapsed, short_words};
use crate::output::view::totals;
use crate::text::clean;

/// The kind of a problem: no worker can run the tasks of a job.
pub(crate) const STARVING: &str = "starving-job";

/// Finds the problems in a journal, worst first.
pub(crate) fn find(
    snapshot: &Snapshot,
    queues: &[Queue],
    shares: &[Share],
    obstacles: Option<&[Obstacle]>,
) -> Vec<Finding> {
    let jobs: Vec<JobFacts<'_>> = snapshot.jobs.iter().map(job).collect();
    let queues: Vec<QueueFacts<'_>> = queues.iter().map(queue).collect();
    let lost = || snapshot.workers.iter().filter(|worker| is_lost(worker));
    diagnosis::find(&Facts {
        jobs: &jobs,
        workers: &WorkerFacts {
            connected: snapshot.connected().count() as u64,
            lost: lost().count() as u64,
            total: snapshot.workers.len() as u64,
            last_lost: lost().last().map_or("", host).to_owned(),
            ..WorkerFacts::default()
        },
        queues: &queues,
        shares,
        broken: &[],
        obstacles,
        internal_errors: 0,
        // A running server reports this itself.
        journal: None,
    })
}

fn job(job: &client::JobSummary) -> JobFacts<'_> {
    let counts = totals(job);
    JobFacts {
        id: job.id,
        name: &job.name,
        waiting: counts.waiting,
        running: counts.running,
        finished: counts.finished,
        failed: counts.failed,
        total: counts.total(),
        notes: &[],
    }
}

fn queue(queue: &Queue) -> QueueFacts<'_> {
    QueueFacts {
        id: queue.id,
        name: &queue.name,
        is_paused: queue.is_paused,
        is_failing: queue.is_failing,
        reason: &queue.reason,
    }
}

/// Converts a finding in a journal to a problem without an id, because it cannot be acknowledged.
pub(crate) fn problem(finding: Finding) -> Problem {
    let mut problem = Problem {
        is_error: finding.severity == Severity::Error,
        heading: finding.subject.heading().to_owned(),
        title: finding.title,
        text: finding.text,
        ..Problem::default()
    };
    match finding.subject {
        Subject::Node { host, worker, .. } => {
            (problem.host, problem.worker) = (Some(host), Some(worker));
        }
        Subject::FailingJob(job) | Subject::FailedTasks(job) | Subject::NotedJob(job) => {
            problem.subject = Some(job)
        }
        Subject::StarvingJob(job) => {
            (problem.kind, problem.subject) = (STARVING.to_owned(), Some(job));
        }
        Subject::Queue(queue) => {
            (problem.kind, problem.subject) = ("queue".to_owned(), Some(queue));
        }
        Subject::Internal | Subject::Journal { .. } => "internal".clone_into(&mut problem.kind),
        Subject::LostWorkers | Subject::Unkillable | Subject::MemoryLimits => {}
    }
    problem
}

/// Returns whether the problem needs attention now.
pub(crate) const fn is_open(problem: &Problem) -> bool {
    !problem.is_over && !problem.is_acknowledged
}

/// Returns the whole sentence: the problem, its cause, and since when it exists.
pub(crate) fn sentence(problem: &Problem, now_ns: i64) -> String {
    let mut text = format!("{} {}: {}", problem.heading, problem.title, problem.text);
    if let Some(cause) = &problem.cause {
        text.push_str(&format!("; the last words: {cause}"));
    }
    let ago = |at: i64| short_words(Duration::from_secs(elapsed(at, now_ns).as_secs()));
    match (problem.since_unix_ns, problem.last_unix_ns) {
        (_, Some(last)) => text.push_str(&format!("; {} ago", ago(last))),
        (Some(since), None) => text.push_str(&format!("; for {}", ago(since))),
        (None, None) => {}
    }
    if let Some(job) = problem.resubmitted_as {
        text.push_str(&format!("; submitted again as job {job}"));
    }
    clean(&text)
}
