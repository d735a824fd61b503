//! The result of one check, and how it is shown.

use std::io::Write;

use serde::Deserialize;
use serde_json::{Value, json};

/// The state of what was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing needs to be done.
    Good,
    /// It works, but slowly or not for much longer.
    Poor,
    /// It prevents work.
    Broken,
    /// The check was not possible.
    Unknown,
}

impl State {
    /// Creates a check with this state, which is not good.
    pub(super) fn check(
        self,
        what: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check {
            what: what.into(),
            state: self,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }

    /// Returns the name in JSON and in quiet mode.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Poor => "poor",
            Self::Broken => "broken",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the word at the start of a line.
    const fn label(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Poor => "WARNING",
            Self::Broken => "FAILED",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether the check passed, or `None` if the state is unknown.
    const fn is_ok(self) -> Option<bool> {
        match self {
            Self::Good => Some(true),
            Self::Poor | Self::Broken => Some(false),
            Self::Unknown => None,
        }
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Check {
    #[serde(rename = "check")]
    pub(super) what: String,
    pub(super) state: State,
    /// The finding of the check, in words.
    pub(super) found: String,
    /// The remedy for the finding. `None` only if the state is good.
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn good(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Good,
            found: found.into(),
            advice: None,
        }
    }

    /// Judges an amount: below `min` it prevents work, and below `few` it may not suffice for long.
    pub(super) fn of_amount(
        what: &str,
        found: String,
        (amount, min, few): (u64, u64, u64),
        advice: &str,
    ) -> Self {
        if amount >= few {
            return Self::good(what, found);
        }
        let state = if amount < min {
            State::Broken
        } else {
            State::Poor
        };
        state.check(what, found, advice)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "advice": self.advice,
            "check": self.what,
            "found": self.found,
            "ok": self.state.is_ok(),
            "state": self.state.name(),
        })
    }

    /// Writes one line, and a second one with the advice.
    pub(super) fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let label = self.state.label();
        writeln!(out, "{label:8}{}: {}", self.what, self.found)?;
        match &self.advice {
            Some(advice) => writeln!(out, "        {advice}"),
            None => Ok(()),
        }
    }
}

/// Describes how many checks are not good, in a human-readable form.
pub(super) fn summary(checks: &[Check]) -> String {
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let broken = match count(State::Broken) {
        1 => "prevents work",
        _ => "prevent work",
    };
    let parts: Vec<String> = [
        (State::Broken, broken),
        (State::Poor, "could be better"),
        (State::Unknown, "could not be checked"),
    ]
    .map(|(state, what)| (count(state), what))
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if parts.is_empty() {
        return "All of it is good.".to_owned();
    }
    format!("Of {} checks {}.", checks.len(), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_summary_and_json_agree() {
        let checks = [
            Check::good("kernel", "6.1"),
            State::Poor.check("open files", "at most 1024", "Raise it."),
            State::Unknown.check("server", "none", "Start one."),
            State::Broken.check("locks", "none", "Move it."),
        ];
        let mut text = Vec::new();
        for check in &checks {
            check.write(&mut text).expect("memory");
        }
        assert_eq!(
            String::from_utf8_lossy(&text),
            "ok      kernel: 6.1\nWARNING open files: at most 1024\n        Raise it.\nunknown server: none\n        \
             Start one.\nFAILED  locks: none\n        Move it.\n"
        );
        assert_eq!(
            summary(&checks),
            "Of 4 checks 1 prevents work, 1 could be better, 1 could not be checked."
        );
        assert_eq!(summary(&checks[..1]), "All of it is good.");
        let ok: Vec<Value> = checks.iter().map(|c| c.json()["ok"].clone()).collect();
        assert_eq!(ok, [json!(true), json!(false), Value::Null, json!(false)]);
        for check in checks {
            let back: Check = serde_json::from_value(check.json()).expect("what parts print");
            assert_eq!(back, check);
        }
    }
}
