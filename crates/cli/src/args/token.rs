//! `hq token …`.

use clap::{Args, Subcommand, ValueEnum};
use hq_protocol::convert::Role;

/// Commands about tokens.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, this once: only a hash of it is kept
    ///
    /// Programs send it as `Authorization: Bearer TOKEN` to the HTTP interface of the server (`hq server start --http`). It
    /// is good until it is revoked, also after the server was started again with its state.
    #[command(after_long_help = super::examples::TOKEN_CREATE)]
    Create(CreateArgs),
    /// List tokens: what they may do, when they were made and used
    List,
    /// Revoke tokens: from this moment on they open nothing, and what they have open is cut off
    Revoke(RevokeArgs),
}

/// Options of `token create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name by which it is listed and revoked: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// What programs that have it may do
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
    /// Look at everything
    Read,
    /// Also submit jobs, and cancel and resubmit any job: what is submitted runs as the user of the server
    Submit,
    /// Everything, also stop workers and pause queues
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
