//! Finds out where a task's output is, and whether more will follow.

use hq_core::id::{InstanceId, WorkerId};
use hq_core::placeholder::{PathPattern, PathPatterns, PathValues, join};
use hq_core::server_state::ServerState;
use hq_core::task::{Phase, TaskState};
use hq_core::template::StdioSpec;
use hq_protocol::convert::{OutputQuery, OutputSource};

/// The location of a task's output, according to the state.
#[derive(Debug)]
pub(crate) enum OutputLocation {
    /// The job or task does not exist.
    Unknown,
    /// The task has not been started.
    NotStarted(TaskState),
    /// The task has been started.
    Known {
        state: TaskState,
        instance: InstanceId,
        worker: WorkerId,
        /// Where the output is. `None` if the output is discarded.
        source: Option<OutputSource>,
    },
}

/// Looks up the output of a task.
pub(crate) fn output_location(state: &ServerState, query: &OutputQuery) -> OutputLocation {
    find(state, query).unwrap_or(OutputLocation::Unknown)
}

fn find(state: &ServerState, query: &OutputQuery) -> Option<OutputLocation> {
    let job = state.jobs().get(&query.task.job)?;
    let slot = job.find(query.task.task)?;
    let submit = job.submit(slot)?;
    let phase = submit.tasks.phase(slot.index)?;
    // The program may not be running yet, so the worker has nothing to read or to wait for.
    let task_state = if phase == Phase::Placed {
        TaskState::Waiting
    } else {
        phase.state()
    };
    let record = submit.tasks.record(slot.index);
    let Some(record) = record.filter(|record| record.was_started()) else {
        return Some(OutputLocation::NotStarted(task_state));
    };
    let task = submit.definition(slot.index)?;
    let values = PathValues {
        job: job.id,
        task: query.task.task,
        instance: record.instance(),
        submit_dir: &submit.header.submit_dir,
        server_uid: state.uid(),
        cwd: &[],
    };
    let paths = PathPatterns::new(&task).render(&values);
    let stdio = if query.is_stderr {
        paths.stderr
    } else {
        paths.stdout
    };
    let source = match stdio {
        StdioSpec::None => None,
        StdioSpec::File { path, .. } => Some(OutputSource::File(path)),
        StdioSpec::Stream => {
            submit
                .header
                .stream_dir
                .as_ref()
                .map(|pattern| OutputSource::Stream {
                    dir: stream_dir(pattern, &values).into(),
                    server_uid: state.uid().into(),
                    task: query.task,
                    instance: record.instance(),
                    is_stderr: query.is_stderr,
                })
        }
    };
    Some(OutputLocation::Known {
        state: task_state,
        instance: record.instance(),
        worker: record.worker(),
        source,
    })
}

/// Returns the directory of a stream, which `pattern` names.
pub(super) fn stream_dir(pattern: &[u8], values: &PathValues<'_>) -> Vec<u8> {
    let mut dir = Vec::new();
    PathPattern::parse(pattern).render(values, &mut dir);
    join(values.submit_dir, &dir)
}
