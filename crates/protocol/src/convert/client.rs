//! The client plane: requests.
//!
//! For lists and details that are only displayed, the server fills messages directly, and the
//! command line shows them directly. This module converts only values that code makes decisions on.

use hq_core::bound::{BOUND, Bound, LimitChange};
use hq_core::id::{JobId, TaskId};
use hq_core::job::JobChange;
use hq_core::range::{IdArray, IdRange, IndexSet};
use hq_core::selector::Selector;
use hq_core::server_state::{CANCELED_MAX, Command, HELD_RANGES_MAX, WatchSpec};
use hq_core::task::TaskState;
use hq_core::template::ByteText;

use super::output::OutputQuery;
use super::resize::NEW_REQUESTS_MAX;
use super::submit::limit_name;
use super::template::signal;
use super::token::{self, TokenChange};
use super::wire::{FromWire, ToWire, each, field, list, received, same_enum, wire};
use super::{AllocRequest, ConvertError, Within, at_most, duration, known, path, required, text};
use crate::limits::QUARANTINE_SPANS;
use crate::{client, common};

/// The maximum number of states in a filter. Six states exist.
const STATES_MAX: usize = 64;

/// The maximum number of submits in one request.
const SUBMITS_MAX: usize = 1 << 12;

/// The maximum number of submits of one job in a selection of tasks.
const JOB_SUBMITS_MAX: usize = 1 << 20;

/// The states of jobs that can be forgotten. An empty filter means all of them.
const FORGETTABLE: [TaskState; 4] = [
    TaskState::Finished,
    TaskState::Failed,
    TaskState::Aborted,
    TaskState::Canceled,
];

/// A reference to one job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobRef {
    /// The job with the highest id ever assigned.
    Last,
    /// The job with this id.
    Id(JobId),
}

/// A validated request.
#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Changes or watches something, which the core handles.
    Command(Command),
    /// Reads without changing anything.
    Query(Query),
    /// A request about automatic allocation.
    Alloc(Box<AllocRequest>),
    /// Reads output of a task.
    ReadOutput(OutputQuery),
    /// Stops the server.
    ServerStop {
        /// Workers wait for the next server. Otherwise they are stopped.
        keep_workers: bool,
    },
    /// Opens the HTTP listener.
    HttpOpen,
    /// Requests the current problems, after an optional change of one acknowledgement.
    Problems(Option<Acknowledge>),
    /// Lists the tokens for the HTTP interface, after an optional change.
    Tokens(Option<TokenChange>),
    /// Writes the server's state to this file.
    DebugDump(ByteText),
    /// A request about the journal.
    Journal {
        /// The requested action.
        action: JournalAction,
        /// The number of the last event that the client already knows.
        after: i64,
    },
    /// Runs SQL from a user.
    Sql(client::SqlQuery),
    /// Requests the specs of a job.
    ShowJob(JobId),
    /// Requests the values of calls.
    ReadValues {
        /// The job of the calls.
        job: JobId,
        /// The ids of the calls' tasks.
        tasks: IdArray,
    },
}

/// A change to the acknowledgement of a problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acknowledge {
    /// The id of the problem, as `hq problems` prints it.
    pub problem: Box<str>,
    /// Whether the problem is acknowledged. `false` takes the acknowledgement back.
    pub is_known: bool,
}

/// An action on the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalAction {
    /// Returns the events so far.
    Replay,
    /// Returns all events so far, and then live ones.
    Stream,
    /// Answers when everything is on disk.
    Flush,
    /// Removes completed jobs.
    Prune,
}

/// A request that changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// The fields of `server info`.
    ServerInfo,
    /// The limits of tasks.
    Limits,
    /// Summaries of jobs.
    JobList(Selector),
    /// Details of jobs.
    JobInfo(Selector),
    /// The tasks of one job, page by page.
    TaskPage(TaskPageQuery),
    /// The ids of tasks.
    TaskIds {
        /// The jobs of the tasks.
        jobs: Selector,
        /// The states of the tasks. Empty means all.
        states: Vec<TaskState>,
    },
    /// Details of workers.
    Workers {
        /// The requested workers.
        workers: Selector,
        /// Whether to include what the workers are doing now.
        with_runtime: bool,
    },
    /// The reasons why a task does not run.
    Explain {
        /// The id of the job.
        job: JobRef,
        /// The id of the task in that job.
        task: TaskId,
        /// Whether the answer ends with the first worker that could run the task. Among thousands
        /// of workers, most are alike.
        until_able: bool,
    },
}

/// Selects the tasks of a job to show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskPageQuery {
    /// The job of the tasks.
    pub job: JobRef,
    /// The ids of the tasks. `None` means all.
    pub tasks: Option<IdArray>,
    /// The states of the tasks. Empty means all.
    pub states: Vec<TaskState>,
    /// Where the previous page ended. 0 means the start.
    pub cursor: u64,
    /// The maximum number of tasks. 0 means the server's default.
    pub limit: u32,
    /// Whether to include templates and dependencies.
    pub with_definition: bool,
    /// Whether to include usage curves.
    pub with_curves: bool,
    /// Whether to omit resolved paths, the largest part of a task.
    pub without_paths: bool,
}

fn acknowledge(asked: client::AskProblems) -> Result<Option<Acknowledge>, ConvertError> {
    use client::ask_problems::Change;
    let (problem, is_known) = match asked.change {
        None => return Ok(None),
        Some(Change::Acknowledge(problem)) => (problem, true),
        Some(Change::TakeBack(problem)) => (problem, false),
    };
    let problem = text("problems.change", problem)?;
    Ok(Some(Acknowledge { problem, is_known }))
}

impl TryFrom<client::Request> for ClientRequest {
    type Error = ConvertError;

    fn try_from(message: client::Request) -> Result<Self, ConvertError> {
        use client::request::Request as R;
        Ok(match required(message.request, "request")? {
            R::ServerStop(client::ServerStop { keep_workers }) => Self::ServerStop { keep_workers },
            R::HttpOpen(_) => Self::HttpOpen,
            R::Problems(asked) => Self::Problems(acknowledge(asked)?),
            R::Tokens(asked) => Self::Tokens(token::change(asked).within("tokens")?),
            R::Alloc(request) => Self::Alloc(received("alloc", request)?),
            R::DebugDump(dump) => Self::DebugDump(path("debug_dump.path", dump.path)?),
            R::Journal(client::Journal { action, after }) => Self::Journal {
                action: received("journal.action", action)?,
                after: i64::try_from(after).unwrap_or(i64::MAX),
            },
            R::Query(query) => Self::Sql(query),
            R::ReadValues(client::ReadValues { job, tasks }) => Self::ReadValues {
                job: JobId(job),
                tasks: received("read_values.tasks", tasks)?,
            },
            R::ReadOutput(query) => Self::ReadOutput(received("read_output", query)?),
            R::JobResubmit(client::Resubmit {
                show: Some(job), ..
            }) => Self::ShowJob(JobId(job)),
            R::ServerInfo(_) => Self::Query(Query::ServerInfo),
            R::JobList(jobs) => Self::Query(Query::JobList(received("job_list", jobs)?)),
            R::JobInfo(jobs) => Self::Query(Query::JobInfo(received("job_info", jobs)?)),
            R::TaskPage(page) => Self::Query(Query::TaskPage(received("task_page", page)?)),
            R::TaskIds(asked) => Self::Query(task_ids(asked).within("task_ids")?),
            R::Workers(asked) => Self::Query(Query::Workers {
                workers: received("workers.workers", asked.workers)?,
                with_runtime: asked.with_runtime,
            }),
            R::Explain(asked) => Self::Query(Query::Explain {
                job: received("explain.job", asked.job)?,
                task: TaskId(asked.task),
                until_able: asked.until_able,
            }),
            R::Submit(submit) => Self::Command(Command::Submit(received("submit", submit)?)),
            R::SubmitAll(client::SubmitAll { submits }) => {
                Self::Command(Command::SubmitAll(each(SUBMITS_MAX)(
                    "submit_all",
                    submits,
                )?))
            }
            R::JobOpen(open) => Self::Command(open_job(open)?),
            R::JobClose(jobs) => Self::Command(Command::CloseJobs(received("job_close", jobs)?)),
            R::JobCancel(client::Cancel { jobs, reason }) => Self::Command(Command::CancelJobs {
                jobs: received("job_cancel.jobs", jobs)?,
                reason: received("job_cancel.reason", reason)?,
            }),
            R::TaskCancel(cancel) => Self::Command(cancel_tasks(cancel).within("task_cancel")?),
            R::JobChange(change) => Self::Command(change_job(change).within("job_change")?),
            R::LimitChange(change) => Self::Command(change_limit(change).within("limit_change")?),
            R::Limits(client::Empty {}) => Self::Query(Query::Limits),
            R::TaskHold(hold) => Self::Command(hold_tasks(hold).within("task_hold")?),
            R::TaskSignal(signal) => Self::Command(signal_tasks(signal).within("task_signal")?),
            R::EntriesDrop(drop) => Self::Command(drop_entries(drop).within("entries_drop")?),
            R::JobForget(forget) => Self::Command(forget_jobs(forget).within("job_forget")?),
            R::JobResubmit(again) => Self::Command(resubmit(again).within("job_resubmit")?),
            R::WorkerStop(workers) => of_workers(Command::StopWorkers, "worker_stop", workers)?,
            R::WorkerDrain(workers) => of_workers(Command::DrainWorkers, "worker_drain", workers)?,
            R::WorkerQuarantine(asked) => {
                Self::Command(quarantine(asked).within("worker_quarantine")?)
            }
            R::WorkerRelease(workers) => {
                of_workers(Command::ReleaseWorkers, "worker_release", workers)?
            }
            R::Watch(watch) => Self::Command(Command::Watch(received("watch", watch)?)),
        })
    }
}

/// Creates a command about workers that has no further parameters.
fn of_workers(
    command: fn(Selector) -> Command,
    field: &str,
    workers: client::Selector,
) -> Result<ClientRequest, ConvertError> {
    received(field, workers)
        .map(command)
        .map(ClientRequest::Command)
}

fn task_ids(message: client::TaskIds) -> Result<Query, ConvertError> {
    Ok(Query::TaskIds {
        jobs: received("jobs", message.jobs)?,
        states: states("states", message.states)?,
    })
}

fn resubmit(message: client::Resubmit) -> Result<Command, ConvertError> {
    if let Some(client::ChosenTasks { job, positions }) = message.chosen {
        let chosen: Vec<IdArray> = each(JOB_SUBMITS_MAX)("chosen.positions", positions)?;
        return Ok(Command::ResubmitTasks {
            job: JobId(job),
            positions: chosen.iter().map(index_set).collect::<Result<_, _>>()?,
        });
    }
    let states = states("states", message.states)?;
    let (jobs, requests) = match message.resize {
        None => (received("jobs", message.jobs)?, Vec::new()),
        Some(client::Resize { jobs, requests }) => (
            received("resize.jobs", jobs)?,
            each(NEW_REQUESTS_MAX)("resize.requests", requests)?,
        ),
    };
    Ok(Command::Resubmit {
        jobs,
        states,
        requests,
    })
}

/// Converts positions. Adjacent positions must be in one range.
fn index_set(ids: &IdArray) -> Result<IndexSet, ConvertError> {
    let mut set = IndexSet::new();
    for range in ids.ranges() {
        if range.count() > 1 && range.step() != 1 {
            let expected = "ranges without gaps";
            return Err(ConvertError::invalid("chosen.positions", expected, range));
        }
        set.insert_range(range.first(), range.last().saturating_add(1));
    }
    Ok(set)
}

same_enum! { JournalAction = client::journal::Action { Replay Stream Flush Prune } }

macro_rules! job_ref {
    ($($wire:ident)*) => {$(
        impl FromWire<Option<client::$wire::Job>> for JobRef {
            fn from_wire(
                field: &str,
                found: Option<client::$wire::Job>,
            ) -> Result<Self, ConvertError> {
                Ok(match required(found, field)? {
                    client::$wire::Job::Id(id) => Self::Id(JobId(id)),
                    client::$wire::Job::Last(_) => Self::Last,
                })
            }
        }
    )*};
}

job_ref! { task_page explain }

fn states(field: &str, found: Vec<i32>) -> Result<Vec<TaskState>, ConvertError> {
    list(STATES_MAX, received)(field, found)
}

fn cancel_tasks(message: client::CancelTasks) -> Result<Command, ConvertError> {
    Ok(Command::CancelTasks {
        job: JobId(message.job),
        tasks: few_tasks(message.tasks)?,
        keep_running: message.keep_running,
    })
}

fn signal_tasks(message: client::SignalTasks) -> Result<Command, ConvertError> {
    Ok(Command::SignalTasks {
        job: JobId(message.job),
        tasks: few_tasks(message.tasks)?,
        signal: signal("signal", message.signal)?,
    })
}

fn hold_tasks(message: client::HoldTasks) -> Result<Command, ConvertError> {
    Ok(Command::HoldTasks {
        job: JobId(message.job),
        tasks: many_tasks(message.tasks)?,
        is_held: !message.release,
    })
}

fn change_job(message: client::ChangeJob) -> Result<Command, ConvertError> {
    let (job, tasks) = (JobId(message.job), many_tasks(message.tasks)?);
    let change: JobChange = received("change", message.change)?;
    if tasks.is_some() && !change.is_of_tasks() {
        let expected = "no tasks with a name or limits of the whole job";
        return Err(ConvertError::invalid("tasks", expected, "some"));
    }
    Ok(Command::ChangeJob {
        job,
        tasks,
        change: Box::new(change),
    })
}

/// Converts tasks that are handled in ranges.
fn many_tasks(tasks: Option<common::IdArray>) -> Result<Option<IdArray>, ConvertError> {
    let tasks = tasks.map(IdArray::try_from);
    let tasks = tasks.transpose().within("tasks")?;
    let pieces = |range: &IdRange| match range.step() {
        1 => 1,
        _ => u64::from(range.count()),
    };
    let count: u64 = tasks.iter().flat_map(IdArray::ranges).map(pieces).sum();
    at_most(
        "tasks",
        usize::try_from(count).unwrap_or(usize::MAX),
        HELD_RANGES_MAX,
    )?;
    Ok(tasks)
}

fn change_limit(message: client::ChangeLimit) -> Result<Command, ConvertError> {
    let bound = message.bound.map(|text| {
        let bound = text.parse::<Bound>();
        bound.map_err(|_| ConvertError::invalid("bound", BOUND, text))
    });
    Ok(Command::Limit(LimitChange {
        name: limit_name("name", message.name)?,
        bound: bound.transpose()?,
        is_forced: message.force,
    }))
}

fn drop_entries(message: client::DropEntries) -> Result<Command, ConvertError> {
    Ok(Command::DropEntries {
        job: JobId(message.job),
        tasks: few_tasks(message.tasks)?,
    })
}

/// Converts tasks that are handled one by one.
fn few_tasks(tasks: Option<common::IdArray>) -> Result<IdArray, ConvertError> {
    let tasks: IdArray = received("tasks", tasks)?;
    let count = usize::try_from(tasks.len()).unwrap_or(usize::MAX);
    at_most("tasks", count, CANCELED_MAX)?;
    Ok(tasks)
}

fn quarantine(message: client::QuarantineWorkers) -> Result<Command, ConvertError> {
    let span = duration(message.span_ns);
    if !QUARANTINE_SPANS.contains(&span) {
        let (expected, found) = ("a second to a year", format!("{span:?}"));
        return Err(ConvertError::invalid("span_ns", expected, found));
    }
    Ok(Command::QuarantineWorkers {
        workers: received("workers", message.workers)?,
        span,
        why: received("why", message.why)?,
    })
}

/// Only programs that use HTTP set a key.
fn open_job(client::OpenJob { name, max_fails }: client::OpenJob) -> Result<Command, ConvertError> {
    Ok(Command::OpenJob {
        name: received("job_open.name", name)?,
        max_fails,
        key: None,
    })
}

fn forget_jobs(message: client::Forget) -> Result<Command, ConvertError> {
    let jobs = received("jobs", message.jobs)?;
    let mut states = states("states", message.states)?;
    if states.is_empty() {
        states = FORGETTABLE.to_vec();
    }
    match states.iter().find(|state| !FORGETTABLE.contains(state)) {
        Some(state) => {
            let (expected, found) = ("states of ended jobs", format!("{state:?}"));
            Err(ConvertError::invalid("states", expected, found))
        }
        None => Ok(Command::ForgetJobs { jobs, states }),
    }
}

wire! {
    read TaskPageQuery = client::TaskPage {
        job,
        tasks,
        states: states,
        cursor,
        limit,
        with_definition,
        with_curves,
        without_paths,
    }
}

wire! {
    read WatchSpec = client::Watch {
        jobs,
        until_idle,
        with_progress,
        with_outcomes,
        with_notifications,
        interval = interval_ns,
    }
}

same_enum! {
    TaskState = client::TaskState { Waiting Running Finished Failed Canceled Aborted }
}
