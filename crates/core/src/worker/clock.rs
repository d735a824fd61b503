//! When the reports of a worker were made, by the server's clock.
//!
//! A report says how long before its creation tasks started and ended. If the server counted from
//! the time at which it handles a report, the delay of each report would move its times, and two
//! tasks that took turns on a cpu could seem to overlap. All reports therefore count from the
//! worker's clock, at the distance that the fastest of the recent reports has shown.

use std::time::Duration;

use crate::time::{Now, Time, Timestamp, nanos};

/// The span of the reports of which the fastest counts. Clocks that nothing adjusts drift apart by a
/// few milliseconds in this time.
const SPAN: Duration = Duration::from_secs(60);

/// The maximum delay of a report. A larger one is taken to mean that the worker's clock stood still,
/// as it does while a machine is suspended, or that it is wrong. If the server itself was stalled,
/// the report is then dated when it is handled.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// The distance between the clock of a worker and that of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerClock {
    /// The smallest distance, including a delay, in the current and in the previous span.
    current: Option<i128>,
    previous: Option<i128>,
    /// When the current span began.
    since: Time,
}

impl WorkerClock {
    /// Returns when a report was made. The worker sent it at `sent`, by its own clock; it is handled
    /// now.
    pub(crate) fn date(&mut self, sent: Time, now: Now) -> Timestamp {
        let distance = i128::from(now.mono.0) - i128::from(sent.0);
        let age = now.mono.since(self.since);
        if age >= SPAN {
            self.previous = self.current.take().filter(|_| age < SPAN * 2);
            self.since = now.mono;
        }
        let known = self.current.into_iter().chain(self.previous).min();
        let delay = known.map_or(0, |known| distance - known);
        if delay > i128::from(nanos(DELAY_MAX)) {
            (self.current, self.previous) = (Some(distance), None);
            return now.wall;
        }
        self.current = Some(
            self.current
                .map_or(distance, |current| current.min(distance)),
        );
        // A negative delay means that this report is the fastest.
        let delay = u64::try_from(delay).unwrap_or(0);
        now.wall.minus(Duration::from_nanos(delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the dates of reports that were sent and handled at these milliseconds, each by its
    /// own clock.
    fn dates(reports: &[(u64, u64)]) -> Vec<i64> {
        let mut clock = WorkerClock::default();
        let date = |(sent, handled): &(u64, u64)| {
            let now = Now {
                mono: Time(handled * MS),
                wall: Timestamp((handled * MS).cast_signed()),
            };
            clock.date(Time(sent * MS), now).0 / MS.cast_signed()
        };
        reports.iter().map(date).collect()
    }

    #[test]
    fn a_delay_does_not_move_the_date_of_a_report() {
        // The fastest report takes no time. The worker's clock is 5 s ahead.
        let found = dates(&[
            (6_000, 1_000),
            (6_010, 1_033),
            (6_020, 1_034),
            (6_030, 1_030),
        ]);
        assert_eq!(found, [1_000, 1_010, 1_020, 1_030]);
    }

    #[test]
    fn the_distance_follows_clocks_that_drift() {
        // The worker's clock loses 1 ms in 40 s.
        let reports: Vec<_> = (0..20).map(|n| (n * 39_999, n * 40_000)).collect();
        for (date, (_, handled)) in dates(&reports).into_iter().zip(reports) {
            let late = handled.cast_signed() - date;
            assert!((0..=3).contains(&late), "{late} ms at {handled}");
        }
        // The worker's clock gains.
        assert_eq!(dates(&[(0, 1_000), (101, 1_100)]), [1_000, 1_100]);
        // It loses 4 s between two reports, half a second between the next ones.
        let reports = [(0, 1_000), (80_000, 85_000), (400_000, 405_500)];
        assert_eq!(dates(&reports), [1_000, 85_000, 405_500]);
    }

    #[test]
    fn a_clock_that_stood_still_or_is_wrong_does_not_move_dates() {
        let reports = [(1_000, 1_000), (2_000, 22_000), (2_010, 22_015)];
        assert_eq!(dates(&reports), [1_000, 22_000, 22_010]);
        let reports = [
            (u64::MAX / MS, 1_000),
            (1_010, 1_010),
            (0, 9_000),
            (9_010, 9_010),
        ];
        assert_eq!(dates(&reports), [1_000, 1_010, 9_000, 9_010]);
    }
}
