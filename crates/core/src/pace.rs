//! The speed of a job, and an estimate of its remaining time.
//!
//! A job records its task ends ([`Ends`]) and sends a few numbers ([`PaceFacts`]) to displays. Only
//! [`estimate`] turns them into a rate and a time. It assumes that waiting tasks are like ended
//! ones, and that the cluster stays as it has been recently. It does not consider dependencies.

use std::time::Duration;

use crate::time::{Timestamp, nanos};

/// The maximum number of stored marks. Beyond it, every other mark is dropped.
const MARKS_MAX: usize = 16;
/// The initial distance between two marks. It doubles whenever marks are dropped.
const SPACING_MIN: Duration = Duration::from_millis(250);
/// The rate is measured over the last part of the elapsed time, whose length is the elapsed time
/// divided by this. The window is long enough to even out chance and short enough to follow a
/// growing cluster.
const WINDOW: u32 = 4;
/// If the rate expected from the running tasks differs from the measured one by more than this
/// factor, the cluster has changed.
const CHANGE_MIN: f64 = 1.3;
/// With fewer task ends than this, no rate is measured.
const WINDOW_ENDS_MIN: u64 = 4;

/// A record of the ends of a job's tasks. Takes a few hundred bytes for any number of tasks.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    count: u64,
    /// The start of the first of these tasks and the end of the last one.
    span: Option<(Timestamp, Timestamp)>,
    run: Duration,
    /// The sum of the squares of the run times, in s².
    squares: f64,
    /// Times in ascending order, and how many tasks had ended by then.
    marks: Vec<(Timestamp, u64)>,
    spacing: Duration,
}

/// Statistics about the task ends of a job.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PaceFacts {
    /// The number of tasks that ended by themselves.
    pub ended: u64,
    /// When the first of them started.
    pub first_start: Timestamp,
    /// The sum of their run times.
    pub run: Duration,
    /// The sum of the squares of their run times, in s².
    pub squares: f64,
    /// The start of the window where the rate is measured.
    pub window_start: Timestamp,
    /// The number of tasks that have ended since then.
    pub window_ended: u64,
}

/// The progress of a job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// The recent number of tasks per second.
    pub rate: f64,
    /// The time since the first task started.
    pub elapsed: Duration,
    /// The time until the last task ends. `None` if it is unknown, because nothing is running or
    /// only the shortest tasks have ended.
    pub left: Option<Duration>,
}

impl Ends {
    /// Counts the end of a task.
    pub fn note(&mut self, at: Timestamp, run: Duration) {
        self.count += 1;
        self.run = self.run.saturating_add(run);
        self.squares += run.as_secs_f64().powi(2);
        let start = at.minus(run);
        self.span = Some(match self.span {
            Some((first, last)) => (first.min(start), last.max(at)),
            None => (start, at),
        });
        let spacing = self.spacing.max(SPACING_MIN);
        match self.marks.last() {
            Some((last, _)) if at.since(*last) < spacing => {}
            Some(_) | None => self.marks.push((at, self.count)),
        }
        if self.marks.len() > MARKS_MAX {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.spacing = spacing * 2;
        }
    }

    /// Forgets when tasks ended, after ends were noted in a different order, such as that of a
    /// store.
    pub fn forget_order(&mut self) {
        self.marks.clear();
    }

    /// Returns the numbers for an estimate. `None` before the first end.
    #[must_use]
    pub fn facts(&self) -> Option<PaceFacts> {
        let (first, last) = self.span?;
        let wanted = last.since(first) / WINDOW;
        let is_old = |(at, _): &&(Timestamp, u64)| last.since(*at) >= wanted;
        let mark = self.marks.iter().rev().find(is_old).or(self.marks.first());
        let (start, before) = mark.copied().unwrap_or((last, self.count));
        Some(PaceFacts {
            ended: self.count,
            first_start: first,
            run: self.run,
            squares: self.squares,
            window_start: start,
            window_ended: self.count - before,
        })
    }
}

/// Estimates the progress of a job at the time `now` of the server's clock. `waiting` and `running`
/// are the numbers of its tasks in these states.
#[must_use]
pub fn estimate(facts: &PaceFacts, waiting: u64, running: u64, now: Timestamp) -> Pace {
    let elapsed = now.since(facts.first_start);
    let mean = facts.run.as_secs_f64() / float(facts.ended.max(1));
    // Among tasks that started together, the shortest end first. Tasks that are still running take
    // longer.
    if facts.ended < WINDOW_ENDS_MIN.min(running) && elapsed.as_secs_f64() > 3.0 * mean {
        return Pace {
            rate: float(facts.ended) / elapsed.as_secs_f64(),
            elapsed,
            left: None,
        };
    }
    let window = now.since(facts.window_start).as_secs_f64();
    let measured = (facts.window_ended >= WINDOW_ENDS_MIN && window > 0.0)
        .then(|| float(facts.window_ended) / window);
    // The rate of `running` parallel tasks with this mean run time (Little's law).
    let by_running = (running > 0 && mean > 0.0).then(|| float(running) / mean);
    let rate = match (measured, by_running) {
        (Some(measured), Some(by_running)) if waiting > 0 => {
            // If the measured rate is very different, the cluster has just grown or lost workers.
            let change = by_running / measured;
            if (1.0 / CHANGE_MIN..=CHANGE_MIN).contains(&change) {
                measured
            } else {
                by_running
            }
        }
        (Some(rate), _) | (None, Some(rate)) => rate,
        (None, None) => 0.0,
    };
    let left = match (waiting, running) {
        (0, 0) => Some(Duration::ZERO),
        (_, 0) => None,
        _ if facts.ended == 0 || rate <= 0.0 => None,
        _ => {
            // Each end starts one more task. The next end comes after half the time between two
            // ends.
            let until_all_run = (float(waiting) - 0.5) / rate;
            seconds(until_all_run + tail(facts, mean, running))
        }
    };
    Pace {
        rate,
        elapsed,
        left,
    }
}

/// Returns the time from the start of the last task to the end of the last running task.
fn tail(facts: &PaceFacts, mean: f64, running: u64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    // The squared coefficient of variation: 0 for equal times, 1 for random ends, and more with a
    // long tail.
    let variation = facts.squares / float(facts.ended.max(1)) / (mean * mean) - 1.0;
    let variation = variation.clamp(0.0, 4.0);
    let chance = variation.min(1.0);
    // The mean remaining time of a running task (renewal theory), and the longest of several. For
    // exponential times, the latter grows with the harmonic number.
    let residual = mean * (1.0 + variation.max(1.0)) / 2.0;
    let longest = residual * harmonic(running);
    mean * (1.0 - chance) + longest * chance
}

/// Returns 1 + 1/2 + … + 1/n.
fn harmonic(n: u64) -> f64 {
    const EULER: f64 = 0.577_215_664_9;
    let n = float(n.max(1));
    if n < 2.0 {
        return 1.0;
    }
    n.ln() + EULER + 0.5 / n
}

fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value.max(0.0)).ok()
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(value: u64) -> f64 {
    value as f64
}

/// Returns when the last task is expected to end at this pace.
#[must_use]
pub fn expected_end(pace: &Pace, now: Timestamp) -> Option<Timestamp> {
    let left = pace.left?;
    (nanos(left) < u64::MAX / 4).then(|| now.plus(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeatable random number generator (SplitMix64).
    struct SplitMix64(u64);

    impl SplitMix64 {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            float((z ^ (z >> 31)) >> 11) / float(1 << 53)
        }

        fn normal(&mut self) -> f64 {
            let radius = (-2.0 * (1.0 - self.next()).ln()).sqrt();
            radius * (std::f64::consts::TAU * self.next()).cos()
        }
    }

    /// Returns the start and end of each task on a cluster whose number of slots changes over time.
    fn record(times: &[f64], slots: impl Fn(f64) -> usize) -> Vec<(f64, f64)> {
        let (mut run, mut busy): (Vec<(f64, f64)>, Vec<f64>) = (Vec::new(), Vec::new());
        let mut now = 0.0;
        for time in times {
            loop {
                busy.retain(|end| *end > now);
                if busy.len() < slots(now) {
                    break;
                }
                let next = busy.iter().copied().fold(f64::INFINITY, f64::min);
                // The cluster may grow before that.
                now = next.min(now + 1.0);
            }
            run.push((now, now + time));
            busy.push(now + time);
        }
        run
    }

    #[test]
    fn the_first_ones_to_end_are_no_measure_for_those_that_run() {
        let mut ends = Ends::default();
        ends.note(at(0.002), Duration::from_millis(2));
        let facts = ends.facts().expect("one has ended");
        let pace = estimate(&facts, 191, 8, at(0.5));
        assert_eq!(pace.left, None);
        assert!((1.9..2.1).contains(&pace.rate), "{}", pace.rate);
        // That task took as long as the others have been running.
        let mut ends = Ends::default();
        ends.note(at(10.0), Duration::from_secs(10));
        let facts = ends.facts().expect("one has ended");
        assert!(estimate(&facts, 191, 8, at(10.5)).left.is_some());
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs_f64(seconds + 1_000.0))
    }

    /// Returns the relative error of the estimate at half the duration of a run.
    fn error_at_half_time(run: &[(f64, f64)]) -> f64 {
        let end = run.iter().map(|(_, end)| *end).fold(0.0, f64::max);
        let half = end / 2.0;
        let mut ended: Vec<&(f64, f64)> = run.iter().filter(|(_, end)| *end <= half).collect();
        ended.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends = Ends::default();
        for (start, end) in &ended {
            ends.note(at(*end), Duration::from_secs_f64(end - start));
        }
        let waiting = run.iter().filter(|(start, _)| *start > half).count() as u64;
        let running = run.len() as u64 - waiting - ended.len() as u64;
        let facts = ends.facts().expect("some have ended");
        let pace = estimate(&facts, waiting, running, at(half));
        let left = pace.left.expect("some run").as_secs_f64();
        (left - half).abs() / half
    }

    fn median_error(make: impl Fn(&mut SplitMix64) -> Vec<(f64, f64)>) -> f64 {
        let mut errors: Vec<f64> = (0..41)
            .map(|seed| error_at_half_time(&make(&mut SplitMix64(seed))))
            .collect();
        errors.sort_by(f64::total_cmp);
        errors[errors.len() / 2]
    }

    fn times(
        chance: &mut SplitMix64,
        count: usize,
        one: impl Fn(&mut SplitMix64) -> f64,
    ) -> Vec<f64> {
        (0..count).map(|_| one(chance)).collect()
    }

    #[test]
    fn half_way_the_rest_is_known_within_a_fifth() {
        let steady = |chance: &mut SplitMix64| {
            let times = times(chance, 400, |chance| 9.0 + 2.0 * chance.next());
            record(&times, |_| 16)
        };
        let few = |chance: &mut SplitMix64| {
            let times = times(chance, 60, |chance| 9.0 + 2.0 * chance.next());
            record(&times, |_| 8)
        };
        let two_kinds = |chance: &mut SplitMix64| {
            let times = times(chance, 600, |chance| match chance.next() {
                long if long < 0.1 => 20.0,
                _ => 1.0,
            });
            record(&times, |_| 8)
        };
        let failures = |chance: &mut SplitMix64| {
            let times = times(chance, 500, |chance| match chance.next() {
                failed if failed < 0.2 => 0.05,
                _ => 8.0 + 4.0 * chance.next(),
            });
            record(&times, |_| 16)
        };
        let growing = |chance: &mut SplitMix64| {
            let times = times(chance, 1_500, |chance| 3.0 + 4.0 * chance.next());
            record(&times, |now| match now {
                early if early < 40.0 => 4,
                early if early < 80.0 => 8,
                early if early < 120.0 => 16,
                _ => 32,
            })
        };
        let just_grown = |chance: &mut SplitMix64| {
            let times = times(chance, 300, |chance| 0.9 + 0.2 * chance.next());
            record(&times, |now| match now {
                early if early < 8.0 => 3,
                early if early < 15.0 => 6,
                _ => 12,
            })
        };
        let long_tail = |chance: &mut SplitMix64| {
            let times = times(chance, 1_000, |chance| chance.normal().exp());
            record(&times, |_| 16)
        };
        type Make<'a> = &'a dyn Fn(&mut SplitMix64) -> Vec<(f64, f64)>;
        let runs: [(&str, Make<'_>); 7] = [
            ("steady", &steady),
            ("few", &few),
            ("two kinds", &two_kinds),
            ("failures", &failures),
            ("growing", &growing),
            ("just grown", &just_grown),
            ("long tail", &long_tail),
        ];
        let errors: Vec<(&str, f64)> = runs
            .iter()
            .map(|(name, make)| (*name, median_error(make)))
            .collect();
        for (name, error) in &errors {
            assert!(*error < 0.2, "{name}: {error}");
        }
    }

    #[test]
    fn nothing_is_promised_without_a_reason() {
        assert!(Ends::default().facts().is_none());
        let mut ends = Ends::default();
        ends.note(at(10.0), Duration::from_secs(10));
        let facts = ends.facts().expect("one");
        assert_eq!(estimate(&facts, 5, 0, at(11.0)).left, None);
        assert_eq!(estimate(&facts, 0, 0, at(11.0)).left, Some(Duration::ZERO));
        // A second task takes ten seconds.
        let left = estimate(&facts, 0, 1, at(10.0)).left.expect("it runs");
        assert!((4..=10).contains(&left.as_secs()), "{left:?}");
        assert_eq!(estimate(&facts, 0, 1, at(30.0)).elapsed.as_secs(), 30);
    }

    #[test]
    fn a_job_remembers_little() {
        let mut ends = Ends::default();
        for number in 0..100_000 {
            ends.note(at(f64::from(number) / 10.0), Duration::from_millis(100));
        }
        assert!(ends.marks.len() <= MARKS_MAX + 1);
        let facts = ends.facts().expect("many");
        let pace = estimate(&facts, 1_000, 1, at(9_999.9));
        assert!((pace.rate - 10.0).abs() < 0.5, "{pace:?}");
        ends.forget_order();
        let facts = ends.facts().expect("many");
        assert_eq!(facts.window_ended, 0);
        let pace = estimate(&facts, 1_000, 1, at(9_999.9));
        assert!((pace.rate - 10.0).abs() < 0.5, "{pace:?}");
    }
}
