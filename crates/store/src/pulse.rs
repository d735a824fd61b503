//! Tells other threads whether the writer makes progress or hangs on its disk. A thread that asked
//! the writer itself would hang with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum duration of a step of a healthy writer. It exceeds the wait for another program that has
/// locked the file.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Default, Debug)]
struct State {
    /// Start of the writer's current step; `None` = it waits for work.
    step: Option<Instant>,
    /// Since when the store cannot commit, and why.
    trouble: Option<(Instant, String)>,
}

/// Progress of the writer.
#[derive(Clone, Default, Debug)]
pub(crate) struct WriterProgress(Arc<Mutex<State>>);

/// Lifetime of the writer.
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

    /// Marks the writer as idle while `wait` runs; then its next step begins.
    pub(crate) fn rest<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lock().step = None;
        let received = wait();
        self.lock().step = Some(Instant::now());
        received
    }

    /// Starts the next step without an idle time before it.
    pub(crate) fn beat(&self) {
        self.lock().step = Some(Instant::now());
    }

    /// Sets why the store cannot commit; `None` = it can.
    pub(crate) fn note_trouble(&self, reason: Option<&str>) {
        let mut state = self.lock();
        match (reason, &mut state.trouble) {
            (Some(reason), Some((_, before))) if before != reason => reason.clone_into(before),
            (Some(_), Some(_)) => {}
            (Some(reason), None) => state.trouble = Some((Instant::now(), reason.to_owned())),
            (None, _) => state.trouble = None,
        }
    }

    /// How long the store has been unable to commit, and why.
    pub(crate) fn trouble(&self) -> Option<(Duration, String)> {
        let state = self.lock();
        let (since, reason) = state.trouble.as_ref()?;
        Some((since.elapsed(), reason.clone()))
    }

    /// Marks the writer as idle for good when it is dropped.
    pub(crate) const fn until_dropped(self) -> WriterGuard {
        WriterGuard(self)
    }

    /// Duration of the writer's current step, if it exceeds the maximum.
    pub(crate) fn hangs_for(&self) -> Option<Duration> {
        let begun = self.lock().step;
        begun
            .map(|begun| begun.elapsed())
            .filter(|span| *span > PATIENCE)
    }

    /// Backdates the start of the writer's current step.
    #[cfg(test)]
    pub(crate) fn pretend_to_hang(&self) {
        self.lock().step = Instant::now().checked_sub(PATIENCE * 2);
    }
}
