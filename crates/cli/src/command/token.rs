//! `hq token …`.

use std::io::Write as _;

use hq_protocol::client::ask_tokens::Change;
use hq_protocol::client::{AskTokens, NewToken, TokenRole};
use hq_protocol::convert::Role;
use serde_json::json;

use super::Context;
use crate::args::global::OutputMode;
use crate::args::token::{CreateArgs, TokenCommand};
use crate::error::{CliError, CliResult};
use crate::output::json::write_value;

/// Rejects a name that the server would reject, without repeating a token.
fn check_name(name: &str) -> CliResult<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.len() > 64 && name.starts_with("hq_") {
        return Err(
            CliError::new("This is a token itself, and its name is expected")
                .with_help("`hq token list` names the tokens; whoever may have read this line, for example in a log, can use the token until it is revoked"),
        );
    }
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        return Err(CliError::new(format!(
            "`{name}` cannot be the name of a token: it has 1 to 64 letters, digits, `.`, `_` or `-`, as in `my-laptop`"
        )));
    }
    Ok(())
}

pub(super) async fn run(command: TokenCommand, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    match command {
        TokenCommand::Create(CreateArgs { name, role }) => {
            check_name(&name)?;
            let role = Role::from(role);
            let new = NewToken {
                name: name.clone(),
                role: TokenRole::from(role).into(),
            };
            let secret = client.ask(Change::Create(new)).await?.secret;
            match context.mode() {
                OutputMode::Json => {
                    let value = json!({"name": name, "role": role.name(), "token": secret});
                    write_value(&mut context.out, &value)?;
                }
                OutputMode::Cli | OutputMode::Quiet => writeln!(context.out, "{secret}")?,
            }
        }
        TokenCommand::List => {
            context.show(&client.ask(AskTokens::default()).await?)?;
        }
        TokenCommand::Revoke(args) => {
            for name in args.names {
                check_name(&name)?;
                let revoked = client.ask(Change::Revoke(name)).await;
                revoked.map_err(|error| error.with_help("`hq token list` names the tokens"))?;
            }
            context.done()?;
        }
    }
    context.flush()
}
