//! `hq token …`.

use clap::{Args, Subcommand, ValueEnum};
use hq_protocol::convert::Role;

/// Commands about tokens.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Create a token and print it; the server stores only its hash
    ///
    /// Programs send it as `Authorization: Bearer TOKEN` to the HTTP interface of the server (`hq server start --http`).
    /// It is valid until you revoke it, also after a restart of the server.
    #[command(after_long_help = super::examples::TOKEN_CREATE)]
    Create(CreateArgs),
    /// List tokens with their roles and the times of their creation and last use
    List,
    /// Revoke tokens, and close their open connections
    Revoke(RevokeArgs),
}

/// Options of `token create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the token: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Rights of programs with the token
    #[arg(long, value_enum, value_name = "ROLE", default_value_t = RoleArg::Read)]
    pub(crate) role: RoleArg,
}

/// Options of `token revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Names of tokens
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

/// A role as it is written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RoleArg {
    /// Read everything
    Read,
    /// Also submit jobs, and cancel and resubmit any job; tasks run as the user of the server
    Submit,
    /// Do everything, also stop workers and pause queues
    Full,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Read => Self::Read,
            RoleArg::Submit => Self::Submit,
            RoleArg::Full => Self::Full,
        }
    }
}
