//! The server's view of one worker: what it offers, what was handed to it, when it is overdue.
//!
//! Tasks handed to a worker are *placed* (their resources are counted as taken) or in its *backlog*
//! (sent ahead so that the worker never idles for a round trip). The worker decides itself which task
//! it starts next; promotion from backlog to placed follows the order in which it will.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::job::{TaskSlot, TemplateId};
use crate::outcome::LostReason;
use crate::scheduler::queue::QueueKey;
use crate::scheduler::{Class, Classes, Demand, VariantDemand};
use crate::server_state::LinkEnd;
use crate::time::{Time, Timestamp};
use crate::worker_config::{OnServerLost, WorkerConfig};

/// Work sent ahead should last this long at the worker's measured rate: many times a round trip, but
/// short enough that a new worker or an urgent task does not wait behind it.
const BACKLOG_SPAN: Duration = Duration::from_millis(100);
/// Upper bound of work sent ahead, so that one worker never holds much of a job hostage.
const BACKLOG_MAX: u32 = 4_096;
/// Window over which the completion rate is measured.
const RATE_WINDOW: Duration = Duration::from_millis(20);
/// Backlog entries looked at in one promotion; equal requests share their fate.
const PROMOTE_SCAN_MAX: usize = 16;

/// A worker that lives has connected again after this, even on a busy machine.
const CLOSED_GRACE_MIN: Duration = Duration::from_secs(1);
/// How long a worker of an earlier run of the server is waited for: two heartbeats, but no less than a
/// worker may pause between two attempts to connect, and no longer than people would wait.
const RESTORED_GRACE_MIN: Duration = Duration::from_secs(10);
const RESTORED_GRACE_MAX: Duration = Duration::from_secs(60);

/// One task handed to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// Where the task is in its job.
    pub slot: TaskSlot,
    /// Queue it came from.
    pub key: QueueKey,
    /// Chosen variant.
    pub variant: u32,
    /// Instance that was handed out.
    pub instance: InstanceId,
    /// Whether its resources are counted as taken; otherwise it is in the backlog.
    pub placed: bool,
    /// Whether the worker reported its start.
    pub started: bool,
    /// Whether the worker was asked to give it back.
    pub retracting: bool,
}

/// Completion rate of a worker in tasks per second.
#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    window_start: Time,
    window_count: u32,
}

impl Rate {
    fn count(&mut self, now: Time, ended: u32) {
        self.window_count = self.window_count.saturating_add(ended);
        let span = now.since(self.window_start);
        if span >= RATE_WINDOW {
            let measured = f64::from(self.window_count) / span.as_secs_f64();
            self.per_second = (self.per_second + measured) / 2.0;
            self.window_start = now;
            self.window_count = 0;
        }
    }

    /// The rate, lowered when nothing has ended for longer than it promises.
    fn current(&self, now: Time) -> f64 {
        let span = now.since(self.window_start).max(RATE_WINDOW);
        let bound = f64::from(self.window_count.saturating_add(1)) / span.as_secs_f64();
        self.per_second.min(bound)
    }
}

/// A connected or former worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// What it reported.
    pub config: Arc<WorkerConfig>,
    /// When it registered.
    pub started: Timestamp,
    /// When and why it went.
    pub ended: Option<(Timestamp, LostReason)>,
    /// It was asked to end: no more work, and this is the reason when it is gone.
    pub stopping: Option<LostReason>,
    /// The task that started last, and when.
    pub last_task: Option<(TaskKey, Timestamp)>,
    /// It has no connection now, but may come back until `heartbeat_deadline`.
    pub away: bool,
    /// It is of an earlier run of the server and has not come back.
    pub restored: bool,
    /// When its life ends by its own time limit.
    pub deadline: Option<Time>,
    /// When it counts as lost without another heartbeat.
    pub heartbeat_deadline: Time,
    /// Templates it knows.
    pub templates: BTreeSet<TemplateId>,
    totals: Vec<u64>,
    free: Vec<i64>,
    assigned: BTreeMap<TaskKey, Assigned>,
    backlog: BTreeSet<(QueueKey, TaskKey)>,
    running: u32,
    rate: Rate,
}

impl Worker {
    /// A worker that has just registered. `totals` are its units by resource number.
    #[must_use]
    pub fn new(
        id: WorkerId,
        config: Arc<WorkerConfig>,
        totals: Vec<u64>,
        now: Time,
        wall: Timestamp,
    ) -> Self {
        let free = totals
            .iter()
            .map(|units| i64::try_from(*units).unwrap_or(i64::MAX))
            .collect();
        Self {
            id,
            started: wall,
            ended: None,
            stopping: None,
            away: false,
            restored: false,
            last_task: None,
            deadline: config.time_limit.map(|limit| now + limit),
            heartbeat_deadline: now + config.heartbeat * 2,
            templates: BTreeSet::new(),
            totals,
            free,
            assigned: BTreeMap::new(),
            backlog: BTreeSet::new(),
            running: 0,
            rate: Rate {
                per_second: 0.0,
                window_start: now,
                window_count: 0,
            },
            config,
        }
    }

    /// Connected and not asked to end.
    #[must_use]
    pub const fn accepts_work(&self) -> bool {
        self.ended.is_none() && self.stopping.is_none() && !self.away
    }

    /// Not lost: connected, perhaps about to end, or expected back.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.ended.is_none()
    }

    /// Tasks handed to it.
    #[must_use]
    pub const fn assigned(&self) -> &BTreeMap<TaskKey, Assigned> {
        &self.assigned
    }

    /// Tasks it reported as started and not as ended.
    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Length of the backlog.
    #[must_use]
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Units of a resource that it offers.
    #[must_use]
    pub fn total(&self, demand: &Demand) -> u64 {
        self.totals
            .get(demand.resource.0 as usize)
            .copied()
            .unwrap_or(0)
    }

    /// Lifetime it has left; `None` = unlimited.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(now))
    }

    /// Whether the remaining lifetime covers the time request.
    #[must_use]
    pub fn has_time(&self, variant: &VariantDemand, now: Time) -> bool {
        variant.min_time_ns == 0
            || self
                .remaining(now)
                .is_none_or(|left| crate::time::nanos(left) >= variant.min_time_ns)
    }

    /// Tasks of a variant that an empty worker could run at once.
    #[must_use]
    pub fn capacity(&self, variant: &VariantDemand) -> u32 {
        self.fitting(variant, |slot| {
            i64::try_from(self.totals.get(slot).copied().unwrap_or(0)).unwrap_or(i64::MAX)
        })
    }

    /// Tasks of a variant that it could start now.
    #[must_use]
    pub fn room(&self, variant: &VariantDemand) -> u32 {
        self.fitting(variant, |slot| self.free.get(slot).copied().unwrap_or(0))
    }

    fn fitting(&self, variant: &VariantDemand, available: impl Fn(usize) -> i64) -> u32 {
        if variant.n_nodes > 0 {
            return 0;
        }
        // A request without resources is limited only by common sense.
        let mut fit = i64::from(BACKLOG_MAX);
        for demand in &variant.demands {
            let slot = demand.resource.0 as usize;
            let have = available(slot);
            fit = fit.min(match demand.units {
                Some(units) => have / i64::try_from(units.max(1)).unwrap_or(i64::MAX),
                None => {
                    let total = self.totals.get(slot).copied().unwrap_or(0);
                    i64::from(total > 0 && u64::try_from(have).is_ok_and(|have| have == total))
                }
            });
        }
        u32::try_from(fit.max(0)).unwrap_or(u32::MAX)
    }

    /// How many more tasks may be sent ahead for this queue; `capacity` as from [`Worker::capacity`].
    #[must_use]
    pub fn backlog_room(&self, key: QueueKey, capacity: u32, now: Time) -> u32 {
        let by_rate =
            (self.rate.current(now) * BACKLOG_SPAN.as_secs_f64()).min(f64::from(BACKLOG_MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0..=BACKLOG_MAX"
        )]
        let target = (by_rate as u32).max(capacity.max(1)).min(BACKLOG_MAX);
        let urgent = self.backlog.range(
            ..=(
                QueueKey::new(key.priority.0, crate::scheduler::ClassId(u32::MAX)),
                TaskKey::new(crate::id::JobId(u32::MAX), crate::id::TaskId(u32::MAX)),
            ),
        );
        let urgent = urgent.count();
        // What is less urgent must not start before this: send enough to go in front of all of it.
        let less_urgent = self.backlog.len().saturating_sub(urgent);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        target.saturating_sub(count(urgent)).max(count(less_urgent))
    }

    /// Tasks it will still have queued after `span` at its present rate: worth taking back.
    #[must_use]
    pub fn surplus(&self, now: Time, span: Duration) -> usize {
        let soon = self.rate.current(now) * span.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small, >= 0"
        )]
        let soon = soon as usize;
        self.backlog.len().saturating_sub(soon)
    }

    /// The backlog entries that it will start last and was not asked for, last first.
    pub fn backlog_last(&self) -> impl Iterator<Item = (TaskKey, &Assigned)> + '_ {
        self.backlog
            .iter()
            .rev()
            .filter_map(|(_, key)| self.assigned.get(key).map(|assigned| (*key, assigned)))
            .filter(|(_, assigned)| !assigned.retracting)
    }

    pub(crate) fn mark_retracting(&mut self, key: TaskKey) {
        if let Some(assigned) = self.assigned.get_mut(&key) {
            assigned.retracting = true;
        }
    }

    /// Whether it goes on by itself when its connection breaks.
    pub(crate) fn may_come_back(&self) -> bool {
        self.stopping.is_none() && self.config.on_server_lost == OnServerLost::Reconnect
    }

    /// Its connection ended. It knows no template afterwards and is expected for two heartbeat periods; if
    /// it closed the connection itself, its process has probably ended, and for half a period.
    pub(crate) fn leave(&mut self, now: Time, how: LinkEnd) {
        self.away = true;
        self.templates.clear();
        self.note_heartbeat(now);
        if how == LinkEnd::Closed {
            let soon = (self.config.heartbeat / 2).max(CLOSED_GRACE_MIN);
            self.heartbeat_deadline = self.heartbeat_deadline.min(now + soon);
        }
    }

    /// It is of an earlier run of the server: it has no connection and is expected back.
    pub(crate) fn await_return(&mut self, now: Time) {
        self.away = true;
        self.restored = true;
        let grace = (self.config.heartbeat * 2).clamp(RESTORED_GRACE_MIN, RESTORED_GRACE_MAX);
        self.heartbeat_deadline = now + grace;
    }

    /// It is connected again.
    pub(crate) fn come_back(&mut self, now: Time) {
        self.away = false;
        self.restored = false;
        self.templates.clear();
        self.note_heartbeat(now);
        for assigned in self.assigned.values_mut() {
            assigned.retracting = false;
        }
    }

    pub(crate) fn note_heartbeat(&mut self, now: Time) {
        self.heartbeat_deadline = now + self.config.heartbeat * 2;
    }

    pub(crate) fn assign(&mut self, task: TaskKey, assigned: Assigned, class: &Class) {
        if assigned.placed {
            self.take(class, assigned.variant, 1);
        } else {
            self.backlog.insert((assigned.key, task));
        }
        self.assigned.insert(task, assigned);
    }

    /// Notes a start; `None` if the task was not handed to this worker with that instance, or if its
    /// start is known already.
    pub(crate) fn start(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        classes: &Classes,
    ) -> Option<Assigned> {
        let assigned = self
            .assigned
            .get_mut(&task)
            .filter(|a| a.instance == instance)?;
        if assigned.started {
            return None;
        }
        let was_placed = std::mem::replace(&mut assigned.placed, true);
        assigned.started = true;
        let copy = *assigned;
        if !was_placed {
            self.backlog.remove(&(copy.key, task));
            if let Some(class) = classes.get(copy.key.class) {
                self.take(class, copy.variant, 1);
            }
        }
        self.running += 1;
        Some(copy)
    }

    /// Takes a task off the worker; `None` if it was not handed to it with that instance.
    pub(crate) fn remove(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        classes: &Classes,
    ) -> Option<Assigned> {
        let assigned = *self
            .assigned
            .get(&task)
            .filter(|a| a.instance == instance)?;
        self.assigned.remove(&task);
        if assigned.placed {
            if let Some(class) = classes.get(assigned.key.class) {
                self.take(class, assigned.variant, -1);
            }
        } else {
            self.backlog.remove(&(assigned.key, task));
        }
        self.running = self.running.saturating_sub(u32::from(assigned.started));
        Some(assigned)
    }

    pub(crate) fn count_ended(&mut self, now: Time, ended: u32) {
        self.rate.count(now, ended);
    }

    /// Counts backlog entries as placed while they fit, in the order in which the worker starts them.
    pub(crate) fn promote(&mut self, classes: &Classes) {
        let mut blocked: Vec<(QueueKey, u32)> = Vec::new();
        loop {
            let next = self
                .backlog
                .iter()
                .take(PROMOTE_SCAN_MAX)
                .find_map(|(key, task)| {
                    let assigned = self.assigned.get(task)?;
                    if blocked.contains(&(*key, assigned.variant)) {
                        return None;
                    }
                    Some((*key, *task, assigned.variant))
                });
            let Some((key, task, variant)) = next else {
                break;
            };
            let found = classes.get(key.class);
            let fits = found
                .as_ref()
                .and_then(|c| c.variants.get(variant as usize));
            match (&found, fits) {
                (Some(class), Some(demand)) if self.room(demand) > 0 => {
                    self.backlog.remove(&(key, task));
                    self.take(class, variant, 1);
                    if let Some(assigned) = self.assigned.get_mut(&task) {
                        assigned.placed = true;
                    }
                }
                _ => blocked.push((key, variant)),
            }
        }
    }

    /// Hands over everything it had, e.g. because it is gone.
    pub(crate) fn clear(&mut self) -> BTreeMap<TaskKey, Assigned> {
        self.backlog.clear();
        self.running = 0;
        self.free = self
            .totals
            .iter()
            .map(|u| i64::try_from(*u).unwrap_or(i64::MAX))
            .collect();
        std::mem::take(&mut self.assigned)
    }

    /// Counts the resources of a variant as taken (`sign` 1) or free (-1).
    fn take(&mut self, class: &Class, variant: u32, sign: i64) {
        let Some(variant) = class.variants.get(variant as usize) else {
            return;
        };
        for demand in &variant.demands {
            let units = demand.units.unwrap_or_else(|| self.total(demand));
            if let Some(free) = self.free.get_mut(demand.resource.0 as usize) {
                *free -= sign * i64::try_from(units).unwrap_or(i64::MAX);
            }
        }
    }

    /// Panics if free and taken units do not add up to the total. For tests.
    ///
    /// # Panics
    ///
    /// If the books are wrong.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_books(&self, classes: &Classes) {
        let mut copy = self.clone();
        for assigned in self.assigned.values().filter(|assigned| assigned.placed) {
            let class = classes
                .get(assigned.key.class)
                .expect("class of an assigned task exists");
            copy.take(class, assigned.variant, -1);
        }
        for (free, total) in copy.free.iter().zip(&self.totals) {
            assert_eq!(
                u64::try_from(*free),
                Ok(*total),
                "free + taken = total on {}",
                self.id
            );
        }
        let backlog = self
            .assigned
            .iter()
            .filter(|(_, a)| !a.placed)
            .map(|(k, a)| (a.key, *k));
        assert_eq!(
            backlog.collect::<BTreeSet<_>>(),
            self.backlog,
            "backlog of {}",
            self.id
        );
    }
}
