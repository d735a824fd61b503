//! Framing of messages in the byte stream of an established connection, and encryption of that
//! stream as records.
//!
//! ```text
//! stream   | record | record | record | …           (with a key)
//! record   | length: u16 LE | AES-GCM ciphertext, up to 65 535 B with its tag |
//! inside   | frame | frame | frame | …              (without a key this is the stream)
//! frame    | header: u32 LE = length, top bit "more follows" | length bytes |
//! message  = the frames up to and including the first one without "more follows", concatenated
//! ```
//!
//! Frames are independent of records: a record may hold many frames, and a frame may span many
//! records. This module performs no I/O and does not interpret messages. A buffer never grows
//! before the bytes that fill it have arrived. See `docs/protocol.md`.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use snow::StatelessTransportState;

/// The maximum size of a frame in bytes. Larger messages are split, so every length fits into a
/// header.
pub const FRAME_MAX: usize = 16 << 20;

/// The maximum size of a message in bytes, set by protobuf.
pub const MESSAGE_MAX: usize = i32::MAX as usize;

/// The maximum size of a record on the wire in bytes, without its length field. Set by Noise.
pub const RECORD_MAX: usize = 65_535;

/// The size of a record's authentication tag in bytes.
const TAG_LEN: usize = 16;

/// The maximum number of plaintext bytes in a record.
pub const RECORD_PLAIN_MAX: usize = RECORD_MAX - TAG_LEN;

/// The size of a frame header in bytes.
pub(crate) const FRAME_HEADER_LEN: usize = 4;

/// The size of a record header in bytes.
pub(crate) const RECORD_HEADER_LEN: usize = 2;

/// The header bit that says that the message continues in the next frame.
const MORE_FOLLOWS: u32 = 1 << 31;

/// The number of records after which both sides replace the key of that direction. 2^20 records
/// hold at most 64 GiB, far below the limit of AES-GCM for one key (RFC 8446 §5.5 allows about
/// 2^24.5 records of 16 KiB, which equals 2^22.5 records of 64 KiB).
const REKEY_RECORDS: u64 = 1 << 20;

/// An error in received or sent frames or records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// A frame header announces a length above the limit.
    #[error("frame of {found} bytes, at most {FRAME_MAX} are allowed")]
    FrameTooLarge {
        /// The announced length.
        found: usize,
    },
    /// A message exceeds the limit of this connection or of protobuf.
    #[error("message of at least {found} bytes, at most {limit} are allowed")]
    MessageTooLarge {
        /// The number of bytes announced so far.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame is empty but says that more follows.
    #[error("empty fragment of a message")]
    EmptyFragment,
    /// A record is too short to have content.
    #[error("record of {found} bytes is too short")]
    RecordTooShort {
        /// The length of the record in bytes.
        found: usize,
    },
    /// The peer did not seal this record, or not for this position in the stream.
    #[error("record is forged, damaged or out of order")]
    Forged,
    /// All nonces are used up; a new connection is needed.
    #[error("the connection has reached the limit of its keys")]
    Exhausted,
}

/// Appends `message` to `out` as one frame, or as several frames if it is larger than
/// [`FRAME_MAX`].
///
/// # Errors
///
/// Returns [`FrameError::MessageTooLarge`] if the message is larger than `message_max` or than
/// protobuf allows. In that case `out` is unchanged.
pub fn encode_message<M: Message>(
    message: &M,
    message_max: usize,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    encode_split(message, (FRAME_MAX, message_max), out)
}

fn encode_split<M: Message>(
    message: &M,
    (frame_max, message_max): (usize, usize),
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let length = message.encoded_len();
    let limit = message_max.min(MESSAGE_MAX);
    let too_large = FrameError::MessageTooLarge {
        found: length,
        limit,
    };
    if length > limit {
        return Err(too_large);
    }
    let frames = length.div_ceil(frame_max).max(1);
    out.reserve(length + frames * FRAME_HEADER_LEN);
    if frames == 1 {
        put_header(length, false, out);
        return message.encode(out).map_err(|_| too_large);
    }
    let body = message.encode_to_vec();
    let mut parts = body.chunks(frame_max).peekable();
    while let Some(part) = parts.next() {
        put_header(part.len(), parts.peek().is_some(), out);
        out.put_slice(part);
    }
    Ok(())
}

fn put_header(length: usize, more: bool, out: &mut BytesMut) {
    // The length is at most FRAME_MAX, which leaves the top bit free.
    let length = u32::try_from(length).unwrap_or(u32::MAX >> 1);
    out.put_u32_le(if more { length | MORE_FOLLOWS } else { length });
}

/// Extracts messages from a byte stream.
#[derive(Debug)]
pub struct FrameDecoder {
    message_max: usize,
    /// Fragments of a message whose last frame has not arrived.
    fragments: BytesMut,
}

impl FrameDecoder {
    /// Creates a decoder for messages of at most `message_max` bytes.
    #[must_use]
    pub fn new(message_max: usize) -> Self {
        Self {
            message_max,
            fragments: BytesMut::new(),
        }
    }

    /// Changes the limit for frames that arrive later.
    pub fn set_message_max(&mut self, message_max: usize) {
        self.message_max = message_max;
    }

    /// Returns the total size of the fragments of an incomplete message.
    #[must_use]
    pub fn fragments_len(&self) -> usize {
        self.fragments.len()
    }

    /// Removes the next complete message from the front of `input`. Returns `None` if more bytes
    /// are needed.
    ///
    /// # Errors
    ///
    /// Returns an error as soon as a header exceeds a limit, before the content arrives. `input` is
    /// not consumed.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        while let Some((length, more)) = self.peek_header(input)? {
            if input.len() < FRAME_HEADER_LEN + length {
                return Ok(None);
            }
            input.advance(FRAME_HEADER_LEN);
            let part = input.split_to(length);
            if !more && self.fragments.is_empty() {
                return Ok(Some(part.freeze()));
            }
            self.fragments.extend_from_slice(&part);
            if !more {
                return Ok(Some(std::mem::take(&mut self.fragments).freeze()));
            }
        }
        Ok(None)
    }

    fn peek_header(&self, input: &BytesMut) -> Result<Option<(usize, bool)>, FrameError> {
        let Some(header) = input.first_chunk::<FRAME_HEADER_LEN>() else {
            return Ok(None);
        };
        let header = u32::from_le_bytes(*header);
        let more = header & MORE_FOLLOWS != 0;
        let length = (header & !MORE_FOLLOWS) as usize;
        if length > FRAME_MAX {
            return Err(FrameError::FrameTooLarge { found: length });
        }
        let found = self.fragments.len() + length;
        if found > self.message_max {
            return Err(FrameError::MessageTooLarge {
                found,
                limit: self.message_max,
            });
        }
        if more && length == 0 {
            return Err(FrameError::EmptyFragment);
        }
        Ok(Some((length, more)))
    }
}

/// The keys of both directions, shared by the sealer and the opener.
type SharedKeys = Arc<RwLock<StatelessTransportState>>;

/// Creates the sealer and the opener of a connection's records.
pub(crate) fn record_halves(keys: StatelessTransportState) -> (RecordSealer, RecordOpener) {
    let keys = Arc::new(RwLock::new(keys));
    let sealer = RecordSealer {
        keys: Arc::clone(&keys),
        nonce: 0,
        rekey_records: REKEY_RECORDS,
    };
    (
        sealer,
        RecordOpener {
            keys,
            nonce: 0,
            rekey_records: REKEY_RECORDS,
        },
    )
}

/// Encrypts outgoing records.
pub(crate) struct RecordSealer {
    keys: SharedKeys,
    nonce: u64,
    rekey_records: u64,
}

impl RecordSealer {
    /// Moves up to [`RECORD_PLAIN_MAX`] bytes from `plain` into one record, appended to `out`.
    pub(crate) fn seal(
        &mut self,
        plain: &mut BytesMut,
        out: &mut BytesMut,
    ) -> Result<(), FrameError> {
        if is_rekey_due(self.nonce, self.rekey_records) {
            self.keys
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .rekey_outgoing();
        }
        let take = plain.len().min(RECORD_PLAIN_MAX);
        let length = take + TAG_LEN;
        let start = out.len() + RECORD_HEADER_LEN;
        out.put_u16_le(u16::try_from(length).unwrap_or(u16::MAX));
        out.resize(start + length, 0);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let sealed = keys.write_message(self.nonce, &plain[..take], &mut out[start..]);
        if sealed != Ok(length) {
            out.truncate(start - RECORD_HEADER_LEN);
            return Err(FrameError::Exhausted);
        }
        self.nonce += 1;
        plain.advance(take);
        Ok(())
    }
}

/// Decrypts incoming records.
pub(crate) struct RecordOpener {
    keys: SharedKeys,
    nonce: u64,
    rekey_records: u64,
}

impl RecordOpener {
    /// Removes one record from the front of `raw` and appends its content to `plain`. Returns
    /// `false` if the record is incomplete. On errors, `raw` is not consumed.
    pub(crate) fn open(
        &mut self,
        raw: &mut BytesMut,
        plain: &mut BytesMut,
    ) -> Result<bool, FrameError> {
        let Some(header) = raw.first_chunk::<RECORD_HEADER_LEN>() else {
            return Ok(false);
        };
        let length = usize::from(u16::from_le_bytes(*header));
        if length <= TAG_LEN {
            return Err(FrameError::RecordTooShort { found: length });
        }
        let Some(record) = raw.get(RECORD_HEADER_LEN..RECORD_HEADER_LEN + length) else {
            return Ok(false);
        };
        if self.nonce == u64::MAX {
            return Err(FrameError::Exhausted);
        }
        if is_rekey_due(self.nonce, self.rekey_records) {
            self.keys
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .rekey_incoming();
        }
        let start = plain.len();
        // Includes room for the tag, so that the cipher decrypts in place and does not allocate.
        plain.resize(start + length, 0);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let Ok(opened) = keys.read_message(self.nonce, record, &mut plain[start..]) else {
            plain.truncate(start);
            return Err(FrameError::Forged);
        };
        plain.truncate(start + opened);
        self.nonce += 1;
        raw.advance(RECORD_HEADER_LEN + length);
        Ok(true)
    }
}

/// Returns whether the key has to be replaced before this record. Both sides count records, so they
/// replace the key before the same record.
const fn is_rekey_due(nonce: u64, rekey_records: u64) -> bool {
    nonce != 0 && nonce.is_multiple_of(rekey_records)
}

#[cfg(test)]
mod tests;
