//! Finds lines such as `#SBATCH --array=1-4`, and splits them into words.

use hq_core::words::has_word;

use super::System;
use super::script_options::ScriptOptions;

/// The options of one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// The position in the script, starting from 0.
    pub(super) number: usize,
    pub(super) text: String,
}

/// Returns the lines of a batch system before the first command, where batch systems stop reading.
pub(super) fn find(text: &str, system: System) -> Vec<Line> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            break;
        }
        if let Some(rest) = line.strip_prefix(system.word())
            && rest.starts_with(char::is_whitespace)
        {
            found.push(Line {
                number,
                text: rest.trim().to_owned(),
            });
        }
    }
    found
}

impl Line {
    /// Splits the line into words like a shell, without a comment at the end.
    pub(super) fn words(&self) -> Vec<String> {
        shlex::split(&self.text)
            .unwrap_or_else(|| self.text.split_whitespace().map(str::to_owned).collect())
    }
}

/// An option and its value. The value is empty for an option without one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) value: String,
}

impl Pair {
    /// Returns the option as it was written.
    pub(super) fn shown(&self) -> String {
        match (self.value.is_empty(), self.name.starts_with("--")) {
            (true, _) => self.name.clone(),
            (false, true) => format!("{}={}", self.name, self.value),
            (false, false) => format!("{} {}", self.name, self.value),
        }
    }
}

/// What an option sets. A value that is invalid is not translated.
pub(super) enum Effect {
    On(fn(&mut ScriptOptions) -> &mut bool),
    /// The value, unless it is empty.
    Text(fn(&mut ScriptOptions) -> &mut Option<String>),
    /// The path of an output, with placeholders.
    Path(fn(&mut ScriptOptions) -> &mut Option<String>),
    /// The first number: `2-4` nodes means at least two.
    Count(fn(&mut ScriptOptions) -> &mut Option<u32>),
    Priority,
    /// Anything else. `None` means that the value is invalid.
    Call(fn(&mut ScriptOptions, &Pair) -> Option<()>),
    /// It has no effect in hq.
    Nothing,
    /// hq has no equivalent.
    Unknown,
}

/// The options of a batch system. The names of an option, and options with the same effect, are
/// separated by blanks.
pub(super) struct Table {
    /// The options without a value, or with a value only after `=`.
    pub(super) flags: &'static [(&'static str, Effect)],
    pub(super) valued: &'static [(&'static str, Effect)],
    /// The options with a value that determine where workers run.
    pub(super) of_workers: &'static str,
    /// Translates the placeholders of a path.
    pub(super) path: fn(&mut ScriptOptions, &str) -> String,
    /// Whether short options are whole words, as in LSF.
    pub(super) are_words: bool,
}

impl Table {
    /// Reads the options of a line.
    pub(super) fn read(&self, line: &Line, options: &mut ScriptOptions) {
        for pair in self.pairs(line.words()) {
            let mut rows = self.flags.iter().chain(self.valued);
            let row = rows.find(|(names, _)| has_word(names, &pair.name));
            if has_word(self.of_workers, &pair.name) {
                options.of_workers.push(pair.shown());
            } else if row
                .and_then(|(_, effect)| self.apply(effect, &pair, options))
                .is_none()
            {
                options.untranslated(&pair.shown());
            }
        }
    }

    fn apply(&self, effect: &Effect, pair: &Pair, options: &mut ScriptOptions) -> Option<()> {
        let text = Some(&*pair.value).filter(|value| !value.is_empty());
        match effect {
            Effect::On(field) => *field(options) = true,
            Effect::Text(field) => *field(options) = Some(text?.to_owned()),
            Effect::Path(field) => *field(options) = Some((self.path)(options, text?)),
            Effect::Count(field) => {
                let first = text?.split(['-', ',']).next()?;
                *field(options) = Some(first.parse().ok()?);
            }
            Effect::Priority => options.priority = Some(text?.parse().ok()?),
            Effect::Call(apply) => apply(options, pair)?,
            Effect::Nothing => {}
            Effect::Unknown => return None,
        }
        Some(())
    }

    /// Splits `--name=value`, `--name value`, `-x value` and `-xvalue`.
    fn pairs(&self, words: Vec<String>) -> Vec<Pair> {
        let mut found = Vec::new();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let inline = word.split_once('=').filter(|_| word.starts_with("--"));
            let is_joined = !self.are_words
                && word.len() > 2
                && word.starts_with('-')
                && !word.starts_with("--");
            let joined = word.split_at_checked(2).filter(|_| is_joined);
            let joined = joined.map(|(name, value)| (name, value.trim_start_matches('=')));
            if let Some((name, value)) = inline.or(joined) {
                let (name, value) = (name.to_owned(), value.to_owned());
                found.push(Pair { name, value });
                continue;
            }
            let is_number = |word: &str| {
                word.strip_prefix('-')
                    .is_some_and(|n| n.parse::<u32>().is_ok())
            };
            let is_flag = self.flags.iter().any(|(names, _)| has_word(names, &word));
            let value =
                words.next_if(|next| !is_flag && (!next.starts_with('-') || is_number(next)));
            found.push(Pair {
                name: word,
                value: value.unwrap_or_default(),
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_in_every_way_of_writing_them() {
        let line = Line {
            number: 0,
            text: "--mem=2G -c8 -J 'my job' --exclusive -t 5 --nice=-3 # why".to_owned(),
        };
        let pairs = super::super::slurm::TABLE.pairs(line.words());
        let shown: Vec<_> = pairs.iter().map(|p| (&*p.name, &*p.value)).collect();
        let wanted = [
            ("--mem", "2G"),
            ("-c", "8"),
            ("-J", "my job"),
            ("--exclusive", ""),
            ("-t", "5"),
            ("--nice", "-3"),
        ];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn only_lines_before_the_first_command_count() {
        let text =
            "#!/bin/sh\n\n#SBATCH -c 2\n##SBATCH -c 3\n#SBATCHX\n# text\necho\n#SBATCH -c 4\n";
        let found = find(text, System::Slurm);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].number, found[0].text.as_str()), (2, "-c 2"));
    }
}
