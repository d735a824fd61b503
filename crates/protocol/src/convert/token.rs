//! Tokens for the HTTP interface.

use super::wire::{ToWire, same_enum};
use super::{ConvertError, Within, known};
use crate::client::{self, TokenRole};

/// The maximum length of a token's name in bytes.
const NAME_LEN_MAX: usize = 64;

/// The role of a token. Each role includes the previous ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Can read everything.
    Read,
    /// Can submit jobs, and cancel, close and resubmit any job.
    Submit,
    /// Can do everything.
    Full,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Read, Self::Submit, Self::Full];

    /// Returns the name, such as `read`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Full => "full",
        }
    }

    /// Returns the role with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

same_enum! { Role = TokenRole, or Unspecified { Read Submit Full } }

impl TokenRole {
    /// Returns the name, such as `read`, or `unknown` for a role of a later release.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.known() {
            None => "unknown",
            Some(role) => role.name(),
        }
    }
}

/// A change of the tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenChange {
    /// Creates a token.
    Create {
        /// The name of the token: letters, digits, `.`, `_` and `-`, at most 64.
        name: Box<str>,
        /// The rights of the token.
        role: Role,
    },
    /// Revokes the token with this name.
    Revoke(Box<str>),
}

pub(super) fn change(asked: client::AskTokens) -> Result<Option<TokenChange>, ConvertError> {
    use client::ask_tokens::Change;
    match asked.change {
        None => Ok(None),
        Some(Change::Revoke(name)) => Ok(Some(TokenChange::Revoke(named(name).within("revoke")?))),
        Some(Change::Create(client::NewToken { name, role })) => {
            let role = known::<TokenRole>("role", role)?.known();
            let role = role.ok_or_else(|| ConvertError::invalid("role", "a known role", "none"))?;
            let name = named(name).within("create")?;
            Ok(Some(TokenChange::Create { name, role }))
        }
    }
}

fn named(name: String) -> Result<Box<str>, ConvertError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(is_plain) {
        let expected = "1 to 64 letters, digits, `.`, `_` or `-`";
        return Err(ConvertError::invalid("name", expected, name));
    }
    Ok(name.into())
}
