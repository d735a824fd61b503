//! Work that is done: what is kept beside the first output of a task that finished, so that it need not run again.
//!
//! ```text
//! hq-done 1
//! command 00112233aabbccdd
//! input 1764000000123456789 4096 /data/in.bin
//! ```
//!
//! The record says what the task did and what its inputs were like when it started. A task is done if a record made now would
//! be the same. Times are compared for equality only, and all of them are given by the file system that has the file: clocks of
//! machines that differ, and files that are older than what they replace, mislead nobody (as in `redo` and `ninja`, and unlike
//! `make`). Nothing here touches a file system.

use std::fmt::Write as _;

use crate::params::fill;
use crate::template::{ByteText, TaskTemplate};

/// First line of a record; another one is that of another format.
const HEADER: &str = "hq-done 1";

/// Longest record that is read. A longer one counts as none.
pub const RECORD_BYTES_MAX: u64 = 16 << 20;

/// Size and modification time of a file, by which a change of it is detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// When it was last written, by the clock of its file system: nanoseconds since 1970.
    pub modified_ns: i128,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// Why a record is not the one that would be made now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// It is of another release, or damaged.
    Unreadable,
    /// The task does something else: arguments, environment, input or values of parameters.
    Command,
    /// An input was written, or is another one; the path is escaped.
    Input(Box<str>),
}

/// Name of the record beside an output: `out/a.txt` has `out/.a.txt.hq-done`.
#[must_use]
pub fn record_path(output: &[u8]) -> Vec<u8> {
    let output = output.strip_suffix(b"/").unwrap_or(output);
    let name = output.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = output.split_at(name.map_or(0, |at| at + 1));
    [dir, b".", name, b".hq-done"].concat()
}

/// The record of a task: digest of what it does, and its inputs as they are.
#[must_use]
pub fn record(command: u64, inputs: &[(Vec<u8>, Stamp)]) -> Vec<u8> {
    let mut text = format!("{HEADER}\ncommand {command:016x}\n");
    for (path, stamp) in inputs {
        let (modified, size) = (stamp.modified_ns, stamp.size_bytes);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "input {modified} {size} {}", path.escape_ascii());
    }
    text.into_bytes()
}

/// The first difference between a record and the one that would be made now.
#[must_use]
pub fn difference(kept: &[u8], now: &[u8]) -> Option<Difference> {
    if kept == now {
        return None;
    }
    let lines = |record: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(record);
        text.lines().map(str::to_owned).collect()
    };
    let (kept, now) = (lines(kept), lines(now));
    if kept.first().map(String::as_str) != Some(HEADER) || kept.len() < 2 {
        return Some(Difference::Unreadable);
    }
    if kept.get(1) != now.get(1) {
        return Some(Difference::Command);
    }
    let differs = |pair: &usize| kept.get(*pair) != now.get(*pair);
    let first = (2..kept.len().max(now.len())).find(differs);
    let line = first.and_then(|at| now.get(at).or_else(|| kept.get(at)));
    let path = line.and_then(|line| line.splitn(4, ' ').nth(3));
    Some(path.map_or(Difference::Unreadable, |path| {
        Difference::Input(path.into())
    }))
}

/// Digest of what a task does: arguments, environment, standard input, entry and values of parameters. FNV-1a with 64 bits:
/// it tells what somebody changed, not malice.
#[must_use]
pub fn command_digest(
    template: &TaskTemplate,
    params: &[(&str, ByteText)],
    entry: Option<&[u8]>,
) -> u64 {
    let mut hash = Fnv::default();
    for arg in &template.args {
        hash.part(&fill(arg, params));
    }
    for (name, value) in &template.env {
        hash.part(name);
        hash.part(value);
    }
    hash.part(template.stdin.as_deref().unwrap_or_default());
    hash.part(entry.unwrap_or_default());
    for (name, value) in params {
        hash.part(name.as_bytes());
        hash.part(value);
    }
    hash.0
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// With its length, so that `ab` `c` is not `a` `bc`.
    fn part(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::template;

    fn stamp(modified_ns: i128) -> Stamp {
        Stamp {
            modified_ns,
            size_bytes: 4,
        }
    }

    #[test]
    fn a_record_is_named_after_the_output() {
        for (output, expected) in [
            ("/out/a.txt", "/out/.a.txt.hq-done"),
            ("a", ".a.hq-done"),
            ("/out/dir/", "/out/.dir.hq-done"),
        ] {
            let path = record_path(output.as_bytes());
            assert_eq!(String::from_utf8_lossy(&path), expected);
        }
    }

    #[test]
    fn what_changed_is_named() {
        let input = |path: &str, at| (path.as_bytes().to_vec(), stamp(at));
        let kept = record(7, &[input("/a b", 5), input("/c", -3)]);
        assert_eq!(difference(&kept, &kept), None);
        let older = record(7, &[input("/a b", 4), input("/c", -3)]);
        assert_eq!(
            difference(&kept, &older),
            Some(Difference::Input("/a b".into())),
            "an older file is another one, too"
        );
        let fewer = record(7, &[input("/a b", 5)]);
        assert_eq!(
            difference(&kept, &fewer),
            Some(Difference::Input("/c".into()))
        );
        let other = record(8, &[input("/a b", 5), input("/c", -3)]);
        assert_eq!(difference(&kept, &other), Some(Difference::Command));
        for damaged in [&b""[..], b"hq-done 2\ncommand 7\n", b"\xff\xfe"] {
            assert_eq!(difference(damaged, &kept), Some(Difference::Unreadable));
        }
    }

    #[test]
    fn arguments_environment_and_values_make_another_command() {
        let digest =
            |args: &[&str], entry: Option<&[u8]>| command_digest(&template(args), &[], entry);
        let usual = digest(&["ab", "c"], None);
        assert_eq!(usual, digest(&["ab", "c"], None));
        assert_ne!(usual, digest(&["a", "bc"], None));
        assert_ne!(usual, digest(&["ab", "c"], Some(b"x")));
        let mut task = template(&["ab", "c"]);
        task.env.push((Box::from(*b"A"), Box::from(*b"1")));
        assert_ne!(usual, command_digest(&task, &[], None));
        let value: ByteText = Box::from(*b"1");
        assert_ne!(
            usual,
            command_digest(&template(&["ab", "c"]), &[("p", value)], None)
        );
    }
}
