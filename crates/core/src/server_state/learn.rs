//! Sizes undispatched tasks of an array by the needs of finished ones, see [`crate::sizing`]:
//! memory, if requested, and the remaining lifetime of the worker.
//!
//! Learning changes the request of undispatched tasks. They move to another queue as ranges, so it
//! costs the same for ten tasks and for ten million. It happens rarely, see
//! [`Learned::note_looked_at`]. Sizes are bounded by offers, so all submits are examined again when
//! workers come or go, in portions and at most every few seconds.
//!
//! [`Learned::note_looked_at`]: crate::job::Learned

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::ServerState;
use super::dispatcher::Dispatcher;
use super::grow::usable;
use crate::class::QueueKey;
use crate::id::{JobId, WorkerId};
use crate::job::{CutOff, Learned, SharedTemplate, SubmitKind, TaskSlot};
use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::resource::request::RequestVariants;
use crate::sizing::{FirstMemory, Size, TASKS_MIN, coarse, coarse_below};
use crate::task::{Attempt, Phase};
use crate::template::TaskTemplate;
use crate::time::Time;

/// Memory of the first tasks while no worker could run them.
const FIRST_MEMORY: Amount = Amount::whole(512);

/// Cost of one step after workers came or went: examining a submit counts as one, some ten
/// microseconds.
const LOOKED_MAX: usize = 256;
/// Kinds of workers per unit of that cost.
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
    /// Attempts that were cut off before a restart, by job; kept until the restore is complete.
    cut_off_before: BTreeMap<JobId, Vec<CutOffBefore>>,
}

/// An attempt that was cut off before the server was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CutOffBefore {
    slot: TaskSlot,
    worker: WorkerId,
    run: Duration,
}

impl Learning {
    /// Workers or allocation queues came or went.
    pub(super) fn note_offers(&mut self, now: Time) {
        // A new submit is examined when it is added.
        if !self.submits.is_empty() {
            self.due.get_or_insert(self.not_before.max(now));
        }
    }

    /// Restores an attempt of an earlier run of the server; a task's attempts arrive in sequence.
    pub(super) fn restore_attempt(&mut self, (id, slot): (JobId, TaskSlot), attempt: &Attempt) {
        let end = &attempt.end;
        if end.outcome.is_cut_off() {
            let (worker, run) = (attempt.worker, end.run);
            let before = self.cut_off_before.entry(id).or_default();
            before.push(CutOffBefore { slot, worker, run });
        } else if matches!(end.outcome, Outcome::OutOfMemory(_) | Outcome::TimeLimit)
            && let Some(before) = self.cut_off_before.get_mut(&id)
        {
            // The next attempt may have another request, which may not be cut off.
            while before.pop_if(|one| one.slot == slot).is_some() {}
        }
    }

    /// Whether a pass has begun.
    pub(super) const fn is_going_on(&self) -> bool {
        self.next.is_some()
    }

    fn begin(&mut self, now: Time) {
        (self.due, self.not_before) = (None, now + LOOK_AGAIN);
        self.next = self.submits.first().copied();
    }

    fn go_on_behind(&mut self, (job, submit): (JobId, u32)) {
        let rest = (Bound::Excluded((job, submit)), Bound::Unbounded);
        self.next = self.submits.range(rest).next().copied();
    }

    fn forget(&mut self, job: JobId) {
        while let Some(at) = self.submits.range((job, 0)..=(job, u32::MAX)).next() {
            let at = *at;
            self.submits.remove(&at);
        }
    }
}

impl ServerState {
    /// Begins to learn from the tasks of a submit.
    pub(super) fn begin_learning(&mut self, now: Time, id: JobId, number: u32) {
        let submit = self
            .jobs
            .get_mut(id)
            .and_then(|job| job.submits.get_mut(number as usize));
        let Some(submit) = submit else {
            return;
        };
        let SubmitKind::Array { template, .. } = &submit.kind else {
            // Most tasks of a graph have a command of their own.
            return;
        };
        let task = &template.task;
        let is_sized = task.learn.memory.is_some();
        let is_predicted = is_any_predicted(task) && u64::from(submit.ids.len()) > TASKS_MIN;
        if is_sized || is_predicted {
            submit.learned = Some(Box::<Learned>::default());
            self.learning.submits.insert((id, number));
        }
        if is_sized {
            self.look_at_learned(now, (id, number));
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
            self.look_at_learned(now, (id, number));
        }
    }

    /// Restores the larger time requests of tasks that were cut off before a restart.
    pub(super) fn cut_off_again(&mut self, now: Time, id: JobId) {
        for before in self.learning.cut_off_before.remove(&id).unwrap_or_default() {
            // A running task keeps its request, and an ended one needs none.
            if self.jobs.phase(id, before.slot) == Some(Phase::Waiting) {
                self.note_cut_off(now, (id, before.slot), (before.worker, before.run));
            }
        }
    }

    /// Gives undispatched tasks the sizes that follow from ended tasks and from offers; returns the
    /// cost, see [`LOOKED_MAX`].
    pub(super) fn look_at_learned(&mut self, now: Time, at: (JobId, u32)) -> usize {
        let (id, number) = at;
        let submit = self
            .jobs
            .get(id)
            .and_then(|job| job.submit(first_of(number)));
        let found = submit.and_then(|submit| {
            let learned = submit.learned.as_ref()?;
            Some((
                Arc::clone(submit.asked_template(0)?),
                learned.size(),
                learned.template().cloned(),
            ))
        });
        let Some((asked, before, current)) = found else {
            return 1;
        };
        let mut cost = 1;
        if asked.task.learn.memory.is_some() {
            cost += self.offers.kinds_len(now, &self.workers) / KINDS_PER_LOOK;
        }
        let size = self.size_of(now, at, (&asked, before));
        if size != before {
            let template = self.sized_template(at, &asked, size);
            // A submit in too many ranges keeps its request until the next pass.
            let had = current.as_ref().unwrap_or(&asked);
            cost += self.move_queue(at, had, |learned| learned.set(size, template));
        }
        cost += self.look_at_cut_off(now, at, &asked);
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(number as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            learned.note_looked_at();
        }
        cost
    }

    fn size_of(
        &mut self,
        now: Time,
        (id, number): (JobId, u32),
        (asked, before): (&Arc<SharedTemplate>, Size),
    ) -> Size {
        let submit = self
            .jobs
            .get(id)
            .and_then(|job| job.submit(first_of(number)));
        let needs = submit
            .and_then(|submit| submit.learned.as_ref())
            .map(|learned| learned.needs());
        let learn = asked.task.learn;
        let permille = if is_any_predicted(&asked.task) {
            learn.predict_permille()
        } else {
            0
        };
        let min_time = needs.map_or(Duration::ZERO, |needs| needs.min_time(permille));
        let learned = needs.and_then(|needs| needs.memory());
        let memory = learn.memory.map(|first| {
            let classes = self.dispatcher.classes();
            // A larger size would wait forever.
            let most = self
                .offers
                .largest(now, asked.class, classes, &self.workers)
                .memory;
            let memory = learned.or(match first {
                FirstMemory::Given(amount) => Some(amount),
                FirstMemory::Share => self.offers.share(now, asked.class, classes, &self.workers),
            });
            // Without a worker that could run them it stays unchanged.
            let memory = memory.or(before.memory).unwrap_or(FIRST_MEMORY);
            most.map_or(memory, |most| memory.min(most))
        });
        let shortest = self.offers.lifetime_min(now, &self.workers);
        Size {
            memory,
            // Without a worker of limited lifetime there is nothing to predict. And long tasks need
            // a chance everywhere: in the first half of each lifetime every task may start.
            min_time: shortest.map_or(Duration::ZERO, |shortest| {
                min_time.min(coarse_below(shortest / 2))
            }),
        }
    }

    /// Handles a task cut off by the end of its worker after this run time: its next instance
    /// requires more remaining lifetime, as far as offered. Otherwise it could be cut off again and
    /// again, because the oldest workers come first.
    pub(super) fn note_cut_off(
        &mut self,
        now: Time,
        (id, slot): (JobId, TaskSlot),
        (worker, run): (WorkerId, Duration),
    ) {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let found = submit.and_then(|submit| {
            let learned = submit.learned.as_ref()?;
            let asked = submit.asked_template(slot.index)?;
            let grown = submit.grown.last(slot.index);
            let grown = grown.map(|grown| Arc::clone(&grown.template));
            let like = grown.as_ref().or(learned.template()).unwrap_or(asked);
            let like = Arc::clone(like);
            let before = min_time(submit.template(slot.index)?);
            is_any_predicted(&asked.task).then_some((like, grown, before))
        });
        let Some((like, grown, before)) = found else {
            return;
        };
        let classes = self.dispatcher.classes();
        let largest = self.offers.largest(now, like.class, classes, &self.workers);
        let own = self.workers.known(worker);
        let own = own.and_then(|own| own.config.time_limit);
        // If the server was away, it learned of the end late.
        let run = own.map_or(run, |own| run.min(own));
        let cut_off = CutOff {
            grown: grown.as_ref().map(|grown| grown.id),
            wanted: coarse(run.saturating_mul(2)),
        };
        // No worker is left: the next one most likely has the same lifetime.
        let min_time = cut_off
            .wanted
            .min(largest.lifetime.unwrap_or_else(|| usable(own)));
        if min_time > before {
            self.want_time((id, slot), cut_off, grown, (&like, min_time));
        }
    }

    /// Handles a grown task: like others it starts only where most tasks had enough time, see
    /// [`Self::look_at_cut_off`].
    pub(super) fn note_grown(&mut self, (id, slot): (JobId, TaskSlot)) {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let found = submit.and_then(|submit| {
            let learned = submit.learned.as_ref()?;
            let asked = submit.asked_template(slot.index)?;
            let grown = Arc::clone(&submit.grown.last(slot.index)?.template);
            is_any_predicted(&asked.task).then(|| (grown, learned.size().min_time))
        });
        if let Some((grown, min_time)) = found {
            let key = CutOff {
                grown: Some(grown.id),
                wanted: Duration::ZERO,
            };
            let like = Arc::clone(&grown);
            self.want_time((id, slot), key, Some(grown), (&like, min_time));
        }
    }

    /// Sets the request of a task's next instance to this key; creates its template if it is new.
    fn want_time(
        &mut self,
        (id, slot): (JobId, TaskSlot),
        key: CutOff,
        grown: Option<Arc<SharedTemplate>>,
        (like, min_time): (&Arc<SharedTemplate>, Duration),
    ) {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let learned = submit.and_then(|submit| submit.learned.as_ref());
        // The template of this request is examined for all its tasks.
        let made = match learned {
            Some(learned) if learned.has_cut_off(key) => None,
            Some(_) | None => Some(self.cut_off_template((id, slot.submit), like, min_time)),
        };
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(slot.submit as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            if let Some(made) = made {
                learned.set_for_cut_off(key, grown, ((like.id, min_time), made));
            }
            learned.set_cut_off(slot.index, key);
        }
    }

    /// Gives cut off and grown tasks the time that they want and that others needed, as far as
    /// offered.
    fn look_at_cut_off(
        &mut self,
        now: Time,
        at: (JobId, u32),
        asked: &Arc<SharedTemplate>,
    ) -> usize {
        let (id, number) = at;
        let submit = self
            .jobs
            .get(id)
            .and_then(|job| job.submit(first_of(number)));
        let Some(learned) = submit.and_then(|submit| submit.learned.as_ref()) else {
            return 0;
        };
        let base = Arc::clone(learned.template().unwrap_or(asked));
        let needed = learned.size().min_time;
        let all = learned.all_cut_off();
        let all = all.map(|(key, grown, had)| (key, grown.cloned(), Arc::clone(had)));
        let mut cost = 0;
        for (key, grown, had) in all.collect::<Vec<_>>() {
            cost += 1 + self.offers.kinds_len(now, &self.workers) / KINDS_PER_LOOK;
            let like = grown.as_ref().unwrap_or(&base);
            let classes = self.dispatcher.classes();
            let largest = self.offers.largest(now, like.class, classes, &self.workers);
            // Without a worker that could run them it stays unchanged.
            let Some(most) = largest.lifetime else {
                continue;
            };
            let min_time = key.wanted.max(needed).min(most);
            let template = self.cut_off_template(at, like, min_time);
            if template.id == had.id {
                continue;
            }
            let made = ((like.id, min_time), template);
            cost += self.move_queue(at, &had, |learned| {
                learned.set_for_cut_off(key, grown, made);
            });
        }
        cost
    }

    fn cut_off_template(
        &mut self,
        (id, number): (JobId, u32),
        like: &Arc<SharedTemplate>,
        min_time: Duration,
    ) -> Arc<SharedTemplate> {
        let submit = self
            .jobs
            .get(id)
            .and_then(|job| job.submit(first_of(number)));
        let known =
            submit.and_then(|submit| submit.learned.as_ref()?.known_cut_off(like.id, min_time));
        // It equals their grown template.
        let known = known.or_else(|| min_time.is_zero().then(|| Arc::clone(like)));
        known.unwrap_or_else(|| {
            let size = Size {
                memory: None,
                min_time,
            };
            self.template_with(like, size.requests(&like.task.requests))
        })
    }

    /// A copy of a template with another request.
    fn template_with(
        &mut self,
        like: &Arc<SharedTemplate>,
        requests: RequestVariants,
    ) -> Arc<SharedTemplate> {
        let task = TaskTemplate {
            requests,
            ..TaskTemplate::clone(&like.task)
        };
        Arc::new(SharedTemplate {
            id: self.number_templates(1),
            class: self.dispatcher.intern(&task.requests),
            task: Arc::new(task),
            ..SharedTemplate::clone(like)
        })
    }

    fn sized_template(
        &mut self,
        (id, number): (JobId, u32),
        asked: &Arc<SharedTemplate>,
        size: Size,
    ) -> Arc<SharedTemplate> {
        let slot = TaskSlot {
            submit: number,
            index: 0,
        };
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let known = submit.and_then(|submit| submit.learned.as_ref()?.known(size));
        known.unwrap_or_else(|| self.template_with(asked, size.requests(&asked.task.requests)))
    }

    /// Moves the ready tasks of a submit to the queue of its new template, unless that would take
    /// long; returns the cost.
    fn move_queue(
        &mut self,
        (id, number): (JobId, u32),
        had: &SharedTemplate,
        set: impl FnOnce(&mut Learned),
    ) -> usize {
        let from = QueueKey::new(had.task.priority, had.class);
        let Some(ready) = self.dispatcher.take_submit(from, id, number) else {
            return 1;
        };
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(number as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            set(learned);
        }
        let mut moved = Vec::new();
        if let Some(job) = self.jobs.get(id)
            && let Some(submit) = job.submits.get(number as usize)
        {
            // Grown tasks may be in the same queue, and stay there.
            let parts = ready.ranges().flat_map(|(from, to)| submit.parts(from, to));
            for (from, to) in parts {
                let slot = TaskSlot {
                    submit: number,
                    index: from,
                };
                moved.extend(Dispatcher::queue_key(job, slot).map(|key| (key, from..to)));
            }
        }
        let cost = 1 + moved.len() / PIECES_PER_LOOK;
        for (key, indices) in moved {
            self.dispatcher.enqueue(key, id, number, indices);
        }
        // A plan for multi-node tasks may have counted on them.
        self.dispatcher.note_plans_changed();
        cost
    }

    /// Stops learning from the tasks of a job.
    pub(super) fn forget_learned(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.forget_learned();
        }
        self.learning.forget(id);
    }
}

/// Examines learned sizes again after workers or allocation queues came or went.
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
            self.learning.begin(now);
        }
        let mut left = LOOKED_MAX;
        while let Some(at) = self.learning.next
            && left > 0
        {
            left = left.saturating_sub(self.look_at_learned(now, at));
            self.learning.go_on_behind(at);
        }
    }
}

/// The first task of a submit.
const fn first_of(submit: u32) -> TaskSlot {
    TaskSlot { submit, index: 0 }
}

/// The longest time request among the variants of a task.
fn min_time(template: &SharedTemplate) -> Duration {
    let variants = template.task.requests.as_slice().iter();
    let longest = variants.map(|variant| variant.min_time).max();
    longest.unwrap_or_default()
}

/// Whether the run time of a task is predicted; a time request of the user takes precedence.
fn is_any_predicted(task: &TaskTemplate) -> bool {
    let mut variants = task.requests.as_slice().iter();
    task.learn.predict_permille() > 0
        // The interpreter of a call outlives it.
        && !task.is_call
        && variants.all(|variant| variant.min_time.is_zero())
}
