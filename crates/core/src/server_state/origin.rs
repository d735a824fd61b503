//! Handles submits that are repeated by later attempts of a task that submits to its own job, or by
//! clients that received no answer.
//!
//! Only the current attempt of a task may submit. The submits of earlier attempts already exist.

use super::{ChangeKind, Ctx, ServerState, SubmitRefusal};
use crate::id::{JobId, TaskId};
use crate::job::{Job, Repeat};
use crate::template::{ArrayIds, Origin, SubmitBody, SubmitSpec, SubmitTarget};

impl ServerState {
    /// Returns the job of an earlier submit by another attempt of the same task, or with the same
    /// nonce.
    ///
    /// # Errors
    ///
    /// Returns an error if the task may no longer submit, or if it is unclear whether the submit is
    /// new.
    pub(super) fn repeat(
        &mut self,
        ctx: &mut Ctx<'_>,
        spec: &SubmitSpec,
    ) -> Result<Option<JobId>, SubmitRefusal> {
        let (Some(origin), SubmitTarget::Attach(id)) = (&spec.origin, &spec.target) else {
            return Ok(self.heard_before(spec));
        };
        let Some(job) = self.jobs.get_mut(*id) else {
            return Err(SubmitRefusal::JobNotFound(*id));
        };
        // This attempt has ended or was given up. Its successor makes the same submits.
        if !is_current(job, origin) {
            return Err(SubmitRefusal::OriginOver(*id, origin.task, origin.instance));
        }
        match job.repeat_of(origin) {
            Repeat::New => Ok(None),
            Repeat::Differs => Err(SubmitRefusal::OriginDiffers(*id, origin.task)),
            Repeat::Of(number) => {
                job.note_repeated(number, origin.instance);
                let repeated = ChangeKind::SubmitRepeated {
                    job: *id,
                    number,
                    instance: origin.instance,
                };
                ctx.persist(repeated);
                Ok(Some(*id))
            }
        }
    }

    /// Returns the open job with a submit that has the same nonce. The job may be closed by now.
    fn heard_before(&self, spec: &SubmitSpec) -> Option<JobId> {
        let (Some(nonce), SubmitTarget::Attach(id)) = (spec.nonce, &spec.target) else {
            return None;
        };
        let SubmitBody::Array(array) = &spec.body else {
            return None;
        };
        let ArrayIds::Given(ids) = &array.ids else {
            return None;
        };
        let job = self.jobs.get(*id)?;
        let known = job.submit(job.find(TaskId(ids.get(0)?))?)?;
        (known.nonce == Some(nonce) && known.ids == *ids).then_some(*id)
    }

    /// After a restart, supersedes tasks that have submitted without a stored start. Such a task
    /// has run, even if its worker does not have it. Its next attempt gets another instance number
    /// and repeats its submits.
    pub(super) fn supersede_unseen(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let slots = self.jobs.get(id).map_or_else(Vec::new, Job::unseen_origins);
        for slot in slots {
            self.supersede(ctx, slot.of(id));
        }
    }
}

/// Returns whether an attempt is the latest of its task and may still run. Its submit may arrive
/// before the report of its start, and after a restart, before its worker is back.
fn is_current(job: &Job, origin: &Origin) -> bool {
    let Some(slot) = job.find(origin.task) else {
        return false;
    };
    let instance = job.instance(slot);
    let phase = job.phase(slot);
    phase.is_some_and(|phase| !phase.is_terminal()) && instance == origin.instance
}
