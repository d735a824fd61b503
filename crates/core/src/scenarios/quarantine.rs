//! Workers on which tasks fail that go well elsewhere.

mod world;

use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome};
use crate::quarantine::QuarantineMode;
use crate::server_state::{ChangeKind, Command, Effect, QUARANTINE, Reply, StopResult};
use crate::task::Phase;
use crate::template::CrashLimit;
use crate::testing::sim::Rng;
use crate::worker::Standing;
use crate::worker_config::{Allocation, BatchSystem};
use world::{End, World};

const SECOND: Duration = Duration::from_secs(1);
/// Acceptance: a broken node is set aside within so many failures, or so long.
const FAILURES_MAX: u32 = 20;
const TIME_MAX: Duration = Duration::from_secs(30);

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

/// Whether something with so many percent of probability happens.
fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.below(100) < percent
}

fn missing() -> Outcome {
    Outcome::Message("cannot execute \"tool\": No such file or directory".into())
}

/// A node that fails nearly all of what it is given.
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
        // Scattered over the ids, in one stretch of them, or by chance in each attempt.
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

const TEN_MINUTES: Duration = QUARANTINE;

/// Three workers with four cpus each, the first of which fails what it gets until it is set aside.
fn with_broken() -> (Bench, WorkerId, JobId) {
    let mut bench = Bench::new();
    bench.state.set_quarantine_mode(QuarantineMode::Act);
    let broken = bench.worker_with(4, |config| {
        config.hostname = "n1.cluster".into();
        config.allocation = Some(allocation());
    });
    for name in ["n2", "n3"] {
        bench.worker_with(4, |config| config.hostname = name.into());
    }
    let job = bench.submit(tasks(400));
    bench.finish_elsewhere(broken, 100);
    (bench, broken, job)
}

fn allocation() -> Allocation {
    Allocation {
        manager: BatchSystem::Slurm,
        id: "77".into(),
        time_limit: None,
    }
}

impl Bench {
    /// Finishes tasks on all others.
    fn finish_elsewhere(&mut self, worker: WorkerId, count: usize) {
        for _ in 0..count {
            let others = self.state.workers().keys().filter(|id| **id != worker);
            let others: Vec<WorkerId> = others.copied().collect();
            for other in others {
                if let Some((job, task)) = self.has(other).first().copied() {
                    self.finish(other, key(JobId(job), task));
                }
            }
        }
    }

    fn standing(&self, worker: WorkerId) -> Standing {
        self.state.workers()[&worker].standing()
    }

    /// Fails tasks on a worker until it gets no more, and gives back what it has not started; returns what failed.
    fn fail_until_suspected(&mut self, worker: WorkerId) -> Vec<TaskKey> {
        let mut failed = Vec::new();
        while self.standing(worker) == Standing::Trusted {
            let (job, task) = self.has(worker)[0];
            failed.push(key(JobId(job), task));
            self.fail(worker, key(JobId(job), task));
        }
        for (job, task) in self.has(worker) {
            self.give_back(worker, key(JobId(job), task));
        }
        failed
    }

    fn set_aside(&mut self, worker: WorkerId) {
        // Each one that fails there while it is suspected goes well elsewhere.
        while self.standing(worker) != Standing::Quarantined {
            match self.standing(worker) {
                Standing::Trusted => {
                    self.fail_until_suspected(worker);
                }
                Standing::Probed => {
                    let (job, task) = self.has(worker)[0];
                    self.fail(worker, key(JobId(job), task));
                }
                Standing::Suspected | Standing::Quarantined => self.finish_elsewhere(worker, 1),
            }
        }
    }
}

fn is_persisted(effects: &[Effect], wanted: impl Fn(&ChangeKind) -> bool) -> bool {
    let mut effects = effects.iter();
    effects.any(|effect| matches!(effect, Effect::Persist(change) if wanted(&change.kind)))
}

#[test]
fn what_fails_under_suspicion_runs_elsewhere_and_counts_for_nothing() {
    let (mut bench, broken, job) = with_broken();
    let failed = bench.fail_until_suspected(broken);
    assert!((2..=3).contains(&failed.len()), "{failed:?}");
    let (last, first) = failed.split_last().expect("some failed");
    assert!(first.iter().all(|task| bench.phase(*task) == Phase::Failed));
    let submit = &bench.state.jobs()[&job].submits[0];
    let attempts = submit.tasks.attempts(last.task.0);
    assert_eq!(attempts.len(), 1, "it is not forgotten that it failed");
    assert_eq!(attempts[0].end.outcome, Outcome::ExitCode(1));
    assert_eq!(bench.record(*last).retry_count(), 0);
    assert_eq!(bench.has(broken), [], "it gets nothing");
    bench.finish_elsewhere(broken, 10);
    assert_eq!(bench.phase(*last), Phase::Finished);
}

#[test]
fn a_worker_that_is_set_aside_is_tried_with_one_task_and_comes_back() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    let quarantine = bench.state.quarantine(broken).expect("it is set aside");
    assert!(
        quarantine.why.contains("tasks failed there"),
        "{}",
        quarantine.why
    );
    bench.wait(TEN_MINUTES - SECOND);
    assert_eq!(bench.has(broken), []);
    bench.wait(SECOND);
    assert_eq!(
        bench.has(broken).len(),
        1,
        "one task shows whether it works"
    );
    let (job, task) = bench.has(broken)[0];
    let effects = bench.finish(broken, key(JobId(job), task));
    assert!(is_persisted(&effects, |kind| matches!(
        kind,
        ChangeKind::WorkerReleased { .. }
    )));
    assert!(bench.has(broken).len() >= 4);
    assert!(bench.state.quarantine(broken).is_none());
}

#[test]
fn one_that_still_fails_is_set_aside_for_twice_as_long() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    bench.wait(TEN_MINUTES);
    let (job, task) = bench.has(broken)[0];
    let probe = key(JobId(job), task);
    bench.fail(broken, probe);
    assert_ne!(bench.phase(probe), Phase::Failed, "that is not its fault");
    bench.finish_elsewhere(broken, 10);
    assert_eq!(bench.standing(broken), Standing::Quarantined);
    bench.wait(TEN_MINUTES);
    assert_eq!(bench.has(broken), []);
    bench.wait(TEN_MINUTES);
    assert_eq!(bench.has(broken).len(), 1);
}

#[test]
fn a_quarantine_outlives_the_server_and_the_worker() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    bench.restart();
    for id in 1..=3 {
        bench.come_back(WorkerId(id));
    }
    assert_eq!(bench.standing(broken), Standing::Quarantined);
    assert_eq!(bench.has(broken), []);
    bench.leave(broken, LostReason::IdleTimeout);
    assert_eq!(bench.state.nodes_to_avoid(bench.now.wall), ["n1"]);
    // What comes in its place is tried at once: somebody may have mended it.
    let next = bench.worker_with(4, |config| config.hostname = "n1.cluster".into());
    assert_eq!(bench.standing(next), Standing::Probed);
    let (job, task) = bench.has(next)[0];
    bench.finish(next, key(JobId(job), task));
    assert_eq!(bench.standing(next), Standing::Trusted);
    assert!(bench.state.nodes_to_avoid(bench.now.wall).is_empty());
    bench.restart();
    assert_eq!(bench.standing(next), Standing::Trusted);
}

#[test]
fn the_last_worker_gets_tasks_again_when_all_others_are_gone() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    bench.leave(WorkerId(2), LostReason::Stopped);
    assert_eq!(bench.has(broken), []);
    bench.leave(WorkerId(3), LostReason::Stopped);
    assert_eq!(bench.standing(broken), Standing::Trusted);
    assert!(bench.has(broken).len() >= 4);
}

#[test]
fn a_task_that_may_start_once_fails_where_it_failed() {
    let mut bench = Bench::new();
    bench.state.set_quarantine_mode(QuarantineMode::Act);
    let broken = bench.worker(2);
    bench.worker(2);
    bench.submit(tasks_with(100, |task| {
        task.crash_limit = CrashLimit::NeverRestart
    }));
    bench.finish_elsewhere(broken, 40);
    let failed = bench.fail_until_suspected(broken);
    assert!(
        failed
            .iter()
            .all(|task| bench.phase(*task) == Phase::Failed)
    );
}

#[test]
fn a_server_that_only_tells_changes_nothing() {
    let (mut bench, broken, _) = with_broken();
    bench.state.set_quarantine_mode(QuarantineMode::Tell);
    let mut told = 0;
    for _ in 0..20 {
        let (job, task) = bench.has(broken)[0];
        let effects = bench.fail(broken, key(JobId(job), task));
        assert_eq!(bench.phase(key(JobId(job), task)), Phase::Failed);
        told += u32::from(is_persisted(&effects, |kind| {
            matches!(kind, ChangeKind::WorkerSuspected { .. })
        }));
        bench.finish_elsewhere(broken, 2);
    }
    assert_eq!(told, 1, "once");
    assert_eq!(bench.standing(broken), Standing::Trusted);
    let (worker, suspicion) = bench.state.suspicions().next().expect("it is known");
    assert_eq!(worker, broken);
    assert!(suspicion.why.contains("elsewhere"), "{}", suspicion.why);
}

#[test]
fn people_set_workers_aside_and_release_them() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.submit(tasks(5));
    let (job, task) = bench.has(worker)[0];
    bench.start(worker, key(JobId(job), task));
    let answer = |effects: &[Effect]| {
        let found = effects.iter().find_map(|effect| {
            let Effect::Reply(_, Reply::Workers(rows)) = effect else {
                return None;
            };
            Some(rows.rows[0].1)
        });
        found.expect("it is answered")
    };
    let effects = bench.request(Command::QuarantineWorkers {
        workers: this(worker),
        span: TEN_MINUTES,
        why: "its fan is loud".into(),
    });
    assert_eq!(answer(&effects), StopResult::Quarantined);
    for (job, task) in bench.has(worker).into_iter().skip(1) {
        bench.give_back(worker, key(JobId(job), task));
    }
    bench.finish(worker, key(JobId(job), task));
    assert_eq!(
        bench.has(worker),
        [],
        "what ran has ended, and there is no more"
    );
    let effects = bench.request(Command::ReleaseWorkers(this(worker)));
    assert_eq!(answer(&effects), StopResult::Released);
    assert!(!bench.has(worker).is_empty());
    let effects = bench.request(Command::ReleaseWorkers(this(worker)));
    assert_eq!(answer(&effects), StopResult::NotQuarantined);
}
