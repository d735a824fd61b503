//! Why a task does not run: what a worker would have to offer, and the current obstacles.

use std::time::Duration;

use super::bench::*;
use crate::class::QueueKey;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::outcome::Outcome;
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::scheduler::explain::{Condition, Hindrance, explain, hindrances};
use crate::server_state::Command;

/// Returns the conditions of the first variant of a job's first task on a worker.
fn conditions(bench: &Bench, job: JobId, worker: WorkerId, group: u32) -> Vec<Condition> {
    let (state, now) = (&bench.state, bench.now.mono);
    let submit = &state.jobs()[&job].submits[0];
    let class = submit.template(0).expect("it has one").class;
    let class = state.classes().get(class).expect("it is known");
    let worker = &state.workers()[&worker];
    explain(class, state.classes(), worker, group, now).remove(0)
}

/// Returns the obstacles of the job's first task on a worker, in words.
fn in_the_way(bench: &Bench, job: JobId, worker: WorkerId, empty: u32) -> Vec<String> {
    let state = &bench.state;
    let submit = &state.jobs()[&job].submits[0];
    let template = submit.template(0).expect("it has one");
    let key = QueueKey::new(template.task.priority, template.class);
    let class = state.classes().get(template.class).expect("it is known");
    let worker = &state.workers()[&worker];
    let found = hindrances(key, 0, &class.variants[0], state.classes(), worker, empty);
    found.iter().map(Hindrance::to_string).collect()
}

#[test]
fn a_worker_with_enough_of_everything_is_not_in_the_way() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(wide(1, 4));
    bench.finish(worker, key(job, 0));
    assert!(
        conditions(&bench, job, worker, 1)
            .iter()
            .all(Condition::holds)
    );
    assert_eq!(in_the_way(&bench, job, worker, 0), Vec::<String>::new());
}

#[test]
fn a_worker_that_is_too_small_says_what_it_has() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(wide(1, 5));
    let found = conditions(&bench, job, worker, 1);
    let [Condition::Resource { name, .. }] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(&**name, "cpus");
    assert!(!found[0].holds());
}

#[test]
fn a_busy_worker_says_how_much_is_missing() {
    let (mut bench, worker) = Bench::with_worker(4);
    bench.submit(wide(1, 3));
    let job = bench.submit(wide(1, 2));
    let said = in_the_way(&bench, job, worker, 0);
    assert_eq!(said, ["cpus: 1 missing, 1 of 4 free"]);
}

#[test]
fn free_resources_are_kept_for_a_job_that_waits_on_the_worker_or_for_it() {
    let (mut bench, worker) = Bench::with_worker(4);
    let slow = bench.submit(tasks(2));
    for task in 0..2 {
        bench.start(worker, key(slow, task));
    }
    let whole = bench.submit(wide(1, 4));
    let small = bench.submit(wide(1, 2));
    bench.wait(Duration::from_secs(6));
    bench.give_back(worker, key(small, 0));
    let kept_for = |bench: &Bench, job: JobId| {
        let state = &bench.state;
        let template = state.jobs()[&job].submits[0].template(0).expect("one");
        let class = state.classes().get(template.class).expect("it is known");
        let key = QueueKey::new(template.task.priority, template.class);
        state.kept_for(key, &class.variants[0], &state.workers()[&worker])
    };
    assert_eq!(kept_for(&bench, small), Some((whole, false)));
    assert_eq!(kept_for(&bench, whole), None, "the cpus are in use");
    let large = bench.submit(wide(1, 3));
    bench.wait(Duration::from_secs(6));
    bench.cancel(whole);
    bench.end(worker, key(whole, 0), Outcome::Killed);
    assert_eq!(kept_for(&bench, small), Some((large, false)));
}

#[test]
fn time_that_a_task_needs_is_compared_with_what_the_worker_has_left() {
    let mut bench = Bench::new();
    let limit = Duration::from_secs(100);
    let worker = bench.worker_with(1, |config| config.time_limit = Some(limit));
    let job = bench.submit(tasks_with(1, |task| {
        let request = ResourceRequest {
            min_time: Duration::from_secs(60),
            ..ResourceRequest::cpus(1)
        };
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    }));
    let holds = |bench: &Bench| conditions(bench, job, worker, 1)[0].holds();
    assert!(holds(&bench));
    bench.wait(Duration::from_secs(40));
    assert!(holds(&bench), "just enough");
    bench.wait(Duration::from_secs(1));
    assert!(!holds(&bench));
    let endless = bench.worker(1);
    assert!(conditions(&bench, job, endless, 1)[0].holds());
}

#[test]
fn a_multi_node_task_asks_for_a_large_enough_group_and_for_empty_nodes() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(gang(1, 2));
    assert!(!conditions(&bench, job, worker, 1)[0].holds());
    assert!(conditions(&bench, job, worker, 2)[0].holds());
    let said = in_the_way(&bench, job, worker, 1);
    assert_eq!(said, ["nodes: 1 missing, 1 of 2 empty"]);
    assert!(in_the_way(&bench, job, worker, 2).is_empty());
}

#[test]
fn a_worker_that_takes_no_work_says_why() {
    let mut bench = Bench::new();
    let [ending, draining, away] = [0; 3].map(|_| bench.worker(1));
    let held = bench.submit(tasks(3));
    for worker in [ending, draining, away] {
        let (job, task) = bench.has(worker)[0];
        bench.start(worker, key(JobId(job), task));
    }
    bench.request(Command::StopWorkers(this(ending)));
    bench.request(Command::DrainWorkers(this(draining)));
    bench.cut(away);
    let said = |worker| in_the_way(&bench, held, worker, 0);
    assert_eq!(said(ending), ["the worker is about to end"]);
    assert_eq!(said(draining), ["the worker is being drained"]);
    assert_eq!(said(away), ["the worker has lost its connection"]);
}

#[test]
fn a_node_says_of_which_task() {
    let mut bench = Bench::new();
    let (first, second) = (bench.worker(1), bench.worker(1));
    let large = bench.submit(gang(1, 2));
    let job = bench.submit(tasks(1));
    let task: TaskKey = key(large, 0);
    for worker in [first, second] {
        let said = in_the_way(&bench, job, worker, 0);
        assert_eq!(
            said,
            [format!("the worker is a node of multi-node task {task}")]
        );
    }
}

#[test]
fn a_worker_that_takes_enough_or_nothing_says_how_much_is_enough() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(4, |config| config.min_utilization = 0.75);
    let job = bench.submit(tasks(1));
    let said = in_the_way(&bench, job, worker, 0);
    assert_eq!(said, ["too little work to keep 75 % of the cpus busy"]);
}
