//! Parses sizes, durations and names of GPUs as batch systems write them.

use crate::parse::size::unit_bits;

/// A placeholder for the job number in paths, until it is known whether the job is an array.
pub(super) const JOB: &str = "%{job}";

/// A placeholder for the name of the job.
pub(super) const NAME: &str = "%{name}";

/// Parses memory into KiB. A number without a unit is in units of `plain`.
pub(super) fn memory_kib(text: &str, plain: Plain) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?.to_ascii_lowercase();
    let number: f64 = digits.parse().ok()?;
    let kib = match &*unit {
        "" => number * plain.kib(),
        "b" => number / 1_024.0,
        // A PBS word has eight bytes.
        "w" => number / 128.0,
        unit => number * f64::from(1_u32 << (unit_bits(unit)? - 10)),
    };
    // A larger value exceeds any machine, or is not a number.
    let is_sane = kib.is_finite() && (0.0..1e15).contains(&kib);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be small and not negative"
    )]
    is_sane.then_some(kib.ceil() as u64)
}

/// The unit of a plain number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plain {
    Bytes,
    Kib,
    Mib,
}

impl Plain {
    const fn kib(self) -> f64 {
        match self {
            Self::Bytes => 1.0 / 1_024.0,
            Self::Kib => 1.0,
            Self::Mib => 1_024.0,
        }
    }
}

/// Formats KiB for hq, in the largest unit that leaves no remainder.
pub(super) fn memory_text(kib: u64) -> String {
    let units = [(1 << 30, "T"), (1 << 20, "G"), (1 << 10, "M")];
    let found = units
        .into_iter()
        .find(|(size, _)| kib.is_multiple_of(*size));
    match found {
        Some((size, unit)) => format!("{}{unit}", kib / size),
        None => format!("{kib}K"),
    }
}

/// Parses `[DAYS-]FIELDS` into seconds. A single field is in units of `unit` seconds, and the last
/// of several fields is in units of `last` seconds. After days, the first field is hours.
pub(super) fn seconds(text: &str, unit: u64, last: u64) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
        None => (None, text),
    };
    let fields: Option<Vec<u64>> = clock.split(':').map(|field| field.parse().ok()).collect();
    let fields = fields?;
    let weights: Vec<u64> = match (days, fields.len()) {
        (Some(_), 1..=3) => vec![3_600, 60, 1],
        (None, 1) => vec![unit],
        (None, count @ 2..=3) => {
            let place = |i: usize| last.checked_mul(60_u64.pow(u32::try_from(count - 1 - i).ok()?));
            (0..count).map(place).collect::<Option<_>>()?
        }
        _ => return None,
    };
    let mut total = days.unwrap_or(0).checked_mul(86_400)?;
    for (field, weight) in fields.iter().zip(weights) {
        total = total.checked_add(field.checked_mul(weight)?)?;
    }
    Some(total)
}

/// Formats seconds as `01:30:00` or `1-12:00:00`.
pub(super) fn clock(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        days => format!("{days}-{clock}"),
    }
}

/// Parses `gpu:a100:2`, `a100:2`, `2` or `gpu` into the vendor's resource and the number.
pub(super) fn gpus(text: &str) -> Option<(&'static str, u32)> {
    let text = text.split('(').next()?;
    let parts: Vec<&str> = text.split(':').collect();
    // A kind without a number requests one.
    let count = parts.last()?.parse().unwrap_or(1);
    let is_amd = parts.iter().any(|part| {
        let part = part.to_ascii_lowercase();
        part.starts_with("mi") && part[2..].starts_with(|c: char| c.is_ascii_digit())
    });
    let resource = if is_amd { "gpus/amd" } else { "gpus/nvidia" };
    Some((resource, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_every_system() {
        for (text, plain, shown) in [
            ("4G", Plain::Mib, "4G"),
            ("4000", Plain::Mib, "4000M"),
            ("8gb", Plain::Bytes, "8G"),
            ("1.5GiB", Plain::Kib, "1536M"),
            ("2048b", Plain::Bytes, "2K"),
            ("1048576", Plain::Bytes, "1M"),
            ("500", Plain::Kib, "500K"),
        ] {
            let kib = memory_kib(text, plain).expect(text);
            assert_eq!(memory_text(kib), shown, "{text}");
        }
        for bad in ["", "G", "4X", "-1G", "1e99G", "NaN"] {
            assert_eq!(memory_kib(bad, Plain::Mib), None, "{bad}");
        }
    }

    #[test]
    fn durations_of_every_system() {
        let slurm = |text| seconds(text, 60, 1).map(clock);
        for (text, shown) in [
            ("90", "01:30:00"),
            ("10:30", "00:10:30"),
            ("01:30:00", "01:30:00"),
            ("1-12", "1-12:00:00"),
            ("2-00:30", "2-00:30:00"),
            ("1-02:00:00", "1-02:00:00"),
        ] {
            assert_eq!(slurm(text).as_deref(), Some(shown), "{text}");
        }
        // In LSF, these fields are hours and minutes.
        assert_eq!(
            seconds("1:30", 60, 60).map(clock).as_deref(),
            Some("01:30:00")
        );
        for bad in [
            "",
            "x",
            "1:",
            "1:2:3:4",
            "99999999999999999999",
            "1-",
            "18446744073709551615",
        ] {
            assert_eq!(slurm(bad), None, "{bad}");
        }
    }

    #[test]
    fn gpus_have_a_maker_and_a_number() {
        assert_eq!(gpus("gpu:a100:2"), Some(("gpus/nvidia", 2)));
        assert_eq!(gpus("gpu"), Some(("gpus/nvidia", 1)));
        assert_eq!(gpus("mi250x:8"), Some(("gpus/amd", 8)));
        assert_eq!(gpus("gpu:4(S:0-1)"), Some(("gpus/nvidia", 4)));
    }
}
