//! Single questions to a server: actions, and the output of a task.

use hq_core::range::IdArray;
use hq_core::words::count;
use hq_protocol::client::{
    self, alloc_request, ask_problems::Change, request::Request, resubmitted_job, task_page,
};
use hq_protocol::common::stdio;

use crate::client::Client;
use crate::dashboard::model::{LogKey, OutputTail, clean};
use crate::dashboard::question::Action;
use crate::error::{CliError, CliResult};
use crate::parse::selector::{Selector, array_to_message};

/// Lines of an output that are shown at most.
const TAIL_LINES: u32 = 100;

fn only(id: u32) -> client::Selector {
    Selector::Ids(IdArray::single(id)).to_message()
}

/// Performs an action, and returns its result as text.
pub(super) async fn act(client: &mut Client, action: Action) -> CliResult<String> {
    match action {
        Action::CancelJob(id) => {
            let cancel = client::Cancel {
                jobs: Some(only(id)),
                reason: String::new(),
            };
            let results = client.change_jobs(Request::JobCancel(cancel)).await?;
            let canceled = results.results.first().map_or(0, |result| result.canceled);
            Ok(format!(
                "{} of job {id} canceled",
                count(canceled.into(), "task")
            ))
        }
        Action::CancelTask(job, task) => cancel_task(client, job, task).await,
        Action::ResubmitFailed(id) => {
            let states = vec![client::TaskState::Failed.into()];
            let resubmit = client::Resubmit {
                jobs: Some(only(id)),
                states,
                ..client::Resubmit::default()
            };
            let results = client.resubmit(resubmit).await?;
            let new = results.jobs.into_iter().next();
            Ok(match new.map(|job| (job.result, job.task_count)) {
                Some((Some(resubmitted_job::Result::NewJob(job)), number)) => {
                    format!("{} submitted as job {job}", count(number.into(), "task"))
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
            client.change_workers(Request::WorkerStop(only(id))).await?;
            Ok(format!("stopping worker {id}"))
        }
        Action::DrainWorker(id) => {
            client
                .change_workers(Request::WorkerDrain(only(id)))
                .await?;
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
        Action::Acknowledge(id) => {
            client.problems(Some(Change::Acknowledge(id))).await?;
            Ok("the problem is acknowledged; A takes that back".to_owned())
        }
        Action::TakeBack(id) => {
            client.problems(Some(Change::TakeBack(id))).await?;
            Ok("the problem is open again".to_owned())
        }
    }
}

async fn cancel_task(client: &mut Client, job: u32, task: u32) -> CliResult<String> {
    let cancel = client::CancelTasks {
        job,
        tasks: Some(array_to_message(&IdArray::single(task))),
        keep_running: false,
    };
    let results = client.change_jobs(Request::TaskCancel(cancel)).await?;
    let canceled = results.results.first().map_or(0, |result| result.canceled);
    Ok(match canceled {
        0 => format!("task {task} of job {job} has ended already"),
        _ => format!("task {task} of job {job} was canceled"),
    })
}

/// The end of a task's standard error; of its standard output if that is empty.
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

/// The file into which a task writes, or the directory of its stream.
pub(super) async fn path(client: &mut Client, key: LogKey) -> CliResult<String> {
    let page = client::TaskPage {
        job: Some(task_page::Job::Id(key.job)),
        tasks: Some(array_to_message(&IdArray::single(key.task))),
        ..client::TaskPage::default()
    };
    let found = client.task_page(page).await?.tasks.into_iter().next();
    let paths = found.and_then(|task| task.paths).unwrap_or_default();
    let output = if key.is_stderr {
        paths.stderr
    } else {
        paths.stdout
    };
    match output.filter(|output| output.kind() != stdio::Kind::None) {
        Some(output) => Ok(clean(&String::from_utf8_lossy(&output.path))),
        None => Err(CliError::new(format!(
            "the {} of task {} is not kept in a file",
            key.stream(),
            key.task
        ))),
    }
}
