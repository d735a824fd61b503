//! Dispatching tasks: a scheduling round decides on counts, and then individual tasks are sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assign::{AssignBatch, AssignLimit, Run, assignment, name_task};
use super::change::ChangeKind;
use super::{AwaitedEnds, Ctx, Effect, ServerState, WorkerCommand};
use crate::bug;
use crate::id::{TaskKey, WorkerId};
use crate::job::{Job, TaskSlot};
use crate::scheduler::queue::TakenRange;
use crate::scheduler::solve::{GangStart, Placement};
use crate::scheduler::worker_plan::promote;
use crate::task::Phase;
use crate::time::Now;
use crate::worker::{Assigned, Turn};

impl ServerState {
    /// Does one round, if there is anything to decide, and the work that follows from it.
    pub(super) fn schedule(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(round) = self.dispatcher.plan(ctx.now.mono, &mut self.workers) {
            // Multi-node tasks start first, while their nodes are as empty as the round saw them.
            for gang in round.gangs() {
                self.start_gang(ctx, gang);
            }
            self.dispatcher
                .update_reservations(ctx, &mut self.workers, &round);
            // This follows the retractions, which refer to the backlogs that the round saw.
            let has_handed_out = self.hand_out_all(ctx, round.placements());
            self.dispatcher
                .end_round(ctx.now.mono, &self.workers, &round, has_handed_out);
        }
        self.dispatcher.update_limits(ctx.now.mono);
        self.send_successors(ctx);
        let has_more = !self.pending.is_empty() || self.learning.is_going_on();
        self.dispatcher.finish(ctx, &mut self.workers, has_more);
    }

    /// Decides again for which of its tasks a worker has room, after it reported starts and ends.
    /// Users see such tasks as running, so the change belongs to the same step as the end of the
    /// previous task.
    pub(super) fn promote(&mut self, now: Now, id: WorkerId) {
        let worker = self.workers.get_mut(id);
        let classes = self.dispatcher.classes();
        for task in worker.map_or_else(Vec::new, |worker| promote(worker, classes, now.mono)) {
            self.note_room_of(now, id, task);
        }
    }

    /// Updates whether a worker has room for one of its tasks.
    fn note_room_of(&mut self, now: Now, id: WorkerId, task: TaskKey) {
        let assigned = self.workers.get(id).and_then(|w| w.assigned().get(&task));
        let Some(assigned) = assigned.copied() else {
            bug!("worker {id} has room for task {task}, which it does not have");
            return;
        };
        let phase = self.holds(id, task.job, &assigned);
        // A canceled task keeps its place until its worker reports that it has ended.
        if !phase.is_some_and(Phase::is_sent) {
            return;
        }
        let at = assigned.slot.of(task.job);
        if let Some(record) = self.jobs.touch(at) {
            record.place(now.wall);
        }
        let phase = match assigned.placed {
            true => Phase::Placed,
            false => Phase::Queued,
        };
        self.jobs.set_phase(at, phase);
    }

    /// Dispatches the tasks of a round. Returns whether there were any.
    fn hand_out_all(&mut self, ctx: &mut Ctx<'_>, placements: &[Placement]) -> bool {
        let mut batches: BTreeMap<WorkerId, AssignBatch> = BTreeMap::new();
        for placement in placements {
            for range in
                self.dispatcher
                    .take(placement.key, self.entrusted(placement), placement.placed)
            {
                let batch = batches
                    .entry(placement.worker)
                    .or_insert(AssignBatch::new(self.dispatcher.assign_limit()));
                self.hand_out(ctx.now, placement, range, batch);
            }
        }
        let is_any = !batches.is_empty();
        for (worker, batch) in batches {
            // A round may reserve room for requests that the worker does not know. The worker
            // starts the tasks that it has.
            self.promote(ctx.now, worker);
            send(ctx, worker, batch);
        }
        is_any
    }

    /// Returns the number of tasks to place. A worker that is being probed gets at most one.
    fn entrusted(&self, placement: &Placement) -> u64 {
        let worker = self.workers.get(placement.worker);
        match worker.filter(|worker| !worker.is_trusted()) {
            Some(worker) => placement.count.min(u64::from(worker.assigned().is_empty())),
            None => placement.count,
        }
    }

    /// Starts a multi-node task. The root runs the command; the other nodes only wait until it
    /// ends.
    fn start_gang(&mut self, ctx: &mut Ctx<'_>, gang: &GangStart) {
        let Some(root) = gang.workers.first().copied() else {
            bug!("a multi-node task of {:?} starts without nodes", gang.key);
            return;
        };
        let nodes: Vec<Box<str>> = gang
            .workers
            .iter()
            .filter_map(|id| Some(self.workers.get(*id)?.config.hostname.clone()))
            .collect();
        for range in self.dispatcher.take(gang.key, 1, true) {
            let placement = Placement {
                key: gang.key,
                worker: root,
                variant: gang.variant,
                count: 1,
                placed: true,
            };
            let slot = TaskSlot::new(range.submit, range.from);
            let mut batch = AssignBatch::new(self.dispatcher.assign_limit());
            // Only the root gets the command, with the names of all nodes.
            self.hand_out(ctx.now, &placement, range, &mut batch);
            batch.set_nodes(&nodes);
            let Some(job) = self.jobs.get_mut(range.job) else {
                bug!(
                    "job {} is gone, but a multi-node task of it starts",
                    range.job
                );
                continue;
            };
            job.set_nodes(slot, &gang.workers);
            let Some(task) = job.key(slot) else {
                bug!("job {} has no task at {slot:?}, but it starts", range.job);
                continue;
            };
            let instance = job.instance(slot);
            let assigned = ChangeKind::NodesAssigned {
                task,
                instance,
                variant: gang.variant,
                nodes: gang.workers.clone().into(),
            };
            ctx.persist(assigned);
            for member in &gang.workers {
                // A waiting node must not stop for being idle.
                if *member != root {
                    ctx.send(*member, WorkerCommand::Hold(true));
                }
            }
            self.workers.set_nodes(task, gang.workers.clone());
            send(ctx, root, batch);
        }
    }

    /// Frees the nodes of a multi-node task. Returns whether the task had nodes.
    pub(super) fn release_gang(&mut self, ctx: &mut Ctx<'_>, task: TaskKey) -> bool {
        let Some(freed) = self.workers.release_nodes(task) else {
            return false;
        };
        // The root itself reports the end. The other nodes are notified here that they are free.
        for (id, was_root) in freed {
            self.dispatcher.note_room(id);
            if !was_root {
                ctx.send(id, WorkerCommand::Hold(false));
            }
        }
        true
    }

    fn hand_out(
        &mut self,
        now: Now,
        placement: &Placement,
        range: TakenRange,
        batch: &mut AssignBatch,
    ) {
        let AssignLimit(bytes_max) = self.dispatcher.assign_limit();
        let limits = self.dispatcher.limits().set_of(range.at());
        let class = self.dispatcher.class(placement.key);
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
        let keeps_ends = self.is_volatile || worker.keeps_ends();
        let keeper = keeps_ends.then_some(placement.worker);
        let mut runs: Vec<Run> = Vec::new();
        for index in range.from..range.to {
            let slot = TaskSlot::new(range.submit, index);
            let Some(named) = name_task(job, slot) else {
                bug!("job {} has no task at {slot:?}, but it is ready", range.job);
                continue;
            };
            let placed = placement.placed.then_some(now.wall);
            let Some(instance) = job.hand_out(slot, placement.worker, placed) else {
                bug!("job {} has no record for its task at {slot:?}", range.job);
                continue;
            };
            let awaits = awaited_ends(job, slot, keeper);
            let assigned = Assigned {
                slot,
                key: placement.key,
                variant: placement.variant,
                instance,
                placed: placement.placed,
                turn: Turn::Now,
                started: false,
                awaits,
                retracting: false,
                at: now.mono,
                limits,
            };
            worker.assign(TaskKey::new(range.job, named.id), assigned, class);
            self.heads.note_handed_out(placement, job, slot, limits);
            let next = Run {
                template: named.template,
                instance,
                awaits,
                from: index,
                to: index + 1,
                bytes: named.bytes,
            };
            let next = match runs.last_mut() {
                Some(last) => last.join(next, bytes_max),
                None => Some(next),
            };
            runs.extend(next);
        }
        for run in &runs {
            // Each template is sent to a worker once, before the first task that uses it.
            if worker.learn_template(range.job, run.template.id) {
                batch.add_template(Arc::clone(&run.template));
            }
            let assignment = assignment(job, range.submit, run, placement.variant);
            batch.add(assignment, run.awaits);
        }
        // Users see placed tasks as running.
        if placement.placed {
            self.jobs.note_changed(range.job);
        }
    }
}

/// Returns the task ends that a task depends on. `keeper` is the worker of the task, if that worker
/// keeps its task ends until they are stored.
fn awaited_ends(job: &Job, slot: TaskSlot, keeper: Option<WorkerId>) -> AwaitedEnds {
    match (job.follows_others(slot, keeper), keeper) {
        (false, _) => AwaitedEnds::None,
        (true, Some(_)) => AwaitedEnds::Elsewhere,
        (true, None) => AwaitedEnds::All,
    }
}

pub(super) fn send(ctx: &mut Ctx<'_>, worker: WorkerId, batch: AssignBatch) {
    let commands = batch.into_commands().into_iter();
    ctx.emit_all(commands.map(|command| Effect::ToWorker(worker, command)));
}
