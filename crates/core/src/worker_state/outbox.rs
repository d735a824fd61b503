//! Stores events that have not been reported, and decides when to send them.
//!
//! Task completions are kept until the server has acknowledged the report that contains them,
//! because a report in transit is lost if the connection breaks. Events of the same moment are
//! split into reports of bounded size.
//!
//! A single task is reported immediately. A stream of short tasks is reported a few dozen times per
//! second.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::backlog::Backlog;
use super::effect::{EndedRow, Report, StartedRow};
use super::input::InstanceKey;
use crate::id::JobId;
use crate::limits::{
    END_BYTES, ERROR_TEXT_MAX, KEY_BYTES, REPORT_BYTES, REPORT_BYTES_MAX, START_BYTES,
    UNACKNOWLEDGED_BYTES_MAX, UNACKNOWLEDGED_MAX, end_bytes, shorten,
};
use crate::outcome::{Outcome, Usage};
use crate::time::Time;

/// The minimum time between two reports while the worker is busy.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(3);

/// The minimum time between two reports if all events are about tasks that arrived with many others
/// and more tasks of their jobs wait on this worker. A report wakes five threads in turn, with cold
/// caches, and needs a commit. This takes as much CPU time as about twenty more tasks in the
/// report.
pub(crate) const STREAM_INTERVAL: Duration = Duration::from_millis(50);

/// How long the launcher may delay the start of one of many tasks, and its completion if the next
/// task starts immediately, in order to report them together. The work that is launched ahead takes
/// longer than this.
pub const EVENT_DELAY: Duration = Duration::from_millis(30);

/// How long a failure is held back in an allocation. If the whole allocation receives a signal, the
/// worker receives it within this time.
pub(super) const HOLD: Duration = Duration::from_millis(300);

/// The backlog divided by this is the number of tasks that may end before the server is notified,
/// so that it sends more tasks in time.
pub(crate) const STREAM_PART: u64 = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    started: Vec<(InstanceKey, Time)>,
    ended: VecDeque<EndReport>,
    /// Failures that the batch system may have caused, and the time from which each of them counts.
    held: VecDeque<(Time, EndReport)>,
    /// Whether the batch system is being queried. Until it answers, the held failures do not count.
    is_asking: bool,
    /// The completions in transit, by the number of their report.
    unacknowledged: VecDeque<(u64, Vec<EndReport>)>,
    /// The number of kept completions, sent or not, and their size in bytes.
    kept_len: usize,
    kept_bytes: usize,
    last_seq: u64,
    retracted: Vec<InstanceKey>,
    last_report: Option<Time>,
    haste: Urgency,
    /// The jobs of the events that are not urgent.
    stream_jobs: BTreeSet<JobId>,
}

/// How soon an event must be sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) enum Urgency {
    /// A successor has started on this worker. The interval is [`STREAM_INTERVAL`] while more of
    /// the chain is on this worker.
    #[default]
    Link,
    /// No client waits for each completion while more tasks of the job wait on this worker. The
    /// interval is [`STREAM_INTERVAL`].
    Stream,
    /// A client may wait for the event. The interval is [`REPORT_INTERVAL`].
    Soon,
    /// The server waits for the event, which is sent immediately.
    AtOnce,
}

#[derive(Clone, Debug)]
pub(super) struct EndReport {
    pub(super) key: InstanceKey,
    pub(super) outcome: Outcome,
    pub(super) at: Time,
    pub(super) run: Duration,
    pub(super) usage: Usage,
}

impl EndReport {
    fn row(&self, now: Time) -> EndedRow {
        EndedRow {
            key: self.key,
            outcome: self.outcome.clone(),
            age: now.since(self.at),
            run: self.run,
            usage: self.usage,
        }
    }

    /// Returns the completion of an instance that never ran.
    pub(super) fn unstarted(key: InstanceKey, outcome: Outcome, at: Time) -> Self {
        Self {
            key,
            outcome,
            at,
            run: Duration::ZERO,
            usage: Usage::default(),
        }
    }
}

impl Outbox {
    pub(super) fn push_started(&mut self, key: InstanceKey, at: Time, haste: Urgency) {
        self.hasten(key, haste);
        self.started.push((key, at));
    }

    /// Adds a completion. If the start has not been reported yet, the completion implies it.
    pub(super) fn push_ended(&mut self, ended: EndReport, haste: Urgency) {
        self.hasten(ended.key, haste);
        if let Some(position) = self.started.iter().rposition(|(key, _)| *key == ended.key) {
            // The completion implies the start, and the order of starts does not matter.
            self.started.swap_remove(position);
        }
        let ended = self.keep_end(ended);
        self.ended.push_back(ended);
    }

    /// Adds a failure that the batch system may have caused. The start is reported in the meantime,
    /// so that the server sends more tasks.
    pub(super) fn hold_end(&mut self, now: Time, ended: EndReport) {
        let ended = self.keep_end(ended);
        self.held.push_back((now + HOLD, ended));
    }

    fn keep_end(&mut self, mut ended: EndReport) -> EndReport {
        // A text from a launcher may have any length, but it must fit into a report.
        if let Outcome::Message(text) | Outcome::OutOfMemory(Some(text)) = &mut ended.outcome {
            *text = shorten(std::mem::take(text), ERROR_TEXT_MAX);
        }
        self.kept_len += 1;
        self.kept_bytes += end_bytes(&ended.outcome);
        ended
    }

    /// Returns the time from which the first held failure counts.
    pub(super) fn hold_over(&self) -> Option<Time> {
        let first = self.held.front().filter(|_| !self.is_asking);
        first.map(|(until, _)| *until)
    }

    /// After a signal, makes the held failures wait for the answer of the batch system.
    pub(super) const fn await_answer(&mut self) {
        self.is_asking = true;
    }

    /// Releases the held failures that count from now on.
    pub(super) fn release_ends(&mut self, now: Time) {
        while self.hold_over().is_some_and(|until| until <= now)
            && let Some((_, ended)) = self.held.pop_front()
        {
            self.hasten(ended.key, Urgency::Soon);
            self.ended.push_back(ended);
        }
    }

    /// Makes all held failures count.
    pub(super) fn release_all_ends(&mut self) {
        self.is_asking = false;
        self.release_ends(Time(u64::MAX));
    }

    /// Reports a held failure as a kill. Returns `false` if no failure of the instance is held.
    pub(super) fn kill_held(&mut self, key: InstanceKey) -> bool {
        let Some(at) = self.held.iter().position(|(_, ended)| ended.key == key) else {
            return false;
        };
        let held = self.held.remove(at);
        if let Some((_, ended)) = held {
            self.forget(std::slice::from_ref(&ended));
            let outcome = Outcome::Killed;
            self.push_ended(EndReport { outcome, ..ended }, Urgency::Soon);
        }
        true
    }

    /// Removes the held failures, because the tasks ended with the allocation.
    pub(super) fn take_held(&mut self) -> Vec<InstanceKey> {
        self.is_asking = false;
        let held: Vec<EndReport> = self.held.drain(..).map(|(_, ended)| ended).collect();
        self.forget(&held);
        held.iter().map(|ended| ended.key).collect()
    }

    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    fn forget(&mut self, ended: &[EndReport]) {
        self.kept_len -= ended.len();
        let bytes = ended.iter().map(|ended| end_bytes(&ended.outcome));
        self.kept_bytes -= bytes.sum::<usize>();
    }

    fn hasten(&mut self, key: InstanceKey, haste: Urgency) {
        self.haste = self.haste.max(haste);
        if haste == Urgency::Stream {
            self.stream_jobs.insert(key.task.job);
        }
    }

    /// Adds returned instances that the server waits for.
    pub(super) fn push_retracted(&mut self, keys: impl IntoIterator<Item = InstanceKey>) {
        let before = self.retracted.len();
        self.retracted.extend(keys);
        if self.retracted.len() > before {
            self.haste = Urgency::AtOnce;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty() && self.retracted.is_empty()
    }

    /// Returns whether the server has acknowledged all completions.
    pub(super) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.held.is_empty() && self.unacknowledged.is_empty()
    }

    /// Returns when the events must be sent, or `None` if there are none. `starved` means that the
    /// worker has no task to start.
    pub(super) fn due(&self, starved: bool, backlog: &Backlog) -> Option<Time> {
        if self.is_empty() {
            return None;
        }
        match self.last_report {
            Some(last) if !starved || self.ended.is_empty() || self.haste == Urgency::Link => {
                Some(last + self.interval(backlog))
            }
            Some(_) | None => Some(Time(0)),
        }
    }

    fn interval(&self, backlog: &Backlog) -> Duration {
        // The backlog that remains after all possible starts is relevant, because the server must
        // be notified about classes that run out.
        let ended = self.ended.len() as u64;
        let may_wait = |left: u64| ended.saturating_mul(STREAM_PART) < left && !self.is_full();
        let has_jobs = || self.stream_jobs.iter().all(|job| backlog.has_job(*job));
        match self.haste {
            Urgency::AtOnce => Duration::ZERO,
            Urgency::Link if may_wait(backlog.successors_len()) => STREAM_INTERVAL,
            Urgency::Stream if may_wait(backlog.ready_len()) && has_jobs() => STREAM_INTERVAL,
            Urgency::Link | Urgency::Stream | Urgency::Soon => REPORT_INTERVAL,
        }
    }

    /// Removes and returns all events, in reports of bounded size.
    pub(super) fn take(&mut self, now: Time) -> Vec<Report> {
        self.last_report = Some(now);
        self.haste = Urgency::default();
        self.stream_jobs.clear();
        let mut reports = Vec::new();
        while !self.is_empty() {
            reports.push(self.take_some(now));
        }
        reports
    }

    /// Removes as many events as fit into one report. Completions come first. The server may
    /// retract an instance that has ended, and must receive the completion before it learns that
    /// the instance is not on this worker.
    fn take_some(&mut self, now: Time) -> Report {
        let mut left = REPORT_BYTES_MAX - REPORT_BYTES;
        let ended = take_while(&mut self.ended, |ended| {
            spend(&mut left, end_bytes(&ended.outcome))
        });
        // Completions take precedence, because each of them lets the server start another task.
        let started = if self.ended.is_empty() {
            take_up_to(&mut self.started, left / START_BYTES)
        } else {
            Vec::new()
        };
        left -= started.len() * START_BYTES;
        let retracted = if self.ended.is_empty() && self.started.is_empty() {
            take_up_to(&mut self.retracted, left / KEY_BYTES)
        } else {
            Vec::new()
        };
        let rows = ended.iter().map(|ended| ended.row(now)).collect();
        Report {
            seq: self.keep(ended),
            sent: Some(now),
            started: started
                .into_iter()
                .map(|(key, at)| StartedRow {
                    key,
                    age: now.since(at),
                })
                .collect(),
            ended: rows,
            retracted,
        }
    }

    /// Keeps completions until their report is acknowledged. Returns the number of the report.
    fn keep(&mut self, ended: Vec<EndReport>) -> u64 {
        if ended.is_empty() {
            return 0;
        }
        // Only reports with completions are numbered, because no other event needs an
        // acknowledgement.
        self.last_seq += 1;
        self.unacknowledged.push_back((self.last_seq, ended));
        self.last_seq
    }

    /// Drops the completions in all reports up to this number.
    pub(super) fn acknowledge(&mut self, seq: u64) {
        while let Some((_, ended)) = self.unacknowledged.pop_front_if(|(first, _)| *first <= seq) {
            self.forget(&ended);
        }
    }

    /// Returns whether so many completions are unacknowledged that no more tasks should start.
    pub(super) const fn is_full(&self) -> bool {
        self.kept_len >= UNACKNOWLEDGED_MAX || self.kept_bytes >= UNACKNOWLEDGED_BYTES_MAX
    }

    /// Prepares all unacknowledged completions for another report. Drops the other events, because
    /// the receiver gets the complete state.
    pub(super) fn rewind(&mut self) {
        // The registration contains the running instances, so earlier starts and returns are void.
        self.started.clear();
        self.retracted.clear();
        self.haste = self.haste.max(Urgency::Soon);
        for (_, ended) in std::mem::take(&mut self.unacknowledged).into_iter().rev() {
            for ended in ended.into_iter().rev() {
                self.ended.push_front(ended);
            }
        }
    }

    /// Returns whether an instance has an unacknowledged completion that is a success.
    pub(super) fn has_finished(&self, key: InstanceKey) -> bool {
        let under_way = self.unacknowledged.iter().rev();
        let under_way = under_way.flat_map(|(_, ended)| ended.iter().rev());
        let mut all = self.ended.iter().rev().chain(under_way);
        all.any(|ended| ended.key == key && ended.outcome == Outcome::Finished)
    }

    /// Returns the unreported completions.
    pub(super) fn ended(&self) -> impl Iterator<Item = &EndReport> {
        let held = self.held.iter().map(|(_, ended)| ended);
        self.ended.iter().chain(held)
    }

    /// Drops all events, because no server wants them.
    pub(super) fn clear(&mut self) {
        // The numbers continue, because an acknowledgement in transit must not be mistaken for a
        // newer one.
        let last_seq = self.last_seq;
        *self = Self {
            last_seq,
            last_report: self.last_report,
            ..Self::default()
        };
    }
}

/// Subtracts `cost` from `left` if possible, and returns whether it was.
const fn spend(left: &mut usize, cost: usize) -> bool {
    match left.checked_sub(cost) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

/// Removes elements from the front while they fit. An element with a bounded text always fits into
/// an empty report.
fn take_while<T>(queue: &mut VecDeque<T>, mut fits: impl FnMut(&T) -> bool) -> Vec<T> {
    let count = queue.iter().take_while(|item| fits(item)).count();
    queue.drain(..count).collect()
}

/// Removes at most `count` elements from the front.
fn take_up_to<T>(list: &mut Vec<T>, count: usize) -> Vec<T> {
    if list.len() <= count {
        return std::mem::take(list);
    }
    list.drain(..count).collect()
}

// Each row fits into an empty report, so every report makes progress.
const _: () = assert!(END_BYTES + ERROR_TEXT_MAX <= REPORT_BYTES_MAX - REPORT_BYTES);
