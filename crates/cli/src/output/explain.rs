//! Explains why a task is or is not running.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hq_core::words::noun_of;
use hq_protocol::client;
use serde_json::{Value, json};

use super::format::{amount, joined_ids, short_words, words};
use super::grid::{Grid, Look, Text};
use super::json::write_value;
use super::view::variant_fits;
use super::{Out, View};

/// The output of `hq task explain`.
pub(crate) struct ExplanationView<'a> {
    pub(crate) explanation: &'a client::Explanation,
    pub(crate) is_verbose: bool,
}

impl View for ExplanationView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let Self {
            explanation,
            is_verbose,
        } = *self;
        let name = explanation.name.as_ref().filter(|_| is_verbose);
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        let task = format!("Task {}@{}{name}", explanation.job, explanation.task);
        let (count, waiting) = (explanation.dep_count, explanation.waiting_dep_count);
        match (count, waiting) {
            (_, 0) if explanation.is_held => writeln!(
                out,
                "{task} is not ready to run because a user holds it; `hq task release {}.{}` releases it.",
                explanation.job, explanation.task
            )?,
            (0, _) => writeln!(
                out,
                "{task} is ready to run because it has no dependencies."
            )?,
            (_, 0) => writeln!(
                out,
                "{task} is ready to run because its all {count} dependencies are finished."
            )?,
            _ => writeln!(
                out,
                "{task} is not ready to run, because {waiting}/{count} dependencies are not finished."
            )?,
        }
        let able: Vec<u32> = explanation
            .workers
            .iter()
            .filter(|worker| worker.variants.iter().any(variant_fits))
            .map(|worker| worker.worker)
            .collect();
        if able.is_empty() {
            writeln!(out, "There is no worker where the task can run.")?;
        } else {
            let count = able.len();
            let workers = noun_of(count as u64, "worker");
            let ids = joined_ids(able);
            writeln!(out, "The task can run on {count} {workers}: {ids}")?;
        }
        let header = [
            "Worker Id",
            "Runnable",
            "Variant",
            "Type",
            "Provides",
            "Request",
        ];
        let mut grid = Grid::horizontal(look, &header, 0);
        for worker in &explanation.workers {
            add_worker(&mut grid, worker);
        }
        grid.write(out)?;
        write_remarks(out, explanation)?;
        // Added after the table, because scripts read up to its end.
        if is_verbose {
            write_now(out, explanation)?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let explanation = self.explanation;
        let workers: Vec<Value> = explanation
            .workers
            .iter()
            .map(|worker| {
                let variants: Vec<Vec<Value>> = worker
                    .variants
                    .iter()
                    .map(|variant| variant.items.iter().filter_map(explain_item).collect())
                    .collect();
                json!({ "variants": variants, "worker_id": worker.worker })
            })
            .collect();
        let mut value = json!({
            "explanation": {
                "n_task_deps": explanation.dep_count,
                "n_waiting_deps": explanation.waiting_dep_count,
                "workers": workers,
            },
            "task_id": { "job_id": explanation.job, "job_task_id": explanation.task },
        });
        // An additional key of hq, present only if it applies.
        if let Some(place) = &explanation.unkillable {
            value["explanation"]["unkillable"] = place.as_str().into();
        }
        if let Some(overdue) = explanation.start_overdue_ns {
            value["explanation"]["start_overdue"] = duration(overdue);
        }
        if !explanation.limits.is_empty() {
            value["explanation"]["limits"] = json!(explanation.limits);
        }
        if explanation.is_held {
            value["explanation"]["is_held"] = true.into();
        }
        if let Some(wait) = explanation.next_attempt_in_ns {
            value["explanation"]["next_attempt_in"] = duration(wait);
        }
        write_value(out, &value)
    }
}

/// Writes what delays a task, apart from the conditions in the table.
fn write_remarks(out: Out<'_>, explanation: &client::Explanation) -> io::Result<()> {
    if explanation.is_held && explanation.waiting_dep_count > 0 {
        let (job, task) = (explanation.job, explanation.task);
        writeln!(
            out,
            "A user also holds it; `hq task release {job}.{task}` releases it."
        )?;
    }
    for limit in &explanation.limits {
        writeln!(out, "It waits for {limit}.")?;
    }
    if let Some(kept) = explanation.workers.iter().find_map(|row| row.kept.as_ref()) {
        writeln!(out, "Now {kept}.")?;
    }
    if let Some(place) = &explanation.unkillable {
        writeln!(
            out,
            "The task was killed but still exists: {place}. Its resources stay reserved until it exits."
        )?;
    }
    if let (Some(overdue), Some(worker)) = (explanation.start_overdue_ns, explanation.sent_to) {
        writeln!(
            out,
            "Worker {worker} has had the task and free resources for {}, but has not started it: most likely a file system does not answer there (program, directories, output files).",
            words(Duration::from_nanos(overdue))
        )?;
    }
    if let Some(wait) = explanation.next_attempt_in_ns {
        writeln!(
            out,
            "Its last attempt failed; the next one begins in {}.",
            short_words(Duration::from_nanos(wait))
        )?;
    }
    Ok(())
}

/// Writes what currently prevents a task from running, if a worker could run it.
fn write_now(out: Out<'_>, explanation: &client::Explanation) -> io::Result<()> {
    if let Some(worker) = explanation.sent_to {
        if explanation.waiting_dep_count > 0 {
            return writeln!(
                out,
                "The task was sent ahead to worker {worker}, which starts it when its dependency has finished there."
            );
        }
        if explanation.start_overdue_ns.is_none() {
            writeln!(
                out,
                "The task was sent to worker {worker}, which starts it as soon as resources are free; it has not reported the start."
            )?;
        }
        let there = explanation.workers.iter().find(|row| row.worker == worker);
        let variant = there.and_then(|row| row.variants.iter().find(|row| variant_fits(row)));
        for why in variant.iter().flat_map(|variant| &variant.hindrances) {
            writeln!(out, "There {why}")?;
        }
        return Ok(());
    }
    if !explanation.is_ready || !explanation.limits.is_empty() {
        return Ok(());
    }
    let mut lines: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for worker in &explanation.workers {
        let several = worker.variants.len() > 1;
        for (number, variant) in worker.variants.iter().enumerate() {
            if !variant_fits(variant) {
                continue;
            }
            let variant_name = if several {
                format!("variant {number}: ")
            } else {
                String::new()
            };
            let why = match variant.hindrances.as_slice() {
                [] => "free, it starts next".to_owned(),
                hindrances => hindrances.join("; "),
            };
            let line = format!("{variant_name}{why}");
            lines.entry(line).or_default().push(worker.worker);
        }
    }
    let mut lines: Vec<(Vec<u32>, String)> =
        lines.into_iter().map(|(line, ids)| (ids, line)).collect();
    lines.sort();
    for (ids, line) in lines {
        writeln!(out, "Now on worker {}: {line}", joined_ids(ids))?;
    }
    Ok(())
}

fn add_worker(grid: &mut Grid, worker: &client::WorkerExplanation) {
    let fitting = worker
        .variants
        .iter()
        .filter(|variant| variant_fits(variant))
        .count();
    let total = worker.variants.len();
    let runnable = match fitting {
        0 => "No".to_owned(),
        _ if fitting == total => "Yes".to_owned(),
        _ => format!("Yes ({fitting}/{total})"),
    };
    let mut lead = [worker.worker.to_string(), runnable];
    for (i, variant) in worker.variants.iter().enumerate() {
        let mut number = i.to_string();
        let rows: Vec<[String; 3]> = if variant.items.is_empty() {
            vec![Default::default()]
        } else {
            variant.items.iter().map(item_row).collect()
        };
        for row in rows {
            let [worker, runnable] = std::mem::take(&mut lead);
            let cells = [worker, runnable, std::mem::take(&mut number)]
                .into_iter()
                .chain(row);
            grid.row(cells.map(Text::from));
        }
    }
}

/// Returns the kind of the condition, what the worker provides, and what the task requests.
fn item_row(item: &client::ExplainItem) -> [String; 3] {
    use client::explain_item::Item;
    let duration = |ns: u64| words(Duration::from_nanos(ns));
    match &item.item {
        Some(Item::Time(time)) => [
            "time".to_owned(),
            time.remaining_ns
                .map_or_else(|| "unknown".to_owned(), duration),
            duration(time.min_time_ns),
        ],
        Some(Item::Resource(resource)) => [
            resource.resource.clone(),
            amount(resource.worker_units),
            // The least amount stands for `all` where a worker has none.
            match (resource.request_units, resource.worker_units) {
                (1, 0) => "all".to_owned(),
                (units, _) => amount(units),
            },
        ],
        Some(Item::Group(group)) => [
            "nodes".to_owned(),
            format!("group size {}", group.group_size),
            group.n_nodes.to_string(),
        ],
        None => Default::default(),
    }
}

fn explain_item(item: &client::ExplainItem) -> Option<Value> {
    use client::explain_item::Item;
    Some(match item.item.as_ref()? {
        Item::Time(time) => json!({ "Time": {
            "min_time": duration(time.min_time_ns),
            "remaining_time": time.remaining_ns.map(duration),
        } }),
        Item::Resource(resource) => json!({ "Resources": {
            "request_amount": resource.request_units,
            "resource": resource.resource,
            "worker_amount": resource.worker_units,
        } }),
        Item::Group(group) => json!({ "WorkerGroup": {
            "group_size": group.group_size,
            "n_nodes": group.n_nodes,
        } }),
    })
}

fn duration(ns: u64) -> Value {
    let duration = Duration::from_nanos(ns);
    json!({ "nanos": duration.subsec_nanos(), "secs": duration.as_secs() })
}
