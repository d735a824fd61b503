//! The only place of the server that reads clocks.

use std::time::{Instant, SystemTime};

use hq_core::time::{Now, Time, Timestamp, nanos};

/// Reads both clocks; monotonic time counts from its creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_nanos()).ok())
            .unwrap_or(0);
        Now {
            mono: Time(nanos(self.origin.elapsed())),
            wall: Timestamp(wall),
        }
    }

    /// The instant of a monotonic time.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.origin + std::time::Duration::from_nanos(time.0)
    }
}
