//! Automatic allocation: parameters of queues, and descriptions of batch systems.
//!
//! Users' texts become lines of a script and names of directories, so this module rejects
//! characters that could break out of a line or a directory.

use std::collections::BTreeMap;

use hq_core::autoalloc::ReasonKind;
use hq_core::batch::{
    CommandTemplate, FindFormat, QueueParams, StateMeaning, StatusFormat, SubmitFormat, SystemSpec,
    Words,
};
use hq_core::id::QueueId;
use hq_core::time::nanos;

use super::{ConvertError, Within, at_most, duration, each, known, required, text};
use crate::client::{self, alloc_state_word, alloc_system};

/// The maximum number of words of a command, arguments of a queue, or states of a batch system.
const WORDS_MAX: usize = 4_096;
/// The maximum length of a queue's name in bytes. File names are limited to 255 bytes.
const QUEUE_NAME_MAX: usize = 128;

/// A validated request about automatic allocation.
#[derive(Clone, PartialEq, Debug)]
pub enum AllocRequest {
    /// Creates a queue.
    Add(QueueParams),
    /// Submits an allocation as a test and cancels it.
    DryRun(QueueParams),
    /// Lists all queues.
    List,
    /// Lists the allocations of a queue.
    Info(QueueId),
    /// Requests the paths of an allocation's files, by the batch system's id.
    Log(Box<str>),
    /// Removes a queue and cancels its allocations.
    Remove {
        /// The queue to remove.
        queue: QueueId,
        /// Removes the queue even if allocations are running.
        force: bool,
    },
    /// Stops submitting allocations.
    Pause(QueueId),
    /// Resumes submitting allocations.
    Resume(QueueId),
}

impl TryFrom<client::AllocRequest> for AllocRequest {
    type Error = ConvertError;

    fn try_from(message: client::AllocRequest) -> Result<Self, ConvertError> {
        use client::alloc_request::Request;
        Ok(match required(message.request, "request")? {
            Request::Add(spec) => Self::Add(spec.try_into().within("add")?),
            Request::DryRun(spec) => Self::DryRun(spec.try_into().within("dry_run")?),
            Request::List(_) => Self::List,
            Request::Info(queue) => Self::Info(QueueId(queue)),
            Request::Log(job) => Self::Log(text("log", job)?),
            Request::Remove(client::AllocRemove { queue, force }) => Self::Remove {
                queue: QueueId(queue),
                force,
            },
            Request::Pause(queue) => Self::Pause(QueueId(queue)),
            Request::Resume(queue) => Self::Resume(QueueId(queue)),
        })
    }
}

impl From<&AllocRequest> for client::AllocRequest {
    fn from(request: &AllocRequest) -> Self {
        use client::alloc_request::Request;
        let request = match request {
            AllocRequest::Add(params) => Request::Add(params.into()),
            AllocRequest::DryRun(params) => Request::DryRun(params.into()),
            AllocRequest::List => Request::List(client::AllocListQuery {}),
            AllocRequest::Info(queue) => Request::Info(queue.as_u32()),
            AllocRequest::Log(job) => Request::Log(job.to_string()),
            AllocRequest::Remove { queue, force } => Request::Remove(client::AllocRemove {
                queue: queue.as_u32(),
                force: *force,
            }),
            AllocRequest::Pause(queue) => Request::Pause(queue.as_u32()),
            AllocRequest::Resume(queue) => Request::Resume(queue.as_u32()),
        };
        Self {
            request: Some(request),
        }
    }
}

impl TryFrom<client::AllocQueueSpec> for QueueParams {
    type Error = ConvertError;

    fn try_from(message: client::AllocQueueSpec) -> Result<Self, ConvertError> {
        let time_limit = duration(message.time_limit_ns);
        let worker_time_limit = message.worker_time_limit_ns.map(duration);
        if worker_time_limit.is_some_and(|limit| limit > time_limit) {
            return Err(ConvertError::invalid(
                "worker_time_limit_ns",
                "at most the time limit of the queue",
                message.worker_time_limit_ns.unwrap_or_default(),
            ));
        }
        for (field, value) in [
            ("time_limit_ns", message.time_limit_ns / 1_000_000_000),
            ("backlog", message.backlog.into()),
            (
                "max_workers_per_alloc",
                message.max_workers_per_alloc.into(),
            ),
        ] {
            if value == 0 {
                return Err(ConvertError::invalid(field, "at least 1", value));
            }
        }
        if !(0.0..=1.0).contains(&message.min_utilization) {
            let found = message.min_utilization;
            return Err(ConvertError::invalid(
                "min_utilization",
                "0.0 to 1.0",
                found,
            ));
        }
        at_most("amounts", message.amounts.len(), WORDS_MAX)?;
        let amounts = message.amounts.into_iter();
        Ok(Self {
            system: required(message.system, "system")?
                .try_into()
                .within("system")?,
            name: message.name.map(queue_name).transpose()?,
            time_limit,
            backlog: message.backlog,
            max_workers_per_alloc: message.max_workers_per_alloc,
            max_worker_count: message.max_worker_count.filter(|count| *count > 0),
            start_command: optional_line("start_command", message.start_command)?,
            stop_command: optional_line("stop_command", message.stop_command)?,
            wrap_command: optional_line("wrap_command", message.wrap_command)?,
            worker_time_limit,
            keep_waiting: message.keep_waiting,
            idle_timeout: duration(message.idle_timeout_ns),
            min_utilization: message.min_utilization,
            worker_args: lines("worker_args", message.worker_args)?,
            additional_args: lines("additional_args", message.additional_args)?,
            amounts: amounts.map(|a| (a.resource.into(), a.units)).collect(),
        })
    }
}

impl From<&QueueParams> for client::AllocQueueSpec {
    fn from(params: &QueueParams) -> Self {
        Self {
            system: Some((&params.system).into()),
            name: params.name.as_deref().map(str::to_owned),
            time_limit_ns: nanos(params.time_limit),
            backlog: params.backlog,
            max_workers_per_alloc: params.max_workers_per_alloc,
            max_worker_count: params.max_worker_count,
            start_command: params.start_command.as_deref().map(str::to_owned),
            stop_command: params.stop_command.as_deref().map(str::to_owned),
            wrap_command: params.wrap_command.as_deref().map(str::to_owned),
            worker_time_limit_ns: params.worker_time_limit.map(nanos),
            keep_waiting: params.keep_waiting,
            idle_timeout_ns: nanos(params.idle_timeout),
            min_utilization: params.min_utilization,
            worker_args: strings(&params.worker_args),
            additional_args: strings(&params.additional_args),
            amounts: params
                .amounts
                .iter()
                .map(|(resource, units)| client::AllocAmount {
                    resource: resource.to_string(),
                    units: *units,
                })
                .collect(),
        }
    }
}

impl TryFrom<client::AllocSystem> for SystemSpec {
    type Error = ConvertError;

    fn try_from(message: client::AllocSystem) -> Result<Self, ConvertError> {
        at_most("states", message.states.len(), WORDS_MAX)?;
        let mut states = BTreeMap::new();
        for state in message.states {
            let meaning: alloc_state_word::Meaning = known("states", state.meaning)?;
            states.insert(state.word.into(), meaning.into());
        }
        let submit_format: alloc_system::SubmitFormat =
            known("submit_format", message.submit_format)?;
        let status_format: alloc_system::StatusFormat =
            known("status_format", message.status_format)?;
        let find_format: alloc_system::FindFormat = known("find_format", message.find_format)?;
        Ok(Self {
            name: line("name", message.name)?,
            manager: line("manager", message.manager)?,
            script: text("script", message.script)?,
            each_node: line("each_node", message.each_node)?,
            each_node_shell: line("each_node_shell", message.each_node_shell)?,
            submit: command("submit", message.submit)?,
            submit_format: submit_format.into(),
            status: command("status", message.status)?,
            status_fallback: match message.status_fallback {
                None => CommandTemplate::default(),
                some => command("status_fallback", some)?,
            },
            status_format: status_format.into(),
            cancel: command("cancel", message.cancel)?,
            find: command("find", message.find)?,
            find_format: find_format.into(),
            missing: lines("missing", message.missing)?,
            unclear: lines("unclear", message.unclear)?,
            unreachable: lines("unreachable", message.unreachable)?,
            states,
        })
    }
}

impl From<&SystemSpec> for client::AllocSystem {
    fn from(system: &SystemSpec) -> Self {
        Self {
            name: system.name.to_string(),
            manager: system.manager.to_string(),
            script: system.script.to_string(),
            each_node: system.each_node.to_string(),
            each_node_shell: system.each_node_shell.to_string(),
            submit: Some((&system.submit).into()),
            status: Some((&system.status).into()),
            status_fallback: (!system.status_fallback.is_empty())
                .then(|| (&system.status_fallback).into()),
            cancel: Some((&system.cancel).into()),
            find: Some((&system.find).into()),
            submit_format: alloc_system::SubmitFormat::from(system.submit_format).into(),
            status_format: alloc_system::StatusFormat::from(system.status_format).into(),
            find_format: alloc_system::FindFormat::from(system.find_format).into(),
            missing: strings(&system.missing),
            unclear: strings(&system.unclear),
            unreachable: strings(&system.unreachable),
            states: system
                .states
                .iter()
                .map(|(word, meaning)| client::AllocStateWord {
                    word: word.to_string(),
                    meaning: alloc_state_word::Meaning::from(*meaning).into(),
                })
                .collect(),
        }
    }
}

impl TryFrom<client::AllocWords> for Words {
    type Error = ConvertError;

    fn try_from(message: client::AllocWords) -> Result<Self, ConvertError> {
        at_most("words", message.words.len(), WORDS_MAX)?;
        let words = message
            .words
            .into_iter()
            .map(|word| without_nul("words", word));
        Ok(Self {
            words: words.collect::<Result<_, _>>()?,
            each_job: message.each_job,
        })
    }
}

impl From<&CommandTemplate> for client::AllocCommand {
    fn from(template: &CommandTemplate) -> Self {
        let words = |words: &Words| client::AllocWords {
            words: strings(&words.words),
            each_job: words.each_job,
        };
        Self {
            words: template.0.iter().map(words).collect(),
        }
    }
}

macro_rules! same_enum {
    ($ours:ty, $wire:ty, $($variant:ident),+) => {
        impl From<$wire> for $ours {
            fn from(value: $wire) -> Self {
                match value {
                    $(<$wire>::$variant => Self::$variant,)+
                }
            }
        }

        impl From<$ours> for $wire {
            fn from(value: $ours) -> Self {
                match value {
                    $(<$ours>::$variant => Self::$variant,)+
                }
            }
        }
    };
}

same_enum!(SubmitFormat, alloc_system::SubmitFormat, LastLine, Sbatch);
same_enum!(
    StatusFormat,
    alloc_system::StatusFormat,
    Lines,
    Scontrol,
    PbsJson
);
same_enum!(FindFormat, alloc_system::FindFormat, Lines, PbsJson);
same_enum!(
    StateMeaning,
    alloc_state_word::Meaning,
    Queued,
    Running,
    Finished,
    Failed,
    FailedMayReturn,
    Suspended,
    Completing
);

fn command(
    field: &str,
    message: Option<client::AllocCommand>,
) -> Result<CommandTemplate, ConvertError> {
    let groups = required(message, field)?.words;
    at_most(field, groups.len(), WORDS_MAX)?;
    let command = CommandTemplate(each(field, groups)?);
    if !command.names_program() {
        return Err(ConvertError::invalid(
            field,
            "the name of a program",
            "nothing",
        ));
    }
    Ok(command)
}

/// Checks a queue's name, which becomes part of file names, script lines and arguments.
fn queue_name(name: String) -> Result<Box<str>, ConvertError> {
    let is_harmless = |c: char| !c.is_control() && !c.is_whitespace() && !"/'\"`$\\".contains(c);
    if name.is_empty() || name.len() > QUEUE_NAME_MAX || !name.chars().all(is_harmless) {
        return Err(ConvertError::invalid(
            "name",
            "1 to 128 bytes without blanks, quotes, `/`, `$` and `\\`",
            name,
        ));
    }
    Ok(name.into())
}

fn without_nul(field: &str, value: String) -> Result<Box<str>, ConvertError> {
    if value.contains('\0') {
        return Err(ConvertError::invalid(field, "text without NUL", value));
    }
    text(field, value)
}

fn line(field: &str, value: String) -> Result<Box<str>, ConvertError> {
    if value.contains(['\n', '\r']) {
        return Err(ConvertError::invalid(field, "a single line", value));
    }
    without_nul(field, value)
}

fn optional_line(field: &str, value: Option<String>) -> Result<Option<Box<str>>, ConvertError> {
    let trimmed = value.map(|value| value.trim().to_owned());
    let present = trimmed.filter(|value| !value.is_empty());
    present.map(|value| line(field, value)).transpose()
}

fn lines(field: &str, values: Vec<String>) -> Result<Vec<Box<str>>, ConvertError> {
    at_most(field, values.len(), WORDS_MAX)?;
    values.into_iter().map(|value| line(field, value)).collect()
}

fn strings(texts: &[Box<str>]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

impl From<ReasonKind> for client::AllocReason {
    fn from(kind: ReasonKind) -> Self {
        match kind {
            ReasonKind::PausedByUser => Self::PausedByUser,
            ReasonKind::PausedBefore => Self::PausedBefore,
            ReasonKind::PausedBySubmissions => Self::PausedBySubmissions,
            ReasonKind::PausedByAllocations => Self::PausedByAllocations,
            ReasonKind::Unsure => Self::Unsure,
            ReasonKind::Backlog => Self::Backlog,
            ReasonKind::WorkerCount => Self::WorkerCount,
            ReasonKind::BackOff => Self::BackOff,
            ReasonKind::NotAsked => Self::NotAsked,
            ReasonKind::NoTasks => Self::NoTasks,
            ReasonKind::Asking => Self::Asking,
            ReasonKind::AskingAgain => Self::AskingAgain,
            ReasonKind::Covered => Self::Covered,
            ReasonKind::Unfit => Self::Unfit,
            ReasonKind::OtherQueues => Self::OtherQueues,
        }
    }
}

impl client::AllocQueue {
    /// Returns why the queue requests allocations or not. `None` if the server is of another
    /// release and sends no known reason.
    #[must_use]
    pub fn known_reason(&self) -> Option<ReasonKind> {
        match client::AllocReason::try_from(self.reason_kind).ok()? {
            client::AllocReason::Unspecified => None,
            client::AllocReason::PausedByUser => Some(ReasonKind::PausedByUser),
            client::AllocReason::PausedBefore => Some(ReasonKind::PausedBefore),
            client::AllocReason::PausedBySubmissions => Some(ReasonKind::PausedBySubmissions),
            client::AllocReason::PausedByAllocations => Some(ReasonKind::PausedByAllocations),
            client::AllocReason::Unsure => Some(ReasonKind::Unsure),
            client::AllocReason::Backlog => Some(ReasonKind::Backlog),
            client::AllocReason::WorkerCount => Some(ReasonKind::WorkerCount),
            client::AllocReason::BackOff => Some(ReasonKind::BackOff),
            client::AllocReason::NotAsked => Some(ReasonKind::NotAsked),
            client::AllocReason::NoTasks => Some(ReasonKind::NoTasks),
            client::AllocReason::Asking => Some(ReasonKind::Asking),
            client::AllocReason::AskingAgain => Some(ReasonKind::AskingAgain),
            client::AllocReason::Covered => Some(ReasonKind::Covered),
            client::AllocReason::Unfit => Some(ReasonKind::Unfit),
            client::AllocReason::OtherQueues => Some(ReasonKind::OtherQueues),
        }
    }

    /// Returns whether the server reports rejected submissions or failing allocations.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.known_reason().is_some_and(ReasonKind::is_failing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use std::time::Duration;

    fn program(words: &[&str]) -> CommandTemplate {
        let words = words.iter().map(|word| Words {
            words: vec![(*word).into()],
            each_job: word.contains("%{job}"),
        });
        CommandTemplate(words.collect())
    }

    fn params() -> QueueParams {
        let system = SystemSpec {
            name: "PBS".into(),
            manager: "pbs".into(),
            script: "#!/bin/sh\n%{command}".into(),
            each_node: "pbsdsh -- %{command}".into(),
            each_node_shell: "pbsdsh -- sh -c %{quoted-command}".into(),
            submit: program(&["qsub", "%{script}"]),
            submit_format: SubmitFormat::LastLine,
            status: program(&["qstat", "%{job}"]),
            status_fallback: CommandTemplate::default(),
            status_format: StatusFormat::PbsJson,
            cancel: program(&["qdel", "%{job}"]),
            find: program(&["qstat"]),
            find_format: FindFormat::PbsJson,
            missing: vec!["Unknown Job Id".into()],
            unclear: vec!["timed out".into()],
            unreachable: vec!["cannot connect to server".into()],
            states: [("Q".into(), StateMeaning::Queued)].into(),
        };
        QueueParams {
            system,
            name: Some("a-b".into()),
            time_limit: Duration::from_secs(60),
            backlog: 2,
            max_workers_per_alloc: 3,
            max_worker_count: Some(4),
            keep_waiting: true,
            start_command: Some("module load x".into()),
            stop_command: None,
            wrap_command: Some("numactl".into()),
            worker_time_limit: Some(Duration::from_secs(60)),
            idle_timeout: Duration::from_secs(5),
            min_utilization: 0.5,
            worker_args: vec!["--cpus".into(), "\"4\"".into()],
            additional_args: vec!["-q".into(), "x".into()],
            amounts: [("cpus".into(), 40_000)].into(),
        }
    }

    fn received(message: &client::AllocRequest) -> Result<AllocRequest, ConvertError> {
        let bytes = message.encode_to_vec();
        client::AllocRequest::decode(&bytes[..])
            .expect("own message")
            .try_into()
    }

    #[test]
    fn requests_survive() {
        let queue = QueueId(7);
        for request in [
            AllocRequest::Add(params()),
            AllocRequest::DryRun(params()),
            AllocRequest::List,
            AllocRequest::Info(queue),
            AllocRequest::Log("1.pbs".into()),
            AllocRequest::Remove { queue, force: true },
            AllocRequest::Pause(queue),
            AllocRequest::Resume(queue),
        ] {
            let back = received(&(&request).into()).expect("own value");
            assert_eq!(back, request);
        }
    }

    #[test]
    fn what_would_break_out_of_a_script_is_refused() {
        type Change = fn(&mut client::AllocQueueSpec);
        let changes: [(&str, Change); 11] = [
            ("add.name", |spec| spec.name = Some("../x".into())),
            ("add.name", |spec| spec.name = Some("a\nb".into())),
            ("add.name", |spec| spec.name = Some(String::new())),
            ("add.additional_args", |spec| {
                spec.additional_args.push("a\nb".into())
            }),
            ("add.worker_args", |spec| {
                spec.worker_args.push("a\0".into())
            }),
            ("add.start_command", |spec| {
                spec.start_command = Some("a\nb".into())
            }),
            ("add.backlog", |spec| spec.backlog = 0),
            ("add.max_workers_per_alloc", |spec| {
                spec.max_workers_per_alloc = 0
            }),
            ("add.time_limit_ns", |spec| {
                spec.time_limit_ns = 1;
                spec.worker_time_limit_ns = None;
            }),
            ("add.worker_time_limit_ns", |spec| {
                spec.worker_time_limit_ns = Some(u64::MAX)
            }),
            ("add.min_utilization", |spec| {
                spec.min_utilization = f32::NAN
            }),
        ];
        for (field, change) in changes {
            let mut spec = client::AllocQueueSpec::from(&params());
            change(&mut spec);
            let message = client::AllocRequest {
                request: Some(client::alloc_request::Request::Add(spec)),
            };
            let error = received(&message).expect_err(field);
            assert_eq!(error.field(), field);
        }
        let mut spec = client::AllocQueueSpec::from(&params());
        spec.system.as_mut().expect("there is one").cancel = None;
        assert!(QueueParams::try_from(spec).is_err());
    }
}
