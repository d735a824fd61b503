//! Runs programs with a time limit.
//!
//! SIGKILL may not end a process that hangs on a dead file system. Therefore this module never
//! waits for a process that has not ended by itself. Every operation that could hang runs in a
//! separate process, because a thread would keep this process from ending.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::text::lossy;
use rustix::process::{Pid, Signal};

/// The maximum size of the output that is read, in bytes.
const OUTPUT_MAX: u64 = 1 << 20;
/// The interval for polling the exit of a process that has closed its output.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running program.
pub(super) struct Limited {
    child: Child,
    output: mpsc::Receiver<Vec<u8>>,
    deadline: Instant,
    limit: Duration,
}

/// The result of such a process.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Output {
    pub(super) is_success: bool,
    /// The contents of its standard output and standard error.
    pub(super) text: String,
}

/// Why a program returned no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitedError {
    #[error("it cannot be started: {0}")]
    Start(io::Error),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl Limited {
    /// Starts a program in its own process group. With `with_errors`, standard error is part of the
    /// output.
    pub(super) fn start(
        mut command: Command,
        with_errors: bool,
        limit: Duration,
    ) -> Result<Self, LimitedError> {
        let (mut reader, writer) = io::pipe().map_err(LimitedError::Start)?;
        let errors = if with_errors {
            Stdio::from(writer.try_clone().map_err(LimitedError::Start)?)
        } else {
            Stdio::null()
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(LimitedError::Start)?;
        // The command holds copies of the pipe's write end, which would keep the reader from seeing
        // the end.
        drop(command);
        let (sender, output) = mpsc::channel();
        let read = move || {
            let mut bytes = Vec::new();
            // If reading fails, the output before the error counts.
            let _ = reader.by_ref().take(OUTPUT_MAX).read_to_end(&mut bytes);
            // The receiver may have given up waiting.
            let _ = sender.send(bytes);
        };
        let limited = Self {
            child,
            output,
            deadline: Instant::now() + limit,
            limit,
        };
        match thread::Builder::new().name("read".into()).spawn(read) {
            Ok(_) => Ok(limited),
            Err(error) => {
                limited.kill();
                Err(LimitedError::Start(error))
            }
        }
    }

    /// Waits for the process to end, up to its time limit.
    pub(super) fn finish(mut self) -> Result<Output, LimitedError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let bytes = match self.output.recv_timeout(left) {
            Ok(bytes) => bytes,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.kill();
                return Err(LimitedError::Timeout(self.limit));
            }
        };
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return Ok(Output {
                        is_success: status.success(),
                        text: lossy(&bytes),
                    });
                }
                Ok(None) if Instant::now() < self.deadline => thread::sleep(LOOK_INTERVAL),
                Ok(None) | Err(_) => {
                    self.kill();
                    return Err(LimitedError::Timeout(self.limit));
                }
            }
        }
    }

    /// Kills the process group. The process has not been reaped, so its id cannot have been reused.
    fn kill(&self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // The group may already have ended.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Result<Output, LimitedError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Limited::start(command, true, limit)?.finish()
    }

    #[test]
    fn output_and_end_are_told() {
        let output = run("echo out; echo err >&2; exit 3", Duration::from_secs(60));
        let expected = Output {
            is_success: false,
            text: "out\nerr\n".to_owned(),
        };
        assert_eq!(output.expect("it runs"), expected);
    }

    #[test]
    fn what_hangs_is_given_up_with_its_children() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let began = Instant::now();
        // This is long enough for the shell to reach that command.
        let error = run(&script, Duration::from_secs(2)).expect_err("it hangs");
        assert!(matches!(error, LimitedError::Timeout(_)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
        let pid = std::fs::read_to_string(file).expect("it had started");
        let stat = format!("/proc/{}/stat", pid.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(began.elapsed() < Duration::from_secs(30), "the child lives");
            thread::sleep(LOOK_INTERVAL);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let missing = Command::new("/no/such/program");
        let error = Limited::start(missing, false, Duration::from_secs(1)).err();
        let text = error.expect("it cannot start").to_string();
        assert!(text.starts_with("it cannot be started"), "{text}");
    }
}
