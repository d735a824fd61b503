//! Sends notifications: a command, or a request to a web server; tried again with growing pauses.
//!
//! Pending notifications come from the core when they are on disk, and their outcomes go back there. A server that ends while
//! one is under way sends it again in its next life: at least once.

mod command;
mod queue;
mod webhook;

pub use webhook::check_webhook;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::command_text::without_arguments;
use hq_core::id::{JobId, TaskKey};
use hq_core::job::{Job, job_state};
use hq_core::notice::shown_target;
use hq_core::server_state::NoticeKey;
use hq_core::template::{NotifyEvent, NotifyTarget};
use hq_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::core_handle::{CoreHandle, View};
use crate::query;
use crate::relay::Relay;
use crate::words::{self, Words};
use queue::Queue;

/// Longest time of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses between attempts; after the last one it is given up.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
];
/// Longest text of an error that is kept.
const ERROR_LEN_MAX: usize = 500;

/// Sending end of the queue of notifications; the core's thread has it.
#[derive(Clone)]
pub(crate) struct Outbox(UnboundedSender<NoticeKey>);

/// Receiving end of the queue of notifications.
pub(crate) struct PendingNotifications(UnboundedReceiver<NoticeKey>);

/// Creates the queue of notifications.
pub(crate) fn outbox() -> (Outbox, PendingNotifications) {
    let (tx, rx) = unbounded_channel();
    (Outbox(tx), PendingNotifications(rx))
}

impl Outbox {
    pub(crate) fn send(&self, key: NoticeKey) {
        // If the sender has ended, the server does; it is owed in its next life.
        let _ = self.0.send(key);
    }
}

/// Content of a notification, as things stood when it became due.
struct Message {
    target: NotifyTarget,
    event: NotifyEvent,
    job: JobId,
    job_name: Box<str>,
    state: &'static str,
    submit_dir: Box<[u8]>,
    body: Value,
    /// The failed task that it names, until its last words have been read.
    unread: Option<TaskKey>,
}

/// One notification, and how often it was tried.
struct Delivery {
    key: NoticeKey,
    message: Message,
    attempts: u32,
}

/// Sends until dropped.
pub(crate) async fn run(
    core: CoreHandle,
    relay: Arc<Relay>,
    mut owed: PendingNotifications,
    server_uid: String,
) {
    let server_uid: Arc<str> = server_uid.into();
    let mut running = JoinSet::new();
    let mut queue: Queue<tokio::task::Id, Delivery> = Queue::new();
    loop {
        let due = queue.next_due();
        tokio::select! {
            key = owed.0.recv() => match key {
                Some(key) if queue.is_full() => {
                    note(&core, key, (0, Some("too many notifications were waiting".into()))).await;
                }
                Some(key) => add(&core, key, &server_uid, &mut queue).await,
                None => return,
            },
            Some(ended) = running.join_next_with_id(), if !running.is_empty() => match ended {
                Ok((id, again)) => queue.end(&id, again),
                Err(error) => queue.end(&error.id(), None),
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
        }
        while let Some((place, delivery)) = queue.next(Instant::now()) {
            let id = running
                .spawn(attempt(core.clone(), Arc::clone(&relay), delivery))
                .id();
            queue.begin(id, place);
        }
    }
}

/// Takes in what is owed; nothing if the job was forgotten.
async fn add(
    core: &CoreHandle,
    key: NoticeKey,
    server_uid: &Arc<str>,
    queue: &mut Queue<tokio::task::Id, Delivery>,
) {
    let uid = Arc::clone(server_uid);
    let read = core.query(move |view| message(view, key, &uid)).await;
    if let Ok(Some(message)) = read {
        let delivery = Delivery {
            key,
            attempts: 0,
            message,
        };
        queue.add(place(&delivery.message.target), delivery);
    }
}

async fn note(core: &CoreHandle, key: NoticeKey, (attempts, error): (u32, Option<Box<str>>)) {
    // If the core has ended, it is owed in the next life of the server.
    let _ = core.notified(key, attempts, error).await;
}

/// Tries once. Returns what is to be tried again, and when; otherwise what became of it is noted.
async fn attempt(
    core: CoreHandle,
    relay: Arc<Relay>,
    mut delivery: Delivery,
) -> Option<(Instant, Delivery)> {
    add_words(&core, &relay, &mut delivery.message).await;
    let Delivery { key, message, .. } = &delivery;
    let (job, target) = (key.job, shown_target(&message.target));
    let sent = tokio::time::timeout(ATTEMPT_TIMEOUT, send(message)).await;
    let sent =
        sent.unwrap_or_else(|_| Err(format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs())));
    delivery.attempts += 1;
    let attempts = delivery.attempts;
    let error: Option<Box<str>> = match sent {
        Ok(()) => {
            tracing::info!(%job, to = target, attempts, "notification sent");
            None
        }
        Err(error) => {
            let error = cut(&error);
            if let Some(pause) = PAUSES.get(attempts as usize - 1) {
                tracing::warn!(%job, to = target, attempts, "notification failed, next attempt in {} s: {error}", pause.as_secs());
                return Some((Instant::now() + *pause, delivery));
            }
            tracing::warn!(%job, to = target, attempts, "notification given up: {error}");
            Some(error.into())
        }
    };
    note(&core, delivery.key, (attempts, error)).await;
    None
}

/// Adds what the failed task said last, which is read where it ran; once, whether anybody answers or not.
async fn add_words(core: &CoreHandle, relay: &Arc<Relay>, message: &mut Message) {
    let Some(task) = message.unread.take() else {
        return;
    };
    if let Some(Words::Said(line)) = words::read(core, relay, &[task]).await.pop() {
        message.body["failure"]["last_words"] = json!(cut(&line));
    }
}

/// Notifications that hang or fail together: of a web server, or of a program.
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
        event,
        job: key.job,
        job_name: job.name.clone(),
        state,
        submit_dir: notice.submit_dir.clone(),
        body,
        unread: named.map(|task| TaskKey::new(key.job, task)),
    })
}

/// The failed task with the lowest id.
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
