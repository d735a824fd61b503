//! Present requests of tasks, see [`crate::ask`]. The server computes them again when an attempt
//! ends, when a task grows or is cut off, and when workers or allocation queues come or go.
//!
//! Undispatched tasks move to the queue of their new request as ranges, so it costs the same for
//! ten tasks and for ten million. Finished tasks change the requests of others rarely, see
//! [`Learned::note_looked_at`]. Offers bound all requests, so all submits are examined again when
//! workers come or go, in portions and at most every few seconds.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::ServerState;
use super::dispatcher::Dispatcher;
use super::offers::usable;
use super::restore::RestoreError;
use crate::ask::{Ask, Factors, Failed, Offered, ask, grow, had_most, is_predicted, learned};
use crate::class::{ClassId, QueueKey};
use crate::growth::{Grant, GrowSpec, Scale, memory, min_time};
use crate::id::{InstanceId, JobId, TaskId, WorkerId};
use crate::job::{Asks, Learned, SharedTemplate, Submit, SubmitKind, TaskSlot};
use crate::outcome::Outcome;
use crate::sizing::{FirstMemory, RETRIES, TASKS_MIN, coarse, memory_amount};
use crate::template::TaskTemplate;
use crate::time::Time;

/// Requests that are computed in one step after workers came or went, some ten microseconds each.
const LOOKED_MAX: usize = 256;
/// Kinds of workers that cost as much as one request more,
const KINDS_PER_LOOK: usize = 64;
/// and pieces of a submit that are moved.
const PIECES_PER_LOOK: usize = 16;

/// Shortest interval between two passes over all submits: workers may come and go by the thousand.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Submits that learn from their tasks, and the pass over them after a change of offers.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    submits: BTreeSet<(JobId, u32)>,
    /// Time of the next pass; `None` = no change of offers.
    due: Option<Time>,
    /// No pass begins before.
    not_before: Time,
    /// Where the pass goes on that has begun.
    next: Option<(JobId, u32)>,
}

impl Learning {
    /// Workers or allocation queues came or went.
    pub(super) fn note_offers(&mut self, now: Time) {
        // A new submit is examined when it is added.
        if !self.submits.is_empty() {
            self.due.get_or_insert(self.not_before.max(now));
        }
    }

    /// Whether a pass has begun.
    pub(super) const fn is_going_on(&self) -> bool {
        self.next.is_some()
    }
}

/// Requests of the tasks of a submit.
impl ServerState {
    /// Begins to learn from the tasks of a submit.
    pub(super) fn begin_learning(&mut self, now: Time, id: JobId, number: u32) {
        let Some(submit) = self.submit_at((id, number)) else {
            return;
        };
        let SubmitKind::Array { template, .. } = &submit.kind else {
            // Most tasks of a graph have a command of their own.
            return;
        };
        let template = Arc::clone(template);
        let is_sized = template.task.learn.memory.is_some();
        let has_others = u64::from(submit.ids.len()) > TASKS_MIN;
        let learns = is_sized || is_predicted(&template.task) && has_others;
        if !learns {
            return;
        }
        if let Some(asks) = self.asks_mut((id, number)) {
            asks.learned = Some(Box::new(Learned::new(template)));
        }
        self.learning.submits.insert((id, number));
        if is_sized {
            self.look_at(now, (id, number));
        }
    }

    /// Learns from the tasks of a job that were restored.
    pub(super) fn learn_again(&mut self, now: Time, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if job.is_completed() {
            self.forget_learned(id);
            return;
        }
        job.learn_again();
        for number in 0..u32::try_from(job.submits.len()).unwrap_or(u32::MAX) {
            self.look_at(now, (id, number));
        }
    }

    /// Stops learning from the tasks of a job.
    pub(super) fn forget_learned(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.forget_learned();
        for (_, number) in job.submits.iter().zip(0..) {
            self.learning.submits.remove(&(id, number));
        }
    }

    /// Computes the requests of the undispatched tasks of a submit, and moves tasks with another
    /// request to its queue; returns the cost, see [`LOOKED_MAX`].
    pub(super) fn look_at(&mut self, now: Time, at: (JobId, u32)) -> usize {
        let mut cost = 1;
        let submit = self.submit_at(at);
        let Some(asked) = submit.and_then(|submit| submit.asked_template(0)) else {
            return cost;
        };
        for own in self.learn_at(now, at, &asked).unwrap_or_default() {
            let Some(had) = self.template_at(at, &asked, own) else {
                continue;
            };
            // Without a worker that could run them they ask for as much as before.
            let most = Some(min_time(&had.task.requests)).filter(|time| !time.is_zero());
            let template = self.asking(now, at, (&asked, own), most);
            cost += 1;
            if template.id != had.id {
                cost += self.move_queue(at, &had, (own, template)) / PIECES_PER_LOOK;
            }
        }
        cost
    }

    /// Computes the request of tasks without factors; returns the distinct factors of all.
    fn learn_at(
        &mut self,
        now: Time,
        (id, number): (JobId, u32),
        asked: &SharedTemplate,
    ) -> Option<Vec<Factors>> {
        let (class, classes) = (asked.class, self.dispatcher.classes());
        let first = asked.task.learn.memory;
        let largest = first.map(|_| self.offers.largest(now, class, classes, &self.workers));
        let offered = Offered {
            memory: largest.and_then(|largest| largest.memory),
            first: first.and_then(|first| match first {
                FirstMemory::Given(amount) => Some(amount),
                FirstMemory::Share => self.offers.share(now, class, classes, &self.workers),
            }),
            lifetime_min: self.offers.lifetime_min(now, &self.workers),
        };
        let submit = self.jobs.get_mut(id)?.submits.get_mut(number as usize)?;
        let own = submit.asks.learned.as_mut()?;
        own.ask = learned(&asked.task, &own.needs, offered, own.ask);
        own.note_looked_at();
        Some(own.factors())
    }

    /// Template of tasks with these factors, by offers and by the needs of others. `most` = the
    /// remaining lifetime to expect of a worker if none could run them.
    fn asking(
        &mut self,
        now: Time,
        at: (JobId, u32),
        (asked, own): (&Arc<SharedTemplate>, Factors),
        most: Option<Duration>,
    ) -> Arc<SharedTemplate> {
        let asks = self.submit_at(at).map(|submit| &submit.asks);
        let learned = asks.and_then(|asks| asks.learned.as_ref());
        let learned = learned.map(|learned| learned.ask).unwrap_or_default();
        let mut lifetime = None;
        if !own.wanted.is_zero()
            && let Some(like) = self.template_at(at, asked, own.uncut())
        {
            let classes = self.dispatcher.classes();
            let largest = self.offers.largest(now, like.class, classes, &self.workers);
            lifetime = largest.lifetime;
        }
        let most = lifetime.or(most).unwrap_or(Duration::MAX);
        self.make(at, asked, ask(&asked.task, own, learned, most))
    }

    /// A template with this request.
    fn make(
        &mut self,
        at: (JobId, u32),
        asked: &Arc<SharedTemplate>,
        ask: Ask,
    ) -> Arc<SharedTemplate> {
        let known = self
            .submit_at(at)
            .and_then(|submit| submit.asks.made(asked, ask));
        known.unwrap_or_else(|| {
            let task = Arc::new(ask.task(&asked.task));
            let made = Arc::new(SharedTemplate {
                id: self.number_templates(1),
                class: self.dispatcher.intern(&task.requests),
                task,
                ..SharedTemplate::clone(asked)
            });
            if let Some(asks) = self.asks_mut(at) {
                asks.add(asked.id, ask, Arc::clone(&made));
            }
            made
        })
    }

    /// Moves the ready tasks of a submit to the queue of their new template, unless that would take
    /// long: then they keep their request until the next pass. Returns the number of pieces.
    fn move_queue(
        &mut self,
        (id, number): (JobId, u32),
        had: &SharedTemplate,
        (own, template): (Factors, Arc<SharedTemplate>),
    ) -> usize {
        let from = QueueKey::new(had.task.priority, had.class);
        let Some(ready) = self.dispatcher.take_submit(from, id, number) else {
            return 0;
        };
        if let Some(asks) = self.asks_mut((id, number))
            && let Some(learned) = &mut asks.learned
        {
            learned.set(own, template);
        }
        let mut moved = Vec::new();
        if let Some(job) = self.jobs.get(id)
            && let Some(submit) = job.submits.get(number as usize)
        {
            // Tasks with other factors may be in the same queue, and stay there.
            let parts = ready.ranges();
            for (from, to) in parts.flat_map(|(from, to)| submit.asks.parts(from, to)) {
                let slot = TaskSlot {
                    submit: number,
                    index: from,
                };
                moved.extend(Dispatcher::queue_key(job, slot).map(|key| (key, from..to)));
            }
        }
        let pieces = moved.len();
        for (key, indices) in moved {
            self.dispatcher.enqueue(key, id, number, indices);
        }
        // A plan for multi-node tasks may have counted on them.
        self.dispatcher.note_plans_changed();
        pieces
    }

    fn submit_at(&self, (id, number): (JobId, u32)) -> Option<&Submit> {
        self.jobs.get(id)?.submit(first_of(number))
    }

    fn asks_mut(&mut self, (id, number): (JobId, u32)) -> Option<&mut Asks> {
        let submit = self.jobs.get_mut(id)?.submits.get_mut(number as usize)?;
        Some(&mut submit.asks)
    }

    /// Present template of tasks with these factors.
    fn template_at(
        &self,
        at: (JobId, u32),
        asked: &Arc<SharedTemplate>,
        own: Factors,
    ) -> Option<Arc<SharedTemplate>> {
        let asks = &self.submit_at(at)?.asks;
        let special = asks.special((asked.id, &asked.task), own);
        Some(Arc::clone(special.unwrap_or(asked)))
    }
}

/// Requests of single tasks, by their earlier attempts.
impl ServerState {
    /// Handles a task cut off by the end of its worker after this run time: from this instance on
    /// it requires more remaining lifetime, as far as offered. Otherwise it could be cut off again
    /// and again, because the oldest workers come first. `now` = `None` restores it.
    pub(super) fn note_cut_off(
        &mut self,
        now: Option<Time>,
        (id, slot): (JobId, TaskSlot),
        from: InstanceId,
        (worker, run): (WorkerId, Duration),
    ) {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let submit = submit.filter(|submit| submit.asks.learned.is_some());
        let asked = submit.and_then(|submit| submit.asked_template(slot.index));
        let (Some(submit), Some(asked)) = (submit, asked) else {
            return;
        };
        let worker = self.workers.known(worker);
        let limit = worker.and_then(|worker| worker.config.time_limit);
        // If the server was away, it learned of the end late.
        let run = limit.map_or(run, |limit| run.min(limit));
        let before = submit.asks.own_at(slot.index, from);
        let own = Factors {
            wanted: coarse(run.saturating_mul(2)),
            ..before
        };
        if own.wanted > before.wanted && is_predicted(&asked.task) {
            // If no worker is left, the next one most likely has the same lifetime.
            self.set_own(now, (id, slot), (from, own), Some(usable(limit)));
        }
    }

    /// Grants the instance after a failed one more of the exhausted resource. `None` = unchanged.
    pub(super) fn grow(
        &mut self,
        now: Time,
        (id, slot): (JobId, TaskSlot),
        had: Option<ClassId>,
        outcome: &Outcome,
    ) -> Option<Grant> {
        // More resources cure no other failure.
        if !matches!(outcome, Outcome::OutOfMemory(_) | Outcome::TimeLimit) {
            return None;
        }
        let job = self.jobs.get(id)?;
        let submit = job.submit(slot)?;
        let task = Arc::clone(&submit.asked_template(slot.index)?.task);
        // Most tasks have nothing that could grow, and may fail by the million.
        if task.retry.grow == GrowSpec::default() && task.learn.memory.is_none() {
            return None;
        }
        let next = job.record(slot)?.instance();
        let before = submit.asks.own(slot.index).scale;
        // Including its growth so far.
        let class = submit.queue_key(slot.index)?.class;
        let learned = submit.asks.learned.as_ref();
        let needed = learned.and_then(|learned| learned.needs.memory_max());
        let classes = self.dispatcher.classes();
        let had = classes.get(had.unwrap_or(class));
        let failed = Failed {
            had: had.and_then(|class| memory(&class.request)),
            needed: needed.map(memory_amount).unwrap_or_default(),
            largest: self.offers.largest(now, class, classes, &self.workers),
        };
        let scale = grow(&task, before, outcome, failed);
        if scale == before {
            return None;
        }
        let task = self.set_scale(Some(now), (id, slot), (next, scale))?;
        Some(Grant {
            scale,
            memory: memory(&task.requests),
            time_limit: task.time_limit,
        })
    }

    /// Whether a task with learned memory exhausted the largest offer: another attempt would fail
    /// as well. An explicit number of retries takes precedence.
    pub(super) fn is_too_large(
        &mut self,
        now: Time,
        (id, slot): (JobId, TaskSlot),
        (had, outcome): (ClassId, &Outcome),
    ) -> bool {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let asked = submit.and_then(|submit| submit.asked_template(slot.index));
        let is_usual = asked.is_some_and(|asked| {
            // A client from before this field sends the default number if the user gave none.
            let learn = asked.task.learn;
            learn.memory.is_some() && !learn.are_retries_given && asked.task.retry.limit == RETRIES
        });
        if !is_usual || !matches!(outcome, Outcome::OutOfMemory(_)) {
            return false;
        }
        let classes = self.dispatcher.classes();
        let amount = classes.get(had).and_then(|class| memory(&class.request));
        let most = self.offers.largest(now, had, classes, &self.workers).memory;
        amount.is_some_and(|amount| had_most(amount, most))
    }

    /// Restores the grant of a task from one of its instances on. Call before
    /// [`ServerState::restore_task`], by ascending instances.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] if job or task do not exist.
    pub fn restore_grown(
        &mut self,
        id: JobId,
        task: TaskId,
        grown: (InstanceId, Scale),
    ) -> Result<(), RestoreError> {
        let job = self.jobs.get(id).ok_or(RestoreError::NoJob(id))?;
        let slot = job.find(task).ok_or(RestoreError::NoTask(id, task))?;
        let set = self.set_scale(None, (id, slot), grown);
        set.map(|_| ()).ok_or(RestoreError::NoTask(id, task))
    }

    /// Sets the scale of a task from one of its instances on; returns the template with it.
    fn set_scale(
        &mut self,
        now: Option<Time>,
        (id, slot): (JobId, TaskSlot),
        (from, scale): (InstanceId, Scale),
    ) -> Option<Arc<TaskTemplate>> {
        let submit = self.jobs.get(id)?.submit(slot)?;
        let asked = submit.asked_template(slot.index)?;
        // Attempts are shown with this one.
        let grown = Ask::grown(&asked.task, scale);
        let grown = self.make((id, slot.submit), &asked, grown);
        // With another request it may no longer be cut off.
        let wanted = Duration::ZERO;
        self.set_own(now, (id, slot), (from, Factors { scale, wanted }), None);
        Some(Arc::clone(&grown.task))
    }

    /// Sets the factors of a task from one of its instances on. `most` as for [`Self::asking`].
    fn set_own(
        &mut self,
        now: Option<Time>,
        (id, slot): (JobId, TaskSlot),
        (from, own): (InstanceId, Factors),
        most: Option<Duration>,
    ) {
        let at = (id, slot.submit);
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let asked = submit.and_then(|submit| submit.asked_template(slot.index));
        let Some(asked) = asked else {
            return;
        };
        let asks = self.asks_mut(at);
        let is_new = asks.is_some_and(|asks| asks.set_own(&asked, (slot.index, from), own));
        // Restored tasks are looked at when all are restored.
        if let Some(now) = now.filter(|_| is_new) {
            let template = self.asking(now, at, (&asked, own), most);
            let asks = self.asks_mut(at);
            if let Some(learned) = asks.and_then(|asks| asks.learned.as_mut()) {
                learned.set(own, template);
            }
        }
    }
}

/// Examines learned requests again after workers or allocation queues came or went.
impl ServerState {
    /// Time of the next pass; none is due while there are no offers.
    pub(super) fn learning_due(&self) -> Option<Time> {
        let due = self.learning.due;
        due.filter(|_| self.ending.is_none() && self.offers.is_any(&self.workers))
    }

    /// Looks at some of the submits that learn.
    pub(super) fn look_portion(&mut self, now: Time) {
        if !self.learning.is_going_on() {
            if self.learning_due().is_none_or(|due| due > now) {
                return;
            }
            let first = self.learning.submits.first().copied();
            self.learning.due = None;
            (self.learning.not_before, self.learning.next) = (now + LOOK_AGAIN, first);
        }
        let kinds = self.offers.kinds_len(now, &self.workers);
        let mut left = LOOKED_MAX / (1 + kinds / KINDS_PER_LOOK);
        while let Some(at) = self.learning.next {
            left = left.saturating_sub(self.look_at(now, at));
            let rest = (Bound::Excluded(at), Bound::Unbounded);
            self.learning.next = self.learning.submits.range(rest).next().copied();
            if left == 0 {
                return;
            }
        }
    }
}

/// The first task of a submit.
const fn first_of(submit: u32) -> TaskSlot {
    TaskSlot { submit, index: 0 }
}
