//! Taking tasks back that have not started: what others could start at once, what was overtaken, what is stuck.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Ctx, WorkerCommand};
use crate::bug;
use crate::class::{Class, ClassId, Classes, Demand, QueueKey};
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::time::Time;
use crate::worker::{STUCK_AFTER, Worker, Workers};

/// Work that a worker will start within this time is left with it even if others are idle: asking it
/// back would take as long, and so much of it may have been handed over ahead.
const RETRACT_HORIZON: Duration = Duration::from_millis(50);

/// Least time between two looks for tasks to take back; well below what anybody notices.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(10);

/// How often to look for tasks that cannot start where they were sent, as long as there may be some.
const STUCK_CHECK: Duration = Duration::from_millis(250);

/// Looks at a worker that one search for tasks to take back may take; what is left is found the next time.
const REBALANCE_STEPS_MAX: usize = 65_536;

/// Workers that one such search may ask; then it is the turn of the next.
const DONORS_MAX: usize = 1_024;

/// When to look for tasks to take back.
#[derive(Clone, Debug, Default)]
pub(super) struct Retraction {
    /// When to look again for tasks that idle workers could take over.
    rebalance_at: Option<Time>,
    last_rebalance: Time,
    /// A worker without a backlog was part of the last rounds and may have got nothing. Only work that was sent ahead to others can
    /// still go to it.
    is_any_idle: bool,
    /// The last donor: round-robin goes on behind it.
    cursor: Option<WorkerId>,
    /// When to look for tasks that cannot start where they were sent.
    stuck_check_at: Option<Time>,
    /// Messages to workers that were decided since then may wait for the disk; `None` = all are sent.
    unsent_since: Option<Time>,
    /// What had been sent at the last looks for stuck tasks: all that was handed out before the second time.
    sent: VecDeque<(Time, Time)>,
}

/// Workers that could start at once what others have in their backlogs.
struct Takers {
    workers: Vec<Taker>,
    /// Those before this position are full for a class; promises are never taken back.
    next: BTreeMap<ClassId, usize>,
    steps_left: usize,
    /// More may be worth asking for later, without any other event.
    has_later: bool,
    /// Position of cpus among the resources.
    cpus: Option<usize>,
}

/// One of them, and what it is to get.
#[derive(Clone, Copy)]
struct Taker {
    id: WorkerId,
    promised: u32,
    /// Units of cpus of that.
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
    /// The first one that has room for a task, and the units of cpus that the task would take there.
    fn find(
        &mut self,
        (now, workers): (Time, &Workers),
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

    /// Whether a worker takes what it was promised. If it is too little, it was promised nothing.
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
    /// When there is something to look for.
    pub(super) fn due_at(&self) -> Option<Time> {
        let times = [self.rebalance_at, self.stuck_check_at];
        times.into_iter().flatten().min()
    }

    /// Something was handed out: a while later it should have started.
    pub(super) fn note_handed_out(&mut self, now: Time) {
        self.stuck_check_at.get_or_insert(now + STUCK_CHECK);
    }

    /// A round is over, and this worker was part of it. The queue may hold only what does not fit there.
    pub(super) fn note_tried(&mut self, worker: &Worker) {
        self.is_any_idle |= worker.accepts_work() && worker.backlog_len() == 0;
    }

    /// What was handed out since then may not have been sent yet.
    pub(super) const fn note_unsent(&mut self, since: Option<Time>) {
        self.unsent_since = since;
    }

    /// All that was handed out before the time that this gives has been on its worker for as long as a start may take.
    fn sent_before(&mut self, now: Time) -> Time {
        self.sent.push_back((now, self.unsent_since.unwrap_or(now)));
        let is_due = |at: Time| at + STUCK_AFTER <= now;
        while self.sent.get(1).is_some_and(|(at, _)| is_due(*at)) {
            self.sent.pop_front();
        }
        let first = self.sent.front().filter(|(at, _)| is_due(*at));
        first.map_or(Time(0), |(_, before)| *before)
    }

    /// Retracts, some time after something was handed out, what cannot start where it is.
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

    /// Rebalances if `has_room`, or if a worker was idle behind a round, but not more often than needed.
    pub(super) fn rebalance_in_time(
        &mut self,
        ctx: &mut Ctx<'_>,
        workers: &mut Workers,
        classes: &Classes,
        has_room: bool,
    ) {
        let due = self.last_rebalance + REBALANCE_INTERVAL;
        self.rebalance_at = None;
        // Whether or not anybody is idle: from the queue it can go wherever something ends next.
        self.retract_stuck(ctx, workers);
        if !has_room && !self.is_any_idle {
            return;
        }
        // Each look goes through all backlogs. A timer comes back to it if nothing else happens.
        if due > ctx.now.mono {
            self.rebalance_at = Some(due);
            return;
        }
        self.last_rebalance = ctx.now.mono;
        if self.rebalance(ctx, workers, classes) {
            self.rebalance_at = Some(ctx.now.mono + REBALANCE_INTERVAL);
        }
    }

    /// Retracts tasks that other workers could start at once. Returns whether it is worth looking again before anything else
    /// happens. Of very many workers some are asked at a time, in turns.
    fn rebalance(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers, classes: &Classes) -> bool {
        let (mut donors, mut idle) = (Vec::new(), Vec::new());
        for (id, worker) in workers.live() {
            // A reserved worker gives back everything anyway, and takes nothing.
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
        // Whoever takes any task comes first, then those that need the fewest for `--min-utilization`.
        idle.sort_by_key(|taker| {
            let worker = workers.get(taker.id)?;
            let all = worker.offers().get(cpus?)?;
            (worker.config.min_utilization > 0.0).then_some(all.units)
        });
        // Room is counted once for all donors, so that two are not asked to fill the same slot.
        let mut takers = Takers {
            workers: idle,
            next: BTreeMap::new(),
            steps_left: REBALANCE_STEPS_MAX,
            has_later: false,
            cpus,
        };
        let first = donors.partition_point(|id| Some(*id) <= self.cursor);
        // Behind the last donor, so that each has its turn when not all can be asked.
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

/// Tasks of a donor that others could start at once, those first that it would start last.
fn worth_retracting(
    now: Time,
    workers: &Workers,
    classes: &Classes,
    donor: WorkerId,
    takers: &mut Takers,
) -> Vec<(TaskKey, InstanceId)> {
    let Some(worker) = workers.get(donor) else {
        bug!("worker {donor} is gone while it is asked for tasks");
        return Vec::new();
    };
    let mut back = Vec::new();
    let surplus = worker.surplus(now, RETRACT_HORIZON);
    // Without a surplus the first one shows whether a later look is worth it.
    for (nth, (task, assigned)) in (0..).zip(worker.backlog_last().take(surplus.max(1))) {
        let Some(class) = classes.get(assigned.key.class) else {
            bug!("task {task} has no request class");
            break;
        };
        let Some((at, units)) = takers.find((now, workers), assigned.key.class, class) else {
            // Nobody has room for it. Those before it start sooner, and are not worth another search.
            break;
        };
        takers.has_later |= surplus < worker.backlog_len();
        if nth < surplus {
            takers.promise(at, units);
            back.push((at, task, assigned.instance));
        }
    }
    // Tasks of several donors do not come back at the same moment, so each donor has to give enough.
    back.retain(|(at, ..)| takers.keeps_promise(*at, workers));
    back.into_iter()
        .map(|(_, task, instance)| (task, instance))
        .collect()
}

/// Asks a worker to give tasks back.
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
        bug!("worker {id} is gone while it is asked for tasks");
        return;
    };
    for (task, _) in &tasks {
        worker.mark_retracting(*task);
    }
    ctx.send(id, WorkerCommand::Retract(tasks));
}

/// Retracts less urgent tasks of the classes of these queues, of which more waits than the worker was sent.
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
        assert_eq!(look(1_000, Some(990)), Time(0), "nobody has looked before");
        // A busy disk, for which something always waits, hides nothing.
        for ms in (1_250..5_000).step_by(250) {
            let before = look(ms, Some(ms - 10));
            assert!(ms < 1_500 || before == at(ms - 510), "{ms}: {before:?}");
        }
        // What waits for a disk that hangs has not been sent.
        for ms in (5_000..9_000).step_by(250) {
            assert!(look(ms, Some(4_995)) <= at(4_995));
        }
        // It has its time from then on.
        assert_eq!(look(9_000, None), at(4_995));
        assert_eq!(look(9_250, None), at(4_995));
        assert_eq!(look(9_500, None), at(9_000));
        assert!(retraction.sent.len() <= 4);
    }
}
