//! Reads the output of one channel of an instance as a single sequence of bytes, wherever it is
//! stored.
//!
//! A reader can follow output while it is being written. Between two reads it keeps only the
//! positions of the pieces. Output that is not written yet is not an error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::format::{BlockKind, Channel, Key};
use crate::index::{Chunk, OpenError, StreamDir};

/// The location of an instance's output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// In a separate file.
    File(PathBuf),
    /// In a stream directory.
    Stream {
        /// The directory.
        dir: PathBuf,
        /// The uid of the server.
        server_uid: String,
        /// The job, the task and the instance.
        key: Key,
        /// Standard output or standard error.
        channel: Channel,
    },
}

/// Where to start reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The bytes from this offset on.
    Offset(u64),
    /// The last lines, at most this many.
    LastLines(u32),
}

/// A part of the output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// The position of the part in bytes.
    pub offset: u64,
    /// The bytes of the part, without damaged ones.
    pub bytes: Vec<u8>,
    /// The position of the next part.
    pub next: u64,
    /// The total size of the output in bytes.
    pub size: u64,
}

/// The maximum distance in bytes between the start of the last lines and the end of the output. It
/// is limited because lines can be arbitrarily long.
const LAST_LINES_MAX: u64 = 1 << 20;

/// The number of bytes per read when searching for the last lines.
const STEP: u64 = 64 * 1024;

/// Reads the output of one channel of an instance.
#[derive(Debug)]
pub struct OutputReader {
    source: Source,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// No output was found yet.
    Nowhere,
    File(File),
    Stream {
        dir: StreamDir,
        /// The pieces, each with the offset at which it ends.
        chunks: Vec<(u64, Chunk)>,
        /// Whether the file of the instance is known, so that the search can skip other files.
        is_found: bool,
    },
}

impl OutputReader {
    /// Creates a reader without accessing the disk.
    #[must_use]
    pub const fn new(source: Source) -> Self {
        Self {
            source,
            place: Place::Nowhere,
        }
    }

    /// Reads at most `limit` bytes of the available output. If the file is now shorter than the
    /// offset, it was rewritten, so reading starts again from the beginning.
    ///
    /// # Errors
    ///
    /// If the operating system reports an error. Output that does not exist yet is not an error.
    pub fn read(&mut self, from: From, limit: u64) -> io::Result<Part> {
        let size = self.update()?;
        let offset = match from {
            From::Offset(offset) if offset <= size => offset,
            From::Offset(_) => 0,
            From::LastLines(lines) => self.last_lines(lines, size)?,
        };
        let mut bytes = Vec::new();
        let next = self.read_at(offset, limit.min(size - offset), &mut bytes)?;
        Ok(Part {
            offset,
            bytes,
            next,
            size,
        })
    }

    /// Finds new output and returns the total size.
    fn update(&mut self) -> io::Result<u64> {
        let place = &mut self.place;
        match &self.source {
            Source::File(path) => update_file(path, place),
            Source::Stream {
                dir,
                server_uid,
                key,
                channel,
            } => {
                if matches!(place, Place::Nowhere) {
                    *place = open_stream(dir, server_uid)?;
                }
                update_stream(*key, *channel, place)
            }
        }
    }

    /// Appends bytes to `out` and returns the offset after them.
    fn read_at(&self, offset: u64, length: u64, out: &mut Vec<u8>) -> io::Result<u64> {
        match &self.place {
            Place::Nowhere => Ok(offset),
            Place::File(file) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                out.resize(length, 0);
                let mut filled = 0;
                while filled < length {
                    let at = offset + filled as u64;
                    match file.read_at(&mut out[filled..], at) {
                        Ok(0) => break,
                        Ok(count) => filled += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                out.truncate(filled);
                Ok(offset + filled as u64)
            }
            Place::Stream { dir, chunks, .. } => {
                let end = offset + length;
                let mut at = offset;
                let first = chunks.partition_point(|(chunk_end, _)| *chunk_end <= offset);
                let mut payload = Vec::new();
                for (chunk_end, chunk) in &chunks[first..] {
                    if at >= end {
                        break;
                    }
                    let chunk_at = chunk_end - u64::from(chunk.length);
                    let upto = end.min(*chunk_end);
                    payload.clear();
                    if dir.read(chunk, &mut payload)? {
                        let inside = |position: u64| {
                            usize::try_from(position - chunk_at).unwrap_or(usize::MAX)
                        };
                        out.extend_from_slice(&payload[inside(at)..inside(upto)]);
                    }
                    at = upto;
                }
                Ok(at)
            }
        }
    }

    /// Returns the position of the last lines.
    fn last_lines(&self, lines: u32, size: u64) -> io::Result<u64> {
        let floor = size.saturating_sub(LAST_LINES_MAX);
        let mut start = size;
        let mut missing = u64::from(lines);
        let mut bytes = Vec::new();
        if lines == 0 {
            return Ok(size);
        }
        while start > floor {
            let from = start.saturating_sub(STEP).max(floor);
            bytes.clear();
            self.read_at(from, start - from, &mut bytes)?;
            for (index, byte) in bytes.iter().enumerate().rev() {
                let after = from + index as u64 + 1;
                // A final newline ends the last line and does not start another one.
                if *byte == b'\n' && after != size {
                    missing -= 1;
                    if missing == 0 {
                        return Ok(after);
                    }
                }
            }
            start = from;
        }
        Ok(floor)
    }
}

fn update_file(path: &Path, place: &mut Place) -> io::Result<u64> {
    // The file is opened each time, because another file may have replaced it.
    match hq_private::open_output(path) {
        Ok(file) => {
            let size = file.metadata()?.len();
            *place = Place::File(file);
            Ok(size)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            *place = Place::Nowhere;
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

fn open_stream(dir: &Path, server_uid: &str) -> io::Result<Place> {
    match StreamDir::open(dir, Some(server_uid)) {
        Ok(dir) => Ok(Place::Stream {
            dir,
            chunks: Vec::new(),
            is_found: false,
        }),
        Err(OpenError::Io { source, .. }) => Err(source),
        Err(OpenError::NoFiles | OpenError::SeveralServers(_)) => Ok(Place::Nowhere),
    }
}

fn update_stream(key: Key, channel: Channel, place: &mut Place) -> io::Result<u64> {
    let Place::Stream {
        dir,
        chunks,
        is_found,
    } = place
    else {
        return Ok(0);
    };
    if !*is_found {
        match dir.refresh() {
            Ok(()) | Err(OpenError::NoFiles | OpenError::SeveralServers(_)) => {}
            Err(OpenError::Io { source, .. }) => return Err(source),
        }
    }
    let mut size = chunks.last().map_or(0, |(end, _)| *end);
    dir.each_new(|file, block| {
        if block.header.key != key {
            return;
        }
        match block.header.kind {
            BlockKind::Start => *is_found = true,
            // The instance may start on another worker.
            BlockKind::Abandoned => *is_found = false,
            BlockKind::Data(found) if found == channel => {
                size += u64::from(block.header.length);
                chunks.push((size, Chunk::new(file, block, found)));
            }
            BlockKind::Data(_) | BlockKind::End => {}
        }
    })?;
    Ok(size)
}

#[cfg(test)]
mod tests;
