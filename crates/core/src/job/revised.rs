//! Tasks whose priority, limits or resources a user changed after their submit.
//!
//! A revision is a change that applies to ranges of tasks of a submit. It costs the same for ten
//! tasks and for ten million. The templates of an array are made once for each revision, and those
//! of a graph when a task is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::held::Affected;
use super::{Job, SharedTemplate, Submit, SubmitKind, TemplateId, merge_ranges};
use crate::bound::Rate;
use crate::class::ClassId;
use crate::growth::MEMORY;
use crate::id::JobId;
use crate::range::{IdArray, IdRange, IndexSet};
use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry};
use crate::template::{CrashLimit, TaskTemplate};

/// The maximum number of submits of a job that one change concerns. Each takes about 2 µs.
pub const REVISED_SUBMITS_MAX: usize = 4_096;

/// The maximum number of ranges of changed tasks of a job. Each takes about 0.3 µs in a later change.
const RANGES_MAX: usize = 100_000;
/// The maximum number of different changes of tasks of a job.
const KINDS_MAX: usize = 1_000;
/// The number of tasks of a graph whose earlier values a change lists.
const BEFORE_TASKS_MAX: u32 = 10_000;
/// The number of distinct earlier values that a change lists.
const BEFORE_MAX: usize = 8;

/// New values of a job and of its tasks. `None` leaves a value as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobChange {
    /// The name of the job.
    pub name: Option<Box<str>>,
    /// The maximum number of running tasks. `Some(None)` removes this limit.
    pub max_running: Option<Option<u32>>,
    /// The maximum number of starts in a period. `Some(None)` removes this limit.
    pub max_rate: Option<Option<Rate>>,
    /// The new values of tasks.
    pub tasks: TaskChange,
}

/// New values of tasks. `None` leaves a value as it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TaskChange {
    /// The priority.
    pub priority: Option<i32>,
    /// How long an instance may run. Zero means without a limit.
    pub time_limit: Option<Duration>,
    /// The minimum remaining lifetime of the worker.
    pub time_request: Option<Duration>,
    /// How many worker losses the tasks survive.
    pub crash_limit: Option<CrashLimit>,
    /// The requests for single resources. An amount of zero removes the request.
    pub resources: Vec<ResourceEntry>,
}

/// A change of a job, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRevised {
    /// The job.
    pub job: JobId,
    /// The changed tasks.
    pub tasks: IdArray,
    /// The distinct earlier values, at most eight. In a graph, only the first tasks are examined.
    pub before: Vec<JobChange>,
    /// The new values.
    pub after: JobChange,
    /// All changes that apply to the job now.
    pub kept: KeptChanges,
}

/// All changes that apply to a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeptChanges {
    /// The number of submits when the two limits were changed. Later submits may have set them
    /// again. `None` if they were not changed.
    pub limits_set_at: Option<u32>,
    /// The maximum number of running tasks.
    pub max_running: Option<u32>,
    /// The maximum number of starts in a period.
    pub max_rate: Option<Rate>,
    /// The changed tasks.
    pub tasks: Vec<RevisedTasks>,
}

/// Tasks with the same change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevisedTasks {
    /// The tasks.
    pub ids: IdArray,
    /// The difference from what was submitted.
    pub change: TaskChange,
}

/// A change of tasks of a submit, with its effects.
#[derive(Clone, Debug)]
struct Revision {
    change: TaskChange,
    /// The ids of the changed templates, in the order of [`Submit::definitions`]. `None` until the
    /// revision is complete.
    first: Option<TemplateId>,
    /// The changed template of an array.
    template: Option<Arc<SharedTemplate>>,
    /// The class of the changed request, by class of the submitted request.
    classes: BTreeMap<ClassId, ClassId>,
}

/// The changes of the tasks of a submit, by index.
#[derive(Clone, Debug, Default)]
pub struct Revisions {
    /// The number of the revision that applies from this index up to the next key. `None` means as
    /// submitted.
    starts: BTreeMap<u32, Option<u32>>,
    made: BTreeMap<u32, Revision>,
}

impl JobChange {
    /// Returns whether only values of tasks change.
    #[must_use]
    pub const fn is_of_tasks(&self) -> bool {
        self.name.is_none() && self.max_running.is_none() && self.max_rate.is_none()
    }
}

impl TaskChange {
    /// Returns whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the resource requests change.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.time_request.is_some() || !self.resources.is_empty()
    }

    /// Returns whether workers need the new values.
    pub(crate) fn concerns_workers(&self) -> bool {
        let rest = Self {
            crash_limit: None,
            ..self.clone()
        };
        !rest.is_empty()
    }

    /// Returns the part that also applies to running tasks.
    fn of_running(&self) -> Self {
        Self {
            time_request: None,
            resources: Vec::new(),
            ..self.clone()
        }
    }

    /// Returns this change followed by another one.
    fn followed_by(&self, next: &Self) -> Self {
        let mut resources = self.resources.clone();
        for new in &next.resources {
            replace(&mut resources, new);
        }
        resources.sort();
        Self {
            priority: next.priority.or(self.priority),
            time_limit: next.time_limit.or(self.time_limit),
            time_request: next.time_request.or(self.time_request),
            crash_limit: next.crash_limit.or(self.crash_limit),
            resources,
        }
    }

    /// Returns the values of a task that this change replaces.
    fn replaced(&self, task: &TaskTemplate) -> Self {
        let request = task.requests.as_slice().first();
        let entry = |new: &ResourceEntry| {
            let mut entries = request.into_iter().flat_map(|request| &request.entries);
            let found = entries.find(|entry| entry.resource == new.resource);
            found.cloned().unwrap_or_else(|| ResourceEntry {
                resource: new.resource.clone(),
                policy: Policy::default(),
                amount: Amount::ZERO,
            })
        };
        let time = request.map(|request| request.min_time).unwrap_or_default();
        Self {
            priority: self.priority.map(|_| task.priority),
            time_limit: self.time_limit.map(|_| task.time_limit.unwrap_or_default()),
            time_request: self.time_request.map(|_| time),
            crash_limit: self.crash_limit.map(|_| task.crash_limit),
            resources: self.resources.iter().map(entry).collect(),
        }
    }

    /// Returns the changed requests of a task.
    ///
    /// # Errors
    ///
    /// Returns the reason, for users, why the change does not apply to these requests.
    fn requests(&self, task: &TaskTemplate) -> Result<RequestVariants, String> {
        if !self.is_request() {
            return Ok(task.requests.clone());
        }
        let mut variants = task.requests.as_slice().to_vec();
        for variant in &mut variants {
            variant.min_time = self.time_request.unwrap_or(variant.min_time);
        }
        let names_memory = self.resources.iter().any(|new| &*new.resource == MEMORY);
        if names_memory && task.learn.memory.is_some() {
            return Err("their memory is learned (mem=auto)".to_owned());
        }
        let single = match variants.as_mut_slice() {
            [single] if single.n_nodes == 0 => Some(single),
            _ => None,
        };
        match single {
            Some(request) => {
                for new in &self.resources {
                    replace(&mut request.entries, new);
                }
                request.entries.retain(|entry| !entry.is_removed());
            }
            None if self.resources.is_empty() => {}
            None => {
                let why = "they take whole nodes, or have several resource variants";
                return Err(why.to_owned());
            }
        }
        RequestVariants::new(variants).map_err(|error| error.to_string())
    }

    /// Returns the changed requests of a task, which were checked when it was changed.
    fn applied_requests(&self, task: &TaskTemplate) -> RequestVariants {
        self.requests(task)
            .unwrap_or_else(|_| task.requests.clone())
    }

    /// Returns the changed template of a task.
    #[must_use]
    pub fn applied(&self, task: &TaskTemplate) -> TaskTemplate {
        TaskTemplate {
            priority: self.priority.unwrap_or(task.priority),
            time_limit: match self.time_limit {
                Some(limit) => Some(limit).filter(|limit| !limit.is_zero()),
                None => task.time_limit,
            },
            crash_limit: self.crash_limit.unwrap_or(task.crash_limit),
            requests: self.applied_requests(task),
            ..task.clone()
        }
    }
}

/// Replaces the request for a resource, or adds it.
fn replace(entries: &mut Vec<ResourceEntry>, new: &ResourceEntry) {
    entries.retain(|old| old.resource != new.resource);
    entries.push(new.clone());
}

impl Revisions {
    fn number_at(&self, index: u32) -> Option<u32> {
        let (_, number) = self.starts.range(..=index).next_back()?;
        *number
    }

    fn at(&self, index: u32) -> Option<&Revision> {
        self.made.get(&self.number_at(index)?)
    }

    /// Splits `from..to` at the tasks where another revision begins.
    fn parts(&self, from: u32, to: u32) -> Vec<(u32, u32, Option<u32>)> {
        let mut parts = Vec::new();
        let (mut start, mut number) = (from, self.number_at(from));
        let later = from.saturating_add(1)..to.max(from.saturating_add(1));
        for (index, next) in self.starts.range(later) {
            parts.push((start, *index, number));
            (start, number) = (*index, *next);
        }
        if start < to {
            parts.push((start, to, number));
        }
        parts
    }

    fn set(&mut self, from: u32, to: u32, number: Option<u32>) {
        let after = self.number_at(to);
        let replaced: Vec<u32> = self.starts.range(from..to).map(|(at, _)| *at).collect();
        for at in replaced {
            self.starts.remove(&at);
        }
        self.starts.insert(from, number);
        self.starts.insert(to, after);
    }

    /// Returns the number of the revision with this change. Creates it if necessary.
    fn number_of(&mut self, change: TaskChange) -> u32 {
        let mut made = self.made.iter();
        if let Some((number, _)) = made.find(|(_, made)| made.change == change) {
            return *number;
        }
        let number = self.made.last_key_value().map_or(0, |(last, _)| last + 1);
        let revision = Revision {
            change,
            first: None,
            template: None,
            classes: BTreeMap::new(),
        };
        self.made.insert(number, revision);
        number
    }

    /// Notes the class of a task of a graph, given its class and definition as submitted.
    pub(super) fn note_class(
        &mut self,
        index: u32,
        (asked, task): (ClassId, &TaskTemplate),
        intern: &mut impl FnMut(&RequestVariants) -> ClassId,
    ) {
        let number = self.number_at(index);
        if let Some(revision) = number.and_then(|number| self.made.get_mut(&number)) {
            let change = &revision.change;
            let class = revision.classes.entry(asked);
            class.or_insert_with(|| intern(&change.applied_requests(task)));
        }
    }

    /// Removes revisions that apply to no task.
    fn tidy(&mut self) {
        let used: BTreeSet<u32> = self.starts.values().copied().flatten().collect();
        self.made.retain(|number, _| used.contains(number));
        let mut before = None;
        self.starts
            .retain(|_, number| std::mem::replace(&mut before, *number) != *number);
    }
}

/// The changed templates of tasks.
impl Submit {
    fn revision(&self, index: u32) -> Option<&Revision> {
        self.revisions.as_ref()?.at(index)
    }

    /// Returns the change of a task after its submit.
    pub fn change(&self, index: u32) -> Option<&TaskChange> {
        self.revision(index).map(|revision| &revision.change)
    }

    /// Splits `from..to` where tasks have different changes.
    pub fn changes(&self, from: u32, to: u32) -> Vec<(u32, u32, Option<&TaskChange>)> {
        let Some(revisions) = &self.revisions else {
            return vec![(from, to, None)];
        };
        let change = |number| Some(&revisions.made.get(&number)?.change);
        let parts = revisions.parts(from, to).into_iter();
        let parts = parts.map(|(from, to, number)| (from, to, number.and_then(change)));
        parts.collect()
    }

    /// Returns the id of a task's changed template, which is `number` in [`Self::definitions`].
    pub(super) fn revised_id(&self, index: u32, number: usize) -> Option<TemplateId> {
        let first = self.revision(index)?.first?;
        let number = u32::try_from(number).ok()?;
        Some(TemplateId(first.0.saturating_add(number)))
    }

    /// Returns the changed template of a task of an array.
    pub(super) fn revised_template(&self, index: u32) -> Option<&Arc<SharedTemplate>> {
        self.revision(index)?.template.as_ref()
    }

    /// Returns the changed template of an array with this id.
    pub fn changed_template(&self, id: TemplateId) -> Option<Arc<SharedTemplate>> {
        let made = self.revisions.as_ref()?.made.values();
        let mut templates = made.filter_map(|made| made.template.as_ref());
        templates.find(|template| template.id == id).map(Arc::clone)
    }

    /// Returns the class of a task, given the class of its request as submitted.
    pub(super) fn revised_class(&self, index: u32, asked: ClassId) -> ClassId {
        self.revision(index).map_or(asked, |revision| {
            let class = revision.classes.get(&asked);
            class.copied().unwrap_or(ClassId::UNKNOWN)
        })
    }

    /// Makes the templates of new revisions. `number` reserves ids for as many templates as the
    /// submit has, and returns the first one.
    pub(crate) fn complete_revisions(
        &mut self,
        mut number: impl FnMut(usize) -> TemplateId,
        mut intern: impl FnMut(&RequestVariants) -> ClassId,
    ) {
        let count = self.definitions().len();
        let made = self.revisions.as_mut().map(|revisions| &mut revisions.made);
        for revision in made.into_iter().flat_map(BTreeMap::values_mut) {
            if revision.first.is_some() {
                continue;
            }
            let id = number(count);
            revision.first = Some(id);
            if let SubmitKind::Array { template, .. } = &self.kind {
                let task = Arc::new(revision.change.applied(&template.task));
                revision.template = Some(Arc::new(SharedTemplate {
                    id,
                    header: Arc::clone(&self.header),
                    class: intern(&task.requests),
                    task,
                }));
            }
        }
    }

    /// Adds a change to the tasks in `from..to`. With `is_replaced`, it replaces earlier changes.
    fn revise(&mut self, from: u32, to: u32, change: &TaskChange, is_replaced: bool) {
        let submitted = match &self.kind {
            SubmitKind::Array { template, .. } => Some(Arc::clone(&template.task)),
            SubmitKind::Graph { .. } => None,
        };
        let revisions = self.revisions.get_or_insert_default();
        let mut numbers = BTreeMap::new();
        for (from, to, had) in revisions.parts(from, to) {
            let number = *numbers.entry(had).or_insert_with(|| {
                let had = had.filter(|_| !is_replaced);
                let had = had.and_then(|had| revisions.made.get(&had));
                let change =
                    had.map_or_else(|| change.clone(), |had| had.change.followed_by(change));
                // A change that was taken back is none.
                let is_none = submitted
                    .as_ref()
                    .is_some_and(|task| change.applied(task) == **task);
                (!is_none).then(|| revisions.number_of(change))
            });
            revisions.set(from, to, number);
        }
        self.priority_max = self.priority_max.max(change.priority.unwrap_or(i32::MIN));
    }

    /// Adds the values of tasks that a change replaces.
    fn note_replaced(&self, tasks: &IndexSet, change: &TaskChange, all: &mut Vec<TaskChange>) {
        let is_array = matches!(self.kind, SubmitKind::Array { .. });
        let mut last = None;
        let parts = tasks.ranges().flat_map(|(from, to)| self.changes(from, to));
        for (from, to, had) in parts {
            // The tasks of an array have the same template.
            let count = if is_array { 1 } else { BEFORE_TASKS_MAX };
            for index in from..to.min(from.saturating_add(count)) {
                if all.len() == BEFORE_MAX {
                    return;
                }
                let submitted = self.submitted_definition(index);
                let values = (submitted.map(|task| change.replaced(task)), had);
                // Most tasks have the same values. A changed template costs a copy.
                if last.as_ref() == Some(&values) {
                    continue;
                }
                last = Some(values);
                let task = self.asked_definition(index);
                let values = task.map(|task| change.replaced(&task));
                all.extend(values.filter(|values| !all.contains(values)));
            }
        }
    }

    /// Checks a change of the requests of the tasks in `from..to`.
    fn check_change(&self, (from, to): (u32, u32), change: &TaskChange) -> Result<(), String> {
        let is_array = matches!(self.kind, SubmitKind::Array { .. });
        for (from, to, had) in self.changes(from, to) {
            let whole = had.map_or_else(|| change.clone(), |had| had.followed_by(change));
            let to = if is_array { from + 1 } else { to };
            let mut last: Option<&Arc<TaskTemplate>> = None;
            for index in from..to {
                let Some(task) = self.submitted_definition(index) else {
                    continue;
                };
                // Most tasks of a graph have the same requests.
                let is_alike = |last: &Arc<TaskTemplate>| {
                    last.requests == task.requests && last.learn == task.learn
                };
                if !last.is_some_and(is_alike) {
                    whole.requests(task)?;
                }
                last = Some(task);
            }
        }
        Ok(())
    }
}

impl Job {
    /// Changes the unfinished tasks among `tasks`, or all of them. Running tasks keep their requests.
    /// Returns the tasks and their distinct earlier values.
    ///
    /// # Errors
    ///
    /// Returns the reason, for users, why nothing was changed.
    pub(crate) fn revise(
        &mut self,
        tasks: Option<&IdArray>,
        change: &TaskChange,
    ) -> Result<(Affected, Vec<TaskChange>), String> {
        let mut found = self.affected(tasks);
        self.check_change(tasks.is_none(), &found, change)?;
        let of_running = change.of_running();
        found.changed.clone_from(&found.waiting);
        if !of_running.is_empty() {
            found.change_running();
        }
        let mut before = Vec::new();
        for (tasks, change) in [(&found.waiting, change), (&found.running, &of_running)] {
            for (number, tasks) in tasks {
                let submit = self.submits.get_mut(*number as usize);
                let Some(submit) = submit.filter(|_| !change.is_empty()) else {
                    continue;
                };
                submit.note_replaced(tasks, change, &mut before);
                for (from, to) in tasks.ranges() {
                    submit.revise(from, to, change, false);
                }
            }
        }
        for number in found.changed.keys() {
            let submit = self.submits.get_mut(*number as usize);
            if let Some(revisions) = submit.and_then(|submit| submit.revisions.as_mut()) {
                revisions.tidy();
            }
        }
        Ok((found, before))
    }

    /// Checks a change of tasks.
    fn check_change(
        &self,
        is_whole: bool,
        found: &Affected,
        change: &TaskChange,
    ) -> Result<(), String> {
        for (number, tasks) in found.waiting.iter().filter(|_| change.is_request()) {
            let Some(submit) = self.submits.get(*number as usize) else {
                continue;
            };
            for part in tasks.ranges() {
                submit.check_change(part, change)?;
            }
        }
        let all = [&found.waiting, &found.running].into_iter().flatten();
        let ranges = all.clone().map(|(_, tasks)| tasks.ranges().count());
        self.check_count(is_whole, ranges.sum())?;
        let submits: BTreeSet<u32> = all.map(|(number, _)| *number).collect();
        match submits.len() {
            count if count > REVISED_SUBMITS_MAX => Err(format!(
                "they belong to {count} submits of the job, and at most {REVISED_SUBMITS_MAX} can \
                 be changed at once; choose some of them with --tasks"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the job does not get too many different changes, because each change stores all.
    /// A change of all tasks replaces known ranges, so it can always take back the others.
    fn check_count(&self, is_whole: bool, added: usize) -> Result<(), String> {
        let submits = self.submits.iter();
        let (mut ranges, mut kinds) = (0, 0);
        for revisions in submits.filter_map(|submit| submit.revisions.as_ref()) {
            ranges += revisions.starts.values().flatten().count();
            kinds += revisions.made.len();
        }
        let is_too_many = match is_whole {
            true => added > RANGES_MAX,
            false => ranges + added > RANGES_MAX || kinds > KINDS_MAX,
        };
        match is_too_many {
            true => Err(format!(
                "the changed tasks would form more than {RANGES_MAX} ranges of consecutive ids, \
                 or have more than {KINDS_MAX} different changes"
            )),
            false => Ok(()),
        }
    }

    /// Returns the changes that apply to tasks of the job.
    #[must_use]
    pub fn changes(&self) -> Vec<RevisedTasks> {
        let mut all: BTreeMap<&TaskChange, Vec<IdRange>> = BTreeMap::new();
        for submit in self.submits.iter().filter(|it| it.revisions.is_some()) {
            for (from, to, change) in submit.changes(0, submit.ids.len()) {
                if let Some(change) = change {
                    all.entry(change)
                        .or_default()
                        .extend(submit.ids.slice(from, to));
                }
            }
        }
        let revised = |(change, ids): (&TaskChange, _)| RevisedTasks {
            ids: merge_ranges(ids),
            change: change.clone(),
        };
        let mut all: Vec<_> = all.into_iter().map(revised).collect();
        all.sort_by_key(|revised| revised.ids.get(0));
        all
    }

    /// Restores changes of tasks. Returns the numbers of the changed submits.
    pub fn restore_changes(&mut self, changes: &[RevisedTasks]) -> BTreeSet<u32> {
        let mut submits = BTreeSet::new();
        for RevisedTasks { ids, change } in changes {
            for (slot, count) in self.index.runs(ids) {
                if let Some(submit) = self.submits.get_mut(slot.submit as usize) {
                    submit.revise(slot.index, slot.index + count, change, true);
                    submits.insert(slot.submit);
                }
            }
        }
        submits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(value: i32) -> TaskChange {
        TaskChange {
            priority: Some(value),
            ..TaskChange::default()
        }
    }

    #[test]
    fn parts_follow_the_latest_change_of_each_task() {
        let mut all = Revisions::default();
        let (a, b) = (all.number_of(priority(1)), all.number_of(priority(2)));
        assert_eq!(all.number_of(priority(1)), a);
        all.set(2, 8, Some(a));
        all.set(4, 6, Some(b));
        all.set(5, 6, None);
        let parts = [
            (0, 2, None),
            (2, 4, Some(a)),
            (4, 5, Some(b)),
            (5, 6, None),
            (6, 8, Some(a)),
            (8, 10, None),
        ];
        assert_eq!(all.parts(0, 10), parts);
        assert_eq!(all.parts(3, 5), [(3, 4, Some(a)), (4, 5, Some(b))]);
        assert_eq!(all.parts(9, 9), []);
        all.set(4, 6, Some(a));
        all.tidy();
        assert_eq!(
            all.parts(0, 10),
            [(0, 2, None), (2, 8, Some(a)), (8, 10, None)]
        );
        assert_eq!(all.made.len(), 1);
    }

    #[test]
    fn a_later_change_replaces_only_what_it_names() {
        let entry = |name: &str, amount| ResourceEntry {
            resource: name.into(),
            policy: Policy::default(),
            amount: Amount::whole(amount),
        };
        let first = TaskChange {
            resources: vec![entry("cpus", 2), entry("mem", 100)],
            ..priority(1)
        };
        let second = TaskChange {
            time_limit: Some(Duration::ZERO),
            resources: vec![entry("mem", 0)],
            ..TaskChange::default()
        };
        let both = first.followed_by(&second);
        assert_eq!(
            (both.priority, both.time_limit),
            (Some(1), Some(Duration::ZERO))
        );
        assert_eq!(both.resources, [entry("cpus", 2), entry("mem", 0)]);
        let task = crate::testing::template(&["true"]);
        let changed = both.applied(&task);
        assert_eq!(changed.requests.as_slice()[0].entries, [entry("cpus", 2)]);
        assert_eq!((changed.priority, changed.time_limit), (1, None));
        assert_eq!(both.replaced(&task).applied(&changed), task, "taken back");
    }
}
