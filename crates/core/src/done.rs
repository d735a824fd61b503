//! Records of completed work. A record is stored next to the first output of a finished task, so
//! that a later submission can skip the task.
//!
//! ```text
//! hq-done 3
//! command 00112233aabbccdd
//! cwd /data
//! input 1764000000123456789 4096 /data/in.bin
//! output 1764000003123456789 128 /data/out.txt
//! ```
//!
//! If digests of contents are requested, the header is `hq-done 4` and a digest precedes each path.
//! `-` instead of a digest means that only the time of the file is known.
//!
//! The record contains the task's command and directory, the state of its inputs when it started,
//! and the state of its outputs when it finished. A task counts as done if a record made now would
//! be equal. Times are compared only for equality, and each comes from the file system that holds
//! the file. Clocks that differ, or files older than those they replace, therefore do no harm (as
//! in `redo` and `ninja`, unlike `make`). Nothing here accesses a file system.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::params::fill;
use crate::template::{ByteText, TaskTemplate};

/// The first line of a record without contents.
const HEADER: &str = "hq-done 3";

/// The first line of a record with digests of contents.
const CONTENT_HEADER: &str = "hq-done 4";

/// The prefix of the first line of every format.
const MARK: &str = "hq-done ";

/// The maximum size in bytes of a record that is read. A longer one counts as missing.
pub const RECORD_BYTES_MAX: u64 = 16 << 20;

/// The size and modification time of a file, which reveal a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The modification time by the clock of the file system, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// The size in bytes.
    pub size_bytes: u64,
}

/// How a record differs from one that would be made now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The record has the format of another release.
    Release,
    /// The record is damaged.
    Unreadable,
    /// The command differs: its arguments, environment, standard input or parameters.
    Command,
    /// The working directory differs.
    Cwd,
    /// An input has been modified, or is another file. The path is escaped.
    Input(Box<str>),
    /// An output has been modified, or is another file. The path is escaped.
    Output(Box<str>),
}

/// The maximum length of a file name in bytes.
const NAME_MAX: usize = 255;
/// How many bytes are kept of an output's name if the name of its record would be too long.
const NAME_KEPT: usize = 200;

/// Returns the path of the record of an output: `out/.a.txt.hq-done` for `out/a.txt`. A name that
/// is too long is truncated, and a digest of the whole name is appended.
#[must_use]
pub fn record_path(output: &[u8]) -> Vec<u8> {
    let output = output.strip_suffix(b"/").unwrap_or(output);
    let name = output.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = output.split_at(name.map_or(0, |at| at + 1));
    if b".".len() + name.len() + b".hq-done".len() <= NAME_MAX {
        return [dir, b".", name, b".hq-done"].concat();
    }
    let is_within = |at: &usize| name.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    // A UTF-8 character is never split. In other encodings, any place will do.
    let cut = (NAME_KEPT - 3..=NAME_KEPT).rev().find(|at| !is_within(at));
    let kept = name.get(..cut.unwrap_or(NAME_KEPT)).unwrap_or(name);
    let mut hash = Fnv::default();
    hash.part(name);
    let digest = format!("~{:016x}", hash.0);
    [dir, b".", kept, digest.as_bytes(), b".hq-done"].concat()
}

/// Paths with the stamps of their files.
pub type Stamped = [(Vec<u8>, Stamp)];

/// The SHA-256 digest of the content of a file.
pub type Digest = [u8; 32];

/// A path with the stamp of its file, and the digest if it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The path.
    pub path: Vec<u8>,
    /// The modification time and size.
    pub stamp: Stamp,
    /// The SHA-256 digest of the content, if known.
    pub digest: Option<Digest>,
}

/// Whether the task reads or writes a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The task reads the file.
    Input,
    /// The task writes the file.
    Output,
}

impl Role {
    const fn word(self) -> &'static str {
        match self {
            Self::Input => INPUT,
            Self::Output => OUTPUT,
        }
    }
}

/// Encodes the record of a task: the digest of its command, its working directory, inputs and
/// outputs.
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

/// Encodes a record like [`record`], but with digests of contents.
#[must_use]
pub fn record_with_contents(
    command: u64,
    cwd: &[u8],
    inputs: &[Content],
    outputs: &[Content],
) -> Vec<u8> {
    let cwd = cwd.escape_ascii();
    let mut text = format!("{CONTENT_HEADER}\ncommand {command:016x}\ncwd {cwd}\n");
    for (role, files) in [(Role::Input, inputs), (Role::Output, outputs)] {
        for Content {
            path,
            stamp,
            digest,
        } in files
        {
            let (modified, size) = (stamp.modified_ns, stamp.size_bytes);
            let _ = write!(text, "{} {modified} {size} ", role.word());
            match digest {
                Some(digest) => {
                    for byte in digest {
                        let _ = write!(text, "{byte:02x}");
                    }
                }
                None => text.push('-'),
            }
            let _ = writeln!(text, " {}", path.escape_ascii());
        }
    }
    text.into_bytes()
}

/// The files of a record with contents.
#[derive(Debug)]
pub struct KeptContents(BTreeMap<(Role, String), (Stamp, Option<Digest>)>);

impl KeptContents {
    /// Parses a record. Returns `None` if it has no contents or is damaged.
    #[must_use]
    pub fn read(kept: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(kept).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(CONTENT_HEADER) {
            return None;
        }
        let files = lines.skip(FILES_FROM - 1).map(|line| {
            let mut words = line.splitn(5, ' ');
            let role = match words.next()? {
                INPUT => Role::Input,
                OUTPUT => Role::Output,
                _ => return None,
            };
            let stamp = Stamp {
                modified_ns: words.next()?.parse().ok()?,
                size_bytes: words.next()?.parse().ok()?,
            };
            let digest = words.next()?;
            Some(((role, words.next()?.to_owned()), (stamp, parse(digest))))
        });
        files.collect::<Option<_>>().map(Self)
    }

    /// Returns the entry of a file for comparison with this record. A file with another
    /// modification time counts as unchanged if `digest` returns the recorded digest. `digest` is
    /// not called if the size differs, or if no digest is recorded.
    pub fn compared(
        &self,
        role: Role,
        path: Vec<u8>,
        stamp: Stamp,
        digest: impl FnOnce(&[u8]) -> Option<Digest>,
    ) -> Content {
        let kept = self.0.get(&(role, path.escape_ascii().to_string()));
        let (kept_stamp, kept_digest) = kept.copied().unwrap_or((stamp, None));
        let may_be_same = stamp != kept_stamp && stamp.size_bytes == kept_stamp.size_bytes;
        let is_same = may_be_same && kept_digest.is_some_and(|kept| digest(&path) == Some(kept));
        Content {
            path,
            stamp: if is_same { kept_stamp } else { stamp },
            digest: kept_digest,
        }
    }
}

/// Parses a hexadecimal digest.
fn parse(text: &str) -> Option<Digest> {
    let digits = text.as_bytes();
    let mut digest = Digest::default();
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

const INPUT: &str = "input";
const OUTPUT: &str = "output";

/// Returns the first difference between a record and one that would be made now.
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
    // Only records of the same format are compared.
    let is_known = kept.first().is_some_and(|line| {
        [HEADER, CONTENT_HEADER].contains(&line.as_str()) && now.first() == Some(line)
    });
    if !is_known || kept.len() < FILES_FROM {
        let header = kept.first().filter(|_| !is_known);
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
    let has_contents = kept.first().is_some_and(|line| line == CONTENT_HEADER);
    let before_path = if has_contents { 4 } else { 3 };
    let lines = [now.get(first), kept.get(first)];
    let path_of = |kind: &str| {
        let mut files = lines.iter().flatten().filter_map(|line| {
            let mut words = line.splitn(before_path + 1, ' ');
            (words.next() == Some(kind)).then(|| words.nth(before_path - 1))?
        });
        files.next().map(Box::from)
    };
    // If one record has more inputs, an output is compared with the surplus input.
    let input = path_of(INPUT).map(Difference::Input);
    let file = input.or_else(|| path_of(OUTPUT).map(Difference::Output));
    Some(file.unwrap_or(Difference::Unreadable))
}

/// The number of lines before the files.
const FILES_FROM: usize = 3;

/// Returns the digest of a task's command: its arguments, environment, standard input, entry and
/// parameters. It uses 64-bit FNV-1a, which detects changes but not attacks.
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
    /// Adds the number of parts, so that the last argument cannot be taken for a variable.
    fn count(&mut self, count: usize) {
        self.part(&(count as u64).to_le_bytes());
    }

    /// Adds bytes with their length, so that `ab` `c` differs from `a` `bc`.
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
    fn of_files_with_other_times_the_content_decides() {
        let content = |path: &str, modified_ns, digest: Option<u8>| Content {
            path: path.as_bytes().to_vec(),
            stamp: stamp(modified_ns),
            digest: digest.map(|byte| [byte; 32]),
        };
        let inputs = [content("/in a", 5, Some(1)), content("/slow", 5, None)];
        let outputs = [content("/o", 9, Some(2))];
        let kept = record_with_contents(7, b"/w", &inputs, &outputs);
        assert!(kept.starts_with(b"hq-done 4\ncommand "));
        let known = KeptContents::read(&kept).expect("it has contents");
        // The path, time and current content of each file.
        let now = |files: [(&str, i128, u8); 3]| {
            let seen = |role, (path, at, byte): (&str, i128, u8)| {
                let path = path.as_bytes().to_vec();
                known.compared(role, path, stamp(at), |_| Some([byte; 32]))
            };
            let [first, second, output] = files;
            let inputs = [seen(Role::Input, first), seen(Role::Input, second)];
            let text = record_with_contents(7, b"/w", &inputs, &[seen(Role::Output, output)]);
            difference(&kept, &text)
        };
        let input = |path: &str| Some(Difference::Input(path.into()));
        assert_eq!(
            now([("/in a", 5, 9), ("/slow", 5, 9), ("/o", 9, 9)]),
            None,
            "nobody reads"
        );
        assert_eq!(now([("/in a", 6, 1), ("/slow", 5, 9), ("/o", 1, 2)]), None);
        assert_eq!(
            now([("/in a", 6, 2), ("/slow", 5, 9), ("/o", 9, 9)]),
            input("/in a")
        );
        assert_eq!(
            now([("/in a", 5, 1), ("/slow", 6, 9), ("/o", 9, 9)]),
            input("/slow")
        );
        let output = Some(Difference::Output("/o".into()));
        assert_eq!(
            now([("/in a", 5, 1), ("/slow", 5, 9), ("/o", 8, 3)]),
            output
        );
        assert_eq!(
            now([("/other", 5, 1), ("/slow", 5, 9), ("/o", 9, 9)]),
            input("/other")
        );
        // An earlier release would make this record.
        let times = record(7, b"/w", &[], &[]);
        assert_eq!(difference(&kept, &times), Some(Difference::Release));
        assert!(KeptContents::read(&times).is_none());
        for damaged in [
            "hq-done 4\ncommand 7\ncwd /\nin 1 2 - /a\n",
            "hq-done 4\ncommand 7\ncwd /\ninput x 2 - /a\n",
        ] {
            assert!(
                KeptContents::read(damaged.as_bytes()).is_none(),
                "{damaged}"
            );
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
