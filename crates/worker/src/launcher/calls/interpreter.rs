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

/// Program of an interpreter.
const PROGRAM: &[u8] = include_bytes!("../../../../../python/hq/_interpreter.py");

/// Calls that are sent ahead: their packets fit into the buffer of any socket.
const SENT_MAX: usize = 32;
const SENT_BYTES_MAX: usize = 64 << 10;
/// Output that is kept before the file starts over, in bytes.
const OUTPUT_KEPT: u64 = 1 << 20;
/// Bytes of standard error that are shown if an interpreter could not start.
const LAST_WORDS: u64 = 2_000;

/// Message from an interpreter.
pub(super) type Packet = (u64, Box<[u8]>);
pub(super) type Packets = mpsc::UnboundedSender<Packet>;

/// The worker's end of the socket, which receives packets in order, and a buffer. The buffer stays
/// locked from a packet's arrival until it is passed on.
type Inbox = Arc<(UnixDatagram, Mutex<Vec<u8>>)>;

pub(in crate::launcher) struct Interpreter {
    inbox: Inbox,
    /// The interpreter's end; the worker keeps it open to take calls back.
    theirs: Arc<OwnedFd>,
    listener: Option<JoinHandle<()>>,
    pub(in crate::launcher) recipe: Recipe,
    pub(in crate::launcher) lane: Option<LaunchToken>,
    /// Its process; `None` = not started yet.
    pub(super) pid: Option<u32>,
    /// Its usage at the end of the last call.
    pub(super) cpu: CpuTime,
    /// It accepts calls.
    pub(super) is_ready: bool,
    /// It was asked to end.
    pub(super) is_ending: bool,
    pub(super) idle_since: Time,
    /// Calls in its socket or running, in order.
    pub(super) sent: VecDeque<Call>,
    sent_bytes: usize,
    /// Calls that were not sent yet.
    pub(super) waiting: VecDeque<Call>,
    /// Place of the last call that was sent.
    place: Option<Arc<[u8]>>,
    /// Standard output and error; `None` = the files are still being created.
    outputs: Option<Outputs>,
    /// Its outputs are being truncated, so no call may begin.
    pub(super) is_shrinking: bool,
    pub(in crate::launcher) group: Option<TaskGroup>,
    pub(in crate::launcher) excess: Option<MemoryOveruse>,
    pub(in crate::launcher) oom_kills_before: u64,
}

/// Files that receive standard output and error.
///
/// The file system may hang: they are created, truncated and read on threads of their own.
pub(super) type Outputs = [Output; 2];

/// An unnamed file that receives all output; the worker later copies the part of each call.
pub(super) struct Output {
    file: Arc<File>,
    /// Offset where the output of ended calls stops.
    taken: u64,
}

/// Result of sending a call.
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

/// Standard input, output and error of the process.
pub(in crate::launcher) struct Ends {
    pub(in crate::launcher) socket: Arc<OwnedFd>,
    pub(in crate::launcher) stdout: Arc<OwnedFd>,
    pub(in crate::launcher) stderr: Arc<OwnedFd>,
}

impl Interpreter {
    /// Prepares an interpreter: its program and context wait in the socket.
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
        // Before the process exists: the socket keeps both until it reads them.
        one.introduce()?;
        Ok(one)
    }

    /// Takes the files of its output; returns what its process gets.
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

    /// Whether calls may be sent. Calls sent before it is ready could not be taken back if it
    /// never becomes ready.
    pub(super) const fn is_open(&self) -> bool {
        self.is_ready && !self.is_ending && !self.is_shrinking
    }

    /// Sends program and context.
    fn introduce(&self) -> io::Result<()> {
        send(&self.inbox.0, PROGRAM, SendFlags::DONTWAIT)?;
        let context = self.recipe.kind.template.stdin.as_deref().unwrap_or(&[]);
        self.send_packet(context, |flags, context| [&[0, flags], context].concat())
    }

    /// Sends a packet. A long payload travels as a file in memory, which ends with the packet:
    /// nothing is left behind if the packet is taken back or never received.
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

    /// Forwards its answers from now on.
    pub(super) fn listen(&mut self, id: u64, packets: Packets) {
        let inbox = Arc::clone(&self.inbox);
        self.listener = Some(tokio::spawn(async move {
            while inbox.0.readable().await.is_ok() {
                receive_all(&inbox, id, &packets);
            }
        }));
    }

    /// Forwards the answers that it sent before it ended.
    pub(super) fn drain(&self, id: u64, packets: &Packets) {
        // The runtime may not have noticed yet that the socket is readable.
        let socket = &self.inbox.0;
        pass_on(&self.inbox, id, packets, |buffer| {
            let received = recv(socket, buffer, RecvFlags::DONTWAIT);
            received.ok().map(|(len, _)| len)
        });
    }

    /// Sends a call if there is room ahead.
    pub(super) fn send(&mut self, call: Call) -> SendOutcome {
        let bytes = call.payload.len().min(INLINE_MAX);
        let is_full = self.sent.len() >= SENT_MAX || self.sent_bytes + bytes > SENT_BYTES_MAX;
        // A single call is sent even if it is large: otherwise it would wait forever.
        if is_full && !self.sent.is_empty() {
            return SendOutcome::Full(call);
        }
        // Sent once for consecutive calls at the same place.
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
            // The socket's buffer is full; an answer makes room.
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

    /// Takes back the sent calls that have not begun; they are queued again.
    pub(super) fn take_back_sent(&mut self) {
        if !self.is_ready {
            return;
        }
        let mut buffer = vec![0; PACKET_MAX];
        let mut back = Vec::new();
        while let Ok((len, _)) = recv(&self.theirs, &mut buffer[..], RecvFlags::DONTWAIT) {
            let token = buffer.get(..len).and_then(packet::token_of);
            back.extend(token.and_then(|token| self.take_sent(LaunchToken(token))));
        }
        // In front and in their order: they came before the queued calls.
        for call in back.into_iter().rev() {
            self.waiting.push_front(call);
        }
        // The packet with the place may be among those taken back.
        self.place = None;
    }

    /// Output of a call up to its end, if it must be kept.
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

    /// Output behind its last answer, which belongs to `call`: the interpreter has ended.
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

    /// Whether its outputs have grown so much that they should be truncated. Otherwise they are
    /// kept as they are; only while no call runs.
    fn has_grown(&self) -> bool {
        // A copy in progress shares the file.
        let is_large = |one: &Output| one.taken > OUTPUT_KEPT && Arc::strong_count(&one.file) == 1;
        self.outputs.iter().flatten().any(is_large)
    }

    /// Truncates its outputs if they have grown; only while no call runs. Until `then` is called
    /// with them, it gets no call.
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

    /// Takes back its outputs from [`Self::shrink_output`].
    pub(super) fn on_shrunk(&mut self, outputs: Outputs) {
        self.outputs = Some(outputs);
        self.is_shrinking = false;
    }
}

/// Creates the files of an interpreter on a thread of its own, and passes them on.
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

    /// A part of it that must be copied to a file.
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

/// What an interpreter that has ended leaves behind.
#[derive(Default)]
pub(super) struct Rest {
    copy: Copy,
    /// Its standard error; `None` = it never had one.
    stderr: Option<Arc<File>>,
}

impl Rest {
    /// Copies the output to its files on a thread of its own. `then` gets the last words of the
    /// interpreter.
    pub(super) fn run(self, then: impl FnOnce(&str) + Send + 'static) {
        drop(tokio::task::spawn_blocking(move || {
            self.copy.copy();
            let words = self.stderr.as_deref().map(last_words);
            then(words.as_deref().unwrap_or_default().trim());
        }));
    }
}

/// The end of a file.
fn last_words(file: &File) -> String {
    let len = file.metadata().map_or(0, |file| file.len());
    let from = len.saturating_sub(LAST_WORDS);
    let mut words = vec![0; usize::try_from(len - from).unwrap_or(0)];
    let read = file.read_at(&mut words, from).unwrap_or(0);
    words.truncate(read);
    String::from_utf8_lossy(&words).into_owned()
}

/// Why an interpreter could not start, with the end of its standard error.
pub(super) fn start_failure(status: ExitStatus, words: &str) -> Box<str> {
    let how = match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal(signal) => format!("signal {signal}"),
        ExitStatus::OutOfMemory | ExitStatus::ExceededMemory => "too little memory".to_owned(),
    };
    format!("The interpreter ended before it was ready, with {how}\n{words}").into()
}

/// OutputSlice of an output that belongs to one call.
struct OutputSlice {
    file: Arc<File>,
    from: u64,
    /// Beyond the end of the file: all that is there.
    end: u64,
    to: Vec<u8>,
}

/// Output to be copied to its files.
#[derive(Default)]
pub(super) struct Copy(Vec<OutputSlice>);

impl Copy {
    /// Copies it on a thread of its own.
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

/// Forwards all packets that have arrived, as far as the runtime has noticed.
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
