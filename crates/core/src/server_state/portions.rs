//! Work on very large jobs, in portions: each batch does one, so that no request waits long.
//!
//! A submit of very many different tasks enters the ready queue in portions. Until it is complete,
//! nothing less urgent than its missing tasks is dispatched. Likewise ended tasks of a large job
//! leave the queue in portions. Until they have, only tasks more urgent than the first of them are
//! dispatched. Templates of completed jobs are dropped, and forgotten jobs freed, in portions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::draft::Prepared;
use super::{Ctx, WorkerCommand};
use crate::bug;
use crate::class::QueueKey;
use crate::id::{JobId, WorkerId};
use crate::job::{Job, SharedTemplate, Submit, SubmitKind, TemplateId};
use crate::scheduler::queue::ReadyQueue;
use crate::scheduler::window::Window;
use crate::template::{GraphTask, SubmitBody, TaskTemplate};
use crate::worker::Workers;

/// Size of a portion: examined tasks of graphs, built templates, tasks removed from the queue, and
/// freed templates. About 2 µs each.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortionMax(pub(super) u32);

impl Default for PortionMax {
    fn default() -> Self {
        Self(1_024)
    }
}

/// Limit of templates dropped per batch, and of lists examined for them.
const DROPPED_MAX: usize = 4_096;

/// Up to this number, templates and tasks are freed at once.
const DISCARDED_AT_ONCE: usize = 256;

/// Work that is left for the next batches.
#[derive(Clone, Debug, Default)]
pub(super) struct Portions {
    /// Submits with tasks that were not examined yet.
    unqueued: BTreeMap<(JobId, u32), Rest>,
    /// Submits with ended tasks in the ready queue.
    leaving: BTreeMap<JobId, Leaving>,
    /// Number of tasks that may still leave in this batch.
    leave_left: usize,
    /// Templates that workers need no more.
    dropped: VecDeque<Dropped>,
    /// Values without a user, to be freed.
    discarded: Vec<Discarded>,
}

/// Values to be freed, from the end.
#[derive(Clone, Debug)]
enum Discarded {
    /// Templates of a job, or of a rejected submit.
    Shared(Vec<Arc<SharedTemplate>>),
    /// Requested templates of a submit that was refused.
    Asked(Vec<Arc<TaskTemplate>>),
    Tasks(Vec<GraphTask>),
}

impl Discarded {
    /// Frees some; returns whether that was all.
    fn free(&mut self, most: usize) -> bool {
        fn cut<T>(list: &mut Vec<T>, most: usize) -> bool {
            list.truncate(list.len().saturating_sub(most));
            list.is_empty()
        }
        match self {
            Self::Shared(list) => cut(list, most),
            Self::Asked(list) => cut(list, most),
            Self::Tasks(list) => cut(list, most),
        }
    }
}

/// Tasks of a job that are to leave the ready queue.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Number of its first submits whose tasks leave; later ones stay.
    submits: u32,
    /// Up to this queue they have.
    done_to: Option<QueueKey>,
}

/// The unexamined tasks of a submit.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The first of them.
    next: u32,
    /// Whether it is the first pass since the submit or the restart.
    is_start: bool,
    /// The highest priority of the submit.
    most_urgent: Reverse<i32>,
}

/// Templates of one job that one worker still has to drop.
#[derive(Clone, Debug)]
struct Dropped {
    worker: WorkerId,
    /// The templates of the job, first and last of each run.
    runs: Arc<[(TemplateId, TemplateId)]>,
    /// The first run that the worker may know.
    next: usize,
}

impl Portions {
    /// Whether work is left for the next batch.
    pub(super) fn is_any_left(&self) -> bool {
        !self.unqueued.is_empty()
            || !self.leaving.is_empty()
            || !self.dropped.is_empty()
            || !self.discarded.is_empty()
    }

    /// Whether tasks are missing in the ready queue, or ended ones are left over.
    pub(super) fn is_queue_unsettled(&self) -> bool {
        !self.unqueued.is_empty() || !self.leaving.is_empty()
    }

    /// Whether an ended task of this submit may be in the ready queue.
    pub(super) fn is_leaving(&self, id: JobId, submit: u32) -> bool {
        let leaving = self.leaving.get(&id);
        leaving.is_some_and(|leaving| submit < leaving.submits)
    }

    /// Whether a task of a submit from this index on may be missing in the ready queue.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_unqueued(&self, id: JobId, slot: crate::job::TaskSlot) -> bool {
        let rest = self.unqueued.get(&(id, slot.submit));
        rest.is_some_and(|rest| slot.index >= rest.next)
    }

    /// Leaves a submit to be queued in portions.
    pub(super) fn note_unqueued(&mut self, at: (JobId, u32), submit: &Submit, is_start: bool) {
        let rest = Rest {
            next: 0,
            is_start,
            most_urgent: Reverse(submit.priority_max),
        };
        // A pass in progress continues where it is.
        self.unqueued.entry(at).or_insert(rest);
    }

    /// Forgets a job whose waiting tasks will never run.
    pub(super) fn forget_unqueued(&mut self, id: JobId) {
        while let Some((at, _)) = self.unqueued.range((id, 0)..=(id, u32::MAX)).next() {
            let at = *at;
            self.unqueued.remove(&at);
        }
    }

    /// Schedules the templates of these submits to be dropped by these workers.
    pub(super) fn note_dropped(
        &mut self,
        workers: impl Iterator<Item = WorkerId>,
        submits: &[Submit],
    ) {
        let mut runs: Vec<(TemplateId, TemplateId)> = Vec::new();
        // The templates of a submit have consecutive numbers, and submits may share templates.
        for templates in submits.iter().map(Submit::templates) {
            let (Some(first), Some(last)) = (templates.first(), templates.last()) else {
                // A graph without tasks.
                continue;
            };
            match runs.last_mut() {
                Some((start, before))
                    if *start <= first.id && first.id.0 <= before.0.saturating_add(1) =>
                {
                    *before = last.id.max(*before);
                }
                _ => runs.push((first.id, last.id)),
            }
        }
        for submit in submits {
            runs.extend(submit.asks.template_runs());
        }
        let runs: Arc<[_]> = runs.into();
        self.dropped.extend(workers.map(|worker| Dropped {
            worker,
            runs: Arc::clone(&runs),
            next: 0,
        }));
    }

    /// Leaves the templates of a forgotten job to be freed.
    pub(super) fn discard_job(&mut self, job: Job) {
        for submit in job.submits {
            self.discard(submit.asks.into_templates());
            match submit.kind {
                SubmitKind::Graph { templates, .. } => self.discard(templates),
                SubmitKind::Array { .. } => {}
            }
        }
    }

    /// Leaves templates to be freed.
    pub(super) fn discard(&mut self, templates: Vec<Arc<SharedTemplate>>) {
        // A few are dropped directly.
        if templates.len() > DISCARDED_AT_ONCE {
            self.discarded.push(Discarded::Shared(templates));
        }
    }

    /// Leaves a submit that is refused to be freed.
    pub(super) fn discard_refused(&mut self, prepared: Prepared) {
        // If another owner exists, that one frees it.
        let Some(spec) = Arc::into_inner(prepared.spec) else {
            return;
        };
        let SubmitBody::Graph(graph) = spec.body else {
            // An array has one template, however many tasks it has.
            return;
        };
        if graph.templates.len() + graph.tasks.len() > DISCARDED_AT_ONCE {
            self.discarded.push(Discarded::Asked(graph.templates));
            self.discarded.push(Discarded::Tasks(graph.tasks));
        }
    }

    /// Removes from a round what is less urgent than a possibly missing task, and queues that may
    /// contain ended tasks.
    pub(super) fn narrow(&self, window: &mut Window, ready: &ReadyQueue) {
        let urgencies = self.unqueued.values().map(|rest| rest.most_urgent);
        // A missing task may have this priority: nothing less urgent goes first.
        if let Some(most_urgent) = urgencies.min() {
            window.queues.retain(|(key, _)| key.priority <= most_urgent);
            window.is_behind = true;
        }
        // Counts of these queues include tasks that have ended.
        if let Some(first) = self.first_leaving(ready) {
            window.queues.retain(|(key, _)| key.priority < first);
            window.is_behind = true;
        }
    }

    /// The highest priority at which ended tasks may be left in the ready queue.
    pub(super) fn first_leaving(&self, ready: &ReadyQueue) -> Option<Reverse<i32>> {
        let leaving = self.leaving.iter();
        let next = leaving.filter_map(|(id, leaving)| ready.next_of(*id, leaving.done_to));
        next.map(|key| key.priority).min()
    }
}

/// A submit with unexamined tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unqueued {
    pub(super) job: JobId,
    pub(super) number: u32,
    /// The first unexamined task.
    pub(super) next: u32,
    /// Whether it is the first pass since the submit or the restart.
    pub(super) is_start: bool,
}

impl Portions {
    /// A submit with unexamined tasks.
    pub(super) fn first_unqueued(&self) -> Option<Unqueued> {
        let ((job, number), rest) = self.unqueued.first_key_value()?;
        Some(Unqueued {
            job: *job,
            number: *number,
            next: rest.next,
            is_start: rest.is_start,
        })
    }

    /// Tasks of a submit before `next` were examined; `None` = all.
    pub(super) fn note_looked_at(&mut self, at: (JobId, u32), next: Option<u32>) {
        match (self.unqueued.get_mut(&at), next) {
            (Some(rest), Some(next)) => rest.next = next,
            (Some(_), None) => {
                self.unqueued.remove(&at);
            }
            (None, _) => bug!("submit {} of job {} is not in the unqueued set", at.1, at.0),
        }
    }

    /// Removes the tasks of the first `submits` submits of a job from the ready queue, a portion at
    /// once. Returns whether rounds may examine again what these hid.
    pub(super) fn leave(&mut self, ready: &mut ReadyQueue, id: JobId, submits: u32) -> bool {
        let leaving = Leaving {
            submits,
            done_to: None,
        };
        let was_leaving = self.leaving.insert(id, leaving).is_some();
        // If many jobs end at once, the first may use up the rest of this batch.
        let mut left = self.leave_left;
        let is_done = self.leave_some(ready, id, &mut left);
        self.leave_left = left;
        is_done && was_leaving
    }

    /// Does one portion of that. Returns whether rounds may examine again what some of these hid.
    pub(super) fn leave_portion(&mut self, ready: &mut ReadyQueue, most: u32) -> bool {
        let mut left = most as usize;
        let mut is_any_done = false;
        while let Some((id, _)) = self.leaving.first_key_value() {
            if !self.leave_some(ready, *id, &mut left) {
                break;
            }
            is_any_done = true;
        }
        self.leave_left = left;
        is_any_done
    }

    /// Removes some tasks of a job from the ready queue; returns whether those were all.
    fn leave_some(&mut self, ready: &mut ReadyQueue, id: JobId, left: &mut usize) -> bool {
        let Some(leaving) = self.leaving.get_mut(&id) else {
            bug!("job {id} does not leave the ready queue");
            return true;
        };
        let is_done = ready.remove_some(id, leaving.submits, &mut leaving.done_to, left);
        if is_done {
            self.leaving.remove(&id);
        }
        is_done
    }

    /// Frees a portion of the discarded values.
    pub(super) fn free_portion(&mut self, most: u32) {
        if let Some(last) = self.discarded.last_mut()
            && last.free(most as usize)
        {
            self.discarded.pop();
        }
    }

    /// Tells workers to drop a portion of the unneeded templates.
    pub(super) fn drop_portion(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers) {
        let mut left = DROPPED_MAX;
        while left > 0
            && let Some(dropped) = self.dropped.front_mut()
        {
            let mut known = Vec::new();
            // A worker that is gone needs no message.
            if let Some(worker) = workers.get_mut(dropped.worker) {
                while left > 0
                    && let Some((first, last)) = dropped.runs.get(dropped.next)
                {
                    left -= 1;
                    let found = worker.forget_templates(*first..=*last, left);
                    left -= found.len();
                    known.extend(found);
                    // Otherwise there may be more in this run.
                    dropped.next += usize::from(left > 0);
                }
            }
            let id = dropped.worker;
            if left > 0 {
                self.dropped.pop_front();
                left -= 1;
            }
            if !known.is_empty() {
                ctx.send(id, WorkerCommand::DropTemplates(known));
            }
        }
    }
}
