//! Conversion between messages and core types.

/// A message that breaks a rule of its type.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// See the variants to come.
    #[error("invalid field `{field}`: expected {expected}, found {found}")]
    Invalid {
        /// Path of the field inside the message.
        field: String,
        /// The rule.
        expected: &'static str,
        /// What was there.
        found: String,
    },
}
