//! Jobs: what was submitted, lists, and details with tasks in pages.

use std::io;
use std::time::Duration;

use hq_core::job::{JobState, JobTotals, TaskTotals};
use hq_core::words::{count, noun_of};
use hq_protocol::client::TaskState::{Aborted, Canceled, Failed, Finished, Running, Waiting};
use hq_protocol::{client, common};
use serde_json::{Map, Value, json};

use super::format::{
    cut, elapsed, id_array, rfc3339, seconds, short_name, short_words, utc_seconds, words,
};
use super::grid::{Grid, Look, Text, job_state, task_color};
use super::json::{JsonStream, stdio_value, write_value};
use super::task::{add_params, task_value};
use super::view::{self, CrashLimitView, hostnames};
use super::{Out, Output, Paged, View, pace, template};
use crate::text::lossy;

/// The maximum length of ids in `job info`, which is a few lines of a terminal.
const IDS_LEN_MAX: usize = 240;
/// The width of the bar in `job info`, in columns.
const BAR_WIDTH: usize = 40;

/// A job that was submitted or opened.
pub(crate) struct NewJob {
    pub(crate) id: u32,
    pub(crate) is_open: bool,
}

impl View for NewJob {
    fn table(&self, out: Out<'_>, _look: Look) -> io::Result<()> {
        match self {
            Self { id, is_open: true } => writeln!(out, "Job {id} is open."),
            Self { id, .. } => writeln!(out, "Job submitted successfully, job ID: {id}"),
        }
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &json!({ "id": self.id }))
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        writeln!(out, "{}", self.id)
    }
}

/// A job that was submitted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResubmittedView {
    /// The id of the old job.
    pub(crate) job: u32,
    /// The id of the new job.
    pub(crate) new_job: u32,
    /// The number of tasks in the new job.
    pub(crate) task_count: u32,
}

impl View for Vec<ResubmittedView> {
    fn table(&self, out: Out<'_>, _look: Look) -> io::Result<()> {
        for ResubmittedView {
            job,
            new_job,
            task_count,
        } in self
        {
            let tasks = count((*task_count).into(), "task");
            writeln!(
                out,
                "Job {job} resubmitted successfully, job ID: {new_job} ({tasks})"
            )?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let row = |row: &ResubmittedView| json!({"id": row.new_job, "resubmitted": row.job, "task_count": row.task_count});
        write_value(out, &self.iter().map(row).collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for row in self {
            writeln!(out, "{}", row.new_job)?;
        }
        Ok(())
    }
}

/// The contents of `job list`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobListView<'a> {
    /// The jobs to show, ordered by id.
    pub(crate) jobs: &'a [&'a client::JobSummary],
    /// The total number of jobs.
    pub(crate) total: usize,
    /// Whether to show why jobs were canceled.
    pub(crate) with_reason: bool,
    /// The time, by the server's clock, for which the progress of jobs is shown. `None` if progress
    /// is not shown.
    pub(crate) progress_at_ns: Option<i64>,
    /// Whether the user selected all jobs.
    pub(crate) is_all: bool,
}

impl View for JobListView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut header = vec!["ID", "Name", "State", "Tasks"];
        if self.with_reason {
            header.push("Cancel Reason");
        }
        if self.progress_at_ns.is_some() {
            header.extend(["Ended", "Failed", "Left"]);
        }
        let mut grid = Grid::horizontal(look, &header, 1);
        for job in self.jobs {
            let mark = if job.is_open { "*" } else { "" };
            let mut cells = vec![
                format!("{mark}{}", job.id).into(),
                short_name(&job.name).into(),
                job_state(view::job_state(job)),
                job.task_count.to_string().into(),
            ];
            if self.with_reason {
                cells.push(job.cancel_reason.clone().unwrap_or_default().into());
            }
            if let Some(now_unix_ns) = self.progress_at_ns {
                let counts = view::totals(job);
                cells.push(counts.ended().to_string().into());
                cells.push(counts.failed.to_string().into());
                cells.push(pace::left(job, now_unix_ns).unwrap_or_default().into());
            }
            grid.row(cells);
        }
        grid.write(out)?;
        if self.jobs.iter().any(|job| job.is_open) {
            writeln!(out, "* = Open jobs")?;
        }
        if !self.is_all && self.jobs.len() < self.total {
            let verb = if self.total == 1 { "is" } else { "are" };
            let jobs = noun_of(self.total as u64, "job");
            writeln!(
                out,
                "There {verb} {} {jobs} in total. Use `--all` to display all jobs.",
                self.total
            )?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.jobs.iter();
        write_value(out, &rows.map(|job| summary_value(job)).collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for job in self.jobs {
            writeln!(
                out,
                "{} {}",
                job.id,
                view::job_state_name(view::job_state(job))
            )?;
        }
        Ok(())
    }
}

/// The output of `hq job summary`.
impl View for JobTotals {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut grid = Grid::horizontal(look, &["Status", "Count"], 0);
        grid.align_right(1);
        for state in view::SUMMARY_STATES {
            grid.row([job_state(state), self.of(state).to_string().into()]);
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let mut value = json!({});
        for state in JobState::ALL {
            let count = self.of(state);
            // Scripts expect the states of the table. Another state appears only if a job has it.
            if count > 0 || view::SUMMARY_STATES.contains(&state) {
                let (first, rest) = state.name().split_at(1);
                value[first.to_uppercase() + rest] = json!(count);
            }
        }
        write_value(out, &value)
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for state in view::SUMMARY_STATES {
            writeln!(out, "{} {}", view::job_state_name(state), self.of(state))?;
        }
        Ok(())
    }
}

/// The output of `hq job info`: jobs one by one, in JSON each with its tasks.
pub(crate) struct JobInfos<'a> {
    is_verbose: bool,
    paged: Paged<'a>,
}

impl<'a> JobInfos<'a> {
    pub(crate) fn new(output: Output, out: Out<'a>, is_verbose: bool) -> Self {
        let paged = Paged::new(output, out, JsonStream::array);
        Self { is_verbose, paged }
    }

    /// Starts the next job.
    pub(crate) fn job(&mut self, job: &client::JobDetail) -> io::Result<()> {
        match &mut self.paged {
            Paged::Table(out, look) => write_job(*out, *look, job, self.is_verbose),
            Paged::Json(stream) => open_job(stream, job, self.is_verbose),
            Paged::Quiet => Ok(()),
        }
    }

    /// Adds tasks of that job.
    pub(crate) fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        if let Paged::Json(stream) = &mut self.paged {
            for task in &page.tasks {
                stream.value(None, &task_value(task))?;
            }
        }
        Ok(())
    }

    /// Ends the output.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.paged.finish()
    }
}

/// The maximum number of characters of the ids of held tasks.
const HELD_SHOWN_MAX: usize = 500;

/// Returns the tasks that a user holds, if there are any.
fn held(job: &client::JobDetail) -> Option<String> {
    let ids = job.held.as_ref().map(id_array).unwrap_or_default();
    let ids = cut(&ids, HELD_SHOWN_MAX).unwrap_or(ids);
    match (job.held_count, job.holds_new) {
        (0, false) => None,
        (0, true) => Some("tasks that are submitted later".to_owned()),
        (count, false) => Some(format!("{count} tasks: {ids}")),
        (count, true) => Some(format!(
            "{count} tasks: {ids}; and tasks that are submitted later"
        )),
    }
}

/// Returns the options that limit the job's tasks, and why tasks wait for limits.
fn limits(job: &client::JobDetail) -> Vec<String> {
    let limits = job.limits.clone().unwrap_or_default();
    let uses = limits.uses.iter().map(|part| match part.amount {
        1 => format!("--limit {}", part.name),
        amount => format!("--limit {}={amount}", part.name),
    });
    let max = limits.max_running.map(|max| format!("--max-running {max}"));
    let rate = limits.max_rate.map(|rate| format!("--max-rate {rate}"));
    let waits = job.waits.iter().map(|why| format!("waits for {why}"));
    uses.chain(max).chain(rate).chain(waits).collect()
}

/// Returns a change of tasks after their submit, such as `tasks 1-4: priority 5, cpus 2 compact`.
fn revised(tasks: &client::RevisedTasks) -> String {
    let ids = tasks.ids.as_ref().map(id_array).unwrap_or_default();
    let ids = cut(&ids, HELD_SHOWN_MAX).unwrap_or(ids);
    let change = tasks.change.clone().unwrap_or_default();
    let time = |name: &str, ns: Option<u64>| {
        ns.map(|ns| match ns {
            0 => format!("no {name}"),
            ns => format!("{name} {}", words(Duration::from_nanos(ns))),
        })
    };
    let crash_limit = change
        .crash_limit
        .map(|limit| template::crash_limit(&limit));
    let entries = change
        .resources
        .iter()
        .map(|entry| match entry.amount_units {
            0 if entry.policy() != common::Policy::All => format!("no {}", entry.resource),
            _ => template::entry(entry).replacen(':', "", 1),
        });
    let values = [
        change
            .priority
            .map(|priority| format!("priority {priority}")),
        time("time limit", change.time_limit_ns),
        time("time request", change.time_request_ns),
        crash_limit.map(|limit| format!("crash limit {limit}")),
    ];
    let values: Vec<String> = values.into_iter().flatten().chain(entries).collect();
    format!("tasks {ids}: {}", values.join(", "))
}

fn write_job(
    out: Out<'_>,
    look: Look,
    job: &client::JobDetail,
    is_verbose: bool,
) -> io::Result<()> {
    let summary = job.summary.clone().unwrap_or_default();
    let mut grid = Grid::vertical(look);
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
    if is_verbose {
        grid.field("Notes", view::notes(job).join("\n"));
        if let Some(held) = held(job) {
            grid.field("Held", held);
        }
        let limits = limits(job);
        if !limits.is_empty() {
            grid.field("Limits", limits.join("\n"));
        }
        if !job.revised.is_empty() {
            let lines: Vec<String> = job.revised.iter().map(revised).collect();
            grid.field("Changed", lines.join("\n"));
        }
    }
    let mut text = grid.render();
    if let (Some(bar), true) = (bar, look.colors) {
        text = text.replacen(&bar.plain(), &bar.colored(), 1);
    }
    out.as_is().write_all(text.as_bytes())?;
    write_failed(out, look, job, &summary)
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

fn add_state(grid: &mut Grid, summary: &client::JobSummary) -> Option<Bar> {
    let state = view::job_state(summary);
    if summary.task_count == 1 {
        grid.field("State", job_state(state));
        return None;
    }
    let counts = view::totals(summary);
    let bar = Bar::new(counts);
    let order = [Running, Failed, Finished, Canceled, Waiting, Aborted];
    let counts = view::nonzero(counts, order).map(|(state, count)| {
        let text = format!("{} ({count})", view::task_state_name(state));
        Text::colored(text, task_color(state))
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
    fn new(counts: TaskTotals) -> Self {
        let mut left = BAR_WIDTH;
        let mut segments = Vec::new();
        let order = [Canceled, Failed, Finished, Running, Aborted];
        for (state, count) in view::nonzero(counts, order) {
            let share = (count * BAR_WIDTH as u64).div_ceil(counts.total());
            let share = usize::try_from(share).unwrap_or(left).min(left);
            left -= share;
            if share > 0 {
                segments.push((state, share));
            }
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
            let style = ansi(*state);
            text.push_str(&format!("{style}{}{style:#}", "#".repeat(*length)));
        }
        text.push_str(&".".repeat(BAR_WIDTH - self.filled()));
        text.push(']');
        text
    }
}

fn ansi(state: client::TaskState) -> anstyle::Style {
    let color = match state {
        Finished => anstyle::AnsiColor::Green,
        Failed => anstyle::AnsiColor::Red,
        Running => anstyle::AnsiColor::Yellow,
        Canceled => anstyle::AnsiColor::Magenta,
        Waiting => anstyle::AnsiColor::Cyan,
        Aborted => anstyle::AnsiColor::Blue,
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
    grid.field(
        "Crash limit",
        template::crash_limit(&task.crash_limit.unwrap_or_default()),
    );
}

fn write_failed(
    out: Out<'_>,
    look: Look,
    job: &client::JobDetail,
    summary: &client::JobSummary,
) -> io::Result<()> {
    let count = view::totals(summary).failed;
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
            Text::colored(task.error.as_str(), task_color(Failed)),
        ];
        if has_params {
            cells.push(view::params_text(&task.params).into());
        }
        grid.row(cells);
    }
    grid.write(out)?;
    let shown = job.failed.len();
    let suffix = if count > shown as u64 {
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

/// Writes everything about a job but its tasks.
fn open_job(
    stream: &mut JsonStream<'_>,
    job: &client::JobDetail,
    is_verbose: bool,
) -> io::Result<()> {
    stream.close_inner()?;
    let info = job.summary.clone().unwrap_or_default();
    let finished_at = view::finished_at(job).map(rfc3339);
    let submits = job
        .submits
        .iter()
        .map(|submit| submit_value(submit, info.id))
        .collect();
    stream.open_object(None)?;
    stream.value(Some("finished_at"), &json!(finished_at))?;
    stream.value(Some("info"), &summary_value(&info))?;
    stream.value(Some("max_fails"), &json!(job.max_fails))?;
    if !job.notifications.is_empty() {
        let notifications = job.notifications.iter().map(notification_value).collect();
        stream.value(Some("notifications"), &Value::Array(notifications))?;
    }
    if is_verbose {
        let notes = json!(view::notes(job));
        stream.value(Some("notes"), &notes)?;
        stream.value(Some("held_count"), &json!(job.held_count))?;
        stream.value(Some("holds_new"), &json!(job.holds_new))?;
        let limits = job.limits.clone().unwrap_or_default();
        let uses = limits.uses.iter();
        let uses = uses.map(|part| json!({"name": part.name, "amount": part.amount}));
        stream.value(Some("limits"), &uses.collect())?;
        stream.value(Some("max_running"), &json!(limits.max_running))?;
        stream.value(Some("max_rate"), &json!(limits.max_rate))?;
        stream.value(Some("waits"), &json!(job.waits))?;
    }
    stream.value(Some("started_at"), &json!(rfc3339(job.submitted_unix_ns)))?;
    stream.value(Some("submits"), &Value::Array(submits))?;
    stream.open_array(Some("tasks"))
}

/// Returns a job as `job list` shows it.
fn summary_value(job: &client::JobSummary) -> Value {
    json!({
        "cancel_reason": job.cancel_reason,
        "id": job.id,
        "is_open": job.is_open,
        "name": job.name,
        "task_count": job.task_count,
        "task_stats": view::counts_value(&view::totals(job)),
    })
}

/// Returns a notification and its outcome.
fn notification_value(found: &client::JobNotice) -> Value {
    let is_over = found.at_unix_ns > 0;
    json!({
        "target": found.target,
        "event": found.event().name(),
        "state": found.state().name(),
        "at": is_over.then(|| rfc3339(found.at_unix_ns)),
        "attempts": found.attempts,
        "error": (!found.error.is_empty()).then_some(&found.error),
    })
}

fn submit_value(submit: &client::SubmitInfo, job: u32) -> Value {
    if !submit.is_graph {
        let template = submit.templates.first().map(|template| {
            let mut value = definition(template, Some(job));
            add_params(&mut value, &submit.params);
            value
        });
        return json!({ "array": template });
    }
    let definitions: Vec<Value> = submit
        .templates
        .iter()
        .map(|template| definition(template, None))
        .collect();
    let tasks: Vec<&Value> = submit
        .graph_templates
        .iter()
        .filter_map(|index| definitions.get(usize::try_from(*index).ok()?))
        .collect();
    json!({ "graph": tasks })
}

/// Returns the definition of a task. Paths of arrays contain the job id.
pub(super) fn definition(template: &common::TaskTemplate, job: Option<u32>) -> Value {
    let path = |bytes: &[u8]| match job {
        Some(job) => view::job_path(bytes, job),
        None => lossy(bytes),
    };
    let stdio_path = |bytes: &[u8]| match job {
        Some(job) => view::stdio_path(bytes, &template.cwd, job),
        None => lossy(bytes),
    };
    let env: Map<String, Value> = template
        .env
        .iter()
        .map(|variable| (lossy(&variable.name), Value::String(lossy(&variable.value))))
        .collect();
    let args: Vec<String> = template.args.iter().map(|arg| lossy(arg)).collect();
    let pin = match template.pin() {
        common::PinMode::None => None,
        common::PinMode::Taskset => Some("taskset"),
        common::PinMode::OpenMp => Some("openmp"),
    };
    let crash_limit = match view::crash_limit(&template.crash_limit.unwrap_or_default()) {
        CrashLimitView::Number(number) => json!(number),
        CrashLimitView::Word(word) => json!(word),
    };
    let resources: Vec<Value> = template.requests.iter().map(request_value).collect();
    json!({
        "crash_limit": crash_limit,
        "pin_mode": pin,
        "priority": template.priority,
        "program": {
            "args": args,
            "cwd": path(&template.cwd),
            "env": env,
            "stderr": template.stderr.as_ref().and_then(|stdio| stdio_value(stdio, stdio_path)),
            "stdout": template.stdout.as_ref().and_then(|stdio| stdio_value(stdio, stdio_path)),
        },
        "resources": resources,
        "task_dir": template.task_dir,
        "time_limit": template.time_limit_ns.map(seconds),
    })
}

fn request_value(request: &common::ResourceRequest) -> Value {
    let entries: Vec<Value> = request
        .entries
        .iter()
        .map(|entry| {
            let policy = match entry.policy() {
                common::Policy::All => {
                    return json!({ "request": "All", "resource": entry.resource });
                }
                common::Policy::Compact => "Compact",
                common::Policy::ForceCompact => "ForceCompact",
                common::Policy::Tight => "Tight",
                common::Policy::ForceTight => "ForceTight",
                common::Policy::Scatter => "Scatter",
            };
            json!({ "request": { policy: entry.amount_units }, "resource": entry.resource })
        })
        .collect();
    json!({
        "min_time": seconds(request.min_time_ns),
        "n_nodes": request.n_nodes,
        "resources": entries,
        "weight": request.weight_units,
    })
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
