//! Compares rounds on small clusters with results computed by hand and with the optimum.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::bound::UNLIMITED;
use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TaskSlot;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::scheduler::explain::hindrances;
use crate::scheduler::worker_plan::WorkerPlan;
use crate::testing::worker_config;
use crate::time::Timestamp;
use crate::worker::{Assigned, AwaitedEnds, Turn};
use crate::worker_config::WorkerConfig;

/// A cluster and its waiting tasks.
#[derive(Default)]
struct Bench {
    classes: Classes,
    workers: BTreeMap<WorkerId, Worker>,
    queues: BTreeMap<QueueKey, u64>,
}

impl Bench {
    fn with(cpus: &[u32]) -> Self {
        let mut bench = Self::default();
        for cpus in cpus {
            bench.join(worker_config(*cpus));
        }
        bench
    }

    fn join(&mut self, config: WorkerConfig) -> WorkerId {
        let id = WorkerId(u32::try_from(self.workers.len()).expect("few") + 1);
        let offers = self.classes.offers(&config.resources);
        let worker = Worker::new(id, Arc::new(config), offers, Time(0), Timestamp(0));
        self.workers.insert(id, worker);
        id
    }

    fn queue(&mut self, priority: i32, variants: Vec<ResourceRequest>, ready: u64) -> QueueKey {
        let request = RequestVariants::new(variants).expect("valid");
        let key = QueueKey::new(priority, self.classes.intern(&request));
        *self.queues.entry(key).or_default() += ready;
        key
    }

    fn solve(&self) -> RoundPlan {
        self.solve_some(u64::MAX)
    }

    fn solve_some(&self, tasks_max: u64) -> RoundPlan {
        let queues: Vec<(QueueKey, u64)> = self.queues.iter().map(|(k, n)| (*k, *n)).collect();
        let rooms = self.workers.keys();
        let rooms = rooms.map(|id| (*id, SeenPriority::default())).collect();
        solve(&RoundInput {
            queues: &queues,
            ahead: &BTreeMap::new(),
            classes: &self.classes,
            workers: &self.workers,
            rooms: &rooms,
            reservation_counts: &BTreeMap::new(),
            reservation_cursor: None,
            with_gangs: true,
            tasks_max,
            now: Time(0),
        })
    }

    /// Returns worker, number of tasks, and whether they start immediately.
    fn rows(&self) -> Vec<(u32, u64, bool)> {
        let placements = self.solve().placements;
        placements
            .iter()
            .map(|p| (p.worker.0, p.count, p.placed))
            .collect()
    }

    fn placed(&self, key: QueueKey) -> u64 {
        let placements = self.solve().placements;
        let of_key = placements.iter().filter(|p| p.placed && p.key == key);
        of_key.map(|p| p.count).sum()
    }
}

fn cpus(count: u32) -> Vec<ResourceRequest> {
    vec![ResourceRequest::cpus(count)]
}

fn nodes(count: u32) -> Vec<ResourceRequest> {
    vec![ResourceRequest {
        entries: Vec::new(),
        n_nodes: count,
        ..ResourceRequest::cpus(1)
    }]
}

fn solve_one(workers: &[u32], request: u32, ready: u64) -> Vec<(u32, u64, bool)> {
    let mut bench = Bench::with(workers);
    bench.queue(0, cpus(request), ready);
    bench.rows()
}

#[test]
fn fills_low_ids_first_and_sends_the_rest_ahead_evenly() {
    assert_eq!(solve_one(&[2, 2], 1, 1), [(1, 1, true)]);
    assert_eq!(solve_one(&[2, 2], 1, 3), [(1, 2, true), (2, 1, true)]);
    assert_eq!(
        solve_one(&[2, 2], 1, 6),
        [(1, 2, true), (2, 2, true), (1, 1, false), (2, 1, false)]
    );
    let many = solve_one(&[2, 2], 1, 1_000_000);
    assert_eq!(many.iter().map(|(_, count, _)| count).sum::<u64>(), 8);
}

#[test]
fn the_example_of_the_header() {
    let mut bench = Bench::with(&[4, 4]);
    let running = bench.queue(0, cpus(2), 1);
    let first = bench.solve();
    assert_eq!(first.placements[0].worker, WorkerId(1));
    carry_out(&mut bench);
    bench.queues.remove(&running);
    let urgent = bench.queue(1, cpus(4), 2);
    let small = bench.queue(0, cpus(1), 6);
    let row = |p: &Placement| (p.key, p.worker.0, p.count, p.placed);
    let rows: Vec<_> = bench.solve().placements.iter().map(row).collect();
    let expected = [
        (urgent, 2, 1, true),
        (urgent, 1, 1, false),
        (small, 1, 3, false),
        (small, 2, 3, false),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn skips_workers_that_are_too_small() {
    assert_eq!(solve_one(&[2, 4], 3, 2), [(2, 1, true), (2, 1, false)]);
    assert_eq!(solve_one(&[2, 2], 3, 2), []);
}

#[test]
fn the_mix_uses_what_there_is() {
    let mut bench = Bench::with(&[8]);
    let five = bench.queue(0, cpus(5), 9);
    let four = bench.queue(0, cpus(4), 9);
    assert_eq!((bench.placed(five), bench.placed(four)), (0, 2));
}

#[test]
fn weight_prefers_a_request() {
    let mut bench = Bench::with(&[4]);
    let light = bench.queue(0, cpus(2), 9);
    let mut heavy = ResourceRequest::cpus(3);
    heavy.weight = 20_000;
    let heavy = bench.queue(0, vec![heavy], 9);
    assert_eq!((bench.placed(light), bench.placed(heavy)), (0, 1));
}

#[test]
fn less_urgent_tasks_fill_only_what_does_not_delay() {
    // Of 6 cpus, one task with 4 runs and the next one waits. The other two cpus may be used.
    let mut bench = Bench::with(&[6]);
    bench.queue(5, cpus(4), 2);
    let small = bench.queue(0, cpus(1), 9);
    assert_eq!(bench.placed(small), 2);
    // On 8 cpus with two tasks of 3, the end of one frees 5, exactly what the waiting task needs.
    let mut bench = Bench::with(&[8]);
    bench.queue(6, cpus(3), 2);
    bench.queue(5, cpus(5), 1);
    let small = bench.queue(0, cpus(1), 9);
    assert_eq!(bench.placed(small), 0);
}

#[test]
fn second_variants_take_what_the_first_leave() {
    let mut config = worker_config(4);
    config.resources.items.push(ResourceItem {
        name: "gpus".into(),
        kind: ResourceKind::List(vec!["0".into()]),
    });
    let mut bench = Bench::default();
    bench.join(config);
    let gpu = ResourceRequest {
        entries: vec![ResourceEntry {
            resource: "gpus".into(),
            ..ResourceRequest::cpus(1).entries.remove(0)
        }],
        ..ResourceRequest::cpus(1)
    };
    bench.queue(0, vec![gpu, ResourceRequest::cpus(2)], 9);
    let placements = bench.solve().placements;
    let placed: Vec<(u32, u64)> = placements
        .iter()
        .filter(|p| p.placed)
        .map(|p| (p.variant, p.count))
        .collect();
    assert_eq!(placed, [(0, 1), (1, 2)]);
}

#[test]
fn a_demanding_worker_gets_enough_or_nothing() {
    let mut config = worker_config(4);
    config.min_utilization = 0.75;
    let mut bench = Bench::default();
    bench.join(config);
    let key = bench.queue(0, cpus(1), 2);
    assert_eq!(bench.rows(), []);
    bench.queues.insert(key, 3);
    assert_eq!(bench.rows(), [(1, 3, true)]);
}

fn all_cpus() -> Vec<ResourceRequest> {
    let mut request = ResourceRequest::cpus(1);
    request.entries[0].policy = Policy::All;
    vec![request]
}

#[test]
fn a_demanding_worker_takes_what_fills_it_even_if_something_else_goes_first() {
    let demanding = || {
        let mut config = worker_config(12);
        config.min_utilization = 1.0;
        let mut bench = Bench::default();
        bench.join(config);
        bench
    };
    for priority in [0, 1] {
        let mut bench = demanding();
        bench.queue(priority, cpus(3), 3);
        let all = bench.queue(0, all_cpus(), 1);
        assert_eq!(bench.placed(all), 1, "priority {priority}");
        assert_eq!(bench.rows()[0], (1, 1, true), "and nothing else starts");
    }
    // Eleven cpus are worth more than three times four, but are not enough.
    let mut bench = demanding();
    bench.queue(0, cpus(11), 1);
    let four = bench.queue(0, cpus(4), 3);
    assert_eq!(bench.placed(four), 3);
    let mut bench = demanding();
    bench.queue(0, cpus(5), 2);
    assert_eq!(bench.rows(), [], "nothing is enough");
}

#[test]
fn a_demanding_worker_is_filled_from_below_however_many_levels_are_not_enough() {
    for levels in [9, 20, 200] {
        let mut config = worker_config(12);
        config.min_utilization = 1.0;
        let mut bench = Bench::default();
        bench.join(config);
        for priority in 1..=levels {
            bench.queue(priority, cpus(7), 1);
        }
        let all = bench.queue(0, all_cpus(), 1);
        assert_eq!(bench.placed(all), 1, "below {levels} levels");
        assert_eq!(bench.rows()[0], (1, 1, true), "and nothing else starts");
    }
}

#[test]
fn a_task_that_waits_for_a_licence_keeps_no_cpu_that_comes_back_with_it() {
    let mut config = worker_config(12);
    config.resources.items.push(ResourceItem {
        name: "foo".into(),
        kind: ResourceKind::Sum(Amount::whole(6)),
    });
    let mut bench = Bench::default();
    bench.join(config);
    let mut licence = ResourceRequest::cpus(1);
    licence.entries.push(ResourceEntry {
        resource: "foo".into(),
        amount: Amount::whole(2),
        policy: Policy::Compact,
    });
    let licence = bench.queue(1, vec![licence], 9);
    let small = bench.queue(0, cpus(1), 12);
    assert_eq!((bench.placed(licence), bench.placed(small)), (3, 9));
}

#[test]
fn a_round_starts_only_so_many_multi_node_tasks() {
    let mut bench = Bench::with(&[4; 8]);
    bench.queue(0, nodes(2), 10);
    let answer = bench.solve_some(2 * GANG_COST);
    assert_eq!((answer.gangs.len(), answer.is_cut), (2, true));
    assert_eq!(bench.solve().gangs.len(), 4, "all that find nodes");
}

#[test]
fn a_multi_node_task_with_two_variants_starts_as_one_of_them() {
    let mut bench = Bench::with(&[4; 5]);
    bench.queue(0, [nodes(2), nodes(3)].concat(), 1);
    let gangs = bench.solve().gangs;
    assert_eq!((gangs.len(), gangs[0].workers.len()), (1, 2), "{gangs:?}");
}

#[test]
fn every_worker_has_its_turn_to_keep_room() {
    let bench = Bench::with(&[1; RESERVATION_WORKERS_MAX + 8]);
    let turns = |after| {
        let mut plans: Vec<WorkerPlan<'_>> = bench.workers.values().map(WorkerPlan::new).collect();
        let last = select_for_reservation(after, &mut plans);
        let marked = plans.iter().filter(|plan| plan.is_selected);
        (
            last,
            marked.map(|plan| plan.worker.id).collect::<BTreeSet<_>>(),
        )
    };
    let (last, first_round) = turns(None);
    let (_, second_round) = turns(last);
    assert_eq!(first_round.len(), RESERVATION_WORKERS_MAX);
    assert_eq!(
        first_round.union(&second_round).count(),
        bench.workers.len()
    );
}

/// Creates workers with 8 cpus on which a task with 6 cpus runs.
fn nearly_full(count: usize) -> Bench {
    let mut bench = Bench::with(&vec![8; count]);
    bench.queue(0, cpus(6), count as u64);
    carry_out(&mut bench);
    bench
}

#[test]
fn a_worker_keeps_room_for_the_two_most_valuable_requests_that_find_none() {
    let mut bench = nearly_full(1);
    let (eight, five) = (bench.queue(0, cpus(8), 2), bench.queue(0, cpus(5), 2));
    bench.queue(0, cpus(3), 2);
    let two = bench.queue(0, cpus(2), 1);
    let answer = bench.solve();
    let expected = BTreeMap::from([(WorkerId(1), vec![(eight, 0), (five, 0)])]);
    assert_eq!(answer.reservations, expected);
    let placed: Vec<QueueKey> = answer.placements.iter().map(|p| p.key).collect();
    assert_eq!(placed, [two], "what fits starts");
}

#[test]
fn no_more_workers_keep_room_for_a_request_than_there_are_tasks() {
    let mut bench = nearly_full(2);
    let (eight, five) = (bench.queue(0, cpus(8), 1), bench.queue(0, cpus(5), 9));
    let expected = BTreeMap::from([
        (WorkerId(1), vec![(eight, 0), (five, 0)]),
        (WorkerId(2), vec![(five, 0)]),
    ]);
    assert_eq!(bench.solve().reservations, expected);
}

#[test]
fn a_worker_gives_its_reservations_up_when_one_request_is_left() {
    let mut bench = nearly_full(1);
    let (eight, five) = (bench.queue(0, cpus(8), 2), bench.queue(0, cpus(5), 2));
    let worker = bench.workers.get_mut(&WorkerId(1)).expect("is there");
    worker.set_reservations(&[(eight, 0), (five, 0)], Time(0));
    bench.queues.remove(&five);
    let answer = bench.solve();
    // Tasks that wait on a worker reserve their room. If the worker still counted as reserving,
    // others would be left out.
    assert_eq!(
        answer.reservations,
        BTreeMap::from([(WorkerId(1), Vec::new())])
    );
    assert_eq!(bench.rows(), [(1, 1, false)]);
}

#[test]
fn a_demanding_worker_is_sent_nothing_ahead() {
    let mut config = worker_config(4);
    config.min_utilization = 0.75;
    let mut bench = Bench::default();
    bench.join(config);
    bench.queue(0, cpus(3), 50);
    // The task would start at the next end, even if the worker is not busy enough then.
    assert_eq!(bench.rows(), [(1, 1, true)]);
}

#[test]
fn what_can_be_sent_ahead_needs_no_reservation() {
    let mut bench = nearly_full(1);
    bench.queue(0, cpus(8), 2);
    let answer = bench.solve();
    assert!(answer.reservations.values().all(Vec::is_empty));
    assert_eq!(bench.rows(), [(1, 1, false)], "it waits there");
}

#[test]
fn nodes_come_from_one_group_and_are_kept_until_they_are_empty() {
    let mut bench = Bench::default();
    for group in ["a", "b", "b", "a", "b"] {
        let mut config = worker_config(4);
        config.group = group.into();
        bench.join(config);
    }
    let gang = bench.queue(0, nodes(3), 2);
    let answer = bench.solve();
    let ids: Vec<Vec<u32>> = answer
        .gangs
        .iter()
        .map(|start| start.workers.iter().map(|id| id.0).collect())
        .collect();
    assert_eq!(ids, [[2, 3, 5]]);
    // More urgent small tasks go first. Less urgent tasks do not get the nodes.
    bench.queues.insert(gang, 1);
    bench.queue(1, cpus(4), 3);
    let low = bench.queue(-1, cpus(1), 100);
    let answer = bench.solve();
    assert_eq!(answer.gangs, []);
    assert_eq!(answer.reserved.len(), 3);
    let low_on_kept = answer
        .placements
        .iter()
        .filter(|p| p.key == low && answer.reserved.contains_key(&p.worker));
    assert_eq!(low_on_kept.count(), 0);
}

#[test]
fn beside_equally_urgent_small_tasks_one_multi_node_task_at_a_time_empties_workers() {
    for (small_tasks, reserved) in [(5, 2), (0, 4)] {
        let mut bench = Bench::with(&[1; 4]);
        bench.queue(1, cpus(1), 4);
        carry_out(&mut bench);
        bench.queue(0, nodes(2), 2);
        bench.queue(0, cpus(1), small_tasks);
        let answer = bench.solve();
        assert_eq!(answer.reserved.len(), reserved, "{small_tasks} are ready");
    }
}

#[test]
fn equal_gangs_do_not_take_each_others_nodes() {
    let mut bench = Bench::with(&[1; 3]);
    let two = bench.queue(0, nodes(2), 1);
    let three = bench.queue(0, nodes(3), 1);
    bench.queues.clear();
    bench.queue(1, cpus(1), 3);
    carry_out(&mut bench);
    // All nodes are drained for the task with three nodes. Then another task arrives that would
    // otherwise go first.
    bench.queues.insert(three, 1);
    assert_eq!(bench.solve().reserved.len(), 3);
    for (number, worker) in bench.workers.values_mut().enumerate() {
        worker.reserve(three);
        let task = worker.assigned().keys().next().copied().expect("one runs");
        if number < 2 {
            worker.remove(task, InstanceId(0), &bench.classes);
        }
    }
    bench.queues.insert(two, 1);
    let answer = bench.solve();
    assert_eq!(answer.gangs, [], "two are empty, and kept");
    assert!(
        answer.reserved.values().all(|key| *key == three),
        "{:?}",
        answer.reserved
    );
    let last = bench.workers.values_mut().next_back().expect("three");
    let task = last.assigned().keys().next().copied().expect("it runs");
    last.remove(task, InstanceId(0), &bench.classes);
    let started = bench.solve().gangs;
    assert_eq!(
        started.iter().map(|gang| gang.key).collect::<Vec<_>>(),
        [three]
    );
}

#[test]
fn less_urgent_of_a_class_are_not_sent_ahead_while_more_urgent_are_left() {
    let mut bench = Bench::with(&[1]);
    bench.queue(-1, cpus(1), 100);
    carry_out(&mut bench);
    let urgent = bench.queue(1, cpus(1), 100);
    let between = bench.queue(0, cpus(1), 100);
    let placements = bench.solve().placements;
    assert!(
        placements.iter().any(|p| p.key == urgent),
        "goes in front of the least urgent"
    );
    assert!(
        placements.iter().all(|p| p.key != between),
        "{placements:?}"
    );
}

/// Returns how many workers are needed if each is filled in turn with what the previous ones left.
fn workers_needed(total: u32, sizes: &[(u32, u64)]) -> u32 {
    let mut bench = Bench::with(&[total]);
    for (size, ready) in sizes {
        bench.queue(0, cpus(*size), *ready);
    }
    let mut needed = 0;
    while !bench.queues.is_empty() {
        for placement in bench.solve().placements.iter().filter(|p| p.placed) {
            *bench.queues.get_mut(&placement.key).expect("is queued") -= placement.count;
        }
        bench.queues.retain(|_, ready| *ready > 0);
        needed += 1;
    }
    needed
}

/// The most valuable mix of the first worker leaves tasks that pack badly.
#[test]
fn a_mix_is_judged_by_what_it_leaves() {
    assert_eq!(workers_needed(9, &[(3, 3), (5, 3), (7, 1)]), 4);
    assert_eq!(workers_needed(11, &[(3, 1), (4, 2), (6, 3)]), 3);
}

#[test]
fn more_candidates_than_are_compared_are_placed_one_after_the_other() {
    let mut bench = Bench::with(&[1_000]);
    for size in 1..=200 {
        bench.queue(0, cpus(size), 1);
    }
    let free = 1_000
        - bench
            .solve()
            .placements
            .iter()
            .filter(|p| p.placed)
            .fold(0, |sum, p| {
                let class = bench.classes.get(p.key.class).expect("known");
                let units = class.variants[0].demands[0].units.expect("amount") / 10_000;
                sum + units * p.count
            });
    assert!(free <= 1, "{free} cpus are idle");
}

/// Returns the minimum number of workers with `total` cpus for a few tasks of these sizes, by brute
/// force.
fn fewest_workers(total: u32, tasks: &[u32]) -> u32 {
    let all = (1_usize << tasks.len()) - 1;
    // Each set is computed from the sets with one task less.
    let mut sizes = vec![0; all + 1];
    for set in 1..=all {
        let last = usize::BITS - 1 - set.leading_zeros();
        sizes[set] = sizes[set ^ (1 << last)] + tasks[last as usize];
    }
    let mut fewest = vec![u32::MAX; all + 1];
    fewest[0] = 0;
    for set in 1..=all {
        let mut part = set;
        while part > 0 {
            if sizes[part] <= total && fewest[set ^ part] < u32::MAX {
                fewest[set] = fewest[set].min(fewest[set ^ part] + 1);
            }
            part = (part - 1) & set;
        }
    }
    fewest[all]
}

/// Returns the maximum value of a mix of any number of tasks of these sizes.
fn best_value(total: u32, sizes: &[u32]) -> f64 {
    let mut best = vec![0.0_f64; total as usize + 1];
    for filled in 1..=total {
        let with = sizes.iter().filter(|size| **size <= filled);
        let values = with.map(|size| best[(filled - size) as usize] + f64::from(*size).powf(1.25));
        best[filled as usize] = values.fold(0.0, f64::max);
    }
    best[total as usize]
}

proptest! {
    // Inputs for which the rest matters are rare, but a case takes only a few microseconds.
    // `PROPTEST_CASES` lowers the number.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.saturating_mul(32),
        ..ProptestConfig::default()
    })]

    /// Workers are filled in turn, each with what the previous ones left.
    #[test]
    fn few_tasks_need_as_few_workers_as_possible(
        total in 1_u32..24,
        sizes in vec((1_u32..9, 1_u64..5), 1..4),
    ) {
        let sizes: Vec<(u32, u64)> =
            sizes.into_iter().filter(|(size, _)| *size <= total).collect();
        let each = |(size, ready): &(u32, u64)| vec![*size; usize::try_from(*ready).expect("few")];
        let tasks: Vec<u32> = sizes.iter().flat_map(each).collect();
        let needed = workers_needed(total, &sizes);
        prop_assert_eq!(needed, fewest_workers(total, &tasks));
    }

}

proptest! {
    #[test]
    fn of_many_tasks_a_worker_gets_the_most_valuable_mix(
        total in 1_u32..17,
        sizes in prop::collection::btree_set(1_u32..9, 1..4),
    ) {
        let mut bench = Bench::with(&[total]);
        let sizes: Vec<u32> = sizes.into_iter().collect();
        for size in &sizes {
            bench.queue(0, cpus(*size), 100);
        }
        let demand = |p: &Placement| {
            let class = bench.classes.get(p.key.class).expect("known");
            class.variants[0].demands[0].units.expect("amount") / 10_000
        };
        let placements = bench.solve().placements;
        let placed = placements.iter().filter(|p| p.placed);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let values = placed.map(|p| p.count as f64 * (demand(p) as f64).powf(1.25));
        let (value, best) = (values.sum::<f64>(), best_value(total, &sizes));
        prop_assert!(value >= best * 0.999, "{value} of {best}");
    }

    /// No overcommit, no idle worker while a task fits, and priorities in order.
    #[test]
    fn rounds_keep_their_promises(
        workers in vec(1_u32..9, 1..6),
        asked in vec((0_i32..3, 1_u32..9, 1_u64..9), 1..6),
    ) {
        let mut bench = Bench::with(&workers);
        for (priority, size, ready) in &asked {
            bench.queue(*priority, cpus(*size), *ready);
        }
        let answer = bench.solve();
        let mut left = bench.queues.clone();
        let mut plans: BTreeMap<WorkerId, WorkerPlan<'_>> =
            bench.workers.values().map(|w| (w.id, WorkerPlan::new(w))).collect();
        for placement in &answer.placements {
            let count = left.get_mut(&placement.key).expect("asked for");
            prop_assert!(*count >= placement.count, "no task twice");
            *count -= placement.count;
            if placement.placed {
                let variant = &bench.classes.get(placement.key.class).expect("known").variants[0];
                let plan = plans.get_mut(&placement.worker).expect("known");
                let count = u32::try_from(placement.count).expect("few");
                prop_assert!(plan.room(variant) >= count, "no over-commit");
                plan.place(placement.key.class, 0, variant, count);
            }
        }
        for pair in answer.placements.windows(2) {
            prop_assert!(pair[0].key.priority <= pair[1].key.priority, "urgent ones first");
        }
        let top = bench.queues.keys().next().expect("at least one").priority;
        for (key, _) in bench.queues.iter().filter(|(key, _)| key.priority == top) {
            let variant = &bench.classes.get(key.class).expect("known").variants[0];
            let waiting: u64 = left[key];
            let fits = plans.values().any(|plan| plan.room(variant) > 0);
            prop_assert!(waiting == 0 || !fits, "something fits and was not placed");
        }
    }
}

#[test]
fn what_was_sent_ahead_makes_way_for_more_urgent_tasks_of_its_class() {
    let mut bench = Bench::with(&[1]);
    let low = bench.queue(0, cpus(1), 100);
    carry_out(&mut bench);
    bench.queue(0, cpus(1), 100);
    let (worker, _) = bench.workers.first_key_value().expect("one");
    let worker = *worker;
    assert!(
        bench.workers[&worker].backlog_len() > 0,
        "something waits there"
    );
    let other = bench.queue(1, cpus(2), 100);
    assert!(bench.solve().overtaken.is_empty(), "does not compete");
    bench.queues.remove(&other);

    let high = bench.queue(1, cpus(1), 1);
    assert!(bench.solve().overtaken.is_empty(), "all of it is sent");
    bench.queues.insert(high, 100);
    let answer = bench.solve();
    assert_eq!(answer.overtaken, BTreeMap::from([(worker, vec![high])]));
    assert!(answer.placements.iter().all(|p| p.key != low));
}

/// Assigns the tasks of a round to the workers.
fn carry_out(bench: &mut Bench) {
    let mut next = 0;
    for placement in bench.solve().placements {
        let class = Arc::clone(bench.classes.get(placement.key.class).expect("interned"));
        let worker = bench.workers.get_mut(&placement.worker).expect("is there");
        for _ in 0..placement.count {
            next += 1;
            let assigned = Assigned {
                slot: TaskSlot::new(0, next),
                key: placement.key,
                variant: placement.variant,
                instance: InstanceId(0),
                placed: placement.placed,
                turn: Turn::Now,
                started: false,
                awaits: AwaitedEnds::None,
                retracting: false,
                at: Time(0),
                limits: UNLIMITED,
            };
            worker.assign(TaskKey::new(JobId(1), TaskId(next)), assigned, &class);
        }
    }
    bench.queues.clear();
}

#[test]
fn hindrances_are_told_in_numbers() {
    let mut bench = Bench::with(&[6]);
    bench.queue(5, cpus(4), 2);
    carry_out(&mut bench);
    let told = |bench: &Bench, key: QueueKey| {
        let class = bench.classes.get(key.class).expect("interned");
        let worker = &bench.workers[&WorkerId(1)];
        let found = hindrances(key, 0, &class.variants[0], &bench.classes, worker, 0);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let three = bench.queue(9, cpus(3), 1);
    assert_eq!(told(&bench, three), ["cpus: 1 missing, 2 of 6 free"]);
    let two = bench.queue(0, cpus(2), 1);
    assert!(
        told(&bench, two).is_empty(),
        "what the waiting task will not miss"
    );
    let gang = bench.queue(9, nodes(3), 1);
    assert_eq!(told(&bench, gang), ["nodes: 3 missing, 0 of 3 empty"]);
    let mut bench = Bench::with(&[8]);
    bench.queue(6, cpus(3), 2);
    bench.queue(5, cpus(5), 1);
    carry_out(&mut bench);
    let one = bench.queue(0, cpus(1), 1);
    let kept = "cpus: 1 missing, 2 of 8 free, 2 of them kept for more urgent tasks";
    assert_eq!(told(&bench, one), [kept]);
}

proptest! {
    /// A task is placed if and only if some worker reports no hindrance.
    #[test]
    fn hindrances_agree_with_the_next_round(
        sizes in vec(1u32..7, 1..5),
        earlier in vec((1u32..5, -1i32..2, 1u64..9), 0..4),
        asked in 1u32..7,
        priority in -1i32..2,
    ) {
        let mut bench = Bench::with(&sizes);
        for (count, priority, ready) in earlier {
            bench.queue(priority, cpus(count), ready);
        }
        carry_out(&mut bench);
        let key = bench.queue(priority, cpus(asked), 1);
        let class = bench.classes.get(key.class).expect("interned");
        let free = bench.workers.values().any(|worker| {
            hindrances(key, 0, &class.variants[0], &bench.classes, worker, 0).is_empty()
        });
        prop_assert_eq!(bench.placed(key) == 1, free);
    }
}
