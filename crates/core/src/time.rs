//! Time as a value: the core never reads a clock. The shell passes the time to it.

use std::ops::Add;
use std::time::Duration;

/// A monotonic time in nanoseconds since an arbitrary origin of the process. All timers use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time since `earlier`, or zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(nanos(rhs)))
    }
}

/// A wall-clock time in nanoseconds since 1970-01-01 UTC, for records and display. It is never used
/// in a decision, except for the rest of a delay that began under an earlier server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the instant `age` before this one.
    #[must_use]
    pub fn minus(self, age: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_sub(i64::try_from(nanos(age)).unwrap_or(i64::MAX)),
        )
    }

    /// Returns the instant `span` after this one.
    #[must_use]
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_add(i64::try_from(nanos(span)).unwrap_or(i64::MAX)),
        )
    }

    /// Returns the time since `earlier`, or zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The time on both clocks. The shell reads them together before it passes an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The monotonic clock, used for decisions.
    pub mono: Time,
    /// The wall clock, used for records.
    pub wall: Timestamp,
}

/// Returns a duration in whole nanoseconds, saturating at `u64::MAX` (584 years).
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
