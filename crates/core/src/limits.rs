//! The size limits of messages that core enforces.
//!
//! Core does not know the wire format, but it decides the content of each message. It therefore
//! counts potentially long parts (texts, entries, arguments) exactly, and all other parts by an
//! upper bound of their encoded size. `hq_protocol::limits` defines all limits of the wire. Its
//! tests check these bounds, and check that readers accept everything that the bounds allow. See
//! `docs/protocol.md`.

mod submit;

use crate::outcome::Outcome;

pub use submit::{
    PATH_BYTES_MAX, STRING_BYTES_MAX, SUBMIT_RANGES_MAX, TEMPLATE_BYTES_MAX, TooLarge,
    check_submit, template_bytes,
};

/// The maximum size of a report in bytes. The server handles such a report in a few milliseconds,
/// with a few tens of MiB of temporary memory for any content.
pub const REPORT_BYTES_MAX: usize = 1 << 20;

/// The maximum size in bytes of an assignment without templates, which cannot be split. A network
/// transfers it in a small fraction of the time after which a silent peer counts as lost, so later
/// messages do not have to wait long.
pub const ASSIGN_BYTES_MAX: usize = 4 << 20;

/// The maximum number of tasks that a worker may have launched at one time, more than the number of
/// processes on any machine. It bounds the registration of a reconnecting worker, which lists all
/// of them.
pub const LAUNCHED_MAX: usize = 1 << 17;

/// The maximum number of instances that a worker reports as unkillable. More would add no
/// information.
pub const UNKILLABLE_MAX: usize = 256;

/// The maximum number of jobs that a heartbeat lists as having values on the worker. The next
/// heartbeat lists other jobs.
pub const HELD_JOBS_MAX: usize = 256;

/// The maximum number of problems that a worker reports about its node.
pub const NODE_FAULTS_MAX: usize = 16;

/// The number of unacknowledged task ends above which a worker starts no tasks. A running server
/// leaves far fewer unacknowledged. This many take a few tens of MiB.
pub const UNACKNOWLEDGED_MAX: usize = 1 << 16;

/// The same limit in bytes. Most ends have no text, but all of them may have a long one.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 32 << 20;

/// The maximum length of a task's error text in bytes. A text that the task wrote is truncated to 2
/// KiB when it is read, and invalid bytes may triple its size.
pub const ERROR_TEXT_MAX: usize = 8 << 10;

/// The size of an instance in a list: a `TaskGroup` with one row, if neighbors belong to different
/// jobs.
pub const KEY_BYTES: usize = 24;

/// The size of a task start in a report: `Started` with one row.
pub const START_BYTES: usize = 40;

/// The size of a task end in a report, without its text: `Ended` with one row, and the rest of its
/// `Failure`.
pub const END_BYTES: usize = 128;

/// The size of a held variant in a registration.
pub const VARIANT_BYTES: usize = 24;

/// The size of a report or a registration without its rows.
pub const REPORT_BYTES: usize = 128;

/// The size of an assignment without ids, entries and nodes, and of any message without lists.
pub(crate) const ASSIGNMENT_BYTES: usize = 80;

/// The size of a range of ids.
pub(crate) const RANGE_BYTES: usize = 28;

/// The overhead of an entry or of a node's name.
pub(crate) const ITEM_BYTES: usize = 10;

/// Returns an upper bound of the size of a task end in a report, in bytes.
pub(crate) fn end_bytes(outcome: &Outcome) -> usize {
    END_BYTES + outcome.text().map_or(0, str::len)
}

/// Returns an upper bound of how many bytes one more task adds to an assignment.
pub(crate) const fn task_bytes(entry: Option<&[u8]>) -> usize {
    let entry = match entry {
        Some(entry) => entry.len() + ITEM_BYTES,
        None => 0,
    };
    RANGE_BYTES + entry
}

/// Truncates a text at a character boundary to at most `max` bytes, with a note of how much was
/// omitted.
#[must_use]
pub fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let note = |left_out: usize| format!("… ({left_out} bytes left out)");
    // The note must fit for any omitted length, and the omitted length grows with the note.
    let room = max.saturating_sub(note(text.len()).len());
    let end = text.floor_char_boundary(room);
    text[..end].to_owned() + &note(text.len() - end)
}

/// Like [`shortened`], for a boxed text.
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
