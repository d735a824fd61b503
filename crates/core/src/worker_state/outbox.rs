//! News that the server has not heard yet, and when it is worth a message.
//!
//! A lone task is reported at once, a stream of short tasks a few hundred times a second.

use std::time::Duration;

use super::effect::{EndedRow, Report, StartedRow};
use super::input::InstanceKey;
use crate::outcome::{Outcome, Usage};
use crate::time::Time;

/// Least time between two reports while the worker has other things to do. A report costs both sides
/// some ten microseconds, so this bounds the cost below one percent and adds little to any latency.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(3);

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    started: Vec<(InstanceKey, Time)>,
    ended: Vec<Ended>,
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
        Report {
            started: started
                .into_iter()
                .map(|(key, at)| StartedRow {
                    key,
                    age: now.since(at),
                })
                .collect(),
            ended: ended
                .into_iter()
                .map(|ended| EndedRow {
                    key: ended.key,
                    outcome: ended.outcome,
                    age: now.since(ended.at),
                    run: ended.run,
                    usage: ended.usage,
                })
                .collect(),
            retracted: std::mem::take(&mut self.retracted),
        }
    }
}
