//! Requests that may take several steps, so that no other request waits long. The answer is sent
//! after the last step.

use super::prepared::{Prepared, Submission};
use super::sweep::Sweep;
use super::{Ctx, Reply, RequestId, ServerState};

/// A request that has not been answered yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    request: RequestId,
    work: Work,
}

/// The remaining work of a request.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Submits(Submission),
    Sweep(Sweep),
}

impl ServerState {
    /// Returns the number of client requests that have not been answered yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Returns how much work is done per step, in submits, tasks or jobs.
    pub(super) fn portion(&self) -> usize {
        match self.ending {
            None => self.dispatcher.portion_max() as usize,
            // During shutdown there are no further steps.
            Some(_) => usize::MAX,
        }
    }

    /// Handles a request. A small request is answered immediately.
    pub(super) fn begin(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        work: Work,
    ) -> Option<Reply> {
        self.go_on_with(ctx, Pending { request, work }, self.portion())
    }

    /// Does one step of one of the unanswered requests.
    pub(super) fn go_on(&mut self, ctx: &mut Ctx<'_>, most: usize) {
        if let Some(pending) = self.pending.pop_front() {
            let request = pending.request;
            let reply = self.go_on_with(ctx, pending, most);
            self.reply(ctx, request, reply);
        }
    }

    fn go_on_with(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut pending: Pending,
        most: usize,
    ) -> Option<Reply> {
        let reply = match &mut pending.work {
            Work::Submits(submission) => self.go_on_submitting(ctx, submission, most),
            Work::Sweep(sweep) => self.go_on_sweeping(ctx, sweep, most),
        };
        if reply.is_none() {
            // Other requests get their turn.
            self.pending.push_back(pending);
        }
        reply
    }

    fn go_on_submitting(
        &mut self,
        ctx: &mut Ctx<'_>,
        submission: &mut Submission,
        mut left: usize,
    ) -> Option<Reply> {
        while left > 0
            && let Some(next) = submission.submits.pop_front()
        {
            // A rejected submit counts as well, because a long list of them must not become one
            // long step.
            left = left.saturating_sub(next.as_ref().map_or(1, Prepared::cost));
            let result = next.and_then(|prepared| self.submit(ctx, prepared));
            submission.results.push(result);
        }
        if !submission.submits.is_empty() {
            return None;
        }
        let mut results = std::mem::take(&mut submission.results);
        if submission.is_list {
            return Some(Reply::SubmittedAll(results));
        }
        results.pop().map(|result| match result {
            Ok(job) => Reply::Submitted(job),
            Err(refusal) => Reply::Refused(refusal),
        })
    }
}
