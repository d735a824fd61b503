//! Reads the description of a batch system from a file into a [`SystemSpec`], which validates it.
//!
//! The built-in descriptions are files of the same form; see `docs/batch-systems.md`.

use std::collections::BTreeMap;
use std::path::Path;

use hq_core::batch::{
    CommandTemplate, FindFormat, StateMeaning, StatusFormat, SubmitFormat, SystemSpec, Words,
};
use serde::Deserialize;

use crate::args::alloc::TemplateName;
use crate::error::{CliError, CliResult};
use crate::submit::read_text;

/// Returns the text of a built-in description.
pub(crate) const fn text(name: TemplateName) -> &'static str {
    match name {
        TemplateName::Slurm => include_str!("batch_system/slurm.toml"),
        TemplateName::Pbs => include_str!("batch_system/pbs.toml"),
        TemplateName::PbsNodes => include_str!("batch_system/pbs-nodes.toml"),
        TemplateName::Sge => include_str!("batch_system/sge.toml"),
    }
}

/// Loads a description that comes with the program.
pub(crate) fn built_in(name: TemplateName) -> CliResult<SystemSpec> {
    parse(text(name)).map_err(CliError::new)
}

/// Loads a description that a user wrote.
pub(crate) fn load(path: &Path) -> CliResult<SystemSpec> {
    parse_file(
        path,
        &read_text(path).map_err(|error| cannot_read(path, &error))?,
    )
}

/// Loads a description from a directory that other users may be able to write to. The server runs
/// its commands without asking, so other users must not be able to change it.
pub(crate) fn load_trusted(path: &Path) -> CliResult<SystemSpec> {
    let read = hq_private::open_trusted(path).and_then(std::io::read_to_string);
    let help = "if you trust the description, name it with --template";
    let text = read.map_err(|error| cannot_read(path, &error).with_help(help))?;
    parse_file(path, &text)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> CliError {
    CliError::caused(
        format!("Cannot read the description {}", path.display()),
        error,
    )
}

fn parse_file(path: &Path, text: &str) -> CliResult<SystemSpec> {
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
    #[serde(with = "Id")]
    id: SubmitFormat,
    #[serde(default)]
    unclear: Vec<String>,
    #[serde(default)]
    unreachable: Vec<String>,
}

#[derive(Deserialize)]
#[serde(remote = "SubmitFormat", rename_all = "kebab-case")]
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
    #[serde(with = "Format")]
    format: StatusFormat,
    states: BTreeMap<State, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(remote = "StatusFormat", rename_all = "kebab-case")]
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
    Suspended,
    Completing,
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
    #[serde(with = "FindAnswer")]
    format: FindFormat,
}

#[derive(Deserialize)]
#[serde(remote = "FindFormat", rename_all = "kebab-case")]
enum FindAnswer {
    Lines,
    PbsJson,
}

/// A word, or a group of words that is repeated for each job.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    One(String),
    EachJob(Vec<String>),
}

fn parse(text: &str) -> Result<SystemSpec, String> {
    let description: Description = toml::from_str(text).map_err(|error| error.to_string())?;
    let system = SystemSpec::from(description);
    system.check().map_err(|error| error.to_string())?;
    Ok(system)
}

impl From<Description> for SystemSpec {
    fn from(found: Description) -> Self {
        let texts = |texts: Vec<String>| texts.into_iter().map(Into::into).collect();
        let states = found.status.states.into_iter();
        let states = states.flat_map(|(state, words)| {
            let words = words.into_iter();
            words.map(move |word| (word.into(), state.into()))
        });
        Self {
            name: found.name.into(),
            manager: match found.manager {
                Manager::Slurm => "slurm".into(),
                Manager::Pbs => "pbs".into(),
                Manager::Other => "other".into(),
            },
            // The text starts after the line break that follows the quotes.
            script: found.script.text.trim_start_matches('\n').into(),
            each_node: found.script.each_node.into(),
            each_node_shell: found.script.each_node_shell.into(),
            submit: command(found.submit.command),
            submit_format: found.submit.id,
            status: command(found.status.command),
            status_fallback: command(found.status.fallback),
            status_format: found.status.format,
            cancel: command(found.cancel.command),
            find: command(found.find.command),
            find_format: found.find.format,
            missing: texts(found.missing),
            unclear: texts(found.submit.unclear),
            unreachable: texts(found.submit.unreachable),
            states: states.collect(),
        }
    }
}

impl From<State> for StateMeaning {
    fn from(state: State) -> Self {
        match state {
            State::Queued => Self::Queued,
            State::Running => Self::Running,
            State::Suspended => Self::Suspended,
            State::Completing => Self::Completing,
            State::Finished => Self::Finished,
            State::Failed => Self::Failed,
            State::FailedMayReturn => Self::FailedMayReturn,
        }
    }
}

fn command(words: Vec<Word>) -> CommandTemplate {
    let words = words.into_iter().map(|word| match word {
        Word::One(word) => Words {
            words: vec![word.into()],
            each_job: false,
        },
        Word::EachJob(words) => Words {
            words: words.into_iter().map(Into::into).collect(),
            each_job: true,
        },
    });
    CommandTemplate(words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use hq_protocol::client::AllocSystem;

    #[test]
    fn what_comes_with_the_program_is_valid() {
        for name in TemplateName::value_variants().iter().copied() {
            let system = built_in(name).unwrap_or_else(|e| panic!("{name:?}: {e:?}"));
            let message = AllocSystem::from(&system);
            let received = SystemSpec::try_from(message).expect("valid for the server");
            assert_eq!(received, system);
            assert!(system.script.starts_with("#!/bin/bash\n"), "{name:?}");
        }
    }

    /// Each state of a batch system has a meaning in the table. States that could wrongly count as
    /// ended come first.
    #[test]
    fn the_table_of_states_is_complete() {
        use StateMeaning::{
            Completing, Failed, FailedMayReturn, Finished, Queued, Running, Suspended,
        };
        let slurm = [
            (
                Queued,
                "REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD PENDING CONFIGURING",
            ),
            (Suspended, "SUSPENDED STOPPED"),
            (Completing, "COMPLETING STAGE_OUT"),
            (FailedMayReturn, "NODE_FAIL PREEMPTED BOOT_FAIL"),
            (Running, "RUNNING RESIZING SIGNALING"),
            (Finished, "COMPLETED TIMEOUT"),
            (Failed, "CANCELLED FAILED OUT_OF_MEMORY DEADLINE REVOKED"),
        ];
        let pbs = [
            (Queued, "Q H W T M"),
            (Suspended, "S U"),
            (Completing, "E"),
            (Running, "R B"),
            (Failed, "X"),
        ];
        let tables = [
            (TemplateName::Slurm, &slurm[..]),
            (TemplateName::Pbs, &pbs),
            (TemplateName::PbsNodes, &pbs),
        ];
        for (name, table) in tables {
            let expected: BTreeMap<Box<str>, StateMeaning> = table
                .iter()
                .flat_map(|(meaning, words)| words.split(' ').map(|word| (word.into(), *meaning)))
                .collect();
            assert_eq!(
                built_in(name).expect("it is valid").states,
                expected,
                "{name:?}"
            );
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
                "[\"scancel\", \"--clusters=%{cluster}\", \"%{job}\"]",
                "[]",
                "expected the name of a program",
            ),
            (
                "[\"scancel\", \"--clusters=%{cluster}\", \"%{job}\"]",
                "[\"scancel\", [\"x\"], \"%{name}\"]",
                "unknown placeholder",
            ),
            (
                "id = \"sbatch\"",
                "id = \"other\"",
                "unknown variant `other`",
            ),
            (
                "missing = [",
                "missing = [\"\", ",
                "missing: expected words",
            ),
            (
                "unclear = [",
                "unclear = [\" \", ",
                "submit.unclear: expected words",
            ),
            (
                "unreachable = [",
                "unreachable = [\"\", ",
                "submit.unreachable: expected words",
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
        for mode in [0o666, 0o646] {
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
        // Only root can change the owner of a file.
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(65534), None).expect("given away");
            assert!(refusal().is_some_and(|text| text.contains("user 65534")));
        }
        assert!(load(&path).is_ok(), "a user who names it trusts it");
    }
}
