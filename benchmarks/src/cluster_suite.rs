//! Many simulated workers for one real server.
//!
//! A simulated worker is the state machine of a real worker behind the real protocol, with its
//! encryption, registration, heartbeats and reports. Only its tasks are not executed: they end
//! after a given time. So this measures the server, its store and the wire, with far more workers
//! than one machine could run.

mod home;
mod links;
pub mod measure;
pub mod pages;
pub mod restarts;
pub mod swarm;
mod tasks;
mod worker;

pub use home::{Storms, Tally};
pub use links::SlowLink;
pub use tasks::{Ledger, Sums, TaskTime};
