//! Reads the blocks of one file in order.
//!
//! A file may end at any byte, may grow while it is read, and may be damaged. If the header of a
//! block is invalid, the scanner searches for the next valid one. It does not check payloads; see
//! [`Scanner::read_payload`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::format::{
    BLOCK_HEADER_LEN, BlockHeader, FILE_HEADER_LEN, FileHeader, FormatError, checksum,
};

/// A source of bytes that can be read at any position.
pub trait ReadAt {
    /// Reads at most `buffer.len()` bytes. It reads fewer only at the end.
    ///
    /// # Errors
    ///
    /// If the operating system reports an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buffer.is_empty() {
            match FileExt::read_at(self, buffer, offset) {
                Ok(0) => break,
                Ok(count) => {
                    total += count;
                    offset += count as u64;
                    buffer = &mut buffer[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }
}

impl ReadAt for &[u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.len());
        let count = buffer.len().min(self.len() - start);
        buffer[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }
}

/// A complete block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The header of the block.
    pub header: BlockHeader,
    /// The position of the payload in the file.
    pub payload_at: u64,
}

/// The number of bytes to read ahead: many after a short block, and few after a long one, because
/// most of them would be skipped.
const AHEAD_MAX: usize = 64 * 1024;
const AHEAD_MIN: usize = 4 * 1024;
/// The minimum length of a payload after which only `AHEAD_MIN` bytes are read ahead.
const LONG_PAYLOAD: u32 = 16 * 1024;

/// Reads blocks one after another.
#[derive(Debug)]
pub struct Scanner<S> {
    source: S,
    header: FileHeader,
    position: u64,
    window: Vec<u8>,
    /// The number of valid bytes in the window. The bytes after them may be stale.
    window_len: usize,
    window_at: u64,
    last_length: u32,
    damaged_bytes: u64,
}

impl<S: ReadAt> Scanner<S> {
    /// Reads the header of the file. Returns `Ok(Err(…))` if the file is not (yet) a stream file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn open(source: S) -> io::Result<Result<Self, FormatError>> {
        let mut bytes = [0; FILE_HEADER_LEN];
        let count = source.read_at(&mut bytes, 0)?;
        Ok(FileHeader::decode(&bytes[..count]).map(|header| Self {
            source,
            header,
            position: FILE_HEADER_LEN as u64,
            window: Vec::new(),
            window_len: 0,
            window_at: 0,
            last_length: 0,
            damaged_bytes: 0,
        }))
    }

    /// Returns the origin of the file.
    pub const fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the number of bytes skipped because no block starts there.
    pub const fn damaged_bytes(&self) -> u64 {
        self.damaged_bytes
    }

    /// Returns the next complete block. After `None`, more blocks may follow if the file is still
    /// being written.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn next_block(&mut self) -> io::Result<Option<Block>> {
        loop {
            let mark = self.header.mark;
            let found = BlockHeader::decode(self.at(self.position, BLOCK_HEADER_LEN)?, mark);
            if let Some(header) = found {
                let payload_at = self.position + BLOCK_HEADER_LEN as u64;
                let end = payload_at + u64::from(header.length);
                if header.length > 0 && !self.exists(end - 1)? {
                    return Ok(None);
                }
                self.last_length = header.length;
                self.position = end;
                return Ok(Some(Block { header, payload_at }));
            }
            let Some(next) = self.find_block(self.position + 1)? else {
                return Ok(None);
            };
            self.damaged_bytes += next - self.position;
            self.position = next;
        }
    }

    /// Reads a payload into `payload`. Returns `false` if the payload is damaged.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read_payload(
        &self,
        at: u64,
        length: u32,
        expected: u32,
        payload: &mut Vec<u8>,
    ) -> io::Result<bool> {
        // Growing the buffer zeroes the new memory. Bytes of an earlier block are overwritten
        // without zeroing.
        if payload.len() < length as usize {
            *payload = vec![0; length as usize];
        }
        payload.truncate(length as usize);
        let count = self.source.read_at(payload, at)?;
        Ok(count == payload.len() && checksum(payload) == expected)
    }

    /// Returns the bytes at a position. There are fewer than `length` only at the end.
    fn at(&mut self, position: u64, length: usize) -> io::Result<&[u8]> {
        let inside = || {
            let start = position.checked_sub(self.window_at)?;
            let start = usize::try_from(start).ok()?;
            (start + length <= self.window_len).then_some(start)
        };
        if let Some(start) = inside() {
            return Ok(&self.window[start..start + length]);
        }
        let ahead = if self.last_length >= LONG_PAYLOAD {
            AHEAD_MIN
        } else {
            AHEAD_MAX
        };
        let wanted = ahead.max(length);
        if self.window.len() < wanted {
            // The window never shrinks, because growing it again would zero it for each part of the
            // file.
            self.window = vec![0; wanted];
        }
        // The window must be empty in case the read fails.
        self.window_len = 0;
        self.window_at = position;
        let count = self.source.read_at(&mut self.window[..wanted], position)?;
        self.window_len = count;
        Ok(&self.window[..length.min(count)])
    }

    fn exists(&mut self, position: u64) -> io::Result<bool> {
        if position >= self.window_at && position - self.window_at < self.window_len as u64 {
            return Ok(true);
        }
        Ok(self.source.read_at(&mut [0], position)? == 1)
    }

    /// Returns the first position at or after `from` with a valid header.
    fn find_block(&mut self, from: u64) -> io::Result<Option<u64>> {
        let mark = self.header.mark;
        let mut chunk = vec![0; AHEAD_MAX];
        let mut at = from;
        loop {
            let count = self.source.read_at(&mut chunk, at)?;
            if count < BLOCK_HEADER_LEN {
                return Ok(None);
            }
            // A header that starts in the last bytes is found in the next chunk.
            let last = count - BLOCK_HEADER_LEN;
            for start in 0..=last {
                let bytes = &chunk[start..count];
                if bytes.starts_with(&mark) && BlockHeader::decode(bytes, mark).is_some() {
                    return Ok(Some(at + start as u64));
                }
            }
            at += last as u64 + 1;
        }
    }
}

#[cfg(test)]
mod tests;
