//! Whole-system measurements. Everything here runs real processes and compares results within one
//! run.

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

/// Creates a directory below `parent` for the files of the benchmark `name`. It is removed on drop.
///
/// Its name is unpredictable, and only this user may enter it. Otherwise another user could put a
/// program into a known directory below a shared temporary directory.
///
/// # Errors
///
/// If it cannot be created.
pub fn scratch_dir(name: &str, parent: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("hq-{name}-"))
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))
}
