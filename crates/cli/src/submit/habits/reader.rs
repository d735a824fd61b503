//! Determines who reads each word of a command: the program directly, a shell, or the interpreter
//! of another language.

use std::borrow::Cow;
use std::path::Path;

use hq_core::words::has_word;

/// The reader of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reader {
    /// The program gets the word unchanged.
    Program,
    /// A shell interprets the word as a command line.
    Shell,
    /// The word is code or a pattern that uses braces and dollar signs itself.
    Code,
}

const SHELLS: &str = "sh bash dash zsh ksh mksh ash fish";

/// The interpreters that take code after `-c`, `-e` or similar options, and otherwise the name of a
/// script.
const INTERPRETERS: &str = "python python2 python3 perl ruby node julia Rscript R php lua tclsh";

/// The programs that replace `{}` with their own values.
const OWN_BRACES: &str = "find fd fdfind xargs parallel sem rush hq entr";

/// The programs whose arguments are code, patterns or commands for other machines.
const LANGUAGES: &str = "awk gawk mawk jq yq sed make ninja gnuplot mlr curl rpm git docker podman kubectl ssh envsubst tmux screen \
    sqlite3 psql grep egrep rg";

/// Returns the file name of a program.
pub(super) fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_interpreter(word: &str) -> bool {
    let name = name(word);
    // python3.12
    has_word(INTERPRETERS, name) || name.starts_with("python3.")
}

/// Returns whether a program can be found on this machine.
pub(super) fn is_here(word: &str) -> bool {
    if word.contains('/') {
        return Path::new(word).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(word).is_file())
}

/// Returns whether a program is a shell.
pub(super) fn is_shell(word: &str) -> bool {
    has_word(SHELLS, name(word))
}

/// Returns whether the first word after a program and its options is a script.
pub(super) fn takes_script(word: &str) -> bool {
    is_shell(word) || is_interpreter(word)
}

/// Returns whether code follows an interpreter's option: `-c`, `-lc`, `-ne`, `--eval`.
fn precedes_code(option: &str) -> bool {
    let letters = option.strip_prefix('-').unwrap_or_default();
    matches!(option, "--eval" | "--execute" | "--command")
        || !letters.is_empty()
            && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
            && letters.ends_with(['c', 'e', 'E', 'p', 'r'])
}

/// Returns the reader of the word at this position.
pub(super) fn of(words: &[Cow<'_, str>], number: usize) -> Reader {
    let before = &words[..number];
    let is_known =
        |word: &&Cow<'_, str>| has_word(OWN_BRACES, name(word)) || has_word(LANGUAGES, name(word));
    if before.iter().any(|word| is_known(&word)) {
        return Reader::Code;
    }
    let Some((option, earlier)) = before.split_last() else {
        return Reader::Program;
    };
    if !precedes_code(option) {
        return Reader::Program;
    }
    if earlier.iter().any(|word| is_interpreter(word)) {
        Reader::Code
    } else if earlier.iter().any(|word| is_shell(word)) {
        Reader::Shell
    } else {
        Reader::Program
    }
}

/// Returns whether a command has a program, or code, that gives `{}` a different meaning.
pub(super) fn has_own_braces(words: &[Cow<'_, str>]) -> bool {
    let named = |text: &str| {
        let mut parts = text.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
        parts.any(|part| has_word(OWN_BRACES, part) || has_word(LANGUAGES, part))
    };
    words.iter().enumerate().any(|(number, word)| {
        let reader = of(words, number);
        has_word(OWN_BRACES, name(word))
            || reader == Reader::Code && word.contains("{}")
            || reader == Reader::Shell && named(word)
    })
}

/// The standard programs, which do not know hq's variables.
pub(super) const TOOLS: &str = "true false echo printf sleep cat tac cp mv rm ls ln touch mkdir rmdir chmod chown stat du file wc sort uniq head \
    tail cut tr diff cmp md5sum sha1sum sha256sum b2sum gzip gunzip bzip2 bunzip2 xz unxz zstd tar zip unzip rsync \
    wget convert magick ffmpeg hostname date samtools bwa pigz dd";

/// Returns whether it can be useful to run a program unchanged in each task, for tests or to print
/// properties of its machine.
pub(super) fn may_repeat(word: &str) -> bool {
    has_word(
        "true false sleep hostname date echo printf ls stat du dd",
        name(word),
    )
}

/// Returns whether a program is a standard program.
pub(super) fn is_tool(word: &str) -> bool {
    has_word(TOOLS, name(word))
}
