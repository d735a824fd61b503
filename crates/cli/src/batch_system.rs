//! Descriptions of batch systems: files that say which commands to run and how to read the answers.
//!
//! Those that come with the program are files of the same form. `docs/batch-systems.md` explains it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use hq_protocol::client::alloc_state_word::Meaning;
use hq_protocol::client::alloc_system::{FindFormat, StatusFormat, SubmitFormat};
use hq_protocol::client::{AllocCommand, AllocStateWord, AllocSystem, AllocWords};
use serde::Deserialize;

use crate::args::alloc::TemplateName;
use crate::error::{CliError, CliResult};

/// Placeholders by the entry in which they have a meaning.
const IN_SCRIPT: &[&str] = &[
    "nodes", "name", "dir", "walltime", "seconds", "args", "command", "if-test",
];
const IN_EACH_NODE: &[&str] = &["nodes", "command", "quoted-command"];
const IN_SUBMIT: &[&str] = &["script", "dir", "name"];
const IN_FIND: &[&str] = &["name", "dir"];
const IN_JOB: &[&str] = &["job"];

/// The text of a description that comes with the program.
pub(crate) const fn text(name: TemplateName) -> &'static str {
    match name {
        TemplateName::Slurm => include_str!("batch_system/slurm.toml"),
        TemplateName::Pbs => include_str!("batch_system/pbs.toml"),
        TemplateName::PbsNodes => include_str!("batch_system/pbs-nodes.toml"),
        TemplateName::Sge => include_str!("batch_system/sge.toml"),
    }
}

/// A description that comes with the program.
pub(crate) fn built_in(name: TemplateName) -> CliResult<AllocSystem> {
    parse(text(name)).map_err(CliError::new)
}

/// A description that a user wrote.
pub(crate) fn load(path: &Path) -> CliResult<AllocSystem> {
    let text = std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
    parse_file(path, &text)
}

/// A description that was found where others may be able to write: the commands in it are run without a question, so
/// that nobody else may have a hand in it.
pub(crate) fn load_trusted(path: &Path) -> CliResult<AllocSystem> {
    let failed = |error: std::io::Error| cannot_read(path, &error);
    // A FIFO would wait for a writer.
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(O_NONBLOCK);
    let mut file = options.open(path).map_err(failed)?;
    check_trusted(path, &file.metadata().map_err(failed)?)?;
    if let Some(dir) = path.parent() {
        check_trusted(dir, &std::fs::metadata(dir).map_err(failed)?)?;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    parse_file(path, &text)
}

#[expect(clippy::cast_possible_wrap, reason = "a single bit")]
const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

fn cannot_read(path: &Path, error: &std::io::Error) -> CliError {
    CliError::caused(
        format!("Cannot read the description {}", path.display()),
        error,
    )
}

/// Refuses what others own or can write to. Root can do everything anyway.
fn check_trusted(path: &Path, found: &std::fs::Metadata) -> CliResult<()> {
    let user = rustix::process::geteuid().as_raw();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let shown = path.display();
    if owner != user && owner != 0 {
        return Err(CliError::new(format!(
            "The commands of {shown} would be run as you: expected it to be yours or root's, found that user {owner} \
             owns it. If you trust it, name the description with --template"
        )));
    }
    if mode & 0o022 != 0 {
        return Err(CliError::new(format!(
            "The commands of {shown} would be run as you: expected that nobody else can write to it, found mode {mode:04o}; \
             `chmod go-w {shown}` changes that. If you trust it, name the description with --template"
        )));
    }
    if !found.is_file() && !found.is_dir() {
        return Err(CliError::new(format!(
            "Expected a file with the description of a batch system, found that {shown} is none"
        )));
    }
    Ok(())
}

fn parse_file(path: &Path, text: &str) -> CliResult<AllocSystem> {
    parse(text).map_err(|problem| {
        CliError::new(format!(
            "The description {} is not valid: {problem}",
            path.display()
        ))
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Description {
    name: String,
    manager: Manager,
    #[serde(default)]
    missing: Vec<String>,
    script: Script,
    submit: Submit,
    status: Status,
    cancel: Cancel,
    find: Find,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Manager {
    Slurm,
    Pbs,
    Other,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Script {
    text: String,
    each_node: String,
    each_node_shell: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Submit {
    command: Vec<Word>,
    id: Id,
    #[serde(default)]
    unclear: Vec<String>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Id {
    Sbatch,
    LastLine,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Status {
    command: Vec<Word>,
    #[serde(default)]
    fallback: Vec<Word>,
    format: Format,
    states: BTreeMap<State, Vec<String>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Format {
    Scontrol,
    PbsJson,
    Lines,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
enum State {
    Queued,
    Running,
    Finished,
    Failed,
    FailedMayReturn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Cancel {
    command: Vec<Word>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Find {
    command: Vec<Word>,
    format: FindAnswer,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum FindAnswer {
    Lines,
    PbsJson,
}

/// A word, or words that are repeated for each job.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    One(String),
    EachJob(Vec<String>),
}

fn parse(text: &str) -> Result<AllocSystem, String> {
    let description: Description = toml::from_str(text).map_err(|error| error.to_string())?;
    description.check()?;
    Ok(description.into_message())
}

impl Description {
    fn check(&self) -> Result<(), String> {
        let script = &self.script;
        check_text("script.text", &script.text, IN_SCRIPT)?;
        check_text("script.each-node", &script.each_node, IN_EACH_NODE)?;
        check_text(
            "script.each-node-shell",
            &script.each_node_shell,
            IN_EACH_NODE,
        )?;
        if !script.text.contains("%{command}") {
            return Err("script.text: expected `%{command}` where the worker starts".to_owned());
        }
        check_command("submit.command", &self.submit.command, IN_SUBMIT)?;
        check_command("status.command", &self.status.command, IN_JOB)?;
        if !self.status.fallback.is_empty() {
            check_command("status.fallback", &self.status.fallback, IN_JOB)?;
        }
        check_command("cancel.command", &self.cancel.command, IN_JOB)?;
        check_command("find.command", &self.find.command, IN_FIND)
    }

    fn into_message(self) -> AllocSystem {
        let submit_format = match self.submit.id {
            Id::Sbatch => SubmitFormat::Sbatch,
            Id::LastLine => SubmitFormat::LastLine,
        };
        let status_format = match self.status.format {
            Format::Scontrol => StatusFormat::Scontrol,
            Format::PbsJson => StatusFormat::PbsJson,
            Format::Lines => StatusFormat::Lines,
        };
        let find_format = match self.find.format {
            FindAnswer::Lines => FindFormat::Lines,
            FindAnswer::PbsJson => FindFormat::PbsJson,
        };
        let manager = match self.manager {
            Manager::Slurm => "slurm",
            Manager::Pbs => "pbs",
            Manager::Other => "other",
        };
        let states = self.status.states.into_iter();
        let states = states.flat_map(|(state, words)| {
            words.into_iter().map(move |word| AllocStateWord {
                word,
                meaning: meaning(state).into(),
            })
        });
        AllocSystem {
            name: self.name,
            manager: manager.to_owned(),
            // A text that begins on a line of its own.
            script: self.script.text.trim_start_matches('\n').to_owned(),
            each_node: self.script.each_node,
            each_node_shell: self.script.each_node_shell,
            submit: Some(command(self.submit.command)),
            status_fallback: (!self.status.fallback.is_empty())
                .then(|| command(self.status.fallback)),
            status: Some(command(self.status.command)),
            cancel: Some(command(self.cancel.command)),
            find: Some(command(self.find.command)),
            submit_format: submit_format.into(),
            status_format: status_format.into(),
            find_format: find_format.into(),
            missing: self.missing,
            unclear: self.submit.unclear,
            states: states.collect(),
        }
    }
}

const fn meaning(state: State) -> Meaning {
    match state {
        State::Queued => Meaning::Queued,
        State::Running => Meaning::Running,
        State::Finished => Meaning::Finished,
        State::Failed => Meaning::Failed,
        State::FailedMayReturn => Meaning::FailedMayReturn,
    }
}

fn command(words: Vec<Word>) -> AllocCommand {
    let words = words.into_iter().map(|word| match word {
        Word::One(word) => AllocWords {
            words: vec![word],
            each_job: false,
        },
        Word::EachJob(words) => AllocWords {
            words,
            each_job: true,
        },
    });
    AllocCommand {
        words: words.collect(),
    }
}

fn check_command(entry: &str, words: &[Word], allowed: &[&str]) -> Result<(), String> {
    match words.first() {
        Some(Word::One(program)) if !program.is_empty() => {}
        Some(_) | None => return Err(format!("{entry}: expected the name of a program first")),
    }
    for word in words {
        match word {
            Word::One(word) => check_text(entry, word, allowed)?,
            Word::EachJob(words) if allowed == IN_JOB => {
                for word in words {
                    check_text(entry, word, allowed)?;
                }
            }
            Word::EachJob(_) => {
                return Err(format!(
                    "{entry}: words for each job belong to status.command"
                ));
            }
        }
    }
    Ok(())
}

/// Requires that every placeholder means something.
fn check_text(entry: &str, text: &str, allowed: &[&str]) -> Result<(), String> {
    for after in text.split("%{").skip(1) {
        let name = after.split_once('}').map_or(after, |(name, _)| name);
        if !allowed.contains(&name) {
            return Err(format!(
                "{entry}: unknown placeholder `%{{{name}}}`, expected one of: {}",
                allowed.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_protocol::convert::SystemSpec;

    const ALL: [TemplateName; 4] = [
        TemplateName::Slurm,
        TemplateName::Pbs,
        TemplateName::PbsNodes,
        TemplateName::Sge,
    ];

    #[test]
    fn what_comes_with_the_program_is_valid() {
        for name in ALL {
            let system = built_in(name).unwrap_or_else(|e| panic!("{name:?}: {e:?}"));
            let spec = SystemSpec::try_from(system.clone()).expect("valid for the server");
            assert_eq!(AllocSystem::from(&spec).script, system.script);
            assert!(system.script.starts_with("#!/bin/bash\n"), "{name:?}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        let slurm = text(TemplateName::Slurm);
        for (from, to, part) in [
            (
                "%{nodes}\n#SBATCH --job",
                "%{nods}\n#SBATCH --job",
                "unknown placeholder `%{nods}`",
            ),
            ("%{command}'''", "'''", "expected `%{command}` where"),
            (
                "[\"scancel\", \"%{job}\"]",
                "[]",
                "expected the name of a program",
            ),
            (
                "[\"scancel\", \"%{job}\"]",
                "[\"scancel\", [\"x\"], \"%{name}\"]",
                "unknown placeholder",
            ),
            (
                "id = \"sbatch\"",
                "id = \"other\"",
                "unknown variant `other`",
            ),
            ("manager = ", "managr = ", "unknown field `managr`"),
            (
                "queued = [\"PENDING\"",
                "waiting = [\"PENDING\"",
                "unknown variant `waiting`",
            ),
        ] {
            assert!(slurm.contains(from), "{from}");
            let error = parse(&slurm.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(part), "{to}: {error}");
        }
    }

    #[test]
    fn descriptions_that_others_can_write_are_not_used_unasked() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let root = tempfile::tempdir().expect("temporary directory");
        let dir = root.path().join("templates");
        std::fs::create_dir(&dir).expect("made");
        let path = dir.join("slurm.toml");
        std::fs::write(&path, text(TemplateName::Slurm)).expect("written");
        let set = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("mine");
        };
        let refusal = || load_trusted(&path).err().and_then(|error| error.text());
        set(&dir, 0o755);
        set(&path, 0o644);
        assert_eq!(refusal(), None);
        for mode in [0o666, 0o664] {
            set(&path, mode);
            assert!(
                refusal().is_some_and(|text| text.contains("chmod go-w")),
                "{mode:o}"
            );
        }
        set(&path, 0o600);
        set(&dir, 0o777);
        assert!(refusal().is_some_and(|text| text.contains("mode 0777")));
        set(&dir, 0o700);
        assert_eq!(refusal(), None);
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(65534), None).expect("given away");
            assert!(refusal().is_some_and(|text| text.contains("user 65534")));
        }
        assert!(load(&path).is_ok(), "a user who names it trusts it");
    }
}
