//! Size limits of messages, as far as core enforces them.
//!
//! Core does not know the wire format, but decides the content of each message. So it counts
//! potentially long parts (texts, entries, arguments) exactly, and the rest by an upper bound of
//! its encoding. The tests of `hq_protocol::limits`, which has all limits of the wire, check these
//! bounds, and that readers accept what they allow. See `docs/protocol.md`.

mod submit;

use crate::outcome::Outcome;

pub use submit::{
    PATH_BYTES_MAX, STRING_BYTES_MAX, TEMPLATE_BYTES_MAX, TooLarge, check_submit, template_bytes,
};

/// Limit of one report in bytes. The server handles that in a few milliseconds, with some tens of
/// MiB of temporary memory for any content.
pub const REPORT_BYTES_MAX: usize = 1 << 20;

/// Limit of one assignment in bytes, without templates, which cannot be divided. A network carries
/// it in a small part of the time after which a silent peer is given up, so messages behind it do
/// not wait long.
pub const ASSIGN_BYTES_MAX: usize = 4 << 20;

/// Tasks that a worker may have launched at one time; more than any machine's processes. Bounds the
/// registration of a reconnecting worker, which lists all of them.
pub const LAUNCHED_MAX: usize = 1 << 17;

/// Limit of instances that a worker reports as unkillable; more would add no information.
pub const UNKILLABLE_MAX: usize = 256;

/// Limit of jobs in one heartbeat whose values the worker holds; the next one lists others.
pub const HELD_JOBS_MAX: usize = 256;

/// Most faults that a worker names of its node.
pub const NODE_FAULTS_MAX: usize = 16;

/// Unacknowledged ends beyond which a worker starts no tasks. Far more than a live server leaves
/// open; a few tens of MiB.
pub const UNACKNOWLEDGED_MAX: usize = 1 << 16;

/// The same limit in bytes: most ends have no text, but all may have a long one.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 32 << 20;

/// Longest error text of a task. A text written by the task is cut at 2 KiB when read; invalid
/// bytes may triple its size.
pub const ERROR_TEXT_MAX: usize = 8 << 10;

/// An instance in a list: `TaskGroup` with one row, if neighbors belong to different jobs.
pub const KEY_BYTES: usize = 24;

/// A start in a report: `Started` with one row.
pub const START_BYTES: usize = 40;

/// An end in a report without its text: `Ended` with one row, and the rest of its `Failure`.
pub const END_BYTES: usize = 128;

/// A held variant in a registration.
pub const VARIANT_BYTES: usize = 24;

/// A report or a registration without its rows.
pub const REPORT_BYTES: usize = 128;

/// An assignment without ids, entries and nodes, and any message without lists.
pub(crate) const ASSIGNMENT_BYTES: usize = 80;

/// One range of ids.
pub(crate) const RANGE_BYTES: usize = 28;

/// Overhead of an entry or a node's name.
pub(crate) const ITEM_BYTES: usize = 10;

/// Upper bound of the bytes of an end in a report.
pub(crate) fn end_bytes(outcome: &Outcome) -> usize {
    END_BYTES + outcome.text().map_or(0, str::len)
}

/// Upper bound of the bytes that one more task adds to an assignment.
pub(crate) const fn task_bytes(entry: Option<&[u8]>) -> usize {
    let entry = match entry {
        Some(entry) => entry.len() + ITEM_BYTES,
        None => 0,
    };
    RANGE_BYTES + entry
}

/// Cuts a text between two characters to at most `max` bytes, with a note of how much was left out.
#[must_use]
pub fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let note = |left_out: usize| format!("… ({left_out} bytes left out)");
    // The note must fit for any omitted length, and the length grows with the note.
    let room = max.saturating_sub(note(text.len()).len());
    let end = text.floor_char_boundary(room);
    text[..end].to_owned() + &note(text.len() - end)
}

/// As [`shortened`], in place of a boxed text.
pub(crate) fn shorten(text: Box<str>, max: usize) -> Box<str> {
    if text.len() <= max {
        return text;
    }
    shortened(&text, max).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_say_so() {
        assert_eq!(shortened("short", 64), "short");
        let long = "é".repeat(100);
        let cut = shortened(&long, 64);
        assert!(cut.len() <= 64, "{cut}");
        let (kept, note) = cut.split_once('…').expect("a note");
        assert_eq!(note, format!(" ({} bytes left out)", 200 - kept.len()));
        assert_eq!(shortened(&long, 0), "… (200 bytes left out)");
    }
}
