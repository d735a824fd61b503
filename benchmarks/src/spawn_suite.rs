//! Comparison of ways to spawn processes: contestants, questions, and tables and plots of the
//! answers.
//!
//! Each contestant is a process of its own with one command line (see `baseline/spawn_mech.c`), so
//! that memory, threads and other burdens are on the spawning process. See `docs/spawn.md`.

pub mod contestants;
pub mod plot;
pub mod questions;
pub mod report;
