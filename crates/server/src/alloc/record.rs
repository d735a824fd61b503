//! The stored form of a queue, as bytes, and its events in the journal.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::autoalloc::{AllocationRecord, AllocationState, QueueRecord, QueueSpec};
use hq_core::batch::QueueParams;
use hq_core::id::{AllocationKey, QueueId};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::descriptor::ResourceDescriptor;
use hq_core::time::Timestamp;
use hq_protocol::client::{self, alloc_allocation::State};
use hq_protocol::{ConvertError, Message as _};
use serde_json::json;

use super::dirs::Dirs;
use super::script;

/// The maximum number of ended allocations that are stored. Their directories may still exist.
const ENDED_STORED_MAX: usize = 20;

/// The part of a queue that the core does not need.
pub(super) struct QueueShell {
    pub(super) params: Arc<QueueParams>,
    /// The resources that the queue's last worker offered.
    pub(super) known: Option<ResourceDescriptor>,
}

/// Returns the core's part of a queue with these parameters.
pub(super) fn spec(params: &QueueParams) -> QueueSpec {
    QueueSpec {
        backlog: params.backlog,
        max_workers_per_alloc: params.max_workers_per_alloc,
        max_worker_count: params.max_worker_count,
        time_limit: params.time_limit,
        worker_time_limit: params.worker_time_limit.unwrap_or(params.time_limit),
        min_utilization: params.min_utilization,
        resources: params.amounts.clone(),
        keep_waiting: params.keep_waiting,
    }
}

/// Encodes everything about a queue.
pub(super) fn encode(record: &QueueRecord, shell: &QueueShell, dirs: &Dirs) -> Vec<u8> {
    let is_alive = |a: &&AllocationRecord| {
        a.is_leaving || matches!(a.state, AllocationState::Queued | AllocationState::Running)
    };
    let ended = record.allocations.iter().filter(|a| !is_alive(a)).count();
    let mut surplus = ended.saturating_sub(ENDED_STORED_MAX);
    let mut allocations = Vec::new();
    for allocation in &record.allocations {
        if surplus > 0 && !is_alive(&allocation) {
            surplus -= 1;
            continue;
        }
        allocations.push(stored(allocation, dirs));
    }
    let message = client::AllocQueueRecord {
        id: record.id.as_u32(),
        spec: Some((&*shell.params).into()),
        paused: record.paused.as_deref().map(str::to_owned),
        known_resources: shell.known.as_ref().map(Into::into),
        last_number: record.last_number,
        allocations,
        failure: record.failure.as_ref().map(|failure| client::AllocFailure {
            since_unix_ns: failure.since.0,
            last: failure.last.to_string(),
        }),
        is_removed: record.is_removed,
    };
    message.encode_to_vec()
}

fn stored(allocation: &AllocationRecord, dirs: &Dirs) -> client::AllocStored {
    let dir = dirs.get(allocation.key).unwrap_or("".as_ref());
    client::AllocStored {
        number: allocation.key.number,
        job: allocation.job.as_deref().map(str::to_owned),
        state: State::from(allocation.state).into(),
        work_dir: dir.as_os_str().as_bytes().to_vec().into(),
        workers: allocation.workers,
        queued_unix_ns: allocation.queued_at.0,
        started_unix_ns: allocation.started_at.map(|at| at.0),
        ended_unix_ns: allocation.ended_at.map(|at| at.0),
        is_leaving: allocation.is_leaving,
        reason: allocation.reason.to_string(),
    }
}

/// A restored queue.
pub(super) struct Restored {
    pub(super) record: QueueRecord,
    pub(super) shell: QueueShell,
    pub(super) dirs: Vec<(AllocationKey, PathBuf)>,
}

/// The reason why a stored queue cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("it is damaged")]
    Damaged,
    #[error(transparent)]
    Invalid(#[from] ConvertError),
}

/// Decodes the bytes that [`encode`] returned.
pub(super) fn decode(bytes: &[u8]) -> Result<Restored, RecordError> {
    let message = client::AllocQueueRecord::decode(bytes).map_err(|_| RecordError::Damaged)?;
    let params: QueueParams = message.spec.ok_or(RecordError::Damaged)?.try_into()?;
    let known: Option<ResourceDescriptor> =
        message.known_resources.map(TryInto::try_into).transpose()?;
    let id = QueueId(message.id);
    let mut allocations = Vec::new();
    let mut dirs = Vec::new();
    for stored in message.allocations {
        let state = stored.state();
        let key = AllocationKey {
            queue: id,
            number: stored.number,
        };
        let dir = std::ffi::OsString::from_vec(stored.work_dir.to_vec());
        dirs.push((key, PathBuf::from(dir)));
        allocations.push(AllocationRecord {
            key,
            workers: stored.workers,
            job: stored.job.map(Into::into),
            state: state.into(),
            reason: stored.reason.into(),
            queued_at: Timestamp(stored.queued_unix_ns),
            started_at: stored.started_unix_ns.map(Timestamp),
            ended_at: stored.ended_unix_ns.map(Timestamp),
            is_leaving: stored.is_leaving,
        });
    }
    let units = |known: &ResourceDescriptor| {
        let items = known.items.iter();
        items
            .map(|item| (item.name.clone(), item.kind.total().0))
            .collect()
    };
    Ok(Restored {
        record: QueueRecord {
            id,
            spec: spec(&params),
            paused: message.paused.map(Into::into),
            known_resources: known.as_ref().map(units),
            last_number: message.last_number,
            allocations,
            failure: None,
            is_removed: message.is_removed,
        },
        shell: QueueShell {
            params: Arc::new(params),
            known,
        },
        dirs,
    })
}

/// Returns an amount as a resource pool. Cpus always have indices. For other resources, only the
/// amount is known.
fn kind_json(name: &str, units: u64) -> serde_json::Value {
    let whole = units / UNITS_PER_WHOLE;
    if name == "cpus" && whole > 0 {
        return json!({"Range": {"start": 0, "end": whole - 1}});
    }
    json!({"Sum": {"size": units}})
}

/// Returns the parameters in the form used in the journal.
pub(super) fn params_json(params: &QueueParams) -> String {
    let manager = match &*params.system.manager {
        "slurm" => "Slurm",
        "pbs" => "Pbs",
        _ => &params.system.name,
    };
    let amounts: Vec<_> = params
        .amounts
        .iter()
        .map(|(name, units)| json!({"name": name, "kind": kind_json(name, *units)}))
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
        "worker_args": script::worker_args(params),
        "worker_start_cmd": params.start_command,
        "worker_stop_cmd": params.stop_command,
        "worker_wrap_cmd": params.wrap_command,
    })
    .to_string()
}
