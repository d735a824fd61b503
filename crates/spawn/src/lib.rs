//! Process spawning at the speed of the machine.

pub mod keeper;

mod env;
mod error;
mod event;
mod launcher;
mod plan;

pub use env::{ArgBlock, EnvBlock, TaskEnv};
pub use error::{LauncherError, PlanError, SpawnError, SpawnErrorKind, Stage};
pub use event::{Event, ExitStatus, MonotonicNs, ResourceUsage, Token};
pub use launcher::{Backend, Launcher, LauncherConfig, Strategy, Termination, Wake};
pub use plan::{CpuSet, Rlimit, SpawnPlan, Stdio};
