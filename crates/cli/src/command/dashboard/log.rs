//! Reads the output of the task on the full-screen view, while the task writes it.

use std::sync::mpsc::Sender;
use std::time::Duration;

use hq_protocol::client::{self, output::Kind};
use hq_protocol::common::{self, read_from};
use hq_stream::OutputReader;
use tokio::sync::watch;

use super::Message;
use super::link::{Link, tell};
use crate::client::{Client, tail};
use crate::dashboard::app::{Focus, News};
use crate::dashboard::model::{LogKey, LogPart, clean};
use crate::error::{CliError, CliResult};

/// Number of lines to read at first: more than a person scrolls through.
const LINES: u32 = 10_000;
/// How long the server may hold a request until output arrives. Another log waits for as long.
const WAIT: Duration = Duration::from_millis(250);
/// Pause after an error, or at the end of the output.
const PAUSE: Duration = Duration::from_millis(500);
/// A server that does not answer for this long counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How far an output was read.
struct Position {
    key: LogKey,
    opening: u32,
    instance: Option<u32>,
    from: read_from::From,
    note: Option<String>,
}

/// Reads the selected output, on a connection of its own.
pub(super) async fn watch(
    mut link: Link,
    tx: &Sender<Message>,
    mut focused: watch::Receiver<Focus>,
) {
    let mut position: Option<Position> = None;
    loop {
        let wanted = focused.borrow_and_update().log;
        let read = position
            .as_ref()
            .map(|position| (position.key, position.opening));
        if read != wanted {
            position = wanted.map(|(key, opening)| Position::new(key, opening));
        }
        let Some(now) = &mut position else {
            if focused.changed().await.is_err() {
                return;
            }
            continue;
        };
        let is_hurried = match step(&mut link, now, tx).await {
            Ok(has_more) => has_more,
            Err(error) => {
                link.client = None;
                let why = error.text().unwrap_or_default();
                now.say(tx, clean(why.lines().next().unwrap_or_default()));
                false
            }
        };
        if !is_hurried {
            tokio::select! {
                changed = focused.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

impl Position {
    const fn new(key: LogKey, opening: u32) -> Self {
        Self {
            key,
            opening,
            instance: None,
            from: read_from::From::LastLines(LINES),
            note: None,
        }
    }

    /// Tells how it stands, once.
    fn say(&mut self, tx: &Sender<Message>, note: String) {
        if self.note.as_ref() != Some(&note) {
            self.note = Some(note.clone());
            tell(tx, News::Log(self.part(Vec::new(), false, Some(note))));
        }
    }

    const fn part(&self, bytes: Vec<u8>, is_first: bool, note: Option<String>) -> LogPart {
        LogPart {
            key: self.key,
            opening: self.opening,
            is_first,
            is_cut: false,
            bytes,
            note,
        }
    }
}

/// Sends one request; returns whether to send the next one without a pause.
async fn step(link: &mut Link, position: &mut Position, tx: &Sender<Message>) -> CliResult<bool> {
    let client = link.get().await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, read(client, position)).await;
    let mut output = answer.map_err(|_| CliError::new("The server does not answer"))??;
    match output.kind() {
        Kind::NotFound => {
            position.say(tx, "this task no longer exists".to_owned());
            return Ok(false);
        }
        Kind::NoOutput => {
            let text = format!("its {} is not kept", position.key.stream());
            position.say(tx, text);
            return Ok(false);
        }
        Kind::NotStarted => {
            position.say(tx, "it has not started".to_owned());
            return Ok(false);
        }
        Kind::Unreachable => read_here(position, &mut output),
        Kind::Data => {}
    }
    if let Some(error) = &output.error {
        position.say(tx, clean(error));
        return Ok(false);
    }
    let is_first = position.instance != Some(output.instance);
    position.instance = Some(output.instance);
    position.from = read_from::From::Offset(output.next);
    let note = output.is_complete.then(|| {
        let state = hq_core::task::TaskState::from(output.state());
        format!("the task is {}", state.name())
    });
    let is_empty = output.data.is_empty();
    if is_first || !is_empty || note != position.note {
        position.note.clone_from(&note);
        let mut part = position.part(output.data.to_vec(), is_first, note);
        part.is_cut = is_first && output.offset > 0;
        tell(tx, News::Log(part));
    }
    Ok(!output.is_complete || !is_empty)
}

async fn read(client: &mut Client, position: &Position) -> CliResult<client::Output> {
    let is_open = position.instance.is_some();
    let request = client::ReadOutput {
        job: position.key.job,
        task: position.key.task,
        is_stderr: position.key.is_stderr,
        instance: position.instance,
        from: Some(common::ReadFrom {
            from: Some(position.from),
        }),
        wait_ns: u64::try_from(if is_open { WAIT.as_nanos() } else { 0 }).unwrap_or(0),
    };
    client.read_output(request).await
}

/// Reads the output on this machine, if the worker is gone but shared its file system.
fn read_here(position: &Position, output: &mut client::Output) {
    let Some(source) = output.source.take().and_then(|source| source.source) else {
        return;
    };
    let (place, source) = tail::local(source, position.key.is_stderr);
    if !place.exists() {
        let place = place.display();
        output.error = Some(format!("its worker is gone, and {place} is not here"));
        return;
    }
    let is_same = position.instance == Some(output.instance);
    let from = match position.from {
        read_from::From::Offset(offset) if is_same => hq_stream::ReadFrom::Offset(offset),
        read_from::From::Offset(_) => hq_stream::ReadFrom::Offset(0),
        read_from::From::LastLines(lines) => hq_stream::ReadFrom::LastLines(lines),
    };
    match OutputReader::new(source).read(from, tail::LOCAL_LIMIT) {
        Ok(part) => {
            output.offset = part.next.saturating_sub(part.bytes.len() as u64);
            output.next = part.next;
            output.is_complete = part.next >= part.size;
            output.data = part.bytes.into();
        }
        Err(error) => output.error = Some(error.to_string()),
    }
}
