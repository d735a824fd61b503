//! Process spawning that is as fast as the machine allows.
//!
//! A [`Launcher`] accepts [`SpawnPlan`]s and reports [`Event`]s. Its dedicated threads create
//! processes with `clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD)`. No page table is copied, so the
//! cost of a spawn does not depend on the memory of this process, its threads, its open
//! descriptors, its children, or the length of `PATH`. One reaper thread sleeps on the pidfds of
//! all children and reports exits in batches, with resource usage. Before Linux 5.13, reaping a
//! child takes 10 to 30 ns for each live child; see `docs/spawn.md`.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//!
//! use hq_spawn::{ArgBlock, EnvBlock, Event, Launcher, LauncherConfig};
//! use hq_spawn::{SpawnPlan, Stdio, TaskEnv, Token};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A thread of the launcher calls this to wake the consumer: pass it on and return.
//! let (sender, woken) = mpsc::sync_channel(1);
//! let launcher = Launcher::start(LauncherConfig::new(Arc::new(move || {
//!     let _ = sender.try_send(());
//! })))?;
//!
//! // Encoded once and shared by all tasks.
//! let argv = ArgBlock::new(["sh", "-c", "exit $CODE"])?;
//! let env = EnvBlock::capture();
//! for code in 0..3 {
//!     let mut own = TaskEnv::new();
//!     own.set_display("CODE", code)?;
//!     let plan = SpawnPlan::new(argv.clone(), env.clone())
//!         .task_env(own)
//!         .cwd("/tmp")
//!         .stdout(Stdio::Inherit);
//!     launcher.spawn(Token(code), plan);
//! }
//!
//! let mut ended = 0;
//! let mut events = Vec::new();
//! while ended < 3 {
//!     woken.recv()?;
//!     launcher.drain_events(&mut events);
//!     for event in events.drain(..) {
//!         match event {
//!             Event::Started { token, pid, .. } => println!("{token:?} runs as {pid}"),
//!             Event::Exited { token, status, usage, .. } => {
//!                 println!("{token:?}: {status}, {} KiB", usage.max_rss_kib);
//!                 ended += 1;
//!             }
//!             Event::Failed { token, error } => return Err(format!("{token:?}: {error}").into()),
//!             Event::Stalled { token, .. } | Event::Unkillable { token, .. } => {
//!                 println!("{token:?} hangs in the kernel");
//!             }
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Backends
//!
//! The best mechanism is detected once per process, by trying, and logged. [`Backend`] lists the
//! mechanisms, best first. `HQ_SPAWN_BACKEND` or [`LauncherConfig::backend`] selects one. Every
//! plan behaves the same with every mechanism.
//!
//! # Descriptors
//!
//! A child inherits only standard input, output and error, regardless of the flags of other
//! descriptors (`close_range`). Before Linux 5.9, it inherits everything that is not close-on-exec,
//! so the launcher marks the descriptors that its own process has inherited. With the best
//! mechanism, the child starts with the parent's descriptor table and takes a private copy of only
//! the first few entries: with thousands of children, each with a pidfd, copying and closing the
//! table would cost more than the rest of the spawn.
//!
//! # Signals and death
//!
//! * Children start with default dispositions and an empty signal mask. A signal that this process
//!   has begun to ignore less than 100 ms ago may stay ignored.
//! * A plan's parent-death signal is delivered when the *thread* that created the child ends. The
//!   launcher's threads therefore live as long as the launcher. Dropping a launcher kills its
//!   children in any case.
//! * A child is signaled by its process id only while it is known not to have been reaped. Its
//!   group gets SIGKILL after its exit was noticed and before it is reaped.
//! * A process that adopts orphans (see [`keeper`]) finds descendants in other sessions
//!   immediately. Other processes find them when their task is killed: by their parents, by
//!   [`SpawnPlan::marker`], and by a label that accompanies the marker.
//! * A process may have several launchers, but only one at a time if it adopts orphans: an orphan
//!   that cannot be attributed to a task is killed when the launcher has no tasks left.
//!
//! # Limits
//!
//! Each running child needs one descriptor in this process: raise `RLIMIT_NOFILE` for many
//! children. Only Linux is supported.

pub mod keeper;
pub mod leftovers;

mod adopted;
#[cfg(feature = "tokio")]
mod asynchronous;
mod backend;
mod child;
mod env;
mod error;
mod event;
mod event_queue;
mod label;
mod lanes;
mod launcher;
mod live;
mod mechanism;
mod orphans;
mod path_group;
mod placement;
mod plan;
mod pool;
mod prepare;
mod probe;
mod procfs;
mod raw;
mod reaper;
mod resolve;
mod signal;
mod spawner;
mod stack;
mod sys;
mod waiter;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncLauncher;
pub use env::{ArgBlock, EnvBlock, TaskEnv};
pub use error::{LauncherError, PlanError, SpawnError, SpawnErrorKind, Stage};
pub use event::{Event, ExitStatus, MonotonicNs, ResourceUsage, Token};
pub use event_queue::Wake;
pub use lanes::Lane;
pub use launcher::{Launcher, LauncherConfig, Strategy, prepare_process};
pub use live::Termination;
pub use mechanism::Backend;
pub use plan::{CpuSet, Rlimit, SpawnPlan, Stdio};
pub use probe::{Features, features};
pub use sys::close_all_on_exec;
