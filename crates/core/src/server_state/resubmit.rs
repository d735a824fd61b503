//! Resubmission of a job: all of its tasks, the tasks in some states, or chosen tasks.
//!
//! Resubmitting many jobs takes several steps. For a job with many tasks, the part that depends
//! only on the job is prepared outside the state:
//!
//! ```text
//!  job ── copy ──▶ remade, on any thread ── submit ──▶ new job
//! ```

mod awaited;

use std::sync::Arc;

use super::prepared::is_large;
use super::remake::{Again, Part, listed};
use super::submit::NOTICES_MAX;
use super::{ChangeKind, Ctx, Freed, Resubmitted, ServerState, SubmitRefusal};
use crate::id::JobId;
use crate::selector::{Selected, Selector};
use crate::template::SubmitTarget;

/// The maximum number of tasks of large jobs that one request prepares outside the state, because
/// all of them are in memory at once.
const BESIDE_MAX: usize = 4_000_000;

impl ServerState {
    /// Finds the jobs. Also returns the jobs that must be prepared outside the state; see
    /// [`Again::look_at`].
    #[must_use]
    pub fn find_again(&self, jobs: &Selector) -> (Selected<JobId>, Vec<JobId>) {
        let found = self.jobs.find(jobs);
        let mut left = BESIDE_MAX;
        let mut large = Vec::new();
        for id in &found.rows {
            let size = self.jobs.get(*id).map_or(0, listed);
            // The remaining jobs are processed within the state, because limited memory is more
            // important than the time of a few clients.
            if is_large(size) && (size <= left || large.is_empty()) {
                left = left.saturating_sub(size);
                large.push(*id);
            }
        }
        (found, large)
    }

    /// Creates a new job from chosen tasks of a job. Returns `None` if that job does not exist.
    pub(super) fn resubmit_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        again: &mut Again,
        left: &mut usize,
    ) -> Option<Resubmitted> {
        let remade = again.remade.remove(&id);
        let Some(job) = self.jobs.get(id) else {
            free_parts(ctx, remade.and_then(Result::ok).unwrap_or_default());
            return None;
        };
        let parts = remade.unwrap_or_else(|| {
            let parts = again.remake(job);
            let costs = parts.iter().flatten().map(|part| part.prepared.cost());
            *left = left.saturating_sub(costs.sum());
            parts
        });
        let parts = match parts {
            Ok(parts) if parts.is_empty() => return Some(Resubmitted::Nothing(id)),
            Ok(parts) => parts,
            Err(refusal) => return Some(Resubmitted::Refused(id, refusal)),
        };
        let task_count = parts.iter().map(|part| part.task_count).sum();
        let new = match self.submit_parts(ctx, id, parts) {
            Ok(new) => new,
            Err(refusal) => return Some(Resubmitted::Refused(id, refusal)),
        };
        // The old job refers to the new one.
        if let Some(job) = self.jobs.get_mut(id) {
            job.resubmitted_as = Some(new);
            ctx.persist(ChangeKind::JobResubmitted { job: id, new });
        }
        Some(Resubmitted::Ok {
            job: id,
            new,
            task_count,
        })
    }

    /// Drops the conditions on jobs that need not be awaited again.
    fn await_again(&self, id: JobId, parts: &mut [Part]) -> Result<(), SubmitRefusal> {
        for part in parts {
            let after = self.still_awaited(id, &part.prepared.spec)?;
            // The spec is not shared, so nothing is copied.
            Arc::make_mut(&mut part.prepared.spec).after = after;
        }
        Ok(())
    }

    /// Submits the parts of a job as one closed job. Either all parts are submitted or none.
    fn submit_parts(
        &mut self,
        ctx: &mut Ctx<'_>,
        old: JobId,
        mut parts: Vec<Part>,
    ) -> Result<JobId, SubmitRefusal> {
        let awaited = self.await_again(old, &mut parts);
        let new = match awaited.and_then(|()| self.make_room(ctx, old, &parts)) {
            Ok(new) => new,
            Err(refusal) => {
                free_parts(ctx, parts);
                return Err(refusal);
            }
        };
        let is_closed = parts.first().is_some_and(Part::makes_job);
        for mut part in parts {
            if !part.makes_job() {
                Arc::make_mut(&mut part.prepared.spec).target = SubmitTarget::Attach(new);
            }
            // The tasks of the parts were in one job before, so they fit into one.
            self.submit(ctx, part.prepared)?;
        }
        if !is_closed {
            self.close_job(ctx, new);
        }
        Ok(new)
    }

    /// Returns the job to which the submits of an earlier job are added. Opens the job, unless the
    /// first submit creates it.
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
        // The job is closed when its last task ends.
        if parts.first().is_some_and(Part::makes_job) {
            return self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs);
        }
        // All submits of a job share its name and limits.
        let job = self.jobs.get(old).ok_or(SubmitRefusal::JobNotFound(old))?;
        let (name, max_fails) = (job.name.clone(), job.max_fails);
        self.open_job(ctx, name, max_fails, None)
    }
}

/// Frees the parts that are not submitted.
fn free_parts(ctx: &mut Ctx<'_>, parts: Vec<Part>) {
    for part in parts {
        ctx.free(Freed::Submit(Box::new(part.prepared)));
    }
}
