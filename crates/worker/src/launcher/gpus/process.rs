//! The GPU probe process: a second process of this program, which loads the driver's library.
//!
//! The process is separate for two reasons. Loading a library may hang on a dead file system named
//! by `LD_LIBRARY_PATH`, while holding locks that every thread needs to start or end. And a crash
//! in the driver must not end the worker.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::watch::{Failure, GpuProbe, GpuReply, HANGS_AFTER, Names};
use super::wire;

/// The hidden subcommand of this program that answers, see
/// [`serve_gpu_usage`](super::answers::serve_gpu_usage).
const COMMAND: &str = "gpu-usage";
/// The pause between two checks whether the worker is about to end.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// The maximum size of an answer in bytes: 16 devices with thousands of processes each.
const ANSWER_MAX: usize = 4 << 20;
/// How long to wait for the process to exit by itself, and again after SIGKILL.
const END_MAX: Duration = Duration::from_millis(500);
const KILL_MAX: Duration = Duration::from_secs(2);
const END_PAUSE: Duration = Duration::from_millis(5);

/// Starts such processes, one at a time.
pub(super) struct Opener {
    hq: PathBuf,
    is_over: Arc<AtomicBool>,
    /// Whether a process did not react to SIGKILL.
    is_stuck: Arc<AtomicBool>,
}

impl Opener {
    pub(super) fn new(hq: PathBuf, is_over: Arc<AtomicBool>) -> Self {
        Self {
            hq,
            is_over,
            is_stuck: Arc::default(),
        }
    }

    /// Returns `None` if the process cannot be started, or if the previous one still exists.
    pub(super) fn open(&mut self) -> Option<ProbeProcess> {
        // A new one would get stuck at the same place.
        if self.is_stuck.load(Ordering::Relaxed) {
            return None;
        }
        let started = ProbeProcess::start(&self.hq, &[COMMAND, &std::process::id().to_string()]);
        match started {
            Ok((child, questions, answers)) => Some(ProbeProcess {
                child: Some(child),
                questions: Some(questions),
                answers,
                is_over: Arc::clone(&self.is_over),
                is_stuck: Arc::clone(&self.is_stuck),
            }),
            Err(error) => {
                tracing::debug!("NoProbe can be asked for what tasks use of NVIDIA GPUs: {error}");
                None
            }
        }
    }
}

/// A process that answers questions.
pub(super) struct ProbeProcess {
    /// `None` after the process was killed.
    child: Option<Child>,
    questions: Option<ChildStdin>,
    answers: ChildStdout,
    is_over: Arc<AtomicBool>,
    is_stuck: Arc<AtomicBool>,
}

impl ProbeProcess {
    fn start(
        program: &Path,
        words: &[impl AsRef<OsStr>],
    ) -> io::Result<(Child, ChildStdin, ChildStdout)> {
        // Terminal signals are meant for the worker, which then ends the probe process.
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(questions), Some(answers)) => {
                // Otherwise a long question would block on a hanging process. If this fails, only
                // the timeout is lost.
                let _ = rustix::io::ioctl_fionbio(&questions, true);
                Ok((child, questions, answers))
            }
            _ => Err(io::Error::other("it has no pipes")),
        }
    }

    fn write(&mut self, text: &str, until: Instant) -> Result<(), Failure> {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let questions = self.questions.as_mut().ok_or(Failure::Ended)?;
            wait(questions.as_fd(), PollFlags::OUT, until, &self.is_over)?;
            match questions.write(left) {
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(error) if is_passing(&error) => {}
                Err(_) => return Err(Failure::Ended),
            }
        }
        Ok(())
    }

    /// Reads one line including its line feed. Any further bytes are unrequested and are discarded.
    fn read(&mut self, until: Instant) -> Result<Vec<u8>, Failure> {
        let mut line = Vec::new();
        let mut buffer = [0; 4096];
        while line.len() < ANSWER_MAX {
            wait(self.answers.as_fd(), PollFlags::IN, until, &self.is_over)?;
            match self.answers.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => line.extend(buffer.iter().take(count)),
                Err(error) if is_passing(&error) => continue,
                Err(_) => break,
            }
            if line.ends_with(b"\n") {
                return Ok(line);
            }
        }
        Err(Failure::Ended)
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until a pipe is ready.
fn wait(
    pipe: BorrowedFd<'_>,
    what: PollFlags,
    until: Instant,
    is_over: &AtomicBool,
) -> Result<(), Failure> {
    loop {
        if is_over.load(Ordering::Relaxed) {
            return Err(Failure::Ended);
        }
        let left = until.saturating_duration_since(Instant::now());
        let slice = Timespec::try_from(left.min(LOOK_PAUSE)).map_err(|_| Failure::Ended)?;
        match poll(&mut [PollFd::from_borrowed_fd(pipe, what)], Some(&slice)) {
            // Poll once more after the deadline, because this process may have been suspended
            // meanwhile.
            Ok(0) if left.is_zero() => return Err(Failure::Hangs),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(_) => return Err(Failure::Ended),
        }
    }
}

impl GpuProbe for ProbeProcess {
    fn ask(&mut self, names: &Names) -> Result<GpuReply, Failure> {
        let until = Instant::now() + HANGS_AFTER;
        let question = wire::question(names).ok_or(Failure::Ended)?;
        self.write(&question, until)?;
        let line = self.read(until)?;
        let (reply, reason) = wire::read_answer(&line).ok_or(Failure::Ended)?;
        if reply.devices.is_none() {
            tracing::debug!("Nothing is known of what tasks use of NVIDIA GPUs: {reason}");
        }
        Ok(reply)
    }
}

impl Drop for ProbeProcess {
    /// Ends the process. Returns soon even if the process does not exit.
    fn drop(&mut self) {
        // Closing its input ends the process and releases the driver.
        self.questions = None;
        let Some(mut child) = self.child.take() else {
            return;
        };
        if ends(&mut child, END_MAX) {
            return;
        }
        // The process is not reaped yet, so its pid cannot be reused. The group includes helpers
        // that the driver started.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill();
        if ends(&mut child, KILL_MAX) {
            return;
        }
        // The process is stuck in the kernel. A thread reaps it whenever it ends.
        self.is_stuck.store(true, Ordering::Relaxed);
        let is_stuck = Arc::clone(&self.is_stuck);
        let reap = move || {
            let _ = child.wait();
            is_stuck.store(false, Ordering::Relaxed);
        };
        // If the thread cannot be started, no further probe process is started either.
        let _ = thread::Builder::new()
            .name("hq-gpus-end".into())
            .spawn(reap);
    }
}

/// Returns whether a process exits in time.
fn ends(child: &mut Child, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => thread::sleep(END_PAUSE),
            Ok(None) => return false,
            Ok(Some(status)) => {
                tracing::debug!(
                    "The process that asks the driver of NVIDIA GPUs has ended: {status}"
                );
                return true;
            }
            // The process has already been reaped elsewhere.
            Err(_) => return true,
        }
    }
}
