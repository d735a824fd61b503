//! Checks of a queue before the server hears of it, in the words of the options.

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

/// Resources of PBS that the script asks for already and that are asked for again after `--`: PBS takes
/// the first of both without a word.
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

/// Names in `-l name=value,…`.
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
