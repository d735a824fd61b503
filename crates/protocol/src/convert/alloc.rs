//! Automatic allocation: parameters of queues, and descriptions of batch systems.
//!
//! Users' texts become lines of a script and names of directories, so this module rejects
//! characters that could break out of a line or a directory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hq_core::autoalloc::{
    AllocationRecord, AllocationState, QueueCommand, QueueFailure, QueueRecord, ReasonKind,
};
use hq_core::batch::{
    CommandTemplate, FindFormat, QueueParams, StateMeaning, StatusFormat, SubmitFormat, SystemSpec,
    Words,
};
use hq_core::id::{AllocationKey, QueueId};
use hq_core::time::nanos;

use super::wire::{
    FromWire, ToWire, each, field, list, optional, or_default, raw, received, same_enum,
    unless_default, wire,
};
use super::{ConvertError, Within, duration, fraction, known, required, text};
use crate::client::{self, alloc_allocation, alloc_state_word, alloc_system};

/// The maximum number of words of a command, arguments of a queue, or states of a batch system.
const WORDS_MAX: usize = 4_096;
/// The maximum length of a queue's name in bytes. File names are limited to 255 bytes.
const QUEUE_NAME_MAX: usize = 128;

/// A validated request about automatic allocation.
#[derive(Clone, PartialEq, Debug)]
pub enum AllocRequest {
    /// Creates, changes or removes a queue.
    Change(QueueCommand),
    /// Submits an allocation as a test and cancels it.
    DryRun(Arc<QueueParams>),
    /// Lists all queues.
    List,
    /// Lists the allocations of a queue.
    Info(QueueId),
    /// Requests the paths of an allocation's files, by the batch system's id.
    Log(Box<str>),
}

impl TryFrom<client::AllocRequest> for AllocRequest {
    type Error = ConvertError;

    fn try_from(message: client::AllocRequest) -> Result<Self, ConvertError> {
        use client::alloc_request::Request;
        Ok(match required(message.request, "request")? {
            Request::Add(spec) => Self::Change(QueueCommand::Add(received("add", spec)?)),
            Request::DryRun(spec) => Self::DryRun(received("dry_run", spec)?),
            Request::List(_) => Self::List,
            Request::Info(queue) => Self::Info(QueueId(queue)),
            Request::Log(job) => Self::Log(received("log", job)?),
            Request::Remove(client::AllocRemove { queue, force }) => {
                let queue = QueueId(queue);
                Self::Change(QueueCommand::Remove { queue, force })
            }
            Request::Pause(queue) => Self::Change(QueueCommand::Pause(QueueId(queue))),
            Request::Resume(queue) => Self::Change(QueueCommand::Resume(QueueId(queue))),
        })
    }
}

field!(read AllocRequest = client::AllocRequest);

wire! {
    QueueParams = client::AllocQueueSpec {
        time_limit = time_limit_ns: at_least_a_second,
        backlog: positive,
        max_workers_per_alloc: positive,
        system,
        name: optional(queue_name),
        max_worker_count: unless_zero,
        start_command: optional_line,
        stop_command: optional_line,
        wrap_command: optional_line,
        worker_time_limit = worker_time_limit_ns,
        keep_waiting,
        idle_timeout = idle_timeout_ns,
        min_utilization: fraction,
        worker_args: list(WORDS_MAX, line),
        additional_args: list(WORDS_MAX, line),
        amounts: list(WORDS_MAX, amount) => amount_messages,
    }
    check worker_time_limit
}

wire! {
    SystemSpec = client::AllocSystem {
        name: line,
        manager: line,
        script,
        each_node: line,
        each_node_shell: line,
        submit,
        submit_format,
        status,
        status_fallback: or_default => unless_default,
        status_format,
        cancel,
        find,
        find_format,
        missing: list(WORDS_MAX, line),
        unclear: list(WORDS_MAX, line),
        unreachable: list(WORDS_MAX, line),
        states: list(WORDS_MAX, state) => state_messages,
    }
}

wire! {
    QueueRecord = client::AllocQueueRecord {
        id,
        params = spec,
        paused: optional(any_text),
        known_resources,
        last_number,
        allocations: each(usize::MAX),
        failure,
        is_removed,
    }
    check own_allocations
}

wire! {
    AllocationRecord = client::AllocStored {
        key = number: in_queue => number,
        job: optional(any_text),
        state,
        dir = work_dir: raw,
        workers,
        queued_at = queued_unix_ns,
        started_at = started_unix_ns,
        ended_at = ended_unix_ns,
        is_leaving,
        reason: any_text,
    }
}

wire! { QueueFailure = client::AllocFailure { since = since_unix_ns, last: any_text, } }

wire! { Words = client::AllocWords { words: list(WORDS_MAX, without_nul), each_job, } }

same_enum! { SubmitFormat = alloc_system::SubmitFormat { LastLine Sbatch } }
same_enum! { StatusFormat = alloc_system::StatusFormat { Lines Scontrol PbsJson } }
same_enum! { FindFormat = alloc_system::FindFormat { Lines PbsJson } }
same_enum! {
    StateMeaning = alloc_state_word::Meaning {
        Queued Running Finished Failed FailedMayReturn Suspended Completing
    }
}
same_enum! { AllocationState = alloc_allocation::State { Queued Running Finished Failed } }
same_enum! {
    ReasonKind = client::AllocReason, or Unspecified {
        PausedByUser PausedBefore PausedBySubmissions PausedByAllocations Unsure Backlog WorkerCount
        BackOff NotAsked NoTasks Asking AskingAgain Covered Unfit OtherQueues
    }
}

/// Returns the key of an allocation, whose queue is set with [`own_allocations`].
fn in_queue(_: &str, number: u32) -> Result<AllocationKey, ConvertError> {
    let queue = QueueId(0);
    Ok(AllocationKey { queue, number })
}

const fn number(key: &AllocationKey) -> u32 {
    key.number
}

fn own_allocations(mut record: QueueRecord) -> Result<QueueRecord, ConvertError> {
    for allocation in &mut record.allocations {
        allocation.key.queue = record.id;
    }
    Ok(record)
}

/// A text of the server itself, which may contain long answers of a batch system.
fn any_text(_: &str, found: String) -> Result<Box<str>, ConvertError> {
    Ok(found.into())
}

fn worker_time_limit(params: QueueParams) -> Result<QueueParams, ConvertError> {
    match params.worker_time_limit {
        Some(limit) if limit > params.time_limit => Err(ConvertError::invalid(
            "worker_time_limit_ns",
            "at most the time limit of the queue",
            nanos(limit),
        )),
        Some(_) | None => Ok(params),
    }
}

fn at_least_a_second(field: &str, found: u64) -> Result<Duration, ConvertError> {
    positive(field, found / 1_000_000_000)?;
    Ok(duration(found))
}

fn positive<N: Default + PartialEq + fmt::Display>(
    field: &str,
    found: N,
) -> Result<N, ConvertError> {
    if found == N::default() {
        return Err(ConvertError::invalid(field, "at least 1", found));
    }
    Ok(found)
}

fn unless_zero(_: &str, found: Option<u32>) -> Result<Option<u32>, ConvertError> {
    Ok(found.filter(|count| *count > 0))
}

fn amount(_: &str, found: client::AllocAmount) -> Result<(Box<str>, u64), ConvertError> {
    Ok((found.resource.into(), found.units))
}

fn amount_messages(amounts: &BTreeMap<Box<str>, u64>) -> Vec<client::AllocAmount> {
    let amounts = amounts.iter();
    let messages = amounts.map(|(resource, units)| client::AllocAmount {
        resource: resource.to_wire(),
        units: *units,
    });
    messages.collect()
}

fn state(
    field: &str,
    found: client::AllocStateWord,
) -> Result<(Box<str>, StateMeaning), ConvertError> {
    let meaning = received(field, found.meaning)?;
    Ok((found.word.into(), meaning))
}

fn state_messages(states: &BTreeMap<Box<str>, StateMeaning>) -> Vec<client::AllocStateWord> {
    let states = states.iter();
    let messages = states.map(|(word, meaning)| client::AllocStateWord {
        word: word.to_wire(),
        meaning: meaning.to_wire(),
    });
    messages.collect()
}

impl FromWire<client::AllocCommand> for CommandTemplate {
    fn from_wire(field: &str, found: client::AllocCommand) -> Result<Self, ConvertError> {
        let command = Self(each(WORDS_MAX)(field, found.words)?);
        if !command.names_program() {
            let expected = "the name of a program";
            return Err(ConvertError::invalid(field, expected, "nothing"));
        }
        Ok(command)
    }
}

impl FromWire<Option<client::AllocCommand>> for CommandTemplate {
    fn from_wire(field: &str, found: Option<client::AllocCommand>) -> Result<Self, ConvertError> {
        Self::from_wire(field, required(found, field)?)
    }
}

impl ToWire<client::AllocCommand> for CommandTemplate {
    fn to_wire(&self) -> client::AllocCommand {
        client::AllocCommand {
            words: self.0.to_wire(),
        }
    }
}

impl ToWire<Option<client::AllocCommand>> for CommandTemplate {
    fn to_wire(&self) -> Option<client::AllocCommand> {
        Some(self.to_wire())
    }
}

/// Checks a queue's name, which becomes part of file names, script lines and arguments.
fn queue_name(field: &str, name: String) -> Result<Box<str>, ConvertError> {
    let is_harmless = |c: char| !c.is_control() && !c.is_whitespace() && !"/'\"`$\\".contains(c);
    if name.is_empty() || name.len() > QUEUE_NAME_MAX || !name.chars().all(is_harmless) {
        let expected = "1 to 128 bytes without blanks, quotes, `/`, `$` and `\\`";
        return Err(ConvertError::invalid(field, expected, name));
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

impl client::AllocQueue {
    /// Returns why the queue requests allocations or not. `None` if the server is of another
    /// release and sends no known reason.
    #[must_use]
    pub fn known_reason(&self) -> Option<ReasonKind> {
        client::AllocReason::try_from(self.reason_kind)
            .ok()?
            .known()
    }

    /// Returns whether the server reports rejected submissions or failing allocations.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.known_reason().is_some_and(ReasonKind::is_failing)
    }
}
