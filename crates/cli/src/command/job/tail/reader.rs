//! Reads the output of one task until its end.

use std::time::Duration;

use hq_core::time::nanos;
use hq_protocol::client::{self, output::Kind};
use hq_protocol::common::{self, read_from};
use hq_stream::{OutputReader, Part};
use tokio::sync::mpsc;

use crate::args::job::StreamArg;
use crate::client::{Client, tail};
use crate::error::CliResult;

/// How long the server may delay its reply. A silent channel delays the other channel, and the
/// detection of the task's end, by this time.
const WAIT: Duration = Duration::from_millis(250);

/// A chunk of output of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OutputChunk {
    pub(super) task: u32,
    pub(super) instance: u32,
    pub(super) channel: StreamArg,
    pub(super) bytes: Vec<u8>,
}

/// Reads the output of one task.
pub(super) struct Reader {
    pub(super) client: Client,
    pub(super) job: u32,
    pub(super) task: u32,
    pub(super) channels: Vec<StreamArg>,
    /// The number of last lines to start with. `None` means to read from the beginning.
    pub(super) last_lines: Option<u32>,
    /// Whether to read until the task has ended.
    pub(super) follow: bool,
    pub(super) pieces: mpsc::Sender<OutputChunk>,
    /// The instance that the user last saw.
    pub(super) known: Option<u32>,
}

/// The position in one channel.
struct Position {
    channel: StreamArg,
    instance: Option<u32>,
    from: read_from::From,
    is_done: bool,
}

impl Reader {
    /// Reads all output, and returns the connection.
    pub(super) async fn run(mut self) -> CliResult<Client> {
        let from = self
            .last_lines
            .map_or(read_from::From::Offset(0), read_from::From::LastLines);
        let start = |channel: &StreamArg| Position {
            channel: *channel,
            instance: None,
            from,
            is_done: false,
        };
        let mut positions: Vec<Position> = self.channels.iter().map(start).collect();
        let mut wait = Duration::ZERO;
        while positions.iter().any(|position| !position.is_done) {
            let mut has_news = false;
            for position in positions.iter_mut().filter(|position| !position.is_done) {
                has_news |= self.step(position, wait).await?;
            }
            // A task that has just written output may write more.
            wait = if has_news || !self.follow {
                Duration::ZERO
            } else {
                WAIT
            };
        }
        Ok(self.client)
    }

    /// Sends one request. Returns whether output arrived.
    async fn step(&mut self, position: &mut Position, wait: Duration) -> CliResult<bool> {
        let request = client::ReadOutput {
            job: self.job,
            task: self.task,
            is_stderr: position.channel == StreamArg::Stderr,
            instance: position.instance,
            from: Some(common::ReadFrom {
                from: Some(position.from),
            }),
            wait_ns: nanos(wait),
        };
        let mut output = match self.client.ask(request).await {
            // The reply was lost, so the same request is sent again.
            Err(error) if self.follow && self.client.may_return() => {
                self.client.come_back_quietly(error).await?;
                return Ok(false);
            }
            output => output?,
        };
        let kind = output.kind();
        match kind {
            Kind::NotFound | Kind::NoOutput => {
                position.is_done = true;
                return Ok(false);
            }
            Kind::NotStarted => {
                position.is_done = output.is_complete || !self.follow;
                return Ok(false);
            }
            Kind::Unreachable => {
                if !read_here(position, &mut output, self.follow) {
                    position.is_done |= !self.follow;
                    return Ok(false);
                }
            }
            Kind::Data => {}
        }
        let known = self.known.replace(output.instance);
        if known.is_some_and(|known| known != output.instance) {
            tracing::warn!(
                "Task {} of job {} runs again (instance {})",
                self.task,
                self.job,
                output.instance
            );
        }
        position.instance = Some(output.instance);
        position.from = read_from::From::Offset(output.next);
        if let Some(error) = &output.error {
            let (task, channel) = (self.task, position.channel);
            tracing::warn!("The {channel} of task {task} cannot be read: {error}");
            position.is_done = true;
        }
        let is_empty = output.data.is_empty();
        // Without --follow, reading stops when no more output is available.
        position.is_done |= output.is_complete || (!self.follow && is_empty);
        if !is_empty {
            let piece = OutputChunk {
                task: self.task,
                instance: output.instance,
                channel: position.channel,
                bytes: output.data.to_vec(),
            };
            // If the printer has ended, the command is ending.
            let _ = self.pieces.send(piece).await;
        }
        Ok(!is_empty)
    }
}

/// Reads the output on this machine if the worker is gone or not back yet, but shares its file
/// system. Returns `false` for an unfinished task, which is read again when its worker is back.
fn read_here(position: &Position, output: &mut client::Output, follow: bool) -> bool {
    let Some(source) = output.source.take().and_then(|source| source.source) else {
        return false;
    };
    let (place, source) = tail::local(source, position.channel == StreamArg::Stderr);
    let is_same = position
        .instance
        .is_none_or(|instance| instance == output.instance);
    let from = match position.from {
        read_from::From::Offset(offset) if is_same => hq_stream::ReadFrom::Offset(offset),
        read_from::From::Offset(_) => hq_stream::ReadFrom::Offset(0),
        read_from::From::LastLines(lines) => hq_stream::ReadFrom::LastLines(lines),
    };
    let has_ended = !matches!(
        output.state(),
        client::TaskState::Running | client::TaskState::Waiting
    );
    let may_come = follow && !has_ended;
    match OutputReader::new(source).read(from, tail::LOCAL_LIMIT) {
        // The file is missing or incomplete on this machine. A slow file system may show it later.
        Ok(part) if may_come && (!place.exists() || is_behind(from, &part)) => return false,
        Err(_) if may_come => return false,
        Ok(part) if part.size == 0 && has_ended && !place.exists() => {
            let place = place.display();
            output.error = Some(format!(
                "its worker is gone, and {place} does not exist on this machine"
            ));
        }
        Ok(part) => {
            output.next = part.next;
            output.is_complete = has_ended && part.next >= part.size;
            output.data = part.bytes.into();
        }
        Err(error) => output.error = Some(error.to_string()),
    }
    true
}

/// Returns whether the file is shorter than what was already read.
const fn is_behind(from: hq_stream::ReadFrom, part: &Part) -> bool {
    match from {
        hq_stream::ReadFrom::Offset(offset) => part.size < offset,
        hq_stream::ReadFrom::LastLines(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use hq_protocol::common::{OutputSource, output_source::Source};

    use super::*;

    #[test]
    fn the_place_stays_while_a_worker_is_away_and_its_files_are_elsewhere() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("0.stdout");
        let position = Position {
            channel: StreamArg::Stdout,
            instance: Some(1),
            from: read_from::From::Offset(6),
            is_done: false,
        };
        let read = |state: client::TaskState| {
            let path = file.as_os_str().as_bytes().to_vec();
            let mut output = client::Output {
                instance: 1,
                state: state.into(),
                source: Some(OutputSource {
                    source: Some(Source::File(path.into())),
                }),
                ..client::Output::default()
            };
            read_here(&position, &mut output, true).then_some(output)
        };
        let running = client::TaskState::Running;
        assert_eq!(read(running), None, "it is not here");
        std::fs::write(&file, "begun").expect("written");
        assert_eq!(read(running), None, "less than was read is here");
        std::fs::write(&file, "begun\nmore\n").expect("written");
        let output = read(running).expect("it is here");
        assert_eq!((&output.data[..], output.next), (&b"more\n"[..], 11));
        std::fs::remove_file(&file).expect("removed");
        let output = read(client::TaskState::Finished).expect("it has ended");
        let error = output.error.expect("nothing more comes");
        assert!(error.contains("its worker is gone"), "{error}");
    }
}
