//! A notification by a command: the message on standard input, the essentials in the environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::{Message, event_name};

/// Bytes of its errors that are read.
const STDERR_MAX: u64 = 4_096;

/// Kills what the command started when it ends or nobody waits for it any more.
struct Group(Option<rustix::process::Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nothing may be left of it.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// Runs it in a shell, in the directory of the submit if that is there. Its output is not kept.
pub(super) async fn run(line: &str, message: &Message) -> Result<(), String> {
    let directory = Path::new(OsStr::from_bytes(&message.submit_dir));
    let directory = if directory.is_dir() {
        directory
    } else {
        Path::new("/")
    };
    let mut child = Command::new("/bin/sh")
        .args(["-c", line])
        .current_dir(directory)
        .env("PWD", directory)
        .env("HQ_NOTIFY_EVENT", event_name(message.event))
        .env("HQ_JOB_ID", message.job.to_string())
        .env("HQ_JOB_NAME", message.job_name.replace('\0', ""))
        .env("HQ_JOB_STATE", message.state)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("/bin/sh cannot be started: {error}"))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let group = Group(pid.and_then(rustix::process::Pid::from_raw));
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // Who does not want to read it need not.
            let _ = stdin.write_all(message.body.as_bytes()).await;
        }
    };
    let read = async {
        let mut words = Vec::new();
        if let Some(stderr) = stderr {
            // What was read before an error counts.
            let _ = stderr.take(STDERR_MAX).read_to_end(&mut words).await;
        }
        words
    };
    let status = async {
        let status = child.wait().await;
        // What it left behind may hold its streams open.
        drop(group);
        status
    };
    let ((), words, status) = tokio::join!(write, read, status);
    let status = status.map_err(|error| format!("the command was lost: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let how = status.code().map_or_else(
        || "was killed by a signal".to_owned(),
        |code| format!("ended with exit code {code}"),
    );
    let words = String::from_utf8_lossy(&words);
    Err(format!("the command {how}: {}", words.trim())
        .trim_end_matches([':', ' '])
        .to_owned())
}
