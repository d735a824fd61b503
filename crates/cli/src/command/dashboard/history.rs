//! Measurements over time. Older measurements are thinned out, so that days fit.

use hq_store::reader::UsageStep;

const SECOND: i64 = 1_000_000_000;
/// The maximum number of samples. Above it, every second sample of the older half is dropped.
const SAMPLES_MAX: usize = 8_192;
/// The span over which throughput is averaged.
const RATE_SPAN: i64 = 10 * SECOND;

/// The samples, oldest first. Each counts the tasks that have ended up to its time.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct History {
    samples: Vec<UsageStep>,
}

impl History {
    /// Adds a current sample.
    pub(super) fn push(&mut self, mut sample: UsageStep) {
        if let Some(last) = self.samples.last() {
            // The count must not decrease when a job is forgotten or another server starts.
            sample.ended = sample.ended.max(last.ended);
            if sample.at_ns <= last.at_ns {
                return;
            }
        }
        self.samples.push(sample);
        if self.samples.len() > SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at > SAMPLES_MAX / 2 || at % 2 == 1
            });
        }
    }

    /// Inserts earlier steps, which count the tasks that ended within them, so that they lead to the
    /// first sample that was seen.
    pub(super) fn prepend(&mut self, steps: &[UsageStep]) {
        let first_at = self.first_ns().unwrap_or(i64::MAX);
        let steps = || steps.iter().filter(|step| step.at_ns < first_at);
        let sum: u64 = steps().map(|step| step.ended).sum();
        let end = self.samples.first().map_or(sum, |first| first.ended);
        let mut ended = end.saturating_sub(sum);
        let earlier = steps().map(|step| {
            ended += step.ended;
            UsageStep { ended, ..*step }
        });
        self.samples.splice(0..0, earlier.collect::<Vec<_>>());
    }

    /// Returns the time of the first sample.
    pub(super) fn first_ns(&self) -> Option<i64> {
        self.samples.first().map(|sample| sample.at_ns)
    }

    /// Returns how many tasks per second ended in the span before a time, in tenths.
    pub(super) fn rate_tenths(&self, at_ns: i64) -> u64 {
        let (from, to) = (self.ended_at(at_ns - RATE_SPAN), self.ended_at(at_ns));
        let since = self.first_ns().unwrap_or(at_ns).max(at_ns - RATE_SPAN);
        per_time(to.saturating_sub(from), at_ns - since, 10)
    }

    /// Returns columns of equal width from one time to another: the number of tasks that ended per
    /// second, the number of running tasks, and the share of the cpus that they hold.
    pub(super) fn columns(&self, (from_ns, to_ns): (i64, i64), count: usize) -> Vec<[u64; 3]> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let width = ((to_ns - from_ns) / count.max(1)).max(1);
        let column = |number: i64| {
            let (start, end) = (from_ns + number * width, from_ns + (number + 1) * width);
            let last = self.after(end).checked_sub(1).map(|at| self.samples[at]);
            let last = last.unwrap_or_default();
            let ended = self.ended_at(end).saturating_sub(self.ended_at(start));
            let percent = last.used.saturating_mul(100).checked_div(last.offered);
            let [running, percent] = [last.running, percent.unwrap_or(0)].map(i64::unsigned_abs);
            [per_time(ended, width, 1), running, percent]
        };
        (0..count).map(column).collect()
    }

    /// Returns the index of the first sample after a time.
    fn after(&self, at_ns: i64) -> usize {
        self.samples.partition_point(|sample| sample.at_ns <= at_ns)
    }

    /// Returns the number of tasks that had ended at a time, interpolated between samples.
    fn ended_at(&self, at_ns: i64) -> u64 {
        let next = self.after(at_ns);
        let before = next.checked_sub(1).and_then(|at| self.samples.get(at));
        match (before, self.samples.get(next)) {
            (Some(a), Some(b)) => {
                let part = i128::from(at_ns - a.at_ns)
                    * i128::from(b.ended.saturating_sub(a.ended))
                    / i128::from((b.at_ns - a.at_ns).max(1));
                a.ended + u64::try_from(part).unwrap_or(0)
            }
            (Some(only), None) | (None, Some(only)) => only.ended,
            (None, None) => 0,
        }
    }
}

/// Returns a number per second, multiplied by `scale` and rounded.
fn per_time(count: u64, ns: i64, scale: u128) -> u64 {
    let ns = u128::from(ns.max(1).unsigned_abs());
    let scaled = u128::from(count) * scale * u128::from(SECOND.unsigned_abs());
    u64::try_from((scaled + ns / 2) / ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: i64, ended: u64) -> UsageStep {
        UsageStep {
            at_ns: second * SECOND,
            running: 1,
            ended,
            used: 1,
            offered: 2,
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
            .map(|column| column[0])
            .collect();
        assert_eq!(rates, [5; 10]);
    }

    #[test]
    fn the_past_leads_to_what_was_seen_first() {
        let mut history = History::default();
        history.push(sample(100, 70));
        let step = |at: i64, ended| UsageStep {
            at_ns: at * SECOND,
            running: 4,
            ended,
            used: 1,
            offered: 10,
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
        assert_eq!(history.columns((2 * SECOND, 3 * SECOND), 1)[0][0], 10);
    }

    #[test]
    fn a_week_at_two_a_second_is_few_samples() {
        let mut history = History::default();
        for number in 0..7 * 86_400 * 2 {
            let at_ns = number * SECOND / 2;
            history.push(UsageStep {
                at_ns,
                ended: u64::try_from(number).expect("positive"),
                ..UsageStep::default()
            });
        }
        assert!(history.samples.len() <= SAMPLES_MAX);
        assert_eq!(history.rate_tenths(7 * 86_400 * SECOND - SECOND), 20);
        let hours = history.columns((0, 7 * 86_400 * SECOND), 168);
        assert!(hours.iter().all(|column| column[0] == 2), "{hours:?}");
    }
}
