//! The output of `--dry-run` as JSON.

use serde_json::{Value, json};

use super::job::definition;
use super::task::add_params;
use crate::output::ChangedView;
use crate::submit::plan::{Plan, PlannedTask};
use crate::submit::skip::SkipPlan;

/// Returns everything that would be submitted.
pub(super) fn value(plan: &Plan) -> Value {
    let tasks: Vec<Value> = plan.tasks.iter().map(task).collect();
    let templates: Vec<Value> = plan
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
    let workers = plan.workers.as_ref().map(|workers| {
        let worker = |worker: &crate::submit::plan::PlannedWorker| {
            json!({ "id": worker.id, "hostname": worker.hostname, "fits": worker.fits })
        };
        workers.iter().map(worker).collect::<Vec<_>>()
    });
    let mut value = json!({
        "dry_run": true,
        "name": plan.name,
        "job": plan.job,
        "task_count": plan.task_count,
        "ids": plan.ids,
        "first": tasks.first(),
        "last": tasks.last(),
        "templates": templates,
        "stream": plan.stream,
        "after": plan.after,
        "workers": workers,
        "unfit": workers.as_ref().map(|_| &plan.unfit),
    });
    if let Some(skipped) = &plan.skipped {
        add_skipped(&mut value, skipped);
    }
    value
}

/// Returns the tasks of a job that would run again.
pub(super) fn changed(view: &ChangedView) -> Value {
    let ChangedView { job, skipped } = view;
    let mut value = json!({ "dry_run": true, "job": job, "task_count": skipped.runs.len() });
    add_skipped(&mut value, skipped);
    value
}

fn add_skipped(value: &mut Value, skipped: &SkipPlan) {
    let runs = skipped.runs.iter();
    let runs = runs.map(|(id, why)| json!({ "id": id, "why": why.to_string() }));
    value["left_out"] = json!(skipped.left_out);
    value["runs"] = runs.collect();
}

fn task(task: &PlannedTask) -> Value {
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
