//! Describes the pace of jobs and their remaining time.

use std::time::Duration;

use hq_core::pace::{Pace, PaceFacts, estimate, expected_end};
use hq_core::time::Timestamp;
use hq_protocol::client;
use jiff::tz::TimeZone;

use super::format::{now_unix_ns, short_words, timestamp};

/// The minimum pace, in tasks per second, that is not shown as 0.
const RATE_MIN: f64 = 0.05 / 3_600.0;

/// Returns the pace of a job at a time of the server's clock, or `None` before its first task has
/// ended.
pub(crate) fn pace(job: &client::JobSummary, now_unix_ns: i64) -> Option<Pace> {
    let facts = job.pace.as_ref()?;
    let counts = super::view::totals(job);
    let facts = PaceFacts {
        ended: facts.ended,
        first_start: Timestamp(facts.first_start_unix_ns),
        run: Duration::from_nanos(facts.run_ns),
        squares: facts.run_squares,
        window_start: Timestamp(facts.window_unix_ns),
        window_ended: facts.window_ended,
    };
    let now = Timestamp(now_unix_ns);
    Some(estimate(&facts, counts.waiting, counts.running, now))
}

/// Returns `5.2 tasks/s, 3m 5s elapsed, 40s left, until 12:14:48`, or `None` if this is unknown or
/// no task is left.
pub(crate) fn text<'a>(
    jobs: impl Iterator<Item = &'a client::JobSummary>,
    now_unix_ns: i64,
) -> Option<String> {
    let paces: Vec<Pace> = jobs
        .filter(|job| !super::view::is_idle(job))
        .map(|job| pace(job, now_unix_ns))
        .collect::<Option<_>>()?;
    let rate: f64 = paces.iter().map(|pace| pace.rate).sum();
    let elapsed = paces.iter().map(|pace| pace.elapsed).max()?;
    let mut text = format!("{} elapsed", whole(elapsed));
    if rate >= RATE_MIN {
        text = format!("{}, {text}", rate_text(rate));
    }
    // The job that ends last determines when all have ended.
    let last = paces
        .iter()
        .map(|pace| pace.left.map(|left| (left, *pace)))
        .collect::<Option<Vec<_>>>()
        .and_then(|known| known.into_iter().max_by_key(|(left, _)| *left));
    if let Some((left, pace)) = last {
        text.push_str(&format!(", {} left", whole(left)));
        if let Some(end) = until(&pace, now_unix_ns) {
            text.push_str(&format!(", until {end}"));
        }
    }
    Some(text)
}

/// Returns the remaining time, such as `3m 5s`, or `None` if it is unknown or no task is left.
pub(crate) fn left(job: &client::JobSummary, now_unix_ns: i64) -> Option<String> {
    let pace = pace(job, now_unix_ns).filter(|_| !super::view::is_idle(job))?;
    pace.left.map(whole)
}

/// Returns when the last task is expected to end: `12:14:48`.
pub(crate) fn until(pace: &Pace, now_unix_ns: i64) -> Option<String> {
    let end = expected_end(pace, Timestamp(now_unix_ns))?;
    Some(clock(end, now_unix_ns))
}

/// Returns a short form for the end of a bar: `5.2 tasks/s, 40s left`.
pub(crate) fn short<'a>(
    jobs: impl Iterator<Item = &'a client::JobSummary>,
    now_unix_ns: i64,
) -> Option<String> {
    let text = text(jobs, now_unix_ns)?;
    let parts = text
        .split(", ")
        .filter(|part| !part.ends_with(" elapsed") && !part.starts_with("until "));
    Some(parts.collect::<Vec<_>>().join(", "))
}

/// The server's clock, as the difference from the local clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock(i64);

impl ServerClock {
    /// Determines the server's clock from an answer that has just arrived.
    pub(crate) fn of(info: &client::ServerInfo) -> Self {
        Self(info.now_unix_ns.saturating_sub(now_unix_ns()))
    }

    /// Returns the current time by the server's clock.
    pub(crate) fn now_unix_ns(self) -> i64 {
        now_unix_ns().saturating_add(self.0)
    }
}

/// Formats a pace per second, minute or hour, with at most one decimal.
pub(crate) fn rate_text(per_second: f64) -> String {
    let (rate, unit) = match per_second {
        fast if fast >= 0.95 => (fast, "s"),
        slow if slow * 60.0 >= 0.95 => (slow * 60.0, "min"),
        slow => (slow * 3_600.0, "h"),
    };
    if rate >= 10.0 {
        format!("{rate:.0} tasks/{unit}")
    } else {
        format!("{rate:.1} tasks/{unit}")
    }
}

/// Formats a duration in whole seconds, because milliseconds of an estimate are meaningless.
pub(crate) fn whole(duration: Duration) -> String {
    short_words(Duration::from_secs(
        duration
            .as_millis()
            .div_ceil(1_000)
            .try_into()
            .unwrap_or(u64::MAX),
    ))
}

/// Formats the time of day, with the date if it is another day.
fn clock(at: Timestamp, now_unix_ns: i64) -> String {
    let zoned = |ns: i64| timestamp(ns).to_zoned(TimeZone::system());
    let (end, now) = (zoned(at.0), zoned(now_unix_ns));
    if end.date() == now.date() {
        end.strftime("%H:%M:%S").to_string()
    } else {
        end.strftime("%Y-%m-%d %H:%M").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_unit_that_people_can_read() {
        for (rate, shown) in [
            (1_234.0, "1234 tasks/s"),
            (5.25, "5.2 tasks/s"),
            (0.5, "30 tasks/min"),
            (0.001, "3.6 tasks/h"),
        ] {
            assert_eq!(rate_text(rate), shown);
        }
    }

    #[test]
    fn jobs_that_go_on_have_an_end_in_sight() {
        let second = 1_000_000_000;
        let job = |running, waiting| client::JobSummary {
            stats: Some(client::TaskStats {
                running,
                waiting,
                finished: 50,
                ..client::TaskStats::default()
            }),
            pace: Some(client::PaceFacts {
                ended: 50,
                first_start_unix_ns: 0,
                run_ns: 100_000_000_000,
                run_squares: 200.0,
                window_unix_ns: 25 * second,
                window_ended: 25,
            }),
            ..client::JobSummary::default()
        };
        let now = 50 * second;
        let text_of = |job: client::JobSummary| text(std::iter::once(&job), now);
        let shown = text_of(job(2, 48)).expect("it goes on");
        assert!(
            shown.starts_with("1.0 tasks/s, 50s elapsed, 50s left, until "),
            "{shown}"
        );
        let short = short(std::iter::once(&job(2, 48)), now);
        assert_eq!(short.as_deref(), Some("1.0 tasks/s, 50s left"));
        assert_eq!(text_of(job(0, 0)), None);
        let young = client::JobSummary {
            pace: Some(client::PaceFacts {
                window_unix_ns: 0,
                window_ended: 0,
                ..job(2, 48).pace.expect("it has begun")
            }),
            ..job(2, 48)
        };
        let shown = text_of(young).expect("it goes on");
        assert!(!shown.contains("0.0 tasks"), "{shown}");
        let starving = text_of(job(0, 9)).expect("it went on");
        assert!(starving.ends_with("elapsed"), "{starving}");
        assert_eq!(
            text_of(client::JobSummary {
                pace: None,
                ..job(1, 1)
            }),
            None
        );
    }
}
