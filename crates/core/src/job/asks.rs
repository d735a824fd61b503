//! The current requests of the tasks of a submit: the factors of single tasks, the needs of
//! finished tasks, and the resulting templates. [`crate::ask`] computes the requests.
//!
//! Tasks with equal factors share a template. They stay interchangeable for the scheduler, and a
//! worker receives the template only once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Job, SharedTemplate, Submit, TaskSlot, TemplateId};
use crate::ask::{Ask, Factors};
use crate::growth::{Scale, memory};
use crate::id::InstanceId;
use crate::sizing::{Needs, TASKS_MIN, kib};
use crate::task::{Phase, TaskEnd};

/// After a restart, the server learns from at most this many tasks of a submit. More would
/// only delay the start.
const RELEARNED_MAX: usize = 100_000;

/// The requests of the tasks of a submit that differ from the submitted request.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// The factors of tasks that have some, by index and first instance. There are few such tasks.
    own: BTreeMap<(u32, InstanceId), Factors>,
    /// All templates made so far, by requested template. Workers may have any of them.
    made: BTreeMap<(TemplateId, Ask), Arc<SharedTemplate>>,
    /// `None` if learning is off.
    pub(crate) learned: Option<Box<Learned>>,
}

/// The needs of the finished tasks of an array, and the requests of the other tasks.
#[derive(Clone, Debug)]
pub struct Learned {
    pub(crate) needs: Needs,
    /// The number of finished tasks at which the requests are computed again.
    due: u64,
    /// The request of tasks without factors.
    pub(crate) ask: Ask,
    /// The current template of the tasks with this requested template and these factors.
    now: BTreeMap<(TemplateId, Factors), Arc<SharedTemplate>>,
}

impl Learned {
    /// Creates an empty state, where all tasks keep the submitted request.
    pub(crate) fn new(asked: Arc<SharedTemplate>) -> Self {
        Self {
            needs: Needs::default(),
            due: TASKS_MIN,
            ask: Ask::default(),
            now: [((asked.id, Factors::default()), asked)].into(),
        }
    }

    /// Adds a finished task. Returns whether the requests must be computed again.
    fn note(&mut self, memory_kib: u64, run: Duration) -> bool {
        self.needs.note(memory_kib, run);
        self.needs.count() >= self.due
    }

    /// Schedules the next computation after half as many more tasks, so that the total cost stays
    /// low.
    pub(crate) fn note_looked_at(&mut self) {
        let count = self.needs.count();
        self.due = TASKS_MIN.max(count + count / 2);
    }

    /// Returns the distinct requested templates and factors of tasks. Each template first occurs
    /// without factors.
    pub(crate) fn kinds(&self) -> Vec<(TemplateId, Factors)> {
        self.now.keys().copied().collect()
    }

    /// Sets the template of all tasks with this requested template and these factors.
    pub(crate) fn set(&mut self, kind: (TemplateId, Factors), template: Arc<SharedTemplate>) {
        self.now.insert(kind, template);
    }
}

impl Asks {
    /// Returns the factors of a task's next instance, or of its last one.
    #[must_use]
    pub fn own(&self, index: u32) -> Factors {
        self.own_at(index, InstanceId(u32::MAX))
    }

    /// Returns the factors of an instance of a task.
    #[must_use]
    pub fn own_at(&self, index: u32, instance: InstanceId) -> Factors {
        let until = (index, InstanceId(0))..=(index, instance);
        let last = self.own.range(until).next_back();
        last.map(|(_, own)| *own).unwrap_or_default()
    }

    /// Sets the factors of a task, starting at one of its instances. Returns whether the task
    /// learns from other tasks and is the first task with these factors. Until the requests are
    /// computed, such a task has the template of tasks that were not cut off.
    pub(crate) fn set_own(
        &mut self,
        asked: &Arc<SharedTemplate>,
        index: u32,
        from: InstanceId,
        own: Factors,
    ) -> bool {
        self.own.insert((index, from), own);
        let template = self.special(asked.id, asked.task.learn.memory.is_some(), own.uncut());
        let template = Arc::clone(template.unwrap_or(asked));
        let Some(learned) = &mut self.learned else {
            return false;
        };
        let is_new = !learned.now.contains_key(&(asked.id, own));
        if is_new {
            learned.set((asked.id, own), template);
        }
        is_new
    }

    /// Returns the current template of tasks with these factors, or `None` if they keep the
    /// submitted request.
    pub(crate) fn special(
        &self,
        asked: TemplateId,
        is_sized: bool,
        own: Factors,
    ) -> Option<&Arc<SharedTemplate>> {
        let learned = self.learned.as_ref();
        let now = learned.and_then(|learned| learned.now.get(&(asked, own)));
        now.or_else(|| self.grown(asked, is_sized, own.scale))
    }

    /// Returns the template of tasks with this scale, regardless of the needs of other tasks.
    /// `None` if they keep the submitted request.
    pub(super) fn grown(
        &self,
        asked: TemplateId,
        is_sized: bool,
        scale: Scale,
    ) -> Option<&Arc<SharedTemplate>> {
        // This is the case for most tasks.
        if scale == Scale::default() {
            return None;
        }
        self.made.get(&(asked, Ask::grown(is_sized, scale)))
    }

    /// Returns the factors of the tasks in `from..to`, by index and first instance.
    pub(crate) fn own_in(&self, from: u32, to: u32) -> Vec<(u32, InstanceId, Factors)> {
        let own = self.own.range((from, InstanceId(0))..(to, InstanceId(0)));
        own.map(|((index, at), own)| (*index, *at, *own)).collect()
    }

    /// Returns an existing template with this request.
    pub(crate) fn made(
        &self,
        asked: &Arc<SharedTemplate>,
        ask: Ask,
    ) -> Option<Arc<SharedTemplate>> {
        if ask == Ask::default() {
            return Some(Arc::clone(asked));
        }
        self.made.get(&(asked.id, ask)).map(Arc::clone)
    }

    /// Adds a template with this request.
    pub(crate) fn add(&mut self, asked: TemplateId, ask: Ask, made: Arc<SharedTemplate>) {
        self.made.insert((asked, ask), made);
    }

    /// Splits `from..to` at the tasks that have their own factors.
    pub(super) fn parts(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        let mut before = Factors::default();
        let mut add = |from: u32, to: u32, own: Factors| match parts.last_mut() {
            _ if from == to => {}
            // Neighbors with equal factors form one part.
            Some((_, end)) if before == own => *end = to,
            _ => {
                parts.push((from, to));
                before = own;
            }
        };
        let mut start = from;
        let own = self.own.range((from, InstanceId(0))..(to, InstanceId(0)));
        let mut own = own.map(|((index, _), own)| (*index, *own)).peekable();
        while let Some((index, factors)) = own.next() {
            // Only the last instance of a task counts.
            if own.peek().is_none_or(|(next, _)| *next != index) {
                add(start, index, Factors::default());
                add(index, index + 1, factors);
                start = index + 1;
            }
        }
        add(start, to, Factors::default());
        parts
    }
}

impl Job {
    /// Learns from a finished task. Returns whether the requests must be computed again.
    pub(crate) fn learn(&mut self, slot: TaskSlot, end: &TaskEnd) -> bool {
        let Some(submit) = self.submits.get_mut(slot.submit as usize) else {
            return false;
        };
        let memory = submit.needed(slot.index, end.usage.max_rss_kib);
        let learned = submit.asks.learned.as_mut();
        learned.is_some_and(|learned| learned.note(memory, end.run))
    }

    /// Discards everything learned from the job's tasks.
    pub(crate) fn forget_learned(&mut self) {
        for submit in &mut self.submits {
            submit.asks.learned = None;
            // Attempts are displayed with the requests that had grown by then.
            let own = &mut submit.asks.own;
            own.retain(|_, own| own.scale != Scale::default());
        }
    }

    /// Learns from restored tasks, at most [`RELEARNED_MAX`] of each submit.
    pub(crate) fn learn_again(&mut self) {
        for submit in &mut self.submits {
            submit.learn_again();
        }
    }
}

impl Submit {
    /// Splits `from..to` at the tasks whose requests may differ. If the submit has a single template,
    /// each part needs only one.
    pub(crate) fn parts(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let changes = self.changes(from, to).into_iter();
        changes.flat_map(|(from, to, _)| self.asks.parts(from, to))
    }

    /// Returns the memory in KiB that a finished task needed. The recorded usage is the usage of
    /// the largest process of the task, but the worker limits the sum over all processes. If the
    /// request has grown, the grant sufficed.
    fn needed(&self, index: u32, used_kib: u64) -> u64 {
        if self.asks.own(index).scale.memory <= Scale::default().memory {
            return used_kib;
        }
        let template = self.template(index);
        let granted = template.and_then(|template| memory(&template.task.requests));
        granted.map_or(used_kib, kib)
    }

    fn learn_again(&mut self) {
        let Some(mut learned) = self.asks.learned.take() else {
            return;
        };
        let runs = self.tasks.runs(0, self.tasks.len());
        let finished = runs.filter(|(_, _, phase)| *phase == Phase::Finished);
        let indices = finished.flat_map(|(from, to, _)| from..to);
        for index in indices.take(RELEARNED_MAX) {
            let record = self.tasks.record(index);
            let run = record
                .and_then(|record| Some((record, record.finished()?.since(record.started()?))));
            if let Some((record, run)) = run {
                learned.note(self.needed(index, record.usage().max_rss_kib), run);
            }
        }
        self.asks.learned = Some(learned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_beside_each_other_with_equal_factors_are_one_part() {
        let mut asks = Asks::default();
        // Task 4 grew twice, which gave it the same grant as task 5.
        for (index, instance, memory) in [
            (2, 1, 2_000),
            (3, 1, 2_000),
            (4, 1, 2_000),
            (4, 2, 3_000),
            (5, 3, 3_000),
            (9, 1, 2_000),
        ] {
            let scale = Scale::new(memory, 1_000).expect("no less than asked for");
            let wanted = Duration::ZERO;
            asks.own
                .insert((index, InstanceId(instance)), Factors { scale, wanted });
        }
        let all = [(0, 2), (2, 4), (4, 6), (6, 9), (9, 10)];
        assert_eq!(asks.parts(0, 10), all);
        assert_eq!(asks.parts(3, 5), [(3, 4), (4, 5)]);
        assert_eq!(asks.parts(8, 10), [(8, 9), (9, 10)]);
        assert_eq!(asks.parts(5, 5), []);
        let memory = |instance| asks.own_at(4, InstanceId(instance)).scale.memory;
        assert_eq!([0, 1, 2, 9].map(memory), [1_000, 2_000, 3_000, 3_000]);
    }
}
