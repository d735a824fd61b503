//! Reads the pages of an SQLite file without SQLite, which rejects damaged files.
//!
//! It covers what a repair and a quick check need: b-trees, cells, records, and the free list. The
//! formats follow <https://www.sqlite.org/fileformat2.html>. Pages are untrusted input: every
//! offset is checked, and every walk is bounded by the number of pages.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rusqlite::types::Value;

use crate::bytes::{be16, be32};
use crate::lock::{Lock, with_suffix};
use crate::log::Log;
use crate::schema;

/// The length in bytes of the file header, at the start of the first page.
const HEADER_LEN: usize = 100;
/// The first bytes of every SQLite file.
pub(crate) const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The maximum depth of a tree. A deeper tree would not fit on any disk.
const DEPTH_MAX: u32 = 32;
/// The number of bytes per page in a page map.
const MAP_ENTRY_LEN: usize = 5;
/// SQLite never uses the page that contains this byte, because the page is reserved for locks.
const UNUSED_AT: u64 = 1 << 30;
/// The maximum size of a record in bytes.
const RECORD_MAX: u64 = 1 << 30;

/// The kind of a page, as determined by its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageKind {
    IndexInterior,
    TableInterior,
    IndexLeaf,
    TableLeaf,
}

/// A stored row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Record {
    /// The row id, for tables that have one.
    pub(crate) rowid: Option<i64>,
    pub(crate) values: Vec<Value>,
}

/// The first two columns of a record, or its row id. They show where rows are missing.
pub(crate) type Key = (i64, i64);

impl Record {
    /// Returns the position of the record among the records of its tree.
    pub(crate) fn key(&self) -> Option<Key> {
        if let Some(rowid) = self.rowid {
            return Some((rowid, 0));
        }
        match (self.values.first(), self.values.get(1)) {
            (Some(Value::Integer(first)), Some(Value::Integer(second))) => Some((*first, *second)),
            _ => None,
        }
    }
}

/// A page with its children and records.
#[derive(Debug)]
pub(crate) struct Page {
    /// The children in order. An interior page has one more child than cells.
    pub(crate) children: Vec<u32>,
    /// The records; `None` is a broken cell. In interior pages of tables, records have no columns.
    pub(crate) records: Vec<Option<Record>>,
    /// The overflow pages of the records.
    pub(crate) overflow: Vec<u32>,
}

/// A file that is read page by page.
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    /// The size of a page in bytes.
    size: usize,
    /// The number of complete pages in the file.
    count: u32,
    /// The number of pages according to the header.
    expected: u32,
    first_free: u32,
    /// The number of free pages according to the header.
    free_count: u32,
    /// Whether the file has a page map, which SQLite needs to move pages.
    has_map: bool,
    /// The size of the file in bytes.
    len: u64,
    is_ours: bool,
    log: Option<Log>,
}

/// Reads a variable-length integer. Returns it and the position after it.
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value: u64 = 0;
    for index in 0..9 {
        let byte = *bytes.get(at.checked_add(index)?)?;
        if index == 8 {
            return Some(((value << 8) | u64::from(byte), at + 9));
        }
        value = (value << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, at + index + 1));
        }
    }
    None
}

impl Pages {
    /// Opens a database together with the commits in its log.
    pub(crate) fn open(lock: &Lock) -> io::Result<Self> {
        let file = lock.open_raw()?;
        let len = file.metadata()?.len();
        let log = Log::open(&with_suffix(lock.path(), "-wal"));
        Self::of(file, len, log)
    }

    fn of(file: File, len: u64, log: Option<Log>) -> io::Result<Self> {
        let mut header = [0_u8; HEADER_LEN];
        let have = usize::try_from(len).unwrap_or(HEADER_LEN).min(HEADER_LEN);
        file.read_exact_at(&mut header[..have], 0)?;
        // A very short file contains only the start of the header.
        let is_cut_header =
            have < HEADER_LEN && MAGIC.starts_with(&header[..have.min(MAGIC.len())]);
        if let Some(first) = log.as_ref().and_then(|log| log.page(1)) {
            header.copy_from_slice(first.get(..HEADER_LEN).unwrap_or(&[0; HEADER_LEN]));
        }
        let by_log = log.as_ref().map_or(4_096, Log::page_size);
        let size = match be16(&header, 16) {
            Some(1) => 65_536,
            Some(size) if size >= 512 && size.is_power_of_two() => size,
            Some(_) | None => by_log,
        };
        let log = log.filter(|log| log.page_size() == size);
        let count = u32::try_from(len / size as u64).unwrap_or(u32::MAX);
        let count = count.max(log.as_ref().map_or(0, Log::last_page));
        let id = be32(&header, 68).map(u32::cast_signed);
        let is_ours = is_cut_header || id == Some(schema::APPLICATION_ID);
        Ok(Self {
            file,
            size,
            count,
            expected: be32(&header, 28).unwrap_or(0),
            first_free: be32(&header, 32).unwrap_or(0),
            free_count: be32(&header, 36).unwrap_or(0),
            has_map: be32(&header, 52).is_some_and(|root| root != 0),
            len,
            is_ours,
            log,
        })
    }

    /// Returns whether the end of the file is missing.
    pub(crate) fn is_cut(&self) -> bool {
        if self.has_log() {
            // If there is a log, the file may be shorter than its header says, because the rest is
            // in the log.
            return self.count < self.expected;
        }
        self.len < u64::from(self.expected) * self.size as u64
            || !self.len.is_multiple_of(self.size as u64)
    }

    /// Returns whether the log has commits.
    pub(crate) const fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns whether the header is that of a journal.
    pub(crate) const fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Returns whether the file and its log are empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0 && self.log.is_none()
    }

    /// Returns the number of pages.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    fn read(&self, number: u32) -> Option<Vec<u8>> {
        if number == 0 || number > self.count {
            return None;
        }
        if let Some(page) = self.log.as_ref().and_then(|log| log.page(number)) {
            return Some(page);
        }
        let mut bytes = vec![0; self.size];
        let at = u64::from(number - 1) * self.size as u64;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    /// Returns the kind and the children of a page, without its records.
    fn outline(&self, number: u32) -> Option<(PageKind, Vec<u32>)> {
        let bytes = self.read(number)?;
        let (kind, head, cells) = head(&bytes, number)?;
        if matches!(kind, PageKind::IndexLeaf | PageKind::TableLeaf) {
            return Some((kind, Vec::new()));
        }
        let mut children = Vec::with_capacity(cells + 1);
        for cell in 0..cells {
            children.push(be32(&bytes, be16(&bytes, head + 12 + 2 * cell)?)?);
        }
        children.push(be32(&bytes, head + 8)?);
        Some((kind, children))
    }

    /// Reads a b-tree page. Returns `None` if the page is not a b-tree page.
    pub(crate) fn page(&self, number: u32) -> Option<Page> {
        let bytes = self.read(number)?;
        let (kind, head, cells) = head(&bytes, number)?;
        let is_leaf = matches!(kind, PageKind::IndexLeaf | PageKind::TableLeaf);
        let pointers = head + if is_leaf { 8 } else { 12 };
        let mut page = Page {
            children: Vec::new(),
            records: Vec::with_capacity(cells),
            overflow: Vec::new(),
        };
        for cell in 0..cells {
            let at = be16(&bytes, pointers + 2 * cell)?;
            if !is_leaf {
                page.children.push(be32(&bytes, at).unwrap_or(0));
            }
            page.records.push(if kind == PageKind::TableInterior {
                varint(&bytes, at + 4).map(|(rowid, _)| Record {
                    rowid: Some(rowid.cast_signed()),
                    values: Vec::new(),
                })
            } else {
                self.record(&bytes, at, kind, &mut page.overflow)
            });
        }
        if !is_leaf {
            page.children.push(be32(&bytes, head + 8)?);
        }
        Some(page)
    }

    fn record(
        &self,
        bytes: &[u8],
        at: usize,
        kind: PageKind,
        overflow: &mut Vec<u32>,
    ) -> Option<Record> {
        let at = if kind == PageKind::IndexInterior {
            at + 4
        } else {
            at
        };
        let (len, at) = varint(bytes, at)?;
        let (rowid, at) = if kind == PageKind::TableLeaf {
            let (rowid, at) = varint(bytes, at)?;
            (Some(rowid.cast_signed()), at)
        } else {
            (None, at)
        };
        if len > RECORD_MAX {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        let usable = self.size;
        let local_max = if kind == PageKind::TableLeaf {
            usable - 35
        } else {
            (usable - 12) * 64 / 255 - 23
        };
        let payload = if len <= local_max {
            bytes.get(at..at.checked_add(len)?)?.to_vec()
        } else {
            let least = (usable - 12) * 32 / 255 - 23;
            let wanted = least + (len - least) % (usable - 4);
            let local = if wanted <= local_max { wanted } else { least };
            let mut payload = bytes.get(at..at.checked_add(local)?)?.to_vec();
            let next = be32(bytes, at + local)?;
            self.follow_overflow(next, len, &mut payload, overflow)?;
            payload
        };
        let values = values(&payload)?;
        Some(Record { rowid, values })
    }

    /// Appends the part of a record that is stored on overflow pages.
    fn follow_overflow(
        &self,
        mut next: u32,
        len: usize,
        payload: &mut Vec<u8>,
        seen: &mut Vec<u32>,
    ) -> Option<()> {
        let mut left = self.count;
        while payload.len() < len {
            left = left.checked_sub(1)?;
            seen.push(next);
            let page = self.read(next)?;
            next = be32(&page, 0)?;
            let take = (len - payload.len()).min(self.size - 4);
            payload.extend_from_slice(page.get(4..4 + take)?);
        }
        Some(())
    }

    /// Returns the free pages. If the list is damaged, some may be missing.
    pub(crate) fn free(&self) -> BTreeSet<u32> {
        let mut free = BTreeSet::new();
        let mut trunk = self.first_free;
        while trunk != 0 && free.insert(trunk) {
            let Some(bytes) = self.read(trunk) else { break };
            let count = be32(&bytes, 4).unwrap_or(0) as usize;
            for index in 0..count.min(self.size / 4) {
                free.extend(be32(&bytes, 8 + 4 * index));
            }
            trunk = be32(&bytes, 0).unwrap_or(0);
        }
        free
    }

    /// Returns a problem for each page of the page map that does not list all pages after it.
    fn map_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.has_map {
            return problems;
        }
        let (entries, count) = (self.size / MAP_ENTRY_LEN, self.count.min(self.expected));
        let unused = u32::try_from(UNUSED_AT / self.size as u64 + 1).unwrap_or(0);
        for first in (2..=count).step_by(entries + 1) {
            let map = if first == unused { first + 1 } else { first };
            let last = map.saturating_add(u32::try_from(entries).unwrap_or(0));
            let bytes = self.read(map).unwrap_or_default();
            let is_known = |number: u32| {
                let at = (number - map - 1) as usize * MAP_ENTRY_LEN;
                number == unused || bytes.get(at).is_some_and(|kind| (1..=5).contains(kind))
            };
            if !(map + 1..=last.min(count)).all(is_known) {
                problems.push(format!("page {map} of the map of pages is unreadable"));
            }
        }
        problems
    }

    /// Returns the names and root pages of the tables and indices that can be read.
    pub(crate) fn roots(&self) -> Vec<(String, u32)> {
        let mut roots = Vec::new();
        for step in Walk::new(self, 1) {
            let Step::Page(_, page) = step else { continue };
            for record in page.records.into_iter().flatten() {
                if let (Some(Value::Text(name)), Some(Value::Integer(root))) =
                    (record.values.get(1), record.values.get(3))
                    && let Ok(root) = u32::try_from(*root)
                    && root > 1
                {
                    roots.push((name.clone(), root));
                }
            }
        }
        roots
    }

    /// Quickly checks whether every page of every tree can be read. Reads the file once and does
    /// not decode any records.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.is_cut() {
            problems.push(format!(
                "the file has {} bytes, {} were expected",
                self.len,
                u64::from(self.expected) * self.size as u64
            ));
        }
        let roots = self.roots();
        if roots.is_empty() {
            problems.push("the list of tables cannot be read".to_owned());
        }
        if self.free().len() as u64 != u64::from(self.free_count) {
            problems.push("the list of free pages is unreadable".to_owned());
        }
        problems.extend(self.map_problems());
        let schema = std::iter::once(("sqlite_schema".to_owned(), 1));
        for (name, root) in schema.chain(roots) {
            let mut seen = BTreeSet::new();
            let mut next = vec![root];
            while let Some(number) = next.pop() {
                match self.outline(number).filter(|_| seen.insert(number)) {
                    Some((_, children)) => next.extend(children),
                    None => problems.push(format!("page {number} of {name} is unreadable")),
                }
            }
        }
        problems
    }
}

/// Returns the kind of a page, the position of its header, and its number of cells.
fn head(bytes: &[u8], number: u32) -> Option<(PageKind, usize, usize)> {
    let head = if number == 1 { HEADER_LEN } else { 0 };
    let kind = match bytes.get(head)? {
        2 => PageKind::IndexInterior,
        5 => PageKind::TableInterior,
        10 => PageKind::IndexLeaf,
        13 => PageKind::TableLeaf,
        _ => return None,
    };
    let cells = be16(bytes, head + 3)?;
    (cells <= bytes.len() / 4).then_some((kind, head, cells))
}

/// Decodes the columns of a record.
fn values(payload: &[u8]) -> Option<Vec<Value>> {
    let (header_len, mut at) = varint(payload, 0)?;
    let header_len = usize::try_from(header_len).ok()?;
    let mut body = header_len;
    let mut values = Vec::new();
    while at < header_len {
        let (kind, next) = varint(payload, at)?;
        at = next;
        let len = usize::try_from(match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => (kind - 12) / 2,
        })
        .ok()?;
        let bytes = payload.get(body..body.checked_add(len)?)?;
        body += len;
        values.push(match kind {
            0 => Value::Null,
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            1..=6 => Value::Integer(integer(bytes)),
            7 => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
            _ if kind.is_multiple_of(2) => Value::Blob(bytes.to_vec()),
            _ => Value::Text(String::from_utf8(bytes.to_vec()).ok()?),
        });
    }
    (at == header_len && body == payload.len()).then_some(values)
}

/// Reads a big-endian two's complement number.
fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1_i64 } else { 0 };
    bytes
        .iter()
        .fold(start, |value, byte| (value << 8) | i64::from(*byte))
}

/// A step of a walk through a tree.
pub(crate) enum Step {
    /// A page and its number. Interior pages precede their children.
    Page(u32, Page),
    /// A page of the tree that cannot be read, and the keys around it.
    Lost(Option<Key>, Option<Key>),
}

/// A page to visit, with the keys around it.
struct Visit {
    number: u32,
    depth: u32,
    low: Option<Key>,
    high: Option<Key>,
}

/// A walk through a tree in key order.
pub(crate) struct Walk<'a> {
    pages: &'a Pages,
    next: Vec<Visit>,
    seen: BTreeSet<u32>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(pages: &'a Pages, root: u32) -> Self {
        let root = Visit {
            number: root,
            depth: 0,
            low: None,
            high: None,
        };
        Self {
            pages,
            next: vec![root],
            seen: BTreeSet::new(),
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let visit = self.next.pop()?;
        let (low, high) = (visit.low, visit.high);
        if visit.depth > DEPTH_MAX || !self.seen.insert(visit.number) {
            return Some(Step::Lost(low, high));
        }
        let Some(page) = self.pages.page(visit.number) else {
            return Some(Step::Lost(low, high));
        };
        let key = |cell: usize| page.records.get(cell)?.as_ref()?.key();
        for (cell, number) in page.children.iter().enumerate().rev() {
            self.next.push(Visit {
                number: *number,
                depth: visit.depth + 1,
                low: cell.checked_sub(1).and_then(key).or(low),
                high: key(cell).or(high),
            });
        }
        Some(Step::Page(visit.number, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_any_length_and_sign() {
        assert_eq!(varint(&[0x7f], 0), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00], 0), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9], 0), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0x80], 0), None);
        assert_eq!(integer(&[0xff, 0xfe]), -2);
        assert_eq!(integer(&[0x7f]), 127);
    }

    #[test]
    fn records_are_read_as_sqlite_wrote_them() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("x.db");
        let connection = rusqlite::Connection::open(&path).expect("a database");
        connection
            .execute_batch(
                "CREATE TABLE t (a INTEGER, b TEXT, c BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID; \
                 CREATE TABLE u (id INTEGER PRIMARY KEY, x);",
            )
            .expect("tables");
        // This uses one transaction, because a commit per row would cost 6 000 syncs.
        connection.execute_batch("BEGIN").expect("a transaction");
        let long = "x".repeat(20_000);
        for number in 0..3_000_i64 {
            let text = if number == 77 {
                long.clone()
            } else {
                number.to_string()
            };
            connection
                .execute(
                    "INSERT INTO t VALUES (?, ?, NULL)",
                    (number * number, &text),
                )
                .expect("a row");
            connection
                .execute("INSERT INTO u VALUES (?, ?)", (number, -number))
                .expect("a row");
        }
        connection.execute_batch("COMMIT").expect("room");
        drop(connection);
        let pages = crate::testing::pages(&path);
        assert_eq!(pages.problems(), Vec::<String>::new());
        let mut found = [Vec::new(), Vec::new()];
        for (name, root) in pages.roots() {
            for step in Walk::new(&pages, root) {
                let Step::Page(_, page) = step else {
                    panic!("nothing is lost")
                };
                let rows = page
                    .records
                    .into_iter()
                    .flatten()
                    .filter(|r| !r.values.is_empty());
                found[usize::from(name == "u")].extend(rows);
            }
        }
        assert_eq!((found[0].len(), found[1].len()), (3_000, 3_000));
        assert!(
            found[0]
                .iter()
                .any(|row| row.values[1] == Value::Text(long.clone()))
        );
        assert!(
            found[1]
                .iter()
                .all(|row| row.values[1] == Value::Integer(-row.rowid.expect("a row id")))
        );
    }
}
