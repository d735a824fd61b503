//! An occupancy that tasks share: each entry is a permit, and leaves when the permit is dropped.

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

/// The holder on whose behalf this task runs now; the server itself counts as the owner.
#[must_use]
pub fn actor() -> Holder {
    ACTOR.try_with(|holder| *holder).unwrap_or(Holder::Owner)
}

struct State {
    occupancy: Occupancy,
    /// Tasks of entries that can yield.
    tasks: BTreeMap<EntryId, AbortHandle>,
    /// Told when the entry that they wait for is theirs.
    waiting: BTreeMap<EntryId, oneshot::Sender<()>>,
}

struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // It is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share; clones are the same one.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool")
            .field(&self.0.lock().occupancy)
            .finish()
    }
}

/// An entry of a pool until it is dropped.
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
    /// A pool without entries.
    #[must_use]
    pub fn new(share: Share) -> Self {
        Self(Arc::new(Shared(Mutex::new(State {
            occupancy: Occupancy::new(share),
            tasks: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }))))
    }

    /// A permit at once.
    ///
    /// # Errors
    ///
    /// [`ShareFull`] if the share of the holder is used up.
    pub fn try_enter(&self, holder: Holder) -> Result<Permit, ShareFull> {
        let mut state = self.0.lock();
        let (id, yielded) = state.occupancy.enter(holder)?;
        state.end(yielded);
        let shared = Arc::clone(&self.0);
        Ok(Permit { shared, id })
    }

    /// A permit as soon as the share of the holder has room. One holder's requests are served in
    /// order.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes no entry.
    pub async fn enter(&self, holder: Holder) -> Permit {
        // Dropping it gives up the entry, also one that it waits for.
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
            // The sender stays until it has sent.
            let _ = admitted.await;
        }
        permit
    }

    /// Names the task that ends when an entry yields.
    pub(super) fn set_task(&self, id: EntryId, task: AbortHandle) {
        let mut state = self.0.lock();
        if state.occupancy.holder(id).is_some_and(Holder::yields) {
            state.tasks.insert(id, task);
        } else if state.occupancy.holder(id).is_none() && !task.is_finished() {
            // It has yielded meanwhile.
            task.abort();
        }
    }
}

impl Permit {
    /// The number of this entry.
    pub(super) const fn id(&self) -> EntryId {
        self.id
    }

    /// Its holder has proven more, see [`Occupancy::prove`].
    ///
    /// # Errors
    ///
    /// [`ShareFull`] if the share of the new holder is used up.
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
                // One that has given up drops its permit, which frees the entry for the next.
                let _ = waiting.send(());
            }
        }
    }
}
