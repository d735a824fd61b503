//! `cargo xtask`: development tasks that only need cargo.

#![forbid(unsafe_code)]

mod commits;
mod dist;
mod mutants;
mod profiles;
mod rust_text;
mod sim;
mod site;
mod size;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  size [CRATE]  count code and comments, by crate or by module of one; the total is what is shipped
  mutants       break decision code on purpose, a place at a time, and see whether tests notice; takes a minute each
                  --count N       so many places [default: 36]
                  --seed N        another sample [default: 1]
                  --only PART     of files or functions with this in their names; can be given several times
                  --list          only say which
  sim …         play simulated worlds: run seeds, record, replay, shrink and explain one; without a word it says how
  tidy          check the rules of the code base that neither compiler nor clippy knows
  commits       check the subjects of the commits that are not on the main branch
  site          build the manual as a site in target/site, and check its links; needs Zensical
  dist          make everything that is shipped: tarballs, wheels, packages, image, checksums, list of contents
                  --short         only tarball, wheel and deb for x86-64
                  --target TRIPLE only for this target of Rust
                  --profile NAME  with another Cargo profile, for a quicker build [default: dist]
                  --program FILE  pack this program for this machine and build none, to test the packing
  profiles      run the tests of processes and those of the whole program where the kernel is old: what it lacks is taken
                away; needs root
                  --short         a few of them
                  --only NAME     on this kernel, such as linux-4.18
                  --run NAME -- COMMAND…  no tests: run this command there
";

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["size"] => run_size(None),
        ["size", package] => run_size(Some(package)),
        ["tidy"] => Ok(report("tidy", &tidy::check(&tidy::workspace_root()?)?)),
        ["commits"] => Ok(report(
            "commits",
            &commits::check(&tidy::workspace_root()?)?,
        )),
        ["dist", options @ ..] => {
            let Some(options) = dist::Options::parse(options) else {
                return Ok(misused());
            };
            dist::dist(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        ["profiles", options @ ..] => {
            let Some(task) = profiles::Task::parse(options) else {
                return Ok(misused());
            };
            let is_good = profiles::profiles(&task)?;
            Ok(code_of(is_good))
        }
        ["mutants", options @ ..] => {
            let Some(options) = mutants::Options::parse(options) else {
                return Ok(misused());
            };
            let is_good = mutants::mutants(&tidy::workspace_root()?, &options)?;
            Ok(code_of(is_good))
        }
        ["site"] => {
            let out = site::site(&tidy::workspace_root()?, "zensical".as_ref())?;
            print(&format!("{}: all links lead somewhere\n", out.display()));
            Ok(ExitCode::SUCCESS)
        }
        ["sim", args @ ..] => sim::sim(args),
        ["-h" | "--help"] => {
            print(USAGE);
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(misused()),
    }
}

const fn code_of(is_good: bool) -> ExitCode {
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_size(package: Option<&str>) -> anyhow::Result<ExitCode> {
    print(&size::table(&tidy::workspace_root()?, package)?);
    Ok(ExitCode::SUCCESS)
}

fn misused() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
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
