//! Shows resource use over time on one line, as a bar chart of block characters with its values.

use std::time::Duration;

use hq_core::curve::{Asked, Curve, GpuCurve, Point};
use hq_protocol::common;
use serde_json::{Value, json};

use super::format::{file_size, mebibytes, short_words};

/// The bars from lowest to highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the curve of a message, or `None` if there is none or it has the format of a later
/// release.
pub(crate) fn curve_of(message: Option<&common::Curve>) -> Option<Curve> {
    let curve = Curve::try_from(message?.clone()).ok()?;
    (!curve.memory.is_empty()).then_some(curve)
}

/// Returns the available charts, as name and line: the bars, the peak, and the request.
pub(crate) fn lines(message: Option<&common::Curve>) -> Vec<(&'static str, String)> {
    let Some(curve) = curve_of(message) else {
        return Vec::new();
    };
    let [memory, cpus] = own_lines(&curve);
    let mut lines = vec![("Memory over time", memory), ("CPUs over time", cpus)];
    if let Some(gpu) = &curve.gpu {
        let [busy, memory] = gpu_lines(gpu);
        lines.push(("GPUs over time", busy));
        lines.push(("GPU memory over time", memory));
    }
    lines
}

fn own_lines(curve: &Curve) -> [String; 2] {
    let each = format!("{} a bar", short_words(curve.spacing));
    let asked = memory_asked(&curve.asked, kib_words);
    let peak = kib_words(curve.memory_peak_kib);
    let bars = |value: fn(Point) -> u64, peak| {
        let values = curve.points().map(|point| Some(value(point)));
        bars(values, peak)
    };
    let memory = bars(|point| point.memory_kib, curve.memory_peak_kib);
    let cpu = bars(|point| point.cpu_milli, curve.cpu_peak_milli);
    let cpus_asked = cpus_asked(&curve.asked);
    let [mean, most] = [curve.cpu_mean_milli(), curve.cpu_peak_milli].map(cpus);
    [
        format!("{memory} up to {peak}{asked}, {each}"),
        format!("{cpu} {mean} on average, up to {most}{cpus_asked}"),
    ]
}

/// Returns the requested memory for a text about the use, or nothing if none was requested.
pub(crate) fn memory_asked(asked: &Asked, kib_words: fn(u64) -> String) -> String {
    match (asked.memory_kib, asked.is_memory_limit) {
        (0, _) => String::new(),
        (kib, true) => format!(" of at most {}", kib_words(kib)),
        (kib, false) => format!(" of {} asked for", kib_words(kib)),
    }
}

/// Returns the requested cpus for a text about the use, or nothing if none were requested.
pub(crate) fn cpus_asked(asked: &Asked) -> String {
    match asked.cpu_units {
        0 => String::new(),
        units => format!(" of {} asked for", super::format::amount(units)),
    }
}

/// Returns the lines for busy GPUs and for their memory.
fn gpu_lines(curve: &GpuCurve) -> [String; 2] {
    const WITH_OTHERS: &str = ", with that of others there";
    let asked = super::format::amount(curve.given.units);
    let with_others = if curve.given.is_shared() {
        WITH_OTHERS
    } else {
        ""
    };
    let busy = bars(
        curve.points().map(|point| point.busy_milli),
        curve.busy_peak_milli,
    );
    let busy = match curve.busy_mean_milli() {
        Some(mean) => {
            let [mean, most] = [mean, curve.busy_peak_milli].map(cpus);
            format!("{busy} {mean} on average, up to {most} of {asked} asked for{with_others}")
        }
        None => "not known".to_owned(),
    };
    let memory = bars(
        curve.points().map(|point| point.memory_kib),
        curve.memory_peak_kib,
    );
    let of = match curve.given.memory_kib {
        0 => String::new(),
        kib => format!(" of {} that its devices have", kib_words(kib)),
    };
    let whose = if curve.given.is_memory_of_devices {
        WITH_OTHERS
    } else {
        ""
    };
    let peak = kib_words(curve.memory_peak_kib);
    let memory = if curve.is_memory_known() {
        format!("{memory} up to {peak}{of}{whose}")
    } else {
        "not known".to_owned()
    };
    [busy, memory]
}

/// Returns the line for memory, to be used within another line.
pub(crate) fn memory_line(message: Option<&common::Curve>) -> Option<String> {
    let [memory, _] = own_lines(&curve_of(message)?);
    Some(memory)
}

fn kib_words(kib: u64) -> String {
    file_size(kib.saturating_mul(1024))
}

/// Formats cpus with two decimals.
pub(crate) fn cpus(milli: u64) -> String {
    format!("{:.2}", Duration::from_millis(milli).as_secs_f64())
}

/// Returns a bar for each point. The highest one is full, only zero is empty, and a dot marks a
/// gap.
fn bars(values: impl Iterator<Item = Option<u64>>, peak: u64) -> String {
    let bar = |value: Option<u64>| match value {
        None => '·',
        Some(0) => ' ',
        Some(value) => {
            let eighth = value.saturating_mul(8).div_ceil(peak.max(1)).clamp(1, 8);
            BARS[usize::try_from(eighth - 1).unwrap_or(7).min(7)]
        }
    };
    values.map(bar).collect()
}

/// Returns the JSON form, which is documented in `docs/usage.md`.
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
        "gpu": curve.gpu.as_deref().map(gpu_value),
    })
}

fn gpu_value(curve: &GpuCurve) -> Value {
    let mib = |kib: u64| mebibytes(kib.saturating_mul(10_000) / 1024);
    let busy = |milli: u64| Duration::from_millis(milli).as_secs_f64();
    let given = curve.given;
    json!({
        "gpus": curve.points().map(|point| point.busy_milli.map(busy)).collect::<Vec<_>>(),
        "memory_mib": curve.points().map(|point| point.memory_kib.map(mib)).collect::<Vec<_>>(),
        "gpus_asked": mebibytes(given.units),
        "memory_of_devices_mib": (given.memory_kib > 0).then(|| mib(given.memory_kib)),
        "memory_of": if given.is_memory_of_devices { "devices" } else { "processes" },
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

    fn with_gpu() -> common::Curve {
        common::Curve {
            gpu: Some(common::GpuCurve {
                busy_peak_milli: 2_000,
                memory_peak_kib: 30 << 20,
                busy: vec![255, 0, 1, 128].into(),
                memory: vec![255, 0, 2, 128].into(),
                asked_units: 20_000,
                memory_of_devices_kib: 160 << 20,
                is_memory_of_devices: false,
            }),
            ..message()
        }
    }

    #[test]
    fn gpus_have_lines_of_their_own_with_dots_for_gaps() {
        let mut message = with_gpu();
        let said = lines(Some(&message));
        let names: Vec<&str> = said.iter().map(|(name, _)| *name).collect();
        assert_eq!(names[2..], ["GPUs over time", "GPU memory over time"]);
        assert_eq!(said[2].1, "█· ▄ 1.00 on average, up to 2.00 of 2 asked for");
        assert_eq!(
            said[3].1,
            "█·▁▄ up to 30.00 GiB of 160.00 GiB that its devices have"
        );
        let value = value(Some(&message));
        assert_eq!(value["gpu"]["gpus"], json!([2.0, null, 0.0, 1.0]));
        assert_eq!(value["gpu"]["memory_mib"][0], 30_720.0);
        assert_eq!(value["gpu"]["memory_of"], "processes");
        let gpu = message.gpu.as_mut().expect("it has GPUs");
        gpu.asked_units = 5_000;
        let shared = lines(Some(&message));
        let busy = "█· ▄ 1.00 on average, up to 2.00 of 0.5 asked for, with that of others there";
        assert_eq!(shared[2].1, busy);
        let gpu = message.gpu.as_mut().expect("it has GPUs");
        // The driver reports no utilization for a part of a GPU.
        gpu.busy = vec![0; 4].into();
        (gpu.is_memory_of_devices, gpu.memory_of_devices_kib) = (true, 0);
        let said = lines(Some(&message));
        assert_eq!(said[2].1, "not known");
        assert_eq!(said[3].1, "█·▁▄ up to 30.00 GiB, with that of others there");
        message.gpu.as_mut().expect("it has GPUs").memory = vec![0; 4].into();
        assert_eq!(lines(Some(&message))[3].1, "not known");
        message.gpu.as_mut().expect("it has GPUs").memory = vec![1].into();
        assert_eq!(
            lines(Some(&message)).len(),
            2,
            "malformed, but not the rest"
        );
    }

    #[test]
    fn a_line_says_what_was_used_beside_what_was_asked_for() {
        let mut message = message();
        let [(_, memory), (_, cpu)] = &lines(Some(&message))[..] else {
            panic!("a task without GPUs");
        };
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
        assert_eq!(lines(None), []);
        assert_eq!(lines(Some(&common::Curve::default())), []);
        let mut uneven = message();
        uneven.cpu = vec![1].into();
        assert_eq!(lines(Some(&uneven)), []);
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
