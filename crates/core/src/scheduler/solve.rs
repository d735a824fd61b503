//! One scheduling round: how many tasks of each class go to each worker.
//!
//! First fit by priority on counts. Classes are visited in order of priority; each first takes what
//! workers could start now (low worker ids first, so that the last workers drain), then what may be
//! sent ahead, spread evenly. Complexity O(classes × workers), independent of the number of tasks.

use super::queue::QueueKey;
use super::{Classes, VariantDemand};
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;

/// Tasks of one class for one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Which tasks.
    pub key: QueueKey,
    /// Which worker.
    pub worker: WorkerId,
    /// Which variant of the request.
    pub variant: u32,
    /// How many.
    pub count: u64,
    /// Whether they can start at once; otherwise they are sent ahead.
    pub placed: bool,
}

/// Decides for one queue of `ready` tasks among `workers`, which come in order of their ids. Must be
/// applied before the next queue is asked for.
#[must_use]
pub fn solve_queue<'a>(
    key: QueueKey,
    ready: u64,
    classes: &Classes,
    workers: impl Iterator<Item = &'a Worker>,
    now: Time,
) -> Vec<Placement> {
    let Some(class) = classes.get(key.class) else {
        return Vec::new();
    };
    let mut left = ready;
    let mut placements = Vec::new();
    let mut place = |worker: WorkerId, variant: u32, count: u64, placed: bool| {
        if count > 0 {
            placements.push(Placement {
                key,
                worker,
                variant,
                count,
                placed,
            });
        }
    };
    let mut full = Vec::new();
    for worker in workers.filter(|worker| worker.accepts_work()) {
        if left == 0 {
            break;
        }
        // Only one variant per worker and round: the counts of others would be stale.
        let fitting = variants_for(&class.variants, worker, now).find_map(|(number, variant)| {
            match worker.room(variant) {
                0 => None,
                room => Some((number, u64::from(room))),
            }
        });
        if let Some((variant, room)) = fitting {
            let count = room.min(left);
            place(worker.id, variant, count, true);
            left -= count;
        }
        let preferred = variants_for(&class.variants, worker, now)
            .map(|(number, variant)| (number, worker.capacity(variant)))
            .find(|(_, capacity)| *capacity > 0);
        if let Some((variant, capacity)) = preferred {
            let room = worker.backlog_room(key, capacity, now);
            if room > 0 {
                full.push((worker.id, variant, u64::from(room)));
            }
        }
    }
    let mut remaining = full.len() as u64;
    for (worker, variant, room) in full {
        let fair = left.div_ceil(remaining.max(1));
        let count = room.min(fair);
        place(worker, variant, count, false);
        left -= count;
        remaining -= 1;
    }
    placements
}

fn variants_for<'a>(
    variants: &'a [VariantDemand],
    worker: &'a Worker,
    now: Time,
) -> impl Iterator<Item = (u32, &'a VariantDemand)> + 'a {
    variants
        .iter()
        .zip(0..)
        .filter(move |(variant, _)| worker.has_time(variant, now))
        .map(|(variant, number)| (number, variant))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::resource::request::{RequestVariants, ResourceRequest};
    use crate::testing::worker_config;
    use crate::time::Timestamp;

    fn cluster(classes: &mut Classes, cpus: &[u32]) -> BTreeMap<WorkerId, Worker> {
        (1..)
            .zip(cpus)
            .map(|(id, cpus)| {
                let config = worker_config(*cpus);
                let totals = classes.totals(&config.resources);
                let id = WorkerId(id);
                (
                    id,
                    Worker::new(id, Arc::new(config), totals, Time(0), Timestamp(0)),
                )
            })
            .collect()
    }

    fn solve(cpus: &[u32], request: u32, ready: u64) -> Vec<(u32, u64, bool)> {
        let mut classes = Classes::default();
        let request = RequestVariants::new(vec![ResourceRequest::cpus(request)]).expect("valid");
        let class = classes.intern(&request);
        let workers = cluster(&mut classes, cpus);
        solve_queue(
            QueueKey::new(0, class),
            ready,
            &classes,
            workers.values(),
            Time(0),
        )
        .into_iter()
        .map(|p| (p.worker.0, p.count, p.placed))
        .collect()
    }

    #[test]
    fn fills_low_ids_first_and_sends_the_rest_ahead_evenly() {
        assert_eq!(solve(&[2, 2], 1, 1), [(1, 1, true)]);
        assert_eq!(solve(&[2, 2], 1, 3), [(1, 2, true), (2, 1, true)]);
        assert_eq!(
            solve(&[2, 2], 1, 6),
            [(1, 2, true), (2, 2, true), (1, 1, false), (2, 1, false)]
        );
        let many = solve(&[2, 2], 1, 1_000_000);
        assert_eq!(many.iter().map(|(_, count, _)| count).sum::<u64>(), 8);
    }

    #[test]
    fn skips_workers_that_are_too_small() {
        assert_eq!(solve(&[2, 4], 3, 2), [(2, 1, true), (2, 1, false)]);
        assert_eq!(solve(&[2, 2], 3, 2), []);
    }
}
