//! News that the server has not heard yet, and when it is worth a message.
//!
//! Ends are kept until the server has acknowledged the report they were in: a report that is under way
//! when the connection breaks is lost, what it said is not.
//!
//! A lone task is reported at once, a stream of short tasks a few hundred times a second.

use std::collections::VecDeque;
use std::time::Duration;

use super::effect::{EndedRow, Report, StartedRow};
use super::input::InstanceKey;
use crate::outcome::{Outcome, Usage};
use crate::time::Time;

/// Least time between two reports while the worker has other things to do. A report costs both sides
/// some ten microseconds, so this bounds the cost below one percent and adds little to any latency.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(3);

/// Ends that may wait for an acknowledgement before nothing new is started. Far more than a server that
/// lives leaves open; a few tens of MiB.
pub(super) const UNACKNOWLEDGED_MAX: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    started: Vec<(InstanceKey, Time)>,
    ended: Vec<Ended>,
    /// Ends under way, by number of their report.
    unacknowledged: VecDeque<(u64, Vec<Ended>)>,
    unacknowledged_len: usize,
    last_seq: u64,
    retracted: Vec<InstanceKey>,
    last_report: Option<Time>,
    urgent: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) key: InstanceKey,
    pub(super) outcome: Outcome,
    pub(super) at: Time,
    pub(super) run: Duration,
    pub(super) usage: Usage,
}

impl Ended {
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
    pub(super) fn push_started(&mut self, key: InstanceKey, at: Time) {
        self.started.push((key, at));
    }

    /// Adds an end; a start that was not reported yet is implied by it.
    pub(super) fn push_ended(&mut self, ended: Ended) {
        if let Some(position) = self.started.iter().rposition(|(key, _)| *key == ended.key) {
            self.started.swap_remove(position);
        }
        self.ended.push(ended);
    }

    /// Adds returned instances; the server waits for them.
    pub(super) fn push_retracted(&mut self, keys: impl IntoIterator<Item = InstanceKey>) {
        let before = self.retracted.len();
        self.retracted.extend(keys);
        self.urgent |= self.retracted.len() > before;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty() && self.retracted.is_empty()
    }

    /// Whether the server knows of every end.
    pub(super) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.unacknowledged.is_empty()
    }

    /// When the news must go out; `None` = there is none. `starved`: the worker has nothing to start.
    pub(super) fn due(&self, starved: bool) -> Option<Time> {
        if self.is_empty() {
            return None;
        }
        match self.last_report {
            Some(last) if !(self.urgent || starved && !self.ended.is_empty()) => {
                Some(last + REPORT_INTERVAL)
            }
            Some(_) | None => Some(Time(0)),
        }
    }

    /// Takes all news.
    pub(super) fn take(&mut self, now: Time) -> Report {
        self.last_report = Some(now);
        self.urgent = false;
        let started = std::mem::take(&mut self.started);
        let ended = std::mem::take(&mut self.ended);
        let rows = ended.iter().map(|ended| ended.row(now)).collect();
        let seq = self.keep(ended);
        Report {
            seq,
            started: started
                .into_iter()
                .map(|(key, at)| StartedRow {
                    key,
                    age: now.since(at),
                })
                .collect(),
            ended: rows,
            retracted: std::mem::take(&mut self.retracted),
        }
    }

    /// Keeps ends until their report is acknowledged; the number of the report.
    fn keep(&mut self, ended: Vec<Ended>) -> u64 {
        if ended.is_empty() {
            return 0;
        }
        self.last_seq += 1;
        self.unacknowledged_len += ended.len();
        self.unacknowledged.push_back((self.last_seq, ended));
        self.last_seq
    }

    /// Forgets the ends of all reports up to this number.
    pub(super) fn acknowledge(&mut self, seq: u64) {
        while let Some((_, ended)) = self.unacknowledged.pop_front_if(|(first, _)| *first <= seq) {
            self.unacknowledged_len -= ended.len();
        }
    }

    /// Whether so much is unacknowledged that nothing more should end.
    pub(super) const fn is_full(&self) -> bool {
        self.unacknowledged_len >= UNACKNOWLEDGED_MAX
    }

    /// All ends that are not acknowledged, in one report; other news is void, because the receiver
    /// learns the whole state.
    pub(super) fn take_all(&mut self, now: Time) -> Report {
        self.started.clear();
        self.retracted.clear();
        let kept = std::mem::take(&mut self.unacknowledged);
        self.unacknowledged_len = 0;
        let mut all: Vec<Ended> = kept.into_iter().flat_map(|(_, ended)| ended).collect();
        all.append(&mut self.ended);
        self.ended = all;
        self.take(now)
    }

    /// Forgets everything: nobody wants to know.
    pub(super) fn clear(&mut self) {
        let last_seq = self.last_seq;
        *self = Self {
            last_seq,
            last_report: self.last_report,
            ..Self::default()
        };
    }
}
