//! How much a worker is sent ahead of what it has room for, and what of it is worth taking back.

use std::time::Duration;

use super::rate::REPORT_DELAY;
use super::{BACKLOG_MAX, Worker};
use crate::time::Time;
use crate::worker_state::{AHEAD_OF_MANY, EVENT_DELAY, STREAM_INTERVAL, STREAM_PART};

/// Work sent ahead should last this long at the worker's measured rate: many times a round trip, with reports of what ended that
/// come as late as a worker may send them, but short enough that a new worker or an urgent task does not wait behind it.
pub(crate) const BACKLOG_SPAN: Duration = Duration::from_millis(200);

impl Worker {
    /// How many tasks should wait on it at its present rate, at most [`BACKLOG_MAX`].
    pub(crate) fn backlog_by_rate(&self, now: Time) -> u32 {
        // However fast tasks end, a lost worker takes no more than this back to the queue with it.
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

    /// How long an end may be on its way while the worker ends as many tasks a second. Whoever has little left, of tasks that
    /// are too long to be handed over ahead, tells of each end at once.
    fn report_delay(&self, rate: f64) -> Duration {
        let is_batched = self.backlog.len() as u64 > STREAM_PART;
        // By Little's law, how long its tasks take, on average.
        let is_ahead = f64::from(self.running) < rate * AHEAD_OF_MANY.as_secs_f64();
        match (is_batched, is_ahead) {
            (true, true) => REPORT_DELAY,
            (true, false) => STREAM_INTERVAL,
            (false, true) => EVENT_DELAY,
            (false, false) => Duration::ZERO,
        }
    }

    /// Tasks it will still have queued after `span` at its present rate: worth taking back.
    #[must_use]
    pub fn surplus(&self, now: Time, span: Duration) -> usize {
        // Equal tasks that started together end together: after as long a silence nobody knows when.
        let silence = now.since(self.rate.last());
        let rate = self.rate.current(now);
        let report_delay = self.report_delay(rate);
        if silence >= span + report_delay {
            return self.backlog.len();
        }
        // Some of what seems to be left has ended, or runs, since it last told.
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
