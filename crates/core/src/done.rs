//! Work that is done: what is kept beside the first output of a task that finished, so that it need not run again.
//!
//! ```text
//! hq-done 3
//! command 00112233aabbccdd
//! cwd /data
//! input 1764000000123456789 4096 /data/in.bin
//! output 1764000003123456789 128 /data/out.txt
//! ```
//!
//! The record says what the task did and where, what its inputs were like when it started, and its outputs when it had
//! finished. A task is done if a record made now would be the same. Times are compared for equality only, and all of them are given by the file system that has the file: clocks of
//! machines that differ, and files that are older than what they replace, mislead nobody (as in `redo` and `ninja`, and unlike
//! `make`). Nothing here touches a file system.

use std::fmt::Write as _;

use crate::params::fill;
use crate::template::{ByteText, TaskTemplate};

/// First line of a record; another one is that of another format.
const HEADER: &str = "hq-done 3";

/// With what the first line of each record begins, whatever its format.
const MARK: &str = "hq-done ";

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
    /// It is of another release, in whose records other things stand.
    Release,
    /// It is damaged.
    Unreadable,
    /// The task does something else: arguments, environment, input or values of parameters.
    Command,
    /// It does so in another directory.
    Cwd,
    /// An input was written, or is another one; the path is escaped.
    Input(Box<str>),
    /// An output is not as the task left it, or is another one; the path is escaped.
    Output(Box<str>),
}

/// Longest name of a file, in bytes.
const NAME_MAX: usize = 255;
/// What stays of the name of an output whose record could not have all of it.
const NAME_KEPT: usize = 200;

/// Name of the record beside an output: `out/a.txt` has `out/.a.txt.hq-done`. Of a name that is too long for that there is
/// the beginning, and a digest of all of it.
#[must_use]
pub fn record_path(output: &[u8]) -> Vec<u8> {
    let output = output.strip_suffix(b"/").unwrap_or(output);
    let name = output.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = output.split_at(name.map_or(0, |at| at + 1));
    if b".".len() + name.len() + b".hq-done".len() <= NAME_MAX {
        return [dir, b".", name, b".hq-done"].concat();
    }
    let is_within = |at: &usize| name.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    // No character of UTF-8 is cut; in anything else any place will do.
    let cut = (NAME_KEPT - 3..=NAME_KEPT).rev().find(|at| !is_within(at));
    let kept = name.get(..cut.unwrap_or(NAME_KEPT)).unwrap_or(name);
    let mut hash = Fnv::default();
    hash.part(name);
    let digest = format!("~{:016x}", hash.0);
    [dir, b".", kept, digest.as_bytes(), b".hq-done"].concat()
}

/// Paths with what tells whether the files there have changed.
pub type Stamped = [(Vec<u8>, Stamp)];

/// The record of a task: digest of what it does, its working directory, and its inputs and outputs as they are.
#[must_use]
pub fn record(command: u64, cwd: &[u8], inputs: &Stamped, outputs: &Stamped) -> Vec<u8> {
    let cwd = cwd.escape_ascii();
    let mut text = format!("{HEADER}\ncommand {command:016x}\ncwd {cwd}\n");
    for (kind, files) in [(INPUT, inputs), (OUTPUT, outputs)] {
        for (path, stamp) in files {
            let (modified, size) = (stamp.modified_ns, stamp.size_bytes);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{kind} {modified} {size} {}", path.escape_ascii());
        }
    }
    text.into_bytes()
}

const INPUT: &str = "input";
const OUTPUT: &str = "output";

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
    let is_kept = |header: &str| kept.first().is_some_and(|line| line == header);
    if !is_kept(HEADER) || kept.len() < FILES_FROM {
        let header = kept.first().filter(|_| !is_kept(HEADER));
        let is_other = header.is_some_and(|line| line.starts_with(MARK));
        return Some(if is_other {
            Difference::Release
        } else {
            Difference::Unreadable
        });
    }
    let differs = |line: &usize| kept.get(*line) != now.get(*line);
    let first = (1..kept.len().max(now.len())).find(differs)?;
    match first {
        1 => return Some(Difference::Command),
        2 => return Some(Difference::Cwd),
        _ => {}
    }
    let lines = [now.get(first), kept.get(first)];
    let path_of = |kind: &str| {
        let mut files = lines.iter().flatten().filter_map(|line| {
            let mut words = line.splitn(4, ' ');
            (words.next() == Some(kind)).then(|| words.nth(2))?
        });
        files.next().map(Box::from)
    };
    // Where the lists of inputs end in different lines, an output stands beside the input that is there once only.
    let input = path_of(INPUT).map(Difference::Input);
    let file = input.or_else(|| path_of(OUTPUT).map(Difference::Output));
    Some(file.unwrap_or(Difference::Unreadable))
}

/// Lines of a record before those of files.
const FILES_FROM: usize = 3;

/// Digest of what a task does: arguments, environment, standard input, entry and values of parameters. FNV-1a with 64 bits:
/// it tells what somebody changed, not malice.
#[must_use]
pub fn command_digest(
    template: &TaskTemplate,
    params: &[(&str, ByteText)],
    entry: Option<&[u8]>,
) -> u64 {
    let mut hash = Fnv::default();
    hash.count(template.args.len());
    for arg in &template.args {
        hash.part(&fill(arg, params));
    }
    hash.count(template.env.len());
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
    /// Number of parts that follow, so that the last argument is no variable.
    fn count(&mut self, count: usize) {
        self.part(&(count as u64).to_le_bytes());
    }

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
    fn names_of_any_length_have_records_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for letter in ["a", "\u{e4}", "\u{20ac}", "\u{1f600}"] {
            for len in 190..=255 {
                for last in ["x", "y"] {
                    let mut name = letter.repeat((len - 1) / letter.len());
                    name += &"b".repeat(len - 1 - name.len());
                    name += last;
                    let path = record_path(format!("/out/{name}").as_bytes());
                    let path = String::from_utf8(path).expect("no character is cut");
                    let record = path.strip_prefix("/out/").expect("beside it");
                    assert!(record.len() <= 255, "{record}");
                    assert!(record.starts_with('.') && record.ends_with(".hq-done"));
                    assert_eq!(record.contains(&name), len <= 246, "{record}");
                    seen.insert(path);
                }
            }
        }
        assert_eq!(seen.len(), 4 * 66 * 2);
    }

    #[test]
    fn what_changed_is_named() {
        let input = |path: &str, at| (path.as_bytes().to_vec(), stamp(at));
        let made = |command, cwd: &str, inputs: &Stamped| {
            record(command, cwd.as_bytes(), inputs, &[input("/o", 9)])
        };
        let both = [input("/a b", 5), input("/c", -3)];
        let kept = made(7, "/w", &both);
        assert_eq!(difference(&kept, &kept), None);
        let older = made(7, "/w", &[input("/a b", 4), input("/c", -3)]);
        assert_eq!(
            difference(&kept, &older),
            Some(Difference::Input("/a b".into())),
            "an older file is another one, too"
        );
        let fewer = made(7, "/w", &[input("/a b", 5)]);
        let only_one_has_it = Some(Difference::Input("/c".into()));
        assert_eq!(difference(&kept, &fewer), only_one_has_it);
        assert_eq!(difference(&fewer, &kept), only_one_has_it);
        let other = made(8, "/w", &both);
        assert_eq!(difference(&kept, &other), Some(Difference::Command));
        let elsewhere = made(7, "/v", &both);
        assert_eq!(difference(&kept, &elsewhere), Some(Difference::Cwd));
        for (outputs, path) in [
            (vec![input("/o", 10)], "/o"),
            (vec![input("/o", 9), input("/p", 9)], "/p"),
        ] {
            let other = record(7, b"/w", &both, &outputs);
            let output = Some(Difference::Output(path.into()));
            assert_eq!(difference(&kept, &other), output);
        }
        for damaged in [&b""[..], b"hq-done 3\ncommand 7\n", b"\xff\xfe"] {
            assert_eq!(difference(damaged, &kept), Some(Difference::Unreadable));
        }
        let earlier = b"hq-done 1\ncommand 0000000000000007\n";
        assert_eq!(difference(earlier, &kept), Some(Difference::Release));
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
        assert_ne!(
            digest(&["ab", "c", "A", "1"], None),
            command_digest(&task, &[], None),
            "two arguments are no variable"
        );
        let value: ByteText = Box::from(*b"1");
        assert_ne!(
            usual,
            command_digest(&template(&["ab", "c"]), &[("p", value)], None)
        );
    }
}
