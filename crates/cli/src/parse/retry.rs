//! Signals by name or number, and what another attempt may follow: `exit`, `3,10-20`, `SIGKILL,oom`.

use hq_core::outcome::SignalName;
use hq_core::retry::RetryCause;

/// Largest signal number of Linux.
const SIGNAL_MAX: i32 = 64;

/// Value of `--retry-on`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RetryOn(pub(crate) Vec<RetryCause>);

/// Reads a comma separated list of causes.
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

/// Reads a signal: `SIGTERM`, `term` or `15`.
pub(crate) fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_uppercase();
    let name = if upper.starts_with("SIG") {
        upper
    } else {
        format!("SIG{upper}")
    };
    let number = text.parse::<i32>().ok();
    let named = (1..=SIGNAL_MAX).find(|signal| SignalName(*signal).to_string() == name);
    number
        .or(named)
        .filter(|signal| (1..=SIGNAL_MAX).contains(signal))
        .ok_or_else(|| format!("expected a signal such as SIGTERM or 15, found `{text}`"))
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
    fn signals_have_names_and_numbers() {
        assert_eq!(parse_signal("SIGTERM"), Ok(15));
        assert_eq!(parse_signal("usr1"), Ok(10));
        assert_eq!(parse_signal("9"), Ok(9));
        assert!(parse_signal("0").is_err() && parse_signal("SIGFOO").is_err());
    }
}
