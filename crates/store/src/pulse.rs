//! Whether the writer gets on or hangs in its disk, known to everybody without asking it: who would ask waits with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest step of a writer that gets on: longer than it waits for another program that has the file locked.
const PATIENCE: Duration = Duration::from_secs(8);

/// Since when the writer is at its present step; `None` = it waits for something to do.
#[derive(Clone, Default, Debug)]
pub(crate) struct Pulse(Arc<Mutex<Option<Instant>>>);

/// The time for which there is a writer.
#[derive(Debug)]
pub(crate) struct Life(Pulse);

impl Drop for Life {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        // Each change is a single step, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer has nothing to do until `wait` returns; then its next step begins.
    pub(crate) fn rest<T>(&self, wait: impl FnOnce() -> T) -> T {
        *self.lock() = None;
        let received = wait();
        *self.lock() = Some(Instant::now());
        received
    }

    /// The writer gets on: its next step begins, without a rest before it.
    pub(crate) fn beat(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Tells that there is nothing to do any more when it is dropped, with the writer.
    pub(crate) const fn until_dropped(self) -> Life {
        Life(self)
    }

    /// How long the writer is at a step already, if that is longer than any step should take.
    pub(crate) fn hangs_for(&self) -> Option<Duration> {
        let begun = *self.lock();
        begun
            .map(|begun| begun.elapsed())
            .filter(|span| *span > PATIENCE)
    }

    /// As if the writer had begun its present step long ago.
    #[cfg(test)]
    pub(crate) fn pretend_to_hang(&self) {
        *self.lock() = Instant::now().checked_sub(PATIENCE * 2);
    }
}
