//! The progress bar, and printing above it.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use hq_core::job::TaskTotals;
use indicatif::{
    HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike as _,
};

use super::terminal::Terminal;
use crate::args::global::OutputMode;
use crate::command::Context;
use crate::output::console::error_line;

/// The redraw interval if nothing changes, so that the elapsed time advances.
const TICK: Duration = Duration::from_millis(250);

/// The maximum number of redraws per second.
const REDRAWS_PER_SECOND: u8 = 20;

/// Standard error with a bar at its end, if it is a terminal.
#[derive(Clone)]
pub(super) struct Screen {
    bar: ProgressBar,
    is_talking: bool,
}

impl Screen {
    /// Creates a screen. Nothing is drawn before the first [`Screen::update`].
    pub(super) fn new(context: &Context) -> Self {
        let is_talking = context.mode() == OutputMode::Cli;
        if !is_talking || !std::io::stderr().is_terminal() {
            return Self {
                bar: ProgressBar::hidden(),
                is_talking,
            };
        }
        let terminal = Terminal::default();
        let style = ProgressStyle::with_template(&template(terminal.width(), context.colors))
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", write_rate)
            .with_key("left", write_left)
            .progress_chars("##.");
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal), REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style);
        bar.enable_steady_tick(TICK);
        Self { bar, is_talking }
    }

    /// Shows new counts.
    pub(super) fn update(&self, counts: &TaskTotals) {
        let mut message = String::new();
        for (count, word) in [(counts.failed, "failed"), (counts.running, "running")] {
            if count > 0 {
                message.push_str(&format!(", {count} {word}"));
            }
        }
        self.bar.set_length(counts.total());
        self.bar.set_message(message);
        self.bar.set_position(counts.ended());
    }

    /// Prints while the bar is hidden.
    pub(super) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Shows a message to the user.
    pub(super) fn note(&self, text: &str) {
        if self.is_talking {
            self.print(|| error_line(text));
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the template of the bar. On a narrow terminal, the least important parts are left out,
/// because a wrapped line cannot be removed.
fn template(columns: u16, colors: bool) -> String {
    let colors = if colors { ".green" } else { "" };
    let counts = "{pos}/{len} tasks{msg}";
    match columns {
        0..60 => counts.to_owned(),
        60..80 => format!("[{{bar:8{colors}}}] {counts}  {{rate}}"),
        80..120 => format!("[{{bar:12{colors}}}] {counts}  {{rate}}{{left}}"),
        120.. => format!("[{{bar:40{colors}}}] {counts}  {{rate}}  {{elapsed}} elapsed{{left}}"),
    }
}

/// Writes the tasks per second, with a decimal for small rates.
fn write_rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let rate = state.per_sec();
    // Failing to draw the bar is not a reason to fail.
    let _ = if rate < 10.0 {
        write!(out, "{rate:.1}/s")
    } else {
        write!(out, "{rate:.0}/s")
    };
}

/// Writes the estimated time left, or nothing until the first task has ended.
fn write_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        let _ = write!(out, ", {:#} left", HumanDuration(state.eta()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_leaves_out_what_says_least() {
        // Ten thousand tasks at a high rate, with some failed and a hundred running.
        let shown = |columns| {
            template(columns, false)
                .replace("{bar:40}", &"#".repeat(40))
                .replace("{bar:12}", &"#".repeat(12))
                .replace("{bar:8}", &"#".repeat(8))
                .replace("{pos}", "5000")
                .replace("{len}", "10000")
                .replace("{msg}", ", 12 failed, 100 running")
                .replace("{rate}", "1234/s")
                .replace("{elapsed}", "10s")
                .replace("{left}", ", 10s left")
        };
        for columns in [50, 60, 79, 80, 119, 120, 200] {
            let line = shown(columns);
            assert!(line.len() < usize::from(columns), "{columns}: {line}");
            assert!(line.contains("tasks, 12 failed, "), "{columns}: {line}");
        }
    }
}
