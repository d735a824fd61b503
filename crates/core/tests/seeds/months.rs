//! Months of automatic allocation in virtual time.
//!
//! The plan and the scheduler's answer play against a batch system with nodes of three sizes. It
//! requeues jobs, forgets and refuses them, does not answer, answers late or wrongly, and the
//! server is killed now and then. A month that fails is shrunk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hq_core::autoalloc::{
    Allocation, AllocationState, AutoallocState, Effect, Input, Limits, LookupOutcome, QueueRecord,
    QueueState, Report, SubmitOutcome,
};
use hq_core::batch::QueueParams;
use hq_core::class::{ClassId, Classes};
use hq_core::id::{AllocationKey, QueueId, WorkerId};
use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::scheduler::demand::{QueueQuery, demand};
use hq_core::testing::{batch_worker, queue_params};
use hq_core::time::{Now, Time, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

mod batch;
mod world;

use world::World;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 24 * 60 * MINUTE;
const MONTH: u64 = 30 * DAY;
/// Time after the month, without faults, in which everything must end.
const REST: u64 = 10 * DAY;
/// Cpus of a node.
const SIZES: [u32; 3] = [2, 4, 8];
const UNITS: u64 = 10_000;
/// A batch system forgets a job this long after its end.
const HISTORY: u64 = 300 * SECOND;
const STEPS_MAX: u32 = 400_000;
/// How long the server keeps an allocation without tasks, and a minute to notice.
const KEPT: u64 = 660 * SECOND;

#[derive(Clone, Debug)]
struct Month {
    seed: u64,
    /// Nodes of the cluster.
    nodes: u32,
    /// Limit of jobs of a user.
    jobs_max: usize,
    queues: Vec<Shape>,
    bursts: Vec<Burst>,
    faults: Vec<(u32, Fault)>,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    backlog: u32,
    per_alloc: u32,
    workers_max: Option<u32>,
    limit_minutes: u32,
    /// Index in [`SIZES`] of its smallest nodes.
    least: usize,
    /// Its options give the size of its nodes.
    says_size: bool,
    /// Lifetime of its workers, in percent of the time limit.
    lives: u32,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    minute: u32,
    tasks: u32,
    size: usize,
    nodes: u32,
    run_secs: u32,
    asks_time: bool,
    /// Minutes after which waiting tasks are canceled.
    canceled_after: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Away(u32),
    Lies(u32),
    Refuses(u32),
    Kill(u32),
    Clock(i32),
    Requeue(u32),
    NodeFails(u32, bool),
    Canceled(u32),
    Suspended(u32, u32),
    Held(u32),
    WorkerCrashes(u32),
    IdUsedAgain(u32),
}

fn shape() -> impl Strategy<Value = Shape> {
    let shape = (
        1..5_u32,
        1..4_u32,
        prop::option::of(3..12_u32),
        60..600_u32,
        0..3_usize,
    );
    let shape = (
        shape,
        any::<bool>(),
        prop_oneof![3 => Just(100), 1 => 50..100_u32],
    );
    shape.prop_map(
        |((backlog, per_alloc, workers_max, limit_minutes, least), says_size, lives)| Shape {
            backlog,
            per_alloc,
            workers_max: workers_max.map(|max| max.max(per_alloc)),
            limit_minutes,
            least,
            says_size,
            lives,
        },
    )
}

fn fault() -> impl Strategy<Value = Fault> {
    let which = 0..1_000_u32;
    prop_oneof![
        (5..300_u32).prop_map(Fault::Away),
        (5..300_u32).prop_map(Fault::Lies),
        (5..300_u32).prop_map(Fault::Refuses),
        (1..600_u32).prop_map(Fault::Kill),
        (-86_400..86_400_i32).prop_map(Fault::Clock),
        which.clone().prop_map(Fault::Requeue),
        (which.clone(), any::<bool>()).prop_map(|(which, again)| Fault::NodeFails(which, again)),
        which.clone().prop_map(Fault::Canceled),
        (which.clone(), 1..200_u32).prop_map(|(which, minutes)| Fault::Suspended(which, minutes)),
        which.clone().prop_map(Fault::Held),
        which.clone().prop_map(Fault::WorkerCrashes),
        which.prop_map(Fault::IdUsedAgain),
    ]
}

fn month() -> impl Strategy<Value = Month> {
    let minute = 0..43_200_u32;
    let burst = (
        minute.clone(),
        1..60_u32,
        0..3_usize,
        0..6_u32,
        5..1_500_u32,
        any::<bool>(),
    );
    let burst = (burst, prop::option::weighted(0.1, 1..60_u32)).prop_map(
        |((minute, tasks, size, nodes, run_secs, asks_time), canceled_after)| Burst {
            minute,
            tasks,
            size,
            nodes: nodes.saturating_sub(3),
            run_secs,
            asks_time,
            canceled_after,
        },
    );
    // Most faults come with a burst of work; otherwise they would meet an idle cluster.
    let faults = prop::collection::vec((minute, fault()), 0..60);
    let near = prop::collection::vec((any::<prop::sample::Index>(), 0..90_u32), 0..60);
    let bursts = prop::collection::vec(burst, 1..25);
    let queues = prop::collection::vec(shape(), 1..4);
    (
        any::<u64>().no_shrink(),
        6..40_u32,
        3..20_usize,
        queues,
        bursts,
        faults,
        near,
    )
        .prop_map(
            |(seed, nodes, jobs_max, queues, bursts, mut faults, near)| {
                for ((burst, after), (at, _)) in near.iter().zip(&mut faults) {
                    *at = burst.get(&bursts).minute + after;
                }
                Month {
                    seed,
                    nodes,
                    jobs_max,
                    queues,
                    bursts,
                    faults,
                }
            },
        )
}

fn limits() -> Limits {
    Limits {
        // Something happens all the time; this is only for what is forgotten.
        schedule_delay: Duration::from_secs(600),
        ..Limits::default()
    }
}

fn spec(shape: &Shape) -> QueueParams {
    let limit = Duration::from_secs(u64::from(shape.limit_minutes) * 60);
    let cpus = u64::from(SIZES[shape.least]) * UNITS;
    QueueParams {
        backlog: shape.backlog,
        max_workers_per_alloc: shape.per_alloc,
        max_worker_count: shape.workers_max,
        time_limit: limit,
        amounts: shape
            .says_size
            .then(|| ("cpus".into(), cpus))
            .into_iter()
            .collect(),
        ..queue_params()
    }
}

/// Number of months of a test run, and their seed; `HQ_SIM_SEEDS` and `HQ_SIM_FIRST` choose others.
fn config() -> (u32, [u8; 32]) {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let mut seed = [0; 32];
    seed[0] = read("HQ_SIM_FIRST").map_or(0, |first: u32| first.to_le_bytes()[0]);
    (read("HQ_SIM_SEEDS").unwrap_or(200), seed)
}

#[test]
fn a_month_of_mishaps_leaves_no_allocation_and_no_task_behind() {
    let (cases, seed) = config();
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let played = TestRunner::new_with_rng(config, rng).run(&month(), |month| {
        World::new(&month).check();
        Ok(())
    });
    if let Err(error) = played {
        panic!("{error}");
    }
}
