//! Opens files of any origin safely.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file for reading and rejects any other type of file. Opening a FIFO would block
/// until a writer opens it, and reading from one would take data from its reader.
///
/// # Errors
///
/// If the file cannot be opened or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{OpenError, StreamDir};
    use crate::output::{From, OutputReader, Source};

    #[test]
    fn a_fifo_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("x.hqs");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        // A FIFO with a writer, whose data is meant for another reader.
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let _writer = rustix::fs::open(&path, flags, Mode::empty()).expect("both ends");
        let error = open_regular(&path).expect_err("not a file");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let mut reader = OutputReader::new(Source::File(path));
        let error = reader.read(From::Offset(0), 10).expect_err("not a file");
        assert_eq!(error.to_string(), "it is not a regular file");
        let opened = StreamDir::open(dir.path(), None);
        assert!(matches!(opened, Err(OpenError::NoFiles)), "it is left out");
    }

    #[test]
    fn files_that_cannot_be_opened_are_left_out() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        symlink("nowhere", at("dangling.hqs")).expect("a link");
        symlink("loop.hqs", at("loop.hqs")).expect("a link");
        std::fs::write(at("others.hqs"), "").expect("room");
        // Permissions do not restrict root.
        let nobody = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(at("others.hqs"), nobody).expect("ours");
        let opened = StreamDir::open(dir.path(), None);
        assert!(matches!(opened, Err(OpenError::NoFiles)), "{opened:?}");
    }
}
