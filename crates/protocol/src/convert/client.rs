//! The client plane: requests.
//!
//! For lists and details that are only displayed, the server fills messages directly, and the
//! command line shows them directly. This module converts only values that code makes decisions on.

use hq_core::id::{JobId, TaskId};
use hq_core::range::{IdArray, IndexSet};
use hq_core::selector::Selector;
use hq_core::server_state::{CANCELED_MAX, Command, WatchSpec};
use hq_core::task::TaskState;
use hq_core::template::ByteText;
use hq_core::time::nanos;

use super::output::OutputQuery;
use super::resize::{NEW_REQUESTS_MAX, resize_message};
use super::token::{self, TokenChange};
use super::wire::{FromWire, ToWire, each, same_enum};
use super::{AllocRequest, ConvertError, Within, at_most, duration, known, required, text};
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

fn ask_problems(change: Option<&Acknowledge>) -> client::AskProblems {
    use client::ask_problems::Change;
    let change = change.map(|change| {
        let problem = change.problem.to_string();
        if change.is_known {
            Change::Acknowledge(problem)
        } else {
            Change::TakeBack(problem)
        }
    });
    client::AskProblems { change }
}

impl TryFrom<client::Request> for ClientRequest {
    type Error = ConvertError;

    fn try_from(message: client::Request) -> Result<Self, ConvertError> {
        use client::request::Request;
        let command = |command: Result<Command, ConvertError>| command.map(Self::Command);
        match required(message.request, "request")? {
            Request::ServerStop(client::ServerStop { keep_workers }) => {
                Ok(Self::ServerStop { keep_workers })
            }
            Request::HttpOpen(_) => Ok(Self::HttpOpen),
            Request::Problems(asked) => Ok(Self::Problems(acknowledge(asked)?)),
            Request::Tokens(asked) => Ok(Self::Tokens(token::change(asked).within("tokens")?)),
            Request::Alloc(request) => {
                Ok(Self::Alloc(Box::new(request.try_into().within("alloc")?)))
            }
            Request::DebugDump(client::DebugDump { path }) => {
                Ok(Self::DebugDump(super::path("debug_dump.path", path)?))
            }
            Request::Journal(journal) => journal_request(journal),
            Request::Query(query) => Ok(Self::Sql(query)),
            Request::ReadValues(asked) => values_request(asked).within("read_values"),
            Request::ReadOutput(query) => {
                Ok(Self::ReadOutput(query.try_into().within("read_output")?))
            }
            Request::Submit(submit) => {
                let spec = submit.try_into().within("submit")?;
                Ok(Self::Command(Command::Submit(Box::new(spec))))
            }
            Request::SubmitAll(client::SubmitAll { submits }) => {
                let specs = each(SUBMITS_MAX)("submit_all", submits)?;
                Ok(Self::Command(Command::SubmitAll(specs)))
            }
            Request::JobOpen(open) => command(open_job(open)),
            Request::JobClose(jobs) => Ok(Self::Command(Command::CloseJobs(
                jobs.try_into().within("job_close")?,
            ))),
            Request::JobCancel(cancel) => {
                let jobs = selector(cancel.jobs, "jobs").within("job_cancel")?;
                let reason = text("job_cancel.reason", cancel.reason)?;
                Ok(Self::Command(Command::CancelJobs { jobs, reason }))
            }
            Request::TaskCancel(cancel) => command(cancel_tasks(cancel).within("task_cancel")),
            Request::JobForget(forget) => command(forget_command(forget).within("job_forget")),
            Request::JobResubmit(again) => resubmit_request(again).within("job_resubmit"),
            Request::WorkerStop(workers) => {
                of_workers(Command::StopWorkers, workers, "worker_stop")
            }
            Request::WorkerDrain(workers) => {
                of_workers(Command::DrainWorkers, workers, "worker_drain")
            }
            Request::WorkerQuarantine(asked) => {
                quarantine_request(asked).within("worker_quarantine")
            }
            Request::WorkerRelease(workers) => {
                of_workers(Command::ReleaseWorkers, workers, "worker_release")
            }
            Request::Watch(watch) => Ok(Self::Command(Command::Watch(
                watch.try_into().within("watch")?,
            ))),
            query @ (Request::ServerInfo(_)
            | Request::JobList(_)
            | Request::JobInfo(_)
            | Request::TaskPage(_)
            | Request::TaskIds(_)
            | Request::Workers(_)
            | Request::Explain(_)) => Ok(Self::Query(query.try_into()?)),
        }
    }
}

/// Creates a command about workers that has no further parameters.
fn of_workers(
    command: fn(Selector) -> Command,
    workers: client::Selector,
    field: &'static str,
) -> Result<ClientRequest, ConvertError> {
    let workers = workers.try_into().within(field)?;
    Ok(ClientRequest::Command(command(workers)))
}

fn resubmit_request(message: client::Resubmit) -> Result<ClientRequest, ConvertError> {
    match message.show {
        Some(job) => Ok(ClientRequest::ShowJob(JobId(job))),
        None => resubmit_command(message).map(ClientRequest::Command),
    }
}

fn resubmit_command(message: client::Resubmit) -> Result<Command, ConvertError> {
    if let Some(client::ChosenTasks { job, positions }) = message.chosen {
        let chosen: Vec<IdArray> = each(JOB_SUBMITS_MAX)("chosen.positions", positions)?;
        return Ok(Command::ResubmitTasks {
            job: JobId(job),
            positions: chosen.iter().map(index_set).collect::<Result<_, _>>()?,
        });
    }
    let states = states(&message.states)?;
    let Some(client::Resize { jobs, requests }) = message.resize else {
        return Ok(Command::Resubmit {
            jobs: selector(message.jobs, "jobs")?,
            states,
            requests: Vec::new(),
        });
    };
    Ok(Command::Resubmit {
        jobs: selector(jobs, "resize.jobs")?,
        states,
        requests: each(NEW_REQUESTS_MAX)("resize.requests", requests)?,
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

fn positions(set: &IndexSet) -> common::IdArray {
    let ranges = set.ranges().map(|(from, to)| common::IdRange {
        first: from,
        count: to - from,
        step: 1,
        slack: 0,
    });
    common::IdArray {
        ranges: ranges.collect(),
    }
}

fn values_request(
    client::ReadValues { job, tasks }: client::ReadValues,
) -> Result<ClientRequest, ConvertError> {
    let tasks = required(tasks, "tasks")?.try_into().within("tasks")?;
    let job = JobId(job);
    Ok(ClientRequest::ReadValues { job, tasks })
}

fn journal_request(
    client::Journal { action, after }: client::Journal,
) -> Result<ClientRequest, ConvertError> {
    use client::journal::Action;
    let action = match known("journal.action", action)? {
        Action::Replay => JournalAction::Replay,
        Action::Stream => JournalAction::Stream,
        Action::Flush => JournalAction::Flush,
        Action::Prune => JournalAction::Prune,
    };
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    Ok(ClientRequest::Journal { action, after })
}

impl TryFrom<client::request::Request> for Query {
    type Error = ConvertError;

    fn try_from(request: client::request::Request) -> Result<Self, ConvertError> {
        use client::request::Request;
        match request {
            Request::ServerInfo(_) => Ok(Query::ServerInfo),
            Request::JobList(jobs) => Ok(Query::JobList(jobs.try_into().within("job_list")?)),
            Request::JobInfo(jobs) => Ok(Query::JobInfo(jobs.try_into().within("job_info")?)),
            Request::TaskPage(page) => Ok(Query::TaskPage(page.try_into().within("task_page")?)),
            Request::TaskIds(client::TaskIds {
                jobs,
                states: filter,
            }) => Ok(Query::TaskIds {
                jobs: selector(jobs, "jobs").within("task_ids")?,
                states: states(&filter).within("task_ids")?,
            }),
            Request::Workers(client::WorkerQuery {
                workers,
                with_runtime,
            }) => Ok(Query::Workers {
                workers: selector(workers, "workers").within("workers")?,
                with_runtime,
            }),
            Request::Explain(client::Explain {
                job,
                task,
                until_able,
            }) => {
                use client::explain::Job;
                let job = match required(job, "explain.job")? {
                    Job::Id(id) => JobRef::Id(JobId(id)),
                    Job::Last(_) => JobRef::Last,
                };
                Ok(Query::Explain {
                    job,
                    task: TaskId(task),
                    until_able,
                })
            }
            Request::ServerStop(_)
            | Request::HttpOpen(_)
            | Request::Problems(_)
            | Request::Tokens(_)
            | Request::Alloc(_)
            | Request::DebugDump(_)
            | Request::ReadOutput(_)
            | Request::Journal(_)
            | Request::Query(_)
            | Request::ReadValues(_)
            | Request::Submit(_)
            | Request::SubmitAll(_)
            | Request::JobOpen(_)
            | Request::JobClose(_)
            | Request::JobCancel(_)
            | Request::TaskCancel(_)
            | Request::JobForget(_)
            | Request::JobResubmit(_)
            | Request::WorkerStop(_)
            | Request::WorkerDrain(_)
            | Request::WorkerQuarantine(_)
            | Request::WorkerRelease(_)
            | Request::Watch(_) => Err(ConvertError::invalid("request", "a query", "a command")),
        }
    }
}

fn selector(message: Option<client::Selector>, field: &str) -> Result<Selector, ConvertError> {
    required(message, field)?.try_into().within(field)
}

fn states(messages: &[i32]) -> Result<Vec<TaskState>, ConvertError> {
    at_most("states", messages.len(), STATES_MAX)?;
    let convert = |value: &i32| known::<client::TaskState>("states", *value).map(TaskState::from);
    messages.iter().map(convert).collect()
}

fn cancel_tasks(
    client::CancelTasks {
        job,
        tasks,
        keep_running,
    }: client::CancelTasks,
) -> Result<Command, ConvertError> {
    let tasks: IdArray = required(tasks, "tasks")?.try_into().within("tasks")?;
    let count = usize::try_from(tasks.len()).unwrap_or(usize::MAX);
    at_most("tasks", count, CANCELED_MAX)?;
    let job = JobId(job);
    Ok(Command::CancelTasks {
        job,
        tasks,
        keep_running,
    })
}

fn quarantine_request(message: client::QuarantineWorkers) -> Result<ClientRequest, ConvertError> {
    let span = duration(message.span_ns);
    if !QUARANTINE_SPANS.contains(&span) {
        let found = format!("{span:?}");
        return Err(ConvertError::invalid(
            "span_ns",
            "a second to a year",
            found,
        ));
    }
    Ok(ClientRequest::Command(Command::QuarantineWorkers {
        workers: selector(message.workers, "workers")?,
        span,
        why: text("why", message.why)?,
    }))
}

/// Only programs that use HTTP set a key.
fn open_job(client::OpenJob { name, max_fails }: client::OpenJob) -> Result<Command, ConvertError> {
    Ok(Command::OpenJob {
        name: text("job_open.name", name)?,
        max_fails,
        key: None,
    })
}

fn forget_command(message: client::Forget) -> Result<Command, ConvertError> {
    let jobs = selector(message.jobs, "jobs")?;
    let mut states = states(&message.states)?;
    if states.is_empty() {
        states = FORGETTABLE.to_vec();
    }
    match states.iter().find(|state| !FORGETTABLE.contains(state)) {
        Some(state) => {
            let found = format!("{state:?}");
            Err(ConvertError::invalid(
                "states",
                "states of ended jobs",
                found,
            ))
        }
        None => Ok(Command::ForgetJobs { jobs, states }),
    }
}

impl TryFrom<client::TaskPage> for TaskPageQuery {
    type Error = ConvertError;

    fn try_from(message: client::TaskPage) -> Result<Self, ConvertError> {
        use client::task_page::Job;
        Ok(Self {
            job: match required(message.job, "job")? {
                Job::Id(id) => JobRef::Id(JobId(id)),
                Job::Last(_) => JobRef::Last,
            },
            tasks: message
                .tasks
                .map(TryInto::try_into)
                .transpose()
                .within("tasks")?,
            states: states(&message.states)?,
            cursor: message.cursor,
            limit: message.limit,
            with_definition: message.with_definition,
            with_curves: message.with_curves,
            without_paths: message.without_paths,
        })
    }
}

impl TryFrom<client::Watch> for WatchSpec {
    type Error = ConvertError;

    fn try_from(message: client::Watch) -> Result<Self, ConvertError> {
        Ok(Self {
            jobs: selector(message.jobs, "jobs")?,
            until_idle: message.until_idle,
            with_progress: message.with_progress,
            with_outcomes: message.with_outcomes,
            with_notifications: message.with_notifications,
            interval: duration(message.interval_ns),
        })
    }
}

impl From<&WatchSpec> for client::Watch {
    fn from(spec: &WatchSpec) -> Self {
        Self {
            jobs: Some((&spec.jobs).into()),
            until_idle: spec.until_idle,
            with_progress: spec.with_progress,
            with_outcomes: spec.with_outcomes,
            with_notifications: spec.with_notifications,
            interval_ns: nanos(spec.interval),
            with_values: false,
            with_ranges: false,
        }
    }
}

impl From<&Command> for client::Request {
    fn from(command: &Command) -> Self {
        use client::request::Request;
        let request = match command {
            Command::Submit(spec) => Request::Submit(spec.as_ref().into()),
            Command::SubmitAll(specs) => Request::SubmitAll(client::SubmitAll {
                submits: specs.iter().map(Into::into).collect(),
            }),
            Command::OpenJob {
                name, max_fails, ..
            } => Request::JobOpen(client::OpenJob {
                name: name.to_string(),
                max_fails: *max_fails,
            }),
            Command::CloseJobs(jobs) => Request::JobClose(jobs.into()),
            Command::CancelJobs { jobs, reason } => Request::JobCancel(client::Cancel {
                jobs: Some(jobs.into()),
                reason: reason.to_string(),
            }),
            Command::CancelTasks {
                job,
                tasks,
                keep_running,
            } => Request::TaskCancel(client::CancelTasks {
                job: job.as_u32(),
                tasks: Some(tasks.into()),
                keep_running: *keep_running,
            }),
            Command::ForgetJobs { jobs, states } => Request::JobForget(client::Forget {
                jobs: Some(jobs.into()),
                states: state_numbers(states),
            }),
            Command::Resubmit {
                jobs,
                states,
                requests,
            } => {
                let is_resized = !requests.is_empty();
                Request::JobResubmit(client::Resubmit {
                    jobs: (!is_resized).then(|| jobs.into()),
                    states: state_numbers(states),
                    resize: is_resized.then(|| resize_message(jobs, requests)),
                    show: None,
                    chosen: None,
                })
            }
            Command::ResubmitTasks {
                job,
                positions: chosen,
            } => Request::JobResubmit(client::Resubmit {
                chosen: Some(client::ChosenTasks {
                    job: job.as_u32(),
                    positions: chosen.iter().map(positions).collect(),
                }),
                ..client::Resubmit::default()
            }),
            Command::StopWorkers(workers) => Request::WorkerStop(workers.into()),
            Command::DrainWorkers(workers) => Request::WorkerDrain(workers.into()),
            Command::QuarantineWorkers { workers, span, why } => {
                Request::WorkerQuarantine(client::QuarantineWorkers {
                    workers: Some(workers.into()),
                    span_ns: nanos(*span),
                    why: why.to_string(),
                })
            }
            Command::ReleaseWorkers(workers) => Request::WorkerRelease(workers.into()),
            Command::Watch(spec) => Request::Watch(spec.into()),
        };
        Self {
            request: Some(request),
        }
    }
}

impl From<&Query> for client::Request {
    fn from(query: &Query) -> Self {
        use client::request::Request;
        let request = match query {
            Query::ServerInfo => Request::ServerInfo(client::Empty {}),
            Query::JobList(jobs) => Request::JobList(jobs.into()),
            Query::JobInfo(jobs) => Request::JobInfo(jobs.into()),
            Query::TaskPage(page) => Request::TaskPage(page.into()),
            Query::TaskIds { jobs, states } => Request::TaskIds(client::TaskIds {
                jobs: Some(jobs.into()),
                states: state_numbers(states),
            }),
            Query::Workers {
                workers,
                with_runtime,
            } => Request::Workers(client::WorkerQuery {
                workers: Some(workers.into()),
                with_runtime: *with_runtime,
            }),
            Query::Explain {
                job,
                task,
                until_able,
            } => {
                use client::explain::Job;
                let job = match job {
                    JobRef::Id(id) => Job::Id(id.as_u32()),
                    JobRef::Last => Job::Last(client::Empty {}),
                };
                Request::Explain(client::Explain {
                    job: Some(job),
                    task: task.as_u32(),
                    until_able: *until_able,
                })
            }
        };
        Self {
            request: Some(request),
        }
    }
}

impl From<&TaskPageQuery> for client::TaskPage {
    fn from(query: &TaskPageQuery) -> Self {
        use client::task_page::Job;
        Self {
            job: Some(match query.job {
                JobRef::Id(id) => Job::Id(id.as_u32()),
                JobRef::Last => Job::Last(client::Empty {}),
            }),
            tasks: query.tasks.as_ref().map(Into::into),
            states: state_numbers(&query.states),
            cursor: query.cursor,
            limit: query.limit,
            with_definition: query.with_definition,
            with_curves: query.with_curves,
            without_paths: query.without_paths,
        }
    }
}

impl From<&ClientRequest> for client::Request {
    fn from(request: &ClientRequest) -> Self {
        use client::request::Request;
        match request {
            ClientRequest::Journal { action, after } => {
                use client::journal::Action;
                let action = match action {
                    JournalAction::Replay => Action::Replay,
                    JournalAction::Stream => Action::Stream,
                    JournalAction::Flush => Action::Flush,
                    JournalAction::Prune => Action::Prune,
                };
                let journal = client::Journal {
                    action: action.into(),
                    after: after.unsigned_abs(),
                };
                Self {
                    request: Some(Request::Journal(journal)),
                }
            }
            ClientRequest::Sql(query) => Self {
                request: Some(Request::Query(query.clone())),
            },
            ClientRequest::ShowJob(job) => Self {
                request: Some(Request::JobResubmit(client::Resubmit {
                    show: Some(job.as_u32()),
                    ..client::Resubmit::default()
                })),
            },
            ClientRequest::ReadValues { job, tasks } => Self {
                request: Some(Request::ReadValues(client::ReadValues {
                    job: job.as_u32(),
                    tasks: Some(tasks.into()),
                })),
            },
            ClientRequest::ReadOutput(query) => Self {
                request: Some(Request::ReadOutput(query.into())),
            },
            ClientRequest::Command(command) => command.into(),
            ClientRequest::Query(query) => query.into(),
            ClientRequest::Alloc(request) => Self {
                request: Some(Request::Alloc(request.as_ref().into())),
            },
            ClientRequest::ServerStop { keep_workers } => Self {
                request: Some(Request::ServerStop(client::ServerStop {
                    keep_workers: *keep_workers,
                })),
            },
            ClientRequest::HttpOpen => Self {
                request: Some(Request::HttpOpen(client::Empty {})),
            },
            ClientRequest::Problems(change) => Self {
                request: Some(Request::Problems(ask_problems(change.as_ref()))),
            },
            ClientRequest::Tokens(change) => Self {
                request: Some(Request::Tokens(token::ask(change.as_ref()))),
            },
            ClientRequest::DebugDump(path) => Self {
                request: Some(Request::DebugDump(client::DebugDump {
                    path: path.to_vec().into(),
                })),
            },
        }
    }
}

fn state_numbers(states: &[TaskState]) -> Vec<i32> {
    states
        .iter()
        .map(|state| client::TaskState::from(*state).into())
        .collect()
}

same_enum! {
    TaskState = client::TaskState { Waiting Running Finished Failed Canceled Aborted }
}
