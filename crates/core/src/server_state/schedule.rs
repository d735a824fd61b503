//! Handing out work: a scheduling round on counts, then the tasks by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Assignment, Effect, ServerState, WorkerCommand};
use crate::id::{InstanceId, TaskId, TaskKey, WorkerId};
use crate::job::{Job, SharedTemplate, TaskSlot, TemplateId};
use crate::range::IdArray;
use crate::scheduler::queue::{QueueKey, TakenRange};
use crate::scheduler::solve::{Placement, solve_queue};
use crate::task::Phase;
use crate::template::Entries;
use crate::time::{Now, Time};
use crate::worker::Assigned;

/// Work that a worker will start within this time is left with it even if others are idle: asking it
/// back would take as long.
const RETRACT_HORIZON: Duration = Duration::from_millis(30);

/// Least time between two looks for tasks to take back; well below what anybody notices.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(10);

/// What one worker gets in one round.
#[derive(Default)]
struct Parcel {
    templates: Vec<Arc<SharedTemplate>>,
    assignments: Vec<Assignment>,
}

/// Consecutive tasks that go into one assignment.
struct Run {
    template: Arc<SharedTemplate>,
    instance: InstanceId,
    from: u32,
    to: u32,
}

/// Which workers a round must look at, so that its cost follows what changed.
///
/// A worker that was tried against everything that is ready gains room only by its own reports; a task
/// that becomes ready may fit any worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    /// Something became ready since the last round.
    ready: bool,
    /// Workers that may have room.
    room: BTreeSet<WorkerId>,
    /// When to look again for tasks that idle workers could take over.
    rebalance_at: Option<Time>,
    last_rebalance: Time,
}

impl Agenda {
    pub(super) const fn note_ready(&mut self) {
        self.ready = true;
    }

    pub(super) fn note_room(&mut self, worker: WorkerId) {
        self.room.insert(worker);
    }

    pub(super) const fn rebalance_at(&self) -> Option<Time> {
        self.rebalance_at
    }
}

impl ServerState {
    pub(super) fn schedule(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let everyone = std::mem::take(&mut self.agenda.ready);
        if everyone {
            self.agenda.room.extend(self.workers.keys());
        }
        if !self.ready.is_empty() && !self.agenda.room.is_empty() {
            self.place_ready(now, effects);
        }
        self.rebalance_in_time(now, effects);
    }

    fn place_ready(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let mut parcels: BTreeMap<WorkerId, Parcel> = BTreeMap::new();
        let queues: Vec<(QueueKey, u64)> = self.ready.counts().collect();
        for (key, ready) in queues {
            let workers = self
                .agenda
                .room
                .iter()
                .filter_map(|id| self.workers.get(id));
            let placements = solve_queue(key, ready, &self.classes, workers, now.mono);
            for placement in placements {
                for range in self.ready.take(key, placement.count) {
                    let parcel = parcels.entry(placement.worker).or_default();
                    self.hand_out(&placement, range, parcel);
                }
            }
        }
        for (
            worker,
            Parcel {
                templates,
                assignments,
            },
        ) in parcels
        {
            let command = WorkerCommand::Assign {
                templates,
                assignments,
            };
            effects.push(Effect::ToWorker(worker, command));
        }
        if !self.ready.is_empty() {
            // All of them were tried against all that is left.
            self.agenda.room.clear();
        }
    }

    /// Runs [`ServerState::rebalance`] when nothing is ready, but not more often than needed.
    fn rebalance_in_time(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let due = self.agenda.last_rebalance + REBALANCE_INTERVAL;
        self.agenda.rebalance_at = None;
        if !self.ready.is_empty() || self.agenda.room.is_empty() {
            return;
        }
        if due > now.mono {
            self.agenda.rebalance_at = Some(due);
            return;
        }
        self.agenda.last_rebalance = now.mono;
        if self.rebalance(now, effects) {
            self.agenda.rebalance_at = Some(now.mono + REBALANCE_INTERVAL);
        }
    }

    fn hand_out(&mut self, placement: &Placement, range: TakenRange, parcel: &mut Parcel) {
        let Some(class) = self.class(placement.key) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&range.job) else {
            return;
        };
        let Some(worker) = self.workers.get_mut(&placement.worker) else {
            return;
        };
        let mut runs: Vec<Run> = Vec::new();
        for index in range.from..range.to {
            let slot = TaskSlot {
                submit: range.submit,
                index,
            };
            let Some((task, template)) = name_task(job, slot) else {
                continue;
            };
            let Some(record) = job.touch(slot) else {
                continue;
            };
            record.assign(placement.worker);
            let instance = record.instance();
            job.set_phase(slot, Phase::Queued);
            let assigned = Assigned {
                slot,
                key: placement.key,
                variant: placement.variant,
                instance,
                placed: placement.placed,
                started: false,
                retracting: false,
            };
            worker.assign(TaskKey::new(range.job, task), assigned, &class);
            match runs.last_mut() {
                Some(run)
                    if run.to == index
                        && run.instance == instance
                        && run.template.id == template.id =>
                {
                    run.to += 1;
                }
                _ => runs.push(Run {
                    template,
                    instance,
                    from: index,
                    to: index + 1,
                }),
            }
        }
        for run in runs {
            if worker.templates.insert(run.template.id) {
                parcel.templates.push(Arc::clone(&run.template));
            }
            parcel
                .assignments
                .push(assignment(job, range.submit, &run, placement.variant));
        }
    }

    /// Asks workers to give back tasks that others could start at once. Says whether there is any
    /// backlog at all, that is, whether it is worth looking again.
    fn rebalance(&mut self, now: Now, effects: &mut Vec<Effect>) -> bool {
        let usable = || self.workers.values().filter(|worker| worker.accepts_work());
        let donors: Vec<(WorkerId, usize)> = usable()
            .filter(|worker| worker.backlog_len() > 0)
            .map(|worker| (worker.id, worker.surplus(now.mono, RETRACT_HORIZON)))
            .collect();
        if donors.is_empty() {
            return false;
        }
        // Room is counted once for all donors, so that two are not asked to fill the same slot.
        let mut takers: Vec<(WorkerId, u32)> = usable()
            .filter(|worker| worker.backlog_len() == 0)
            .map(|w| (w.id, 0))
            .collect();
        for (donor, surplus) in donors {
            let back = self.worth_retracting(now, donor, surplus, &mut takers);
            if back.is_empty() {
                continue;
            }
            if let Some(worker) = self.workers.get_mut(&donor) {
                for (task, _) in &back {
                    worker.mark_retracting(*task);
                }
            }
            effects.push(Effect::ToWorker(donor, WorkerCommand::Retract(back)));
        }
        true
    }

    fn worth_retracting(
        &self,
        now: Now,
        donor: WorkerId,
        surplus: usize,
        takers: &mut [(WorkerId, u32)],
    ) -> Vec<(TaskKey, InstanceId)> {
        let Some(worker) = self.workers.get(&donor) else {
            return Vec::new();
        };
        let mut back = Vec::new();
        // Takers before this one are full for the class that was asked for last.
        let mut next = 0;
        for (task, assigned) in worker.backlog_last().take(surplus) {
            let Some(class) = self.classes.get(assigned.key.class) else {
                break;
            };
            let fits = |(id, promised): &(WorkerId, u32)| {
                self.workers.get(id).is_some_and(|other| {
                    class.variants.iter().any(|variant| {
                        other.has_time(variant, now.mono) && other.room(variant) > *promised
                    })
                })
            };
            let Some(found) = takers.iter().skip(next).position(fits) else {
                break;
            };
            next += found;
            if let Some((_, promised)) = takers.get_mut(next) {
                *promised += 1;
            }
            back.push((task, assigned.instance));
        }
        back
    }
}

fn name_task(job: &Job, slot: TaskSlot) -> Option<(TaskId, Arc<SharedTemplate>)> {
    let submit = job.submit(slot)?;
    let task = submit.ids.get(slot.index).map(TaskId)?;
    Some((task, Arc::clone(submit.template(slot.index)?)))
}

fn assignment(job: &Job, submit: u32, run: &Run, variant: u32) -> Assignment {
    let found = job.submit(TaskSlot {
        submit,
        index: run.from,
    });
    let ids = found
        .map(|s| s.ids.slice(run.from, run.to))
        .unwrap_or_default();
    let entries = found
        .filter(|s| s.entry(run.from).is_some())
        .and_then(|submit| {
            let parts = (run.from..run.to).map(|index| submit.entry(index).unwrap_or_default());
            let lengths: Vec<u64> = parts.clone().map(|part| part.len() as u64).collect();
            Entries::new(parts.collect::<Vec<_>>().concat(), lengths)
        });
    Assignment {
        template: TemplateId(run.template.id.0),
        ids: IdArray::new(ids).unwrap_or_default(),
        instance: run.instance,
        variant,
        entries,
    }
}
