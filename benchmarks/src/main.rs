//! `hq-bench`: whole-system measurements, one command for each question.
//!
//! The commands run real processes, or the real state machines in virtual time, and compare results
//! within one run. This file only knows their names.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]

mod baseline;
mod campaign;
mod cluster;
mod core_rate;
mod figures;
mod graph;
mod options;
mod plot;
mod processes;
mod scheduler;
mod spawn_suite;
mod store;
mod strangers;
mod stream;
mod throughput;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

/// Measures hq: each command answers one question.
///
/// Most figures are ratios to a baseline in the same run, because only ratios carry over to another
/// day or machine.
#[derive(Parser)]
#[command(name = "hq-bench")]
enum Bench {
    Throughput(throughput::Options),
    Store(store::Options),
    Cluster(cluster::Options),
    Graph(graph::Options),
    Strangers(strangers::Options),
    Stream(stream::Options),
    SpawnSuite(spawn_suite::Options),
    Scheduler(scheduler::Options),
    CoreRate(core_rate::Options),
    Campaign(campaign::Options),
    /// One task of `campaign --real`.
    #[command(hide = true)]
    CampaignTask,
}

impl Bench {
    fn run(&self) -> Result<()> {
        let scratch = || scratch_dir(&std::env::temp_dir());
        match self {
            Self::Throughput(options) => throughput::run(options, scratch()?.path()),
            Self::Store(options) => store::run(options, scratch()?.path()),
            Self::Cluster(options) => cluster::run(options, scratch()?.path()),
            Self::Graph(options) => graph::run(options, scratch()?.path()),
            Self::Strangers(options) => strangers::run(options, scratch()?.path()),
            Self::Stream(options) => stream::run(options, scratch_dir(&options.dir)?.path()),
            Self::SpawnSuite(options) => spawn_suite::run(options, scratch()?.path()),
            Self::Scheduler(options) => scheduler::run(options),
            Self::CoreRate(options) => core_rate::run(options),
            Self::Campaign(options) => campaign::run(options),
            Self::CampaignTask => campaign::run_task(),
        }
    }
}

fn main() -> ExitCode {
    match Bench::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hq-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Creates a directory below `parent` for the files of a benchmark. It is removed on drop.
///
/// Its name is unpredictable, and only this user may enter it. Otherwise another user could put a
/// program into a known directory below a shared temporary directory.
fn scratch_dir(parent: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("hq-bench-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent_and_errors_name_them() {
        <Bench as clap::CommandFactory>::command().debug_assert();
        let hq = "--hq=/bin/true";
        for (words, expected) in [
            (
                &["store", hq, "--count"][..],
                "value is required for '--count <N>'",
            ),
            (
                &["store", hq, "--count=x"],
                "invalid value 'x' for '--count <N>'",
            ),
            (&["store", hq, "--size=1"], "unexpected argument '--size'"),
            (
                &["store", "--hq=/is/not"],
                "'/is/not' for '--hq <PATH>': No such file",
            ),
            (
                &["stream", hq, "--peer=."],
                "'.' for '--peer <LABEL=PATH>': it has no `=`",
            ),
            (
                &["stream", hq, "--block=80,x"],
                "invalid value 'x' for '--block",
            ),
            (
                &["cluster", hq, "--rate=1", "--millis=1"],
                "cannot be used with '--millis",
            ),
            (
                &["cluster", hq, "--loss=2"],
                "invalid value '2' for '--loss",
            ),
            (
                &["cluster", hq, "--restarts=1", "--pages"],
                "cannot be used with '--pages'",
            ),
        ] {
            let error = Bench::try_parse_from([&["hq-bench"], words].concat());
            let error = error.err().expect("not valid").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
