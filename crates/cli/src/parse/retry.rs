//! Parses signals by name or number, failures to retry, and growth of requests: `exit`, `3,10-20`,
//! `SIGKILL,oom`; `mem=2,time=1.5`.

use hq_core::growth::{GrowSpec, Growth, PERMILLE_MAX};
use hq_core::outcome::SignalName;
use hq_core::resource::amount::Amount;
use hq_core::retry::RetryCause;

use super::duration::parse_duration;
use super::request::parse_named_request;

/// A value of `--retry-on`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RetryOn(pub(crate) Vec<RetryCause>);

/// Parses a comma-separated list of causes.
pub(crate) fn parse_retry_on(text: &str) -> Result<RetryOn, String> {
    let words = text.split(',').map(str::trim);
    words
        .map(parse_cause)
        .collect::<Result<_, _>>()
        .map(RetryOn)
}

fn parse_cause(word: &str) -> Result<RetryCause, String> {
    match word {
        "exit" => return Ok(RetryCause::ExitCodes(1, u8::MAX)),
        "signal" => return Ok(RetryCause::AnySignal),
        "timeout" => return Ok(RetryCause::TimeLimit),
        "oom" => return Ok(RetryCause::OutOfMemory),
        "start" => return Ok(RetryCause::Start),
        "lost" => return Ok(RetryCause::Lost),
        _ => {}
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    if let (Ok(first @ 1..), Ok(last)) = (first.parse::<u8>(), last.parse::<u8>())
        && first <= last
    {
        return Ok(RetryCause::ExitCodes(first, last));
    }
    match parse_signal(word) {
        Ok(signal) if word.parse::<i32>().is_err() => {
            Ok(RetryCause::Signal(u8::try_from(signal).unwrap_or(u8::MAX)))
        }
        Ok(_) | Err(_) => Err(format!(
            "expected exit, signal, timeout, oom, start, lost, an exit code from 1 to 255, a range of them, \
             or the name of a signal, found `{word}`"
        )),
    }
}

/// Parses growth factors: `mem=2,time=1.5`, each with an optional bound: `mem=2,max=64GiB`.
pub(crate) fn parse_retry_grow(text: &str) -> Result<GrowSpec, String> {
    let mut grow = GrowSpec::default();
    let mut last = "";
    for part in text.split(',').map(str::trim) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match (name, &mut grow.memory, &mut grow.time) {
            ("mem", memory @ None, _) => *memory = Some(growth(value)?),
            ("time", _, time @ None) => *time = Some(growth(value)?),
            ("max", Some(growth), _) if last == "mem" => {
                let max = parse_named_request(&format!("mem={value}"));
                let max = max.map_err(|error| format!("max of mem: {error}"))?;
                growth.max = Some(max.amount);
            }
            ("max", _, Some(growth)) if last == "time" => {
                let max = parse_duration(value);
                growth.max = Some(max.map_err(|error| format!("max of time: {error}"))?);
            }
            ("mem" | "time", ..) => return Err(format!("`{name}` is given twice")),
            _ => {
                return Err(format!(
                    "expected mem=FACTOR, time=FACTOR, or max=LIMIT after one of them, found `{part}`"
                ));
            }
        }
        last = name;
    }
    Ok(grow)
}

/// Parses a factor above 1.
fn growth<T>(text: &str) -> Result<Growth<T>, String> {
    let factor = Amount::parse(text).ok();
    // Amounts have four decimals.
    let permille = factor.and_then(|factor| u32::try_from(factor.0 / 10).ok());
    let permille = permille.filter(|permille| (1_001..=PERMILLE_MAX).contains(permille));
    let permille = permille
        .ok_or_else(|| format!("expected a factor above 1 and up to 100, found `{text}`"))?;
    Ok(Growth {
        permille,
        max: None,
    })
}

/// Parses a signal: `SIGTERM`, `term` or `15`.
pub(crate) fn parse_signal(text: &str) -> Result<i32, String> {
    text.parse().map(|SignalName(number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_words_codes_and_signals() {
        let parsed = parse_retry_on("3,10-20,SIGKILL,oom").expect("valid").0;
        let shown: Vec<String> = parsed.iter().map(RetryCause::to_string).collect();
        assert_eq!(shown, ["3", "10-20", "SIGKILL", "oom"]);
        for bad in ["", "0", "256", "5-3", "foo", "exit,,oom"] {
            assert!(parse_retry_on(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn growth_has_a_factor_and_perhaps_a_bound() {
        let both = parse_retry_grow("mem=2,max=64GiB,time=1.5,max=1h").expect("valid");
        let memory = both.memory.expect("named");
        assert_eq!(memory.permille, 2_000);
        assert_eq!(memory.max, Some(Amount::whole(64 * 1_024)));
        let time = both.time.expect("named");
        assert_eq!(time.permille, 1_500);
        assert_eq!(time.max, Some(std::time::Duration::from_secs(3_600)));
        let one = parse_retry_grow("time=3").expect("valid");
        assert_eq!((one.memory, one.time.map(|t| t.max)), (None, Some(None)));
        for bad in [
            "",
            "mem",
            "mem=1",
            "mem=0.5",
            "mem=101",
            "mem=x",
            "max=3",
            "mem=2,mem=3",
            "cpus=2",
            "mem=2,max=",
            "mem=2,max=1h",
            "time=2,max=4GiB",
            "mem=2,,time=2",
        ] {
            assert!(parse_retry_grow(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(parse_signal("SIGTERM"), Ok(15));
        assert_eq!(parse_signal("usr1"), Ok(10));
        assert_eq!(parse_signal("9"), Ok(9));
        assert!(parse_signal("0").is_err() && parse_signal("SIGFOO").is_err());
    }
}
