//! The output of `--dry-run`.

use std::io;

use serde_json::{Value, json};

use super::grid::{Grid, Look};
use super::job::definition;
use super::json::write_value;
use super::task::add_params;
use super::view::params_text;
use super::{Out, View, template};
use crate::submit::plan::{Plan, PlannedTask, PlannedWorker};
use crate::submit::skip::SkipPlan;
use crate::text::shell_text;

/// The maximum number of workers that are named.
const NAMED_MAX: usize = 8;

/// The maximum number of tasks that are shown with the reason why they run.
const REASONS_MAX: usize = 20;

impl View for Plan {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut grid = Grid::vertical(look);
        match (&self.name, self.job) {
            (Some(name), _) if !self.is_local => grid.field("New job", name.as_str()),
            (None, Some(job)) => grid.field("Open job", job.to_string()),
            (Some(_) | None, _) => {}
        }
        let tasks = match self.ids.as_str() {
            "" => self.task_count.to_string(),
            ids => format!("{}; Ids: {ids}", self.task_count),
        };
        grid.field("Tasks", tasks);
        if let Some(skipped) = &self.skipped {
            grid.field("Done, left out", skipped.left_out.to_string());
            grid.field("Runs because", reasons(skipped));
        }
        if let [one] = self.templates.as_slice() {
            grid.field("Resources", template::resources(one));
            let environment = template::environment(one);
            if !environment.is_empty() {
                grid.field("Environment", environment);
            }
            grid.field("Task time limit", template::time_limit(one));
        } else {
            let kinds: Vec<String> = self.templates.iter().map(template::resources).collect();
            let mut distinct = kinds.clone();
            distinct.sort_unstable();
            distinct.dedup();
            grid.field("Resources", distinct.join("\nor\n"));
        }
        if !self.after.is_empty() {
            grid.field("After jobs", self.after.join("\n"));
        }
        if let Some(stream) = &self.stream {
            grid.field("Stream", stream.as_str());
        }
        for (task, label) in self.tasks.iter().zip(["First task", "Last task"]) {
            let label = if self.tasks.len() == 1 { "Task" } else { label };
            grid.field(label, task_text(task));
        }
        grid.field("Could run on", workers(self));
        let fits_some = |workers: &Vec<PlannedWorker>| workers.iter().any(|worker| worker.fits);
        // If no worker fits any task, another line reports that.
        if !self.unfit.is_empty() && self.workers.as_ref().is_some_and(fits_some) {
            grid.field("No worker has", self.unfit.join("\n"));
        }
        grid.write(out)?;
        writeln!(out, "Nothing was submitted.")
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let tasks: Vec<Value> = self.tasks.iter().map(planned_task).collect();
        let templates: Vec<Value> = self
            .templates
            .iter()
            .map(|template| {
                let mut value = definition(template, None);
                // Shows only the part of the program that all tasks share.
                let env = value["program"]["env"].take();
                if let Some(map) = value.as_object_mut() {
                    map.remove("program");
                    map.insert("env".to_owned(), env);
                }
                value
            })
            .collect();
        let workers = self.workers.as_ref().map(|workers| {
            let worker = |worker: &PlannedWorker| {
                json!({ "id": worker.id, "hostname": worker.hostname, "fits": worker.fits })
            };
            workers.iter().map(worker).collect::<Vec<_>>()
        });
        let mut value = json!({
            "dry_run": true,
            "name": self.name,
            "job": self.job,
            "task_count": self.task_count,
            "ids": self.ids,
            "first": tasks.first(),
            "last": tasks.last(),
            "templates": templates,
            "stream": self.stream,
            "after": self.after,
            "workers": workers,
            "unfit": workers.as_ref().map(|_| &self.unfit),
        });
        if let Some(skipped) = &self.skipped {
            add_skipped(&mut value, skipped);
        }
        write_value(out, &value)
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        writeln!(out, "{}", self.task_count)
    }
}

/// A job, and its tasks that would run again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ChangedView {
    pub(crate) job: u32,
    pub(crate) skipped: SkipPlan,
}

impl View for Vec<ChangedView> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        for ChangedView { job, skipped } in self {
            let mut grid = Grid::vertical(look);
            grid.field("Job", job.to_string());
            grid.field("Tasks", skipped.runs.len().to_string());
            grid.field("Done, left out", skipped.left_out.to_string());
            grid.field("Runs because", reasons(skipped));
            grid.write(out)?;
        }
        writeln!(out, "Nothing was submitted.")
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.iter().map(|ChangedView { job, skipped }| {
            let mut value =
                json!({ "dry_run": true, "job": job, "task_count": skipped.runs.len() });
            add_skipped(&mut value, skipped);
            value
        });
        write_value(out, &rows.collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for ChangedView { job, skipped } in self {
            for (task, _) in &skipped.runs {
                writeln!(out, "{job}.{task}")?;
            }
        }
        Ok(())
    }
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

fn add_skipped(value: &mut Value, skipped: &SkipPlan) {
    let runs = skipped.runs.iter();
    let runs = runs.map(|(id, why)| json!({ "id": id, "why": why.to_string() }));
    value["left_out"] = json!(skipped.left_out);
    value["runs"] = runs.collect();
}

fn planned_task(task: &PlannedTask) -> Value {
    let mut value = json!({
        "id": task.id,
        "command": task.command,
        "cwd": task.cwd,
        "stdout": task.stdout,
        "stderr": task.stderr,
        "entry": task.entry,
        "deps": task.deps,
    });
    if let Some(name) = &task.name {
        value["name"] = json!(name);
    }
    add_params(&mut value, &task.params);
    value
}
