//! What a worker reports about itself when it registers; validated, shown to users as it is.

use std::time::Duration;

use crate::resource::descriptor::ResourceDescriptor;

/// Shortest heartbeat period that is accepted.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(150);

/// What a worker does when it loses its server.
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
    /// One that only its description in a file knows.
    Other,
}

/// The batch job in which a worker runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Which batch system.
    pub manager: BatchSystem,
    /// Its job id.
    pub id: Box<str>,
    /// Lifetime that was left when the worker started.
    pub time_limit: Option<Duration>,
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
    /// How often queued tasks whose time request no longer fits are given back.
    pub retract_check_interval: Duration,
    /// Least share of its cpus that must be busy, 0.0 to 1.0.
    pub min_utilization: f32,
    /// What happens without a server.
    pub on_server_lost: OnServerLost,
    /// Process id a person would signal.
    pub process_pid: u32,
    /// Surrounding batch job.
    pub allocation: Option<Allocation>,
    /// What it offers.
    pub resources: ResourceDescriptor,
}

impl WorkerConfig {
    /// After this long without a sign of life it is lost: everything that waits for a worker derives from it.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        // Two periods: one heartbeat may be late or lost without anybody being at fault.
        self.heartbeat * 2
    }
}
