//! Announces the relay to other workers, in the directory of the server's instance.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_protocol::access::{Announcement, RENEWAL, RelayAddress};
use hq_protocol::convert::RelayRequest;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::state::{Never, State};

/// How long to wait for the instance directory, which is often on a network file system.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the instance directory when the worker ends.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps the announcement up to date.
pub(super) struct Announcer {
    announcement: Option<Arc<Mutex<Announcement>>>,
    addresses: Vec<RelayAddress>,
    is_told: bool,
    /// A write that hangs. Further attempts would hang as well.
    under_way: Option<JoinHandle<Result<(), (PathBuf, io::Error)>>>,
}

impl Announcer {
    pub(super) fn new(request: &RelayRequest, addresses: Vec<RelayAddress>) -> Self {
        let host = request.address.split(':').next().unwrap_or_default();
        let announcement = Announcement::new(host);
        Self {
            announcement: announcement.ok().map(|one| Arc::new(Mutex::new(one))),
            addresses,
            is_told: false,
            under_way: None,
        }
    }

    /// Renews the announcement while the relay has a link. Without a link the announcement would be
    /// useless.
    pub(super) async fn keep(&mut self, state: &State) -> Never {
        let mut is_announced = false;
        loop {
            match state.linked_instance() {
                Some(instance) => {
                    self.renew(instance).await;
                    is_announced = true;
                }
                None if std::mem::take(&mut is_announced) => self.withdraw().await,
                None => {}
            }
            // A new or lost link is announced at once.
            let _ = timeout(RENEWAL, state.relinked()).await;
        }
    }

    async fn renew(&mut self, instance: PathBuf) {
        let Some(announcement) = self.announcement.clone() else {
            return;
        };
        let addresses = self.addresses.clone();
        let renew = move || {
            let mut announcement = announcement.lock().unwrap_or_else(PoisonError::into_inner);
            let result = announcement.renew(&instance, &addresses);
            result.map_err(|error| (instance, error))
        };
        let renewing = self
            .under_way
            .get_or_insert_with(|| tokio::task::spawn_blocking(renew));
        let Ok(renewed) = timeout(ANNOUNCE_TIMEOUT, renewing).await else {
            return;
        };
        self.under_way = None;
        let Ok(Err((instance, error))) = renewed else {
            return;
        };
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                "This relay cannot be announced in '{}' ({error}); name it to other workers: `hq worker start --via {}`",
                instance.display(),
                self.addresses
                    .first()
                    .map_or_else(String::new, ToString::to_string)
            );
        }
    }

    pub(super) async fn withdraw(&mut self) {
        let Some(announcement) = self.announcement.clone() else {
            return;
        };
        if let Some(before) = &mut self.under_way {
            if timeout(WITHDRAW_TIMEOUT, before).await.is_err() {
                // If the announcement remains, it expires.
                return;
            }
            self.under_way = None;
        }
        let withdraw = move || {
            let mut announcement = announcement.lock().unwrap_or_else(PoisonError::into_inner);
            announcement.withdraw();
            Ok(())
        };
        let withdrawing = self.under_way.insert(tokio::task::spawn_blocking(withdraw));
        if timeout(WITHDRAW_TIMEOUT, withdrawing).await.is_ok() {
            self.under_way = None;
        }
    }
}
