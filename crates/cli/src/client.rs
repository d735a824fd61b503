//! Typed requests to the server.
//!
//! Each request has one reply, except [`Client::watch`]. A client that follows jobs survives a
//! restart of the server, see [`follow`]. The type of the connection is erased, so that `hq run`
//! can use the same code for its own server.

mod follow;
mod open;
mod question;
pub(crate) mod tail;

pub(crate) use question::{
    AllocAdd, AllocDryRun, AllocInfo, AllocLog, AllocPause, AllocResume, HttpOpen, JobClose,
    JobInfo, JobList, LimitList, Question, ServerInfo, WorkerDrain, WorkerRelease, WorkerStop,
};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::range::IdArray;
use hq_protocol::access::{Access, AccessError, AccessFile, ServerDir};
use hq_protocol::client::{self, reply::Reply, request::Request};
use hq_protocol::{HandshakeError, MessageReader, MessageWriter, Plane, Strangers, WriteError};
use hq_server::SilentServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

use crate::error::{Caused as _, CliError, CliResult};
use crate::parse::selector::Selector;
use crate::version::VERSION;

/// How long a server may take to stop. Its workers have five seconds, and its batch system may be
/// slow.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of attempts to connect if the server closes the connection during the handshake, and
/// the pause after the first attempt.
const ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(30);

/// The maximum number of dependencies that are followed from a waiting task to the cause of the
/// wait.
const DEPENDENCIES_FOLLOWED_MAX: usize = 16;

/// Any byte stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type BoxedStream = Box<dyn Stream>;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    reader: MessageReader<ReadHalf<BoxedStream>>,
    writer: MessageWriter<WriteHalf<BoxedStream>>,
    server_uid: Option<String>,
    /// The server directory, to find the server again. `None` for a server in this process.
    dir: Option<ServerDir>,
    /// Whether the connection broke. If so, no more replies arrive.
    is_lost: bool,
    /// The parts of an update that is not complete yet.
    update: client::WatchUpdate,
}

/// Converts an error of the access file into an error with advice for users.
pub(crate) fn access_error(error: &AccessError) -> CliError {
    const WITHOUT_SERVER: &str = "`hq run …` runs tasks on this machine without a server; `hq doctor` checks what a server needs";
    if let AccessError::InvalidDirectory { source, .. } = error
        && source.0.is_file()
    {
        // An access file is in the directory of an instance, which is in a server directory.
        let dir = source
            .0
            .ancestors()
            .nth(2)
            .filter(|dir| *dir != Path::new(""));
        let dir = dir.unwrap_or(Path::new("."));
        return access_failure(error).with_help(format!(
            "name the directory where the server started, not a file in it: `--server-dir {}`",
            dir.display()
        ));
    }
    if let AccessError::InvalidDirectory { hint, .. } = error
        && error.is_no_server_yet()
    {
        // A directory without a server is not in itself an error.
        let is_option =
            std::env::args_os().any(|word| word.as_encoded_bytes().starts_with(b"--server-dir"));
        let from = match std::env::var_os("HQ_SERVER_DIR") {
            Some(_) if !is_option => "the variable HQ_SERVER_DIR",
            Some(_) | None => "`--server-dir`",
        };
        return CliError::caused(
            format!(
                "No server is running: the server directory does not exist. Check {from}, start a server with \
                 `hq server start{hint}`, or run tasks without a server: `hq run …`"
            ),
            error,
        );
    }
    let failure = access_failure(error);
    if error.is_no_server_yet() {
        return failure.with_help(WITHOUT_SERVER);
    }
    failure
}

fn access_failure(error: &AccessError) -> CliError {
    match std::error::Error::source(error) {
        // The failed system call is not helpful if the text says what to do.
        Some(_) if matches!(error, AccessError::Unreachable { .. }) => {
            CliError::new(error.to_string())
        }
        Some(source) => CliError::caused(error.to_string(), source),
        None => CliError::new(error.to_string()),
    }
}

impl Client {
    /// Connects to the server of a server directory.
    pub(crate) async fn connect(dir: &ServerDir) -> CliResult<Self> {
        let access = dir.load_access(VERSION);
        open::check_key(&access)?;
        Self::connect_with(dir, access, false).await
    }

    /// Connects to a server of any release. Used for requests that all releases understand, or
    /// after the server was updated.
    pub(crate) async fn connect_any(dir: &ServerDir) -> CliResult<Self> {
        Self::connect_with(dir, dir.load_access_any(), false).await
    }

    async fn connect_with(
        dir: &ServerDir,
        access: Result<(PathBuf, AccessFile), AccessError>,
        to_port: bool,
    ) -> CliResult<Self> {
        let (path, file) = access.map_err(|e| access_error(&e))?;
        let access = file
            .plane(Plane::Client, &path)
            .map_err(|e| access_error(&e))?;
        let uid = file.server_uid.as_ref().map(|uid| uid.as_str().to_owned());
        let mut attempt = 1;
        let (mut strangers, mut other) = (Strangers::default(), None);
        let connection = loop {
            // All places of the socket may be taken: further attempts use the port.
            let instance = path.parent().filter(|_| !to_port && attempt == 1);
            let (stream, peer) = match other.take() {
                Some(stream) => open::with_peer(stream),
                None => open::open(dir, instance, access).await?,
            };
            let key = access.key.as_ref();
            match hq_protocol::connect(stream, Plane::Client, key).await {
                Ok(connection) => break connection,
                // During a flood of other connections, the server may close this one before its
                // first message arrives.
                Err(HandshakeError::Closed | HandshakeError::Io(_)) if attempt < ATTEMPTS => {
                    tokio::time::sleep(ATTEMPT_PAUSE * attempt).await;
                    attempt += 1;
                }
                Err(error) => {
                    let (host, port) = (access.host.as_str(), access.port);
                    if let Some(peer) = peer {
                        other = strangers.another((host, port), peer, &error).await;
                    }
                    if other.is_some() {
                        continue;
                    }
                    let text = format!("Cannot talk to the server at {host}:{port}{strangers}");
                    let failure = CliError::caused(text, &error);
                    return Err(if error.is_retryable() {
                        failure.with_help("the server, its machine or this one is very busy, or the network between them fails: try again; `hq doctor net` checks the way to the server")
                    } else {
                        failure
                    });
                }
            }
        };
        let mut client = Self::from_connection(connection, uid);
        client.dir = Some(dir.clone());
        Ok(client)
    }

    /// Like [`Self::connect`], but always uses the port, on this machine or on the host in the
    /// access file.
    pub(crate) async fn connect_to_port(dir: &ServerDir, is_here: bool) -> CliResult<Self> {
        let (path, mut file) = dir.load_access(VERSION).map_err(|e| access_error(&e))?;
        if let Some(access) = file.client.as_mut().filter(|_| is_here) {
            std::net::Ipv4Addr::LOCALHOST
                .to_string()
                .clone_into(&mut access.host);
        }
        Self::connect_with(dir, Ok((path, file)), true).await
    }

    /// Connects to a server in this process.
    pub(crate) async fn in_process(
        stream: impl Stream + 'static,
        server_uid: String,
    ) -> CliResult<Self> {
        let stream: BoxedStream = Box::new(stream);
        let connection = hq_protocol::connect(stream, Plane::Client, None)
            .await
            .caused("Cannot talk to the server in this process")?;
        Ok(Self::from_connection(connection, Some(server_uid)))
    }

    fn from_connection(
        connection: hq_protocol::Connection<BoxedStream>,
        server_uid: Option<String>,
    ) -> Self {
        let (reader, writer) = connection.split();
        Self {
            reader,
            writer,
            server_uid,
            dir: None,
            is_lost: false,
            update: client::WatchUpdate::default(),
        }
    }

    /// Returns the uid of the server, or `None` if the access file has none.
    pub(crate) fn server_uid(&self) -> Option<&str> {
        self.server_uid.as_deref()
    }

    /// Returns whether the connection broke. If so, every further request fails.
    pub(crate) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    async fn send(&mut self, request: Request) -> CliResult<()> {
        let request = client::Request {
            request: Some(request),
        };
        let sent = self.writer.send(&request).await;
        if let Some((found, limit)) = sent.as_ref().err().and_then(WriteError::too_large) {
            return Err(CliError::new(format!(
                "The request has {found} bytes, and at most {limit} are allowed. Submit fewer tasks at a time, or put large data into files that the tasks read"
            )));
        }
        self.is_lost |= sent.is_err();
        sent.caused("The connection to the server was lost")
    }

    async fn receive(&mut self) -> CliResult<Reply> {
        let read = self.reader.next::<client::Reply>().await;
        self.is_lost |= !matches!(read, Ok(Some(_)));
        match read {
            Ok(Some(client::Reply {
                reply: Some(Reply::Error(error)),
            })) => Err(CliError::from_server(error)),
            Ok(Some(client::Reply { reply: Some(reply) })) => Ok(reply),
            Ok(Some(client::Reply { reply: None })) => Err(unexpected_reply()),
            Ok(None) => Err(CliError::new("The server closed the connection")),
            Err(e) => Err(CliError::caused(
                "The connection to the server was lost",
                &e,
            )),
        }
    }

    /// Sends a question, and waits for its answer.
    pub(crate) async fn ask<Q: Question>(&mut self, question: Q) -> CliResult<Q::Answer> {
        self.send(question.request()).await?;
        Q::answer(self.receive().await?).ok_or_else(unexpected_reply)
    }

    /// Asks the server to stop, and waits until it has ended.
    pub(crate) async fn server_stop(&mut self, keep_workers: bool) -> CliResult<()> {
        self.ask(client::ServerStop { keep_workers }).await?;
        // The server closes the connection when it ends, without another message.
        let closed = self.reader.next::<client::Reply>();
        if tokio::time::timeout(STOP_TIMEOUT, closed).await.is_err() {
            tracing::warn!("The server has not ended yet; it may be waiting for a batch system");
        }
        Ok(())
    }

    /// Starts to read the journal. Call [`Client::next_lines`] until a part is `done`.
    pub(crate) async fn journal(&mut self, journal: client::Journal) -> CliResult<()> {
        self.send(Request::Journal(journal)).await
    }

    /// Returns the next part of the journal, or `None` if the server ended and `may_end` allows
    /// that.
    pub(crate) async fn next_lines(
        &mut self,
        may_end: bool,
    ) -> CliResult<Option<client::JournalLines>> {
        match self.receive().await {
            Ok(Reply::JournalLines(lines)) => Ok(Some(lines)),
            Ok(_) => Err(unexpected_reply()),
            Err(_) if may_end && self.is_lost => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Submits tasks. Returns the id of the job.
    pub(crate) async fn submit(&mut self, submit: client::Submit) -> CliResult<u32> {
        self.check_limits(&submit).await?;
        let job = self.ask(submit).await.map_err(with_open_job)?;
        Ok(job.id)
    }

    /// Rejects limits if the server is of a release that would ignore them.
    pub(crate) async fn check_limits(&mut self, submit: &client::Submit) -> CliResult<()> {
        if submit.limits.is_none() || self.ask(ServerInfo).await?.knows_limits {
            return Ok(());
        }
        Err(CliError::new(
            "The server is of an earlier release and would start the tasks without their limits",
        )
        .with_help("restart the server with this program"))
    }

    /// Sends a request about automatic allocation.
    pub(crate) async fn alloc<Q: Question>(&mut self, question: Q) -> CliResult<Q::Answer> {
        self.ask(question)
            .await
            .map_err(|error| match error.text() {
                Some(text)
                    if error.is_not_found()
                        && text.contains("Allocation ")
                        && !text.contains("queue") =>
                {
                    error.with_help("`hq alloc info QUEUE` lists the allocations of a queue")
                }
                _ if error.is_not_found() => {
                    error.with_help("`hq alloc list` lists the queues that exist")
                }
                _ => error,
            })
    }

    /// Returns the summary of one job, or `None` if it does not exist.
    pub(crate) async fn job(&mut self, job: &Selector) -> CliResult<Option<client::JobSummary>> {
        Ok(self.ask(JobList(job)).await?.jobs.into_iter().next())
    }

    /// Returns the ids of a job's tasks in these states, or in any state if there are none.
    pub(crate) async fn task_ids(
        &mut self,
        job: u32,
        states: &[client::TaskState],
    ) -> CliResult<Option<IdArray>> {
        let request = client::TaskIds {
            jobs: Some(Selector::one(job).to_message()),
            states: states.iter().map(|state| (*state).into()).collect(),
        };
        let mut jobs = self.ask(request).await?.jobs.into_iter();
        let ids = jobs.find_map(|job| job.ids).map(IdArray::try_from);
        ids.transpose().caused("Broken task ids")
    }

    /// Returns the next page of tasks, or `None` after the last one. Replaces the request by the one
    /// for the page after it.
    pub(crate) async fn next_page(
        &mut self,
        next: &mut Option<client::TaskPage>,
    ) -> CliResult<Option<client::TaskPageReply>> {
        let Some(request) = next.clone() else {
            return Ok(None);
        };
        let page = self.ask(request).await?;
        let cursor = page.next_cursor;
        *next = next.take().and_then(|request| {
            Some(client::TaskPage {
                cursor: cursor?,
                ..request
            })
        });
        Ok(Some(page))
    }

    /// Returns the first waiting task of a job and why it is waiting, or `None` if no task is
    /// waiting anymore. The explanation names only one of the workers that could run the task.
    pub(crate) async fn explain_first_waiting(
        &mut self,
        job: u32,
    ) -> CliResult<Option<(client::TaskInfo, client::Explanation)>> {
        let page = client::TaskPage {
            job: Some(client::task_page::Job::Id(job)),
            states: vec![client::TaskState::Waiting.into()],
            limit: 1,
            with_definition: true,
            ..client::TaskPage::default()
        };
        let Some(mut task) = self.ask(page.clone()).await?.tasks.into_iter().next() else {
            return Ok(None);
        };
        // In a graph, follow the first unfinished dependency whose own dependencies have finished.
        for _ in 0..DEPENDENCIES_FOLLOWED_MAX {
            let deps: BTreeSet<u32> = task.deps.iter().copied().collect();
            let Some(deps) = IdArray::from_sorted(deps)
                .ok()
                .filter(|ids| !ids.is_empty())
            else {
                break;
            };
            let unfinished = client::TaskPage {
                tasks: Some((&deps).into()),
                limit: 0,
                ..page.clone()
            };
            match self.ask(unfinished).await?.tasks.into_iter().next() {
                Some(before) => task = before,
                None => break,
            }
        }
        let explain = client::Explain {
            job: Some(client::explain::Job::Id(job)),
            task: task.id,
            until_able: true,
        };
        // The task may have ended or been forgotten meanwhile.
        Ok(match self.ask(explain).await {
            Ok(explanation) => Some((task, explanation)),
            Err(error) if self.is_lost => return Err(error),
            Err(_) => None,
        })
    }

    /// Returns workers.
    pub(crate) async fn workers(
        &mut self,
        workers: &Selector,
        with_runtime: bool,
    ) -> CliResult<client::Workers> {
        let query = client::WorkerQuery {
            workers: Some(workers.to_message()),
            with_runtime,
        };
        self.ask(query).await
    }

    /// Starts to follow jobs. Call [`Client::next_update`] until an update is `done`.
    pub(crate) async fn watch(&mut self, watch: client::Watch) -> CliResult<()> {
        self.send(Request::Watch(watch)).await
    }

    /// Returns the next complete update of the followed jobs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses neither an update nor a part of one.
    pub(crate) async fn next_update(&mut self) -> CliResult<client::WatchUpdate> {
        loop {
            let Reply::Watch(part) = self.receive().await? else {
                return Err(unexpected_reply());
            };
            let has_more = part.more;
            add_part(&mut self.update, part);
            if !has_more {
                return Ok(std::mem::take(&mut self.update));
            }
        }
    }
}

/// Appends a part to the earlier parts of an update.
fn add_part(update: &mut client::WatchUpdate, part: client::WatchUpdate) {
    let client::WatchUpdate {
        mut jobs,
        done,
        not_found,
        more: _,
        notifications,
    } = part;
    let id = |job: &client::WatchedJob| job.summary.as_ref().map(|summary| summary.id);
    // A job with many ended tasks may continue in the next part.
    if let (Some(known), Some(first)) = (update.jobs.last_mut(), jobs.first_mut())
        && id(known) == id(first)
    {
        known.ended = first.ended;
        known.ended_tasks.append(&mut first.ended_tasks);
        jobs.remove(0);
    }
    update.jobs.append(&mut jobs);
    update.not_found = update.not_found.take().or(not_found);
    update.notifications.extend(notifications);
    update.done = done;
}

/// Adds advice to the error about an open job that accepts no tasks.
fn with_open_job(error: CliError) -> CliError {
    let text = error.text().unwrap_or_default();
    if text.starts_with("Job ") && text.ends_with("not found.") {
        return error.with_help("`hq job list --all` lists existing ids");
    }
    if text.ends_with("is not opened.") {
        return error.with_help(
            "tasks can be added to a job that `hq job open` made and `hq job close` has not closed; without `--job`, \
             `hq submit` makes a new job",
        );
    }
    error
}

fn unexpected_reply() -> CliError {
    CliError::new("Unexpected answer from the server")
}

/// Explains why a server does not answer, and what to do about it.
fn unanswered(dir: &ServerDir, access: &Access) -> String {
    let (host, hint) = (&access.host, dir.hint());
    let state = dir.resolve().map(|instance| SilentServer::of(&instance));
    match state.unwrap_or(SilentServer::Unknown) {
        SilentServer::Crashed(Some(count)) => {
            let jobs = match count {
                0 => "no job is unfinished".to_owned(),
                1 => "1 unfinished job is kept".to_owned(),
                count => format!("{count} unfinished jobs are kept"),
            };
            format!("the server has crashed; {jobs}, and `hq server start{hint}` continues it")
        }
        SilentServer::Crashed(None) => {
            format!(
                "the server has crashed; `hq server start{hint}` continues it, or reports a problem of its state. With --fresh it starts without its jobs"
            )
        }
        SilentServer::CrashedUnkept => format!(
            "the server has crashed; it ran with --no-journal, so its state was not kept. `hq server start{hint}` starts a new one"
        ),
        SilentServer::Alive(owner) => format!(
            "the server runs as {owner}, but does not answer from here. `hq doctor net` shows why. A second server cannot start"
        ),
        SilentServer::Elsewhere(owner) => format!(
            "the server ran as {owner}, which cannot be reached from here or has crashed; `hq doctor net` shows more. `hq server start{hint}` continues its jobs if it has crashed, and fails if it still writes to its journal"
        ),
        SilentServer::Unknown => format!(
            "this is the access file of a server on {host}, whose state is not in this directory. Do not start a second server here. `hq doctor net` shows why it does not answer"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(jobs: &[(u32, bool, &[u32])], more: bool) -> client::WatchUpdate {
        let job = |(id, ended, tasks): &(u32, bool, &[u32])| client::WatchedJob {
            summary: Some(client::JobSummary {
                id: *id,
                ..client::JobSummary::default()
            }),
            ended: *ended,
            ended_tasks: tasks
                .iter()
                .map(|task| client::EndedTask {
                    id: *task,
                    ..client::EndedTask::default()
                })
                .collect(),
        };
        client::WatchUpdate {
            jobs: jobs.iter().map(job).collect(),
            done: !more,
            more,
            ..client::WatchUpdate::default()
        }
    }

    #[test]
    fn parts_of_an_update_become_one() {
        let mut update = client::WatchUpdate::default();
        let first = part(&[(1, true, &[]), (2, false, &[0, 1])], true);
        add_part(&mut update, first);
        add_part(&mut update, part(&[(2, false, &[2])], true));
        let last = part(&[(2, true, &[3]), (3, false, &[7])], false);
        add_part(&mut update, last);
        let whole = [
            (1, true, &[][..]),
            (2, true, &[0, 1, 2, 3]),
            (3, false, &[7]),
        ];
        assert_eq!(update, part(&whole, false));
    }
}
