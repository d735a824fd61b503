//! The current requests of tasks; see [`crate::ask`]. The server computes them again when an
//! attempt ends, when a task grows or is cut off, and when workers or allocation queues come or go.
//!
//! Undispatched tasks move to the queue of their new request as ranges, so the cost is the same for
//! ten tasks and for ten million. Finished tasks rarely change the requests of other tasks; see
//! [`Learned::note_looked_at`]. Offers bound all requests, so all submits are examined again when
//! workers come or go, in portions and at most every few seconds.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::ServerState;
use super::offers::usable;
use super::restore::RestoreError;
use super::submit::number_templates;
use crate::ask::{Ask, Factors, Failed, Offered, ask, grow, had_most, is_predicted, learned};
use crate::class::{ClassId, QueueKey};
use crate::growth::{Grant, GrowSpec, Scale, memory, min_time};
use crate::id::{InstanceId, JobId, TaskId, WorkerId};
use crate::job::{Asks, Learned, SharedTemplate, SubmitAt, SubmitKind, TaskAt, TemplateId};
use crate::outcome::Outcome;
use crate::sizing::{FirstMemory, RETRIES, TASKS_MIN, coarse, memory_amount};
use crate::template::TaskTemplate;
use crate::time::Time;

/// The number of requests computed in one step after workers came or went. Each takes a few tens of
/// microseconds.
const LOOKED_MAX: usize = 256;
/// The number of worker kinds that cost as much as one more request.
const KINDS_PER_LOOK: usize = 64;
/// The number of moved pieces of a submit that cost as much as one more request.
const PIECES_PER_LOOK: usize = 16;

/// The minimum interval between two passes over all submits, because thousands of workers may come
/// and go.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The submits that learn from their tasks, and the progress of the pass over them after offers
/// have changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    submits: BTreeSet<SubmitAt>,
    /// The time of the next pass. `None` if the offers have not changed.
    due: Option<Time>,
    /// The earliest time at which the next pass begins.
    not_before: Time,
    /// The submit at which the current pass continues.
    next: Option<SubmitAt>,
}

impl Learning {
    /// Notes that workers or allocation queues came or went.
    pub(super) fn note_offers(&mut self, now: Time) {
        // A new submit is examined when it is added.
        if !self.submits.is_empty() {
            self.due.get_or_insert(self.not_before.max(now));
        }
    }

    /// Returns whether a pass is in progress.
    pub(super) const fn is_going_on(&self) -> bool {
        self.next.is_some()
    }
}

/// The requests of the tasks of a submit.
impl ServerState {
    /// Starts learning from the tasks of a submit.
    pub(super) fn begin_learning(&mut self, now: Time, at: SubmitAt) {
        let Some(submit) = self.jobs.submit(at) else {
            return;
        };
        let SubmitKind::Array { template, .. } = &submit.kind else {
            // Most tasks of a graph have a separate command each.
            return;
        };
        let template = Arc::clone(template);
        let is_sized = template.task.learn.memory.is_some();
        let has_others = u64::from(submit.ids.len()) > TASKS_MIN;
        let learns = is_sized || is_predicted(&template.task) && has_others;
        if !learns {
            return;
        }
        if let Some(asks) = self.asks_mut(at) {
            asks.learned = Some(Box::new(Learned::new(template)));
        }
        self.learning.submits.insert(at);
        if is_sized {
            self.look_at(now, at);
        }
    }

    /// Learns from the restored tasks of a job.
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
            self.look_at(now, SubmitAt { job: id, number });
        }
    }

    /// Stops learning from the tasks of a job.
    pub(super) fn forget_learned(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.forget_learned();
        for (_, number) in job.submits.iter().zip(0..) {
            self.learning.submits.remove(&SubmitAt { job: id, number });
        }
    }

    /// Computes the requests of the undispatched tasks of a submit, and moves tasks whose request
    /// has changed to the queue of the new request. Returns the cost; see [`LOOKED_MAX`].
    pub(super) fn look_at(&mut self, now: Time, at: SubmitAt) -> usize {
        let mut cost = 1;
        let submit = self.jobs.submit(at);
        let Some(SubmitKind::Array { template, .. }) = submit.map(|submit| &submit.kind) else {
            return cost;
        };
        let submitted = Arc::clone(template);
        for (id, own) in self.learn_at(now, at, &submitted).unwrap_or_default() {
            let submit = self.jobs.submit(at);
            let changed = submit.and_then(|submit| submit.changed_template(id));
            let asked = changed.unwrap_or_else(|| Arc::clone(&submitted));
            // The tasks may have been changed again since.
            let had = self.template_at(at, &asked, own).filter(|_| asked.id == id);
            let Some(had) = had else {
                continue;
            };
            // If no worker could run the tasks, they keep the lifetime that they have requested so
            // far.
            let most = Some(min_time(&had.task.requests)).filter(|time| !time.is_zero());
            let template = self.asking(now, at, &asked, own, most);
            cost += 1;
            if template.id != had.id {
                cost += self.move_queue(at, &had, (id, own), template) / PIECES_PER_LOOK;
            }
        }
        cost
    }

    /// Computes the request of tasks without factors. Returns the distinct requested templates and
    /// factors of all tasks.
    fn learn_at(
        &mut self,
        now: Time,
        at: SubmitAt,
        asked: &SharedTemplate,
    ) -> Option<Vec<(TemplateId, Factors)>> {
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
        let own = self.jobs.submit_mut(at)?.asks.learned.as_mut()?;
        own.ask = learned(&asked.task, &own.needs, offered, own.ask);
        own.note_looked_at();
        Some(own.kinds())
    }

    /// Returns the template of tasks with these factors, based on the offers and on the needs of
    /// other tasks. `most` is the remaining lifetime to expect of a worker if no worker could run
    /// them.
    fn asking(
        &mut self,
        now: Time,
        at: SubmitAt,
        asked: &Arc<SharedTemplate>,
        own: Factors,
        most: Option<Duration>,
    ) -> Arc<SharedTemplate> {
        let asks = self.jobs.submit(at).map(|submit| &submit.asks);
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

    /// Returns a template with this request, and creates it if there is none.
    fn make(&mut self, at: SubmitAt, asked: &Arc<SharedTemplate>, ask: Ask) -> Arc<SharedTemplate> {
        let submit = self.jobs.submit(at);
        let known = submit.and_then(|submit| submit.asks.made(asked, ask));
        known.unwrap_or_else(|| {
            let task = Arc::new(ask.task(&asked.task));
            let made = Arc::new(SharedTemplate {
                id: number_templates(&mut self.last_template, 1),
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

    /// Moves the ready tasks of a submit to the queue of their new template. If that would take
    /// long, the tasks keep their request until the next pass. Returns the number of pieces.
    fn move_queue(
        &mut self,
        at: SubmitAt,
        had: &SharedTemplate,
        kind: (TemplateId, Factors),
        template: Arc<SharedTemplate>,
    ) -> usize {
        let from = QueueKey::new(had.task.priority, had.class);
        let Some(ready) = self.dispatcher.take_submit(from, at) else {
            return 0;
        };
        if let Some(asks) = self.asks_mut(at)
            && let Some(learned) = &mut asks.learned
        {
            learned.set(kind, template);
        }
        let mut moved = Vec::new();
        if let Some(submit) = self.jobs.submit(at) {
            // Tasks with other factors may be in the same queue and stay there.
            let parts = ready.ranges();
            for (from, to) in parts.flat_map(|(from, to)| submit.parts(from, to)) {
                moved.extend(submit.queue_key(from).map(|key| (key, from..to)));
            }
        }
        let pieces = moved.len();
        for (key, indices) in moved {
            self.dispatcher.enqueue(key, at, indices);
        }
        // A plan for multi-node tasks may have relied on these tasks.
        self.dispatcher.note_plans_changed();
        pieces
    }

    fn asks_mut(&mut self, at: SubmitAt) -> Option<&mut Asks> {
        Some(&mut self.jobs.submit_mut(at)?.asks)
    }

    /// Returns the current template of tasks with these factors.
    fn template_at(
        &self,
        at: SubmitAt,
        asked: &Arc<SharedTemplate>,
        own: Factors,
    ) -> Option<Arc<SharedTemplate>> {
        let asks = &self.jobs.submit(at)?.asks;
        let is_sized = asked.task.learn.memory.is_some();
        let special = asks.special(asked.id, is_sized, own);
        Some(Arc::clone(special.unwrap_or(asked)))
    }
}

/// The requests of single tasks, derived from their earlier attempts.
impl ServerState {
    /// Handles a task that ran for this time until it was cut off because its worker ended.
    /// Starting with this instance, the task requires more remaining lifetime, as far as offered.
    /// Otherwise it could be cut off again and again, because the oldest workers are filled first.
    /// If `now` is `None`, the state is being restored.
    pub(super) fn note_cut_off(
        &mut self,
        now: Option<Time>,
        at: TaskAt,
        from: InstanceId,
        worker: WorkerId,
        run: Duration,
    ) {
        let submit = self.jobs.submit(at.submit());
        let submit = submit.filter(|submit| submit.asks.learned.is_some());
        let asked = submit.and_then(|submit| submit.asked_template(at.slot.index));
        let (Some(submit), Some(asked)) = (submit, asked) else {
            return;
        };
        let worker = self.workers.known(worker);
        let limit = worker.and_then(|worker| worker.config.time_limit);
        // If the server was away, it learned late that the worker had ended.
        let run = limit.map_or(run, |limit| run.min(limit));
        let before = submit.asks.own_at(at.slot.index, from);
        let own = Factors {
            wanted: coarse(run.saturating_mul(2)),
            ..before
        };
        if own.wanted > before.wanted && is_predicted(&asked.task) {
            // If no worker is left, the next one most likely has the same lifetime.
            self.set_own(now, at, from, own, Some(usable(limit)));
        }
    }

    /// Increases the grant of the exhausted resource for the instance that follows a failed one.
    /// Returns `None` if the grant is unchanged.
    pub(super) fn grow(
        &mut self,
        now: Time,
        at: TaskAt,
        had: Option<ClassId>,
        outcome: &Outcome,
    ) -> Option<Grant> {
        let TaskAt { job: id, slot } = at;
        // Other failures cannot be avoided with more resources.
        if !matches!(outcome, Outcome::OutOfMemory(_) | Outcome::TimeLimit) {
            return None;
        }
        let job = self.jobs.get(id)?;
        let submit = job.submit(slot)?;
        let task = Arc::clone(&submit.asked_template(slot.index)?.task);
        // Most tasks have no request that could grow, and millions of them may fail.
        if task.retry.grow == GrowSpec::default() && task.learn.memory.is_none() {
            return None;
        }
        let next = job.record(slot)?.instance();
        let before = submit.asks.own(slot.index).scale;
        // This class includes the growth so far.
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
        let task = self.set_scale(Some(now), at, next, scale)?;
        Some(Grant {
            scale,
            memory: memory(&task.requests),
            time_limit: task.time_limit,
        })
    }

    /// Returns whether a task with learned memory has exhausted the largest offer, so that another
    /// attempt would fail as well. An explicit number of retries takes precedence.
    pub(super) fn is_too_large(
        &mut self,
        now: Time,
        at: TaskAt,
        had: ClassId,
        outcome: &Outcome,
    ) -> bool {
        let submit = self.jobs.submit(at.submit());
        let asked = submit.and_then(|submit| submit.asked_template(at.slot.index));
        let is_usual = asked.is_some_and(|asked| {
            // A client that is older than this field sends the default number if the user gave
            // none.
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

    /// Restores the grant of a task, starting with one of its instances. Must be called before
    /// [`ServerState::restore_task`], in ascending order of instance.
    ///
    /// # Errors
    ///
    /// Returns a [`RestoreError`] if the job or the task does not exist.
    pub fn restore_grown(
        &mut self,
        id: JobId,
        task: TaskId,
        from: InstanceId,
        scale: Scale,
    ) -> Result<(), RestoreError> {
        let job = self.jobs.get(id).ok_or(RestoreError::NoJob(id))?;
        let slot = job.find(task).ok_or(RestoreError::NoTask(id, task))?;
        let set = self.set_scale(None, slot.of(id), from, scale);
        set.map(|_| ()).ok_or(RestoreError::NoTask(id, task))
    }

    /// Sets the scale of a task, starting with one of its instances. Returns the resulting
    /// template.
    fn set_scale(
        &mut self,
        now: Option<Time>,
        at: TaskAt,
        from: InstanceId,
        scale: Scale,
    ) -> Option<Arc<TaskTemplate>> {
        let submit = self.jobs.submit(at.submit())?;
        let asked = submit.asked_template(at.slot.index)?;
        // Attempts are displayed with this template.
        let grown = Ask::grown(asked.task.learn.memory.is_some(), scale);
        let grown = self.make(at.submit(), &asked, grown);
        // With a different request, the task may no longer be cut off.
        let wanted = Duration::ZERO;
        self.set_own(now, at, from, Factors { scale, wanted }, None);
        Some(Arc::clone(&grown.task))
    }

    /// Sets the factors of a task, starting with one of its instances. For `most`, see
    /// [`Self::asking`].
    fn set_own(
        &mut self,
        now: Option<Time>,
        at: TaskAt,
        from: InstanceId,
        own: Factors,
        most: Option<Duration>,
    ) {
        let (at, index) = (at.submit(), at.slot.index);
        let submit = self.jobs.submit(at);
        let asked = submit.and_then(|submit| submit.asked_template(index));
        let Some(asked) = asked else {
            return;
        };
        let asks = self.asks_mut(at);
        let is_new = asks.is_some_and(|asks| asks.set_own(&asked, index, from, own));
        // Restored tasks are examined after all of them have been restored.
        if let Some(now) = now.filter(|_| is_new) {
            let template = self.asking(now, at, &asked, own, most);
            let asks = self.asks_mut(at);
            if let Some(learned) = asks.and_then(|asks| asks.learned.as_mut()) {
                learned.set((asked.id, own), template);
            }
        }
    }

    /// Computes the requests of changed tasks of a submit. Growth applies to the changed requests.
    /// If `now` is `None`, the state is being restored.
    pub(super) fn ask_again(&mut self, now: Option<Time>, at: SubmitAt, from: u32, to: u32) {
        let Some(submit) = self.jobs.submit(at) else {
            return;
        };
        let own = submit.asks.own_in(from, to);
        let learns = submit.asks.learned.is_some();
        let parts = submit.changes(from, to).into_iter().filter(|_| learns);
        let asked: Vec<_> = parts
            .filter_map(|(from, ..)| submit.asked_template(from))
            .collect();
        for asked in asked {
            let without = Factors::default();
            let template = match now {
                Some(now) => self.asking(now, at, &asked, without, None),
                None => Arc::clone(&asked),
            };
            let asks = self.asks_mut(at);
            if let Some(learned) = asks.and_then(|asks| asks.learned.as_mut()) {
                learned.set((asked.id, without), template);
            }
        }
        for (index, from, factors) in own {
            self.set_scale(now, at.task(index), from, factors.scale);
            self.set_own(now, at.task(index), from, factors, None);
        }
    }
}

/// Examines learned requests again after workers or allocation queues came or went.
impl ServerState {
    /// Returns the time of the next pass. No pass is due while there are no offers.
    pub(super) fn learning_due(&self) -> Option<Time> {
        let due = self.learning.due;
        due.filter(|_| self.ending.is_none() && self.offers.is_any(&self.workers))
    }

    /// Examines a portion of the submits that learn.
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
