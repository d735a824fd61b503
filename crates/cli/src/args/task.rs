//! `hq task …`.

use clap::{ArgAction, Args, Subcommand, ValueEnum};
use hq_core::range::IdArray;
use hq_protocol::client;

use crate::parse::array::parse_id_array;
use crate::parse::retry::parse_signal;
use crate::parse::selector::{JobTasks, Selector, parse_job_tasks, parse_jobs_tasks};

/// Commands about tasks.
#[derive(Subcommand, Debug)]
pub(crate) enum TaskCommand {
    /// List the tasks of jobs
    List(ListArgs),
    /// Show everything about tasks
    Info(InfoArgs),
    /// Show why a task runs or does not run
    Explain(ExplainArgs),
    /// Cancel tasks of a job; its other tasks go on
    ///
    /// Running tasks get their --stop-signal. Tasks that depend on a canceled task are aborted.
    Cancel(ChosenArgs),
    /// Hold tasks of a job: they do not start until `hq task release`
    ///
    /// Running tasks go on. The command names the tasks that it did not hold.
    Hold(ChosenArgs),
    /// Let held tasks of a job start
    Release(ChosenArgs),
    /// Send a signal to running tasks of a job
    ///
    /// The signal goes to the process group of each task. A program that does not handle it usually
    /// ends, and its task fails. The command names the tasks that did not get the signal.
    Signal(SignalArgs),
    /// Inside a task: send a message to commands that wait for its job
    Notify(NotifyArgs),
}

/// State of a task.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskStateArg {
    /// Waiting for other tasks or free resources
    Waiting,
    /// Running on a worker, or about to start
    Running,
    /// Ended with exit code 0
    Finished,
    /// Ended with an error
    Failed,
    /// Canceled with `hq job cancel` or `hq task cancel`
    Canceled,
    /// Given up: a dependency did not finish, or --max-fails was reached
    Aborted,
}

impl From<TaskStateArg> for client::TaskState {
    fn from(state: TaskStateArg) -> Self {
        match state {
            TaskStateArg::Waiting => Self::Waiting,
            TaskStateArg::Running => Self::Running,
            TaskStateArg::Finished => Self::Finished,
            TaskStateArg::Failed => Self::Failed,
            TaskStateArg::Canceled => Self::Canceled,
            TaskStateArg::Aborted => Self::Aborted,
        }
    }
}

/// Converts the states for a message to the server. No states means all.
pub(crate) fn states_to_message(states: Option<&[TaskStateArg]>) -> Vec<i32> {
    let states = states.unwrap_or_default();
    states
        .iter()
        .map(|state| client::TaskState::from(*state).into())
        .collect()
}

/// Options of `task list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// `last`, or ids such as `1-4,7`; `3.7` and `last.1-4` select tasks
    #[arg(value_name = "JOBS[.TASKS]", value_parser = parse_jobs_tasks)]
    pub(crate) selector: JobTasks<Selector>,

    /// Only tasks with these ids
    #[arg(long, value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) tasks: Option<IdArray>,

    /// Only tasks in these states
    #[arg(long, alias = "task-status", value_enum, value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<TaskStateArg>>,

    /// Show complete error messages
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of `task info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// The tasks: `3.7` is task 7 of job 3, `last.1-4` are tasks 1 to 4 of the last job
    #[arg(value_name = "JOB[.TASKS]", value_parser = parse_job_tasks)]
    pub(crate) target: JobTasks,

    /// Ids of the tasks; needed if the first argument is only a job
    #[arg(value_name = "TASKS", value_parser = parse_id_array)]
    pub(crate) tasks: Option<IdArray>,

    /// Also show resource use, earlier attempts, and complete error messages
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of `task cancel`, and the tasks of `task signal`.
#[derive(Args, Debug)]
pub(crate) struct ChosenArgs {
    /// The tasks: `3.7` is task 7 of job 3, `last.1-4` are tasks 1 to 4 of the last job
    #[arg(value_name = "JOB[.TASKS]", value_parser = parse_job_tasks)]
    pub(crate) target: JobTasks,

    /// Ids of the tasks; needed if the first argument is only a job
    #[arg(value_name = "TASKS", value_parser = parse_id_array)]
    pub(crate) tasks: Option<IdArray>,
}

/// Options of `task signal`.
#[derive(Args, Debug)]
pub(crate) struct SignalArgs {
    #[command(flatten)]
    pub(crate) chosen: ChosenArgs,

    /// Signal to send: a name such as USR1, or a number from 1 to 64
    #[arg(short, long, value_name = "SIGNAL", value_parser = parse_signal)]
    pub(crate) signal: i32,
}

/// Options of `task notify`.
#[derive(Args, Debug)]
pub(crate) struct NotifyArgs {
    /// The message, at most 1024 bytes
    #[arg(value_name = "MESSAGE")]
    pub(crate) message: std::ffi::OsString,
}

/// Options of `task explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The task: `3.7` is task 7 of job 3, `last.7` is task 7 of the last job
    #[arg(value_name = "JOB[.TASK]", value_parser = parse_job_tasks)]
    pub(crate) target: JobTasks,

    /// Id of the task; needed if the first argument is only a job
    #[arg(value_name = "TASK", value_parser = parse_id_array)]
    pub(crate) task: Option<IdArray>,

    /// Also show for each worker why the task cannot start on it now, and what to do
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
