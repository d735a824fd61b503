//! Updates on their way to clients that watch jobs.
//!
//! Updates that a client has not taken yet are merged. So a slow client costs one row for each job
//! and one range of ids for tasks that ended together, not a queue. The details of ended tasks are
//! made for one message at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hq_core::id::JobId;
use hq_core::range::{IdArray, IdRange};
use hq_core::server_state::{Notification, WatchUpdate};
use hq_protocol::client;
use tokio::sync::mpsc;

/// Overhead of an element of a list besides its own bytes, at most: its tag and its length.
const ELEMENT_BYTES: usize = 12;
/// Maximum ended tasks of a message; making their details takes a few milliseconds of the core's
/// thread.
const TASKS_MAX: usize = 4_096;
/// Maximum notifications that wait for a client. Each has at most 1 KiB.
const NOTIFICATIONS_MAX: usize = 4_096;
/// Maximum ranges of ended tasks that wait for a client: 8 MiB. Tasks that end in any order make
/// about one range for two of them.
const RANGES_MAX: usize = 1 << 19;

/// Which details of ended tasks a client wants.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Details {
    /// Values of calls instead of paths of output files.
    pub(crate) with_values: bool,
    /// One outcome for tasks with consecutive ids that never started.
    pub(crate) with_ranges: bool,
}

/// What a client has not been sent yet.
#[derive(Default, Debug)]
pub(crate) struct Update {
    jobs: BTreeMap<JobId, JobUpdate>,
    not_found: IdArray,
    notifications: VecDeque<client::Notification>,
    /// All jobs have ended; nothing follows.
    pub(crate) done: bool,
    /// Number and bytes of the tasks in the lists `tasks`.
    made: (usize, usize),
}

#[derive(Debug)]
struct JobUpdate {
    summary: client::JobSummary,
    ended: bool,
    /// Ended tasks with their details.
    tasks: Vec<client::EndedTask>,
    /// Tasks that ended later than `tasks`, in the order of their ends.
    rest: VecDeque<IdRange>,
}

impl Update {
    /// The content of an update of the core. `summary` says how many tasks of a job are in which
    /// state now.
    pub(crate) fn new(update: WatchUpdate, summary: impl Fn(JobId) -> client::JobSummary) -> Self {
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
            made: (0, 0),
        }
    }

    /// Adds a later update.
    fn merge(&mut self, later: Self) {
        for (id, mut job) in later.jobs {
            if let Some(known) = self.jobs.get_mut(&id) {
                known.summary = job.summary;
                known.ended = job.ended;
                for range in job.rest.drain(..) {
                    range.append_to(&mut known.rest);
                }
            } else {
                self.jobs.insert(id, job);
            }
        }
        if !later.not_found.is_empty() {
            self.not_found = later.not_found;
        }
        self.notifications.extend(later.notifications);
        self.done |= later.done;
    }

    /// Makes details of ended tasks, as many as one message of `bytes_max` holds. `make` makes
    /// those of the first task of a range, and says for how many tasks of the range they stand;
    /// without details these are left out.
    pub(crate) fn make_details(
        &mut self,
        bytes_max: usize,
        mut make: impl FnMut(JobId, &IdRange) -> (Option<client::EndedTask>, u32),
    ) {
        for (id, update) in &mut self.jobs {
            while self.made.0 < TASKS_MAX
                && self.made.1 < bytes_max
                && let Some(range) = update.rest.pop_front()
            {
                let (task, count) = make(*id, &range);
                if let Some(left) = range.part(count, range.count()) {
                    update.rest.push_front(left);
                }
                if let Some(task) = task {
                    self.made.0 += 1;
                    self.made.1 += element_bytes(&task);
                    update.tasks.push(task);
                }
            }
        }
    }

    /// Takes the next message, of about `bytes_max`. A message that says `more` is not the last
    /// one: call [`Self::make_details`] before the next. A job with many ended tasks is in several
    /// messages and ends with the last of them.
    pub(crate) fn take_message(&mut self, bytes_max: usize) -> client::WatchUpdate {
        let mut message = client::WatchUpdate::default();
        let not_found = std::mem::take(&mut self.not_found);
        message.not_found = (!not_found.is_empty()).then(|| (&not_found).into());
        let mut bytes = 0;
        let made = &mut self.made;
        self.jobs.retain(|_, job| {
            let is_whole = job.rest.is_empty();
            // Without details it waits for the next message.
            if bytes >= bytes_max || !is_whole && job.tasks.is_empty() {
                return true;
            }
            let ended_tasks = std::mem::take(&mut job.tasks);
            let task_bytes: usize = ended_tasks.iter().map(element_bytes).sum();
            made.0 -= ended_tasks.len();
            made.1 -= task_bytes;
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

/// Bytes of an element of a list in a message.
fn element_bytes(element: &impl hq_protocol::Message) -> usize {
    element.encoded_len() + ELEMENT_BYTES
}

/// An update that waits for its client; `None` = the client has taken everything.
type Waiting = Arc<Mutex<Option<Update>>>;

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<Update>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's end of a watch.
pub(crate) struct UpdateSender {
    pub(crate) details: Details,
    waiting: Waiting,
    bell: mpsc::Sender<()>,
}

/// The client's end of a watch.
pub(crate) struct UpdateReceiver {
    waiting: Waiting,
    bell: mpsc::Receiver<()>,
}

/// Why no update can be sent any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendError {
    /// The client has gone.
    Gone,
    /// The client does not take its notifications or ended tasks; it has to ask again.
    Slow,
}

/// Makes both ends of a watch.
pub(crate) fn channel(details: Details) -> (UpdateSender, UpdateReceiver) {
    let waiting = Waiting::default();
    let (ring, bell) = mpsc::channel(1);
    let sender = UpdateSender {
        details,
        waiting: Arc::clone(&waiting),
        bell: ring,
    };
    let receiver = UpdateReceiver { waiting, bell };
    (sender, receiver)
}

impl UpdateSender {
    /// Adds an update; `make_details` is called with all that waits.
    pub(crate) fn send(
        &self,
        update: Update,
        make_details: impl FnOnce(&mut Update),
    ) -> Result<(), SendError> {
        let mut waiting = lock(&self.waiting);
        let all = waiting.get_or_insert_default();
        all.merge(update);
        let ranges: usize = all.jobs.values().map(|job| job.rest.len()).sum();
        if all.notifications.len() > NOTIFICATIONS_MAX || ranges > RANGES_MAX {
            return Err(SendError::Slow);
        }
        make_details(all);
        drop(waiting);
        // A bell that has rung already is enough.
        match self.bell.try_send(()) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(())) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(())) => Err(SendError::Gone),
        }
    }
}

impl UpdateReceiver {
    /// Everything since the last call; `None` once there is nothing and the server has dropped its
    /// end.
    ///
    /// # Cancel safety
    ///
    /// No update is lost if the future is dropped.
    pub(crate) async fn recv(&mut self) -> Option<Update> {
        loop {
            self.bell.recv().await?;
            // An update may have been taken together with the one before its bell.
            if let Some(update) = lock(&self.waiting).take() {
                return Some(update);
            }
        }
    }
}

#[cfg(test)]
mod tests;
