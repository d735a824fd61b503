//! Cleans up behind ended tasks, each apart from the others: a file system that does not answer, or a directory with a
//! million files, delays the end of the task that it belongs to, for a while, and nobody else's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_core::worker_state::{LaunchEvent, LaunchToken};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::output::Cleanup;

/// How long an end waits for its cleanup. What a task asked for stays taken that long; the cleanup itself goes on.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A cleanup that takes longer no longer counts for the number of those at work.
const SLOW: Duration = Duration::from_secs(1);
/// Cleanups at work at one time: more only meet in the same file system.
const CLEANERS_MAX: usize = 4;
/// The same with those that are slow, most likely for ever: each keeps a thread.
const THREADS_MAX: usize = 64;

/// An end that waits for its cleanup.
#[derive(Debug)]
struct Waiting {
    event: LaunchEvent,
    until: Instant,
    /// What the task said about its failure, if that is known yet.
    words: Option<Box<str>>,
}

/// News of a cleanup.
#[derive(Debug)]
pub(super) enum Step {
    /// What the task said.
    Said(LaunchToken, Box<str>),
    /// All is done.
    Done(LaunchToken),
}

#[derive(Debug)]
struct Work {
    token: LaunchToken,
    cleanup: Cleanup,
    has_finished: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// When each cleaner began with what it is at, by number.
    at_work: BTreeMap<u64, Instant>,
    next_cleaner: u64,
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
        // Unbounded channel: at most two messages a task.
        let (steps_tx, steps) = mpsc::unbounded_channel();
        Self {
            queue: Arc::default(),
            steps_tx,
            steps,
            ends: BTreeMap::new(),
        }
    }

    /// Cleans up behind a task; its end comes from [`Self::collect`]. Needs a tokio runtime.
    pub(super) fn add(&mut self, event: LaunchEvent, cleanup: Cleanup, has_finished: bool) {
        let token = super::token_of(&event);
        let until = Instant::now() + WAIT_MAX;
        let words = None;
        self.ends.insert(
            token,
            Waiting {
                event,
                until,
                words,
            },
        );
        lock(&self.queue).waiting.push_back(Work {
            token,
            cleanup,
            has_finished,
        });
        self.work();
    }

    /// Waits until there may be something to collect.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(super) async fn news(&mut self) -> Option<Step> {
        let first = self.ends.values().map(|end| end.until).min();
        let Some(first) = first else {
            return self.steps.recv().await;
        };
        // A cleaner may have become slow with others waiting behind it.
        let look_again = first.min(Instant::now() + SLOW);
        tokio::select! {
            step = self.steps.recv() => step,
            () = tokio::time::sleep_until(look_again) => None,
        }
    }

    /// Appends the ends that count now.
    pub(super) fn collect(&mut self, step: Option<Step>, ended: &mut Vec<LaunchEvent>) {
        let mut next = step;
        while let Some(step) = next.take().or_else(|| self.steps.try_recv().ok()) {
            match step {
                Step::Said(token, words) => {
                    if let Some(end) = self.ends.get_mut(&token) {
                        end.words = Some(words);
                    }
                }
                Step::Done(token) => {
                    if let Some(end) = self.ends.remove(&token) {
                        ended.push(with_message(end.event, end.words));
                    }
                }
            }
        }
        let now = Instant::now();
        let late = self.ends.extract_if(.., |_, end| end.until <= now);
        for (token, end) in late {
            tracing::warn!(
                ?token,
                "tidying up after a task takes longer than {} s; its end no longer waits for that",
                WAIT_MAX.as_secs()
            );
            ended.push(with_message(end.event, end.words));
        }
        self.work();
    }

    /// Puts cleaners to work, as many as make sense.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        let is_quick = |since: &&Instant| since.elapsed() < SLOW;
        let mut quick = queue.at_work.values().filter(is_quick).count();
        let wanted = queue.waiting.len();
        while quick < CLEANERS_MAX.min(wanted) && queue.at_work.len() < THREADS_MAX {
            let number = queue.next_cleaner;
            queue.next_cleaner += 1;
            queue.at_work.insert(number, Instant::now());
            quick += 1;
            let (shared, steps) = (Arc::clone(&self.queue), self.steps_tx.clone());
            tokio::task::spawn_blocking(move || clean(number, &shared, &steps));
        }
    }
}

/// Takes work until there is none.
fn clean(number: u64, shared: &Mutex<Queue>, steps: &mpsc::UnboundedSender<Step>) {
    loop {
        let mut queue = lock(shared);
        let Some(work) = queue.waiting.pop_front() else {
            queue.at_work.remove(&number);
            return;
        };
        queue.at_work.insert(number, Instant::now());
        drop(queue);
        let token = work.token;
        // The receiver is gone only if the worker is.
        let said = |words| drop(steps.send(Step::Said(token, words)));
        work.cleanup.finish(work.has_finished, said);
        let _ = steps.send(Step::Done(token));
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Nothing in here is left half done by a panic.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the task's own words to its end.
fn with_message(mut event: LaunchEvent, words: Option<Box<str>>) -> LaunchEvent {
    match &mut event {
        // That output is missing weighs more than what the task says.
        LaunchEvent::Exited { message, .. } if message.is_none() => *message = words,
        LaunchEvent::Exited { .. } | LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => {}
    }
    event
}

#[cfg(test)]
mod tests;
