//! Process spawning at the speed of the machine.

pub mod keeper;

mod backend;
mod child;
mod env;
mod error;
mod event;
mod event_queue;
mod launcher;
mod live;
mod orphans;
mod plan;
mod pool;
mod prepare;
mod probe;
mod procfs;
mod reaper;
mod resolve;
mod signal;
mod stack;
mod sys;

pub use backend::Backend;
pub use env::{ArgBlock, EnvBlock, TaskEnv};
pub use error::{LauncherError, PlanError, SpawnError, SpawnErrorKind, Stage};
pub use event::{Event, ExitStatus, MonotonicNs, ResourceUsage, Token};
pub use launcher::{Launcher, LauncherConfig, Strategy, Wake};
pub use live::Termination;
pub use plan::{CpuSet, Rlimit, SpawnPlan, Stdio};
