//! The memory and cpu usage of a task over time, in at most [`POINTS_MAX`] points of two bytes.
//!
//! A point holds the highest memory usage and the average number of busy cpus in a span of time.
//! All spans of a curve are equally long. When a curve is full, neighboring points are merged and
//! the span doubles, so the curve of a week-long task is as small as that of a two-minute task.
//! Each byte is a fraction of the highest value of its curve, in 255ths. A task with GPUs has a
//! second curve for them.

mod gpu;

use std::time::Duration;

use gpu::GpuSpans;
pub use gpu::{GpuCurve, GpuLook, GpuPoint, GpusGiven};

/// The maximum number of points in a curve that is built here. A power of two.
pub const POINTS_MAX: usize = 64;
/// The maximum number of points in a received curve. A later release may send more than
/// [`POINTS_MAX`].
pub const POINTS_ACCEPTED_MAX: usize = 256;
/// The span of a point until a task has run for [`POINTS_MAX`] such spans.
pub const SPACING_MIN: Duration = Duration::from_secs(2);
/// The maximum number of curves per heartbeat. Further curves wait for the next heartbeat.
pub const HEARTBEAT_CURVES_MAX: usize = 256;
/// The largest number in a curve. Its products still fit into a signed SQL integer.
pub const NUMBER_MAX: u64 = 1 << 48;

/// The byte of the highest point.
const FULL: u64 = 255;

/// The usage of one instance over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curve {
    /// The span of a point.
    pub spacing: Duration,
    /// The memory at the highest point, in KiB.
    pub memory_peak_kib: u64,
    /// The number of busy cpus at the highest point, in thousandths.
    pub cpu_peak_milli: u64,
    /// The memory at each point, as a fraction of the peak.
    pub memory: Box<[u8]>,
    /// The number of busy cpus at each point, as a fraction of the peak.
    pub cpu: Box<[u8]>,
    /// The granted amounts, for comparison.
    pub asked: Asked,
    /// The curve of its GPUs, with the same number of points. `None` if it has no GPUs, or if there
    /// is no data.
    pub gpu: Option<Box<GpuCurve>>,
}

/// The amounts granted to an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// The memory in KiB. 0 if none was requested.
    pub memory_kib: u64,
    /// Whether the instance is killed if it uses more.
    pub is_memory_limit: bool,
    /// The cpus in ten-thousandths.
    pub cpu_units: u64,
}

/// The values of one point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The highest memory usage in KiB, rounded up by less than 1/255 of the peak.
    pub memory_kib: u64,
    /// The number of busy cpus in thousandths, exact to 1/510 of the peak.
    pub cpu_milli: u64,
}

impl Curve {
    /// Returns the points in chronological order.
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let value = |peak: u64, byte: u8| peak.saturating_mul(byte.into()) / FULL;
        let pairs = self.memory.iter().zip(&self.cpu);
        pairs.map(move |(memory, cpu)| Point {
            memory_kib: value(self.memory_peak_kib, *memory),
            cpu_milli: value(self.cpu_peak_milli, *cpu),
        })
    }

    /// Returns the average number of busy cpus, in thousandths.
    #[must_use]
    pub fn cpu_mean_milli(&self) -> u64 {
        let sum: u64 = self.points().map(|point| point.cpu_milli).sum();
        sum / (self.cpu.len() as u64).max(1)
    }

    /// Returns the time covered by the points.
    #[must_use]
    pub fn span(&self) -> Duration {
        let count = u32::try_from(self.memory.len()).unwrap_or(u32::MAX);
        self.spacing.saturating_mul(count)
    }
}

/// One span of a growing curve.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    memory_kib: u64,
    cpu: Duration,
}

/// Builds a curve from samples of a task.
#[derive(Clone, Debug)]
pub struct CurveBuilder {
    spacing: Duration,
    spans: Vec<Span>,
    /// The age of the task at the last sample.
    age: Duration,
    /// The CPU time of the task at the last sample.
    cpu: Duration,
    /// The CPU time of the last sample, if it was lower than before.
    less: Option<Duration>,
    /// The memory at the last sample, in KiB.
    memory_kib: u64,
    /// The GPU data. `None` if the task has no GPUs.
    gpus: Option<Box<GpuSpans>>,
}

impl Default for CurveBuilder {
    fn default() -> Self {
        Self {
            spacing: SPACING_MIN,
            spans: Vec::new(),
            age: Duration::ZERO,
            cpu: Duration::ZERO,
            less: None,
            memory_kib: 0,
            gpus: None,
        }
    }
}

impl CurveBuilder {
    /// Returns the current span of a point.
    #[must_use]
    pub const fn spacing(&self) -> Duration {
        self.spacing
    }

    /// Adds GPU data to the sample that is recorded next.
    pub fn look_at_gpus(&mut self, given: GpusGiven, look: GpuLook) {
        self.gpus.get_or_insert_default().look(given, look);
    }

    /// Records a sample: the age of the task, its memory, and its CPU time since the start. It also
    /// covers the time since the previous sample.
    pub fn look(&mut self, age: Duration, memory_kib: u64, cpu: Duration) {
        self.memory_kib = memory_kib;
        // A child that exits during a sample is missing from that sample only. Two lower values in
        // a row mean that processes have exited whose CPU time was not collected by any process of
        // the task. From then on, only the time of the remaining processes counts.
        let less = Some(cpu).filter(|cpu| *cpu < self.cpu);
        if let (Some(before), Some(_)) = (self.less, less) {
            self.cpu = before;
        }
        self.less = less;
        self.extend(age, cpu);
    }

    /// Adds the time until `age`, with the memory of the last sample.
    fn extend(&mut self, age: Duration, cpu: Duration) {
        let used = cpu.saturating_sub(self.cpu);
        let passed = age.saturating_sub(self.age);
        if passed.is_zero() {
            return;
        }
        while span_of(age, self.spacing) >= POINTS_MAX {
            self.halve();
        }
        // A sample exactly at the end of a span starts the next one.
        let first = span_of(self.age + Duration::from_nanos(1), self.spacing);
        let last = span_of(age, self.spacing);
        self.spans.resize(last + 1, Span::default());
        for (at, span) in self.spans.iter_mut().enumerate().skip(first) {
            span.memory_kib = span.memory_kib.max(self.memory_kib);
            let begin = self.spacing * u32::try_from(at).unwrap_or(0);
            let here = age
                .min(begin + self.spacing)
                .saturating_sub(self.age.max(begin));
            span.cpu += used.mul_f64(here.as_secs_f64() / passed.as_secs_f64());
            if let Some(gpus) = &mut self.gpus {
                gpus.extend(at, here);
            }
        }
        self.age = age;
        self.cpu = self.cpu.max(cpu);
    }

    /// Merges each pair of points.
    fn halve(&mut self) {
        let pairs = self.spans.chunks(2).map(|pair| Span {
            memory_kib: pair.iter().map(|span| span.memory_kib).max().unwrap_or(0),
            cpu: pair.iter().map(|span| span.cpu).sum(),
        });
        self.spans = pairs.collect();
        if let Some(gpus) = &mut self.gpus {
            gpus.halve();
        }
        self.spacing = self.spacing.saturating_mul(2);
    }

    /// Returns the curve so far, or `None` if it is too short. A last span that has hardly begun is
    /// left out.
    #[must_use]
    pub fn curve(&self, asked: Asked) -> Option<Curve> {
        let count = u32::try_from(self.spans.len()).ok()?;
        let last = self
            .age
            .saturating_sub(self.spacing * count.saturating_sub(1));
        let is_left_out = last < self.spacing / 4;
        let shown = self.spans.len() - usize::from(is_left_out && count > 0);
        if shown < 2 {
            return None;
        }
        let spans = self.spans.iter().enumerate().take(shown);
        let rates = spans.map(|(at, span)| {
            let is_last = at + 1 == self.spans.len();
            let length = if is_last { last } else { self.spacing };
            // A value that no machine could reach would be a clock error.
            let milli = span.cpu.as_millis().saturating_mul(1_000) / length.as_millis().max(1);
            u64::try_from(milli).unwrap_or(NUMBER_MAX).min(NUMBER_MAX)
        });
        let cpus: Vec<u64> = rates.collect();
        let memory = self
            .spans
            .iter()
            .map(|span| span.memory_kib.min(NUMBER_MAX));
        let mut memory: Vec<u64> = memory.collect();
        // The peak of a task that ran out of memory must not be lost with an omitted span.
        let rest = memory.split_off(shown);
        if let Some(last) = memory.last_mut() {
            *last = rest.into_iter().fold(*last, u64::max);
        }
        let memory_peak_kib = memory.iter().copied().max().unwrap_or(0);
        let cpu_peak_milli = cpus.iter().copied().max().unwrap_or(0);
        Some(Curve {
            spacing: self.spacing,
            memory_peak_kib,
            cpu_peak_milli,
            // Rounded up: a task that uses memory must not seem to use none.
            memory: shares(&memory, memory_peak_kib, memory_peak_kib.saturating_sub(1)),
            cpu: shares(&cpus, cpu_peak_milli, cpu_peak_milli / 2),
            asked,
            gpu: self
                .gpus
                .as_ref()
                .and_then(|gpus| gpus.curve(shown))
                .map(Box::new),
        })
    }

    /// Returns the curve of a task that ended at this age with this CPU time.
    #[must_use]
    pub fn finish(mut self, age: Duration, cpu: Duration, asked: Asked) -> Option<Curve> {
        self.extend(age, cpu);
        self.curve(asked)
    }
}

/// Returns the index of the span that contains an age. A span includes its end.
fn span_of(age: Duration, spacing: Duration) -> usize {
    let nanos = age.as_nanos().saturating_sub(1) / spacing.as_nanos().max(1);
    usize::try_from(nanos).unwrap_or(usize::MAX)
}

/// Returns each value as a fraction of the peak. `rounding` is added before the division.
fn shares(values: &[u64], peak: u64, rounding: u64) -> Box<[u8]> {
    let share = |value: &u64| (value * FULL + rounding) / peak.max(1);
    values
        .iter()
        .map(|value| u8::try_from(share(value)).unwrap_or(u8::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Samples a task every two seconds. `memory` maps the time to the memory.
    fn looked_at(until: u64, memory: impl Fn(u64) -> u64, cpus: u32) -> CurveBuilder {
        let mut builder = CurveBuilder::default();
        for at in (2..=until).step_by(2) {
            builder.look(seconds(at), memory(at), seconds(at) * cpus);
        }
        builder
    }

    #[test]
    fn short_tasks_have_no_curve() {
        let curve = |age: u64| looked_at(age, |_| 10, 1).curve(Asked::default());
        assert_eq!(curve(0), None);
        assert_eq!(curve(2), None);
        let found = curve(4).expect("long enough");
        assert_eq!((found.memory.len(), found.cpu_mean_milli()), (2, 1_000));
        // This is one span and a negligible rest.
        let mut builder = looked_at(2, |_| 10, 1);
        builder.look(Duration::from_millis(2_400), 10, Duration::from_secs(2));
        assert_eq!(builder.curve(Asked::default()), None);
    }

    #[test]
    fn a_week_costs_as_much_as_two_minutes_and_keeps_its_peak() {
        let week = 7 * 24 * 3_600;
        let peak_at = 300_000;
        let memory = |at| if at == peak_at { 5_000_000 } else { 1_000_000 };
        let curve = looked_at(week, memory, 3).curve(Asked::default());
        let curve = curve.expect("a curve");
        assert!(
            (POINTS_MAX / 2..=POINTS_MAX).contains(&curve.memory.len()),
            "{curve:?}"
        );
        assert!(curve.span() >= seconds(week), "{:?}", curve.span());
        assert_eq!(curve.memory_peak_kib, 5_000_000);
        let highest: Vec<usize> = curve
            .points()
            .enumerate()
            .filter(|(_, point)| point.memory_kib == 5_000_000)
            .map(|(at, _)| at)
            .collect();
        let place = usize::try_from(peak_at / curve.spacing.as_secs()).expect("small");
        assert!(
            highest == [place] || highest == [place - 1],
            "{highest:?} {place}"
        );
        assert!(
            (2_990..=3_010).contains(&curve.cpu_mean_milli()),
            "{curve:?}"
        );
    }

    #[test]
    fn what_was_not_looked_at_counts_as_the_next_look_and_the_end_as_the_last_one() {
        let mut builder = CurveBuilder::default();
        builder.look(seconds(2), 100, seconds(1));
        // There is a gap, because the worker was suspended or the machine was busy.
        builder.look(seconds(8), 400, seconds(7));
        let curve = builder.finish(seconds(10), seconds(11), Asked::default());
        let points: Vec<Point> = curve.expect("a curve").points().collect();
        let memory: Vec<u64> = points.iter().map(|point| point.memory_kib).collect();
        assert_eq!(memory, [100, 400, 400, 400, 400]);
        let cpus: Vec<u64> = points.iter().map(|point| point.cpu_milli / 100).collect();
        assert_eq!(cpus, [5, 10, 10, 10, 20]);
    }

    #[test]
    fn time_of_processes_that_are_gone_is_not_counted_twice() {
        let mut builder = CurveBuilder::default();
        builder.look(seconds(2), 1, seconds(2));
        // Some processes of the tree were reparented, so their time is lost. The others continue.
        builder.look(seconds(4), 1, seconds(1));
        builder.look(seconds(6), 1, seconds(3));
        let curve = builder.curve(Asked::default()).expect("a curve");
        let cpus: Vec<u64> = curve.points().map(|point| point.cpu_milli).collect();
        assert_eq!(cpus[0], 1_000);
        assert_eq!(cpus[1], 0);
        assert!(cpus[2] <= 1_000, "{cpus:?}");
    }

    #[test]
    fn what_follows_a_process_for_which_nobody_waited_is_seen() {
        let mut builder = CurveBuilder::default();
        builder.look(seconds(2), 1, seconds(10));
        // An orphan of the task has ended and another one is working. The time of the latter before
        // its first sample is unknown.
        for (at, cpu) in [(4, 1), (6, 3), (8, 5), (10, 7)] {
            builder.look(seconds(at), 1, seconds(cpu));
        }
        let curve = builder.curve(Asked::default()).expect("a curve");
        let cpus: Vec<u64> = curve.points().map(|point| point.cpu_milli).collect();
        assert_eq!(cpus[1], 0);
        let cpus: Vec<u64> = cpus[2..].iter().map(|milli| milli / 500).collect();
        assert_eq!(cpus, [2, 2, 2]);
        // A single missing value has no effect.
        let mut builder = CurveBuilder::default();
        for (at, cpu) in [(2, 2), (4, 1), (6, 6), (8, 8)] {
            builder.look(seconds(at), 1, seconds(cpu));
        }
        let curve = builder.curve(Asked::default()).expect("a curve");
        let cpus: Vec<u64> = curve.points().map(|point| point.cpu_milli / 100).collect();
        assert_eq!(cpus, [10, 0, 20, 10]);
    }

    proptest! {
        #[test]
        fn any_looks_make_a_curve_of_few_points_that_keeps_the_peak(
            looks in proptest::collection::vec((0_u64..1 << 62, 0_u64..1 << 63, 0_u64..1 << 62), 0..200)
        ) {
            let mut builder = CurveBuilder::default();
            let (mut age, mut peak) = (Duration::ZERO, 0);
            for (step, memory, cpu) in looks {
                age = age.saturating_add(Duration::from_nanos(step));
                builder.look(age, memory, Duration::from_nanos(cpu));
                if step > 0 {
                    peak = peak.max(memory.min(NUMBER_MAX));
                }
            }
            if let Some(curve) = builder.curve(Asked::default()) {
                prop_assert!(curve.memory.len() <= POINTS_MAX);
                prop_assert_eq!(curve.memory.len(), curve.cpu.len());
                prop_assert_eq!(curve.memory_peak_kib, peak);
                let highest = curve.points().map(|point| point.memory_kib).max();
                prop_assert_eq!(highest, Some(curve.memory_peak_kib));
            }
        }
    }
}
