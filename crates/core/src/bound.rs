//! Limits on tasks that run at the same time, and on how often tasks start.

use std::fmt;
use std::str::FromStr;

/// The longest name of a limit, in bytes.
pub const NAME_MAX: usize = 64;
/// The maximum number of limits of a server.
pub const LIMITS_MAX: usize = 10_000;
/// The maximum number of limits of a submit.
pub const USES_MAX: usize = 16;

/// The set without limits.
pub(crate) const UNLIMITED: SetId = SetId(0);

/// The number of a limit set, which is the limits of a submit; see
/// [`crate::scheduler::task_limits`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct SetId(pub(crate) u32);

/// The notation of a [`Bound`], for errors.
pub const BOUND: &str = "a whole number above 0 of tasks that run at the same time, such as 10, or \
    of tasks that start in a second, minute or hour, such as 50/s, 100/min or 20/h";

/// A bound on tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The number of tasks that run at the same time.
    Running(u32),
    /// The number of tasks that start in a period.
    Rate(Rate),
}

/// A number of starts in a period.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    count: u32,
    /// One of [`PERIODS`].
    period: (&'static str, u64),
}

/// The periods of rates, with their seconds.
const PERIODS: [(&str, u64); 3] = [("s", 1), ("min", 60), ("h", 3_600)];

/// The error of a text that is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {BOUND}")]
pub struct BoundError;

impl FromStr for Bound {
    type Err = BoundError;

    fn from_str(text: &str) -> Result<Self, BoundError> {
        let (count, period) = match text.split_once('/') {
            None => (text, None),
            Some((count, period)) => {
                let found = PERIODS.into_iter().find(|(name, _)| *name == period.trim());
                (count, Some(found.ok_or(BoundError)?))
            }
        };
        let count = count.trim();
        // The number parser would accept a plus sign.
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BoundError);
        }
        let count: u32 = count.parse().map_err(|_| BoundError)?;
        match (count, period) {
            (0, _) => Err(BoundError),
            (count, None) => Ok(Self::Running(count)),
            (count, Some(period)) => Ok(Self::Rate(Rate { count, period })),
        }
    }
}

impl Bound {
    /// Returns the number of tasks, in a period if it is a rate.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::Running(count) | Self::Rate(Rate { count, .. }) => count,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running(count) => write!(f, "{count}"),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

impl Rate {
    /// Returns the mean time between two starts, in nanoseconds. At least 1.
    pub(crate) const fn interval_ns(self) -> u64 {
        let (_, secs) = self.period;
        let interval = secs * 1_000_000_000 / self.count as u64;
        if interval == 0 { 1 } else { interval }
    }
}

/// A limit that tasks of a submit count toward.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LimitUse {
    /// The name of the limit.
    pub name: Box<str>,
    /// How much each task counts. At least 1.
    pub amount: u32,
}

/// The limits of the tasks of a submit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SubmitLimits {
    /// The limits of the server that the tasks count toward.
    pub uses: Vec<LimitUse>,
    /// The new limit on running tasks of the job. `None` leaves the limit as it is.
    pub max_running: Option<u32>,
    /// The new limit on starts of tasks of the job. `None` leaves the limit as it is.
    pub max_rate: Option<Rate>,
}

impl SubmitLimits {
    /// Returns whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.period.0)
    }
}

/// The notation of a name, for errors; see [`is_limit_name`].
pub const LIMIT_NAME: &str =
    "a name of at most 64 letters, digits, \"-\", \"_\" and \".\" that begins with a letter";

/// A change of a limit of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitChange {
    /// The name, which [`is_limit_name`] accepts.
    pub name: Box<str>,
    /// The limit. `None` removes it.
    pub bound: Option<Bound>,
    /// Whether to remove the limit although unfinished tasks count toward it.
    pub is_forced: bool,
}

/// The maximum number of names in an error.
const NAMES_SHOWN: usize = 20;

/// Names that exist, as the end of a sentence.
pub(crate) fn known(names: &[Box<str>]) -> String {
    match names {
        [] => "; no limit is set. Set one with \"hq limit set NAME 10\"".to_owned(),
        names if names.len() > NAMES_SHOWN => {
            let others = names.len() - NAMES_SHOWN;
            let names = names[..NAMES_SHOWN].join(", ");
            format!("; the limits are {names} and {others} others")
        }
        names => format!("; the limits are {}", names.join(", ")),
    }
}

/// Returns whether a text can be the name of a limit: letters, digits, `-`, `_` and `.`, and a
/// letter first.
#[must_use]
pub fn is_limit_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= NAME_MAX && text.starts_with(char::is_alphabetic) && text.chars().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        for text in ["1", "10", "4294967295", "50/s", "100/min", "5/h"] {
            let bound: Bound = text.parse().expect("valid");
            assert_eq!(bound.to_string(), text);
        }
        assert_eq!(" 50 / s".parse::<Bound>(), "50/s".parse());
        for text in [
            "",
            "0",
            "-1",
            "+1",
            "1.5",
            "ten",
            "0/s",
            "5/",
            "/s",
            "5/d",
            "5/s/s",
            "4294967296",
        ] {
            assert_eq!(text.parse::<Bound>(), Err(BoundError), "{text}");
        }
    }

    #[test]
    fn intervals_are_exact_to_the_nanosecond() {
        for (text, interval) in [
            ("50/s", 20_000_000),
            ("100/min", 600_000_000),
            ("7/h", 514_285_714_285),
            ("4294967295/s", 1),
        ] {
            let Ok(Bound::Rate(rate)) = text.parse() else {
                panic!("{text} is a rate");
            };
            assert_eq!(rate.interval_ns(), interval, "{text}");
        }
    }

    #[test]
    fn names_have_no_blanks_and_begin_with_a_letter() {
        for (name, is_valid) in [
            ("db", true),
            ("db-2.read_only", true),
            ("größe", true),
            ("", false),
            ("7", false),
            ("a b", false),
            ("a=b", false),
            ("a,b", false),
            ("a/b", false),
        ] {
            assert_eq!(is_limit_name(name), is_valid, "{name}");
        }
    }
}
