//! Writes log lines to standard error.
//!
//! The format is `2026-11-21T07:42:30Z INFO text` by default, and `[2026-11-21T07:42:30.123Z DEBUG
//! module] text` when debugging. Scripts merge standard error into JSON, so clients in JSON mode
//! only log errors.

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::global::{ColorMode, GlobalArgs, OutputMode};
use crate::output::format::printable;
use crate::text::cut_lines;

/// The kind of a process, which determines the default log level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A client, which sends requests and prints the answers.
    Client,
    /// A server or a worker.
    Daemon,
    /// `hq run`: the user should not notice the server and the worker.
    Run,
}

/// Starts logging for this process.
pub(crate) fn init(global: &GlobalArgs, role: Role) {
    let variable = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let is_long = global.debug
        || variable
            .as_deref()
            .is_some_and(|text| text.contains("debug"));
    let colors = match global.colors {
        ColorMode::Never => false,
        ColorMode::Always => true,
        ColorMode::Auto => std::io::stdout().is_terminal() && std::io::stderr().is_terminal(),
    };
    let level = match (role, global.output_mode) {
        _ if global.debug => LevelFilter::DEBUG,
        (Role::Daemon, _) => LevelFilter::INFO,
        (Role::Client, OutputMode::Json) => LevelFilter::ERROR,
        (Role::Client, OutputMode::Cli | OutputMode::Quiet) => LevelFilter::INFO,
        (Role::Run, _) => LevelFilter::WARN,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .event_format(LineFormat { is_long, colors });
    use tracing_subscriber::layer::SubscriberExt as _;
    let registry = tracing_subscriber::registry();
    // An invalid filter is ignored, because a typing error must not stop a server.
    let result = match variable.and_then(|text| text.parse::<Targets>().ok()) {
        Some(filter) => {
            tracing::subscriber::set_global_default(registry.with(layer.with_filter(filter)))
        }
        None => tracing::subscriber::set_global_default(registry.with(layer.with_filter(level))),
    };
    // This fails only for a second call, which has no effect.
    let _ = result;
}

struct LineFormat {
    is_long: bool,
    colors: bool,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let now = Timestamp::now();
        let level = *metadata.level();
        let style = if self.colors {
            level_style(level)
        } else {
            Style::new()
        };
        if self.is_long {
            let target = metadata.target();
            write!(writer, "[{now:.3} {style}{level}{style:#} {target}] ")?;
        } else {
            write!(writer, "{now:.0} {style}{level}{style:#} ")?;
        }
        let mut line = Line::default();
        event.record(&mut line);
        // Text from workers, tasks and other users must not reach an administrator's terminal
        // unescaped.
        let text = format!("{}{}", printable(&line.message), printable(&line.fields));
        writeln!(writer, "{}", cut_lines(text))
    }
}

const fn level_style(level: Level) -> Style {
    let color = match level {
        Level::ERROR => AnsiColor::Red,
        Level::WARN => AnsiColor::Yellow,
        Level::INFO => AnsiColor::Green,
        Level::DEBUG => AnsiColor::Blue,
        Level::TRACE => AnsiColor::Magenta,
    };
    Style::new().fg_color(Some(anstyle::Color::Ansi(color)))
}

/// A log line: the message first, then the fields as ` key=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
