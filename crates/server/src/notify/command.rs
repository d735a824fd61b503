//! Notifies by running a command, with the message on standard input and the essential facts in the
//! environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use tokio::process::Command;

use super::{ATTEMPT_TIMEOUT, Message};
use crate::command::{self, Limits, RunError};

/// The limits of the command, including the number of bytes that are read from its streams.
const LIMITS: Limits = Limits {
    time: ATTEMPT_TIMEOUT,
    output_bytes: 4_096,
};

/// Runs the command in a shell, in the message's directory if that exists. The output is discarded.
pub(super) async fn run(line: &str, message: &Message) -> Result<(), String> {
    let directory = Path::new(OsStr::from_bytes(&message.dir));
    let directory = if directory.is_dir() {
        directory
    } else {
        Path::new("/")
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", line])
        .current_dir(directory)
        .env("PWD", directory)
        .envs(message.env.iter().map(|(name, value)| (name, value)));
    let ended = command::run(shell, message.body.to_string().as_bytes(), LIMITS).await;
    let ended = ended.map_err(|error| match error {
        RunError::Start(source) => format!("/bin/sh cannot be started: {source}"),
        RunError::Wait(source) => format!("the command was lost: {source}"),
        timeout @ RunError::Timeout(_) => timeout.to_string(),
    })?;
    if ended.status.success() {
        return Ok(());
    }
    let how = ended.status.code().map_or_else(
        || "was killed by a signal".to_owned(),
        |code| format!("ended with exit code {code}"),
    );
    Err(format!("the command {how}: {}", ended.stderr.trim())
        .trim_end_matches([':', ' '])
        .to_owned())
}
