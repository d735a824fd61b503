//! The thread of a pump.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{Command, EndKind, PumpEvent, Shared, Slots, StreamStart, lock};
use crate::format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, Channel, FileHeader, Key, checksum};
use crate::sink::Sink;

/// The size of the write buffer in bytes: large enough that writes are cheap, and small enough to
/// fit into the CPU cache.
const BUFFER_LEN: usize = 512 * 1024;

/// The maximum size of a block's payload and of one read, in bytes.
const READ_MAX: usize = 256 * 1024;

/// The minimum free space in the buffer for starting a read, in bytes.
const READ_MIN: usize = 64 * 1024;

/// The default capacity of a pipe in bytes.
const PIPE_LEN: usize = 64 * 1024;

/// The capacity of a pipe after it was found full, in bytes. It reduces the switches between task
/// and pump.
const PIPE_LEN_LARGE: usize = 1024 * 1024;

/// The maximum number of large pipes. The kernel allows 64 MiB per user, and other processes of the
/// user need some of it.
const LARGE_PIPES_MAX: usize = 16;

/// After a round that moved fewer bytes than this, the pump sleeps briefly, so that several lines
/// share a block.
const SMALL_ROUND: usize = 4 * 1024;
const REST: Duration = Duration::from_millis(1);

/// The maximum number of open files that no running instance uses.
const IDLE_SINKS_MAX: usize = 64;

/// The maximum delay before data is synced on file systems where other machines see it only after a
/// sync.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The epoll key of the eventfd that announces commands. Tokens count up from 0 and never reach it.
const BELL: u64 = u64::MAX;

/// The maximum number of epoll events in one round.
const EVENTS_MAX: usize = 256;

/// A running instance.
pub(super) struct Slot {
    key: Key,
    sink: SinkKey,
    pipes: [Option<Pipe>; 2],
    error: Option<String>,
}

struct Pipe {
    fd: OwnedFd,
    is_large: bool,
}

type SinkKey = Arc<(PathBuf, Box<str>, u32)>;

/// Blocks for one file that have not been written yet.
struct Batch {
    bytes: Box<[u8]>,
    length: usize,
    sink: Option<SinkKey>,
    /// The instances of these blocks, possibly repeated.
    tokens: Vec<u64>,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    host: String,
    slots: Slots,
    sinks: BTreeMap<SinkKey, Sink>,
    batch: Batch,
    /// Instances whose end block was appended in this round.
    ending: Vec<u64>,
    news: Vec<PumpEvent>,
    large_pipes: usize,
    last_sync: Instant,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, epoll: OwnedFd, host: &str) -> io::Result<Self> {
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &shared.bell, data, epoll::EventFlags::IN)?;
        Ok(Self {
            shared,
            epoll,
            host: host.to_owned(),
            slots: BTreeMap::new(),
            sinks: BTreeMap::new(),
            batch: Batch {
                bytes: vec![0; BUFFER_LEN].into(),
                length: 0,
                sink: None,
                tokens: Vec::new(),
            },
            ending: Vec::new(),
            news: Vec::new(),
            large_pipes: 0,
            last_sync: Instant::now(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
            self.take_commands();
            let moved = self.read_ready(&mut events, is_stopping);
            self.finish_round();
            if is_stopping {
                return;
            }
            if (1..SMALL_ROUND).contains(&moved) {
                self.rest();
            }
        }
    }

    fn take_commands(&mut self) {
        // The counter is reset before the list is taken, so that no later command is missed.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        let commands = std::mem::take(&mut *lock(&self.shared.commands));
        for command in commands {
            match command {
                Command::Begin(token, start, pipes) => self.begin(token, start, pipes),
                Command::End(token, how) => self.end(token, how),
            }
        }
    }

    /// Reads from all ready pipes and returns the number of bytes.
    fn read_ready(&mut self, events: &mut Vec<epoll::Event>, is_stopping: bool) -> usize {
        events.clear();
        let has_news = !self.news.is_empty() || self.batch.length > 0 || !self.ending.is_empty();
        let timeout = if is_stopping || has_news {
            Some(Duration::ZERO)
        } else if self
            .sinks
            .values()
            .any(|sink| sink.needs_sync && sink.is_dirty)
        {
            Some(SYNC_INTERVAL)
        } else {
            None
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if let Err(error) = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "waiting for output of tasks failed");
            std::thread::sleep(REST);
        }
        let mut moved = 0;
        for event in events.iter() {
            let data = event.data.u64();
            if data != BELL {
                let channel = if data & 1 == 0 {
                    Channel::Stdout
                } else {
                    Channel::Stderr
                };
                moved += self.read(data >> 1, channel).unwrap_or(0);
            }
        }
        moved
    }

    fn finish_round(&mut self) {
        self.flush();
        if !self.ending.is_empty() || self.last_sync.elapsed() >= SYNC_INTERVAL {
            self.sync();
        }
        for token in std::mem::take(&mut self.ending) {
            let error = self.slots.remove(&token).and_then(|slot| {
                if let Some(sink) = self.sinks.get_mut(&slot.sink) {
                    sink.active = sink.active.saturating_sub(1);
                }
                slot.error
            });
            self.news.push(PumpEvent::Closed { token, error });
        }
        if !self.news.is_empty() {
            lock(&self.shared.events).append(&mut self.news);
            (self.shared.wake)();
        }
    }

    /// Sleeps briefly, unless a command arrives.
    fn rest(&self) {
        if let Ok(limit) = Timespec::try_from(REST) {
            let mut bell = [PollFd::new(&self.shared.bell, PollFlags::IN)];
            // An early return only shortens the sleep.
            let _ = poll(&mut bell, Some(&limit));
        }
    }

    fn begin(&mut self, token: u64, start: StreamStart, fds: [Option<OwnedFd>; 2]) {
        let StreamStart {
            key,
            dir,
            server_uid,
            worker,
            ..
        } = start;
        let sink_key = Arc::new((dir, server_uid, worker));
        if let Err(error) = self.open_sink(&sink_key) {
            self.news.push(PumpEvent::Refused { token, error });
            return;
        }
        let mut pipes = [None, None];
        for channel in Channel::ALL {
            let index = channel.index();
            let Some(fd) = &fds[index] else { continue };
            let data = epoll::EventData::new_u64(token << 1 | index as u64);
            if let Err(error) = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
                let error = format!("cannot watch a pipe: {error}");
                self.news.push(PumpEvent::Refused { token, error });
                return;
            }
        }
        for (pipe, fd) in pipes.iter_mut().zip(fds) {
            *pipe = fd.map(|fd| Pipe {
                fd,
                is_large: false,
            });
        }
        if let Some(sink) = self.sinks.get_mut(&sink_key) {
            sink.active += 1;
        }
        self.slots.insert(
            token,
            Slot {
                key,
                sink: sink_key,
                pipes,
                error: None,
            },
        );
        self.append_note(token, BlockKind::Start);
        self.news.push(PumpEvent::Ready { token });
    }

    /// Ensures that the file exists. An unused file may have been removed in the meantime.
    fn open_sink(&mut self, key: &SinkKey) -> Result<(), String> {
        if let Some(sink) = self.sinks.get(key) {
            if sink.active > 0 || sink.is_in_place() {
                return Ok(());
            }
            self.flush();
            self.sinks.remove(key);
        }
        let idle = self.sinks.iter().filter(|(_, sink)| sink.active == 0);
        let idle: Vec<SinkKey> = idle.map(|(key, _)| Arc::clone(key)).collect();
        if idle.len() >= IDLE_SINKS_MAX {
            self.flush();
            for key in idle {
                self.sinks.remove(&key);
            }
        }
        let header = FileHeader {
            mark: [0; 8],
            worker: key.2,
            created_unix_ns: unix_ns(),
            server_uid: key.1.to_string(),
            host: self.host.clone(),
        };
        let sink = Sink::create(&key.0, header)?;
        self.sinks.insert(Arc::clone(key), sink);
        Ok(())
    }

    fn end(&mut self, token: u64, how: EndKind) {
        if !self.slots.contains_key(&token) {
            self.news.push(PumpEvent::Closed { token, error: None });
            return;
        }
        for channel in Channel::ALL {
            self.drain(token, channel);
        }
        self.append_note(
            token,
            match how {
                EndKind::Ended => BlockKind::End,
                EndKind::Abandoned => BlockKind::Abandoned,
            },
        );
        self.ending.push(token);
    }

    /// Reads the rest of an ended instance's pipe. The pipe already holds everything that the
    /// instance wrote, so reading at most the pipe's capacity is enough, even if other processes
    /// keep writing.
    fn drain(&mut self, token: u64, channel: Channel) {
        let pipe = |worker: &Self| {
            let slot = worker.slots.get(&token)?;
            let pipe = slot.pipes[channel.index()].as_ref()?;
            rustix::pipe::fcntl_getpipe_size(&pipe.fd).ok()
        };
        let mut left = pipe(self).unwrap_or(0);
        while left > 0 {
            match self.read(token, channel) {
                Some(count) if count > 0 => left = left.saturating_sub(count),
                Some(_) | None => break,
            }
        }
        self.close(token, channel);
    }

    fn close(&mut self, token: u64, channel: Channel) {
        let slot = self.slots.get_mut(&token);
        if let Some(pipe) = slot.and_then(|slot| slot.pipes[channel.index()].take()) {
            self.large_pipes -= usize::from(pipe.is_large);
        }
    }

    /// Reads from a pipe into the batch once. Returns `None` if the pipe is empty.
    fn read(&mut self, token: u64, channel: Channel) -> Option<usize> {
        let slot = self.slots.get(&token)?;
        slot.pipes[channel.index()].as_ref()?;
        let sink = Arc::clone(&slot.sink);
        let mark = self.make_room(&sink, READ_MIN);
        let slot = self.slots.get_mut(&token)?;
        let pipe = slot.pipes[channel.index()].as_mut()?;
        let start = self.batch.length + BLOCK_HEADER_LEN;
        let end = (start + READ_MAX).min(BUFFER_LEN);
        let count = match rustix::io::read(&pipe.fd, &mut self.batch.bytes[start..end]) {
            Ok(0) => {
                self.close(token, channel);
                return None;
            }
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return None,
            Err(error) => {
                slot.error = Some(format!("cannot read from a pipe: {error}"));
                self.close(token, channel);
                self.news.push(PumpEvent::Broken { token });
                return None;
            }
        };
        if count >= PIPE_LEN && !pipe.is_large && self.large_pipes < LARGE_PIPES_MAX {
            // The kernel refuses once the user's limit is exceeded. The pipe then keeps its size,
            // and this is not tried again.
            pipe.is_large = true;
            self.large_pipes += 1;
            let _ = rustix::pipe::fcntl_setpipe_size(&pipe.fd, PIPE_LEN_LARGE);
        }
        // Output after an error is dropped.
        if slot.error.is_none() {
            let header = BlockHeader {
                kind: BlockKind::Data(channel),
                key: slot.key,
                unix_ns: unix_ns(),
                // `count` is at most READ_MAX.
                length: u32::try_from(count).unwrap_or(0),
                payload_checksum: checksum(&self.batch.bytes[start..start + count]),
            };
            self.commit(token, &header, mark);
        }
        Some(count)
    }

    /// Appends a block without a payload.
    fn append_note(&mut self, token: u64, kind: BlockKind) {
        let Some(slot) = self.slots.get(&token) else {
            return;
        };
        let (key, sink) = (slot.key, Arc::clone(&slot.sink));
        let mark = self.make_room(&sink, 0);
        let header = BlockHeader {
            kind,
            key,
            unix_ns: unix_ns(),
            length: 0,
            payload_checksum: checksum(&[]),
        };
        self.commit(token, &header, mark);
    }

    /// Prepares the batch for a block of this file and returns the file's mark.
    fn make_room(&mut self, sink: &SinkKey, payload: usize) -> [u8; 8] {
        let needed = self.batch.length + BLOCK_HEADER_LEN + payload;
        if self.batch.sink.as_ref() != Some(sink) || needed > BUFFER_LEN {
            self.flush();
        }
        if self.batch.sink.is_none() {
            self.batch.sink = Some(Arc::clone(sink));
        }
        self.sinks.get(sink).map_or([0; 8], |sink| sink.mark)
    }

    /// Adds the header for a payload that is already in the batch.
    fn commit(&mut self, token: u64, header: &BlockHeader, mark: [u8; 8]) {
        let start = self.batch.length;
        self.batch.bytes[start..start + BLOCK_HEADER_LEN].copy_from_slice(&header.encode(mark));
        self.batch.length += BLOCK_HEADER_LEN + header.length as usize;
        if self.batch.tokens.last() != Some(&token) {
            self.batch.tokens.push(token);
        }
    }

    fn flush(&mut self) {
        let length = std::mem::take(&mut self.batch.length);
        let sink = self.batch.sink.take();
        let tokens = std::mem::take(&mut self.batch.tokens);
        if length == 0 {
            return;
        }
        let Some(sink) = sink.and_then(|key| self.sinks.get_mut(&key)) else {
            return;
        };
        if let Err(error) = sink.append(&self.batch.bytes[..length]) {
            tracing::warn!("{error}");
            for token in tokens {
                self.break_stream(token, &error);
            }
        }
    }

    fn sync(&mut self) {
        self.last_sync = Instant::now();
        let mut failed = Vec::new();
        for (key, sink) in &mut self.sinks {
            if let Err(error) = sink.sync() {
                failed.push((Arc::clone(key), error));
            }
        }
        for (key, error) in failed {
            let of_sink = self.slots.iter().filter(|(_, slot)| slot.sink == key);
            let tokens: Vec<u64> = of_sink.map(|(token, _)| *token).collect();
            for token in tokens {
                self.break_stream(token, &error);
            }
        }
    }

    fn break_stream(&mut self, token: u64, error: &str) {
        if let Some(slot) = self.slots.get_mut(&token)
            && slot.error.is_none()
        {
            slot.error = Some(error.to_owned());
            self.news.push(PumpEvent::Broken { token });
        }
    }
}

fn unix_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}
