//! The server. One thread owns the state ([`hq_core::server_state`]), and tokio tasks around it
//! communicate with clients and workers.
//!
//! [`Server`] listens on TCP and publishes an access file. [`EmbeddedServer`] serves connections
//! inside its own process, without ports, keys or files. All decisions are made in core, see
//! `docs/architecture.md`.

#![forbid(unsafe_code)]

mod acknowledgements;
mod alloc;
mod answering;
mod blocking_pool;
mod client_link;
mod clock;
mod command;
mod config;
mod core_handle;
mod core_thread;
mod curves;
mod delivery;
mod embedded;
mod gate;
mod http;
mod journal_link;
mod last_server;
mod listener;
mod metrics;
mod notify;
mod output_link;
mod parts;
mod peer_stream;
mod probe;
mod problems;
mod query;
mod questions;
mod relay_link;
mod request_shares;
mod server;
mod shares;
mod state_file;
mod stats;
mod updates;
mod values;
mod words;
mod worker_link;

pub use config::{Journal, RunError, ServerConfig, StartError, Stop};
pub use embedded::{EmbeddedConfig, EmbeddedServer};
pub use http::{JobFormat, JobText, ReadJob, report};
pub use last_server::SilentServer;
pub use notify::check_webhook;
pub use query::answer_in_steps;
pub use questions::ReadOutput;
pub use server::Server;
