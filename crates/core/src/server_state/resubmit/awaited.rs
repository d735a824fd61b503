//! The jobs that resubmitted jobs wait for, which may have been resubmitted as well.
//!
//! A job and its resubmissions form a line. The last job of the line counts while it has not ended:
//!
//! ```text
//!  job 1, failed ── submitted again ──▶ job 4, running        job 2 waited for job 1: job 5 waits for job 4
//! ```

use std::collections::{BTreeSet, VecDeque};

use crate::id::{JobId, TaskId};
use crate::job::{Job, JobState};
use crate::range::IdArray;
use crate::server_state::{ServerState, SubmitRefusal};
use crate::task::Phase;
use crate::template::{After, ArrayIds, SubmitBody, SubmitSpec};

/// The maximum number of jobs of a line that are examined.
const LINE_MAX: usize = 64;

impl ServerState {
    /// Sorts jobs into the order of resubmission: each job comes after the jobs that it waited for.
    pub(in crate::server_state) fn in_order(&self, jobs: Vec<JobId>) -> VecDeque<JobId> {
        let chosen: BTreeSet<JobId> = jobs.iter().copied().collect();
        let mut seen = BTreeSet::new();
        let mut order = VecDeque::with_capacity(jobs.len());
        for job in jobs {
            // Chains of any length need no recursion.
            let mut stack = vec![(job, false)];
            while let Some((job, is_next)) = stack.pop() {
                if is_next {
                    order.push_back(job);
                    continue;
                }
                if !seen.insert(job) {
                    continue;
                }
                stack.push((job, true));
                let submits = self.jobs.get(job).into_iter().flat_map(|job| &job.submits);
                let awaited = submits.flat_map(|submit| &submit.after);
                let lines = awaited.flat_map(|after| self.line(after.job));
                let before = lines.map(|job| job.id).filter(|id| chosen.contains(id));
                stack.extend(before.map(|id| (id, false)));
            }
        }
        order
    }

    /// Returns a job and its resubmissions, or nothing if the job was forgotten.
    fn line(&self, id: JobId) -> Vec<&Job> {
        let first = self.jobs.get(id);
        let next = |job: &&Job| self.jobs.get(job.resubmitted_as?);
        std::iter::successors(first, next).take(LINE_MAX).collect()
    }

    /// Returns the conditions of a submit's tasks for its resubmission.
    pub(super) fn still_awaited(
        &self,
        id: JobId,
        spec: &SubmitSpec,
    ) -> Result<Vec<After>, SubmitRefusal> {
        let mut still = Vec::new();
        for after in &spec.after {
            let line = self.line(after.job);
            // A forgotten job had completed, but in an unknown state.
            let Some(last) = line.last() else { continue };
            let waits = if after.is_each {
                waits_each(id, after, &line, &ids(&spec.body))?
            } else {
                waits_whole(id, after, &line)?
            };
            if waits {
                still.push(After {
                    job: last.id,
                    ..*after
                });
            }
        }
        Ok(still)
    }
}

/// Returns the ids of the tasks of a resubmitted submit.
fn ids(body: &SubmitBody) -> IdArray {
    match body {
        SubmitBody::Array(array) => match &array.ids {
            ArrayIds::Given(ids) => ids.clone(),
            // Tasks that are submitted again already have their ids.
            ArrayIds::Next(_) => IdArray::default(),
        },
        SubmitBody::Graph(graph) => {
            let mut ids: Vec<u32> = graph.tasks.iter().map(|task| task.id.0).collect();
            ids.sort_unstable();
            IdArray::from_sorted(ids).unwrap_or_default()
        }
    }
}

/// Returns whether this end of a task meets the condition.
fn is_reached(phase: Phase, after: &After) -> bool {
    phase == Phase::Finished || after.is_any && phase.is_terminal()
}

/// Returns whether the end of a job meets the condition.
fn is_done(job: &Job, after: &After) -> bool {
    job.is_completed() && (after.is_any || job.state() == JobState::Finished)
}

fn not_done(id: JobId, awaited: &Job) -> SubmitRefusal {
    if awaited.is_completed() {
        SubmitRefusal::AfterNotFinished(id, awaited.id)
    } else {
        SubmitRefusal::AfterNotEnded(id, awaited.id)
    }
}

/// Returns whether a job that waited for the whole of another job must wait for the last job of the
/// other's line.
fn waits_whole(id: JobId, after: &After, line: &[&Job]) -> Result<bool, SubmitRefusal> {
    let Some((last, earlier)) = line.split_last() else {
        return Ok(false);
    };
    let runs_again = !earlier.is_empty() && !last.is_completed();
    for (job, next) in earlier.iter().zip(line.iter().skip(1)) {
        if is_done(job, after) {
            return Ok(runs_again);
        }
        // The next job of the line must complete everything that this job has not done.
        if let Some(task) = first_left(job, next, after) {
            return Err(SubmitRefusal::AfterNotChosen(id, task, job.id));
        }
    }
    if runs_again || is_done(last, after) {
        return Ok(runs_again);
    }
    Err(not_done(id, last))
}

/// Returns the first unfinished task of a job that the next job of its line does not have.
fn first_left(job: &Job, next: &Job, after: &After) -> Option<TaskId> {
    job.submits.iter().find_map(|submit| {
        let mut runs = submit.tasks.runs(0, submit.tasks.len());
        runs.find_map(|(from, to, phase)| {
            if is_reached(phase, after) {
                return None;
            }
            let ids = (from..to).filter_map(|index| submit.ids.get(index));
            ids.map(TaskId).find(|task| next.find(*task).is_none())
        })
    })
}

/// Returns whether some task that waited for its counterpart must wait for the counterpart in the
/// last job of the line.
fn waits_each(
    id: JobId,
    after: &After,
    line: &[&Job],
    tasks: &IdArray,
) -> Result<bool, SubmitRefusal> {
    let Some((last, earlier)) = line.split_last() else {
        return Ok(false);
    };
    let phase = |job: &Job, task| job.find(task).and_then(|slot| job.phase(slot));
    let mut waits = false;
    for task in tasks.iter().map(TaskId) {
        let runs_again =
            !earlier.is_empty() && phase(last, task).is_some_and(|phase| !phase.is_terminal());
        if runs_again {
            waits = true;
            continue;
        }
        let mut phases = line.iter().filter_map(|job| phase(job, task));
        if phases.any(|phase| is_reached(phase, after)) {
            continue;
        }
        let newest = line.iter().rev().find(|job| job.find(task).is_some());
        return Err(match newest {
            Some(job) if !earlier.is_empty() => SubmitRefusal::AfterNotChosen(id, task, job.id),
            Some(job) if phase(job, task).is_some_and(Phase::is_terminal) => {
                SubmitRefusal::AfterNotFinished(id, job.id)
            }
            Some(job) => SubmitRefusal::AfterNotEnded(id, job.id),
            None => SubmitRefusal::AfterNoTask(task, after.job),
        });
    }
    Ok(waits)
}
