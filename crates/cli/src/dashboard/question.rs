//! Questions that precede an action.

use hq_core::task::TaskState;
use hq_core::words::count;

use super::model::{JobRow, ProblemRow, QueueRow, TaskRow, WorkerRow};
use crate::text::fit;

/// Columns of a name.
const NAME: usize = 30;

/// An action that needs confirmation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    CancelJob(u32),
    /// A job, and the task of it.
    CancelTask(u32, u32),
    ResubmitFailed(u32),
    StopWorker(u32),
    DrainWorker(u32),
    PauseQueue(u32),
    ResumeQueue(u32),
    /// A problem, by its id.
    Acknowledge(String),
    TakeBack(String),
}

/// An action that waits for a yes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    pub(crate) action: Action,
    pub(crate) text: String,
}

/// The question, or why no action is possible.
type Asked = Result<Question, String>;

impl Question {
    pub(crate) fn cancel(job: &JobRow) -> Asked {
        let (id, counts) = (job.id, &job.counts);
        if counts.waiting + counts.running == 0 && !job.is_open {
            return Err(format!("job {id} is over: there is nothing to cancel"));
        }
        let text = format!(
            "Cancel job {id} `{}`? This drops {} and ends {}.",
            fit(&job.name, NAME),
            count(counts.waiting, "waiting task"),
            count(counts.running, "running task")
        );
        let action = Action::CancelJob(id);
        Ok(Self { action, text })
    }

    pub(crate) fn cancel_task(task: &TaskRow) -> Asked {
        let (job, id) = (task.job, task.task);
        let what = match task.state {
            TaskState::Waiting => "It is not run".to_owned(),
            TaskState::Running => format!("It is ended on {}", fit(&task.host, NAME)),
            TaskState::Finished | TaskState::Failed | TaskState::Canceled | TaskState::Aborted => {
                let ended = match task.state {
                    TaskState::Canceled => "was canceled",
                    TaskState::Aborted => "was aborted",
                    TaskState::Failed => "has failed",
                    TaskState::Finished | TaskState::Waiting | TaskState::Running => "has finished",
                };
                return Err(format!("task {id} {ended}: there is nothing to cancel"));
            }
        };
        let question = Self::cancel_any_task(job, id);
        let text = format!("{} {what}.", question.text);
        Ok(Self { text, ..question })
    }

    /// Asks whether to cancel a task whose state is unknown.
    pub(crate) fn cancel_any_task(job: u32, task: u32) -> Self {
        Self {
            action: Action::CancelTask(job, task),
            text: format!(
                "Cancel task {task} of job {job}? The job goes on without it and what depends on it."
            ),
        }
    }

    pub(crate) fn resubmit(job: &JobRow) -> Asked {
        let id = job.id;
        if job.counts.failed == 0 {
            return Err(format!("no task of job {id} has failed"));
        }
        let text = format!(
            "Submit the {} of job {id} `{}` again, as a new job?",
            count(job.counts.failed, "failed task"),
            fit(&job.name, NAME)
        );
        let action = Action::ResubmitFailed(id);
        Ok(Self { action, text })
    }

    pub(crate) fn acknowledge(problem: ProblemRow) -> Asked {
        let Some(id) = problem.id else {
            return Err("this problem cannot be acknowledged".to_owned());
        };
        Ok(if problem.is_acknowledged {
            let text = "Show this problem as an open one again?".to_owned();
            let action = Action::TakeBack(id);
            Self { action, text }
        } else {
            let text = format!(
                "Acknowledge this problem? It is hidden until there is more of it: {}",
                fit(&problem.text, 90)
            );
            let action = Action::Acknowledge(id);
            Self { action, text }
        })
    }

    pub(crate) fn drain(worker: &WorkerRow) -> Asked {
        let id = here(worker)?;
        if worker.is_draining {
            return Err(format!("worker {id} is draining already"));
        }
        let host = fit(&worker.host, NAME);
        let text = format!(
            "Drain worker {id} on {host}? It gets no new tasks and stops when its own have ended."
        );
        let action = Action::DrainWorker(id);
        Ok(Self { action, text })
    }

    pub(crate) fn stop(worker: &WorkerRow) -> Asked {
        let id = here(worker)?;
        let host = fit(&worker.host, NAME);
        let text = format!(
            "Stop worker {id} on {host}? Its running tasks are ended and run again elsewhere."
        );
        let action = Action::StopWorker(id);
        Ok(Self { action, text })
    }

    pub(crate) fn pause_or_resume(queue: &QueueRow) -> Self {
        let id = queue.id;
        let name = fit(&queue.name, NAME);
        let space = if name.is_empty() { "" } else { " " };
        if queue.is_paused {
            Self {
                action: Action::ResumeQueue(id),
                text: format!("Let queue {id}{space}{name} ask for allocations again?"),
            }
        } else {
            Self {
                action: Action::PauseQueue(id),
                text: format!("Pause queue {id}{space}{name}? It asks for no more allocations."),
            }
        }
    }
}

fn here(worker: &WorkerRow) -> Result<u32, String> {
    if worker.ended.is_some() {
        return Err(format!("worker {} is gone", worker.id));
    }
    Ok(worker.id)
}
