//! Reads the output of the task in the full-screen view while the task writes it.

use hq_protocol::client::{self, output::Kind};
use hq_protocol::common::{self, read_from};
use hq_stream::ReadFrom;

use super::model::{LogKey, LogPart};
use crate::client::{Client, tail};
use crate::error::CliResult;
use crate::text::clean;

/// The number of lines to read at first. It is more than a user scrolls through.
const LINES: u32 = 10_000;
/// How long the server may hold a request until output arrives. A request for another log waits for
/// that long.
const WAIT_NS: u64 = 250_000_000;

/// How far an output has been read.
#[derive(Clone, Debug)]
pub(super) struct Position {
    pub(super) key: LogKey,
    pub(super) opening: u32,
    instance: Option<u32>,
    from: read_from::From,
    note: Option<String>,
    /// Whether the next request need not be delayed, because the server delays it.
    pub(super) is_hurried: bool,
}

impl Position {
    pub(super) const fn new((key, opening): (LogKey, u32)) -> Self {
        Self {
            key,
            opening,
            instance: None,
            from: read_from::From::LastLines(LINES),
            note: None,
            is_hurried: false,
        }
    }

    /// Returns a note, unless it was the last note shown.
    pub(super) fn say(&mut self, note: String) -> Option<LogPart> {
        self.is_hurried = false;
        let is_new = self.note.as_ref() != Some(&note);
        self.note = Some(note);
        is_new.then(|| self.part(Vec::new(), false))
    }

    fn part(&self, bytes: Vec<u8>, is_first: bool) -> LogPart {
        LogPart {
            key: self.key,
            opening: self.opening,
            is_first,
            is_cut: false,
            bytes,
            note: self.note.clone(),
        }
    }

    /// Sends one request. Returns the new output.
    pub(super) async fn read(&mut self, client: &mut Client) -> CliResult<Option<LogPart>> {
        let request = client::ReadOutput {
            job: self.key.job,
            task: self.key.task,
            is_stderr: self.key.is_stderr,
            instance: self.instance,
            from: Some(common::ReadFrom {
                from: Some(self.from),
            }),
            wait_ns: self.instance.map_or(0, |_| WAIT_NS),
        };
        let mut output = client.ask(request).await?;
        match output.kind() {
            Kind::NotFound => return Ok(self.say("this task no longer exists".to_owned())),
            Kind::NoOutput => return Ok(self.say(format!("its {} is not kept", self.key.stream()))),
            Kind::NotStarted => return Ok(self.say("it has not started".to_owned())),
            Kind::Unreachable => {
                let is_same = self.instance == Some(output.instance);
                let from = match self.from {
                    read_from::From::Offset(at) if is_same => ReadFrom::Offset(at),
                    read_from::From::Offset(_) => ReadFrom::Offset(0),
                    read_from::From::LastLines(lines) => ReadFrom::LastLines(lines),
                };
                tail::read_here(&mut output, self.key.is_stderr, from);
            }
            Kind::Data => {}
        }
        if let Some(error) = &output.error {
            return Ok(self.say(clean(error)));
        }
        let is_first = self.instance != Some(output.instance);
        self.instance = Some(output.instance);
        self.from = read_from::From::Offset(output.next);
        let state = hq_core::task::TaskState::from(output.state()).name();
        let note = output.is_complete.then(|| format!("the task is {state}"));
        self.is_hurried = !output.is_complete || !output.data.is_empty();
        let is_new = is_first || !output.data.is_empty() || note != self.note;
        self.note = note;
        Ok(is_new.then(|| LogPart {
            is_cut: is_first && output.offset > 0,
            ..self.part(output.data.to_vec(), is_first)
        }))
    }
}
