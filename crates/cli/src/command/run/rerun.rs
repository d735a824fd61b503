//! Builds the command that runs the unfinished tasks again.

use std::ffi::{OsStr, OsString};

use hq_core::range::IdArray;
use hq_core::shell::is_plain;

/// The maximum length of the ids and of the whole command, in characters. In a longer command, `…`
/// replaces the words after the ids.
const IDS_MAX: usize = 4_000;
const LINE_MAX: usize = 500;

/// The words of the command line, split at the position where `--array` is inserted.
#[derive(Debug)]
pub(super) struct RerunCommand {
    start: Vec<String>,
    rest: Vec<String>,
    is_file: bool,
}

impl RerunCommand {
    /// `words` is the whole command line, and `command` is the program with its arguments, or the
    /// job file. Returns `None` if the position of the command is unknown, or if the command could
    /// not be typed in every locale.
    pub(super) fn of(
        words: impl Iterator<Item = OsString>,
        command: &[OsString],
        is_file: bool,
    ) -> Option<Self> {
        let words: Vec<String> = words
            .map(OsString::into_string)
            .collect::<Result<_, _>>()
            .ok()?;
        let (options, program) = words.split_at_checked(words.len().checked_sub(command.len())?)?;
        if !program.iter().map(OsStr::new).eq(command) {
            return None;
        }
        let at = options.iter().position(|word| word == "run")? + 1;
        let (start, options) = options.split_at(at);
        let mut rest = Vec::new();
        let mut options = options.iter();
        while let Some(word) = options.next() {
            match &**word {
                "--array" => {
                    options.next();
                }
                word if word.starts_with("--array=") => {}
                word => rest.push(word.to_owned()),
            }
        }
        rest.extend_from_slice(program);
        Some(Self {
            start: start.to_vec(),
            rest,
            is_file,
        })
    }

    /// Returns the command if it would run fewer than all of the `total` tasks. `undone` contains
    /// the ids of the unfinished tasks. `has_outputs` is whether tasks of a job file name their
    /// outputs.
    pub(super) fn command(&self, undone: &[u32], total: u64, has_outputs: bool) -> Option<String> {
        if undone.is_empty() || undone.len() as u64 >= total {
            return None;
        }
        let mut line = self.start.clone();
        if !self.is_file {
            let mut ids = undone.to_vec();
            ids.sort_unstable();
            let ids = IdArray::from_sorted(ids).ok()?.to_string();
            if ids.len() > IDS_MAX {
                return None;
            }
            line.extend(["--array".to_owned(), ids]);
        } else if !has_outputs {
            // Steps of a graph cannot be selected.
            return None;
        } else if !self.rest.iter().any(|word| word == "--skip-done") {
            line.push("--skip-done".to_owned());
        }
        let quoted = |words: &[String]| {
            let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
            words.join(" ")
        };
        let (begin, rest) = (quoted(&line), quoted(&self.rest));
        if rest.len() > LINE_MAX || rest.contains(char::is_control) {
            return Some(format!("{begin} …"));
        }
        Some(format!("{begin} {rest}"))
    }
}

fn quote(word: &str) -> String {
    if is_plain(word) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(words: &str, command: usize, undone: &[u32]) -> Option<String> {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let command = words[words.len() - command..].to_vec();
        let rerun = RerunCommand::of(words.into_iter(), &command, false)?;
        rerun.command(undone, 200, false)
    }

    #[test]
    fn the_ids_of_what_is_left_stand_in_place_of_all() {
        for (words, command, undone, wanted) in [
            (
                "hq run --array 1-200 -- ./x a;b",
                2,
                &[162, 12, 13][..],
                Some("hq run --array 12-13,162 -- ./x 'a;b'"),
            ),
            (
                "/bin/hq run --array=1-200 --cpus 2 ./x --array 3",
                3,
                &[7],
                Some("/bin/hq run --array 7 --cpus 2 ./x --array 3"),
            ),
            (
                "hq --colors never run --param x=1,2 ./x it's",
                2,
                &[0],
                Some("hq --colors never run --array 0 --param x=1,2 ./x 'it'\\''s'"),
            ),
            ("hq run --array 1-200 ./x", 1, &[], None),
            ("./wrapper ./x", 1, &[3], None),
        ] {
            let found = again(words, command, undone);
            assert_eq!(found.as_deref(), wanted, "{words}");
        }
        let all: Vec<u32> = (0..200).collect();
        assert_eq!(again("hq run --array 1-200 ./x", 1, &all), None);
        let long = format!("hq run ./x {}", "y".repeat(LINE_MAX));
        assert_eq!(again(&long, 2, &[3]).as_deref(), Some("hq run --array 3 …"));
    }
}
