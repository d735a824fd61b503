//! Tasks of an array get what those before them needed, see [`crate::sizing`]: memory, if that was asked for, and a worker
//! that lives long enough.
//!
//! What is learned changes the request of tasks that have not been handed out. They move to another queue as ranges, so
//! it costs the same for ten tasks and for ten million; and there are few such moments, see [`Learned::note_looked_at`].
//!
//! [`Learned::note_looked_at`]: crate::job::Learned

use std::sync::Arc;
use std::time::Duration;

use super::ServerState;
use super::dispatcher::Dispatcher;
use crate::class::QueueKey;
use crate::id::JobId;
use crate::job::{Learned, SharedTemplate, SubmitKind, TaskSlot};
use crate::resource::amount::Amount;
use crate::resource::request::RequestVariants;
use crate::sizing::{FirstMemory, Size, TASKS_MIN, coarse};
use crate::template::TaskTemplate;
use crate::time::Time;

/// Memory of the first tasks where nobody is known who could run them.
const FIRST_MEMORY: Amount = Amount::whole(512);

/// Submits that are looked at once more when the first worker comes.
const GUESSED_MAX: usize = 1_024;

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
            job.forget_learned();
            return;
        }
        job.learn_again();
        for number in 0..u32::try_from(job.submits.len()).unwrap_or(u32::MAX) {
            self.look_at_learned(now, (id, number));
        }
    }

    /// Gives tasks that have not been handed out what follows from those that have ended.
    pub(super) fn look_at_learned(&mut self, now: Time, at: (JobId, u32)) {
        let (id, number) = at;
        let slot = TaskSlot {
            submit: number,
            index: 0,
        };
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let found = submit.and_then(|submit| {
            let learned = submit.learned.as_ref()?;
            Some((
                Arc::clone(submit.asked_template(0)?),
                learned.size(),
                learned.template().cloned(),
            ))
        });
        let Some((asked, before, current)) = found else {
            return;
        };
        let size = self.size_of(now, at, &asked);
        if size != before {
            let class = current.as_ref().unwrap_or(&asked).class;
            let key = QueueKey::new(asked.task.priority, class);
            let template = self.sized_template(at, &asked, size);
            // What is in too many pieces keeps what it has until the next time.
            self.move_queue(at, key, (size, template));
        }
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(number as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            learned.note_looked_at();
        }
    }

    fn size_of(&mut self, now: Time, at: (JobId, u32), asked: &SharedTemplate) -> Size {
        let (id, number) = at;
        let slot = TaskSlot {
            submit: number,
            index: 0,
        };
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
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
            // Nobody has more than that, and then it would wait for ever.
            let most = self
                .offers
                .largest(now, asked.class, classes, &self.workers)
                .memory;
            let memory = learned.or(match first {
                FirstMemory::Given(amount) => Some(amount),
                FirstMemory::Share => self.offers.share(now, asked.class, classes, &self.workers),
            });
            let is_known = memory.is_some();
            let memory = memory.unwrap_or(FIRST_MEMORY);
            (
                most.map_or(memory, |most| memory.min(most)),
                is_known && most.is_some(),
            )
        });
        if let Some((_, false)) = memory
            && self.guessed.len() < GUESSED_MAX
        {
            self.guessed.insert(at);
        }
        let shortest = self.offers.lifetime_min(now, &self.workers);
        Size {
            memory: memory.map(|(memory, _)| memory),
            // Nobody ends at a known time: nothing is to be foreseen. And whatever takes long must have its chance
            // everywhere: in the first half of each life everything may start.
            min_time: shortest.map_or(Duration::ZERO, |shortest| min_time.min(shortest / 2)),
        }
    }

    /// A task was cut off by the end of its worker after it had run for so long: its next instance goes where more time is
    /// left, as far as there is. Otherwise the same would happen again and again, where the oldest workers come first.
    pub(super) fn note_cut_off(&mut self, now: Time, id: JobId, slot: TaskSlot, run: Duration) {
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let found = submit.and_then(|submit| {
            let asked = submit.asked_template(slot.index)?;
            let is_wanted = submit.learned.is_some() && is_any_predicted(&asked.task);
            submit
                .template(slot.index)
                .filter(|_| is_wanted)
                .map(Arc::clone)
        });
        let Some(had) = found else {
            return;
        };
        let classes = self.dispatcher.classes();
        let largest = self.offers.largest(now, had.class, classes, &self.workers);
        let variants = had.task.requests.as_slice().iter();
        let before = variants.map(|variant| variant.min_time).max();
        let wanted = coarse(run.saturating_mul(2));
        let min_time = largest.lifetime.map_or(wanted, |most| wanted.min(most));
        if before.is_none_or(|before| min_time <= before) {
            return;
        }
        let submit = self.jobs.get(id).and_then(|job| job.submit(slot));
        let known = submit.and_then(|submit| {
            let learned = submit.learned.as_ref()?;
            learned.known_cut_off(had.id, min_time)
        });
        let template = known.unwrap_or_else(|| {
            let size = Size {
                memory: None,
                min_time,
            };
            self.template_with(&had, size.requests(&had.task.requests))
        });
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(slot.submit as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            learned.set_cut_off(slot.index, (had.id, min_time), template);
        }
    }

    /// A template like another one, for another request.
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

    /// The first worker came that could run tasks whose memory was guessed.
    pub(super) fn look_at_guessed(&mut self, now: Time) {
        for at in std::mem::take(&mut self.guessed) {
            self.look_at_learned(now, at);
        }
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

    /// Moves what is ready of a submit to the queue of its new template, unless that would take long.
    fn move_queue(
        &mut self,
        (id, number): (JobId, u32),
        from: QueueKey,
        (size, template): (Size, Arc<SharedTemplate>),
    ) {
        let Some(ready) = self.dispatcher.take_submit(from, id, number) else {
            return;
        };
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(number as usize));
        if let Some(learned) = submit.and_then(|submit| submit.learned.as_mut()) {
            learned.set(size, template);
        }
        let mut moved = Vec::new();
        if let Some(job) = self.jobs.get(id)
            && let Some(submit) = job.submits.get(number as usize)
        {
            // Some of those that grew may have been in the same queue, and stay there.
            let parts = ready.ranges().flat_map(|(from, to)| submit.parts(from, to));
            for (from, to) in parts {
                let slot = TaskSlot {
                    submit: number,
                    index: from,
                };
                moved.extend(Dispatcher::queue_key(job, slot).map(|key| (key, from..to)));
            }
        }
        for (key, indices) in moved {
            self.dispatcher.enqueue(key, id, number, indices);
        }
        // A plan for multi-node tasks may have counted on them.
        self.dispatcher.note_plans_changed();
    }
}

/// Whether the run time of a task is predicted; a time request of the user takes precedence.
fn is_any_predicted(task: &TaskTemplate) -> bool {
    let mut variants = task.requests.as_slice().iter();
    task.learn.predict_permille() > 0
        // The interpreter of a call goes on after it.
        && !task.is_call
        && variants.all(|variant| variant.min_time.is_zero())
}
