//! Receives messages from tasks for clients that wait for the job, through a socket in the worker's
//! directory.
//!
//! A task's `HQ_ACCESS_KEY` contains `<socket path>:<token>`. The task sends the token, a newline
//! and the message; the reply is `ok` or an error message. The token only prevents mistakes: any
//! process that can read a task's environment may send messages in its name.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::{JobId, TaskId, TaskKey};
use hq_protocol::convert::NOTIFICATION_MAX;
use hq_protocol::worker::{self, ToServer, to_server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::scratch_dir::ScratchDir;

/// The name of the socket in its directory.
const SOCKET: &str = "notify";

/// The maximum length of a path that fits into a socket address.
const SOCKET_PATH_MAX: usize = 100;

/// The maximum length of a token with its newline.
const TOKEN_MAX: usize = 128;

/// The maximum number of tasks that send at the same time. Other tasks wait in the listen queue.
const SENDERS_MAX: usize = 64;

/// The maximum number of messages that wait for the event loop. Their senders wait for the reply.
const QUEUE_LEN: usize = 64;

/// How long a sender may be silent before it is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a message may wait for the event loop. This is shorter than the sender's own timeout,
/// so that the sender still gets the reason.
const TAKE_TIMEOUT: Duration = Duration::from_secs(8);

/// A message, and a channel that informs its sender that the message is on its way to the server.
pub(crate) type PendingMessage = (Notification, oneshot::Sender<()>);

/// The pause after a failed `accept`, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A message from a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notification {
    pub(crate) task: TaskKey,
    pub(crate) message: Vec<u8>,
}

impl From<Notification> for ToServer {
    fn from(notification: Notification) -> Self {
        let Notification { task, message } = notification;
        let notify = worker::Notify {
            job: task.job.as_u32(),
            task: task.task.as_u32(),
            message: message.into(),
        };
        Self {
            message: Some(to_server::Message::Notify(notify)),
        }
    }
}

/// The address and the secret that a task needs to send messages.
#[derive(Clone, Debug)]
pub(crate) struct NotifyAccess {
    socket: PathBuf,
    secret: Arc<str>,
}

impl NotifyAccess {
    /// Returns the value of `HQ_ACCESS_KEY` for a task.
    pub(crate) fn key_of(&self, task: TaskKey) -> OsString {
        let mut key = self.socket.as_os_str().as_bytes().to_vec();
        key.extend_from_slice(format!(":{}", self.token(task)).as_bytes());
        OsString::from_vec(key)
    }

    fn token(&self, task: TaskKey) -> String {
        format!("{}.{}.{}", self.secret, task.job, task.task)
    }

    /// Returns the task with this token.
    fn task_of(&self, token: &[u8]) -> Option<TaskKey> {
        let text = std::str::from_utf8(token).ok()?;
        let rest = text.strip_prefix(&*self.secret)?.strip_prefix('.')?;
        let (job, task) = rest.split_once('.')?;
        Some(TaskKey::new(
            JobId(job.parse().ok()?),
            TaskId(task.parse().ok()?),
        ))
    }
}

/// The listening socket. It is closed on drop.
#[derive(Debug)]
pub(crate) struct NotifySocket {
    access: NotifyAccess,
    notifications: mpsc::Receiver<PendingMessage>,
    task: JoinHandle<()>,
    /// The directory of the socket if the path of the worker's own directory is too long.
    _short_dir: Option<ScratchDir>,
}

impl NotifySocket {
    /// Listens in `dir`, or below the system's temporary directory if the path of `dir` is too
    /// long. Needs a tokio runtime.
    pub(crate) fn bind(dir: &Path, secret: &str) -> io::Result<Self> {
        let mut socket = dir.join(SOCKET);
        let mut short_dir = None;
        if socket.as_os_str().len() > SOCKET_PATH_MAX
            || socket.as_os_str().as_bytes().contains(&b':')
        {
            let made = ScratchDir::create_in(&std::env::temp_dir(), "hq-notify")?;
            socket = made.path().join(SOCKET);
            short_dir = Some(made);
        }
        let listener = UnixListener::bind(&socket)?;
        hq_private::close(&socket)?;
        let access = NotifyAccess {
            socket,
            secret: secret.into(),
        };
        let (tx, notifications) = mpsc::channel(QUEUE_LEN);
        let task = tokio::spawn(listen(listener, access.clone(), tx));
        Ok(Self {
            access,
            notifications,
            task,
            _short_dir: short_dir,
        })
    }

    pub(crate) const fn access(&self) -> &NotifyAccess {
        &self.access
    }

    /// Returns the next message whose sender is still waiting. Never `None` while the socket
    /// exists.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Notification> {
        loop {
            let said = self.notifications.recv().await?;
            if let Some(notification) = take(said) {
                return Some(notification);
            }
        }
    }

    /// Returns all messages that have arrived. This includes all messages of tasks that have ended,
    /// because each sender waits for its reply.
    pub(crate) fn arrived(&mut self) -> impl Iterator<Item = Notification> + '_ {
        // Only messages that are queued now are taken, so that tasks that keep sending do not block
        // the caller.
        let count = self.notifications.len();
        let said = (0..count).map_while(|_| self.notifications.try_recv().ok());
        said.filter_map(take)
    }

    /// Creates a socket whose messages come from a test.
    #[cfg(test)]
    pub(crate) fn fed_by_test() -> (mpsc::Sender<PendingMessage>, Self) {
        let (tx, notifications) = mpsc::channel(QUEUE_LEN);
        let access = NotifyAccess {
            socket: PathBuf::new(),
            secret: "".into(),
        };
        let socket = Self {
            access,
            notifications,
            task: tokio::spawn(std::future::pending()),
            _short_dir: None,
        };
        (tx, socket)
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Confirms a message to its sender, unless the sender has given up.
fn take((notification, taken): PendingMessage) -> Option<Notification> {
    taken.send(()).is_ok().then_some(notification)
}

async fn listen(
    listener: UnixListener,
    access: NotifyAccess,
    notifications: mpsc::Sender<PendingMessage>,
) {
    let senders = Arc::new(Semaphore::new(SENDERS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&senders).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (access, notifications) = (access.clone(), notifications.clone());
        tokio::spawn(async move {
            let serve = serve(stream, &access, &notifications);
            // Errors and timeouts only affect the sender.
            let _ = tokio::time::timeout(SEND_TIMEOUT, serve).await;
            drop(permit);
        });
    }
}

async fn serve(
    mut stream: UnixStream,
    access: &NotifyAccess,
    notifications: &mpsc::Sender<PendingMessage>,
) -> io::Result<()> {
    let limit = TOKEN_MAX + NOTIFICATION_MAX + 1;
    let mut bytes = Vec::new();
    (&mut stream)
        .take(limit as u64)
        .read_to_end(&mut bytes)
        .await?;
    let answer = match parse(&bytes, access) {
        Ok(notification) => hand_over(notification, notifications).await,
        Err(why) => why,
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// Waits until a message is on its way to the server.
async fn hand_over(
    notification: Notification,
    notifications: &mpsc::Sender<PendingMessage>,
) -> &'static str {
    let (taken, is_taken) = oneshot::channel();
    let handed_over = async {
        notifications.send((notification, taken)).await.ok()?;
        is_taken.await.ok()
    };
    match tokio::time::timeout(TAKE_TIMEOUT, handed_over).await {
        Ok(Some(())) => "ok",
        Ok(None) => "the worker is about to end",
        Err(_) => "the server is unreachable, or does not read. Send the message again later",
    }
}

fn parse(bytes: &[u8], access: &NotifyAccess) -> Result<Notification, &'static str> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (token, message) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => return Err("expected a token and a newline"),
    };
    let task = access
        .task_of(token)
        .ok_or("the token does not belong to a task of this worker")?;
    if message.len() > NOTIFICATION_MAX {
        return Err("the message is longer than 1024 bytes");
    }
    Ok(Notification {
        task,
        message: message.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> NotifyAccess {
        NotifyAccess {
            socket: "/tmp/x/notify".into(),
            secret: "abc".into(),
        }
    }

    #[test]
    fn tokens_name_their_task_and_nothing_else_passes() {
        let task = TaskKey::new(JobId(3), TaskId(14));
        let key = access().key_of(task);
        let (socket, token) = key.to_str().expect("text").split_once(':').expect("both");
        assert_eq!(socket, "/tmp/x/notify");
        let sent = [token.as_bytes(), b"\nhello\n"].concat();
        let expected = Notification {
            task,
            message: b"hello\n".to_vec(),
        };
        assert_eq!(parse(&sent, &access()), Ok(expected));
        let long = [token.as_bytes(), b"\n", &[b'x'; 1025][..]].concat();
        for refused in [&b"abc.3"[..], b"abd.3.14\nx", b"abc.3.x\nx", b"", &long] {
            assert!(parse(refused, &access()).is_err());
        }
    }

    #[tokio::test]
    async fn a_message_arrives_and_is_answered() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut socket = NotifySocket::bind(dir.path(), "s").expect("can listen");
        let task = TaskKey::new(JobId(1), TaskId(2));
        let path = dir.path().join(SOCKET);
        let mut stream = UnixStream::connect(path).await.expect("listens");
        let sent = format!("{}\nhi", socket.access().token(task));
        stream.write_all(sent.as_bytes()).await.expect("open");
        stream.shutdown().await.expect("open");
        let received = socket.next().await.expect("lives");
        assert_eq!((received.task, &received.message[..]), (task, &b"hi"[..]));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("open");
        assert_eq!(answer, "ok");
    }
}
