//! How fast tasks end on a worker.

use std::time::Duration;

use crate::time::Time;
use crate::worker_state::{EVENT_DELAY, STREAM_INTERVAL};

/// The window over which the completion rate is measured.
const RATE_WINDOW: Duration = Duration::from_millis(20);

/// The longest delay before the end of a short task is reported, in the worker and in transit.
pub(super) const REPORT_DELAY: Duration = STREAM_INTERVAL.saturating_add(EVENT_DELAY);

/// The completion rate of a worker in tasks per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    per_second: f64,
    window_start: Time,
    window_count: u32,
    /// When the last task ended.
    last: Time,
}

impl Rate {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            per_second: 0.0,
            window_start: now,
            window_count: 0,
            last: now,
        }
    }

    /// Returns when the last task ended.
    pub(super) const fn last(&self) -> Time {
        self.last
    }

    pub(super) fn count(&mut self, now: Time, ended: u32) {
        if ended > 0 {
            self.last = now;
        }
        self.window_count = self.window_count.saturating_add(ended);
        let span = now.since(self.window_start);
        if span >= RATE_WINDOW {
            let measured = f64::from(self.window_count) / span.as_secs_f64();
            // Half of the value is new, so a change of pace takes effect after a few windows, and a
            // single burst does not.
            self.per_second = (self.per_second + measured) / 2.0;
            self.window_start = now;
            self.window_count = 0;
        }
    }

    /// Returns the rate, which is reduced if nothing has ended for longer than it implies.
    pub(super) fn current(&self, now: Time) -> f64 {
        let span = now.since(self.window_start);
        if span <= REPORT_DELAY {
            // Recent ends may not have been reported yet.
            return self.per_second;
        }
        let span = (span - REPORT_DELAY).max(RATE_WINDOW);
        // The running task may never end. The longer it runs, the less an older rate is worth.
        let bound = f64::from(self.window_count.saturating_add(1)) / span.as_secs_f64();
        self.per_second.min(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn a_rate_is_known_between_reports_that_come_now_and_then() {
        let mut rate = Rate::new(at(0));
        for report in 1..=20 {
            rate.count(at(report * 50), 100);
        }
        for millis in [1_000, 1_025, 1_049, 1_080] {
            let current = rate.current(at(millis));
            assert!(
                (1_950.0..=2_000.0).contains(&current),
                "{current} at {millis}"
            );
        }
    }

    #[test]
    fn a_rate_from_before_is_worth_less_when_nothing_ends_any_more() {
        let mut rate = Rate::new(at(0));
        for report in 1..=20 {
            rate.count(at(report * 50), 100);
        }
        assert!(rate.current(at(1_100)) <= 50.0);
        assert!(rate.current(at(2_080)) <= 1.0);
    }
}
