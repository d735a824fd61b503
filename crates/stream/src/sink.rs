//! Writes one stream file.
//!
//! Only this process writes to the file, at a position that it keeps in memory. After a failed
//! write, it truncates the file to that position. If this fails as well, the next write overwrites
//! the remains.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::SUFFIX;
use crate::format::{FILE_HEADER_LEN, FileHeader};

/// A stream file that is being written.
#[derive(Debug)]
pub(crate) struct Sink {
    path: PathBuf,
    file: File,
    position: u64,
    pub(crate) mark: [u8; 8],
    /// The number of instances that may still write.
    pub(crate) active: usize,
    /// Whether other machines see data only after a sync.
    pub(crate) needs_sync: bool,
    pub(crate) is_dirty: bool,
}

impl Sink {
    /// Creates a new file in `dir`, and the directory if it is missing. The umask determines who
    /// can read them, as for all task output.
    pub(crate) fn create(dir: &Path, mut header: FileHeader) -> Result<Self, String> {
        let text = |what: &str, path: &Path, error: io::Error| {
            format!("cannot {what} {}: {error}", path.display())
        };
        std::fs::create_dir_all(dir).map_err(|error| text("create the directory", dir, error))?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            text(
                "draw a name for a file in",
                dir,
                io::Error::other(error.to_string()),
            )
        })?;
        header.mark.copy_from_slice(&random[8..]);
        let name: String = random[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = dir.join(format!("{name}.{SUFFIX}"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| text("create", &path, error))?;
        file.write_all_at(&header.encode(), 0)
            .map_err(|error| text("write to", &path, error))?;
        let needs_sync =
            rustix::fs::fstatfs(&file).is_ok_and(|stat| stat.f_type == rustix::fs::NFS_SUPER_MAGIC);
        Ok(Self {
            path,
            file,
            position: FILE_HEADER_LEN as u64,
            mark: header.mark,
            active: 0,
            needs_sync,
            is_dirty: false,
        })
    }

    /// Returns whether the file is still at its path, where readers look for it.
    pub(crate) fn is_in_place(&self) -> bool {
        let ours = self.file.metadata();
        match (ours, std::fs::metadata(&self.path)) {
            (Ok(ours), Ok(found)) => ours.ino() == found.ino() && ours.dev() == found.dev(),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        }
    }

    /// Appends complete blocks: either all of them or none.
    pub(crate) fn append(&mut self, blocks: &[u8]) -> Result<(), String> {
        if let Err(error) = self.file.write_all_at(blocks, self.position) {
            // If this fails as well, readers skip the incomplete blocks.
            let _ = self.file.set_len(self.position);
            return Err(format!("cannot write to {}: {error}", self.path.display()));
        }
        self.position += blocks.len() as u64;
        self.is_dirty = true;
        Ok(())
    }

    /// Makes all data visible to other machines.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        if self.needs_sync && std::mem::take(&mut self.is_dirty) {
            self.file
                .sync_data()
                .map_err(|error| format!("cannot write to {}: {error}", self.path.display()))?;
        }
        Ok(())
    }
}
