//! Launched instances: their grants, phases and time limits.
//!
//! ```text
//!              Started              Exited
//!  Starting ───────────▶ Running ───────────▶ gone, reported by its exit status
//!     │ │                   │ kill, time limit, worker ends
//!     │ └── the same ─────▶ Ending ──────────▶ gone, reported by its cause (Exited or Failed)
//!     └──── Failed ──────────────────────────▶ gone, reported with the error
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::backlog::Class;
use super::input::{InstanceKey, LaunchToken};
use crate::id::{InstanceId, JobId};
use crate::job::TemplateId;
use crate::resource::pool::Grant;
use crate::time::Time;

/// A grant and the launched instances that use it, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) grant: Arc<Grant>,
    pub(super) class: Arc<Class>,
    /// How many there are; at least one.
    pub(super) tasks: u32,
    /// How long all of them will take, as far as can be told.
    pub(super) expected: Duration,
    /// When the last one ended, or the first was launched.
    pub(super) since: Time,
    /// Priority of the least urgent of them.
    pub(super) least: Reverse<i32>,
    /// Those behind the first were asked back; nothing is added any more.
    pub(super) withdrawn: bool,
}

/// One launched instance.
#[derive(Clone, Debug)]
pub(super) struct RunningTask {
    pub(super) key: InstanceKey,
    pub(super) lane: LaunchToken,
    pub(super) template: TemplateId,
    /// Variant of the resource request.
    pub(super) variant: u32,
    pub(super) priority: Reverse<i32>,
    /// How long it will take, as far as can be told.
    pub(super) expected: Duration,
    pub(super) time_limit: Option<Duration>,
    pub(super) phase: Phase,
}

/// Where a launched instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Handed to the launcher.
    Starting,
    /// Its program runs; with the moment at which its time limit ends it.
    Running {
        /// When it started.
        since: Time,
        /// `None` = no limit.
        deadline: Option<Time>,
    },
    /// Told to end.
    Ending(EndCause),
}

/// Why a launched instance was told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndCause {
    /// The server asked for it.
    Killed,
    /// Its time limit.
    TimeLimit,
    /// The worker ends; the server hears of that, not of the task.
    WorkerEnd,
    /// The server does not want its result.
    Void,
}

/// All launched instances.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningTasks {
    tasks: BTreeMap<LaunchToken, RunningTask>,
    by_key: BTreeMap<InstanceKey, LaunchToken>,
    deadlines: BTreeSet<(Time, LaunchToken)>,
    /// By the token of their first instance.
    lanes: BTreeMap<LaunchToken, Lane>,
    next_token: u64,
}

impl RunningTasks {
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds a lane for the next instance that is inserted; answers with its name.
    pub(super) fn open_lane(
        &mut self,
        grant: Arc<Grant>,
        class: Arc<Class>,
        now: Time,
    ) -> LaunchToken {
        let name = LaunchToken(self.next_token);
        let lane = Lane {
            grant,
            class,
            tasks: 0,
            expected: Duration::ZERO,
            since: now,
            least: Reverse(i32::MAX),
            withdrawn: false,
        };
        self.lanes.insert(name, lane);
        name
    }

    /// Adds an instance that is about to be launched, behind all others of its lane.
    pub(super) fn insert(&mut self, task: RunningTask) -> LaunchToken {
        let token = LaunchToken(self.next_token);
        self.next_token += 1;
        if let Some(lane) = self.lanes.get_mut(&task.lane) {
            lane.tasks += 1;
            lane.least = lane.least.max(task.priority);
            lane.expected = lane.expected.saturating_add(task.expected);
        }
        self.by_key.insert(task.key, token);
        self.tasks.insert(token, task);
        token
    }

    pub(super) fn lane(&self, name: LaunchToken) -> Option<&Lane> {
        self.lanes.get(&name)
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = (LaunchToken, &Lane)> + Clone {
        self.lanes.iter().map(|(name, lane)| (*name, lane))
    }

    /// Whether every lane has only one instance left.
    pub(super) fn nothing_ahead(&self) -> bool {
        self.lanes.len() == self.tasks.len()
    }

    /// An instance of a lane has ended; answers with the grant if it was the last.
    pub(super) fn leave_lane(&mut self, task: &RunningTask, now: Time) -> Option<Arc<Grant>> {
        let lane = self.lanes.get_mut(&task.lane)?;
        lane.tasks = lane.tasks.saturating_sub(1);
        lane.expected = lane.expected.saturating_sub(task.expected);
        lane.since = now;
        if lane.tasks > 0 {
            return None;
        }
        self.lanes.remove(&task.lane).map(|lane| lane.grant)
    }

    /// When the first lane that is held up by one instance gives the others back.
    pub(super) fn next_withdrawal(&self, patience: Duration) -> Option<Time> {
        let held = self.lanes.values();
        held.filter(|lane| lane.tasks > 1 && !lane.withdrawn)
            .map(|lane| lane.since + patience)
            .min()
    }

    /// The instances behind the first one in lanes that `is_due` names; each is told once.
    pub(super) fn withdraw(&mut self, is_due: impl Fn(&Lane) -> bool) -> Vec<LaunchToken> {
        let mut held = BTreeSet::new();
        for (name, lane) in &mut self.lanes {
            if lane.tasks > 1 && !lane.withdrawn && is_due(lane) {
                lane.withdrawn = true;
                held.insert(*name);
            }
        }
        if held.is_empty() {
            return Vec::new();
        }
        let mut first_seen = BTreeSet::new();
        let tasks = self.tasks.iter();
        tasks
            .filter(|(_, task)| held.contains(&task.lane) && !first_seen.insert(task.lane))
            .map(|(token, _)| *token)
            .collect()
    }

    pub(super) fn get(&self, token: LaunchToken) -> Option<&RunningTask> {
        self.tasks.get(&token)
    }

    pub(super) fn token_of(&self, key: InstanceKey) -> Option<LaunchToken> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn tokens(&self) -> Vec<LaunchToken> {
        self.tasks.keys().copied().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaunchToken, &RunningTask)> {
        self.tasks.iter().map(|(token, task)| (*token, task))
    }

    /// Instances of tasks of one job.
    pub(super) fn of_job(&self, job: JobId) -> impl Iterator<Item = InstanceKey> + '_ {
        let start = InstanceKey::new(job, 0, InstanceId(0));
        self.by_key
            .range(start..)
            .map(|(key, _)| *key)
            .take_while(move |key| key.task.job == job)
    }

    /// Changes the phase; the only place where phases and deadlines change.
    pub(super) fn set_phase(&mut self, token: LaunchToken, phase: Phase) {
        let Some(task) = self.tasks.get_mut(&token) else {
            return;
        };
        if let Phase::Running {
            deadline: Some(deadline),
            ..
        } = task.phase
        {
            self.deadlines.remove(&(deadline, token));
        }
        if let Phase::Running {
            deadline: Some(deadline),
            ..
        } = phase
        {
            self.deadlines.insert((deadline, token));
        }
        task.phase = phase;
    }

    /// Takes an ended instance out.
    pub(super) fn remove(&mut self, token: LaunchToken) -> Option<RunningTask> {
        let task = self.tasks.remove(&token)?;
        self.by_key.remove(&task.key);
        if let Phase::Running {
            deadline: Some(deadline),
            ..
        } = task.phase
        {
            self.deadlines.remove(&(deadline, token));
        }
        Some(task)
    }

    /// The next moment at which a time limit runs out.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// An instance whose time limit has run out.
    pub(super) fn overdue(&self, now: Time) -> Option<LaunchToken> {
        self.deadlines
            .first()
            .filter(|(deadline, _)| *deadline <= now)
            .map(|(_, token)| *token)
    }
}
