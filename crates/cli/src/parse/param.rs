//! Parses `--param`: `lr=0.1,0.01`, `seed=1-100`, `x=0-1:0.25`, `+batch=32,64`, `name=@FILE`.
//!
//! Commas separate values. Two numbers with `-` between them are a range, optionally followed by
//! `:` and a step. Numbers are exact decimals. Everything else is text. Double quotes can enclose
//! any text; within them, `""` means one quote.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::text::lossy;
use hq_core::params::{DIGITS_MAX, Decimals};

/// A `--param` option.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ParamArg {
    /// The name that is used between braces.
    pub(crate) name: String,
    /// Whether the parameter forms pairs with the previous one.
    pub(crate) is_along: bool,
    /// Where its values come from.
    pub(crate) source: ParamSource,
}

/// Where the values of a parameter come from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ParamSource {
    /// The command line.
    Given(Vec<ParamItem>),
    /// The lines of a file.
    Lines(PathBuf),
}

/// An item between two commas.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ParamItem {
    /// A single value.
    Text(Vec<u8>),
    /// Several values.
    Range(Decimals),
}

/// Parses `NAME=VALUES`. A leading `+` pairs the parameter with the previous one.
pub(crate) fn parse_param(text: &OsStr) -> Result<ParamArg, String> {
    let bytes = text.as_bytes();
    let Some(at) = bytes.iter().position(|byte| *byte == b'=') else {
        return Err("expected NAME=VALUES, such as `lr=0.1,0.01` or `seed=1-100`".to_owned());
    };
    let (name, values) = (&bytes[..at], &bytes[at + 1..]);
    let (name, is_along) = match name.strip_prefix(b"+") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let source = match values.strip_prefix(b"@") {
        Some([]) => return Err("expected the name of a file after `@`".to_owned()),
        Some(path) => ParamSource::Lines(std::ffi::OsString::from_vec(path.to_vec()).into()),
        None => ParamSource::Given(items(values)?),
    };
    Ok(ParamArg {
        // The core rejects an invalid name when it checks all parameters together.
        name: lossy(name),
        is_along,
        source,
    })
}

fn items(mut rest: &[u8]) -> Result<Vec<ParamItem>, String> {
    let mut items = Vec::new();
    loop {
        let (item, after) = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let (text, after) = quoted_text(quoted)?;
                (ParamItem::Text(text), after)
            }
            None => {
                let end = rest.iter().position(|byte| *byte == b',');
                let (item, after) = rest.split_at(end.unwrap_or(rest.len()));
                (plain_item(item)?, after)
            }
        };
        items.push(item);
        match after.split_first() {
            None => return Ok(items),
            Some((b',', after)) => rest = after,
            Some(_) => {
                return Err(format!(
                    "expected `,` or the end after a closing quote, found `{}`",
                    String::from_utf8_lossy(after)
                ));
            }
        }
    }
}

/// Returns a quoted text without its opening quote, and the rest after it.
pub(crate) fn quoted_text(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    let mut text = Vec::new();
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'"') else {
            return Err("expected a closing `\"`".to_owned());
        };
        text.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        // As in CSV, a doubled quote stands for a quote in the text.
        let Some(after) = rest.strip_prefix(b"\"") else {
            return Ok((text, rest));
        };
        text.push(b'"');
        rest = after;
    }
}

fn plain_item(item: &[u8]) -> Result<ParamItem, String> {
    if item.is_empty() {
        return Err("found no value; write `\"\"` for an empty one".to_owned());
    }
    let parts = std::str::from_utf8(item).ok().and_then(split_range);
    let Some((first, last, step)) = parts else {
        return Ok(ParamItem::Text(item.to_vec()));
    };
    match range(first, last, step) {
        Ok(range) => Ok(ParamItem::Range(range)),
        Err(why) => {
            let text = String::from_utf8_lossy(item);
            Err(format!(
                "the range `{text}` {why}; for a text, put it into double quotes that the shell leaves: \
                 '\"{text}\"'"
            ))
        }
    }
}

/// Splits `A-B` or `A-B:STEP`, if the whole text has that form.
fn split_range(text: &str) -> Option<(&str, &str, Option<&str>)> {
    let (first, rest) = text.split_at(number_len(text)?);
    let rest = rest.strip_prefix('-')?;
    let (last, rest) = rest.split_at(number_len(rest)?);
    if rest.is_empty() {
        return Some((first, last, None));
    }
    let step = rest.strip_prefix(':')?;
    (number_len(step)? == step.len()).then_some((first, last, Some(step)))
}

/// Returns the length of the number at the beginning: `-1`, `0.25`, `1e-3`.
fn number_len(text: &str) -> Option<usize> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with('-'));
    let whole = digits(&text[sign..]);
    if whole == 0 {
        return None;
    }
    let end = sign + whole;
    let part = text[end..].strip_prefix('.').map_or(0, digits);
    let end = if part == 0 { end } else { end + 1 + part };
    let exponent = text[end..].strip_prefix(['e', 'E']);
    let exponent = exponent.map(|text| text.strip_prefix(['-', '+']).unwrap_or(text));
    Some(match exponent {
        Some(rest) if digits(rest) > 0 => text.len() - rest.len() + digits(rest),
        Some(_) | None => end,
    })
}

/// Parses a decimal into an integer and the number of digits after the point.
fn decimal(text: &str) -> Result<(i128, usize), String> {
    // Values are text, and the notation of values between 1e-4 and 1e-2 would be ambiguous.
    if text.contains(['e', 'E']) {
        return Err(format!(
            "has a number with an exponent, `{text}`; write it as a decimal"
        ));
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let plain = whole.trim_start_matches('-');
    if plain.len() > 1 && plain.starts_with('0') {
        return Err(format!("has a number with a leading zero, `{text}`"));
    }
    let too_long = || format!("has a number with more than {DIGITS_MAX} digits");
    if plain.len() + part.len() > usize::from(DIGITS_MAX) {
        return Err(too_long());
    }
    let units = format!("{whole}{part}").parse().map_err(|_| too_long())?;
    Ok((units, part.len()))
}

fn range(first: &str, last: &str, step: Option<&str>) -> Result<Decimals, String> {
    let ((first, first_digits), (last, last_digits)) = (decimal(first)?, decimal(last)?);
    let (step, step_digits) = match step {
        Some(step) => decimal(step)?,
        None if first_digits + last_digits > 0 => {
            return Err("of decimals needs a step, such as `0.1-0.5:0.1`".to_owned());
        }
        None => (1, 0),
    };
    // All numbers become multiples of the same power of ten, without rounding.
    let digits = first_digits.max(step_digits);
    let common = digits.max(last_digits);
    let scaled = |units: i128, own: usize| {
        let power = u32::try_from(common - own).unwrap_or_default();
        units * 10_i128.pow(power)
    };
    let (from, to) = (scaled(first, first_digits), scaled(last, last_digits));
    let by = scaled(step, step_digits);
    if by == 0 {
        return Err("has the step 0".to_owned());
    }
    if (to - from) * by.signum() < 0 {
        return Err(if step > 0 {
            "ends before it begins; a descending one has a negative step, such as `10-1:-1`"
                .to_owned()
        } else {
            "rises and has a negative step".to_owned()
        });
    }
    let too_large = || "has numbers, or a number of values, that are too large".to_owned();
    // No value comes after the last one, so the end's own digits do not matter.
    let back = 10_i128.pow(u32::try_from(common - digits).unwrap_or_default());
    Ok(Decimals {
        first: i64::try_from(from / back).map_err(|_| too_large())?,
        step: i64::try_from(by / back).map_err(|_| too_large())?,
        count: u32::try_from((to - from) / by + 1).map_err(|_| too_large())?,
        digits: u8::try_from(digits).map_err(|_| too_large())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ParamArg, String> {
        parse_param(OsStr::new(text))
    }

    fn given(text: &str) -> Vec<String> {
        let ParamSource::Given(items) = read(text).expect(text).source else {
            panic!("{text} names a file");
        };
        let shown = items.into_iter().map(|item| match item {
            ParamItem::Text(text) => format!("'{}'", String::from_utf8_lossy(&text)),
            ParamItem::Range(range) => format!(
                "{}+{}x{}/{}",
                range.first, range.step, range.count, range.digits
            ),
        });
        shown.collect()
    }

    #[test]
    fn values_are_texts_and_ranges() {
        for (text, wanted) in [
            ("lr=0.1,0.01", &["'0.1'", "'0.01'"][..]),
            ("seed=1-100", &["1+1x100/0"]),
            ("x=0-1:0.25", &["0+25x5/2"]),
            ("x=0.1-0.35:0.1", &["1+1x3/1"]),
            ("x=-0.5-0.5:0.5", &["-5+5x3/1"]),
            ("x=-5--1:2", &["-5+2x3/0"]),
            ("x=10-1:-3", &["10+-3x4/0"]),
            ("x=1-0:-0.5", &["10+-5x3/1"]),
            ("x=5-5", &["5+1x1/0"]),
            (
                "x=a-b,1-,1-2-3,1e-5,--x,-3",
                &["'a-b'", "'1-'", "'1-2-3'", "'1e-5'", "'--x'", "'-3'"],
            ),
            (
                r#"x="a,b","2024-01","say ""hi""","",a"b"#,
                &["'a,b'", "'2024-01'", "'say \"hi\"'", "''", "'a\"b'"],
            ),
            ("x=a=b c", &["'a=b c'"]),
            ("x=007,1.", &["'007'", "'1.'"]),
        ] {
            assert_eq!(given(text), wanted, "{text}");
        }
    }

    #[test]
    fn names_and_files() {
        let along = read("+batch=32").expect("valid");
        assert_eq!((along.name.as_str(), along.is_along), ("batch", true));
        let file = read("x=@a=b,c").expect("valid");
        assert_eq!(file.source, ParamSource::Lines("a=b,c".into()));
        assert_eq!(given(r#"x="@a""#), ["'@a'"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("lr", "expected NAME=VALUES"),
            ("x=", "found no value;"),
            ("x=1,,2", "found no value;"),
            ("x=@", "name of a file"),
            ("x=0.1-0.5", "`0.1-0.5` of decimals needs a step"),
            ("x=1e-4-1e-2:1e-4", "has a number with an exponent, `1e-4`"),
            ("x=0-1E3", "has a number with an exponent, `1E3`"),
            ("x=5-1", "`5-1` ends before it begins"),
            ("x=1-5:-1", "rises and has a negative step"),
            ("x=1-5:0", "step 0"),
            ("x=2024-01", "leading zero, `01`; for a text"),
            ("x=1-9999999999", "too large"),
            ("x=1-1000000000000000000", "more than 18 digits"),
            ("x=\"a", "closing `\"`"),
            ("x=\"a\"b", "found `b`"),
        ] {
            let text = read(text).expect_err(text);
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn wide_ranges_of_small_steps_stay_exact() {
        let ParamSource::Given(items) = read("x=0-1:0.0000001").expect("valid").source else {
            panic!("given");
        };
        let [ParamItem::Range(range)] = items.as_slice() else {
            panic!("{items:?}");
        };
        assert_eq!((range.count, range.digits), (10_000_001, 7));
        // Additional digits of the end do not affect the values.
        assert_eq!(given("x=0-1.999999999999999:1"), ["0+1x2/0"]);
        let huge = read("x=0-99999999999:0.0000001");
        assert!(huge.expect_err("too many").contains("too large"));
    }
}
