//! A worker's description of itself at registration. It is validated, and shown to users unchanged.

use std::time::Duration;

use crate::resource::descriptor::ResourceDescriptor;

/// The shortest accepted heartbeat period.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(150);

/// The number of heartbeat periods without a sign of life after which a worker is lost. It is two,
/// because a single heartbeat may be late or lost without any fault, and no task of a lost worker
/// restarts elsewhere before then.
///
/// `docs/architecture.md`, "Where a change begins", lists the parts that depend on this.
pub const SILENT_PERIODS_MAX: u32 = 2;

/// The number of heartbeats without any message from the server after which a worker gives up its
/// connection and reconnects.
///
/// The worker waits for one more than the server does, so that the server gives up first. The
/// server notices when it was suspended itself, and then extends all deadlines. Workers notice only
/// silence, and would all drop working connections whenever the server is busy. The disadvantage is
/// that if only its connection is dead, a worker reconnects too late, and is treated as a new one.
pub const UNANSWERED_HEARTBEATS_MAX: u32 = SILENT_PERIODS_MAX + 1;

/// The behavior of a worker that loses its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnServerLost {
    /// The worker ends its tasks and then itself.
    Stop,
    /// The worker lets running tasks end, and then ends itself.
    FinishRunning,
    /// The worker continues, and reconnects when the server is back.
    Reconnect,
}

/// The batch system that provided the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchSystem {
    /// PBS Professional or OpenPBS.
    Pbs,
    /// Slurm.
    Slurm,
    /// A batch system known only by its description file.
    Other,
}

/// The batch job where a worker runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The batch system.
    pub manager: BatchSystem,
    /// The id of the job.
    pub id: Box<str>,
    /// The name of the cluster, if the batch system has several. Job ids are unique only within a
    /// cluster.
    pub cluster: Option<Box<str>>,
    /// The lifetime that was left when the worker started.
    pub time_limit: Option<Duration>,
}

impl Allocation {
    /// Returns the id of the job with its cluster; see [`crate::batch::job_parts`].
    #[must_use]
    pub fn job(&self) -> Box<str> {
        match &self.cluster {
            Some(cluster) => format!("{};{cluster}", self.id).into(),
            None => self.id.clone(),
        }
    }
}

/// Whether a worker enforces the `mem` requests of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryLimits {
    /// Unknown, because workers of earlier releases do not report it.
    #[default]
    Unknown,
    /// Tasks that use more than they requested are ended.
    Enforced,
    /// Limits are not enforced: the worker's `mem` was declared by hand, and may mean anything.
    Declared,
    /// Limits are not enforced because of `--enforce-memory=no`.
    Off,
    /// Limits are not enforced, because neither control groups nor the memory watch work there.
    Impossible,
}

impl MemoryLimits {
    /// Returns why the worker does not enforce limits, as a clause. `None` if it enforces them, or
    /// does not report it.
    #[must_use]
    pub const fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Unknown | Self::Enforced => None,
            Self::Declared => Some(
                "its `mem` was declared by hand and can be any quantity; start it with `--enforce-memory` if it is MiB, \
                 with `--enforce-memory=no` if it is not",
            ),
            Self::Off => Some("it was started with `--enforce-memory=no`"),
            Self::Impossible => Some(
                "it has no control group for tasks and cannot watch processes in /proc; its log says why",
            ),
        }
    }
}

/// The configuration of a worker.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerConfig {
    /// The name of the node.
    pub hostname: Box<str>,
    /// The group for multi-node tasks.
    pub group: Box<str>,
    /// The `host:port` at which the worker itself listens.
    pub listen_address: Box<str>,
    /// The directory for the worker's files and task directories.
    pub work_dir: Box<str>,
    /// The heartbeat period, at least [`HEARTBEAT_MIN`].
    pub heartbeat: Duration,
    /// How long the worker may be idle before it ends. `None` means the server's default.
    pub idle_timeout: Option<Duration>,
    /// How long the worker lives. `None` means no limit.
    pub time_limit: Option<Duration>,
    /// The period of hardware reports. `None` means that there are none.
    pub overview_interval: Option<Duration>,
    /// The interval at which queued tasks are returned whose time request no longer fits.
    pub retract_check_interval: Duration,
    /// The minimum share of its cpus that must be busy, 0.0 to 1.0.
    pub min_utilization: f32,
    /// The behavior without a server.
    pub on_server_lost: OnServerLost,
    /// Whether the worker accepts successors of its tasks. Workers of earlier releases do not.
    pub takes_successors: bool,
    /// Whether the worker can send signals to its tasks and change their time limits. Workers of
    /// earlier releases cannot.
    pub takes_signals: bool,
    /// Whether the worker enforces the `mem` requests of tasks.
    pub memory_limits: MemoryLimits,
    /// The process id that a user would send a signal to.
    pub process_pid: u32,
    /// The batch job where the worker runs.
    pub allocation: Option<Allocation>,
    /// The hash of the secret that proves the worker's identity when it reconnects. The hash is not
    /// secret. Workers of earlier releases have none.
    pub return_digest: Option<[u8; 32]>,
    /// The resources.
    pub resources: ResourceDescriptor,
}

impl WorkerConfig {
    /// Returns the silence limit: how long the worker may give no sign of life before it is lost.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        self.heartbeat * SILENT_PERIODS_MAX
    }
}
