//! Submits that a task makes for its own job: the server is told which task and which attempt of it submits.

use hq_core::id::{InstanceId, TaskId};
use hq_core::template::{Origin, SubmitSpec, SubmitTarget};
use hq_protocol::{Message as _, client};

use crate::error::{CliError, CliResult};

/// Variable of every task: `<server>/<job>@<task>/<instance>/<nonce of its worker>`.
const MARK: &str = "HQ_INSTANCE_KEY";

/// Says in a submit which task makes it, if this process belongs to a task of that job; `once` = name of the submit.
///
/// # Errors
///
/// A name is given, and this is no task of the job: nobody would look for it there.
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
            is_own.then_some((task, instance))
        }),
        SubmitTarget::NewJob { .. } | SubmitTarget::SelfClosing { .. } => None,
    };
    let Some((task, instance)) = found else {
        if once.is_none() {
            return Ok(());
        }
        return Err(CliError::new(
            "--once is for a task that submits to its own job, and this is none",
        )
        .with_help("give it in a task, with `--job $HQ_JOB_ID`".to_owned()));
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
    let (job, task) = parts.next()?.split_once('@')?;
    let instance = parts.next()?.parse().ok()?;
    Some((
        server,
        job.parse().ok()?,
        TaskId(task.parse().ok()?),
        InstanceId(instance),
    ))
}

/// FNV-1a with 64 bits: tells different submits of one task apart, not malice.
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
        let found = parse("aBc1/3@17/2/5f-1a-9-0");
        assert_eq!(found, Some(("aBc1", 3, TaskId(17), InstanceId(2))));
        assert_eq!(parse("something/else"), None);
    }
}
