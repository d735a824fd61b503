//! `cargo xtask`: development tasks that need nothing but cargo.

#![forbid(unsafe_code)]

mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  tidy    check the rules of the code base that neither compiler nor clippy knows
";

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => run_tidy(),
        ["-h" | "--help"] => {
            print(USAGE);
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprint!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}

fn run_tidy() -> anyhow::Result<ExitCode> {
    let problems = tidy::check(&tidy::workspace_root()?)?;
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        print("tidy: all rules hold\n");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: {} rules broken", problems.len());
    Ok(ExitCode::FAILURE)
}

#[expect(clippy::print_stdout, reason = "the only place that talks to people")]
fn print(text: &str) {
    print!("{text}");
}
