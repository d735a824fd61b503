//! Communicates with the program, and with a server that may be away for a while.

use std::time::Duration;

use hq_core::range::IdArray;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Shared;
use super::frame::plain;
use crate::client::Client;
use crate::error::{CliError, CliResult};

/// How long a server may be away, as for `hq job wait`.
const PATIENCE: Duration = Duration::from_secs(60);
/// The minimum and the maximum pause between attempts to reach the server.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Answers a request.
pub(super) async fn answer(shared: &Shared, id: Option<u64>, result: CliResult<Value>) {
    let json = match result {
        Ok(value) => json!({"ev": "answer", "id": id, "value": value}),
        Err(error) => {
            json!({"ev": "answer", "id": id, "error": error.text(), "not_found": error.is_not_found()})
        }
    };
    tell(shared, &json).await;
}

/// Sends a message to the program.
pub(super) async fn tell(shared: &Shared, json: &Value) {
    // If the program no longer reads, it is about to close standard input.
    let _ = shared.out.send(plain(json.clone())).await;
}

/// Connects to the server. If the connection was lost, waits until the server is back.
pub(super) async fn come_back(shared: &Shared, lost: Option<CliError>) -> CliResult<Client> {
    let until = Instant::now() + PATIENCE;
    let mut pause = PAUSE_MIN;
    let mut last = lost;
    loop {
        match shared.dialer.connect().await {
            Ok(client) => return Ok(client),
            Err(error) if last.is_none() && !shared.dialer.may_return() => return Err(error),
            Err(error) => last = Some(error),
        }
        if !shared.dialer.may_return() || Instant::now() >= until {
            return Err(last.unwrap_or_else(|| CliError::new("The server is gone")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the ids of all tasks of a job, or `None` if the job has no tasks or does not exist.
pub(super) async fn ids_of(client: &mut Client, job: u32) -> CliResult<Option<IdArray>> {
    let ids = client.task_ids(job, &[]).await?;
    Ok(ids.filter(|ids| !ids.is_empty()))
}
