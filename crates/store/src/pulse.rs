//! Whether the writer gets on or hangs in its disk, known to everybody without asking it: who would ask waits with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest step of a writer that gets on: longer than it waits for another program that has the file locked.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Default, Debug)]
struct State {
    /// Since when the writer is at its present step; `None` = it waits for something to do.
    step: Option<Instant>,
    /// Since when it can store nothing, and why.
    trouble: Option<(Instant, String)>,
}

/// What the writer does.
#[derive(Clone, Default, Debug)]
pub(crate) struct Pulse(Arc<Mutex<State>>);

/// The time for which there is a writer.
#[derive(Debug)]
pub(crate) struct Life(Pulse);

impl Drop for Life {
    fn drop(&mut self) {
        *self.0.lock() = State::default();
    }
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a single step, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer has nothing to do until `wait` returns; then its next step begins.
    pub(crate) fn rest<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lock().step = None;
        let received = wait();
        self.lock().step = Some(Instant::now());
        received
    }

    /// The writer gets on: its next step begins, without a rest before it.
    pub(crate) fn beat(&self) {
        self.lock().step = Some(Instant::now());
    }

    /// Why nothing can be stored now; `None` = it can.
    pub(crate) fn note_trouble(&self, reason: Option<&str>) {
        let mut state = self.lock();
        match (reason, &mut state.trouble) {
            (Some(reason), Some((_, before))) if before != reason => reason.clone_into(before),
            (Some(_), Some(_)) => {}
            (Some(reason), None) => state.trouble = Some((Instant::now(), reason.to_owned())),
            (None, _) => state.trouble = None,
        }
    }

    /// For how long nothing can be stored, and why.
    pub(crate) fn trouble(&self) -> Option<(Duration, String)> {
        let state = self.lock();
        let (since, reason) = state.trouble.as_ref()?;
        Some((since.elapsed(), reason.clone()))
    }

    /// Tells that there is nothing to do any more when it is dropped, with the writer.
    pub(crate) const fn until_dropped(self) -> Life {
        Life(self)
    }

    /// How long the writer is at a step already, if that is longer than any step should take.
    pub(crate) fn hangs_for(&self) -> Option<Duration> {
        let begun = self.lock().step;
        begun
            .map(|begun| begun.elapsed())
            .filter(|span| *span > PATIENCE)
    }

    /// As if the writer had begun its present step long ago.
    #[cfg(test)]
    pub(crate) fn pretend_to_hang(&self) {
        self.lock().step = Instant::now().checked_sub(PATIENCE * 2);
    }
}
