//! Submits on their way into the state: what does not need it is done before, the rest in portions.
//!
//! ```text
//!  spec ── Prepared::new, on any thread ──▶ prepared ── draft ──▶ templates, in portions ── accept ──▶ job
//! ```
//!
//! Until it is accepted nothing of a submit can be seen, stored or canceled, and its client has no answer. What
//! it was checked against may change meanwhile, so it is checked again at the end: it counts as submitted then, and
//! its job gets its id then. So ids are in the order of the answers, and the last one is that of the last answer.

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
    /// It was made before, by an earlier attempt of the same task.
    Known(JobId),
}

/// Requests whose submits are too large for one step.
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

    /// How much of a large request is done in one step.
    pub(super) fn portion(&self) -> usize {
        match self.ending {
            None => self.dispatcher.portion_max() as usize,
            // At the end of a server there are no more portions.
            Some(_) => usize::MAX,
        }
    }

    /// Takes submits; small ones at once.
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

    /// Answers everybody who waits: there are no more portions.
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
            // A refused one counts, too: a long list of them must not become one long step.
            left -= 1;
            let result = match draft {
                Ok(mut draft) => {
                    left -= self.build(&mut draft, left);
                    left -= self.rename(&mut draft, left);
                    // The portion is used up: it goes on here with the next one.
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
        // The answer comes when the last submit is accepted or refused.
        if under_way.is_done() {
            ctx.emit(Effect::Reply(under_way.request, under_way.reply()));
        } else {
            // Others have their turn.
            self.under_way.requests.push_back(under_way);
        }
    }

    /// Begins with a submit, unless it is there already.
    fn begin(&mut self, ctx: &mut Ctx<'_>, prepared: Prepared) -> Result<Begun, SubmitRefusal> {
        // Before anything is checked: what was possible the first time, such as adding to a job that was open, need not be
        // so now.
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

    /// Begins with a submit, if it could be accepted now.
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

    /// Has templates name the job that is the next one now, some of them; returns how many. One that is overtaken once more
    /// is not delayed again: [`Self::accept`] corrects the rest in one step.
    pub(super) fn rename(&mut self, draft: &mut Draft, most: usize) -> usize {
        if draft.is_built() && draft.renamed.is_none() {
            self.note_job(draft);
        }
        draft.rename_some(most)
    }

    /// Reserves numbers for `count` templates, one behind the other; returns the first.
    pub(super) fn number_templates(&mut self, count: usize) -> TemplateId {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = match self.last_template.checked_add(count) {
            // Numbers of one submit are consecutive: workers are told to drop them as ranges.
            Some(_) => self.last_template + 1,
            // After four billion of them the first ones are forgotten.
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
