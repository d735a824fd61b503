//! Workers with failures of tasks that succeed elsewhere.

use std::time::Duration;

use super::bench::*;
use super::node_checks::full;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome, VALUE_MISSING};
use crate::quarantine::QuarantineMode;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::server_state::{
    ChangeKind, Command, Effect, QUARANTINE, Reply, StopResult, WorkerCommand,
};
use crate::task::Phase;
use crate::template::{CrashLimit, SubmitSpec};
use crate::worker::Standing;
use crate::worker_config::{Allocation, BatchSystem};

const SECOND: Duration = Duration::from_secs(1);

const TEN_MINUTES: Duration = QUARANTINE;

/// Returns three workers with four cpus each. The first worker fails its tasks until it is in
/// quarantine. It is the only worker with a license.
fn with_broken() -> (Bench, WorkerId, JobId) {
    let mut bench = Bench::new();
    bench.state.set_quarantine_mode(QuarantineMode::Act);
    let broken = bench.worker_with(4, |config| {
        config.hostname = "n1.cluster".into();
        config.allocation = Some(allocation());
        config.resources.items.push(ResourceItem {
            name: "licence".into(),
            kind: ResourceKind::Sum(Amount::whole(1)),
        });
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
        cluster: None,
        time_limit: None,
    }
}

/// Returns tasks that need the license.
fn licensed(count: u32) -> SubmitSpec {
    tasks_with(count, |task| {
        let mut request = ResourceRequest::cpus(1);
        request.entries.push(ResourceEntry {
            resource: "licence".into(),
            policy: Policy::Compact,
            amount: Amount::whole(1),
        });
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    })
}

impl Bench {
    /// Puts a worker in quarantine, as requested by a user.
    fn quarantine(&mut self, worker: WorkerId) -> Vec<Effect> {
        self.request(Command::QuarantineWorkers {
            workers: this(worker),
            span: TEN_MINUTES,
            why: "its fan is loud".into(),
        })
    }

    /// Finishes tasks on all other workers.
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

    /// Fails tasks on a worker until it gets no more tasks and has returned the unstarted ones.
    /// Returns the failed tasks.
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
        // Each task that fails there while it is suspected succeeds elsewhere.
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
fn one_whose_node_is_mended_is_tried_at_once() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    bench.ail(broken, &[full()]);
    bench.wait(SECOND);
    assert_eq!(bench.has(broken), []);
    bench.ail(broken, &[]);
    assert_eq!(bench.standing(broken), Standing::Probed);
    let (job, task) = bench.has(broken)[0];
    bench.finish(broken, key(JobId(job), task));
    assert_eq!(bench.standing(broken), Standing::Trusted);
}

#[test]
fn one_that_people_set_aside_stays_so_when_its_node_is_mended() {
    let (mut bench, worker, _) = with_broken();
    bench.quarantine(worker);
    bench.ail(worker, &[full()]);
    bench.ail(worker, &[]);
    assert_eq!(bench.standing(worker), Standing::Quarantined);
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
    // The replacement worker is probed immediately, because the node may have been repaired.
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

/// Returns four workers with four cpus each. The first worker has failed this many tasks of a job
/// before any task has ended on the others.
fn with_empty_queue(failures: u32) -> (Bench, Vec<WorkerId>) {
    let mut bench = Bench::new();
    let all: Vec<WorkerId> = (0..4).map(|_| bench.worker(4)).collect();
    bench.submit(tasks(failures + 48));
    for _ in 0..failures {
        bench.fail_first(all[0]);
        bench.skip(Duration::from_micros(100));
    }
    (bench, all)
}

fn is_told(effects: &[Effect]) -> bool {
    is_persisted(effects, |kind| {
        matches!(kind, ChangeKind::WorkerSuspected { .. })
    })
}

impl Bench {
    fn first_tasks(&self, worker: WorkerId, count: usize) -> Vec<TaskKey> {
        let tasks = self.has(worker).into_iter().take(count);
        tasks.map(|(job, task)| key(JobId(job), task)).collect()
    }

    fn first_of(&self, worker: WorkerId) -> TaskKey {
        self.first_tasks(worker, 1)[0]
    }

    fn fail_first(&mut self, worker: WorkerId) -> Vec<Effect> {
        let task = self.first_of(worker);
        self.fail(worker, task)
    }

    fn finish_first(&mut self, worker: WorkerId) -> Vec<Effect> {
        let task = self.first_of(worker);
        self.finish(worker, task)
    }

    fn told(&self) -> Vec<(WorkerId, String)> {
        let told = self.state.suspicions();
        told.map(|(worker, suspicion)| (worker, suspicion.why.to_string()))
            .collect()
    }
}

#[test]
fn a_worker_that_emptied_the_queue_is_told_of_when_the_rest_has_gone_well() {
    for failures in [20, 600] {
        let (mut bench, all) = with_empty_queue(failures);
        bench.finish_elsewhere(all[0], 16);
        assert_eq!(bench.told(), [], "it is soon");
        let effects = bench.wait(SECOND);
        assert!(is_told(&effects), "{failures}: {effects:?}");
        let why = &bench.told()[0].1;
        let counts = format!("{failures} of {failures} tasks failed there");
        assert!(
            why.starts_with(&counts) && why.ends_with("exit code 1"),
            "{why}"
        );
        assert_eq!(bench.told()[0].0, all[0]);
        bench.finish_all();
        bench.wait(SECOND);
        assert!(bench.is_quiet(), "there is nothing more to look at");
    }
}

#[test]
fn a_worker_that_emptied_the_queue_is_not_told_of_if_the_rest_fails_as_well() {
    let (mut bench, all) = with_empty_queue(600);
    for number in 0..48 {
        let worker = all[1 + number % 3];
        if bench.has(worker).is_empty() {
            continue;
        }
        if number % 3 == 0 {
            bench.finish_first(worker);
        } else {
            bench.fail_first(worker);
        }
    }
    bench.wait(SECOND);
    assert_eq!(bench.told(), []);
}

#[test]
fn the_first_failures_of_a_worker_on_which_most_tasks_run_on_are_no_reason_to_doubt_it() {
    let mut bench = Bench::new();
    let late = bench.worker(64);
    for _ in 0..3 {
        bench.worker(4);
    }
    bench.submit(tasks(400));
    let first = bench.first_tasks(late, 64);
    for task in &first[8..] {
        bench.start(late, *task);
    }
    for task in &first[..8] {
        bench.fail(late, *task);
    }
    bench.finish_elsewhere(late, 20);
    bench.wait(SECOND);
    assert_eq!(bench.told(), [], "of 64 tasks 8 fail, but sooner");
    // All tasks have failed in the end.
    for task in &first[8..] {
        bench.fail(late, *task);
    }
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn a_stretch_of_bad_inputs_on_one_worker_is_no_reason_to_doubt_it() {
    let mut bench = Bench::new();
    let unlucky = bench.worker(4);
    for _ in 0..3 {
        bench.worker(4);
    }
    bench.submit(tasks(200));
    bench.finish_elsewhere(unlucky, 30);
    for _ in 0..12 {
        bench.fail_first(unlucky);
    }
    let good = bench.first_tasks(unlucky, 4);
    for task in &good {
        bench.start(unlucky, *task);
    }
    bench.finish_elsewhere(unlucky, 10);
    bench.wait(SECOND);
    assert_eq!(bench.told(), [], "it has good ones now");
    for task in good {
        bench.finish(unlucky, task);
    }
    bench.finish_elsewhere(unlucky, 10);
    bench.wait(SECOND);
    assert_eq!(bench.told(), [], "which have ended well");
}

#[test]
fn a_worker_that_breaks_behind_a_job_that_fails_everywhere_is_told_of() {
    let mut bench = Bench::new();
    let all: Vec<WorkerId> = (0..4).map(|_| bench.worker(4)).collect();
    bench.submit(tasks(800));
    for _ in 0..200 {
        for worker in &all {
            bench.fail_first(*worker);
        }
    }
    bench.submit(tasks(400));
    for _ in 0..40 {
        for worker in &all[1..] {
            bench.finish_first(*worker);
        }
        bench.fail_first(all[0]);
    }
    bench.wait(SECOND);
    assert_eq!(bench.told().len(), 1);
    assert_eq!(bench.told()[0].0, all[0]);
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
    let effects = bench.quarantine(worker);
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

/// Returns the tasks that the server retracts from a worker.
fn asked_back(effects: &[Effect], worker: WorkerId) -> Vec<TaskKey> {
    let lists = effects.iter().filter_map(|effect| {
        let Effect::ToWorker(to, WorkerCommand::Retract(back)) = effect else {
            return None;
        };
        (*to == worker).then_some(back)
    });
    lists.flatten().map(|(task, _)| *task).collect()
}

#[test]
fn what_a_worker_has_not_started_is_asked_back_when_it_is_set_aside_and_its_trial_is_not() {
    let (mut bench, worker, job) = with_broken();
    let (_, running) = bench.has(worker)[0];
    bench.start(worker, key(job, running));
    let effects = bench.quarantine(worker);
    let waiting = bench.has(worker).into_iter().skip(1);
    let waiting: Vec<TaskKey> = waiting.map(|(_, task)| key(job, task)).collect();
    assert!(!waiting.is_empty());
    assert_eq!(asked_back(&effects, worker), waiting);
    for task in waiting {
        bench.give_back(worker, task);
    }
    bench.finish(worker, key(job, running));
    let mut effects = bench.wait(TEN_MINUTES);
    assert_eq!(bench.standing(worker), Standing::Probed);
    assert_eq!(bench.has(worker).len(), 1);
    effects.extend(bench.wait(SECOND));
    assert_eq!(asked_back(&effects, worker), []);
}

#[test]
fn what_fails_on_a_worker_that_people_set_aside_has_failed() {
    for mode in [QuarantineMode::Tell, QuarantineMode::Act] {
        let (mut bench, worker, job) = with_broken();
        bench.state.set_quarantine_mode(mode);
        let (_, task) = bench.has(worker)[0];
        bench.start(worker, key(job, task));
        bench.quarantine(worker);
        bench.fail(worker, key(job, task));
        assert_eq!(bench.phase(key(job, task)), Phase::Failed);
        for (_, task) in bench.has(worker) {
            bench.give_back(worker, key(job, task));
        }
        bench.wait(TEN_MINUTES);
        // A server that only reports has no probation.
        let standing = match mode {
            QuarantineMode::Act => Standing::Probed,
            QuarantineMode::Tell | QuarantineMode::Off => Standing::Trusted,
        };
        assert_eq!(bench.standing(worker), standing);
    }
}

#[test]
fn a_worker_that_nobody_can_stand_in_for_is_not_set_aside() {
    let (mut bench, broken, _) = with_broken();
    let licensed = bench.submit(licensed(1_000));
    for _ in 0..30 {
        let (job, task) = bench.has(broken)[0];
        bench.fail(broken, key(JobId(job), task));
        bench.finish_elsewhere(broken, 1);
        assert_eq!(bench.standing(broken), Standing::Trusted);
    }
    bench.cancel(licensed);
    bench.wait(SECOND);
    bench.fail_until_suspected(broken);
}

#[test]
fn a_worker_that_is_set_aside_is_tried_at_once_when_nobody_else_can_run_a_task() {
    let (mut bench, broken, job) = with_broken();
    bench.set_aside(broken);
    bench.cancel(job);
    bench.wait(SECOND);
    assert_eq!(bench.has(broken), []);
    let licensed = bench.submit(licensed(3));
    bench.wait(SECOND);
    assert_eq!(bench.has(broken), [(licensed.0, 0)]);
    // No other worker can show whether the task or the worker is at fault.
    bench.fail(broken, key(licensed, 0));
    assert_eq!(bench.phase(key(licensed, 0)), Phase::Failed);
    bench.wait(SECOND);
    assert_eq!(bench.has(broken), [(licensed.0, 1)]);
    bench.finish(broken, key(licensed, 1));
    assert_eq!(bench.standing(broken), Standing::Trusted);
}

#[test]
fn a_task_that_runs_for_long_shows_that_a_worker_works() {
    let (mut bench, broken, _) = with_broken();
    bench.set_aside(broken);
    bench.wait(TEN_MINUTES);
    let (job, task) = bench.has(broken)[0];
    bench.start(broken, key(JobId(job), task));
    bench.wait(SECOND * 59);
    assert_eq!(bench.standing(broken), Standing::Probed);
    bench.wait(SECOND);
    assert_eq!(bench.standing(broken), Standing::Trusted);
    assert!(
        bench.has(broken).len() >= 4,
        "and it gets other tasks at the same time"
    );
}

#[test]
fn a_value_that_was_lost_elsewhere_says_nothing_about_a_worker() {
    let (mut bench, worker, _) = with_broken();
    for _ in 0..20 {
        let (job, task) = bench.has(worker)[0];
        let lost = Outcome::Message(format!("{VALUE_MISSING}: no worker has it").into());
        bench.end(worker, key(JobId(job), task), lost);
        assert_eq!(bench.standing(worker), Standing::Trusted);
    }
}
