//! Resources: offers of workers, requests of tasks, and the concrete free indices.
//!
//! The server counts amounts; the worker owns the indices. See `docs/architecture.md`.

pub mod amount;
pub mod descriptor;
pub mod pool;
pub mod request;
pub mod shadow;
