//! What the parts of a relay share: the link to the server, the key, and how many workers there are.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_protocol::SecretKey;
use hq_protocol::relay::{RelayLink, Terms};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::terms;
use crate::server_link::Search;

/// Least time between two messages about the same.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// What its parts share.
pub(super) struct State {
    inner: Mutex<Inner>,
    workers: watch::Sender<usize>,
    /// The link has come or gone.
    relinked: Notify,
}

#[derive(Default)]
struct Inner {
    link: Option<RelayLink>,
    key: Option<SecretKey>,
    /// Directory of the server's instance, where the relay is announced.
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
        // Its fields do not depend on each other.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to the server, while there is one.
    pub(super) fn link(&self) -> Option<RelayLink> {
        self.lock().link.clone()
    }

    /// The key that workers must have.
    pub(super) fn key(&self) -> Option<SecretKey> {
        self.lock().key.clone()
    }

    /// The link has come, with what is needed for it, or gone.
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
    pub(super) fn count(&self) -> Carried<'_> {
        self.workers.send_modify(|count| *count += 1);
        Carried(self)
    }

    /// Where the relay is to be announced; `None` while it has no link, and so is no way.
    pub(super) fn linked_instance(&self) -> Option<PathBuf> {
        let inner = self.lock();
        let is_linked = inner.link.is_some();
        inner.instance.clone().filter(|_| is_linked)
    }

    /// Waits until the link has come or gone since the last call.
    pub(super) async fn relinked(&self) {
        self.relinked.notified().await;
    }

    /// Whether nobody is carried.
    pub(super) fn is_unused(&self) -> bool {
        *self.workers.borrow() == 0
    }

    /// Whether nothing has been said for a while.
    pub(super) fn is_time_to_complain(&self) -> bool {
        let complained = &mut self.lock().complained;
        let is_time = complained.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL);
        if is_time {
            *complained = Some(Instant::now());
        }
        is_time
    }

    /// Says that workers are turned away.
    pub(super) fn complain_about_room(&self) {
        if self.is_time_to_complain() {
            tracing::warn!(
                "This relay has as many workers as it takes ({}, by its `ulimit -n`, and at most {}); others have to \
                 go another way",
                terms().channels_max,
                Terms::OURS.channels_max
            );
        }
    }
}

/// A worker that is carried.
pub(super) struct Carried<'a>(&'a State);

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        self.0.workers.send_modify(|count| *count -= 1);
    }
}

/// Never comes about.
pub(super) enum Never {}
