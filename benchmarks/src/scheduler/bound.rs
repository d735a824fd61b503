//! Lower bounds for schedules, and the optimum of small cases.

use std::collections::BTreeMap;
use std::time::Duration;

use super::shapes::{Kind, Load};

/// The amounts of resources that a whole cluster offers.
pub(crate) type Capacity = BTreeMap<&'static str, f64>;

/// Returns a lower bound of the makespan, derived from capacity, chains and single tasks. Kinds
/// with two variants are split to relieve the busiest resource.
pub(crate) fn makespan_min(load: &Load, capacity: &Capacity, workers: u32) -> Duration {
    let choices: Vec<&Kind> = load.kinds.iter().filter(|k| k.variants.len() > 1).collect();
    let share_of = |first: f64| busiest(load, capacity, workers, first);
    let by_work = match choices.as_slice() {
        [] => share_of(1.0),
        _ => minimum(share_of),
    };
    Duration::from_secs_f64(by_work).max(load.critical_path)
}

/// Returns the seconds of the busiest resource if the share `first` of the tasks with variants uses
/// the first one.
fn busiest(load: &Load, capacity: &Capacity, workers: u32, first: f64) -> f64 {
    let mut used: BTreeMap<&str, f64> = BTreeMap::new();
    let mut node_seconds = 0.0;
    for kind in &load.kinds {
        let work = kind.work.as_secs_f64();
        if kind.nodes > 0 {
            node_seconds += work * f64::from(kind.nodes);
        }
        for (number, variant) in kind.variants.iter().enumerate() {
            let share = match (kind.variants.len(), number) {
                (1, _) => 1.0,
                (_, 0) => first,
                (_, 1) => 1.0 - first,
                (_, _) => 0.0,
            };
            for (name, amount) in variant {
                *used.entry(*name).or_default() += work * amount * share;
            }
        }
    }
    let by_resource = used.iter().map(|(name, used)| {
        let all = capacity.get(name).copied().unwrap_or(1.0);
        // A node of a multi-node task gives all its resources to the task.
        (used + node_seconds * all / f64::from(workers.max(1))) / all
    });
    by_resource.fold(node_seconds / f64::from(workers.max(1)), f64::max)
}

/// Returns the minimum of a convex function on 0.0 ..= 1.0.
fn minimum(value: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if value(a) < value(b) {
            high = b;
        } else {
            low = a;
        }
    }
    value(f64::midpoint(low, high))
}

/// Returns the minimum number of rounds for tasks of equal length on `workers` equal workers, by
/// exhaustive search. Each task has an amount per resource. There may be at most 16 tasks.
///
/// # Panics
///
/// If a task does not fit on a worker.
pub(crate) fn rounds_min(tasks: &[Vec<u32>], worker: &[u32], workers: u32) -> u32 {
    let all = (1_usize << tasks.len()) - 1;
    let fits: Vec<bool> = (0..=all)
        .map(|set| {
            (0..worker.len()).all(|resource| {
                let chosen = (0..tasks.len()).filter(|task| (set >> task) & 1 == 1);
                chosen.map(|task| tasks[task][resource]).sum::<u32>() <= worker[resource]
            })
        })
        .collect();
    let mut bins = vec![u32::MAX; all + 1];
    bins[0] = 0;
    for set in 1..=all {
        // Only subsets with the lowest task, so that each packing is examined once.
        let lowest = set & set.wrapping_neg();
        let mut part = set;
        while part > 0 {
            if part & lowest != 0 && fits[part] && bins[set ^ part] != u32::MAX {
                bins[set] = bins[set].min(bins[set ^ part] + 1);
            }
            part = (part - 1) & set;
        }
    }
    assert_ne!(bins[all], u32::MAX, "every task fits a worker");
    bins[all].div_ceil(workers.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::shapes::{heterogeneous, stencil};

    #[test]
    fn bounds_count_the_scarcest_resource_and_the_longest_chain() {
        let load = stencil(1);
        let much = Capacity::from([("cpus", 1e9)]);
        assert_eq!(makespan_min(&load, &much, 1), load.critical_path);
        let one = Capacity::from([("cpus", 1.0)]);
        let work: Duration = load.kinds.iter().map(|kind| kind.work).sum();
        let bound = makespan_min(&load, &one, 1);
        assert!((bound.as_secs_f64() - work.as_secs_f64()).abs() < 1e-6);
    }

    #[test]
    fn variants_are_split_for_the_bound() {
        let load = heterogeneous(1);
        let capacity = Capacity::from([("cpus", 16.0), ("gpus", 4.0), ("mem", 64_000.0)]);
        let bound = makespan_min(&load, &capacity, 1).as_secs_f64();
        for first in [0.0, 0.5, 1.0] {
            assert!(bound <= busiest(&load, &capacity, 1, first) + 1e-6);
        }
    }

    #[test]
    fn rounds_are_those_of_the_best_packing() {
        let tasks = [[3], [3], [2], [2], [2]].map(Vec::from);
        assert_eq!(rounds_min(&tasks, &[6], 1), 2);
        assert_eq!(rounds_min(&tasks, &[6], 2), 1);
        assert_eq!(rounds_min(&[vec![1, 4], vec![1, 4]], &[8, 4], 1), 2);
    }
}
