//! An occupancy that tasks share. Each entry is a permit and leaves when the permit is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::{EntryId, Holder, Occupancy, Share, ShareFull};

tokio::task_local! {
    static ACTOR: Holder;
}

/// Runs a future on behalf of a holder, see [`actor`].
pub async fn acting_as<F: Future>(holder: Holder, future: F) -> F::Output {
    ACTOR.scope(holder, future).await
}

/// Returns the holder on whose behalf this task runs. The server itself counts as the owner.
#[must_use]
pub fn actor() -> Holder {
    ACTOR.try_with(|holder| *holder).unwrap_or(Holder::Owner)
}

struct State {
    occupancy: Occupancy,
    /// The tasks of entries that can yield.
    tasks: BTreeMap<EntryId, AbortHandle>,
    /// Notifies a waiting entry of its admission.
    waiting: BTreeMap<EntryId, oneshot::Sender<()>>,
}

struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared occupancy. Clones refer to the same one.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool")
            .field(&self.0.lock().occupancy)
            .finish()
    }
}

/// An entry of a pool, which leaves the pool when this is dropped.
pub struct Permit {
    shared: Arc<Shared>,
    id: EntryId,
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Permit").field(&self.id).finish()
    }
}

impl State {
    fn end(&mut self, yielded: Option<EntryId>) {
        let task = yielded.and_then(|id| self.tasks.remove(&id));
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Pool {
    /// Creates a pool without entries.
    #[must_use]
    pub fn new(share: Share) -> Self {
        Self(Arc::new(Shared(Mutex::new(State {
            occupancy: Occupancy::new(share),
            tasks: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }))))
    }

    /// Returns a permit immediately.
    ///
    /// # Errors
    ///
    /// Returns [`ShareFull`] if the share of the holder is used up.
    pub fn try_enter(&self, holder: Holder) -> Result<Permit, ShareFull> {
        let mut state = self.0.lock();
        let (id, yielded) = state.occupancy.enter(holder)?;
        state.end(yielded);
        let shared = Arc::clone(&self.0);
        Ok(Permit { shared, id })
    }

    /// Waits until the share of the holder has room and returns a permit. Requests of one holder
    /// are admitted in order.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no entry is used up.
    pub async fn enter(&self, holder: Holder) -> Permit {
        // Dropping the permit gives up the entry, even while it waits for admission.
        let (permit, admitted) = {
            let mut state = self.0.lock();
            let (id, admitted) = match state.occupancy.enter(holder) {
                Ok((id, yielded)) => {
                    state.end(yielded);
                    (id, None)
                }
                Err(ShareFull) => {
                    let id = state.occupancy.wait(holder);
                    let (tx, rx) = oneshot::channel();
                    state.waiting.insert(id, tx);
                    (id, Some(rx))
                }
            };
            let shared = Arc::clone(&self.0);
            (Permit { shared, id }, admitted)
        };
        if let Some(admitted) = admitted {
            // The sender is not dropped before it has sent.
            let _ = admitted.await;
        }
        permit
    }

    /// Sets the task that is aborted when the entry yields.
    pub(super) fn set_task(&self, id: EntryId, task: AbortHandle) {
        let mut state = self.0.lock();
        if state.occupancy.holder(id).is_some_and(Holder::yields) {
            state.tasks.insert(id, task);
        } else if state.occupancy.holder(id).is_none() && !task.is_finished() {
            // The entry has yielded in the meantime.
            task.abort();
        }
    }
}

impl Permit {
    /// Returns the number of this entry.
    pub(super) const fn id(&self) -> EntryId {
        self.id
    }

    /// Changes the holder after it has proven more, see [`Occupancy::prove`].
    ///
    /// # Errors
    ///
    /// Returns [`ShareFull`] if the share of the new holder is used up.
    pub fn prove(&self, holder: Holder) -> Result<(), ShareFull> {
        let mut state = self.shared.lock();
        let yielded = state.occupancy.prove(self.id, holder)?;
        state.end(yielded);
        if !holder.yields() {
            state.tasks.remove(&self.id);
        }
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.tasks.remove(&self.id);
        state.waiting.remove(&self.id);
        state.occupancy.leave(self.id);
        while let Some(id) = state.occupancy.admit_waiting() {
            if let Some(waiting) = state.waiting.remove(&id) {
                // If the waiting task has given up, it drops its permit, which frees the entry for
                // the next one.
                let _ = waiting.send(());
            }
        }
    }
}
