//! A worker's description of itself at registration; validated, and shown to users unchanged.

use std::time::Duration;

use crate::resource::descriptor::ResourceDescriptor;

/// Shortest heartbeat period that is accepted.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(150);

/// Heartbeat periods without a sign of life after which a worker is lost. Two: a single heartbeat
/// may be late or lost without any fault, and no task of a lost worker restarts elsewhere before.
///
/// `docs/architecture.md`, "Where a change begins", lists what depends on this.
pub const SILENT_PERIODS_MAX: u32 = 2;

/// Heartbeats without any message from the server after which a worker gives its connection up and
/// reconnects.
///
/// One more than the server waits for, so that the server gives up first. The server knows when it
/// was itself suspended, and then extends all deadlines; workers see only silence, and would all
/// drop working connections whenever the server is busy. The price: if only its connection is dead,
/// a worker reconnects too late, as a new one.
pub const UNANSWERED_HEARTBEATS_MAX: u32 = SILENT_PERIODS_MAX + 1;

/// Behaviour of a worker that loses its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnServerLost {
    /// Ends its tasks and itself.
    Stop,
    /// Lets running tasks end, then ends itself.
    FinishRunning,
    /// Goes on and re-attaches when the server is back.
    Reconnect,
}

/// Batch system that gave us the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchSystem {
    /// PBS Professional, OpenPBS.
    Pbs,
    /// Slurm.
    Slurm,
    /// A batch system known only by its description file.
    Other,
}

/// The batch job that a worker runs in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The batch system.
    pub manager: BatchSystem,
    /// Job id.
    pub id: Box<str>,
    /// Name of the cluster, if the batch system has several: job ids are unique per cluster only.
    pub cluster: Option<Box<str>>,
    /// Lifetime that was left when the worker started.
    pub time_limit: Option<Duration>,
}

/// Whether a worker enforces the `mem` requests of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryLimits {
    /// Workers of earlier releases do not report it.
    #[default]
    Unknown,
    /// Tasks that use more are ended.
    Enforced,
    /// No: its `mem` was declared by hand, and may mean anything.
    Declared,
    /// No: `--enforce-memory=no`.
    Off,
    /// No: neither control groups nor the memory watch work there.
    Impossible,
}

impl MemoryLimits {
    /// Why the worker does not enforce them, as a clause about it; `None` if it does, or does not
    /// report it.
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

/// Configuration of one worker.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerConfig {
    /// Name of the node.
    pub hostname: Box<str>,
    /// Group for multi-node tasks.
    pub group: Box<str>,
    /// `host:port` at which the worker itself listens.
    pub listen_address: Box<str>,
    /// Directory for its own files and task directories.
    pub work_dir: Box<str>,
    /// Heartbeat period, at least [`HEARTBEAT_MIN`].
    pub heartbeat: Duration,
    /// Ends after being idle this long; `None` = the server's default.
    pub idle_timeout: Option<Duration>,
    /// Ends after this time; `None` = never.
    pub time_limit: Option<Duration>,
    /// Period of hardware reports; `None` = off.
    pub overview_interval: Option<Duration>,
    /// Interval at which queued tasks are returned whose time request no longer fits.
    pub retract_check_interval: Duration,
    /// Lower bound of the share of its cpus that must be busy, 0.0 to 1.0.
    pub min_utilization: f32,
    /// Behaviour without a server.
    pub on_server_lost: OnServerLost,
    /// Whether it accepts successors of its tasks; earlier releases do not.
    pub takes_successors: bool,
    /// Whether it enforces the `mem` requests of tasks.
    pub memory_limits: MemoryLimits,
    /// Process id a person would signal.
    pub process_pid: u32,
    /// Surrounding batch job.
    pub allocation: Option<Allocation>,
    /// Hash of the secret that proves its identity on reconnect. The hash is not secret. Workers of
    /// earlier releases have none.
    pub return_digest: Option<[u8; 32]>,
    /// Resources.
    pub resources: ResourceDescriptor,
}

impl WorkerConfig {
    /// The silence limit: after this long without a sign of life it is lost.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        self.heartbeat * SILENT_PERIODS_MAX
    }
}
