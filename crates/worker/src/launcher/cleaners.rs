//! Cleans up after ended tasks, independently for each task: a hanging file system or a directory
//! with a million files delays only that task's end, and only for a bounded time.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_core::outcome::{NO_ROOM, Outcome};
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchToken};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::done::Done;
use crate::output::{Cleanup, CleanupFinding};

/// How long an end event waits for its cleanup, measured from the start of the cleanup, or from the
/// last progress if earlier cleanups hang. The task's resources stay reserved during this time. The
/// cleanup itself continues afterwards.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long an end event waits if outputs must be checked or digested first.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(60);
/// A cleanup that has taken longer than this does not count toward [`CLEANERS_MAX`].
const SLOW: Duration = Duration::from_secs(1);
/// The maximum number of concurrent cleanups. More would only contend for the same file system.
const CLEANERS_MAX: usize = 4;
/// The maximum number of concurrent cleanups including slow ones, which most likely hang. Each
/// occupies a thread.
const THREADS_MAX: usize = 64;

/// An end event that waits for its cleanup.
#[derive(Debug)]
struct Waiting {
    event: LaunchEvent,
    since: Instant,
    /// The task's own error message, if it is already known.
    words: Option<Box<str>>,
    /// The full file system that a failed task wrote to.
    full: Option<PathBuf>,
    /// The inputs and outputs of a task that exited with 0.
    done: Option<Arc<Done>>,
}

impl Waiting {
    fn wait_max(&self) -> Duration {
        match &self.done {
            Some(done) if done.must_exist() || done.by_content() => CHECK_WAIT_MAX,
            Some(_) | None => WAIT_MAX,
        }
    }

    fn note(&mut self, found: CleanupFinding) {
        match found {
            CleanupFinding::Words(words) => self.words = Some(words),
            CleanupFinding::Full(place) => self.full = Some(place),
            CleanupFinding::Failure(words) => {
                if let LaunchEvent::Exited { status, .. } = &mut self.event {
                    *status = ExitStatus::Code(1);
                }
                self.words = Some(words);
            }
        }
    }
}

/// The progress of a cleanup.
#[derive(Debug)]
pub(super) enum Step {
    /// A result that is available before the cleanup is complete.
    Found(LaunchToken, CleanupFinding),
    /// The cleanup is complete.
    Done(LaunchToken),
}

#[derive(Debug)]
struct CleanupWork {
    token: LaunchToken,
    cleanup: Cleanup,
    has_finished: bool,
}

/// The current work of a cleaner.
#[derive(Clone, Copy, Debug)]
struct CurrentCleanup {
    since: Instant,
    /// `None` if the cleaner has just started.
    token: Option<LaunchToken>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<CleanupWork>,
    /// The cleaners by number.
    at_work: BTreeMap<u64, CurrentCleanup>,
    next_cleaner: u64,
    /// When a cleaner last took work from the queue.
    last_taken: Option<Instant>,
}

impl Queue {
    /// Returns the start time of each running cleanup.
    fn under_way(&self) -> BTreeMap<LaunchToken, Instant> {
        let named = |work: &CurrentCleanup| Some((work.token?, work.since));
        self.at_work.values().filter_map(named).collect()
    }
}

/// All cleanups.
#[derive(Debug)]
pub(super) struct Cleaners {
    queue: Arc<Mutex<Queue>>,
    steps_tx: mpsc::UnboundedSender<Step>,
    steps: mpsc::UnboundedReceiver<Step>,
    ends: BTreeMap<LaunchToken, Waiting>,
}

impl Cleaners {
    pub(super) fn new() -> Self {
        // The channel is unbounded, but holds at most two messages per task.
        let (steps_tx, steps) = mpsc::unbounded_channel();
        Self {
            queue: Arc::default(),
            steps_tx,
            steps,
            ends: BTreeMap::new(),
        }
    }

    /// Queues the cleanup after a task. [`Self::collect`] returns the end event of the task. Needs
    /// a tokio runtime.
    pub(super) fn add(&mut self, event: LaunchEvent, cleanup: Cleanup, has_finished: bool) {
        let token = super::token_of(&event);
        let since = Instant::now();
        let end = Waiting {
            event,
            since,
            words: None,
            full: None,
            done: cleanup.done.clone().filter(|_| has_finished),
        };
        self.ends.insert(token, end);
        // The entry above must come first, because a cleaner may finish at once.
        lock(&self.queue).waiting.push_back(CleanupWork {
            token,
            cleanup,
            has_finished,
        });
        self.work();
    }

    /// Waits until there may be end events to collect.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn news(&mut self) -> Option<Step> {
        if self.ends.is_empty() {
            return self.steps.recv().await;
        }
        // After the timeout, an end event may have waited long enough, or a slow cleaner may be
        // blocking others.
        tokio::select! {
            step = self.steps.recv() => step,
            () = tokio::time::sleep(SLOW) => None,
        }
    }

    /// Appends the end events that are now final.
    pub(super) fn collect(&mut self, step: Option<Step>, ended: &mut Vec<LaunchEvent>) {
        let mut next = step;
        while let Some(step) = next.take().or_else(|| self.steps.try_recv().ok()) {
            match step {
                Step::Found(token, found) => {
                    if let Some(end) = self.ends.get_mut(&token) {
                        end.note(found);
                    }
                }
                Step::Done(token) => {
                    if let Some(end) = self.ends.remove(&token) {
                        ended.push(with_message(end));
                    }
                }
            }
        }
        // This follows the finished end events, so that an event with a known result does not count
        // as late.
        self.collect_late(ended);
        self.work();
    }

    /// Appends the end events that have waited long enough.
    fn collect_late(&mut self, ended: &mut Vec<LaunchEvent>) {
        let now = Instant::now();
        if self.ends.values().all(|end| now - end.since < WAIT_MAX) {
            return;
        }
        let queue = lock(&self.queue);
        let (under_way, last_taken) = (queue.under_way(), queue.last_taken);
        drop(queue);
        let is_late = |token: &LaunchToken, end: &mut Waiting| {
            // A queued cleanup keeps waiting as long as others make progress.
            let since = under_way.get(token).copied();
            let since =
                since.unwrap_or_else(|| last_taken.map_or(end.since, |at| at.max(end.since)));
            now - since >= end.wait_max()
        };
        for (token, mut end) in self.ends.extract_if(.., is_late) {
            tracing::warn!(
                ?token,
                "cleaning up after a task takes longer than {} s; its end is reported before",
                end.wait_max().as_secs()
            );
            if let Some(words) = end.done.take().and_then(|done| done.give_up()) {
                end.note(CleanupFinding::Failure(words));
            }
            ended.push(with_message(end));
        }
    }

    /// Starts as many cleaners as are useful.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        // Slow cleaners most likely hang and must not block others.
        let is_quick = |work: &&CurrentCleanup| work.since.elapsed() < SLOW;
        let mut quick = queue.at_work.values().filter(is_quick).count();
        let wanted = queue.waiting.len();
        while quick < CLEANERS_MAX.min(wanted) && queue.at_work.len() < THREADS_MAX {
            let number = queue.next_cleaner;
            queue.next_cleaner += 1;
            let since = Instant::now();
            queue
                .at_work
                .insert(number, CurrentCleanup { since, token: None });
            quick += 1;
            let (shared, steps) = (Arc::clone(&self.queue), self.steps_tx.clone());
            tokio::task::spawn_blocking(move || clean(number, &shared, &steps));
        }
    }
}

/// Takes work until the queue is empty.
fn clean(number: u64, shared: &Mutex<Queue>, steps: &mpsc::UnboundedSender<Step>) {
    loop {
        let mut queue = lock(shared);
        // The cleaner leaves under the lock that guards the queue, so that no work is added after
        // the last cleaner has left.
        let Some(work) = queue.waiting.pop_front() else {
            queue.at_work.remove(&number);
            return;
        };
        let (since, token) = (Instant::now(), work.token);
        let begun = CurrentCleanup {
            since,
            token: Some(token),
        };
        queue.at_work.insert(number, begun);
        queue.last_taken = Some(since);
        drop(queue);
        // The receiver is gone only if the worker has ended.
        let found = |found| drop(steps.send(Step::Found(token, found)));
        work.cleanup.finish(work.has_finished, found);
        let _ = steps.send(Step::Done(token));
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // No code can panic while the data is inconsistent.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the task's own message to an end event, or a note that its file system was full.
fn with_message(end: Waiting) -> LaunchEvent {
    let Waiting {
        mut event,
        words,
        full,
        ..
    } = end;
    match &mut event {
        // A missing output matters more than the task's own message.
        LaunchEvent::Exited {
            message, status, ..
        } if message.is_none() => {
            let failure = || match status {
                ExitStatus::Code(code) => Some(Outcome::ExitCode(*code).error_text()),
                ExitStatus::Signal(signal) => Some(Outcome::Signal(*signal).error_text()),
                ExitStatus::OutOfMemory | ExitStatus::ExceededMemory => None,
            };
            let full = full.map(|place| format!("{NO_ROOM}{}", place.display()));
            *message = match full {
                Some(full) => {
                    let words = words.map(String::from).or_else(failure);
                    words.map(|words| format!("{}\n{full}", words.trim_end()).into())
                }
                None => words,
            };
        }
        LaunchEvent::Exited { .. } | LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => {}
    }
    event
}

#[cfg(test)]
mod tests;
