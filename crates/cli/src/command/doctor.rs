//! `hq doctor`: finds the causes of problems and prints remedies.
//!
//! Each part of the check runs in a separate process ([`limited`]), so that a dead mount or an
//! unresponsive daemon blocks neither the other parts nor this process.

mod batch;
mod check;
mod files;
mod limited;
mod limits;
mod net;
mod relays;
mod system;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use self::check::{Check, State};
use self::limited::{Limited, LimitedError};
use hq_protocol::access::ServerDir;

use super::Context;
use super::worker::start::own_hostname;
use crate::args::global::OutputMode;
use crate::args::other::DoctorPart;
use crate::error::{CliError, CliResult, exit};
use crate::output::json::write_value;

/// The time limit of a part. Within it, checks of single ports or programs have shorter limits.
const PART_LIMIT: Duration = Duration::from_secs(12);

/// Runs `hq doctor`.
pub(super) fn all(context: &mut Context) -> CliResult<()> {
    let parts = DoctorPart::ALL.map(|part| (part, start(part, context)));
    let mut checks = Vec::new();
    for (part, started) in parts {
        match started.and_then(Limited::finish) {
            Ok(output) => checks.extend(parse(part, &output.text)),
            Err(error) => checks.push(unfinished(part, &error, context)),
        }
    }
    show(&checks, context, true)
}

/// Runs `hq doctor net`.
pub(super) async fn net(context: &mut Context) -> CliResult<()> {
    let checks = net::checks(&context.server_dir()?).await;
    show(&checks, context, false)
}

/// Runs `hq doctor part`, the process of one part. Always prints JSON.
pub(super) fn part(part: DoctorPart, context: &mut Context) -> CliResult<()> {
    let checks = match (part, context.server_dir()) {
        (DoctorPart::System, _) => system::checks(),
        (DoctorPart::Batch, _) => batch::checks(),
        (DoctorPart::Files, Ok(dir)) => files::checks(dir.root()),
        (DoctorPart::Files, Err(_)) => vec![State::Broken.check(
            "server directory",
            "you have no home directory to contain it",
            "Set HOME or HQ_SERVER_DIR, or use --server-dir.",
        )],
        (DoctorPart::Server, Ok(dir)) => {
            let runtime = crate::runtime::of_client()?;
            let checks = runtime.block_on(net::checks_with_server(&dir));
            // A pending name lookup must not delay the exit.
            runtime.shutdown_background();
            checks
        }
        // The check of the files reports this error.
        (DoctorPart::Server, Err(_)) => Vec::new(),
    };
    Ok(write_value(
        &mut context.out,
        &checks.iter().map(Check::json).collect(),
    )?)
}

fn start(part: DoctorPart, context: &Context) -> Result<Limited, LimitedError> {
    let program = std::env::current_exe().map_err(LimitedError::Start)?;
    let mut command = Command::new(program);
    command.args(["doctor", "part", part.name()]);
    if let Some(dir) = &context.global.server_dir {
        command.arg("--server-dir").arg(dir);
    }
    Limited::start(command, false, PART_LIMIT)
}

/// Parses the output of a part.
fn parse(part: DoctorPart, text: &str) -> Vec<Check> {
    serde_json::from_str(text).unwrap_or_else(|error| {
        let what = part.name();
        let advice = format!("Run `hq doctor part {what}` to see the error.");
        vec![State::Unknown.check(what, format!("the check ended early: {error}"), advice)]
    })
}

/// Returns the check of a part that returned no result.
fn unfinished(part: DoctorPart, error: &LimitedError, context: &Context) -> Check {
    let what = part.name();
    match (error, part) {
        (LimitedError::Timeout(limit), DoctorPart::Files) => {
            let dir = context.server_dir().ok();
            files::hung(
                dir.as_ref().map_or(Path::new(""), ServerDir::root),
                limit.as_secs(),
            )
        }
        (LimitedError::Timeout(_), DoctorPart::Server) => State::Broken.check(
            what,
            error.to_string(),
            "The access file cannot be read in time, or the server does not answer: `hq doctor net` shows which.",
        ),
        (LimitedError::Timeout(_), DoctorPart::Batch) => State::Poor.check(
            what,
            error.to_string(),
            "The commands of the batch system hang. `hq alloc` will also wait for them.",
        ),
        (LimitedError::Timeout(_), DoctorPart::System) => State::Unknown.check(
            what,
            error.to_string(),
            format!("Run `hq doctor part {what}` to see where it hangs."),
        ),
        (LimitedError::Start(_), _) => State::Broken.check(
            what,
            error.to_string(),
            "Tasks cannot start either. Check `ulimit -u` and `ulimit -n`, and end leftover processes (`ps -Lu $USER`).",
        ),
    }
}

/// Prints the checks. Fails if any of them prevents work.
fn show(checks: &[Check], context: &mut Context, is_whole: bool) -> CliResult<()> {
    match context.mode() {
        OutputMode::Json => {
            write_value(&mut context.out, &checks.iter().map(Check::json).collect())?
        }
        OutputMode::Cli => {
            writeln!(context.out, "Seen from {}:", own_hostname())?;
            for check in checks {
                check.write(&mut context.out)?;
            }
            if is_whole {
                writeln!(context.out, "\n{}", check::summary(checks))?;
            }
        }
        OutputMode::Quiet if is_whole => {
            for check in checks {
                writeln!(context.out, "{} {}", check.state.name(), check.what)?;
            }
        }
        OutputMode::Quiet => {}
    }
    if checks.iter().all(|check| check.state != State::Broken) {
        return Ok(());
    }
    context.flush()?;
    Err(CliError::AlreadyReported(exit::FAILURE))
}
