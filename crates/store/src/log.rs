//! Reads commits from the write-ahead log of an SQLite file without SQLite.
//!
//! A repair needs the log of a file that SQLite rejects, because the latest acknowledged changes
//! may only be in the log. The format is
//! <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>: a frame contains a page, and its
//! checksum continues that of the previous frame. Frames are valid up to the last one that ends a
//! transaction.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::bytes::be32;
use crate::lock::open_regular;

/// The magic number of a log. Its last bit determines the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;
const HEADER_LEN: usize = 32;
const FRAME_HEADER_LEN: usize = 24;

/// The valid pages of a log.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    page_size: usize,
    /// The position of the latest contents of each page.
    pages: BTreeMap<u32, u64>,
    /// The number of pages in the database after the last commit.
    last_page: u32,
}

impl Log {
    /// Opens a log. Returns `None` if the log is missing or has no valid commit.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let (log, _) = Self::read(open_regular(path).ok()?)?;
        (log.last_page > 0).then_some(log)
    }

    /// Returns the position of damage that hides commits. `is_needed` means that the database says
    /// that it needs this log.
    ///
    /// Each commit is synced before the next transaction is written. A power loss therefore leaves
    /// at most one transaction incomplete: the last one, which the server has not acknowledged.
    /// Either of two findings proves that commits are lost:
    ///
    /// - A complete transaction and the start of the next one follow the damage.
    /// - The database needs the log, the log has no valid commit, and a frame follows the damaged
    ///   one. The first transaction of such a log is a single frame (see `history::mark_log`), so
    ///   that frame belongs to a later transaction.
    pub(crate) fn damage(path: &Path, is_needed: bool) -> Option<u64> {
        let look = || Self::find_damage(open_regular(path).ok()?, is_needed);
        let found = look()?;
        // A server may be writing at the same time; real damage stays at the same position.
        (look()? == found).then_some(found)
    }

    fn find_damage(file: File, is_needed: bool) -> Option<u64> {
        let len = file.metadata().ok()?.len();
        if len == 0 {
            return None;
        }
        let Some((log, stop)) = Self::read(file) else {
            return (is_needed || len > HEADER_LEN as u64).then_some(0);
        };
        let is_cut = stop.at + log.frame_len() > len;
        let tail = log.read_tail(&stop);
        let is_beginning_lost = is_needed && log.last_page == 0 && (is_cut || tail.has_frame);
        (is_beginning_lost || tail.is_proven).then_some(stop.at)
    }

    /// Reads the valid part of a log and returns where it ends. Returns `None` if the header is
    /// invalid.
    fn read(file: File) -> Option<(Self, Stop)> {
        let mut header = [0; HEADER_LEN];
        file.read_exact_at(&mut header, 0).ok()?;
        let magic = be32(&header, 0)?;
        let page_size = be32(&header, 8)? as usize;
        let is_known = magic & !1 == MAGIC
            && (512..=65_536).contains(&page_size)
            && page_size.is_power_of_two();
        let mut sum = Checksum {
            is_big_endian: magic & 1 == 1,
            sums: [0, 0],
        };
        sum.add(header.get(..24)?);
        if !is_known || sum.sums != [be32(&header, 24)?, be32(&header, 28)?] {
            return None;
        }
        let mut log = Self {
            file,
            page_size,
            pages: BTreeMap::new(),
            last_page: 0,
        };
        let salt: [u8; 8] = header.get(16..24)?.try_into().ok()?;
        let is_big_endian = sum.is_big_endian;
        let at = log.read_frames(sum, &salt)?;
        let stop = Stop {
            at,
            salt,
            is_big_endian,
        };
        Some((log, stop))
    }

    const fn frame_len(&self) -> u64 {
        (FRAME_HEADER_LEN + self.page_size) as u64
    }

    /// Reads the frames after an invalid one. SQLite ignores them.
    fn read_tail(&self, stop: &Stop) -> Tail {
        let mut tail = Tail::default();
        let mut frame = vec![0; FRAME_HEADER_LEN + self.page_size];
        // The checksum of the previous frame, if that frame ends a transaction.
        let mut committed = None;
        let mut at = stop.at;
        while !tail.is_proven
            && self
                .file
                .read_exact_at(&mut frame[..FRAME_HEADER_LEN], at)
                .is_ok()
        {
            let before = committed.take();
            let (head, page) = frame.split_at_mut(FRAME_HEADER_LEN);
            // Frames from an earlier use of the file have a different salt.
            if head[8..16] == stop.salt {
                tail.has_frame |= at > stop.at;
                if let Some(sums) = before {
                    let mut sum = Checksum {
                        is_big_endian: stop.is_big_endian,
                        sums,
                    };
                    let body = at + FRAME_HEADER_LEN as u64;
                    let is_read = self.file.read_exact_at(page, body).is_ok();
                    sum.add(&head[..8]);
                    sum.add(page);
                    tail.is_proven = is_read && sum.sums == sums_of(head);
                }
                if be32(head, 4).is_some_and(|size_after| size_after > 0) {
                    committed = Some(sums_of(head));
                }
            }
            at += self.frame_len();
        }
        tail
    }

    /// Reads frames until one does not continue the previous frame: the rest is incomplete,
    /// damaged, or from an earlier use. Returns the position of that frame.
    fn read_frames(&mut self, mut sum: Checksum, salt: &[u8]) -> Option<u64> {
        let mut frame = vec![0; FRAME_HEADER_LEN + self.page_size];
        let mut at = HEADER_LEN as u64;
        let mut open = Vec::new();
        while self.file.read_exact_at(&mut frame, at).is_ok() {
            let (head, page) = frame.split_at(FRAME_HEADER_LEN);
            sum.add(head.get(..8)?);
            sum.add(page);
            let number = be32(head, 0)?;
            let is_next = head.get(8..16)? == salt && sum.sums == sums_of(head) && number > 0;
            if !is_next {
                break;
            }
            open.push((number, at + FRAME_HEADER_LEN as u64));
            // This is nonzero in the last frame of a transaction.
            let size_after = be32(head, 4)?;
            if size_after > 0 {
                self.pages.extend(open.drain(..));
                self.last_page = size_after;
            }
            at += frame.len() as u64;
        }
        Some(at)
    }

    /// Returns the size of a page in bytes.
    pub(crate) const fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns the number of pages in the database after the last commit.
    pub(crate) const fn last_page(&self) -> u32 {
        self.last_page
    }

    /// Returns the latest contents of a page. Returns `None` if the log does not contain the page.
    pub(crate) fn page(&self, number: u32) -> Option<Vec<u8>> {
        let at = *self.pages.get(&number)?;
        let mut bytes = vec![0; self.page_size];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

/// The end of the valid part of a log, and the attributes of frames that would continue it.
struct Stop {
    at: u64,
    salt: [u8; 8],
    is_big_endian: bool,
}

/// Facts about frames of the current use that follow the valid part of a log.
#[derive(Default)]
struct Tail {
    /// Whether a frame follows the invalid one.
    has_frame: bool,
    /// Whether another transaction follows a complete one.
    is_proven: bool,
}

fn sums_of(head: &[u8]) -> [u32; 2] {
    [16, 20].map(|at| be32(head, at).unwrap_or(0))
}

/// The running checksum of a log.
struct Checksum {
    is_big_endian: bool,
    sums: [u32; 2],
}

impl Checksum {
    /// Adds bytes. Their number must be a multiple of 8.
    fn add(&mut self, bytes: &[u8]) {
        let [mut first, mut second] = self.sums;
        for pair in bytes.chunks_exact(8) {
            let (low, high) = pair.split_at(4);
            let number = |bytes: &[u8]| {
                let bytes = bytes.try_into().unwrap_or([0; 4]);
                if self.is_big_endian {
                    u32::from_be_bytes(bytes)
                } else {
                    u32::from_le_bytes(bytes)
                }
            };
            first = first.wrapping_add(number(low)).wrapping_add(second);
            second = second.wrapping_add(number(high)).wrapping_add(first);
        }
        self.sums = [first, second];
    }
}
