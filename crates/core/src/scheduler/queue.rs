//! Ready tasks by priority and class, held as ranges.
//!
//! Order: higher priority first; within a priority the job that was submitted earlier, then the lower
//! task. All operations cost O(log) of the number of (job, submit) entries and ranges, never of tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ClassId;
use crate::id::JobId;
use crate::range::IndexSet;

/// Key of one queue: tasks in it are interchangeable for the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueKey {
    /// Priority, highest first.
    pub priority: Reverse<i32>,
    /// Request class.
    pub class: ClassId,
}

impl QueueKey {
    /// Builds a key.
    #[must_use]
    pub const fn new(priority: i32, class: ClassId) -> Self {
        Self {
            priority: Reverse(priority),
            class,
        }
    }

    /// Whether its tasks go before those of the other one wherever either could run.
    pub(crate) fn overtakes(self, other: Self) -> bool {
        self.class == other.class && self.priority < other.priority
    }
}

/// Consecutive indices of one submit taken from a queue; `to` is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenRange {
    /// Job.
    pub job: JobId,
    /// Submit within the job.
    pub submit: u32,
    /// First index.
    pub from: u32,
    /// End, exclusive.
    pub to: u32,
}

#[derive(Clone, Debug, Default)]
struct ClassQueue {
    entries: BTreeMap<(JobId, u32), IndexSet>,
    len: u64,
}

/// All ready tasks.
#[derive(Clone, Debug, Default)]
pub struct ReadyQueue {
    queues: BTreeMap<QueueKey, ClassQueue>,
}

impl ReadyQueue {
    /// Adds indices `from..to` of a submit; says whether the queue was empty before.
    pub fn insert(&mut self, key: QueueKey, job: JobId, submit: u32, from: u32, to: u32) -> bool {
        if from >= to {
            return false;
        }
        let queue = self.queues.entry(key).or_default();
        let is_first = queue.len == 0;
        let set = queue.entries.entry((job, submit)).or_default();
        let before = set.len();
        set.insert_range(from, to);
        queue.len += u64::from(set.len() - before);
        is_first
    }

    /// Removes one index; says whether it was there.
    pub fn remove(&mut self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        let Some(queue) = self.queues.get_mut(&key) else {
            return false;
        };
        let Some(set) = queue.entries.get_mut(&(job, submit)) else {
            return false;
        };
        let removed = set.remove(index);
        queue.len -= u64::from(removed);
        if set.is_empty() {
            queue.entries.remove(&(job, submit));
        }
        if queue.entries.is_empty() {
            self.queues.remove(&key);
        }
        removed
    }

    /// Removes everything of a job.
    pub fn remove_job(&mut self, job: JobId) {
        self.queues.retain(|_, queue| {
            let of_job: Vec<(JobId, u32)> = queue
                .entries
                .range((job, 0)..=(job, u32::MAX))
                .map(|(key, _)| *key)
                .collect();
            for key in of_job {
                if let Some(set) = queue.entries.remove(&key) {
                    queue.len -= u64::from(set.len());
                }
            }
            !queue.entries.is_empty()
        });
    }

    /// Takes up to `limit` tasks in order.
    pub fn take(&mut self, key: QueueKey, mut limit: u64) -> Vec<TakenRange> {
        let mut taken = Vec::new();
        let Some(queue) = self.queues.get_mut(&key) else {
            return taken;
        };
        while limit > 0 {
            let Some(mut entry) = queue.entries.first_entry() else {
                break;
            };
            let (job, submit) = *entry.key();
            let width = u32::try_from(limit).unwrap_or(u32::MAX);
            if let Some((from, to)) = entry.get_mut().pop_front(width) {
                taken.push(TakenRange {
                    job,
                    submit,
                    from,
                    to,
                });
                limit -= u64::from(to - from);
                queue.len -= u64::from(to - from);
            }
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        if queue.entries.is_empty() {
            self.queues.remove(&key);
        }
        taken
    }

    /// The queues in order of priority: `(key, number of ready tasks)`.
    pub fn counts(&self) -> impl Iterator<Item = (QueueKey, u64)> + '_ {
        self.queues.iter().map(|(key, queue)| (*key, queue.len))
    }

    /// The same, and within a priority the queue with the earliest job first.
    #[must_use]
    pub fn counts_by_age(&self) -> Vec<(QueueKey, u64)> {
        let heads = self.queues.iter().map(|(key, queue)| {
            let earliest = queue.entries.keys().next().copied();
            (key.priority, earliest, key.class, queue.len)
        });
        let mut heads: Vec<_> = heads.collect();
        heads.sort_unstable();
        let row = |(priority, _, class, len)| (QueueKey { priority, class }, len);
        heads.into_iter().map(row).collect()
    }

    /// Whether nothing is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Number of ready tasks.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.queues.values().map(|queue| queue.len).sum()
    }

    /// Whether a task is ready.
    #[must_use]
    pub fn contains(&self, key: QueueKey, job: JobId, submit: u32, index: u32) -> bool {
        self.queues
            .get(&key)
            .and_then(|queue| queue.entries.get(&(job, submit)))
            .is_some_and(|set| set.contains(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: QueueKey = QueueKey::new(0, ClassId(0));
    const HIGH: QueueKey = QueueKey::new(5, ClassId(1));

    #[test]
    fn takes_earlier_jobs_and_lower_tasks_first() {
        let mut queue = ReadyQueue::default();
        queue.insert(LOW, JobId(2), 0, 0, 10);
        queue.insert(LOW, JobId(1), 1, 5, 7);
        queue.insert(HIGH, JobId(3), 0, 0, 1);
        assert_eq!(
            queue
                .counts()
                .map(|(key, n)| (key.priority.0, n))
                .collect::<Vec<_>>(),
            [(5, 1), (0, 12)]
        );
        let taken = queue.take(LOW, 4);
        assert_eq!(
            taken,
            [
                TakenRange {
                    job: JobId(1),
                    submit: 1,
                    from: 5,
                    to: 7
                },
                TakenRange {
                    job: JobId(2),
                    submit: 0,
                    from: 0,
                    to: 2
                }
            ]
        );
        assert_eq!(queue.len(), 9);
    }

    #[test]
    fn the_earliest_job_goes_first_whatever_its_requests_are() {
        let mut queue = ReadyQueue::default();
        let (old, new) = (QueueKey::new(0, ClassId(0)), QueueKey::new(0, ClassId(1)));
        queue.insert(old, JobId(2), 0, 0, 10);
        queue.insert(new, JobId(1), 0, 0, 5);
        queue.insert(HIGH, JobId(3), 0, 0, 1);
        assert_eq!(queue.counts_by_age(), [(HIGH, 1), (new, 5), (old, 10)]);
    }

    #[test]
    fn removing_leaves_no_empty_queue() {
        let mut queue = ReadyQueue::default();
        queue.insert(LOW, JobId(1), 0, 0, 2);
        queue.insert(HIGH, JobId(1), 1, 0, 1);
        queue.insert(HIGH, JobId(2), 0, 0, 1);
        assert!(queue.remove(LOW, JobId(1), 0, 1));
        assert!(!queue.remove(LOW, JobId(1), 0, 1));
        queue.remove_job(JobId(1));
        assert_eq!(queue.len(), 1);
        queue.remove(HIGH, JobId(2), 0, 0);
        assert!(queue.is_empty());
    }
}
