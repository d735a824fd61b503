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
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::entry::Class;
use super::input::{InstanceKey, LaunchToken};
use crate::id::{InstanceId, JobId};
use crate::job::TemplateId;
use crate::resource::pool::Grant;
use crate::template::Entries;
use crate::time::Time;

/// How much work is launched ahead. It is one and a half times the delay until a completion is
/// noticed.
pub(super) const AHEAD: Duration = Duration::from_millis(15);

/// How much work is launched ahead for tasks that arrived with many others. The delay is longer,
/// because no client waits for a single one of them.
pub(crate) const AHEAD_OF_MANY: Duration = Duration::from_millis(45);

/// The maximum number of tasks in a lane, however short they are.
const LANE_MAX: usize = 128;

/// A grant, and the launched instances that use it one after the other.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) grant: Arc<Grant>,
    pub(super) class: Arc<Class>,
    /// The tokens of the instances, in the order they run. There is at least one.
    tasks: VecDeque<LaunchToken>,
    /// The expected total run time of the instances.
    pub(super) expected: Duration,
    /// When the last instance ended, or when the first one was launched if none has ended yet.
    pub(super) since: Time,
    /// The lowest priority among the instances.
    pub(super) least: Reverse<i32>,
    /// Whether all instances except the first were taken back. In that case, no more are added.
    pub(super) withdrawn: bool,
}

impl Lane {
    /// Returns whether another task may be added, because the expected run time is short.
    fn is_open(&self) -> bool {
        // A withdrawn lane is not filled again, because another task waits until it is empty.
        !self.withdrawn && self.expected < AHEAD_OF_MANY && self.tasks.len() < LANE_MAX
    }

    /// Returns whether some of the instances wait for the first one.
    fn is_ahead(&self) -> bool {
        !self.withdrawn && self.tasks.len() > 1
    }
}

/// A launched instance.
#[derive(Clone, Debug)]
pub(super) struct RunningTask {
    pub(super) key: InstanceKey,
    pub(super) lane: LaunchToken,
    pub(super) template: TemplateId,
    /// The variant of the resource request.
    pub(super) variant: u32,
    pub(super) priority: Reverse<i32>,
    /// The expected run time.
    pub(super) expected: Duration,
    pub(super) time_limit: Option<Duration>,
    pub(super) phase: Phase,
    /// Whether the task arrived together with many others.
    pub(super) is_one_of_many: bool,
    /// The entries of the assignment, with the position of the task among them.
    pub(super) entries: Option<(Entries, u32)>,
    pub(super) nodes: Arc<[Box<str>]>,
    /// Whether the server retracted the instance while it waited in its lane.
    pub(super) is_asked_for: bool,
}

/// The phase of a launched instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The instance was passed to the launcher.
    Starting,
    /// The program is running.
    Running {
        /// The time of the start.
        since: Time,
        /// When the time limit expires, or `None` if there is no limit.
        deadline: Option<Time>,
    },
    /// The instance was asked to end.
    Ending(EndCause),
}

/// The reason why a launched instance was asked to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndCause {
    /// The server killed the task.
    Killed,
    /// The time limit expired.
    TimeLimit,
    /// The worker ends. The server is notified of that instead.
    WorkerEnd,
    /// The server does not want the result.
    Void,
}

/// All launched instances.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningTasks {
    tasks: BTreeMap<LaunchToken, RunningTask>,
    by_key: BTreeMap<InstanceKey, LaunchToken>,
    deadlines: BTreeSet<(Time, LaunchToken)>,
    /// The lanes, by the token of their first instance.
    lanes: BTreeMap<LaunchToken, Lane>,
    index: LaneIndex,
    next_token: u64,
}

/// Lookup tables for lanes, see [`Lane::is_open`] and [`Lane::is_ahead`].
#[derive(Clone, Debug, Default)]
struct LaneIndex {
    /// The open lanes of each class, the lane that ends soonest first.
    open: BTreeMap<Arc<Class>, BTreeSet<(Duration, LaunchToken)>>,
    /// The lanes with tasks launched ahead, by the time of their last activity.
    since: BTreeSet<(Time, LaunchToken)>,
    /// The same lanes, by their lowest priority.
    least: BTreeSet<(Reverse<i32>, LaunchToken)>,
}

impl LaneIndex {
    fn add(&mut self, name: LaunchToken, lane: &Lane) {
        if lane.is_open() {
            let entry = (lane.expected, name);
            match self.open.get_mut(&lane.class) {
                Some(lanes) => {
                    lanes.insert(entry);
                }
                None => {
                    let class = Arc::clone(&lane.class);
                    self.open.insert(class, BTreeSet::from([entry]));
                }
            }
        }
        if lane.is_ahead() {
            self.since.insert((lane.since, name));
            self.least.insert((lane.least, name));
        }
    }

    fn remove(&mut self, name: LaunchToken, lane: &Lane) {
        if lane.is_open()
            && let Some(lanes) = self.open.get_mut(&lane.class)
        {
            lanes.remove(&(lane.expected, name));
            if lanes.is_empty() {
                self.open.remove(&lane.class);
            }
        }
        if lane.is_ahead() {
            self.since.remove(&(lane.since, name));
            self.least.remove(&(lane.least, name));
        }
    }
}

impl RunningTasks {
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds a lane for the next instance that is inserted. Returns the name of the lane.
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
            // Most lanes have a single, long task.
            tasks: VecDeque::with_capacity(1),
            expected: Duration::ZERO,
            since: now,
            // Lower than every priority, so that the first task determines the value.
            least: Reverse(i32::MAX),
            withdrawn: false,
        };
        self.lanes.insert(name, lane);
        name
    }

    /// Adds an instance that is about to be launched to the end of its lane.
    pub(super) fn insert(&mut self, task: RunningTask) -> LaunchToken {
        let token = LaunchToken(self.next_token);
        self.next_token += 1;
        self.change_lane(task.lane, |lane| {
            lane.tasks.push_back(token);
            lane.least = lane.least.max(task.priority);
            lane.expected = lane.expected.saturating_add(task.expected);
        });
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

    /// Returns whether every lane has only one instance left.
    pub(super) fn nothing_ahead(&self) -> bool {
        self.lanes.len() == self.tasks.len()
    }

    /// Returns the open lane of a class that ends soonest.
    pub(super) fn open_for(&self, class: &Arc<Class>) -> Option<LaunchToken> {
        let lanes = self.index.open.get(class)?;
        lanes.first().map(|(_, name)| *name)
    }

    /// Changes a lane and updates the lookup tables.
    fn change_lane<T>(
        &mut self,
        name: LaunchToken,
        change: impl FnOnce(&mut Lane) -> T,
    ) -> Option<T> {
        let lane = self.lanes.get_mut(&name)?;
        // The lane is removed from the tables and added again, because the change may affect its
        // keys.
        self.index.remove(name, lane);
        let changed = change(lane);
        // An empty lane is about to be removed and must not be found.
        if !lane.tasks.is_empty() {
            self.index.add(name, lane);
        }
        Some(changed)
    }

    /// Removes an ended instance from its lane. Returns the grant if no instance is left.
    pub(super) fn leave_lane(
        &mut self,
        token: LaunchToken,
        task: &RunningTask,
        now: Time,
    ) -> Option<Arc<Grant>> {
        let is_last = self.change_lane(task.lane, |lane| {
            match lane.tasks.front() {
                Some(first) if *first == token => {
                    lane.tasks.pop_front();
                }
                Some(_) | None => lane.tasks.retain(|other| *other != token),
            }
            lane.expected = lane.expected.saturating_sub(task.expected);
            // The next instance starts now, so its run time is measured from here.
            lane.since = now;
            lane.tasks.is_empty()
        })?;
        if !is_last {
            return None;
        }
        self.lanes.remove(&task.lane).map(|lane| lane.grant)
    }

    /// Returns when the first delayed lane is withdrawn.
    pub(super) fn next_withdrawal(&self, patience: Duration) -> Option<Time> {
        self.index.since.first().map(|(since, _)| *since + patience)
    }

    /// Withdraws lanes that have had no activity for this long. Returns the instances after the
    /// first one of each lane. No instance is returned twice.
    pub(super) fn withdraw_held_up(&mut self, now: Time, patience: Duration) -> Vec<LaunchToken> {
        let mut tokens = Vec::new();
        while let Some((since, name)) = self.index.since.first().copied()
            && since + patience <= now
        {
            self.withdraw(name, &mut tokens);
        }
        tokens
    }

    /// Withdraws lanes with a lower priority than the given one. Returns the instances after the
    /// first one of each lane.
    pub(super) fn withdraw_less_urgent(&mut self, priority: Reverse<i32>) -> Vec<LaunchToken> {
        let mut tokens = Vec::new();
        while let Some((least, name)) = self.index.least.last().copied()
            && least > priority
        {
            self.withdraw(name, &mut tokens);
        }
        tokens
    }

    fn withdraw(&mut self, name: LaunchToken, tokens: &mut Vec<LaunchToken>) {
        self.change_lane(name, |lane| {
            lane.withdrawn = true;
            // The first instance is running, so only later ones can be taken back.
            tokens.extend(lane.tasks.iter().skip(1));
        });
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

    /// Returns the instances of one job's tasks in a range of ids.
    pub(super) fn between(
        &self,
        job: JobId,
        first: u32,
        last: u32,
    ) -> impl Iterator<Item = InstanceKey> + '_ {
        let start = InstanceKey::new(job, first, InstanceId(0));
        let end = InstanceKey::new(job, last, InstanceId(u32::MAX));
        self.by_key.range(start..=end).map(|(key, _)| *key)
    }

    /// Changes the time limit of an instance. Skips instances that have ended meanwhile.
    pub(super) fn set_time_limit(&mut self, key: InstanceKey, limit: Option<Duration>) {
        let Some(token) = self.token_of(key) else {
            return;
        };
        let Some(task) = self.tasks.get_mut(&token) else {
            return;
        };
        match task.phase {
            Phase::Starting => task.time_limit = limit,
            Phase::Running { since, .. } => {
                task.time_limit = limit;
                let deadline = limit.map(|limit| since + limit);
                self.set_phase(token, Phase::Running { since, deadline });
            }
            // The earlier limit applies to a task that was asked to end because of it.
            Phase::Ending(_) => {}
        }
    }

    /// Changes the phase of an instance. Phases and deadlines change only here.
    pub(super) fn set_phase(&mut self, token: LaunchToken, phase: Phase) {
        let Some(task) = self.tasks.get_mut(&token) else {
            return;
        };
        if let Phase::Running {
            deadline: Some(deadline),
            ..
        } = task.phase
        {
            // A task that was asked to end no longer has a time limit, or it would be asked again
            // and again.
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

    /// Notes that the server has retracted an instance, if it exists.
    pub(super) fn ask_for(&mut self, key: InstanceKey) {
        if let Some(token) = self.by_key.get(&key)
            && let Some(task) = self.tasks.get_mut(token)
        {
            task.is_asked_for = true;
        }
    }

    /// Removes an ended instance.
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

    /// Returns when the next time limit expires.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns an instance whose time limit has expired.
    pub(super) fn overdue(&self, now: Time) -> Option<LaunchToken> {
        self.deadlines
            .first()
            .filter(|(deadline, _)| *deadline <= now)
            .map(|(_, token)| *token)
    }
}

#[cfg(any(test, feature = "testing"))]
impl RunningTasks {
    /// Panics if tasks, lanes and indexes disagree. Used in tests.
    pub(super) fn check(&self) {
        let mut expected = LaneIndex::default();
        let mut tasks = 0;
        for (name, lane) in &self.lanes {
            assert!(!lane.tasks.is_empty(), "a lane without a task");
            for token in &lane.tasks {
                let task = self.tasks.get(token).map(|task| task.lane);
                assert_eq!(task, Some(*name), "lane of {token:?}");
            }
            tasks += lane.tasks.len();
            expected.add(*name, lane);
        }
        assert_eq!(tasks, self.tasks.len(), "every task is in one lane");
        assert_eq!(expected.open, self.index.open, "lanes that can get more");
        assert_eq!(expected.since, self.index.since, "lanes with some ahead");
        assert_eq!(expected.least, self.index.least, "the same by urgency");
        let keys = self.tasks.iter().map(|(token, task)| (task.key, *token));
        assert_eq!(keys.collect::<BTreeMap<_, _>>(), self.by_key);
    }
}
