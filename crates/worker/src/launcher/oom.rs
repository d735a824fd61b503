//! Tells a task that the kernel killed for want of memory from one that somebody killed.
//!
//! Both end by SIGKILL. The kernel counts the processes it killed; a task that ends by SIGKILL after the
//! count has grown is taken for one of them.

use std::fs;
use std::path::PathBuf;

/// Where the kernel counts.
const COUNTER_FILE: &str = "/proc/vmstat";
const COUNTER_NAME: &str = "oom_kill";

/// Kills that no task has been blamed for yet.
#[derive(Debug)]
pub(super) struct OomWatch {
    path: PathBuf,
    seen: u64,
    unblamed: u64,
}

impl OomWatch {
    pub(super) fn of_this_machine() -> Self {
        Self::new(COUNTER_FILE.into())
    }

    fn new(path: PathBuf) -> Self {
        let mut watch = Self {
            path,
            seen: 0,
            unblamed: 0,
        };
        watch.seen = watch.count();
        watch
    }

    /// Whether a task that has just ended by SIGKILL is a victim of the kernel. Each kill has one.
    pub(super) fn has_struck(&mut self) -> bool {
        let count = self.count();
        self.unblamed += count.saturating_sub(self.seen);
        self.seen = count;
        let has_struck = self.unblamed > 0;
        self.unblamed = self.unblamed.saturating_sub(1);
        has_struck
    }

    /// 0 where the kernel does not count, which is before Linux 4.13.
    fn count(&self) -> u64 {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == COUNTER_NAME)
            .and_then(|(_, count)| count.parse().ok())
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_has_one_victim() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("vmstat");
        fs::write(&path, "pgfault 7\noom_kill 3\n").expect("writable");
        let mut watch = OomWatch::new(path.clone());
        assert!(!watch.has_struck());
        fs::write(&path, "pgfault 7\noom_kill 5\n").expect("writable");
        assert!(watch.has_struck() && watch.has_struck());
        assert!(!watch.has_struck());
        fs::remove_file(&path).expect("is there");
        assert!(!watch.has_struck());
    }
}
