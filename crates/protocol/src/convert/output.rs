//! Requests for the output of tasks, from a client to the server and from the server to a worker.

use std::time::Duration;

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::template::ByteText;

use super::wire::{FromWire, ToWire, field, one_of, received, wire};
use super::{ConvertError, Within, duration, path, required, text};
use crate::{client, common, worker};

/// The maximum number of output bytes in one answer.
pub const OUTPUT_DATA_MAX: usize = 256 << 10;

/// How long a request may wait. A client that wants to wait longer sends another request.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Where an instance of a task writes one of its channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutputSource {
    /// A separate file.
    File(ByteText),
    /// A stream directory.
    Stream {
        /// The stream directory.
        dir: ByteText,
        /// The uid of the server.
        server_uid: Box<str>,
        /// The task.
        task: TaskKey,
        /// The instance of the task.
        instance: InstanceId,
        /// Whether this is standard error instead of standard output.
        is_stderr: bool,
    },
}

/// Where reading starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFrom {
    /// An offset from the beginning, in bytes.
    Offset(u64),
    /// The last lines, at most this many.
    LastLines(u32),
}

/// A server's request to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRequest {
    /// The id that the answer repeats.
    pub id: u64,
    /// The part to read.
    pub source: OutputSource,
    /// Where to start.
    pub from: ReadFrom,
    /// How long to wait if there is no output.
    pub wait: Duration,
}

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputQuery {
    /// The task.
    pub task: TaskKey,
    /// Whether to read standard error instead of standard output.
    pub is_stderr: bool,
    /// The instance that `from` refers to. `None` means the latest.
    pub instance: Option<InstanceId>,
    /// Where to start.
    pub from: ReadFrom,
    /// How long to wait if there is no output yet and more may follow.
    pub wait: Duration,
}

impl TryFrom<common::OutputSource> for OutputSource {
    type Error = ConvertError;

    fn try_from(message: common::OutputSource) -> Result<Self, ConvertError> {
        use common::output_source::Source;
        Ok(match required(message.source, "source")? {
            Source::File(file) => Self::File(path("file", file)?),
            Source::Stream(stream) => Self::Stream {
                dir: path("stream.dir", stream.dir)?,
                server_uid: text("stream.server_uid", stream.server_uid)?,
                task: TaskKey::new(JobId(stream.job), TaskId(stream.task)),
                instance: InstanceId(stream.instance),
                is_stderr: stream.is_stderr,
            },
        })
    }
}

field!(OutputSource = common::OutputSource);

impl From<&OutputSource> for common::OutputSource {
    fn from(source: &OutputSource) -> Self {
        use common::output_source::Source;
        let source = match source {
            OutputSource::File(path) => Source::File(path.to_wire()),
            OutputSource::Stream {
                dir,
                server_uid,
                task,
                instance,
                is_stderr,
            } => Source::Stream(common::StreamSource {
                dir: dir.to_wire(),
                server_uid: server_uid.to_wire(),
                job: task.job.as_u32(),
                task: task.task.as_u32(),
                instance: instance.as_u32(),
                is_stderr: *is_stderr,
            }),
        };
        Self {
            source: Some(source),
        }
    }
}

one_of! {
    ReadFrom = common::ReadFrom, from: common::read_from::From { Offset = offset, LastLines = last_lines, }
}

wire! { OutputRequest = worker::ReadOutput { id, source, from, wait = wait_ns: wait, } }

impl From<&OutputRequest> for worker::ToWorker {
    fn from(request: &OutputRequest) -> Self {
        worker::to_worker::Message::ReadOutput(request.into()).into()
    }
}

wire! {
    read OutputQuery = client::ReadOutput {
        struct task: TaskKey { job, task, },
        is_stderr,
        instance,
        from,
        wait = wait_ns: wait,
    }
}

fn wait(_: &str, found: u64) -> Result<Duration, ConvertError> {
    Ok(duration(found).min(WAIT_MAX))
}
