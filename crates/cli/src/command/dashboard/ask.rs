//! Single questions to a server: actions, and the output of a task.

use hq_protocol::client::{
    self, Selector, alloc_request, request::Request, resubmitted_job, selector,
};
use hq_protocol::common::{IdArray, IdRange};

use crate::client::Client;
use crate::dashboard::model::{OutputTail, clean};
use crate::dashboard::question::Action;
use crate::error::CliResult;

/// Lines of an output that are shown at most.
const TAIL_LINES: u32 = 100;

fn only(id: u32) -> Selector {
    let range = IdRange {
        first: id,
        count: 1,
        step: 1,
        slack: 0,
    };
    let ids = IdArray {
        ranges: vec![range],
    };
    Selector {
        selector: Some(selector::Selector::Ids(ids)),
    }
}

/// Does it, and says what came of it.
pub(super) async fn act(client: &mut Client, action: Action) -> CliResult<String> {
    match action {
        Action::CancelJob(id) => {
            let cancel = client::Cancel {
                jobs: Some(only(id)),
                reason: String::new(),
            };
            let results = client.change_jobs(Request::JobCancel(cancel)).await?;
            let canceled = results.results.first().map_or(0, |result| result.canceled);
            Ok(format!("{canceled} tasks of job {id} were canceled"))
        }
        Action::ResubmitFailed(id) => {
            let states = vec![client::TaskState::Failed.into()];
            let resubmit = client::Resubmit {
                jobs: Some(only(id)),
                states,
            };
            let results = client.resubmit(resubmit).await?;
            let new = results.jobs.into_iter().next();
            Ok(match new.map(|job| (job.result, job.task_count)) {
                Some((Some(resubmitted_job::Result::NewJob(job)), count)) => {
                    format!("{count} tasks were submitted as job {job}")
                }
                Some((Some(resubmitted_job::Result::Refused(why)), _)) => why,
                Some((Some(resubmitted_job::Result::Nothing(_)), _)) => {
                    format!("no task of job {id} has failed")
                }
                Some((None, _)) | None => {
                    format!("job {id} not found")
                }
            })
        }
        Action::StopWorker(id) => {
            client.stop_workers(only(id)).await?;
            Ok(format!("worker {id} was told to stop"))
        }
        Action::DrainWorker(id) => {
            client.drain_workers(only(id)).await?;
            Ok(format!("worker {id} stops when its tasks have ended"))
        }
        Action::PauseQueue(id) => {
            client.alloc(alloc_request::Request::Pause(id)).await?;
            Ok(format!("queue {id} is paused"))
        }
        Action::ResumeQueue(id) => {
            client.alloc(alloc_request::Request::Resume(id)).await?;
            Ok(format!("queue {id} goes on"))
        }
    }
}

/// The end of what a task wrote to standard error, or else to standard output.
pub(super) async fn output_tail(client: &mut Client, job: u32, task: u32) -> CliResult<OutputTail> {
    let mut tail = OutputTail {
        job,
        task,
        title: format!("task {task} wrote nothing that was kept"),
        ..OutputTail::default()
    };
    for (name, is_stderr) in [("stderr", true), ("stdout", false)] {
        match client
            .last_lines((job, task), is_stderr, TAIL_LINES)
            .await?
        {
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => {
                tail.title = format!("{name} of task {task}");
                tail.lines = text.lines().map(clean).collect();
                return Ok(tail);
            }
            Err(why) => {
                tail.title = format!("{name} of task {task} cannot be read: {}", clean(&why))
            }
        }
    }
    Ok(tail)
}
