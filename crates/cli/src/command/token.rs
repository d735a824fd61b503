//! `hq token …`.

use std::io::Write as _;

use hq_protocol::client::ask_tokens::Change;
use hq_protocol::client::{NewToken, TokenRole};
use hq_protocol::convert::Role;
use serde_json::json;

use super::Context;
use crate::args::global::OutputMode;
use crate::args::token::{CreateArgs, TokenCommand};
use crate::error::CliResult;
use crate::output::json::write_value;

pub(super) async fn run(command: TokenCommand, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    match command {
        TokenCommand::Create(CreateArgs { name, role }) => {
            let role = Role::from(role);
            let new = NewToken {
                name: name.clone(),
                role: TokenRole::from(role).into(),
            };
            let secret = client.tokens(Some(Change::Create(new))).await?.secret;
            match context.mode() {
                OutputMode::Json => {
                    let value = json!({"name": name, "role": role.name(), "token": secret});
                    write_value(&mut context.out, &value)?;
                }
                OutputMode::Cli | OutputMode::Quiet => writeln!(context.out, "{secret}")?,
            }
        }
        TokenCommand::List => {
            let found = client.tokens(None).await?;
            context.output.token_list(&mut context.out, &found.tokens)?;
        }
        TokenCommand::Revoke(args) => {
            for name in args.names {
                let revoked = client.tokens(Some(Change::Revoke(name))).await;
                revoked.map_err(|error| error.with_help("`hq token list` names the tokens"))?;
            }
            context.done()?;
        }
    }
    context.flush()
}
