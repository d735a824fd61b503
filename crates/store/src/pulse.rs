//! Shows other threads whether the writer makes progress or hangs on its disk. A thread that asked
//! the writer directly would hang as well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum duration of a step of a healthy writer. It is longer than the wait for another
/// program that has locked the file.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Default, Debug)]
struct State {
    /// When the writer's current step started. `None` if the writer waits for work.
    step: Option<Instant>,
    /// When the store became unable to commit, and the reason.
    trouble: Option<(Instant, String)>,
}

/// The progress of the writer.
#[derive(Clone, Default, Debug)]
pub(crate) struct WriterProgress(Arc<Mutex<State>>);

/// Marks the writer as idle when this value is dropped.
#[derive(Debug)]
pub(crate) struct WriterGuard(WriterProgress);

impl Drop for WriterGuard {
    fn drop(&mut self) {
        *self.0.lock() = State::default();
    }
}

impl WriterProgress {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a single step, so a panic elsewhere leaves no partial state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the writer as idle while `wait` runs, and then starts its next step.
    pub(crate) fn rest<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lock().step = None;
        let received = wait();
        self.lock().step = Some(Instant::now());
        received
    }

    /// Starts the next step directly after the previous one.
    pub(crate) fn beat(&self) {
        self.lock().step = Some(Instant::now());
    }

    /// Sets the reason why the store cannot commit. `None` means that it can.
    pub(crate) fn note_trouble(&self, reason: Option<&str>) {
        let mut state = self.lock();
        match (reason, &mut state.trouble) {
            (Some(reason), Some((_, before))) if before != reason => reason.clone_into(before),
            (Some(_), Some(_)) => {}
            (Some(reason), None) => state.trouble = Some((Instant::now(), reason.to_owned())),
            (None, _) => state.trouble = None,
        }
    }

    /// Returns how long the store has been unable to commit, and the reason.
    pub(crate) fn trouble(&self) -> Option<(Duration, String)> {
        let state = self.lock();
        let (since, reason) = state.trouble.as_ref()?;
        Some((since.elapsed(), reason.clone()))
    }

    /// Returns a guard that permanently marks the writer as idle when it is dropped.
    pub(crate) const fn until_dropped(self) -> WriterGuard {
        WriterGuard(self)
    }

    /// Returns the duration of the writer's current step if it exceeds the maximum.
    pub(crate) fn hangs_for(&self) -> Option<Duration> {
        let begun = self.lock().step;
        begun
            .map(|begun| begun.elapsed())
            .filter(|span| *span > PATIENCE)
    }

    /// Moves the start of the writer's current step into the past.
    #[cfg(test)]
    pub(crate) fn pretend_to_hang(&self) {
        self.lock().step = Instant::now().checked_sub(PATIENCE * 2);
    }
}
