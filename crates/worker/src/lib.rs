//! The hq worker. One runs on each node, where it launches and watches tasks.
//!
//! This crate is a thin shell around [`hq_core::worker_state`]. It connects to the server, turns
//! tasks into processes through `hq-spawn`, and forwards events both ways. The core makes all
//! decisions. The worker does not know about jobs, dependencies or other workers. See
//! `docs/architecture.md`.
//!
//! The usual sequence: detect the hardware ([`hardware`]), build a `WorkerConfig`, call
//! [`Connector::register`] (or [`register`] over any stream, for a worker inside another process),
//! then [`RegisteredWorker::run`].

#![forbid(unsafe_code)]

pub mod hardware;

mod bounded;
mod clock;
mod config;
mod done;
mod event_loop;
mod launcher;
mod leftovers;
mod node_check;
mod notify;
mod output;
mod output_service;
mod overview;
mod registration;
mod relay;
mod reported;
mod scratch_dir;
mod server_link;
pub mod values;

pub use config::{DataProvider, WorkDir, WorkDirError, WorkerParams};
pub use done::{digest, output_stamp, stamp};
pub use event_loop::WorkerEnd;
pub use hq_core::worker_state::Interrupt;
#[cfg(feature = "nvml")]
pub use launcher::serve_gpu_usage;
pub use leftovers::end_leftovers;
pub use output::attempt_name;
pub use output_service::read_output;
pub use registration::{RegisteredWorker, register};
pub use relay::{Relay, RelayError, RelayOptions};
pub use scratch_dir::ScratchDir;
pub use server_link::{
    ConnectError, Connector, Dialing, Probing, Redial, RegisterError, Retry, ServerLocation,
};
