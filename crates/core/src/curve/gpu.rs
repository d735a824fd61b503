//! The GPU usage of a task over time. There may be gaps, because a device may be lost or its driver
//! may not answer.

use std::time::Duration;

use super::NUMBER_MAX;

/// The difference between the byte of the highest point and that of the lowest.
const FULL: u64 = 254;

/// The GPU usage of one instance over time, with the same points as its [`Curve`](super::Curve).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuCurve {
    /// The number of busy GPUs at the highest point, in thousandths: the sum of the utilizations of
    /// all devices of the instance.
    pub busy_peak_milli: u64,
    /// The memory in use at the highest point, in KiB.
    pub memory_peak_kib: u64,
    /// The number of busy GPUs at each point. 0 if unknown, otherwise one more than the fraction of
    /// the peak in 254ths.
    pub busy: Box<[u8]>,
    /// The memory at each point, encoded in the same way.
    pub memory: Box<[u8]>,
    /// The granted GPUs, for comparison.
    pub given: GpusGiven,
}

/// The GPUs granted to an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GpusGiven {
    /// The requested amount, in ten-thousandths.
    pub units: u64,
    /// The total memory of all its devices, in KiB. 0 if unknown.
    pub memory_kib: u64,
    /// Whether some memory values include other processes on the devices, because the usage of the
    /// instance's own processes was unknown.
    pub is_memory_of_devices: bool,
}

impl GpusGiven {
    /// Returns whether the instance was granted only a part of a device. In that case, the driver
    /// reports the utilization of the whole device, including that of other users.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        !self.units.is_multiple_of(10_000)
    }
}

/// The result of one sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GpuLook {
    /// The number of busy GPUs, in thousandths. `None` if unknown.
    pub busy_milli: Option<u64>,
    /// The memory in use, in KiB. `None` if unknown.
    pub memory_kib: Option<u64>,
}

/// The values of one point. `None` marks a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuPoint {
    /// The average number of busy GPUs, in thousandths.
    pub busy_milli: Option<u64>,
    /// The highest memory usage, in KiB.
    pub memory_kib: Option<u64>,
}

impl GpuCurve {
    /// Returns the points in chronological order.
    pub fn points(&self) -> impl Iterator<Item = GpuPoint> + '_ {
        let value = |peak: u64, byte: u8| {
            let share = u64::from(byte).checked_sub(1)?;
            Some(peak.saturating_mul(share) / FULL)
        };
        let pairs = self.busy.iter().zip(&self.memory);
        pairs.map(move |(busy, memory)| GpuPoint {
            busy_milli: value(self.busy_peak_milli, *busy),
            memory_kib: value(self.memory_peak_kib, *memory),
        })
    }

    /// Returns whether the memory is known at any point.
    #[must_use]
    pub fn is_memory_known(&self) -> bool {
        self.memory.iter().any(|byte| *byte > 0)
    }

    /// Returns the average number of busy GPUs over the known time, in thousandths.
    #[must_use]
    pub fn busy_mean_milli(&self) -> Option<u64> {
        let known: Vec<u64> = self.points().filter_map(|point| point.busy_milli).collect();
        let sum = known
            .iter()
            .fold(0_u64, |sum, one| sum.saturating_add(*one));
        sum.checked_div(known.len() as u64)
    }
}

/// One span of a growing curve.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// The used GPU time, in nanoseconds times thousandths. It is divided only once, to keep
    /// precision.
    busy: u128,
    /// The part of the span with a known usage.
    known: Duration,
    memory_kib: Option<u64>,
}

/// Builds a GPU curve with the same spans as the [`Curve`](super::Curve).
#[derive(Clone, Debug, Default)]
pub(super) struct GpuSpans {
    given: GpusGiven,
    /// The result of the last sample.
    last: GpuLook,
    spans: Vec<Span>,
}

impl GpuSpans {
    /// Records a sample, which covers the time since the previous one.
    pub(super) fn look(&mut self, given: GpusGiven, look: GpuLook) {
        let before = self.given;
        self.given = GpusGiven {
            units: given.units,
            memory_kib: before.memory_kib.max(given.memory_kib),
            is_memory_of_devices: before.is_memory_of_devices || given.is_memory_of_devices,
        };
        self.last = look;
    }

    /// Adds time to a span, with the values of the last sample.
    pub(super) fn extend(&mut self, at: usize, time: Duration) {
        if self.spans.len() <= at {
            self.spans.resize(at + 1, Span::default());
        }
        let Some(span) = self.spans.get_mut(at) else {
            return;
        };
        if let Some(milli) = self.last.busy_milli {
            let milli = u128::from(milli.min(NUMBER_MAX));
            span.busy = span
                .busy
                .saturating_add(time.as_nanos().saturating_mul(milli));
            span.known = span.known.saturating_add(time);
        }
        span.memory_kib = span.memory_kib.max(self.last.memory_kib);
    }

    /// Merges each pair of spans.
    pub(super) fn halve(&mut self) {
        let pairs = self.spans.chunks(2).map(|pair| Span {
            busy: pair
                .iter()
                .fold(0, |sum, span| sum.saturating_add(span.busy)),
            known: pair.iter().map(|span| span.known).sum(),
            memory_kib: pair.iter().filter_map(|span| span.memory_kib).max(),
        });
        self.spans = pairs.collect();
    }

    /// Returns the first `shown` points, or `None` if nothing is known.
    pub(super) fn curve(&self, shown: usize) -> Option<GpuCurve> {
        let mut spans = self.spans.clone();
        // As for main memory, the peak must not be lost with an omitted span.
        let rest = spans.split_off(shown.min(spans.len()));
        spans.resize(shown, Span::default());
        if let Some(last) = spans.last_mut() {
            let rest = rest.into_iter().filter_map(|span| span.memory_kib).max();
            last.memory_kib = last.memory_kib.max(rest);
        }
        let rate = |span: &Span| {
            let milli = span.busy.checked_div(span.known.as_nanos())?;
            Some(u64::try_from(milli).unwrap_or(NUMBER_MAX).min(NUMBER_MAX))
        };
        let busy: Vec<Option<u64>> = spans.iter().map(rate).collect();
        let memory = spans
            .iter()
            .map(|span| Some(span.memory_kib?.min(NUMBER_MAX)));
        let memory: Vec<Option<u64>> = memory.collect();
        let peak = |values: &[Option<u64>]| values.iter().flatten().copied().max();
        let peaks = (peak(&busy), peak(&memory));
        if peaks == (None, None) {
            return None;
        }
        let (busy_peak_milli, memory_peak_kib) = (peaks.0.unwrap_or(0), peaks.1.unwrap_or(0));
        Some(GpuCurve {
            busy_peak_milli,
            memory_peak_kib,
            busy: shares(&busy, busy_peak_milli, busy_peak_milli / 2),
            // Rounded up, as for main memory.
            memory: shares(&memory, memory_peak_kib, memory_peak_kib.saturating_sub(1)),
            given: self.given,
        })
    }
}

/// Returns each value as a fraction of the peak. `rounding` is added before the division.
fn shares(values: &[Option<u64>], peak: u64, rounding: u64) -> Box<[u8]> {
    let byte = |value: &Option<u64>| {
        let share = value.map(|value| (value * FULL + rounding) / peak.max(1));
        share.map_or(0, |share| u8::try_from(share + 1).unwrap_or(u8::MAX))
    };
    values.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Asked, CurveBuilder, POINTS_MAX};
    use super::*;

    const GIVEN: GpusGiven = GpusGiven {
        units: 20_000,
        memory_kib: 1 << 20,
        is_memory_of_devices: false,
    };

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn look(busy_milli: u64, memory_kib: u64) -> GpuLook {
        GpuLook {
            busy_milli: Some(busy_milli),
            memory_kib: Some(memory_kib),
        }
    }

    /// Builds a curve from samples that are taken every two seconds.
    fn curve_of(looks: &[Option<GpuLook>]) -> Option<Box<GpuCurve>> {
        let mut builder = CurveBuilder::default();
        for (at, look) in (1..).zip(looks) {
            builder.look_at_gpus(GIVEN, look.unwrap_or_default());
            builder.look(seconds(2 * at), 1, Duration::ZERO);
        }
        builder.curve(Asked::default()).expect("a curve").gpu
    }

    #[test]
    fn gaps_stay_gaps_and_nothing_stays_nothing() {
        let looks = [
            Some(look(2_000, 400)),
            None,
            Some(look(0, 0)),
            Some(look(500, 100)),
        ];
        let curve = curve_of(&looks).expect("something is known");
        assert_eq!(curve.given, GIVEN);
        assert_eq!((curve.busy_peak_milli, curve.memory_peak_kib), (2_000, 400));
        let busy: Vec<Option<u64>> = curve.points().map(|point| point.busy_milli).collect();
        assert_eq!(busy, [Some(2_000), None, Some(0), Some(503)]);
        let memory: Vec<Option<u64>> = curve.points().map(|point| point.memory_kib).collect();
        assert_eq!(memory, [Some(400), None, Some(0), Some(100)]);
        // The gap does not count toward the average.
        assert_eq!(curve.busy_mean_milli(), Some((2_000 + 503) / 3));
        assert_eq!(curve_of(&[None, None]), None);
    }

    #[test]
    fn what_only_one_of_both_is_known_of_is_shown() {
        // A part of a device (MIG) reports only its memory.
        let only_memory = GpuLook {
            busy_milli: None,
            memory_kib: Some(7),
        };
        let curve = curve_of(&[Some(only_memory); 3]).expect("something is known");
        assert_eq!(curve.busy_mean_milli(), None);
        assert!(curve.points().all(|point| point.memory_kib == Some(7)));
    }

    #[test]
    fn a_task_without_gpus_has_no_curve_of_them() {
        let mut builder = CurveBuilder::default();
        builder.look(seconds(9), 1, Duration::ZERO);
        let curve = builder.curve(Asked::default()).expect("a curve");
        assert_eq!(curve.gpu, None);
    }

    #[test]
    fn a_long_task_keeps_its_peak_and_its_average_beside_gaps() {
        // A third of the samples fail, and the first ones are taken before the driver answers.
        let peak_at = 7_003;
        let looks: Vec<Option<GpuLook>> = (0..20_000)
            .map(|at| match at {
                0..100 => None,
                _ if at == peak_at => Some(look(1_000, 9_000)),
                _ => (at % 3 > 0).then(|| look(1_000, 1_000)),
            })
            .collect();
        let curve = curve_of(&looks).expect("something is known");
        assert!(curve.busy.len() <= POINTS_MAX && curve.memory.len() == curve.busy.len());
        assert_eq!(curve.memory_peak_kib, 9_000);
        assert_eq!(curve.busy_mean_milli(), Some(1_000));
        let highest = curve
            .points()
            .filter(|point| point.memory_kib == Some(9_000));
        assert_eq!(highest.count(), 1);
    }

    #[test]
    fn memory_at_the_very_end_is_not_lost() {
        let mut builder = CurveBuilder::default();
        for (millis, memory) in [(2_000, 10), (4_000, 10), (4_100, 70)] {
            builder.look_at_gpus(GIVEN, look(1, memory));
            builder.look(Duration::from_millis(millis), 1, Duration::ZERO);
        }
        let gpu = builder.curve(Asked::default()).expect("a curve").gpu;
        let gpu = gpu.expect("it has GPUs");
        assert_eq!((gpu.memory.len(), gpu.memory_peak_kib), (2, 70));
    }

    proptest! {
        #[test]
        fn any_looks_make_points_beside_those_of_the_task(
            looks in proptest::collection::vec(
                (0_u64..1 << 62, proptest::option::of(any::<u64>()), proptest::option::of(any::<u64>())), 0..200
            )
        ) {
            let mut builder = CurveBuilder::default();
            let (mut age, mut peak) = (Duration::ZERO, None);
            for (step, busy_milli, memory_kib) in looks {
                age = age.saturating_add(Duration::from_nanos(step));
                builder.look_at_gpus(GIVEN, GpuLook { busy_milli, memory_kib });
                builder.look(age, 1, Duration::ZERO);
                if step > 0 {
                    peak = peak.max(memory_kib.map(|kib| kib.min(NUMBER_MAX)));
                }
            }
            if let Some(curve) = builder.curve(Asked::default()) {
                match curve.gpu {
                    Some(gpu) => {
                        prop_assert_eq!(gpu.busy.len(), curve.memory.len());
                        prop_assert_eq!(gpu.memory.len(), curve.memory.len());
                        prop_assert_eq!(gpu.memory_peak_kib, peak.unwrap_or(0));
                        prop_assert!(gpu.points().all(|point| point.busy_milli <= Some(gpu.busy_peak_milli)));
                        let highest = gpu.points().filter_map(|point| point.memory_kib).max();
                        prop_assert_eq!(highest, peak);
                    }
                    // The omitted end may be the whole curve.
                    None => prop_assert!(peak.is_none()),
                }
            }
        }
    }
}
