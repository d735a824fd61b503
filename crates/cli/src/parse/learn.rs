//! Parses values of options that learn from earlier tasks.

use std::time::Duration;

use super::duration::parse_duration;
use super::request::AUTO;

/// A value of `--time-request`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum TimeRequest {
    /// A fixed duration.
    Given(Duration),
    /// The run time of earlier tasks.
    Auto,
}

/// Parses a duration, or `auto`.
pub(crate) fn parse_time_request(text: &str) -> Result<TimeRequest, String> {
    if text == AUTO {
        return Ok(TimeRequest::Auto);
    }
    parse_duration(text).map(TimeRequest::Given)
}

/// Parses a share, such as `0.95` or `95%`, as thousandths.
pub(crate) fn parse_share(text: &str) -> Result<u16, String> {
    let (number, factor) = match text.strip_suffix('%') {
        Some(percent) => (percent, 10.0),
        None => (text, 1_000.0),
    };
    let permille = number.parse::<f64>().map(|share| (share * factor).round());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 1000"
    )]
    match permille {
        Ok(permille) if (1.0..=1_000.0).contains(&permille) => Ok(permille as u16),
        Ok(_) | Err(_) => Err(format!(
            "expected a share above 0 and up to 1, such as `0.95` or `95%`, found `{text}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_of_one_or_percent() {
        for (text, permille) in [("0.95", 950), ("95%", 950), ("1", 1_000), ("99.5%", 995)] {
            assert_eq!(parse_share(text), Ok(permille), "{text}");
        }
        for text in ["0", "1.1", "95", "x", "", "nan", "-0.5", "101%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_request_may_be_left_to_others() {
        assert_eq!(parse_time_request("auto"), Ok(TimeRequest::Auto));
        let hour = Duration::from_secs(3_600);
        assert_eq!(parse_time_request("1h"), Ok(TimeRequest::Given(hour)));
        assert!(parse_time_request("automatic").is_err());
    }
}
