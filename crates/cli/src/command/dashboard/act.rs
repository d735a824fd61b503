//! Single requests to a server: actions, and the output of a task.

use hq_core::outcome::SignalName;
use hq_core::words::count;
use hq_protocol::client::{self, ask_problems::Change, resubmitted_job::Result as Resubmitted};
use hq_protocol::common::{IdArray, stdio};

use super::model::{LogKey, OutputTail};
use super::question::Action;
use super::read::{id_array, page_of};
use crate::client::{AllocPause, AllocResume, Client, Question, WorkerDrain, WorkerStop};
use crate::command::hold;
use crate::command::task::UNABLE;
use crate::error::{CliError, CliResult};
use crate::parse::selector::Selector;
use crate::text::clean;

/// The maximum number of output lines that are shown.
const TAIL_LINES: u32 = 100;

/// Performs an action, and returns its result as text.
pub(super) async fn act(client: &mut Client, action: Action) -> CliResult<String> {
    let only = Selector::one;
    Ok(match action {
        Action::CancelJob(id) => {
            let cancel = client::Cancel {
                jobs: Some(only(id).to_message()),
                reason: String::new(),
            };
            let canceled = canceled(client, cancel).await?;
            format!("{} of job {id} canceled", count(canceled, "task"))
        }
        Action::CancelTask(job, task) => {
            let cancel = client::CancelTasks {
                job,
                tasks: id_array((task, task)),
                keep_running: false,
            };
            match canceled(client, cancel).await? {
                0 => format!("task {task} of job {job} has ended already"),
                1.. => format!("task {task} of job {job} was canceled"),
            }
        }
        Action::Hold(job, task, is_held) => hold::job_or_task(client, (job, task), is_held).await?,
        Action::SignalTask(job, task, signal) => signal_task(client, (job, task), signal).await?,
        Action::ResubmitFailed(id) => {
            let resubmit = client::Resubmit {
                jobs: Some(only(id).to_message()),
                states: vec![client::TaskState::Failed.into()],
                ..client::Resubmit::default()
            };
            let job = client.ask(resubmit).await?.jobs.into_iter().next();
            let tasks = job.as_ref().map_or(0, |job| job.task_count);
            match job.and_then(|job| job.result) {
                Some(Resubmitted::NewJob(job)) => {
                    format!("{} submitted as job {job}", count(tasks.into(), "task"))
                }
                Some(Resubmitted::Refused(why)) => why,
                Some(Resubmitted::Nothing(_)) => format!("no task of job {id} has failed"),
                None => format!("job {id} not found"),
            }
        }
        Action::StopWorker(id) => {
            client.ask(WorkerStop(&only(id))).await?;
            format!("worker {id} is stopping")
        }
        Action::DrainWorker(id) => {
            client.ask(WorkerDrain(&only(id))).await?;
            format!("worker {id} stops when its tasks have ended")
        }
        Action::PauseQueue(id) => {
            client.alloc(AllocPause(id)).await?;
            format!("queue {id} is paused")
        }
        Action::ResumeQueue(id) => {
            client.alloc(AllocResume(id)).await?;
            format!("queue {id} goes on")
        }
        Action::Acknowledge(id) => {
            client.ask(Change::Acknowledge(id)).await?;
            "the problem is acknowledged; A takes that back".to_owned()
        }
        Action::TakeBack(id) => {
            client.ask(Change::TakeBack(id)).await?;
            "the problem is open again".to_owned()
        }
    })
}

async fn signal_task(
    client: &mut Client,
    (job, task): (u32, u32),
    signal: SignalName,
) -> CliResult<String> {
    let request = client::SignalTasks {
        job,
        tasks: id_array((task, task)),
        signal: signal.0.cast_unsigned(),
    };
    let found = client.ask(request).await?;
    let has = |tasks: Option<IdArray>| tasks.is_some_and(|ids| !ids.ranges.is_empty());
    Ok(match (has(found.sent), has(found.unable)) {
        (true, _) => format!("{signal} was sent to task {task} of job {job}"),
        (false, true) => format!("task {task} of job {job} gets no signal: {UNABLE}"),
        (false, false) => format!("task {task} of job {job} is not running"),
    })
}

/// Returns the number of tasks that a request canceled.
async fn canceled(
    client: &mut Client,
    request: impl Question<Answer = client::JobResults>,
) -> CliResult<u64> {
    let results = client.ask(request).await?.results;
    Ok(results.first().map_or(0, |result| result.canceled.into()))
}

/// Returns the end of a task's standard error, or of its standard output if that is empty.
pub(super) async fn output_tail(client: &mut Client, job: u32, task: u32) -> CliResult<OutputTail> {
    let mut tail = OutputTail {
        job,
        task,
        title: format!("task {task} wrote nothing that was kept"),
        ..OutputTail::default()
    };
    for (name, is_stderr) in [("stderr", true), ("stdout", false)] {
        let found = client.last_lines((job, task), is_stderr, TAIL_LINES);
        match found.await? {
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => {
                tail.title = format!("{name} of task {task}");
                tail.lines = text.lines().map(clean).collect();
                break;
            }
            Err(why) => {
                tail.title = format!("{name} of task {task} cannot be read: {}", clean(&why));
            }
        }
    }
    Ok(tail)
}

/// Returns the file into which a task writes, or the directory of its stream.
pub(super) async fn path(client: &mut Client, key: LogKey) -> CliResult<String> {
    let mut page = page_of(key.job);
    page.tasks = id_array((key.task, key.task));
    let found = client.ask(page).await?.tasks.into_iter().next();
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
