//! Tables about the server.

use std::io;
use std::path::Path;

use hq_protocol::client;

use super::grid::{Grid, Look};
use crate::output::Out;
use crate::output::format::utc_seconds;

/// Writes the output of `hq server info`, and of `hq server start` with the directory.
pub(super) fn write_info(
    out: Out<'_>,
    look: Look,
    info: &client::ServerInfo,
    server_dir: Option<&Path>,
) -> io::Result<()> {
    let mut grid = Grid::vertical(look);
    if let Some(dir) = server_dir {
        grid.field("Server directory", dir.display().to_string());
    }
    grid.field("Server UID", info.server_uid.as_str());
    grid.field("Client host", info.client_host.as_str());
    grid.field("Client port", info.client_port.to_string());
    grid.field("Worker host", info.worker_host.as_str());
    grid.field("Worker port", info.worker_port.to_string());
    grid.field("Version", info.version.as_str());
    grid.field("Pid", info.pid.to_string());
    grid.field("Start date", utc_seconds(info.start_unix_ns));
    grid.field(
        "Journal path",
        info.journal_path.clone().unwrap_or_default(),
    );
    grid.write(out)
}

/// Writes the output of `hq token list`.
pub(super) fn write_tokens(out: Out<'_>, look: Look, tokens: &[client::Token]) -> io::Result<()> {
    let columns = ["Name", "Role", "Created", "Used since the server started"];
    let mut grid = Grid::horizontal(look, &columns, 0);
    for token in tokens {
        let used = token.used_unix_ns.map_or("no".to_owned(), utc_seconds);
        grid.row([
            token.name.as_str().into(),
            token.role().name().into(),
            utc_seconds(token.created_unix_ns).into(),
            used.into(),
        ]);
    }
    grid.write(out)
}
