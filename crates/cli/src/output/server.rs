//! Information about a server, and its tokens.

use std::io;
use std::path::Path;

use hq_protocol::client;
use serde_json::json;

use super::format::{rfc3339, utc_seconds};
use super::grid::{Grid, Look};
use super::json::write_value;
use super::{Out, View};

/// The output of `hq server info`. `hq server start` adds the directory.
pub(crate) struct ServerView<'a> {
    pub(crate) info: &'a client::ServerInfo,
    pub(crate) dir: Option<&'a Path>,
}

impl View for ServerView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let Self { info, dir } = self;
        let mut grid = Grid::vertical(look);
        if let Some(dir) = dir {
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

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let Self { info, dir } = self;
        let value = json!({
            "client_host": info.client_host,
            "client_port": info.client_port,
            "journal_path": info.journal_path,
            "pid": info.pid,
            "server_dir": dir.map(|dir| dir.display().to_string()),
            "server_uid": info.server_uid,
            "start_date": rfc3339(info.start_unix_ns),
            "version": info.version,
            "worker_host": info.worker_host,
            "worker_port": info.worker_port,
        });
        write_value(out, &value)
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        match self.dir {
            Some(dir) => writeln!(out, "{}", dir.display()),
            None => Ok(()),
        }
    }
}

impl View for client::Limits {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let mut grid = Grid::horizontal(look, &["Name", "Limit", "In use", "Jobs", "Ready"], 0);
        for limit in &self.limits {
            let users = limit.users.iter();
            let users: Vec<String> = users
                .map(|user| format!("{} ({})", user.job, user.used))
                .collect();
            let lost = match limit.lost {
                0 => String::new(),
                lost => format!(", {lost} on lost workers"),
            };
            grid.row([
                limit.name.as_str().into(),
                limit.bound.as_str().into(),
                format!("{}{lost}", limit.used).into(),
                users.join(", ").into(),
                limit.ready.to_string().into(),
            ]);
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.limits.iter().map(|limit| {
            let user = |user: &client::LimitUser| json!({"id": user.job, "used": user.used});
            json!({
                "name": limit.name,
                "limit": limit.bound,
                "used": limit.used,
                "lost": limit.lost,
                "ready": limit.ready,
                "waiting": limit.waiting,
                "waits": limit.waits,
                "jobs": limit.users.iter().map(user).collect::<Vec<_>>(),
            })
        });
        write_value(out, &rows.collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for limit in &self.limits {
            writeln!(out, "{} {}", limit.name, limit.bound)?;
        }
        Ok(())
    }
}

impl View for client::Tokens {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let columns = ["Name", "Role", "Created", "Used since the server started"];
        let mut grid = Grid::horizontal(look, &columns, 0);
        for token in &self.tokens {
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

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.tokens.iter().map(|token| {
            json!({
                "name": token.name,
                "role": token.role().name(),
                "created_at": rfc3339(token.created_unix_ns),
                "used_at": token.used_unix_ns.map(rfc3339),
            })
        });
        write_value(out, &rows.collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for token in &self.tokens {
            writeln!(out, "{} {}", token.name, token.role().name())?;
        }
        Ok(())
    }
}
