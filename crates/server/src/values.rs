//! What calls came to, on its way from workers to the store and to those who wait.
//!
//! The core knows nothing of values. They arrive ahead of the ends of their tasks and are handed to the store first, so
//! that they are on disk when anybody hears of the end. Those of the last moments are kept here for that somebody; older
//! ones are read from the store. Nothing here looks into them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::range::IdArray;
use hq_core::refusal::Refusal;
use hq_protocol::client::{self, TaskState, reply::Reply};
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_protocol::worker;
use hq_store::StoreClient;
use hq_store::values::{self, CallValue};

/// Bytes that are kept for those who wait, beside the store.
const KEPT_MAX: usize = 64 << 20;
/// The same without a store, where what is dropped is lost: only values that nobody has asked for are.
const KEPT_MAX_ALONE: usize = 1 << 30;
/// What a value takes beside its bytes.
const VALUE_BYTES: usize = 128;

/// Names a value; the worker is a part of it, so that none can give one for a task that ran elsewhere.
type Key = (TaskKey, InstanceId, WorkerId);

#[derive(Default)]
struct Kept {
    values: HashMap<Key, Box<[u8]>>,
    /// Oldest first; some of them have been taken.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Kept {
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
        // What was taken leaves its name behind.
        if self.order.len() > 2 * self.values.len() + 1_024 {
            let values = &self.values;
            self.order.retain(|key| values.contains_key(key));
        }
    }
}

/// Values that are on their way.
pub(crate) struct Values {
    kept: Mutex<Kept>,
    store: Option<StoreClient>,
}

impl Values {
    pub(crate) fn new(store: Option<StoreClient>) -> Self {
        Self {
            kept: Mutex::default(),
            store,
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a worker sent.
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

    /// Adds values to the outcomes of an update that is about to be sent.
    pub(crate) async fn fill(&self, update: &mut client::WatchUpdate) {
        let missing = self.fill_kept(update);
        for (job, tasks) in missing {
            let Ok(tasks) = IdArray::from_sorted(tasks) else {
                continue;
            };
            match self.find(job, tasks, usize::MAX).await {
                Ok(found) => add_found(update, job, found.values.into_iter().collect()),
                Err(error) => tracing::warn!(job, "{error}"),
            }
        }
    }

    /// Adds what is kept here; names the tasks whose values may be in the store, in ascending order.
    fn fill_kept(&self, update: &mut client::WatchUpdate) -> BTreeMap<u32, Vec<u32>> {
        let mut missing: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut kept = self.kept();
        for (job, task) in ended(update) {
            let Some(worker) = task.worker else { continue };
            let key = (
                TaskKey::new(JobId(job), TaskId(task.id)),
                InstanceId(task.instance),
                WorkerId(worker),
            );
            match kept.take(&key) {
                Some(data) => task.value = Some(data.into_vec().into()),
                None => missing.entry(job).or_default().push(task.id),
            }
        }
        for tasks in missing.values_mut() {
            tasks.sort_unstable();
            tasks.dedup();
        }
        missing
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
        let work = move || values::read(&store.read()?, job, &tasks, bytes_max);
        let read = tokio::task::spawn_blocking(work).await;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Answers a client.
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

/// Tasks of an update that may have a value, with their jobs.
fn ended(update: &mut client::WatchUpdate) -> impl Iterator<Item = (u32, &mut client::EndedTask)> {
    update.jobs.iter_mut().flat_map(|job| {
        let id = job.summary.as_ref().map_or(0, |summary| summary.id);
        let has_value = |task: &&mut client::EndedTask| {
            matches!(task.state(), TaskState::Finished | TaskState::Failed)
        };
        job.ended_tasks
            .iter_mut()
            .filter(has_value)
            .map(move |task| (id, task))
    })
}

fn add_found(update: &mut client::WatchUpdate, job: u32, mut found: BTreeMap<u32, Vec<u8>>) {
    for (_, task) in ended(update).filter(|(id, _)| *id == job) {
        if task.value.is_none()
            && let Some(data) = found.remove(&task.id)
        {
            task.value = Some(data.into());
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_value_is_that_of_the_worker_on_which_the_task_ended() {
        let values = Values::new(None);
        values.add(WorkerId(2), vec![value(7, b"forged")]);
        values.add(WorkerId(1), vec![value(7, b"true"), value(8, b"other")]);
        let mut sent = update(1, &[7]);
        values.fill(&mut sent).await;
        let found = sent.jobs[0].ended_tasks[0].value.as_deref();
        assert_eq!(found, Some(&b"true"[..]));
    }

    #[test]
    fn what_is_kept_has_a_limit_and_what_is_taken_leaves_nothing() {
        let mut kept = Kept::default();
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
