//! Reads the last lines of failed tasks' output on their workers.

use std::sync::Arc;
use std::time::Duration;

use hq_core::id::TaskKey;
use hq_core::signature::last_words;
use hq_protocol::client::{output::Kind, reply::Reply};
use hq_protocol::convert::{OutputQuery, ReadFrom};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::core_handle::CoreHandle;
use crate::output_link;
use crate::questions::Questions;

/// The number of lines at the end of the output that are searched.
const LINES: u32 = 30;
/// How long to wait for all workers together, however many tasks ran there.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The last line that a task wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Words {
    /// The line from standard error or, if there is none, from standard output.
    Said(String),
    /// The task wrote nothing, or its output was not kept.
    Nothing,
    /// The worker did not answer, is gone, or could not read the output.
    Unknown,
}

/// Requests the lines of all tasks at the same time, so that this takes as long as the slowest
/// worker.
pub(crate) async fn read(
    core: &CoreHandle,
    questions: &Arc<Questions>,
    tasks: &[TaskKey],
) -> Vec<Words> {
    let deadline = Instant::now() + TIMEOUT;
    let mut found = vec![Words::Unknown; tasks.len()];
    let mut asked = JoinSet::new();
    for (at, task) in tasks.iter().copied().enumerate() {
        let (core, questions) = (core.clone(), Arc::clone(questions));
        asked.spawn(async move { (at, words(&core, &questions, task).await) });
    }
    // Dropping the set cancels the requests that are not answered yet.
    while let Ok(Some(answer)) = timeout_at(deadline, asked.join_next()).await {
        if let Ok((at, words)) = answer
            && let Some(place) = found.get_mut(at)
        {
            *place = words;
        }
    }
    found
}

async fn words(core: &CoreHandle, questions: &Questions, task: TaskKey) -> Words {
    for is_stderr in [true, false] {
        let query = OutputQuery {
            task,
            is_stderr,
            instance: None,
            from: ReadFrom::LastLines(LINES),
            wait: Duration::ZERO,
        };
        let Ok(Reply::Output(output)) = output_link::read(query, core, questions).await else {
            return Words::Unknown;
        };
        // Missing output is not an error. This output could not be read, for example because its
        // file system hangs.
        if output.kind() == Kind::Unreachable || output.error.is_some() {
            return Words::Unknown;
        }
        if let Some(line) = last_words(&String::from_utf8_lossy(&output.data)) {
            return Words::Said(line.to_owned());
        }
    }
    Words::Nothing
}
