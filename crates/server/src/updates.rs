//! Updates for clients that watch jobs.
//!
//! Updates that a client has not received yet are merged. A slow client therefore needs one row per
//! job and one range of ids for tasks that ended together, instead of a queue. Details of ended
//! tasks are prepared for one message at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hq_core::id::JobId;
use hq_core::range::{IdArray, IdRange};
use hq_core::server_state::{Notification, WatchUpdate};
use hq_protocol::client;
use tokio::sync::mpsc;

/// The maximum overhead in bytes of a list element besides its own bytes: its tag and its length.
const ELEMENT_BYTES: usize = 12;
/// The maximum number of ended tasks per message. Preparing their details takes a few milliseconds
/// of the core's thread.
const TASKS_MAX: usize = 4_096;
/// The maximum number of notifications that wait for a client. Each has at most 1 KiB.
const NOTIFICATIONS_MAX: usize = 4_096;
/// The maximum number of ranges of ended tasks that wait for a client, 8 MiB in total. If tasks end
/// in random order, one range covers about two of them.
const RANGES_MAX: usize = 1 << 19;

/// Which details of ended tasks a client wants.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Details {
    /// Whether to send values of calls instead of paths of output files.
    pub(crate) with_values: bool,
    /// Whether one outcome covers tasks with consecutive ids that never started.
    pub(crate) with_ranges: bool,
}

/// Updates that the client has not received yet.
#[derive(Default, Debug)]
pub(crate) struct Update {
    jobs: BTreeMap<JobId, JobUpdate>,
    not_found: IdArray,
    notifications: VecDeque<client::Notification>,
    /// Whether all jobs have ended, so that nothing follows.
    pub(crate) done: bool,
    /// The total length of the lists `tasks`.
    task_count: usize,
    /// The total size of the lists `tasks` in bytes.
    task_bytes: usize,
    /// The total length of the lists `rest`.
    range_count: usize,
}

#[derive(Debug)]
struct JobUpdate {
    summary: client::JobSummary,
    ended: bool,
    /// Ended tasks with their details.
    tasks: Vec<client::EndedTask>,
    /// Tasks that ended later than `tasks`, in the order they ended.
    rest: VecDeque<IdRange>,
}

impl Update {
    /// Converts an update of the core. `summary` returns the current number of a job's tasks per
    /// state.
    pub(crate) fn new(update: WatchUpdate, summary: impl Fn(JobId) -> client::JobSummary) -> Self {
        let range_count = update.jobs.iter().map(|job| job.ended_tasks.len()).sum();
        let jobs = update.jobs.into_iter().map(|watched| {
            let update = JobUpdate {
                summary: summary(watched.job),
                ended: watched.ended,
                tasks: Vec::new(),
                rest: watched.ended_tasks,
            };
            (watched.job, update)
        });
        Self {
            jobs: jobs.collect(),
            not_found: update.not_found,
            notifications: update.notifications.iter().map(notification).collect(),
            done: update.done,
            task_count: 0,
            task_bytes: 0,
            range_count,
        }
    }

    /// Merges a later update into this one.
    fn merge(&mut self, later: Self) {
        for (id, mut job) in later.jobs {
            if let Some(known) = self.jobs.get_mut(&id) {
                known.summary = job.summary;
                known.ended = job.ended;
                let known_count = known.rest.len();
                for range in job.rest.drain(..) {
                    range.append_to(&mut known.rest);
                }
                self.range_count += known.rest.len() - known_count;
            } else {
                self.range_count += job.rest.len();
                self.jobs.insert(id, job);
            }
        }
        if !later.not_found.is_empty() {
            self.not_found = later.not_found;
        }
        self.notifications.extend(later.notifications);
        self.done |= later.done;
    }

    /// Prepares the details of as many ended tasks as fit into a message of `bytes_max` bytes.
    /// `make` returns the details of the first task of a range and the number of tasks that they
    /// cover. If the details are `None`, these tasks are omitted.
    pub(crate) fn make_details(
        &mut self,
        bytes_max: usize,
        mut make: impl FnMut(JobId, &IdRange) -> (Option<client::EndedTask>, u32),
    ) {
        for (id, update) in &mut self.jobs {
            // Most clients request no tasks, and a stopped client may have updates of many jobs.
            let is_full = self.task_count >= TASKS_MAX || self.task_bytes >= bytes_max;
            if is_full || self.range_count == 0 {
                return;
            }
            while self.task_count < TASKS_MAX
                && self.task_bytes < bytes_max
                && let Some(range) = update.rest.pop_front()
            {
                let (task, count) = make(*id, &range);
                match range.part(count, range.count()) {
                    Some(left) => update.rest.push_front(left),
                    None => self.range_count -= 1,
                }
                if let Some(task) = task {
                    self.task_count += 1;
                    self.task_bytes += element_bytes(&task);
                    update.tasks.push(task);
                }
            }
        }
    }

    /// Removes the next message, of about `bytes_max` bytes. After a message with `more` set,
    /// [`Self::make_details`] must be called before the next. A job with many ended tasks is spread
    /// over several messages and counts as ended in the last of them.
    pub(crate) fn take_message(&mut self, bytes_max: usize) -> client::WatchUpdate {
        let mut message = client::WatchUpdate::default();
        let not_found = std::mem::take(&mut self.not_found);
        message.not_found = (!not_found.is_empty()).then(|| (&not_found).into());
        let mut bytes = 0;
        self.jobs.retain(|_, job| {
            let is_whole = job.rest.is_empty();
            // Tasks whose details are missing wait for the next message.
            if bytes >= bytes_max || !is_whole && job.tasks.is_empty() {
                return true;
            }
            let ended_tasks = std::mem::take(&mut job.tasks);
            let task_bytes: usize = ended_tasks.iter().map(element_bytes).sum();
            self.task_count -= ended_tasks.len();
            self.task_bytes -= task_bytes;
            bytes += element_bytes(&job.summary) + task_bytes;
            message.jobs.push(client::WatchedJob {
                summary: Some(job.summary.clone()),
                ended: job.ended && is_whole,
                ended_tasks,
            });
            !is_whole
        });
        while bytes < bytes_max
            && self.jobs.is_empty()
            && let Some(notification) = self.notifications.pop_front()
        {
            bytes += element_bytes(&notification);
            message.notifications.push(notification);
        }
        message.more = !self.jobs.is_empty() || !self.notifications.is_empty();
        message.done = self.done && !message.more;
        message
    }
}

fn notification(notification: &Notification) -> client::Notification {
    client::Notification {
        job: notification.task.job.as_u32(),
        task: notification.task.task.as_u32(),
        worker: notification.worker.as_u32(),
        message: notification.message.to_vec().into(),
    }
}

/// Returns the size of a list element in a message, in bytes.
fn element_bytes(element: &impl hq_protocol::Message) -> usize {
    element.encoded_len() + ELEMENT_BYTES
}

/// An update that waits for its client. `None` if the client has received everything.
type Waiting = Arc<Mutex<Option<Update>>>;

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<Update>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's end of a watch.
pub(crate) struct UpdateSender {
    pub(crate) details: Details,
    waiting: Waiting,
    wakeup: mpsc::Sender<()>,
}

/// The client's end of a watch.
pub(crate) struct UpdateReceiver {
    waiting: Waiting,
    wakeup: mpsc::Receiver<()>,
}

/// The reason why no further update can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendError {
    /// The client has disconnected.
    Gone,
    /// The client does not read its notifications or ended tasks. It must start a new watch.
    Slow,
}

/// Creates both ends of a watch.
pub(crate) fn channel(details: Details) -> (UpdateSender, UpdateReceiver) {
    let waiting = Waiting::default();
    let (wake, wakeup) = mpsc::channel(1);
    let sender = UpdateSender {
        details,
        waiting: Arc::clone(&waiting),
        wakeup: wake,
    };
    let receiver = UpdateReceiver { waiting, wakeup };
    (sender, receiver)
}

impl UpdateSender {
    /// Adds an update and calls `make_details` with everything that is waiting.
    pub(crate) fn send(
        &self,
        update: Update,
        make_details: impl FnOnce(&mut Update),
    ) -> Result<(), SendError> {
        let mut waiting = lock(&self.waiting);
        let all = waiting.get_or_insert_default();
        all.merge(update);
        if all.notifications.len() > NOTIFICATIONS_MAX || all.range_count > RANGES_MAX {
            return Err(SendError::Slow);
        }
        make_details(all);
        drop(waiting);
        // One pending wakeup is enough.
        match self.wakeup.try_send(()) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(())) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(())) => Err(SendError::Gone),
        }
    }
}

impl UpdateReceiver {
    /// Returns everything since the last call. `None` if nothing is left and the server has dropped
    /// its end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no update is lost.
    pub(crate) async fn recv(&mut self) -> Option<Update> {
        loop {
            self.wakeup.recv().await?;
            // An earlier wakeup may have delivered this update already.
            if let Some(update) = lock(&self.waiting).take() {
                return Some(update);
            }
        }
    }
}

#[cfg(test)]
mod tests;
