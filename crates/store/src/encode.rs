//! Encodes values for rows as numbers and JSON: states, outcomes, and the nested objects of events.

use std::fmt::Write as _;
use std::time::Duration;

use hq_core::batch::QueueParams;
use hq_core::bound::Rate;
use hq_core::hardware::{GpuUsage, HardwareUsage};
use hq_core::id::JobId;
use hq_core::job::JobChange;
use hq_core::outcome::{Outcome, OutcomeCode, SignalName};
use hq_core::range::{IdArray, IndexSet};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use hq_core::resource::request::{Policy, RequestVariants, ResourceRequest};
use hq_core::server_state::EncodedBody;
use hq_core::task::TaskState;
use hq_core::template::{
    CrashLimit, Entries, GraphSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};
use hq_core::worker_config::{BatchSystem, OnServerLost, WorkerConfig};
use hq_protocol::convert::FromWorker;
use hq_protocol::{Message as _, client, worker};
use serde_json::{Map, Value, json};

/// Decodes a state from its column. A number that no release writes counts as waiting, so the task
/// runs again.
pub(crate) fn state_of(number: u8) -> TaskState {
    TaskState::from_number(number.into()).unwrap_or(TaskState::Waiting)
}

pub(crate) fn outcome_code(outcome: &Outcome) -> (i32, Option<&str>) {
    (OutcomeCode::of(outcome).number(), outcome.text())
}

pub(crate) fn outcome_of(code: i64, message: Option<String>) -> Outcome {
    OutcomeCode::from_number(code).outcome(message.map(Into::into))
}

/// Returns the error text of a failed task from its columns `outcome` and `message`.
#[must_use]
pub(crate) fn failure_text(outcome: i64, message: Option<&str>) -> String {
    let text = outcome_of(outcome, message.map(str::to_owned)).error_text();
    if text.is_empty() {
        "killed".to_owned()
    } else {
        text
    }
}

/// Returns the short form of the error text: `exit code 7`.
#[must_use]
pub fn failure_words(outcome: i64, message: Option<&str>) -> String {
    match outcome_of(outcome, message.map(str::to_owned)) {
        Outcome::TimeLimit => "time limit reached".to_owned(),
        Outcome::OutOfMemory(_) => "out of memory".to_owned(),
        Outcome::Message(text) => text.lines().next().unwrap_or_default().to_owned(),
        Outcome::Signal(signal) => format!("killed by {}", SignalName(signal)),
        Outcome::ExitCode(code) => format!("exit code {code}"),
        Outcome::Finished | Outcome::Killed => "killed".to_owned(),
    }
}

/// Encodes the body of a graph submit as the first part of its message. Call this outside the
/// writer thread, because it takes long for large graphs.
#[must_use]
pub fn body_bytes(body: &SubmitBody) -> EncodedBody {
    let message = client::Submit {
        body: Some(body.into()),
        ..client::Submit::default()
    };
    let bytes = message.encode_to_vec();
    let checksum = extend_checksum(CHECKSUM_START, &bytes);
    EncodedBody { bytes, checksum }
}

/// Encodes a submit together with its job and the assigned task ids, and computes its checksum. The
/// body of a graph may already be encoded.
pub(crate) fn stored_spec(
    job: JobId,
    (spec, body): (&SubmitSpec, Option<&EncodedBody>),
    ids: &IdArray,
) -> (Vec<u8>, i64) {
    let Some(body) = body else {
        let bytes = spec_bytes(job, spec, ids);
        let check = checksum(&bytes);
        return (bytes, check);
    };
    let rest = spec_bytes(job, &without_tasks(spec), ids);
    let check = extend_checksum(body.checksum, &rest).cast_signed();
    // Concatenated protobuf messages are merged when they are decoded; repeated fields are
    // appended.
    ([&body.bytes[..], &rest].concat(), check)
}

fn spec_bytes(job: JobId, spec: &SubmitSpec, ids: &IdArray) -> Vec<u8> {
    let mut message = client::Submit::from(spec);
    // For a self-closing job, the first submit records that the job closes on its own.
    if !matches!(spec.target, SubmitTarget::SelfClosing { .. }) {
        message.target = Some(client::submit::Target::AttachJob(job.as_u32()));
    }
    if let Some(client::submit::Body::Array(array)) = &mut message.body {
        use client::array_submit::Ids;
        array.ids = Some(match array.ids {
            Some(Ids::NextParams(_)) => {
                // The ids determine the parameter values, so the first id of the combinations is
                // recorded here.
                if let (Some(template), Some(first)) = (&mut array.template, ids.get(0)) {
                    template.params_first = first;
                }
                Ids::GivenParams(ids.into())
            }
            Some(Ids::GivenParams(_)) => Ids::GivenParams(ids.into()),
            Some(Ids::Given(_) | Ids::Next(_)) | None => Ids::Given(ids.into()),
        });
    }
    message.encode_to_vec()
}

/// Removes the entries at these positions from a stored submit, given with its checksum. Once no
/// entry is left, also removes the input of the interpreters, because no call will run again.
/// Returns `None` if the submit is corrupt.
pub(crate) fn without_entries(
    (spec, check): (&[u8], i64),
    positions: &IndexSet,
) -> Option<(Vec<u8>, i64)> {
    use client::submit::Body;
    if checksum(spec) != check {
        return None;
    }
    let mut message = client::Submit::decode(spec).ok()?;
    let Some(Body::Array(array)) = &mut message.body else {
        return None;
    };
    let entries = array
        .entries
        .take()
        .map(Entries::try_from)
        .transpose()
        .ok()?;
    let left = entries.map(|entries| entries.without(positions));
    match left.filter(|left| left.data_len() > 0) {
        Some(left) => array.entries = Some((&left).into()),
        None => array.template.as_mut()?.stdin = None,
    }
    let bytes = message.encode_to_vec();
    let check = checksum(&bytes);
    Some((bytes, check))
}

fn without_tasks(spec: &SubmitSpec) -> SubmitSpec {
    SubmitSpec {
        target: spec.target.clone(),
        submit_dir: spec.submit_dir.clone(),
        stream_dir: spec.stream_dir.clone(),
        after: spec.after.clone(),
        notify: spec.notify.clone(),
        origin: spec.origin.clone(),
        nonce: spec.nonce,
        notes: spec.notes.clone(),
        limits: spec.limits.clone(),
        body: SubmitBody::Graph(GraphSpec {
            templates: Vec::new(),
            tasks: Vec::new(),
        }),
    }
}

/// Encodes a worker's configuration as its registration message.
pub(crate) fn registration_bytes(config: &WorkerConfig) -> Vec<u8> {
    worker::ToServer::from(config).encode_to_vec()
}

/// The inverse of [`registration_bytes`]. Returns `None` if the bytes are damaged.
pub(crate) fn registration_of(bytes: &[u8]) -> Option<WorkerConfig> {
    match FromWorker::try_from(worker::ToServer::decode(bytes).ok()?).ok()? {
        FromWorker::Register(config, _) => Some(*config),
        FromWorker::Relay(_)
        | FromWorker::Message(_)
        | FromWorker::Output(_)
        | FromWorker::Values(_) => None,
    }
}

/// The FNV-1a offset basis.
const CHECKSUM_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Computes a 64-bit FNV-1a checksum. It detects corruption, but not tampering.
pub(crate) fn checksum(bytes: &[u8]) -> i64 {
    extend_checksum(CHECKSUM_START, bytes).cast_signed()
}

/// Continues a checksum with more bytes.
fn extend_checksum(checksum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(checksum, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn duration(value: Duration) -> Value {
    json!({"secs": value.as_secs(), "nanos": value.subsec_nanos()})
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn worker_json(config: &WorkerConfig) -> Value {
    let mut extra = json!({"ProcessPid": config.process_pid.to_string()});
    if let Some(allocation) = &config.allocation {
        let manager = match allocation.manager {
            BatchSystem::Pbs => "Pbs",
            BatchSystem::Slurm => "Slurm",
            BatchSystem::Other => "Other",
        };
        let inner = json!({
            "manager": manager,
            "allocation_id": allocation.id,
            "time_limit": allocation.time_limit.map(duration),
            "max_memory_mb": null,
        });
        extra["JobManager"] = Value::String(inner.to_string());
    }
    let on_server_lost = match config.on_server_lost {
        OnServerLost::Stop => "Stop",
        OnServerLost::FinishRunning => "FinishRunning",
        OnServerLost::Reconnect => "Reconnect",
    };
    json!({
        "extra": extra,
        "group": config.group,
        "heartbeat_interval": duration(config.heartbeat),
        "hostname": config.hostname,
        "idle_timeout": config.idle_timeout.map(duration),
        "listen_address": config.listen_address,
        "min_utilization": config.min_utilization,
        "on_server_lost": on_server_lost,
        "overview_configuration": config.overview_interval.map(|interval| {
            json!({"gpu_families": gpu_families(config), "send_interval": duration(interval)})
        }),
        "resources": resources_json(&config.resources),
        "retract_check_interval": duration(config.retract_check_interval),
        "time_limit": config.time_limit.map(duration),
        "work_dir": config.work_dir,
    })
}

pub(crate) fn usage_json(usage: &HardwareUsage) -> Value {
    let cpus: Vec<f64> = usage.cpus.iter().map(|cpu| cpu.percent()).collect();
    let gpus = |gpus: &Option<Vec<GpuUsage>>| {
        let gpu = |gpu: &GpuUsage| {
            json!({"id": gpu.id, "processor_usage": gpu.processor.percent(),
                   "mem_usage": gpu.memory.percent()})
        };
        let gpus = gpus.as_ref()?.iter().map(gpu).collect::<Vec<_>>();
        Some(json!({"gpus": gpus}))
    };
    let network = &usage.network;
    json!({"state": {
        "timestamp": usage.unix_seconds,
        "cpu_usage": {"cpu_per_core_percent_usage": cpus},
        "memory_usage": {"free": usage.memory_free, "total": usage.memory_total},
        "network_usage": {
            "rx_bytes": network.rx_bytes,
            "rx_packets": network.rx_packets,
            "rx_errors": network.rx_errors,
            "tx_bytes": network.tx_bytes,
            "tx_packets": network.tx_packets,
            "tx_errors": network.tx_errors,
        },
        "nvidia_gpus": gpus(&usage.nvidia),
        "amd_gpus": gpus(&usage.amd),
    }})
}

/// Returns the GPU families that an overview reports.
fn gpu_families(config: &WorkerConfig) -> Vec<&'static str> {
    let items = config.resources.items.iter();
    let family = |item: &ResourceItem| match &*item.name {
        "gpus/nvidia" => Some("Nvidia"),
        "gpus/amd" => Some("Amd"),
        _ => None,
    };
    items.filter_map(family).collect()
}

fn resources_json(resources: &ResourceDescriptor) -> Value {
    let kind = |kind: &ResourceKind| match kind {
        ResourceKind::List(values) => json!({"List": {"values": values}}),
        ResourceKind::Range { start, end } => json!({"Range": {"start": start, "end": end}}),
        ResourceKind::Groups(groups) => json!({"Groups": {"groups": groups}}),
        ResourceKind::Sum(amount) => json!({"Sum": {"size": amount.0}}),
    };
    let items: Vec<Value> = resources
        .items
        .iter()
        .map(|item| json!({"name": item.name, "kind": kind(&item.kind)}))
        .collect();
    let weights: Vec<Value> = resources
        .coupling
        .iter()
        .map(|c| {
            json!({"resource1_idx": c.resource1, "group1_idx": c.group1,
                   "resource2_idx": c.resource2, "group2_idx": c.group2, "weight": c.weight})
        })
        .collect();
    json!({"resources": items, "coupling": {"weights": weights}})
}

/// Returns a description of a submit, without the ids of an array, see [`with_ranges`].
pub(crate) fn submit_json(spec: &SubmitSpec) -> Value {
    let task_desc = match &spec.body {
        SubmitBody::Graph(graph) => json!({"n_tasks": graph.tasks.len()}),
        SubmitBody::Array(array) => template_json(&array.template),
    };
    json!({
        "submit_dir": text(&spec.submit_dir),
        "stream_path": spec.stream_dir.as_deref().map(text),
        "task_desc": task_desc,
    })
}

/// What [`submit_json`] has in place of the ranges of ids. Texts in JSON do not contain it, because
/// their quotes are escaped.
const NO_RANGES: &str = "\"ranges\":[]";

/// Puts the ranges of ids into an event with [`submit_json`]. There may be hundreds of thousands,
/// of which each would need almost 1 KiB as a [`Value`].
pub(crate) fn with_ranges(event: &Value, ids: &IdArray) -> String {
    let mut text = event.to_string();
    let Some(at) = text.find(NO_RANGES) else {
        return text;
    };
    let rest = text.split_off(at + NO_RANGES.len() - 1);
    for (number, range) in ids.ranges().iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        // `count` is the width of the range, not the number of ids in it.
        let (start, count) = (range.first(), u64::from(range.last() - range.first()) + 1);
        let step = range.step();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{comma}{{\"count\":{count},\"start\":{start},\"step\":{step}}}"
        );
    }
    text + &rest
}

/// Returns the new or earlier values of a change of a job. Removed limits and requests are null.
pub(crate) fn change_json(change: &JobChange) -> Value {
    let tasks = &change.tasks;
    let rate = |rate: Option<Rate>| Value::from(rate.map(|rate| rate.to_string()));
    let time = |time: Duration| Value::from((!time.is_zero()).then(|| duration(time)));
    let resources = tasks.resources.iter().map(|entry| {
        let amount = (!entry.is_removed()).then(|| entry.to_string());
        (String::from(&*entry.resource), Value::from(amount))
    });
    let resources: Map<_, _> = resources.collect();
    let fields = [
        ("name", change.name.as_deref().map(Value::from)),
        ("max_running", change.max_running.map(Value::from)),
        ("max_rate", change.max_rate.map(rate)),
        ("priority", tasks.priority.map(Value::from)),
        ("time_limit", tasks.time_limit.map(time)),
        ("time_request", tasks.time_request.map(time)),
        ("crash_limit", tasks.crash_limit.map(crash_limit_json)),
        (
            "resources",
            (!resources.is_empty()).then_some(resources.into()),
        ),
    ];
    let fields = fields.into_iter();
    let fields = fields.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect())
}

fn crash_limit_json(limit: CrashLimit) -> Value {
    match limit {
        CrashLimit::NeverRestart => json!("NeverRestart"),
        CrashLimit::Unlimited => json!("Unlimited"),
        CrashLimit::Max(max) => json!({"MaxCrashes": max}),
    }
}

fn template_json(template: &TaskTemplate) -> Value {
    let crash_limit = crash_limit_json(template.crash_limit);
    let mut value = json!({
        "ids": {"ranges": []},
        "priority": template.priority,
        "time_limit": template.time_limit.map(duration),
        "crash_limit": crash_limit,
        "resources": requests_json(&template.requests),
    });
    // This is not part of HyperQueue's format, so it is only written if there are parameters.
    if let Some(params) = &template.params {
        let list = params.list().iter();
        value["params"] = list
            .map(|param| json!([param.name, param.describe()]))
            .collect();
    }
    value
}

fn requests_json(requests: &RequestVariants) -> Value {
    let variant = |request: &ResourceRequest| {
        let entries: Vec<Value> = request
            .entries
            .iter()
            .map(|entry| {
                let units = entry.amount.0;
                let policy = match entry.policy {
                    Policy::Compact => json!({"Compact": units}),
                    Policy::ForceCompact => json!({"ForceCompact": units}),
                    Policy::Tight => json!({"Tight": units}),
                    Policy::ForceTight => json!({"ForceTight": units}),
                    Policy::Scatter => json!({"Scatter": units}),
                    Policy::All => json!("All"),
                };
                json!({"resource": entry.resource, "policy": policy})
            })
            .collect();
        json!({
            "n_nodes": request.n_nodes,
            "min_time": duration(request.min_time),
            "weight": request.weight,
            "resources": entries,
        })
    };
    let variants: Vec<Value> = requests.as_slice().iter().map(variant).collect();
    json!({"variants": variants})
}

/// Returns the parameters of a queue as events contain them.
pub(crate) fn queue_params(params: &QueueParams) -> Value {
    let manager = match &*params.system.manager {
        "slurm" => "Slurm",
        "pbs" => "Pbs",
        _ => &params.system.name,
    };
    let amounts: Vec<_> = params
        .amounts
        .iter()
        .map(|(name, units)| json!({"name": name, "kind": amount_kind(name, *units)}))
        .collect();
    let resources =
        (!amounts.is_empty()).then(|| json!({"resources": amounts, "coupling": {"weights": []}}));
    json!({
        "additional_args": params.additional_args,
        "backlog": params.backlog,
        "cli_resource_descriptor": resources,
        "idle_timeout": {
            "secs": params.idle_timeout.as_secs(), "nanos": params.idle_timeout.subsec_nanos(),
        },
        "manager": manager,
        "max_worker_count": params.max_worker_count,
        "max_workers_per_alloc": params.max_workers_per_alloc,
        "min_utilization": params.min_utilization,
        "name": params.name,
        "timelimit": {
            "secs": params.time_limit.as_secs(), "nanos": params.time_limit.subsec_nanos(),
        },
        "worker_args": params.visible_args(),
        "worker_start_cmd": params.start_command,
        "worker_stop_cmd": params.stop_command,
        "worker_wrap_cmd": params.wrap_command,
    })
}

/// Returns an amount as a resource pool. Cpus always have indices. For other resources, only the
/// amount is known.
fn amount_kind(name: &str, units: u64) -> Value {
    let whole = units / UNITS_PER_WHOLE;
    if name == "cpus" && whole > 0 {
        return json!({"Range": {"start": 0, "end": whole - 1}});
    }
    json!({"Sum": {"size": units}})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hq_core::id::TaskId;
    use hq_core::limits::SUBMIT_RANGES_MAX;
    use hq_core::range::IdRange;
    use hq_core::template::GraphTask;
    use hq_core::testing::{array_submit, template};

    use super::*;

    #[test]
    fn the_widest_range_of_ids_has_a_width() {
        let range = IdRange::new(0, 858_993_460, 5).expect("it ends at the last id");
        assert_eq!(range.last(), u32::MAX);
        let mut spec = array_submit(1, template(&["true"]));
        spec.submit_dir = NO_RANGES.as_bytes().into();
        for (ranges, expected) in [
            (
                vec![range],
                json!([{"start": 0, "count": 4_294_967_296_u64, "step": 5}]),
            ),
            (
                vec![IdRange::single(3), IdRange::single(1)],
                json!([{"start": 3, "count": 1, "step": 1}, {"start": 1, "count": 1, "step": 1}]),
            ),
        ] {
            let ids = IdArray::new(ranges).expect("disjoint");
            let text = with_ranges(&submit_json(&spec), &ids);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["task_desc"]["ids"]["ranges"], expected);
            assert_eq!(value["submit_dir"], NO_RANGES);
        }
    }

    #[test]
    fn readers_accept_the_event_of_the_longest_list_of_ids() {
        let ranges = (0..).map(|i| IdRange::new(4_000_000_000 + i, 2, 200_000_000));
        let range = ranges.flatten().next().expect("it fits");
        let widest = IdArray::new(vec![range]).expect("one range");
        let event = submit_json(&array_submit(1, template(&["true"])));
        let length = |ids: &IdArray| with_ranges(&event, ids).len();
        let rest = length(&IdArray::default());
        let most = rest + SUBMIT_RANGES_MAX * (length(&widest) - rest + 1);
        let limit = usize::try_from(crate::query::VALUE_LEN_MAX).expect("positive");
        assert!(most + (1 << 20) <= limit, "{most}");
    }

    #[test]
    fn a_body_that_was_encoded_before_says_the_same() {
        let task = |id: u32| GraphTask {
            id: TaskId(id),
            template: id % 2,
            deps: (0..id).map(TaskId).collect(),
        };
        let graph = GraphSpec {
            templates: vec![
                Arc::new(template(&["true"])),
                Arc::new(template(&["false", "x"])),
            ],
            tasks: (0..5).map(task).collect(),
        };
        let ids = IdArray::consecutive(0, 5).expect("five ids");
        let name = || "a".into();
        let targets = [
            SubmitTarget::NewJob {
                name: name(),
                max_fails: Some(3),
            },
            SubmitTarget::SelfClosing {
                name: name(),
                max_fails: None,
                tasks_max: Some(9),
            },
            SubmitTarget::Attach(JobId(4)),
        ];
        for target in targets {
            let spec = SubmitSpec {
                target,
                stream_dir: Some(Box::from(*b"/s")),
                nonce: Some(7),
                notes: vec!["a note".into()],
                body: SubmitBody::Graph(graph.clone()),
                ..array_submit(1, template(&["true"]))
            };
            let read = |bytes: &[u8]| {
                let message = client::Submit::decode(bytes).expect("a submit");
                SubmitSpec::try_from(message).expect("valid")
            };
            let body = body_bytes(&spec.body);
            let (whole, _) = stored_spec(JobId(4), (&spec, None), &ids);
            let (parts, check) = stored_spec(JobId(4), (&spec, Some(&body)), &ids);
            assert_eq!(check, checksum(&parts));
            let (parts, whole) = (read(&parts), read(&whole));
            assert_eq!(parts, whole);
            assert_eq!(parts.body, spec.body);
        }
    }
}
