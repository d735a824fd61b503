//! Moves output from the pipes of running tasks into stream files, with one thread and one buffer.
//!
//! The thread reads all pipes in rounds and appends the output of many tasks with one write. A task
//! that writes faster than the file system accepts blocks on its own pipe, so memory use is bounded
//! by the buffer. The output of each channel stays in order. The end block follows everything that
//! the task itself wrote, because all of it is in the pipe when the pump learns that the task has
//! ended. Later output of other processes that still hold the pipe is dropped.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::format::{Channel, Key};

mod thread;

/// The settings of an instance that is about to start.
#[derive(Debug)]
pub struct StreamStart {
    /// The job, the task and the instance.
    pub key: Key,
    /// The absolute path of the stream directory.
    pub dir: PathBuf,
    /// The uid of the server.
    pub server_uid: Box<str>,
    /// The id of this worker on that server.
    pub worker: u32,
    /// Whether standard output and standard error are streamed.
    pub channels: [bool; 2],
}

/// The write ends of an instance's pipes.
#[derive(Debug, Default)]
pub struct Ends {
    /// Standard output.
    pub stdout: Option<Arc<OwnedFd>>,
    /// Standard error.
    pub stderr: Option<Arc<OwnedFd>>,
}

/// How an instance ended, as recorded in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// The instance ran, or failed permanently.
    Ended,
    /// The instance did not start on this worker and may start elsewhere with the same number.
    Abandoned,
}

/// A report about an instance's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PumpEvent {
    /// The file exists, so the instance may start.
    Ready {
        /// The token of the stream.
        token: u64,
    },
    /// No file could be created. No other event follows.
    Refused {
        /// The token of the stream.
        token: u64,
        /// The reason, as a human-readable message.
        error: String,
    },
    /// Output could not be written, and later output is dropped. The caller should end the
    /// instance.
    Broken {
        /// The token of the stream.
        token: u64,
    },
    /// The reply to [`Pump::end`]: either all output is in the file, or `error` is set.
    Closed {
        /// The token of the stream.
        token: u64,
        /// The reason why output is missing.
        error: Option<String>,
    },
}

enum Command {
    Begin(u64, StreamStart, [Option<OwnedFd>; 2]),
    End(u64, EndKind),
}

struct Shared {
    commands: Mutex<Vec<Command>>,
    events: Mutex<Vec<PumpEvent>>,
    bell: OwnedFd,
    is_stopping: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    fn ring(&self) {
        // If the counter is full, the thread is already being woken.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The protected data are plain lists, so a panic cannot leave them in an inconsistent state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long dropping a pump waits for a file system that does not respond.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Moves output from pipes to files on a separate thread.
pub struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Starts the thread. It calls `wake` when there are events; `wake` must not block.
    ///
    /// # Errors
    ///
    /// If a descriptor or the thread cannot be created.
    pub fn start(host: &str, wake: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            commands: Mutex::default(),
            events: Mutex::default(),
            bell,
            is_stopping: AtomicBool::new(false),
            wake: Box::new(wake),
        });
        let worker = thread::Worker::new(Arc::clone(&shared), epoll, host)?;
        let thread = std::thread::Builder::new()
            .name("hq-stream".into())
            .spawn(move || worker.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Creates pipes for an instance. The instance may start after its [`PumpEvent::Ready`].
    ///
    /// `token` must not be in use.
    ///
    /// # Errors
    ///
    /// If no descriptors are available.
    pub fn begin(&self, token: u64, start: StreamStart) -> io::Result<Ends> {
        let mut reads = [None, None];
        let mut writes = [None, None];
        for channel in Channel::ALL.map(Channel::index) {
            if start.channels[channel] {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                // Only the read end is non-blocking, because programs do not expect non-blocking
                // writes.
                rustix::io::ioctl_fionbio(&read, true)?;
                reads[channel] = Some(read);
                writes[channel] = Some(Arc::new(write));
            }
        }
        self.command(Command::Begin(token, start, reads));
        let [stdout, stderr] = writes;
        Ok(Ends { stdout, stderr })
    }

    /// Must be called when the instance and all its processes have ended, or when it will not
    /// start.
    pub fn end(&self, token: u64, how: EndKind) {
        self.command(Command::End(token, how));
    }

    /// Moves all events to the end of `into`, oldest first.
    pub fn drain_events(&self, into: &mut Vec<PumpEvent>) {
        into.append(&mut lock(&self.shared.events));
    }

    fn command(&self, command: Command) {
        let mut commands = lock(&self.shared.commands);
        commands.push(command);
        let is_first = commands.len() == 1;
        drop(commands);
        if is_first {
            self.shared.ring();
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.ring();
        let limit = Instant::now() + STOP_LIMIT;
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A thread that hangs because a file system does not respond is abandoned.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

type Slots = BTreeMap<u64, thread::Slot>;

#[cfg(test)]
mod tests;
