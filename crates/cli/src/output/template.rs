//! Formats cells that describe a task, for both `job info` and `task info`.

use std::time::Duration;

use hq_protocol::common;

use super::format::{amount, words, wrap};
use super::view::{self, CrashLimitView};
use crate::text::lossy;

/// The maximum line width of an argument. A longer argument continues on the next line.
const ARGUMENT_WIDTH: usize = 80;

/// Returns one argument per line. Long arguments are wrapped.
pub(super) fn command(template: &common::TaskTemplate) -> String {
    let mut lines = Vec::new();
    for arg in &template.args {
        for line in lossy(arg).split('\n') {
            lines.extend(wrap(line, ARGUMENT_WIDTH));
        }
    }
    lines.join("\n")
}

/// Returns the user's variables, one per line.
pub(super) fn environment(template: &common::TaskTemplate) -> String {
    let mut lines: Vec<String> = template
        .env
        .iter()
        .filter(|variable| !variable.name.starts_with(b"HQ_"))
        .map(|variable| format!("{}={}", lossy(&variable.name), lossy(&variable.value)))
        .collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Returns the resource request of the task, one resource per line, with variants below each other.
pub(super) fn resources(template: &common::TaskTemplate) -> String {
    let is_single = template.requests.len() == 1;
    let mut blocks = Vec::new();
    for (i, request) in template.requests.iter().enumerate() {
        let mut lines = request_lines(request);
        // The size depends on what other tasks needed.
        if template.learn.is_some_and(|learn| learn.memory) && request.n_nodes == 0 {
            lines.push("mem: auto".to_owned());
        }
        if !is_single {
            lines.insert(0, format!("# Variant {}", i + 1));
        }
        blocks.push(lines.join("\n"));
    }
    blocks.join("\n\n")
}

/// Returns a request of a resource, such as `cpus: 2 compact`.
pub(super) fn entry(entry: &common::ResourceEntry) -> String {
    let policy = match entry.policy() {
        common::Policy::All => return format!("{}: all", entry.resource),
        common::Policy::Compact => "compact",
        common::Policy::ForceCompact => "compact!",
        common::Policy::Tight => "tight",
        common::Policy::ForceTight => "tight!",
        common::Policy::Scatter => "scatter",
    };
    format!(
        "{}: {} {policy}",
        entry.resource,
        amount(entry.amount_units)
    )
}

fn request_lines(request: &common::ResourceRequest) -> Vec<String> {
    if request.n_nodes > 0 {
        return vec![format!("nodes: {}", request.n_nodes)];
    }
    let mut lines: Vec<String> = request.entries.iter().map(entry).collect();
    lines.sort_unstable();
    if request.weight_units != 10_000 && request.weight_units != 0 {
        lines.push(format!("[weight: {}]", amount(request.weight_units.into())));
    }
    lines
}

/// Returns `none`, `taskset` or `omp`.
pub(super) fn pin(template: &common::TaskTemplate) -> &'static str {
    match template.pin() {
        common::PinMode::None => "none",
        common::PinMode::Taskset => "taskset",
        common::PinMode::OpenMp => "omp",
    }
}

/// Returns a number or a word.
pub(super) fn crash_limit(limit: &common::CrashLimit) -> String {
    match view::crash_limit(limit) {
        CrashLimitView::Number(number) => number.to_string(),
        CrashLimitView::Word(word) => word.to_owned(),
    }
}

/// Returns `None` or a duration in words.
pub(super) fn time_limit(template: &common::TaskTemplate) -> String {
    template
        .time_limit_ns
        .map_or_else(|| "None".to_owned(), |ns| words(Duration::from_nanos(ns)))
}

/// Returns a path, `<None>` or `<Stream>`.
pub(super) fn stdio(stdio: Option<&common::Stdio>, path: impl Fn(&[u8]) -> String) -> String {
    let Some(stdio) = stdio else {
        return String::new();
    };
    match stdio.kind() {
        common::stdio::Kind::None => "<None>".to_owned(),
        common::stdio::Kind::File => path(&stdio.path),
        common::stdio::Kind::Stream => "<Stream>".to_owned(),
    }
}
