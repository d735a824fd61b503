//! Time as a value: the core never reads a clock, the shell passes the time in.

use std::ops::Add;
use std::time::Duration;

/// Monotonic time in nanoseconds since an arbitrary origin of the process; all timers use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Time since `earlier`; zero if `earlier` lies in the future.
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

/// Wall-clock time in nanoseconds since 1970-01-01 UTC; for records and display. No decision
/// compares it, except for the rest of a delay that an earlier server began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The instant `age` before this one.
    #[must_use]
    pub fn minus(self, age: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_sub(i64::try_from(nanos(age)).unwrap_or(i64::MAX)),
        )
    }

    /// The instant `span` after this one.
    #[must_use]
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_add(i64::try_from(nanos(span)).unwrap_or(i64::MAX)),
        )
    }

    /// Time since `earlier`; zero if `earlier` lies in the future.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Both clocks, read together by the shell before it feeds an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Monotonic clock; decides.
    pub mono: Time,
    /// Wall clock; is recorded.
    pub wall: Timestamp,
}

/// A duration in whole nanoseconds, saturating at `u64::MAX` (584 years).
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
