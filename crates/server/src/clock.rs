//! The only module of the server that reads clocks.

use std::time::{Duration, Instant, SystemTime};

use hq_core::time::{Now, Time, Timestamp, nanos};
use rustix::time::{ClockId, clock_gettime};

/// Reads the wall clock and the monotonic clock. Monotonic time starts at the creation of this
/// value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The time that a test has skipped.
    #[cfg(test)]
    pub(crate) ahead: Duration,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            #[cfg(test)]
            ahead: Duration::ZERO,
        }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_nanos()).ok())
            .unwrap_or(0);
        let mono = Time(nanos(self.origin.elapsed()));
        #[cfg(test)]
        let mono = mono + self.ahead;
        Now {
            mono,
            wall: Timestamp(wall),
        }
    }

    /// Converts an instant to monotonic time.
    pub(crate) fn time(&self, instant: Instant) -> Time {
        Time(nanos(instant.saturating_duration_since(self.origin)))
    }

    /// Converts monotonic time to an instant.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.origin + Duration::from_nanos(time.0)
    }
}

/// Returns the CPU time that the calling thread has used, which excludes waiting for a processor.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither part is ever negative.
    Duration::try_from(time).unwrap_or_default()
}
