//! Decisions of the server as stories: a situation, an event, and the decisions that follow.
//!
//! Everything goes through the public door: inputs in, effects and public questions out. This module stands beside the
//! state machine and not in it, so the compiler keeps it from the fields.

mod again;
mod ahead;
mod bench;

mod cancel;
mod dependencies;
mod durability;
mod explaining;
mod footprint;
mod gangs;
mod growth;
mod jobs;
mod learning;
mod node_checks;
mod own_tasks;
mod params;
mod patience;
mod placing;
mod portions;
mod quarantine;
mod questions;
mod reconnect;
mod restart;
mod retries;
mod sent;
mod stop;
mod submit;
mod successors;
mod watches;
