//! Identifies the process that owns a store, on any host, and detects its end.

use std::fmt;

/// A process on any host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Start in ticks since boot; 0 = unknown.
    pub(crate) start: i64,
    pub(crate) host: String,
    /// Boot id of the kernel and PID namespace. A PID is only meaningful within both.
    pub(crate) boot: String,
}

impl Process {
    /// This process.
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start: start_of(pid),
            host: host(),
            boot: boot(),
        }
    }

    /// One line of text.
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

    /// Whether this process could see the other one if it lived.
    pub(crate) fn is_near(&self) -> bool {
        self.boot == boot()
    }

    /// Whether the process has certainly ended.
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

/// Boot id of the kernel and PID namespace of this process.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), pids.display())
}

/// Start of a process in ticks since boot; 0 if there is none.
fn start_of(pid: u32) -> i64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain blanks and parentheses; field 22 counts from the first.
    let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = behind.split_whitespace();
    // A zombie holds no resources.
    if fields.next() == Some("Z") {
        return 0;
    }
    fields
        .nth(18)
        .and_then(|ticks| ticks.parse().ok())
        .unwrap_or(0)
}
