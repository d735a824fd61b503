//! Tasks, page by page, and their ids.

use std::io;
use std::time::Duration;

use hq_core::params::fill;
use hq_protocol::{client, common};
use serde_json::{Value, json};

use super::format::{
    cut, elapsed, id_array, ids, local_seconds, mebibytes, memory, peak_memory, rfc3339,
    short_words,
};
use super::grid::{Grid, Look, Text, task_color, task_state};
use super::json::{JsonStream, stdio_value};
use super::view::{self, hostnames, params_text, template_of};
use super::{Out, Output, Paged, View, curve, template};
use crate::text::lossy;

/// The number of characters of an error in `task list`.
const LIST_ERROR_MAX: usize = 16;

/// The number of characters of an error in `task info`.
const INFO_ERROR_MAX: usize = 237;

/// The contents of `task list` except for the tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskListView {
    /// Whether the list contains tasks of exactly one job.
    pub(crate) is_single_job: bool,
    /// Whether errors are shown in full.
    pub(crate) is_verbose: bool,
}

/// The output of `hq task list`: in JSON an object with one array per job.
pub(crate) struct TaskLists<'a> {
    view: TaskListView,
    paged: Paged<'a>,
    /// The cells of each task, its parameters and its name. The table is written at the end,
    /// because the widest cell determines the width of a column.
    rows: Vec<(Vec<Text>, String, String)>,
    is_cut: bool,
}

impl<'a> TaskLists<'a> {
    pub(crate) fn new(output: Output, out: Out<'a>, view: TaskListView) -> Self {
        Self {
            view,
            paged: Paged::new(output, out, JsonStream::object),
            rows: Vec::new(),
            is_cut: false,
        }
    }

    /// Starts the next job.
    pub(crate) fn job(&mut self, job: u32) -> io::Result<()> {
        match &mut self.paged {
            Paged::Json(stream) => stream.next_array(job),
            Paged::Table(..) | Paged::Quiet => Ok(()),
        }
    }

    /// Adds tasks of that job.
    pub(crate) fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        for task in &page.tasks {
            match &mut self.paged {
                Paged::Table(..) => self.add_row(task, page),
                Paged::Json(stream) => {
                    let mut value = task_value(task);
                    if self.view.is_verbose {
                        add_name(&mut value, task);
                    }
                    stream.value(None, &value)?;
                }
                Paged::Quiet => {}
            }
        }
        Ok(())
    }

    fn add_row(&mut self, task: &client::TaskInfo, page: &client::TaskPageReply) {
        let (error, is_cut) = error_text(task, LIST_ERROR_MAX, self.view.is_verbose);
        self.is_cut |= is_cut;
        let workers: Vec<&str> = hostnames(&task.workers).collect();
        let mut cells = vec![
            task.id.to_string().into(),
            task_state(task.state()),
            workers.join("\n").into(),
            makespan(task, page.now_unix_ns).into(),
            error,
        ];
        if !self.view.is_single_job {
            cells.insert(0, page.job.to_string().into());
        }
        let name = task.name.clone().unwrap_or_default();
        self.rows.push((cells, params_text(&task.params), name));
    }

    /// Ends the output. Returns whether an error message was shortened.
    pub(crate) fn finish(self) -> io::Result<bool> {
        let Paged::Table(out, look) = self.paged else {
            return self.paged.finish().map(|()| false);
        };
        let mut header = vec!["Job ID", "Task ID", "State", "Worker", "Makespan", "Error"];
        // If no task has parameters, the table has no such column.
        let has_params = self.rows.iter().any(|(_, params, _)| !params.is_empty());
        if has_params {
            header.push("Parameters");
        }
        let has_names =
            self.view.is_verbose && self.rows.iter().any(|(_, _, name)| !name.is_empty());
        if has_names {
            header.push("Name");
        }
        let mut grid = if self.view.is_single_job {
            Grid::horizontal(look, &header[1..], 1)
        } else {
            Grid::horizontal(look, &header, 2)
        };
        for (mut cells, params, name) in self.rows {
            if has_params {
                cells.push(params.into());
            }
            if has_names {
                cells.push(name.into());
            }
            grid.row(cells);
        }
        grid.write(out)?;
        Ok(self.is_cut)
    }
}

/// The output of `hq task info`: tasks of one job with their definitions.
pub(crate) struct TaskInfos<'a> {
    is_verbose: bool,
    paged: Paged<'a>,
}

impl<'a> TaskInfos<'a> {
    pub(crate) fn new(output: Output, out: Out<'a>, is_verbose: bool) -> Self {
        let paged = Paged::new(output, out, JsonStream::array);
        Self { is_verbose, paged }
    }

    /// Adds tasks.
    pub(crate) fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        for task in &page.tasks {
            match &mut self.paged {
                Paged::Table(out, look) => {
                    task_grid(task, page, *look, self.is_verbose).write(*out)?;
                }
                Paged::Json(stream) => {
                    let mut value = task_value(task);
                    if let Some(by) = task.submitted_by {
                        value["submitted_by"] = json!(by);
                    }
                    if self.is_verbose {
                        add_details(&mut value, task);
                    }
                    stream.value(None, &value)?;
                }
                Paged::Quiet => {}
            }
        }
        Ok(())
    }

    /// Ends the output.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.paged.finish()
    }
}

fn task_grid(
    task: &client::TaskInfo,
    page: &client::TaskPageReply,
    look: Look,
    is_verbose: bool,
) -> Grid {
    let unknown = common::TaskTemplate::default();
    let definition = template_of(task, page).unwrap_or(&unknown);
    let local = |at: Option<i64>| at.map(local_seconds).unwrap_or_default();
    let paths = task.paths.clone().unwrap_or_default();
    let workers: Vec<&str> = hostnames(&task.workers).collect();
    let deps = task.deps.iter().map(u32::to_string);
    let mut grid = Grid::vertical(look);
    grid.field("Task ID", task.id.to_string());
    grid.field("State", task_state(task.state()));
    if !task.params.is_empty() {
        grid.field("Parameters", params_text(&task.params));
    }
    grid.field("Command", template::command(&filled(definition, task)));
    grid.field("Environment", template::environment(definition));
    grid.field("Worker", workers.join("\n"));
    grid.field("Start", local(task.started_unix_ns));
    grid.field("End", local(task.finished_unix_ns));
    grid.field("Makespan", makespan(task, page.now_unix_ns));
    grid.field("Workdir", lossy(&paths.cwd));
    grid.field("Stdout", template::stdio(paths.stdout.as_ref(), lossy));
    grid.field("Stderr", template::stdio(paths.stderr.as_ref(), lossy));
    grid.field("Time limit", template::time_limit(definition));
    grid.field("Resources", template::resources(definition));
    grid.field("Priority", definition.priority.to_string());
    grid.field("Pin", template::pin(definition));
    grid.field("Task dir", if definition.task_dir { "yes" } else { "no" });
    grid.field(
        "Crash limit",
        template::crash_limit(&definition.crash_limit.unwrap_or_default()),
    );
    let after = task.after.iter().map(|after| after_text(*after));
    let deps: Vec<String> = deps.chain(after).collect();
    grid.field("Dependencies", deps.join(","));
    // This is shown only for tasks that another task submitted.
    if let Some(by) = task.submitted_by {
        grid.field("Submitted by", format!("{}.{by}", page.job));
    }
    grid.field("Error", error_text(task, INFO_ERROR_MAX, is_verbose).0);
    if is_verbose {
        if let Some(name) = &task.name {
            grid.field("Name", name.clone());
        }
        grid.field("Max RSS", task.usage.map_or_else(String::new, max_rss));
        grid.field("CPU time", task.usage.map_or_else(String::new, cpu_time));
        // Only tasks that ran for some seconds have curves.
        for (name, line) in curve::lines(task.curve.as_ref()) {
            grid.field(name, line);
        }
        grid.field("Attempts", attempts(task));
    }
    grid
}

/// The output of `hq job task-ids`: only the ids for a single job, otherwise one line per job.
impl View for client::TaskIdsReply {
    fn table(&self, out: Out<'_>, _look: Look) -> io::Result<()> {
        self.quiet(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let mut stream = JsonStream::object(out);
        for job in &self.jobs {
            stream.next_array(job.job)?;
            for id in job.ids.iter().flat_map(ids) {
                stream.value(None, &json!(id))?;
            }
        }
        stream.finish()
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for job in &self.jobs {
            let ids = job.ids.as_ref().map(id_array).unwrap_or_default();
            match self.jobs.len() {
                1 => writeln!(out, "{ids}")?,
                _ => writeln!(out, "{}: {ids}", job.job)?,
            }
        }
        Ok(())
    }
}

fn makespan(task: &client::TaskInfo, now_unix_ns: i64) -> String {
    let Some(started) = task.started_unix_ns else {
        return String::new();
    };
    let end = task.finished_unix_ns.unwrap_or(now_unix_ns);
    short_words(elapsed(started, end))
}

fn error_text(task: &client::TaskInfo, length_max: usize, is_verbose: bool) -> (Text, bool) {
    // Error files of tasks usually end with a line feed.
    let error = task.error.as_deref().unwrap_or_default().trim_end();
    let color = task_color(client::TaskState::Failed);
    match cut(error, length_max) {
        Some(short) if !is_verbose => (Text::colored(short, color), true),
        Some(_) | None => (Text::colored(error, color), false),
    }
}

/// Formats another job that the task waits for.
fn after_text(after: client::After) -> String {
    let what = if after.each {
        "same task of job"
    } else {
        "job"
    };
    let how = if after.any { " (any end)" } else { "" };
    format!("{what} {}{how}", after.job)
}

/// Returns the definition of a task with its parameters filled in.
fn filled(definition: &common::TaskTemplate, task: &client::TaskInfo) -> common::TaskTemplate {
    let params: Vec<(&str, &[u8])> = task
        .params
        .iter()
        .map(|param| (param.name.as_str(), &*param.value))
        .collect();
    let args = definition.args.iter();
    common::TaskTemplate {
        args: args.map(|arg| fill(arg, &params).into()).collect(),
        ..definition.clone()
    }
}

fn max_rss(usage: client::TaskUsage) -> String {
    peak_memory(usage.max_rss_kib.saturating_mul(1024))
}

fn cpu_time(usage: client::TaskUsage) -> String {
    let words = |micros| short_words(Duration::from_micros(micros));
    format!(
        "user {}, system {}",
        words(usage.user_us),
        words(usage.system_us)
    )
}

/// Returns the number of the current attempt, and a line for each earlier one.
fn attempts(task: &client::TaskInfo) -> String {
    let mut lines = vec![format!(
        "{} (instance {})",
        task.attempts.len() + 1,
        task.instance
    )];
    for attempt in &task.attempts {
        let worker = attempt
            .worker
            .as_ref()
            .map_or("", |worker| &worker.hostname);
        let run = short_words(elapsed(attempt.started_unix_ns, attempt.finished_unix_ns));
        let memory = attempt.memory_units.map(memory);
        let limit = attempt.time_limit_ns.map(Duration::from_nanos);
        let limit = limit.map(|limit| format!("time limit {}", short_words(limit)));
        let given: Vec<String> = [memory, limit].into_iter().flatten().collect();
        let given = match given.join(", ") {
            given if given.is_empty() => given,
            given => format!(" with {given}"),
        };
        lines.push(format!(
            "instance {} on {worker}{given}, {run}: {}",
            attempt.instance, attempt.error
        ));
        let memory = curve::memory_line(attempt.curve.as_ref());
        lines.extend(memory.map(|memory| format!("  memory {memory}")));
    }
    lines.join("\n")
}

/// Returns a task as an object. Its keys depend on the state of the task.
pub(super) fn task_value(info: &client::TaskInfo) -> Value {
    let state = info.state();
    let mut value = json!({ "id": info.id, "state": view::task_state_word(state) });
    if let Some(paths) = &info.paths {
        value["cwd"] = json!(lossy(&paths.cwd));
        value["stdout"] = json!(paths.stdout.as_ref().and_then(|s| stdio_value(s, lossy)));
        value["stderr"] = json!(paths.stderr.as_ref().and_then(|s| stdio_value(s, lossy)));
    }
    if let Some(started) = info.started_unix_ns {
        value["started_at"] = json!(rfc3339(started));
        if info.multi_node {
            let workers: Vec<u32> = info.workers.iter().map(|worker| worker.id).collect();
            value["workers"] = json!(workers);
        } else if let Some(worker) = info.workers.first() {
            value["worker"] = json!(worker.id);
        }
    }
    if let Some(finished) = info.finished_unix_ns {
        value["finished_at"] = json!(rfc3339(finished));
    }
    if state == client::TaskState::Failed {
        value["error"] = json!(info.error.clone().unwrap_or_default());
    }
    add_params(&mut value, &info.params);
    value
}

/// Adds the names and values of parameters if the task has any. See `docs/jobs.md`.
pub(crate) fn add_params(value: &mut Value, params: &[client::Param]) {
    if params.is_empty() {
        return;
    }
    let pairs = params.iter();
    let map: serde_json::Map<String, Value> = pairs
        .map(|param| (param.name.clone(), json!(lossy(&param.value))))
        .collect();
    value["params"] = map.into();
}

/// Adds the name of a step if it has one.
fn add_name(value: &mut Value, info: &client::TaskInfo) {
    if let Some(name) = &info.name {
        value["name"] = json!(name);
    }
}

/// Adds the keys of `-v` to a task object. See `docs/scripting.md`.
fn add_details(value: &mut Value, info: &client::TaskInfo) {
    let usage = |usage: &client::TaskUsage| {
        json!({
            "max_rss_kib": usage.max_rss_kib,
            "system_time": Duration::from_micros(usage.system_us).as_secs_f64(),
            "user_time": Duration::from_micros(usage.user_us).as_secs_f64(),
        })
    };
    let attempt = |attempt: &client::TaskAttempt| {
        let mut value = json!({
            "error": attempt.error,
            "finished_at": rfc3339(attempt.finished_unix_ns),
            "instance": attempt.instance,
            "started_at": rfc3339(attempt.started_unix_ns),
            "usage": attempt.usage.as_ref().map(usage),
            "usage_over_time": curve::value(attempt.curve.as_ref()),
            "worker": attempt.worker.as_ref().map(|worker| worker.id),
        });
        if let Some(units) = attempt.memory_units {
            value["memory_mib"] = json!(mebibytes(units));
        }
        if let Some(limit) = attempt.time_limit_ns {
            value["time_limit"] = json!(Duration::from_nanos(limit).as_secs_f64());
        }
        value
    };
    value["attempts"] = info.attempts.iter().map(attempt).collect();
    value["crash_count"] = json!(info.crash_count);
    value["instance"] = json!(info.instance);
    add_name(value, info);
    value["usage"] = json!(info.usage.as_ref().map(usage));
    value["usage_over_time"] = curve::value(info.curve.as_ref());
}
