//! Handing out work: a scheduling round on counts, then the tasks by name.

use std::collections::BTreeMap;
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
use crate::time::Now;
use crate::worker::Assigned;

/// Work that a worker will start within this time is left with it even if others are idle: asking it
/// back would take as long.
const RETRACT_HORIZON: Duration = Duration::from_millis(30);

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

impl ServerState {
    pub(super) fn schedule(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let mut parcels: BTreeMap<WorkerId, Parcel> = BTreeMap::new();
        let queues: Vec<(QueueKey, u64)> = self.ready.counts().collect();
        for (key, ready) in queues {
            for placement in solve_queue(key, ready, &self.classes, &self.workers, now.mono) {
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
        if self.ready.is_empty() {
            self.rebalance(now, effects);
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

    /// Asks workers to give back tasks that others could start at once.
    fn rebalance(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self
            .workers
            .values()
            .all(|worker| worker.backlog_len() == 0)
        {
            return;
        }
        let donors: Vec<(WorkerId, usize)> = self
            .workers
            .values()
            .filter(|worker| worker.accepts_work())
            .map(|worker| (worker.id, worker.surplus(now.mono, RETRACT_HORIZON)))
            .filter(|(_, surplus)| *surplus > 0)
            .collect();
        // Room is counted once for all donors, so that two are not asked to fill the same slot.
        let mut promised: BTreeMap<WorkerId, u32> = BTreeMap::new();
        for (donor, surplus) in donors {
            let back = self.worth_retracting(now, donor, surplus, &mut promised);
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
    }

    fn worth_retracting(
        &self,
        now: Now,
        donor: WorkerId,
        surplus: usize,
        promised: &mut BTreeMap<WorkerId, u32>,
    ) -> Vec<(TaskKey, InstanceId)> {
        let Some(worker) = self.workers.get(&donor) else {
            return Vec::new();
        };
        let mut back = Vec::new();
        for (task, assigned) in worker.backlog_last().take(surplus) {
            let Some(class) = self.classes.get(assigned.key.class) else {
                break;
            };
            let taker = self.workers.values().find(|other| {
                other.id != donor
                    && other.accepts_work()
                    && other.backlog_len() == 0
                    && class.variants.iter().any(|variant| {
                        other.has_time(variant, now.mono)
                            && other.room(variant) > promised.get(&other.id).copied().unwrap_or(0)
                    })
            });
            let Some(taker) = taker else { break };
            *promised.entry(taker.id).or_default() += 1;
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
