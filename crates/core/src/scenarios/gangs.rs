//! Multi-node tasks.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::server_state::{ChangeKind, Effect, WorkerCommand};
use crate::task::Phase;

const TASK: TaskKey = key(JobId(1), 0);

fn holds(effects: &[Effect], worker: WorkerId) -> Vec<bool> {
    let commands = told(effects, worker).into_iter();
    let holds = commands.filter_map(|command| {
        let WorkerCommand::Hold(is_held) = command else {
            return None;
        };
        Some(*is_held)
    });
    holds.collect()
}

/// Returns the worker that runs the only multi-node task, and the other workers.
fn root_of(bench: &Bench, workers: &[WorkerId]) -> (WorkerId, Vec<WorkerId>) {
    let has = |worker: &&WorkerId| !bench.has(**worker).is_empty();
    let root = *workers.iter().find(has).expect("somebody runs it");
    let others = workers.iter().copied().filter(|id| *id != root);
    (root, others.collect())
}

/// Returns two workers with a multi-node task on both of them: the root and the other one.
fn running() -> (Bench, WorkerId, WorkerId) {
    let mut bench = Bench::new();
    let workers = [bench.worker(4), bench.worker(4)];
    bench.submit(gang(1, 2));
    let (root, others) = root_of(&bench, &workers);
    bench.start(root, TASK);
    (bench, root, others[0])
}

#[test]
fn a_multi_node_task_waits_for_as_many_workers_as_it_needs() {
    let mut bench = Bench::new();
    let first = bench.worker(4);
    bench.submit(gang(1, 2));
    assert_eq!(bench.has(first), []);
    let second = bench.worker(4);
    assert_eq!(bench.has(first).len() + bench.has(second).len(), 1);
}

#[test]
fn each_node_of_a_multi_node_task_names_it_as_its_last() {
    let (bench, root, other) = running();
    for node in [root, other] {
        let worker = bench.state.workers().get(&node).expect("connected");
        assert_eq!(worker.last_task().map(|(task, _)| task), Some(TASK));
    }
}

#[test]
fn the_command_goes_to_one_node_with_all_names_and_the_others_are_held() {
    let mut bench = Bench::new();
    let named = |bench: &mut Bench, name: &'static str| {
        bench.worker_with(1, |config| config.hostname = name.into())
    };
    let workers = ["a", "b", "c"].map(|name| named(&mut bench, name));
    let effects = bench.request(crate::server_state::Command::Submit(Box::new(gang(1, 3))));
    let (root, others) = root_of(&bench, &workers);
    for other in others {
        assert_eq!(holds(&effects, other), [true]);
        assert!(sent(&effects, other).is_empty());
    }
    let commands = told(&effects, root);
    let Some(WorkerCommand::Assign { assignments, .. }) = commands.first() else {
        panic!("{commands:?}");
    };
    let mut nodes: Vec<&str> = assignments[0].nodes.iter().map(|name| &**name).collect();
    let first = bench.state.hostname(root);
    assert_eq!(nodes.first().copied(), first, "the root is the first");
    nodes.sort_unstable();
    assert_eq!(nodes, ["a", "b", "c"]);
}

#[test]
fn the_nodes_are_stored_before_the_command_is_sent() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    bench.slow_disk();
    bench.submit_unanswered(gang(1, 2));
    assert!(workers.iter().all(|worker| bench.has(*worker).is_empty()));
    bench.commit();
    let has = |worker: &&WorkerId| !bench.has(**worker).is_empty();
    assert_eq!(workers.iter().filter(has).count(), 1);
}

#[test]
fn nodes_of_a_multi_node_task_get_nothing_else_until_it_has_ended() {
    let (mut bench, root, other) = running();
    let small = bench.submit(tasks(2));
    assert_eq!(bench.has(root), [(1, 0)]);
    assert_eq!(bench.has(other), []);
    let effects = bench.finish(root, TASK);
    assert_eq!(holds(&effects, other), [false]);
    assert_eq!(bench.has(root).len() + bench.has(other).len(), 2);
    bench.finish_all();
    assert_eq!(bench.counts(small).finished, 2);
}

#[test]
fn a_multi_node_task_whose_root_is_lost_runs_again() {
    let (mut bench, root, other) = running();
    let effects = bench.leave(root, LostReason::ConnectionLost);
    assert_eq!(holds(&effects, other), [false], "it is free");
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    assert_eq!(bench.instance(TASK), 1);
    assert_eq!(bench.record(TASK).crash_count(), 1);
    let third = bench.worker(1);
    let (_, _) = root_of(&bench, &[other, third]);
}

#[test]
fn a_canceled_multi_node_task_frees_its_nodes_when_it_has_ended() {
    let (mut bench, root, other) = running();
    let effects = bench.cancel(JobId(1));
    assert_eq!(killed(&effects, root), [(TASK, InstanceId(0))]);
    assert!(killed(&effects, other).is_empty(), "it has no process");
    assert_eq!(holds(&effects, other), [], "it still runs there");
    let effects = bench.end(root, TASK, crate::outcome::Outcome::Killed);
    assert_eq!(holds(&effects, other), [false]);
}

#[test]
fn all_nodes_are_of_one_group() {
    let mut bench = Bench::new();
    let of = |bench: &mut Bench, group: &'static str| {
        bench.worker_with(1, |config| config.group = group.into())
    };
    let (a, b) = (of(&mut bench, "a"), of(&mut bench, "b"));
    bench.submit(gang(1, 2));
    assert!(bench.has(a).is_empty() && bench.has(b).is_empty());
    let second = of(&mut bench, "b");
    assert_eq!(bench.has(a), []);
    root_of(&bench, &[b, second]);
}

#[test]
fn small_tasks_do_not_keep_a_multi_node_task_waiting_for_ever() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    bench.submit(tasks(2));
    let large = bench.submit(gang(1, 2));
    let small = bench.submit(tasks(200));
    for _ in 0..200 {
        if bench.phase(key(large, 0)) != Phase::Waiting {
            assert!(bench.counts(small).finished < 150, "before its turn");
            return;
        }
        bench.wait(Duration::from_millis(300));
        for worker in workers {
            if let Some((job, task)) = bench.has(worker).first().copied() {
                bench.finish(worker, key(JobId(job), task));
            }
        }
    }
    panic!("it never got its nodes");
}

#[test]
fn a_node_that_is_held_hears_so_again_when_it_comes_back() {
    let (mut bench, root, other) = running();
    bench.cut(other);
    let effects = bench.come_back(other);
    assert_eq!(holds(&effects, other), [true]);
    bench.cut(root);
    let effects = bench.come_back(root);
    assert_eq!(holds(&effects, root), [], "it is the root");
    assert_eq!(bench.phase(TASK), Phase::Running);
}

#[test]
fn a_multi_node_task_goes_on_through_a_restart() {
    let (mut bench, root, other) = running();
    bench.restart();
    bench.come_back(other);
    bench.come_back(root);
    bench.submit(tasks(1));
    assert_eq!(bench.has(other), [], "it is a node of it");
    let effects = bench.finish(root, TASK);
    assert_eq!(bench.phase(TASK), Phase::Finished);
    assert_eq!(holds(&effects, other), [false]);
    assert_eq!(bench.instance(TASK), 0);
}

#[test]
fn a_multi_node_task_whose_root_stays_away_after_a_restart_gets_other_nodes() {
    let mut bench = Bench::new();
    let workers = [bench.mortal(1), bench.mortal(1)];
    bench.submit(gang(1, 2));
    let (root, others) = root_of(&bench, &workers);
    bench.start(root, TASK);
    bench.restart();
    bench.come_back(others[0]);
    let fresh = bench.worker(1);
    bench.wait(SILENCE_MAX / 2);
    bench.heartbeat(others[0]);
    bench.wait(SILENCE_MAX / 2);
    assert_eq!(bench.instance(TASK), 1);
    root_of(&bench, &[others[0], fresh]);
}

#[test]
fn equal_multi_node_tasks_run_one_after_the_other_and_none_takes_the_nodes_of_another() {
    let mut bench = Bench::new();
    let workers: Vec<WorkerId> = (0..4).map(|_| bench.worker(1)).collect();
    let job = bench.submit(gang(6, 2));
    let mut most = 0;
    for _ in 0..6 {
        bench.wait(Duration::from_millis(300));
        let has = |worker: &&WorkerId| !bench.has(**worker).is_empty();
        let busy: Vec<WorkerId> = workers.iter().filter(has).copied().collect();
        most = most.max(busy.len());
        let Some(root) = busy.first().copied() else {
            break;
        };
        let (_, task) = bench.has(root)[0];
        bench.finish(root, key(job, task));
    }
    assert_eq!(most, 2, "two at a time");
    assert_eq!(bench.counts(job).finished, 6);
}

#[test]
fn nodes_that_are_assigned_are_stored_with_the_root_first() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    let effects = bench.request(crate::server_state::Command::Submit(Box::new(gang(1, 2))));
    let (root, others) = root_of(&bench, &workers);
    let is_it = |change: &ChangeKind| {
        matches!(change, ChangeKind::NodesAssigned { nodes, .. }
            if **nodes == [root, others[0]])
    };
    assert!(is_stored_at_once(&effects, is_it), "{effects:?}");
}
