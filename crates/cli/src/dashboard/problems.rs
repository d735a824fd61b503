//! What is wrong with a run: the rows of the model as the facts of [`hq_core::diagnosis`].

use hq_core::diagnosis::{
    self, Facts, Finding, JobFacts, Obstacle, QueueFacts, Share, WorkerFacts,
};

use super::model::{JobRow, QueueRow, Snapshot, WorkerRow};

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
        obstacles,
        internal_errors: snapshot.internal_errors,
    })
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
