//! Notifications: tasks send them, and clients that wait for the job receive them.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use hq_protocol::client::Notification;
use hq_protocol::convert::NOTIFICATION_MAX;

use super::Context;
use crate::args::global::OutputMode;
use crate::args::task::NotifyArgs;
use crate::error::{Caused as _, CliError, CliResult};

/// The environment variable through which a task finds its worker.
const ACCESS_VARIABLE: &str = "HQ_ACCESS_KEY";

/// How long to wait for the worker's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `hq task notify`.
pub(super) fn send(args: &NotifyArgs, context: &mut Context) -> CliResult<()> {
    let key = std::env::var_os(ACCESS_VARIABLE).ok_or_else(|| {
        CliError::new(
            "HQ_ACCESS_KEY variable not found. Are you running this command inside a task?",
        )
        .with_help("tasks send messages: `hq submit -- bash -c 'hq task notify \"half way\"'`")
    })?;
    let (path, token) = split_key(&key)
        .ok_or_else(|| CliError::new("Value of HQ_ACCESS_KEY has a wrong format"))?;
    let message = args.message.as_bytes();
    if message.len() > NOTIFICATION_MAX {
        return Err(CliError::new(format!(
            "Notify message limit exceeded, message len: {}, limit: {NOTIFICATION_MAX}",
            message.len()
        )));
    }
    let answer = exchange(path, token, message).caused("Cannot reach the worker of this task")?;
    if answer != "ok" {
        return Err(CliError::new(format!(
            "The worker did not take the message: {answer}"
        )));
    }
    context.done()
}

fn split_key(key: &OsStr) -> Option<(&OsStr, &[u8])> {
    let bytes = key.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    let (path, token) = (&bytes[..colon], &bytes[colon + 1..]);
    (!path.is_empty() && !token.is_empty()).then(|| (OsStr::from_bytes(path), token))
}

fn exchange(path: &OsStr, token: &[u8], message: &[u8]) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&[token, b"\n", message].concat())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Runs a program for each notification, one after the other, while the job continues.
pub(super) struct Callback {
    queue: mpsc::Sender<Notification>,
    thread: JoinHandle<()>,
}

impl Callback {
    /// Splits a text into a program and arguments like a shell, and starts the callback. The
    /// program prints to standard output, or to standard error if standard output must be JSON.
    pub(super) fn start(program: &str, mode: OutputMode) -> CliResult<Self> {
        let beside_json = mode == OutputMode::Json;
        let words = shlex::split(program)
            .filter(|words| !words.is_empty())
            .ok_or_else(|| {
                CliError::new(format!(
                    "--on-notify: expected a program and its arguments, found `{program}`"
                ))
            })?;
        let (queue, notifications) = mpsc::channel::<Notification>();
        let thread = std::thread::Builder::new()
            .name("on-notify".into())
            .spawn(move || {
                for notification in notifications {
                    call(&words, &notification, beside_json);
                }
            })
            .caused("Cannot start a thread")?;
        Ok(Self { queue, thread })
    }

    pub(super) fn take(&self, notifications: &[Notification]) {
        for notification in notifications {
            // The thread ends only after the queue is closed.
            let _ = self.queue.send(notification.clone());
        }
    }

    /// Waits until all programs have ended.
    pub(super) fn finish(self) {
        drop(self.queue);
        // A panic would already have ended the process.
        let _ = self.thread.join();
    }
}

/// Returns standard error, for programs that run while standard output must be one JSON value.
fn stderr() -> Stdio {
    let copy = std::io::stderr().as_fd().try_clone_to_owned();
    copy.map_or_else(|_| Stdio::null(), Stdio::from)
}

fn call(words: &[String], notification: &Notification, beside_json: bool) {
    let Some((program, args)) = words.split_first() else {
        return;
    };
    let text = OsString::from_vec(notification.message.to_vec());
    tracing::info!(
        "Running on_notify callback: {} {}",
        words.join(" "),
        text.to_string_lossy()
    );
    let status = Command::new(program)
        .args(args)
        .arg(&text)
        .env("HQ_JOB_ID", notification.job.to_string())
        .env("HQ_TASK_ID", notification.task.to_string())
        .env("HQ_WORKER_ID", notification.worker.to_string())
        // The text is not passed as an argument, because a text that begins with `-` would look
        // like an option.
        .env("HQ_NOTIFY_MESSAGE", text)
        .stdout(if beside_json {
            stderr()
        } else {
            Stdio::inherit()
        })
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            let code = status.code().unwrap_or(-1);
            tracing::warn!("on_notify callback finished with exit code: {code}");
        }
        Err(error) => tracing::warn!("Failed to run on_notify callback: {error}"),
    }
}
