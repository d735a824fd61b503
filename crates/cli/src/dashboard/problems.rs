//! Problems of a run: the rows of the model as the facts of [`hq_core::diagnosis`], and the
//! findings of the server.

use std::time::Duration;

use hq_core::diagnosis::{
    self, Facts, Finding, JobFacts, Obstacle, QueueFacts, Severity, Share, Subject, WorkerFacts,
};
use hq_protocol::client::Problem;

use super::model::{JobRow, ProblemRow, QueueRow, Snapshot, Target, WorkerRow, clean};
use crate::output::format::{elapsed, short_words};

/// All findings, worst first.
pub(crate) fn find(
    snapshot: &Snapshot,
    ended: &[Share],
    obstacles: Option<&[Obstacle]>,
) -> Vec<Finding> {
    let jobs: Vec<JobFacts<'_>> = snapshot.jobs.iter().map(job).collect();
    let queues: Vec<QueueFacts<'_>> = snapshot.queues.iter().map(queue).collect();
    diagnosis::find(&Facts {
        jobs: &jobs,
        workers: workers(&snapshot.workers),
        queues: &queues,
        shares: ended,
        broken: &[],
        obstacles,
        internal_errors: snapshot.internal_errors,
        // A running server reports this itself.
        journal: None,
    })
}

/// Problems in a journal, worst first, derived here because no server is involved.
pub(crate) fn found(
    snapshot: &Snapshot,
    ended: &[Share],
    obstacles: Option<&[Obstacle]>,
) -> Vec<ProblemRow> {
    let found = find(snapshot, ended, obstacles).into_iter();
    found.map(row_of_finding).collect()
}

fn row_of_finding(finding: Finding) -> ProblemRow {
    let text = finding.to_string();
    ProblemRow {
        id: None,
        is_error: finding.severity == Severity::Error,
        is_open: true,
        is_acknowledged: false,
        target: match finding.subject {
            Subject::Node { host, worker, .. } => Target::Node(Some(worker), host),
            Subject::FailingJob(job)
            | Subject::FailedTasks(job)
            | Subject::StarvingJob(job)
            | Subject::NotedJob(job) => Target::Job(job),
            Subject::LostWorkers | Subject::Unkillable | Subject::MemoryLimits => Target::Workers,
            Subject::Queue(queue) => Target::Queue(queue),
            Subject::Internal | Subject::Journal { .. } => Target::Nothing,
        },
        text,
    }
}

/// Problems from a server; resolved ones come last.
pub(crate) fn rows(problems: &[Problem], now_ns: i64) -> Vec<ProblemRow> {
    let mut rows: Vec<ProblemRow> = problems.iter().map(|one| row(one, now_ns)).collect();
    rows.sort_by_key(|row| !row.is_open);
    rows
}

fn row(problem: &Problem, now_ns: i64) -> ProblemRow {
    let target = match (&problem.host, problem.subject, &problem.kind[..]) {
        (Some(host), _, _) => Target::Node(problem.worker, clean(host)),
        (None, Some(queue), "queue") => Target::Queue(queue),
        (None, Some(job), _) => Target::Job(job),
        (None, None, "internal") => Target::Nothing,
        (None, None, _) => Target::Workers,
    };
    let mut text = sentence(problem, now_ns);
    if problem.is_acknowledged {
        text.push_str(" (acknowledged)");
    }
    ProblemRow {
        id: Some(problem.id.clone()),
        is_error: problem.is_error,
        is_open: is_open(problem),
        is_acknowledged: problem.is_acknowledged,
        target,
        text,
    }
}

/// Whether the problem needs attention now.
pub(crate) const fn is_open(problem: &Problem) -> bool {
    !problem.is_over && !problem.is_acknowledged
}

/// The whole sentence: what, why, since when.
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

fn job(row: &JobRow) -> JobFacts<'_> {
    let counts = &row.counts;
    JobFacts {
        id: row.id,
        name: &row.name,
        waiting: counts.waiting,
        running: counts.running,
        finished: counts.finished,
        failed: counts.failed,
        total: counts.total(),
        notes: &[],
    }
}

fn workers(rows: &[WorkerRow]) -> WorkerFacts<'_> {
    let mut facts = WorkerFacts::default();
    for row in rows {
        facts.total += 1;
        facts.connected += u64::from(row.ended.is_none());
        if row.is_lost {
            facts.lost += 1;
            facts.last_lost = &row.host;
        }
    }
    facts
}

fn queue(row: &QueueRow) -> QueueFacts<'_> {
    QueueFacts {
        id: row.id,
        name: &row.name,
        is_paused: row.is_paused,
        is_failing: row.is_failing,
        reason: &row.reason,
    }
}
