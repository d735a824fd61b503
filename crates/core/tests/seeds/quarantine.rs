//! Clusters where tasks fail because of the node or of the data.

mod world;

use std::time::Duration;

use hq_core::id::TaskKey;
use hq_core::outcome::Outcome;
use hq_core::template::SubmitSpec;
use hq_core::testing::sim::Rng;
use hq_core::testing::{array_submit, template};
use world::{End, World};

/// A broken node must be in quarantine within this many failures, or this time.
const FAILURES_MAX: u32 = 20;
const TIME_MAX: Duration = Duration::from_secs(30);

fn tasks(count: u32) -> SubmitSpec {
    array_submit(count, template(&["true"]))
}

fn good(rng: &mut Rng) -> End {
    // A second on average, with a long tail.
    let tenths = 1 + rng.below(10) + rng.below(10);
    let tail = if rng.below(20) == 0 { 10 } else { 1 };
    (
        Outcome::Finished,
        Duration::from_millis(u64::from(tenths * tail) * 70),
    )
}

fn bad(rng: &mut Rng, outcome: Outcome) -> End {
    (outcome, Duration::from_millis(u64::from(1 + rng.below(5))))
}

/// True with a probability of this many percent.
fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.below(100) < percent
}

fn missing() -> Outcome {
    Outcome::Message("cannot execute \"tool\": No such file or directory".into())
}

/// A node that fails nearly all its tasks.
fn broken(rng: &mut Rng, outcome: fn(&mut Rng) -> Outcome) -> End {
    if chance(rng, 97) {
        let outcome = outcome(rng);
        bad(rng, outcome)
    } else {
        good(rng)
    }
}

fn disk_or_program(rng: &mut Rng) -> Outcome {
    match rng.below(3) {
        0 => missing(),
        1 => Outcome::ExitCode(1),
        _ => Outcome::Signal(7),
    }
}

#[track_caller]
fn check_found(world: &World<'_>, worker: u32, seed: u64) {
    let fate = world.fate(worker);
    let time = fate.set_aside.zip(fate.first_failure);
    let time = time.map(|(aside, first)| aside.since(first));
    assert!(
        fate.set_aside.is_some() && (fate.failures <= FAILURES_MAX || time <= Some(TIME_MAX)),
        "seed {seed}: worker {worker} failed {} tasks, set aside after {time:?}",
        fate.failures
    );
}

#[test]
fn a_broken_node_of_eight_is_found_and_costs_few_tasks() {
    type Kind = (&'static str, fn(&mut Rng) -> Outcome);
    let kinds: [Kind; 3] = [
        ("missing program", |_| missing()),
        ("full disk", |_| Outcome::ExitCode(1)),
        ("mixture", disk_or_program),
    ];
    for (name, outcome) in kinds {
        for seed in 0..40 {
            let broken_one = 1 + u32::try_from(seed % 8).expect("small");
            let rule = |rng: &mut Rng, worker: u32, _: TaskKey| {
                if worker == broken_one {
                    broken(rng, outcome)
                } else {
                    good(rng)
                }
            };
            let mut world = World::new(seed, 8, 4, &rule);
            world.submit(tasks(1_000));
            world.run();
            check_found(&world, broken_one, seed);
            let (finished, failed) = world.ended();
            assert_eq!(finished + failed, 1_000);
            assert!(failed <= 10, "{name}, seed {seed}: {failed} tasks failed");
            let others = (1..=8).filter(|worker| *worker != broken_one);
            let innocent: u32 = others.map(|worker| world.fate(worker).times).sum();
            assert_eq!(innocent, 0, "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_node_that_breaks_in_the_middle_is_found() {
    for seed in 0..20 {
        let rule = |rng: &mut Rng, worker: u32, task: TaskKey| {
            if worker == 3 && task.task.0 >= 1_000 {
                broken(rng, disk_or_program)
            } else {
                good(rng)
            }
        };
        let mut world = World::new(seed, 8, 4, &rule);
        world.submit(tasks(2_000));
        world.run();
        check_found(&world, 3, seed);
        let (_, failed) = world.ended();
        assert!(failed <= 20, "seed {seed}: {failed} tasks failed");
    }
}

#[test]
fn two_broken_nodes_are_found() {
    for seed in 0..20 {
        let rule = |rng: &mut Rng, worker: u32, _: TaskKey| {
            if worker <= 2 {
                broken(rng, disk_or_program)
            } else {
                good(rng)
            }
        };
        let mut world = World::new(seed, 8, 4, &rule);
        world.submit(tasks(1_000));
        world.run();
        check_found(&world, 1, seed);
        check_found(&world, 2, seed);
        let (_, failed) = world.ended();
        assert!(failed <= 20, "seed {seed}: {failed} tasks failed");
    }
}

#[test]
fn a_broken_node_is_found_by_many_jobs_of_one_task() {
    for seed in 0..3 {
        let rule = |rng: &mut Rng, worker: u32, _: TaskKey| {
            if worker == 5 {
                broken(rng, |_| missing())
            } else {
                good(rng)
            }
        };
        let mut world = World::new(seed, 8, 4, &rule);
        for _ in 0..1_200 {
            world.submit(tasks(1));
        }
        world.run();
        assert!(world.fate(5).set_aside.is_some(), "seed {seed}");
        let (_, failed) = world.ended();
        assert!(failed <= 12, "seed {seed}: {failed} jobs failed");
    }
}

#[test]
fn failures_that_follow_the_data_set_no_node_aside() {
    let of_data = |rng: &mut Rng, is_bad: bool| {
        if is_bad {
            bad(rng, Outcome::ExitCode(1))
        } else {
            good(rng)
        }
    };
    for seed in 0..1_000 {
        let mark = Rng::new(seed).below(1_000_000);
        // Scattered over the ids, in one stretch of them, or randomly per attempt.
        let rule = |rng: &mut Rng, _: u32, task: TaskKey| {
            let id = task.task.0;
            let is_bad = match seed % 3 {
                0 => chance(&mut Rng::new(u64::from(id ^ mark)), 30),
                1 => (id + mark) % 240 < 72,
                _ => chance(rng, 30),
            };
            of_data(rng, is_bad)
        };
        let mut world = World::new(seed, 8, 2, &rule);
        world.submit(tasks(240));
        world.run();
        assert_eq!(world.set_aside(), 0, "seed {seed}");
        let (finished, failed) = world.ended();
        assert_eq!(finished + failed, 240, "seed {seed}");
    }
}

#[test]
fn a_job_that_always_fails_ends_and_sets_nobody_aside() {
    for seed in 0..20 {
        let rule = |rng: &mut Rng, _: u32, _: TaskKey| bad(rng, Outcome::ExitCode(2));
        let mut world = World::new(seed, 8, 4, &rule);
        world.submit(tasks(500));
        world.run();
        assert!(world.is_completed(1));
        assert_eq!((world.ended(), world.set_aside()), ((0, 500), 0));
        let starts = world.started();
        assert!(starts <= 600, "few of them run twice: {starts}");
    }
}

#[test]
fn the_last_worker_is_never_set_aside() {
    for workers in 1..=2 {
        let rule = |rng: &mut Rng, _: u32, _: TaskKey| broken(rng, disk_or_program);
        let mut world = World::new(7, workers, 4, &rule);
        world.submit(tasks(300));
        world.run();
        assert!(world.is_completed(1));
        assert!(world.set_aside() < workers.max(1), "{workers} workers");
    }
}
