//! Resubmission of a job: all of it, the tasks in some states, or chosen tasks.
//!
//! With many jobs or templates that takes long, so it goes in portions, like any large submit. For
//! a job with many tasks, the part that needs only the job is prepared outside the state:
//!
//! ```text
//!  job ── copy ──▶ remade, on any thread ── draft ──▶ templates, in portions ── accept ──▶ new job
//! ```

mod awaited;

use std::collections::VecDeque;
use std::sync::Arc;

use super::draft::{Draft, is_large};
use super::remake::{Again, Part, listed};
use super::submit::NOTICES_MAX;
use super::sweep::with_gone;
use super::{ChangeKind, Ctx, Effect, Reply, RequestId, Resubmitted, ServerState, SubmitRefusal};
use crate::id::JobId;
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::template::{SubmitBody, SubmitSpec, SubmitTarget};

/// Limit of tasks of large jobs that one request prepares outside the state, because all are in
/// memory at once.
const BESIDE_MAX: usize = 4_000_000;

/// An unanswered resubmission.
#[derive(Clone, Debug)]
pub(super) struct Resubmission {
    request: RequestId,
    again: Again,
    /// Jobs that are still to be processed.
    left: VecDeque<JobId>,
    /// The job in progress.
    current: Option<Current>,
    not_found: IdArray,
    /// Jobs that were forgotten before they were processed.
    gone: Vec<JobId>,
    rows: Vec<Resubmitted>,
}

impl Resubmission {
    fn is_done(&self) -> bool {
        self.current.is_none() && self.left.is_empty()
    }
}

/// A job resubmitted as one submit, whose templates are being built.
#[derive(Clone, Debug)]
struct Current {
    job: JobId,
    task_count: u32,
    draft: Box<Draft>,
}

/// Result of beginning with a job.
enum Begun {
    Over(Resubmitted),
    GoesOn(Current),
}

impl ServerState {
    /// Number of unanswered resubmissions.
    #[must_use]
    pub fn resubmitting(&self) -> usize {
        self.resubmissions.len()
    }

    /// Finds the jobs, and returns those to be prepared outside the state, see [`Again::look_at`].
    #[must_use]
    pub fn find_again(&self, jobs: &Selector) -> (Selected<JobId>, Vec<JobId>) {
        let found = self.jobs.find(jobs);
        let mut left = BESIDE_MAX;
        let mut large = Vec::new();
        for id in &found.rows {
            let size = self.jobs.get(*id).map_or(0, listed);
            // The rest is processed within the state: bounded memory matters more than the time of
            // a few clients.
            if is_large(size) && (size <= left || large.is_empty()) {
                left = left.saturating_sub(size);
                large.push(*id);
            }
        }
        (found, large)
    }

    /// Creates a new job for each chosen one; few small ones at once.
    pub(super) fn on_resubmit(&mut self, ctx: &mut Ctx<'_>, request: RequestId, mut again: Again) {
        let found = again.found.take();
        let Selected { rows, not_found } = found.unwrap_or_else(|| self.jobs.find(&again.jobs));
        let resubmission = Resubmission {
            request,
            again,
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

    /// Completes all requests: there are no more portions.
    pub(super) fn resubmit_rest(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(resubmission) = self.resubmissions.pop_front() {
            self.go_on_resubmitting(ctx, resubmission, usize::MAX);
        }
    }

    fn go_on_resubmitting(&mut self, ctx: &mut Ctx<'_>, mut again: Resubmission, mut left: usize) {
        while left > 0 && !again.is_done() {
            // Each job counts at least one: very many small ones must not become one long step.
            left -= 1;
            let begun = match again.current.take() {
                Some(current) => self.go_on_with(ctx, current, &mut left),
                None => {
                    let Some(id) = again.left.pop_front() else {
                        break;
                    };
                    match self.begin_again(ctx, id, &mut again.again, &mut left) {
                        Some(begun) => begun,
                        // It existed when the request arrived.
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

    /// Starts the resubmission of a job. `None` if it does not exist.
    fn begin_again(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        again: &mut Again,
        left: &mut usize,
    ) -> Option<Begun> {
        let remade = again.remade.remove(&id);
        let Some(job) = self.jobs.get(id) else {
            self.discard_parts(remade.and_then(Result::ok).unwrap_or_default());
            return None;
        };
        let parts = remade.unwrap_or_else(|| {
            let parts = again.remake(job);
            let sizes = parts.iter().flatten().map(|part| size(&part.prepared.spec));
            *left = left.saturating_sub(sizes.sum());
            parts
        });
        let refused = |refusal| Some(Begun::Over(Resubmitted::Refused(id, refusal)));
        let mut parts = match parts {
            Ok(parts) => parts,
            Err(refusal) => return refused(refusal),
        };
        if let Err(refusal) = self.await_again(id, &mut parts) {
            self.discard_parts(parts);
            return refused(refusal);
        }
        let task_count = parts.iter().map(|part| part.task_count).sum();
        Some(match parts.len() {
            // No task is chosen.
            0 => Begun::Over(Resubmitted::Nothing(id)),
            // The usual case: one submit creates a closed job by itself.
            1 => {
                let prepared = parts.pop()?.prepared;
                match self.draft(prepared) {
                    Ok(draft) => Begun::GoesOn(Current {
                        job: id,
                        task_count,
                        draft,
                    }),
                    Err(refusal) => return refused(refusal),
                }
            }
            _ => {
                let result = self.submit_together(ctx, id, parts);
                Begun::Over(self.note_resubmitted(ctx, (id, task_count), result))
            }
        })
    }

    /// Drops awaited jobs that need not be awaited again.
    fn await_again(&self, id: JobId, parts: &mut [Part]) -> Result<(), SubmitRefusal> {
        for part in parts {
            let after = self.still_awaited(id, &part.prepared.spec)?;
            // Not shared, so nothing is copied.
            Arc::make_mut(&mut part.prepared.spec).after = after;
        }
        Ok(())
    }

    /// Leaves what is not submitted to be freed.
    fn discard_parts(&mut self, parts: Vec<Part>) {
        for part in parts {
            self.dispatcher.discard_refused(part.prepared);
        }
    }

    /// Builds further templates of a resubmitted job; all that are left if it has few tasks.
    fn go_on_with(&mut self, ctx: &mut Ctx<'_>, mut current: Current, left: &mut usize) -> Begun {
        let draft = &mut *current.draft;
        *left -= self.build(draft, *left);
        *left -= self.rename(draft, *left);
        // The portion is used up: continues here with the next one.
        if !draft.is_built() || !draft.is_renamed() {
            return Begun::GoesOn(current);
        }
        let result = self.accept(ctx, *current.draft);
        Begun::Over(self.note_resubmitted(ctx, (current.job, current.task_count), result))
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
        // It may have been forgotten meanwhile; the new one runs anyway.
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

    /// Submits several submits as one closed job: all of them or none.
    fn submit_together(
        &mut self,
        ctx: &mut Ctx<'_>,
        old: JobId,
        parts: Vec<Part>,
    ) -> Result<JobId, SubmitRefusal> {
        let new = match self.make_room(ctx, old, &parts) {
            Ok(new) => new,
            Err(refusal) => {
                self.discard_parts(parts);
                return Err(refusal);
            }
        };
        let closes_itself = parts.first().is_some_and(Part::makes_job);
        for mut part in parts {
            if !part.makes_job() {
                Arc::make_mut(&mut part.prepared.spec).target = SubmitTarget::Attach(new);
            }
            // Their tasks were in one job before, so they fit into one.
            self.submit_prepared(ctx, part.prepared)?;
        }
        if !closes_itself {
            self.close_job(ctx, new);
        }
        Ok(new)
    }

    /// The job that the submits of an earlier one are added to: opened, unless the first submit
    /// creates it.
    fn make_room(
        &mut self,
        ctx: &mut Ctx<'_>,
        old: JobId,
        parts: &[Part],
    ) -> Result<JobId, SubmitRefusal> {
        let notices = parts.iter().map(|part| part.prepared.spec.notify.len());
        if notices.sum::<usize>() > NOTICES_MAX {
            return Err(SubmitRefusal::TooManyNotices);
        }
        // Its last task closes it.
        if parts.first().is_some_and(Part::makes_job) {
            return self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs);
        }
        // All submits of a job share its name and limits.
        let job = self.jobs.get(old).ok_or(SubmitRefusal::JobNotFound(old))?;
        let (name, max_fails) = (job.name.clone(), job.max_fails);
        self.new_open_job(ctx, name, max_fails, None)
    }
}

/// Approximate work for a submit, in templates and submits.
fn size(spec: &SubmitSpec) -> usize {
    match &spec.body {
        SubmitBody::Array(_) => 1,
        SubmitBody::Graph(graph) => 1 + graph.templates.len().max(graph.tasks.len()) / 8,
    }
}
