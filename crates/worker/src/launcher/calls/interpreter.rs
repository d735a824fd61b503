//! One interpreter: its socket, its output, and the calls that it has.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hq_core::template::StdioSpec;
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, LaunchToken};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::packet::{self, CpuTime, INLINE_MAX, IS_FILE, PACKET_MAX};
use super::{Call, Recipe};
use crate::launcher::control_group::TaskGroup;
use crate::launcher::memory::MemoryOveruse;
use crate::output::create_output;

/// The program of an interpreter.
const PROGRAM: &[u8] = include_bytes!("../../../../../python/hq/_interpreter.py");

/// The maximum number and size of calls that are sent ahead. Their packets fit into the buffer of
/// any socket.
const SENT_MAX: usize = 32;
const SENT_BYTES_MAX: usize = 64 << 10;
/// The size of the output in bytes above which the file is truncated.
const OUTPUT_KEPT: u64 = 1 << 20;
/// The number of bytes of standard error that are shown if an interpreter could not start.
const LAST_WORDS: u64 = 2_000;

/// A message from an interpreter.
pub(super) type Packet = (u64, Box<[u8]>);
pub(super) type Packets = mpsc::UnboundedSender<Packet>;

/// The worker's end of the socket, which receives packets in order, and a buffer. The buffer stays
/// locked from a packet's arrival until it is passed on.
type Inbox = Arc<(UnixDatagram, Mutex<Vec<u8>>)>;

pub(in crate::launcher) struct Interpreter {
    inbox: Inbox,
    /// The interpreter's end of the socket. The worker keeps it open to take calls back.
    theirs: Arc<OwnedFd>,
    listener: Option<JoinHandle<()>>,
    pub(in crate::launcher) recipe: Recipe,
    pub(in crate::launcher) lane: Option<LaunchToken>,
    /// The interpreter's process. `None` if it has not been started yet.
    pub(super) pid: Option<u32>,
    /// The CPU time that the interpreter had used at the end of the last call.
    pub(super) cpu: CpuTime,
    /// Whether the interpreter accepts calls.
    pub(super) is_ready: bool,
    /// Whether the interpreter was asked to end.
    pub(super) is_ending: bool,
    pub(super) idle_since: Time,
    /// The calls in the socket or running, in order.
    pub(super) sent: VecDeque<Call>,
    sent_bytes: usize,
    /// The calls that have not been sent yet.
    pub(super) waiting: VecDeque<Call>,
    /// The place of the last call that was sent.
    place: Option<Arc<[u8]>>,
    /// Standard output and error. `None` while the files are being created.
    outputs: Option<Outputs>,
    /// Whether the outputs are being truncated, so that no call may begin.
    pub(super) is_shrinking: bool,
    pub(in crate::launcher) group: Option<TaskGroup>,
    pub(in crate::launcher) excess: Option<MemoryOveruse>,
    pub(in crate::launcher) oom_kills_before: u64,
}

/// The files that receive standard output and error.
///
/// They are created, truncated and read on separate threads, because the file system may hang.
pub(super) type Outputs = [Output; 2];

/// An unnamed file that receives all output. The worker later copies the part of each call.
pub(super) struct Output {
    file: Arc<File>,
    /// The offset at which the output of ended calls stops.
    taken: u64,
}

/// The result of sending a call.
pub(super) enum SendOutcome {
    Yes,
    Full(Call),
    Failed(Call, Box<str>),
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// The standard input, output and error of the process.
pub(in crate::launcher) struct Ends {
    pub(in crate::launcher) socket: Arc<OwnedFd>,
    pub(in crate::launcher) stdout: Arc<OwnedFd>,
    pub(in crate::launcher) stderr: Arc<OwnedFd>,
}

impl Interpreter {
    /// Prepares an interpreter. Its program and context wait in the socket.
    pub(in crate::launcher) fn new(recipe: Recipe, lane: LaunchToken) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            // Keeps packet boundaries, and reports end of file when the other side is gone.
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (ours, theirs) = (
            std::os::unix::net::UnixDatagram::from(ours),
            Arc::new(theirs),
        );
        ours.set_nonblocking(true)?;
        let one = Self {
            inbox: Arc::new((UnixDatagram::from_std(ours)?, Mutex::default())),
            theirs,
            listener: None,
            recipe,
            lane: Some(lane),
            pid: None,
            cpu: CpuTime::default(),
            is_ready: false,
            is_ending: false,
            idle_since: Time(0),
            sent: VecDeque::new(),
            sent_bytes: 0,
            waiting: VecDeque::new(),
            place: None,
            outputs: None,
            is_shrinking: false,
            group: None,
            excess: None,
            oom_kills_before: 0,
        };
        // The process does not exist yet. The socket keeps both until the process reads them.
        one.introduce()?;
        Ok(one)
    }

    /// Takes the files for the interpreter's output. Returns the files that its process gets.
    pub(super) fn open(&mut self, outputs: Outputs) -> io::Result<Ends> {
        let fd = |output: &Output| output.file.try_clone().map(|file| Arc::new(file.into()));
        let ends = Ends {
            socket: Arc::clone(&self.theirs),
            stdout: fd(&outputs[0])?,
            stderr: fd(&outputs[1])?,
        };
        self.outputs = Some(outputs);
        Ok(ends)
    }

    /// Returns whether calls may be sent. Calls that are sent before the interpreter is ready could
    /// not be taken back if it never becomes ready.
    pub(super) const fn is_open(&self) -> bool {
        self.is_ready && !self.is_ending && !self.is_shrinking
    }

    /// Asks the interpreter to end, as if the worker were gone. Threads that calls have left behind
    /// get some time.
    pub(super) fn hang_up(&mut self) {
        self.is_ending = true;
        // An interpreter that has just died is not connected.
        let _ = self.inbox.0.shutdown(std::net::Shutdown::Write);
    }

    /// Sends the program and the context.
    fn introduce(&self) -> io::Result<()> {
        send(&self.inbox.0, PROGRAM, SendFlags::DONTWAIT)?;
        let context = self.recipe.kind.template.stdin.as_deref().unwrap_or(&[]);
        self.send_packet(context, |flags, context| [&[0, flags], context].concat())
    }

    /// Sends a packet. A long payload is sent as a file in memory, which is gone with the packet.
    /// Nothing is left behind if the packet is taken back or never received.
    fn send_packet(
        &self,
        payload: &[u8],
        packet: impl FnOnce(u8, &[u8]) -> Vec<u8>,
    ) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if payload.len() <= INLINE_MAX {
            send(&self.inbox.0, &packet(0, payload), flags)?;
            return Ok(());
        }
        let file = hq_private::memory_file(payload)?;
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let packet = packet(IS_FILE, &[]);
        sendmsg(&self.inbox.0, &[IoSlice::new(&packet)], &mut control, flags)?;
        Ok(())
    }

    /// Forwards the interpreter's answers from now on.
    pub(super) fn listen(&mut self, id: u64, packets: Packets) {
        let inbox = Arc::clone(&self.inbox);
        self.listener = Some(tokio::spawn(async move {
            while inbox.0.readable().await.is_ok() {
                receive_all(&inbox, id, &packets);
            }
        }));
    }

    /// Forwards the answers that the interpreter sent before it ended.
    pub(super) fn drain(&self, id: u64, packets: &Packets) {
        // The runtime may not have noticed yet that the socket is readable.
        let socket = &self.inbox.0;
        pass_on(&self.inbox, id, packets, |buffer| {
            let received = recv(socket, buffer, RecvFlags::DONTWAIT);
            received.ok().map(|(len, _)| len)
        });
    }

    /// Sends a call if there is room for more calls ahead.
    pub(super) fn send(&mut self, call: Call) -> SendOutcome {
        let bytes = call.payload.len().min(INLINE_MAX);
        let is_full = self.sent.len() >= SENT_MAX || self.sent_bytes + bytes > SENT_BYTES_MAX;
        // A single call is sent even if it is large. Otherwise it would wait forever.
        if is_full && !self.sent.is_empty() {
            return SendOutcome::Full(call);
        }
        // The place is sent only once for consecutive calls with the same place.
        let place = Some(&call.place).filter(|place| self.place.as_ref() != Some(place));
        let place = place.map(AsRef::as_ref);
        let packet =
            |flags, payload: &[u8]| packet::call(call.token.0, call.key, flags, place, payload);
        match self.send_packet(&call.payload, packet) {
            Ok(()) => {
                self.place = Some(Arc::clone(&call.place));
                self.sent_bytes += bytes;
                self.sent.push_back(call);
                SendOutcome::Yes
            }
            // The socket's buffer is full. An answer will make room.
            Err(error) if is_full_socket(&error) && !self.sent.is_empty() => {
                SendOutcome::Full(call)
            }
            Err(error) => {
                let text = format!("Cannot hand the call to an interpreter: {error}");
                SendOutcome::Failed(call, text.into())
            }
        }
    }

    /// Removes a sent call that was answered or taken back.
    pub(super) fn take_sent(&mut self, token: LaunchToken) -> Option<Call> {
        let position = self.sent.iter().position(|call| call.token == token)?;
        let call = self.sent.remove(position)?;
        self.sent_bytes -= call.payload.len().min(INLINE_MAX);
        Some(call)
    }

    /// Takes back the sent calls that have not begun, and queues them again.
    pub(super) fn take_back_sent(&mut self) {
        if !self.is_ready {
            return;
        }
        let mut buffer = vec![0; PACKET_MAX];
        let mut back = Vec::new();
        while let Ok((len, _)) = recv(&self.theirs, &mut buffer[..], RecvFlags::DONTWAIT)
            // The end of a socket that was hung up.
            && len > 0
        {
            let token = buffer.get(..len).and_then(packet::token_of);
            back.extend(token.and_then(|token| self.take_sent(LaunchToken(token))));
        }
        // These calls go to the front in their original order, because they came before the queued
        // calls.
        for call in back.into_iter().rev() {
            self.waiting.push_front(call);
        }
        // The packet with the place may be among those taken back.
        self.place = None;
    }

    /// Returns the output of a call up to the call's end, if it must be kept.
    pub(super) fn take_output(
        &mut self,
        call: &Call,
        (out_end, err_end): (u64, u64),
        is_ok: bool,
    ) -> Option<Copy> {
        let mut parts = Vec::new();
        let mut rendered = None;
        let outputs = self.outputs.iter_mut().flatten();
        for (output, (end, index)) in outputs.zip([(out_end, 0), (err_end, 1)]) {
            let from = output.taken;
            // Unwanted output is skipped as well, so that the next call does not get it.
            output.taken = end.max(from);
            if end <= from {
                continue;
            }
            let paths = rendered.get_or_insert_with(|| call.paths());
            parts.extend(output.part([&paths.stdout, &paths.stderr][index], (from, end), is_ok));
        }
        (!parts.is_empty()).then_some(Copy(parts))
    }

    /// Returns the output after the last answer of an interpreter that has ended. It belongs to
    /// `call`.
    pub(super) fn take_rest(&mut self, call: Option<&Call>) -> Rest {
        let Some([stdout, stderr]) = self.outputs.take() else {
            return Rest::default();
        };
        let paths = call.map(Call::paths);
        let specs = paths
            .iter()
            .flat_map(|paths| [&paths.stdout, &paths.stderr]);
        let outputs = [&stdout, &stderr].into_iter().zip(specs);
        let rest =
            outputs.filter_map(|(output, spec)| output.part(spec, (output.taken, u64::MAX), false));
        Rest {
            copy: Copy(rest.collect()),
            stderr: Some(stderr.file),
        }
    }

    /// Returns whether the outputs have grown so much that they should be truncated. Must be called
    /// only while no call is running.
    fn has_grown(&self) -> bool {
        // A copy in progress shares the file.
        let is_large = |one: &Output| one.taken > OUTPUT_KEPT && Arc::strong_count(&one.file) == 1;
        self.outputs.iter().flatten().any(is_large)
    }

    /// Truncates the outputs if they have grown. Must be called only while no call is running. The
    /// interpreter gets no call until `then` is called with the outputs.
    pub(super) fn shrink_output(&mut self, then: impl FnOnce(Outputs) + Send + 'static) {
        if !self.has_grown() {
            return;
        }
        let Some(mut outputs) = self.outputs.take() else {
            return;
        };
        self.is_shrinking = true;
        drop(tokio::task::spawn_blocking(move || {
            for output in &mut outputs {
                if Arc::strong_count(&output.file) == 1 && output.file.set_len(0).is_ok() {
                    output.taken = 0;
                }
            }
            then(outputs);
        }));
    }

    /// Takes back the outputs from [`Self::shrink_output`].
    pub(super) fn on_shrunk(&mut self, outputs: Outputs) {
        self.outputs = Some(outputs);
        self.is_shrinking = false;
    }
}

/// Creates the files of an interpreter on a separate thread, and passes them to `then`.
pub(super) fn create_outputs(
    dir: PathBuf,
    then: impl FnOnce(io::Result<Outputs>) + Send + 'static,
) {
    drop(tokio::task::spawn_blocking(move || {
        then(Output::create(&dir).and_then(|stdout| Ok([stdout, Output::create(&dir)?])));
    }));
}

impl Output {
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        // Interpreters append, so that the file can be truncated.
        let file = hq_private::temp_file(dir, "call-output-")?;
        let (file, path) = file.into_parts();
        path.close()?;
        Ok(Self {
            file: Arc::new(file),
            taken: 0,
        })
    }

    /// Returns the part of the output that must be copied to a file.
    fn part(&self, spec: &StdioSpec, (from, end): (u64, u64), is_ok: bool) -> Option<OutputSlice> {
        match spec {
            StdioSpec::File {
                path,
                remove_if_finished,
            } if !(is_ok && *remove_if_finished) => Some(OutputSlice {
                file: Arc::clone(&self.file),
                from,
                end,
                to: path.to_vec(),
            }),
            StdioSpec::None | StdioSpec::Stream | StdioSpec::File { .. } => None,
        }
    }
}

/// The output of an interpreter that has ended, after its last answer.
#[derive(Default)]
pub(super) struct Rest {
    copy: Copy,
    /// The standard error of the interpreter. `None` if it never had one.
    stderr: Option<Arc<File>>,
}

impl Rest {
    /// Copies the output to its files on a separate thread. `then` gets the end of the
    /// interpreter's standard error.
    pub(super) fn run(self, then: impl FnOnce(&str) + Send + 'static) {
        drop(tokio::task::spawn_blocking(move || {
            self.copy.copy();
            let words = self.stderr.as_deref().map(last_words);
            then(words.as_deref().unwrap_or_default().trim());
        }));
    }
}

/// Returns the end of a file.
fn last_words(file: &File) -> String {
    let len = file.metadata().map_or(0, |file| file.len());
    let from = len.saturating_sub(LAST_WORDS);
    let mut words = vec![0; usize::try_from(len - from).unwrap_or(0)];
    let read = file.read_at(&mut words, from).unwrap_or(0);
    words.truncate(read);
    String::from_utf8_lossy(&words).into_owned()
}

/// Returns why an interpreter could not start, with the end of its standard error.
pub(super) fn start_failure(status: ExitStatus, words: &str) -> Box<str> {
    let how = match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal(signal) => format!("signal {signal}"),
        ExitStatus::OutOfMemory | ExitStatus::ExceededMemory => "too little memory".to_owned(),
    };
    format!("The interpreter ended before it was ready, with {how}\n{words}").into()
}

/// The part of an output that belongs to one call.
struct OutputSlice {
    file: Arc<File>,
    from: u64,
    /// The end offset. If it is beyond the end of the file, the rest of the file is copied.
    end: u64,
    to: Vec<u8>,
}

/// Output to be copied to its files.
#[derive(Default)]
pub(super) struct Copy(Vec<OutputSlice>);

impl Copy {
    /// Copies the output on a separate thread.
    pub(super) fn run(self, then: impl FnOnce() + Send + 'static) {
        drop(tokio::task::spawn_blocking(move || {
            self.copy();
            drop(self);
            then();
        }));
    }

    fn copy(&self) {
        for part in &self.0 {
            if let Err(error) = part.copy() {
                let path = String::from_utf8_lossy(&part.to);
                tracing::warn!("output of a call cannot be written to {path}: {error}");
            }
        }
    }
}

impl OutputSlice {
    fn copy(&self) -> io::Result<()> {
        use std::io::Write as _;
        use std::os::unix::ffi::OsStrExt as _;
        if self.file.metadata()?.len() <= self.from {
            return Ok(());
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&self.to));
        let mut to = match create_output(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                create_output(path)?
            }
            other => other?,
        };
        let mut buffer = vec![0; 64 << 10];
        let mut from = self.from;
        while from < self.end {
            let left = usize::try_from(self.end - from).unwrap_or(usize::MAX);
            let want = left.min(buffer.len());
            let read = self.file.read_at(&mut buffer[..want], from)?;
            // The interpreter or one of its children has truncated the file.
            if read == 0 {
                break;
            }
            to.write_all(&buffer[..read])?;
            from += read as u64;
        }
        Ok(())
    }
}

fn is_full_socket(error: &io::Error) -> bool {
    let full = [Errno::AGAIN, Errno::NOBUFS, Errno::TOOMANYREFS];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}

/// Forwards all packets whose arrival the runtime has noticed.
fn receive_all(inbox: &Inbox, id: u64, packets: &Packets) {
    let socket = &inbox.0;
    pass_on(inbox, id, packets, |buffer| socket.try_recv(buffer).ok());
}

fn pass_on(
    inbox: &Inbox,
    id: u64,
    packets: &Packets,
    mut receive: impl FnMut(&mut [u8]) -> Option<usize>,
) {
    let mut buffer = inbox.1.lock().unwrap_or_else(PoisonError::into_inner);
    buffer.resize(PACKET_MAX, 0);
    // An error means that no packet is available, now or ever.
    while let Some(len) = receive(&mut buffer) {
        let Some(packet) = buffer.get(..len).filter(|packet| !packet.is_empty()) else {
            return;
        };
        if packets.send((id, packet.into())).is_err() {
            return;
        }
    }
}
