//! Commands about very many jobs, in steps, so that no other client waits long.
//!
//! The answer describes each job at its turn. Effects of earlier steps are visible meanwhile.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::requests::Work;
use super::{ChangeKind, Ctx, JobResult, Reply, RequestId, ServerState};
use crate::id::JobId;
use crate::job::Job;
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::task::TaskState;

/// Action on each job.
#[derive(Clone, Debug)]
pub(super) enum JobAction {
    /// Closes it.
    Close,
    /// Cancels it for this reason.
    Cancel(Box<str>),
    /// Forgets it if it is completed and in one of these states.
    Forget(Vec<TaskState>),
}

/// Jobs that are still to be processed.
#[derive(Clone, Debug)]
enum Left {
    /// Jobs with ids in this range that the command applies to.
    Among(RangeInclusive<u32>),
    These(VecDeque<JobId>),
}

/// A command in progress.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    action: JobAction,
    left: Left,
    not_found: IdArray,
    /// Jobs that were forgotten before their turn.
    gone: Vec<JobId>,
    rows: Vec<JobResult>,
    forgotten: u32,
    ignored: u32,
}

impl ServerState {
    /// Handles a command about jobs; with few jobs at once.
    pub(super) fn on_sweep(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        (jobs, action): (&Selector, JobAction),
    ) {
        let (left, not_found) = match jobs {
            // The search among very many jobs is done in portions as well.
            Selector::All => (
                Left::Among(0..=self.last_job().map_or(0, |id| id.0)),
                IdArray::default(),
            ),
            Selector::Last | Selector::Ids(_) => {
                let Selected { rows, not_found } = self.jobs.find(jobs);
                (Left::These(rows.into()), not_found)
            }
        };
        let sweep = Sweep {
            action,
            left,
            ignored: not_found.len(),
            not_found,
            gone: Vec::new(),
            rows: Vec::new(),
            forgotten: 0,
        };
        self.begin(ctx, request, Work::Sweep(sweep));
    }

    /// Does one step; returns the answer if it was the last one.
    pub(super) fn go_on_sweeping(
        &mut self,
        ctx: &mut Ctx<'_>,
        sweep: &mut Sweep,
        most: usize,
    ) -> Option<Reply> {
        let mut forgotten = Vec::new();
        if let JobAction::Forget(_) = &sweep.action {
            // A client that waits for one of them learns its end before it is gone.
            self.follow_up(ctx);
        }
        for id in self.next_jobs(sweep, most) {
            let row = match &sweep.action {
                JobAction::Close => self.close_job(ctx, id),
                JobAction::Cancel(reason) => self.cancel_job(ctx, id, reason),
                JobAction::Forget(states) if self.forget_job(ctx, id, states) => {
                    forgotten.push(id);
                    continue;
                }
                JobAction::Forget(_) => {
                    sweep.ignored = sweep.ignored.saturating_add(1);
                    continue;
                }
            };
            // It existed when the command arrived.
            match row {
                Some(row) => sweep.rows.push(row),
                None => sweep.gone.push(id),
            }
        }
        if !forgotten.is_empty() {
            let count = u32::try_from(forgotten.len()).unwrap_or(u32::MAX);
            sweep.forgotten = sweep.forgotten.saturating_add(count);
            ctx.persist(ChangeKind::JobsForgotten(forgotten));
        }
        sweep.left.is_empty().then(|| match sweep.action {
            JobAction::Close | JobAction::Cancel(_) => Reply::Jobs(Selected {
                rows: std::mem::take(&mut sweep.rows),
                not_found: with_gone(std::mem::take(&mut sweep.not_found), &sweep.gone),
            }),
            JobAction::Forget(_) => Reply::Forgotten {
                forgotten: sweep.forgotten,
                ignored: sweep.ignored,
            },
        })
    }

    /// The next jobs of a command, examining at most `most`.
    fn next_jobs(&self, sweep: &mut Sweep, most: usize) -> Vec<JobId> {
        let ids = match &mut sweep.left {
            Left::These(ids) => return ids.drain(..ids.len().min(most)).collect(),
            Left::Among(ids) => ids,
        };
        let (first, last) = (JobId(*ids.start()), JobId(*ids.end()));
        let mut rest = self.jobs.all().range(first..=last);
        let part = rest.by_ref().take(most);
        let is_meant = |job: &Job| match &sweep.action {
            JobAction::Close => job.is_open,
            JobAction::Cancel(_) => !job.is_completed(),
            // Jobs that stay are counted.
            JobAction::Forget(_) => true,
        };
        let part = part.filter(|(_, job)| is_meant(job));
        let part = part.map(|(id, _)| *id).collect();
        match rest.next() {
            Some((next, _)) => *ids = next.0..=last.0,
            None => sweep.left = Left::These(VecDeque::new()),
        }
        part
    }
}

/// Unknown ids, and ids of jobs that are gone.
pub(super) fn with_gone(not_found: IdArray, gone: &[JobId]) -> IdArray {
    let singles = gone.iter().map(|id| IdArray::single(id.0));
    let ranges = singles.flat_map(|id| id.ranges().to_vec());
    let all = not_found.ranges().iter().copied().chain(ranges).collect();
    // Both kinds are disjoint: only the latter existed when the command arrived.
    IdArray::new(all).unwrap_or(not_found)
}

impl Left {
    fn is_empty(&self) -> bool {
        match self {
            Self::Among(ids) => ids.is_empty(),
            Self::These(ids) => ids.is_empty(),
        }
    }
}
