//! Submitting again what a job was made of, all of it or the tasks in some states.
//!
//! With many jobs or many templates that takes long, so it goes in portions, like any large submit:
//!
//! ```text
//!  job ── bodies ──▶ asked ── limits ──▶ checked ── Prepared ──▶ draft ──▶ templates, in portions ── accept ──▶ new job
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::draft::{Draft, Prepared};
use super::submit::NOTICES_MAX;
use super::sweep::with_gone;
use super::{ChangeKind, Ctx, Effect, Reply, RequestId, Resubmitted, ServerState, SubmitRefusal};
use crate::id::{JobId, TaskId};
use crate::job::{Job, Submit, SubmitKind};
use crate::limits::check_submit;
use crate::range::{IdArray, IdRange};
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
    /// States of the tasks to submit; empty = all.
    states: Vec<TaskState>,
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

    /// Makes a new job of each chosen one; of few small ones at once. `states` = which tasks; empty = all.
    pub(super) fn on_resubmit(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        (jobs, states, requests): (&Selector, Vec<TaskState>, Vec<NewRequest>),
    ) {
        let Selected { rows, not_found } = self.jobs.find(jobs);
        let resubmission = Resubmission {
            request,
            states,
            requests,
            left: rows.into(),
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
                    match self.begin_again(ctx, id, (&again.states, &again.requests), &mut left) {
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
        (states, requests): (&[TaskState], &[NewRequest]),
        left: &mut usize,
    ) -> Option<Begun> {
        let mut bodies = match bodies(self.jobs.get(id)?, states) {
            Ok(bodies) => bodies,
            Err(refusal) => return Some(Begun::Over(Resubmitted::Refused(id, refusal))),
        };
        for (spec, _) in bodies.iter_mut().filter(|_| !requests.is_empty()) {
            resize(&mut spec.body, requests);
        }
        let task_count = bodies.iter().map(|(_, count)| count).sum();
        let mut specs = bodies.into_iter().map(|(spec, _)| spec);
        Some(match (specs.next(), specs.len()) {
            // No task is in any of the states.
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
            Prepared::new(Box::new(SubmitSpec { target, ..spec }))
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

/// A spec for every submit of which anything is chosen, with the number of its tasks.
fn bodies(job: &Job, states: &[TaskState]) -> Result<Vec<(SubmitSpec, u32)>, SubmitRefusal> {
    let wanted = |phase: Phase| states.is_empty() || states.contains(&phase.state());
    // A task that runs again adds its tasks again: with those of the old job they would be there twice.
    let is_added_again = |submit: &Submit| {
        let by = submit
            .origin
            .as_ref()
            .and_then(|origin| job.find(origin.task));
        by.and_then(|slot| job.phase(slot)).is_some_and(wanted)
    };
    let mut specs = Vec::new();
    for submit in job.submits.iter().filter(|submit| !is_added_again(submit)) {
        let (body, count) = match &submit.kind {
            SubmitKind::Array { asked, entries, .. } => {
                let (ids, entries) = select_array(submit, entries.as_ref(), wanted);
                let count = ids.len();
                let array = ArraySpec {
                    ids: ArrayIds::Given(ids),
                    entries,
                    template: asked.clone(),
                };
                (SubmitBody::Array(array), count)
            }
            SubmitKind::Graph { .. } => {
                let graph = select_graph(job, submit, &wanted, &is_added_again)?;
                let count = u32::try_from(graph.tasks.len()).unwrap_or(u32::MAX);
                (SubmitBody::Graph(graph), count)
            }
        };
        // Nothing of this submit is chosen: it is not part of the new job.
        if count == 0 {
            continue;
        }
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
        let spec = SubmitSpec {
            target,
            submit_dir: submit.submit_dir.clone(),
            stream_dir: submit.asked_stream_dir.clone(),
            after: Vec::new(),
            notify: submit.notify.clone(),
            origin: None,
            body,
        };
        specs.push((spec, count));
    }
    Ok(specs)
}

/// Chosen ids of an array with their entries; ids that stay complete stay as they were written.
fn select_array(
    submit: &Submit,
    entries: Option<&Entries>,
    wanted: impl Fn(Phase) -> bool,
) -> (IdArray, Option<Entries>) {
    let chosen: Vec<(u32, u32)> = chosen_ranges(submit, wanted);
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

/// Neighbouring runs of chosen phases joined.
fn chosen_ranges(submit: &Submit, wanted: impl Fn(Phase) -> bool) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
        match ranges.last_mut() {
            _ if !wanted(phase) => {}
            Some((_, end)) if *end == from => *end = to,
            _ => ranges.push((from, to)),
        }
    }
    ranges
}

/// Chosen tasks of a graph. What they depended on has finished or is chosen too.
fn select_graph(
    job: &Job,
    submit: &Submit,
    wanted: &dyn Fn(Phase) -> bool,
    is_added_again: &dyn Fn(&Submit) -> bool,
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
    let id = |index: u32| TaskId(submit.ids.get(index).unwrap_or_default());
    let mut tasks = Vec::new();
    for index in graph.order().iter().copied().filter(|i| wanted(phase(*i))) {
        let mut deps = Vec::new();
        let same = graph.deps(index).iter().copied();
        let earlier = submit.earlier_deps(index).map(|task| {
            let slot = job.find(task);
            let there = slot.filter(|slot| !job.submit(*slot).is_some_and(is_added_again));
            // A task that is not in the new job when this is submitted cannot be waited for.
            let phase = there.and_then(|slot| job.phase(slot));
            (task, phase, phase.is_some_and(wanted))
        });
        let same = same.map(|dep| (id(dep), Some(phase(dep)), wanted(phase(dep))));
        for (dep, phase, is_chosen) in same.chain(earlier) {
            // A dependency that has finished need not run again; one that has not must be chosen, too.
            if is_chosen {
                deps.push(dep);
            } else if phase != Some(Phase::Finished) {
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
