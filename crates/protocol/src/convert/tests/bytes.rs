//! Checks that the bytes of messages and the errors about invalid fields stay the same.
//!
//! The files in `tests/bytes` contain messages that an earlier build encoded. Together they set each
//! field of the schema, and each value of its enums. `meanings.txt` contains the core types that
//! these messages are decoded to. `refusals.txt` contains the error for each field with a value that is
//! not allowed; `!` marks the errors that name another field, such as the next column.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use hq_core::batch::{QueueParams, SystemSpec};
use hq_core::class::ClassId;
use hq_core::curve::Curve;
use hq_core::id::{InstanceId, TaskKey};
use hq_core::job::{SharedTemplate, SubmitHeader};
use hq_core::outcome::LostReason;
use hq_core::params::{Param, Values};
use hq_core::range::{IdArray, IdRange};
use hq_core::resize::NewRequest;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem};
use hq_core::resource::request::{ResourceEntry, ResourceRequest};
use hq_core::retry::{RetryCause, RetrySpec, StopSpec};
use hq_core::selector::Selector;
use hq_core::server_state::{
    self, Assignment, AwaitedEnds, WatchSpec, WorkerCommand, WorkerMessage,
};
use hq_core::sizing::LearnSpec;
use hq_core::template::{
    After, ArraySpec, CrashLimit, Entries, GraphSpec, NotifySpec, Origin, StdioSpec, SubmitSpec,
    TaskTemplate,
};
use hq_core::worker_config::{Allocation, WorkerConfig};
use hq_core::worker_state::{self, ExitReason, Holding, Input, InstanceKey};
use prost::Message;

use super::super::*;
use crate::schema::{self, Kind, Schema, Tree, Value, bytes_of, parse};
use crate::{SecretKey, client, common, worker};

/// Decodes a message, converts it to the core type, and back if both directions exist.
type Convert = fn(&[u8]) -> Result<Option<Vec<u8>>, ConvertError>;

/// Decodes a message and prints the core type.
type Show = fn(&[u8]) -> String;

/// Decodes a message and encodes it again.
type Again = fn(&[u8]) -> Vec<u8>;

fn decoded<M: Message + Default>(bytes: &[u8]) -> M {
    M::decode(bytes).expect("a message")
}

fn again<M: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    decoded::<M>(bytes).encode_to_vec()
}

macro_rules! converted {
    ($($package:ident::$message:ident > $core:ty $(, $back:expr)?;)*) => {
        /// The messages that have a core type.
        const CONVERTED: &[(&str, Convert, Show)] = &[$((
            concat!(stringify!($package), ".", stringify!($message)),
            |bytes| {
                let message: $package::$message = decoded(bytes);
                let core: $core = message.try_into()?;
                converted!(@back $package::$message, bytes, core: $core $(, $back)?)
            },
            |bytes| {
                let message: $package::$message = decoded(bytes);
                let core: $core = message.try_into().expect("a valid message");
                format!("{core:?}")
            },
        )),*];
    };
    (@back $message:ty, $bytes:ident, $value:ident: $core:ty) => {{
        let message: $message = (&$value).into();
        Ok(Some(message.encode_to_vec()))
    }};
    (@back $message:ty, $bytes:ident, $value:ident: $core:ty, $back:expr) => {{
        let back: fn($message, $core) -> Option<$message> = $back;
        Ok(back(decoded($bytes), $value).map(|message| message.encode_to_vec()))
    }};
}

converted! {
    common::Allocation > Allocation;
    common::CrashLimit > CrashLimit;
    common::Curve > Curve;
    common::Entries > Entries;
    common::IdArray > IdArray;
    common::IdRange > IdRange;
    common::Learn > LearnSpec;
    common::OutputSource > OutputSource;
    common::Param > Param;
    common::ParamValues > Values;
    common::ReadFrom > ReadFrom;
    common::ResourceDescriptor > ResourceDescriptor;
    common::ResourceEntry > ResourceEntry;
    common::ResourceItem > ResourceItem;
    common::ResourceRequest > ResourceRequest;
    common::Retry > RetrySpec;
    common::RetryCause > RetryCause;
    common::Stdio > StdioSpec;
    common::Stop > StopSpec;
    common::TaskTemplate > TaskTemplate;
    common::WorkerConfig > WorkerConfig;
    client::After > After;
    client::AllocQueueSpec > QueueParams;
    client::AllocRequest > AllocRequest, |_, _| None;
    client::AllocSystem > SystemSpec;
    client::ArraySubmit > ArraySpec;
    client::GraphSubmit > GraphSpec;
    client::NewRequest > NewRequest, |_, _| None;
    client::NotifyTarget > NotifySpec;
    client::Origin > Origin;
    client::ReadOutput > OutputQuery, |_, _| None;
    client::Request > ClientRequest, |_, _| None;
    client::Selector > Selector;
    client::Submit > SubmitSpec;
    client::TaskPage > TaskPageQuery, |_, _| None;
    client::Watch > WatchSpec, |_, _| None;
    worker::Assign > Input, |_, _| None;
    worker::Report > server_state::Report, |message, core| {
        let curves = message.curves;
        Some(worker::Report { curves, ..(&worker_report(core)).into() })
    };
    worker::ToServer > FromWorker, |mut message, core| {
        let (curves, _) = take_curves(&mut message);
        let mut back = from_worker(message, core)?;
        add_curves(&mut back, &curves);
        Some(back)
    };
    worker::ToWorker > FromServer, |_, core| from_server(core);
}

macro_rules! messages {
    ($($package:ident: $($name:ident)*;)*) => {
        /// All messages of the schema.
        const MESSAGES: &[(&str, Again)] = &[$($((
            concat!(stringify!($package), ".", stringify!($name)),
            again::<$package::$name>,
        )),*),*];
    };
}

use crate::generated::hq::handshake::v1 as handshake;

messages! {
    common: IdRange IdArray EnvVar ResourceDescriptor ResourceItem IndexGroup IndexSpan IndexGroups
        CouplingWeight ResourceEntry ResourceRequest Stdio CrashLimit Stop Retry Growth RetryCause
        TaskTemplate Learn Param ParamValues Decimals OutputSource StreamSource ReadFrom Entries
        WorkerConfig Allocation Curve GpuCurve;
    handshake: Handshake Hello Refusal;
    worker: ToServer ToWorker Register Reattach OpenRelay RelayOpened RelayFrame HeldVariant
        Registered Refused Heartbeat NodeFault Unkillable Notify ReadOutput Output Values Value
        Overview NetworkCounters Gpus Gpu Ping Acknowledge Stop Hold Signal TimeLimit Goodbye Template Assign
        Assignment Instance TaskList TaskGroup Report TaskCurve Started Ended Failure ToHolder
        HeldNames FromHolder;
    client: Request QuarantineWorkers ServerStop Reply AskTokens NewToken Tokens Token AskProblems
        Problems Problem HttpOpened DebugDump Empty Journal JournalLines SqlQuery SqlTable Error
        JobId Selector ServerInfo Submit Origin SelfClosingJob NotifyTarget JobNotice After
        SubmitAll SubmittedAll SubmitResult Resubmit ChosenTasks Resize NewRequest Resubmitted
        ResubmittedJob NewJob ArraySubmit GraphSubmit OpenJob Cancel CancelTasks SignalTasks SignaledTasks HoldTasks
        ChangedTasks ChangeJob JobChange TaskChange RevisedTasks KeptChanges
        ChangeLimit Limits LimitInfo LimitUser SubmitLimits LimitUse
        DropEntries Forget
        Forgotten ReadOutput Output JobResult JobResults TaskStats JobSummary PaceFacts JobList
        JobInfos JobDetail WorkerRef FailedTask SubmitInfo TaskPage TaskPageReply TaskInfo Param
        TaskAttempt TaskPaths TaskUsage TaskIds TaskIdsReply JobTaskIds Watch WatchUpdate
        Notification WatchedJob EndedTask ReadValues TaskValues WorkerQuery Workers WorkerInfo
        Quarantine UnkillableTask WorkerLoad LastTask RuntimeInfo ResourceUse WorkerStopResult
        WorkerStopResults Explain Explanation WorkerExplanation VariantExplanation ExplainItem
        TimeItem ResourceAmount GroupItem AllocRequest AllocReply AllocListQuery AllocDone
        AllocRemove AllocQueueSpec AllocAmount AllocSystem AllocCommand AllocWords AllocStateWord
        AllocQueueRecord AllocFailure AllocStored AllocQueues AllocQueue AllocAllocations
        AllocAllocation;
}

/// Converts a received report to what the worker sent.
fn worker_report(report: server_state::Report) -> worker_state::Report {
    let key = |(task, instance): (TaskKey, InstanceId)| InstanceKey { task, instance };
    let started = report.started.iter().map(|row| worker_state::StartedRow {
        key: key((row.task, row.instance)),
        age: row.age,
    });
    let ended = report.ended.iter().map(|row| worker_state::EndedRow {
        key: key((row.task, row.instance)),
        outcome: row.outcome.clone(),
        age: row.age,
        run: row.run,
        usage: row.usage,
    });
    worker_state::Report {
        seq: report.seq,
        sent: report.sent,
        started: started.collect(),
        ended: ended.collect(),
        retracted: report.retracted.into_iter().map(key).collect(),
    }
}

fn from_worker(message: worker::ToServer, read: FromWorker) -> Option<worker::ToServer> {
    use worker::to_server::Message;
    Some(match read {
        FromWorker::Relay(request) => (&request).into(),
        FromWorker::Register(config, None) => (&*config).into(),
        FromWorker::Register(config, Some(found)) => {
            let Some(Message::Register(register)) = message.message else {
                panic!("no registration");
            };
            let secret = register.reattach.expect("there is one").secret;
            let secret = SecretKey::from_bytes(secret[..].try_into().expect("32 bytes"));
            let key = |task| InstanceKey {
                task,
                instance: InstanceId(0),
            };
            let holding = Holding {
                launching: found
                    .launching
                    .iter()
                    .map(|(task, instance)| InstanceKey {
                        task: *task,
                        instance: *instance,
                    })
                    .collect(),
                variants: found
                    .variants
                    .iter()
                    .map(|(task, at)| (key(*task), *at))
                    .collect(),
                started: worker_report(found.report.clone()).started,
            };
            let server_state::Reattach {
                worker,
                server_uid,
                number,
                ..
            } = *found;
            reattach((&config, &secret), worker, &server_uid, &holding, number)
        }
        FromWorker::Message(WorkerMessage::Report(report)) => (&worker_report(report)).into(),
        FromWorker::Message(WorkerMessage::Heartbeat {
            unkillable,
            held,
            faults,
            sent,
        }) => heartbeat(unkillable.into_iter(), held.into_iter(), (&faults, sent)),
        FromWorker::Message(WorkerMessage::Overview(usage)) => (&*usage).into(),
        FromWorker::Message(WorkerMessage::Goodbye(reason)) => match reason {
            LostReason::Stopped => ExitReason::Stopped,
            LostReason::IdleTimeout => ExitReason::IdleTimeout,
            LostReason::TimeLimitReached => ExitReason::TimeLimit,
            LostReason::ConnectionLost | LostReason::HeartbeatLost => ExitReason::Interrupted,
            LostReason::AllocationEnded => ExitReason::Preempted,
        }
        .into(),
        FromWorker::Message(WorkerMessage::Notify(..))
        | FromWorker::Output(_)
        | FromWorker::Values(_) => return None,
    })
}

fn from_server(read: FromServer) -> Option<worker::ToWorker> {
    let rows = |keys: Vec<InstanceKey>| keys.iter().map(|key| (key.task, key.instance)).collect();
    let command = match read {
        FromServer::Registered { .. } | FromServer::Refused(_) => return None,
        FromServer::RelayOpened(terms) => return Some(terms.into()),
        FromServer::ReadOutput(request) => return Some((&request).into()),
        FromServer::Ping(jobs) => WorkerCommand::Ping(jobs),
        FromServer::Input(Input::Assign {
            templates,
            drop_templates,
            ..
        }) if templates.is_empty() && !drop_templates.is_empty() => {
            WorkerCommand::DropTemplates(drop_templates)
        }
        FromServer::Input(Input::Assign {
            templates,
            assignments,
            ..
        }) => WorkerCommand::Assign {
            templates: templates
                .iter()
                .map(|template| shared_template(template))
                .collect(),
            assignments: assignments.into_iter().map(assignment).collect(),
            awaits: AwaitedEnds::None,
        },
        FromServer::Input(Input::Retract(keys)) => WorkerCommand::Retract(rows(keys)),
        FromServer::Input(Input::Kill(keys)) => WorkerCommand::Kill(rows(keys)),
        FromServer::Input(Input::KillNow(keys)) => WorkerCommand::KillNow(rows(keys)),
        FromServer::Input(Input::Signal(keys, signal)) => WorkerCommand::Signal(rows(keys), signal),
        FromServer::Input(Input::TimeLimit(keys, limit)) => {
            WorkerCommand::TimeLimit(rows(keys), limit)
        }
        FromServer::Input(Input::Hold(held)) => WorkerCommand::Hold(held),
        FromServer::Input(Input::Stop) => WorkerCommand::Stop,
        FromServer::Input(Input::ServerEnds) => WorkerCommand::ServerEnds,
        FromServer::Input(Input::Acknowledged(seq)) => WorkerCommand::Acknowledge(seq),
        FromServer::Input(other) => panic!("{other:?}"),
    };
    Some((&command).into())
}

fn shared_template(template: &worker_state::WorkTemplate) -> Arc<SharedTemplate> {
    Arc::new(SharedTemplate {
        id: template.id,
        header: Arc::new(SubmitHeader {
            job: template.job,
            job_name: template.job_name.clone(),
            submit_dir: template.submit_dir.clone(),
            stream_dir: template.stream_dir.clone(),
        }),
        class: ClassId(0),
        task: Arc::clone(&template.task),
    })
}

fn assignment(work: worker_state::WorkAssignment) -> Assignment {
    Assignment {
        template: work.template,
        ids: work.ids,
        instance: work.instance,
        variant: work.variant,
        entries: work.entries,
        nodes: work.nodes.to_vec(),
        follows: work.follows,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn convert(name: &str, bytes: &[u8]) -> Option<Result<Option<Vec<u8>>, ConvertError>> {
    let found = CONVERTED.iter().find(|(known, ..)| *known == name);
    found.map(|(_, convert, _)| convert(bytes))
}

/// The lines of the files, each with the name and the bytes of a message.
fn lines() -> Vec<(&'static str, Vec<u8>)> {
    let files = [
        include_str!("../../../tests/bytes/common.txt"),
        include_str!("../../../tests/bytes/alloc.txt"),
        include_str!("../../../tests/bytes/handshake.txt"),
        include_str!("../../../tests/bytes/worker.txt"),
        include_str!("../../../tests/bytes/client.txt"),
    ];
    let lines = files.iter().flat_map(|file| file.lines());
    let split = |line: &'static str| line.split_once(' ').expect("a name and bytes");
    lines
        .map(split)
        .map(|(name, bytes)| (name, from_hex(bytes)))
        .collect()
}

/// What messages set: fields, and values of enums. An empty name stands for the message itself.
type Covered = BTreeSet<(String, String, Option<u64>)>;

fn cover(schema: &Schema, message: &str, tree: &Tree, covered: &mut Covered) {
    covered.insert((message.to_owned(), String::new(), None));
    for (number, value) in tree {
        let field = schema[message].iter().find(|field| field.number == *number);
        let field = field.expect("a field of the schema");
        covered.insert((message.to_owned(), field.name.clone(), None));
        match (&field.kind, value) {
            (Kind::Enum(_), Value::Number(value)) => {
                covered.insert((message.to_owned(), field.name.clone(), Some(*value)));
            }
            (Kind::Message(inner), Value::Message(tree)) => cover(schema, inner, tree, covered),
            _ => {}
        }
    }
}

/// Returns everything that lines have to cover.
fn wanted(schema: &Schema) -> Covered {
    let mut wanted = Covered::new();
    for (message, fields) in schema {
        wanted.insert((message.clone(), String::new(), None));
        for field in fields {
            wanted.insert((message.clone(), field.name.clone(), None));
            if let Kind::Enum(values) = &field.kind {
                // Zero is the absence of the field.
                let values = values.iter().filter(|value| **value > 0);
                wanted.extend(values.map(|v| (message.clone(), field.name.clone(), Some(*v))));
            }
        }
    }
    wanted
}

#[test]
fn each_field_is_set_in_a_line() {
    let (schema, messages) = schema::schema();
    let names = MESSAGES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(names.collect::<BTreeSet<_>>(), messages);
    let mut covered = Covered::new();
    for (name, bytes) in lines() {
        cover(&schema, name, &parse(&schema, name, &bytes), &mut covered);
    }
    let missing: BTreeSet<String> = wanted(&schema)
        .difference(&covered)
        .map(|(message, field, value)| new_line(&schema, message, field, *value))
        .collect();
    assert!(
        missing.is_empty(),
        "add lines such as these to tests/bytes: {missing:#?}"
    );
}

/// Returns a line for a new field: the last line of its message, and the field.
fn new_line(schema: &Schema, message: &str, field: &str, value: Option<u64>) -> String {
    let last = lines().into_iter().rfind(|(name, _)| *name == message);
    let mut tree = last
        .map(|(_, bytes)| parse(schema, message, &bytes))
        .unwrap_or_default();
    for field in schema[message].iter().filter(|known| known.name == field) {
        let new = match field.kind {
            Kind::Number(_) | Kind::Enum(_) => Value::Number(value.unwrap_or(1)),
            Kind::Float => Value::Float(0.5),
            Kind::Fixed => Value::Fixed(1),
            Kind::Text | Kind::Bytes => Value::Bytes(field.name.clone().into_bytes()),
            Kind::Message(_) => Value::Message(Tree::new()),
        };
        tree.push((field.number, new));
    }
    let (_, again) = MESSAGES
        .iter()
        .find(|(name, _)| *name == message)
        .expect("a message");
    format!("{message} {}", hex(&again(&bytes_of(&tree))))
}

#[test]
fn bytes_stay_the_same() {
    for (name, bytes) in lines() {
        let (_, again) = MESSAGES
            .iter()
            .find(|(known, _)| *known == name)
            .expect(name);
        assert_eq!(hex(&again(&bytes)), hex(&bytes), "{name}");
        if let Some(converted) = convert(name, &bytes) {
            let back = converted.unwrap_or_else(|error| panic!("{name} {}: {error}", hex(&bytes)));
            if let Some(back) = back {
                assert_eq!(hex(&back), hex(&bytes), "{name}");
            }
        }
    }
}

#[test]
fn meanings_stay_the_same() {
    let mut all = String::new();
    for (name, bytes) in lines() {
        if let Some((_, _, show)) = CONVERTED.iter().find(|(known, ..)| *known == name) {
            let _ = writeln!(all, "{name} {}", show(&bytes));
        }
    }
    compare(
        "meanings.txt",
        &all,
        include_str!("../../../tests/bytes/meanings.txt"),
    );
}

/// Compares a file with what it has to be, or writes it if the variable is set.
fn compare(file: &str, found: &str, kept: &str) {
    if std::env::var_os("HQ_WRITE_BYTES").is_some() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bytes/");
        std::fs::write(format!("{directory}{file}"), found).expect("the file is written");
        return;
    }
    let hint = "if this is intended, run the test once with HQ_WRITE_BYTES=1";
    for (found, kept) in found.lines().zip(kept.lines()) {
        assert_eq!(found, kept, "{hint}");
    }
    assert_eq!(found.lines().count(), kept.lines().count(), "{hint}");
}

/// Copies of an element, more than most lists may have. Numbers and texts may have more.
const MANY: usize = 5_000;
const MANY_SMALL: usize = (1 << 16) + 1;

/// Returns values for a field that are often not allowed, with their names.
fn values(kind: &Kind) -> Vec<(String, Value)> {
    let text = |text: &str| Value::Bytes(text.as_bytes().to_vec());
    let values = match kind {
        Kind::Number("bool") | Kind::Fixed => Vec::new(),
        Kind::Number(name) if name.ends_with("32") => {
            vec![
                ("zero", Value::Number(0)),
                ("max", Value::Number(u32::MAX.into())),
            ]
        }
        Kind::Number(_) => vec![("zero", Value::Number(0)), ("max", Value::Number(u64::MAX))],
        Kind::Enum(values) => {
            let known = values
                .iter()
                .map(|value| (format!("value {value}"), Value::Number(*value)));
            return known
                .chain([("unknown".to_owned(), Value::Number(99))])
                .collect();
        }
        Kind::Float => vec![
            ("NaN", Value::Float(f32::NAN)),
            ("two", Value::Float(2.0)),
            ("negative", Value::Float(-0.1)),
        ],
        Kind::Text | Kind::Bytes => vec![
            ("empty", text("")),
            ("NUL", text("a\0")),
            ("=", text("a=b/c d")),
            ("lines", text("a\nb")),
            ("long", Value::Bytes(vec![b'x'; NAME_LEN_MAX + 1])),
        ],
        Kind::Message(_) => vec![("empty", Value::Message(Tree::new()))],
    };
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    values.into_iter().map(named).collect()
}

/// A message with a changed field.
struct Changed {
    path: String,
    /// The `oneof` that the field is a member of.
    one_of: Option<String>,
    change: String,
    tree: Tree,
}

/// Changes each field of a message in several ways. Does not change the fields of inner messages
/// that have a core type, which have lines of their own.
fn changes(schema: &Schema, message: &str, tree: &Tree) -> Vec<Changed> {
    let mut found = Vec::new();
    for field in &schema[message] {
        let is_it = |(number, _): &&(u32, Value)| *number == field.number;
        let Some(at) = tree.iter().position(|entry| is_it(&entry)) else {
            continue;
        };
        let mut add = |path: &str, change: &str, tree| {
            found.push(Changed {
                path: path.to_owned(),
                one_of: field.one_of.clone(),
                change: change.to_owned(),
                tree,
            });
        };
        let others = tree.iter().filter(|entry| !is_it(entry)).cloned();
        add(&field.name, "absent", others.collect());
        let path = format!(
            "{}{}",
            field.name,
            if field.is_repeated { "[0]" } else { "" }
        );
        let replaced = |value| {
            let mut tree = tree.clone();
            tree[at].1 = value;
            tree
        };
        for (change, value) in values(&field.kind) {
            add(&path, &change, replaced(value));
        }
        if field.is_repeated {
            let small = !matches!(field.kind, Kind::Message(_));
            for (change, count) in [
                ("twice", 1),
                ("many", if small { MANY_SMALL } else { MANY }),
            ] {
                let mut tree = tree.clone();
                tree.splice(at..at, vec![tree[at].clone(); count]);
                add(&field.name, change, tree);
            }
        }
        if let (Kind::Message(inner), Value::Message(part)) = (&field.kind, &tree[at].1)
            && !CONVERTED.iter().any(|(name, ..)| name == inner)
        {
            let inside = changes(schema, inner, part).into_iter();
            found.extend(inside.map(|inner| Changed {
                path: format!("{path}.{}", inner.path),
                tree: replaced(Value::Message(inner.tree)),
                ..inner
            }));
        }
    }
    found
}

fn whole(error: &ConvertError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

/// Returns whether an error about the changed field at `path` names it, or what contains it.
fn is_named(error: &ConvertError, path: &str, one_of: Option<&str>) -> bool {
    let names = |path: &str| -> Vec<String> {
        let names = path
            .split('.')
            .map(|name| name.split('[').next().unwrap_or_default());
        names.map(str::to_owned).collect()
    };
    let (field, path) = (names(error.field()), names(path));
    field
        .last()
        .is_some_and(|name| path.contains(name) || one_of == Some(name))
        || path.last().is_some_and(|name| field.contains(name))
}

#[test]
fn refusals_name_the_field_and_stay_the_same() {
    let (schema, _) = schema::schema();
    let mut said = BTreeMap::new();
    for (name, bytes) in lines() {
        if !CONVERTED.iter().any(|(known, ..)| *known == name) {
            continue;
        }
        for changed in changes(&schema, name, &parse(&schema, name, &bytes)) {
            let Changed {
                path,
                one_of,
                change,
                tree,
            } = changed;
            if let Some(Err(error)) = convert(name, &bytes_of(&tree)) {
                let mark = if is_named(&error, &path, one_of.as_deref()) {
                    ""
                } else {
                    " !"
                };
                let line = format!("{}{mark}", whole(&error));
                said.entry(format!("{name} {path} {change}"))
                    .or_insert(line);
            }
        }
    }
    let said: String = said
        .iter()
        .map(|(what, text)| format!("{what}: {text}\n"))
        .collect();
    compare(
        "refusals.txt",
        &said,
        include_str!("../../../tests/bytes/refusals.txt"),
    );
}
