//! The part of hq that makes decisions: identifiers, id ranges, resources, task templates and the
//! state machines of the server and the worker.
//!
//! Nothing in this crate performs I/O, reads a clock, starts a thread or draws a random number:
//! time, messages and process exits are inputs, and decisions are effects. The crate therefore
//! contains no sockets, processes, files or wire formats. See `docs/architecture.md`.

#![forbid(unsafe_code)]

pub mod ask;
pub mod autoalloc;
pub mod batch;
pub mod bound;
pub mod bug;
pub mod class;
pub mod column;
pub mod command_text;
pub mod curve;
pub mod diagnosis;
pub mod done;
pub mod error_chain;
pub mod graph;
pub mod growth;
pub mod hardware;
pub mod id;
pub mod job;
pub mod limits;
pub mod node_check;
pub mod notice;
pub mod outcome;
pub mod pace;
pub mod params;
pub mod placeholder;
pub mod quarantine;
pub mod range;
pub mod refusal;
pub mod resize;
pub mod resource;
pub mod retry;
pub mod scheduler;
pub mod selector;
pub mod server_state;
pub mod shell;
pub mod signature;
pub mod sizing;
pub mod task;
pub mod template;
pub mod texts;
pub mod time;
pub mod words;
pub mod worker;
pub mod worker_config;
pub mod worker_state;

#[cfg(test)]
mod scenarios;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
