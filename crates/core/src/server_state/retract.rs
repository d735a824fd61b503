//! Retracts unstarted tasks: tasks that other workers could start immediately, overtaken tasks, and
//! stuck tasks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Ctx, WorkerCommand};
use crate::bug;
use crate::class::{Class, ClassId, Classes, Demand, QueueKey};
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::time::Time;
use crate::worker::{STUCK_AFTER, Worker, Workers};

/// Tasks that a worker starts within this time stay there even if other workers are idle, because a
/// retraction would take as long.
const RETRACT_HORIZON: Duration = Duration::from_millis(50);

/// The minimum time between two searches for tasks to retract. It is too short for users to notice.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(10);

/// The same interval while the ready queue contains tasks. Workers with little room are then
/// common, and each search costs as much as tens of decisions.
const REBALANCE_QUEUED_INTERVAL: Duration = Duration::from_millis(100);

/// The interval between searches for tasks that cannot start where they were sent, while there may
/// be any.
const STUCK_CHECK: Duration = Duration::from_millis(250);

/// The maximum number of steps of one search. The next search continues.
const REBALANCE_STEPS_MAX: usize = 65_536;

/// The maximum number of workers that one search retracts tasks from. The others follow in turn.
const DONORS_MAX: usize = 1_024;

/// Decides when to search for tasks to retract.
#[derive(Clone, Debug, Default)]
pub(super) struct Retraction {
    /// The time of the next search for tasks that idle workers could take over.
    rebalance_at: Option<Time>,
    last_rebalance: Time,
    /// Whether a worker without a backlog was part of the last rounds and may have got no tasks.
    /// Such a worker can only get tasks that were sent ahead to other workers.
    is_any_idle: bool,
    /// The last donor. The round-robin continues after it.
    cursor: Option<WorkerId>,
    /// The time of the next search for stuck tasks.
    stuck_check_at: Option<Time>,
    /// The time since which messages to workers may have been waiting for the disk, or `None` if
    /// all have been sent.
    unsent_since: Option<Time>,
    /// For each of the last searches for stuck tasks, the time of the search, and the time before
    /// which all dispatched tasks had been sent.
    sent: VecDeque<(Time, Time)>,
}

/// Workers that could immediately start tasks from the backlogs of other workers.
struct Takers {
    workers: Vec<Taker>,
    /// For each class, the position before which all workers are full. Reserved room is never
    /// released.
    next: BTreeMap<ClassId, usize>,
    steps_left: usize,
    /// Whether a later search may be worthwhile without any other event.
    has_later: bool,
    /// The position of cpus among the resources.
    cpus: Option<usize>,
}

/// A worker that could take over tasks, and the number of tasks intended for it.
#[derive(Clone, Copy)]
struct Taker {
    id: WorkerId,
    promised: u32,
    /// The units of cpus that the intended tasks take.
    cpus: i64,
}

impl Taker {
    const fn new(id: WorkerId) -> Self {
        Self {
            id,
            promised: 0,
            cpus: 0,
        }
    }
}

impl Takers {
    /// Returns the first worker with room for a task, and the units of cpus that the task would
    /// take there.
    fn find(
        &mut self,
        now: Time,
        workers: &Workers,
        id: ClassId,
        class: &Class,
    ) -> Option<(usize, i64)> {
        let next = self.next.entry(id).or_default();
        let rest = self.workers.iter().skip(*next).take(self.steps_left);
        let looked = rest.len();
        let found = rest.enumerate().find_map(|(at, taker)| {
            let worker = workers.get(taker.id)?;
            let variants = class.variants.iter().zip(0..);
            let mut served = variants.filter(|(variant, number)| {
                worker.has_time(variant, now) && !worker.is_stuck(id, *number)
            });
            let (variant, _) = served.find(|(variant, _)| worker.room(variant) > taker.promised)?;
            let is_cpus = |demand: &&Demand| Some(demand.resource.0 as usize) == self.cpus;
            let demand = variant.demands.iter().find(is_cpus);
            let units = demand.map_or(0, |d| d.units.unwrap_or_else(|| worker.total(d)));
            Some((at, i64::try_from(units).unwrap_or(i64::MAX)))
        });
        let passed = found.map_or(looked, |(at, _)| at);
        self.steps_left -= looked.min(passed + 1);
        *next += passed;
        found.map(|(_, units)| (*next, units))
    }

    fn promise(&mut self, at: usize, units: i64) {
        if let Some(taker) = self.workers.get_mut(at) {
            taker.promised += 1;
            taker.cpus = taker.cpus.saturating_add(units);
        }
    }

    /// Returns whether a worker accepts its intended tasks. If they are too few, it gets none of
    /// them.
    fn keeps_promise(&mut self, at: usize, workers: &Workers) -> bool {
        let Some(taker) = self.workers.get_mut(at) else {
            return false;
        };
        let worker = workers.get(taker.id);
        let takes = |worker: &Worker| worker.takes_share(self.cpus, taker.cpus);
        let is_taken = worker.is_some_and(takes);
        if !is_taken {
            *taker = Taker::new(taker.id);
        }
        is_taken
    }
}

impl Retraction {
    /// Returns the time of the next search.
    pub(super) fn due_at(&self) -> Option<Time> {
        let times = [self.rebalance_at, self.stuck_check_at];
        times.into_iter().flatten().min()
    }

    /// Schedules a check of tasks that were dispatched now. By the time of the check, they should
    /// have started.
    pub(super) fn note_handed_out(&mut self, now: Time) {
        self.stuck_check_at.get_or_insert(now + STUCK_CHECK);
    }

    /// Notes that a worker took part in a round. The queue may only contain tasks that do not fit
    /// there.
    pub(super) fn note_tried(&mut self, worker: &Worker) {
        self.is_any_idle |= worker.accepts_work() && worker.backlog_len() == 0;
    }

    /// Sets the time since which dispatched tasks may have been unsent.
    pub(super) const fn note_unsent(&mut self, since: Option<Time>) {
        self.unsent_since = since;
    }

    /// Returns the time before which a task must have been dispatched to have had enough time to
    /// start.
    fn sent_before(&mut self, now: Time) -> Time {
        self.sent.push_back((now, self.unsent_since.unwrap_or(now)));
        let is_due = |at: Time| at + STUCK_AFTER <= now;
        while self.sent.get(1).is_some_and(|(at, _)| is_due(*at)) {
            self.sent.pop_front();
        }
        let first = self.sent.front().filter(|(at, _)| is_due(*at));
        first.map_or(Time(0), |(_, before)| *before)
    }

    /// Retracts tasks that have had enough time since their dispatch but cannot start on their
    /// workers.
    pub(super) fn retract_stuck(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers) {
        let now = ctx.now.mono;
        if self.stuck_check_at.is_none_or(|at| at > now) {
            return;
        }
        let may_be_stuck = workers.live().values().any(Worker::may_be_stuck);
        self.stuck_check_at = may_be_stuck.then(|| now + STUCK_CHECK);
        let sent_before = self.sent_before(now);
        for worker in workers.iter_mut() {
            let tasks = worker.recall_unstarted(sent_before);
            if !tasks.is_empty() {
                ctx.send(worker.id, WorkerCommand::Retract(tasks));
            }
        }
    }

    /// Rebalances if `has_room`, or if a worker was idle after a round, but not too frequently.
    pub(super) fn rebalance_in_time(
        &mut self,
        ctx: &mut Ctx<'_>,
        workers: &mut Workers,
        classes: &Classes,
        has_room: bool,
    ) {
        let interval = match has_room {
            true => REBALANCE_INTERVAL,
            false => REBALANCE_QUEUED_INTERVAL,
        };
        let due = self.last_rebalance + interval;
        self.rebalance_at = None;
        // Stuck tasks are retracted even if no worker is idle, because a queued task can go to any
        // worker where a task ends.
        self.retract_stuck(ctx, workers);
        if !has_room && !self.is_any_idle {
            return;
        }
        // Each search examines all backlogs. A timer triggers it if nothing else happens.
        if due > ctx.now.mono {
            self.rebalance_at = Some(due);
            return;
        }
        self.last_rebalance = ctx.now.mono;
        if self.rebalance(ctx, workers, classes) {
            self.rebalance_at = Some(ctx.now.mono + interval);
        }
    }

    /// Retracts tasks that other workers could start immediately. Returns whether another search is
    /// worthwhile without other events. If there are very many workers, each search covers only
    /// some of them, in turn.
    fn rebalance(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers, classes: &Classes) -> bool {
        let (mut donors, mut idle) = (Vec::new(), Vec::new());
        for (id, worker) in workers.live() {
            // A reserved worker returns all of its unstarted tasks anyway, and takes none.
            if !worker.accepts_work() || worker.reserved_for().is_some() {
                continue;
            }
            if worker.backlog_len() > 0 {
                donors.push(*id);
            } else {
                idle.push(Taker::new(*id));
            }
        }
        if donors.is_empty() || idle.is_empty() {
            self.is_any_idle = false;
            return false;
        }
        let cpus = classes.find_resource("cpus").map(|id| id.0 as usize);
        // Workers without `--min-utilization` come first, followed by workers that need the fewest
        // tasks to reach it.
        idle.sort_by_key(|taker| {
            let worker = workers.get(taker.id)?;
            let all = worker.offers().get(cpus?)?;
            (worker.config.min_utilization > 0.0).then_some(all.units)
        });
        // Room is counted once for all donors, so that two donors do not fill the same slot.
        let mut takers = Takers {
            workers: idle,
            next: BTreeMap::new(),
            steps_left: REBALANCE_STEPS_MAX,
            has_later: false,
            cpus,
        };
        let first = donors.partition_point(|id| Some(*id) <= self.cursor);
        // The search starts after the last donor, so that each donor has its turn.
        donors.rotate_left(first);
        let mut asked = 0;
        for donor in donors {
            if asked == DONORS_MAX || takers.steps_left == 0 {
                return true;
            }
            let back = worth_retracting(ctx.now.mono, workers, classes, donor, &mut takers);
            asked += usize::from(!back.is_empty());
            retract(ctx, workers, donor, back);
            self.cursor = Some(donor);
        }
        takers.has_later
    }
}

/// Returns the tasks of a donor that other workers could start immediately, last ones first.
fn worth_retracting(
    now: Time,
    workers: &Workers,
    classes: &Classes,
    donor: WorkerId,
    takers: &mut Takers,
) -> Vec<(TaskKey, InstanceId)> {
    let Some(worker) = workers.get(donor) else {
        bug!("worker {donor} is gone while the server requests tasks back");
        return Vec::new();
    };
    let mut back = Vec::new();
    let surplus = worker.surplus(now, RETRACT_HORIZON);
    // Even without a surplus, the first task shows whether a later search is worthwhile.
    for (nth, (task, assigned)) in (0..).zip(worker.backlog_last().take(surplus.max(1))) {
        let Some(class) = classes.get(assigned.key.class) else {
            bug!("task {task} has no request class");
            break;
        };
        let Some((at, units)) = takers.find(now, workers, assigned.key.class, class) else {
            // No worker has room for this task. The tasks before it start sooner and are not worth
            // another search.
            break;
        };
        takers.has_later |= surplus < worker.backlog_len();
        if nth < surplus {
            takers.promise(at, units);
            back.push((at, task, assigned.instance));
        }
    }
    // Tasks of several donors do not return at the same time, so each donor must return enough.
    back.retain(|(at, ..)| takers.keeps_promise(*at, workers));
    back.into_iter()
        .map(|(_, task, instance)| (task, instance))
        .collect()
}

/// Retracts tasks from a worker.
pub(super) fn retract(
    ctx: &mut Ctx<'_>,
    workers: &mut Workers,
    id: WorkerId,
    tasks: Vec<(TaskKey, InstanceId)>,
) {
    if tasks.is_empty() {
        return;
    }
    let Some(worker) = workers.get_mut(id) else {
        bug!("worker {id} is gone while the server requests tasks back");
        return;
    };
    for (task, _) in &tasks {
        worker.mark_retracting(*task);
    }
    ctx.send(id, WorkerCommand::Retract(tasks));
}

/// Retracts less urgent tasks of the same classes as these queues, which have more ready tasks than
/// were sent to the worker.
pub(super) fn retract_overtaken(
    ctx: &mut Ctx<'_>,
    workers: &mut Workers,
    id: WorkerId,
    by: &[QueueKey],
) {
    let Some(worker) = workers.get(id) else {
        bug!("worker {id} is gone, but a round overtakes its tasks");
        return;
    };
    let back = worker.backlog_last();
    let back = back.filter(|(_, a)| by.iter().any(|key| key.overtakes(a.key)));
    let back = back.map(|(task, a)| (task, a.instance)).collect();
    retract(ctx, workers, id, back);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_start_begins_when_a_task_was_sent() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let mut retraction = Retraction::default();
        let mut look = |ms: u64, unsent_since: Option<u64>| {
            retraction.note_unsent(unsent_since.map(at));
            retraction.sent_before(at(ms))
        };
        assert_eq!(look(1_000, Some(990)), Time(0), "no earlier look");
        // Constant disk activity does not hide stuck tasks.
        for ms in (1_250..5_000).step_by(250) {
            let before = look(ms, Some(ms - 10));
            assert!(ms < 1_500 || before == at(ms - 510), "{ms}: {before:?}");
        }
        // Messages that wait for a disk that hangs are unsent.
        for ms in (5_000..9_000).step_by(250) {
            assert!(look(ms, Some(4_995)) <= at(4_995));
        }
        // From this time on, the messages count as sent.
        assert_eq!(look(9_000, None), at(4_995));
        assert_eq!(look(9_250, None), at(4_995));
        assert_eq!(look(9_500, None), at(9_000));
        assert!(retraction.sent.len() <= 4);
    }
}
