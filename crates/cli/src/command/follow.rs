//! Waiting for jobs, with and without a progress bar.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use hq_protocol::client;

use super::Context;
use super::missing::Missing;
use super::notify::Callback;
use super::worker;
use crate::args::global::OutputMode;
use crate::args::job::{FollowArgs, SelectorArgs, WaitArgs};
use crate::client::{Client, WatchOptions};
use crate::error::CliResult;
use crate::output::console::{Console, fit_to_terminal};
use crate::parse::selector::Selector;

/// Cells of the bar.
const BAR_WIDTH: usize = 40;

/// `job wait`.
pub(super) async fn wait(args: WaitArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let missing = wait_for(&mut client, args.selector, args.without_close, None).await?;
    tell_missing(&missing, context);
    context.done()?;
    missing.end(context)
}

/// `job progress`.
pub(super) async fn progress(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let seen = Progress::default();
    let missing = show_progress(&mut client, args.selector, seen, context, None).await?;
    tell_missing(&missing, context);
    context.done()?;
    missing.end(context)
}

/// For people only: those who read JSON or bare words expect silence.
fn tell_missing(missing: &Missing, context: &Context) {
    if context.mode() == OutputMode::Cli {
        missing.tell(
            |job| format!("Job {job} not found"),
            |jobs| format!("Jobs {jobs} not found"),
        );
    }
}

/// Stays until new jobs have ended, if that is asked for.
pub(super) async fn stay(
    client: &mut Client,
    jobs: Selector,
    how: FollowArgs,
    context: &mut Context,
    callback: Option<&Callback>,
) -> CliResult<()> {
    if how.wait {
        wait_for(client, jobs, false, callback).await?;
    } else if how.progress {
        let seen = Progress {
            with_ended: true,
            ..Progress::default()
        };
        show_progress(client, jobs, seen, context, callback).await?;
    }
    Ok(())
}

/// Blocks until the jobs have ended; returns those that do not exist.
async fn wait_for(
    client: &mut Client,
    jobs: Selector,
    until_idle: bool,
    callback: Option<&Callback>,
) -> CliResult<Missing> {
    let mut missing = Missing::default();
    let options = WatchOptions {
        until_idle,
        with_notifications: callback.is_some(),
        ..WatchOptions::default()
    };
    client
        .follow(jobs.to_message(), options, |update| {
            missing.add(update.not_found.as_ref());
            if let Some(callback) = callback {
                callback.take(&update.notifications);
            }
            Ok(())
        })
        .await?;
    Ok(missing)
}

/// Blocks until the jobs have ended, and draws a bar meanwhile; returns those that do not exist.
async fn show_progress(
    client: &mut Client,
    jobs: Selector,
    mut seen: Progress,
    context: &mut Context,
    callback: Option<&Callback>,
) -> CliResult<Missing> {
    let mut missing = Missing::default();
    let options = WatchOptions {
        until_idle: true,
        with_progress: true,
        with_notifications: callback.is_some(),
        ..WatchOptions::default()
    };
    if worker::running_count(client).await? == 0 {
        // An empty bar does not tell why nothing moves.
        tracing::info!(
            "No worker is connected; start one with `hq worker start`, or have a batch system start them with `hq alloc add`"
        );
    }
    let mut bar = Bar::new(context);
    client
        .follow(jobs.to_message(), options, |update| {
            missing.add(update.not_found.as_ref());
            if let Some(callback) = callback {
                callback.take(&update.notifications);
            }
            if !seen.add(update) {
                return Ok(());
            }
            bar.draw(seen.line())?;
            Ok(())
        })
        .await?;
    bar.finish()?;
    Ok(missing)
}

/// How often the bar is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Redraw {
    /// Never: standard output is for ids, or for one JSON value.
    Never,
    /// At first and at last: nobody can read all of them in a file.
    Ends,
    /// With all news.
    Always,
}

/// A line that is drawn over itself.
struct Bar<'a> {
    out: &'a mut Console,
    redraw: Redraw,
    is_drawn: bool,
    /// The newest line, if it is not drawn.
    pending: Option<String>,
}

impl<'a> Bar<'a> {
    fn new(context: &'a mut Context) -> Self {
        let redraw = match context.mode() {
            OutputMode::Quiet | OutputMode::Json => Redraw::Never,
            OutputMode::Cli if std::io::stdout().is_terminal() => Redraw::Always,
            OutputMode::Cli => Redraw::Ends,
        };
        Self {
            out: &mut context.out,
            redraw,
            is_drawn: false,
            pending: None,
        }
    }

    fn draw(&mut self, line: String) -> std::io::Result<()> {
        match self.redraw {
            Redraw::Never => return Ok(()),
            Redraw::Ends if self.is_drawn => {
                self.pending = Some(line);
                return Ok(());
            }
            Redraw::Ends | Redraw::Always => {}
        }
        self.is_drawn = true;
        write!(self.out, "\r\x1b[2K{}", fit_to_terminal(line))?;
        self.out.flush()
    }

    fn finish(self) -> std::io::Result<()> {
        if let Some(line) = self.pending {
            write!(self.out, "\r\x1b[2K{line}")?;
        }
        if self.is_drawn {
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// What is known of the followed jobs.
#[derive(Default)]
struct Progress {
    /// Counts of each followed job, and whether it has ended.
    jobs: BTreeMap<u32, (client::TaskStats, bool)>,
    is_started: bool,
    /// Jobs that are over in the first update are followed, too: they were submitted a moment ago.
    with_ended: bool,
}

impl Progress {
    /// Takes an update in; says whether there is anything to draw.
    fn add(&mut self, update: &client::WatchUpdate) -> bool {
        let is_first = !std::mem::replace(&mut self.is_started, true);
        for job in &update.jobs {
            let Some(summary) = &job.summary else {
                continue;
            };
            let stats = summary.stats.unwrap_or_default();
            if is_first && (!job.ended || self.with_ended) {
                self.jobs.insert(summary.id, (stats, job.ended));
            } else if let Some(known) = self.jobs.get_mut(&summary.id) {
                *known = (stats, job.ended);
            }
        }
        if is_first {
            self.announce();
        }
        !self.jobs.is_empty()
    }

    fn announce(&self) {
        let jobs = self.jobs.len();
        if jobs == 0 {
            tracing::warn!("There are no jobs to wait for");
            return;
        }
        let tasks = task_count(&self.total());
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let jobs_word = if jobs == 1 { "job" } else { "jobs" };
        tracing::info!(
            "Waiting for {jobs} {jobs_word} with {tasks} task{}",
            plural(tasks)
        );
    }

    fn total(&self) -> client::TaskStats {
        let mut total = client::TaskStats::default();
        for (stats, _) in self.jobs.values() {
            for (sum, part) in [
                (&mut total.running, stats.running),
                (&mut total.finished, stats.finished),
                (&mut total.failed, stats.failed),
                (&mut total.canceled, stats.canceled),
                (&mut total.aborted, stats.aborted),
                (&mut total.waiting, stats.waiting),
            ] {
                *sum = sum.saturating_add(part);
            }
        }
        total
    }

    /// `[####....] 0/1 jobs, 2/4 tasks 1 RUNNING 2 FINISHED`
    fn line(&self) -> String {
        let total = self.total();
        let tasks = task_count(&total);
        let ended = tasks - u64::from(total.running) - u64::from(total.waiting);
        let jobs_ended = self.jobs.values().filter(|(_, is_ended)| *is_ended).count();
        let filled = match (ended * BAR_WIDTH as u64).checked_div(tasks) {
            Some(cells) => usize::try_from(cells).unwrap_or(BAR_WIDTH),
            None => BAR_WIDTH,
        };
        let mut line = format!(
            "[{}{}] {jobs_ended}/{} jobs, {ended}/{tasks} tasks",
            "#".repeat(filled),
            ".".repeat(BAR_WIDTH - filled),
            self.jobs.len(),
        );
        for (count, word) in [
            (total.running, "RUNNING"),
            (total.finished, "FINISHED"),
            (total.failed, "FAILED"),
            (total.canceled, "CANCELED"),
            (total.aborted, "ABORTED"),
        ] {
            if count > 0 {
                // Writing to a string cannot fail.
                let _ = write!(line, " {count} {word}");
            }
        }
        line
    }
}

fn task_count(stats: &client::TaskStats) -> u64 {
    [
        stats.running,
        stats.finished,
        stats.failed,
        stats.canceled,
        stats.aborted,
        stats.waiting,
    ]
    .into_iter()
    .map(u64::from)
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stats: client::TaskStats, ended: bool) -> client::WatchUpdate {
        let summary = client::JobSummary {
            id: 1,
            stats: Some(stats),
            ..Default::default()
        };
        let job = client::WatchedJob {
            summary: Some(summary),
            ended,
            ended_tasks: Vec::new(),
        };
        client::WatchUpdate {
            jobs: vec![job],
            done: ended,
            ..Default::default()
        }
    }

    #[test]
    fn the_line_names_what_is_not_zero() {
        let stats = client::TaskStats {
            running: 1,
            waiting: 1,
            finished: 2,
            ..Default::default()
        };
        let mut progress = Progress::default();
        assert!(progress.add(&update(stats, false)));
        assert_eq!(
            progress.line(),
            "[####################....................] 0/1 jobs, 2/4 tasks 1 RUNNING 2 FINISHED"
        );
        let stats = client::TaskStats {
            finished: 3,
            failed: 1,
            ..Default::default()
        };
        assert!(progress.add(&update(stats, true)));
        assert_eq!(
            progress.line(),
            "[########################################] 1/1 jobs, 4/4 tasks 3 FINISHED 1 FAILED"
        );
    }

    #[test]
    fn jobs_that_are_over_are_not_waited_for_unless_they_are_new() {
        let stats = client::TaskStats {
            finished: 2,
            ..Default::default()
        };
        assert!(!Progress::default().add(&update(stats, true)));
        let mut progress = Progress {
            with_ended: true,
            ..Progress::default()
        };
        assert!(progress.add(&update(stats, true)));
        assert!(
            progress.line().ends_with("1/1 jobs, 2/2 tasks 2 FINISHED"),
            "{}",
            progress.line()
        );
    }
}
