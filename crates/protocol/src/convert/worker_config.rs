//! A worker's description of itself.

use std::time::Duration;

use bytes::Bytes;
use hq_core::worker_config::{
    Allocation, BatchSystem, HEARTBEAT_MIN, MemoryLimits, OnServerLost, WorkerConfig,
};

use super::wire::{FromWire, ToWire, field, optional, received, same_enum, wire};
use super::{ConvertError, Within, duration, fraction, known, name, required};
use crate::common;

wire! {
    WorkerConfig = common::WorkerConfig {
        heartbeat = heartbeat_ns: heartbeat_pause,
        hostname: name,
        group,
        listen_address,
        work_dir,
        idle_timeout = idle_timeout_ns,
        time_limit = time_limit_ns,
        overview_interval = overview_interval_ns,
        retract_check_interval = retract_check_interval_ns,
        min_utilization: fraction,
        on_server_lost,
        takes_successors,
        takes_signals,
        memory_limits: known_limits,
        process_pid,
        allocation,
        return_digest: digest => digest_bytes,
        resources,
    }
}

wire! {
    Allocation = common::Allocation {
        manager,
        id: name,
        cluster: optional(name),
        time_limit = time_limit_ns,
    }
}

same_enum! { OnServerLost = common::OnServerLost { Stop FinishRunning Reconnect } }
same_enum! { MemoryLimits = common::MemoryLimits { Unknown Enforced Declared Off Impossible } }
same_enum! { BatchSystem = common::BatchSystem, or None { Pbs Slurm Other } }

impl FromWire<i32> for BatchSystem {
    fn from_wire(field: &str, found: i32) -> Result<Self, ConvertError> {
        required(known::<common::BatchSystem>(field, found)?.known(), field)
    }
}

fn heartbeat_pause(field: &str, found: u64) -> Result<Duration, ConvertError> {
    let heartbeat = duration(found);
    if heartbeat < HEARTBEAT_MIN {
        let found = format!("{heartbeat:?}");
        return Err(ConvertError::invalid(field, "at least 150 ms", found));
    }
    Ok(heartbeat)
}

/// Takes what a later release says as unknown.
fn known_limits(_: &str, found: i32) -> Result<MemoryLimits, ConvertError> {
    Ok(common::MemoryLimits::try_from(found)
        .unwrap_or_default()
        .into())
}

fn digest(field: &str, found: Bytes) -> Result<Option<[u8; 32]>, ConvertError> {
    if found.is_empty() {
        return Ok(None);
    }
    let digest = found[..].try_into();
    let refuse = |_| ConvertError::invalid(field, "32 bytes or none", found.len());
    digest.map(Some).map_err(refuse)
}

fn digest_bytes(digest: &Option<[u8; 32]>) -> Bytes {
    digest.map_or_else(Bytes::new, |digest| digest.to_vec().into())
}
