//! Explains why the server aborted a task. The reason is derived from the states of the task's job
//! and of earlier jobs, because the store does not keep it.

use hq_core::id::TaskId;
use hq_core::job::{Job, JobState, Submit, TaskSlot};
use hq_core::server_state::ServerState;
use hq_core::task::Phase;

/// The maximum length of a path from an aborted task to the cause. If the path is longer, the
/// nearest aborted task is named.
const STEPS_MAX: usize = 32;

/// Returns the reason as a sentence. `None` if the cause was forgotten.
pub(super) fn reason(
    state: &ServerState,
    job: &Job,
    submit: &Submit,
    slot: TaskSlot,
    task: TaskId,
) -> Option<String> {
    let why = by_dependency(job, slot, task)
        .or_else(|| by_earlier_job(state, submit, task))
        .or_else(|| by_failures(job))?;
    Some(format!("Aborted: {why}"))
}

/// Names a direct or indirect dependency that did not finish.
fn by_dependency(job: &Job, slot: TaskSlot, task: TaskId) -> Option<String> {
    let (mut slot, mut first) = (slot, None);
    for step in 0..=STEPS_MAX {
        let deps = job.submit(slot)?.deps(slot.index);
        let (dep, at, phase) = deps.into_iter().find_map(|dep| {
            let at = job.find(dep)?;
            let phase = job.submit(at)?.tasks.phase(at.index)?;
            ending(phase).map(|_| (dep, at, phase))
        })?;
        let first = *first.get_or_insert(dep);
        if phase == Phase::Aborted && step < STEPS_MAX {
            slot = at;
            continue;
        }
        let how = ending(phase)?;
        let through = if first == dep {
            String::new()
        } else {
            format!(" through task {first}")
        };
        return Some(format!(
            "task {dep}, on which task {task} depends{through}, {how}"
        ));
    }
    None
}

/// Returns the verb for a task that did not succeed.
const fn ending(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Failed => Some("failed"),
        Phase::Canceled => Some("was canceled"),
        Phase::Aborted => Some("was aborted"),
        Phase::Waiting | Phase::Queued | Phase::Placed | Phase::Running | Phase::Finished => None,
    }
}

/// Names a job after which the task was to run.
fn by_earlier_job(state: &ServerState, submit: &Submit, task: TaskId) -> Option<String> {
    submit.after.iter().find_map(|after| {
        let (job, id) = (state.jobs().get(&after.job)?, after.job);
        if after.is_each {
            let slot = job.find(task)?;
            let how = ending(job.submit(slot)?.tasks.phase(slot.index)?)?;
            return Some(format!("task {task} of job {id}, a dependency, {how}"));
        }
        let how = match job.state() {
            JobState::Failed => "failed",
            JobState::Canceled => "was canceled",
            JobState::Aborted => "was aborted",
            JobState::Waiting | JobState::Running | JobState::Finished | JobState::Opened => {
                return None;
            }
        };
        Some(format!("job {id}, a dependency, {how}"))
    })
}

/// Names the job's failure limit.
fn by_failures(job: &Job) -> Option<String> {
    let max = job.max_fails.filter(|_| job.exceeds_max_fails())?;
    Some(format!(
        "more tasks of job {} failed than --max-fails {max} allows",
        job.id
    ))
}
