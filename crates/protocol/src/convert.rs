//! Messages ⇄ core types. Everything that arrives is untrusted: a message becomes a core type here,
//! or is rejected here with the invalid field. No other module checks.
//!
//! Decoding is `TryFrom<message>`, encoding is `From<&core type>` and cannot fail. This code knows
//! no connections and no state: the core decides whether a job exists or a graph has a cycle.
//!
//! Repeated fields have limits of their own in addition to the message size, because a few bytes
//! can decode to much memory. See `docs/protocol.md`.

mod alloc;
mod client;
mod curve;
mod hardware;
mod ids;
mod output;
mod refusal;
mod relay;
mod reply;
mod report;
mod resize;
mod resource;
mod submit;
mod template;
mod token;
mod worker;
mod worker_config;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use hq_core::template::ByteText;

pub use alloc::AllocRequest;
pub use client::{Acknowledge, ClientRequest, JobRef, JournalAction, Query, TaskPageQuery};
pub use curve::{TaskCurve, add_curves, take_curves};
pub use ids::ID_RANGES_MAX;
pub use output::{OUTPUT_DATA_MAX, OutputQuery, OutputRequest, OutputSource, ReadFrom};
pub use refusal::refusal_text;
pub use relay::RelayRequest;
pub use resize::NEW_REQUESTS_MAX;
pub use token::{Role, TokenChange};
pub use worker::{FromServer, FromWorker, NOTIFICATION_MAX, VALUE_MAX, heartbeat, reattach};

/// Longest name of a job, node, group or resource, in bytes.
pub const NAME_LEN_MAX: usize = 64 << 10;

/// Bytes of a received text that an error repeats.
const SHOWN_LEN_MAX: usize = 64;

/// A message that breaks a rule of its type.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("field `{field}` is missing")]
    Missing {
        /// Path of the field inside the message.
        field: String,
    },
    /// A value that is not allowed.
    #[error("invalid field `{field}`: expected {expected}, found {found}")]
    Invalid {
        /// Path of the field inside the message.
        field: String,
        /// The rule.
        expected: &'static str,
        /// The value found, shortened.
        found: String,
    },
    /// More elements than allowed.
    #[error("field `{field}` has {found} elements, at most {limit} are allowed")]
    TooMany {
        /// Path of the field inside the message.
        field: String,
        /// Number of elements.
        found: usize,
        /// Most elements that are allowed.
        limit: usize,
    },
    /// A rule of the core type is broken.
    #[error("invalid field `{field}`")]
    Rule {
        /// Path of the field inside the message.
        field: String,
        /// Error that names the rule.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ConvertError {
    fn invalid(field: &str, expected: &'static str, found: impl fmt::Display) -> Self {
        let mut found = found.to_string();
        if found.len() > SHOWN_LEN_MAX {
            let end = (0..=SHOWN_LEN_MAX)
                .rev()
                .find(|end| found.is_char_boundary(*end));
            found.truncate(end.unwrap_or(0));
            found.push('…');
        }
        // Control characters of a peer must not reach a terminal or a log.
        let found = found.escape_debug().to_string();
        Self::Invalid {
            field: field.to_owned(),
            expected,
            found,
        }
    }

    fn missing(field: &str) -> Self {
        Self::Missing {
            field: field.to_owned(),
        }
    }

    fn rule(field: &str, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Rule {
            field: field.to_owned(),
            source: Box::new(source),
        }
    }

    /// Path of the field inside the message, such as `array.template.env[3].name`.
    #[must_use]
    pub fn field(&self) -> &str {
        match self {
            Self::Missing { field }
            | Self::Invalid { field, .. }
            | Self::TooMany { field, .. }
            | Self::Rule { field, .. } => field,
        }
    }

    fn prefixed(mut self, parent: &str) -> Self {
        match &mut self {
            Self::Missing { field }
            | Self::Invalid { field, .. }
            | Self::TooMany { field, .. }
            | Self::Rule { field, .. } => *field = format!("{parent}.{field}"),
        }
        self
    }
}

/// Puts the path of an enclosing message in front of an error's field.
trait Within {
    fn within(self, parent: &str) -> Self;
    fn at(self, parent: &str, index: usize) -> Self;
}

impl<T> Within for Result<T, ConvertError> {
    fn within(self, parent: &str) -> Self {
        self.map_err(|error| error.prefixed(parent))
    }

    fn at(self, parent: &str, index: usize) -> Self {
        self.map_err(|error| error.prefixed(&format!("{parent}[{index}]")))
    }
}

fn required<T>(value: Option<T>, field: &str) -> Result<T, ConvertError> {
    value.ok_or_else(|| ConvertError::missing(field))
}

fn at_most(field: &str, found: usize, limit: usize) -> Result<(), ConvertError> {
    if found <= limit {
        return Ok(());
    }
    Err(ConvertError::TooMany {
        field: field.to_owned(),
        found,
        limit,
    })
}

fn same_len(field: &str, found: usize, expected: usize) -> Result<(), ConvertError> {
    if found == expected {
        return Ok(());
    }
    Err(ConvertError::invalid(
        field,
        "as many elements as the column before",
        format_args!("{found} instead of {expected}"),
    ))
}

/// Converts each element, naming the one that fails.
fn each<M, T>(field: &str, messages: Vec<M>) -> Result<Vec<T>, ConvertError>
where
    T: TryFrom<M, Error = ConvertError>,
{
    let convert = |(index, message)| T::try_from(message).at(field, index);
    messages.into_iter().enumerate().map(convert).collect()
}

/// A value of a generated enum.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, ConvertError> {
    E::try_from(value).map_err(|_| ConvertError::invalid(field, "a known value", value))
}

/// Bytes that the system accepts as a NUL-terminated string.
fn no_nul(field: &str, bytes: &[u8]) -> Result<ByteText, ConvertError> {
    if bytes.contains(&0) {
        let found = format!("\"{}\"", bytes.escape_ascii());
        return Err(ConvertError::invalid(field, "bytes without NUL", found));
    }
    Ok(bytes.into())
}

fn path(field: &str, bytes: &[u8]) -> Result<ByteText, ConvertError> {
    if bytes.is_empty() {
        return Err(ConvertError::invalid(field, "a path", "nothing"));
    }
    no_nul(field, bytes)
}

fn absolute_path(field: &str, bytes: &[u8]) -> Result<ByteText, ConvertError> {
    if !bytes.starts_with(b"/") {
        let found = format!("\"{}\"", bytes.escape_ascii());
        return Err(ConvertError::invalid(field, "an absolute path", found));
    }
    no_nul(field, bytes)
}

/// A text that may be empty.
fn text(field: &str, text: String) -> Result<Box<str>, ConvertError> {
    if text.len() > NAME_LEN_MAX {
        let found = format_args!("{} bytes", text.len());
        return Err(ConvertError::invalid(field, "at most 65536 bytes", found));
    }
    Ok(text.into())
}

fn name(field: &str, name: String) -> Result<Box<str>, ConvertError> {
    if name.is_empty() {
        return Err(ConvertError::invalid(field, "a name", "nothing"));
    }
    text(field, name)
}

const fn duration(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests;
