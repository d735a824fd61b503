//! A worker's description of itself.

use hq_core::time::nanos;
use hq_core::worker_config::{
    Allocation, BatchSystem, HEARTBEAT_MIN, MemoryLimits, OnServerLost, WorkerConfig,
};

use super::{ConvertError, Within, duration, known, name, required, text};
use crate::common;

impl TryFrom<common::WorkerConfig> for WorkerConfig {
    type Error = ConvertError;

    fn try_from(message: common::WorkerConfig) -> Result<Self, ConvertError> {
        let heartbeat = duration(message.heartbeat_ns);
        if heartbeat < HEARTBEAT_MIN {
            let found = format!("{heartbeat:?}");
            return Err(ConvertError::invalid(
                "heartbeat_ns",
                "at least 150 ms",
                found,
            ));
        }
        // This also rejects NaN.
        if !(0.0..=1.0).contains(&message.min_utilization) {
            let found = message.min_utilization;
            return Err(ConvertError::invalid(
                "min_utilization",
                "0.0 to 1.0",
                found,
            ));
        }
        let memory_limits = message.memory_limits().into();
        let allocation: Option<Allocation> = message
            .allocation
            .map(TryInto::try_into)
            .transpose()
            .within("allocation")?;
        let on_server_lost: common::OnServerLost = known("on_server_lost", message.on_server_lost)?;
        Ok(Self {
            hostname: name("hostname", message.hostname)?,
            group: text("group", message.group)?,
            listen_address: text("listen_address", message.listen_address)?,
            work_dir: text("work_dir", message.work_dir)?,
            heartbeat,
            idle_timeout: message.idle_timeout_ns.map(duration),
            time_limit: message.time_limit_ns.map(duration),
            overview_interval: message.overview_interval_ns.map(duration),
            retract_check_interval: duration(message.retract_check_interval_ns),
            min_utilization: message.min_utilization,
            on_server_lost: on_server_lost.into(),
            takes_successors: message.takes_successors,
            memory_limits,
            process_pid: message.process_pid,
            allocation,
            return_digest: match message.return_digest.len() {
                0 => None,
                found => Some(message.return_digest[..].try_into().map_err(|_| {
                    ConvertError::invalid("return_digest", "32 bytes or none", found)
                })?),
            },
            resources: required(message.resources, "resources")?
                .try_into()
                .within("resources")?,
        })
    }
}

impl From<&WorkerConfig> for common::WorkerConfig {
    fn from(config: &WorkerConfig) -> Self {
        Self {
            hostname: config.hostname.to_string(),
            group: config.group.to_string(),
            listen_address: config.listen_address.to_string(),
            work_dir: config.work_dir.to_string(),
            heartbeat_ns: nanos(config.heartbeat),
            idle_timeout_ns: config.idle_timeout.map(nanos),
            time_limit_ns: config.time_limit.map(nanos),
            overview_interval_ns: config.overview_interval.map(nanos),
            retract_check_interval_ns: nanos(config.retract_check_interval),
            min_utilization: config.min_utilization,
            on_server_lost: common::OnServerLost::from(config.on_server_lost).into(),
            takes_successors: config.takes_successors,
            memory_limits: common::MemoryLimits::from(config.memory_limits).into(),
            process_pid: config.process_pid,
            allocation: config.allocation.as_ref().map(Into::into),
            return_digest: config
                .return_digest
                .map_or_else(Default::default, |digest| digest.to_vec().into()),
            resources: Some((&config.resources).into()),
        }
    }
}

impl From<common::OnServerLost> for OnServerLost {
    fn from(value: common::OnServerLost) -> Self {
        match value {
            common::OnServerLost::Stop => Self::Stop,
            common::OnServerLost::FinishRunning => Self::FinishRunning,
            common::OnServerLost::Reconnect => Self::Reconnect,
        }
    }
}

impl From<OnServerLost> for common::OnServerLost {
    fn from(value: OnServerLost) -> Self {
        match value {
            OnServerLost::Stop => Self::Stop,
            OnServerLost::FinishRunning => Self::FinishRunning,
            OnServerLost::Reconnect => Self::Reconnect,
        }
    }
}

impl From<common::MemoryLimits> for MemoryLimits {
    fn from(value: common::MemoryLimits) -> Self {
        match value {
            common::MemoryLimits::Unknown => Self::Unknown,
            common::MemoryLimits::Enforced => Self::Enforced,
            common::MemoryLimits::Declared => Self::Declared,
            common::MemoryLimits::Off => Self::Off,
            common::MemoryLimits::Impossible => Self::Impossible,
        }
    }
}

impl From<MemoryLimits> for common::MemoryLimits {
    fn from(value: MemoryLimits) -> Self {
        match value {
            MemoryLimits::Unknown => Self::Unknown,
            MemoryLimits::Enforced => Self::Enforced,
            MemoryLimits::Declared => Self::Declared,
            MemoryLimits::Off => Self::Off,
            MemoryLimits::Impossible => Self::Impossible,
        }
    }
}

impl TryFrom<common::Allocation> for Allocation {
    type Error = ConvertError;

    fn try_from(message: common::Allocation) -> Result<Self, ConvertError> {
        let manager = match known("manager", message.manager)? {
            common::BatchSystem::Pbs => BatchSystem::Pbs,
            common::BatchSystem::Slurm => BatchSystem::Slurm,
            common::BatchSystem::Other => BatchSystem::Other,
            common::BatchSystem::None => return Err(ConvertError::missing("manager")),
        };
        Ok(Self {
            manager,
            id: name("id", message.id)?,
            cluster: message
                .cluster
                .map(|text| name("cluster", text))
                .transpose()?,
            time_limit: message.time_limit_ns.map(duration),
        })
    }
}

impl From<&Allocation> for common::Allocation {
    fn from(allocation: &Allocation) -> Self {
        let manager = match allocation.manager {
            BatchSystem::Pbs => common::BatchSystem::Pbs,
            BatchSystem::Slurm => common::BatchSystem::Slurm,
            BatchSystem::Other => common::BatchSystem::Other,
        };
        Self {
            manager: manager.into(),
            id: allocation.id.to_string(),
            cluster: allocation.cluster.as_deref().map(str::to_owned),
            time_limit_ns: allocation.time_limit.map(nanos),
        }
    }
}
