//! Submitting again what a job was made of, all of it or the tasks in some states.

use super::draft::Prepared;
use super::submit::NOTICES_MAX;
use super::{ChangeKind, Ctx, Resubmitted, ServerState, SubmitRefusal};
use crate::id::{JobId, TaskId};
use crate::job::{Job, Submit, SubmitKind};
use crate::range::{IdArray, IdRange};
use crate::selector::{Selected, Selector};
use crate::task::{Phase, TaskState};
use crate::template::{
    ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget,
};

impl ServerState {
    /// Makes a new job of each chosen one. `states` = which tasks; empty = all.
    pub(super) fn resubmit(
        &mut self,
        ctx: &mut Ctx<'_>,
        jobs: &Selector,
        states: &[TaskState],
    ) -> Selected<Resubmitted> {
        self.jobs
            .find(jobs)
            .filter_map(|id| self.resubmit_job(ctx, id, states))
    }

    /// `None` if there is no such job.
    fn resubmit_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        states: &[TaskState],
    ) -> Option<Resubmitted> {
        let job = self.jobs.get(id)?;
        let bodies = match bodies(job, states) {
            Ok(bodies) => bodies,
            Err(refusal) => return Some(Resubmitted::Refused(id, refusal)),
        };
        let task_count = bodies.iter().map(|(_, count)| count).sum();
        let mut specs = bodies.into_iter().map(|(spec, _)| spec);
        let result = match (specs.next(), specs.len()) {
            // No task is in any of the states.
            (None, _) => return Some(Resubmitted::Nothing(id)),
            // The usual case: one submit makes a closed job by itself.
            (Some(spec), 0) => self.submit(ctx, spec),
            (Some(first), _) => {
                let specs = std::iter::once(first).chain(specs).collect();
                self.submit_together(ctx, specs)
            }
        };
        Some(match result {
            Ok(new) => {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.resubmitted_as = Some(new);
                    let resubmitted = ChangeKind::JobResubmitted { job: id, new };
                    ctx.persist(resubmitted);
                }
                Resubmitted::Ok {
                    job: id,
                    new,
                    task_count,
                }
            }
            Err(refusal) => Resubmitted::Refused(id, refusal),
        })
    }

    /// Several submits as one closed job: all of them or none.
    fn submit_together(
        &mut self,
        ctx: &mut Ctx<'_>,
        specs: Vec<SubmitSpec>,
    ) -> Result<JobId, SubmitRefusal> {
        // All submits of a job have its name and its limit.
        let Some((name, max_fails)) = specs.first().and_then(|spec| match &spec.target {
            SubmitTarget::NewJob { name, max_fails } => Some((name.clone(), *max_fails)),
            SubmitTarget::Attach(_) => None,
        }) else {
            return Err(SubmitRefusal::TooManyJobs);
        };
        let new = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
        if specs.iter().map(|spec| spec.notify.len()).sum::<usize>() > NOTICES_MAX {
            return Err(SubmitRefusal::TooManyNotices);
        }
        // Before there is a job: an earlier release may have accepted what is too large for this one.
        let prepared = specs.into_iter().map(|spec| {
            let target = SubmitTarget::Attach(new);
            Prepared::new(Box::new(SubmitSpec { target, ..spec }))
        });
        let prepared: Vec<Prepared> = prepared.collect::<Result<_, _>>()?;
        let new = self.new_open_job(ctx, name, max_fails)?;
        for prepared in prepared {
            // Their tasks were in one job before, so they fit into one.
            self.submit_prepared(ctx, prepared)?;
        }
        self.close_job(ctx, new);
        Ok(new)
    }
}

/// A spec for every submit of which anything is chosen, with the number of its tasks.
fn bodies(job: &Job, states: &[TaskState]) -> Result<Vec<(SubmitSpec, u32)>, SubmitRefusal> {
    let wanted = |phase: Phase| states.is_empty() || states.contains(&phase.state());
    let mut specs = Vec::new();
    for submit in &job.submits {
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
                let graph = select_graph(submit, wanted)?;
                let count = u32::try_from(graph.tasks.len()).unwrap_or(u32::MAX);
                (SubmitBody::Graph(graph), count)
            }
        };
        // Nothing of this submit is chosen: it is not part of the new job.
        if count == 0 {
            continue;
        }
        let spec = SubmitSpec {
            target: SubmitTarget::NewJob {
                name: job.name.clone(),
                max_fails: job.max_fails,
            },
            submit_dir: submit.submit_dir.clone(),
            stream_dir: submit.asked_stream_dir.clone(),
            after: Vec::new(),
            notify: submit.notify.clone(),
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
    submit: &Submit,
    wanted: impl Fn(Phase) -> bool,
) -> Result<GraphSpec, SubmitRefusal> {
    let SubmitKind::Graph {
        templates,
        template_of,
        graph,
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
        for dep in graph.deps(index).iter().copied() {
            // A dependency that has finished need not run again; one that has not must be chosen, too.
            if wanted(phase(dep)) {
                deps.push(id(dep));
            } else if phase(dep) != Phase::Finished {
                return Err(SubmitRefusal::DependencyNotChosen(id(index), id(dep)));
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
