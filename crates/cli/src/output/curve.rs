//! Usage over time in a line: bars of eighths, and the numbers that they stand for.

use std::time::Duration;

use hq_core::curve::{Curve, Point};
use hq_protocol::common;
use serde_json::{Value, json};

use super::format::{file_size, mebibytes, short_words};

/// Bars from the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The curve of a message; `None` = there is none, or a later release has made it in another way.
pub(crate) fn curve_of(message: Option<&common::Curve>) -> Option<Curve> {
    let curve = Curve::try_from(message?.clone()).ok()?;
    (!curve.memory.is_empty()).then_some(curve)
}

/// Memory and cpus, a line each: what they were, the most of it, and what was asked for.
pub(crate) fn lines(message: Option<&common::Curve>) -> Option<[String; 2]> {
    let curve = curve_of(message)?;
    let each = format!("{} a bar", short_words(curve.spacing));
    let asked = match (curve.asked.memory_kib, curve.asked.is_memory_limit) {
        (0, _) => String::new(),
        (kib, true) => format!(" of at most {}", kib_words(kib)),
        (kib, false) => format!(" of {} asked for", kib_words(kib)),
    };
    let peak = kib_words(curve.memory_peak_kib);
    let memory = bars(&curve, |point| point.memory_kib, curve.memory_peak_kib);
    let cpu = bars(&curve, |point| point.cpu_milli, curve.cpu_peak_milli);
    let cpus_asked = match curve.asked.cpu_units {
        0 => String::new(),
        units => format!(" of {} asked for", super::format::amount(units)),
    };
    let [mean, most] = [curve.cpu_mean_milli(), curve.cpu_peak_milli].map(cpus);
    Some([
        format!("{memory} up to {peak}{asked}, {each}"),
        format!("{cpu} {mean} on average, up to {most}{cpus_asked}"),
    ])
}

/// The line of memory, as part of another line.
pub(crate) fn memory_line(message: Option<&common::Curve>) -> Option<String> {
    lines(message).map(|[memory, _]| memory)
}

fn kib_words(kib: u64) -> String {
    file_size(kib.saturating_mul(1024))
}

/// Cpus with two decimals.
fn cpus(milli: u64) -> String {
    format!("{:.2}", Duration::from_millis(milli).as_secs_f64())
}

/// A bar for each point; the highest one is full, and only what is nothing has none.
fn bars(curve: &Curve, value: impl Fn(&Point) -> u64, peak: u64) -> String {
    let bar = |point: Point| match value(&point) {
        0 => ' ',
        value => {
            let eighth = value.saturating_mul(8).div_ceil(peak.max(1)).clamp(1, 8);
            BARS[usize::try_from(eighth - 1).unwrap_or(7).min(7)]
        }
    };
    curve.points().map(bar).collect()
}

/// The same for programs; documented in `docs/usage.md`.
pub(crate) fn value(message: Option<&common::Curve>) -> Value {
    let Some(curve) = curve_of(message) else {
        return Value::Null;
    };
    let mib = |kib: u64| mebibytes(kib.saturating_mul(10_000) / 1024);
    let asked = curve.asked;
    json!({
        "spacing": curve.spacing.as_secs_f64(),
        "memory_mib": curve.points().map(|point| mib(point.memory_kib)).collect::<Vec<f64>>(),
        "cpus": curve.points().map(|point| Duration::from_millis(point.cpu_milli).as_secs_f64()).collect::<Vec<f64>>(),
        "memory_asked_mib": (asked.memory_kib > 0).then(|| mib(asked.memory_kib)),
        "is_memory_limit": asked.is_memory_limit,
        "cpus_asked": (asked.cpu_units > 0).then(|| mebibytes(asked.cpu_units)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> common::Curve {
        common::Curve {
            spacing_ms: 128_000,
            memory_peak_kib: 1 << 20,
            cpu_peak_milli: 3_960,
            memory: vec![1, 32, 128, 255].into(),
            cpu: vec![0, 255, 255, 128].into(),
            memory_asked_kib: 4 << 20,
            is_memory_limit: true,
            cpu_asked_units: 40_000,
            gpu: None,
        }
    }

    #[test]
    fn a_line_says_what_was_used_beside_what_was_asked_for() {
        let mut message = message();
        let [memory, cpu] = lines(Some(&message)).expect("a curve");
        assert_eq!(
            memory,
            "▁▂▅█ up to 1024.00 MiB of at most 4.00 GiB, 2m 8s a bar"
        );
        assert_eq!(cpu, " ██▅ 2.48 on average, up to 3.96 of 4 asked for");
        message.is_memory_limit = false;
        let memory = memory_line(Some(&message)).expect("a curve");
        assert!(
            memory.contains("1024.00 MiB of 4.00 GiB asked for"),
            "{memory}"
        );
        message.memory_asked_kib = 0;
        let memory = memory_line(Some(&message)).expect("a curve");
        assert!(memory.contains("1024.00 MiB, 2m"), "{memory}");
    }

    #[test]
    fn what_is_not_there_or_not_understood_is_not_shown() {
        assert_eq!(lines(None), None);
        assert_eq!(lines(Some(&common::Curve::default())), None);
        let mut uneven = message();
        uneven.cpu = vec![1].into();
        assert_eq!(lines(Some(&uneven)), None);
        assert_eq!(value(Some(&uneven)), Value::Null);
    }

    #[test]
    fn programs_get_numbers() {
        let value = value(Some(&message()));
        assert_eq!(value["spacing"], 128.0);
        assert_eq!(value["memory_mib"][3], 1024.0);
        assert_eq!(value["cpus"][1], 3.96);
        assert_eq!(value["memory_asked_mib"], 4096.0);
        assert_eq!(value["cpus_asked"], 4.0);
    }
}
