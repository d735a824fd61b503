//! How much may be sent at once, as far as core decides it.
//!
//! Core does not know the wire, but it decides what goes into one message. So it counts the bytes of what can be long
//! (texts, entries, arguments) exactly, and everything else by an upper bound of its encoding. That these bounds hold,
//! and that the reader of each message takes what they allow, is checked by the tests of `hq_protocol::limits`, where all
//! limits of the wire are. See `docs/protocol.md`.

mod submit;

use crate::outcome::Outcome;

pub use submit::{
    PATH_BYTES_MAX, STRING_BYTES_MAX, TEMPLATE_BYTES_MAX, TooLarge, check_submit, template_bytes,
};

/// Most bytes of one report. The server digests so much in a few milliseconds, and what it costs there for a moment is
/// some tens of MiB at most, however the bytes are arranged.
pub const REPORT_BYTES_MAX: usize = 1 << 20;

/// Most bytes of one assignment, templates left out, which cannot be divided. Small beside what a network carries in the
/// time after which a silent peer is given up, so that nothing behind it waits long.
pub const ASSIGN_BYTES_MAX: usize = 4 << 20;

/// Tasks that a worker may have launched at once; more than the processes of any machine. Bounds the registration of a
/// worker that comes back, which has to name all of them.
pub const LAUNCHED_MAX: usize = 1 << 17;

/// Most instances that a worker names as unkillable; more hung processes would say nothing new.
pub const UNKILLABLE_MAX: usize = 256;

/// Jobs that one heartbeat names because the worker holds values of their calls; the next one names others.
pub const HELD_JOBS_MAX: usize = 256;

/// Most faults that a worker names of its node.
pub const NODE_FAULTS_MAX: usize = 16;

/// Ends that may wait for an acknowledgement before nothing new is started. Far more than a server that
/// lives leaves open; a few tens of MiB.
pub const UNACKNOWLEDGED_MAX: usize = 1 << 16;

/// The same in bytes: most ends have no text, but all may have a long one.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 32 << 20;

/// Longest text about the failure of a task. What tasks write themselves is cut at 2 KiB when it is read, which may become
/// three times as much if it is not text.
pub const ERROR_TEXT_MAX: usize = 8 << 10;

/// An instance in a list: `TaskGroup` with one row, when neighbours are of different jobs.
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

/// Overhead of an entry or the name of a node besides its own bytes.
pub(crate) const ITEM_BYTES: usize = 10;

/// Upper bound of the bytes of an end in a report.
pub(crate) fn end_bytes(outcome: &Outcome) -> usize {
    END_BYTES + outcome.text().map_or(0, str::len)
}

/// Upper bound of the bytes that one more task takes in an assignment.
pub(crate) const fn task_bytes(entry: Option<&[u8]>) -> usize {
    let entry = match entry {
        Some(entry) => entry.len() + ITEM_BYTES,
        None => 0,
    };
    RANGE_BYTES + entry
}

/// Cuts a text between two characters to at most `max` bytes and says how much was left out.
#[must_use]
pub fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let note = |left_out: usize| format!("… ({left_out} bytes left out)");
    // The note must fit whatever is left out, and what is left out grows with it.
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
