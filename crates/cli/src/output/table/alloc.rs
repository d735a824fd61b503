//! Tables about automatic allocation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Color;
use hq_protocol::client::{self, alloc_allocation::State};

use super::grid::{Grid, Look, Text};
use super::worker::resource_lines;
use crate::output::Out;
use crate::output::format::{local_seconds, words};
use crate::output::view::{allocation_dir, batch_system_name};

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

/// Writes the output of `hq alloc list`.
pub(super) fn write_list(
    out: Out<'_>,
    look: Look,
    queues: &[client::AllocQueue],
    is_verbose: bool,
) -> io::Result<()> {
    let mut columns = QUEUE_COLUMNS.to_vec();
    if is_verbose {
        columns.push("Reason");
    }
    let mut grid = Grid::horizontal(look, &columns, 0);
    for queue in queues {
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
        if is_verbose {
            row.push(queue.reason.clone().into());
        }
        grid.row(row);
    }
    grid.write(out)
}

/// Writes the output of `hq alloc info`.
pub(super) fn write_info(
    out: Out<'_>,
    look: Look,
    allocations: &[client::AllocAllocation],
    is_verbose: bool,
) -> io::Result<()> {
    let mut header = vec![
        "ID",
        "State",
        "Working directory",
        "Worker count",
        "Queue time",
        "Start time",
        "Finish time",
    ];
    if is_verbose {
        header.push("Reason");
    }
    let mut grid = Grid::horizontal(look, &header, 0);
    for allocation in allocations {
        let state = match allocation.state() {
            State::Queued => Text::colored("QUEUED", Color::Yellow),
            State::Running => Text::colored("RUNNING", Color::Blue),
            State::Finished => Text::colored("FINISHED", Color::Green),
            State::Failed => Text::colored("FAILED", Color::Red),
        };
        let time = |at: Option<i64>| at.map(local_seconds).unwrap_or_default();
        let dir: PathBuf = allocation_dir(allocation);
        let mut row: Vec<Text> = vec![
            allocation.id.clone().into(),
            state,
            dir.display().to_string().into(),
            allocation.workers.to_string().into(),
            time(Some(allocation.queued_unix_ns)).into(),
            time(allocation.started_unix_ns).into(),
            time(allocation.ended_unix_ns).into(),
        ];
        if is_verbose {
            row.push(allocation.reason.clone().into());
        }
        grid.row(row);
    }
    grid.write(out)
}
