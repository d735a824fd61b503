//! Measurements over time, thinned out so that days fit: the older, the coarser.

use std::collections::VecDeque;

use super::model::Sample;

const SECOND: i64 = 1_000_000_000;
/// Minimum distance of samples (second number) that are older than the first number: at most a few
/// thousand samples for a week.
const RESOLUTION: [(i64, i64); 3] = [
    (600 * SECOND, 5 * SECOND),
    (3_600 * SECOND, 60 * SECOND),
    (86_400 * SECOND, 600 * SECOND),
];
/// Samples between two passes that thin out.
const THIN_EVERY: usize = 512;
/// Span over which throughput is averaged.
const RATE_SPAN: i64 = 10 * SECOND;

/// Samples, oldest first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    unthinned: usize,
}

/// One column of the charts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Column {
    /// Tasks that ended a second.
    pub(crate) rate: u64,
    pub(crate) running: u64,
    pub(crate) cpus_percent: u64,
}

impl History {
    /// Adds what is seen now.
    pub(crate) fn push(&mut self, mut sample: Sample) {
        if let Some(last) = self.samples.back() {
            // The count must not decrease when a job is forgotten or another server starts.
            sample.ended = sample.ended.max(last.ended);
            if sample.at_ns <= last.at_ns {
                return;
            }
        }
        self.samples.push_back(sample);
        self.unthinned += 1;
        if self.unthinned >= THIN_EVERY {
            self.thin(sample.at_ns);
        }
    }

    /// Inserts earlier samples, adjusted so that they lead to the first one seen.
    pub(crate) fn prepend(&mut self, steps: &[Sample]) {
        let first_at = self.samples.front().map_or(i64::MAX, |first| first.at_ns);
        let steps = || steps.iter().filter(|step| step.at_ns < first_at);
        let sum: u64 = steps().map(|step| step.ended).sum();
        let end = self.samples.front().map_or(sum, |first| first.ended);
        let mut ended = end.saturating_sub(sum);
        let mut earlier: VecDeque<Sample> = steps()
            .map(|step| {
                ended += step.ended;
                Sample { ended, ..*step }
            })
            .collect();
        earlier.append(&mut self.samples);
        self.samples = earlier;
    }

    fn thin(&mut self, now_ns: i64) {
        self.unthinned = 0;
        let mut kept = i64::MIN;
        self.samples.retain(|sample| {
            let age = now_ns - sample.at_ns;
            let old = RESOLUTION.iter().rev().find(|(from, _)| age > *from);
            let apart = old.map_or(0, |(_, apart)| *apart);
            let keeps = sample.at_ns >= kept.saturating_add(apart);
            if keeps {
                kept = sample.at_ns;
            }
            keeps
        });
    }

    /// Time of the first sample.
    pub(crate) fn first_ns(&self) -> Option<i64> {
        self.samples.front().map(|sample| sample.at_ns)
    }

    /// Tenths of tasks a second that ended over the last seconds before a time.
    pub(crate) fn rate_tenths(&self, at_ns: i64) -> u64 {
        let (from, to) = (self.ended_at(at_ns - RATE_SPAN), self.ended_at(at_ns));
        let since = self.first_ns().unwrap_or(at_ns).max(at_ns - RATE_SPAN);
        per_time(to.saturating_sub(from), at_ns - since, 10)
    }

    /// Columns of equal width from one time to another.
    pub(crate) fn columns(&self, (from_ns, to_ns): (i64, i64), count: usize) -> Vec<Column> {
        let parts = i64::try_from(count.max(1)).unwrap_or(i64::MAX);
        let width = ((to_ns - from_ns) / parts).max(1);
        let mut columns = Vec::with_capacity(count);
        for number in 0..i64::try_from(count).unwrap_or(0) {
            let (start, end) = (from_ns + number * width, from_ns + (number + 1) * width);
            let mut column = Column {
                rate: per_time(
                    self.ended_at(end).saturating_sub(self.ended_at(start)),
                    width,
                    1,
                ),
                ..Column::default()
            };
            if let Some(last) = self.before(end) {
                column.running = last.running;
                column.cpus_percent = last.cpus_percent;
            }
            columns.push(column);
        }
        columns
    }

    /// The last sample up to a time.
    fn before(&self, at_ns: i64) -> Option<&Sample> {
        let next = self.samples.partition_point(|sample| sample.at_ns <= at_ns);
        self.samples.get(next.checked_sub(1)?)
    }

    /// Number of ended tasks at a time, interpolated between samples.
    fn ended_at(&self, at_ns: i64) -> u64 {
        let next = self.samples.partition_point(|sample| sample.at_ns <= at_ns);
        let before = next.checked_sub(1).and_then(|at| self.samples.get(at));
        match (before, self.samples.get(next)) {
            (Some(a), Some(b)) => {
                let part = i128::from(at_ns - a.at_ns) * i128::from(b.ended - a.ended.min(b.ended))
                    / i128::from((b.at_ns - a.at_ns).max(1));
                a.ended + u64::try_from(part).unwrap_or(0)
            }
            (Some(only), None) | (None, Some(only)) => only.ended,
            (None, None) => 0,
        }
    }
}

/// A number a second, times `scale`, rounded.
fn per_time(count: u64, ns: i64, scale: u128) -> u64 {
    let ns = u128::from(ns.max(1).unsigned_abs());
    let scaled = u128::from(count) * scale * u128::from(SECOND.unsigned_abs());
    u64::try_from((scaled + ns / 2) / ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: i64, ended: u64) -> Sample {
        Sample {
            at_ns: second * SECOND,
            running: 1,
            ended,
            cpus_percent: 50,
        }
    }

    #[test]
    fn rates_are_those_of_the_time_whatever_the_distance_of_samples() {
        let mut history = History::default();
        for second in [0, 1, 2, 10, 20] {
            history.push(sample(second, u64::try_from(second * 5).expect("positive")));
        }
        assert_eq!(history.rate_tenths(20 * SECOND), 50);
        let rates: Vec<u64> = history
            .columns((0, 20 * SECOND), 10)
            .iter()
            .map(|column| column.rate)
            .collect();
        assert_eq!(rates, [5; 10]);
    }

    #[test]
    fn the_past_leads_to_what_was_seen_first() {
        let mut history = History::default();
        history.push(sample(100, 70));
        let step = |at: i64, ended| Sample {
            at_ns: at * SECOND,
            running: 4,
            ended,
            cpus_percent: 10,
        };
        history.prepend(&[step(80, 10), step(90, 20), step(110, 99)]);
        let ended: Vec<u64> = history.samples.iter().map(|sample| sample.ended).collect();
        assert_eq!(ended, [50, 70, 70]);
    }

    #[test]
    fn forgetting_a_job_does_not_turn_time_back() {
        let mut history = History::default();
        history.push(sample(1, 40));
        history.push(sample(2, 0));
        assert_eq!(history.rate_tenths(2 * SECOND), 0);
        history.push(sample(3, 50));
        assert_eq!(history.columns((2 * SECOND, 3 * SECOND), 1)[0].rate, 10);
    }

    #[test]
    fn a_week_at_two_a_second_is_few_samples() {
        let mut history = History::default();
        for number in 0..7 * 86_400 * 2 {
            let at_ns = number * SECOND / 2;
            history.push(Sample {
                at_ns,
                ended: u64::try_from(number).expect("positive"),
                ..Sample::default()
            });
        }
        assert!(history.samples.len() < 5_000, "{}", history.samples.len());
        assert_eq!(history.rate_tenths(7 * 86_400 * SECOND - SECOND), 20);
        let hours = history.columns((0, 7 * 86_400 * SECOND), 168);
        assert!(hours.iter().all(|column| column.rate == 2), "{hours:?}");
    }
}
