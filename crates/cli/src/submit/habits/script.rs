//! Detects habits in the file that a command runs: lines for other systems, Windows line endings,
//! and files that cannot be started.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use hq_core::words::has_word;

use super::reader::{self, Reader, name};
use super::{Text, Typed, Verb};
use crate::submit::content;
use crate::text::lossy;
use crate::text::{quoted, rows};

/// The number of bytes of a script that are examined.
const HEAD_LEN: u64 = 64 << 10;
/// The maximum number of scripts per job file that are examined.
const SCRIPTS_MAX: usize = 100;

/// Extensions or whole names of files, and their interpreters.
const INTERPRETERS: &str = "
py: python3
R r: Rscript
pl: perl
rb: ruby
jl: julia
lua: lua
js mjs: node
php: php
tcl: tclsh
sh bash slurm sbatch pbs: bash
zsh: zsh
m: octave
awk: awk -f
sed: sed -f
gp gnuplot: gnuplot
jar: java -jar
mk Makefile makefile GNUmakefile: make -f
smk Snakefile: snakemake -s
nf: nextflow run
";

/// Returns the interpreter of a file with this name.
pub(crate) fn interpreter_of(file: &str) -> Option<&'static str> {
    let file = name(file);
    let end = file.rsplit_once('.').map_or(file, |(_, end)| end);
    let known = rows(INTERPRETERS).find(|(names, _)| has_word(names, end));
    known.map(|(_, interpreter)| interpreter)
}

/// A regular file that a command runs. The head is empty for a binary program.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The file as written in the command.
    pub(super) word: String,
    /// The position of that word among the words.
    pub(super) number: usize,
    pub(super) is_executable: bool,
    bytes: Vec<u8>,
    head: String,
    /// The head without comments.
    code: String,
    reader: Reader,
}

/// Returns the position of the word that names the file with the code.
pub(super) fn place(words: &[Cow<'_, str>]) -> Option<usize> {
    let is_env = words.first().is_some_and(|word| name(word) == "env");
    let first = usize::from(is_env);
    if !words
        .get(first)
        .is_some_and(|word| reader::takes_script(word))
    {
        return (!is_env).then_some(0);
    }
    let next = words[first + 1..]
        .iter()
        .position(|word| !word.starts_with('-'))?;
    let number = first + 1 + next;
    let takes_code = (first + 1..=number).any(|at| reader::of(words, at) != Reader::Program);
    (!takes_code).then_some(number)
}

impl Script {
    /// Returns the script of a command that runs in a directory.
    pub(super) fn of(words: &[Cow<'_, str>], dir: &Path) -> Option<Self> {
        let number = place(words)?;
        let word = &*words[number];
        if number == 0 && !word.contains('/') && reader::is_here(word) {
            return None;
        }
        let path = dir.join(word);
        // Reading anything other than a file may block or never end.
        let found = std::fs::metadata(&path)
            .ok()
            .filter(std::fs::Metadata::is_file)?;
        let (mut bytes, file) = (Vec::new(), std::fs::File::open(&path).ok()?);
        file.take(HEAD_LEN).read_to_end(&mut bytes).ok()?;
        let text = if bytes.contains(&0) { &[] } else { &bytes[..] };
        let head = lossy(text);
        let lines = head
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let code = lines.collect::<Vec<_>>().join("\n");
        let mut script = Self {
            word: word.to_owned(),
            number,
            is_executable: found.permissions().mode() & 0o111 != 0,
            bytes,
            head,
            code,
            reader: Reader::Shell,
        };
        let interpreter = match number {
            0 => script.interpreter().map(Cow::Owned),
            _ => Some(Cow::Borrowed(name(
                &words[usize::from(name(&words[0]) == "env")],
            ))),
        };
        if interpreter.is_some_and(|name| !reader::is_shell(&name)) {
            script.reader = Reader::Code;
        }
        Some(script)
    }

    pub(super) fn text(&self) -> Text<'_> {
        Text {
            text: &self.code,
            number: self.number,
            option: &self.word,
            reader: self.reader,
        }
    }

    /// Returns whether the kernel finds an interpreter in the first line.
    pub(super) fn has_first_line(&self) -> bool {
        self.bytes.starts_with(b"#!")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether the file could be started if it were executable: it is a program for this or
    /// another machine, or a shell script whose name has no extension.
    pub(super) fn is_program(&self) -> bool {
        let is_script = self.is_text() && Path::new(&self.word).extension().is_none();
        self.has_first_line() || self.bytes.starts_with(b"\x7fELF") || is_script
    }

    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// Returns the words of the `#HQ` lines.
    pub(super) fn directives(&self) -> Vec<String> {
        let is_top = |line: &&str| line.is_empty() || line.starts_with('#');
        let lines = self.head.lines().take_while(is_top);
        let lines = lines.filter_map(|line| shlex::split(line.strip_prefix("#HQ ")?));
        lines.flatten().collect()
    }

    /// Returns whether the file was read completely.
    pub(super) fn is_whole_text(&self) -> bool {
        self.is_text() && (self.bytes.len() as u64) < HEAD_LEN
    }

    pub(super) fn is_text(&self) -> bool {
        !self.head.is_empty()
    }

    /// Returns the program in the first line.
    fn named(&self) -> Option<&str> {
        let mut words = self
            .head
            .lines()
            .next()?
            .strip_prefix("#!")?
            .split_whitespace();
        let program = words.next()?;
        match name(program) {
            "env" => words.find(|word| !word.starts_with('-')),
            _ => Some(program),
        }
    }

    /// Returns the program in the first line, if this machine lacks it. With Windows line endings,
    /// another check reports the problem.
    pub(super) fn missing_interpreter(&self) -> Option<&str> {
        let first = self.head.split('\n').next()?;
        self.named().filter(|program| {
            !first.ends_with('\r') && !program.contains('=') && !reader::is_here(program)
        })
    }

    /// Returns the interpreter according to the first line or the name of the file.
    pub(super) fn interpreter(&self) -> Option<String> {
        if self.has_first_line() {
            return self.named().map(|program| name(program).to_owned());
        }
        interpreter_of(&self.word).map(str::to_owned)
    }
}

impl Typed<'_> {
    /// Reads the script of a job file's command that runs in this directory, unless it was already
    /// read.
    pub(crate) fn read_script(&mut self, dir: &Path, known: &mut BTreeSet<String>) {
        let Some(number) = place(&self.words) else {
            return;
        };
        if known.len() < SCRIPTS_MAX && known.insert(self.words[number].to_string()) {
            self.script = Script::of(&self.words, dir);
        }
    }
}

/// Detects Windows line endings and a byte order mark.
pub(super) fn encoding(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let script = typed.script.as_ref()?;
    let (word, bytes) = (&script.word, &script.bytes[..]);
    if let Some((what, command)) = content::kind(bytes).filter(|(what, _)| what.starts_with("text"))
    {
        return Some(format!(
            "`{word}` is {what}, which no interpreter reads; `{command} {word} > NEW` converts it"
        ));
    }
    let is_started = script.number == 0 || script.reader == Reader::Shell;
    if bytes.starts_with(content::BYTE_ORDER_MARK) && is_started {
        return Some(format!(
            "`{word}` begins with a byte order mark, which hides its first line; `sed -i '1s/^\\xef\\xbb\\xbf//' {word}` removes it"
        ));
    }
    let has_ends = script.head.lines().count() > 0
        && script
            .head
            .split_inclusive('\n')
            .take(20)
            .all(|line| line.ends_with("\r\n") || !line.ends_with('\n'))
        && script.head.contains("\r\n");
    (has_ends && is_started).then(|| format!("`{word}` has Windows line ends (CRLF), and a shell or the kernel takes the carriage return as part of each word; \
             `{}` removes them", content::without_cr(word)))
}

/// Describes how to make hq read the `#HQ` lines of a script that follows its interpreter.
fn behind_interpreter(typed: &Typed<'_>, script: &Script) -> String {
    let word = &script.word;
    let place = if word.contains('/') { "" } else { "./" };
    let is_shell = word.ends_with(".sh");
    let options = if is_shell { "" } else { "--directives file " };
    let rest = typed.words[script.number + 1..].iter();
    let rest: String = rest.map(|word| format!(" {}", quoted(word))).collect();
    let first = if is_shell || script.has_first_line() {
        String::new()
    } else {
        let interpreter = name(&typed.words[script.number - 1]);
        format!(", with `#!/usr/bin/env {interpreter}` as its first line")
    };
    format!(
        "`#HQ` lines are read in a script that is itself the program: `hq {} {options}{place}{word}{rest}`{first}",
        typed.verb.word()
    )
}

/// Detects input such as `hq submit --array 1-3 -- ./job.sh $HQ_TASK_ID`: this shell has replaced
/// it, and no argument is left for the script.
pub(super) fn missing_argument(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let script = typed.script.as_ref()?;
    let reads = ["$1", "${1}"].iter().any(|word| script.code.contains(word));
    // There, `$1` may be the argument of a function or a column of awk.
    let is_other = ["()", "function ", "'", "set --"]
        .iter()
        .any(|text| script.code.contains(text));
    let is_last = script.number + 1 == typed.words.len();
    let is_shell = script.reader == Reader::Shell && typed.verb != Verb::File;
    (is_shell && reads && is_last && !is_other).then(|| {
        let own = typed.own_value();
        format!("`{}` reads `$1`, but has no arguments; if you typed `{own}`, this shell expanded it to nothing, but the script can read `{own}` itself", script.word)
    })
}

/// Detects lines of options that hq does not read: `# HQ --array 1-3`, and `#HQ` after the first
/// command or in a program without `.sh`.
pub(super) fn late_directive(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let script = typed.script.as_ref()?;
    let front = &typed.front;
    let chosen = front
        .words
        .iter()
        .any(|word| word.starts_with("--directives"));
    if typed.verb == Verb::File || front.program.is_empty() || chosen {
        return None;
    }
    let word = &script.word;
    let is_read = front.program.ends_with(".sh");
    let (mut is_top, mut note) = (true, String::new());
    for (number, line) in (1..).zip(script.head.lines()) {
        let line = line.trim();
        is_top &= line.is_empty() || line.starts_with('#');
        let Some(rest) = line.strip_prefix('#').map(str::trim_start) else {
            continue;
        };
        let is_named = rest
            .get(..2)
            .is_some_and(|name| name.eq_ignore_ascii_case("hq"));
        let options = rest
            .get(2..)
            .unwrap_or_default()
            .trim_start_matches(':')
            .trim();
        if !is_named || !options.starts_with('-') || options.starts_with("---") {
            continue;
        }
        let is_right = line.starts_with("#HQ ") || line.starts_with("#HQ\t");
        let why = match (is_right, is_top, is_read) {
            (true, true, true) => continue,
            (false, _, _) => format!("write it as `#HQ {options}`"),
            (true, false, _) => {
                "it comes after the first command; put `#HQ` lines at the top".to_owned()
            }
            (true, true, false) if script.number == 0 => format!(
                "`#HQ` lines are read in files whose name ends in `.sh`; for this one, use `hq {} --directives file {word}`",
                typed.verb.word()
            ),
            (true, true, false) => behind_interpreter(typed, script),
        };
        note += &if note.is_empty() {
            format!("line {number} of `{word}`, `{line}`, is ignored: {why}")
        } else {
            format!("; line {number}, `{line}`, too")
        };
    }
    (!note.is_empty()).then_some(note)
}
