//! Translates the requests in scripts for Slurm, PBS and LSF into options of `hq submit`.
//!
//! [`lines`] finds and splits the lines. The tables in [`slurm`], [`pbs`] and [`lsf`] turn them into
//! [`script_options::ScriptOptions`], which are the same for all three systems. [`variables`]
//! determines which variables the script gets, and [`script`] writes it. Every difference is
//! reported as a note.

use hq_core::range::IdArray;

use crate::error::{CliError, CliResult};

mod differences;
mod lines;
mod lsf;
mod pbs;
mod script;
mod script_options;
mod slurm;
mod units;
mod used;
mod variables;

use crate::script_system::System;
use crate::text::shell_text;
use lines::{Line, Table};
use script_options::{Choice, ScriptOptions};

impl System {
    const ALL: [Self; 3] = [Self::Slurm, Self::Pbs, Self::Lsf];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Lsf => "LSF",
        }
    }

    const fn options(self) -> &'static Table {
        match self {
            Self::Slurm => &slurm::TABLE,
            Self::Pbs => &pbs::TABLE,
            Self::Lsf => &lsf::TABLE,
        }
    }

    /// Returns how the lines of this system begin.
    const fn word(self) -> &'static str {
        match self {
            Self::Slurm => "#SBATCH",
            Self::Pbs => "#PBS",
            Self::Lsf => "#BSUB",
        }
    }
}

/// A script, and the options for converting it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The file name, for messages and as the name of the job.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// The options, as on the command line of the batch system. They override the lines of the
    /// script.
    pub(crate) options: &'a str,
    /// The batch system. `None` means the system of most lines.
    pub(crate) system: Option<System>,
}

/// A script converted to a submit.
#[derive(Debug)]
pub(crate) struct Conversion {
    pub(crate) system: System,
    /// The number of lines that were read.
    pub(crate) line_count: usize,
    choices: Vec<Choice>,
    /// The differences, as sentences.
    pub(crate) notes: Vec<String>,
    /// The words of the interpreter.
    pub(crate) interpreter: Vec<String>,
    /// The lines for `sh` that set the variables of the batch system.
    prelude: Vec<String>,
}

impl Conversion {
    /// Returns the options that are allowed in `#HQ` lines, as words, one option at a time.
    pub(crate) fn directives(&self) -> impl Iterator<Item = &[String]> {
        let chosen = self.choices.iter().filter(|choice| !choice.is_outer);
        chosen.map(|choice| choice.words.as_slice())
    }

    /// Returns the options that are only allowed on the command line.
    pub(crate) fn outer(&self) -> impl Iterator<Item = &[String]> {
        let chosen = self.choices.iter().filter(|choice| choice.is_outer);
        chosen.map(|choice| choice.words.as_slice())
    }

    /// Returns the options that the script contains, except options that only imitate defaults of
    /// the batch system.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().filter(|choice| !choice.is_usual)
    }

    /// Returns whether the interpreter is a shell with the variable syntax of `sh`.
    pub(crate) fn is_shell(&self) -> bool {
        script::is_shell(&self.interpreter)
    }
}

/// Returns the batch system whose lines a script contains, or `None` without such lines.
pub(crate) fn system_of(text: &str) -> Option<(System, usize)> {
    let counts = System::ALL.map(|system| (system, lines::find(text, system).len()));
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.filter(|(_, count)| *count > 0)
}

/// Reads a script for a batch system.
pub(crate) fn convert(source: Source<'_>) -> CliResult<Conversion> {
    let found = system_of(source.text).map(|(system, _)| system);
    if let (Some(system), Some(found)) = (source.system, found)
        && source.options.is_empty()
        && lines::find(source.text, system).is_empty()
    {
        let (word, other) = (system.word(), found.word());
        let text = format!("{} has {other} lines and no {word} lines", source.name);
        return Err(CliError::new(text)
            .with_help("leave out `--system`: `hq import` recognizes the batch system"));
    }
    let Some(system) = source.system.or(found) else {
        return Err(CliError::new(format!(
            "{} has no #SBATCH, #PBS or #BSUB lines",
            source.name
        ))
        .with_help(
            "a script without them is submitted unchanged: `hq submit SCRIPT`; with `--system slurm` and `--options`, options \
             of `sbatch` are translated"
                .to_owned(),
        ));
    };
    let mut lines = lines::find(source.text, system);
    let line_count = lines.len();
    if !source.options.is_empty() {
        lines.push(Line {
            number: 0,
            text: source.options.to_owned(),
        });
    }
    let uses = used::Uses::find(source.text);
    let mut options = ScriptOptions::new(system, source.name);
    for other in System::ALL {
        let count = lines::find(source.text, other).len();
        if other != system && count > 0 {
            let (word, label) = (other.word(), system.label());
            options.note(format!(
                "{count} {word} lines: ignored, because this is a script for {label}"
            ));
        }
    }
    for line in &lines {
        if line.text.starts_with("hetjob") || line.text.starts_with("packjob") {
            options.note(format!(
                "`{}`: a job has one kind of task; submit each part as a separate job",
                line.text
            ));
        } else {
            system.options().read(line, &mut options);
        }
    }
    let mut choices = options.choices(&uses);
    let prelude = variables::prelude(&options, &uses, &mut choices);
    let interpreter = script::interpreter(source.text, options.shell.as_deref());
    let mut notes = std::mem::take(&mut options.notes);
    notes.extend(differences::notes(&uses, &options));
    if !script::is_shell(&interpreter) {
        notes.push(format!(
            "the interpreter is `{}`: it gets the variables of {} only with --submit, not in a converted script",
            interpreter.join(" "),
            system.label()
        ));
    }
    Ok(Conversion {
        system,
        line_count,
        choices,
        notes,
        interpreter,
        prelude,
    })
}

/// Returns a warning about a script that is submitted unchanged, or `None` if it has no lines for a
/// batch system.
///
/// `is_read` means that hq reads its `#HQ` lines.
pub(crate) fn warning(source: &str, text: &str, is_read: bool) -> Option<String> {
    let (system, count) = system_of(text)?;
    let word = system.word();
    let lines = match count {
        1 => format!("1 {word} line, which hq does not read"),
        count => format!("{count} {word} lines, which hq does not read"),
    };
    let conversion = convert(Source {
        name: source,
        text,
        options: "",
        system: Some(system),
    })
    .ok()?;
    let mut said = format!("{source} has {lines}");
    let directives: Vec<String> = conversion
        .written()
        .filter(|choice| !choice.is_outer)
        .map(|choice| script::directive_text(&choice.words))
        .collect();
    let outer: Vec<String> = conversion
        .written()
        .filter(|choice| choice.is_outer)
        .map(|choice| shell_text(&choice.words))
        .collect();
    if is_read && !directives.is_empty() {
        said.push_str(&format!("; write instead: `#HQ {}`", directives.join(" ")));
    }
    if is_read && !outer.is_empty() {
        said.push_str(&format!("; and add to `hq submit`: `{}`", outer.join(" ")));
    }
    said.push_str(&format!(
        "; `hq import {source}` translates everything and lists the differences"
    ));
    Some(said)
}

/// Returns the ids of an array, or `None` if they cannot be parsed.
fn ids_of(text: &str) -> Option<IdArray> {
    crate::parse::array::parse_id_array(text).ok()
}

pub(crate) use script::{converted, submit_words};

#[cfg(test)]
mod tests;
