//! `hq import`.

use clap::Parser as _;
use hq_core::words::has_word;
use serde_json::json;

use super::{Context, as_client, submit};
use crate::args::deferred::Deferred;
use crate::args::global::OutputMode;
use crate::args::import::ImportArgs;
use crate::args::{Cli, Command};
use crate::error::{CliError, CliResult};
use crate::import::{Conversion, Source, convert, converted, submit_words};
use crate::output::console::error_line;
use crate::submit::{read_all, read_stdin, unreadable};
use crate::text::shell_text;

/// The maximum size of a script in bytes.
const SCRIPT_MAX: usize = 4 << 20;

/// Translates a script for a batch system, then prints or submits the result.
pub(super) fn run(args: &ImportArgs, context: &mut Context) -> CliResult<()> {
    let shown = args.script.display().to_string();
    refuse_misplaced(&shown, &args.args, args.submit)?;
    let bytes = if shown == "-" {
        read_stdin()?
    } else {
        let file = std::fs::File::open(&args.script);
        let file = file.map_err(|error| unreadable(&args.script, &error))?;
        read_all(&shown, file, SCRIPT_MAX)?
    };
    if bytes.trim_ascii().is_empty() {
        let error = CliError::new(format!("{shown} is empty"));
        return Err(if shown == "-" {
            error
        } else {
            error.with_help(format!(
            "with `> {shown}`, the shell empties the file before hq reads it: restore the script, and write to another file, as in `hq import {shown} > new.sh`"
        ))
        });
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        CliError::new(format!(
            "Cannot read {shown}: expected a script in UTF-8, found other bytes"
        ))
    })?;
    let name = args.script.file_name().filter(|_| shown != "-");
    let name = name.map_or_else(
        || "stdin".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let source = Source {
        name: &name,
        text: &text,
        options: args.options.as_deref().unwrap_or_default(),
        system: args.system,
    };
    let conversion = convert(source)?;
    if args.submit {
        let (words, script) = submit_words(source, &conversion, &args.args);
        for note in &conversion.notes {
            tracing::warn!("{name}: {note}");
        }
        return submit_now(words, script, context);
    }
    print(source, &conversion, context)
}

/// Rejects arguments of a script that is not submitted, and options of a batch system, unless `--`
/// marks them as arguments.
fn refuse_misplaced(script: &str, args: &[String], is_submit: bool) -> CliResult<()> {
    const OPTIONS: &str = "--array --time --partition --account --qos --ntasks --cpus-per-task --mem --mem-per-cpu --nodes \
        --gres --gpus --constraint --dependency --job-name --exclusive --wait";
    let is_meant = is_submit && std::env::args_os().any(|word| word == "--");
    let is_option = |word: &String| {
        has_word(OPTIONS, word.split('=').next().unwrap_or(word))
            || !is_submit && word.starts_with('-')
    };
    let has_options = args.iter().any(is_option);
    if args.is_empty() || is_meant || is_submit && !has_options {
        return Ok(());
    }
    let typed = args.join(" ");
    let text = format!("the first word, `{script}`, is the script, and `{typed}` its argument");
    let submit = if is_submit { "--submit " } else { "" };
    let mut help = format!("arguments need `--submit`: `hq import --submit {script} -- {typed}`");
    if has_options {
        let options = format!("`hq import {submit}--options '{typed}' {script}`");
        help = format!("options of the job precede it: {options}; {help}");
    }
    Err(CliError::new(text).with_help(help))
}

/// Submits as if the user had typed the arguments.
fn submit_now(words: Vec<String>, script: String, context: &mut Context) -> CliResult<()> {
    tracing::debug!("hq {}", shell_text(&words));
    let typed = std::iter::once("hq".to_owned()).chain(words);
    let cli = Cli::try_parse_from(typed).map_err(|error| {
        let text = error.to_string();
        CliError::new(format!(
            "The script cannot be submitted: {}",
            text.trim_start_matches("error: ").trim_end()
        ))
        .with_help("`hq import SCRIPT` without `--submit` prints it, to be corrected")
    })?;
    let Some(Command::Submit(Deferred(args))) = cli.command else {
        return Err(CliError::new(
            "The script's options do not form a `hq submit` command",
        ));
    };
    as_client(submit::submit_given(
        *args,
        Some(script.into_bytes()),
        context,
    ))
}

fn print(source: Source<'_>, conversion: &Conversion, context: &mut Context) -> CliResult<()> {
    use std::io::Write as _;
    let script = converted(source, conversion);
    let mut command = vec!["hq".to_owned(), "submit".to_owned()];
    command.extend(conversion.outer().flatten().cloned());
    if context.mode() == OutputMode::Json {
        let value = json!({
            "system": conversion.system.label().to_lowercase(),
            "lines": conversion.line_count,
            "script": script,
            "submit": command,
            "notes": conversion.notes,
        });
        return Ok(crate::output::json::write_value(&mut context.out, &value)?);
    }
    context.out.data().write_all(script.as_bytes())?;
    context.flush()?;
    if context.mode() == OutputMode::Cli {
        for note in &conversion.notes {
            tracing::warn!("{}: {note}", source.name);
        }
        let command = shell_text(&command);
        error_line(&format!(
            "Save this as a `.sh` file and submit it with `{command} FILE.sh`, or run `hq import --submit` at once."
        ));
    }
    Ok(())
}
