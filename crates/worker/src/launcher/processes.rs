//! Reads the processes of this machine from /proc and groups them by parent and session.
//!
//! The kernel fills `stat` and `status` without waiting for the process. [`Processes::share`] waits
//! for the lock of the memory map, which a page fault may hold for as long as a file system hangs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const KIB: u64 = 1024;

/// The properties of a process at the time of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) parent: u32,
    session: u32,
    /// The resident memory in KiB, including file pages.
    pub(super) rss: u64,
    /// The CPU time of the process and of the children that it has waited for.
    pub(super) cpu: Duration,
    /// The start time, in ticks since boot.
    pub(super) began: u64,
}

/// Reads /proc.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    proc: PathBuf,
    page_kib: u64,
    /// The number of ticks of the kernel's clock in a second.
    ticks: u64,
}

impl Processes {
    /// Reads `proc`, normally `/proc`.
    pub(super) fn new(proc: impl AsRef<Path>) -> Self {
        let page_kib = rustix::param::page_size() as u64 / KIB;
        Self::with_pages(proc, page_kib.max(1))
    }

    pub(super) fn with_pages(proc: impl AsRef<Path>, page_kib: u64) -> Self {
        Self {
            proc: proc.as_ref().into(),
            page_kib,
            ticks: rustix::param::clock_ticks_per_second().max(1),
        }
    }

    /// Returns all visible processes.
    pub(super) fn look(&self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir(&self.proc) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| self.get(entry.ok()?.file_name().to_str()?.parse().ok()?))
            .collect()
    }

    /// Returns one visible process.
    pub(super) fn get(&self, pid: u32) -> Option<Process> {
        let stat = self.read(pid, "stat")?;
        self.parse(pid, &stat)
    }

    /// See `proc_pid_stat(5)`. The name in parentheses may contain any characters.
    fn parse(&self, pid: u32, stat: &str) -> Option<Process> {
        let (_, rest) = stat.rsplit_once(')')?;
        // Two fields precede the end of the name.
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(22).collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        // These are the user and kernel times of the process and of its reaped children.
        let ticks = [14, 15, 16, 17].map(|field| number(field).unwrap_or(0));
        let ticks = ticks.into_iter().fold(0, u64::saturating_add);
        Some(Process {
            pid,
            parent: u32::try_from(number(4)?).ok()?,
            session: u32::try_from(number(6)?).ok()?,
            rss: number(24)?.saturating_mul(self.page_kib),
            cpu: Duration::from_millis(ticks.saturating_mul(1_000) / self.ticks),
            began: number(22).unwrap_or(0),
        })
    }

    /// Returns the start time of a process since boot.
    pub(super) const fn began_at(&self, process: &Process) -> Duration {
        Duration::from_millis(process.began.saturating_mul(1_000) / self.ticks)
    }

    /// Returns the anonymous memory in KiB without swap. Shared pages count in full.
    pub(super) fn own(&self, pid: u32) -> Option<u64> {
        let text = self.read(pid, "status")?;
        // These fields exist since Linux 4.5. On older kernels, file pages are included.
        match (kib(&text, "RssAnon:"), kib(&text, "RssShmem:")) {
            (Some(anon), Some(shmem)) => Some(anon + shmem),
            (None, _) | (_, None) => kib(&text, "VmRSS:"),
        }
    }

    /// Returns the anonymous memory in KiB including swap. Shared pages count proportionally.
    pub(super) fn share(&self, pid: u32) -> Option<u64> {
        let text = self.read(pid, "smaps_rollup")?;
        let swapped = kib(&text, "SwapPss:").unwrap_or(0);
        // These fields exist since Linux 5.3. On older kernels, all file pages are subtracted,
        // including other processes' shares of them.
        let resident = match (kib(&text, "Pss_Anon:"), kib(&text, "Pss_Shmem:")) {
            (Some(anon), Some(shmem)) => anon + shmem,
            (None, _) | (_, None) => {
                let status = self.read(pid, "status")?;
                kib(&text, "Pss:")?.saturating_sub(kib(&status, "RssFile:").unwrap_or(0))
            }
        };
        Some(resident + swapped)
    }

    /// Reads a file about a process in /proc.
    fn read(&self, pid: u32, name: &str) -> Option<String> {
        let text = fs::read(self.proc.join(pid.to_string()).join(name)).ok()?;
        Some(lossy(text))
    }
}

/// Decodes text from the kernel. It contains the process name, which may be any bytes, even a
/// truncated character.
pub(super) fn lossy(text: Vec<u8>) -> String {
    String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the start time of a process from its `stat`. See `proc_pid_stat(5)`, field 22; two
/// fields precede the end of the name.
pub(super) fn began(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns the number in the line that begins with `name`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// All processes of one look, indexed by parent and session.
#[derive(Debug, Default)]
pub(super) struct Families {
    processes: BTreeMap<u32, Process>,
    children: BTreeMap<u32, Vec<u32>>,
    sessions: BTreeMap<u32, Vec<u32>>,
}

impl Families {
    pub(super) fn new(processes: Vec<Process>) -> Self {
        let mut families = Self::default();
        for process in processes {
            let Process {
                pid,
                parent,
                session,
                ..
            } = process;
            families.children.entry(parent).or_default().push(pid);
            families.sessions.entry(session).or_default().push(pid);
            families.processes.insert(pid, process);
        }
        families
    }

    /// Returns one process.
    pub(super) fn get(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Returns the descendants of a process, and the members of its session with their descendants,
    /// in linear time.
    pub(super) fn tree(&self, root: u32) -> Vec<&Process> {
        // An orphan has left the tree, but not the session that the task leads.
        let in_session = self.sessions.get(&root).into_iter().flatten();
        let mut pending: Vec<u32> = in_session.copied().chain([root]).collect();
        let mut members = BTreeMap::new();
        while let Some(pid) = pending.pop() {
            if let Some(process) = self.processes.get(&pid)
                && members.insert(pid, process).is_none()
            {
                pending.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        members.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_is_no_text_is_seen_like_any_other() {
        let proc = tempfile::tempdir().expect("temporary directory");
        let own = proc.path().join("7");
        fs::create_dir(&own).expect("writable");
        let named = |before: &str, after: &str| {
            // The kernel truncates names after 15 bytes, in this case within a character.
            [before.as_bytes(), b"r\xc3\xa9cup\xc3", after.as_bytes()].concat()
        };
        let stat = " S 1 7 7 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 9 0\n";
        fs::write(own.join("stat"), named("7 (", &format!("){stat}"))).expect("writable");
        let status = "\nRssAnon:\t700 kB\nRssShmem:\t11 kB\n";
        fs::write(own.join("status"), named("Name:\t", status)).expect("writable");
        let processes = Processes::with_pages(proc.path(), 4);
        let [found] = processes.look()[..] else {
            panic!("it is there");
        };
        assert_eq!((found.pid, found.began, found.rss), (7, 5, 36));
        assert_eq!(processes.own(7), Some(711));
    }
}
