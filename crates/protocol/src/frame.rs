//! Messages as frames inside the byte stream of an established connection, and that stream as
//! encrypted records.
//!
//! ```text
//! stream   | record | record | record | …           (with a key)
//! record   | length: u16 LE | AES-GCM ciphertext, up to 65 535 B with its tag |
//! inside   | frame | frame | frame | …              (without a key this is the stream)
//! frame    | header: u32 LE = length, top bit "more follows" | length bytes |
//! message  = the frames up to and including the first one without "more follows", concatenated
//! ```
//!
//! Frames do not know records: many fit into one, and one spans many. Nothing here performs I/O or
//! knows what a message means. No buffer grows before the bytes that fill it have arrived. See
//! `docs/protocol.md`.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use snow::StatelessTransportState;

/// Largest frame; larger messages are split. Bounds the size in a header.
pub const FRAME_MAX: usize = 16 << 20;

/// Largest possible message: the size limit of protobuf.
pub const MESSAGE_MAX: usize = i32::MAX as usize;

/// Largest record on the wire, without its length: the limit of Noise.
pub const RECORD_MAX: usize = 65_535;

/// Bytes that authenticate a record.
const TAG_LEN: usize = 16;

/// Limit of plain bytes in one record.
pub const RECORD_PLAIN_MAX: usize = RECORD_MAX - TAG_LEN;

/// Bytes of a frame header.
pub(crate) const FRAME_HEADER_LEN: usize = 4;

/// Bytes of a record header.
pub(crate) const RECORD_HEADER_LEN: usize = 2;

/// Header bit: the message continues in the next frame.
const MORE_FOLLOWS: u32 = 1 << 31;

/// Records after which both sides replace the key of that direction. 2^20 records are at most 64
/// GiB, far below the limit of AES-GCM under one key (RFC 8446 §5.5 allows about 2^24.5 records of
/// 16 KiB, that is 2^22.5 records of 64 KiB).
const REKEY_RECORDS: u64 = 1 << 20;

/// Frames or records that break the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// A frame header announces more than the limit.
    #[error("frame of {found} bytes, at most {FRAME_MAX} are allowed")]
    FrameTooLarge {
        /// Announced length.
        found: usize,
    },
    /// A message grows beyond the limit of this connection, or of protobuf.
    #[error("message of at least {found} bytes, at most {limit} are allowed")]
    MessageTooLarge {
        /// Bytes announced so far.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame without content that claims that more follows.
    #[error("empty fragment of a message")]
    EmptyFragment,
    /// A record that is too short to have content.
    #[error("record of {found} bytes is too short")]
    RecordTooShort {
        /// Length of the record, in bytes.
        found: usize,
    },
    /// A record that was not sealed by the peer, or not for this place of the stream.
    #[error("record is forged, damaged or out of order")]
    Forged,
    /// All nonces are used up; open a new connection.
    #[error("the connection has reached the limit of its keys")]
    Exhausted,
}

/// Appends `message` to `out` as one frame, or as several if it is larger than [`FRAME_MAX`].
///
/// # Errors
///
/// [`FrameError::MessageTooLarge`] if it has more than `message_max` bytes, or than protobuf
/// allows; `out` is unchanged then.
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
    // At most FRAME_MAX, which leaves the top bit free.
    let length = u32::try_from(length).unwrap_or(u32::MAX >> 1);
    out.put_u32_le(if more { length | MORE_FOLLOWS } else { length });
}

/// Takes messages out of a byte stream.
#[derive(Debug)]
pub struct FrameDecoder {
    message_max: usize,
    /// Earlier fragments of an unfinished message.
    fragments: BytesMut,
}

impl FrameDecoder {
    /// A decoder for messages of at most `message_max` bytes.
    #[must_use]
    pub fn new(message_max: usize) -> Self {
        Self {
            message_max,
            fragments: BytesMut::new(),
        }
    }

    /// Changes the limit for the frames to come.
    pub fn set_message_max(&mut self, message_max: usize) {
        self.message_max = message_max;
    }

    /// Bytes of fragments that wait for the rest of their message.
    #[must_use]
    pub fn fragments_len(&self) -> usize {
        self.fragments.len()
    }

    /// Takes the next complete message off the front of `input`; `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// As soon as a header breaks a limit, before its content has arrived. `input` is not consumed.
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

/// Keys of both directions, shared by the sealing and the opening half.
type SharedKeys = Arc<RwLock<StatelessTransportState>>;

/// Makes the two halves that encrypt and decrypt records.
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

/// Encrypts the outgoing direction.
pub(crate) struct RecordSealer {
    keys: SharedKeys,
    nonce: u64,
    rekey_records: u64,
}

impl RecordSealer {
    /// Moves up to [`RECORD_PLAIN_MAX`] bytes from `plain` into one record at the end of `out`.
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

/// Decrypts the incoming direction.
pub(crate) struct RecordOpener {
    keys: SharedKeys,
    nonce: u64,
    rekey_records: u64,
}

impl RecordOpener {
    /// Takes one record off the front of `raw` and appends its content to `plain`; `false` if the
    /// record has not arrived completely. On errors `raw` is not consumed.
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
        // The tag's place is scratch space: so the cipher works in place, without allocating.
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

/// Both sides count records, so they replace the key of a direction before the same record.
const fn is_rekey_due(nonce: u64, rekey_records: u64) -> bool {
    nonce != 0 && nonce.is_multiple_of(rekey_records)
}

#[cfg(test)]
mod tests;
