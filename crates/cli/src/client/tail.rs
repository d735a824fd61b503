//! Reads the end of a task's output, either on the worker or on this machine.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use hq_core::signature::last_words;
use hq_protocol::client;
use hq_protocol::common::{ReadFrom, output_source, read_from};
use hq_stream::{Channel, Key, OutputReader, Source};

use super::Client;
use crate::error::CliResult;
use crate::text::lossy;

/// The maximum number of bytes to read at once on this machine if the worker has ended.
pub(crate) const LOCAL_LIMIT: u64 = 256 * 1024;

/// The number of lines at the end of an output that are searched for the last words.
pub(crate) const WORDS_LINES: u32 = 30;

impl Client {
    /// Returns the last lines of one output stream of a task, or why they cannot be read.
    pub(crate) async fn last_lines(
        &mut self,
        (job, task): (u32, u32),
        is_stderr: bool,
        lines: u32,
    ) -> CliResult<Result<String, String>> {
        let output = self.read_last_lines((job, task), is_stderr, lines).await?;
        Ok(text_of(output, is_stderr, lines))
    }

    /// Like `last_lines`, but never reads files on this machine, which could hang. Returns `None`
    /// if the worker cannot read them.
    pub(crate) async fn last_lines_of_worker(
        &mut self,
        task: (u32, u32),
        is_stderr: bool,
        lines: u32,
    ) -> CliResult<Option<String>> {
        let output = self.read_last_lines(task, is_stderr, lines).await?;
        let is_here = output.kind() != client::output::Kind::Unreachable;
        let is_read = is_here && output.error.is_none();
        Ok(is_read.then(|| lossy(&output.data)))
    }

    /// Returns the last line of a task's standard error, or else of its standard output, that says
    /// something. Output that cannot be read is ignored.
    pub(crate) async fn last_words(&mut self, task: (u32, u32)) -> CliResult<Option<String>> {
        for is_stderr in [true, false] {
            let said = self.last_lines(task, is_stderr, WORDS_LINES).await?;
            if let Some(words) = last_words(&said.unwrap_or_default()) {
                return Ok(Some(words.to_owned()));
            }
        }
        Ok(None)
    }

    async fn read_last_lines(
        &mut self,
        (job, task): (u32, u32),
        is_stderr: bool,
        lines: u32,
    ) -> CliResult<client::Output> {
        let read = client::ReadOutput {
            job,
            task,
            is_stderr,
            from: Some(ReadFrom {
                from: Some(read_from::From::LastLines(lines)),
            }),
            ..client::ReadOutput::default()
        };
        self.ask(read).await
    }
}

/// Returns the text of an output.
fn text_of(mut output: client::Output, is_stderr: bool, lines: u32) -> Result<String, String> {
    if output.kind() == client::output::Kind::Unreachable {
        let from = hq_stream::ReadFrom::LastLines(lines);
        read_here(&mut output, is_stderr, from);
    }
    match output.error {
        Some(error) => Err(error),
        None => Ok(lossy(&output.data)),
    }
}

/// Reads an output on this machine, which may share the file system of the lost worker.
pub(crate) fn read_here(output: &mut client::Output, is_stderr: bool, from: hq_stream::ReadFrom) {
    let Some(source) = output.source.take().and_then(|source| source.source) else {
        return;
    };
    let (place, source) = local(source, is_stderr);
    if !place.exists() {
        let place = place.display();
        output.error = Some(format!(
            "its worker is gone, and {place} does not exist on this machine"
        ));
        return;
    }
    match OutputReader::new(source).read(from, LOCAL_LIMIT) {
        Ok(part) => {
            output.offset = part.next.saturating_sub(part.bytes.len() as u64);
            output.next = part.next;
            output.is_complete = part.next >= part.size;
            output.data = part.bytes.into();
        }
        Err(error) => output.error = Some(error.to_string()),
    }
}

/// Returns the path of the output on this machine, if it shares the worker's file system, and how
/// to read it.
pub(crate) fn local(source: output_source::Source, is_stderr: bool) -> (PathBuf, Source) {
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match source {
        output_source::Source::File(file) => (path(&file), Source::File(path(&file))),
        output_source::Source::Stream(stream) => {
            let source = Source::Stream {
                dir: path(&stream.dir),
                server_uid: stream.server_uid,
                key: Key {
                    job: stream.job,
                    task: stream.task,
                    instance: stream.instance,
                },
                channel: if is_stderr {
                    Channel::Stderr
                } else {
                    Channel::Stdout
                },
            };
            (path(&stream.dir), source)
        }
    }
}
