//! The progress bar, and how to print beside it.

use std::io::IsTerminal;
use std::time::Duration;

use hq_protocol::client;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::global::OutputMode;
use crate::command::Context;
use crate::output::console::error_line;

/// How often the bar is redrawn without news, so that the times go on.
const TICK: Duration = Duration::from_millis(250);

/// Standard error with a bar at its end, if it is a terminal and people read it.
#[derive(Clone)]
pub(super) struct Screen {
    bar: ProgressBar,
    is_talking: bool,
}

impl Screen {
    /// Draws nothing before the first [`Screen::update`].
    pub(super) fn new(context: &Context) -> Self {
        let is_talking = context.mode() == OutputMode::Cli;
        if !is_talking || !std::io::stderr().is_terminal() {
            return Self {
                bar: ProgressBar::hidden(),
                is_talking,
            };
        }
        let colors = if context.colors { ".green" } else { "" };
        let template = format!(
            "[{{bar:40{colors}}}] {{pos}}/{{len}} tasks{{msg}}  {{per_sec}}  {{elapsed}} elapsed, {{eta}} left"
        );
        let style = ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("##.");
        let bar = ProgressBar::new(0).with_style(style);
        bar.enable_steady_tick(TICK);
        Self { bar, is_talking }
    }

    /// Shows new counts.
    pub(super) fn update(&self, stats: &client::TaskStats) {
        let ended = [stats.finished, stats.failed, stats.canceled, stats.aborted];
        let ended: u64 = ended.into_iter().map(u64::from).sum();
        let mut message = String::new();
        for (count, word) in [(stats.running, "running"), (stats.failed, "failed")] {
            if count > 0 {
                message.push_str(&format!(", {count} {word}"));
            }
        }
        self.bar
            .set_length(ended + u64::from(stats.running) + u64::from(stats.waiting));
        self.bar.set_message(message);
        self.bar.set_position(ended);
    }

    /// Prints while no bar is in the way.
    pub(super) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Tells the user something.
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
