//! Signals that were ignored when the program started.

use std::fs;

/// Returns whether a signal is currently ignored. Installing a handler would undo that.
pub(crate) fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_set(&status, number)
}

/// Returns whether `SigIgn` contains a signal. It is a hexadecimal bit set whose lowest bit is
/// signal 1. See `proc_pid_status(5)`.
fn is_in_set(status: &str, number: i32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let bit = u32::try_from(number - 1)
        .ok()
        .and_then(|bit| 1_u64.checked_shl(bit));
    set.zip(bit).is_some_and(|(set, bit)| set & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found_in_the_set() {
        let status = "Name:\thq\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        for (number, expected) in [
            (1, true),
            (2, false),
            (13, true),
            (64, false),
            (65, false),
            (0, false),
        ] {
            assert_eq!(is_in_set(status, number), expected, "{number}");
        }
        assert!(!is_in_set("", 1));
    }
}
