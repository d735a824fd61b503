//! Text forms of times, durations, amounts and sizes, shared by all output modes.

use std::borrow::Cow;
use std::time::Duration;

use hq_core::range::{IdArray, IdRange};
use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};
use hq_protocol::common;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::is_hidden;

/// The number of characters of a job's name that tables show.
const NAME_MAX: usize = 50;

/// Formats a time as RFC 3339 in UTC, with the necessary decimals.
pub(crate) fn rfc3339(unix_ns: i64) -> String {
    timestamp(unix_ns).to_string()
}

/// Formats a time as `2026-11-21 08:15:48 UTC`.
pub(crate) fn utc_seconds(unix_ns: i64) -> String {
    timestamp(unix_ns)
        .strftime("%Y-%m-%d %H:%M:%S UTC")
        .to_string()
}

/// Formats a time as `21.11.2026 08:15:48` in the time zone of this machine.
pub(crate) fn local_seconds(unix_ns: i64) -> String {
    let zoned = timestamp(unix_ns).to_zoned(TimeZone::system());
    zoned.strftime("%d.%m.%Y %H:%M:%S").to_string()
}

/// Formats a time as `2026-11-21 08:15:48` in the time zone of this machine.
pub(crate) fn local_time(unix_ns: i64) -> String {
    let zoned = timestamp(unix_ns).to_zoned(TimeZone::system());
    zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Formats the offset of local time from UTC at some time: `UTC+01:00`.
pub(crate) fn zone(unix_ns: i64) -> String {
    let zoned = timestamp(unix_ns).to_zoned(TimeZone::system());
    zoned.strftime("UTC%:z").to_string()
}

/// Converts nanoseconds since 1970 to a time. The default applies only outside the years −9999 to
/// 9999, which 64 bits of nanoseconds cannot represent.
pub(super) fn timestamp(unix_ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the current time by the clock of this machine.
pub(crate) fn now_unix_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Returns the time between two moments, or zero if the clock was set back.
pub(crate) fn elapsed(from_unix_ns: i64, to_unix_ns: i64) -> Duration {
    u64::try_from(to_unix_ns.saturating_sub(from_unix_ns))
        .map_or(Duration::ZERO, Duration::from_nanos)
}

/// Formats a duration in words, rounded to a precision that suits its length.
pub(crate) fn short_words(duration: Duration) -> String {
    let truncated = match duration.as_secs() {
        seconds @ 3600.. => Duration::from_secs(seconds / 60 * 60),
        seconds @ 60.. => Duration::from_secs(seconds),
        _ => Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
    };
    words(truncated)
}

/// Formats a duration in words without truncation.
pub(crate) fn words(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Formats microseconds as `1.2 s`.
pub(crate) fn run_time(us: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
    ];
    if let Some((size, unit)) = UNITS.into_iter().find(|(size, _)| us >= *size) {
        return format!("{}.{} {unit}", us / size, us % size * 10 / size);
    }
    match us {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000.. => format!("{} ms", us / 1_000),
    }
}

/// Converts nanoseconds to seconds with a fraction.
pub(crate) fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// Formats an amount with its fraction.
pub(crate) fn amount(units: u64) -> String {
    Amount(units).to_string()
}

/// Converts units of 1/10 000 to a float, for sizes that are rounded anyway.
#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
fn as_float(units: u64) -> f64 {
    units as f64 / UNITS_PER_WHOLE as f64
}

/// Returns the number of MiB in an amount of `mem`.
pub(crate) fn mebibytes(units: u64) -> f64 {
    as_float(units)
}

/// Formats an amount of `mem`, which is counted in MiB.
pub(crate) fn memory(units: u64) -> String {
    let mib = as_float(units);
    if mib < 512.0 {
        format!("{mib:.2} MiB")
    } else {
        format!("{:.2} GiB", mib / 1024.0)
    }
}

/// Formats an id array from a message in the users' notation. Skips invalid ranges.
pub(crate) fn id_array(ids: &common::IdArray) -> String {
    let mut text = String::new();
    for range in ids.ranges.iter().filter_map(id_range) {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&range.to_string());
    }
    text
}

/// Returns all ids of an id array from a message.
pub(crate) fn ids(ids: &common::IdArray) -> impl Iterator<Item = u32> + '_ {
    ids.ranges
        .iter()
        .filter_map(id_range)
        .flat_map(|range| range.iter())
}

/// Formats a sorted list of ids, with consecutive ids joined.
pub(crate) fn joined_ids(sorted: impl IntoIterator<Item = u32>) -> String {
    IdArray::from_sorted(sorted).unwrap_or_default().to_string()
}

fn id_range(range: &common::IdRange) -> Option<IdRange> {
    let found = IdRange::new(range.first, range.count, range.step.max(1)).ok()?;
    Some(found.with_end(found.last().saturating_add(range.slack)))
}

/// Shortens a long name in the middle.
pub(crate) fn short_name(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_MAX {
        return name.to_owned();
    }
    let head: String = name.chars().take(24).collect();
    let tail: String = name.chars().skip(length - 23).collect();
    format!("{head}...{tail}")
}

/// If a measured memory peak is below this, it may be that of the worker: the kernel counts the
/// process that started the program, which uses a few tens of MiB.
const WORKER_MEMORY_MAX: u64 = 64 << 20;

/// Formats the peak memory of a task: `1.50 GiB`, `< 22.00 MiB`.
pub(crate) fn peak_memory(bytes: u64) -> String {
    let bound = if (1..WORKER_MEMORY_MAX).contains(&bytes) {
        "< "
    } else {
        ""
    };
    format!("{bound}{}", file_size(bytes))
}

/// Formats a size in bytes with a suitable unit.
pub(crate) fn file_size(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    if bytes < 2048 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 2048.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.2} {}", UNITS[unit])
}

/// Shortens a long text at its end.
pub(crate) fn cut(text: &str, length_max: usize) -> Option<String> {
    let (end, _) = text.char_indices().nth(length_max)?;
    Some(format!("{}...", &text[..end]))
}

/// Wraps a line at blanks to a number of columns. Longer words are not split.
pub(crate) fn wrap(line: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut width = 0;
    for word in line.split(' ') {
        let word_width = word.chars().count();
        if width > 0 && width + 1 + word_width > columns {
            lines.push(std::mem::take(&mut current));
            width = 0;
        } else if !lines.is_empty() && width == 0 && current.is_empty() {
            // This is the first word of a continued line.
        } else if width > 0 || !current.is_empty() {
            current.push(' ');
            width += 1;
        }
        current.push_str(word);
        width += word_width;
    }
    lines.push(current);
    lines
}

/// Returns a text for a terminal. Hidden characters are escaped as in JSON, except tabs and line
/// feeds.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| !is_hidden(c) || c == '\n' || c == '\t';
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\r' => shown.push_str("\\r"),
            c if is_shown(c) => shown.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_may_be_that_of_the_worker_is_a_bound() {
        for (bytes, expected) in [
            (0, "0 B"),
            (22 << 20, "< 22.00 MiB"),
            (64 << 20, "64.00 MiB"),
            (3 << 30, "3.00 GiB"),
        ] {
            assert_eq!(peak_memory(bytes), expected);
        }
    }

    #[test]
    fn durations_are_truncated() {
        for (ms, expected) in [
            (0, "0s"),
            (11, "11ms"),
            (1_500, "1s 500ms"),
            (295_999, "4m 55s"),
            (11_159_000, "3h 5m"),
            (634_171_000, "7days 8h 9m"),
        ] {
            assert_eq!(short_words(Duration::from_millis(ms)), expected);
        }
        assert_eq!(short_words(Duration::from_nanos(1_999_999)), "1ms");
        assert_eq!(words(Duration::from_millis(5_400_500)), "1h 30m 500ms");
    }

    #[test]
    fn times_are_in_the_documented_forms() {
        let ns = 1_795_248_948_261_653_512;
        assert_eq!(rfc3339(ns), "2026-11-21T08:15:48.261653512Z");
        assert_eq!(utc_seconds(ns), "2026-11-21 08:15:48 UTC");
        assert_eq!(rfc3339(1_795_248_948_000_000_000), "2026-11-21T08:15:48Z");
        assert_eq!(elapsed(5, 3), Duration::ZERO);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(memory(241_055_507), "23.54 GiB");
        assert_eq!(memory(1_005_000), "100.50 MiB");
        assert_eq!(amount(105_000), "10.5");
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(short_name(&"a".repeat(50)), "a".repeat(50));
        let name = "é".repeat(60);
        assert_eq!(
            short_name(&name),
            format!("{}...{}", "é".repeat(24), "é".repeat(23))
        );
        assert_eq!(
            cut("Program terminated", 16).as_deref(),
            Some("Program terminat...")
        );
        assert_eq!(cut("short", 16), None);
    }

    #[test]
    fn hidden_characters_are_written_out() {
        assert_eq!(printable("ä\tb\nc"), "ä\tb\nc");
        assert_eq!(
            printable("\x1b]0;x\x07\ta\r\n\0\u{9b}\u{202e}\u{2067}\u{e0041}"),
            "\\u001b]0;x\\u0007\ta\\r\n\\u0000\\u009b\\u202e\\u2067\\udb40\\udc41"
        );
    }

    #[test]
    fn lines_are_wrapped_at_blanks() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aaaaaaaa b", 5), ["aaaaaaaa", "b"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("a  b", 10), ["a  b"]);
    }
}
