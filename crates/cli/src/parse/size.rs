//! Parses sizes of files: `500M`, `4G`, or `none` for no limit.

use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};

/// The minimum limit of a journal or of values. A handful of jobs would reach a smaller limit.
const LEAST: u64 = 1 << 20;

/// A maximum size. `None` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SizeMax(pub(crate) Option<u64>);

/// Parses a number of KiB, MiB, GiB or TiB (`K`, `M`, `G`, `T`), or `none`.
pub(crate) fn parse_size_max(text: &str) -> Result<SizeMax, String> {
    if text == "none" {
        return Ok(SizeMax(None));
    }
    let expected = || format!("expected a number with K, M, G or T, or `none`, found `{text}`");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = unit_bits(text.get(digits.len()..).unwrap_or("")).ok_or_else(expected)?;
    let number = Amount::parse(digits).map_err(|_| expected())?;
    let bytes = (u128::from(number.0) << shift) / u128::from(UNITS_PER_WHOLE);
    let bytes = u64::try_from(bytes).map_err(|_| format!("`{text}` is too large"))?;
    if bytes < LEAST {
        return Err(format!("expected at least 1M, found `{text}`"));
    }
    Ok(SizeMax(Some(bytes)))
}

/// Returns the power of two of a unit: `K`, `M`, `G` or `T`, alone or followed by `B` or `iB`.
pub(crate) fn unit_bits(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    let letter = unit
        .strip_suffix("IB")
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit);
    let index = ["K", "M", "G", "T"].iter().position(|one| *one == letter)?;
    u32::try_from(10 * (index + 1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_and_none() {
        for (text, bytes) in [
            ("1M", Some(1 << 20)),
            ("2048K", Some(2 << 20)),
            ("4GiB", Some(4 << 30)),
            ("1T", Some(1 << 40)),
            ("1.5G", Some(3 << 29)),
            ("500mb", Some(500 << 20)),
            ("none", None),
        ] {
            assert_eq!(parse_size_max(text), Ok(SizeMax(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "1",
            "M",
            "1X",
            "-1M",
            "1K",
            "0M",
            "99999999T",
            "1.5.5G",
            "G1",
            "1 M",
            "None",
        ] {
            assert!(parse_size_max(text).is_err(), "{text}");
        }
    }
}
