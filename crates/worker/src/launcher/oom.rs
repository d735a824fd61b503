//! Distinguishes tasks killed by the OOM killer from tasks that a user killed.
//!
//! Both die by SIGKILL. The kernel counts its OOM kills, and a task that dies by SIGKILL counts as
//! a victim if the count grew during its lifetime. Where possible, the worker uses the count of its
//! control group, because that excludes other jobs and containers on the node.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::control_group;

/// The counter of the whole machine.
const OF_MACHINE: &str = "proc/vmstat";
const COUNTER_NAME: &str = "oom_kill";

/// Starts within this time share one sample of the count. A kill between the sample and a start may
/// be attributed to that task.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(500);

/// The count, and the number of kills already attributed to a task.
#[derive(Debug)]
pub(super) struct OomWatch {
    path: PathBuf,
    /// Kills up to this number have been attributed.
    attributed: u64,
    sample: u64,
    sampled: Instant,
}

impl OomWatch {
    pub(super) fn of_this_machine() -> Self {
        Self::new(counter(Path::new("/")))
    }

    fn new(path: PathBuf) -> Self {
        let mut watch = Self {
            path,
            attributed: 0,
            sample: 0,
            sampled: Instant::now(),
        };
        watch.sample = watch.count();
        watch
    }

    /// Returns the number of kills so far, for a task that starts.
    pub(super) fn before_start(&mut self) -> u64 {
        // Reading the count for each short task would cost more than the start.
        if self.sampled.elapsed() > SAMPLE_AGE_MAX {
            self.sample = self.count();
            self.sampled = Instant::now();
        }
        self.sample
    }

    /// Returns whether a task that just died by SIGKILL is a victim of the OOM killer. `before` is
    /// the count at its start. Each kill has one victim.
    pub(super) fn has_struck(&mut self, before: u64) -> bool {
        // Each kill explains one task: if two tasks died by SIGKILL, a user may have killed the
        // second.
        let done = self.attributed.max(before);
        let has_struck = self.count() > done;
        if has_struck {
            self.attributed = done + 1;
        }
        has_struck
    }

    /// Returns the count, or 0 if the kernel does not count (before Linux 4.13).
    fn count(&self) -> u64 {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == COUNTER_NAME)
            .and_then(|(_, count)| count.trim().parse().ok())
            .unwrap_or(0)
    }
}

/// Returns the file whose count of killed processes covers the fewest other processes.
fn counter(root: &Path) -> PathBuf {
    let of_group = [
        control_group::own_group(root).map(|dir| dir.join("memory.events")),
        control_group::own_memory_group_v1(root).map(|dir| dir.join("memory.oom_control")),
    ];
    let counts = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.starts_with("oom_kill "))
    };
    // Use the narrowest available count: kills elsewhere on the machine do not matter.
    let found = of_group.into_iter().flatten().find(counts);
    found.unwrap_or_else(|| root.join(OF_MACHINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_has_one_victim_that_lived_when_it_happened() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("vmstat");
        let kills = |count: u64| {
            fs::write(&path, format!("pgfault 7\noom_kill {count}\n")).expect("writable");
        };
        kills(3);
        let mut watch = OomWatch::new(path.clone());
        let start = watch.before_start();
        assert!(!watch.has_struck(start));
        kills(5);
        assert!(watch.has_struck(start) && watch.has_struck(start));
        assert!(!watch.has_struck(start));
        // The OOM killer kills another process. Then a task starts, and a user kills it.
        kills(9);
        watch.sampled = Instant::now() - 2 * SAMPLE_AGE_MAX;
        let later = watch.before_start();
        assert!(!watch.has_struck(later));
        assert!(watch.has_struck(start), "it lived");
        fs::remove_file(&path).expect("is there");
        assert!(!watch.has_struck(start));
    }

    #[test]
    fn the_own_control_group_is_counted_where_there_is_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        write("proc/self/cgroup", "4:memory:/job\n0::/\n");
        write(
            "proc/self/mountinfo",
            "30 1 0:26 / /cg/memory rw - cgroup cgroup rw,memory\n31 1 0:27 / /cg/two rw - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(counter(dir.path()), dir.path().join("proc/vmstat"));
        write(
            "cg/memory/job/memory.oom_control",
            "under_oom 0\noom_kill 2\n",
        );
        let found = counter(dir.path());
        assert_eq!(found, dir.path().join("cg/memory/job/memory.oom_control"));
        write("cg/two/memory.events", "oom 1\noom_kill 1\n");
        let found = counter(dir.path());
        assert_eq!(found, dir.path().join("cg/two/memory.events"));
    }
}
