//! Handing out work: a scheduling round on counts, then the tasks by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::assign::{AssignBatch, AssignLimit, Run, assignment, name_task};
use super::change::ChangeKind;
use super::{Ctx, Effect, ServerState, WorkerCommand};
use crate::bug;
use crate::class::{ClassId, QueueKey};
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::job::TaskSlot;
use crate::scheduler::lane::{PATIENCE, Seen};
use crate::scheduler::queue::TakenRange;
use crate::scheduler::solve::{Answer, GangStart, Placement, Question, solve};
use crate::scheduler::window::{SEARCH_WIDENED_MAX, Window, window};
use crate::task::TaskRecord;
use crate::time::{Now, Time};
use crate::worker::{Assigned, Worker};

/// Work that a worker will start within this time is left with it even if others are idle: asking it
/// back would take as long.
const RETRACT_HORIZON: Duration = Duration::from_millis(30);

/// Least time between two looks for tasks to take back; well below what anybody notices.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(10);

/// Work that a worker will start within this time stays with it when there are others to choose from: as
/// much as is sent ahead.
const CLAIM_HORIZON: Duration = Duration::from_millis(100);

/// Most tasks that one round asks back so that workers can keep room; there is no hurry.
const CLAIM_TASKS_MAX: usize = 64;

/// How often to look for tasks that cannot start where they were sent, as long as there may be some.
const STUCK_CHECK: Duration = Duration::from_millis(250);

/// Most tasks that one round hands out, and about how many it asks back; what is left follows in the
/// next, so that nobody waits long.
const ROUND_TASKS_MAX: u64 = 1_024;

/// Looks at a worker that one search for tasks to take back may take; what is left is found the next time.
const REBALANCE_STEPS_MAX: usize = 65_536;

/// Workers that one such search may ask; then it is the turn of the next.
const DONORS_MAX: usize = 1_024;

/// How often plans for multi-node tasks are looked at again, as long as there are some that wait.
const PLANS_CHECK: Duration = Duration::from_millis(250);

/// How much a scheduling round had to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundSize {
    /// Workers that may have had room.
    pub workers: usize,
    /// Requests of one priority of which tasks were ready.
    pub queues: usize,
    /// Whether it looked for nodes for multi-node tasks, among all workers.
    pub with_gangs: bool,
    /// Multi-node tasks that it started.
    pub gangs: usize,
}

/// Which workers a round must look at, so that its cost follows what changed.
///
/// A worker that was tried against everything that is ready gains room only by its own reports. A queue
/// that was empty may have something for any worker; for one that was not nobody had room.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    /// A queue that was empty got something since the last round.
    ready: bool,
    /// Any queue did.
    more: bool,
    /// Something changed for multi-node tasks.
    plans: bool,
    /// When to look at the plans for them again.
    plans_at: Option<Time>,
    /// Workers that may have room.
    room: BTreeSet<WorkerId>,
    /// Those of them whose turn comes first: the last round did not come to them.
    passed_over: BTreeSet<WorkerId>,
    /// How often the number of steps of a search is doubled, because the last ones met nothing that fits.
    search_widened: u32,
    /// When to look again for tasks that idle workers could take over.
    rebalance_at: Option<Time>,
    last_rebalance: Time,
    /// The worker that was asked last for what others could start.
    asked_back_after: Option<WorkerId>,
    /// When to look for tasks that cannot start where they were sent.
    stuck_check_at: Option<Time>,
    /// Workers that are kept for multi-node tasks.
    kept: BTreeSet<WorkerId>,
    /// Those of them that have not been asked for all that has not started.
    full: BTreeSet<WorkerId>,
    /// How many workers keep room for tasks of a queue that they were not sent.
    claimed: BTreeMap<QueueKey, u64>,
    /// Whose turn it was last to be thought of for that.
    claims_after: Option<WorkerId>,
    /// Workers that take enough or nothing.
    demanding: BTreeSet<WorkerId>,
    /// The last round was cut: go on at this time, that is, at once.
    again_at: Option<Time>,
    /// The last round.
    pub(super) size: RoundSize,
}

impl Agenda {
    pub(super) const fn note_ready(&mut self) {
        self.ready = true;
    }

    /// Tasks were added to a queue that has some.
    pub(super) const fn note_more(&mut self) {
        self.more = true;
    }

    /// What waits or what could serve it changed for multi-node tasks.
    pub(super) const fn note_plans(&mut self) {
        self.plans = true;
    }

    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.room.insert(worker);
    }

    /// A worker joins that takes enough or nothing.
    pub(super) fn note_demanding(&mut self, worker: WorkerId) {
        self.demanding.insert(worker);
    }

    /// A worker keeps no room for these any more.
    pub(super) fn forget_claims(&mut self, claims: impl Iterator<Item = QueueKey>) {
        for key in claims {
            if let Some(count) = self.claimed.get_mut(&key) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.claimed.remove(&key);
                }
            }
        }
    }

    /// A worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.room.remove(&worker);
        self.passed_over.remove(&worker);
        self.demanding.remove(&worker);
        self.full.remove(&worker);
    }

    /// When the next round is due without any other input.
    pub(super) fn due_at(&self) -> Option<Time> {
        let times = [
            self.rebalance_at,
            self.again_at,
            self.stuck_check_at,
            self.plans_at,
        ];
        times.into_iter().flatten().min()
    }

    /// Something happened to a worker or a queue that may be part of a plan for multi-node tasks.
    pub(super) fn note_plans_changed(&mut self) {
        if !self.kept.is_empty() {
            self.plans = true;
        }
    }
}

impl ServerState {
    pub(super) fn schedule(&mut self, ctx: &mut Ctx<'_>) {
        let everyone = std::mem::take(&mut self.agenda.ready);
        self.agenda.again_at = None;
        self.agenda.size = RoundSize::default();
        // Those that have not had their turn since the last time are there already.
        if everyone && self.agenda.room.len() < self.workers.live().len() {
            let able = self
                .workers
                .live()
                .values()
                .filter(|worker| worker.accepts_work());
            self.agenda.room.extend(able.map(|worker| worker.id));
        } else if self.agenda.more {
            self.agenda.room.extend(&self.agenda.demanding);
        }
        self.agenda.more = false;
        self.ready.follow(&self.classes);
        let has_gangs = self.ready.has_multi_node();
        if !has_gangs {
            self.agenda.plans_at = None;
            // Workers that were kept for the last of them are free.
            self.keep_workers(&BTreeMap::new());
        }
        let with_gangs = has_gangs && self.are_plans_due(ctx.now, everyone);
        if !self.ready.is_empty() && (with_gangs || !self.agenda.room.is_empty()) {
            self.place_ready(ctx, with_gangs);
        }
        if self.ready.is_behind()
            || self.ready.is_freeing()
            || self.portions.is_any_left()
            || !self.under_way.is_empty()
            || !self.sweeps.is_empty()
        {
            self.agenda.again_at = Some(ctx.now.mono);
        }
        self.empty_kept(ctx);
        self.rebalance_in_time(ctx);
    }

    /// Whether this round looks for nodes for multi-node tasks.
    fn are_plans_due(&mut self, now: Now, everyone: bool) -> bool {
        let changed = std::mem::take(&mut self.agenda.plans);
        let is_time = self.agenda.plans_at.is_none_or(|at| at <= now.mono);
        let are_due = changed || everyone || is_time || self.may_start_gangs();
        if are_due {
            self.agenda.plans_at = Some(now.mono + PLANS_CHECK);
        }
        are_due
    }

    /// Whether a worker of the next round is empty.
    fn may_start_gangs(&self) -> bool {
        let mut workers = self
            .agenda
            .room
            .iter()
            .filter_map(|id| self.workers.get(*id));
        workers.any(|worker| worker.assigned().is_empty() && worker.accepts_work())
    }

    fn place_ready(&mut self, ctx: &mut Ctx<'_>, with_gangs: bool) {
        if with_gangs {
            self.agenda.room.extend(&self.agenda.kept);
        }
        let window = self.window(ctx.now, with_gangs);
        let answer = solve(&Question {
            queues: &window.queues,
            classes: &self.classes,
            workers: self.workers.live(),
            rooms: &window.rooms,
            claimed: &self.agenda.claimed,
            claims_after: self.agenda.claims_after,
            with_gangs,
            tasks_max: ROUND_TASKS_MAX,
            now: ctx.now.mono,
        });
        self.agenda.size = RoundSize {
            workers: window.rooms.len(),
            queues: window.queues.len(),
            with_gangs,
            gangs: answer.gangs.len(),
        };
        if with_gangs {
            self.keep_workers(&answer.kept);
        }
        for gang in &answer.gangs {
            self.start_gang(ctx, gang);
        }
        self.agenda.claims_after = answer.claims_after;
        let mut left = CLAIM_TASKS_MAX;
        for (worker, claims) in &answer.claims {
            let back = self.note_claims(ctx.now, *worker, claims, left);
            left -= back.len();
            self.ask_back(ctx, *worker, back);
        }
        for (worker, queues) in &answer.overtaken {
            self.ask_overtaken_back(ctx, *worker, queues);
        }
        let mut batches: BTreeMap<WorkerId, AssignBatch> = BTreeMap::new();
        for placement in &answer.placements {
            for range in self.ready.take(placement.key, placement.count) {
                let batch = batches
                    .entry(placement.worker)
                    .or_insert(AssignBatch::new(self.assign_limit));
                self.hand_out(ctx.now, placement, range, batch);
            }
        }
        if !batches.is_empty() {
            let check = ctx.now.mono + STUCK_CHECK;
            self.agenda.stuck_check_at.get_or_insert(check);
        }
        for (worker, batch) in batches {
            send(ctx, worker, batch);
        }
        self.note_looked_at(ctx.now, &window, &answer);
    }

    /// What the next round looks at. Workers that the last one passed over have their turn first.
    fn window(&self, now: Now, with_gangs: bool) -> Window {
        let (room, first) = (&self.agenda.room, &self.agenda.passed_over);
        let others = room.iter().filter(|id| !first.contains(id));
        let rooms = first.iter().chain(others).copied();
        let cluster = (&self.classes, self.workers.live());
        let how = (with_gangs, self.agenda.search_widened);
        let mut window = window(&self.ready, cluster, rooms, how, now.mono);
        self.portions.narrow(&mut window, &self.ready);
        window
    }

    /// Decides which workers have to be looked at again, and whether at once.
    fn note_looked_at(&mut self, now: Now, window: &Window, answer: &Answer) {
        let agenda = &mut self.agenda;
        let is_idle = answer.placements.is_empty() && answer.gangs.is_empty();
        let has_more = !window.is_all && !is_idle;
        // The search gave up before it met anything that fits. What does fit may come behind thousands of requests that
        // just do not: an idle worker and its task have to meet, even if it takes a longer step.
        let is_blind = is_idle && window.rooms.values().any(Seen::is_blind);
        let is_wider = is_blind && agenda.search_widened < SEARCH_WIDENED_MAX;
        agenda.search_widened = match is_blind {
            true => agenda.search_widened + u32::from(is_wider),
            false => 0,
        };
        let stay =
            answer.is_cut || has_more || is_wider || window.is_behind || self.ready.is_empty();
        let is_partial = window.rooms.len() < agenda.room.len();
        if !stay {
            // They were tried against all that is left.
            for id in window.rooms.keys() {
                agenda.room.remove(id);
            }
        }
        if !is_partial {
            agenda.passed_over.clear();
        } else if agenda.passed_over.is_empty() {
            agenda.passed_over = agenda.room.clone();
        }
        for id in window.rooms.keys() {
            agenda.passed_over.remove(id);
        }
        if !self.ready.is_empty() && (stay || is_partial) {
            agenda.again_at = Some(now.mono);
        }
    }

    /// What a worker keeps room for without having been sent it. Once it has done so for long, what was
    /// sent ahead when there was no choice is to be asked back, but for what it will start soon.
    fn note_claims(
        &mut self,
        now: Now,
        id: WorkerId,
        claims: &[(QueueKey, u32)],
        most: usize,
    ) -> Vec<(TaskKey, InstanceId)> {
        let Some(worker) = self.workers.get_mut(id) else {
            return Vec::new();
        };
        self.agenda.forget_claims(worker.claims());
        for (key, _) in claims {
            *self.agenda.claimed.entry(*key).or_default() += 1;
        }
        worker.set_claims(claims, now.mono);
        let overdue = worker.first_claim_since(now.mono, PATIENCE);
        let Some(overdue) = overdue.filter(|_| worker.backlog_len() > 0) else {
            return Vec::new();
        };
        let surplus = worker.surplus(now.mono, CLAIM_HORIZON);
        let back = worker.backlog_last().take(surplus.min(most));
        let back = back.filter(|(_, a)| a.key.priority >= overdue.priority);
        back.map(|(task, a)| (task, a.instance)).collect()
    }

    /// Asks a worker to give tasks back.
    fn ask_back(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, back: Vec<(TaskKey, InstanceId)>) {
        let Some(worker) = self.workers.get_mut(id).filter(|_| !back.is_empty()) else {
            return;
        };
        for (task, _) in &back {
            worker.mark_retracting(*task);
        }
        ctx.send(id, WorkerCommand::Retract(back));
    }

    /// Asks a worker for less urgent tasks of the classes of these queues.
    fn ask_overtaken_back(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, by: &[QueueKey]) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        let back = worker.backlog_last();
        let back = back.filter(|(_, a)| by.iter().any(|key| key.overtakes(a.key)));
        let back = back.map(|(task, a)| (task, a.instance)).collect();
        self.ask_back(ctx, id, back);
    }

    /// Keeps these workers, and no others, for multi-node tasks.
    fn keep_workers(&mut self, kept: &BTreeMap<WorkerId, QueueKey>) {
        let before = std::mem::replace(&mut self.agenda.kept, kept.keys().copied().collect());
        for id in before.iter().filter(|id| !kept.contains_key(id)) {
            if let Some(worker) = self.workers.get_mut(*id) {
                worker.unreserve();
            }
            self.agenda.full.remove(id);
            self.agenda.room.insert(*id);
        }
        for (id, key) in kept {
            if let Some(worker) = self.workers.get_mut(*id)
                && worker.reserve(*key)
            {
                self.agenda.full.insert(*id);
            }
        }
    }

    /// Asks workers that are kept for what has not started.
    fn empty_kept(&mut self, ctx: &mut Ctx<'_>) {
        let mut left = usize::try_from(ROUND_TASKS_MAX).unwrap_or(usize::MAX);
        while left > 0
            && let Some(id) = self.agenda.full.pop_first()
        {
            let Some(worker) = self.workers.get(id) else {
                continue;
            };
            let Some(key) = worker.reserved_for() else {
                continue;
            };
            let back = worker.unstarted_behind(key);
            left = left.saturating_sub(back.len());
            self.ask_back(ctx, id, back);
        }
        if !self.agenda.full.is_empty() {
            self.agenda.again_at = Some(ctx.now.mono);
        }
    }

    /// Starts a multi-node task: the command on the root, the other nodes only wait for its end.
    fn start_gang(&mut self, ctx: &mut Ctx<'_>, gang: &GangStart) {
        let Some(root) = gang.workers.first().copied() else {
            return;
        };
        let nodes: Vec<Box<str>> = gang
            .workers
            .iter()
            .filter_map(|id| Some(self.workers.get(*id)?.config.hostname.clone()))
            .collect();
        for range in self.ready.take(gang.key, 1) {
            let placement = Placement {
                key: gang.key,
                worker: root,
                variant: gang.variant,
                count: 1,
                placed: true,
            };
            let slot = TaskSlot {
                submit: range.submit,
                index: range.from,
            };
            let mut batch = AssignBatch::new(self.assign_limit);
            self.hand_out(ctx.now, &placement, range, &mut batch);
            batch.set_nodes(&nodes);
            let Some(job) = self.jobs.get_mut(range.job) else {
                continue;
            };
            job.set_nodes(slot, &gang.workers);
            let Some(id) = job.task_id(slot) else {
                continue;
            };
            let task = TaskKey::new(range.job, id);
            let instance = job.record(slot).map_or(InstanceId(0), TaskRecord::instance);
            let assigned = ChangeKind::NodesAssigned {
                task,
                instance,
                variant: gang.variant,
                nodes: gang.workers.clone().into(),
            };
            ctx.persist(assigned);
            for member in &gang.workers {
                if *member != root {
                    ctx.send(*member, WorkerCommand::Hold(true));
                }
            }
            self.workers.set_nodes(task, gang.workers.clone());
            send(ctx, root, batch);
        }
    }

    /// Gives the nodes of a multi-node task back; says whether it had some.
    pub(super) fn release_gang(&mut self, ctx: &mut Ctx<'_>, task: TaskKey) -> bool {
        let Some(freed) = self.workers.release_nodes(task) else {
            return false;
        };
        for (id, was_root) in freed {
            self.agenda.room.insert(id);
            if !was_root {
                ctx.send(id, WorkerCommand::Hold(false));
            }
        }
        true
    }

    /// Runs [`ServerState::rebalance`] when nothing is ready, but not more often than needed.
    fn rebalance_in_time(&mut self, ctx: &mut Ctx<'_>) {
        let due = self.agenda.last_rebalance + REBALANCE_INTERVAL;
        self.agenda.rebalance_at = None;
        self.retract_stuck_in_time(ctx);
        if self.agenda.room.is_empty() {
            return;
        }
        if due > ctx.now.mono {
            self.agenda.rebalance_at = Some(due);
            return;
        }
        self.agenda.last_rebalance = ctx.now.mono;
        if self.rebalance(ctx) {
            self.agenda.rebalance_at = Some(ctx.now.mono + REBALANCE_INTERVAL);
        }
    }

    /// Asks workers, some time after something was handed out, for what they cannot start.
    fn retract_stuck_in_time(&mut self, ctx: &mut Ctx<'_>) {
        if self
            .agenda
            .stuck_check_at
            .is_none_or(|at| at > ctx.now.mono)
        {
            return;
        }
        let may_be_stuck = self.workers.live().values().any(Worker::may_be_stuck);
        self.agenda.stuck_check_at = may_be_stuck.then(|| ctx.now.mono + STUCK_CHECK);
        if self.workers.live().len() < 2 {
            return;
        }
        for worker in self.workers.iter_mut() {
            let tasks = worker.note_stuck(ctx.now.mono);
            if !tasks.is_empty() {
                ctx.send(worker.id, WorkerCommand::Retract(tasks));
            }
        }
    }

    fn hand_out(
        &mut self,
        now: Now,
        placement: &Placement,
        range: TakenRange,
        batch: &mut AssignBatch,
    ) {
        let AssignLimit(bytes_max) = self.assign_limit;
        let class = self.class(placement.key);
        let found = (
            class,
            self.jobs.get_mut(range.job),
            self.workers.get_mut(placement.worker),
        );
        let (Some(class), Some(job), Some(worker)) = found else {
            let (job, worker) = (range.job, placement.worker);
            bug!("a round gives tasks of job {job} to worker {worker}, one of which is gone");
            return;
        };
        job.note_sent_to(placement.worker);
        let mut runs: Vec<Run> = Vec::new();
        for index in range.from..range.to {
            let slot = TaskSlot {
                submit: range.submit,
                index,
            };
            let Some(named) = name_task(job, slot) else {
                bug!("job {} has no task at {slot:?}, but it is ready", range.job);
                continue;
            };
            let Some(instance) = job.hand_out(slot, placement.worker) else {
                bug!("job {} has no record for its task at {slot:?}", range.job);
                continue;
            };
            let assigned = Assigned {
                slot,
                key: placement.key,
                variant: placement.variant,
                instance,
                placed: placement.placed,
                started: false,
                retracting: false,
                at: now.mono,
            };
            worker.assign(TaskKey::new(range.job, named.id), assigned, &class);
            match runs.last_mut() {
                Some(run)
                    if run.to == index
                        && run.instance == instance
                        && run.template.id == named.template.id
                        && run.bytes + named.bytes <= bytes_max =>
                {
                    run.to += 1;
                    run.bytes += named.bytes;
                }
                _ => runs.push(Run {
                    template: named.template,
                    instance,
                    from: index,
                    to: index + 1,
                    bytes: named.bytes,
                }),
            }
        }
        for run in runs {
            if worker.learn_template(run.template.id) {
                batch.add_template(Arc::clone(&run.template));
            }
            batch.add(assignment(job, range.submit, &run, placement.variant));
        }
    }

    /// Asks workers to give back tasks that others could start at once. Says whether there is any
    /// backlog at all, that is, whether it is worth looking again. Of very many workers some are asked at a
    /// time, in turns.
    fn rebalance(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let (mut donors, mut idle) = (Vec::new(), Vec::new());
        for (id, worker) in self.workers.live() {
            if !worker.accepts_work() || worker.reserved_for().is_some() {
                continue;
            }
            if worker.backlog_len() > 0 {
                donors.push(*id);
            } else {
                idle.push((*id, 0));
            }
        }
        if donors.is_empty() || idle.is_empty() {
            return !donors.is_empty();
        }
        // Room is counted once for all donors, so that two are not asked to fill the same slot.
        let mut takers = Takers {
            workers: idle,
            next: BTreeMap::new(),
            steps_left: REBALANCE_STEPS_MAX,
        };
        let first = donors.partition_point(|id| Some(*id) <= self.agenda.asked_back_after);
        donors.rotate_left(first);
        donors.truncate(DONORS_MAX);
        for donor in donors {
            let worker = self.workers.get(donor);
            let surplus = worker.map_or(0, |worker| worker.surplus(ctx.now.mono, RETRACT_HORIZON));
            let back = self.worth_retracting(ctx.now, donor, surplus, &mut takers);
            self.ask_back(ctx, donor, back);
            self.agenda.asked_back_after = Some(donor);
        }
        true
    }

    fn worth_retracting(
        &self,
        now: Now,
        donor: WorkerId,
        surplus: usize,
        takers: &mut Takers,
    ) -> Vec<(TaskKey, InstanceId)> {
        let Some(worker) = self.workers.get(donor) else {
            return Vec::new();
        };
        let mut back = Vec::new();
        for (task, assigned) in worker.backlog_last().take(surplus) {
            let Some(class) = self.classes.get(assigned.key.class) else {
                break;
            };
            let fits = |(id, promised): &(WorkerId, u32)| {
                self.workers.get(*id).is_some_and(|other| {
                    class.variants.iter().any(|variant| {
                        other.has_time(variant, now.mono) && other.room(variant) > *promised
                    })
                })
            };
            let next = takers.next.entry(assigned.key.class).or_default();
            let rest = takers.workers.iter().skip(*next).take(takers.steps_left);
            let looked = rest.len();
            let found = rest.clone().position(fits);
            takers.steps_left -= found.map_or(looked, |found| found + 1);
            *next += found.unwrap_or(looked);
            let Some((_, promised)) = takers.workers.get_mut(*next).filter(|_| found.is_some())
            else {
                break;
            };
            *promised += 1;
            back.push((task, assigned.instance));
        }
        back
    }
}

/// Workers that could start at once what others have in their backlogs.
struct Takers {
    /// Each with the tasks that it is to get.
    workers: Vec<(WorkerId, u32)>,
    /// Those before this position are full for a class; promises are never taken back.
    next: BTreeMap<ClassId, usize>,
    steps_left: usize,
}

fn send(ctx: &mut Ctx<'_>, worker: WorkerId, batch: AssignBatch) {
    let commands = batch.into_commands().into_iter();
    ctx.emit_all(commands.map(|command| Effect::ToWorker(worker, command)));
}
