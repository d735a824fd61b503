//! The public front of the engine: requests in, events out.

use std::sync::Arc;
use std::time::Duration;

use crate::error::LauncherError;
use crate::event::{Event, Token};
use crate::plan::SpawnPlan;

/// How processes are created and waited for. See the crate documentation for the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// `clone` with shared memory, `CLONE_VFORK` and `CLONE_PIDFD`; waits on the pidfd.
    ClonePidfd,
    /// `posix_spawn` and `pidfd_open`.
    PosixSpawnPidfd,
    /// `posix_spawn`; every spawner thread waits for its own children.
    PosixSpawnWait,
    /// `fork` and `execve`.
    Fork,
}

/// Which thread creates processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Dedicated threads that live as long as the launcher. The default.
    #[default]
    Pool,
    /// One dedicated thread.
    Single,
}

/// Called when the event queue turns non-empty; must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// How a launcher works.
#[derive(Clone)]
pub struct LauncherConfig {
    /// Spawner threads of the pool; 0 chooses by the number of CPUs.
    pub threads: usize,
    /// Which thread creates processes.
    pub strategy: Strategy,
    /// A backend to use instead of the best one; the environment variable `HQ_SPAWN_BACKEND` comes first.
    pub backend: Option<Backend>,
    /// How long a transient failure is tried again before it is reported.
    pub transient_limit: Duration,
    /// How long `Started` events may wait for company before the consumer is woken.
    pub event_delay: Duration,
    /// Called when the event queue turns non-empty.
    pub wake: Wake,
}

impl LauncherConfig {
    /// The default configuration with this wake-up call.
    #[must_use]
    pub fn new(wake: Wake) -> Self {
        Self {
            threads: 0,
            strategy: Strategy::Pool,
            backend: None,
            transient_limit: Duration::from_secs(10),
            event_delay: Duration::from_millis(5),
            wake,
        }
    }
}

/// How to end a child: a signal, some time, then SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Termination {
    /// The first signal, sent to the child's process group.
    pub signal: i32,
    /// How long it may take before everything that belongs to the child gets SIGKILL.
    pub grace: Duration,
}

impl Termination {
    /// SIGKILL at once.
    pub const KILL: Self = Self {
        signal: libc::SIGKILL,
        grace: Duration::ZERO,
    };
}

/// Spawns, watches and ends child processes.
pub struct Launcher;

impl Launcher {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// A descriptor or thread that cannot be created, or a forced backend that does not work here.
    pub fn start(_config: LauncherConfig) -> Result<Self, LauncherError> {
        Ok(Self)
    }

    /// The backend in use.
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend::ClonePidfd
    }

    /// Queues a child. Never blocks on the operating system.
    pub fn spawn(&self, _token: Token, _plan: SpawnPlan) {}

    /// Queues many children with one lock and one wake-up.
    pub fn spawn_batch(&self, _plans: impl IntoIterator<Item = (Token, SpawnPlan)>) {}

    /// Ends a child. Unknown tokens are ignored; a queued one fails as cancelled.
    pub fn terminate(&self, _token: Token, _how: Termination) {}

    /// Ends all children at once with SIGKILL, their groups and descendants; queued ones fail as cancelled.
    pub fn kill_all(&self) {}

    /// Moves all waiting events to `into`.
    pub fn drain_events(&self, _into: &mut Vec<Event>) {}

    /// Kills what is left and joins the threads.
    pub fn shutdown(self) {}
}
