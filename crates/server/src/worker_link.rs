//! One connection of a worker: registration, then reports in and commands out.

use std::time::Duration;

use hq_core::id::WorkerId;
use hq_core::server_state::{LinkEnd, LinkId};
use hq_core::time::nanos;
use hq_protocol::convert::{FromWorker, OutputRequest};
use hq_protocol::worker::{self, to_worker};
use hq_protocol::{Connection, Limits, MessageReader, MessageWriter, ReadError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::event_loop::{Shared, WorkerSeat};

/// Largest message of a worker: a report of a whole backlog with failure texts.
const MESSAGE_MAX: usize = 64 << 20;
/// A connected peer that does not register within this time is no worker.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);
/// Commands written with one flush.
const COMMANDS_PER_FLUSH: usize = 64;

/// Serves a worker until it goes.
pub(crate) async fn serve<S>(mut connection: Connection<S>, shared: Shared)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection.set_limits(Limits {
        message_max: MESSAGE_MAX,
    });
    let (mut reader, mut writer) = connection.split();
    let Some(seat) = register(&shared, &mut reader, &mut writer).await else {
        return;
    };
    let (worker, link) = (seat.id, seat.link);
    let questions = shared.relay.connect(worker, link);
    let mut sending = tokio::spawn(send_commands(seat, questions, writer));
    let how = receive(&shared, (worker, link), &mut reader, &mut sending).await;
    sending.abort();
    shared.relay.disconnect(worker, link);
    // If the core is gone, nobody needs to know.
    let _ = shared.core.worker_gone(worker, link, how).await;
}

async fn register<R, W>(
    shared: &Shared,
    reader: &mut MessageReader<R>,
    writer: &mut MessageWriter<W>,
) -> Option<WorkerSeat>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let first = tokio::time::timeout(REGISTER_TIMEOUT, reader.next::<worker::ToServer>()).await;
    let Ok(Ok(Some(message))) = first else {
        return None;
    };
    let (config, reattach) = match FromWorker::try_from(message) {
        Ok(FromWorker::Register(config, reattach)) => (config, reattach),
        Ok(FromWorker::Message(_) | FromWorker::Output(_)) => {
            refuse(writer, "expected a registration as the first message").await;
            return None;
        }
        Err(error) => {
            refuse(writer, &error.to_string()).await;
            return None;
        }
    };
    let seat = shared.core.register(config, reattach).await.ok()?;
    let registered = to_worker::Message::Registered(worker::Registered {
        worker_id: seat.id.as_u32(),
        server_uid: shared.info.server_uid.clone(),
        default_idle_timeout_ns: shared.idle_timeout.map(nanos),
        reattached: seat.reattached,
    });
    if writer
        .send(&worker::ToWorker {
            message: Some(registered),
        })
        .await
        .is_err()
    {
        let _ = shared
            .core
            .worker_gone(seat.id, seat.link, LinkEnd::Broken)
            .await;
        return None;
    }
    Some(seat)
}

async fn refuse<W: AsyncWrite + Unpin>(writer: &mut MessageWriter<W>, reason: &str) {
    tracing::warn!(reason, "worker refused");
    let refused = worker::Refused {
        reason: reason.to_owned(),
    };
    let message = to_worker::Message::Refused(refused);
    // Whether it hears of it or not, the connection is closed next.
    let _ = writer
        .send(&worker::ToWorker {
            message: Some(message),
        })
        .await;
}

/// Feeds messages to the core until the connection ends or the core closes it.
async fn receive<R: AsyncRead + Unpin>(
    shared: &Shared,
    (worker, link): (WorkerId, LinkId),
    reader: &mut MessageReader<R>,
    sending: &mut tokio::task::JoinHandle<()>,
) -> LinkEnd {
    loop {
        let message = tokio::select! {
            message = reader.next::<worker::ToServer>() => message,
            // The core let go of this worker, or it does not take its messages.
            _ = &mut *sending => return LinkEnd::Broken,
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return LinkEnd::Closed,
            Err(error) => {
                tracing::debug!(%worker, %error, "worker connection broke");
                return end_of(&error);
            }
        };
        match FromWorker::try_from(message) {
            Ok(FromWorker::Message(message)) => {
                if shared
                    .core
                    .worker_message(worker, link, message)
                    .await
                    .is_err()
                {
                    return LinkEnd::Broken;
                }
            }
            Ok(FromWorker::Output(output)) => shared.relay.answer(worker, output),
            Ok(FromWorker::Register(..)) => {
                tracing::warn!(%worker, "second registration on one connection ignored");
            }
            Err(error) => {
                tracing::warn!(%worker, %error, "invalid message; connection closed");
                return LinkEnd::Broken;
            }
        }
    }
}

/// A process that is killed while something is on its way to it leaves a reset behind.
fn end_of(error: &ReadError) -> LinkEnd {
    match error {
        ReadError::Truncated => LinkEnd::Closed,
        ReadError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
            LinkEnd::Closed
        }
        ReadError::Io(_) | ReadError::Frame(_) | ReadError::Decode(_) => LinkEnd::Broken,
    }
}

async fn send_commands<W: AsyncWrite + Unpin>(
    seat: WorkerSeat,
    mut questions: mpsc::Receiver<OutputRequest>,
    mut writer: MessageWriter<W>,
) {
    let mut commands = seat.commands;
    let mut batch = Vec::new();
    loop {
        // What tasks need comes first.
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
        }
        for command in batch.drain(..) {
            if writer.feed(&worker::ToWorker::from(&command)).is_err() {
                return;
            }
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
    // The core let go of this worker: what was queued is written, now the stream ends.
    let _ = writer.shutdown().await;
}
