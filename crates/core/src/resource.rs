//! Resources: what a worker has, what a task asks for, and which concrete indices are free.
//!
//! The server counts amounts; the worker owns the indices. See `docs/architecture.md`.

pub mod amount;
pub mod descriptor;
pub mod pool;
pub mod request;
pub mod shadow;
