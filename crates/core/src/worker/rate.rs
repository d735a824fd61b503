//! How fast a worker ends tasks.

use std::time::Duration;

use crate::time::Time;

/// Window over which the completion rate is measured.
const RATE_WINDOW: Duration = Duration::from_millis(20);

/// Completion rate of a worker in tasks per second.
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

    /// When the last task ended.
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
            // Half of it is new, so a change of pace counts after a few windows and a single burst
            // does not.
            self.per_second = (self.per_second + measured) / 2.0;
            self.window_start = now;
            self.window_count = 0;
        }
    }

    /// The rate, lowered when nothing has ended for longer than it promises.
    pub(super) fn current(&self, now: Time) -> f64 {
        let span = now.since(self.window_start).max(RATE_WINDOW);
        // The task that runs now may never end: a rate from before it is worth less the longer it
        // takes.
        let bound = f64::from(self.window_count.saturating_add(1)) / span.as_secs_f64();
        self.per_second.min(bound)
    }
}
