//! How many tasks are sent ahead to a worker, and which of them are worth retracting.

use std::time::Duration;

use super::rate::REPORT_DELAY;
use super::{BACKLOG_MAX, Worker};
use crate::time::Time;
use crate::worker_state::{AHEAD_OF_MANY, EVENT_DELAY, STREAM_INTERVAL, STREAM_PART};

/// How long the backlog should last at the worker's measured rate. This is many round trips plus
/// the longest delay of its reports, but short enough that a new worker or an urgent task does not
/// have to wait for it.
pub(crate) const BACKLOG_SPAN: Duration = Duration::from_millis(200);

impl Worker {
    /// Returns the desired backlog at the worker's current rate, at most [`BACKLOG_MAX`].
    pub(crate) fn backlog_by_rate(&self, now: Time) -> u32 {
        // No matter how fast tasks end, a lost worker returns no more tasks than this to the queue.
        let by_rate =
            (self.rate.current(now) * BACKLOG_SPAN.as_secs_f64()).min(f64::from(BACKLOG_MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0..=BACKLOG_MAX"
        )]
        let target = by_rate as u32;
        target
    }

    /// Returns the upper bound of the worker's reporting delay at this rate. Workers with short
    /// backlogs of longer tasks report each end immediately.
    fn report_delay(&self, rate: f64) -> Duration {
        let is_batched = self.backlog.len() as u64 > STREAM_PART;
        // The mean run time of its tasks follows from Little's law.
        let is_ahead = f64::from(self.running) < rate * AHEAD_OF_MANY.as_secs_f64();
        match (is_batched, is_ahead) {
            (true, true) => REPORT_DELAY,
            (true, false) => STREAM_INTERVAL,
            (false, true) => EVENT_DELAY,
            (false, false) => Duration::ZERO,
        }
    }

    /// Returns the number of tasks that the worker will still have queued after `span` at its
    /// current rate. These tasks are worth retracting.
    #[must_use]
    pub fn surplus(&self, now: Time, span: Duration) -> usize {
        // Equal tasks that started together end together. After a silence as long as the span, it
        // is unpredictable when they will end.
        let silence = now.since(self.rate.last());
        let rate = self.rate.current(now);
        let report_delay = self.report_delay(rate);
        if silence >= span + report_delay {
            return self.backlog.len();
        }
        // Some of the apparent backlog has ended or started since the last report.
        let span = span + silence.min(report_delay);
        let soon = rate * span.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small, >= 0"
        )]
        let soon = soon as usize;
        self.backlog.len().saturating_sub(soon)
    }

    pub(crate) fn count_ended(&mut self, now: Time, ended: u32) {
        self.rate.count(now, ended);
    }
}
