//! From the pipes of running tasks into stream files: one thread, one buffer.
//!
//! Whatever is in the pipes is read and appended in rounds, many tasks with one write. A task that writes
//! faster than the file takes it waits in its own pipe, so memory is bounded by the buffer. The order within
//! a channel is that of the pipe; an end block comes after everything the task itself wrote, because that is
//! in the pipe when its end is seen. A process that still holds the pipe then is cut off.

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

/// Settings of an instance that is about to start.
#[derive(Debug)]
pub struct StreamStart {
    /// Job, task and instance.
    pub key: Key,
    /// Stream directory, absolute.
    pub dir: PathBuf,
    /// Uid of its server.
    pub server_uid: Box<str>,
    /// Id of this worker at that server.
    pub worker: u32,
    /// Whether standard output and standard error are streamed.
    pub channels: [bool; 2],
}

/// The ends of an instance's pipes that it writes to.
#[derive(Debug, Default)]
pub struct Ends {
    /// Standard output.
    pub stdout: Option<Arc<OwnedFd>>,
    /// Standard error.
    pub stderr: Option<Arc<OwnedFd>>,
}

/// How an instance ended, for the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// It ran, or failed for good.
    Ended,
    /// It never started here and may start elsewhere with the same number.
    Abandoned,
}

/// Outcome of an instance's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PumpEvent {
    /// The file is there: the instance may start.
    Ready {
        /// Token of the stream.
        token: u64,
    },
    /// There is no file to write to; nothing else follows.
    Refused {
        /// Token of the stream.
        token: u64,
        /// Reason, for people.
        error: String,
    },
    /// Output could not be written; what follows is dropped. The instance should be ended.
    Broken {
        /// Token of the stream.
        token: u64,
    },
    /// Answers [`Pump::end`]: everything is in the file, or the missing part is reported.
    Closed {
        /// Token of the stream.
        token: u64,
        /// Why output is missing.
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
        // Full means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data are plain lists: no panic can leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a pump that is dropped waits for a file system that does not answer.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Moves output from pipes to files on a thread of its own.
pub struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Starts the thread. `wake` is called from it when there are events; it must not block.
    ///
    /// # Errors
    ///
    /// A descriptor or thread that cannot be created.
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

    /// Makes pipes for an instance. It may start when its [`PumpEvent::Ready`] has come.
    ///
    /// `token` must not be in use.
    ///
    /// # Errors
    ///
    /// No descriptors are left.
    pub fn begin(&self, token: u64, start: StreamStart) -> io::Result<Ends> {
        let mut reads = [None, None];
        let mut writes = [None, None];
        for channel in Channel::ALL.map(Channel::index) {
            if start.channels[channel] {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                // Of our end only: programs do not expect that writing would block.
                rustix::io::ioctl_fionbio(&read, true)?;
                reads[channel] = Some(read);
                writes[channel] = Some(Arc::new(write));
            }
        }
        self.command(Command::Begin(token, start, reads));
        let [stdout, stderr] = writes;
        Ok(Ends { stdout, stderr })
    }

    /// The instance has ended and all its processes with it, or it will not start.
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
        // A thread that hangs in a dead file system is left alone.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

type Slots = BTreeMap<u64, thread::Slot>;

#[cfg(test)]
mod tests;
