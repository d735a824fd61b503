//! The state shared by the parts of a relay: the link to the server, the key, and the number of
//! workers.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_protocol::SecretKey;
use hq_protocol::relay::{RelayLink, Terms};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::terms;
use crate::server_link::Search;

/// The shortest time between two log messages about the same problem.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// The shared state of a relay.
pub(super) struct State {
    inner: Mutex<Inner>,
    workers: watch::Sender<usize>,
    /// Signals a new or lost link.
    relinked: Notify,
}

#[derive(Default)]
struct Inner {
    link: Option<RelayLink>,
    key: Option<SecretKey>,
    /// The directory of the server's instance, for the announcement.
    instance: Option<PathBuf>,
    complained: Option<Instant>,
}

impl State {
    pub(super) fn new(workers: watch::Sender<usize>) -> Self {
        Self {
            inner: Mutex::default(),
            workers,
            relinked: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The fields are independent of each other, so they stay consistent after a panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the link to the server, if there is one.
    pub(super) fn link(&self) -> Option<RelayLink> {
        self.lock().link.clone()
    }

    /// Returns the key that workers must prove to have.
    pub(super) fn key(&self) -> Option<SecretKey> {
        self.lock().key.clone()
    }

    /// Sets the link with the key and the directory of its server, or clears it.
    pub(super) fn set_link(&self, link: Option<RelayLink>, search: &Search) {
        let place = search.place();
        let mut inner = self.lock();
        inner.link = link;
        inner.key.clone_from(&place.key);
        inner.instance.clone_from(&place.instance);
        drop(inner);
        self.relinked.notify_one();
    }

    /// Counts a worker until the guard is dropped.
    pub(super) fn count(&self) -> RelayedWorker<'_> {
        self.workers.send_modify(|count| *count += 1);
        RelayedWorker(self)
    }

    /// Returns the directory of the announcement, or `None` without a link, because the relay is
    /// useless then.
    pub(super) fn linked_instance(&self) -> Option<PathBuf> {
        let inner = self.lock();
        let is_linked = inner.link.is_some();
        inner.instance.clone().filter(|_| is_linked)
    }

    /// Waits until the link has been set or cleared since the last call.
    pub(super) async fn relinked(&self) {
        self.relinked.notified().await;
    }

    /// Returns whether no worker is connected.
    pub(super) fn is_unused(&self) -> bool {
        *self.workers.borrow() == 0
    }

    /// Returns whether the last complaint is old enough for another.
    pub(super) fn is_time_to_complain(&self) -> bool {
        let complained = &mut self.lock().complained;
        let is_time = complained.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL);
        if is_time {
            *complained = Some(Instant::now());
        }
        is_time
    }

    /// Logs that workers are rejected for lack of room.
    pub(super) fn warn_full(&self) {
        if self.is_time_to_complain() {
            tracing::warn!(
                "This relay has its maximum of workers ({}, by its `ulimit -n`, and at most {}); other workers must use another route",
                terms().channels_max,
                Terms::OURS.channels_max
            );
        }
    }
}

/// Counts a connected worker until dropped.
pub(super) struct RelayedWorker<'a>(&'a State);

impl Drop for RelayedWorker<'_> {
    fn drop(&mut self) {
        self.0.workers.send_modify(|count| *count -= 1);
    }
}

/// A type without values.
pub(super) enum Never {}
