//! Handles submits by a task for its own job: the submit contains the task and its attempt.

use hq_core::id::{InstanceId, TaskId};
use hq_core::template::{Origin, SubmitSpec, SubmitTarget};
use hq_protocol::{Message as _, client};

use crate::error::{CliError, CliResult};

/// A variable that every task has: `<server>/<job>@<task>/<instance>/<nonce of its worker>`.
const MARK: &str = "HQ_INSTANCE_KEY";

/// Adds the submitting task to a submit if this process belongs to a task of that job. `once` is
/// the name of the submit.
///
/// # Errors
///
/// Returns an error if a name is given but this process does not belong to a task of the job,
/// because the name would have no effect.
pub(crate) fn add(
    spec: &mut SubmitSpec,
    server_uid: Option<&str>,
    once: Option<&str>,
) -> CliResult<()> {
    let mark = std::env::var(MARK).ok();
    let found = match &spec.target {
        SubmitTarget::Attach(job) => mark.as_deref().and_then(|mark| {
            let (server, job_of_task, task, instance) = parse(mark)?;
            let is_own = Some(server) == server_uid && job_of_task == job.as_u32();
            // The mark only identifies the process, and a persistent interpreter runs one call
            // after the other.
            let now = numbers(|name| std::env::var(name).ok())
                .filter(|(job_of_call, ..)| *job_of_call == job_of_task)
                .map_or((task, instance), |(_, task, instance)| (task, instance));
            is_own.then_some(now)
        }),
        SubmitTarget::NewJob { .. } | SubmitTarget::SelfClosing { .. } => None,
    };
    let Some((task, instance)) = found else {
        if once.is_none() {
            return Ok(());
        }
        return Err(CliError::new(
            "--once is for a task that submits to its own job, but this is not a task",
        )
        .with_help("give it in a task, with `--job $HQ_JOB_ID`"));
    };
    spec.origin = Some(Origin {
        task,
        instance,
        key: once.map(Into::into),
        digest: digest(&client::Submit::from(&*spec).encode_to_vec()),
    });
    Ok(())
}

fn parse(mark: &str) -> Option<(&str, u32, TaskId, InstanceId)> {
    let mut parts = mark.split('/');
    let server = parts.next()?;
    // Workers of earlier releases write `3@17`.
    let (job, task) = parts.next()?.split_once(['.', '@'])?;
    let instance = parts.next()?.parse().ok()?;
    Some((
        server,
        job.parse().ok()?,
        TaskId(task.parse().ok()?),
        InstanceId(instance),
    ))
}

/// Returns job, task and attempt from the variables that every task and call has.
fn numbers(get: impl Fn(&str) -> Option<String>) -> Option<(u32, TaskId, InstanceId)> {
    let number = |name| get(name)?.parse().ok();
    Some((
        number("HQ_JOB_ID")?,
        TaskId(number("HQ_TASK_ID")?),
        InstanceId(number("HQ_INSTANCE_ID")?),
    ))
}

/// Computes a 64-bit FNV-1a hash. It distinguishes the submits of one task, but gives no protection
/// against attacks.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_task_names_server_job_task_and_attempt() {
        for mark in ["aBc1/3.17/2/5f-1a-9-0", "aBc1/3@17/2/5f-1a-9-0"] {
            let found = parse(mark);
            assert_eq!(
                found,
                Some(("aBc1", 3, TaskId(17), InstanceId(2))),
                "{mark}"
            );
        }
        assert_eq!(parse("something/else"), None);
    }

    #[test]
    fn variables_name_the_call_that_an_interpreter_is_at() {
        let get = |name: &str| match name {
            "HQ_JOB_ID" => Some("3".to_owned()),
            "HQ_TASK_ID" => Some("18".to_owned()),
            "HQ_INSTANCE_ID" => Some("0".to_owned()),
            _ => None,
        };
        assert_eq!(numbers(get), Some((3, TaskId(18), InstanceId(0))));
        assert_eq!(numbers(|_| None), None);
    }
}
