//! Tables about tasks.

use std::io;
use std::time::Duration;

use hq_core::params::fill;
use hq_protocol::{client, common};

use super::grid::{Grid, Look, Text, task_color};
use super::job::state_cell;
use super::template;
use crate::output::curve;
use crate::output::format::{cut, elapsed, local_seconds, lossy, memory, peak_memory, short_words};
use crate::output::view::{hostnames, params_text};
use crate::output::{Out, TaskInfoSink, TaskListSink, TaskListView};

/// The number of characters of an error in `task list`.
const LIST_ERROR_MAX: usize = 16;

/// The number of characters of an error in `task info`.
const INFO_ERROR_MAX: usize = 237;

/// Writes the output of `hq task list`. Collects all rows first, because the widest cell determines
/// the column widths.
pub(super) struct TaskLists<'a> {
    out: Out<'a>,
    look: Look,
    /// The cells of each task, its parameters and its name.
    rows: Vec<(Vec<Text>, String, String)>,
    view: TaskListView,
    is_cut: bool,
}

impl<'a> TaskLists<'a> {
    pub(super) fn new(out: Out<'a>, look: Look, view: TaskListView) -> Self {
        Self {
            out,
            look,
            rows: Vec::new(),
            view,
            is_cut: false,
        }
    }
}

impl TaskListSink for TaskLists<'_> {
    fn job(&mut self, _job: u32) -> io::Result<()> {
        Ok(())
    }

    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        for task in &page.tasks {
            let (error, is_cut) = error_text(task, LIST_ERROR_MAX, self.view.is_verbose);
            self.is_cut |= is_cut;
            let workers: Vec<&str> = hostnames(&task.workers).collect();
            let mut cells = vec![
                task.id.to_string().into(),
                state_cell(task),
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
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<bool> {
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
            Grid::horizontal(self.look, &header[1..], 1)
        } else {
            Grid::horizontal(self.look, &header, 2)
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
        grid.write(self.out)?;
        Ok(self.is_cut)
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

/// Writes the output of `hq task info`.
pub(super) struct TaskInfos<'a> {
    out: Out<'a>,
    look: Look,
    is_verbose: bool,
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

impl<'a> TaskInfos<'a> {
    pub(super) fn new(out: Out<'a>, look: Look, is_verbose: bool) -> Self {
        Self {
            out,
            look,
            is_verbose,
        }
    }

    fn task(
        &mut self,
        task: &client::TaskInfo,
        definition: &common::TaskTemplate,
        (job, now_unix_ns): (u32, i64),
    ) -> io::Result<()> {
        let local = |at: Option<i64>| at.map(local_seconds).unwrap_or_default();
        let paths = task.paths.clone().unwrap_or_default();
        let workers: Vec<&str> = hostnames(&task.workers).collect();
        let deps = task.deps.iter().map(u32::to_string);
        let mut grid = Grid::vertical(self.look);
        grid.field("Task ID", task.id.to_string());
        grid.field("State", state_cell(task));
        if !task.params.is_empty() {
            grid.field("Parameters", params_text(&task.params));
        }
        grid.field("Command", template::command(&filled(definition, task)));
        grid.field("Environment", template::environment(definition));
        grid.field("Worker", workers.join("\n"));
        grid.field("Start", local(task.started_unix_ns));
        grid.field("End", local(task.finished_unix_ns));
        grid.field("Makespan", makespan(task, now_unix_ns));
        grid.field("Workdir", lossy(&paths.cwd));
        grid.field("Stdout", template::stdio(paths.stdout.as_ref(), lossy));
        grid.field("Stderr", template::stdio(paths.stderr.as_ref(), lossy));
        grid.field("Time limit", template::time_limit(definition));
        grid.field("Resources", template::resources(definition));
        grid.field("Priority", definition.priority.to_string());
        grid.field("Pin", template::pin(definition));
        grid.field("Task dir", if definition.task_dir { "yes" } else { "no" });
        grid.field("Crash limit", template::crash_limit(definition));
        let after = task.after.iter().map(|after| after_text(*after));
        let deps: Vec<String> = deps.chain(after).collect();
        grid.field("Dependencies", deps.join(","));
        // This is shown only for tasks that another task submitted.
        if let Some(by) = task.submitted_by {
            grid.field("Submitted by", format!("{job}.{by}"));
        }
        grid.field("Error", error_text(task, INFO_ERROR_MAX, self.is_verbose).0);
        if self.is_verbose {
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
        grid.write(self.out)
    }
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

impl TaskInfoSink for TaskInfos<'_> {
    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        let unknown = common::TaskTemplate::default();
        for task in &page.tasks {
            let index = usize::try_from(task.template).unwrap_or(usize::MAX);
            let definition = page.templates.get(index).unwrap_or(&unknown);
            self.task(task, definition, (page.job, page.now_unix_ns))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
