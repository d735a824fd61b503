//! Decisions of the server as scenarios: each has a situation, an event, and the resulting
//! decisions.
//!
//! They use only public interfaces: inputs, effects and queries. This module is outside the state
//! machine, so the compiler prevents it from accessing the fields.

mod again;
mod ahead;
mod bench;

mod calls;
mod cancel;
mod dependencies;
mod durability;
mod explaining;
mod footprint;
mod gangs;
mod growth;
mod held;
mod jobs;
mod learning;
mod limits;
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
mod revised;
mod sent;
mod stop;
mod submit;
mod successors;
mod watches;
