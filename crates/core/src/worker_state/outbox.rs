//! Unreported news, and the decision when to send it.
//!
//! Ends are kept until the server has acknowledged their report, because a report in transit is
//! lost when the connection breaks. News of one moment is divided into reports of bounded size.
//!
//! A lone task is reported at once, a stream of short tasks some tens of times per second.

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

/// Shortest time between two reports while the worker is busy.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(3);

/// Shortest time between two reports if all news is about tasks that came with many others, of jobs
/// with more tasks waiting here. A report wakes five threads in turn, with cold caches, and needs a
/// commit: as much CPU as some twenty more tasks in it.
pub(crate) const STREAM_INTERVAL: Duration = Duration::from_millis(50);

/// How long the start of one of many tasks, and its end if the next one starts at once, may wait in
/// the launcher to be reported together. More than that is launched ahead.
pub const EVENT_DELAY: Duration = Duration::from_millis(30);

/// How long an unsuccessful end is held back in an allocation: the worker itself receives a signal
/// to the whole allocation sooner.
pub(super) const HOLD: Duration = Duration::from_millis(300);

/// Divisor of the backlog: number of tasks that may end before the server is notified anyway, so
/// that it sends more in time.
pub(crate) const STREAM_PART: u64 = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    started: Vec<(InstanceKey, Time)>,
    ended: VecDeque<EndReport>,
    /// Unsuccessful ends that the batch system may have caused, with the time when they start to
    /// count.
    held: VecDeque<(Time, EndReport)>,
    /// The batch system is being queried: until it answers, they do not count.
    is_asking: bool,
    /// Ends under way, by number of their report.
    unacknowledged: VecDeque<(u64, Vec<EndReport>)>,
    /// Kept ends, sent or not, and their bytes.
    kept_len: usize,
    kept_bytes: usize,
    last_seq: u64,
    retracted: Vec<InstanceKey>,
    last_report: Option<Time>,
    haste: Urgency,
    /// Jobs of what is in no haste.
    stream_jobs: BTreeSet<JobId>,
}

/// How soon news must be sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) enum Urgency {
    /// Its successor has started here: [`STREAM_INTERVAL`] while more of the chain is here.
    #[default]
    Link,
    /// No client needs each end while more of its job waits here: [`STREAM_INTERVAL`].
    Stream,
    /// A client may wait for it: [`REPORT_INTERVAL`].
    Soon,
    /// The server waits for it.
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

    /// End of an instance that never ran.
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

    /// Adds an end; it implies an unreported start.
    pub(super) fn push_ended(&mut self, ended: EndReport, haste: Urgency) {
        self.hasten(ended.key, haste);
        if let Some(position) = self.started.iter().rposition(|(key, _)| *key == ended.key) {
            // The end implies the start, and the order of starts does not matter.
            self.started.swap_remove(position);
        }
        let ended = self.keep_end(ended);
        self.ended.push_back(ended);
    }

    /// Adds an end that the batch system may have caused. Its start is reported meanwhile, so that
    /// the server sends more.
    pub(super) fn hold_end(&mut self, now: Time, ended: EndReport) {
        let ended = self.keep_end(ended);
        self.held.push_back((now + HOLD, ended));
    }

    fn keep_end(&mut self, mut ended: EndReport) -> EndReport {
        // A launcher's text of any length must fit into a report.
        if let Outcome::Message(text) | Outcome::OutOfMemory(Some(text)) = &mut ended.outcome {
            *text = shorten(std::mem::take(text), ERROR_TEXT_MAX);
        }
        self.kept_len += 1;
        self.kept_bytes += end_bytes(&ended.outcome);
        ended
    }

    /// When the first held end counts.
    pub(super) fn hold_over(&self) -> Option<Time> {
        let first = self.held.front().filter(|_| !self.is_asking);
        first.map(|(until, _)| *until)
    }

    /// A signal arrived: the held ends wait for the answer of the batch system.
    pub(super) const fn await_answer(&mut self) {
        self.is_asking = true;
    }

    /// Releases held ends whose time is over.
    pub(super) fn release_ends(&mut self, now: Time) {
        while self.hold_over().is_some_and(|until| until <= now)
            && let Some((_, ended)) = self.held.pop_front()
        {
            self.hasten(ended.key, Urgency::Soon);
            self.ended.push_back(ended);
        }
    }

    /// Lets all held ends count.
    pub(super) fn release_all_ends(&mut self) {
        self.is_asking = false;
        self.release_ends(Time(u64::MAX));
    }

    /// Converts a held end to one on request; `false` if there is none.
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

    /// Removes the held ends: the allocation ended, and the tasks with it.
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

    /// Adds returned instances; the server waits for them.
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

    /// Whether the server has acknowledged every end.
    pub(super) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.held.is_empty() && self.unacknowledged.is_empty()
    }

    /// Time at which the news must be sent; `None` = no news. `starved`: the worker has nothing to
    /// start.
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
        // Backlog after all possible starts: the server must learn of classes that run out.
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

    /// Takes all news, in reports of bounded size.
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

    /// Takes as much as fits into one report. Ends come first: the server may retract an instance
    /// that has ended, and must learn of the end before it learns that the instance is not here.
    fn take_some(&mut self, now: Time) -> Report {
        let mut left = REPORT_BYTES_MAX - REPORT_BYTES;
        let ended = take_while(&mut self.ended, |ended| {
            spend(&mut left, end_bytes(&ended.outcome))
        });
        // Ends have precedence: each of them lets the server start another task.
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

    /// Keeps ends until their report is acknowledged; returns the number of the report.
    fn keep(&mut self, ended: Vec<EndReport>) -> u64 {
        if ended.is_empty() {
            return 0;
        }
        // Only reports with ends are numbered: nothing else needs an acknowledgement.
        self.last_seq += 1;
        self.unacknowledged.push_back((self.last_seq, ended));
        self.last_seq
    }

    /// Forgets the ends of all reports up to this number.
    pub(super) fn acknowledge(&mut self, seq: u64) {
        while let Some((_, ended)) = self.unacknowledged.pop_front_if(|(first, _)| *first <= seq) {
            self.forget(&ended);
        }
    }

    /// Whether so many ends are unacknowledged that no more tasks should start.
    pub(super) const fn is_full(&self) -> bool {
        self.kept_len >= UNACKNOWLEDGED_MAX || self.kept_bytes >= UNACKNOWLEDGED_BYTES_MAX
    }

    /// Marks all unacknowledged ends for another report; other news is void, because the receiver
    /// gets the complete state.
    pub(super) fn rewind(&mut self) {
        // The registration contains running instances, so old starts and returns are void.
        self.started.clear();
        self.retracted.clear();
        self.haste = self.haste.max(Urgency::Soon);
        for (_, ended) in std::mem::take(&mut self.unacknowledged).into_iter().rev() {
            for ended in ended.into_iter().rev() {
                self.ended.push_front(ended);
            }
        }
    }

    /// Whether an unacknowledged end of an instance is a success.
    pub(super) fn has_finished(&self, key: InstanceKey) -> bool {
        let under_way = self.unacknowledged.iter().rev();
        let under_way = under_way.flat_map(|(_, ended)| ended.iter().rev());
        let mut all = self.ended.iter().rev().chain(under_way);
        all.any(|ended| ended.key == key && ended.outcome == Outcome::Finished)
    }

    /// Unreported ends.
    pub(super) fn ended(&self) -> impl Iterator<Item = &EndReport> {
        let held = self.held.iter().map(|(_, ended)| ended);
        self.ended.iter().chain(held)
    }

    /// Forgets everything: no server wants it.
    pub(super) fn clear(&mut self) {
        // Numbers continue: an acknowledgement in transit must not pass for a newer one.
        let last_seq = self.last_seq;
        *self = Self {
            last_seq,
            last_report: self.last_report,
            ..Self::default()
        };
    }
}

/// Subtracts `cost` from what is `left`, if possible.
const fn spend(left: &mut usize, cost: usize) -> bool {
    match left.checked_sub(cost) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

/// Takes elements from the front while they fit; one with a bounded text always does.
fn take_while<T>(queue: &mut VecDeque<T>, mut fits: impl FnMut(&T) -> bool) -> Vec<T> {
    let count = queue.iter().take_while(|item| fits(item)).count();
    queue.drain(..count).collect()
}

/// Takes at most `count` elements from the front.
fn take_up_to<T>(list: &mut Vec<T>, count: usize) -> Vec<T> {
    if list.len() <= count {
        return std::mem::take(list);
    }
    list.drain(..count).collect()
}

// Each row fits into an empty report, so each report makes progress.
const _: () = assert!(END_BYTES + ERROR_TEXT_MAX <= REPORT_BYTES_MAX - REPORT_BYTES);
