//! Measures how long each part of a turn takes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::thread_cpu_time;

/// Turns that use more CPU time than this are logged.
const TURN_CPU_MAX: Duration = Duration::from_millis(10);

/// The parts of a turn.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Requests from clients, excluding the scheduling rounds that they trigger.
    Requests,
    /// Messages from workers.
    Reports,
    /// Expired timers.
    Timer,
    /// Scheduling.
    Round,
    /// Passing the resulting messages to senders, and the resulting changes to the store.
    Effects,
    /// Sending the messages that waited for a commit.
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

/// A turn in progress.
pub(super) struct Turn {
    /// The CPU time of the thread when the turn began.
    begin: Duration,
    /// When the last part ended.
    last: Instant,
    /// The wall-clock time of each part. Reading the wall clock costs almost nothing.
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

    /// Returns the CPU time used so far. Saturates, so that a clock that steps back does not stop
    /// the server.
    pub(super) fn cpu(&self) -> Duration {
        thread_cpu_time().saturating_sub(self.begin)
    }

    /// Attributes the time since the last call to `part`.
    pub(super) fn lap(&mut self, part: Part) {
        let now = Instant::now();
        if let Some(took) = self.took.get_mut(part as usize) {
            *took += now.saturating_duration_since(self.last);
        }
        self.last = now;
    }

    /// Logs a slow turn for diagnosis. `rows` is the number of rows in the workers' messages that
    /// it handled.
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
