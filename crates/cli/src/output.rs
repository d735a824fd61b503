//! The output of commands: one value, and a rendering of it per output mode.
//!
//! No rendering sends requests. Long lists arrive in pages and are written page by page, even as
//! JSON.

use std::io;

use json::JsonStream;

use crate::args::global::OutputMode;

mod alloc;
pub(crate) mod console;
pub(crate) mod curve;
mod explain;
pub(crate) mod format;
mod grid;
mod job;
pub(crate) mod json;
mod output_log;
pub(crate) mod pace;
mod plan;
mod server;
mod stats;
pub(crate) mod suggest;
mod task;
mod template;
pub(crate) mod view;
mod worker;

pub(crate) use alloc::{AllocationsView, QueuesView};
pub(crate) use explain::ExplanationView;
pub(crate) use grid::{Look, write_plain};
pub(crate) use job::{JobInfos, JobListView, NewJob, ResubmittedView};
pub(crate) use output_log::OutputLogView;
pub(crate) use plan::ChangedView;
pub(crate) use server::ServerView;
pub(crate) use stats::{Distribution, JobStatsView};
pub(crate) use task::{TaskInfos, TaskListView, TaskLists, add_params};
pub(crate) use worker::{WorkerInfosView, WorkerListView};

/// The destination of output.
pub(crate) type Out<'a> = &'a mut dyn console::Shown;

/// What a command prints.
pub(crate) trait View {
    /// Writes tables and sentences for people.
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()>;

    /// Writes one JSON value.
    fn json(&self, out: Out<'_>) -> io::Result<()>;

    /// Writes ids and states for `$(…)`, if there are any.
    fn quiet(&self, _out: Out<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Nothing, or an empty object.
impl View for () {
    fn table(&self, _out: Out<'_>, _look: Look) -> io::Result<()> {
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        json::write_value(out, &serde_json::json!({}))
    }
}

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) mode: OutputMode,
    pub(crate) look: Look,
}

impl Output {
    pub(crate) fn show(self, out: Out<'_>, view: &impl View) -> io::Result<()> {
        match self.mode {
            OutputMode::Cli => view.table(out, self.look),
            OutputMode::Json => view.json(out),
            OutputMode::Quiet => view.quiet(out),
        }
    }
}

/// Output that is written as its pages arrive.
enum Paged<'a> {
    Table(Out<'a>, Look),
    Json(JsonStream<'a>),
    Quiet,
}

impl<'a> Paged<'a> {
    fn new(output: Output, out: Out<'a>, json: fn(Out<'a>) -> JsonStream<'a>) -> Self {
        match output.mode {
            OutputMode::Cli => Self::Table(out, output.look),
            OutputMode::Json => Self::Json(json(out)),
            OutputMode::Quiet => Self::Quiet,
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Json(stream) => stream.finish(),
            Self::Table(..) | Self::Quiet => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
