//! Inputs and outputs of tasks. When a task ends, checks that its outputs exist and writes a record
//! from which a later submit can see that the work is done. [`hq_core::done`] defines the content
//! of the record.
//!
//! Everything here may block on a file system: [`Done::begin`] runs on the thread that creates the
//! process, [`Done::end`] on a blocking thread.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hq_core::done::{Content, Digest, Stamp, record, record_path, record_with_contents};
use hq_core::placeholder::FilePaths;

/// How long reading the files of one task for its record may take. Files that are not read in time
/// are recorded only by modification time. This must be shorter than `CHECK_WAIT_MAX`, which limits
/// how long the report of the task's end waits.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// The number of bytes of a single read.
const PIECE_BYTES: usize = 256 << 10;

/// Files and their stamps.
type Stamps = Vec<(Vec<u8>, Stamp)>;

/// The inputs and outputs of one instance.
#[derive(Debug)]
pub(crate) struct Done {
    files: FilePaths,
    /// The digest of the task's command.
    command: u64,
    /// The working directory of the command.
    cwd: Box<[u8]>,
    /// Whether a missing output makes the task fail.
    must_exist: bool,
    /// Whether the record also contains digests of file contents.
    by_content: bool,
    /// The path of the record, next to the first output.
    record: PathBuf,
    /// The lock is never held during a file access.
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The inputs as they were before the task ran. `None` if at least one was missing or
    /// inaccessible.
    inputs: Option<Stamps>,
    end: End,
}

/// The result of the output check of a task that exited with 0.
#[derive(Debug, Default)]
enum End {
    /// The outputs have not been checked yet.
    #[default]
    Open,
    /// The outputs have been checked. Contains the error message if a missing output makes the task
    /// fail.
    Known(Option<Box<str>>),
    /// The check took too long; its result is ignored.
    GivenUp,
}

/// The error message of a task whose outputs could not be checked in time.
const UNKNOWN: &str = "The task exited with 0, but the file system of its outputs did not answer in time, so they could not be checked";

impl Done {
    /// Prepares the check. Returns `None` if there are no outputs, because then nothing shows
    /// whether the work is done.
    pub(crate) fn new(
        files: FilePaths,
        (command, cwd): (u64, &[u8]),
        (must_exist, by_content): (bool, bool),
    ) -> Option<Self> {
        let record = path(&record_path(files.outputs.first()?));
        Some(Self {
            files,
            command,
            cwd: cwd.into(),
            must_exist,
            by_content,
            record,
            progress: Mutex::default(),
        })
    }

    /// Returns whether the task fails if an output is missing.
    pub(crate) const fn must_exist(&self) -> bool {
        self.must_exist
    }

    /// Returns whether file contents are read for the record.
    pub(crate) const fn by_content(&self) -> bool {
        self.by_content
    }

    /// Records the state of the inputs before the task reads them, and removes the record of an
    /// earlier run, because from now on the outputs may be incomplete.
    pub(crate) fn begin(&self) {
        if let Err(error) = forget(&self.record) {
            // The old record would vouch for outputs that this attempt may leave incomplete.
            tracing::warn!(path = ?self.record, %error, "cannot remove the record of an earlier run");
        }
        let inputs = self.files.inputs.iter();
        let stamps = inputs.map(|input| Some((input.clone(), stamp(&path(input))?)));
        let inputs = stamps.collect();
        *self.progress() = Progress {
            inputs,
            end: End::Open,
        };
    }

    /// Checks the outputs of a task that succeeded, and writes a record if all of them exist.
    ///
    /// # Errors
    ///
    /// Returns the error message of a task that fails because an output is missing.
    pub(crate) fn end(&self) -> Result<(), Box<str>> {
        let mut outputs = Some(Vec::new());
        let mut failure = None;
        for bytes in &self.files.outputs {
            let output = path(bytes);
            let found = stat_output(&output);
            // An output that cannot be accessed may exist, so only `NotFound` counts as missing.
            let is_missing =
                matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
            if is_missing && self.must_exist && failure.is_none() {
                let shown = output.display();
                let words = format!("The task exited with 0, but its output {shown} is missing");
                failure = Some(Box::from(words));
            }
            match (found, &mut outputs) {
                (Ok(stamp), Some(stamps)) => stamps.push((bytes.clone(), stamp)),
                _ => outputs = None,
            }
        }
        let inputs = self.settle(failure)?;
        if let (Some(inputs), Some(outputs)) = (inputs, outputs) {
            let text = self.record_of(inputs, outputs);
            let written = hq_private::create_output(&self.record)
                .and_then(|mut file| io::Write::write_all(&mut file, &text));
            if let Err(error) = written {
                // This is not an error of the task. It only means that the task runs again next
                // time.
                tracing::warn!(path = ?self.record, %error, "cannot keep a record of a finished task");
            }
        }
        Ok(())
    }

    /// Builds the record, reading file contents if requested and if the time limit allows.
    fn record_of(&self, inputs: Stamps, outputs: Stamps) -> Vec<u8> {
        if !self.by_content {
            return record(self.command, &self.cwd, &inputs, &outputs);
        }
        let until = Instant::now() + READ_TIME_MAX;
        // Outputs go first, because inputs may be shared with other tasks and are compared less
        // often.
        let outputs = contents(outputs, output_stamp, until);
        let inputs = contents(inputs, stamp, until);
        record_with_contents(self.command, &self.cwd, &inputs, &outputs)
    }

    /// Stores the result of the check. Returns the inputs if a record may be written.
    fn settle(&self, failure: Option<Box<str>>) -> Result<Option<Stamps>, Box<str>> {
        let mut progress = self.progress();
        if matches!(progress.end, End::GivenUp) {
            // The end of the task has already been reported. Another attempt may be overwriting the
            // files that were checked.
            return if self.must_exist {
                Err(UNKNOWN.into())
            } else {
                Ok(None)
            };
        }
        progress.end = End::Known(failure.clone());
        failure.map_or_else(|| Ok(progress.inputs.take()), Err)
    }

    /// Stops waiting for [`Self::end`]. Returns an error message if the task fails because an
    /// output is missing or could not be checked.
    pub(crate) fn give_up(&self) -> Option<Box<str>> {
        let mut progress = self.progress();
        match &progress.end {
            End::Known(failure) => failure.clone(),
            End::GivenUp => None,
            End::Open => {
                progress.end = End::GivenUp;
                self.must_exist.then(|| UNKNOWN.into())
            }
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the digests of the files that still match `stamps` and can be read before `until`.
fn contents(stamps: Stamps, look: fn(&Path) -> Option<Stamp>, until: Instant) -> Vec<Content> {
    let content = |(bytes, stamp): (Vec<u8>, Stamp)| {
        let file = path(&bytes);
        let found = digest(&file, || Instant::now() < until);
        // The stamp is checked after the last byte was read: if the file changed in the meantime,
        // the digest may or may not include the change.
        let digest = found.filter(|_| look(&file) == Some(stamp));
        Content {
            path: bytes,
            stamp,
            digest,
        }
    };
    stamps.into_iter().map(content).collect()
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

fn forget(record: &Path) -> io::Result<()> {
    match hq_private::remove_output(record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the SHA-256 digest of a file. Returns `None` if the path is not a file, if the file is
/// unreadable, or if `goes_on` returned false between two reads. Blocks on the file system.
#[must_use]
pub fn digest(path: &Path, goes_on: impl Fn() -> bool) -> Option<Digest> {
    let mut file = hq_private::open_regular(path).ok()?;
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut piece = vec![0; PIECE_BYTES];
    while goes_on() {
        match io::Read::read(&mut file, &mut piece) {
            Ok(0) => return context.finish().as_ref().try_into().ok(),
            Ok(count) => context.update(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// Returns the size and modification time of a file, or `None` if it is missing or inaccessible.
/// Blocks on the file system.
#[must_use]
pub fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().as_ref().map(stamp_of)
}

/// Returns the stamp of an output. For directories and other non-files, only their presence counts:
/// files such as records that are later added to a directory do not change the result. Blocks on
/// the file system.
#[must_use]
pub fn output_stamp(path: &Path) -> Option<Stamp> {
    stat_output(path).ok()
}

fn stat_output(path: &Path) -> io::Result<Stamp> {
    let found = fs::metadata(path)?;
    if found.is_file() {
        return Ok(stamp_of(&found));
    }
    Ok(Stamp {
        modified_ns: 0,
        size_bytes: 0,
    })
}

fn stamp_of(found: &fs::Metadata) -> Stamp {
    Stamp {
        modified_ns: i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()),
        size_bytes: found.size(),
    }
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
        Done::new(files, (7, b"/w"), (must_exist, false)).expect("it has outputs")
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
            text.starts_with("hq-done 3\ncommand 0000000000000007\ncwd /w\ninput "),
            "{text}"
        );
        assert_eq!(text.matches("\noutput ").count(), 2, "{text}");
        // The next run may leave its outputs incomplete.
        lenient.begin();
        assert!(!kept.exists());
        fs::remove_file(at("in")).expect("removed");
        lenient.begin();
        assert_eq!(lenient.end(), Ok(()));
        assert!(!kept.exists(), "the files that it read are unknown");
    }

    #[test]
    fn contents_are_recorded_of_files_that_stayed_as_they_were() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["in", "out"] {
            fs::write(at(name), "abc").expect("written");
        }
        fs::create_dir(at("second")).expect("a directory");
        let mut done = done(dir.path(), true);
        done.by_content = true;
        done.begin();
        assert_eq!(done.end(), Ok(()));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let kept = || fs::read_to_string(at(".out.hq-done")).expect("a record");
        let text = kept();
        assert!(text.starts_with("hq-done 4\n"), "{text}");
        assert_eq!(text.matches(&format!(" 3 {abc} /")).count(), 2, "{text}");
        assert_eq!(text.matches(" 0 - /").count(), 1, "a directory: {text}");
        // The task modifies its input.
        done.begin();
        fs::write(at("in"), "abcd").expect("written");
        assert_eq!(done.end(), Ok(()));
        let text = kept();
        let input = text.lines().find(|line| line.starts_with("input "));
        assert!(input.is_some_and(|line| line.contains(" 3 - /")), "{text}");
        assert_eq!(digest(&at("out"), || false), None, "there is no time");
    }

    #[test]
    fn a_late_look_at_outputs_vouches_for_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["in", "out", "second"] {
            fs::write(dir.path().join(name), "x").expect("written");
        }
        let kept = dir.path().join(".out.hq-done");
        for must_exist in [false, true] {
            let late = done(dir.path(), must_exist);
            late.begin();
            // The check is still hanging.
            let words = late.give_up();
            assert_eq!(words.is_some(), must_exist, "{words:?}");
            assert_eq!(late.end().is_err(), must_exist);
            assert!(!kept.exists(), "another attempt may have begun");
        }
        let in_time = done(dir.path(), true);
        in_time.begin();
        assert_eq!((in_time.end(), in_time.give_up()), (Ok(()), None));
        assert!(kept.exists());
        in_time.begin();
        let made = std::process::Command::new("mkfifo").arg(&kept).status();
        assert!(made.expect("it can be run").success());
        let mut both = fs::OpenOptions::new();
        let mut reader = both.read(true).write(true).open(&kept).expect("a FIFO");
        assert_eq!(in_time.end(), Ok(()));
        io::Write::write_all(&mut reader, b"end").expect("room");
        let mut found = [0; 8];
        let count = io::Read::read(&mut reader, &mut found).expect("the end");
        assert_eq!(&found[..count], b"end", "a record in another user's file");
        fs::remove_file(dir.path().join("second")).expect("removed");
        in_time.begin();
        let words = in_time.end().expect_err("one is missing");
        assert_eq!(in_time.give_up(), Some(words), "told in any case");
    }
}
