//! `server start --background`: runs the same program again in a separate session, so that a logout
//! or a closed terminal does not end it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hq_protocol::access::{ACCESS_FILE_NAME, ServerDir};
use hq_protocol::client::ServerInfo;
use rustix::process::{Pid, Signal};

use crate::client::{self, Client, access_error};
use crate::command::Context;
use crate::error::{CliError, CliResult};
use crate::output::ServerView;
use crate::text::lossy;
use crate::version::VERSION;

/// The name of the log file in the server directory.
const LOG_NAME: &str = "server.log";
/// The interval for polling whether the server answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a server with open ports may be unreachable under its own name.
const NAME_PATIENCE: Duration = Duration::from_secs(3);
/// How long another server may answer in the directory. A starting server waits for other starting
/// servers, and then fails.
const OTHER_PATIENCE: Duration = Duration::from_secs(40);
/// How long to wait for a stopping server to end.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// The start of the line that contains the HTTP address.
const ADDRESS: &str = "Dashboard at ";
/// The option that marks the second process.
const DETACHED: &str = "--detached";

/// Starts the server and returns when it answers, or fails with the reason.
pub(super) async fn start(context: &mut Context) -> CliResult<()> {
    let dir = context.server_dir()?;
    let (log, path) = open_log(&dir)?;
    let begin = log.metadata().map_or(0, |metadata| metadata.len());
    let before = published(&dir);
    let mut server = spawn(log)?;
    let (mut unheard_since, mut other_since) = (None, None);
    let info = loop {
        match server.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(failure(&path, begin)),
        }
        match ask_by_name(&dir, server.id()).await {
            Ok(info) => break info,
            Err(None) => {
                if other_since.get_or_insert_with(Instant::now).elapsed() > OTHER_PATIENCE {
                    end(&mut server).await;
                    return Err(failure(&path, begin));
                }
            }
            Err(Some(_)) => other_since = None,
        }
        let now = published(&dir);
        if now.is_some() && now != before {
            let since = *unheard_since.get_or_insert_with(Instant::now);
            if since.elapsed() > NAME_PATIENCE && answers_here(&dir, server.id()).await {
                // The server may have been slow earlier and may answer now.
                let cause = match ask_by_name(&dir, server.id()).await {
                    Ok(info) => break info,
                    Err(cause) => cause,
                };
                if answers_here(&dir, server.id()).await {
                    let error = unreachable(&dir, cause);
                    end(&mut server).await;
                    return Err(error);
                }
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    };
    // Messages go to the terminal, because its user does not read the log file.
    for line in log_since(&path, begin).unwrap_or_default().lines() {
        match message(line) {
            (Some("WARN"), text) => tracing::warn!("{text}"),
            (Some("INFO"), text) if text.starts_with(ADDRESS) => tracing::info!("{text}"),
            (Some(_) | None, _) => {}
        }
    }
    tracing::info!(
        "The server runs in the background; its messages go to '{}'",
        path.display()
    );
    context.show(&ServerView {
        info: &info,
        dir: Some(dir.root()),
    })
}

/// Returns values that identify the current access file of the server directory. They change when
/// the server has written its own.
fn published(dir: &ServerDir) -> Option<(u64, u64, i64, i64)> {
    let path = dir.resolve().ok()?.join(ACCESS_FILE_NAME);
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}

/// Sends a request to the server at the address in the access file. Returns the error, or `None` if
/// another server answers.
async fn ask_by_name(dir: &ServerDir, pid: u32) -> Result<ServerInfo, Option<CliError>> {
    let info = match Client::connect_to_port(dir, false).await {
        Ok(mut client) => client.ask(client::ServerInfo).await,
        Err(error) => Err(error),
    };
    match info {
        Ok(info) if info.pid == pid => Ok(info),
        Ok(_) => Err(None),
        Err(error) => Err(Some(error)),
    }
}

/// Returns whether the server answers at a local address. If so, its host name leads to another
/// machine.
async fn answers_here(dir: &ServerDir, pid: u32) -> bool {
    let asked = async {
        let mut client = Client::connect_to_port(dir, true).await.ok()?;
        client.ask(client::ServerInfo).await.ok()
    };
    let answer = tokio::time::timeout(NAME_PATIENCE, asked).await;
    matches!(answer, Ok(Some(info)) if info.pid == pid)
}

/// Stops a server that clients cannot reach.
async fn end(server: &mut Child) {
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The child has not been reaped, so its id cannot have been reused.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    let begin = Instant::now();
    while matches!(server.try_wait(), Ok(None)) {
        if begin.elapsed() > END_PATIENCE {
            let _ = server.kill();
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn unreachable(dir: &ServerDir, cause: Option<CliError>) -> CliError {
    let access = dir.load_access(VERSION).ok();
    let client = access.and_then(|(_, file)| file.client);
    let (host, port) = client.map_or((String::new(), 0), |client| (client.host, client.port));
    let found = match cause {
        Some(error) => error.text().unwrap_or_default(),
        None => "another server answers there".to_owned(),
    };
    CliError::new(format!(
        "The server was stopped again: it answers on this machine, but not at {host}:{port}, the address for clients and workers: {found}"
    ))
    .with_help(
        "use --host with a name or address of this machine, or omit it to use its own name; a name that only other machines can resolve works without --background"
            .to_owned(),
    )
}

/// Returns the level and the text of a log line. Continuation lines of a message have no level.
fn message(line: &str) -> (Option<&str>, &str) {
    let mut parts = line.splitn(3, ' ');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(at), Some(level @ ("INFO" | "WARN" | "ERROR")), Some(text)) if at.ends_with('Z') => {
            (Some(level), text)
        }
        _ => (None, line),
    }
}

fn log_since(log: &Path, begin: u64) -> std::io::Result<String> {
    let mut file = hq_private::read_file(log)?;
    file.seek(SeekFrom::Start(begin))?;
    let mut said = Vec::new();
    file.read_to_end(&mut said)?;
    Ok(lossy(&said))
}

/// Leaves the session of the terminal. Called in the second process before it starts threads.
pub(super) fn detach() {
    // This fails only for a process group leader, which is already detached.
    let _ = rustix::process::setsid();
}

fn open_log(dir: &ServerDir) -> CliResult<(File, PathBuf)> {
    let path = dir.root().join(LOG_NAME);
    let failed = |error| CliError::caused(format!("Cannot write to {}", path.display()), &error);
    dir.create().map_err(|error| access_error(&error))?;
    let log = hq_private::open_file(&path, File::options().append(true).create(true));
    Ok((log.map_err(failed)?, path))
}

fn spawn(log: File) -> CliResult<Child> {
    let failed = |error| CliError::caused("Cannot start the server", &error);
    // The server must not keep the caller's locks and pipes open.
    hq_spawn::close_all_on_exec().map_err(failed)?;
    let args = std::env::args_os().skip(1).map(|arg| {
        if arg == "--background" {
            DETACHED.into()
        } else {
            arg
        }
    });
    Command::new(std::env::current_exe().map_err(failed)?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .spawn()
        .map_err(failed)
}

/// Returns the error of a server that ended, with the lines that it has logged since its start.
fn failure(log: &Path, begin: u64) -> CliError {
    let said = log_since(log, begin).unwrap_or_default();
    // Informational lines do not explain why the server ended.
    let lines = said.trim().lines().map(message);
    let lines = lines.filter(|(level, _)| *level != Some("INFO"));
    let said: Vec<&str> = lines.map(|(_, text)| text).collect();
    let said = match said.is_empty() {
        true => "it said nothing".to_owned(),
        false => said.join("\n"),
    };
    CliError::new(format!("The server did not start: {said}"))
}
