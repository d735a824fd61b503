//! Commands that concern very many jobs. They run in steps, so that no other client waits long.
//!
//! The answer describes each job at the time of its step. The effects of earlier steps are visible
//! meanwhile.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::{Again, ChangeKind, Ctx, JobResult, Reply, Resubmitted, ServerState};
use crate::id::JobId;
use crate::job::Job;
use crate::range::IdArray;
use crate::selector::{Selected, Selector};
use crate::task::TaskState;

/// The action to take on each job.
#[derive(Clone, Debug)]
pub(super) enum JobAction {
    /// Close the job.
    Close,
    /// Cancel the job for this reason.
    Cancel(Box<str>),
    /// Forget the job if it is completed and in one of these states.
    Forget(Vec<TaskState>),
    /// Resubmit the job.
    Resubmit(Box<Again>),
}

impl JobAction {
    /// Returns whether the action applies to a job when the command selects all jobs.
    fn concerns(&self, job: &Job) -> bool {
        match self {
            Self::Close => job.is_open,
            Self::Cancel(_) => !job.is_completed(),
            // The jobs that are not forgotten are counted.
            Self::Forget(_) | Self::Resubmit(_) => true,
        }
    }
}

/// The jobs that have not been processed yet.
#[derive(Clone, Debug)]
enum Left {
    /// The jobs with ids in this range to which the command applies.
    Among(RangeInclusive<u32>),
    These(VecDeque<JobId>),
}

/// A command in progress.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    action: JobAction,
    left: Left,
    not_found: IdArray,
    /// The jobs that were forgotten before their turn.
    gone: Vec<JobId>,
    rows: Vec<JobResult>,
    resubmitted: Vec<Resubmitted>,
    forgotten: u32,
    ignored: u32,
}

impl ServerState {
    /// Finds the jobs of a command.
    pub(super) fn sweep(&self, jobs: &Selector, mut action: JobAction) -> Sweep {
        let (left, not_found) = match (jobs, &mut action) {
            (_, JobAction::Resubmit(again)) => {
                let found = again.found.take().unwrap_or_else(|| self.jobs.find(jobs));
                (Left::These(self.in_order(found.rows)), found.not_found)
            }
            // Very many jobs are searched in steps as well.
            (Selector::All, _) => (
                Left::Among(0..=self.last_job().map_or(0, |id| id.0)),
                IdArray::default(),
            ),
            (Selector::Last | Selector::Ids(_), _) => {
                let Selected { rows, not_found } = self.jobs.find(jobs);
                (Left::These(rows.into()), not_found)
            }
        };
        Sweep {
            action,
            left,
            ignored: not_found.len(),
            not_found,
            gone: Vec::new(),
            rows: Vec::new(),
            resubmitted: Vec::new(),
            forgotten: 0,
        }
    }

    /// Does one step. Returns the answer if it was the last step.
    pub(super) fn go_on_sweeping(
        &mut self,
        ctx: &mut Ctx<'_>,
        sweep: &mut Sweep,
        mut left: usize,
    ) -> Option<Reply> {
        let mut forgotten = Vec::new();
        if let JobAction::Forget(_) = &sweep.action {
            // A client that waits for one of the jobs must be notified of the end before the job is
            // forgotten.
            self.follow_up(ctx);
        }
        while let Some(id) = self.next_job(sweep, &mut left) {
            let row = match &mut sweep.action {
                JobAction::Close => self.close_job(ctx, id),
                JobAction::Cancel(reason) => self.cancel_job(ctx, id, reason),
                JobAction::Forget(states) if self.forget_job(ctx, id, states) => {
                    // With limits of its own, a job takes about 15 µs, as long as four other jobs.
                    left = left.saturating_sub(3);
                    forgotten.push(id);
                    continue;
                }
                JobAction::Forget(_) => {
                    sweep.ignored = sweep.ignored.saturating_add(1);
                    continue;
                }
                JobAction::Resubmit(again) => {
                    let row = self.resubmit_job(ctx, id, again, &mut left);
                    sweep.gone.extend(row.is_none().then_some(id));
                    sweep.resubmitted.extend(row);
                    continue;
                }
            };
            // The job existed when the command arrived.
            sweep.gone.extend(row.is_none().then_some(id));
            sweep.rows.extend(row);
        }
        if !forgotten.is_empty() {
            let count = u32::try_from(forgotten.len()).unwrap_or(u32::MAX);
            sweep.forgotten = sweep.forgotten.saturating_add(count);
            ctx.persist(ChangeKind::JobsForgotten(forgotten));
        }
        sweep.left.is_empty().then(|| sweep.answer())
    }

    /// Returns the next job of a command. Examines at most `left` jobs.
    fn next_job(&self, sweep: &mut Sweep, left: &mut usize) -> Option<JobId> {
        while *left > 0 && !sweep.left.is_empty() {
            *left -= 1;
            let ids = match &mut sweep.left {
                Left::These(ids) => return ids.pop_front(),
                Left::Among(ids) => ids,
            };
            let (first, last) = (JobId(*ids.start()), JobId(*ids.end()));
            let Some((id, job)) = self.jobs.all().range(first..=last).next() else {
                sweep.left = Left::These(VecDeque::new());
                continue;
            };
            *ids = id.0.saturating_add(1)..=last.0;
            if sweep.action.concerns(job) {
                return Some(*id);
            }
        }
        None
    }
}

impl Sweep {
    fn answer(&mut self) -> Reply {
        let not_found = with_gone(std::mem::take(&mut self.not_found), &self.gone);
        match self.action {
            JobAction::Close | JobAction::Cancel(_) => Reply::Jobs(Selected {
                rows: std::mem::take(&mut self.rows),
                not_found,
            }),
            JobAction::Resubmit(_) => Reply::Resubmitted(Selected {
                rows: std::mem::take(&mut self.resubmitted),
                not_found,
            }),
            JobAction::Forget(_) => Reply::Forgotten {
                forgotten: self.forgotten,
                ignored: self.ignored,
            },
        }
    }
}

/// Adds the ids of forgotten jobs to the unknown ids.
fn with_gone(not_found: IdArray, gone: &[JobId]) -> IdArray {
    let singles = gone.iter().map(|id| IdArray::single(id.0));
    let ranges = singles.flat_map(|id| id.ranges().to_vec());
    let all = not_found.ranges().iter().copied().chain(ranges).collect();
    // The two kinds of ids are disjoint: only the forgotten jobs existed when the command arrived.
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
