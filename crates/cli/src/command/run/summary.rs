//! The summary of `hq run`: counts, time and failed tasks.

use std::fmt::Write as _;
use std::time::Duration;

use hq_core::job::TaskTotals;
use hq_core::words;
use hq_protocol::client::TaskState::{Aborted, Canceled, Failed, Finished};
use serde_json::{Value, json};

use super::replay::{Failure, Failures};
use crate::args::global::OutputMode;
use crate::command::Context;
use crate::error::{CliResult, exit};
use crate::output::add_params;
use crate::output::console::error_line;
use crate::output::format::{joined_ids, short_words};
use crate::output::json::write_value;
use crate::output::view::{nonzero, params_text, task_state_word};
use crate::text::fit;

/// The result of a run.
pub(super) struct Summary {
    pub(super) counts: TaskTotals,
    pub(super) failures: Failures,
    pub(super) elapsed: Duration,
    pub(super) interrupted: bool,
    /// The command that runs the unfinished tasks.
    pub(super) rerun: Option<String>,
}

/// The maximum number of failure groups that are described. Further failed tasks are only counted.
const FAILURES_SHOWN_MAX: usize = 10;

/// The number of columns for the ids of tasks that failed in the same way.
const IDS_WIDTH: usize = 40;

impl Summary {
    /// Returns the exit code. It is success only if every task finished.
    pub(super) fn exit_code(&self) -> u8 {
        if self.interrupted {
            exit::INTERRUPTED
        } else if self.counts.total() > self.counts.finished || self.failures.full.is_some() {
            exit::FAILURE
        } else {
            exit::OK
        }
    }

    /// Prints the summary to the appropriate stream for the output mode.
    pub(super) fn print(&self, context: &mut Context) -> CliResult<()> {
        match context.mode() {
            OutputMode::Cli => error_line(self.text().trim_end()),
            OutputMode::Json => write_value(&mut context.out, &self.value())?,
            OutputMode::Quiet => {}
        }
        Ok(())
    }

    fn text(&self) -> String {
        let counts = nonzero(self.counts, [Finished, Failed, Aborted, Canceled]);
        let counts: Vec<String> = counts
            .map(|(state, count)| format!("{count} {}", task_state_word(state)))
            .collect();
        let mut text = words::count(self.counts.total(), "task");
        let separator = if counts.is_empty() { "" } else { ": " };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{separator}{} in {}",
            counts.join(", "),
            short_words(self.elapsed)
        );
        let shown = self.shown();
        for failure in shown {
            text.push_str(&failure_text(failure));
        }
        let hidden = self.failures.count - shown.iter().map(|one| one.tasks.len()).sum::<usize>();
        if hidden > 0 {
            let _ = writeln!(text, "… and {hidden} more that failed in other ways");
        }
        if let Some(dir) = &self.failures.full {
            let _ = writeln!(
                text,
                "The output may be incomplete: {} was full while tasks wrote to it. Set TMPDIR to another directory, or use --unordered, which buffers no output.",
                dir.display()
            );
        }
        if let Some(command) = &self.rerun {
            let _ = writeln!(text, "again: {command}");
        }
        text
    }

    fn shown(&self) -> &[Failure] {
        let groups = &self.failures.groups;
        &groups[..groups.len().min(FAILURES_SHOWN_MAX)]
    }

    fn value(&self) -> Value {
        let failures: Vec<Value> = self
            .shown()
            .iter()
            .map(|failure| {
                let mut value = json!({
                    "attempts": failure.attempts,
                    "count": failure.tasks.len(),
                    "entry": failure.entry,
                    "error": failure.error,
                    "stderr": failure.tail,
                    "task": failure.task,
                    "tasks": joined_ids(sorted(failure)),
                });
                add_params(&mut value, &failure.params);
                value
            })
            .collect();
        json!({
            "again": self.rerun,
            "duration": self.elapsed.as_secs_f64(),
            "failures": failures,
            "interrupted": self.interrupted,
            "output_complete": self.failures.full.is_none(),
            "task_count": self.counts.total(),
            "task_stats": {
                "aborted": self.counts.aborted,
                "canceled": self.counts.canceled,
                "failed": self.counts.failed,
                "finished": self.counts.finished,
            },
        })
    }
}

/// Describes one failed task, or several that failed in the same way.
fn failure_text(failure: &Failure) -> String {
    let params = params_text(&failure.params);
    let params = (!params.is_empty()).then_some(params.as_str());
    let entry = params.or(failure.entry.as_deref());
    let entry = entry.map_or_else(String::new, |entry| format!(" ({entry})"));
    let others = match failure.tasks.len() {
        0 | 1 => String::new(),
        count => {
            let others = sorted(failure).filter(|id| *id != failure.task);
            let ids = joined_ids(others);
            format!(" and {} like it ({})", count - 1, fit(&ids, IDS_WIDTH))
        }
    };
    let attempts = match failure.attempts {
        0 | 1 => String::new(),
        count => format!(" after {count} attempts"),
    };
    let error = failure.error.replace('\n', "\n    ");
    let task = failure.task;
    let mut text = format!("Task {task}{entry}{others} failed{attempts}: {error}\n");
    for line in &failure.tail {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// Returns the ids in ascending order.
fn sorted(failure: &Failure) -> impl Iterator<Item = u32> {
    let mut ids = failure.tasks.clone();
    ids.sort_unstable();
    ids.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let failure = |tasks: &[u32], attempts| Failure {
            params: Vec::new(),
            task: tasks[0],
            entry: Some("/missing".to_owned()),
            error: "Program terminated with exit code 1.".to_owned(),
            attempts,
            tail: vec!["cat: /missing: No such file".to_owned()],
            tasks: tasks.to_vec(),
        };
        Summary {
            counts: TaskTotals {
                finished: 5,
                failed: 12,
                aborted: 1,
                ..Default::default()
            },
            failures: Failures {
                groups: vec![failure(&[3, 9, 5, 4], 1), failure(&[7], 3)],
                count: 12,
                undone: Vec::new(),
                full: None,
            },
            elapsed: Duration::from_millis(1500),
            interrupted: false,
            rerun: Some("hq run --array 3-5,7,9 -- cat".to_owned()),
        }
    }

    #[test]
    fn failures_are_named() {
        insta::assert_snapshot!(summary().text(), @r"
        18 tasks: 5 finished, 12 failed, 1 aborted in 1s 500ms
        Task 3 (/missing) and 3 like it (4-5,9) failed: Program terminated with exit code 1.
            cat: /missing: No such file
        Task 7 (/missing) failed after 3 attempts: Program terminated with exit code 1.
            cat: /missing: No such file
        … and 7 more that failed in other ways
        again: hq run --array 3-5,7,9 -- cat
        ");
    }

    #[test]
    fn the_exit_code_tells_the_worst() {
        let mut summary = summary();
        assert_eq!(summary.exit_code(), 1);
        let all = |name| TaskTotals {
            finished: 1,
            ..name
        };
        for stats in [
            TaskTotals {
                failed: 1,
                ..Default::default()
            },
            TaskTotals {
                canceled: 1,
                ..Default::default()
            },
            TaskTotals {
                aborted: 1,
                ..Default::default()
            },
            TaskTotals {
                running: 1,
                ..Default::default()
            },
            TaskTotals {
                waiting: 1,
                ..Default::default()
            },
        ] {
            summary.counts = all(stats);
            assert_eq!(summary.exit_code(), 1, "{stats:?}");
        }
        summary.counts = all(TaskTotals::default());
        summary.failures.full = Some("/tmp".into());
        assert_eq!(summary.exit_code(), 1);
        summary.failures.full = None;
        summary.interrupted = true;
        assert_eq!(summary.exit_code(), 130);
        summary.interrupted = false;
        summary.counts = TaskTotals {
            finished: 1,
            ..Default::default()
        };
        assert_eq!(summary.exit_code(), 0);
        summary.counts = TaskTotals::default();
        assert_eq!(summary.exit_code(), 0);
    }
}
