//! Needs learned from the finished tasks of a submit, and the templates of tasks that have not
//! started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::grown::runs;
use super::{Job, SharedTemplate, Submit, TaskSlot, TemplateId};
use crate::growth::{Scale, memory};
use crate::sizing::{Needs, Size, TASKS_MIN, kib};
use crate::task::{Phase, TaskEnd};

/// Limit of tasks of a submit that are learned from after a restart: more would only delay the
/// start.
const RELEARNED_MAX: usize = 100_000;

/// Needs of the finished tasks, and the sizes derived from them.
#[derive(Clone, Debug)]
pub struct Learned {
    needs: Needs,
    /// Number of finished tasks at which the sizes are computed again.
    due: u64,
    current: Option<(Size, Arc<SharedTemplate>)>,
    /// All templates created so far: workers may have any of them. Their number grows with the
    /// logarithm of the number of tasks.
    made: BTreeMap<Size, Arc<SharedTemplate>>,
    /// Tasks that were cut off by the end of their worker, or have grown, with the request of their
    /// next instance.
    cut_off: BTreeMap<u32, CutOff>,
    /// Templates of these tasks, by request; there are few.
    for_cut_off: BTreeMap<CutOff, ForCutOff>,
    /// All templates created for them, by base template and required remaining lifetime.
    made_for_cut_off: BTreeMap<(TemplateId, Duration), Arc<SharedTemplate>>,
}

/// Request of a task that was cut off, or that has grown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CutOff {
    /// Template that it had grown to; `None` = the learned template.
    pub grown: Option<TemplateId>,
    /// Desired remaining lifetime of its worker; at least what the other tasks needed. Lower if no
    /// worker has so much.
    pub wanted: Duration,
}

/// Template of cut off tasks with one request.
#[derive(Clone, Debug)]
struct ForCutOff {
    /// Template that they had grown to.
    grown: Option<Arc<SharedTemplate>>,
    template: Arc<SharedTemplate>,
}

impl Default for Learned {
    fn default() -> Self {
        Self {
            needs: Needs::default(),
            due: TASKS_MIN,
            current: None,
            made: BTreeMap::new(),
            cut_off: BTreeMap::new(),
            for_cut_off: BTreeMap::new(),
            made_for_cut_off: BTreeMap::new(),
        }
    }
}

impl Learned {
    /// Statistics on the needs of the tasks that finished.
    #[must_use]
    pub const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Template of tasks that have not grown; `None` = as requested.
    #[must_use]
    pub fn template(&self) -> Option<&Arc<SharedTemplate>> {
        self.current.as_ref().map(|(_, template)| template)
    }

    /// Size that tasks with [`Self::template`] get.
    #[must_use]
    pub fn size(&self) -> Size {
        self.current
            .as_ref()
            .map_or_else(Size::default, |(size, _)| *size)
    }

    /// Adds a task; returns whether the sizes are due.
    pub(super) fn note(&mut self, memory_kib: u64, run: Duration) -> bool {
        self.needs.note(memory_kib, run);
        self.needs.count() >= self.due
    }

    /// Schedules the next computation for half as many more tasks, so that the total cost stays
    /// low.
    pub(crate) fn note_looked_at(&mut self) {
        let count = self.needs.count();
        self.due = TASKS_MIN.max(count + count / 2);
    }

    /// A template that was made before.
    pub(crate) fn known(&self, size: Size) -> Option<Arc<SharedTemplate>> {
        self.made.get(&size).map(Arc::clone)
    }

    /// Tasks that begin from now on get this.
    pub(crate) fn set(&mut self, size: Size, template: Arc<SharedTemplate>) {
        self.made.insert(size, Arc::clone(&template));
        self.current = Some((size, template));
    }

    /// Template of a task that was cut off.
    #[must_use]
    pub fn cut_off(&self, index: u32) -> Option<&Arc<SharedTemplate>> {
        let found = self.for_cut_off.get(self.cut_off.get(&index)?)?;
        Some(&found.template)
    }

    /// Requests of cut off tasks, with their grown templates and the templates that they get.
    pub(crate) fn all_cut_off(
        &self,
    ) -> impl Iterator<Item = (CutOff, Option<&Arc<SharedTemplate>>, &Arc<SharedTemplate>)> {
        let all = self.for_cut_off.iter();
        all.map(|(key, found)| (*key, found.grown.as_ref(), &found.template))
    }

    /// Whether another cut off task has the same request.
    pub(crate) fn has_cut_off(&self, cut_off: CutOff) -> bool {
        self.for_cut_off.contains_key(&cut_off)
    }

    /// An existing template of another cut off task.
    pub(crate) fn known_cut_off(
        &self,
        like: TemplateId,
        min_time: Duration,
    ) -> Option<Arc<SharedTemplate>> {
        self.made_for_cut_off.get(&(like, min_time)).map(Arc::clone)
    }

    /// Sets the request of the next instance of a cut off task.
    pub(crate) fn set_cut_off(&mut self, index: u32, cut_off: CutOff) {
        self.cut_off.insert(index, cut_off);
    }

    /// Sets the template of cut off tasks: a copy of another one with a longer required lifetime.
    pub(crate) fn set_for_cut_off(
        &mut self,
        key: CutOff,
        grown: Option<Arc<SharedTemplate>>,
        made: ((TemplateId, Duration), Arc<SharedTemplate>),
    ) {
        let (like, template) = made;
        let found = ForCutOff {
            grown,
            template: Arc::clone(&template),
        };
        if template.id != like.0 {
            self.made_for_cut_off.insert(like, template);
        }
        self.for_cut_off.insert(key, found);
    }

    /// The task gets something else.
    pub(crate) fn forget_cut_off(&mut self, index: u32) {
        self.cut_off.remove(&index);
    }

    /// First and last id of each run of created templates.
    pub(crate) fn template_runs(&self) -> Vec<(TemplateId, TemplateId)> {
        let made = self.made.values().chain(self.made_for_cut_off.values());
        runs(made.map(|made| made.id).collect())
    }
}

impl Job {
    /// Learns from a finished task; returns whether the sizes are due.
    pub(crate) fn learn(&mut self, slot: TaskSlot, end: &TaskEnd) -> bool {
        let submit = self.submits.get_mut(slot.submit as usize);
        let learned = submit.and_then(|submit| {
            let granted = submit.grown_memory(slot.index);
            Some((submit.learned.as_mut()?, granted))
        });
        learned.is_some_and(|(learned, granted)| {
            learned.note(granted.unwrap_or(end.usage.max_rss_kib), end.run)
        })
    }

    /// Discards everything learned from its tasks.
    pub(crate) fn forget_learned(&mut self) {
        for submit in &mut self.submits {
            submit.learned = None;
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
    /// Splits `from..to` where tasks have requests of their own: each part has one template, if the
    /// submit has.
    pub(crate) fn parts(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let parts = self.grown.parts(from, to);
        let Some(learned) = self.learned.as_ref().filter(|l| !l.cut_off.is_empty()) else {
            return parts;
        };
        let mut all = Vec::new();
        for (from, to) in parts {
            let mut start = from;
            let mut before: Option<(u32, CutOff)> = None;
            for (index, cut_off) in learned.cut_off.range(from..to) {
                let (index, next) = (*index, (*index + 1, *cut_off));
                match all.last_mut() {
                    // Neighbors with equal requests form one part.
                    Some((_, end)) if before == Some((index, *cut_off)) => *end = next.0,
                    _ => {
                        if start < index {
                            all.push((start, index));
                        }
                        all.push((index, next.0));
                    }
                }
                start = next.0;
                before = Some(next);
            }
            if start < to {
                all.push((start, to));
            }
        }
        all
    }

    /// Memory in KiB that sufficed for a task that had run out of it. Its recorded usage is that of
    /// its largest process, but its worker limits the sum of all.
    fn grown_memory(&self, index: u32) -> Option<u64> {
        let grown = self.grown.last(index)?;
        let grew = grown.scale.memory > Scale::default().memory;
        memory(&grown.template.task.requests)
            .filter(|_| grew)
            .map(kib)
    }

    fn learn_again(&mut self) {
        let Some(mut learned) = self.learned.take() else {
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
                let granted = self.grown_memory(index);
                learned.note(granted.unwrap_or(record.usage().max_rss_kib), run);
            }
        }
        self.learned = Some(learned);
    }
}
