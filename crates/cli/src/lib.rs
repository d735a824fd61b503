//! The `hq` binary: start-up, and the end with the right exit code.
//!
//! Everything else is in modules: [`args`] says what can be written, [`command`] does it,
//! [`output`] prints it. See `docs/architecture.md`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

mod args;
mod batch_system;
mod client;
mod command;
mod config;
mod dashboard;
mod error;
mod failures;
mod import;
mod logging;
mod memory;
mod output;
mod pages;
mod parse;
mod report;
mod runtime;
mod signals;
mod submit;
mod text;
mod version;

use args::global::OutputMode;
use args::{Cli, Command};
use command::Context;
use error::{CliError, CliResult, exit};

/// Runs the command line of this process to its end.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything waits for a child: with SIGCHLD ignored, as some parents leave it, no exit
    // status is kept.
    let _ = hq_spawn::keep_zombies();
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

/// With what the files of the user and of the site say, where that matters.
fn configured(cli: Cli, words: Vec<OsString>) -> CliResult<Cli> {
    // The manual says what to write into a file that makes no sense.
    if cli.version || cli.command.as_ref().is_none_or(Command::is_about_itself) {
        return Ok(cli);
    }
    config::apply(cli, words)
}

/// Reads a job file as `hq job submit-file` does, for fuzzing; the error is what people see.
///
/// # Errors
///
/// If the file is refused.
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
    match command.incomplete_group() {
        Some(group) => Err(incomplete(Some(group))),
        None => command::run(command, context),
    }
}

/// Help of the part whose subcommand is missing.
fn incomplete(group: Option<&str>) -> CliError {
    let mut root = args::built_command();
    let help = match group.and_then(|name| root.find_subcommand_mut(name)) {
        Some(command) => command.render_help(),
        None => root.render_help(),
    };
    output::console::error_line(help.to_string().trim_end());
    CliError::Told(exit::USAGE)
}

/// Help and problems of the command line, which are texts in every output mode.
fn usage(error: clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
    if error.use_stderr() {
        let words: Vec<_> = std::env::args_os().collect();
        let text = args::explain::text(error, &words);
        output::console::error_styled(&text::cut_lines(text));
    } else {
        // A failure has no place where it could be reported.
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
            // Output before the failure stays; if writing fails, too, nobody is reading.
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

/// A bug ends the process at once, with a request to report it.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        output::console::error_line(&format!(
            "hq {} has crashed: {info}\nThis is a bug. Please report it together with the lines above and the command.",
            version::VERSION
        ));
        std::process::abort();
    }));
}
