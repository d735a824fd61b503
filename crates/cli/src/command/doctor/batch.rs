//! Checks batch systems: whether their commands exist, and whether the daemon answers.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use hq_core::batch::SystemSpec;

use super::check::{Check, State};
use super::limited::{Limited, LimitedError, Output};
use crate::args::alloc::TemplateName;
use crate::batch_system;

/// The time limit for an answer. The server itself waits longer.
const LIMIT: Duration = Duration::from_secs(4);

/// The commands that check a batch system.
struct System {
    name: &'static str,
    template: TemplateName,
    /// The command that prints the release without contacting a daemon.
    version: &'static [&'static str],
    /// The command that queries the daemon. If the description runs programs through `sh -c`, the
    /// check cannot find them, so this command runs one of them.
    alive: &'static [&'static str],
}

const SLURM: System = System {
    name: "Slurm",
    template: TemplateName::Slurm,
    version: &["sbatch", "--version"],
    alive: &["scontrol", "ping"],
};
const PBS: System = System {
    name: "PBS",
    template: TemplateName::Pbs,
    version: &["qstat", "--version"],
    alive: &["qstat", "-B"],
};
const GRID_ENGINE: System = System {
    name: "Grid Engine",
    template: TemplateName::Sge,
    version: &["qstat", "-help"],
    alive: &["qstat"],
};

/// Runs a program and returns its output, or `None` if the program does not exist.
type Run<'a> = &'a dyn Fn(&[&str]) -> Result<Output, LimitedError>;

/// Returns all checks of batch systems.
pub(super) fn checks() -> Vec<Check> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_here = |program: &str| directories.iter().any(|dir| dir.join(program).is_file());
    // Grid Engine uses the command names of PBS; this variable distinguishes it.
    let is_grid_engine = std::env::var_os("SGE_ROOT").is_some();
    judge(&is_here, is_grid_engine, &run)
}

fn run(words: &[&str]) -> Result<Output, LimitedError> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    Limited::start(command, true, LIMIT)?.finish()
}

fn judge(is_here: &dyn Fn(&str) -> bool, is_grid_engine: bool, run: Run<'_>) -> Vec<Check> {
    let with_q = if is_grid_engine { &GRID_ENGINE } else { &PBS };
    let mut checks = Vec::new();
    for system in [&SLURM, with_q] {
        checks.extend(judge_system(system, is_here, run));
    }
    if checks.is_empty() {
        checks.push(State::Unknown.check(
            "batch system",
            "neither sbatch nor qsub is in PATH",
            "Only `hq alloc` needs a batch system. On a cluster, load its module, or start the server on a login node.",
        ));
    }
    checks
}

fn judge_system(system: &System, is_here: &dyn Fn(&str) -> bool, run: Run<'_>) -> Option<Check> {
    let what = format!("batch system {}", system.name);
    let description = match batch_system::built_in(system.template) {
        Ok(description) => description,
        Err(error) => {
            let text = error.text().unwrap_or_default();
            return Some(State::Broken.check(what, text, "Install hq again."));
        }
    };
    let (here, missing): (Vec<_>, Vec<_>) = programs(&description)
        .into_iter()
        .partition(|program| is_here(program));
    if here.is_empty() {
        return None;
    }
    if !missing.is_empty() {
        return Some(State::Poor.check(
            what,
            format!(
                "{} in PATH, but not {}",
                here.join(", "),
                missing.join(", ")
            ),
            "`hq alloc` needs all of them where the server runs. Load the module, or add their directory to PATH.",
        ));
    }
    let version = match run(system.version) {
        Ok(output) => first_line(&output.text),
        Err(error) => error.to_string(),
    };
    let asked = system.alive.join(" ");
    let problem = match run(system.alive) {
        Ok(output) if output.is_success => {
            return Some(Check::good(what, format!("{version}; `{asked}` works")));
        }
        Ok(output) => first_line(&output.text),
        Err(error) => error.to_string(),
    };
    Some(State::Poor.check(
        what,
        format!("{version}; `{asked}`: {problem}"),
        "`hq alloc` cannot request nodes from here, because the commands cannot reach their server. Try the command by hand, and start the server on a machine where it works.",
    ))
}

/// Returns the program of each command, ignoring the shell that runs some of them.
fn programs(system: &SystemSpec) -> Vec<String> {
    let commands = [&system.submit, &system.status, &system.cancel, &system.find];
    let mut programs: Vec<String> = Vec::new();
    for command in commands {
        let first = command.0.first().and_then(|words| words.words.first());
        let first = first.map(ToString::to_string);
        if let Some(program) =
            first.filter(|program| program != "sh" && !programs.contains(program))
        {
            programs.push(program);
        }
    }
    programs
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("no answer").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(is_success: bool, text: &str) -> Result<Output, LimitedError> {
        Ok(Output {
            is_success,
            text: text.to_owned(),
        })
    }

    #[test]
    fn nothing_is_asked_where_there_is_no_batch_system() {
        let checks = judge(&|_| false, false, &|words| panic!("{words:?} is run"));
        assert_eq!((checks.len(), checks[0].state), (1, State::Unknown));
    }

    #[test]
    fn a_batch_system_that_answers_is_good() {
        let is_slurm =
            |program: &str| ["sbatch", "scontrol", "scancel", "squeue"].contains(&program);
        let checks = judge(&is_slurm, false, &|words| match words {
            ["sbatch", "--version"] => answer(true, "slurm 23.02.6\n"),
            ["scontrol", "ping"] => answer(true, "Slurmctld(primary) at c1 is UP\n"),
            other => panic!("{other:?} is run"),
        });
        let expected = Check::good("batch system Slurm", "slurm 23.02.6; `scontrol ping` works");
        assert_eq!(checks, [expected]);
        let partly = judge(&|program| program == "sbatch", false, &|_| answer(true, ""));
        assert_eq!(
            partly[0].found,
            "sbatch in PATH, but not scontrol, scancel, squeue"
        );
    }

    #[test]
    fn a_silent_daemon_is_told() {
        let is_pbs = |program: &str| ["qsub", "qstat", "qselect", "qdel"].contains(&program);
        let checks = judge(&is_pbs, false, &|words| match words {
            ["qstat", "--version"] => answer(true, "pbs_version = 22.05.11\n"),
            _ => Err(LimitedError::Timeout(LIMIT)),
        });
        assert_eq!((checks.len(), checks[0].state), (1, State::Poor));
        assert_eq!(
            checks[0].found,
            "pbs_version = 22.05.11; `qstat -B`: no answer within 4 s"
        );
        let refused = judge(&is_pbs, true, &|_| {
            answer(false, "\ncannot reach qmaster\n")
        });
        assert!(refused[0].what.ends_with("Grid Engine"));
        assert!(
            refused[0].found.ends_with("`qstat`: cannot reach qmaster"),
            "{refused:?}"
        );
    }
}
