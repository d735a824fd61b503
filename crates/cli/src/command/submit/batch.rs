//! `hq submit -`: reads a JSON object per line and prints a result per line, over one connection.
//!
//! The keys of an object are the options of `hq submit`, plus `command`. The same parser reads
//! them, so both ways accept the same values.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read, Write};
use std::os::fd::AsFd;

use clap::{CommandFactory, FromArgMatches, Parser};
use hq_protocol::client;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::prepare;
use crate::args::submit::SubmitArgs;
use crate::client::Client;
use crate::command::Context;
use crate::error::{CliError, CliResult, exit};
use crate::output::console::error_line;
use crate::submit::exact_json;

/// The maximum length of a line in bytes. Larger data belongs in a file with entries.
const LINE_MAX: usize = 64 << 20;

/// The maximum number of lines that are submitted together.
const BATCH_MAX: usize = 256;

/// The number of bytes that are read at once.
const BUFFER_LEN: usize = 1 << 16;

/// Options that are invalid for a single submit of a batch.
const REFUSED: [&str; 5] = ["wait", "progress", "on-notify", "stdin", "dry-run"];

/// The options of one line.
#[derive(Parser)]
#[command(name = "hq submit", no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    args: SubmitArgs,
}

/// Submits lines until standard input ends. The exit code says whether a line was rejected.
///
/// Lines that arrive together are sent and stored together. A program that writes a line and waits
/// for its result gets it immediately.
pub(super) async fn run(client: &mut Client, context: &mut Context) -> CliResult<()> {
    let mut parser = Line::command();
    let mut input = Input::new()?;
    let mut batch = Batch::default();
    while let Some(line) = input.next_line()? {
        if !line.iter().all(u8::is_ascii_whitespace) {
            batch.add(&mut parser, line, client, context).await?;
        }
        if batch.refusals.len() >= BATCH_MAX || !input.has_line() {
            batch.send(client, context).await?;
        }
    }
    batch.send(client, context).await?;
    if batch.has_refused {
        return Err(CliError::AlreadyReported(exit::FAILURE));
    }
    Ok(())
}

/// Standard input, read line by line.
struct Input {
    reader: BufReader<File>,
    line: Vec<u8>,
}

impl Input {
    fn new() -> CliResult<Self> {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|e| cannot_read(&e))?;
        if std::io::stdin().is_terminal() {
            error_line("Reading submits from standard input, one on each line; Ctrl-D ends them");
        }
        Ok(Self {
            reader: BufReader::with_capacity(BUFFER_LEN, File::from(stdin)),
            line: Vec::new(),
        })
    }

    fn next_line(&mut self) -> CliResult<Option<&[u8]>> {
        self.line.clear();
        let limit = LINE_MAX as u64 + 1;
        let mut limited = Read::take(&mut self.reader, limit);
        let read = limited.read_until(b'\n', &mut self.line);
        if read.map_err(|e| cannot_read(&e))? == 0 {
            return Ok(None);
        }
        if self.line.len() > LINE_MAX {
            return Err(CliError::new(format!(
                "Expected lines of at most {LINE_MAX} bytes, found a longer one; use --each-line for many entries"
            )));
        }
        Ok(Some(&self.line))
    }

    /// Returns whether another line is already available.
    fn has_line(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }
}

fn cannot_read(error: &std::io::Error) -> CliError {
    CliError::caused("Cannot read standard input", error)
}

/// Lines that were read but not answered yet.
#[derive(Default)]
struct Batch {
    /// The error of each line, in order. `None` for a valid line, which is in `submits`.
    refusals: Vec<Option<String>>,
    submits: Vec<client::Submit>,
    has_refused: bool,
}

impl Batch {
    async fn add(
        &mut self,
        parser: &mut clap::Command,
        line: &[u8],
        client: &mut Client,
        context: &mut Context,
    ) -> CliResult<()> {
        let prepared = match parse(parser, line) {
            Ok(args) => {
                let is_behind = !args.after.is_empty() || args.after_each.is_some();
                if is_behind || args.learn_from.is_some() {
                    // `last` refers to the job of the previous line.
                    self.send(client, context).await?;
                }
                prepare(args, None, client).await
            }
            Err(error) => Err(error),
        };
        self.refusals.push(match prepared {
            Ok(prepared) => {
                prepared.report();
                self.submits.push((&prepared.spec).into());
                None
            }
            Err(error) => Some(refusal(error, client)?),
        });
        Ok(())
    }

    /// Submits the collected lines and prints their results.
    async fn send(&mut self, client: &mut Client, context: &mut Context) -> CliResult<()> {
        let submits = std::mem::take(&mut self.submits);
        let mut results = submit_all(submits, client).await?.into_iter();
        for refusal in std::mem::take(&mut self.refusals) {
            let result = match refusal {
                None => results
                    .next()
                    .unwrap_or_else(|| Err("The server did not answer".to_owned())),
                Some(text) => Err(text),
            };
            let answer = match result {
                Ok(job) => json!({ "id": job }),
                Err(text) => {
                    self.has_refused = true;
                    json!({ "error": text })
                }
            };
            writeln!(context.out, "{answer}")?;
        }
        context.flush()
    }
}

/// Returns an id or a rejection for each submit.
async fn submit_all(
    submits: Vec<client::Submit>,
    client: &mut Client,
) -> CliResult<Vec<Result<u32, String>>> {
    if let Some(limited) = submits.iter().find(|submit| submit.limits.is_some()) {
        client.check_limits(limited).await?;
    }
    if submits.len() > 1 {
        match client
            .ask(client::SubmitAll {
                submits: submits.clone(),
            })
            .await
        {
            Ok(all) => return Ok(all.results.into_iter().map(from_message).collect()),
            // One of the submits is invalid, and the other submits must not fail with it.
            Err(error) => drop(refusal(error, client)?),
        }
    }
    let mut results = Vec::with_capacity(submits.len());
    for submit in submits {
        results.push(match client.submit(submit).await {
            Ok(job) => Ok(job),
            Err(error) => Err(refusal(error, client)?),
        });
    }
    Ok(results)
}

fn from_message(result: client::SubmitResult) -> Result<u32, String> {
    use client::submit_result::Result as Wire;
    match result.result {
        Some(Wire::Job(job)) => Ok(job),
        Some(Wire::Refused(text)) => Err(text),
        None => Err("Unexpected answer from the server".to_owned()),
    }
}

/// Returns the text of a rejection. A lost connection rejects every line, so it is reported once,
/// as an error.
fn refusal(error: CliError, client: &Client) -> CliResult<String> {
    if client.is_lost() {
        return Err(error);
    }
    Ok(error.text().unwrap_or_default())
}

fn parse(parser: &mut clap::Command, line: &[u8]) -> CliResult<SubmitArgs> {
    let words = words(&object(line)?)?;
    let matches = parser
        .try_get_matches_from_mut(words)
        .and_then(|matches| Line::from_arg_matches(&matches));
    let line = matches.map_err(|error| CliError::new(one_line(&error.to_string())))?;
    Ok(line.args)
}

/// Returns an error of a command line in a single line.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let is_about_it = |line: &&str| {
        !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more information")
    };
    let lines: Vec<&str> = lines.filter(is_about_it).collect();
    lines.join("; ")
}

fn object(line: &[u8]) -> CliResult<Map<String, Value>> {
    let invalid = |problem: String| CliError::new(format!("Expected a JSON object: {problem}"));
    let value: &RawValue =
        serde_json::from_slice(line).map_err(|error| invalid(error.to_string()))?;
    let Value::Object(object) = exact_json::with_numbers_as_texts(value).map_err(invalid)? else {
        return Err(CliError::new(
            "Expected a JSON object, found something else",
        ));
    };
    Ok(object)
}

/// Converts the object to the words of a command line.
fn words(object: &Map<String, Value>) -> CliResult<Vec<String>> {
    let mut words = Vec::new();
    for (key, value) in object.iter().filter(|(key, _)| *key != "command") {
        let option = key.replace('_', "-");
        if REFUSED.contains(&option.as_str()) {
            return Err(CliError::new(format!(
                "`{key}` is not allowed in a line of `hq submit -`"
            )));
        }
        match value {
            Value::Bool(true) => words.push(format!("--{option}")),
            Value::Bool(false) | Value::Null => {}
            Value::Array(items) => {
                for item in items {
                    words.push(format!("--{option}={}", text(key, item)?));
                }
            }
            Value::Object(pairs) => {
                for (name, item) in pairs {
                    words.push(format!("--{option}={name}={}", text(key, item)?));
                }
            }
            single @ (Value::Number(_) | Value::String(_)) => {
                words.push(format!("--{option}={}", text(key, single)?))
            }
        }
    }
    let command = object.get("command").and_then(Value::as_array);
    let Some(command) = command.filter(|words| !words.is_empty()) else {
        return Err(CliError::new(
            "`command`: expected a list of a program and its arguments",
        ));
    };
    words.push("--".to_owned());
    for word in command {
        words.push(text("command", word)?);
    }
    Ok(words)
}

fn text(key: &str, value: &Value) -> CliResult<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other @ (Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            Err(CliError::new(format!(
                "`{key}`: expected a text or a number, found {other}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>, String> {
        object(text.as_bytes())
            .and_then(|object| words(&object))
            .map_err(|error| error.text().unwrap_or_default())
    }

    #[test]
    fn keys_become_options() {
        let words = of(
            r#"{"command": ["a", "-b"], "max_fails": 3, "task-dir": true, "env": {"A": "1"},
                           "resource": ["x=1", "y=2"], "name": null}"#,
        );
        let expected = [
            "--env=A=1",
            "--max-fails=3",
            "--resource=x=1",
            "--resource=y=2",
            "--task-dir",
            "--",
            "a",
            "-b",
        ];
        assert_eq!(words, Ok(expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        let line = r#" {"command": ["a", 123456789012345678901234567890, -0.10],
                        "env": {"SEED": 18446744073709551616}, "priority": 7}
        "#;
        let expected = [
            "--env=SEED=18446744073709551616",
            "--priority=7",
            "--",
            "a",
            "123456789012345678901234567890",
            "-0.10",
        ];
        assert_eq!(of(line), Ok(expected.map(str::to_owned).to_vec()));
        let twice = of(r#"{"command": ["a"], "name": "x", "name": "y"}"#);
        assert!(twice.is_err_and(|text| text.contains("twice")));
        assert_eq!(
            of("7"),
            Err("Expected a JSON object, found something else".to_owned())
        );
    }

    #[test]
    fn lines_without_a_command_or_with_waiting_are_refused() {
        for text in [
            r#"{"name": "x"}"#,
            r#"{"command": []}"#,
            r#"{"command": ["a"], "wait": true}"#,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
