//! `server start --background`: the same program again in a session of its own, so that logging out or
//! closing the terminal does not reach it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::client::Client;
use crate::command::Context;
use crate::error::{CliError, CliResult};

/// Name of the file in the server directory that gets its messages.
const LOG_NAME: &str = "server.log";
/// Pause between two looks whether the server answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Option that tells the second process what it is.
const DETACHED: &str = "--detached";

/// Starts the server and returns when it answers, or says why it does not.
pub(super) async fn start(context: &mut Context) -> CliResult<()> {
    let dir = context.server_dir();
    let (log, path) = open_log(dir.root())?;
    let begin = log.metadata().map_or(0, |metadata| metadata.len());
    let mut server = spawn(log)?;
    let info = loop {
        match server.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(failure(&path, begin)),
        }
        if let Ok(mut client) = Client::connect(&dir).await
            && let Ok(info) = client.server_info().await
            && info.pid == server.id()
        {
            break info;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    };
    tracing::info!(
        "The server runs in the background; its messages go to '{}'",
        path.display()
    );
    Ok(context
        .output
        .server_info(&mut context.out, &info, Some(dir.root()))?)
}

/// Leaves the session of the terminal; called in the second process, before it has threads.
pub(super) fn detach() {
    // It fails only for the leader of a process group, which has been detached already.
    let _ = rustix::process::setsid();
}

fn open_log(root: &Path) -> CliResult<(File, PathBuf)> {
    let path = root.join(LOG_NAME);
    let failed = |error| CliError::caused(format!("Cannot write to {}", path.display()), &error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)
        .map_err(failed)?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    Ok((log, path))
}

fn spawn(log: File) -> CliResult<Child> {
    let failed = |error| CliError::caused("Cannot start the server", &error);
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

/// The failure of a server, with the lines that it wrote since it was started.
fn failure(log: &Path, begin: u64) -> CliError {
    let mut said = String::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(begin))?;
        file.read_to_string(&mut said)
    });
    let said = match read {
        Ok(_) if !said.trim().is_empty() => said.trim().to_owned(),
        _ => "it said nothing".to_owned(),
    };
    CliError::new(format!("The server did not start: {said}"))
}
