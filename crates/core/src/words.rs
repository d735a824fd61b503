//! Numbers as text: a count with its noun, or an amount of a resource with its unit.

use std::fmt::Write as _;
use std::time::Duration;

use crate::resource::amount::{Amount, UNITS_PER_WHOLE};
use crate::time::nanos;

/// Formats a number in groups of three digits: 1234567 becomes `1 234 567`.
#[must_use]
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Returns the form of a noun that `count` requires, such as `task` or `tasks`.
#[must_use]
pub fn noun_of(count: u64, noun: &str) -> String {
    if count == 1 {
        noun.to_owned()
    } else {
        format!("{noun}s")
    }
}

/// Formats a count, such as `1 task` or `12 000 tasks`, for a noun whose plural ends in `s`.
#[must_use]
pub fn count(count: u64, noun: &str) -> String {
    format!("{} {}", number(count), noun_of(count, noun))
}

/// Formats a part of a whole, such as `3 of 12 000 tasks` or `1 of 1 task`.
#[must_use]
pub fn part(part: u64, whole: u64, noun: &str) -> String {
    format!("{} of {}", number(part), count(whole, noun))
}

/// Formats an amount in the unit of its resource. Memory, which is stored in MiB, is shown as `50
/// MiB` or `1.50 GiB`.
#[must_use]
pub fn quantity(resource: &str, amount: Amount) -> String {
    match amount.0 / UNITS_PER_WHOLE {
        mib @ 1_024.. if resource == "mem" => {
            let hundredths = u128::from(mib) * 100 / 1_024;
            format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
        }
        _ if resource == "mem" => format!("{amount} MiB"),
        _ => amount.to_string(),
    }
}

/// Formats a duration, such as `1h 30m`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    const UNITS: [(u64, &str); 7] = [
        (86_400_000_000_000, "day"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let mut left = nanos(duration);
    let mut text = String::new();
    for (size, unit) in UNITS {
        let count = left / size;
        left %= size;
        if count == 0 {
            continue;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        let plural = if unit == "day" && count > 1 { "s" } else { "" };
        let _ = write!(text, "{count}{unit}{plural}");
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// Formats an amount with the name of its resource, such as `1 cpu`, `50 MiB of memory`, `2 GPUs
/// (gpus/nvidia)` or `3 of license`.
#[must_use]
pub fn amount(resource: &str, amount: Amount) -> String {
    let shown = quantity(resource, amount);
    // Fractions use the plural, such as `0.5 cpus`.
    let number = u64::from(amount != Amount::whole(1)) + 1;
    match resource {
        "mem" => format!("{shown} of memory"),
        "cpus" => format!("{shown} {}", noun_of(number, "cpu")),
        _ if resource.starts_with("gpus/") => {
            format!("{shown} {} ({resource})", noun_of(number, "GPU"))
        }
        _ => format!("{shown} of {resource}"),
    }
}

/// Returns whether a space-separated list contains this word.
#[must_use]
pub fn has_word(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(count(1, "task"), "1 task");
        assert_eq!(count(0, "task"), "0 tasks");
        assert_eq!(count(1_234_567, "task"), "1 234 567 tasks");
        assert_eq!(part(1, 1, "task"), "1 of 1 task");
        assert_eq!(part(1, 2_000, "task"), "1 of 2 000 tasks");
    }

    #[test]
    fn amounts_have_the_unit_of_their_resource() {
        for (resource, units, expected) in [
            ("cpus", 10_000, "1 cpu"),
            ("cpus", 5_000, "0.5 cpus"),
            ("cpus", 40_000, "4 cpus"),
            ("mem", 500_000, "50 MiB of memory"),
            ("mem", 15_360_000, "1.50 GiB of memory"),
            ("gpus/nvidia", 10_000, "1 GPU (gpus/nvidia)"),
            ("gpus/amd", 20_000, "2 GPUs (gpus/amd)"),
            ("license", 30_000, "3 of license"),
        ] {
            assert_eq!(amount(resource, Amount(units)), expected);
        }
    }
}
