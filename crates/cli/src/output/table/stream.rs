//! The table about a stream directory.

use std::io;

use hq_stream::Summary;

use super::grid::{Grid, Look};
use crate::output::Out;
use crate::output::format::file_size;

/// Writes the output of `hq output-log summary`.
pub(super) fn write_summary(
    out: Out<'_>,
    look: Look,
    path: &str,
    summary: &Summary,
) -> io::Result<()> {
    let sizes =
        |[stdout, stderr]: [u64; 2]| format!("{} / {}", file_size(stdout), file_size(stderr));
    let mut grid = Grid::vertical(look);
    grid.field("Path", path);
    grid.field("Files", summary.files.to_string());
    grid.field("Jobs", summary.jobs.to_string());
    grid.field("Tasks", summary.tasks.to_string());
    grid.field("Opened streams", summary.opened.to_string());
    grid.field("Stdout/stderr size", sizes(summary.sizes));
    grid.field("Superseded streams", summary.superseded.to_string());
    let superseded = sizes(summary.superseded_sizes);
    grid.field("Superseded stdout/stderr size", superseded);
    grid.write(out)
}
