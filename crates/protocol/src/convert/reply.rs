//! The client plane: answers from the core.

use hq_core::id::{JobId, WorkerId};
use hq_core::job::TaskTotals;
use hq_core::outcome::LostReason;
use hq_core::refusal::Refusal;
use hq_core::server_state::{
    ChangedTasks, JobResult, Reply, Resubmitted, Signaled, StopResult, SubmitRefusal,
};

use super::refusal_text;
use super::wire::{FromWire, ToWire, same_enum};
use super::{ConvertError, known};
use crate::client::{self, alloc_reply};

impl From<Option<LostReason>> for client::worker_info::State {
    /// `None` means that the worker is connected.
    fn from(reason: Option<LostReason>) -> Self {
        match reason {
            None => Self::Running,
            Some(LostReason::Stopped) => Self::Stopped,
            Some(LostReason::ConnectionLost | LostReason::AllocationEnded) => Self::ConnectionLost,
            Some(LostReason::HeartbeatLost) => Self::HeartbeatLost,
            Some(LostReason::IdleTimeout) => Self::IdleTimeout,
            Some(LostReason::TimeLimitReached) => Self::TimeLimitReached,
        }
    }
}

impl From<&client::TaskStats> for TaskTotals {
    fn from(stats: &client::TaskStats) -> Self {
        Self {
            waiting: stats.waiting.into(),
            running: stats.running.into(),
            finished: stats.finished.into(),
            failed: stats.failed.into(),
            canceled: stats.canceled.into(),
            aborted: stats.aborted.into(),
        }
    }
}

impl From<&JobResult> for client::JobResult {
    fn from(result: &JobResult) -> Self {
        use client::job_result::Kind;
        let row = |job: JobId, kind: Kind| Self {
            job: job.as_u32(),
            kind: kind.into(),
            ..Self::default()
        };
        match *result {
            JobResult::Ok {
                job,
                canceled,
                already_finished,
                killed,
            } => Self {
                canceled,
                already_finished,
                killed,
                ..row(job, Kind::Ok)
            },
            JobResult::Already(job) => row(job, Kind::Already),
        }
    }
}

fn submit_result(result: &Result<JobId, SubmitRefusal>) -> client::SubmitResult {
    use client::submit_result::Result as Wire;
    client::SubmitResult {
        result: Some(match result {
            Ok(job) => Wire::Job(job.as_u32()),
            Err(refusal) => Wire::Refused(refusal_text(&refusal.into())),
        }),
    }
}

impl From<&Resubmitted> for client::ResubmittedJob {
    fn from(row: &Resubmitted) -> Self {
        use client::resubmitted_job::Result as Wire;
        let (job, result, task_count) = match row {
            Resubmitted::Ok {
                job,
                new,
                task_count,
            } => (job, Wire::NewJob(new.as_u32()), *task_count),
            Resubmitted::Nothing(job) => (job, Wire::Nothing(client::Empty {}), 0),
            Resubmitted::Refused(job, refusal) => {
                (job, Wire::Refused(refusal_text(&refusal.into())), 0)
            }
        };
        Self {
            job: job.as_u32(),
            result: Some(result),
            task_count,
            ..Self::default()
        }
    }
}

same_enum! {
    StopResult = client::worker_stop_result::Kind {
        Stopped Draining AlreadyStopped Quarantined Released NotQuarantined
    }
}

impl From<&(WorkerId, StopResult)> for client::WorkerStopResult {
    fn from((worker, result): &(WorkerId, StopResult)) -> Self {
        Self {
            worker: worker.as_u32(),
            kind: result.to_wire(),
        }
    }
}

impl From<&Reply> for client::Reply {
    fn from(reply: &Reply) -> Self {
        use client::reply::Reply as Wire;
        let reply = match reply {
            Reply::Submitted(job) => Wire::Submitted(client::JobId { id: job.as_u32() }),
            Reply::Refused(refusal) => Wire::Error((&Refusal::from(refusal)).into()),
            Reply::Jobs(results) => Wire::JobResults(client::JobResults {
                results: results.rows.iter().map(Into::into).collect(),
                not_found: results.not_found.to_wire(),
            }),
            Reply::Limit(Ok(())) => Wire::Done(client::Empty {}),
            Reply::Limit(Err(refusal)) => Wire::Error(refusal.into()),
            Reply::Changed(Err(refusal)) => Wire::Error(refusal.into()),
            Reply::Changed(Ok(ChangedTasks {
                changed,
                sent,
                running,
            })) => Wire::Changed(client::ChangedTasks {
                changed: Some(changed.into()),
                sent: Some(sent.into()),
                running: Some(running.into()),
            }),
            Reply::Signaled(Signaled { sent, unable }) => Wire::Signaled(client::SignaledTasks {
                sent: sent.to_wire(),
                unable: unable.to_wire(),
            }),
            Reply::Forgotten { forgotten, ignored } => Wire::Forgotten(client::Forgotten {
                forgotten: *forgotten,
                ignored: *ignored,
            }),
            Reply::SubmittedAll(results) => Wire::SubmittedAll(client::SubmittedAll {
                results: results.iter().map(submit_result).collect(),
            }),
            Reply::Resubmitted(jobs) => Wire::Resubmitted(client::Resubmitted {
                jobs: jobs.rows.iter().map(Into::into).collect(),
                not_found: jobs.not_found.to_wire(),
            }),
            Reply::Queue(Err(refusal)) => Wire::Error(refusal.into()),
            Reply::Queue(Ok(added)) => Wire::Alloc(client::AllocReply {
                reply: Some(match added {
                    Some(queue) => alloc_reply::Reply::Added(queue.as_u32()),
                    None => alloc_reply::Reply::Done(client::AllocDone {}),
                }),
            }),
            Reply::Workers(results) => Wire::WorkerStop(client::WorkerStopResults {
                results: results.rows.iter().map(Into::into).collect(),
                not_found: results.not_found.to_wire(),
            }),
        };
        Self { reply: Some(reply) }
    }
}
