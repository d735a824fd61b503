//! Serves the output of running tasks to clients.

use std::time::Duration;

use hq_core::task::TaskState;
use hq_protocol::client::{self, output::Kind, reply};
use hq_protocol::convert::{OutputQuery, OutputRequest, ReadFrom};

use crate::core_handle::{CoreGone, CoreHandle};
use crate::query::output::{OutputLocation, output_location};
use crate::questions::Questions;

/// Reads a task's output on its worker. If there is no output yet, waits as long as the client
/// requested.
pub(crate) async fn read(
    query: OutputQuery,
    core: &CoreHandle,
    questions: &Questions,
) -> Result<reply::Reply, CoreGone> {
    let asked = query.clone();
    let found = core
        .query(move |view| output_location(view.state, &asked))
        .await?;
    let (state, instance, worker, source) = match found {
        OutputLocation::Unknown => return Ok(empty(Kind::NotFound, TaskState::Waiting)),
        OutputLocation::NotStarted(state) => {
            if !has_ended(state) {
                tokio::time::sleep(query.wait).await;
            }
            return Ok(empty(Kind::NotStarted, state));
        }
        OutputLocation::Known {
            state,
            source: None,
            ..
        } => return Ok(empty(Kind::NoOutput, state)),
        OutputLocation::Known {
            state,
            instance,
            worker,
            source: Some(source),
        } => (state, instance, worker, source),
    };
    let is_other = query.instance.is_some_and(|asked| asked != instance);
    let request = OutputRequest {
        id: 0,
        source: source.clone(),
        from: if is_other {
            ReadFrom::Offset(0)
        } else {
            query.from
        },
        // An ended task writes nothing more, so there is nothing to wait for.
        wait: if state == TaskState::Running {
            query.wait
        } else {
            Duration::ZERO
        },
    };
    let mut output = client::Output {
        state: client::TaskState::from(state).into(),
        instance: instance.as_u32(),
        ..client::Output::default()
    };
    match questions.ask(worker, request).await {
        Some(answer) => {
            output.offset = answer.offset;
            output.next = answer.next;
            output.is_complete = has_ended(state) && answer.next >= answer.size;
            output.data = answer.data;
            output.error = answer.error;
        }
        None => {
            output.set_kind(Kind::Unreachable);
            output.source = Some((&source).into());
        }
    }
    // Between two attempts there is nothing to read, and a client that immediately asks again would
    // only cause load.
    let is_between = state == TaskState::Waiting && output.data.is_empty();
    let is_lost = state == TaskState::Running && output.kind() == Kind::Unreachable;
    if is_between || is_lost {
        tokio::time::sleep(query.wait).await;
    }
    Ok(reply::Reply::Output(output))
}

fn empty(kind: Kind, state: TaskState) -> reply::Reply {
    reply::Reply::Output(client::Output {
        kind: kind.into(),
        state: client::TaskState::from(state).into(),
        is_complete: has_ended(state),
        ..client::Output::default()
    })
}

const fn has_ended(state: TaskState) -> bool {
    match state {
        TaskState::Waiting | TaskState::Running => false,
        TaskState::Finished | TaskState::Failed | TaskState::Canceled | TaskState::Aborted => true,
    }
}
