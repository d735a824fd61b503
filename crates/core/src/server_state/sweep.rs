//! Commands about very many jobs, in portions, so that no client waits long.
//!
//! The answer comes with the last portion and describes each job at its turn. Effects of earlier
//! portions are visible meanwhile.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::{ChangeKind, Ctx, Effect, JobResult, Reply, RequestId, ServerState};
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
    request: RequestId,
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
    /// Commands about jobs that are not answered yet.
    #[must_use]
    pub fn sweeping(&self) -> usize {
        self.sweeps.len()
    }

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
            request,
            action,
            left,
            ignored: not_found.len(),
            not_found,
            gone: Vec::new(),
            rows: Vec::new(),
            forgotten: 0,
        };
        self.continue_sweep(ctx, sweep, self.portion());
    }

    /// Does one portion for one of the commands.
    pub(super) fn sweep_portion(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(sweep) = self.sweeps.pop_front() {
            self.continue_sweep(ctx, sweep, self.portion());
        }
    }

    /// Completes all commands: there are no more portions.
    pub(super) fn sweep_rest(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(sweep) = self.sweeps.pop_front() {
            self.continue_sweep(ctx, sweep, usize::MAX);
        }
    }

    fn continue_sweep(&mut self, ctx: &mut Ctx<'_>, mut sweep: Sweep, most: usize) {
        let mut forgotten = Vec::new();
        if let JobAction::Forget(_) = &sweep.action {
            // A client that waits for one of them learns its end before it is gone.
            self.follow_up(ctx);
        }
        for id in self.next_jobs(&mut sweep, most) {
            let row = match &sweep.action {
                JobAction::Close => self.close_job(ctx, id),
                JobAction::Cancel(reason) => self.cancel_job(ctx, id, reason),
                JobAction::Forget(states) if self.forget_job(id, states) => {
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
        if !sweep.left.is_empty() {
            // Others have their turn.
            self.sweeps.push_back(sweep);
            return;
        }
        let reply = match sweep.action {
            JobAction::Close | JobAction::Cancel(_) => Reply::Jobs(Selected {
                rows: sweep.rows,
                not_found: with_gone(sweep.not_found, &sweep.gone),
            }),
            JobAction::Forget(_) => Reply::Forgotten {
                forgotten: sweep.forgotten,
                ignored: sweep.ignored,
            },
        };
        ctx.emit(Effect::Reply(sweep.request, reply));
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
