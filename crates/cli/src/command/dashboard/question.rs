//! Questions that precede an action.

use hq_core::outcome::SignalName;
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
    /// Hold or release a job, or one task of it.
    Hold(u32, Option<u32>, bool),
    SignalTask(u32, u32, SignalName),
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
    pub(super) text: String,
    /// The keys that confirm it, their meaning, and what they do.
    pub(super) answers: Vec<(char, &'static str, Action)>,
}

/// A question, or the reason why no action is possible.
pub(super) type Asked = Result<Question, String>;

fn ask(action: Action, text: String) -> Asked {
    let answers = vec![('y', "yes", action)];
    Ok(Question { text, answers })
}

/// The signals that a question offers.
const SIGNALS: [&str; 7] = [
    "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM", "SIGSTOP", "SIGCONT",
];

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

/// Asks whether to hold or to release a job.
pub(super) fn hold(job: &JobSummary, is_held: bool) -> Asked {
    let (id, counts) = (job.id, totals(job));
    if counts.unfinished() == 0 && !job.is_open {
        let what = if is_held { "hold" } else { "release" };
        return Err(format!("job {id} is over: there is nothing to {what}"));
    }
    let name = fit(&job.name, NAME);
    let text = match is_held {
        true => format!(
            "Hold job {id} `{name}`? This keeps {} from starting until you release it, and does not end {}.",
            count(counts.waiting, "waiting task"),
            count(counts.running, "running task")
        ),
        false => format!("Release job {id} `{name}`? Its held tasks may start."),
    };
    ask(Action::Hold(id, None, is_held), text)
}

/// Asks about a task. Its row may be unknown.
pub(super) type AskAboutTask = fn((u32, u32), Option<&TaskRow>) -> Asked;

/// Returns why a task can neither be canceled nor held, if that is known.
fn over(task: &TaskRow) -> Option<&'static str> {
    match task.state {
        TaskState::Waiting | TaskState::Running => None,
        TaskState::Canceled => Some("was canceled"),
        TaskState::Aborted => Some("was aborted"),
        TaskState::Failed => Some("has failed"),
        TaskState::Finished => Some("has finished"),
    }
}

pub(super) fn cancel_task((job, task): (u32, u32), known: Option<&TaskRow>) -> Asked {
    if let Some(ended) = known.and_then(over) {
        return Err(format!("task {task} {ended}: there is nothing to cancel"));
    }
    let what = known.map_or_else(String::new, |known| {
        if known.state == TaskState::Running {
            format!(" It is ended on {}.", fit(&known.host, NAME))
        } else {
            " It is not run.".to_owned()
        }
    });
    let text = format!(
        "Cancel task {task} of job {job}? The job goes on without it and what depends on it.{what}"
    );
    ask(Action::CancelTask(job, task), text)
}

pub(super) fn hold_task((job, task): (u32, u32), known: Option<&TaskRow>) -> Asked {
    if known.is_some_and(|known| known.state == TaskState::Running) {
        return Err(format!("task {task} is running already"));
    }
    if let Some(ended) = known.and_then(over) {
        return Err(format!("task {task} {ended}: there is nothing to hold"));
    }
    let text = format!("Hold task {task} of job {job}? It does not start until you release it.");
    ask(Action::Hold(job, Some(task), true), text)
}

pub(super) fn release_task((job, task): (u32, u32), known: Option<&TaskRow>) -> Asked {
    if known.is_some_and(|known| known.state != TaskState::Waiting) {
        return Err(format!("task {task} is not held"));
    }
    let text = format!("Release task {task} of job {job}? It may start.");
    ask(Action::Hold(job, Some(task), false), text)
}

pub(super) fn signal_task((job, task): (u32, u32), known: Option<&TaskRow>) -> Asked {
    if known.is_some_and(|known| known.state != TaskState::Running) {
        return Err(format!("task {task} is not running"));
    }
    let on = known.map_or_else(String::new, |known| {
        format!(" on {}", fit(&known.host, NAME))
    });
    let text = format!("Send a signal to task {task} of job {job}{on}?");
    let answers = SIGNALS.into_iter().zip('1'..).filter_map(|(name, key)| {
        let signal = name.parse().ok()?;
        Some((key, name, Action::SignalTask(job, task, signal)))
    });
    let answers = answers.collect();
    Ok(Question { text, answers })
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
