//! Inputs and outputs of tasks: whether the outputs are there in the end, and the record beside them by which a later submit
//! knows that the work is done. What is in the record is decided in [`hq_core::done`].
//!
//! Everything here may block on a file system: [`Done::begin`] is called on the thread that creates the process, [`Done::end`] on
//! a blocking one.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use hq_core::done::{Stamp, record, record_path};
use hq_core::placeholder::FilePaths;

/// Files of one instance.
#[derive(Debug)]
pub(crate) struct Done {
    files: FilePaths,
    /// Digest of what the task does.
    command: u64,
    /// Whether the task fails that leaves an output missing.
    must_exist: bool,
    /// Beside the first output.
    record: PathBuf,
    /// Content of the record once the task has finished; `None` = an input was missing, or could not be read.
    seen: Mutex<Option<Vec<u8>>>,
}

impl Done {
    /// Files of an instance; `None` without outputs, because nobody could tell whether they are there.
    pub(crate) fn new(files: FilePaths, command: u64, must_exist: bool) -> Option<Self> {
        let record = path(&record_path(files.outputs.first()?));
        Some(Self {
            files,
            command,
            must_exist,
            record,
            seen: Mutex::new(None),
        })
    }

    /// Notes what the inputs are like, before the task reads them. From here on the outputs may be half written, so that a record
    /// of an earlier run counts no more.
    pub(crate) fn begin(&self) {
        if let Err(error) = forget(&self.record) {
            // It would vouch for outputs that this attempt may leave half written, unless it succeeds and replaces it.
            tracing::warn!(path = ?self.record, %error, "cannot remove the record of an earlier run");
        }
        let inputs = self.files.inputs.iter();
        let stamps = inputs.map(|input| Some((input.clone(), stamp(&path(input))?)));
        let stamps: Option<Vec<_>> = stamps.collect();
        let text = stamps.map(|stamps| record(self.command, &stamps));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Looks at the outputs of a task that has ended well, and keeps a record if all of them are there.
    ///
    /// # Errors
    ///
    /// The words for a task that fails because of what is missing.
    pub(crate) fn end(&self) -> Result<(), Box<str>> {
        let outputs = self.files.outputs.iter().map(|output| path(output));
        let mut missing = outputs.filter(|output| is_missing(output));
        if let Some(output) = missing.next() {
            if self.must_exist {
                let words = format!(
                    "The task exited with 0, and its output {} is missing",
                    output.display()
                );
                return Err(words.into());
            }
            return Ok(());
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = &*seen
            && let Err(error) = fs::write(&self.record, text)
        {
            // The task has finished all the same; it only runs again next time.
            tracing::warn!(path = ?self.record, %error, "cannot keep a record of a finished task");
        }
        Ok(())
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

fn forget(record: &Path) -> io::Result<()> {
    match fs::remove_file(record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Size and modification time of a file; `None` = it is missing, or cannot be accessed. Blocks on the file system.
#[must_use]
pub fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some(Stamp {
        modified_ns: i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()),
        size_bytes: found.size(),
    })
}

/// Whether it is known that there is no such file; one that cannot be looked at may be there.
fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn done(dir: &Path, must_exist: bool) -> Done {
        let name = |name: &str| dir.join(name).as_os_str().as_bytes().to_vec();
        let files = FilePaths {
            inputs: vec![name("in")],
            outputs: vec![name("out"), name("second")],
        };
        Done::new(files, 7, must_exist).expect("it has outputs")
    }

    #[test]
    fn a_record_is_kept_of_a_task_whose_outputs_are_there_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let kept = at(".out.hq-done");
        for name in ["in", "out"] {
            fs::write(at(name), "x").expect("written");
        }
        let strict = done(dir.path(), true);
        strict.begin();
        let words = strict.end().expect_err("one is missing");
        assert!(words.contains("second is missing"), "{words}");
        let lenient = done(dir.path(), false);
        lenient.begin();
        assert_eq!(lenient.end(), Ok(()));
        assert!(!kept.exists());
        fs::write(at("second"), "").expect("written");
        lenient.begin();
        assert_eq!(lenient.end(), Ok(()));
        let text = fs::read_to_string(&kept).expect("a record");
        assert!(
            text.starts_with("hq-done 1\ncommand 0000000000000007\ninput "),
            "{text}"
        );
        // The next run may leave its outputs half written.
        lenient.begin();
        assert!(!kept.exists());
        fs::remove_file(at("in")).expect("removed");
        lenient.begin();
        assert_eq!(lenient.end(), Ok(()));
        assert!(!kept.exists(), "nobody knows what it read");
    }
}
