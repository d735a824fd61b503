//! Frames on standard input and output.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use rustix::fs::FileType;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use crate::error::{Caused as _, CliError, CliResult};

/// The maximum size of a frame from the program, in bytes.
const FRAME_MAX: usize = 512 << 20;
/// The maximum number of frames that wait for the program. Above it, senders wait too.
const OUT_MAX: usize = 256;
/// The number of bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// One message.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) json: Value,
    pub(super) blob: Bytes,
}

/// Standard input and output.
#[derive(Debug)]
pub(super) struct Frames {
    input: std::os::fd::OwnedFd,
    output: std::os::fd::OwnedFd,
}

/// A queue of frames for the program.
pub(super) type Out = mpsc::Sender<Frame>;

fn broken(error: &io::Error) -> CliError {
    CliError::caused(
        "`hq bridge` is for programs: standard input and output must be pipes or sockets",
        error,
    )
}

impl Frames {
    /// Takes standard input and output from the process.
    pub(super) fn take_stdio() -> CliResult<Self> {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        Ok(Self {
            input: copy(rustix::stdio::stdin()).map_err(|e| broken(&e))?,
            output: copy(rustix::stdio::stdout()).map_err(|e| broken(&e))?,
        })
    }

    /// Opens the reader and the writer. Must be called inside a runtime.
    pub(super) fn open(self) -> CliResult<(Reader, pipe::Sender)> {
        let is_socket = |fd: &std::os::fd::OwnedFd| {
            let found = rustix::fs::fstat(fd).map(|found| FileType::from_raw_mode(found.st_mode));
            found == Ok(FileType::Socket) && rustix::io::ioctl_fionbio(fd, true).is_ok()
        };
        // Node.js and other programs that use libuv give their children sockets.
        let input = if is_socket(&self.input) {
            pipe::Receiver::from_owned_fd_unchecked(self.input)
        } else {
            pipe::Receiver::from_owned_fd(self.input)
        };
        let output = if is_socket(&self.output) {
            pipe::Sender::from_owned_fd_unchecked(self.output)
        } else {
            pipe::Sender::from_owned_fd(self.output)
        };
        let (input, output) = (
            input.map_err(|e| broken(&e))?,
            output.map_err(|e| broken(&e))?,
        );
        Ok((
            Reader {
                input,
                buffer: BytesMut::with_capacity(64 << 10),
            },
            output,
        ))
    }
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct Reader {
    input: pipe::Receiver,
    buffer: BytesMut,
}

impl Reader {
    /// Returns the next frame, or `None` at the end of the input.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no data.
    pub(super) async fn next(&mut self) -> CliResult<Option<Frame>> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            let read = self.input.read_buf(&mut self.buffer).await;
            match read {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(CliError::new("Standard input ended inside of a frame")),
                Ok(_) => {}
                Err(error) => return Err(CliError::caused("Cannot read standard input", &error)),
            }
        }
    }
}

fn take_frame(buffer: &mut BytesMut) -> CliResult<Option<Frame>> {
    let word = |at: usize| -> Option<usize> {
        let bytes = buffer.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let (Some(len), Some(json_len)) = (word(0), word(4)) else {
        return Ok(None);
    };
    if len > FRAME_MAX || json_len + 4 > len {
        return Err(CliError::new(format!(
            "A frame of {len} bytes with {json_len} bytes of JSON: expected at most {FRAME_MAX}, and a length of JSON \
             inside of it"
        )));
    }
    if buffer.len() < len + 4 {
        buffer.reserve(len + 4 - buffer.len());
        return Ok(None);
    }
    let mut frame = buffer.split_to(len + 4).freeze();
    let json = frame.slice(8..8 + json_len);
    let blob = frame.split_off(8 + json_len);
    let json = serde_json::from_slice(&json).caused("A frame with invalid JSON")?;
    Ok(Some(Frame { json, blob }))
}

/// Writes queued frames until all senders are gone or the reader has closed the pipe.
pub(super) async fn write(mut output: pipe::Sender, mut frames: mpsc::Receiver<Frame>) {
    let mut buffer = BytesMut::new();
    while let Some(frame) = frames.recv().await {
        put(&mut buffer, &frame);
        while buffer.len() < WRITE_BYTES
            && let Ok(frame) = frames.try_recv()
        {
            put(&mut buffer, &frame);
        }
        if output.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
    }
}

fn put(buffer: &mut BytesMut, frame: &Frame) {
    let json = frame.json.to_string();
    let word = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    buffer.reserve(8 + json.len() + frame.blob.len());
    buffer.put_u32_le(word(4 + json.len() + frame.blob.len()));
    buffer.put_u32_le(word(json.len()));
    buffer.put_slice(json.as_bytes());
    buffer.put_slice(&frame.blob);
}

/// Creates a queue of frames for the program.
pub(super) fn queue() -> (Out, mpsc::Receiver<Frame>) {
    mpsc::channel(OUT_MAX)
}

/// Creates a frame without a blob.
pub(super) fn plain(json: Value) -> Frame {
    Frame {
        json,
        blob: Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn frames_arrive_in_pieces() {
        let mut bytes = BytesMut::new();
        for number in 0..2 {
            let frame = Frame {
                json: json!({"op": number}),
                blob: Bytes::from_static(b"\0\xff"),
            };
            put(&mut bytes, &frame);
        }
        let whole = bytes.to_vec();
        let mut buffer = BytesMut::new();
        let mut found = Vec::new();
        for byte in whole {
            buffer.put_u8(byte);
            if let Some(frame) = take_frame(&mut buffer).expect("valid") {
                found.push((frame.json["op"].as_u64(), frame.blob.to_vec()));
            }
        }
        let expected = |number| (Some(number), vec![0, 0xff]);
        assert_eq!(found, [expected(0), expected(1)]);
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused() {
        for (len, json_len) in [(u32::MAX, 2), (4, 1), (8, u32::MAX)] {
            let mut buffer = BytesMut::new();
            buffer.put_u32_le(len);
            buffer.put_u32_le(json_len);
            assert!(take_frame(&mut buffer).is_err(), "{len} {json_len}");
        }
    }
}
