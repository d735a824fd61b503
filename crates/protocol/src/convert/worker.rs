//! The worker plane: messages between server and worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::{SharedTemplate, TemplateId};
use hq_core::limits::{HELD_JOBS_MAX, NODE_FAULTS_MAX, UNKILLABLE_MAX, shortened};
use hq_core::node_check::NodeFault;
use hq_core::outcome::LostReason;
use hq_core::server_state::{Assignment, Reattach, WorkerCommand, WorkerMessage};
use hq_core::template::TaskTemplate;
use hq_core::time::Timestamp;
use hq_core::worker::Unkillable;
use hq_core::worker_config::WorkerConfig;
use hq_core::worker_state::{self, ExitReason, Holding, Input, WorkAssignment, WorkTemplate};

use super::output::{OUTPUT_DATA_MAX, OutputRequest};
use super::relay::RelayRequest;
use super::report::{instance_keys, task_list, task_rows};
use super::wire::{FromWire, ToWire, each, field, list, optional, or_default, received, wire};
use super::{
    ConvertError, Within, absolute_path, at_most, duration, known, path, required, same_len,
    template, text,
};
use crate::key::{SecretKey, digest};
use crate::relay::Terms;
use crate::{common, worker};

/// The maximum number of templates, and of assignments, in one message.
const ASSIGN_MAX: usize = 1 << 20;

/// The maximum length of a task's message to waiting clients, in bytes.
pub const NOTIFICATION_MAX: usize = 1024;

/// The maximum length of a call's value in bytes. Longer values stay with their worker.
pub const VALUE_MAX: usize = 1 << 20;

/// The maximum length of the path and of the error of a node's problem, in bytes.
const FAULT_TEXT_MAX: usize = 1024;

/// The error of a task with parameters on a worker that does not support them.
const WITHOUT_PARAMS: &str = "this worker is older than its server and does not support `--param`. Drain it and start another one";

/// The error on a worker that does not check outputs, where tasks would finish without them.
const WITHOUT_OUTPUTS: &str = "this worker is older than its server and does not support `--check-outputs`. Drain it and start another one";

/// The error on a worker whose interpreters run all calls in their own process.
const WITHOUT_FORKS: &str = "this worker is older than its server and does not support mode=\"fork\". Drain it and start another one";

/// The maximum number of nodes of a task.
const NODES_MAX: usize = 1 << 16;

/// A message from a worker.
#[derive(Clone, Debug)]
pub enum FromWorker {
    /// Asks to become a relay. Sent instead of a registration.
    Relay(RelayRequest),
    /// Registers the worker. Only valid as the first message of a connection.
    Register(Box<WorkerConfig>, Option<Box<Reattach>>),
    /// Any later message.
    Message(WorkerMessage),
    /// Answers a request for output. Not passed to the core.
    Output(worker::Output),
    /// Values of calls. Not passed to the core.
    Values(Vec<worker::Value>),
}

/// A message from the server to a worker.
#[derive(Clone, Debug)]
pub enum FromServer {
    /// Accepts the registration.
    Registered {
        /// The worker's id.
        worker: WorkerId,
        /// The uid of the server.
        server_uid: Box<str>,
        /// The idle timeout of a worker that did not set one.
        idle_timeout_default: Option<Duration>,
        /// Whether the server recognized the worker.
        reattached: bool,
        /// How long a worker with `finish-running` waits for a lost server after its tasks have
        /// ended.
        server_wait: Duration,
    },
    /// Rejects the registration.
    Refused(Box<str>),
    /// Accepts a relay.
    RelayOpened(Terms),
    /// Says that the server is alive and has forgotten these jobs.
    Ping(Vec<JobId>),
    /// Reads output of a task.
    ReadOutput(OutputRequest),
    /// An input for the worker's state.
    Input(Input),
}

impl TryFrom<worker::ToServer> for FromWorker {
    type Error = ConvertError;

    fn try_from(message: worker::ToServer) -> Result<Self, ConvertError> {
        use worker::to_server::Message;
        Ok(Self::Message(match required(message.message, "message")? {
            Message::Register(register) => return registration(register).within("register"),
            Message::OpenRelay(request) => return received("open_relay", request).map(Self::Relay),
            Message::Output(output) => {
                at_most("output.data", output.data.len(), OUTPUT_DATA_MAX)?;
                return Ok(Self::Output(output));
            }
            Message::Values(worker::Values { values }) => {
                for value in &values {
                    at_most("values.data", value.data.len(), VALUE_MAX)?;
                }
                return Ok(Self::Values(values));
            }
            Message::Heartbeat(heartbeat) => heartbeat_message(heartbeat).within("heartbeat")?,
            Message::Report(report) => WorkerMessage::Report(received("report", report)?),
            Message::Notify(notify) => notification(&notify)?,
            Message::Overview(overview) => WorkerMessage::Overview(received("overview", overview)?),
            Message::Goodbye(worker::Goodbye { reason }) => {
                let reason: worker::goodbye::Reason = known("goodbye.reason", reason)?;
                WorkerMessage::Goodbye(reason.into())
            }
        }))
    }
}

fn registration(register: worker::Register) -> Result<FromWorker, ConvertError> {
    let config: Box<WorkerConfig> = received("config", register.config)?;
    let reattach = register.reattach;
    let shown = reattach.as_ref().map(|reattach| &reattach.secret[..]);
    if config.return_digest.is_some()
        && shown.is_some_and(|secret| digest(secret) != config.return_digest)
    {
        let expected = "that of the worker";
        return Err(ConvertError::invalid(
            "reattach.secret",
            expected,
            "another",
        ));
    }
    Ok(FromWorker::Register(
        config,
        received("reattach", reattach)?,
    ))
}

/// Converts a heartbeat whose curves were removed before.
fn heartbeat_message(message: worker::Heartbeat) -> Result<WorkerMessage, ConvertError> {
    at_most("node_faults", message.node_faults.len(), NODE_FAULTS_MAX)?;
    let mut faults = Vec::new();
    for fault in message.node_faults {
        faults.extend(node_fault(fault).within("node_faults")?);
    }
    Ok(WorkerMessage::Heartbeat {
        unkillable: each(UNKILLABLE_MAX)("unkillable", message.unkillable)?,
        held: list(HELD_JOBS_MAX, received)("held_jobs", message.held_jobs)?,
        faults,
        sent: message.sent_unix_ns.map(Timestamp),
    })
}

fn notification(notify: &worker::Notify) -> Result<WorkerMessage, ConvertError> {
    let message = &notify.message;
    if message.len() > NOTIFICATION_MAX {
        let found = format_args!("{} bytes", message.len());
        let expected = "at most 1024 bytes";
        return Err(ConvertError::invalid("notify.message", expected, found));
    }
    let task = TaskKey::new(JobId(notify.job), TaskId(notify.task));
    Ok(WorkerMessage::Notify(task, message[..].into()))
}

/// Converts a problem of a node. `None` for a kind that only later releases know.
fn node_fault(message: worker::NodeFault) -> Result<Option<NodeFault>, ConvertError> {
    use worker::node_fault::Kind;
    at_most("path", message.path.len(), FAULT_TEXT_MAX)?;
    at_most("error", message.error.len(), FAULT_TEXT_MAX)?;
    let path = message.path.into_boxed_str();
    Ok(Some(match Kind::try_from(message.kind) {
        Ok(Kind::NoRoom) => NodeFault::NoRoom {
            path,
            free_bytes: message.free_bytes,
        },
        Ok(Kind::NoFiles) => NodeFault::NoFiles(path),
        Ok(Kind::ReadOnly) => NodeFault::ReadOnly(path),
        Ok(Kind::Hangs) => NodeFault::Hangs(path),
        Ok(Kind::Broken) => NodeFault::Broken {
            path,
            error: message.error.into(),
        },
        Ok(Kind::None) | Err(_) => return Ok(None),
    }))
}

/// Encodes a problem. `None` if the server detects it by itself.
fn fault_message(fault: &NodeFault) -> Option<worker::NodeFault> {
    use worker::node_fault::Kind;
    let (kind, path, free_bytes, error) = match fault {
        NodeFault::NoRoom { path, free_bytes } => (Kind::NoRoom, path, *free_bytes, ""),
        NodeFault::NoFiles(path) => (Kind::NoFiles, path, 0, ""),
        NodeFault::ReadOnly(path) => (Kind::ReadOnly, path, 0, ""),
        NodeFault::Hangs(path) => (Kind::Hangs, path, 0, ""),
        NodeFault::Broken { path, error } => (Kind::Broken, path, 0, &**error),
        NodeFault::Clock { .. } => return None,
    };
    let cut = |text: &str| shortened(text, FAULT_TEXT_MAX);
    Some(worker::NodeFault {
        kind: kind.into(),
        path: cut(path),
        free_bytes,
        error: cut(error),
    })
}

/// Builds a heartbeat with the unkillable instances and the jobs with held values, up to their
/// limits. It also contains the problems of the node and, if it is sent immediately, the node's
/// time.
#[must_use]
pub fn heartbeat(
    unkillable: impl Iterator<Item = Unkillable>,
    held: impl Iterator<Item = JobId>,
    (faults, sent): (&[NodeFault], Option<Timestamp>),
) -> worker::ToServer {
    let unkillable = unkillable.take(UNKILLABLE_MAX);
    let heartbeat = worker::Heartbeat {
        unkillable: unkillable.map(|one| one.to_wire()).collect(),
        held_jobs: held.take(HELD_JOBS_MAX).map(JobId::as_u32).collect(),
        node_faults: faults
            .iter()
            .filter_map(fault_message)
            .take(NODE_FAULTS_MAX)
            .collect(),
        sent_unix_ns: sent.to_wire(),
        curves: Vec::new(),
    };
    worker::to_server::Message::Heartbeat(heartbeat).into()
}

wire! { Unkillable = worker::Unkillable { struct task: TaskKey { job, task, }, instance, pid, } }

impl From<worker::to_server::Message> for worker::ToServer {
    fn from(message: worker::to_server::Message) -> Self {
        Self {
            message: Some(message),
        }
    }
}

impl From<worker::to_worker::Message> for worker::ToWorker {
    fn from(message: worker::to_worker::Message) -> Self {
        Self {
            message: Some(message),
        }
    }
}

impl From<&WorkerConfig> for worker::ToServer {
    /// Builds the registration.
    fn from(config: &WorkerConfig) -> Self {
        let register = worker::Register {
            config: config.to_wire(),
            reattach: None,
        };
        worker::to_server::Message::Register(register).into()
    }
}

/// Builds the registration of a worker that was registered before.
#[must_use]
pub fn reattach(
    (config, secret): (&WorkerConfig, &SecretKey),
    worker: WorkerId,
    server_uid: &str,
    holding: &Holding,
    number: u64,
) -> worker::ToServer {
    let launching = holding.launching.iter();
    let report = worker_state::Report {
        started: holding.started.clone(),
        ..worker_state::Report::default()
    };
    let reattach = worker::Reattach {
        worker_id: worker.as_u32(),
        server_uid: server_uid.to_owned(),
        launching: Some(task_list(launching.map(|key| (key.task, key.instance)))),
        report: (!holding.started.is_empty()).then(|| (&report).into()),
        number,
        secret: secret.shared().to_vec().into(),
        variants: holding
            .variants
            .iter()
            .map(|(key, variant)| worker::HeldVariant {
                job: key.task.job.as_u32(),
                task: key.task.task.as_u32(),
                variant: *variant,
            })
            .collect(),
    };
    let register = worker::Register {
        config: config.to_wire(),
        reattach: Some(reattach),
    };
    worker::to_server::Message::Register(register).into()
}

wire! {
    read Reattach = worker::Reattach {
        variants: list(ASSIGN_MAX, held_variant),
        number,
        worker = worker_id,
        server_uid,
        launching: task_rows_or_none,
        report: or_default,
    }
}

fn held_variant(_: &str, held: worker::HeldVariant) -> Result<(TaskKey, u32), ConvertError> {
    let task = TaskKey::new(JobId(held.job), TaskId(held.task));
    Ok((task, held.variant))
}

fn task_rows_or_none(
    field: &str,
    found: Option<worker::TaskList>,
) -> Result<Vec<(TaskKey, InstanceId)>, ConvertError> {
    task_rows(found.unwrap_or_default()).within(field)
}

impl From<&worker_state::Report> for worker::ToServer {
    fn from(report: &worker_state::Report) -> Self {
        worker::to_server::Message::Report(report.into()).into()
    }
}

impl From<ExitReason> for worker::ToServer {
    /// Builds the goodbye.
    fn from(reason: ExitReason) -> Self {
        let goodbye = worker::Goodbye {
            reason: worker::goodbye::Reason::from(reason).into(),
        };
        worker::to_server::Message::Goodbye(goodbye).into()
    }
}

impl From<ExitReason> for worker::goodbye::Reason {
    fn from(reason: ExitReason) -> Self {
        match reason {
            ExitReason::Stopped | ExitReason::ServerEnded => Self::Stopped,
            ExitReason::IdleTimeout => Self::IdleTimeout,
            ExitReason::TimeLimit => Self::TimeLimit,
            ExitReason::Preempted => Self::AllocationEnded,
            // A worker that has lost its server cannot send a goodbye.
            ExitReason::Interrupted | ExitReason::ServerLost => Self::Interrupted,
        }
    }
}

impl From<worker::goodbye::Reason> for LostReason {
    fn from(reason: worker::goodbye::Reason) -> Self {
        use worker::goodbye::Reason;
        match reason {
            Reason::Stopped => Self::Stopped,
            Reason::IdleTimeout => Self::IdleTimeout,
            Reason::TimeLimit => Self::TimeLimitReached,
            Reason::Interrupted => Self::ConnectionLost,
            Reason::AllocationEnded => Self::AllocationEnded,
        }
    }
}

impl TryFrom<worker::ToWorker> for FromServer {
    type Error = ConvertError;

    fn try_from(message: worker::ToWorker) -> Result<Self, ConvertError> {
        use worker::to_worker::Message;
        Ok(Self::Input(match required(message.message, "message")? {
            Message::Registered(registered) => {
                return Ok(Self::Registered {
                    worker: WorkerId(registered.worker_id),
                    server_uid: received("registered.server_uid", registered.server_uid)?,
                    idle_timeout_default: registered.default_idle_timeout_ns.map(duration),
                    reattached: registered.reattached,
                    server_wait: duration(registered.server_wait_ns),
                });
            }
            Message::Refused(worker::Refused { reason }) => {
                return received("refused.reason", reason).map(Self::Refused);
            }
            Message::RelayOpened(opened) => {
                return received("relay_opened", opened).map(Self::RelayOpened);
            }
            Message::Ping(worker::Ping { forgotten_jobs }) => {
                return Ok(Self::Ping(forgotten_jobs.into_iter().map(JobId).collect()));
            }
            Message::ReadOutput(request) => {
                return received("read_output", request).map(Self::ReadOutput);
            }
            Message::Acknowledge(worker::Acknowledge { seq }) => Input::Acknowledged(seq),
            Message::Stop(worker::Stop { server_ends: false }) => Input::Stop,
            Message::Stop(worker::Stop { server_ends: true }) => Input::ServerEnds,
            Message::Signal(worker::Signal { tasks, signal }) => {
                let tasks = instance_keys(required(tasks, "signal.tasks")?);
                let signal = template::signal("signal.signal", signal)?;
                Input::Signal(tasks.within("signal.tasks")?, signal)
            }
            Message::TimeLimit(worker::TimeLimit { tasks, limit_ns }) => {
                let tasks = instance_keys(required(tasks, "time_limit.tasks")?);
                let limit = limit_ns.map(Duration::from_nanos);
                Input::TimeLimit(tasks.within("time_limit.tasks")?, limit)
            }
            Message::Hold(worker::Hold { held }) => Input::Hold(held),
            Message::Assign(assign) => assign.try_into().within("assign")?,
            Message::Retract(list) => Input::Retract(instance_keys(list).within("retract")?),
            Message::Kill(list) if list.at_once => {
                Input::KillNow(instance_keys(list).within("kill")?)
            }
            Message::Kill(list) => Input::Kill(instance_keys(list).within("kill")?),
        }))
    }
}

impl From<&WorkerCommand> for worker::ToWorker {
    fn from(command: &WorkerCommand) -> Self {
        use worker::to_worker::Message;
        let message = match command {
            WorkerCommand::Assign {
                templates,
                assignments,
                awaits: _,
            } => Message::Assign(worker::Assign {
                templates: templates.iter().map(|shared| (&**shared).into()).collect(),
                assignments: assignments.to_wire(),
                drop_templates: Vec::new(),
            }),
            WorkerCommand::DropTemplates(templates) => Message::Assign(worker::Assign {
                drop_templates: templates.to_wire(),
                ..worker::Assign::default()
            }),
            WorkerCommand::Retract(tasks) => Message::Retract(task_list(tasks.iter().copied())),
            WorkerCommand::Kill(tasks) => Message::Kill(task_list(tasks.iter().copied())),
            WorkerCommand::KillNow(tasks) => Message::Kill(worker::TaskList {
                at_once: true,
                ..task_list(tasks.iter().copied())
            }),
            WorkerCommand::Signal(tasks, signal) => Message::Signal(worker::Signal {
                tasks: Some(task_list(tasks.iter().copied())),
                signal: signal.cast_unsigned(),
            }),
            WorkerCommand::TimeLimit(tasks, limit) => Message::TimeLimit(worker::TimeLimit {
                tasks: Some(task_list(tasks.iter().copied())),
                limit_ns: limit.map(hq_core::time::nanos),
            }),
            WorkerCommand::Hold(held) => Message::Hold(worker::Hold { held: *held }),
            WorkerCommand::Stop | WorkerCommand::StopDrained => {
                Message::Stop(worker::Stop { server_ends: false })
            }
            WorkerCommand::ServerEnds => Message::Stop(worker::Stop { server_ends: true }),
            WorkerCommand::Ping(forgotten) => Message::Ping(worker::Ping {
                forgotten_jobs: forgotten.to_wire(),
            }),
            WorkerCommand::Acknowledge(seq) => {
                Message::Acknowledge(worker::Acknowledge { seq: *seq })
            }
        };
        message.into()
    }
}

impl TryFrom<worker::Assign> for Input {
    type Error = ConvertError;

    fn try_from(message: worker::Assign) -> Result<Self, ConvertError> {
        let worker::Assign {
            templates,
            assignments,
            drop_templates,
        } = message;
        let templates: Vec<WorkTemplate> = each(ASSIGN_MAX)("templates", templates)?;
        Ok(Self::Assign {
            templates: templates.into_iter().map(Arc::new).collect(),
            assignments: each(ASSIGN_MAX)("assignments", assignments)?,
            drop_templates: drop_templates.into_iter().map(TemplateId).collect(),
        })
    }
}

wire! {
    read WorkTemplate = worker::Template {
        task = (task, param_args, guarded_args): guarded_task,
        id,
        job,
        job_name,
        submit_dir: absolute_path,
        stream_dir: optional(path),
    }
}

impl From<&SharedTemplate> for worker::Template {
    fn from(template: &SharedTemplate) -> Self {
        let header = &template.header;
        let (task, param_args, guarded_args) = guarded_message(&template.task);
        Self {
            id: template.id.0,
            job: header.job.as_u32(),
            job_name: header.job_name.to_wire(),
            submit_dir: header.submit_dir.to_wire(),
            stream_dir: header.stream_dir.to_wire(),
            task,
            param_args,
            guarded_args,
        }
    }
}

/// A task and the arguments that older workers ignore: of one with parameters, and of one that has
/// to be guarded.
type Guarded = (Option<common::TaskTemplate>, Vec<Bytes>, Vec<Bytes>);

fn guarded_task(
    field: &str,
    (found, param_args, guarded_args): Guarded,
) -> Result<Arc<TaskTemplate>, ConvertError> {
    let mut task = required(found, field)?;
    for args in [param_args, guarded_args] {
        if !args.is_empty() {
            task.args = args;
        }
    }
    received(field, task)
}

fn guarded_message(task: &TaskTemplate) -> Guarded {
    let mut message = common::TaskTemplate::from(task);
    let (mut param_args, mut guarded_args) = (Vec::new(), Vec::new());
    let instead = |text: &'static str| vec![text.into()];
    if let Some(text) = guard(task) {
        guarded_args = std::mem::replace(&mut message.args, instead(text));
    } else if task.params.is_some() {
        param_args = std::mem::replace(&mut message.args, instead(WITHOUT_PARAMS));
    }
    (Some(message), param_args, guarded_args)
}

/// Returns the replacement command for a worker that knows parameters but would ignore a requested
/// feature.
fn guard(task: &TaskTemplate) -> Option<&'static str> {
    if task.files.must_exist {
        return Some(WITHOUT_OUTPUTS);
    }
    let mut lines = task
        .stdin
        .iter()
        .flat_map(|text| text.split(|b| *b == b'\n'));
    // `hq.Executor` writes this line for the interpreter.
    let head = lines.next().filter(|_| task.is_call)?;
    let head: serde_json::Value = serde_json::from_slice(head).ok()?;
    (head["mode"] == "fork").then_some(WITHOUT_FORKS)
}

wire! {
    WorkAssignment, sent as Assignment = worker::Assignment {
        ids,
        entries,
        nodes: list(NODES_MAX, text),
        template,
        instance,
        variant,
        follows: optional(instance) => instance_message,
    }
    check same_count
}

fn same_count(work: WorkAssignment) -> Result<WorkAssignment, ConvertError> {
    if let Some(entries) = &work.entries {
        same_len("entries", entries.len(), work.ids.len() as usize)?;
    }
    Ok(work)
}

fn instance(_: &str, found: worker::Instance) -> Result<(TaskId, InstanceId), ConvertError> {
    Ok((TaskId(found.task), InstanceId(found.instance)))
}

fn instance_message(follows: &Option<(TaskId, InstanceId)>) -> Option<worker::Instance> {
    follows.map(|(task, instance)| worker::Instance {
        task: task.as_u32(),
        instance: instance.as_u32(),
    })
}
