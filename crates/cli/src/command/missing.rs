//! Reports ids that do not exist.
//!
//! A few ids are reported one by one, in words that scripts search for. If a range such as
//! `1-4294967295` is used on a server with one job, a single line names the missing ranges, up to a
//! maximum.

use std::collections::BTreeSet;

use hq_protocol::{client, common};

use crate::args::global::OutputMode;
use crate::error::{CliError, CliResult, exit};
use crate::output::console::error_line;
use crate::output::format::{id_array, ids};
use crate::parse::selector::Selector;

use super::Context;

/// The maximum number of ids that are reported one by one.
const SINGLE_MAX: u32 = 8;
/// The maximum number of ranges in one line.
const RANGES_MAX: usize = 32;

/// The command that lists all jobs.
pub(super) const JOBS: &str = "hq job list --all";
/// The messages if `last` or `all` matches nothing.
pub(super) const NO_JOB: &str = "There is no job";
pub(super) const NO_WORKER: &str = "There is no worker";
/// The command that lists all workers.
pub(super) const WORKERS: &str = "hq worker list --all";

/// The ids that do not exist, collected from the answers of the server.
#[derive(Default, Debug)]
pub(super) struct Missing {
    ranges: Vec<common::IdRange>,
    count: u64,
}

impl Missing {
    /// Takes the missing ids of an answer.
    pub(super) fn of(found: Option<&common::IdArray>) -> Self {
        let mut missing = Self::default();
        missing.add(found);
        missing
    }

    /// Returns the selected ids that are not among the jobs.
    pub(super) fn among(jobs: &[client::JobSummary], selector: &Selector) -> Self {
        let Selector::Ids(ids) = selector else {
            return Self::default();
        };
        let found: BTreeSet<u32> = jobs.iter().map(|job| job.id).collect();
        let (_, missing) = ids.split(|span| found.range(span).copied());
        Self::of(Some(&(&missing).into()))
    }

    /// Creates a value for something that has already been reported.
    pub(super) fn one() -> Self {
        Self {
            ranges: Vec::new(),
            count: 1,
        }
    }

    /// Adds the ids of another answer.
    pub(super) fn add(&mut self, found: Option<&common::IdArray>) {
        for range in found.iter().flat_map(|found| &found.ranges) {
            self.count += u64::from(range.count);
            match self.ranges.last_mut() {
                Some(last) if follows(last, range) => last.count += range.count,
                _ => self.ranges.push(*range),
            }
        }
    }

    /// Reports that a selector matched nothing. If `last` matches nothing, it counts as an unknown
    /// id.
    pub(super) fn or_none(
        self,
        selector: &Selector,
        is_empty: bool,
        text: &str,
        context: &Context,
    ) -> Self {
        if !is_empty || !self.is_empty() || context.mode() != OutputMode::Cli {
            return self;
        }
        match selector {
            Selector::Last => {
                tracing::error!("{text}");
                Self::one()
            }
            Selector::All | Selector::Ids(_) => {
                tracing::info!("{text}");
                self
            }
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a line for each id if there are only a few, otherwise a single line. A line is made
    /// from the noun in the right number and the ids.
    fn lines(&self, noun: &str, line: impl Fn(&str, &str) -> String) -> Vec<String> {
        if self.count > u64::from(SINGLE_MAX) {
            return vec![line(&format!("{noun}s"), &self.shown())];
        }
        let few = common::IdArray {
            ranges: self.ranges.clone(),
        };
        ids(&few).map(|id| line(noun, &id.to_string())).collect()
    }

    /// Returns a text such as `2-9,11-4294967295`. If there are very many ranges, it contains the
    /// first ones and the total number of ids.
    fn shown(&self) -> String {
        let shown = common::IdArray {
            ranges: self.ranges.iter().take(RANGES_MAX).copied().collect(),
        };
        let text = id_array(&shown);
        if self.ranges.len() > RANGES_MAX {
            format!("{text},… ({} in total)", self.count)
        } else {
            text
        }
    }

    /// Logs each line as an error, see [`Self::lines`].
    pub(super) fn report(&self, noun: &str, line: impl Fn(&str, &str) -> String) {
        for line in self.lines(noun, line) {
            tracing::error!("{line}");
        }
    }

    /// Logs that the ids do not exist.
    pub(super) fn report_not_found(&self, noun: &str) {
        self.report(noun, |noun, ids| format!("{noun} {ids} not found"));
    }

    /// Logs that an action such as `Closing` on the ids failed.
    pub(super) fn report_failed(&self, action: &str, noun: &str) {
        self.report(noun, |noun, ids| {
            format!("{action} {noun} {ids} failed; {noun} not found")
        });
    }

    /// Logs each line as a warning, see [`Self::lines`].
    pub(super) fn warn(&self, noun: &str, line: impl Fn(&str, &str) -> String) {
        for line in self.lines(noun, line) {
            tracing::warn!("{line}");
        }
    }

    /// Ends a command. It fails if human-readable output was requested and there are ids that do
    /// not exist. Scripts that read JSON or quiet output see the missing ids in the output, and get
    /// the same exit code as from HyperQueue.
    ///
    /// `list` is the command that shows the existing ids.
    pub(super) fn end(&self, list: &str, context: &mut Context) -> CliResult<()> {
        self.end_with(&format!("`{list}` lists existing ids"), context)
    }

    /// Like [`Self::end`], with a text that says what exists.
    pub(super) fn end_with(&self, help: &str, context: &mut Context) -> CliResult<()> {
        if self.is_empty() || context.mode() != OutputMode::Cli {
            return Ok(());
        }
        context.flush()?;
        error_line(&format!("help: {help}"));
        Err(CliError::AlreadyReported(exit::FAILURE))
    }
}

/// Returns whether `next` starts directly after the end of `last`.
fn follows(last: &common::IdRange, next: &common::IdRange) -> bool {
    let is_dense = |range: &common::IdRange| range.count == 1 || range.step <= 1;
    let end = u64::from(last.first) + u64::from(last.count);
    is_dense(last) && is_dense(next) && u64::from(next.first) == end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, count: u32, step: u32) -> common::IdRange {
        common::IdRange {
            first,
            count,
            step,
            slack: 0,
        }
    }

    fn told(ranges: Vec<common::IdRange>) -> Vec<String> {
        let found = common::IdArray { ranges };
        Missing::of(Some(&found)).lines("job", |jobs, ids| format!("{jobs} {ids}"))
    }

    #[test]
    fn few_are_named_one_by_one_and_many_in_one_line() {
        assert_eq!(told(vec![]), [""; 0]);
        assert_eq!(
            told(vec![range(7, 1, 0), range(3, 1, 0)]),
            ["job 7", "job 3"]
        );
        assert_eq!(told(vec![range(2, 9, 0)]), ["jobs 2-10"]);
        assert_eq!(told(vec![range(2, u32::MAX - 1, 0)]), ["jobs 2-4294967295"]);
        assert_eq!(
            told(vec![
                range(2, 1, 0),
                range(3, 1, 1),
                range(4, 20, 1),
                range(30, 5, 10)
            ]),
            ["jobs 2-23,30-70:10"]
        );
    }

    #[test]
    fn a_line_has_an_end() {
        let gaps = (0..1_000_000).map(|i| range(i * 3, 2, 1)).collect();
        let lines = told(gaps);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].len() < 400, "{}", lines[0].len());
        assert!(lines[0].ends_with(",… (2000000 in total)"), "{}", lines[0]);
    }
}
