//! `hq submit -`: a JSON object per line in, a result per line out, all over one connection.
//!
//! The keys of an object are the options of `hq submit` and `command`; they are read by the same parser, so
//! that both ways accept and refuse the same.

use std::io::{BufRead, Write};

use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::{Map, Value, json};

use super::{prepare, report_warnings};
use crate::args::submit::SubmitArgs;
use crate::client::Client;
use crate::command::Context;
use crate::error::{CliError, CliResult, exit};

/// Longest line; what is longer belongs into a file with entries.
const LINE_MAX: usize = 64 << 20;

/// Options that make no sense for one submission of many.
const REFUSED: [&str; 4] = ["wait", "progress", "on-notify", "stdin"];

/// Options of one line.
#[derive(Parser)]
#[command(name = "hq submit", no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    args: SubmitArgs,
}

/// Submits line by line until standard input ends. The exit code tells whether any line was refused.
pub(super) async fn run(client: &mut Client, context: &mut Context) -> CliResult<()> {
    let mut parser = Line::command();
    let mut input = std::io::stdin().lock();
    let mut has_refused = false;
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LINE_MAX as u64 + 1;
        let read = std::io::Read::take(&mut input, limit).read_until(b'\n', &mut line);
        if read.map_err(|e| CliError::caused("Cannot read standard input", &e))? == 0 {
            break;
        }
        if line.len() > LINE_MAX {
            return Err(CliError::new(format!(
                "Expected lines of at most {LINE_MAX} bytes, found a longer one; use --each-line for many entries"
            )));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let result = match submit_line(&mut parser, &line, client).await {
            Ok(job) => json!({ "id": job }),
            Err(error) => {
                has_refused = true;
                // A connection that is gone refuses every line; that is told once.
                let text = error.text().unwrap_or_default();
                if text.starts_with("The connection to the server was lost")
                    || text.starts_with("The server closed the connection")
                {
                    return Err(error);
                }
                json!({ "error": text })
            }
        };
        writeln!(context.out, "{result}")?;
        // Whoever writes line by line waits for each result.
        context.flush()?;
    }
    if has_refused {
        return Err(CliError::Told(exit::FAILURE));
    }
    Ok(())
}

async fn submit_line(
    parser: &mut clap::Command,
    line: &[u8],
    client: &mut Client,
) -> CliResult<u32> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| CliError::new(format!("Expected a JSON object: {error}")))?;
    let Value::Object(object) = value else {
        return Err(CliError::new(
            "Expected a JSON object, found something else",
        ));
    };
    let words = words(&object)?;
    let matches = parser
        .try_get_matches_from_mut(words)
        .and_then(|matches| Line::from_arg_matches(&matches));
    let line = matches.map_err(|error| CliError::new(error.to_string().trim_end()))?;
    let prepared = prepare(line.args, None, client)?;
    report_warnings(&prepared);
    client.submit((&prepared.spec).into()).await
}

/// The object as words of a command line.
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
        let value: Value = serde_json::from_str(text).expect("JSON");
        words(value.as_object().expect("an object"))
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
