//! Identifies the process that owns a store, on any host, and detects when it has ended.

use std::fmt;

/// A process on any host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The start time in ticks since boot, or 0 if it is unknown.
    pub(crate) start: i64,
    pub(crate) host: String,
    /// The boot id of the kernel and the PID namespace. A PID is only meaningful within both.
    pub(crate) boot: String,
}

impl Process {
    /// Returns this process.
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start: start_of(pid),
            host: host(),
            boot: boot(),
        }
    }

    /// Formats the process as a line of text.
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {} {}", self.pid, self.start, self.host, self.boot)
    }

    /// Parses the output of [`Self::to_text`].
    pub(crate) fn from_text(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        Some(Self {
            pid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            host: words.next()?.to_owned(),
            boot: words.next()?.to_owned(),
        })
    }

    /// Returns whether this process could see the other one if it were alive.
    pub(crate) fn is_near(&self) -> bool {
        self.boot == boot()
    }

    /// Returns whether the process is known to have ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_near() && (self.start == 0 || start_of(self.pid) != self.start)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)
    }
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the boot id of the kernel and the PID namespace of this process.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), pids.display())
}

/// Returns the start time of a process in ticks since boot, or 0 if it does not exist.
fn start_of(pid: u32) -> i64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain spaces and parentheses. The start time is field 22, counted from the
    // first one.
    let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = behind.split_whitespace();
    // A zombie does not hold any resources.
    if fields.next() == Some("Z") {
        return 0;
    }
    fields
        .nth(18)
        .and_then(|ticks| ticks.parse().ok())
        .unwrap_or(0)
}
