//! The end of what a task wrote, wherever it is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use hq_protocol::client;
use hq_protocol::common::{ReadFrom, output_source, read_from};
use hq_stream::{Channel, Key, OutputReader, Source};

use super::Client;
use crate::error::CliResult;

/// Bytes of output that are read here at once, if its worker is gone.
pub(crate) const LOCAL_LIMIT: u64 = 256 * 1024;

impl Client {
    /// The last lines that a task wrote to one of its streams, or why they cannot be read.
    pub(crate) async fn last_lines(
        &mut self,
        (job, task): (u32, u32),
        is_stderr: bool,
        lines: u32,
    ) -> CliResult<Result<String, String>> {
        let output = self.read_last_lines((job, task), is_stderr, lines).await?;
        Ok(text_of(output, is_stderr, lines))
    }

    /// The same without a look at files here, which may hang; `None` if they cannot be read where they are.
    pub(crate) async fn last_lines_of_worker(
        &mut self,
        task: (u32, u32),
        is_stderr: bool,
        lines: u32,
    ) -> CliResult<Option<String>> {
        let output = self.read_last_lines(task, is_stderr, lines).await?;
        let is_here = output.kind() != client::output::Kind::Unreachable;
        let is_read = is_here && output.error.is_none();
        Ok(is_read.then(|| String::from_utf8_lossy(&output.data).into_owned()))
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
        self.read_output(read).await
    }
}

/// The text that was read; if the worker is gone, its files may be here as well.
fn text_of(output: client::Output, is_stderr: bool, lines: u32) -> Result<String, String> {
    if let Some(error) = output.error {
        return Err(error);
    }
    let is_gone = output.kind() == client::output::Kind::Unreachable;
    let source = output.source.and_then(|source| source.source);
    let Some(source) = source.filter(|_| is_gone) else {
        return Ok(String::from_utf8_lossy(&output.data).into_owned());
    };
    let (place, source) = local(source, is_stderr);
    if !place.exists() {
        let place = place.display();
        return Err(format!("its worker is gone, and {place} is not here"));
    }
    let from = hq_stream::ReadFrom::LastLines(lines);
    match OutputReader::new(source).read(from, LOCAL_LIMIT) {
        Ok(part) => Ok(String::from_utf8_lossy(&part.bytes).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Where output would be if this machine shared the files of the worker, and how to read it.
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
