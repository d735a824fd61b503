//! Generates the text of converted scripts, and the command that runs one.

use super::{Conversion, Source, lines};

/// Shells with the variable syntax of `sh`.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "ash"];

/// Runs a script from standard input. The script itself sees an empty standard input, as in a batch
/// job.
const FROM_STDIN: &str = "exec 3<&0 </dev/null; exec \"$@\"";

/// Returns the words of the interpreter: from the first line, or the batch system's default.
pub(super) fn interpreter(text: &str, shell: Option<&str>) -> Vec<String> {
    if let Some(shell) = shell {
        return vec![shell.to_owned()];
    }
    let first = text.lines().next().unwrap_or_default();
    let words: Vec<String> = match first.strip_prefix("#!") {
        Some(rest) => rest.split_whitespace().map(str::to_owned).collect(),
        None => Vec::new(),
    };
    if words.is_empty() {
        return vec!["/bin/sh".to_owned()];
    }
    words
}

pub(super) fn is_shell(interpreter: &[String]) -> bool {
    let named = interpreter
        .iter()
        .map(|word| word.rsplit('/').next().unwrap_or(word));
    let program = named
        .clone()
        .find(|word| *word != "env" && !word.starts_with('-'));
    program.is_some_and(|program| SHELLS.contains(&program))
}

/// Returns an option as text for a `#HQ` line, where `"` is the only quote character.
pub(super) fn directive_text(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        if word.is_empty() || word.contains([' ', '\t', '"']) {
            format!("\"{}\"", word.replace('"', "\\\""))
        } else {
            word.clone()
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns the script with `#HQ` lines in place of the translated lines, and with the variables
/// that it expects.
pub(crate) fn converted(source: Source<'_>, conversion: &Conversion) -> String {
    let mut text = String::new();
    let mut rest = source.text.lines().enumerate().peekable();
    if let Some((_, first)) = rest.next_if(|(_, line)| line.starts_with("#!")) {
        text.push_str(first);
    } else {
        text.push_str(&format!("#!{}", conversion.interpreter.join(" ")));
    }
    text.push('\n');
    for words in conversion.directives() {
        text.push_str(&format!("#HQ {}\n", directive_text(words)));
    }
    if conversion.is_shell() && !conversion.prelude.is_empty() {
        let label = conversion.system.label();
        // A file name may contain line breaks, but the comment must be one line.
        let name = source.name.replace(char::is_control, "?");
        text.push_str(&format!(
            "# What {label} would have set, by `hq import {name}`:\n"
        ));
        for line in &conversion.prelude {
            text.push_str(line);
            text.push('\n');
        }
    }
    let read = lines::find(source.text, conversion.system);
    for (number, line) in rest {
        if !read.iter().any(|read| read.number == number) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Returns the command line that submits the script: the arguments of `hq`, and the standard input
/// of the tasks.
pub(crate) fn submit_words(
    source: Source<'_>,
    conversion: &Conversion,
    args: &[String],
) -> (Vec<String>, String) {
    let mut words = vec!["submit".to_owned()];
    words.extend(conversion.directives().flatten().cloned());
    words.extend(conversion.outer().flatten().cloned());
    words.extend(["--stdin", "--directives=off", "--", "/bin/sh", "-c"].map(str::to_owned));
    let text = if conversion.is_shell() {
        words.push(FROM_STDIN.to_owned());
        converted(source, conversion)
    } else {
        words.push(format!("{}\n{FROM_STDIN}", conversion.prelude.join("\n")));
        source.text.to_owned()
    };
    words.push(source.name.to_owned());
    words.extend(conversion.interpreter.iter().cloned());
    words.push("/dev/fd/3".to_owned());
    words.extend(args.iter().cloned());
    (words, text)
}
