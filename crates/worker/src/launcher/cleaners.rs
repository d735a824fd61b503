//! Cleans up behind ended tasks, each apart from the others: a file system that does not answer, or a directory with a
//! million files, delays the end of the task that it belongs to, for a while, and nobody else's.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_core::outcome::{NO_ROOM, Outcome};
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchToken};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::done::Done;
use crate::output::{Cleanup, Found};

/// How long an end waits for its cleanup once that has begun, or for those before it if none of them comes to an end.
/// The resources of the task stay taken that long; the cleanup itself goes on.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The same of a task that fails if nobody can tell whether its outputs are there, or whose files are read.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(60);
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
    since: Instant,
    /// The task's own error message, if it is known yet.
    words: Option<Box<str>>,
    /// Where there is no room left, if it has failed.
    full: Option<PathBuf>,
    /// What a task reads and writes that has exited with 0.
    done: Option<Arc<Done>>,
}

impl Waiting {
    fn wait_max(&self) -> Duration {
        match &self.done {
            Some(done) if done.must_exist() || done.by_content() => CHECK_WAIT_MAX,
            Some(_) | None => WAIT_MAX,
        }
    }

    fn note(&mut self, found: Found) {
        match found {
            Found::Words(words) => self.words = Some(words),
            Found::Full(place) => self.full = Some(place),
            Found::Failure(words) => {
                if let LaunchEvent::Exited { status, .. } = &mut self.event {
                    *status = ExitStatus::Code(1);
                }
                self.words = Some(words);
            }
        }
    }
}

/// News of a cleanup.
#[derive(Debug)]
pub(super) enum Step {
    /// An early result.
    Found(LaunchToken, Found),
    /// All is done.
    Done(LaunchToken),
}

#[derive(Debug)]
struct Work {
    token: LaunchToken,
    cleanup: Cleanup,
    has_finished: bool,
}

/// Current work of a cleaner.
#[derive(Clone, Copy, Debug)]
struct AtWork {
    since: Instant,
    /// `None` = it has only just been started.
    token: Option<LaunchToken>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Cleaners by number.
    at_work: BTreeMap<u64, AtWork>,
    next_cleaner: u64,
    /// When a cleaner last took up some work.
    last_taken: Option<Instant>,
}

impl Queue {
    /// Begin of each cleanup that is under way.
    fn under_way(&self) -> BTreeMap<LaunchToken, Instant> {
        let named = |work: &AtWork| Some((work.token?, work.since));
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
        let since = Instant::now();
        let end = Waiting {
            event,
            since,
            words: None,
            full: None,
            done: cleanup.done.clone().filter(|_| has_finished),
        };
        self.ends.insert(token, end);
        // Behind the entry above: a cleaner may be done with it at once.
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
        if self.ends.is_empty() {
            return self.steps.recv().await;
        }
        // An end may have waited long enough, or a cleaner have become slow with others waiting behind it.
        tokio::select! {
            step = self.steps.recv() => step,
            () = tokio::time::sleep(SLOW) => None,
        }
    }

    /// Appends the ends that count now.
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
        // Behind those that are done, so that nobody is given up whose answer is there.
        self.collect_late(ended);
        self.work();
    }

    /// Appends the ends that have waited long enough.
    fn collect_late(&mut self, ended: &mut Vec<LaunchEvent>) {
        let now = Instant::now();
        if self.ends.values().all(|end| now - end.since < WAIT_MAX) {
            return;
        }
        let queue = lock(&self.queue);
        let (under_way, last_taken) = (queue.under_way(), queue.last_taken);
        drop(queue);
        let is_late = |token: &LaunchToken, end: &mut Waiting| {
            // Behind others there is no reason to give up as long as it goes on.
            let since = under_way.get(token).copied();
            let since =
                since.unwrap_or_else(|| last_taken.map_or(end.since, |at| at.max(end.since)));
            now - since >= end.wait_max()
        };
        for (token, mut end) in self.ends.extract_if(.., is_late) {
            tracing::warn!(
                ?token,
                "tidying up after a task takes longer than {} s; its end no longer waits for that",
                end.wait_max().as_secs()
            );
            if let Some(words) = end.done.take().and_then(|done| done.give_up()) {
                end.note(Found::Failure(words));
            }
            ended.push(with_message(end));
        }
    }

    /// Puts cleaners to work, as many as make sense.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        // Slow ones hang, most likely; they must not keep others from being cleaned up.
        let is_quick = |work: &&AtWork| work.since.elapsed() < SLOW;
        let mut quick = queue.at_work.values().filter(is_quick).count();
        let wanted = queue.waiting.len();
        while quick < CLEANERS_MAX.min(wanted) && queue.at_work.len() < THREADS_MAX {
            let number = queue.next_cleaner;
            queue.next_cleaner += 1;
            let since = Instant::now();
            queue.at_work.insert(number, AtWork { since, token: None });
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
        // Under the same lock that adds work: nothing can be added to a queue whose last cleaner
        // leaves.
        let Some(work) = queue.waiting.pop_front() else {
            queue.at_work.remove(&number);
            return;
        };
        let (since, token) = (Instant::now(), work.token);
        let begun = AtWork {
            since,
            token: Some(token),
        };
        queue.at_work.insert(number, begun);
        queue.last_taken = Some(since);
        drop(queue);
        // The receiver is gone only if the worker is.
        let found = |found| drop(steps.send(Step::Found(token, found)));
        work.cleanup.finish(work.has_finished, found);
        let _ = steps.send(Step::Done(token));
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Nothing in here is left half done by a panic.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the task's own words, and that there was no room for its files, to its end.
fn with_message(end: Waiting) -> LaunchEvent {
    let Waiting {
        mut event,
        words,
        full,
        ..
    } = end;
    match &mut event {
        // That output is missing weighs more than what the task says.
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
