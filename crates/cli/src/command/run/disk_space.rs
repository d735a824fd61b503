//! Checks whether the disk has space for the output of tasks.
//!
//! A program may ignore a failed write and exit successfully. Its output file is then incomplete,
//! so this module checks whether the disk was full meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// If less space than this is free, each check writes a trial file, because the space may be gone a
/// moment later.
const LOW_BYTES: u64 = 16 << 20;

/// If fewer files than this are free, each check writes a trial file.
const LOW_FILES: u64 = 1024;

/// Otherwise, a check writes a trial file at this interval, because the figures of a file system do
/// not include quotas.
const TRIAL_INTERVAL: Duration = Duration::from_millis(100);

/// The size of a trial file, which is a block of common file systems.
const TRIAL_LEN: usize = 4096;

/// A directory that may become full.
#[derive(Debug)]
pub(super) struct DiskSpace {
    trial: PathBuf,
    last: Option<Instant>,
    was_full: bool,
}

impl DiskSpace {
    /// Creates a check of this directory.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            trial: dir.join("room"),
            last: None,
            was_full: false,
        }
    }

    /// Checks the file system. Returns `true` the first time that it is full.
    ///
    /// Call this before removing files, which frees space.
    pub(super) fn look(&mut self) -> bool {
        let is_due = self
            .last
            .is_none_or(|last| last.elapsed() >= TRIAL_INTERVAL);
        if self.was_full || !(is_due || self.is_low()) {
            return false;
        }
        self.last = Some(Instant::now());
        self.was_full = try_to_write(&self.trial).is_err_and(|error| is_disk_full(&error));
        self.was_full
    }

    fn is_low(&self) -> bool {
        let dir = self.trial.parent().unwrap_or(&self.trial);
        rustix::fs::statvfs(dir).is_ok_and(|found| {
            let bytes = found.f_bavail.saturating_mul(found.f_frsize);
            // File systems without a fixed number of files report 0 of 0.
            bytes < LOW_BYTES || (found.f_files > 0 && found.f_favail < LOW_FILES)
        })
    }
}

/// Writes a trial file, because statistics show neither quotas nor access to reserved blocks.
fn try_to_write(path: &Path) -> io::Result<()> {
    let written = hq_private::write_file(path, &[0; TRIAL_LEN]);
    // The file does not exist if it could not be created.
    let _ = std::fs::remove_file(path);
    written
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_a_full_disk_counts() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut space = DiskSpace::new(dir.path());
        assert!(!space.look());
        assert_eq!(
            std::fs::read_dir(dir.path()).expect("a directory").count(),
            0
        );
        let error = try_to_write(Path::new("/dev/full/x")).expect_err("no directory");
        assert!(!is_disk_full(&error), "{error}");
        let mut full = File::create("/dev/full").expect("a device");
        let error = full.write_all(&[0; TRIAL_LEN]).expect_err("it is full");
        assert!(is_disk_full(&error), "{error}");
    }
}
