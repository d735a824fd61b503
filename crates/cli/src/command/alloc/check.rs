//! Checks a queue before the client sends it to the server, so that errors can name options.

use hq_core::batch::{QueueParams, SystemSpec};
use hq_protocol::ConvertError;
use hq_protocol::client::AllocQueueSpec;

use crate::error::{CliError, CliResult};

/// Applies the rules of the server.
pub(super) fn check(spec: &AllocQueueSpec) -> CliResult<()> {
    let Err(error) = QueueParams::try_from(spec.clone()) else {
        return Ok(());
    };
    let text = match &error {
        ConvertError::Invalid {
            field,
            expected,
            found,
        } => match field.as_str() {
            "time_limit_ns" => Some("--time-limit: expected at least one second".to_owned()),
            "name" => Some(format!("--name: expected {expected}, found `{found}`")),
            "start_command" => Some(format!("--worker-start-cmd: expected {expected}")),
            "stop_command" => Some(format!("--worker-stop-cmd: expected {expected}")),
            "wrap_command" => Some(format!("--worker-wrap-cmd: expected {expected}")),
            "additional_args" => Some(format!("an argument after `--`: expected {expected}")),
            _ => None,
        },
        ConvertError::Missing { .. } | ConvertError::TooMany { .. } | ConvertError::Rule { .. } => {
            None
        }
    };
    Err(CliError::new(text.unwrap_or_else(|| error.to_string())))
}

/// Returns an option after `--` that would break every allocation, and the reason.
pub(super) fn impossible(spec: &AllocQueueSpec) -> Option<(&'static str, &'static str)> {
    const ARRAY: &str = "an allocation is a single job, not an array";
    const SELECT: &str = "the script requests its nodes itself, and PBS uses the first request";
    let params = QueueParams::try_from(spec.clone()).ok()?;
    let words: Vec<&str> = params
        .additional_args
        .iter()
        .flat_map(|arg| arg.split_whitespace())
        .collect();
    match &*params.system.manager {
        "slurm" if params.option(&["array"], 'a').is_some() => Some(("--array", ARRAY)),
        "slurm" if words.iter().any(|word| matches!(*word, "--wait" | "-W")) => Some((
            "--wait",
            "`sbatch` would not return before the end of the allocation",
        )),
        "pbs" if params.option(&[], 'J').is_some() => Some(("-J", ARRAY)),
        "pbs" => {
            let twice = asked_twice(&params.system, &spec.additional_args);
            let names = [("select", "-l select=…"), ("nodes", "-l nodes=…")];
            let found = names
                .iter()
                .find(|(name, _)| twice.iter().any(|other| other == name));
            found.map(|(_, option)| (*option, SELECT))
        }
        _ => None,
    }
}

/// Returns the options after `--` that contradict the script, with what to use instead.
pub(super) fn contradictions(spec: &AllocQueueSpec) -> Vec<(&'static str, &'static str)> {
    let Ok(params) = QueueParams::try_from(spec.clone()) else {
        return Vec::new();
    };
    let known: &[(&[&str], char, &str, &str)] = match &*params.system.manager {
        "slurm" => &[
            (&["time"], 't', "--time", "--time-limit"),
            (&["nodes"], 'N', "--nodes", "--max-workers-per-alloc"),
            (&["job-name"], 'J', "--job-name", "--name"),
        ],
        "pbs" => &[(&[], 'N', "-N", "--name")],
        _ => &[],
    };
    let found = known
        .iter()
        .filter(|(long, short, ..)| params.option(long, *short).is_some());
    found.map(|(_, _, option, ours)| (*option, *ours)).collect()
}

/// Returns an option after `--` that belongs to another batch system, with its owner and what to
/// use instead.
pub(super) fn foreign(spec: &AllocQueueSpec) -> Option<(String, &'static str)> {
    let words = || spec.additional_args.iter();
    let manager = spec.system.as_ref().map_or("", |system| &system.manager);
    if let Some(first) = words().next().filter(|word| !word.starts_with('-')) {
        return Some((
            first.clone(),
            "no batch system: options begin with a hyphen, such as `-p NAME`",
        ));
    }
    match manager {
        // PBS options start with one hyphen, with these exceptions.
        "pbs" => words()
            .find(|word| word.starts_with("--") && !matches!(word.as_str(), "--version" | "--"))
            .map(|word| {
                (
                    word.clone(),
                    "Slurm; PBS has `-q QUEUE`, `-A ACCOUNT` and `-l NAME=AMOUNT`",
                )
            }),
        "slurm" => words()
            .zip(words().skip(1).map(Some).chain([None]))
            .find(|(word, next)| {
                word.starts_with("-l")
                    && (word.contains('=') || next.is_some_and(|next| next.contains('=')))
            })
            .map(|(word, _)| {
                (
                    word.clone(),
                    "PBS; Slurm has `--mem=8G`, `--gres=gpu:1` and `--partition=NAME`",
                )
            }),
        _ => None,
    }
}

/// Returns the resources that both the script and the arguments after `--` request from PBS. PBS
/// silently uses the first of the two.
pub(super) fn asked_twice(system: &SystemSpec, arguments: &[String]) -> Vec<String> {
    if &*system.manager != "pbs" {
        return Vec::new();
    }
    let lines = system.script.lines();
    let words: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("#PBS "))
        .flat_map(str::split_whitespace)
        .collect();
    let in_script = resources(&words);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut twice = resources(&words);
    twice.retain(|name| in_script.contains(name));
    twice.into_iter().map(str::to_owned).collect()
}

/// Returns the names in `-l name=value,…`.
fn resources<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix("-l") else {
            continue;
        };
        let list = if rest.is_empty() {
            words.next().copied().unwrap_or_default()
        } else {
            rest
        };
        let named = list.split(',').filter_map(|item| item.split_once('='));
        names.extend(named.map(|(name, _)| name.trim()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::alloc::TemplateName;
    use crate::batch_system;

    fn spec() -> AllocQueueSpec {
        let system = batch_system::built_in(TemplateName::Pbs).expect("it is valid");
        AllocQueueSpec {
            system: Some((&system).into()),
            time_limit_ns: 1_000_000_000,
            backlog: 1,
            max_workers_per_alloc: 1,
            ..AllocQueueSpec::default()
        }
    }

    #[test]
    fn options_are_named_and_not_fields() {
        type Change = fn(&mut AllocQueueSpec);
        let changes: [(&str, Change); 3] = [
            ("--time-limit", |spec| spec.time_limit_ns = 0),
            ("--name", |spec| spec.name = Some("a b".to_owned())),
            ("--worker-start-cmd", |spec| {
                spec.start_command = Some("a\nb".to_owned());
            }),
        ];
        assert!(check(&spec()).is_ok());
        for (option, change) in changes {
            let mut spec = spec();
            change(&mut spec);
            let error = check(&spec).expect_err(option);
            let text = error.text().expect("it says why");
            assert!(text.contains(option) && !text.contains("field"), "{text}");
        }
    }

    #[test]
    fn options_that_cannot_work_or_contradict_are_noticed() {
        for (name, words, refused, warned) in [
            (TemplateName::Slurm, "--array=1-3", Some("--array"), vec![]),
            (TemplateName::Slurm, "-a 1-3", Some("--array"), vec![]),
            (TemplateName::Slurm, "--wait", Some("--wait"), vec![]),
            (TemplateName::Slurm, "-p x --time=5", None, vec!["--time"]),
            (
                TemplateName::Slurm,
                "-N2 -J x",
                None,
                vec!["--nodes", "--job-name"],
            ),
            (TemplateName::Slurm, "--account a --exclusive", None, vec![]),
            (
                TemplateName::Pbs,
                "-l select=2",
                Some("-l select=…"),
                vec![],
            ),
            (TemplateName::Pbs, "-J 1-3", Some("-J"), vec![]),
            (TemplateName::Pbs, "-q x -l walltime=1:00", None, vec![]),
            (TemplateName::Pbs, "-N mine", None, vec!["-N"]),
        ] {
            let system = batch_system::built_in(name).expect("it is valid");
            let spec = AllocQueueSpec {
                system: Some((&system).into()),
                additional_args: words.split(' ').map(str::to_owned).collect(),
                ..spec()
            };
            assert_eq!(
                impossible(&spec).map(|(option, _)| option),
                refused,
                "{words}"
            );
            let found: Vec<_> = contradictions(&spec)
                .into_iter()
                .map(|(option, _)| option)
                .collect();
            assert_eq!(found, warned, "{words}");
        }
    }

    #[test]
    fn options_of_the_other_system_are_noticed() {
        for (name, words, expected) in [
            (TemplateName::Pbs, "--partition=x", Some("--partition=x")),
            (TemplateName::Pbs, "-q x -l walltime=1:00", None),
            (TemplateName::Slurm, "-l walltime=1:00", Some("-l")),
            (TemplateName::Slurm, "-lselect=1", Some("-lselect=1")),
            (TemplateName::Slurm, "-p x --mem=4G -l", None),
            (TemplateName::Slurm, "gpu", Some("gpu")),
        ] {
            let system = batch_system::built_in(name).expect("it is valid");
            let spec = AllocQueueSpec {
                system: Some((&system).into()),
                additional_args: words.split(' ').map(str::to_owned).collect(),
                ..spec()
            };
            let found = foreign(&spec).map(|(option, _)| option);
            assert_eq!(found.as_deref(), expected, "{words}");
        }
    }

    #[test]
    fn resources_that_the_script_has_already_are_noticed() {
        let twice = |name, words: &[&str]| {
            let system = batch_system::built_in(name).expect("it is valid");
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            asked_twice(&system, &words)
        };
        let pbs = TemplateName::Pbs;
        assert_eq!(
            twice(pbs, &["-q", "x", "-l", "select=2:ncpus=4"]),
            ["select"]
        );
        assert_eq!(twice(pbs, &["-lplace=excl,walltime=1:00"]), ["walltime"]);
        let empty: [&str; 0] = [];
        assert_eq!(twice(pbs, &["-l", "place=scatter:excl"]), empty);
        assert_eq!(twice(TemplateName::PbsNodes, &["-l", "nodes=2"]), ["nodes"]);
        assert_eq!(twice(TemplateName::Slurm, &["-l", "select=2"]), empty);
    }
}
