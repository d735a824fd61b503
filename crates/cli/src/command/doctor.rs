//! `hq doctor`: looks for the cause of problems and says what to do.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use hq_protocol::access::{Access, AccessFile};
use hq_protocol::{HandshakeError, Plane};
use serde_json::json;
use tokio::net::TcpStream;

use super::Context;
use crate::args::global::OutputMode;
use crate::error::{CliError, CliResult, exit};
use crate::output::json::write_value;
use crate::version::VERSION;

/// A port that says nothing for this long is blocked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One thing that was tried.
struct Check {
    what: String,
    /// What was found, or what went wrong and what to do.
    outcome: Result<String, (String, &'static str)>,
}

/// `doctor net`.
pub(super) async fn net(context: &mut Context) -> CliResult<()> {
    let checks = run_checks(context).await;
    let failed = checks.iter().filter(|check| check.outcome.is_err()).count();
    match context.mode() {
        OutputMode::Json => {
            let checks = checks.iter().map(|check| match &check.outcome {
                Ok(found) => {
                    json!({"check": check.what, "ok": true, "found": found, "advice": null})
                }
                Err((found, advice)) => {
                    json!({"check": check.what, "ok": false, "found": found, "advice": advice})
                }
            });
            write_value(&mut context.out, &checks.collect())?;
        }
        OutputMode::Cli => print(&checks, context)?,
        OutputMode::Quiet => {}
    }
    if failed == 0 {
        return Ok(());
    }
    context.flush()?;
    Err(CliError::Told(exit::FAILURE))
}

fn print(checks: &[Check], context: &mut Context) -> CliResult<()> {
    let host = rustix::system::uname();
    writeln!(
        context.out,
        "Seen from {}:",
        host.nodename().to_string_lossy()
    )?;
    for check in checks {
        match &check.outcome {
            Ok(found) => writeln!(context.out, "ok      {}: {found}", check.what)?,
            Err((found, advice)) => {
                writeln!(context.out, "FAILED  {}: {found}", check.what)?;
                writeln!(context.out, "        {advice}")?;
            }
        }
    }
    Ok(())
}

async fn run_checks(context: &Context) -> Vec<Check> {
    let dir = context.server_dir();
    let what = format!("access file in {}", dir.root().display());
    let file = match dir.load_access(VERSION) {
        Ok((path, file)) => {
            let found = path.display().to_string();
            let check = Check {
                what,
                outcome: Ok(found),
            };
            return ports(check, &file).await;
        }
        Err(error) => CliError::caused(error.to_string(), &error),
    };
    let text = file.text().unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().to_owned();
    vec![Check {
        what,
        outcome: Err((
            first,
            "Start a server, or name its directory with --server-dir; the directory must be on a \
             file system that this machine sees, too.",
        )),
    }]
}

async fn ports(first: Check, file: &AccessFile) -> Vec<Check> {
    let mut checks = vec![first];
    for (plane, access) in [(Plane::Worker, &file.worker), (Plane::Client, &file.client)] {
        if let Some(access) = access {
            checks.extend(port(plane, access).await);
        }
    }
    checks
}

/// Name, connection and handshake of one port; what depends on a failed step is left out.
async fn port(plane: Plane, access: &Access) -> Vec<Check> {
    let (host, port) = (&access.host, access.port);
    let mut checks = Vec::new();
    let mut add = |what: String, outcome| checks.push(Check { what, outcome });
    let what = format!("address of {host}");
    let addresses = match hq_protocol::resolve(host, port).await {
        Ok(found) => found,
        Err(error) => {
            let advice = "This machine does not know the server's name. Start the server with \
                          --host and a name or address of the network that both are in.";
            add(what, Err((error.to_string(), advice)));
            return checks;
        }
    };
    let shown: Vec<String> = addresses.iter().map(|a| a.ip().to_string()).collect();
    add(what, Ok(shown.join(", ")));
    let what = format!("{plane} port {port}");
    let stream = match connect(&addresses).await {
        Ok(stream) => stream,
        Err(error) => {
            add(what, Err((error.to_string(), advice(error.kind()))));
            return checks;
        }
    };
    let found = stream
        .peer_addr()
        .map_or_else(|_| "connected".to_owned(), |a| a.to_string());
    add(what, Ok(found));
    let what = format!("{plane} handshake");
    let outcome = match hq_protocol::connect(stream, plane, access.key.as_ref()).await {
        Ok(_) => Ok("the server answers".to_owned()),
        Err(error) => {
            let advice = handshake_advice(&error);
            Err((error.to_string(), advice))
        }
    };
    add(what, outcome);
    checks
}

async fn connect(addresses: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addresses)).await;
    attempt.unwrap_or_else(|_| {
        let text = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        Err(std::io::Error::new(ErrorKind::TimedOut, text))
    })
}

fn advice(kind: ErrorKind) -> &'static str {
    if kind == ErrorKind::ConnectionRefused {
        "The machine can be reached, but nothing listens there: the server has ended, or its name \
         leads to another machine from here. `hq server info` tells on a machine where it works."
    } else if kind == ErrorKind::TimedOut {
        "A firewall drops the connection. Start the server with --worker-port and --client-port in \
         the range that your site opens between nodes, or with --host and an address of the \
         internal network."
    } else {
        "There is no way to that address from here. Start the server with --host and a name or \
         address of the network that both are in."
    }
}

fn handshake_advice(error: &HandshakeError) -> &'static str {
    if error.is_retryable() {
        "Something between here and the server ends the connection, or another program listens there."
    } else {
        "Use the same release on both sides, and the access file of the server that runs."
    }
}
