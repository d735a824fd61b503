//! Parses limits of tasks: `10`, `50/s`, `db=2`.

use hq_core::bound::{BOUND, Bound, LIMIT_NAME, LimitUse, Rate, is_limit_name};

/// Parses the name of a limit.
pub(crate) fn parse_limit_name(text: &str) -> Result<Box<str>, String> {
    match is_limit_name(text) {
        true => Ok(text.into()),
        false => Err(format!("expected {LIMIT_NAME}, found `{text}`")),
    }
}

/// Parses a limit.
pub(crate) fn parse_bound(text: &str) -> Result<Bound, String> {
    let bound = text.parse();
    bound.map_err(|_| format!("expected {BOUND}, found `{text}`"))
}

/// Parses a rate.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    match text.parse() {
        Ok(Bound::Rate(rate)) => Ok(rate),
        Ok(Bound::Running(_)) | Err(_) => Err(format!(
            "expected a number of starts in a second, minute or hour, such as 50/s, 100/min or \
             20/h, found `{text}`"
        )),
    }
}

/// Parses a number of tasks that run at the same time.
pub(crate) fn parse_running(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(Bound::Running(max)) => Ok(max),
        Ok(Bound::Rate(_)) => Err(format!(
            "expected a number of tasks that run at the same time, found the rate `{text}`, which \
             --max-rate takes"
        )),
        Err(_) => Err(format!("expected a whole number above 0, found `{text}`")),
    }
}

/// Parses `NAME` or `NAME=AMOUNT`.
pub(crate) fn parse_limit_use(text: &str) -> Result<LimitUse, String> {
    let (name, amount) = match text.split_once('=') {
        None => (text, 1),
        Some((name, amount)) => (name, parse_running(amount)?),
    };
    let name = parse_limit_name(name)?;
    Ok(LimitUse { name, amount })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_a_name_and_an_amount() {
        let found = |text| parse_limit_use(text).map(|part| (part.name.to_string(), part.amount));
        assert_eq!(found("db"), Ok(("db".to_owned(), 1)));
        assert_eq!(found("db=2"), Ok(("db".to_owned(), 2)));
        for bad in ["", "=2", "db=", "db=0", "db=-1", "db=1/s", "d b", "7"] {
            assert!(parse_limit_use(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_and_numbers_of_tasks_are_not_mixed_up() {
        assert!(parse_rate("50/s").is_ok() && parse_rate("50").is_err());
        assert_eq!(parse_running("50"), Ok(50));
        let error = parse_running("50/s").expect_err("a rate");
        assert!(error.contains("--max-rate"), "{error}");
    }
}
