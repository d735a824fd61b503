//! Shared by all tasks that query the server: a connection, and the queue to the screen.

use std::sync::mpsc::Sender;

use hq_protocol::access::ServerDir;

use super::Message;
use crate::client::Client;
use crate::dashboard::app::News;
use crate::error::CliResult;

pub(super) fn tell(tx: &Sender<Message>, news: News) {
    // If the dashboard is gone, the process is ending.
    let _ = tx.send(Message::News(news));
}

/// A connection that is reopened after it broke.
pub(super) struct Link {
    pub(super) dir: ServerDir,
    pub(super) client: Option<Client>,
}

impl Link {
    pub(super) fn new(dir: &ServerDir) -> Self {
        Self {
            dir: dir.clone(),
            client: None,
        }
    }

    pub(super) async fn get(&mut self) -> CliResult<&mut Client> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.dir).await?,
        };
        Ok(self.client.insert(client))
    }
}
