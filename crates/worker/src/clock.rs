//! The worker's clocks. `Time` is `CLOCK_MONOTONIC`, which the spawn engine also uses for its
//! events, so both can be compared.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hq_core::time::{Now, Time, Timestamp, nanos};
use rustix::time::{ClockId, clock_gettime};

/// Reads both clocks.
pub(crate) fn now() -> Now {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, nanos);
    Now {
        mono: monotonic(),
        wall: Timestamp(i64::try_from(wall).unwrap_or(i64::MAX)),
    }
}

fn monotonic() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let rest = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    Time(nanos(seconds + rest))
}
