//! Sends notifications: runs a command or sends a request to a web server, and retries with growing
//! pauses.
//!
//! The core passes on pending notifications when they are on disk, and receives their outcomes. If
//! the server ends during a delivery, its next run repeats the delivery, so each one is sent at
//! least once. Notifications about workers go to the targets that were given when the server
//! started, and are not stored.

mod command;
mod slots;
mod webhook;

pub use webhook::check_webhook;

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hq_core::command_text::without_arguments;
use hq_core::id::{TaskKey, WorkerId};
use hq_core::job::{Job, job_state};
use hq_core::notice::shown_target;
use hq_core::server_state::{ChangeKind, NoticeKey};
use hq_core::template::NotifyTarget;
use hq_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::core_handle::{Event, View};
use crate::parts::Parts;
use crate::query;
use crate::words::{self, Words};
use slots::{Slots, TargetSlots};

/// The maximum number of unfinished notifications. Further ones are dropped.
const UNFINISHED_MAX: usize = 10_000;
/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses between attempts. After the last attempt, delivery has finally failed.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
];
/// The maximum length of an error text that is kept, in bytes.
const ERROR_LEN_MAX: usize = 500;

/// The sending end of the queue of notifications. The core's thread uses it.
#[derive(Clone)]
pub(crate) struct Outbox(UnboundedSender<QueuedNotification>);

/// The receiving end of the queue of notifications.
pub(crate) struct PendingNotifications {
    owed: UnboundedReceiver<QueuedNotification>,
    about_workers: WorkerNotices,
}

/// A notification in the queue.
enum QueuedNotification {
    /// A notification about a job.
    Job(NoticeKey),
    /// A notification about a worker.
    Worker(WorkerNews),
}

/// A change of a worker's state.
#[derive(Clone, Debug)]
struct WorkerNews {
    worker: WorkerId,
    /// The name of the event.
    event: &'static str,
    /// The reason, as a sentence without a full stop.
    why: Box<str>,
    /// The time of the next probe task, if the worker is in quarantine.
    until: Option<Timestamp>,
}

/// The targets of notifications about workers.
#[derive(Clone, Default)]
pub(crate) struct WorkerNotices {
    pub(crate) targets: Vec<NotifyTarget>,
    /// The directory where commands run.
    pub(crate) dir: PathBuf,
}

/// Creates the queue of notifications.
pub(crate) fn outbox(about_workers: WorkerNotices) -> (Outbox, PendingNotifications) {
    let (tx, owed) = unbounded_channel();
    let pending = PendingNotifications {
        owed,
        about_workers,
    };
    (Outbox(tx), pending)
}

impl Outbox {
    pub(crate) fn send(&self, key: NoticeKey) {
        // If the receiver has ended, the server has ended as well. Its next run sends the
        // notification.
        let _ = self.0.send(QueuedNotification::Job(key));
    }

    /// Queues a notification about a worker, unless a user requested the change.
    pub(crate) fn note_change(&self, change: &ChangeKind) {
        let news = if let ChangeKind::WorkerQuarantined(quarantine) = change
            && !quarantine.is_asked
        {
            WorkerNews {
                worker: quarantine.worker,
                event: "worker-quarantined",
                why: quarantine.why.clone(),
                until: Some(quarantine.until),
            }
        } else if let ChangeKind::WorkerSuspected { worker, why } = change {
            WorkerNews {
                worker: *worker,
                event: "worker-suspected",
                why: why.clone(),
                until: None,
            }
        } else {
            return;
        };
        let _ = self.0.send(QueuedNotification::Worker(news));
    }
}

/// The content of a notification, from the time when it became due.
struct Message {
    target: NotifyTarget,
    /// The subject, for the log.
    subject: String,
    /// The essential facts, as environment variables for commands.
    env: Vec<(&'static str, String)>,
    /// The directory where commands run.
    dir: Box<[u8]>,
    body: Value,
    /// The failed task that the notification names, until the last line of its output is read.
    unread: Option<TaskKey>,
}

/// Sends notifications until the future is dropped.
pub(crate) async fn run(parts: Arc<Parts>, mut pending: PendingNotifications) {
    let (mut sending, mut slots) = (JoinSet::new(), Slots::new());
    loop {
        let queued = tokio::select! {
            queued = pending.owed.recv() => queued,
            Some(_) = sending.join_next() => continue,
        };
        let is_full = sending.len() >= UNFINISHED_MAX;
        let (key, messages) = match queued {
            None => return,
            Some(QueuedNotification::Job(key)) if is_full => {
                let error = Some("too many notifications were waiting".into());
                note(&parts, key, 0, error).await;
                continue;
            }
            Some(QueuedNotification::Worker(news)) if is_full => {
                tracing::warn!(worker = %news.worker, "notification given up: too many were waiting");
                continue;
            }
            Some(QueuedNotification::Job(key)) => {
                let uid = parts.info.server_uid.clone();
                let read = parts.core.query(move |view| message(view, key, &uid)).await;
                // The job may have been forgotten.
                (Some(key), read.ok().flatten().into_iter().collect())
            }
            Some(QueuedNotification::Worker(news)) => {
                (None, messages(&parts, news, &pending.about_workers).await)
            }
        };
        for message in messages {
            let slots = slots.of(place(&message.target));
            sending.spawn(deliver(Arc::clone(&parts), slots, key, message));
        }
    }
}

/// Returns the notifications about a worker, one per target.
async fn messages(parts: &Parts, news: WorkerNews, about: &WorkerNotices) -> Vec<Message> {
    let worker = news.worker;
    let read = move |view: &View<'_>| view.state.hostname(worker).unwrap_or("?").to_owned();
    let Ok(host) = parts.core.query(read).await else {
        return Vec::new();
    };
    let id = worker.as_u32();
    let body = json!({
        "version": 1,
        "event": news.event,
        "server_uid": parts.info.server_uid,
        "worker": {
            "id": id,
            "host": host,
            "reason": news.why,
            "until": news.until.map(time_text),
        },
    });
    let env = [
        ("HQ_NOTIFY_EVENT", news.event.to_owned()),
        ("HQ_WORKER_ID", id.to_string()),
        ("HQ_WORKER_HOST", host),
        ("HQ_REASON", news.why.to_string()),
    ];
    let targets = about.targets.iter();
    let message = |target: &NotifyTarget| Message {
        target: target.clone(),
        subject: format!("worker {id}"),
        env: env.to_vec(),
        dir: about.dir.as_os_str().as_bytes().into(),
        body: body.clone(),
        unread: None,
    };
    targets.map(message).collect()
}

async fn note(parts: &Parts, key: NoticeKey, attempts: u32, error: Option<Box<str>>) {
    // If the core has ended, the next run of the server sends it again.
    let _ = parts.core.send(Event::Notified(key, attempts, error)).await;
}

/// Delivers a notification and records the outcome. `key` is `None` for a notification about a
/// worker, whose outcome is not stored.
async fn deliver(
    parts: Arc<Parts>,
    slots: TargetSlots,
    key: Option<NoticeKey>,
    mut message: Message,
) {
    let mut pauses = PAUSES.into_iter();
    for attempts in 1.. {
        let slot = slots.enter().await;
        // A waiting notification needs no memory for its attempt.
        let error = Box::pin(attempt(&parts, &mut message)).await.err();
        drop(slot);
        let (subject, to) = (&*message.subject, shown_target(&message.target));
        let pause = pauses.next();
        match (&error, pause) {
            (None, _) => tracing::info!(subject, to, attempts, "notification sent"),
            (Some(error), Some(pause)) => {
                tracing::warn!(
                    subject,
                    to,
                    attempts,
                    "notification failed, next attempt in {} s: {error}",
                    pause.as_secs()
                );
                tokio::time::sleep(pause).await;
                continue;
            }
            (Some(error), None) => {
                tracing::warn!(subject, to, attempts, "notification given up: {error}");
            }
        }
        if let Some(key) = key {
            note(&parts, key, attempts, error).await;
        }
        return;
    }
}

/// Makes one attempt.
async fn attempt(parts: &Parts, message: &mut Message) -> Result<(), Box<str>> {
    add_words(parts, message).await;
    let sent = tokio::time::timeout(ATTEMPT_TIMEOUT, send(message)).await;
    let late = |_| Err(format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs()));
    sent.unwrap_or_else(late)
        .map_err(|error| cut(&error).into())
}

/// Adds the last line of the failed task's output, read on its worker. Makes only one attempt.
async fn add_words(parts: &Parts, message: &mut Message) {
    let Some(task) = message.unread.take() else {
        return;
    };
    let mut read = words::read(&parts.core, &parts.questions, &[task]).await;
    if let Some(Words::Said(line)) = read.pop() {
        message.body["failure"]["last_words"] = json!(cut(&line));
    }
}

/// Returns the web server or program of a target. Its notifications hang or fail together.
fn place(target: &NotifyTarget) -> Box<str> {
    match target {
        NotifyTarget::Command(command) => {
            let program = command.split_whitespace().next().unwrap_or_default();
            format!("cmd:{program}").into()
        }
        NotifyTarget::Webhook(_) => shown_target(target).into(),
    }
}

async fn send(message: &Message) -> Result<(), String> {
    match &message.target {
        NotifyTarget::Command(command) => command::run(command, message).await,
        NotifyTarget::Webhook(url) => {
            webhook::post(url.to_string(), message.body.to_string()).await
        }
    }
}

fn cut(text: &str) -> &str {
    let text = text.trim();
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= ERROR_LEN_MAX)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

fn message(view: &View<'_>, key: NoticeKey, server_uid: &str) -> Option<Message> {
    let job = view.state.jobs().get(&key.job)?;
    let notice = job.notices.get(key.number as usize)?;
    let counts = job.counts();
    let state = job_state(counts, job.is_open).name();
    let event = notice.spec.event;
    let body = json!({
        "version": 1,
        "event": event.name(),
        "server_uid": server_uid,
        "notification": key.number,
        "job": {
            "id": key.job.as_u32(),
            "name": job.name,
            "state": state,
            "submitted": time_text(job.submitted),
            "ended": job.is_completed().then(|| time_text(job.idle_since)),
            "cancel_reason": job.cancel_reason,
            "tasks": {
                "total": counts.total(),
                "waiting": counts.waiting,
                "running": counts.running,
                "finished": counts.finished,
                "failed": counts.failed,
                "canceled": counts.canceled,
                "aborted": counts.aborted,
            },
        },
        "failure": failure(view, job),
    });
    let named = job
        .failed_lowest()
        .next()
        .filter(|_| !body["failure"].is_null());
    Some(Message {
        target: notice.spec.target.clone(),
        subject: format!("job {}", key.job),
        env: vec![
            ("HQ_NOTIFY_EVENT", event.name().to_owned()),
            ("HQ_JOB_ID", key.job.to_string()),
            ("HQ_JOB_NAME", job.name.replace('\0', "")),
            ("HQ_JOB_STATE", state.to_owned()),
        ],
        dir: notice.submit_dir.clone(),
        body,
        unread: named.map(|task| TaskKey::new(key.job, task)),
    })
}

/// Returns the failed task with the lowest id.
fn failure(view: &View<'_>, job: &Job) -> Value {
    let task = job.failed_lowest().next();
    let found = task.and_then(|task| query::failed_task(view.state, job, task));
    found.map_or(Value::Null, |failed| {
        let worker = failed.workers.first();
        json!({
            "task": failed.id,
            "error": without_arguments(&failed.error),
            "worker": worker.map(|worker| worker.id),
            "host": worker.map(|worker| &worker.hostname),
            "last_words": null,
        })
    })
}

fn time_text(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default();
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = "é".repeat(400);
        assert_eq!(cut(&text).len(), 500);
        assert_eq!(cut(" short\n"), "short");
    }
}
