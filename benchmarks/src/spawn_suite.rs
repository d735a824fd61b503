//! The comparison of ways to spawn processes: contestants, questions, and the tables and plots of the answers.
//!
//! Each contestant is a process of its own with one command line (see `baseline/spawn_mech.c`), so that burdens such
//! as memory and threads are on the process that spawns. See `docs/spawn.md`.

pub mod contestants;
pub mod plot;
pub mod questions;
pub mod report;
