//! How long a turn takes, and what of.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::thread_cpu_time;

/// CPU time of a turn that is longer than any should be; such a one is logged.
const TURN_CPU_MAX: Duration = Duration::from_millis(10);

/// What a turn consists of.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Requests of clients, without the rounds that they ask for.
    Requests,
    /// What workers said.
    Reports,
    /// What was due by time.
    Timer,
    /// Scheduling.
    Round,
    /// Messages and changes that follow from it, on their way to those who send and store them.
    Effects,
    /// Messages that waited for a commit.
    Release,
}

const PARTS: [(Part, &str); 6] = [
    (Part::Requests, "requests"),
    (Part::Reports, "reports"),
    (Part::Timer, "timer"),
    (Part::Round, "round"),
    (Part::Effects, "effects"),
    (Part::Release, "release"),
];

/// A turn that is under way.
pub(super) struct Turn {
    /// CPU time of the thread when it began.
    begin: Duration,
    /// When the last part ended.
    last: Instant,
    /// By part, as the clock on the wall tells, which costs next to nothing to ask.
    took: [Duration; PARTS.len()],
}

impl Turn {
    pub(super) fn begin() -> Self {
        Self {
            begin: thread_cpu_time(),
            last: Instant::now(),
            took: Default::default(),
        }
    }

    /// CPU time so far. Saturating: a clock that steps back is no reason to stop the server.
    pub(super) fn cpu(&self) -> Duration {
        thread_cpu_time().saturating_sub(self.begin)
    }

    /// What was done since the last call belongs to `part`.
    pub(super) fn lap(&mut self, part: Part) {
        let now = Instant::now();
        if let Some(took) = self.took.get_mut(part as usize) {
            *took += now.saturating_duration_since(self.last);
        }
        self.last = now;
    }

    /// Logs the turn if it took long, for those who look for what holds up a server; `rows` = what workers said in it.
    pub(super) fn end(&self, rows: usize) {
        let cpu = self.cpu();
        if cpu >= TURN_CPU_MAX {
            let cpu_ms = cpu.as_secs_f64() * 1e3;
            tracing::debug!(cpu_ms, rows, parts_ms = %self, "a long turn of the core's thread");
        }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = PARTS.iter().zip(self.took);
        for (index, ((_, name), took)) in parts.enumerate() {
            let gap = if index == 0 { "" } else { ", " };
            write!(f, "{gap}{name} {:.1}", took.as_secs_f64() * 1e3)?;
        }
        Ok(())
    }
}
