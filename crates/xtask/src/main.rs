//! `cargo xtask`: development tasks that only need cargo.

#![forbid(unsafe_code)]

mod commits;
mod dist;
mod mutants;
mod profiles;
mod rust_text;
mod shell;
mod sim;
mod site;
mod size;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// Development tasks that only need cargo.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Task {
    /// Count code and comments, by crate or by module of one; the total is what is shipped.
    Size {
        #[arg(value_name = "CRATE")]
        package: Option<String>,
    },
    Mutants(mutants::Options),
    /// Play simulated worlds: run seeds, record, replay, shrink and explain one; without a word it
    /// says how.
    #[command(disable_help_flag = true)]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Check the rules of the code base that neither compiler nor clippy knows.
    Tidy,
    /// Check the subjects of the commits that are not on the main branch.
    Commits,
    /// Build the manual as a site in target/site, and check its links; needs Zensical.
    Site,
    Dist(dist::Options),
    Profiles(profiles::Options),
}

impl Task {
    fn run(&self, root: &Path) -> anyhow::Result<ExitCode> {
        match self {
            Self::Size { package } => print(&size::table(root, package.as_deref())?),
            Self::Tidy => return Ok(report("tidy", &tidy::check(root)?)),
            Self::Commits => return Ok(report("commits", &commits::check(root)?)),
            Self::Dist(options) => dist::dist(options)?,
            Self::Profiles(options) => return Ok(code_of(profiles::profiles(options)?)),
            Self::Mutants(options) => return Ok(code_of(mutants::mutants(root, options)?)),
            Self::Site => {
                let out = site::site(root, "zensical".as_ref())?;
                print(&format!("{}: all links lead somewhere\n", out.display()));
            }
            Self::Sim { args } => return sim::sim(args),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    let task = Task::parse();
    let code = tidy::workspace_root().and_then(|root| task.run(&root));
    code.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

const fn code_of(is_good: bool) -> ExitCode {
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(task: &str, problems: &[impl std::fmt::Display]) -> ExitCode {
    for problem in problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        print(&format!("{task}: all rules hold\n"));
    } else {
        eprintln!("{task}: {} rules broken", problems.len());
    }
    code_of(problems.is_empty())
}

#[expect(clippy::print_stdout, reason = "the only place that talks to people")]
fn print(text: &str) {
    print!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent_and_sim_gets_all_words() {
        <Task as clap::CommandFactory>::command().debug_assert();
        let words = ["cargo", "sim", "--help", "run", "--seed", "1"];
        let task = Task::try_parse_from(words).expect("valid");
        assert!(matches!(task, Task::Sim { args } if args == words[2..]));
        let words = ["cargo", "profiles", "--run=linux-4.18", "--", "true", "-x"];
        let task = Task::try_parse_from(words).expect("valid");
        assert!(matches!(task, Task::Profiles(options) if options.command == words[4..]));
    }
}
