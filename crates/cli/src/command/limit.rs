//! `hq limit …`.

use hq_core::words::{count, number};
use hq_protocol::client::{ChangeLimit, Empty, Limits};

use super::Context;
use crate::args::limit::LimitCommand;
use crate::client::LimitList;
use crate::error::{CliError, CliResult};

/// Runs `hq limit`.
pub(super) async fn run(command: LimitCommand, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    match command {
        LimitCommand::Set(args) => {
            let change = ChangeLimit {
                name: args.name.to_string(),
                bound: Some(args.bound.to_string()),
                force: false,
            };
            let Empty {} = client.ask(change).await?;
            let limits = client.ask(LimitList).await?.limits;
            let found = limits.iter().find(|limit| *limit.name == *args.name);
            let used = found.filter(|limit| limit.used > 0).map(|limit| {
                let ready = (limit.ready > 0).then(|| count(limit.ready, "task"));
                let ready = ready.map(|tasks| format!(", {tasks} ready"));
                let (used, ready) = (number(limit.used), ready.unwrap_or_default());
                format!(" ({used} in use{ready})")
            });
            let used = used.unwrap_or_default();
            tracing::info!("Limit {} is {}{used}", args.name, args.bound);
            context.done()?;
        }
        LimitCommand::List => {
            let limits: Limits = client.ask(LimitList).await?;
            context.show(&limits)?;
        }
        LimitCommand::Remove(args) => {
            let mut refused = Vec::new();
            for name in args.names {
                let change = ChangeLimit {
                    name: name.to_string(),
                    bound: None,
                    force: args.force,
                };
                match client.ask(change).await {
                    Ok(Empty {}) => tracing::info!("Limit {name} removed"),
                    Err(error) if error.is_refusal() => refused.extend(error.text()),
                    Err(error) => return Err(error),
                }
            }
            if !refused.is_empty() {
                return Err(CliError::new(refused.join("\n")));
            }
            context.done()?;
        }
    }
    context.flush()
}
