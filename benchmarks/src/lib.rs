//! Whole-system measurements: everything here runs real processes and compares within one run.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context as _, Result};

pub mod baseline;
pub mod campaign;
pub mod cluster;
pub mod cluster_suite;
pub mod options;
pub mod rest;
pub mod scheduler_suite;
pub mod spawn_suite;
pub mod stats;

/// A directory below `parent` that ends with the value, for what the benchmark `name` writes and compiles.
///
/// Its name cannot be predicted and only this user may enter it: a directory that somebody else made in a shared
/// temporary directory could be given a program to run in place of ours.
///
/// # Errors
///
/// If it cannot be made.
pub fn scratch_dir(name: &str, parent: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("hq-{name}-"))
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))
}
