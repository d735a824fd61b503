//! Tables about jobs.

use std::io;

use hq_core::job::JobTotals;
use hq_core::words::noun_of;
use hq_protocol::client;

use super::grid::{Grid, Look, Text, job_state, task_color, task_state};
use super::template;
use crate::output::format::{elapsed, id_array, lossy, short_name, short_words, utc_seconds};
use crate::output::pace;
use crate::output::suggest::Suggestion;
use crate::output::view::{self, hostnames};
use crate::output::{JobInfoSink, JobListView, JobStatsView, Out};

/// The maximum length of ids in `job info`, which is a few lines of a terminal.
const IDS_LEN_MAX: usize = 240;
/// The width of the bar in `job info`, in columns.
const BAR_WIDTH: usize = 40;

/// Writes the output of `hq job list`.
pub(super) fn write_list(out: Out<'_>, look: Look, view: JobListView<'_>) -> io::Result<()> {
    let mut header = vec!["ID", "Name", "State", "Tasks"];
    if view.with_reason {
        header.push("Cancel Reason");
    }
    if view.progress_at_ns.is_some() {
        header.extend(["Ended", "Failed", "Left"]);
    }
    let mut grid = Grid::horizontal(look, &header, 1);
    for job in view.jobs {
        let mark = if job.is_open { "*" } else { "" };
        let mut cells = vec![
            format!("{mark}{}", job.id).into(),
            short_name(&job.name).into(),
            job_state(view::job_state(job)),
            job.task_count.to_string().into(),
        ];
        if view.with_reason {
            cells.push(job.cancel_reason.clone().unwrap_or_default().into());
        }
        if let Some(now_unix_ns) = view.progress_at_ns {
            let stats = job.stats.unwrap_or_default();
            let ended = stats.finished + stats.failed + stats.canceled + stats.aborted;
            cells.push(ended.to_string().into());
            cells.push(stats.failed.to_string().into());
            cells.push(pace::left(job, now_unix_ns).unwrap_or_default().into());
        }
        grid.row(cells);
    }
    grid.write(out)?;
    if view.jobs.iter().any(|job| job.is_open) {
        writeln!(out, "* = Open jobs")?;
    }
    if !view.is_all && view.jobs.len() < view.total {
        let verb = if view.total == 1 { "is" } else { "are" };
        let jobs = noun_of(view.total as u64, "job");
        writeln!(
            out,
            "There {verb} {} {jobs} in total. Use `--all` to display all jobs.",
            view.total
        )?;
    }
    Ok(())
}

/// Writes the output of `hq job stats`: the table with the quantities.
pub(super) fn write_stats(out: Out<'_>, look: Look, view: &JobStatsView) -> io::Result<()> {
    // Columns are quantities and rows are numbers, because a quantity has too many numbers for one
    // row.
    let names = view.rows.iter().map(|(name, _)| *name);
    let header: Vec<&str> = std::iter::once("").chain(names).collect();
    let mut grid = Grid::horizontal(look, &header, 0);
    let mut row = |label: &str, cells: Vec<String>| {
        let cells = cells.into_iter().map(Text::from);
        grid.row(std::iter::once(Text::from(label)).chain(cells));
    };
    let counts = view.rows.iter().map(|(_, values)| values.count.to_string());
    row("tasks", counts.collect());
    let columns = view.rows.iter();
    let columns: Vec<_> = columns
        .map(|(name, values)| JobStatsView::cells(name, values))
        .collect();
    for (index, label) in JobStatsView::columns().into_iter().enumerate() {
        let cells = columns.iter().map(|cells| cells[index].clone());
        row(label, cells.collect());
    }
    grid.write(out)
}

/// Writes the output of `hq job stats --suggest`: a table for each kind of task.
pub(super) fn write_suggestions(
    out: Out<'_>,
    look: Look,
    suggestions: &[Suggestion],
) -> io::Result<()> {
    for suggestion in suggestions {
        let mut grid = Grid::vertical(look);
        for (label, text) in suggestion.fields() {
            grid.field(label, text);
        }
        grid.write(out)?;
    }
    Ok(())
}

/// Writes the output of `hq job summary`.
pub(super) fn write_summary(out: Out<'_>, look: Look, counts: &JobTotals) -> io::Result<()> {
    let mut grid = Grid::horizontal(look, &["Status", "Count"], 0);
    grid.align_right(1);
    for state in view::summary_states() {
        grid.row([job_state(state), counts.of(state).to_string().into()]);
    }
    grid.write(out)
}

/// Formats a notification: `on end: https://example.org/…: delivered at …`.
fn notification(notification: &client::JobNotice) -> String {
    use client::job_notice::State;
    let event = notification.event().name();
    let at = utc_seconds(notification.at_unix_ns);
    let state = match notification.state() {
        State::Waiting => "not yet".to_owned(),
        State::Owed => "being sent".to_owned(),
        State::Delivered => format!("delivered at {at}"),
        State::GivenUp => format!(
            "given up at {at} after {} attempts: {}",
            notification.attempts, notification.error
        ),
    };
    format!("on {event}: {}: {state}", notification.target)
}

/// Writes the output of `hq job info`.
pub(super) struct JobInfos<'a> {
    out: Out<'a>,
    look: Look,
    is_verbose: bool,
}

impl<'a> JobInfos<'a> {
    pub(super) const fn new(out: Out<'a>, look: Look, is_verbose: bool) -> Self {
        Self {
            out,
            look,
            is_verbose,
        }
    }
}

impl JobInfoSink for JobInfos<'_> {
    fn job(&mut self, job: &client::JobDetail) -> io::Result<()> {
        let summary = job.summary.clone().unwrap_or_default();
        let mut grid = Grid::vertical(self.look);
        grid.field("ID", summary.id.to_string());
        grid.field("Name", summary.name.as_str());
        let bar = add_state(&mut grid, &summary);
        grid.field(
            "Cancel Reason",
            summary.cancel_reason.clone().unwrap_or_default(),
        );
        grid.field("Session", if summary.is_open { "open" } else { "closed" });
        grid.field("Tasks", tasks_text(job, &summary));
        grid.field("Workers", workers_text(job));
        if let Some(submit) = view::single_array(job) {
            add_definition(&mut grid, submit, summary.id);
        }
        grid.field("Submission date", utc_seconds(job.submitted_unix_ns));
        if !job.notifications.is_empty() {
            let lines: Vec<String> = job.notifications.iter().map(notification).collect();
            grid.field("Notifications", lines.join("\n"));
        }
        if let [submit] = job.submits.as_slice() {
            grid.field("Submission directory", lossy(&submit.submit_dir));
        }
        let end = view::finished_at(job).unwrap_or(job.now_unix_ns);
        grid.field("Makespan", short_words(elapsed(job.submitted_unix_ns, end)));
        if self.is_verbose {
            grid.field("Notes", view::notes(job).join("\n"));
        }
        let mut text = grid.render();
        if let (Some(bar), true) = (bar, self.look.colors) {
            text = text.replacen(&bar.plain(), &bar.colored(), 1);
        }
        self.out.as_is().write_all(text.as_bytes())?;
        write_failed(self.out, self.look, job, &summary)
    }

    fn tasks(&mut self, _page: &client::TaskPageReply) -> io::Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the counts in the order of `job info`.
fn named_counts(stats: client::TaskStats) -> [(client::TaskState, u32); 6] {
    [
        (client::TaskState::Running, stats.running),
        (client::TaskState::Failed, stats.failed),
        (client::TaskState::Finished, stats.finished),
        (client::TaskState::Canceled, stats.canceled),
        (client::TaskState::Waiting, stats.waiting),
        (client::TaskState::Aborted, stats.aborted),
    ]
}

fn add_state(grid: &mut Grid, summary: &client::JobSummary) -> Option<Bar> {
    let state = view::job_state(summary);
    if summary.task_count == 1 {
        grid.field("State", job_state(state));
        return None;
    }
    let stats = summary.stats.unwrap_or_default();
    let bar = Bar::new(stats, summary.task_count);
    let counts = named_counts(stats)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| {
            Text::colored(
                format!("{} ({count})", view::task_state_name(state)),
                task_color(state),
            )
        });
    grid.fields("State", std::iter::once(bar.plain().into()).chain(counts));
    Some(bar)
}

/// A bar with one segment per state.
struct Bar {
    /// The state and the length of each segment. The lengths add up to at most [`BAR_WIDTH`].
    segments: Vec<(client::TaskState, usize)>,
}

impl Bar {
    fn new(stats: client::TaskStats, total: u32) -> Self {
        let shares = [
            (client::TaskState::Canceled, stats.canceled),
            (client::TaskState::Failed, stats.failed),
            (client::TaskState::Finished, stats.finished),
            (client::TaskState::Running, stats.running),
            (client::TaskState::Aborted, stats.aborted),
        ];
        let mut left = BAR_WIDTH;
        let mut segments = Vec::new();
        for (state, count) in shares {
            let share = (count as usize * BAR_WIDTH)
                .div_ceil(total.max(1) as usize)
                .min(left);
            left -= share;
            segments.push((state, share));
        }
        Self { segments }
    }

    fn filled(&self) -> usize {
        self.segments.iter().map(|(_, length)| length).sum()
    }

    fn plain(&self) -> String {
        let filled = self.filled();
        format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR_WIDTH - filled))
    }

    fn colored(&self) -> String {
        let mut text = "[".to_owned();
        for (state, length) in &self.segments {
            if *length > 0 {
                let style = ansi(*state);
                text.push_str(&format!("{style}{}{style:#}", "#".repeat(*length)));
            }
        }
        text.push_str(&".".repeat(BAR_WIDTH - self.filled()));
        text.push(']');
        text
    }
}

fn ansi(state: client::TaskState) -> anstyle::Style {
    let color = match state {
        client::TaskState::Finished => anstyle::AnsiColor::Green,
        client::TaskState::Failed => anstyle::AnsiColor::Red,
        client::TaskState::Running => anstyle::AnsiColor::Yellow,
        client::TaskState::Canceled => anstyle::AnsiColor::Magenta,
        client::TaskState::Waiting => anstyle::AnsiColor::Cyan,
        client::TaskState::Aborted => anstyle::AnsiColor::Blue,
    };
    anstyle::Style::new().fg_color(Some(color.into()))
}

fn tasks_text(job: &client::JobDetail, summary: &client::JobSummary) -> String {
    if summary.task_count == 0 {
        return "0".to_owned();
    }
    let as_given = view::single_array(job).and_then(|submit| submit.ids.as_ref());
    let ids = as_given
        .or(job.task_ids.as_ref())
        .map(id_array)
        .unwrap_or_default();
    format!(
        "{}; Ids: {}",
        summary.task_count,
        shortened(ids, summary.id)
    )
}

/// Shortens a long list of ranges, such as the ids of a job after every thirtieth task was
/// resubmitted.
fn shortened(ids: String, job: u32) -> String {
    let Some(head) = ids.get(..IDS_LEN_MAX) else {
        return ids;
    };
    let head = head.rfind(',').map_or(head, |at| &head[..at]);
    let more = ids[head.len()..].matches(',').count();
    let what = if more == 1 { "range" } else { "ranges" };
    format!("{head}, … and {more} more {what}; all: `hq job task-ids {job}`")
}

fn workers_text(job: &client::JobDetail) -> String {
    let names: Vec<&str> = hostnames(&job.workers).collect();
    let shown = names.join(",");
    if job.worker_count as usize > names.len() {
        return format!("{shown}, … ({} total)", job.worker_count);
    }
    shown
}

fn add_definition(grid: &mut Grid, submit: &client::SubmitInfo, job: u32) {
    let Some(task) = submit.templates.first() else {
        return;
    };
    let path = |bytes: &[u8]| view::job_path(bytes, job);
    grid.field("Resources", template::resources(task));
    grid.field("Pin", template::pin(task));
    grid.field("Priority", task.priority.to_string());
    grid.field("Command", template::command(task));
    if !submit.params.is_empty() {
        let params = submit.params.iter();
        let lines: Vec<String> = params
            .map(|param| format!("{}: {}", param.name, lossy(&param.value)))
            .collect();
        grid.field("Parameters", lines.join("\n"));
    }
    let stdio_path = |bytes: &[u8]| view::stdio_path(bytes, &task.cwd, job);
    grid.field("Stdout", template::stdio(task.stdout.as_ref(), stdio_path));
    grid.field("Stderr", template::stdio(task.stderr.as_ref(), stdio_path));
    grid.field("Environment", template::environment(task));
    grid.field("Working directory", path(&task.cwd));
    grid.field("Task time limit", template::time_limit(task));
    grid.field("Crash limit", template::crash_limit(task));
}

fn write_failed(
    out: Out<'_>,
    look: Look,
    job: &client::JobDetail,
    summary: &client::JobSummary,
) -> io::Result<()> {
    let count = summary.stats.unwrap_or_default().failed;
    if count == 0 {
        return Ok(());
    }
    let has_params = job.failed.iter().any(|task| !task.params.is_empty());
    let header = ["Task ID", "Worker", "Error", "Parameters"];
    let mut grid = Grid::horizontal(look, &header[..if has_params { 4 } else { 3 }], 0);
    for task in &job.failed {
        let workers: Vec<&str> = hostnames(&task.workers).collect();
        let mut cells: Vec<Text> = vec![
            task.id.to_string().into(),
            workers.join("\n").into(),
            Text::colored(task.error.as_str(), task_color(client::TaskState::Failed)),
        ];
        if has_params {
            cells.push(view::params_text(&task.params).into());
        }
        grid.row(cells);
    }
    grid.write(out)?;
    let shown = job.failed.len();
    let suffix = if count as usize > shown {
        format!(" ({shown} shown)")
    } else {
        String::new()
    };
    writeln!(out, "{count} tasks failed.{suffix}")?;
    if look.columns.is_some() {
        // This is written only for human readers, because scripts compare the lines.
        let id = summary.id;
        writeln!(
            out,
            "`hq job cat {id} stderr --filter failed` prints what they wrote."
        )?;
    }
    Ok(())
}

/// Returns the state of a task, for rows of other tables.
pub(super) fn state_cell(info: &client::TaskInfo) -> Text {
    task_state(view::task_state(info.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn very_many_ranges_of_ids_are_shortened_between_two_of_them() {
        assert_eq!(shortened("1-100000".to_owned(), 3), "1-100000");
        let ids: Vec<String> = (0..1_000).map(|id| (id * 3).to_string()).collect();
        let text = shortened(ids.join(","), 3);
        assert!(text.starts_with("0,3,6,9,"), "{text}");
        let (shown, rest) = text.split_once(", … and ").expect("a cut");
        assert!(shown.len() <= IDS_LEN_MAX, "{shown}");
        let is_whole = |(at, id): (usize, &str)| id == (at * 3).to_string();
        assert!(shown.split(',').enumerate().all(is_whole), "{shown}");
        let more = 1_000 - shown.split(',').count();
        assert_eq!(
            rest,
            format!("{more} more ranges; all: `hq job task-ids 3`")
        );
    }
}
