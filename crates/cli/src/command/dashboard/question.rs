//! Questions that precede an action.

use hq_core::task::TaskState;
use hq_core::words::count;
use hq_protocol::client::{JobSummary, Problem, WorkerInfo};

use super::model::TaskRow;
use crate::output::view::totals;
use crate::source::problems::sentence;
use crate::source::{Queue, host, is_connected};
use crate::text::fit;

/// The maximum number of columns of a name.
const NAME: usize = 30;

/// An action that needs confirmation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    CancelJob(u32),
    /// Cancel a task, given by its job and its id.
    CancelTask(u32, u32),
    ResubmitFailed(u32),
    StopWorker(u32),
    DrainWorker(u32),
    PauseQueue(u32),
    ResumeQueue(u32),
    /// Acknowledge a problem, given by its id.
    Acknowledge(String),
    TakeBack(String),
}

/// An action that waits for confirmation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) action: Action,
    pub(super) text: String,
}

/// A question, or the reason why no action is possible.
pub(super) type Asked = Result<Question, String>;

fn ask(action: Action, text: String) -> Asked {
    Ok(Question { action, text })
}

pub(super) fn cancel(job: &JobSummary) -> Asked {
    let (id, counts) = (job.id, totals(job));
    if counts.unfinished() == 0 && !job.is_open {
        return Err(format!("job {id} is over: there is nothing to cancel"));
    }
    let text = format!(
        "Cancel job {id} `{}`? This drops {} and ends {}.",
        fit(&job.name, NAME),
        count(counts.waiting, "waiting task"),
        count(counts.running, "running task")
    );
    ask(Action::CancelJob(id), text)
}

pub(super) fn cancel_task(task: &TaskRow) -> Asked {
    let id = task.task;
    let ended = match task.state {
        TaskState::Waiting => return ask_about_task(task.job, id, " It is not run."),
        TaskState::Running => {
            let what = format!(" It is ended on {}.", fit(&task.host, NAME));
            return ask_about_task(task.job, id, &what);
        }
        TaskState::Canceled => "was canceled",
        TaskState::Aborted => "was aborted",
        TaskState::Failed => "has failed",
        TaskState::Finished => "has finished",
    };
    Err(format!("task {id} {ended}: there is nothing to cancel"))
}

/// Asks whether to cancel a task, and says what that does, if known.
pub(super) fn ask_about_task(job: u32, task: u32, what: &str) -> Asked {
    let text = format!(
        "Cancel task {task} of job {job}? The job goes on without it and what depends on it.{what}"
    );
    ask(Action::CancelTask(job, task), text)
}

pub(super) fn resubmit(job: &JobSummary) -> Asked {
    let (id, failed) = (job.id, totals(job).failed);
    if failed == 0 {
        return Err(format!("no task of job {id} has failed"));
    }
    let (failed, name) = (count(failed, "failed task"), fit(&job.name, NAME));
    let text = format!("Submit the {failed} of job {id} `{name}` again, as a new job?");
    ask(Action::ResubmitFailed(id), text)
}

pub(super) fn acknowledge(problem: &Problem, now_ns: i64) -> Asked {
    let id = problem.id.clone();
    if problem.is_acknowledged {
        let text = "Show this problem as an open one again?";
        return ask(Action::TakeBack(id), text.to_owned());
    }
    let text = format!(
        "Acknowledge this problem? It is hidden until there is more of it: {}",
        fit(&sentence(problem, now_ns), 90)
    );
    ask(Action::Acknowledge(id), text)
}

pub(super) fn drain(worker: &WorkerInfo) -> Asked {
    let (id, host) = here(worker)?;
    if worker.is_draining {
        return Err(format!("worker {id} is draining already"));
    }
    let text = format!(
        "Drain worker {id} on {host}? It gets no new tasks and stops when its own have ended."
    );
    ask(Action::DrainWorker(id), text)
}

pub(super) fn stop(worker: &WorkerInfo) -> Asked {
    let (id, host) = here(worker)?;
    let text =
        format!("Stop worker {id} on {host}? Its running tasks are ended and run again elsewhere.");
    ask(Action::StopWorker(id), text)
}

fn here(worker: &WorkerInfo) -> Result<(u32, String), String> {
    if !is_connected(worker) {
        return Err(format!("worker {} is gone", worker.id));
    }
    Ok((worker.id, fit(host(worker), NAME)))
}

pub(super) fn pause_or_resume(queue: &Queue) -> Asked {
    let (id, name) = (queue.id, fit(&queue.name, NAME));
    let space = if name.is_empty() { "" } else { " " };
    if queue.is_paused {
        let text = format!("Let queue {id}{space}{name} ask for allocations again?");
        return ask(Action::ResumeQueue(id), text);
    }
    let text = format!("Pause queue {id}{space}{name}? It asks for no more allocations.");
    ask(Action::PauseQueue(id), text)
}
