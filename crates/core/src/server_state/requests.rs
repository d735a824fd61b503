//! Requests that may take several steps, so that no other request waits long. The answer comes
//! with the last one.

use super::prepared::{Prepared, Submission};
use super::resubmit::Resubmission;
use super::sweep::Sweep;
use super::{Ctx, Effect, Reply, RequestId, ServerState, SubmitRefusal};
use crate::id::JobId;

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    request: RequestId,
    work: Work,
}

/// What is left of a request.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Submits(Submits),
    Sweep(Sweep),
    Resubmission(Resubmission),
}

/// A list of submits.
#[derive(Clone, Debug)]
pub(super) struct Submits {
    left: Submission,
    results: Vec<Result<JobId, SubmitRefusal>>,
}

impl Submits {
    pub(super) const fn new(left: Submission) -> Self {
        Self {
            left,
            results: Vec::new(),
        }
    }
}

impl ServerState {
    /// Requests of clients that are not answered yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Work per step, in submits, tasks or jobs.
    pub(super) fn portion(&self) -> usize {
        match self.ending {
            None => self.dispatcher.portion_max() as usize,
            // During shutdown there are no more steps.
            Some(_) => usize::MAX,
        }
    }

    /// Handles a request; a small one at once.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>, request: RequestId, work: Work) {
        self.go_on_with(ctx, Pending { request, work }, self.portion());
    }

    /// Does one step of one of the large requests.
    pub(super) fn go_on(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(pending) = self.pending.pop_front() {
            self.go_on_with(ctx, pending, self.portion());
        }
    }

    /// Completes all requests: there are no more steps.
    pub(super) fn answer_all(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(pending) = self.pending.pop_front() {
            self.go_on_with(ctx, pending, usize::MAX);
        }
    }

    fn go_on_with(&mut self, ctx: &mut Ctx<'_>, mut pending: Pending, most: usize) {
        let reply = match &mut pending.work {
            Work::Submits(submits) => self.go_on_submitting(ctx, submits, most),
            Work::Sweep(sweep) => self.go_on_sweeping(ctx, sweep, most),
            Work::Resubmission(again) => self.go_on_resubmitting(ctx, again, most),
        };
        match reply {
            Some(reply) => ctx.emit(Effect::Reply(pending.request, reply)),
            // Others have their turn.
            None => self.pending.push_back(pending),
        }
    }

    fn go_on_submitting(
        &mut self,
        ctx: &mut Ctx<'_>,
        submits: &mut Submits,
        mut left: usize,
    ) -> Option<Reply> {
        while left > 0
            && let Some(next) = submits.left.submits.pop_front()
        {
            // A rejected one counts as well: a long list of them must not become one long step.
            left = left.saturating_sub(next.as_ref().map_or(1, Prepared::cost));
            let result = next.and_then(|prepared| self.submit(ctx, prepared));
            submits.results.push(result);
        }
        if !submits.left.submits.is_empty() {
            return None;
        }
        let mut results = std::mem::take(&mut submits.results);
        Some(match results.pop() {
            Some(Ok(job)) if !submits.left.is_list => Reply::Submitted(job),
            Some(Err(refusal)) if !submits.left.is_list => Reply::Refused(refusal),
            last => {
                results.extend(last);
                Reply::SubmittedAll(results)
            }
        })
    }
}
