//! The script of an allocation, and the command in it that starts a worker.
//!
//! This module is pure and only converts texts. The format of both is a public interface, see
//! `docs/batch-systems.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use hq_core::batch::{EachNodePlaceholder, QueueParams, ScriptPlaceholder};
use hq_core::shell::{self, double_quoted};
use hq_core::words::duration;

use super::command::replace;

/// The values that are the same in all scripts of a server.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The path of this executable.
    pub(super) hq: String,
    /// The server's own log filter.
    pub(super) rust_log: Option<String>,
}

/// The values of one script.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    pub(super) params: &'a QueueParams,
    pub(super) program: &'a Program,
    /// The name of the job.
    pub(super) name: &'a str,
    /// The directory of the allocation.
    pub(super) dir: &'a Path,
    /// The server directory for the workers.
    pub(super) server_dir: &'a Path,
    /// The number of workers.
    pub(super) workers: u32,
    /// The nodes to avoid, separated by commas.
    pub(super) excluded: &'a str,
    /// Whether the job is submitted only to be canceled.
    pub(super) is_test: bool,
}

impl Job<'_> {
    /// Returns the whole script.
    pub(super) fn script(&self) -> String {
        let system = &self.params.system;
        let nodes = self.workers.to_string();
        let dir = self.dir.to_string_lossy();
        let walltime = walltime(self.params.time_limit);
        let seconds = self.params.time_limit.as_secs().to_string();
        let args = self.params.additional_args.join(" ");
        let command = self.command();
        let value = |placeholder| match placeholder {
            ScriptPlaceholder::Nodes => &*nodes,
            ScriptPlaceholder::Name => self.name,
            ScriptPlaceholder::Dir => &*dir,
            ScriptPlaceholder::Walltime => &*walltime,
            ScriptPlaceholder::Seconds => &*seconds,
            ScriptPlaceholder::Args => &*args,
            ScriptPlaceholder::Excluded => self.excluded,
            ScriptPlaceholder::Command => &*command,
            ScriptPlaceholder::IfTest => "",
        };
        let mut script = String::new();
        for line in system.script.split_inclusive('\n') {
            // Lines with an empty placeholder are omitted.
            let is_void = (ScriptPlaceholder::Args.is_in(line) && args.is_empty())
                || (ScriptPlaceholder::Excluded.is_in(line) && self.excluded.is_empty())
                || (ScriptPlaceholder::IfTest.is_in(line) && !self.is_test);
            if is_void {
                continue;
            }
            let find = |name: &str| ScriptPlaceholder::from_name(name).map(value);
            if line.starts_with('#') && dir.contains(char::is_whitespace) {
                script.push_str(&replace(&with_quotes(line), find));
            } else {
                script.push_str(&replace(line, find));
            }
        }
        script
    }

    /// Returns the command that starts all workers of the allocation.
    fn command(&self) -> String {
        let command = self.worker_command();
        if self.workers <= 1 {
            return command;
        }
        let system = &self.params.system;
        let nodes = self.workers.to_string();
        let quoted = single_quoted(&command);
        let has_export = self.params.option(&["export"], '\0').is_some();
        let export = if has_export { "--export=ALL " } else { "" };
        let launcher = if self.needs_shell() {
            &system.each_node_shell
        } else {
            &system.each_node
        };
        let value = |placeholder| match placeholder {
            EachNodePlaceholder::Nodes => &*nodes,
            EachNodePlaceholder::Export => export,
            EachNodePlaceholder::Command => &*command,
            EachNodePlaceholder::QuotedCommand => &*quoted,
        };
        replace(launcher, |name| {
            EachNodePlaceholder::from_name(name).map(value)
        })
    }

    /// Returns whether the command is more than a program and its arguments.
    fn needs_shell(&self) -> bool {
        let params = self.params;
        let has_syntax =
            |text: &str| text.contains(|c: char| "|&;<>()`$\\*?[]#~=%!{}\n".contains(c));
        self.program.rust_log.is_some()
            || params.start_command.is_some()
            || params.stop_command.is_some()
            || params.wrap_command.as_deref().is_some_and(has_syntax)
    }

    /// Returns the command that starts one worker.
    fn worker_command(&self) -> String {
        let params = self.params;
        let mut text = String::new();
        if let Some(start) = &params.start_command {
            let _ = write!(text, "{start} && ");
        }
        if let Some(filter) = &self.program.rust_log {
            let _ = write!(text, "RUST_LOG={} ", word(filter));
        }
        if let Some(wrap) = &params.wrap_command {
            let _ = write!(text, "{wrap} ");
        }
        let _ = write!(
            text,
            "{} worker start --idle-timeout {} --manager {} --server-dir {}",
            word(&self.program.hq),
            double_quoted(&duration(params.idle_timeout)),
            double_quoted(&params.system.manager),
            double_quoted(&self.server_dir.to_string_lossy()),
        );
        for arg in params.visible_args() {
            let _ = write!(text, " {arg}");
        }
        if let Some(stop) = &params.stop_command {
            let _ = write!(text, "; {stop}");
        }
        text
    }
}

/// Formats a duration as `HH:MM:SS`. There may be more than 99 hours.
fn walltime(limit: Duration) -> String {
    let seconds = limit.as_secs();
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Returns a line of options with quotes around the value that contains the directory.
fn with_quotes(line: &str) -> String {
    let quoted = |word: &str| {
        let value = word.trim_end();
        let (key, value) = value
            .split_once('=')
            .map_or(("", value), |(key, value)| (key, value));
        let equals = if key.is_empty() { "" } else { "=" };
        format!("{key}{equals}\"{value}\"{}", &word[word.trim_end().len()..])
    };
    let words = line.split_inclusive(' ');
    words
        .map(|word| {
            if ScriptPlaceholder::Dir.is_in(word) {
                quoted(word)
            } else {
                word.to_owned()
            }
        })
        .collect()
}

/// Quotes a word for a shell, unless the shell leaves it unchanged.
fn word(text: &str) -> String {
    if shell::is_plain(text) {
        text.to_owned()
    } else {
        single_quoted(text)
    }
}

fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests;
