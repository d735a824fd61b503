//! `--learn-from`: sizes the first tasks according to the needs of an earlier job.

use std::sync::Arc;

use hq_core::sizing::{FirstMemory, TASKS_MIN};
use hq_core::template::SubmitBody;
use hq_protocol::client;

use crate::client::Client;
use crate::command::job;
use crate::command::job::suggest::Groups;
use crate::error::{CliError, CliResult};
use crate::parse::selector::SingleSelector;
use crate::submit::PreparedSubmit;

/// Adds the known needs of an earlier job to a submit.
pub(super) async fn apply(
    from: Option<SingleSelector>,
    prepared: &mut PreparedSubmit,
    client: &mut Client,
) -> CliResult<()> {
    let Some(from) = from else {
        return Ok(());
    };
    let SubmitBody::Array(array) = &mut prepared.spec.body else {
        return Err(unwanted());
    };
    if array.template.learn.memory.is_none() {
        return Err(unwanted());
    }
    let job = job::last_or_id(from, client).await?;
    let groups = Groups::read(client, job, &[client::TaskState::Finished]).await?;
    let groups = groups.ok_or_else(|| CliError::new(format!("Job {job} not found.")))?;
    let needs = groups.into_needs();
    let Some(memory) = needs.memory() else {
        return Err(CliError::new(format!(
            "{} tasks of job {job} have finished, which is too few to learn from: at least {TASKS_MIN} are required",
            needs.count()
        )));
    };
    Arc::make_mut(&mut array.template).learn.memory = Some(FirstMemory::Given(memory));
    Ok(())
}

fn unwanted() -> CliError {
    CliError::new("--learn-from determines the memory of tasks: add --resource mem=auto")
}
