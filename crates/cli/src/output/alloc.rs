//! Queues and allocations of automatic allocation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Color;
use hq_protocol::client::{self, alloc_allocation::State};
use serde_json::{Value, json};

use super::format::{local_seconds, rfc3339, seconds, words};
use super::grid::{Grid, Look, Text};
use super::json::write_value;
use super::view::{allocation_dir, allocation_state, batch_system_name};
use super::worker::{resource_lines, resources};
use super::{Out, View};

const QUEUE_COLUMNS: [&str; 10] = [
    "ID",
    "State",
    "Backlog size",
    "Max workers per alloc",
    "Max worker count",
    "Timelimit",
    "Manager",
    "Worker resources",
    "Name",
    "Args",
];

/// The output of `hq alloc list`.
pub(crate) struct QueuesView<'a> {
    pub(crate) queues: &'a [client::AllocQueue],
    pub(crate) is_verbose: bool,
}

impl View for QueuesView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut columns = QUEUE_COLUMNS.to_vec();
        if self.is_verbose {
            columns.push("Reason");
        }
        let mut grid = Grid::horizontal(look, &columns, 0);
        for queue in self.queues {
            let spec = queue.spec.clone().unwrap_or_default();
            let state = if queue.is_paused {
                Text::colored("PAUSED", Color::Yellow)
            } else {
                Text::colored("ACTIVE", Color::Green)
            };
            let resources = match &queue.known_resources {
                Some(known) => resource_lines(known, " ").join("; "),
                None => "<unknown>".to_owned(),
            };
            let mut row: Vec<Text> = vec![
                queue.id.to_string().into(),
                state,
                spec.backlog.to_string().into(),
                spec.max_workers_per_alloc.to_string().into(),
                spec.max_worker_count.unwrap_or(0).to_string().into(),
                words(Duration::from_nanos(spec.time_limit_ns)).into(),
                batch_system_name(&spec).to_uppercase().into(),
                resources.into(),
                spec.name.unwrap_or_default().into(),
                spec.additional_args.join(",").into(),
            ];
            if self.is_verbose {
                row.push(queue.reason.clone().into());
            }
            grid.row(row);
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.queues.iter();
        write_value(out, &rows.map(|row| queue(row, self.is_verbose)).collect())
    }
}

/// The output of `hq alloc info`.
pub(crate) struct AllocationsView<'a> {
    pub(crate) allocations: &'a [client::AllocAllocation],
    pub(crate) is_verbose: bool,
}

impl View for AllocationsView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut header = vec![
            "ID",
            "State",
            "Working directory",
            "Worker count",
            "Queue time",
            "Start time",
            "Finish time",
        ];
        if self.is_verbose {
            header.push("Reason");
        }
        let mut grid = Grid::horizontal(look, &header, 0);
        for allocation in self.allocations {
            let color = match allocation.state() {
                State::Queued => Color::Yellow,
                State::Running => Color::Blue,
                State::Finished => Color::Green,
                State::Failed => Color::Red,
            };
            let state = allocation_state(allocation).to_uppercase();
            let time = |at: Option<i64>| at.map(local_seconds).unwrap_or_default();
            let dir: PathBuf = allocation_dir(allocation);
            let mut row: Vec<Text> = vec![
                allocation.id.clone().into(),
                Text::colored(state, color),
                dir.display().to_string().into(),
                allocation.workers.to_string().into(),
                time(Some(allocation.queued_unix_ns)).into(),
                time(allocation.started_unix_ns).into(),
                time(allocation.ended_unix_ns).into(),
            ];
            if self.is_verbose {
                row.push(allocation.reason.clone().into());
            }
            grid.row(row);
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.allocations.iter();
        write_value(
            out,
            &rows.map(|row| allocation(row, self.is_verbose)).collect(),
        )
    }
}

/// Returns a queue as an object.
fn queue(queue: &client::AllocQueue, is_verbose: bool) -> Value {
    let spec = queue.spec.clone().unwrap_or_default();
    let mut value = json!({
        "additional_args": spec.additional_args,
        "backlog": spec.backlog,
        "id": queue.id,
        "known_worker_resources": queue.known_resources.as_ref().map(resources),
        "manager": batch_system_name(&spec),
        "max_worker_count": spec.max_worker_count,
        "max_workers_per_alloc": spec.max_workers_per_alloc,
        "name": spec.name,
        "state": if queue.is_paused { "Paused" } else { "Active" },
        "timelimit": seconds(spec.time_limit_ns),
        "worker_args": queue.worker_args,
    });
    if is_verbose {
        value["reason"] = json!(queue.reason);
    }
    value
}

/// Returns an allocation as an object.
fn allocation(allocation: &client::AllocAllocation, is_verbose: bool) -> Value {
    let mut value = json!({
        "ended_at": allocation.ended_unix_ns.map(rfc3339),
        "id": allocation.id,
        "queued_at": rfc3339(allocation.queued_unix_ns),
        "started_at": allocation.started_unix_ns.map(rfc3339),
        "status": allocation_state(allocation),
        "target_worker_count": allocation.workers,
        "workdir": allocation_dir(allocation),
    });
    if is_verbose {
        value["reason"] = json!(allocation.reason);
    }
    value
}
