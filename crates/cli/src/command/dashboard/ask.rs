//! Single questions to a server: actions, and the output of a task.

use std::path::Path;

use hq_protocol::client::{
    self, Selector, alloc_request, request::Request, resubmitted_job, selector,
};
use hq_protocol::common::{IdArray, IdRange, ReadFrom, output_source, read_from};

use crate::client::Client;
use crate::dashboard::model::{OutputTail, clean};
use crate::dashboard::question::Action;
use crate::error::CliResult;

/// Bytes of the end of an output that are read.
const TAIL_LEN: u64 = 8 * 1024;
/// Lines of it that are shown at most.
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
        let read = client::ReadOutput {
            job,
            task,
            is_stderr,
            from: Some(ReadFrom {
                from: Some(read_from::From::LastLines(TAIL_LINES)),
            }),
            ..client::ReadOutput::default()
        };
        let output = client.read_output(read).await?;
        match text_of(output) {
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

/// What was read; if the worker is gone, its file may be here as well.
fn text_of(output: client::Output) -> Result<String, String> {
    use std::os::unix::ffi::OsStrExt as _;
    if let Some(error) = output.error {
        return Err(error);
    }
    let is_gone = output.kind() == client::output::Kind::Unreachable;
    match output.source.and_then(|source| source.source) {
        Some(output_source::Source::File(path)) if is_gone => {
            read_tail(Path::new(std::ffi::OsStr::from_bytes(&path)))
                .map_err(|error| error.to_string())
        }
        Some(output_source::Source::Stream(_)) if is_gone => {
            Err("its worker is gone; see `hq output-log`".to_owned())
        }
        Some(output_source::Source::File(_) | output_source::Source::Stream(_)) | None => {
            Ok(String::from_utf8_lossy(&output.data).into_owned())
        }
    }
}

fn read_tail(path: &Path) -> std::io::Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_LEN)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_LEN).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line is cut, unless it is the first of all.
    let whole = if length > TAIL_LEN {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        &text
    };
    Ok(whole.to_owned())
}
