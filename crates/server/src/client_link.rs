//! A connection of a client: receives requests and sends replies, one at a time.

use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::JobId;
use hq_core::job::Job;
use hq_core::range::IdArray;
use hq_core::refusal::Refusal;
use hq_core::server_state::{Command, is_large_job, specs};
use hq_core::template::SubmitSpec;
use hq_protocol::admission::{Holder, Permit, ShareFull, acting_as, actor};
use hq_protocol::client::{self, reply};
use hq_protocol::convert::{
    Acknowledge, AllocRequest, ClientRequest, JournalAction, Query, TokenChange,
};
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_protocol::{
    Connection, ConvertError, Incoming, MessageReader, MessageWriter, ReadError, Undecoded,
    WriteError,
};
use hq_store::StoreClient;
use hq_store::event::Event;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::answering::RequestInFlight;
use crate::blocking_pool::BlockingPool;
use crate::clock::Clock;
use crate::config::Stop;
use crate::core_handle::{self, CoreGone, CoreHandle, View};
use crate::http::{HttpControl, Tokens};
use crate::parts::Parts;
use crate::request_shares::{LARGE_REQUEST, LARGE_REQUESTS, LOOKS, STREAMS};
use crate::updates::{Details, Update};
use crate::{journal_link, output_link, query};

/// The size in bytes from which decoding a request takes milliseconds.
const SLOW_REQUEST: usize = 256 * 1024;
/// A client without the owner's key is disconnected if it sends less than [`UPLOAD_STEP`] of a
/// large request in this time.
const UPLOAD_PAUSE_MAX: Duration = Duration::from_secs(10);
/// The number of bytes of a large request that must arrive in [`UPLOAD_PAUSE_MAX`].
const UPLOAD_STEP: usize = 4 << 10;

/// The parts of the server that connections of clients need.
#[derive(Clone)]
pub(crate) struct ClientPlane {
    pub(crate) parts: Arc<Parts>,
    /// Opens the HTTP listener on request, and the tokens for it. `None` in a server without ports.
    pub(crate) http: Option<(HttpControl, Arc<Tokens>)>,
    /// Receives requests to stop the server.
    pub(crate) stop: mpsc::Sender<Stop>,
}

/// Serves a client until it disconnects. Errors affect only this client. `permit` belongs to the
/// connection and is `None` in a server without ports.
pub(crate) async fn serve<S>(connection: Connection<S>, plane: ClientPlane, permit: Option<Permit>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let holder = connection.holder();
    acting_as(holder, async move {
        let (mut reader, mut writer) = connection.split();
        let first = next_request(&mut reader, &plane.parts).await;
        let is_full = permit
            .as_ref()
            .is_some_and(|permit| permit.prove(holder).is_err());
        if first.is_ok() && is_full {
            let refusal = Refusal::unavailable(
                "too many clients are connected with keys of lesser rights. Try again later",
            );
            // The connection is closed whether or not the message arrives.
            let _ = send(&mut writer, &refusal.into()).await;
            return;
        }
        serve_requests(first, (reader, writer), &plane).await;
    })
    .await;
}

async fn serve_requests<S>(
    first: Result<Option<DecodedRequest>, ReadError>,
    (mut reader, mut writer): (MessageReader<ReadHalf<S>>, MessageWriter<WriteHalf<S>>),
    plane: &ClientPlane,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let parts = &*plane.parts;
    let mut first = Some(first);
    loop {
        let next = match first.take() {
            Some(first) => first,
            None => next_request(&mut reader, parts).await,
        };
        let next = match next {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "client connection ended");
                return;
            }
        };
        let DecodedRequest {
            request,
            details,
            arrived,
        } = next;
        let outcome = match request {
            Err(error) => {
                let refusal = Refusal::invalid(error.to_string());
                send(&mut writer, &refusal.into()).await
            }
            Ok(request) => {
                // Held until the answer is written.
                let needs = needs(&request);
                let _answering = needs.is_counted.then(|| parts.answering.count());
                drop(arrived);
                let _place = match needs.is_limited {
                    true => Some(LOOKS.enter(actor()).await),
                    false => None,
                };
                let answered = if let ClientRequest::Command(Command::Watch(spec)) = request {
                    watch((spec, details), parts, &mut reader, &mut writer).await
                } else {
                    answer(request, plane, &mut reader, &mut writer).await
                };
                match answered {
                    Answer::Reply(message) => send(&mut writer, &message).await,
                    Answer::Sent => Ok(()),
                    Answer::Stopping => {
                        tokio::spawn(hold(reader, writer));
                        return;
                    }
                    Answer::Hangup => return,
                }
            }
        };
        if outcome.is_err() {
            return;
        }
    }
}

/// The maximum number of listed problems, most severe first.
const PROBLEMS_MAX: usize = 1_000;

/// What a request needs before it is answered.
struct Needs {
    /// Whether it counts as in progress, so that a shutdown waits for its answer. Watches, which
    /// never end, and queries, which can be repeated, are not counted.
    is_counted: bool,
    /// Whether it reads or changes the state without waiting. Other requests wait for other events
    /// and have separate limits, or limits per connection.
    is_limited: bool,
}

const fn needs(request: &ClientRequest) -> Needs {
    let (is_counted, is_limited) = match request {
        ClientRequest::Command(Command::Watch(_))
        | ClientRequest::ServerStop { .. }
        | ClientRequest::HttpOpen
        | ClientRequest::ReadOutput(_)
        | ClientRequest::Journal { .. }
        | ClientRequest::Sql(_)
        | ClientRequest::ReadValues { .. } => (false, false),
        ClientRequest::Alloc(_) => (true, false),
        ClientRequest::Problems(None)
        | ClientRequest::Tokens(None)
        | ClientRequest::DebugDump(_)
        | ClientRequest::ShowJob(_)
        | ClientRequest::Query(_) => (false, true),
        ClientRequest::Command(_)
        | ClientRequest::Tokens(Some(_))
        | ClientRequest::Problems(Some(_)) => (true, true),
    };
    Needs {
        is_counted,
        is_limited,
    }
}

enum Answer {
    Reply(client::Reply),
    /// The answer has already been written.
    Sent,
    /// The server is stopping.
    Stopping,
    /// The connection can no longer be used.
    Hangup,
}

/// A decoded request.
struct DecodedRequest {
    request: Result<ClientRequest, ConvertError>,
    /// The details that a watch requests.
    details: Details,
    /// Set for a large request, which counts as in progress from its arrival.
    arrived: Option<RequestInFlight>,
}

/// Receives the next request. Returns `None` at the end of the connection. Decodes large requests
/// on a separate thread.
async fn next_request<R: AsyncRead + Unpin>(
    reader: &mut MessageReader<R>,
    parts: &Parts,
) -> Result<Option<DecodedRequest>, ReadError> {
    let mut _large = None;
    let message = match reader.next_or_large(LARGE_REQUEST).await? {
        Incoming::Message(message) => Some(message),
        Incoming::Large => {
            let holder = actor();
            _large = Some(LARGE_REQUESTS.enter(holder).await);
            if holder == Holder::Owner {
                reader.next_undecoded().await?
            } else {
                next_while_it_arrives(reader).await?
            }
        }
        Incoming::End => None,
    };
    let Some(message) = message else {
        return Ok(None);
    };
    if message.size() < SLOW_REQUEST {
        return read(message).map(Some);
    }
    let arrived = Some(parts.answering.count());
    match parts.core.blocking_pool().run(|| read(message)).await {
        Some(next) => next.map(|next| Some(DecodedRequest { arrived, ..next })),
        // The server is stopping.
        None => Ok(None),
    }
}

/// Receives the next message. Fails if no bytes arrive for a while, because a suspended client
/// would otherwise hold its permit indefinitely.
async fn next_while_it_arrives<R: AsyncRead + Unpin>(
    reader: &mut MessageReader<R>,
) -> Result<Option<Undecoded>, ReadError> {
    let mut arrived = LARGE_REQUEST;
    loop {
        let next = tokio::time::timeout(UPLOAD_PAUSE_MAX, reader.next_or_large(arrived)).await;
        match next.map_err(|elapsed| ReadError::Io(elapsed.into()))?? {
            Incoming::Message(message) => return Ok(Some(message)),
            Incoming::Large => arrived += UPLOAD_STEP,
            Incoming::End => return Ok(None),
        }
    }
}

fn read(message: Undecoded) -> Result<DecodedRequest, ReadError> {
    let request: client::Request = message.decode()?;
    let details = match &request.request {
        Some(client::request::Request::Watch(watch)) => Details {
            with_values: watch.with_values,
            with_ranges: watch.with_ranges,
        },
        _ => Details::default(),
    };
    Ok(DecodedRequest {
        request: ClientRequest::try_from(request),
        details,
        arrived: None,
    })
}

/// Keeps a connection open until the process ends, so that the client notices the end.
async fn hold<S: AsyncRead + AsyncWrite>(
    reader: MessageReader<ReadHalf<S>>,
    writer: MessageWriter<WriteHalf<S>>,
) {
    std::future::pending::<()>().await;
    drop((reader, writer));
}

async fn answer<R, W>(
    request: ClientRequest,
    plane: &ClientPlane,
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Answer
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let parts = &*plane.parts;
    let result = match request {
        ClientRequest::ServerStop { keep_workers } => {
            // The client may have disconnected. The server stops anyway.
            let _ = writer
                .send(&reply(reply::Reply::Done(client::Empty {})))
                .await;
            let how = if keep_workers {
                Stop::KeepWorkers
            } else {
                Stop::WithWorkers
            };
            // If the queue is full, the server is already stopping.
            let _ = plane.stop.try_send(how);
            return Answer::Stopping;
        }
        ClientRequest::Alloc(request) => Ok(reply(ask_alloc(request, parts).await)),
        ClientRequest::HttpOpen => Ok(reply(open_http(plane).await)),
        ClientRequest::Problems(change) => Ok(reply(ask_problems(change, parts).await)),
        ClientRequest::Tokens(change) => Ok(reply(ask_tokens(change, plane).await)),
        ClientRequest::DebugDump(path) => {
            let dump = parts.core.query(query::dump::dump).await;
            match dump {
                Ok(dump) => Ok(reply(write_dump(&path, &dump).await)),
                Err(CoreGone) => Err(CoreGone),
            }
        }
        ClientRequest::ReadOutput(query) => {
            let found = output_link::read(query, &parts.core, &parts.questions).await;
            found.map(reply)
        }
        ClientRequest::Journal { action, after } => {
            return about_journal(action, after, parts, reader, writer).await;
        }
        ClientRequest::Sql(query) => {
            let Some(store) = parts.store.clone() else {
                return Answer::Reply(no_store());
            };
            return Answer::Reply(reply(journal_link::query(store, query).await));
        }
        ClientRequest::ReadValues { job, tasks } => {
            return Answer::Reply(reply(parts.values.read(job, tasks).await));
        }
        ClientRequest::ShowJob(job) => show_job(job, &parts.core).await.map(reply),
        ClientRequest::Command(command) => {
            parts
                .core
                .command(command)
                .await
                .map(|answer| match answer {
                    Ok(answer) => (&answer).into(),
                    Err(refusal) => refusal.into(),
                })
        }
        ClientRequest::Query(Query::ServerInfo) => {
            let mut info = parts.info.clone();
            info.now_unix_ns = Clock::new().now().wall.0;
            info.internal_error_count = hq_core::bug::count();
            Ok(reply(reply::Reply::ServerInfo(info)))
        }
        ClientRequest::Query(asked) => look_up(asked, parts).await.map(reply),
    };
    match result {
        Ok(message) => Answer::Reply(message),
        Err(CoreGone) => Answer::Hangup,
    }
}

/// Answers a query from the state, and adds data from other sources.
async fn look_up(asked: Query, parts: &Parts) -> Result<reply::Reply, CoreGone> {
    let with_curves = matches!(&asked, Query::TaskPage(page) if page.with_curves);
    let mut answer = query::ask(&parts.core, asked).await?;
    if with_curves && let reply::Reply::TaskPage(page) = &mut answer {
        *page = parts.curves.fill(std::mem::take(page)).await;
    } else if let reply::Reply::Workers(list) = &mut answer {
        parts.questions.add_relays(&mut list.workers);
    }
    Ok(answer)
}

/// Returns the specs of a job in one message, about as large as its submits.
async fn show_job(job: JobId, core: &CoreHandle) -> Result<reply::Reply, CoreGone> {
    let found = core.query(move |view| {
        let job = view.state.jobs().get(&job)?;
        Some((!is_large_job(job)).then(|| specs(job)))
    });
    let submits = match found.await? {
        Some(Some(specs)) => Some(messages(&specs)),
        // The many tasks of a large job are processed on a separate thread.
        Some(None) => {
            let permit = core.blocking_pool().acquire().await.ok_or(CoreGone)?;
            // This does not wait for a commit, because the thread permit must not be held during an
            // fsync.
            let outline = move |view: &View<'_>| view.state.jobs().get(&job).map(Job::outline);
            let made = match core.look(outline, |_| false).await? {
                Some(job) => {
                    let made = BlockingPool::run_on(permit, move || messages(&specs(&job)));
                    Some(made.await.ok_or(CoreGone)?)
                }
                None => None,
            };
            // Wait for a commit, because the state that was read may not have been on disk.
            core.query(|_| ()).await?;
            made
        }
        None => None,
    };
    let Some(submits) = submits else {
        let not_found = Some((&IdArray::single(job.as_u32())).into());
        return Ok(reply::Reply::Resubmitted(client::Resubmitted {
            jobs: Vec::new(),
            not_found,
        }));
    };
    Ok(reply::Reply::Resubmitted(client::Resubmitted {
        jobs: vec![client::ResubmittedJob {
            job: job.as_u32(),
            submits,
            ..client::ResubmittedJob::default()
        }],
        not_found: None,
    }))
}

fn messages(specs: &[SubmitSpec]) -> Vec<client::Submit> {
    specs.iter().map(client::Submit::from).collect()
}

async fn open_http(plane: &ClientPlane) -> reply::Reply {
    let Some((door, _)) = &plane.http else {
        return Refusal::unavailable("this server has no ports").into();
    };
    match door.open().await {
        Ok(opened) => reply::Reply::HttpOpened(opened),
        Err(refusal) => refusal.into(),
    }
}

/// Changes an acknowledgement if requested, then lists all problems.
async fn ask_problems(change: Option<Acknowledge>, parts: &Parts) -> reply::Reply {
    if let Some(Acknowledge { problem, is_known }) = change
        && let Err(refusal) = parts.problems.acknowledge(&problem, is_known).await
    {
        return refusal.into();
    }
    match parts.problems.look().await {
        Ok((found, is_cut)) => reply::Reply::Problems(client::Problems {
            count: found.len() as u64,
            problems: found.into_iter().take(PROBLEMS_MAX).collect(),
            is_cut,
        }),
        Err(refusal) => refusal.into(),
    }
}

async fn ask_tokens(change: Option<TokenChange>, plane: &ClientPlane) -> reply::Reply {
    let Some((_, tokens)) = &plane.http else {
        return Refusal::unavailable("this server has no ports").into();
    };
    match tokens.ask(change).await {
        Ok(tokens) => reply::Reply::Tokens(tokens),
        Err(refusal) => refusal.into(),
    }
}

async fn ask_alloc(request: Box<AllocRequest>, parts: &Parts) -> reply::Reply {
    match &parts.alloc {
        Some(alloc) => alloc.ask(request).await,
        None => Refusal::unavailable("this server has no automatic allocation").into(),
    }
}

/// Writes the server's state to a new file and replies with its absolute path. The client may have
/// another working directory than the server and cannot know which file it would overwrite.
async fn write_dump(path: &[u8], dump: &serde_json::Value) -> reply::Reply {
    use std::io::Write as _;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    let (to, text) = (path.to_owned(), format!("{dump:#}\n"));
    // The file is private, because it contains environments of tasks and host names.
    let written = tokio::task::spawn_blocking(move || {
        hq_private::new_file(&to)?.write_all(text.as_bytes())?;
        std::path::absolute(to)
    });
    match written
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
    {
        Ok(path) => reply::Reply::DebugDump(client::DebugDump {
            path: path.into_os_string().into_vec().into(),
        }),
        Err(error) => Refusal::failed(format!("Cannot write {}: {error}", path.display())).into(),
    }
}

async fn watch<R, W>(
    (spec, details): (hq_core::server_state::WatchSpec, Details),
    parts: &Parts,
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Answer
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Ok((id, mut updates)) = parts.core.watch(spec, details).await else {
        return Answer::Hangup;
    };
    loop {
        tokio::select! {
            update = updates.recv() => {
                // The watch ended without `done`, because the client does not read its updates.
                let Some(update) = update else { break };
                let done = update.done;
                if send_update(update, details, parts, writer).await.is_err() {
                    break;
                }
                if done {
                    return Answer::Sent;
                }
            }
            // No requests are allowed during a watch, so any message here ends the connection.
            _ = reader.next::<client::Request>() => break,
        }
    }
    // Fails only if the core has ended.
    let _ = parts.core.send(core_handle::Event::Unwatch(id)).await;
    Answer::Hangup
}

/// Sends an update, in several messages if it names many tasks or has long values.
async fn send_update<W: AsyncWrite + Unpin>(
    mut update: Update,
    details: Details,
    parts: &Parts,
    writer: &mut MessageWriter<W>,
) -> Result<(), WriteError> {
    loop {
        let message = update.take_message(PAGE_BYTES_MAX);
        let more = message.more;
        if details.with_values {
            let mut pages = parts.values.pages(message);
            while let Some(page) = pages.next().await {
                send(writer, &reply(reply::Reply::Watch(page))).await?;
            }
        } else {
            send(writer, &reply(reply::Reply::Watch(message))).await?;
        }
        if !more {
            return Ok(());
        }
        let make = move |view: &View<'_>| {
            query::make_details(view.state, &mut update, details, PAGE_BYTES_MAX);
            update
        };
        // The requested data can no longer change, so the request does not wait for the store.
        let Ok(made) = parts.core.look(make, |_| false).await else {
            return Err(WriteError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        update = made;
    }
}

async fn about_journal<R, W>(
    action: JournalAction,
    after: i64,
    parts: &Parts,
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Answer
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let is_live = action == JournalAction::Stream;
    match (action, parts.store.clone()) {
        (JournalAction::Replay | JournalAction::Stream, Some(store)) => {
            journal(store, after, is_live, reader, writer).await
        }
        (JournalAction::Replay | JournalAction::Stream, None) => Answer::Reply(no_store()),
        (JournalAction::Flush | JournalAction::Prune, Some(store)) => {
            Answer::Reply(reply(journal_link::act(store, action).await))
        }
        // Without a store there is nothing to flush or prune.
        (JournalAction::Flush | JournalAction::Prune, None) => Answer::Reply(done()),
    }
}

fn done() -> client::Reply {
    reply(reply::Reply::Done(client::Empty {}))
}

fn no_store() -> client::Reply {
    Refusal::unavailable("this server keeps its state in memory only").into()
}

/// Sends events until the last one, or until the client disconnects.
async fn journal<R, W>(
    store: StoreClient,
    after: i64,
    is_live: bool,
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Answer
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let _permit = match is_live.then(|| STREAMS.try_enter(actor())).transpose() {
        Ok(permit) => permit,
        Err(ShareFull) => {
            let text = "too many readers follow the events with keys or tokens of lesser rights. Try again later";
            return Answer::Reply(Refusal::unavailable(text).into());
        }
    };
    let mut lines = journal_link::read::<client::JournalLines>(store, after, is_live, Event::line);
    loop {
        tokio::select! {
            next = lines.recv() => {
                // The channel ended without `done`: the server ends, or the client was too slow.
                let Some(next) = next else { return Answer::Hangup };
                let (message, done) = match next {
                    Ok(lines) => {
                        let done = lines.done;
                        (reply::Reply::JournalLines(lines), done)
                    }
                    Err(refusal) => (refusal.into(), true),
                };
                if send(writer, &reply(message)).await.is_err() {
                    return Answer::Hangup;
                }
                if done {
                    return Answer::Sent;
                }
            }
            _ = reader.next::<client::Request>() => return Answer::Hangup,
        }
    }
}

/// Sends a reply, or an error if the reply is too large for a client.
async fn send<W: AsyncWrite + Unpin>(
    writer: &mut MessageWriter<W>,
    message: &client::Reply,
) -> Result<(), WriteError> {
    let sent = writer.send(message).await;
    let Some((found, limit)) = sent.as_ref().err().and_then(WriteError::too_large) else {
        return sent;
    };
    tracing::warn!(found, limit, "a reply is too large for a client");
    let refusal = Refusal::too_large(format!(
        "the reply would have {found} bytes, and at most {limit} are allowed. Request fewer jobs, tasks or rows at a time"
    ));
    writer.send(&client::Reply::from(refusal)).await
}

fn reply(reply: reply::Reply) -> client::Reply {
    client::Reply { reply: Some(reply) }
}

#[cfg(test)]
mod tests {
    use hq_protocol::limits::REPLY_MAX;
    use hq_protocol::{Limits, Plane};
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_client_is_told_when_an_answer_is_too_large_for_it() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (ours, theirs) = tokio::join!(
            hq_protocol::accept(ours, Plane::Client, None),
            hq_protocol::connect(theirs, Plane::Client, None),
        );
        let mut ours = ours.expect("handshake");
        let limits = Limits::accepting(Plane::Client);
        assert_eq!(limits.send_max, REPLY_MAX);
        ours.set_limits(Limits {
            send_max: 1_000,
            ..limits
        });
        let (_, mut writer) = ours.split();
        let (mut reader, _) = theirs.expect("handshake").split();
        send(&mut writer, &Refusal::failed("x".repeat(2_000)).into())
            .await
            .expect("the connection goes on");
        let said: Option<client::Reply> = reader.next().await.expect("valid");
        let Some(reply::Reply::Error(error)) = said.and_then(|said| said.reply) else {
            panic!("expected an error");
        };
        assert!(
            error.message.contains("at most 1000 are allowed"),
            "{}",
            error.message
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stands_still_ends() {
        let (ours, far) = tokio::io::duplex(1 << 20);
        let (theirs, near) = tokio::io::duplex(1 << 20);
        let (mut from_client, mut to_client) = tokio::io::split(near);
        let (mut from_server, mut to_server) = tokio::io::split(far);
        tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        tokio::spawn(async move {
            let mut first = (&mut from_client).take(LARGE_REQUEST as u64);
            let _ = tokio::io::copy(&mut first, &mut to_server).await;
            std::future::pending::<()>().await;
        });
        let (ours, theirs) = tokio::join!(
            hq_protocol::accept(ours, Plane::Client, None),
            hq_protocol::connect(theirs, Plane::Client, None),
        );
        let (mut reader, _writer) = ours.expect("handshake").split();
        let (_, mut writer) = theirs.expect("handshake").split();
        // This text does not compress well.
        let noise = |i: u64| i.wrapping_mul(i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let text: String = (0..40_000).map(|i| format!("{:08x}", noise(i))).collect();
        let error = client::Error {
            message: text,
            ..client::Error::default()
        };
        send(&mut writer, &reply(reply::Reply::Error(error)))
            .await
            .expect("there is room for it");
        let start = tokio::time::Instant::now();
        let read = next_while_it_arrives(&mut reader).await;
        assert!(matches!(read, Err(ReadError::Io(_))), "{read:?}");
        assert_eq!(start.elapsed(), UPLOAD_PAUSE_MAX);
    }
}
