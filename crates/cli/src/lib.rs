//! The `hq` binary: startup, and the exit code.
//!
//! Everything else is in modules: [`args`] defines the command line, [`command`] runs it, and
//! [`output`] prints results. See `docs/architecture.md`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

mod args;
mod batch_system;
mod client;
mod command;
mod config;
mod error;
mod failures;
mod import;
mod logging;
mod memory;
mod output;
mod pages;
mod parse;
mod runtime;
mod script_system;
mod signals;
mod source;
mod submit;
mod text;
mod version;

use args::global::OutputMode;
use args::{Cli, Command};
use command::Context;
use error::{CliError, CliResult, exit};

/// Runs the command line of this process until it ends.
#[must_use]
pub fn main() -> ExitCode {
    // Errors are ignored here: a launcher tries again and reports them.
    let _ = hq_spawn::prepare_process();
    abort_on_panic();
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return usage(args::bytes::explained(error, words.into_iter())),
    };
    let global = cli.global.clone();
    let cli = match configured(cli, words) {
        Ok(cli) => cli,
        Err(error) => return fail(&error, &mut Context::new(global)),
    };
    let mut context = Context::new(cli.global.clone());
    let mut result = run(cli, &mut context);
    if result.is_ok() {
        result = context.flush();
    }
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => fail(&error, &mut context),
    }
}

/// Adds the settings of the user's and the site's files, where they apply.
fn configured(cli: Cli, words: Vec<OsString>) -> CliResult<Cli> {
    // These commands must work even with a broken settings file, because the manual explains how to
    // fix it.
    if cli.version || cli.command.as_ref().is_none_or(Command::is_about_itself) {
        return Ok(cli);
    }
    config::apply(cli, words)
}

/// Parses a job file like `hq job submit-file`, for fuzzing. Returns the error that users would
/// see.
///
/// # Errors
///
/// Returns an error if the file is invalid.
#[doc(hidden)]
pub fn check_job_file(content: &str) -> Result<(), String> {
    submit::check_job_file(content).map_err(|error| error.text().unwrap_or_default())
}

fn run(cli: Cli, context: &mut Context) -> CliResult<()> {
    if cli.version {
        use std::io::Write as _;
        return Ok(context
            .out
            .write_all(version::text(cli.verbose).as_bytes())?);
    }
    let Some(command) = cli.command else {
        return Err(incomplete(None));
    };
    command::run(command, context)
}

/// Returns the help for a group of commands whose subcommand is missing.
fn incomplete(group: Option<&str>) -> CliError {
    let mut root = args::built_command();
    let help = match group.and_then(|name| root.find_subcommand_mut(name)) {
        Some(command) => command.render_help(),
        None => root.render_help(),
    };
    output::console::error_line(help.to_string().trim_end());
    CliError::AlreadyReported(exit::USAGE)
}

/// Prints help and errors of the command line as text, in every output mode.
fn usage(error: clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
    if error.use_stderr() {
        let words: Vec<_> = std::env::args_os().collect();
        let text = args::explain::text(error, &words);
        output::console::error_styled(&text::cut_lines(text));
    } else {
        // An error while printing cannot be reported.
        let _ = error.print();
    }
    ExitCode::from(code)
}

fn fail(error: &CliError, context: &mut Context) -> ExitCode {
    if let CliError::Usage(text) = error {
        output::console::error_line(text);
    }
    if let Some(text) = error.text() {
        if context.mode() == OutputMode::Json {
            let value = serde_json::json!({ "error": text });
            // Keeps the output from before the failure. If writing fails too, the reader has ended.
            let _ = output::json::write_value(&mut context.out, &value);
        }
        let _ = context.flush();
        if context.mode() != OutputMode::Json {
            output::console::error_line(&text);
        }
        if let (OutputMode::Cli, Some(drawing)) = (context.mode(), error.drawing()) {
            output::console::error_line(drawing);
        }
        if let (OutputMode::Cli, Some(help)) = (context.mode(), error.help()) {
            output::console::error_line(&format!("\nhelp: {help}"));
        }
    }
    ExitCode::from(error.exit_code())
}

/// Makes a panic abort the process, with a request to report the bug.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        output::console::error_line(&format!(
            "hq {} has crashed: {info}\nThis is a bug. Please report it together with the lines above and the command.",
            version::VERSION
        ));
        std::process::abort();
    }));
}
