//! Tasks that are sent together with their predecessor.

use std::sync::Arc;
use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::job::JobState;
use crate::outcome::{LostReason, Outcome};
use crate::range::IdArray;
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::server_state::{Command, Report};
use crate::task::Phase;
use crate::template::{CrashLimit, SubmitBody, SubmitSpec};
use crate::testing::template;
use crate::worker_config::OnServerLost;

const JOB: JobId = JobId(1);
const FIRST: TaskKey = key(JOB, 0);
const SECOND: TaskKey = key(JOB, 1);

/// The maximum number of tasks sent ahead.
const AHEAD_MAX: usize = 32;

/// Returns a server whose tasks are short.
fn brief() -> Bench {
    let mut bench = Bench::new();
    bench.run_for(Duration::from_millis(2));
    bench
}

/// Returns a worker with this many cpus and short tasks.
fn short(cpus: u32) -> (Bench, WorkerId) {
    let mut bench = brief();
    let worker = bench.worker(cpus);
    (bench, worker)
}

/// Returns a chain of tasks whose ids start at 0.
fn chain(count: u32) -> SubmitSpec {
    let deps: Vec<(u32, Vec<u32>)> = (0..count)
        .map(|id| (id, id.checked_sub(1).into_iter().collect()))
        .collect();
    let links: Vec<(u32, &[u32])> = deps.iter().map(|(id, deps)| (*id, &deps[..])).collect();
    graph(&links)
}

fn ids(tasks: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    tasks.into_iter().map(|task| (JOB.0, task)).collect()
}

/// Returns a worker with a chain of three tasks, the first of which it can start.
fn with_chain() -> (Bench, WorkerId) {
    let (mut bench, worker) = short(2);
    bench.submit(chain(3));
    assert_eq!(bench.has(worker), ids([0]));
    assert_eq!(bench.has_behind(worker), ids([1, 2]));
    (bench, worker)
}

#[test]
fn a_long_chain_goes_on_without_a_word_from_the_server_for_each_link() {
    let (mut bench, worker) = short(2);
    bench.submit(chain(100));
    assert_eq!(bench.has_behind(worker).len(), AHEAD_MAX);
    let mut messages = 0;
    for task in 0..100 {
        assert_eq!(bench.has(worker), ids([task]));
        let effects = bench.finish(worker, key(JOB, task));
        messages += usize::from(!sent(&effects, worker).is_empty());
        let left = (99 - task as usize).min(AHEAD_MAX / 2);
        assert!(
            bench.has_behind(worker).len() + 1 >= left,
            "more comes in time"
        );
        assert!(bench.has_behind(worker).len() <= AHEAD_MAX);
    }
    assert!(messages <= 6, "{messages} messages");
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn more_comes_in_time_also_if_many_ends_are_told_at_once() {
    for at_once in 1..=20 {
        let (mut bench, worker) = short(2);
        bench.submit(chain(100));
        let mut left = 0..100;
        while !left.is_empty() {
            let mut all = Report::default();
            for task in left.by_ref().take(at_once) {
                let end = bench.end_report(worker, key(JOB, task), Outcome::Finished);
                all.ended.extend(end.ended);
                all.seq = end.seq;
            }
            bench.report(worker, all);
            let missing = (left.len()).min(AHEAD_MAX / 2);
            let there = bench.has(worker).len() + bench.has_behind(worker).len();
            // If many tasks end at once, some of the next ones are requested at a low-water mark.
            assert!(
                at_once > 16 || there >= missing,
                "{at_once}: {there} of {missing}"
            );
        }
        assert_eq!(bench.job_state(JOB), JobState::Finished);
    }
}

#[test]
fn tasks_that_take_long_are_sent_when_it_is_their_turn() {
    let (mut bench, worker) = short(2);
    bench.run_for(Duration::from_secs(1));
    bench.submit(chain(5));
    assert_eq!(bench.has_behind(worker).len(), 4, "nobody knows yet");
    bench.give_back(worker, SECOND);
    bench.finish(worker, FIRST);
    assert_eq!(bench.has(worker), ids([1]));
    assert_eq!(bench.has_behind(worker), []);
}

#[test]
fn it_goes_on_also_if_the_start_of_a_link_is_told_with_the_end_before_it() {
    let (mut bench, worker) = short(2);
    bench.submit(chain(100));
    for task in 0..99 {
        let end = bench.end_report(worker, key(JOB, task), Outcome::Finished);
        let next = key(JOB, task + 1);
        let report = Report {
            started: vec![started_row(next, crate::id::InstanceId(0))],
            ..end
        };
        bench.report(worker, report);
        assert_eq!(bench.phase(next), Phase::Running);
    }
    bench.finish(worker, key(JOB, 99));
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn a_successor_takes_no_room_before_its_turn() {
    let (mut bench, worker) = with_chain();
    let other = bench.submit(tasks(1));
    assert_eq!(
        bench.has(worker),
        [(1, 0), (other.0, 0)],
        "the second cpu is free"
    );
    let third = bench.submit(tasks(1));
    bench.finish(worker, FIRST);
    assert_eq!(bench.state.workers()[&worker].placed_len(), 2);
    bench.finish_all();
    for job in [JOB, other, third] {
        assert_eq!(bench.job_state(job), JobState::Finished);
    }
}

#[test]
fn what_goes_on_from_a_failed_task_is_given_up_with_it() {
    let (mut bench, worker) = with_chain();
    bench.fail(worker, FIRST);
    assert_eq!(bench.has_behind(worker), []);
    for task in [1, 2] {
        assert_eq!(bench.phase(key(JOB, task)), Phase::Aborted);
    }
    assert_eq!(bench.job_state(JOB), JobState::Failed);
    assert_eq!(bench.state.workers()[&worker].assigned().len(), 0);
}

#[test]
fn what_goes_on_from_a_task_that_is_tried_again_waits_for_that() {
    for delay in [Duration::ZERO, Duration::from_secs(60)] {
        let (mut bench, worker) = short(2);
        let mut task = template(&["true"]);
        task.retry.limit = 1;
        task.retry.delay = delay;
        bench.submit(graph_of(task, &[(0, &[]), (1, &[0]), (2, &[1])]));
        bench.fail(worker, FIRST);
        bench.wait(delay);
        assert_eq!(bench.has(worker), ids([0]));
        bench.finish(worker, FIRST);
        assert_eq!(bench.has(worker), ids([1]));
        bench.fail(worker, SECOND);
        bench.wait(delay);
        bench.finish_all();
        assert_eq!(bench.job_state(JOB), JobState::Finished);
    }
}

#[test]
fn nothing_is_sent_ahead_while_something_else_could_use_the_room() {
    let (mut bench, worker) = short(1);
    // Two chains begin on one cpu, and neither may occupy it alone.
    let deps: &[(u32, &[u32])] = &[(0, &[]), (1, &[0]), (2, &[]), (3, &[2]), (4, &[])];
    bench.submit(graph(deps));
    bench.submit(tasks(100));
    assert_eq!(bench.has_behind(worker), []);
    // Tasks that already wait on the worker count as well.
    let (mut bench, worker) = short(1);
    bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[2])]));
    assert_eq!(
        (bench.has(worker), bench.has_behind(worker)),
        (ids([0, 2]), vec![])
    );
    // Once another task is waiting, no more tasks of the chain are sent.
    let (mut bench, worker) = short(1);
    bench.submit(chain(100));
    let other = bench.submit(tasks(1));
    let (mut runs, mut before_it) = (FIRST, 0);
    while runs.job != other {
        let end = bench.end_report(worker, runs, Outcome::Finished);
        // The worker starts the tasks that it already has before tasks that this end may bring.
        let (job, task) = *bench.has(worker).first().expect("one waits here");
        bench.report(worker, end);
        runs = key(JobId(job), task);
        before_it += 1;
        assert!(before_it <= 33, "the chain has the worker for itself");
    }
    // A task that no worker can run does not block other tasks.
    let (mut bench, worker) = short(1);
    bench.submit(wide(1, 64));
    bench.submit(chain(3));
    assert_eq!(bench.has_behind(worker), [(2, 1), (2, 2)]);
}

#[test]
fn only_the_one_task_that_waits_for_another_is_sent_with_it() {
    let cases: &[&[(u32, &[u32])]] = &[
        // A fork, and a join of parallel tasks.
        &[(0, &[]), (1, &[0]), (2, &[0])],
        &[(0, &[]), (1, &[]), (2, &[0, 1])],
    ];
    for deps in cases {
        let (mut bench, worker) = short(4);
        bench.submit(graph(deps));
        assert_eq!(bench.has_behind(worker), [], "{deps:?}");
        bench.finish_all();
        assert_eq!(bench.job_state(JOB), JobState::Finished);
    }
    // The last task of the join has no other unfinished dependency.
    let (mut bench, worker) = short(1);
    bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[0]), (3, &[1, 2])]));
    bench.finish(worker, FIRST);
    bench.finish(worker, SECOND);
    assert_eq!(bench.has(worker), ids([2]));
    bench.finish_all();
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn a_task_of_another_request_is_placed_anew() {
    let (mut bench, worker) = short(4);
    let mut spec = chain(2);
    let SubmitBody::Graph(graph) = &mut spec.body else {
        panic!("a graph");
    };
    let mut wide = template(&["true"]);
    wide.requests = cpus_of(4);
    graph.templates.push(Arc::new(wide));
    graph.tasks[1].template = 1;
    bench.submit(spec);
    assert_eq!(bench.has_behind(worker), []);
    bench.finish_all();
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn workers_that_end_with_their_server_and_those_of_an_earlier_release_get_none() {
    for how in [OnServerLost::Stop, OnServerLost::FinishRunning] {
        let mut bench = brief();
        let worker = bench.worker_with(2, |config| config.on_server_lost = how);
        bench.submit(chain(3));
        assert_eq!(bench.has_behind(worker), []);
    }
    // This does not apply if the server has no store and so does not survive its own end.
    let mut bench = brief();
    bench.state = crate::server_state::ServerState::without_store("test");
    let worker = bench.worker_with(2, |config| config.on_server_lost = OnServerLost::Stop);
    bench.submit(chain(3));
    assert_eq!(bench.has_behind(worker), ids([1, 2]));
    let mut bench = brief();
    let worker = bench.worker_with(2, |config| config.takes_successors = false);
    bench.submit(chain(3));
    assert_eq!(bench.has_behind(worker), []);
    bench.finish_all();
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn a_chain_goes_back_to_its_best_variant_when_that_has_room() {
    let (mut bench, worker) = short(4);
    let in_the_way = bench.submit(tasks(1));
    bench.start(worker, key(in_the_way, 0));
    let mut task = template(&["true"]);
    let variants = [4, 1].map(ResourceRequest::cpus);
    task.requests = RequestVariants::new(variants.to_vec()).expect("valid");
    let chain = graph_of(task, &[(0, &[]), (1, &[0]), (2, &[1]), (3, &[2])]);
    let job = bench.submit(chain);
    let variant = |bench: &Bench, task| {
        let worker = &bench.state.workers()[&worker];
        worker.assigned().get(&key(job, task)).map(|a| a.variant)
    };
    assert_eq!(variant(&bench, 0), Some(1), "one cpu is taken");
    bench.finish(worker, key(in_the_way, 0));
    bench.finish(worker, key(job, 0));
    assert_eq!(variant(&bench, 1), Some(0));
    assert_eq!(bench.has_behind(worker), [(job.0, 2), (job.0, 3)]);
}

#[test]
fn what_must_not_start_twice_is_not_started_while_nobody_hears_of_it() {
    for limit in [CrashLimit::NeverRestart, CrashLimit::Max(1)] {
        starts_once(limit);
    }
}

fn starts_once(limit: CrashLimit) {
    let mut bench = brief();
    let worker = bench.mortal(1);
    let mut spec = chain(2);
    let SubmitBody::Graph(graph) = &mut spec.body else {
        panic!("a graph");
    };
    let mut once = template(&["true"]);
    once.crash_limit = limit;
    graph.templates.push(Arc::new(once));
    graph.tasks[1].template = 1;
    bench.submit(spec);
    bench.start(worker, FIRST);
    // The network is silent from now on, and the worker is finally lost.
    bench.end_report(worker, FIRST, Outcome::Finished);
    assert_eq!(bench.has(worker), [], "it has nothing to start");
    bench.wait(SILENCE_MAX + Duration::from_secs(3));
    let other = bench.worker(1);
    bench.finish(other, FIRST);
    assert_eq!(bench.has(other), ids([1]));
}

#[test]
fn what_would_fail_with_its_worker_has_nothing_sent_behind_it() {
    for limit in [CrashLimit::NeverRestart, CrashLimit::Max(1)] {
        let (mut bench, worker) = short(1);
        let mut task = template(&["true"]);
        task.crash_limit = limit;
        let mut spec = graph_of(task, &[(0, &[]), (1, &[0]), (2, &[1])]);
        let SubmitBody::Graph(graph) = &mut spec.body else {
            panic!("a graph");
        };
        graph.templates.push(Arc::new(template(&["true"])));
        graph.tasks[1].template = 1;
        graph.tasks[2].template = 1;
        bench.submit(spec);
        assert_eq!(bench.has_behind(worker), []);
        bench.finish(worker, FIRST);
        assert_eq!(bench.has_behind(worker), ids([2]));
    }
}

/// A task in a chain crashes its worker before the end of the previous task is known.
#[test]
fn a_link_that_brings_workers_down_is_found_out_and_the_others_do_not_fail_for_it() {
    let (mut bench, mut worker) = short(1);
    bench.submit(chain(5));
    for loss in 0..9 {
        for (_, task) in bench.has(worker) {
            bench.start(worker, key(JOB, task));
        }
        // If more tasks follow it, the end of a link is not reported immediately.
        if bench.has_behind(worker).is_empty() && bench.phase(FIRST) == Phase::Running {
            bench.finish(worker, FIRST);
            assert_eq!(bench.has_behind(worker), [], "it may be what does it");
            bench.start(worker, SECOND);
        }
        bench.leave(worker, LostReason::ConnectionLost);
        if bench.phase(SECOND).is_terminal() {
            assert_eq!(loss, 5, "one loss is that of the first link");
            break;
        }
        worker = bench.worker(1);
    }
    assert_eq!(bench.phase(FIRST), Phase::Finished);
    assert_eq!(bench.phase(SECOND), Phase::Failed);
    assert_eq!(bench.job_state(JOB), JobState::Failed);
}

#[test]
fn what_comes_back_again_and_again_is_not_sent_ahead_for_a_while() {
    let (mut bench, worker) = short(1);
    bench.submit(chain(400));
    let mut came_back = 0;
    for task in 0..400 {
        let behind = bench.has_behind(worker);
        came_back += behind.len();
        // Every second link takes a long time.
        if let Some((_, next)) = behind.first().filter(|_| task % 2 == 1) {
            bench.give_back(worker, key(JOB, *next));
        } else {
            came_back -= behind.len();
        }
        bench.finish(worker, key(JOB, task));
    }
    assert!((64..=128).contains(&came_back), "{came_back}");
    assert_eq!(bench.job_state(JOB), JobState::Finished);
    // Later, the tasks may behave differently.
    bench.wait(Duration::from_secs(2));
    let job = bench.submit(chain(40));
    assert_eq!(bench.has_behind(worker).len(), AHEAD_MAX, "of {job}");
}

#[test]
fn now_and_then_some_may_come_back() {
    for starts_early in [false, true] {
        let (mut bench, worker) = short(1);
        bench.submit(chain(2_000));
        let mut came_back = 0;
        for task in 0..1_900 {
            let behind = bench.has_behind(worker);
            if task % 40 == 39 {
                came_back += behind.len();
                let (_, next) = *behind.first().expect("it still pays");
                bench.give_back(worker, key(JOB, next));
                bench.finish(worker, key(JOB, task));
                continue;
            }
            let end = bench.end_report(worker, key(JOB, task), Outcome::Finished);
            // The start of the next task may be reported together with the end of the previous one.
            let next = started_row(key(JOB, task + 1), crate::id::InstanceId(0));
            let started = if starts_early { vec![next] } else { Vec::new() };
            bench.report(worker, Report { started, ..end });
        }
        assert!(came_back > 500, "{came_back}");
    }
}

#[test]
fn with_a_canceled_task_its_successors_are_given_up_and_killed() {
    let (mut bench, worker) = with_chain();
    bench.start(worker, FIRST);
    let effects = bench.request(Command::CancelTasks {
        job: JOB,
        tasks: IdArray::single(FIRST.task.0),
        keep_running: false,
    });
    let mut ended: Vec<u32> = killed(&effects, worker)
        .iter()
        .map(|(task, _)| task.task.0)
        .collect();
    ended.sort_unstable();
    // The end of the first task may be in transit, so the worker may have continued.
    assert_eq!(ended, [0, 1, 2]);
    assert_eq!(bench.phase(SECOND), Phase::Aborted);
    assert_eq!(bench.counts(JOB).unfinished(), 0);
    let end = bench.end_report(worker, FIRST, Outcome::Killed);
    bench.report(worker, end);
    assert_eq!(bench.state.workers()[&worker].assigned().len(), 0);
}

#[test]
fn a_draining_worker_gives_successors_back() {
    let (mut bench, worker) = with_chain();
    bench.start(worker, FIRST);
    let effects = bench.request(Command::DrainWorkers(this(worker)));
    assert_eq!(asked_back(&effects, worker), [SECOND, key(JOB, 2)]);
    bench.give_back(worker, SECOND);
    let other = bench.worker(2);
    bench.finish(worker, FIRST);
    assert_eq!(bench.has(other), ids([1]));
    assert_eq!(bench.has_behind(other), ids([2]), "it goes on there");
}

#[test]
fn if_their_worker_is_lost_they_wait_again_in_order() {
    let (mut bench, worker) = with_chain();
    bench.start(worker, FIRST);
    bench.leave(worker, LostReason::ConnectionLost);
    let other = bench.worker(2);
    for task in 0..3 {
        assert_eq!(bench.has(other), ids([task]));
        bench.finish(other, key(JOB, task));
    }
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}

#[test]
fn after_a_lost_connection_or_server_they_are_the_servers_again() {
    for is_restart in [false, true] {
        let (mut bench, worker) = with_chain();
        bench.start(worker, FIRST);
        if is_restart {
            bench.restart();
        } else {
            bench.cut(worker);
        }
        bench.come_back(worker);
        assert_eq!(bench.has(worker), ids([0]));
        for task in 0..3 {
            bench.finish(worker, key(JOB, task));
        }
        assert_eq!(bench.job_state(JOB), JobState::Finished);
    }
}

#[test]
fn a_chain_goes_on_while_the_disk_takes_nothing() {
    let (mut bench, worker) = short(2);
    bench.submit(chain(40));
    bench.slow_disk();
    for task in 0..40 {
        assert_eq!(bench.has(worker), ids([task]));
        bench.finish(worker, key(JOB, task));
    }
    bench.commit();
    assert_eq!(bench.job_state(JOB), JobState::Finished);
}
