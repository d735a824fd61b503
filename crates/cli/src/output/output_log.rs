//! What a stream directory contains.

use std::io;

use hq_stream::Summary;
use serde_json::json;

use super::format::file_size;
use super::grid::{Grid, Look};
use super::json::write_value;
use super::{Out, View};

/// The output of `hq output-log summary`.
pub(crate) struct OutputLogView<'a> {
    pub(crate) path: &'a str,
    pub(crate) summary: &'a Summary,
}

impl View for OutputLogView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let Self { path, summary } = self;
        let sizes =
            |[stdout, stderr]: [u64; 2]| format!("{} / {}", file_size(stdout), file_size(stderr));
        let mut grid = Grid::vertical(look);
        grid.field("Path", *path);
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

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let Self { path, summary } = self;
        let value = json!({
            "filename": path,
            "summary": {
                "n_files": summary.files,
                "n_jobs": summary.jobs,
                "n_opened": summary.opened,
                "n_streams": summary.streams,
                "n_superseded": summary.superseded,
                "n_tasks": summary.tasks,
                "stderr_size": summary.sizes[1],
                "stdout_size": summary.sizes[0],
                "superseded_stderr_size": summary.superseded_sizes[1],
                "superseded_stdout_size": summary.superseded_sizes[0],
            },
        });
        write_value(out, &value)
    }
}
