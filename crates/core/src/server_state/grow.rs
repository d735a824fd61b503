//! The next attempt of a task that ran out of something gets more of it, see [`crate::growth`].

use std::cmp::Reverse;
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
use crate::time::{Time, nanos};
use crate::worker::Workers;

/// How long it is taken for true what others offer: very many tasks can fail at a time, and there are few kinds of them.
const OFFERS_AGE_MAX: Duration = Duration::from_secs(1);

/// Who could give a task more.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// Workers that automatic allocation can ask for.
    queues: Vec<WorkerKind>,
    /// The most for tasks of a class, and when that was found.
    known: BTreeMap<ClassId, (Time, Largest)>,
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

    fn largest(&mut self, now: Time, id: ClassId, classes: &Classes, workers: &Workers) -> Largest {
        if let Some((at, known)) = self.known.get(&id)
            && now.since(*at) < OFFERS_AGE_MAX
        {
            return *known;
        }
        let found = classes
            .get(id)
            .map(|class| look(class, classes, (workers, &self.queues), now))
            .unwrap_or_default();
        self.known.insert(id, (now, found));
        found
    }
}

/// The most of something that anybody offers.
#[derive(Clone, Copy, Default)]
struct Most<T> {
    /// Who offers everything else that a task asks for now.
    suited: Option<T>,
    /// Who would, but for what can grow.
    any: Option<T>,
}

impl<T: Ord + Copy> Most<T> {
    fn add(&mut self, offered: T, is_suited: bool) {
        self.any = self.any.max(Some(offered));
        if is_suited {
            self.suited = self.suited.max(Some(offered));
        }
    }

    fn get(self) -> Option<T> {
        self.suited.or(self.any)
    }
}

/// The most for tasks of one class, as far as one has looked.
struct Search<'a> {
    class: &'a Class,
    /// Its variants without memory.
    without: Vec<VariantDemand>,
    /// Number of memory among resources.
    slot: usize,
    memory: Most<u64>,
    lifetime: Most<Duration>,
}

impl<'a> Search<'a> {
    fn new(class: &'a Class, classes: &Classes) -> Self {
        let memory = classes.find_resource(MEMORY);
        let mut without = class.variants.clone();
        for variant in &mut without {
            let demands = &mut variant.demands;
            demands.retain(|demand| Some(demand.resource) != memory);
        }
        Self {
            class,
            without,
            slot: memory.map_or(usize::MAX, |id| id.0 as usize),
            memory: Most::default(),
            lifetime: Most::default(),
        }
    }

    /// Looks at a worker for tasks on one node, with the lifetime that it has left.
    fn add(&mut self, offers: &[Offer], left: Option<Duration>) {
        for (variant, without) in self.class.variants.iter().zip(&self.without) {
            if !fits(without, offers) {
                continue;
            }
            let units = offers.get(self.slot).map_or(0, |offer| offer.units);
            // Whoever has the memory may not live long enough, and the other way around: both together must fit somewhere.
            let has_time = left.is_none_or(|left| nanos(left) >= variant.min_time_ns);
            if units > 0 {
                self.memory.add(units, has_time);
            }
            self.lifetime.add(usable(left), fits(variant, offers));
        }
    }

    /// Looks at the nodes of a group for tasks that take several, with the lifetimes that they have left.
    fn add_group(&mut self, mut left: Vec<Option<Duration>>) {
        // Without an end is longest.
        left.sort_unstable_by_key(|left| Reverse(left.unwrap_or(Duration::MAX)));
        for variant in &self.class.variants {
            let last = (variant.n_nodes as usize).checked_sub(1);
            if let Some(left) = last.and_then(|last| left.get(last)) {
                self.lifetime.add(usable(*left), true);
            }
        }
    }

    /// Whether a group has enough nodes is known, whether an allocation has is not.
    fn add_nodes(&mut self, lifetime: Duration) {
        if self.class.is_multi_node() {
            self.lifetime.add(usable(Some(lifetime)), false);
        }
    }
}

fn fits(variant: &VariantDemand, offers: &[Offer]) -> bool {
    let all = |slot: usize| {
        let units = offers.get(slot).map_or(0, |offer| offer.units);
        i64::try_from(units).unwrap_or(i64::MAX)
    };
    fitting(variant, offers, all) > 0
}

/// The most that a task may request of a lifetime. Some of it passes before a task is there, be it that a worker has just
/// started: a request for all of it would never be met, and automatic allocation would start one worker after another in vain.
fn usable(left: Option<Duration>) -> Duration {
    left.map_or(Duration::MAX, |left| left / 10 * 9)
}

/// The most that workers and queues offer that have everything else that a class asks for.
fn look(
    class: &Class,
    classes: &Classes,
    (workers, queues): (&Workers, &[WorkerKind]),
    now: Time,
) -> Largest {
    let mut search = Search::new(class, classes);
    let mut groups: BTreeMap<&str, Vec<Option<Duration>>> = BTreeMap::new();
    for worker in workers.live().values() {
        let left = worker.remaining(now);
        search.add(worker.offers(), left);
        if class.is_multi_node() {
            groups.entry(&worker.config.group).or_default().push(left);
        }
    }
    for left in groups.into_values() {
        search.add_group(left);
    }
    for queue in queues {
        search.add(&queue.offers(classes), Some(queue.time_limit));
        search.add_nodes(queue.time_limit);
    }
    // Nobody is there: what will come is not known, so nothing bounds it.
    let lifetime = search.lifetime.get();
    Largest {
        memory: search.memory.get().map(Amount),
        lifetime: lifetime.filter(|lifetime| *lifetime < Duration::MAX),
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
    pub(super) fn grow(
        &mut self,
        now: Time,
        (id, slot): (JobId, TaskSlot),
        outcome: &Outcome,
    ) -> Option<Grant> {
        let job = self.jobs.get(id)?;
        let submit = job.submit(slot)?;
        let asked = Arc::clone(submit.asked_template(slot.index)?);
        // Most tasks have nothing that could grow, and may fail by the million.
        if asked.task.retry.grow == GrowSpec::default() {
            return None;
        }
        let next = job.record(slot)?.instance();
        let before = submit.grown.scale(slot.index);
        // With what it has grown to so far.
        let class = submit.template(slot.index)?.class;
        let classes = self.dispatcher.classes();
        let largest = self.offers.largest(now, class, classes, &self.workers);
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
