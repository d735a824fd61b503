//! The files that processes of a measurement touch: a directory of their own, checked afterwards.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};

/// How much earlier than the clock the time of a file may be: file systems use the time of the last
/// tick, at most 10 ms ago.
const TICK: Duration = Duration::from_millis(20);

/// A directory for the files of one run. It is removed on drop.
#[derive(Debug)]
pub(crate) struct Touched {
    dir: PathBuf,
    begin: SystemTime,
}

impl Touched {
    pub(crate) fn new(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir(&dir)?;
        let begin = SystemTime::now() - TICK;
        Ok(Self { dir, begin })
    }

    /// Checks that each of `done` processes made one file, whose name is a number below `count` and
    /// whose time is within the run.
    pub(crate) fn check(&self, done: f64, count: u32) -> Result<()> {
        let end = SystemTime::now();
        let mut files = 0.0;
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
            ensure!(
                number.is_some_and(|n| n < count),
                "unexpected file {}",
                name.display()
            );
            let at = entry.metadata()?.modified()?;
            ensure!(
                (self.begin..=end).contains(&at),
                "the time of {} is not within the run",
                name.display()
            );
            files += 1.0;
        }
        ensure!(
            (files - done).abs() < 0.5,
            "{done} processes made {files} files"
        );
        Ok(())
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        // The directory of the benchmark is removed later, with any file that is left.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_missing_strange_or_old_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        let touched = Touched::new(root.path().join("touched")).expect("it is new");
        let put = |name: &str| std::fs::File::create(touched.dir.join(name)).expect("a file");
        let text = |done, count| match touched.check(done, count) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        let old = put("0");
        put("1");
        assert_eq!(text(2.0, 2), "");
        assert_eq!(text(3.0, 4), "3 processes made 2 files");
        assert_eq!(text(2.0, 1), "unexpected file 1");
        let hour = Duration::from_secs(3600);
        old.set_modified(SystemTime::now() - hour)
            .expect("own file");
        assert_eq!(text(2.0, 2), "the time of 0 is not within the run");
    }
}
