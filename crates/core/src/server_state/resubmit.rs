//! Submitting again what a job was made of, all of it, the tasks in some states, or those that somebody has chosen.
//!
//! With many jobs or many templates that takes long, so it goes in portions, like any large submit:
//!
//! ```text
//!  job ── bodies ──▶ asked ── limits ──▶ checked ── Prepared ──▶ draft ──▶ templates, in portions ── accept ──▶ new job
//! ```

mod awaited;

use std::collections::VecDeque;
use std::sync::Arc;

use super::draft::{Draft, Prepared};
use super::submit::NOTICES_MAX;
use super::sweep::with_gone;
use super::{ChangeKind, Ctx, Effect, Reply, RequestId, Resubmitted, ServerState, SubmitRefusal};
use crate::id::{JobId, TaskId};
use crate::job::{Job, Submit, SubmitKind, TaskSlot};
use crate::limits::check_submit;
use crate::range::{IdArray, IdRange, IndexSet};
use crate::resize::{NewRequest, resized};
use crate::selector::{Selected, Selector};
use crate::task::{Phase, TaskState};
use crate::template::{
    ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget,
};

/// A request to submit jobs again that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Resubmission {
    request: RequestId,
    /// Which tasks.
    choice: Choice,
    /// What they ask for instead of what they did.
    requests: Vec<NewRequest>,
    /// Jobs that have not had their turn.
    left: VecDeque<JobId>,
    /// The one whose turn it is.
    current: Option<Current>,
    not_found: IdArray,
    /// Those that somebody else has dropped before their turn.
    gone: Vec<JobId>,
    rows: Vec<Resubmitted>,
}

impl Resubmission {
    fn is_done(&self) -> bool {
        self.current.is_none() && self.left.is_empty()
    }
}

/// A job that is being submitted again as one submit.
#[derive(Clone, Debug)]
struct Current {
    job: JobId,
    task_count: u32,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The submit is known, and not checked yet.
    Asked(Box<SubmitSpec>),
    /// It may be submitted, and is not put in order yet.
    Checked(Box<SubmitSpec>),
    /// Its templates are being built.
    Draft(Box<Draft>),
}

/// Result of beginning with a job.
enum Begun {
    Over(Resubmitted),
    GoesOn(Current),
}

impl ServerState {
    /// Requests to submit jobs again that are not answered yet.
    #[must_use]
    pub fn resubmitting(&self) -> usize {
        self.resubmissions.len()
    }

    /// Everything that a job was made of, a submit for each that it got. `None` if there is no such job.
    #[must_use]
    pub fn specs(&self, id: JobId) -> Option<Vec<SubmitSpec>> {
        let job = self.jobs.get(id)?;
        let all = Choice::States(Vec::new());
        let submits = job.submits.iter().enumerate();
        let specs = submits.map(|(number, submit)| {
            let body = body(job, (number, submit), &all, &|_| false);
            // Of all tasks each has those that it depends on.
            let (body, _) = body.unwrap_or_else(|_| {
                crate::bug!("a task of job {id} depends on one that the job never had");
                (
                    SubmitBody::Graph(GraphSpec {
                        templates: Vec::new(),
                        tasks: Vec::new(),
                    }),
                    0,
                )
            });
            let shown = spec(job, submit, body);
            match &submit.origin {
                // Tasks submit to their own job only.
                Some(origin) => SubmitSpec {
                    target: SubmitTarget::Attach(id),
                    origin: Some(origin.clone()),
                    ..shown
                },
                None => shown,
            }
        });
        Some(specs.collect())
    }

    /// Makes a new job of each chosen one; of few small ones at once.
    pub(super) fn on_resubmit(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        (jobs, choice, requests): (&Selector, Choice, Vec<NewRequest>),
    ) {
        let Selected { rows, not_found } = self.jobs.find(jobs);
        let resubmission = Resubmission {
            request,
            choice,
            requests,
            left: self.in_order(rows),
            current: None,
            not_found,
            gone: Vec::new(),
            rows: Vec::new(),
        };
        self.go_on_resubmitting(ctx, resubmission, self.portion());
    }

    /// Does one portion for one of the requests.
    pub(super) fn resubmit_portion(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(resubmission) = self.resubmissions.pop_front() {
            self.go_on_resubmitting(ctx, resubmission, self.portion());
        }
    }

    /// Answers everybody who waits: there are no more portions.
    pub(super) fn resubmit_rest(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(resubmission) = self.resubmissions.pop_front() {
            self.go_on_resubmitting(ctx, resubmission, usize::MAX);
        }
    }

    fn go_on_resubmitting(&mut self, ctx: &mut Ctx<'_>, mut again: Resubmission, mut left: usize) {
        while left > 0 && !again.is_done() {
            // A job counts as a look at it at least: very many small ones must not become one long step.
            left -= 1;
            let begun = match again.current.take() {
                Some(current) => self.go_on_with(ctx, current, &mut left),
                None => {
                    let Some(id) = again.left.pop_front() else {
                        break;
                    };
                    match self.begin_again(ctx, id, (&again.choice, &again.requests), &mut left) {
                        Some(begun) => begun,
                        // It was there when the request came.
                        None => {
                            again.gone.push(id);
                            continue;
                        }
                    }
                }
            };
            match begun {
                Begun::Over(row) => again.rows.push(row),
                Begun::GoesOn(current) => again.current = Some(current),
            }
        }
        if !again.is_done() {
            // Others have their turn.
            self.resubmissions.push_back(again);
            return;
        }
        let reply = Reply::Resubmitted(Selected {
            rows: again.rows,
            not_found: with_gone(again.not_found, &again.gone),
        });
        ctx.emit(Effect::Reply(again.request, reply));
    }

    /// Looks at what a job was made of. `None` if there is no such job.
    fn begin_again(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        (choice, requests): (&Choice, &[NewRequest]),
        left: &mut usize,
    ) -> Option<Begun> {
        let mut bodies = match bodies(self.jobs.get(id)?, choice) {
            Ok(bodies) => bodies,
            Err(refusal) => return Some(Begun::Over(Resubmitted::Refused(id, refusal))),
        };
        for (spec, _) in &mut bodies {
            match self.still_awaited(id, spec) {
                Ok(after) => spec.after = after,
                Err(refusal) => return Some(Begun::Over(Resubmitted::Refused(id, refusal))),
            }
        }
        for (spec, _) in bodies.iter_mut().filter(|_| !requests.is_empty()) {
            resize(&mut spec.body, requests);
        }
        let task_count = bodies.iter().map(|(_, count)| count).sum();
        let mut specs = bodies.into_iter().map(|(spec, _)| spec);
        Some(match (specs.next(), specs.len()) {
            // No task is chosen.
            (None, _) => Begun::Over(Resubmitted::Nothing(id)),
            // The usual case: one submit makes a closed job by itself.
            (Some(spec), 0) => {
                *left = left.saturating_sub(size(&spec));
                Begun::GoesOn(Current {
                    job: id,
                    task_count,
                    stage: Stage::Asked(Box::new(spec)),
                })
            }
            (Some(first), _) => {
                let specs: Vec<_> = std::iter::once(first).chain(specs).collect();
                *left = left.saturating_sub(specs.iter().map(size).sum());
                let result = self.submit_together(ctx, specs);
                Begun::Over(self.note_resubmitted(ctx, (id, task_count), result))
            }
        })
    }

    /// The next step of a job that is submitted again: of few tasks all that is left.
    fn go_on_with(&mut self, ctx: &mut Ctx<'_>, current: Current, left: &mut usize) -> Begun {
        let Current {
            job,
            task_count,
            stage,
        } = current;
        let draft = match stage {
            Stage::Asked(spec) => {
                *left = left.saturating_sub(size(&spec));
                // An earlier release may have accepted what is too large for this one.
                if let Err(excess) = check_submit(&spec) {
                    let refusal = SubmitRefusal::TooLarge(excess);
                    return Begun::Over(Resubmitted::Refused(job, refusal));
                }
                return Begun::GoesOn(Current {
                    job,
                    task_count,
                    stage: Stage::Checked(spec),
                });
            }
            Stage::Checked(spec) => {
                *left = left.saturating_sub(size(&spec));
                Prepared::accepted(Arc::from(spec)).and_then(|prepared| self.draft(prepared))
            }
            Stage::Draft(draft) => Ok(draft),
        };
        let mut draft = match draft {
            Ok(draft) => draft,
            Err(refusal) => return Begun::Over(Resubmitted::Refused(job, refusal)),
        };
        *left -= self.build(&mut draft, *left);
        *left -= self.rename(&mut draft, *left);
        // The portion is used up: it goes on here with the next one.
        if !draft.is_built() || !draft.is_renamed() {
            return Begun::GoesOn(Current {
                job,
                task_count,
                stage: Stage::Draft(draft),
            });
        }
        let result = self.accept(ctx, *draft);
        Begun::Over(self.note_resubmitted(ctx, (job, task_count), result))
    }

    /// The old job names the new one.
    fn note_resubmitted(
        &mut self,
        ctx: &mut Ctx<'_>,
        (id, task_count): (JobId, u32),
        result: Result<JobId, SubmitRefusal>,
    ) -> Resubmitted {
        let new = match result {
            Ok(new) => new,
            Err(refusal) => return Resubmitted::Refused(id, refusal),
        };
        // It may have been forgotten meanwhile; the new one runs all the same.
        if let Some(job) = self.jobs.get_mut(id) {
            job.resubmitted_as = Some(new);
            ctx.persist(ChangeKind::JobResubmitted { job: id, new });
        }
        Resubmitted::Ok {
            job: id,
            new,
            task_count,
        }
    }

    /// Several submits as one closed job: all of them or none.
    fn submit_together(
        &mut self,
        ctx: &mut Ctx<'_>,
        specs: Vec<SubmitSpec>,
    ) -> Result<JobId, SubmitRefusal> {
        // All submits of a job have its name and its limits.
        let Some(first) = specs.first().map(|spec| spec.target.clone()) else {
            return Err(SubmitRefusal::TooManyJobs);
        };
        let new = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
        if specs.iter().map(|spec| spec.notify.len()).sum::<usize>() > NOTICES_MAX {
            return Err(SubmitRefusal::TooManyNotices);
        }
        // Before there is a job: an earlier release may have accepted what is too large for this one.
        let is_self_closing = matches!(first, SubmitTarget::SelfClosing { .. });
        let prepared = specs.into_iter().enumerate().map(|(number, spec)| {
            let target = if is_self_closing && number == 0 {
                first.clone()
            } else {
                SubmitTarget::Attach(new)
            };
            let prepared = Prepared::new(Box::new(SubmitSpec { target, ..spec }))?;
            Ok::<_, SubmitRefusal>(Prepared {
                is_again: true,
                ..prepared
            })
        });
        let prepared: Vec<Prepared> = prepared.collect::<Result<_, _>>()?;
        let new = match first {
            SubmitTarget::NewJob { name, max_fails } => {
                self.new_open_job(ctx, name, max_fails, None)?
            }
            // Its first submit makes it, and its last task closes it.
            SubmitTarget::SelfClosing { .. } => new,
            SubmitTarget::Attach(_) => return Err(SubmitRefusal::JobNotFound(new)),
        };
        for prepared in prepared {
            // Their tasks were in one job before, so they fit into one.
            self.submit_prepared(ctx, prepared)?;
        }
        if !is_self_closing {
            self.close_job(ctx, new);
        }
        Ok(new)
    }
}

/// Lets tasks ask for something else.
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

/// About how much is to be done for a submit, in templates and submits.
fn size(spec: &SubmitSpec) -> usize {
    match &spec.body {
        SubmitBody::Array(_) => 1,
        SubmitBody::Graph(graph) => 1 + graph.templates.len().max(graph.tasks.len()) / 8,
    }
}

/// Tasks of a job that are submitted again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// Those in these states; empty = all. What they depended on has finished, or is chosen, too; likewise jobs that they waited for.
    States(Vec<TaskState>),
    /// Of each submit of the job, in their order, those at these positions. Whatever else they depended on is done, though not by this job.
    Positions(Vec<IndexSet>),
}

impl Choice {
    /// Whether the task at a position of a submit is chosen.
    fn has(&self, (submit, index): (usize, u32), phase: Phase) -> bool {
        match self {
            Self::States(states) => states.is_empty() || states.contains(&phase.state()),
            Self::Positions(positions) => positions
                .get(submit)
                .is_some_and(|chosen| chosen.contains(index)),
        }
    }

    fn has_slot(&self, job: &Job, slot: TaskSlot) -> bool {
        let at = (slot.submit as usize, slot.index);
        job.phase(slot).is_some_and(|phase| self.has(at, phase))
    }

    /// Chosen positions of a submit, neighbours joined.
    fn ranges(&self, (number, submit): (usize, &Submit)) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        if let Self::Positions(positions) = self {
            let chosen = positions.get(number).into_iter().flat_map(IndexSet::ranges);
            let length = submit.ids.len();
            let chosen = chosen.map(|(from, to)| (from, to.min(length)));
            return chosen.filter(|(from, to)| from < to).collect();
        }
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            match ranges.last_mut() {
                _ if !self.has((number, from), phase) => {}
                Some((_, end)) if *end == from => *end = to,
                _ => ranges.push((from, to)),
            }
        }
        ranges
    }
}

/// A spec for every submit of which anything is chosen, with the number of its tasks.
fn bodies(job: &Job, choice: &Choice) -> Result<Vec<(SubmitSpec, u32)>, SubmitRefusal> {
    let added_again = added_again(job, choice);
    let is_added_again = |number: usize| added_again.get(number) == Some(&true);
    let mut specs = Vec::new();
    let submits = job.submits.iter().enumerate();
    for (number, submit) in submits.filter(|(number, _)| !is_added_again(*number)) {
        let (body, count) = body(job, (number, submit), choice, &is_added_again)?;
        // Nothing of this submit is chosen: it is not part of the new job.
        if count == 0 {
            continue;
        }
        let after = match choice {
            Choice::States(_) => submit.after.clone(),
            // Whoever chose the tasks one by one knows that what they waited for is done.
            Choice::Positions(_) => Vec::new(),
        };
        let spec = spec(job, submit, body);
        specs.push((SubmitSpec { after, ..spec }, count));
    }
    Ok(specs)
}

/// Of each submit, whether it comes from a task that runs again, which adds it again: with what it added to the old job it would be there
/// twice. What those tasks had added themselves comes from them, too.
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

/// Chosen tasks of a submit, and how many they are.
fn body(
    job: &Job,
    (number, submit): (usize, &Submit),
    choice: &Choice,
    is_added_again: &dyn Fn(usize) -> bool,
) -> Result<(SubmitBody, u32), SubmitRefusal> {
    Ok(match &submit.kind {
        SubmitKind::Array { asked, entries, .. } => {
            let chosen = choice.ranges((number, submit));
            let (ids, entries) = select_array(submit, entries.as_ref(), &chosen);
            let count = ids.len();
            let array = ArraySpec {
                ids: ArrayIds::Given(ids),
                entries,
                template: asked.clone(),
            };
            (SubmitBody::Array(array), count)
        }
        SubmitKind::Graph { .. } => {
            let graph = select_graph(job, (number, submit), choice, is_added_again)?;
            let count = u32::try_from(graph.tasks.len()).unwrap_or(u32::MAX);
            (SubmitBody::Graph(graph), count)
        }
    })
}

/// A submit of some of the tasks of a submit.
fn spec(job: &Job, submit: &Submit, body: SubmitBody) -> SubmitSpec {
    let (name, max_fails) = (job.name.clone(), job.max_fails);
    // Tasks that added tasks to the old job may add some to the new one.
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
        submit_dir: submit.submit_dir.clone(),
        stream_dir: submit.asked_stream_dir.clone(),
        after: Vec::new(),
        notify: submit.notify.clone(),
        origin: None,
        nonce: None,
        body,
    }
}

/// Chosen ids of an array with their entries; ids that stay complete stay as they were written.
fn select_array(
    submit: &Submit,
    entries: Option<&Entries>,
    chosen: &[(u32, u32)],
) -> (IdArray, Option<Entries>) {
    // All of it: the ids stay as they were written.
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

/// Chosen tasks of a graph. What they depended on is done, or is chosen too.
fn select_graph(
    job: &Job,
    (number, submit): (usize, &Submit),
    choice: &Choice,
    is_added_again: &dyn Fn(usize) -> bool,
) -> Result<GraphSpec, SubmitRefusal> {
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
    let is_chosen = |index: u32| choice.has((number, index), phase(index));
    let id = |index: u32| TaskId(submit.ids.get(index).unwrap_or_default());
    // Whoever chose the tasks one by one knows of the others that they need not run.
    let is_done = |phase: Option<Phase>| match choice {
        Choice::States(_) => phase == Some(Phase::Finished),
        Choice::Positions(_) => true,
    };
    let mut tasks = Vec::new();
    for index in graph.order().iter().copied().filter(|i| is_chosen(*i)) {
        let mut deps = Vec::new();
        let same = graph.deps(index).iter().copied();
        // A task that is not in the new job when this is submitted cannot be waited for.
        let is_added_again = |task: &TaskId| {
            job.find(*task)
                .is_some_and(|slot| is_added_again(slot.submit as usize))
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
            // A dependency that is done need not run again; one that is not must be chosen, too.
            if is_chosen {
                deps.push(dep);
            } else if !is_done(phase) {
                return Err(SubmitRefusal::DependencyNotChosen(id(index), dep));
            }
        }
        tasks.push(GraphTask {
            id: id(index),
            template: template_of.get(index as usize).copied().unwrap_or_default(),
            deps,
        });
    }
    Ok(GraphSpec {
        templates: templates.iter().map(|shared| shared.task.clone()).collect(),
        tasks,
    })
}
