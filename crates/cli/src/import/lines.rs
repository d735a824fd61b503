//! Finds lines such as `#SBATCH --array=1-4`, and splits them into words.

use hq_core::words::has_word;

use super::System;

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

/// Splits `--name=value`, `--name value`, `-x value` and `-xvalue`. The options in `flags` have no
/// value. With `words_only`, short options are whole words, as in LSF.
pub(super) fn pairs(words: Vec<String>, flags: &str, words_only: bool) -> Vec<Pair> {
    let mut found = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if let Some((name, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
            found.push(Pair {
                name: name.to_owned(),
                value: value.to_owned(),
            });
            continue;
        }
        let is_joined =
            !words_only && word.len() > 2 && word.starts_with('-') && !word.starts_with("--");
        if is_joined && let Some((name, value)) = word.split_at_checked(2) {
            found.push(Pair {
                name: name.to_owned(),
                value: value.trim_start_matches('=').to_owned(),
            });
            continue;
        }
        let is_number = |word: &str| {
            word.strip_prefix('-')
                .is_some_and(|n| n.parse::<u32>().is_ok())
        };
        let value = if has_word(flags, &word) {
            None
        } else {
            words.next_if(|next| !next.starts_with('-') || is_number(next))
        };
        found.push(Pair {
            name: word,
            value: value.unwrap_or_default(),
        });
    }
    found
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
        let pairs = pairs(line.words(), "--exclusive", false);
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
