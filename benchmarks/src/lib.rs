//! Whole-system measurements: everything here runs real processes and compares within one run.

#![forbid(unsafe_code)]

pub mod baseline;
pub mod cluster;
pub mod scheduler_suite;
pub mod spawn_suite;
pub mod stats;
