//! Parses durations: `HH:MM:SS`, `DAYS-HH:MM:SS` or words such as `1h 30m`.

use std::time::Duration;

/// The beginning of the error about a text that has neither of the two forms.
const FORM: &str =
    "not a duration, expected one such as `90s`, `2h30m`, `01:30:00` or `1-12:00:00`";

/// The beginning of the error about a text that is neither words nor a complete clock time.
const WORDS: &str = "expected words such as `10s`, `5min` or `1h 30m`";

/// The longest duration that can be transferred as nanoseconds in 64 bits, about 292 years.
const LONGEST: Duration = Duration::from_nanos(i64::MAX as u64);

/// Parses `[[HH:]MM:]SS`, `DAYS-HH[:MM[:SS]]` as in Slurm, or words. Fields may exceed 59.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = parse_clock(text).unwrap_or_else(|| parse_words(text));
    parsed.map_err(|why| format!("{FORM}: {why}"))
}

/// Parses a time limit, which must not be 0.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    refuse_zero(parse_duration(text)?)
}

/// Rejects a limit of 0.
pub(crate) fn refuse_zero(limit: Duration) -> Result<Duration, String> {
    if limit.is_zero() {
        return Err("a time limit of 0 would end every task at once".to_owned());
    }
    Ok(limit)
}

/// Parses words, or an unambiguous clock time: `HH:MM:SS`, `DAYS-HH[:MM[:SS]]`. A plain number
/// could be seconds or, as in Slurm, minutes; `1:30` could be 90 seconds or 90 minutes.
pub(crate) fn parse_duration_words(text: &str) -> Result<Duration, String> {
    let is_clear = text.contains('-') || text.matches(':').count() == 2;
    let clock = parse_clock(text).filter(|_| is_clear);
    let parsed = clock.unwrap_or_else(|| parse_words(text));
    parsed.map_err(|why| format!("{WORDS}: {why}"))
}

fn parse_words(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    bounded(Some(duration))
}

fn bounded(duration: Option<Duration>) -> Result<Duration, String> {
    let duration = duration.filter(|duration| *duration <= LONGEST);
    duration.ok_or_else(|| "the duration is too long".to_owned())
}

/// Returns `None` if the text is not a clock time.
fn parse_clock(text: &str) -> Option<Result<Duration, String>> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days), clock),
        None => (None, text),
    };
    let mut fields: Vec<&str> = clock.split(':').collect();
    let is_field = |field: &str| !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit());
    if fields.len() > 3 || !fields.iter().copied().chain(days).all(is_field) {
        return None;
    }
    let mut total = days.map_or(Some(0), |days| days.parse::<u64>().ok());
    if days.is_some() {
        // After days, the first field is hours, regardless of the number of fields.
        fields.resize(3, "0");
    }
    for (place, field) in fields.into_iter().enumerate() {
        let factor = if place == 0 && days.is_some() { 24 } else { 60 };
        let value = field.parse::<u64>().ok();
        total = total
            .and_then(|total| total.checked_mul(factor))
            .and_then(|total| total.checked_add(value?));
    }
    Some(bounded(total.map(Duration::from_secs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        for (text, millis) in [
            ("0", 0),
            ("90", 90_000),
            ("1:30", 90_000),
            ("1:02:03", 3_723_000),
            ("00:90:00", 5_400_000),
            ("1-12", 129_600_000),
            ("1-02:30", 95_400_000),
            ("2-00:00:01", 172_801_000),
            ("0-0", 0),
            ("10s", 10_000),
            ("5min", 300_000),
            ("1h 30m", 5_400_000),
            ("2 hours 5 minutes", 7_500_000),
            ("2h5m10s", 7_510_000),
            ("1day", 86_400_000),
            ("300ms", 300),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "x",
            "1:2:3:4",
            "1:",
            ":1",
            "-5",
            "1-",
            "1-2-3",
            "1-1:2:3:4",
            "99999999999999999999-1",
            "10parsecs",
            "99999999999999999999",
        ] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.starts_with("not a duration, expected one such as `90s`"));
        }
        assert!(parse_duration_words("90").is_err());
        assert!(parse_duration_words("1:30").is_err());
        assert!(parse_duration_words("90s").is_ok());
        for (text, seconds) in [
            ("01:30:00", 5_400),
            ("1-02:00:00", 93_600),
            ("2-0", 172_800),
        ] {
            assert_eq!(
                parse_duration_words(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        assert!(parse_duration("1000000years").is_err());
    }
}
