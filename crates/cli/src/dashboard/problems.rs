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
    let workers: Vec<WorkerFacts<'_>> = snapshot.workers.iter().map(worker).collect();
    let queues: Vec<QueueFacts<'_>> = snapshot.queues.iter().map(queue).collect();
    diagnosis::find(&Facts {
        jobs: &jobs,
        workers: &workers,
        queues: &queues,
        shares: ended,
        obstacles,
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

fn worker(row: &WorkerRow) -> WorkerFacts<'_> {
    let ended = row.ended.as_deref();
    WorkerFacts {
        host: &row.host,
        is_connected: ended.is_none(),
        is_lost: ended.is_some_and(|why| why.contains("lost")),
    }
}

fn queue(row: &QueueRow) -> QueueFacts<'_> {
    QueueFacts {
        id: row.id,
        name: &row.name,
        is_paused: row.is_paused,
        reason: &row.reason,
    }
}
