//! Waits for jobs, with or without a progress bar.

mod ending;
mod note;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use hq_core::job::TaskTotals;
use hq_core::words::count;
use hq_protocol::client::{
    self,
    TaskState::{self, Aborted, Canceled, Failed, Finished, Running},
};

use super::missing::{self, Missing};
use super::notify::Callback;
use super::{Context, situation, worker};
use crate::args::global::OutputMode;
use crate::args::job::{SelectorArgs, WaitArgs};
use crate::args::submit::{FollowArgs, WaitFor};
use crate::client::{Client, JobList, ServerInfo};
use crate::error::CliResult;
use crate::output::console::{Console, Shown as _, error_line, terminal_size};
use crate::output::pace::{self, ServerClock};
use crate::output::view::{bar, nonzero, task_state_name, totals};
use crate::parse::selector::Selector;
use note::LastSummaries;

/// The message if no jobs match.
const NOTHING: &str = "There are no jobs to wait for";
/// The width of the bar in columns, on wide and on narrow terminals.
const BAR_WIDTH: usize = 40;
const BAR_WIDTH_MIN: usize = 12;

/// Runs `hq job wait`.
pub(super) async fn wait(args: WaitArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let followed = wait_for(
        &mut client,
        args.selector.clone(),
        JobSource::Known {
            until_idle: args.without_close,
        },
        None,
        context,
    )
    .await?;
    warn_missing(&followed.missing, context);
    context.done()?;
    let is_empty = followed.jobs.is_empty();
    let missing = followed
        .missing
        .or_none(&args.selector, is_empty, NOTHING, context);
    missing.end(missing::JOBS, context)?;
    end_with(&followed.jobs, (args.ok, "--ok"), context)
}

/// Fails if a task did not finish and the user asked for that. Otherwise, notes on a terminal that
/// an option does.
fn end_with(
    jobs: &[client::JobSummary],
    (is_wanted, option): (bool, &str),
    context: &Context,
) -> CliResult<()> {
    let ended = ending::require_good(jobs);
    if is_wanted || ended.is_ok() {
        return ended;
    }
    if context.mode() == OutputMode::Cli && std::io::stderr().is_terminal() {
        error_line(&format!(
            "The exit code is 0 nevertheless; with `{option}` it is 1"
        ));
    }
    Ok(())
}

/// Runs `hq job progress`.
pub(super) async fn progress(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let seen = Progress::default();
    let followed = show_progress(&mut client, args.selector, seen, context, None).await?;
    warn_missing(&followed.missing, context);
    context.done()?;
    followed.missing.end(missing::JOBS, context)
}

/// Reports missing jobs in human-readable output. Scripts that read JSON or quiet output expect no
/// messages.
fn warn_missing(missing: &Missing, context: &Context) {
    if context.mode() == OutputMode::Cli {
        missing.report_not_found("Job");
    }
}

/// Waits for new jobs if the options request it.
pub(super) async fn wait_after_submit(
    client: &mut Client,
    jobs: Selector,
    how: FollowArgs,
    context: &mut Context,
    callback: Option<&Callback>,
) -> CliResult<()> {
    if let Some(wanted) = how.wait {
        let followed = wait_for(client, jobs, JobSource::New, callback, context).await?;
        context.flush()?;
        end_with(
            &followed.jobs,
            (wanted == WaitFor::Ok, "--wait=ok"),
            context,
        )?;
    } else if how.progress {
        let seen = Progress {
            with_ended: true,
            ..Progress::default()
        };
        show_progress(client, jobs, seen, context, callback).await?;
    }
    Ok(())
}

/// Which jobs to wait for.
#[derive(Clone, Copy)]
enum JobSource {
    /// Jobs that this command has submitted and whose ids it knows.
    New,
    Known {
        /// Whether an open job without unfinished tasks counts as ended.
        until_idle: bool,
    },
}

/// The result of following some jobs.
struct Followed {
    /// The jobs that do not exist.
    missing: Missing,
    /// The other jobs, as they ended.
    jobs: Vec<client::JobSummary>,
}

/// Waits until the jobs have ended, and lists the jobs that did not succeed.
async fn wait_for(
    client: &mut Client,
    jobs: Selector,
    source: JobSource,
    callback: Option<&Callback>,
    context: &Context,
) -> CliResult<Followed> {
    let mut missing = Missing::default();
    let watch = client::Watch {
        jobs: Some(jobs.to_message()),
        until_idle: matches!(source, JobSource::Known { until_idle: true }),
        with_notifications: callback.is_some(),
        ..client::Watch::default()
    };
    let seen = LastSummaries::default();
    if context.mode() == OutputMode::Cli {
        // The first update may be the last one.
        let known = match (source, &jobs) {
            // The ids are known, and a query would have to wait for a commit.
            (JobSource::New, Selector::Ids(ids)) => ids.iter().map(unknown).collect(),
            _ => client.ask(JobList(&jobs)).await?.jobs,
        };
        let open = known.into_iter().filter(situation::is_unfinished);
        seen.borrow_mut().extend(open.map(|job| (job.id, job)));
    }
    let follow = client.follow(watch, |update| {
        note_jobs(&seen, update);
        missing.add(update.not_found.as_ref());
        if let Some(callback) = callback {
            callback.take(&update.notifications);
        }
        Ok(())
    });
    let dir = context.server_dir()?;
    let notes = note::print_obstacles(&dir, &seen, false, error_line);
    tokio::select! {
        ended = follow => ended?,
        never = notes, if context.mode() == OutputMode::Cli => match never {},
    }
    let jobs: Vec<_> = seen.into_inner().into_values().collect();
    ending::print_failures(client, &jobs, context).await?;
    Ok(Followed { missing, jobs })
}

/// Creates the summary of a job of which only the id is known. It is not closed, so it counts as
/// unfinished.
fn unknown(id: u32) -> client::JobSummary {
    client::JobSummary {
        id,
        is_open: true,
        ..client::JobSummary::default()
    }
}

/// Stores the jobs of an update.
fn note_jobs(seen: &LastSummaries, update: &client::WatchUpdate) {
    let mut seen = seen.borrow_mut();
    for summary in update.jobs.iter().filter_map(|job| job.summary.as_ref()) {
        seen.insert(summary.id, summary.clone());
    }
}

/// Waits until the jobs have ended, showing a progress bar. Lists the jobs that did not succeed.
async fn show_progress(
    client: &mut Client,
    jobs: Selector,
    mut progress: Progress,
    context: &mut Context,
    callback: Option<&Callback>,
) -> CliResult<Followed> {
    let mut missing = Missing::default();
    let watch = client::Watch {
        jobs: Some(jobs.to_message()),
        until_idle: true,
        with_progress: true,
        with_notifications: callback.is_some(),
        ..client::Watch::default()
    };
    let is_for_people = context.mode() == OutputMode::Cli;
    if worker::running_count(client).await? == 0 {
        // An empty bar does not explain why nothing runs.
        tracing::info!(
            "No worker is connected; start one with `hq worker start`, or have a batch system start them with `hq alloc add`"
        );
    }
    let clock = if is_for_people {
        Some(ServerClock::of(&client.ask(ServerInfo).await?))
    } else {
        None
    };
    let dir = context.server_dir()?;
    let seen = LastSummaries::default();
    let bar = RefCell::new(Bar::new(context));
    let follow = client.follow(watch, |update| {
        missing.add(update.not_found.as_ref());
        if let Some(callback) = callback {
            callback.take(&update.notifications);
        }
        if !progress.add(update) {
            // The caller reports how they ended.
            note_jobs(&seen, update);
            return Ok(());
        }
        for id in progress.jobs.keys() {
            seen.borrow_mut().entry(*id).or_default();
        }
        note_jobs(&seen, update);
        let mut bar = bar.borrow_mut();
        let line = match bar.redraw {
            Redraw::Never => return Ok(()),
            // Scripts rely on the format of this line.
            Redraw::Last => progress.line(),
            Redraw::Always => {
                let now = clock.as_ref().map(|clock| clock.now_unix_ns());
                let pace = now.and_then(|now| pace::short(seen.borrow().values(), now));
                progress.fitting(pace.as_deref(), columns())
            }
        };
        Ok(bar.draw(line)?)
    });
    let notes = note::print_obstacles(&dir, &seen, true, |text| bar.borrow_mut().interrupt(text));
    tokio::select! {
        ended = follow => ended?,
        never = notes, if is_for_people => match never {},
    }
    bar.into_inner().finish()?;
    context.flush()?;
    let mut jobs: Vec<_> = seen.into_inner().into_values().collect();
    jobs.retain(|job| progress.jobs.is_empty() || progress.jobs.contains_key(&job.id));
    ending::print_failures(client, &jobs, context).await?;
    Ok(Followed { missing, jobs })
}

/// How often to draw the bar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Redraw {
    /// The bar is never drawn, because standard output contains only ids or one JSON value.
    Never,
    /// The bar is drawn once, at the end, without control characters, because the output is not a
    /// terminal.
    Last,
    /// The bar is drawn at each update.
    Always,
}

/// A control sequence that returns to the beginning of the line and clears it.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// A line that is redrawn in place.
struct Bar<'a> {
    out: &'a mut Console,
    redraw: Redraw,
    /// The line that was drawn last.
    last: Option<String>,
}

impl<'a> Bar<'a> {
    fn new(context: &'a mut Context) -> Self {
        let redraw = match context.mode() {
            OutputMode::Quiet | OutputMode::Json => Redraw::Never,
            OutputMode::Cli if std::io::stdout().is_terminal() => Redraw::Always,
            OutputMode::Cli => Redraw::Last,
        };
        Self {
            out: &mut context.out,
            redraw,
            last: None,
        }
    }

    fn draw(&mut self, line: String) -> std::io::Result<()> {
        let line = self.last.insert(line);
        if self.redraw != Redraw::Always {
            return Ok(());
        }
        self.out.as_is().write_all(CLEAR_LINE)?;
        write!(self.out, "{line}")?;
        self.out.flush()
    }

    /// Prints a line above the bar. If there is no bar, nothing has to be redrawn.
    fn interrupt(&mut self, text: &str) {
        let on_screen = self.last.as_ref();
        let on_screen = on_screen.filter(|_| self.redraw == Redraw::Always);
        if on_screen.is_some() {
            // If standard output is closed, the next drawing reports it.
            let out = self.out.as_is();
            let _ = out.write_all(CLEAR_LINE).and_then(|()| out.flush());
        }
        error_line(text);
        if let Some(line) = on_screen {
            let _ = write!(self.out, "{line}").and_then(|()| self.out.flush());
        }
    }

    fn finish(self) -> std::io::Result<()> {
        match (self.redraw, self.last) {
            (Redraw::Last, Some(line)) => writeln!(self.out, "{line}"),
            (Redraw::Always, Some(_)) => writeln!(self.out),
            (Redraw::Never, _) | (_, None) => Ok(()),
        }
    }
}

/// The state of the followed jobs.
#[derive(Default)]
struct Progress {
    /// The counts of each followed job, and whether it has ended.
    jobs: BTreeMap<u32, (TaskTotals, bool)>,
    is_started: bool,
    /// Whether to follow jobs that ended before the first update. New jobs may already have ended.
    with_ended: bool,
}

impl Progress {
    /// Applies an update. Returns whether to redraw.
    fn add(&mut self, update: &client::WatchUpdate) -> bool {
        let is_first = !std::mem::replace(&mut self.is_started, true);
        for job in &update.jobs {
            let Some(summary) = &job.summary else {
                continue;
            };
            let state = (totals(summary), job.ended);
            if is_first && (!job.ended || self.with_ended) {
                self.jobs.insert(summary.id, state);
            } else if let Some(known) = self.jobs.get_mut(&summary.id) {
                *known = state;
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
            tracing::warn!("{NOTHING}");
            return;
        }
        let (jobs, tasks) = (jobs as u64, self.total().total());
        tracing::info!(
            "Waiting for {} with {}",
            count(jobs, "job"),
            count(tasks, "task")
        );
    }

    fn total(&self) -> TaskTotals {
        let mut total = TaskTotals::default();
        for (counts, _) in self.jobs.values() {
            total.add(*counts);
        }
        total
    }

    /// Returns a line such as `[####....] 0/1 jobs, 2/4 tasks 1 RUNNING 2 FINISHED`.
    fn line(&self) -> String {
        let tasks = self.tasks_text([Running, Finished, Failed, Canceled, Aborted]);
        format!(
            "{} {}{tasks}",
            bar(&self.total(), BAR_WIDTH),
            self.jobs_text()
        )
    }

    /// Returns the line for a terminal of this width. Failures come first, and the least important
    /// parts are left out.
    fn fitting(&self, pace: Option<&str>, columns: usize) -> String {
        let tasks = self.tasks_text([Failed, Running, Finished, Canceled, Aborted]);
        let counts = format!("{}{tasks}", self.jobs_text());
        let with_pace = match pace {
            Some(pace) => format!("{counts}  {pace}"),
            None => counts.clone(),
        };
        let room = columns.saturating_sub("[] ".len());
        for text in [with_pace, counts] {
            let width = room.saturating_sub(text.chars().count());
            if width >= BAR_WIDTH_MIN {
                return format!("{} {text}", bar(&self.total(), width.min(BAR_WIDTH)));
            }
        }
        tasks.chars().take(columns).collect()
    }

    fn jobs_text(&self) -> String {
        let ended = self.jobs.values().filter(|(_, is_ended)| *is_ended);
        format!("{}/{} jobs, ", ended.count(), self.jobs.len())
    }

    /// Returns a text such as `2/4 tasks 1 RUNNING 2 FINISHED`.
    fn tasks_text(&self, states: [TaskState; 5]) -> String {
        let total = self.total();
        let mut text = format!("{}/{} tasks", total.ended(), total.total());
        for (state, count) in nonzero(total, states) {
            // Writing to a string cannot fail.
            let _ = write!(text, " {count} {}", task_state_name(state));
        }
        text
    }
}

/// Returns the number of columns that a line may fill. This is one less than the terminal has,
/// because a wrapped line cannot be removed.
fn columns() -> usize {
    let size = terminal_size(std::io::stdout());
    size.map_or(usize::MAX, |(columns, _)| usize::from(columns) - 1)
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
    fn a_narrow_terminal_shows_failures_and_a_shorter_bar() {
        let stats = client::TaskStats {
            running: 8,
            waiting: 54,
            finished: 56,
            failed: 2,
            ..Default::default()
        };
        let mut progress = Progress::default();
        progress.add(&update(stats, false));
        let pace = Some("7.1 tasks/s, 9s left");
        let wide = progress.fitting(pace, 200);
        assert!(
            wide.contains(&".".repeat(21)) && wide.ends_with("9s left"),
            "{wide}"
        );
        for (columns, expected) in [
            (
                100,
                "[##########............] 0/1 jobs, 58/120 tasks 2 FAILED 8 RUNNING 56 FINISHED  7.1 tasks/s, 9s left",
            ),
            (
                79,
                "[###########............] 0/1 jobs, 58/120 tasks 2 FAILED 8 RUNNING 56 FINISHED",
            ),
            (50, "58/120 tasks 2 FAILED 8 RUNNING 56 FINISHED"),
            (21, "58/120 tasks 2 FAILED"),
        ] {
            assert_eq!(progress.fitting(pace, columns), expected, "{columns}");
        }
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
