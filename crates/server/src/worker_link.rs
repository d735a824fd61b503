//! Serves the connection of a worker: its registration, and then its reports and the server's
//! commands.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::WorkerId;
use hq_core::server_state::{LinkEnd, LinkId, Reattach, WorkerCommand};
use hq_core::time::nanos;
use hq_core::worker_config::WorkerConfig;
use hq_protocol::admission::{Holder, Permit};
use hq_protocol::convert::{FromWorker, OutputRequest, take_curves};
use hq_protocol::worker::{self, to_worker};
use hq_protocol::{Connection, Incoming, MessageReader, MessageWriter, ReadError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::core_handle::WorkerRegistration;
use crate::parts::Parts;
use crate::peer_stream::RelayedTx;
use crate::relay_link;
use crate::request_shares::{LARGE_REGISTRATIONS, LARGE_REQUEST};

/// How long a connected peer may take to register before it is disconnected.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of commands that are written with one flush, and the number of bytes after
/// which they are flushed earlier.
const COMMANDS_PER_FLUSH: usize = 64;
const BYTES_PER_FLUSH: usize = 1 << 20;
/// How long an acknowledgement may wait for another message. The worker needs it only to drop
/// reports before another registration, and the server ignores repeated reports.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(50);
/// The maximum number of rows of one worker's messages that wait for the core, so that one worker
/// cannot exhaust the server's memory. This is far more than a worker sends before the core handles
/// its messages.
const ROWS_WAITING_MAX: u32 = 1 << 18;

/// How a peer is connected.
#[derive(Default)]
pub(crate) struct Route {
    /// The address of the relay that forwards this connection.
    pub(crate) via: Option<Box<str>>,
    /// Sends the channels of relays to the listener, with the address of this connection. `None` in
    /// a server without ports, and for connections through a relay.
    pub(crate) relayed: Option<(RelayedTx, IpAddr)>,
}

/// Serves a worker until it disconnects.
///
/// `permit` belongs to the connection and is `None` in a server without ports.
pub(crate) async fn serve<S>(
    connection: Connection<S>,
    route: Route,
    parts: &Parts,
    permit: Option<Permit>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let holder = connection.holder();
    let (mut reader, mut writer) = connection.split();
    let first = first_message(&mut reader, &mut writer, holder).await;
    if first.is_some()
        && permit
            .as_ref()
            .is_some_and(|permit| permit.prove(holder).is_err())
    {
        return tracing::warn!(
            "a worker was rejected: the server has as many workers as its `ulimit -n` allows"
        );
    }
    let registration = match first {
        Some(FromWorker::Register(config, reattach)) => {
            match register(parts, (config, reattach), &mut reader, &mut writer).await {
                Some(registration) => registration,
                None => return,
            }
        }
        Some(FromWorker::Relay(request)) => match &route.relayed {
            Some(relayed) => return relay_link::serve(request, relayed, reader, writer).await,
            None => {
                return refuse(&mut writer, "a relay cannot connect through another relay").await;
            }
        },
        Some(FromWorker::Message(_) | FromWorker::Output(_) | FromWorker::Values(_)) => {
            return refuse(&mut writer, "expected a registration as the first message").await;
        }
        None => return,
    };
    let (worker, link, mut has_spoken) =
        (registration.id, registration.link, !registration.reattached);
    let questions = parts.questions.connect(worker, link, route.via);
    let mut sending = tokio::spawn(send_commands(registration, questions, writer));
    let how = receive(
        parts,
        (worker, link),
        &mut reader,
        &mut sending,
        &mut has_spoken,
    );
    let how = how.await;
    sending.abort();
    // A worker that reconnected and has sent nothing since may have abandoned this connection and
    // be reconnecting through another one, for example because a slow disk delays its registration.
    let how = if has_spoken { how } else { LinkEnd::Broken };
    parts.questions.disconnect(worker, link);
    // This fails only if the core has ended.
    let _ = parts.core.worker_gone(worker, link, how).await;
}

/// Returns the peer's request. Returns `None` if the first message was unreadable, and then
/// notifies the peer.
async fn first_message<R, W>(
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
    holder: Holder,
) -> Option<FromWorker>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let first = timeout(REGISTER_TIMEOUT, reader.next_or_large(LARGE_REQUEST)).await;
    let first = match first {
        Ok(Ok(Incoming::Message(message))) => Ok(message.decode().map(Some)),
        // Other workers may occupy all places for that long, so the timeout starts only when this
        // worker has a place.
        Ok(Ok(Incoming::Large)) => {
            let _large = LARGE_REGISTRATIONS.enter(holder).await;
            let first = timeout(REGISTER_TIMEOUT, reader.next::<worker::ToServer>()).await;
            if first.is_err() {
                let limit = REGISTER_TIMEOUT.as_secs();
                tracing::warn!(
                    "a worker is disconnected: its registration has not arrived within {limit} s"
                );
            }
            first
        }
        Ok(Ok(Incoming::End)) => Ok(Ok(None)),
        Ok(Err(error)) => Ok(Err(error)),
        Err(elapsed) => Err(elapsed),
    };
    let message = match first {
        Ok(Ok(Some(message))) => message,
        Ok(Err(error)) => {
            refuse(writer, &describe(&error)).await;
            return None;
        }
        Ok(Ok(None)) | Err(_) => return None,
    };
    match FromWorker::try_from(message) {
        Ok(message) => Some(message),
        Err(error) => {
            refuse(writer, &error.to_string()).await;
            None
        }
    }
}

async fn register<R, W>(
    parts: &Parts,
    (config, reattach): (Box<WorkerConfig>, Option<Box<Reattach>>),
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Option<WorkerRegistration>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let asked = tokio::select! {
        asked = parts.core.register(config, reattach) => asked.ok()?,
        // A worker sends nothing before the reply, so it has disconnected.
        _ = reader.next::<worker::ToServer>() => return None,
    };
    let registration = match wait_for_registration(asked, reader).await {
        Ok(registration) => registration,
        Err(left) => {
            if let Some(registration) = left {
                leave(parts, &registration).await;
            }
            return None;
        }
    };
    let registered = to_worker::Message::Registered(worker::Registered {
        worker_id: registration.id.as_u32(),
        server_uid: parts.info.server_uid.clone(),
        default_idle_timeout_ns: parts.idle_timeout.map(nanos),
        reattached: registration.reattached,
        server_wait_ns: nanos(registration.server_wait),
    });
    if writer
        .send(&worker::ToWorker {
            message: Some(registered),
        })
        .await
        .is_err()
    {
        leave(parts, &registration).await;
        return None;
    }
    Some(registration)
}

/// Waits for the registration of a worker. `Err` means that the worker has disconnected. It
/// contains a registration that arrived at the same moment, which the caller must give up.
async fn wait_for_registration<R: AsyncRead + Unpin>(
    mut asked: oneshot::Receiver<WorkerRegistration>,
    reader: &mut MessageReader<R>,
) -> Result<WorkerRegistration, Option<WorkerRegistration>> {
    tokio::select! {
        registration = &mut asked => registration.map_err(|_| None),
        _ = reader.next::<worker::ToServer>() => {
            asked.close();
            Err(asked.try_recv().ok())
        }
    }
}

/// Gives up the registration of a worker that has disconnected.
async fn leave(parts: &Parts, registration: &WorkerRegistration) {
    // This fails only if the core has ended.
    let _ = parts
        .core
        .worker_gone(registration.id, registration.link, LinkEnd::Broken)
        .await;
}

pub(crate) async fn refuse<W: AsyncWrite + Unpin>(writer: &mut MessageWriter<W>, reason: &str) {
    tracing::warn!(reason, "worker refused");
    let refused = worker::Refused {
        reason: reason.to_owned(),
    };
    let message = to_worker::Message::Refused(refused);
    // The connection is closed next, whether or not the worker receives this.
    let _ = writer
        .send(&worker::ToWorker {
            message: Some(message),
        })
        .await;
}

/// Passes messages to the core until the connection ends or the core closes it. Sets `has_spoken`
/// at the first message.
async fn receive<R: AsyncRead + Unpin>(
    parts: &Parts,
    (worker, link): (WorkerId, LinkId),
    reader: &mut MessageReader<R>,
    sending: &mut tokio::task::JoinHandle<()>,
    has_spoken: &mut bool,
) -> LinkEnd {
    let rows = Arc::new(Semaphore::new(ROWS_WAITING_MAX as usize));
    loop {
        let message = tokio::select! {
            message = reader.next::<worker::ToServer>() => message,
            // The core has dropped this worker, or the worker does not read its messages.
            _ = &mut *sending => return LinkEnd::Broken,
        };
        let mut message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return LinkEnd::Closed,
            Err(error) => {
                // An invalid message is a bug in one of the two programs and will occur again.
                if matches!(error, ReadError::Io(_) | ReadError::Truncated) {
                    tracing::debug!(%worker, %error, "worker connection broke");
                } else {
                    tracing::warn!(%worker, "worker connection closed: {}", describe(&error));
                }
                return end_of(&error);
            }
        };
        *has_spoken = true;
        // The curves are added before the task results in the same report, so that both are stored
        // together.
        let (curves, malformed) = take_curves(&mut message);
        if malformed > 0 {
            tracing::warn!(%worker, malformed, "a message about the usage of tasks is invalid");
        }
        parts.curves.add(worker, curves);
        match FromWorker::try_from(message) {
            Ok(FromWorker::Message(message)) => {
                let count = u32::try_from(message.rows()).unwrap_or(u32::MAX);
                let permits = count.clamp(1, ROWS_WAITING_MAX);
                let Ok(waiting) = Arc::clone(&rows).acquire_many_owned(permits).await else {
                    return LinkEnd::Broken;
                };
                let sent = parts.core.worker_message(worker, link, message, waiting);
                if sent.await.is_err() {
                    return LinkEnd::Broken;
                }
            }
            Ok(FromWorker::Output(output)) => parts.questions.answer(worker, output),
            // The values are added before the report that their tasks have ended, so that both are
            // stored together.
            Ok(FromWorker::Values(values)) => parts.values.add(worker, values),
            Ok(FromWorker::Register(..) | FromWorker::Relay(_)) => {
                tracing::warn!(%worker, "second registration on one connection ignored");
            }
            Err(error) => {
                tracing::warn!(%worker, %error, "invalid message; connection closed");
                return LinkEnd::Broken;
            }
        }
    }
}

/// Returns how a connection ended. If a process is killed while data is on its way to it, the
/// connection is reset.
fn end_of(error: &ReadError) -> LinkEnd {
    match error {
        ReadError::Truncated => LinkEnd::Closed,
        ReadError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
            LinkEnd::Closed
        }
        ReadError::Io(_)
        | ReadError::Frame(_)
        | ReadError::Decode(_)
        | ReadError::TooManyElements { .. } => LinkEnd::Broken,
    }
}

/// Formats an error with its cause.
fn describe(error: &ReadError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

async fn send_commands<W: AsyncWrite + Unpin>(
    registration: WorkerRegistration,
    mut questions: mpsc::Receiver<OutputRequest>,
    mut writer: MessageWriter<W>,
) {
    let mut commands = registration.commands;
    let mut batch = Vec::new();
    // The last acknowledgement, which also covers earlier ones, and the time by which it has to be
    // sent.
    let mut held: Option<(u64, Instant)> = None;
    loop {
        let acknowledge_at = async {
            match held {
                Some((_, at)) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let mut is_due = false;
        // Messages that tasks need come first.
        tokio::select! {
            biased;
            count = commands.recv_many(&mut batch, COMMANDS_PER_FLUSH) => {
                if count == 0 {
                    break;
                }
            }
            Some(question) = questions.recv() => {
                if writer.feed(&worker::ToWorker::from(&question)).is_err() {
                    return;
                }
            }
            () = acknowledge_at => is_due = true,
        }
        for command in batch.drain(..) {
            if let WorkerCommand::Acknowledge(seq) = command {
                let at = held.map_or_else(|| Instant::now() + ACKNOWLEDGE_AFTER, |(_, at)| at);
                held = Some((seq, at));
                continue;
            }
            if let Err(error) = writer.feed(&worker::ToWorker::from(&command)) {
                tracing::error!(%error, "a message to a worker cannot be sent");
                return;
            }
            // Each command may be large.
            if writer.buffered() >= BYTES_PER_FLUSH && writer.flush().await.is_err() {
                return;
            }
        }
        if (is_due || writer.buffered() > 0)
            && let Some((seq, _)) = held.take()
            && writer.feed(&acknowledgement(seq)).is_err()
        {
            return;
        }
        if writer.buffered() > 0 && writer.flush().await.is_err() {
            return;
        }
    }
    // The core has dropped this worker. Everything queued is written, and then the stream ends.
    if let Some((seq, _)) = held
        && writer.feed(&acknowledgement(seq)).is_err()
    {
        return;
    }
    let _ = writer.shutdown().await;
}

fn acknowledgement(seq: u64) -> worker::ToWorker {
    worker::ToWorker::from(&WorkerCommand::Acknowledge(seq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_protocol::{Plane, accept, connect};
    use tokio::io::{ReadHalf, duplex};

    /// Receives the next message.
    async fn next<S: AsyncRead>(
        reader: &mut MessageReader<ReadHalf<S>>,
    ) -> Option<worker::ToWorker> {
        reader.next().await.expect("it can be read")
    }

    fn registration() -> (mpsc::Sender<WorkerCommand>, WorkerRegistration) {
        let (commands, queue) = mpsc::channel(16);
        let registration = WorkerRegistration {
            id: WorkerId(1),
            link: LinkId(1),
            reattached: false,
            server_wait: Duration::ZERO,
            commands: queue,
        };
        (commands, registration)
    }

    #[tokio::test]
    async fn a_registration_that_arrives_when_its_worker_leaves_is_given_up() {
        // Which of the two is handled first is random.
        for _ in 0..64 {
            let (ours, theirs) = duplex(1 << 16);
            let (ours, theirs) = tokio::join!(
                accept(ours, Plane::Worker, None),
                connect(theirs, Plane::Worker, None)
            );
            let (mut reader, _writer) = ours.expect("no key").split();
            drop(theirs);
            let (give, asked) = oneshot::channel();
            let (_commands, registration) = registration();
            assert!(give.send(registration).is_ok(), "it waits");
            let found = wait_for_registration(asked, &mut reader).await;
            assert!(matches!(found, Ok(_) | Err(Some(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_registration_waits_for_its_place_as_long_as_others_hold_it() {
        let holder = Holder::Other(0);
        let (ours, theirs) = duplex(1 << 20);
        let (ours, theirs) = tokio::join!(
            accept(ours, Plane::Worker, None),
            connect(theirs, Plane::Worker, None)
        );
        let (mut reader, mut writer) = ours.expect("no key").split();
        let (_reader, mut worker) = theirs.expect("no key").split();
        let output = worker::Output {
            data: vec![0; 2 * LARGE_REQUEST].into(),
            ..worker::Output::default()
        };
        let message = Some(worker::to_server::Message::Output(output));
        let message = worker::ToServer { message };
        worker.send(&message).await.expect("it is open");
        let mut held = Vec::new();
        while let Ok(place) = LARGE_REGISTRATIONS.try_enter(holder) {
            held.push(place);
        }
        let others = async {
            tokio::time::sleep(3 * REGISTER_TIMEOUT).await;
            drop(held);
        };
        let (first, ()) = tokio::join!(first_message(&mut reader, &mut writer, holder), others);
        assert!(matches!(first, Some(FromWorker::Output(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn acknowledgements_go_with_what_is_sent_anyway() {
        let (ours, theirs) = duplex(1 << 16);
        let (ours, theirs) = tokio::join!(
            accept(ours, Plane::Worker, None),
            connect(theirs, Plane::Worker, None)
        );
        let (_, writer) = ours.expect("no key").split();
        let (mut reader, _writer) = theirs.expect("no key").split();
        let (commands, registration) = registration();
        let (_questions, questions) = mpsc::channel(1);
        let sending = tokio::spawn(send_commands(registration, questions, writer));
        let say = async |command| commands.send(command).await.expect("it is there");

        let start = Instant::now();
        let hold = worker::ToWorker::from(&WorkerCommand::Hold(true));
        say(WorkerCommand::Acknowledge(1)).await;
        say(WorkerCommand::Acknowledge(2)).await;
        say(WorkerCommand::Hold(true)).await;
        assert_eq!(next(&mut reader).await, Some(hold));
        assert_eq!(next(&mut reader).await, Some(acknowledgement(2)));
        assert_eq!(start.elapsed(), Duration::ZERO);

        say(WorkerCommand::Acknowledge(3)).await;
        assert_eq!(next(&mut reader).await, Some(acknowledgement(3)));
        assert_eq!(start.elapsed(), ACKNOWLEDGE_AFTER, "nothing else was sent");

        say(WorkerCommand::Acknowledge(4)).await;
        drop(commands);
        assert_eq!(next(&mut reader).await, Some(acknowledgement(4)));
        assert_eq!(next(&mut reader).await, None);
        sending.await.expect("it ends");
    }
}
