//! Submits on their way into the state: preparation happens outside, the rest in portions.
//!
//! ```text
//!  spec ── Prepared::new, on any thread ──▶ prepared ── draft ──▶ templates, in portions ── accept ──▶ job
//! ```
//!
//! Until it is accepted, a submit is invisible, not stored and not cancelable, and its client has
//! no answer. The state may change meanwhile, so it is checked again at the end. It counts as
//! submitted then, and its job gets its id then. So ids follow the order of the answers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::draft::{Draft, Prepared, Submission, Target};
use super::{Ctx, Effect, Reply, RequestId, ServerState, SubmitRefusal};
use crate::id::JobId;
use crate::job::TemplateId;
use crate::template::SubmitBody;

/// A request with submits.
#[derive(Clone, Debug)]
struct UnderWay {
    request: RequestId,
    left: Submission,
    draft: Option<Box<Draft>>,
    results: Vec<Result<JobId, SubmitRefusal>>,
}

impl UnderWay {
    fn is_done(&self) -> bool {
        self.draft.is_none() && self.left.submits.is_empty()
    }

    fn reply(mut self) -> Reply {
        if self.left.is_list {
            return Reply::SubmittedAll(self.results);
        }
        match self.results.pop() {
            Some(Ok(job)) => Reply::Submitted(job),
            Some(Err(refusal)) => Reply::Refused(refusal),
            None => Reply::SubmittedAll(Vec::new()),
        }
    }
}

/// Result of beginning with a submit.
enum Begun {
    Draft(Box<Draft>),
    /// An earlier attempt of the same task made it.
    Known(JobId),
}

/// Requests with submits that are too large for one step.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWays {
    requests: VecDeque<UnderWay>,
}

impl UnderWays {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl ServerState {
    /// Requests with submits that are not answered yet.
    #[must_use]
    pub fn submitting(&self) -> usize {
        self.under_way.requests.len()
    }

    /// Work per step for a large request.
    pub(super) fn portion(&self) -> usize {
        match self.ending {
            None => self.dispatcher.portion_max() as usize,
            // During shutdown there are no more portions.
            Some(_) => usize::MAX,
        }
    }

    /// Handles submits; small ones at once.
    pub(super) fn on_submission(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        submission: Submission,
    ) {
        let is_small = submission.size() <= self.portion();
        let under_way = UnderWay {
            request,
            left: submission,
            draft: None,
            results: Vec::new(),
        };
        if is_small {
            self.go_on_submitting(ctx, under_way, usize::MAX);
        } else {
            self.under_way.requests.push_back(under_way);
        }
    }

    /// Does one portion for one of the large requests.
    pub(super) fn submit_portion(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(under_way) = self.under_way.requests.pop_front() {
            self.go_on_submitting(ctx, under_way, self.portion());
        }
    }

    /// Completes all requests: there are no more portions.
    pub(super) fn submit_rest(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(under_way) = self.under_way.requests.pop_front() {
            self.go_on_submitting(ctx, under_way, usize::MAX);
        }
    }

    fn go_on_submitting(&mut self, ctx: &mut Ctx<'_>, mut under_way: UnderWay, mut left: usize) {
        while left > 0 && !under_way.is_done() {
            let draft = match under_way.draft.take() {
                Some(draft) => Ok(draft),
                None => match under_way.left.submits.pop_front() {
                    Some(next) => match next.and_then(|prepared| self.begin(ctx, prepared)) {
                        Ok(Begun::Draft(draft)) => Ok(draft),
                        Ok(Begun::Known(job)) => {
                            left -= 1;
                            under_way.results.push(Ok(job));
                            continue;
                        }
                        Err(refusal) => Err(refusal),
                    },
                    None => break,
                },
            };
            // A rejected one counts as well: a long list of them must not become one long step.
            left -= 1;
            let result = match draft {
                Ok(mut draft) => {
                    left -= self.build(&mut draft, left);
                    left -= self.rename(&mut draft, left);
                    // The portion is used up: continues here with the next one.
                    if !draft.is_built() || !draft.is_renamed() {
                        under_way.draft = Some(draft);
                        break;
                    }
                    self.accept(ctx, *draft)
                }
                Err(refusal) => Err(refusal),
            };
            under_way.results.push(result);
        }
        // The answer follows when the last submit is accepted or rejected.
        if under_way.is_done() {
            ctx.emit(Effect::Reply(under_way.request, under_way.reply()));
        } else {
            // Others have their turn.
            self.under_way.requests.push_back(under_way);
        }
    }

    /// Starts a submit, unless it is known already.
    fn begin(&mut self, ctx: &mut Ctx<'_>, prepared: Prepared) -> Result<Begun, SubmitRefusal> {
        // Before any check: conditions that held the first time, such as an open job, need not hold
        // now.
        if let Some(known) = self.find_key(&prepared) {
            self.dispatcher.discard_refused(prepared);
            return known.map(Begun::Known);
        }
        match self.repeat(ctx, &prepared.spec) {
            Ok(None) => self.draft(prepared).map(Begun::Draft),
            Ok(Some(job)) => {
                self.dispatcher.discard_refused(prepared);
                Ok(Begun::Known(job))
            }
            Err(refusal) => {
                self.dispatcher.discard_refused(prepared);
                Err(refusal)
            }
        }
    }

    /// Starts a submit if it could be accepted now.
    pub(super) fn draft(&mut self, prepared: Prepared) -> Result<Box<Draft>, SubmitRefusal> {
        let checked = self.target(&prepared.spec.target).and_then(|target| {
            self.check_prepared(&target, &prepared)?;
            Ok(target)
        });
        match checked {
            Ok(target) => Ok(Box::new(self.draft_for(target, prepared))),
            Err(refusal) => {
                self.dispatcher.discard_refused(prepared);
                Err(refusal)
            }
        }
    }

    pub(super) fn draft_for(&mut self, target: Target, prepared: Prepared) -> Draft {
        let count = prepared.template_count();
        Draft {
            share: self.share(&target, &prepared.spec),
            first: self.number_templates(count.max(1)),
            templates: Vec::with_capacity(count),
            renamed: None,
            prepared,
            target,
        }
    }

    /// Corrects the job in some templates to the one that is next now; returns how many. If it is
    /// overtaken again, [`Self::accept`] corrects the rest in one step.
    pub(super) fn rename(&mut self, draft: &mut Draft, most: usize) -> usize {
        if draft.is_built() && draft.renamed.is_none() {
            self.note_job(draft);
        }
        draft.rename_some(most)
    }

    /// Reserves consecutive numbers for `count` templates; returns the first.
    pub(super) fn number_templates(&mut self, count: usize) -> TemplateId {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = match self.last_template.checked_add(count) {
            // Numbers of one submit are consecutive: workers drop them as ranges.
            Some(_) => self.last_template + 1,
            // After four billion templates the first ones are forgotten.
            None => 1,
        };
        self.last_template = first.saturating_add(count - 1);
        TemplateId(first)
    }

    /// Builds some of the templates; returns how many.
    pub(super) fn build(&mut self, draft: &mut Draft, most: usize) -> usize {
        let SubmitBody::Graph(graph) = &draft.prepared.spec.body else {
            return 0;
        };
        let (built, first) = (draft.templates.len(), draft.next_number());
        let rest = graph.templates.iter().skip(built).take(most);
        for (task, id) in rest.zip(first..) {
            let shared = self.share_template(&draft.share, TemplateId(id), Arc::clone(task));
            draft.templates.push(shared);
        }
        draft.templates.len() - built
    }
}
