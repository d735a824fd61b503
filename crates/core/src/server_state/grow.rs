//! The next attempt of a task that ran out of something gets more of it, see [`crate::growth`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::ServerState;
use super::restore::RestoreError;
use crate::class::{Class, ClassId, Classes, Offer, VariantDemand, fitting};
use crate::growth::{Asked, Grant, GrowSpec, Largest, MEMORY, Scale, memory};
use crate::id::{InstanceId, JobId, TaskId};
use crate::job::{Grown, SharedTemplate, TaskSlot};
use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::scheduler::demand::WorkerKind;
use crate::template::TaskTemplate;
use crate::worker::Workers;

/// Who could give a task more.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// Workers that automatic allocation can ask for.
    queues: Vec<WorkerKind>,
    /// The most for tasks of a class. Very many tasks can fail at a time, and there are few kinds of them.
    known: BTreeMap<ClassId, Largest>,
}

impl Offers {
    /// Workers came or went.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// What automatic allocation can ask for has changed.
    pub(super) fn set_queues(&mut self, queues: Vec<WorkerKind>) {
        self.queues = queues;
        self.forget();
    }

    fn largest(&mut self, id: ClassId, classes: &Classes, workers: &Workers) -> Largest {
        if let Some(known) = self.known.get(&id) {
            return *known;
        }
        let found = classes
            .get(id)
            .map(|class| look(class, classes, workers, &self.queues))
            .unwrap_or_default();
        self.known.insert(id, found);
        found
    }
}

/// The most that workers and queues offer that have everything else that a class asks for.
fn look(class: &Class, classes: &Classes, workers: &Workers, queues: &[WorkerKind]) -> Largest {
    let memory = classes.find_resource(MEMORY);
    let mut without_memory: Vec<VariantDemand> = class.variants.clone();
    for variant in &mut without_memory {
        let demands = &mut variant.demands;
        demands.retain(|demand| Some(demand.resource) != memory);
    }
    let fits = |offers: &[Offer]| {
        let all = |slot: usize| {
            let units = offers.get(slot).map_or(0, |offer| offer.units);
            i64::try_from(units).unwrap_or(i64::MAX)
        };
        without_memory
            .iter()
            .any(|variant| fitting(variant, offers, all) > 0)
    };
    let memory_of = |offers: &[Offer]| {
        let slot = memory.map_or(usize::MAX, |id| id.0 as usize);
        offers.get(slot).map_or(0, |offer| offer.units)
    };
    let mut most: Option<(u64, Duration)> = None;
    let mut add = |units: u64, lifetime: Option<Duration>| {
        let (memory, longest) = most.unwrap_or_default();
        let lifetime = lifetime.unwrap_or(Duration::MAX);
        most = Some((memory.max(units), longest.max(lifetime)));
    };
    for worker in workers.live().values() {
        if fits(worker.offers()) {
            add(memory_of(worker.offers()), worker.config.time_limit);
        }
    }
    for queue in queues {
        let offers = queue.offers(classes);
        if fits(&offers) {
            add(memory_of(&offers), Some(queue.time_limit));
        }
    }
    // Nobody is there: what will come is not known, so nothing bounds it.
    let (units, lifetime) = most.unwrap_or((0, Duration::MAX));
    Largest {
        memory: (units > 0).then_some(Amount(units)),
        lifetime: (lifetime < Duration::MAX).then_some(lifetime),
    }
}

fn sizes(task: &TaskTemplate) -> Asked<'_> {
    Asked {
        grow: task.retry.grow,
        requests: &task.requests,
        time_limit: task.time_limit,
    }
}

impl ServerState {
    /// Gives the instance that follows a failed one more of what that ran out of. `None` = it gets the same.
    pub(super) fn grow(&mut self, id: JobId, slot: TaskSlot, outcome: &Outcome) -> Option<Grant> {
        let job = self.jobs.get(id)?;
        let submit = job.submit(slot)?;
        let asked = Arc::clone(submit.asked_template(slot.index)?);
        // Most tasks have nothing that could grow, and may fail by the million.
        if asked.task.retry.grow == GrowSpec::default() {
            return None;
        }
        let next = job.record(slot)?.instance();
        let before = submit.grown.scale(slot.index);
        let classes = self.dispatcher.classes();
        let largest = self.offers.largest(asked.class, classes, &self.workers);
        let scale = before.after(outcome, sizes(&asked.task), largest);
        if scale == before {
            return None;
        }
        let task = self.set_scale(id, slot, &asked, (next, scale));
        Some(Grant {
            scale,
            memory: memory(&task.requests),
            time_limit: task.time_limit,
        })
    }

    fn set_scale(
        &mut self,
        id: JobId,
        slot: TaskSlot,
        asked: &Arc<SharedTemplate>,
        (from, scale): (InstanceId, Scale),
    ) -> Arc<TaskTemplate> {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let known = submit.and_then(|submit| submit.grown.known(asked.id, scale));
        let template = known.unwrap_or_else(|| {
            let task = TaskTemplate {
                requests: scale.requests(&asked.task.requests),
                time_limit: asked.task.time_limit.map(|limit| scale.time_limit(limit)),
                ..TaskTemplate::clone(&asked.task)
            };
            Arc::new(SharedTemplate {
                id: self.number_templates(1),
                class: self.dispatcher.intern(&task.requests),
                task: Arc::new(task),
                ..SharedTemplate::clone(asked)
            })
        });
        let task = Arc::clone(&template.task);
        let grown = Grown { scale, template };
        if let Some(job) = self.jobs.get_mut(id) {
            job.add_grown(slot, from, asked.id, grown);
        }
        task
    }

    /// Gives a task what it got from one of its instances on; to be called before [`ServerState::restore_task`], by ascending
    /// instances.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] if job or task are not there.
    pub fn restore_grown(
        &mut self,
        id: JobId,
        task: TaskId,
        grown: (InstanceId, Scale),
    ) -> Result<(), RestoreError> {
        let job = self.jobs.get(id).ok_or(RestoreError::NoJob(id))?;
        let found = job.find(task).and_then(|slot| {
            let asked = job.submit(slot)?.asked_template(slot.index)?;
            Some((slot, Arc::clone(asked)))
        });
        let (slot, asked) = found.ok_or(RestoreError::NoTask(id, task))?;
        self.set_scale(id, slot, &asked, grown);
        Ok(())
    }
}
