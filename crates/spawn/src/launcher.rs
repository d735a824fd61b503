//! The public interface of the engine: requests in, events out.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::LauncherError;
use crate::event::{Event, Token};
use crate::event_queue::{EventQueue, Wake};
use crate::keeper::{Hung, unreachable_descendants};
use crate::label::Labels;
use crate::lanes::Lane;
use crate::live::{Running, Termination};
use crate::mechanism::Backend;
use crate::plan::SpawnPlan;
use crate::pool::{Pool, Threads};
use crate::prepare::Common;
use crate::probe::{self, Features};
use crate::procfs::Process;
use crate::raw::KernelRlimit;
use crate::reaper::{self, ReapMechanism, Watch};
use crate::signal;
use crate::spawner;
use crate::sys;

/// Prepares this process for its children. A program should call this first of all: before it
/// starts any process, even with [`std::process`], and before it opens any file.
///
/// Ended children remain until they are reaped, even if the program's parent made it ignore
/// SIGCHLD; their exit statuses would be lost otherwise. `/dev/null` gets a low descriptor number.
/// A child copies its parent's descriptors up to the highest one that it needs, so a low number
/// saves time. The descriptor stays open for the life of the process and must not be closed.
///
/// # Errors
///
/// If the disposition of SIGCHLD cannot be set, which no kernel rejects, or if `/dev/null` cannot
/// be opened.
pub fn prepare_process() -> io::Result<()> {
    signal::keep_zombies()?;
    sys::null().map(drop)
}

/// Selects the threads that create processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Dedicated threads that live as long as the launcher. This is the default.
    #[default]
    Pool,
    /// One dedicated thread.
    Single,
    /// Threads of tokio's blocking pool, used while there are requests.
    ///
    /// Needs the feature `tokio` and a tokio runtime around [`Launcher::start`]. The
    /// blocking pool ends idle threads, and the kernel sends parent-death signals when the creating
    /// *thread* ends. The parent-death signals of plans are therefore ignored.
    SpawnBlocking,
}

impl Strategy {
    /// The name used in logs and benchmarks.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Single => "single",
            Self::SpawnBlocking => "spawn-blocking",
        }
    }

    #[cfg(feature = "tokio")]
    fn threads(self) -> Result<Threads, LauncherError> {
        if self != Self::SpawnBlocking {
            return Ok(Threads::Dedicated);
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            LauncherError::StrategyUnavailable {
                strategy: self.name(),
                reason: "it needs a tokio runtime around the launcher's start",
            }
        })?;
        Ok(Threads::Borrowed(Box::new(move |work| {
            // The join handle is not needed, because the launcher's queue reports when the work is
            // done.
            drop(runtime.spawn_blocking(work));
        })))
    }

    #[cfg(not(feature = "tokio"))]
    fn threads(self) -> Result<Threads, LauncherError> {
        match self {
            Self::Pool | Self::Single => Ok(Threads::Dedicated),
            Self::SpawnBlocking => Err(LauncherError::StrategyUnavailable {
                strategy: self.name(),
                reason: "this build has no tokio feature",
            }),
        }
    }
}

/// The configuration of a launcher.
#[derive(Clone)]
pub struct LauncherConfig {
    /// The number of spawner threads in the pool. 0 derives it from the number of CPUs.
    pub threads: usize,
    /// The threads that create processes.
    pub strategy: Strategy,
    /// The backend to use instead of the best one. The environment variable `HQ_SPAWN_BACKEND`
    /// takes precedence.
    pub backend: Option<Backend>,
    /// How long a transient failure is retried before it is reported.
    pub transient_limit: Duration,
    /// How long events that are not urgent (starts, and exits in a lane with more requests) may
    /// wait for more events before the consumer is woken. The delay is halved in a stream of
    /// events. Zero disables it. Default: 10 ms.
    pub event_delay: Duration,
    /// Whether to raise this process's soft limit on open descriptors to the hard limit, which is
    /// useful for many live children. Children still start with the previous limit. Default: no.
    pub raise_descriptor_limit: bool,
    /// How long a child can exist after SIGKILL before it is reported as [`Event::Unkillable`].
    /// Default: 10 s, which is longer than it takes to end a process with terabytes of memory.
    pub unkillable_after: Duration,
    /// Whether to find orphans of tasks in the kernel's list of children, if available, instead of
    /// scanning all processes from time to time. Default: yes.
    pub list_children: bool,
    /// Called when the event queue becomes non-empty.
    pub wake: Wake,
}

impl LauncherConfig {
    /// Creates the default configuration with this wake-up callback.
    #[must_use]
    pub fn new(wake: Wake) -> Self {
        Self {
            threads: 0,
            strategy: Strategy::Pool,
            backend: None,
            transient_limit: Duration::from_secs(10),
            event_delay: Duration::from_millis(10),
            raise_descriptor_limit: false,
            unkillable_after: Duration::from_secs(10),
            list_children: true,
            wake,
        }
    }

    fn thread_count(&self) -> usize {
        /// The maximum number of threads chosen automatically. A spawn keeps a CPU busy in the
        /// kernel most of the time. More threads than CPUs would only wait for a CPU, and more than
        /// a few threads contend for the same kernel locks.
        const AUTOMATIC_MAX: usize = 8;
        match (self.strategy, self.threads) {
            (Strategy::Single, _) => 1,
            (Strategy::Pool | Strategy::SpawnBlocking, 0) => std::thread::available_parallelism()
                .map_or(2, usize::from)
                .clamp(2, AUTOMATIC_MAX),
            (Strategy::Pool | Strategy::SpawnBlocking, threads) => threads,
        }
    }

    fn choose_backend(&self, features: Features) -> Result<Backend, LauncherError> {
        let by_variable = match std::env::var_os(BACKEND_VARIABLE) {
            None => None,
            Some(name) if name.is_empty() => None,
            Some(name) => {
                let name = name.to_string_lossy();
                Some(
                    Backend::from_name(&name).ok_or_else(|| LauncherError::UnknownBackend {
                        found: name.clone().into_owned(),
                        expected: "clone-pidfd, posix-spawn-wait, fork",
                    })?,
                )
            }
        };
        let backend = match by_variable.or(self.backend) {
            None => features.best(),
            Some(forced) => {
                features.check(forced)?;
                forced
            }
        };
        tracing::info!(backend = backend.name(), ?features, "spawn backend");
        Ok(backend)
    }
}

/// The environment variable that selects a backend by name.
const BACKEND_VARIABLE: &str = "HQ_SPAWN_BACKEND";

/// How long dropping a launcher waits for its killed children. A process in uninterruptible sleep
/// (because a file server does not respond) cannot be killed.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// The interval between checks whether all remaining children are in such a state. A check reads
/// all of `/proc`.
const HUNG_LOOK: Duration = Duration::from_millis(50);

/// Spawns, watches and ends child processes.
///
/// All methods take `&self` and may be called from any thread. Dropping it kills the remaining
/// children.
pub struct Launcher {
    pool: Arc<Pool>,
    watch: Arc<Watch>,
    backend: Backend,
    reaper: Option<JoinHandle<()>>,
}

impl Launcher {
    /// Starts the threads.
    ///
    /// If this process ignores SIGCHLD, this is undone, because the kernel would discard exit
    /// statuses. Before Linux 5.9, inherited descriptors from 3 up are marked close-on-exec.
    ///
    /// # Errors
    ///
    /// If a descriptor or thread cannot be created, or if the requested backend does not work on
    /// this machine.
    pub fn start(config: LauncherConfig) -> Result<Self, LauncherError> {
        let os = |step| move |source| LauncherError::Os { step, source };
        let features = probe::features();
        let backend = config.choose_backend(features)?;
        signal::keep_zombies().map_err(os("keep ended children until they are reaped"))?;
        if !features.close_range {
            // Without `close_range`, the child cannot close the descriptors. Descriptors that this
            // process opens later are close-on-exec anyway.
            sys::close_all_on_exec().map_err(os("keep open descriptors from children"))?;
        }
        let null = sys::null().map_err(os("open /dev/null"))?;
        let descriptor_limit = if config.raise_descriptor_limit {
            sys::raise_descriptor_limit().map_err(os("raise the limit of open descriptors"))?
        } else {
            None
        };
        let own = sys::getpid();
        let began = Process::read(own).map_or(0, |process| process.began);
        let common = Common {
            parent: own,
            labels: Labels::new(own, began),
            null,
            close_range: features.close_range,
            descriptor_limit: descriptor_limit.map(|(soft, hard)| KernelRlimit { soft, hard }),
            death_signal: config.strategy != Strategy::SpawnBlocking,
        };
        let threads = (config.thread_count(), config.strategy.threads()?);
        let events = EventQueue::new(config.wake, config.event_delay)
            .map_err(os("create the event timer"))?;
        let means = ReapMechanism {
            wait_pidfd: features.wait_pidfd,
            names_at_once: backend == Backend::ClonePidfd,
            list_children: config.list_children,
        };
        let watch = Watch::new(events, means, config.unkillable_after);
        let watch = Arc::new(watch.map_err(os("create the reaper"))?);
        let pool = Arc::new(Pool::new(
            Arc::clone(&watch),
            common,
            backend,
            threads,
            config.transient_limit,
            spawner::work,
        ));
        let mut launcher = Self {
            pool,
            watch,
            backend,
            reaper: None,
        };
        let [finishing, looking] = [&launcher.pool, &launcher.pool].map(Arc::clone);
        let finish = move |ended: &mut Vec<Running>| {
            finishing.finish(ended, false);
        };
        let reaper = reaper::start(&launcher.watch, finish, move |now| looking.find_stalls(now));
        launcher.reaper = Some(reaper.map_err(os("start the reaper thread"))?);
        let started = launcher.pool.start();
        started.map_err(os("start the spawner threads"))?;
        Ok(launcher)
    }

    /// Returns the backend in use.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Queues a child. Never blocks on the operating system.
    ///
    /// `token` must not be in use. Its first event is `Started` or `Failed`.
    pub fn spawn(&self, token: Token, plan: SpawnPlan) {
        self.pool.push(std::iter::once((None, token, plan)));
    }

    /// Queues many children, taking the lock once.
    pub fn spawn_batch(&self, plans: impl IntoIterator<Item = (Token, SpawnPlan)>) {
        let plans = plans.into_iter();
        self.pool
            .push(plans.map(|(token, plan)| (None, token, plan)));
    }

    /// Queues children in lanes, taking the lock once. At most one child of a lane lives at a time,
    /// in the order of the calls; the thread that notices its exit creates the next one. While more
    /// children wait in the lane, an exit may be reported as late as
    /// [`LauncherConfig::event_delay`] allows.
    ///
    /// This is the fastest way to run many short-lived children, because no thread has to be woken
    /// between two of them.
    pub fn spawn_in_lanes(&self, plans: impl IntoIterator<Item = (Lane, Token, SpawnPlan)>) {
        let plans = plans.into_iter();
        self.pool
            .push(plans.map(|(lane, token, plan)| (Some(lane), token, plan)));
    }

    /// Cancels a child that waits behind another one in its lane; it is then reported as failed
    /// because it was canceled. Other children are unaffected: unlike [`Launcher::terminate`], this
    /// method never ends a process.
    pub fn withdraw(&self, token: Token) {
        self.pool.withdraw(token);
    }

    /// Ends a child. Unknown tokens are ignored. A queued child is reported as canceled.
    ///
    /// The first signal goes to the child's process group. SIGKILL, either immediately or after the
    /// grace period, goes to all processes that can be attributed to the child. Descendants that
    /// outlive the leader are killed when it exits.
    pub fn terminate(&self, token: Token, how: Termination) {
        self.pool.terminate(token, how);
    }

    /// Sends a signal to the process group of a running child. Other children and unknown tokens are
    /// ignored.
    pub fn signal(&self, token: Token, signal: i32) {
        self.pool.signal(token, signal);
    }

    /// Kills all children, their process groups and their descendants at once with SIGKILL. Queued
    /// children are reported as canceled.
    pub fn kill_all(&self) {
        self.pool.kill_all();
    }

    /// Moves all queued events to the end of `into`, oldest first.
    pub fn drain_events(&self, into: &mut Vec<Event>) {
        self.watch.events.drain(into);
    }

    /// Returns the number of children that are queued, being created or running.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pool.queued() + self.watch.table().len()
    }

    /// Kills the remaining children and joins the threads.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        const POLL: Duration = Duration::from_millis(1);
        self.pool.stop();
        self.pool.kill_all();
        let mut limit = Instant::now() + SHUTDOWN_LIMIT;
        let (mut hung, mut next_look) = (Hung::default(), Instant::now());
        while self.pending() > 0 && Instant::now() < limit {
            sys::pause(POLL);
            let now = Instant::now();
            if now >= next_look {
                next_look = now + HUNG_LOOK;
                if hung.lasts(unreachable_descendants().is_some()) {
                    // The threads that create these children cannot end either.
                    limit = now;
                }
            }
        }
        for thread in self.pool.take_threads() {
            while !thread.is_finished() && Instant::now() < limit {
                sys::pause(POLL);
            }
            // A thread that hangs in the kernel is abandoned. A thread that panicked has already
            // reported it.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
        self.watch.stop();
        if let Some(thread) = self.reaper.take() {
            let _ = thread.join();
        }
    }
}
