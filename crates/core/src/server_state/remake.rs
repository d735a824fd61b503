//! The content of a resubmitted job. It depends only on the original job. With very many tasks, it
//! is therefore prepared outside the state, from a copy.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::prepared::{BodyEncoder, Prepared, is_large};
use super::refusal::SubmitRefusal;
use crate::bound::SubmitLimits;
use crate::id::{JobId, TaskId};
use crate::job::{Job, Submit, SubmitKind, TaskChange, TaskSlot};
use crate::limits::check_submit;
use crate::range::{IdArray, IdRange, IndexSet};
use crate::resize::{NewRequest, resized};
use crate::selector::{Selected, Selector};
use crate::task::{Phase, TaskState};
use crate::template::{
    ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget,
    TaskTemplate,
};

/// A request to resubmit jobs.
#[derive(Clone, Debug)]
pub struct Again {
    /// The jobs.
    pub(super) jobs: Selector,
    /// The result of the lookup. `None` if the jobs have not been looked up yet.
    pub(super) found: Option<Selected<JobId>>,
    /// Which tasks of the jobs to resubmit.
    pub(super) choice: Choice,
    /// New requests for certain kinds of tasks.
    pub(super) requests: Vec<NewRequest>,
    /// The jobs that have already been prepared.
    pub(super) remade: BTreeMap<JobId, Result<Vec<Part>, SubmitRefusal>>,
    /// The value that [`Self::keep`] keeps alive.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// One submit of a resubmitted job.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Further submits of a job refer to the old job, because the new job is not known yet.
    pub(super) prepared: Prepared,
    pub(super) task_count: u32,
}

impl Part {
    /// Returns whether this part creates a new job.
    pub(super) fn makes_job(&self) -> bool {
        !matches!(self.prepared.spec.target, SubmitTarget::Attach(_))
    }
}

impl Again {
    /// Selects the tasks in these states, or all tasks if `states` is empty.
    #[must_use]
    pub const fn states(jobs: Selector, states: Vec<TaskState>, requests: Vec<NewRequest>) -> Self {
        Self::new(jobs, Choice::States(states), requests)
    }

    /// Selects the tasks at these positions of each submit of a job.
    #[must_use]
    pub fn positions(job: JobId, positions: Vec<IndexSet>) -> Self {
        let jobs = Selector::Ids(IdArray::single(job.as_u32()));
        Self::new(jobs, Choice::Positions(positions), Vec::new())
    }

    const fn new(jobs: Selector, choice: Choice, requests: Vec<NewRequest>) -> Self {
        Self {
            jobs,
            found: None,
            choice,
            requests,
            remade: BTreeMap::new(),
            kept: None,
        }
    }

    /// Returns the jobs, whether known or unknown.
    #[must_use]
    pub const fn jobs(&self) -> &Selector {
        &self.jobs
    }

    /// Limits the request to these jobs. Later jobs are not included.
    pub fn keep_to(&mut self, found: Selected<JobId>) {
        self.found = Some(found);
    }

    /// Keeps a value alive until everything is submitted or rejected, because copies of jobs may be
    /// in memory until then.
    pub fn keep(&mut self, kept: Arc<dyn Any + Send + Sync>) {
        self.kept = Some(kept);
    }

    /// Prepares one of the jobs, which takes long if the job has very many tasks. Later changes of
    /// its tasks are ignored.
    pub fn look_at(&mut self, job: &Job, encoder: Option<BodyEncoder>) {
        let mut remade = self.remake(job);
        if let (Ok(parts), Some(encoder)) = (&mut remade, encoder) {
            parts
                .iter_mut()
                .for_each(|part| part.prepared.encode(encoder));
        }
        self.remade.insert(job.id, remade);
    }

    /// Returns the submits of a job, restricted to the chosen tasks.
    pub(super) fn remake(&self, job: &Job) -> Result<Vec<Part>, SubmitRefusal> {
        let bodies = bodies(job, &self.choice)?;
        let is_single = bodies.len() == 1;
        let parts = bodies.into_iter().enumerate();
        let parts = parts.map(|(number, (mut spec, task_count))| {
            if !self.requests.is_empty() {
                resize(&mut spec.body, &self.requests);
            }
            let makes_job = number == 0 && matches!(spec.target, SubmitTarget::SelfClosing { .. });
            if !is_single && !makes_job {
                spec.target = SubmitTarget::Attach(job.id);
            }
            // An earlier release may have accepted sizes that this one rejects.
            check_submit(&spec).map_err(SubmitRefusal::TooLarge)?;
            Ok(Part {
                prepared: Prepared::accepted(Arc::new(spec))?,
                task_count,
            })
        });
        parts.collect()
    }
}

/// Returns whether a job has so many tasks that examining each of them takes long.
#[must_use]
pub fn is_large_job(job: &Job) -> bool {
    is_large(listed(job))
}

/// Returns the number of a job's tasks that are examined individually.
pub(super) fn listed(job: &Job) -> usize {
    let sizes = job.submits.iter().map(|submit| match &submit.kind {
        SubmitKind::Array { entries, .. } => entries.as_ref().map_or(0, Entries::len),
        SubmitKind::Graph { template_of, .. } => template_of.len(),
    });
    sizes.sum()
}

/// Returns the specs of all submits of a job.
#[must_use]
pub fn specs(job: &Job) -> Vec<SubmitSpec> {
    let all = Selection {
        job,
        choice: &Choice::States(Vec::new()),
        added_again: Vec::new(),
    };
    let submits = job.submits.iter().zip(0..);
    let specs = submits.map(|(submit, number)| {
        // All tasks are included, and so are all dependencies.
        let bodies = all.bodies(number, submit).unwrap_or_else(|_| {
            crate::bug!(
                "a task of job {} depends on one that the job never had",
                job.id
            );
            Vec::new()
        });
        let shown = bodies.into_iter().zip(0..);
        let shown = shown.map(|((body, _), part)| spec(job, submit, body, part));
        shown.map(|shown| match &submit.origin {
            // Tasks submit only to the job that they belong to.
            Some(origin) => SubmitSpec {
                target: SubmitTarget::Attach(job.id),
                origin: Some(origin.clone()),
                ..shown
            },
            None => shown,
        })
    });
    specs.flatten().collect()
}

/// Applies new requests to the tasks.
fn resize(body: &mut SubmitBody, requests: &[NewRequest]) {
    match body {
        SubmitBody::Array(array) => array.template = resized(&array.template, requests),
        SubmitBody::Graph(graph) => {
            for template in &mut graph.templates {
                *template = resized(template, requests);
            }
        }
    }
}

/// Which tasks of a job are resubmitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// The tasks in these states, or all tasks if empty. Their dependencies must have finished or
    /// be chosen as well. The same applies to jobs that they waited for.
    States(Vec<TaskState>),
    /// The tasks at these positions of each submit, in order. All other dependencies count as done,
    /// but this job need not have finished them.
    Positions(Vec<IndexSet>),
}

impl Choice {
    /// Returns whether the task at a position of a submit is chosen.
    fn has(&self, slot: TaskSlot, phase: Phase) -> bool {
        match self {
            Self::States(states) => states.is_empty() || states.contains(&phase.state()),
            Self::Positions(positions) => positions
                .get(slot.submit as usize)
                .is_some_and(|chosen| chosen.contains(slot.index)),
        }
    }

    fn has_slot(&self, job: &Job, slot: TaskSlot) -> bool {
        job.phase(slot).is_some_and(|phase| self.has(slot, phase))
    }

    /// Returns the first chosen call of a submit whose arguments were dropped.
    fn without_arguments(&self, number: u32, submit: &Submit) -> Option<TaskId> {
        let SubmitKind::Array { asked, .. } = &submit.kind else {
            return None;
        };
        let is_without = |index: &u32| !submit.has_arguments(*index);
        let chosen = self.ranges(number, submit).into_iter();
        let mut chosen = chosen
            .filter(|_| asked.is_call)
            .flat_map(|(from, to)| from..to);
        let found = chosen.find(is_without)?;
        submit.ids.get(found).map(TaskId)
    }

    /// Returns the chosen positions of a submit, with neighboring positions merged.
    fn ranges(&self, number: u32, submit: &Submit) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        if let Self::Positions(positions) = self {
            let chosen = positions.get(number as usize);
            let chosen = chosen.into_iter().flat_map(IndexSet::ranges);
            let length = submit.ids.len();
            let chosen = chosen.map(|(from, to)| (from, to.min(length)));
            return chosen.filter(|(from, to)| from < to).collect();
        }
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            let slot = TaskSlot::new(number, from);
            match ranges.last_mut() {
                _ if !self.has(slot, phase) => {}
                Some((_, end)) if *end == from => *end = to,
                _ => ranges.push((from, to)),
            }
        }
        ranges
    }
}

/// Returns a spec for each submit with chosen tasks, and the number of chosen tasks.
fn bodies(job: &Job, choice: &Choice) -> Result<Vec<(SubmitSpec, u32)>, SubmitRefusal> {
    let selection = Selection {
        job,
        choice,
        added_again: added_again(job, choice),
    };
    let mut specs = Vec::new();
    for (submit, number) in job.submits.iter().zip(0..) {
        if selection.is_added_again(number) {
            continue;
        }
        if let Some(task) = choice.without_arguments(number, submit) {
            return Err(SubmitRefusal::ArgumentsDropped(task));
        }
        for ((body, count), part) in selection.bodies(number, submit)?.into_iter().zip(0..) {
            // No task of this submit is chosen, so the submit is not part of the new job.
            if count == 0 {
                continue;
            }
            let after = match choice {
                Choice::States(_) => submit.after.clone(),
                // A client that chose single tasks knows that their conditions are met.
                Choice::Positions(_) => Vec::new(),
            };
            let spec = spec(job, submit, body, part);
            specs.push((SubmitSpec { after, ..spec }, count));
        }
    }
    Ok(specs)
}

/// Returns, for each submit, whether it was created by a task that runs again and will repeat it. A
/// copy of such a submit would be a duplicate. Applies transitively.
fn added_again(job: &Job, choice: &Choice) -> Vec<bool> {
    let mut again: Vec<bool> = Vec::with_capacity(job.submits.len());
    for submit in &job.submits {
        let by = submit.origin.as_ref();
        let by = by.and_then(|origin| job.find(origin.task));
        again.push(by.is_some_and(|slot| {
            again.get(slot.submit as usize) == Some(&true) || choice.has_slot(job, slot)
        }));
    }
    again
}

/// The tasks of a job that are resubmitted.
struct Selection<'a> {
    job: &'a Job,
    choice: &'a Choice,
    /// The result of [`added_again`]. Missing submits are not added again.
    added_again: Vec<bool>,
}

impl Selection<'_> {
    fn is_added_again(&self, submit: u32) -> bool {
        self.added_again.get(submit as usize) == Some(&true)
    }

    /// Returns the chosen tasks of a submit and their number. An array whose tasks were changed
    /// differently becomes several ones.
    fn bodies(
        &self,
        number: u32,
        submit: &Submit,
    ) -> Result<Vec<(SubmitBody, u32)>, SubmitRefusal> {
        let SubmitKind::Array { asked, entries, .. } = &submit.kind else {
            let graph = self.graph(number, submit)?;
            let count = u32::try_from(graph.tasks.len()).unwrap_or(u32::MAX);
            return Ok(vec![(SubmitBody::Graph(graph), count)]);
        };
        let mut changes = BTreeMap::<Option<&TaskChange>, Vec<(u32, u32)>>::new();
        for (from, to) in self.choice.ranges(number, submit) {
            for (from, to, change) in submit.changes(from, to) {
                changes.entry(change).or_default().push((from, to));
            }
        }
        if changes.is_empty() {
            changes.insert(None, Vec::new());
        }
        let bodies = changes.into_iter().map(|(change, chosen)| {
            let (ids, entries) = select_array(submit, entries.as_ref(), &chosen);
            let count = ids.len();
            let array = ArraySpec {
                ids: ArrayIds::Given(ids),
                entries,
                template: changed(asked, change),
            };
            (SubmitBody::Array(array), count)
        });
        Ok(bodies.collect())
    }

    /// Returns the chosen tasks of a graph. Their dependencies must be done or chosen as well.
    fn graph(&self, number: u32, submit: &Submit) -> Result<GraphSpec, SubmitRefusal> {
        let (job, choice) = (self.job, self.choice);
        let SubmitKind::Graph {
            templates,
            template_of,
            graph,
            ..
        } = &submit.kind
        else {
            return Ok(GraphSpec {
                templates: Vec::new(),
                tasks: Vec::new(),
            });
        };
        let phase = |index: u32| submit.tasks.phase(index).unwrap_or(Phase::Aborted);
        let is_chosen = |index: u32| {
            let slot = TaskSlot::new(number, index);
            choice.has(slot, phase(index))
        };
        let id = |index: u32| TaskId(submit.ids.get(index).unwrap_or_default());
        // A client that chose individual tasks knows that the other tasks need not run.
        let is_done = |phase: Option<Phase>| match choice {
            Choice::States(_) => phase == Some(Phase::Finished),
            Choice::Positions(_) => true,
        };
        let mut named = NamedTemplates::new(templates);
        let mut tasks = Vec::new();
        for index in graph.order().iter().copied().filter(|i| is_chosen(*i)) {
            let mut deps = Vec::new();
            let same = graph.deps(index).iter().copied();
            // A task that does not exist when the job is submitted cannot be a dependency.
            let is_added_again = |task: &TaskId| {
                job.find(*task)
                    .is_some_and(|slot| self.is_added_again(slot.submit))
            };
            if let Some(dep) = submit.earlier_deps(index).find(is_added_again) {
                return Err(SubmitRefusal::DependencyAddedAgain(id(index), dep));
            }
            let earlier = submit.earlier_deps(index).map(|task| {
                let slot = job.find(task);
                let phase = slot.and_then(|slot| job.phase(slot));
                (
                    task,
                    phase,
                    slot.is_some_and(|slot| choice.has_slot(job, slot)),
                )
            });
            let same = same.map(|dep| (id(dep), Some(phase(dep)), is_chosen(dep)));
            for (dep, phase, is_chosen) in same.chain(earlier) {
                // A finished dependency need not run again. Any other dependency must be chosen as
                // well.
                if is_chosen {
                    deps.push(dep);
                } else if !is_done(phase) {
                    return Err(SubmitRefusal::DependencyNotChosen(id(index), dep));
                }
            }
            let template = template_of.get(index as usize).copied().unwrap_or_default();
            tasks.push(GraphTask {
                id: id(index),
                template: named.number(template, submit.change(index)),
                deps,
            });
        }
        Ok(GraphSpec {
            templates: named.all,
            tasks,
        })
    }
}

/// The templates of a graph, also of tasks that were changed.
struct NamedTemplates<'a> {
    all: Vec<Arc<TaskTemplate>>,
    changed: BTreeMap<(u32, &'a TaskChange), u32>,
}

impl<'a> NamedTemplates<'a> {
    fn new(submitted: &[Arc<TaskTemplate>]) -> Self {
        Self {
            all: submitted.to_vec(),
            changed: BTreeMap::new(),
        }
    }

    /// Returns the number of a template after a change.
    fn number(&mut self, template: u32, change: Option<&'a TaskChange>) -> u32 {
        let (Some(change), Some(asked)) = (change, self.all.get(template as usize)) else {
            return template;
        };
        let asked = Arc::clone(asked);
        *self.changed.entry((template, change)).or_insert_with(|| {
            self.all.push(changed(&asked, Some(change)));
            u32::try_from(self.all.len() - 1).unwrap_or(u32::MAX)
        })
    }
}

/// Returns a template with a change of its tasks after the submit.
fn changed(asked: &Arc<TaskTemplate>, change: Option<&TaskChange>) -> Arc<TaskTemplate> {
    match change {
        Some(change) => Arc::new(change.applied(asked)),
        None => Arc::clone(asked),
    }
}

/// Returns the spec of a submit that contains some of the tasks of another submit. `part` numbers the
/// specs of that submit.
fn spec(job: &Job, submit: &Submit, body: SubmitBody, part: u32) -> SubmitSpec {
    let (name, max_fails) = (job.name.clone(), job.max_fails);
    // Tasks that were able to submit to the old job can submit to the new one.
    let target = if job.closes_itself {
        SubmitTarget::SelfClosing {
            name,
            max_fails,
            tasks_max: job.tasks_max,
        }
    } else {
        SubmitTarget::NewJob { name, max_fails }
    };
    SubmitSpec {
        target,
        submit_dir: submit.header.submit_dir.clone(),
        stream_dir: submit.asked_stream_dir.clone(),
        after: Vec::new(),
        // Users are notified once.
        notify: submit
            .notify
            .iter()
            .filter(|_| part == 0)
            .cloned()
            .collect(),
        origin: None,
        nonce: None,
        notes: submit.notes.clone(),
        limits: SubmitLimits {
            uses: submit.limits.uses.clone(),
            max_running: job.max_running,
            max_rate: job.max_rate,
        },
        body,
    }
}

/// Returns the chosen ids of an array and their entries. A complete range keeps its notation.
fn select_array(
    submit: &Submit,
    entries: Option<&Entries>,
    chosen: &[(u32, u32)],
) -> (IdArray, Option<Entries>) {
    // All tasks are chosen, so the ids keep their notation.
    if chosen == [(0, submit.ids.len())] {
        return (submit.ids.clone(), entries.cloned());
    }
    let ids: Vec<IdRange> = chosen
        .iter()
        .flat_map(|(from, to)| submit.ids.slice(*from, *to))
        .collect();
    let entries = entries.map(|entries| {
        let texts = chosen.iter().flat_map(|(from, to)| *from..*to);
        let texts: Vec<&[u8]> = texts.filter_map(|index| entries.get(index)).collect();
        let lengths = texts.iter().map(|text| text.len() as u64);
        Entries::new(texts.concat(), lengths)
    });
    (IdArray::new(ids).unwrap_or_default(), entries.flatten())
}
