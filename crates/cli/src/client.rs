//! Typed requests to the server.
//!
//! Each request has one reply, except [`Client::watch`]. A client that follows jobs survives a
//! restart of the server, see [`follow`]. The type of the connection is erased, so that `hq run`
//! can use the same code for its own server.

mod follow;
mod open;
pub(crate) mod tail;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::range::IdArray;
use hq_protocol::access::{Access, AccessError, AccessFile, ServerDir};
use hq_protocol::client::{self, reply::Reply, request::Request};
use hq_protocol::{HandshakeError, MessageReader, MessageWriter, Plane, Strangers, WriteError};
use hq_server::SilentServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

use crate::error::{CliError, CliResult};
use crate::parse::selector::array_to_message;
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

/// Options for following jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WatchOptions {
    /// Whether an open job without unfinished tasks counts as ended.
    pub(crate) until_idle: bool,
    /// Whether the server sends counts whenever they change.
    pub(crate) with_progress: bool,
    /// Whether the server reports which tasks have ended.
    pub(crate) with_outcomes: bool,
    /// Whether the server passes on messages from tasks.
    pub(crate) with_notifications: bool,
    /// Whether tasks with consecutive ids that never started are combined into one outcome.
    pub(crate) with_ranges: bool,
    /// Whether outcomes include the values of calls.
    pub(crate) with_values: bool,
    /// The minimum time between two updates. With zero, the server chooses.
    pub(crate) interval: Duration,
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
            .map_err(|e| CliError::caused("Cannot talk to the server in this process", &e))?;
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
        sent.map_err(|e| CliError::caused("The connection to the server was lost", &e))
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

    async fn ask(&mut self, request: Request) -> CliResult<Reply> {
        self.send(request).await?;
        self.receive().await
    }

    /// Sends a request that has exactly one reply.
    pub(crate) async fn request(&mut self, request: Request) -> CliResult<Reply> {
        self.ask(request).await
    }

    /// Returns information about the server.
    pub(crate) async fn server_info(&mut self) -> CliResult<client::ServerInfo> {
        let Reply::ServerInfo(info) = self.ask(Request::ServerInfo(client::Empty {})).await? else {
            return Err(unexpected_reply());
        };
        Ok(info)
    }

    /// Asks the server to stop, and waits until it has ended.
    pub(crate) async fn server_stop(&mut self, keep_workers: bool) -> CliResult<()> {
        let request = Request::ServerStop(client::ServerStop { keep_workers });
        let Reply::Done(_) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        // The server closes the connection when it ends, without another message.
        let closed = self.reader.next::<client::Reply>();
        if tokio::time::timeout(STOP_TIMEOUT, closed).await.is_err() {
            tracing::warn!("The server has not ended yet; it may be waiting for a batch system");
        }
        Ok(())
    }

    /// Opens the HTTP listener of the server.
    pub(crate) async fn http_open(&mut self) -> CliResult<client::HttpOpened> {
        let Reply::HttpOpened(opened) = self.ask(Request::HttpOpen(client::Empty {})).await? else {
            return Err(unexpected_reply());
        };
        Ok(opened)
    }

    /// Changes the acknowledged problems if requested, then returns the current problems.
    pub(crate) async fn problems(
        &mut self,
        change: Option<client::ask_problems::Change>,
    ) -> CliResult<client::Problems> {
        let request = Request::Problems(client::AskProblems { change });
        let Reply::Problems(problems) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        Ok(problems)
    }

    /// Creates or revokes a token of the HTTP interface if requested, then returns all tokens.
    pub(crate) async fn tokens(
        &mut self,
        change: Option<client::ask_tokens::Change>,
    ) -> CliResult<client::Tokens> {
        let request = Request::Tokens(client::AskTokens { change });
        let Reply::Tokens(tokens) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        Ok(tokens)
    }

    /// Makes the server write its state to a file. Returns the path of the file.
    pub(crate) async fn debug_dump(&mut self, path: Vec<u8>) -> CliResult<Vec<u8>> {
        let dump = client::DebugDump { path: path.into() };
        let Reply::DebugDump(written) = self.ask(Request::DebugDump(dump)).await? else {
            return Err(unexpected_reply());
        };
        Ok(written.path.into())
    }

    /// Starts to read the journal. Call [`Client::next_lines`] until a part is `done`.
    pub(crate) async fn journal(
        &mut self,
        action: client::journal::Action,
        after: u64,
    ) -> CliResult<()> {
        let action = action.into();
        self.send(Request::Journal(client::Journal { action, after }))
            .await
    }

    /// Returns the next part of the journal, or `None` if the server ended and `may_end` allows
    /// that.
    pub(crate) async fn next_lines(
        &mut self,
        may_end: bool,
    ) -> CliResult<Option<client::JournalLines>> {
        match self.reader.next::<client::Reply>().await {
            Ok(Some(client::Reply {
                reply: Some(Reply::JournalLines(lines)),
            })) => Ok(Some(lines)),
            Ok(Some(client::Reply {
                reply: Some(Reply::Error(error)),
            })) => Err(CliError::from_server(error)),
            Ok(Some(_)) => Err(unexpected_reply()),
            Ok(None) | Err(_) if may_end => Ok(None),
            Ok(None) => Err(CliError::new("The server closed the connection")),
            Err(e) => Err(CliError::caused(
                "The connection to the server was lost",
                &e,
            )),
        }
    }

    /// Requests an action on the journal.
    pub(crate) async fn journal_done(&mut self, action: client::journal::Action) -> CliResult<()> {
        self.journal(action, 0).await?;
        let Reply::Done(_) = self.receive().await? else {
            return Err(unexpected_reply());
        };
        Ok(())
    }

    /// Runs a query on the server.
    pub(crate) async fn sql(&mut self, query: client::SqlQuery) -> CliResult<client::SqlTable> {
        let Reply::SqlTable(table) = self.ask(Request::Query(query)).await? else {
            return Err(unexpected_reply());
        };
        Ok(table)
    }

    /// Submits tasks. Returns the id of the job.
    pub(crate) async fn submit(&mut self, submit: client::Submit) -> CliResult<u32> {
        let reply = self.ask(Request::Submit(submit)).await;
        let Reply::Submitted(job) = reply.map_err(with_open_job)? else {
            return Err(unexpected_reply());
        };
        Ok(job.id)
    }

    /// Submits several jobs. Returns an id or a rejection for each.
    pub(crate) async fn submit_all(
        &mut self,
        submits: Vec<client::Submit>,
    ) -> CliResult<Vec<client::SubmitResult>> {
        let request = Request::SubmitAll(client::SubmitAll { submits });
        let Reply::SubmittedAll(results) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        Ok(results.results)
    }

    /// Creates an open job.
    pub(crate) async fn open_job(&mut self, open: client::OpenJob) -> CliResult<u32> {
        let Reply::Submitted(job) = self.ask(Request::JobOpen(open)).await? else {
            return Err(unexpected_reply());
        };
        Ok(job.id)
    }

    /// Closes or cancels jobs. Returns one result per job.
    pub(crate) async fn change_jobs(&mut self, request: Request) -> CliResult<client::JobResults> {
        let Reply::JobResults(results) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        Ok(results)
    }

    /// Submits jobs again. Returns one result per job.
    pub(crate) async fn resubmit(
        &mut self,
        resubmit: client::Resubmit,
    ) -> CliResult<client::Resubmitted> {
        let Reply::Resubmitted(results) = self.ask(Request::JobResubmit(resubmit)).await? else {
            return Err(unexpected_reply());
        };
        Ok(results)
    }

    /// Forgets jobs.
    pub(crate) async fn forget(&mut self, forget: client::Forget) -> CliResult<client::Forgotten> {
        let Reply::Forgotten(forgotten) = self.ask(Request::JobForget(forget)).await? else {
            return Err(unexpected_reply());
        };
        Ok(forgotten)
    }

    /// Returns summaries of jobs, sorted by id. Unknown jobs are left out.
    pub(crate) async fn job_list(
        &mut self,
        jobs: client::Selector,
    ) -> CliResult<Vec<client::JobSummary>> {
        let Reply::JobList(list) = self.ask(Request::JobList(jobs)).await? else {
            return Err(unexpected_reply());
        };
        Ok(list.jobs)
    }

    /// Returns the details of jobs.
    pub(crate) async fn job_infos(
        &mut self,
        jobs: client::Selector,
    ) -> CliResult<client::JobInfos> {
        let Reply::JobInfos(infos) = self.ask(Request::JobInfo(jobs)).await? else {
            return Err(unexpected_reply());
        };
        Ok(infos)
    }

    /// Returns one page of tasks.
    pub(crate) async fn task_page(
        &mut self,
        page: client::TaskPage,
    ) -> CliResult<client::TaskPageReply> {
        let Reply::TaskPage(page) = self.ask(Request::TaskPage(page)).await? else {
            return Err(unexpected_reply());
        };
        Ok(page)
    }

    /// Returns the output of a task.
    pub(crate) async fn read_output(
        &mut self,
        read: client::ReadOutput,
    ) -> CliResult<client::Output> {
        let Reply::Output(output) = self.ask(Request::ReadOutput(read)).await? else {
            return Err(unexpected_reply());
        };
        Ok(output)
    }

    /// Returns the ids of tasks.
    pub(crate) async fn task_ids(
        &mut self,
        ids: client::TaskIds,
    ) -> CliResult<client::TaskIdsReply> {
        let Reply::TaskIds(ids) = self.ask(Request::TaskIds(ids)).await? else {
            return Err(unexpected_reply());
        };
        Ok(ids)
    }

    /// Sends a request about automatic allocation.
    pub(crate) async fn alloc(
        &mut self,
        request: client::alloc_request::Request,
    ) -> CliResult<client::alloc_reply::Reply> {
        let request = client::AllocRequest {
            request: Some(request),
        };
        let answer = self.ask(Request::Alloc(request)).await;
        let answer = answer.map_err(|error| match error.is_not_found() {
            true if error
                .text()
                .is_some_and(|text| text.contains("Allocation ") && !text.contains("queue")) =>
            {
                error.with_help("`hq alloc info QUEUE` lists the allocations of a queue")
            }
            true => error.with_help("`hq alloc list` lists the queues that exist"),
            false => error,
        })?;
        let Reply::Alloc(answer) = answer else {
            return Err(unexpected_reply());
        };
        answer.reply.ok_or_else(unexpected_reply)
    }

    /// Returns why a task is or is not running.
    pub(crate) async fn explain(
        &mut self,
        explain: client::Explain,
    ) -> CliResult<client::Explanation> {
        let Reply::Explanation(explanation) = self.ask(Request::Explain(explain)).await? else {
            return Err(unexpected_reply());
        };
        Ok(explanation)
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
        let Some(mut task) = self.task_page(page.clone()).await?.tasks.into_iter().next() else {
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
                tasks: Some(array_to_message(&deps)),
                limit: 0,
                ..page.clone()
            };
            match self.task_page(unfinished).await?.tasks.into_iter().next() {
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
        Ok(match self.explain(explain).await {
            Ok(explanation) => Some((task, explanation)),
            Err(error) if self.is_lost => return Err(error),
            Err(_) => None,
        })
    }

    /// Returns workers.
    pub(crate) async fn workers(
        &mut self,
        workers: client::Selector,
        with_runtime: bool,
    ) -> CliResult<client::Workers> {
        let query = client::WorkerQuery {
            workers: Some(workers),
            with_runtime,
        };
        let Reply::Workers(workers) = self.ask(Request::Workers(query)).await? else {
            return Err(unexpected_reply());
        };
        Ok(workers)
    }

    /// Stops, drains or quarantines workers, or ends their quarantine. Returns one result per
    /// worker.
    pub(crate) async fn change_workers(
        &mut self,
        request: Request,
    ) -> CliResult<client::WorkerStopResults> {
        let Reply::WorkerStop(results) = self.ask(request).await? else {
            return Err(unexpected_reply());
        };
        Ok(results)
    }

    /// Starts to follow jobs. Call [`Client::next_update`] until an update is `done`.
    pub(crate) async fn watch(
        &mut self,
        jobs: client::Selector,
        options: WatchOptions,
    ) -> CliResult<()> {
        let watch = client::Watch {
            jobs: Some(jobs),
            until_idle: options.until_idle,
            with_progress: options.with_progress,
            with_outcomes: options.with_outcomes,
            with_notifications: options.with_notifications,
            with_values: options.with_values,
            with_ranges: options.with_ranges,
            interval_ns: u64::try_from(options.interval.as_nanos()).unwrap_or(u64::MAX),
        };
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
