//! Converts between messages and core types. All received data is untrusted: this module converts a
//! message to a core type or rejects it with the name of the invalid field. No other module
//! validates messages.
//!
//! Decoding is `TryFrom<message>`. Encoding is `From<&core type>` and cannot fail. This module
//! knows no connections and no state: the core decides whether a job exists or a graph has a cycle.
//!
//! Repeated fields have their own limits in addition to the message size, because a few bytes can
//! decode to much memory. See `docs/protocol.md`.

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
mod revised;
mod submit;
mod template;
mod token;
mod wire;
mod worker;
mod worker_config;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hq_core::template::ByteText;

pub use alloc::AllocRequest;
pub use client::{Acknowledge, ClientRequest, JobRef, JournalAction, Query, TaskPageQuery};
pub use curve::{TaskCurve, add_curves, take_curves};
pub use output::{OUTPUT_DATA_MAX, OutputQuery, OutputRequest, OutputSource, ReadFrom};
pub use refusal::refusal_text;
pub use relay::RelayRequest;
pub use resize::NEW_REQUESTS_MAX;
pub use token::{Role, TokenChange};
pub use worker::{FromServer, FromWorker, NOTIFICATION_MAX, VALUE_MAX, heartbeat, reattach};

/// The maximum length of the name of a job, node, group or resource, in bytes.
pub const NAME_LEN_MAX: usize = 64 << 10;

/// How many bytes of a received text an error repeats.
const SHOWN_LEN_MAX: usize = 64;

/// A message that violates a rule of its type.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A required field is missing.
    #[error("field `{field}` is missing")]
    Missing {
        /// The path of the field in the message.
        field: String,
    },
    /// A value is not allowed.
    #[error("invalid field `{field}`: expected {expected}, found {found}")]
    Invalid {
        /// The path of the field in the message.
        field: String,
        /// The violated rule.
        expected: &'static str,
        /// The value found, abbreviated.
        found: String,
    },
    /// A field has more elements than allowed.
    #[error("field `{field}` has {found} elements, at most {limit} are allowed")]
    TooMany {
        /// The path of the field in the message.
        field: String,
        /// The number of elements.
        found: usize,
        /// The maximum number of elements.
        limit: usize,
    },
    /// The message violates a rule of the core type.
    #[error("invalid field `{field}`")]
    Rule {
        /// The path of the field in the message.
        field: String,
        /// The error that names the rule.
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
        // Control characters from a peer must not reach a terminal or a log.
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

    /// Returns the path of the field in the message, such as `array.template.env[3].name`.
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

/// Prepends the path of an enclosing message to an error's field.
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

/// Converts a value of a generated enum.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, ConvertError> {
    E::try_from(value).map_err(|_| ConvertError::invalid(field, "a known value", value))
}

/// Converts bytes that the system has to accept as a NUL-terminated string.
fn no_nul(field: &str, bytes: Bytes) -> Result<ByteText, ConvertError> {
    if bytes.contains(&0) {
        let found = format!("\"{}\"", bytes.escape_ascii());
        return Err(ConvertError::invalid(field, "bytes without NUL", found));
    }
    Ok(bytes[..].into())
}

fn path(field: &str, bytes: Bytes) -> Result<ByteText, ConvertError> {
    if bytes.is_empty() {
        return Err(ConvertError::invalid(field, "a path", "nothing"));
    }
    no_nul(field, bytes)
}

fn absolute_path(field: &str, bytes: Bytes) -> Result<ByteText, ConvertError> {
    if !bytes.starts_with(b"/") {
        let found = format!("\"{}\"", bytes.escape_ascii());
        return Err(ConvertError::invalid(field, "an absolute path", found));
    }
    no_nul(field, bytes)
}

/// Converts a text that may be empty.
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

/// Checks a fraction. This also rejects NaN.
fn fraction(field: &str, found: f32) -> Result<f32, ConvertError> {
    if !(0.0..=1.0).contains(&found) {
        return Err(ConvertError::invalid(field, "0.0 to 1.0", found));
    }
    Ok(found)
}

const fn duration(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests;
