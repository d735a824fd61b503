//! Resources: what workers offer, what tasks request, and which concrete indices are free.
//!
//! The server counts amounts, and the worker manages the indices. See `docs/architecture.md`.

pub mod amount;
pub mod descriptor;
pub mod pool;
pub mod request;
pub mod shadow;
