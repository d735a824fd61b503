//! `hq job …`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use hq_core::job::JobState;
use hq_core::range::IdArray;
use hq_protocol::client;
use hq_stream::Channel;

use super::deferred::Deferred;
use super::set::SetArgs;
use super::submit::{FollowArgs, NotifyArgs, OwnTasksArgs, SubmitArgs};
use super::task::TaskStateArg;
use crate::parse::array::parse_id_array;
use crate::parse::selector::{
    JobTasks, Selector, parse_job_tasks, parse_jobs_tasks, parse_selector,
};
use crate::parse::value::{parse_cancel_reason, parse_job_name, path_parser};

/// Commands about jobs.
#[derive(Subcommand, Debug)]
pub(crate) enum JobCommand {
    /// List jobs
    List(Deferred<ListArgs>),
    /// Count jobs by state
    Summary,
    /// Show everything about jobs
    Info(Deferred<InfoArgs>),
    /// Show run times, waiting times and resource use of the tasks of jobs
    Stats(Deferred<StatsArgs>),
    /// Show why tasks of jobs failed, grouped by the last line they wrote
    Failures(Deferred<FailuresArgs>),
    /// Cancel the unfinished tasks of jobs
    ///
    /// Running tasks get their --stop-signal; a second cancel kills them at once. Jobs of `hq job open` stay open.
    Cancel(Deferred<CancelArgs>),
    /// Hold jobs: their tasks do not start until `hq job release`
    ///
    /// Running tasks go on. Tasks that are submitted to the job later are held as well.
    Hold(Deferred<SelectorArgs>),
    /// Let the held tasks of jobs start
    Release(Deferred<SelectorArgs>),
    /// Change jobs, and tasks that have not ended
    ///
    /// Running tasks keep their resources. New time and crash limits apply to them at once; a new priority applies to
    /// their next attempts.
    Set(Deferred<SetArgs>),
    /// Submit the tasks of jobs again, as new jobs; this needs no script or job file
    Resubmit(Deferred<ResubmitArgs>),
    /// Remove ended jobs from the server's memory
    Forget(Deferred<ForgetArgs>),
    /// Print the standard output or standard error of tasks
    Cat(Deferred<CatArgs>),
    /// Print the last lines of tasks, and with --follow new lines
    Tail(Deferred<TailArgs>),
    /// Submit a job
    Submit(Deferred<Box<SubmitArgs>>),
    /// Submit the tasks of a job file (TOML, YAML or JSON)
    SubmitFile(Deferred<SubmitFileArgs>),
    /// Wait until jobs have ended
    Wait(Deferred<WaitArgs>),
    /// Wait until jobs have ended, and show their progress
    Progress(Deferred<SelectorArgs>),
    /// Print the ids of tasks
    TaskIds(Deferred<TaskIdsArgs>),
    /// Create an open job; you can add tasks to it until you close it
    Open(Deferred<OpenArgs>),
    /// Close open jobs
    Close(Deferred<SelectorArgs>),
}

/// A choice of jobs.
#[derive(Args, Debug)]
pub(crate) struct SelectorArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,
}

/// Options of `job info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Also show likely mistakes in the submit, such as options after the program
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of `job stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Write comma separated values: seconds, bytes, and shares of the requested cpus
    #[arg(long)]
    pub(crate) csv: bool,

    /// Suggest requests for memory and time, and show what they would have saved
    #[arg(long, conflicts_with = "csv")]
    pub(crate) suggest: bool,
}

/// Options of `job failures`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::JOB_FAILURES)]
pub(crate) struct FailuresArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Read the output of at most this many failed tasks of a job, spread over all of them
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    pub(crate) read: usize,

    /// Property that the tasks of a group share
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = GroupBy::Signature)]
    pub(crate) group_by: GroupBy,
}

/// Property that the failed tasks of a group share.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupBy {
    /// The way they ended, and their last line
    Signature,
    /// The node on which they ran
    Node,
    /// Their exit code or other cause
    ExitCode,
}

/// Returns a parser for the name of a job state. It lists all states in the help.
fn job_state_parser() -> impl TypedValueParser<Value = JobState> {
    let values = JobState::ALL.map(|state| PossibleValue::new(state.name()).help(meaning(state)));
    PossibleValuesParser::new(values)
        .try_map(|name| JobState::from_name(&name).ok_or("it is not the state of a job"))
}

/// Returns a parser for the name of a final state of tasks.
fn ended_task_parser() -> impl TypedValueParser<Value = TaskStateArg> {
    let states = TaskStateArg::value_variants().iter();
    let ended =
        states.filter(|state| !matches!(state, TaskStateArg::Waiting | TaskStateArg::Running));
    PossibleValuesParser::new(ended.filter_map(ValueEnum::to_possible_value))
        .try_map(|name| TaskStateArg::from_str(&name, false))
}

const fn meaning(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "No task runs, some will",
        JobState::Running => "Some task runs",
        JobState::Finished => "All tasks finished",
        JobState::Failed => "Some task failed, and none waits or runs",
        JobState::Canceled => "Some task was canceled; none failed or was aborted",
        JobState::Aborted => "Some task was aborted; none failed",
        JobState::Opened => "Open for more tasks; all its tasks so far have ended",
    }
}

/// Options of `job list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// List every job [default: waiting, running and open jobs]
    #[arg(long)]
    pub(crate) all: bool,

    /// List only jobs in these states, such as `failed,aborted`, also ended ones
    #[arg(long, value_parser = job_state_parser(), value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<JobState>>,

    /// Also show why jobs were canceled
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Also show ended and failed tasks and the remaining time
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Options of `job cancel`.
#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// `last`, `all` (all that have not ended), or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Reason to store with the job; at most 200 characters
    #[arg(long, value_name = "TEXT", value_parser = parse_cancel_reason)]
    pub(crate) reason: Option<String>,
}

/// Final states of jobs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndedState {
    /// All tasks finished
    Finished,
    /// Some task failed
    Failed,
    /// Some task was aborted
    Aborted,
    /// Some task was canceled
    Canceled,
}

impl From<EndedState> for client::TaskState {
    fn from(state: EndedState) -> Self {
        match state {
            EndedState::Finished => Self::Finished,
            EndedState::Failed => Self::Failed,
            EndedState::Aborted => Self::Aborted,
            EndedState::Canceled => Self::Canceled,
        }
    }
}

/// Options of `job resubmit`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::JOB_RESUBMIT)]
pub(crate) struct ResubmitArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Only the tasks that ended in these states [default: all tasks]
    ///
    /// Tasks keep their ids. They do not wait for dependencies that have finished.
    #[arg(long, alias = "task-status", value_parser = ended_task_parser(), value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<TaskStateArg>>,

    /// Use the cheapest requests that `hq job stats --suggest` shows
    #[arg(long)]
    pub(crate) suggested: bool,

    /// Only unfinished work: tasks that `hq submit --skip-done` would not leave out
    ///
    /// These are tasks whose outputs are missing or whose inputs or command have changed, and tasks that depend on them.
    /// The option takes one ended job whose tasks have `--outputs`.
    #[arg(long, conflicts_with_all = ["filter", "suggested"])]
    pub(crate) changed: bool,

    /// With `--changed`: show which tasks would run, and why, and submit nothing
    #[arg(long, conflicts_with_all = ["wait", "progress"])]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) follow: FollowArgs,
}

/// Options of `job forget`.
#[derive(Args, Debug)]
pub(crate) struct ForgetArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Forget only jobs in these states [default: all that have ended]
    #[arg(long, value_enum, value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<EndedState>>,
}

/// A standard stream of a task.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamArg {
    /// Standard output
    Stdout,
    /// Standard error
    Stderr,
}

/// Options of `job cat`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::JOB_CAT)]
pub(crate) struct CatArgs {
    /// `last`, or ids such as `1-4,7`; `3.7` and `last.1-4` select tasks
    #[arg(value_name = "JOBS[.TASKS]", value_parser = parse_jobs_tasks)]
    pub(crate) selector: JobTasks<Selector>,

    /// Which stream to print
    #[arg(value_enum, value_name = "STREAM")]
    pub(crate) stream: StreamArg,

    /// Only tasks with these ids
    #[arg(long, value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) tasks: Option<IdArray>,

    /// Only tasks in these states
    #[arg(long, alias = "task-status", value_enum, value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<TaskStateArg>>,

    /// Print a line that names the task before its output
    #[arg(long)]
    pub(crate) print_task_header: bool,
}

impl StreamArg {
    pub(crate) const fn channel(self) -> Channel {
        match self {
            Self::Stdout => Channel::Stdout,
            Self::Stderr => Channel::Stderr,
        }
    }
}

impl std::fmt::Display for StreamArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        })
    }
}

/// Options of `job tail`.
#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    /// `last` or the id of a job; `3.7` and `last.1-4` select tasks
    #[arg(value_name = "JOB[.TASKS]", value_parser = parse_job_tasks)]
    pub(crate) target: JobTasks,

    /// Print new lines until the tasks have ended, also of tasks that start later
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Number of last lines to print of each task
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) lines: u32,

    /// Only this channel [default: both]
    #[arg(long, value_enum, value_name = "CHANNEL")]
    pub(crate) channel: Option<StreamArg>,
}

/// Options of `job submit-file`.
#[derive(Args, Debug)]
pub(crate) struct SubmitFileArgs {
    /// Job file
    #[arg(value_name = "PATH", value_parser = path_parser())]
    pub(crate) path: PathBuf,

    /// Add the tasks to this open job [default: create a job]
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<u32>,

    #[command(flatten)]
    pub(crate) own: OwnTasksArgs,

    /// Leave out tasks that hq has finished before, if their inputs, outputs and command are unchanged since
    ///
    /// Outputs that were made without hq, or without --outputs, do not count. A task also runs if one of its dependencies has to run or is already in the open job. `--dry-run` lists the tasks
    /// that would run, and why.
    #[arg(long)]
    pub(crate) skip_done: bool,

    /// Show what would be submitted, and submit nothing; works without a server
    #[arg(long, conflicts_with_all = ["wait", "progress"])]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) notify: NotifyArgs,

    #[command(flatten)]
    pub(crate) follow: FollowArgs,
}

/// Options of `job wait`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::JOB_WAIT)]
pub(crate) struct WaitArgs {
    /// `last`, `all` (all that have not ended), or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Wait only for the tasks of open jobs, not until the jobs are closed
    #[arg(long)]
    pub(crate) without_close: bool,

    /// Exit with 1 unless every task of the jobs finished [default: exit with 0 however they end]
    #[arg(long)]
    pub(crate) ok: bool,
}

/// Options of `job task-ids`.
#[derive(Args, Debug)]
pub(crate) struct TaskIdsArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Only tasks in these states
    #[arg(long, alias = "task-status", value_enum, value_name = "STATES", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) filter: Option<Vec<TaskStateArg>>,
}

/// Options of `job open`.
#[derive(Args, Debug)]
pub(crate) struct OpenArgs {
    /// Name of the job [default: job]
    #[arg(long, value_name = "TEXT", value_parser = parse_job_name)]
    pub(crate) name: Option<String>,

    /// Abort the rest of the job when more than this many tasks have failed [default: never]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_fails: Option<u32>,
}
