//! Impossible states: a panic in tests and simulations, a report in production.
//!
//! A message from a peer is never an impossible state, however odd it is; meaningless messages are
//! counted as ignored. A bug is a contradiction between two parts of our own state. The server then
//! skips the step at hand and continues, because a crash would end the runs of all users. It logs
//! each place once, counts all reports, and shows them in `hq problems` and the metric
//! `internal_errors`.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of contradictions found since the process started.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the number of contradictions that this process has found in its state.
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// A place in the code that reports contradictions. It logs only its first report.
#[derive(Debug, Default)]
pub struct Place(AtomicBool);

impl Place {
    /// Creates a place that has not reported anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Counts a report, and returns whether it is the first one from this place.
    fn note(&self, count: &AtomicU64) -> bool {
        count.fetch_add(1, Ordering::Relaxed);
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Reports a contradiction; see [`bug!`](crate::bug!).
    ///
    /// # Panics
    ///
    /// Panics in tests and simulations.
    pub fn report(&self, what: fmt::Arguments<'_>) {
        // A release build aborts on panic. It has the `testing` feature if the whole workspace is
        // built, because the benchmarks enable it.
        if cfg!(all(any(test, feature = "testing"), panic = "unwind")) {
            panic!("a state that cannot be: {what}");
        }
        if self.note(&COUNT) {
            tracing::error!("a state that cannot be: {what}; please report this");
        }
    }
}

/// Reports an impossible state; see [`bug`](crate::bug).
#[macro_export]
macro_rules! bug {
    ($($what:tt)+) => {{
        static PLACE: $crate::bug::Place = $crate::bug::Place::new();
        PLACE.report(format_args!($($what)+));
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_every_time_and_speaks_once() {
        let (place, count) = (Place::new(), AtomicU64::new(0));
        let first: Vec<bool> = (0..3).map(|_| place.note(&count)).collect();
        assert_eq!(first, [true, false, false]);
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    #[test]
    #[should_panic(expected = "a state that cannot be: task 7 without a job")]
    fn tests_end_at_a_bug() {
        crate::bug!("task {} without a job", 7);
    }
}
