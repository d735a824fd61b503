//! Compares ways to spawn processes: the contestants, the questions, and tables and plots of the
//! answers.
//!
//! Each contestant is a separate process, and all have the same command line (see
//! `baseline/spawn_mech.c`), so that memory, threads and other burdens are those of the spawning
//! process. See `docs/spawn.md`.

pub mod contestants;
pub mod plot;
pub mod questions;
pub mod report;
