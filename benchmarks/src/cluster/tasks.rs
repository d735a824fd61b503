//! Tasks of a simulated worker. They only take time and are counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Result;

use hq_core::outcome::Usage;
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchFailure, LaunchTask, LaunchToken};

use crate::figures::{STEP, mix, unit};

/// How long a task takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskTime {
    /// The average duration.
    pub(crate) mean: Duration,
    /// The largest deviation from the average as a fraction of it, from 0 to 1. Uniformly
    /// distributed.
    pub(crate) spread: f64,
}

impl TaskTime {
    /// Returns the duration of one task, which is deterministic per token and worker.
    fn of(self, seed: u64, token: LaunchToken) -> Duration {
        if self.spread <= 0.0 {
            return self.mean;
        }
        let unit = unit(mix(seed ^ token.0.wrapping_mul(STEP)));
        self.mean.mul_f64(1.0 + self.spread * (2.0 * unit - 1.0))
    }
}

/// The number of starts and ends of each task of the array.
#[derive(Debug)]
pub(crate) struct Ledger(Box<[Lives]>);

#[derive(Default, Debug)]
struct Lives {
    starts: AtomicU8,
    ends: AtomicU8,
}

/// The totals of a [`Ledger`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sums {
    /// The number of tasks that were started more than once.
    pub(crate) started_again: u64,
    /// The number of tasks that ended by themselves.
    pub(crate) ended: u64,
    /// The number of tasks that ended by themselves more than once.
    pub(crate) ended_again: u64,
}

impl Ledger {
    /// Creates a ledger for tasks from 1 to `count`.
    pub(crate) fn new(count: u64) -> Result<Arc<Self>> {
        let count = usize::try_from(count)?;
        Ok(Arc::new(Self(
            (0..count).map(|_| Lives::default()).collect(),
        )))
    }

    fn of(&self, task: u32) -> Option<&Lives> {
        self.0.get(usize::try_from(task).ok()?.checked_sub(1)?)
    }

    fn note_start(&self, task: u32) {
        if let Some(lives) = self.of(task) {
            lives.starts.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_end(&self, task: u32) {
        if let Some(lives) = self.of(task) {
            lives.ends.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the totals of all tasks so far.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for lives in &self.0 {
            let starts = lives.starts.load(Ordering::Relaxed);
            let ends = lives.ends.load(Ordering::Relaxed);
            sums.started_again += u64::from(starts > 1);
            sums.ended += u64::from(ends > 0);
            sums.ended_again += u64::from(ends > 1);
        }
        sums
    }
}

/// The tasks of a worker. Tasks in the same lane run one after the other.
pub(super) struct Tasks {
    time: TaskTime,
    seed: u64,
    ledger: Arc<Ledger>,
    /// The running launches, ordered by their end.
    running: BinaryHeap<Reverse<(Time, LaunchToken)>>,
    /// For each running lane, the start of its current token, and the tokens that follow.
    lanes: BTreeMap<LaunchToken, Lane>,
    /// All launches that have not ended.
    launches: BTreeMap<LaunchToken, Launch>,
    events: Vec<LaunchEvent>,
}

struct Lane {
    started: Time,
    next: VecDeque<LaunchToken>,
}

#[derive(Clone, Copy)]
struct Launch {
    lane: LaunchToken,
    /// The id in the array, which is the only job of these workers.
    task: u32,
}

impl Tasks {
    pub(super) fn new(time: TaskTime, seed: u64, ledger: Arc<Ledger>) -> Self {
        Self {
            time,
            seed,
            ledger,
            running: BinaryHeap::new(),
            lanes: BTreeMap::new(),
            launches: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Returns the time of the next event to report.
    pub(super) fn next_end(&self) -> Option<Time> {
        if self.events.is_empty() {
            self.running.peek().map(|Reverse((end, _))| *end)
        } else {
            Some(Time(0))
        }
    }

    pub(super) fn launch(&mut self, tasks: Vec<LaunchTask>, now: Time) {
        for LaunchTask {
            token, lane, key, ..
        } in tasks
        {
            let task = key.task.task.as_u32();
            self.launches.insert(token, Launch { lane, task });
            if let Some(lane) = self.lanes.get_mut(&lane) {
                lane.next.push_back(token);
            } else {
                let (started, next) = (now, VecDeque::new());
                self.lanes.insert(lane, Lane { started, next });
                self.start(token, now);
            }
        }
    }

    fn start(&mut self, token: LaunchToken, now: Time) {
        self.events.push(LaunchEvent::Started { token, at: now });
        if let Some(launch) = self.launches.get(&token) {
            self.ledger.note_start(launch.task);
        }
        let end = now + self.time.of(self.seed, token);
        self.running.push(Reverse((end, token)));
    }

    /// Removes an unstarted task from its lane. Returns whether it was there.
    pub(super) fn withdraw(&mut self, token: LaunchToken) -> bool {
        let lane = self.launches.get(&token).map(|launch| launch.lane);
        let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(&lane)) else {
            return false;
        };
        let Some(position) = lane.next.iter().position(|next| *next == token) else {
            return false;
        };
        lane.next.remove(position);
        self.launches.remove(&token);
        let failure = LaunchFailure::Cancelled;
        self.events.push(LaunchEvent::Failed { token, failure });
        true
    }

    /// Ends a task now.
    pub(super) fn terminate(&mut self, token: LaunchToken, now: Time) {
        if self.withdraw(token) {
            return;
        }
        let running = self.running.len();
        // This happens rarely, so a linear search is good enough.
        self.running
            .retain(|Reverse((_, running))| *running != token);
        if self.running.len() < running {
            self.end(token, now);
        }
    }

    /// Returns the events that are due by now.
    pub(super) fn due(&mut self, now: Time) -> Vec<LaunchEvent> {
        while let Some(Reverse((end, token))) = self.running.peek().copied() {
            if end > now {
                break;
            }
            self.running.pop();
            if let Some(launch) = self.launches.get(&token) {
                self.ledger.note_end(launch.task);
            }
            self.end(token, end);
        }
        std::mem::take(&mut self.events)
    }

    fn end(&mut self, token: LaunchToken, ended: Time) {
        let Some(Launch { lane: id, .. }) = self.launches.remove(&token) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let run = ended.since(lane.started);
        lane.started = ended;
        let next = lane.next.pop_front();
        self.events.push(LaunchEvent::Exited {
            token,
            status: ExitStatus::Code(0),
            ended,
            run,
            usage: Usage::default(),
            message: None,
        });
        match next {
            Some(next) => self.start(next, ended),
            None => {
                self.lanes.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tasks_stay_within_their_spread() {
        let time = TaskTime {
            mean: Duration::from_millis(100),
            spread: 0.5,
        };
        let all: Vec<f64> = (0..10_000)
            .map(|token| time.of(7, LaunchToken(token)).as_secs_f64())
            .collect();
        let mean = all.iter().sum::<f64>() / 10_000.0;
        assert!((0.098..0.102).contains(&mean), "{mean}");
        assert!(all.iter().all(|time| (0.05..=0.15).contains(time)));
        let even = TaskTime {
            spread: 0.0,
            ..time
        };
        assert_eq!(even.of(7, LaunchToken(1)), time.mean);
    }
}
