//! Passes values of calls from workers to the store and to waiting clients.
//!
//! The core does not handle values. A value arrives before the report that its task has ended and
//! is passed to the store first, so that it is on disk when clients learn of the end. Recent values
//! are kept here for the client, and older ones are read from the store. Values are opaque.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::range::IdArray;
use hq_core::refusal::Refusal;
use hq_protocol::client::{self, TaskState, reply::Reply};
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_protocol::worker;
use hq_store::StoreClient;
use hq_store::values::{self, CallValue};

/// The maximum total size of values kept for waiting clients, in addition to the store.
const KEPT_MAX: usize = 64 << 20;
/// The same limit without a store, where dropped values are lost. Only values that no client has
/// requested are dropped.
const KEPT_MAX_ALONE: usize = 1 << 30;
/// The overhead of a value in memory, in bytes.
const VALUE_BYTES: usize = 128;
/// How many tasks of one message are looked up in the store.
const MISSING_MAX: usize = 2_000;

/// Identifies a value. Includes the worker, so that no worker can provide a value for a task that
/// ran on another.
type Key = (TaskKey, InstanceId, WorkerId);

#[derive(Default)]
struct ValueBuffer {
    values: HashMap<Key, Box<[u8]>>,
    /// The keys, oldest first. The values of some keys have already been taken.
    order: VecDeque<Key>,
    bytes: usize,
}

impl ValueBuffer {
    fn add(&mut self, key: Key, data: Box<[u8]>) {
        self.bytes += data.len() + VALUE_BYTES;
        if let Some(before) = self.values.insert(key, data) {
            self.bytes -= before.len() + VALUE_BYTES;
        } else {
            self.order.push_back(key);
        }
    }

    fn take(&mut self, key: &Key) -> Option<Box<[u8]>> {
        let data = self.values.remove(key)?;
        self.bytes -= data.len() + VALUE_BYTES;
        Some(data)
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.take(&oldest);
        }
        // The keys of values that were taken are still in `order`.
        if self.order.len() > 2 * self.values.len() + 1_024 {
            let values = &self.values;
            self.order.retain(|key| values.contains_key(key));
        }
    }
}

/// Values that have not been delivered yet.
pub(crate) struct Values {
    kept: Mutex<ValueBuffer>,
    store: Option<StoreClient>,
}

impl Values {
    pub(crate) fn new(store: Option<StoreClient>) -> Self {
        Self {
            kept: Mutex::default(),
            store,
        }
    }

    fn kept(&self) -> MutexGuard<'_, ValueBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the values that a worker sent.
    pub(crate) fn add(&self, worker: WorkerId, values: Vec<worker::Value>) {
        let values: Vec<CallValue> = values
            .into_iter()
            .map(|value| CallValue {
                task: TaskKey::new(JobId(value.job), TaskId(value.task)),
                instance: InstanceId(value.instance),
                worker,
                data: value.data[..].into(),
            })
            .collect();
        let mut kept = self.kept();
        for value in &values {
            kept.add((value.task, value.instance, worker), value.data.clone());
        }
        kept.shrink(match self.store {
            Some(_) => KEPT_MAX,
            None => KEPT_MAX_ALONE,
        });
        drop(kept);
        if let Some(store) = &self.store {
            store.store_values(values);
        }
    }

    /// Splits an update that is about to be sent into pages, and adds the values of its outcomes.
    pub(crate) fn pages(&self, mut update: client::WatchUpdate) -> Pages<'_> {
        let jobs = std::mem::take(&mut update.jobs).into_iter();
        let jobs = jobs.map(|mut job| {
            let tasks = std::mem::take(&mut job.ended_tasks);
            (job, tasks.into())
        });
        Pages {
            values: self,
            jobs: jobs.collect(),
            rest: Some(update),
        }
    }

    /// Removes tasks of a job for a message with `left` free bytes, and adds their values.
    async fn fill(
        &self,
        job: u32,
        tasks: &mut VecDeque<client::EndedTask>,
        left: &mut usize,
    ) -> Vec<client::EndedTask> {
        let (mut page, missing) = self.fill_kept(job, tasks, left);
        let Ok(missing) = IdArray::from_sorted(missing) else {
            hq_core::bug!("an update of job {job} names a task twice");
            return page;
        };
        if missing.is_empty() {
            return page;
        }
        // At least one value is read, so that each message makes progress.
        let found = match self.find(job, missing, (*left).max(1)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(job, "{error}");
                return page;
            }
        };
        let mut values: HashMap<u32, Vec<u8>> = found.values.into_iter().collect();
        let is_later = |task: &client::EndedTask| {
            task.value.is_none() && found.next.is_some_and(|next| task.id >= next)
        };
        for task in page.extract_if(.., |task| is_later(task)) {
            tasks.push_front(task);
        }
        for task in &mut page {
            if let Some(data) = values.remove(&task.id) {
                *left = left.saturating_sub(data.len());
                task.value = Some(data.into());
            }
        }
        page
    }

    /// Removes tasks until `left` is used up, and adds the values kept here. Returns these tasks,
    /// and in ascending order the tasks whose values may be in the store.
    fn fill_kept(
        &self,
        job: u32,
        tasks: &mut VecDeque<client::EndedTask>,
        left: &mut usize,
    ) -> (Vec<client::EndedTask>, Vec<u32>) {
        let (mut page, mut missing) = (Vec::new(), Vec::new());
        let mut kept = self.kept();
        while *left > 0
            && missing.len() < MISSING_MAX
            && let Some(mut task) = tasks.pop_front()
        {
            if let Some(worker) = task.worker.filter(|_| may_have_value(&task)) {
                let key = (
                    TaskKey::new(JobId(job), TaskId(task.id)),
                    InstanceId(task.instance),
                    WorkerId(worker),
                );
                if let Some(data) = kept.take(&key) {
                    *left = left.saturating_sub(data.len());
                    task.value = Some(data.into_vec().into());
                } else if self.store.is_some() {
                    missing.push(task.id);
                }
            }
            page.push(task);
        }
        missing.sort_unstable();
        (page, missing)
    }

    async fn find(
        &self,
        job: u32,
        tasks: IdArray,
        bytes_max: usize,
    ) -> Result<values::Found, String> {
        let Some(store) = self.store.clone() else {
            return Ok(values::Found::default());
        };
        // There is no time limit, because a value that cannot be read now would be lost for a
        // waiting client.
        let work = move || values::read(&store.read()?, job, &tasks, bytes_max);
        let read = tokio::task::spawn_blocking(work).await;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Answers a client's request for values.
    pub(crate) async fn read(&self, job: JobId, tasks: IdArray) -> Reply {
        match self.find(job.as_u32(), tasks, PAGE_BYTES_MAX).await {
            Ok(found) => {
                let (tasks, data): (Vec<u32>, Vec<Vec<u8>>) = found.values.into_iter().unzip();
                Reply::TaskValues(client::TaskValues {
                    tasks,
                    values: data.into_iter().map(Into::into).collect(),
                    next: found.next,
                })
            }
            Err(error) => Refusal::failed(error).into(),
        }
    }
}

/// An update split into messages with at most [`PAGE_BYTES_MAX`] bytes of values. A single larger
/// value is sent anyway.
///
/// Each message is a complete update, because waiting clients process values as they arrive. The
/// other parts of the update have already been limited.
pub(crate) struct Pages<'a> {
    values: &'a Values,
    /// The jobs with tasks that have not been sent yet.
    jobs: VecDeque<(client::WatchedJob, VecDeque<client::EndedTask>)>,
    /// The message after those of the jobs. `None` after the last message.
    rest: Option<client::WatchUpdate>,
}

impl Pages<'_> {
    /// Returns the next message, or `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<client::WatchUpdate> {
        let mut page = self.rest.take()?;
        let mut left = PAGE_BYTES_MAX;
        while let Some((job, tasks)) = self.jobs.front_mut() {
            let id = job.summary.as_ref().map_or(0, |summary| summary.id);
            let filled = self.values.fill(id, tasks, &mut left).await;
            let is_whole = tasks.is_empty();
            page.jobs.push(client::WatchedJob {
                summary: job.summary.clone(),
                // The end of the job is sent with its last tasks.
                ended: job.ended && is_whole,
                ended_tasks: filled,
            });
            if !is_whole {
                break;
            }
            self.jobs.pop_front();
        }
        if !self.jobs.is_empty() {
            self.rest = Some(client::WatchUpdate {
                done: std::mem::take(&mut page.done),
                more: page.more,
                ..client::WatchUpdate::default()
            });
            // The client need not wait for the rest of the update.
            page.more = false;
        }
        Some(page)
    }
}

fn may_have_value(task: &client::EndedTask) -> bool {
    matches!(task.state(), TaskState::Finished | TaskState::Failed)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hq_core::outcome::{Outcome, Usage};
    use hq_core::server_state::{Change, ChangeKind, EndAwaited};
    use hq_core::task::TaskEnd;
    use hq_core::time::Timestamp;
    use hq_protocol::Message as _;
    use hq_protocol::convert::VALUE_MAX;
    use hq_store::Store;

    use super::*;

    fn key(task: u32) -> Key {
        (
            TaskKey::new(JobId(1), TaskId(task)),
            InstanceId(0),
            WorkerId(1),
        )
    }

    fn value(task: u32, data: &[u8]) -> worker::Value {
        worker::Value {
            job: 1,
            task,
            instance: 0,
            data: data.to_vec().into(),
        }
    }

    fn update(worker: u32, tasks: &[u32]) -> client::WatchUpdate {
        let ended = |id: &u32| client::EndedTask {
            id: *id,
            state: TaskState::Finished.into(),
            worker: Some(worker),
            ..client::EndedTask::default()
        };
        client::WatchUpdate {
            jobs: vec![client::WatchedJob {
                summary: Some(client::JobSummary {
                    id: 1,
                    ..client::JobSummary::default()
                }),
                ended_tasks: tasks.iter().map(ended).collect(),
                ..client::WatchedJob::default()
            }],
            ..client::WatchUpdate::default()
        }
    }

    async fn pages(values: &Values, update: client::WatchUpdate) -> Vec<client::WatchUpdate> {
        let mut pages = values.pages(update);
        let mut sent = Vec::new();
        while let Some(page) = pages.next().await {
            sent.push(page);
        }
        sent
    }

    fn ended_change(task: u32, at: Timestamp) -> Change {
        let end = TaskEnd {
            outcome: Outcome::Finished,
            at,
            run: Duration::ZERO,
            usage: Usage::default(),
        };
        let kind = ChangeKind::TaskEnded {
            task: TaskKey::new(JobId(1), TaskId(task)),
            instance: InstanceId(0),
            worker: WorkerId(1),
            crash_count: 0,
            end,
            is_finished: true,
            awaited: EndAwaited::ByJobs,
        };
        Change { at, kind }
    }

    /// Values of maximum length, in memory and in the store, among tasks without values.
    #[tokio::test]
    async fn the_largest_update_comes_in_messages_of_which_none_is_long() {
        const LONG: u32 = 40;
        const TASKS: u32 = 5_000;
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state.db")).expect("a new store");
        let at = Timestamp(1);
        let mut store = store.start("test", &[], at, |_| ()).expect("a writer");
        let values = Values::new(Some(store.client()));
        let byte = |id: u32| u8::try_from(id).expect("few are long");
        let long = (0..LONG).map(|id| value(id, &vec![byte(id); VALUE_MAX]));
        values.add(WorkerId(1), long.collect());
        values.kept().shrink(KEPT_MAX / 4);
        store.store((0..TASKS).map(|id| ended_change(id, at)).collect());
        store.client().flush().expect("on disk");
        let ids: Vec<u32> = (0..TASKS).rev().collect();
        let mut update = update(1, &ids);
        update.done = true;
        update.jobs[0].ended = true;
        update.jobs.push(client::WatchedJob::default());
        let sent = pages(&values, update).await;
        let mut told = Vec::new();
        for page in &sent {
            let bytes = page.encoded_len();
            assert!(
                bytes <= PAGE_BYTES_MAX + VALUE_MAX + (64 << 10),
                "{bytes} bytes"
            );
            for task in &page.jobs[0].ended_tasks {
                let first = task.value.as_ref().map(|data| (data.len(), data[0]));
                let expected = (task.id < LONG).then(|| (VALUE_MAX, byte(task.id)));
                assert_eq!(first, expected, "task {}", task.id);
                told.push(task.id);
            }
        }
        told.sort_unstable();
        assert_eq!(told, Vec::from_iter(0..TASKS));
        let (last, before) = sent.split_last().expect("some");
        assert!(last.done && last.jobs[0].ended && last.jobs.len() == 2);
        assert!(before.len() >= 8, "{} messages", sent.len());
        assert!(before.iter().all(|page| !page.done && !page.jobs[0].ended));
    }

    #[tokio::test]
    async fn a_value_is_that_of_the_worker_on_which_the_task_ended() {
        let values = Values::new(None);
        values.add(WorkerId(2), vec![value(7, b"forged")]);
        values.add(WorkerId(1), vec![value(7, b"true"), value(8, b"other")]);
        let sent = update(1, &[7]);
        let sent = pages(&values, sent).await.remove(0);
        let found = sent.jobs[0].ended_tasks[0].value.as_deref();
        assert_eq!(found, Some(&b"true"[..]));
    }

    #[test]
    fn what_is_kept_has_a_limit_and_what_is_taken_leaves_nothing() {
        let mut kept = ValueBuffer::default();
        for task in 0..5_000 {
            kept.add(key(task), vec![0; 100].into());
            kept.shrink(1_000 * (100 + VALUE_BYTES));
        }
        assert_eq!(kept.values.len(), 1_000);
        for task in 4_000..5_000 {
            assert!(kept.take(&key(task)).is_some(), "the newest are there");
        }
        kept.shrink(usize::MAX);
        assert_eq!((kept.bytes, kept.values.len()), (0, 0));
        assert!(kept.order.len() <= 1_024);
    }
}
