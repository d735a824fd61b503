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

    pub(super) fn poor(
        what: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::with(State::Poor, what, found, advice)
    }

    pub(super) fn broken(
        what: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::with(State::Broken, what, found, advice)
    }

    pub(super) fn unknown(
        what: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::with(State::Unknown, what, found, advice)
    }

    /// Creates a check whose state is not good.
    pub(super) fn with(
        state: State,
        what: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            state,
            found: found.into(),
            advice: Some(advice.into()),
        }
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
    let (poor, broken, unknown) = (
        count(State::Poor),
        count(State::Broken),
        count(State::Unknown),
    );
    let mut parts = Vec::new();
    for (count, what) in [
        (
            broken,
            if broken == 1 {
                "prevents work"
            } else {
                "prevent work"
            },
        ),
        (poor, "could be better"),
        (unknown, "could not be checked"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
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
            Check::poor("open files", "at most 1024", "Raise it."),
            Check::unknown("server", "none", "Start one."),
            Check::broken("locks", "none", "Move it."),
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
