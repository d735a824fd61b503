//! The output of `--dry-run`.

use std::io;

use super::grid::{Grid, Look};
use super::template;
use crate::import::shell_text;
use crate::output::view::params_text;
use crate::output::{ChangedView, Out};
use crate::submit::plan::{Plan, PlannedTask, PlannedWorker};
use crate::submit::skip::SkipPlan;

/// The maximum number of workers that are named.
const NAMED_MAX: usize = 8;

/// The maximum number of tasks that are shown with the reason why they run.
const REASONS_MAX: usize = 20;

/// Writes everything that would be submitted.
pub(super) fn write(out: Out<'_>, look: Look, plan: &Plan) -> io::Result<()> {
    let mut grid = Grid::vertical(look);
    match (&plan.name, plan.job) {
        (Some(name), _) if !plan.is_local => grid.field("New job", name.as_str()),
        (None, Some(job)) => grid.field("Open job", job.to_string()),
        (Some(_) | None, _) => {}
    }
    let tasks = match plan.ids.as_str() {
        "" => plan.task_count.to_string(),
        ids => format!("{}; Ids: {ids}", plan.task_count),
    };
    grid.field("Tasks", tasks);
    if let Some(skipped) = &plan.skipped {
        grid.field("Done, left out", skipped.left_out.to_string());
        grid.field("Runs because", reasons(skipped));
    }
    if let [one] = plan.templates.as_slice() {
        grid.field("Resources", template::resources(one));
        let environment = template::environment(one);
        if !environment.is_empty() {
            grid.field("Environment", environment);
        }
        grid.field("Task time limit", template::time_limit(one));
    } else {
        let kinds: Vec<String> = plan.templates.iter().map(template::resources).collect();
        let mut distinct = kinds.clone();
        distinct.sort_unstable();
        distinct.dedup();
        grid.field("Resources", distinct.join("\nor\n"));
    }
    if !plan.after.is_empty() {
        grid.field("After jobs", plan.after.join("\n"));
    }
    if let Some(stream) = &plan.stream {
        grid.field("Stream", stream.as_str());
    }
    for (task, label) in plan.tasks.iter().zip(["First task", "Last task"]) {
        let label = if plan.tasks.len() == 1 { "Task" } else { label };
        grid.field(label, task_text(task));
    }
    grid.field("Could run on", workers(plan));
    let fits_some = |workers: &Vec<PlannedWorker>| workers.iter().any(|worker| worker.fits);
    // If no worker fits any task, another line reports that.
    if !plan.unfit.is_empty() && plan.workers.as_ref().is_some_and(fits_some) {
        grid.field("No worker has", plan.unfit.join("\n"));
    }
    grid.write(out)?;
    writeln!(out, "Nothing was submitted.")
}

/// Writes the tasks of jobs that would run again.
pub(super) fn write_changed(out: Out<'_>, look: Look, jobs: &[ChangedView]) -> io::Result<()> {
    for ChangedView { job, skipped } in jobs {
        let mut grid = Grid::vertical(look);
        grid.field("Job", job.to_string());
        grid.field("Tasks", skipped.runs.len().to_string());
        grid.field("Done, left out", skipped.left_out.to_string());
        grid.field("Runs because", reasons(skipped));
        grid.write(out)?;
    }
    writeln!(out, "Nothing was submitted.")
}

fn reasons(skipped: &SkipPlan) -> String {
    let shown = skipped.runs.iter().take(REASONS_MAX);
    let mut lines: Vec<String> = shown.map(|(id, why)| format!("{id}: {why}")).collect();
    let rest = skipped.runs.len().saturating_sub(REASONS_MAX);
    if rest > 0 {
        lines.push(format!("and {rest} others; --output-mode json names all"));
    }
    lines.join("\n")
}

fn task_text(task: &PlannedTask) -> String {
    let mut lines = vec![
        match &task.name {
            Some(name) => format!("id {} ({name})", task.id),
            None => format!("id {}", task.id),
        },
        format!("command: {}", shell_text(&task.command)),
        format!("in: {}", task.cwd),
    ];
    for (name, path) in [("stdout", &task.stdout), ("stderr", &task.stderr)] {
        lines.extend(path.as_ref().map(|path| format!("{name}: {path}")));
    }
    lines.extend(
        task.entry
            .as_ref()
            .map(|entry| format!("HQ_ENTRY: {entry}")),
    );
    if !task.params.is_empty() {
        lines.push(format!("parameters: {}", params_text(&task.params)));
    }
    if !task.deps.is_empty() {
        let deps: Vec<String> = task.deps.iter().map(u32::to_string).collect();
        lines.push(format!("after tasks: {}", deps.join(", ")));
    }
    lines.join("\n")
}

fn workers(plan: &Plan) -> String {
    if plan.is_local {
        return "this machine".to_owned();
    }
    let Some(workers) = &plan.workers else {
        return "not known: no server to ask".to_owned();
    };
    let fitting: Vec<String> = workers
        .iter()
        .filter(|worker| worker.fits)
        .map(|worker| format!("{} ({})", worker.id, worker.hostname))
        .collect();
    let total = workers.len();
    let text = match fitting.len() {
        0 if total == 0 => return "no worker is connected".to_owned(),
        0 => return format!("none of {total} workers"),
        count => format!("{count} of {total} workers: "),
    };
    let rest = fitting.len().saturating_sub(NAMED_MAX);
    let named = fitting[..fitting.len().min(NAMED_MAX)].join(", ");
    match rest {
        0 => format!("{text}{named}"),
        rest => format!("{text}{named} and {rest} others"),
    }
}
