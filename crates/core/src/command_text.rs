//! Error texts of tasks that could not start. The user who submitted the task sees the full
//! command, and other readers see it without arguments.
//!
//! Arguments may contain secrets. Only `hq task info` and the store, which only the user can read,
//! show them. Other texts, such as notifications and the page of a run, name only the program. Both
//! functions are in one module because the second parses the output of the first.

use std::borrow::Cow;

use crate::limits::shortened;
use crate::template::ByteText;

/// The maximum size in bytes of a command in an error text. Each task stores the text, so a command
/// of a megabyte must be cut.
const COMMAND_SHOWN_MAX: usize = 512;
const OPENING: &str = "Cannot execute \"";
const CLOSING: &str = "\": ";

/// Returns the first line of the error text: the command, cut to a few hundred bytes, and the
/// reason.
#[must_use]
pub fn cannot_execute(args: &[ByteText], reason: &str) -> String {
    let words: Vec<_> = args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg))
        .collect();
    // Control characters are replaced, because the parser expects the text on a single line.
    let command = words.join(" ").replace(char::is_control, " ");
    let command = shortened(&command, COMMAND_SHOWN_MAX);
    format!("{OPENING}{command}{CLOSING}{reason}")
}

/// Removes everything after the program from such an error text. Other texts are returned
/// unchanged.
#[must_use]
pub fn without_arguments(text: &str) -> Cow<'_, str> {
    let Some(rest) = text.strip_prefix(OPENING) else {
        return Cow::Borrowed(text);
    };
    let line = rest.split('\n').next().unwrap_or(rest);
    // The last occurrence counts: an argument may contain the text, but a reason given by the
    // operating system does not.
    let Some(end) = line.rfind(CLOSING) else {
        return Cow::Borrowed(text);
    };
    match line[..end].split_once(' ') {
        Some((program, _)) => Cow::Owned(format!("{OPENING}{program} …{}", &rest[end..])),
        None => Cow::Borrowed(text),
    }
}

/// Shell keywords, and what to write instead.
const SHELL_WORDS: &[(&[&str], &str)] = &[
    (
        &["cd", "pushd"],
        "set the working directory of tasks with `--cwd DIR`",
    ),
    (
        &["export", "setenv"],
        "set variables of tasks with `--env NAME=VALUE`",
    ),
    (
        &[
            "source", ".", "module", "ml", "conda", "alias", "ulimit", "umask", "set", "shopt",
            "eval", "exec", "if", "for", "while", "until", "case", "select", "function", "{", "(",
            "!", "[[", "then", "do",
        ],
        "it works only inside a shell: `bash -c 'COMMANDS'`",
    ),
];

/// Returns why a text cannot be the name of a program, and what to write instead.
#[must_use]
pub fn no_program(text: &str) -> Option<String> {
    let first = text.split_whitespace().next().unwrap_or_default();
    let known = SHELL_WORDS.iter().find(|(words, _)| words.contains(&first));
    if let Some((_, instead)) = known {
        return Some((*instead).to_owned());
    }
    let is_variable = first.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    });
    if is_variable {
        return Some(format!(
            "set variables of tasks with an option: `--env {first} -- PROGRAM`"
        ));
    }
    let is_line = first.len() < text.len() && text.contains('$');
    if is_line
        || text.contains(['|', ';', '<', '>', '`', '\n', '*', '?', '&'])
        || text.contains("$(")
    {
        return Some(
            "this is a shell command line, and hq starts programs without one: `bash -c 'LINE'`"
                .to_owned(),
        );
    }
    if text.contains('$') || text.starts_with('~') {
        return Some(
            "no shell expands `$NAME` and `~` here: write the path, or `bash -c 'LINE'`".to_owned(),
        );
    }
    if first.starts_with('-') {
        return Some(format!(
            "`{first}` is an option: put options of hq before the program and before `--`"
        ));
    }
    if first.len() < text.len() {
        return Some("the quotes make it a single word; remove them, so that the program and its arguments are separate words".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn args(words: &[String]) -> Vec<ByteText> {
        words.iter().map(|word| word.as_bytes().into()).collect()
    }

    #[test]
    fn lines_for_a_shell_are_told_from_programs() {
        for (text, told) in [
            ("echo hi | wc -l", Some("bash -c 'LINE'")),
            ("a && b", Some("bash -c 'LINE'")),
            ("ls *.txt", Some("bash -c 'LINE'")),
            ("echo $HQ_TASK_ID", Some("a shell command line")),
            ("FOO=1 ./sim.py", Some("--env FOO=1 -- PROGRAM")),
            ("FOO=1", Some("--env FOO=1 -- PROGRAM")),
            ("cd", Some("--cwd DIR")),
            ("export X=1", Some("--env NAME=VALUE")),
            ("for i in 1 2", Some("bash -c 'COMMANDS'")),
            ("source env.sh", Some("bash -c 'COMMANDS'")),
            ("$HOME/x", Some("no shell expands")),
            ("~/x", Some("no shell expands")),
            ("--cpus", Some("before the program")),
            ("sleep 10", Some("separate words")),
            ("sleep", None),
            ("./a-b_c.py", None),
            ("/opt/my=x/run", None),
        ] {
            let found = no_program(text);
            let has = |told: &str| found.as_deref().is_some_and(|found| found.contains(told));
            assert!(told.map_or(found.is_none(), has), "{text}: {found:?}");
        }
    }

    #[test]
    fn commands_are_shown_whole_or_by_their_program() {
        let words = ["./nope".to_owned(), "--password=a\": b\n".to_owned()];
        let text =
            cannot_execute(&args(&words), "No such file or directory (os error 2)") + "\nHint.";
        assert_eq!(
            text,
            "Cannot execute \"./nope --password=a\": b \": No such file or directory (os error 2)\nHint."
        );
        assert_eq!(
            without_arguments(&text),
            "Cannot execute \"./nope …\": No such file or directory (os error 2)\nHint."
        );
        let other = "Program terminated with exit code 7.";
        assert_eq!(without_arguments(other), other);
        let alone = cannot_execute(&args(&["foo".to_owned()]), "no");
        assert_eq!(without_arguments(&alone), "Cannot execute \"foo\": no");
    }

    proptest! {
        #[test]
        fn no_argument_survives(words in proptest::collection::vec(".{0,300}", 1..4), secret in "[a-z]{12}") {
            let words = [&["prog".to_owned()], &words[..], std::slice::from_ref(&secret)].concat();
            let text = cannot_execute(&args(&words), "Permission denied (os error 13)");
            prop_assert!(text.len() < COMMAND_SHOWN_MAX + 100);
            prop_assert_eq!(
                without_arguments(&text),
                "Cannot execute \"prog …\": Permission denied (os error 13)"
            );
        }
    }
}
