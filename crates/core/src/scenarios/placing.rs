//! Placement: priorities, reserved room, remaining lifetimes, and retracted tasks.

use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::server_state::{Command, Input, WorkerMessage};
use crate::task::Phase;
use crate::testing::{worker_config, workers_wanted};
use crate::worker::Unkillable;
use crate::worker_config::WorkerConfig;

const MOMENT: Duration = Duration::from_millis(300);

#[test]
fn urgent_tasks_go_first_whenever_they_were_submitted() {
    let mut bench = Bench::new();
    let low = bench.submit(urgent(1, -1));
    let middle = bench.submit(urgent(1, 0));
    let high = bench.submit(urgent(1, 7));
    let worker = bench.worker(1);
    let mut order = Vec::new();
    while let Some((job, task)) = first_placed(&bench, worker) {
        order.push(JobId(job));
        bench.finish(worker, key(JobId(job), task));
    }
    assert_eq!(order, [high, middle, low]);
}

/// Returns the first task placed on a worker.
fn first_placed(bench: &Bench, worker: WorkerId) -> Option<(u32, u32)> {
    let worker = &bench.state.workers()[&worker];
    let mut placed = worker.assigned().iter().filter(|(_, a)| a.placed);
    placed.next().map(|(task, _)| (task.job.0, task.task.0))
}

#[test]
fn equal_tasks_go_in_the_order_of_their_submits() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.submit(tasks(2));
    }
    let worker = bench.worker(1);
    let mut order = Vec::new();
    while let Some(next) = first_placed(&bench, worker) {
        order.push(next);
        bench.finish(worker, key(JobId(next.0), next.1));
    }
    assert_eq!(order, [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]);
}

#[test]
fn a_task_that_fits_nowhere_holds_nobody_up() {
    let (mut bench, worker) = Bench::with_worker(2);
    let never = bench.submit(tasks_with(1, |task| {
        task.requests = cpus_of(64);
        task.priority = 100;
    }));
    let other = bench.submit(tasks(2));
    assert_eq!(bench.has(worker), [(other.0, 0), (other.0, 1)]);
    assert_eq!(bench.phase(key(never, 0)), Phase::Waiting);
}

#[test]
fn tasks_run_beside_each_other_as_far_as_they_fit() {
    let (mut bench, worker) = Bench::with_worker(5);
    bench.submit(wide(4, 2));
    let worker = &bench.state.workers()[&worker];
    assert_eq!(worker.placed_len(), 2, "two of two cpus in five");
    bench.state.check_invariants();
    bench.submit(tasks(1));
}

#[test]
fn an_urgent_task_starts_before_less_urgent_ones_that_were_sent_ahead() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(urgent(3, 0));
    let high = bench.submit(urgent(1, 5));
    assert!(bench.has(worker).contains(&(high.0, 0)), "it is sent ahead");
}

#[test]
fn a_task_goes_only_where_enough_time_is_left() {
    let mut bench = Bench::new();
    let short = bench.worker_with(1, |config| {
        config.time_limit = Some(Duration::from_secs(60))
    });
    let job = bench.submit(tasks_with(1, |task| {
        let request = ResourceRequest {
            min_time: Duration::from_secs(100),
            ..ResourceRequest::cpus(1)
        };
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    }));
    assert_eq!(bench.has(short), []);
    let long = bench.worker_with(1, |config| {
        config.time_limit = Some(Duration::from_secs(200))
    });
    assert_eq!(bench.has(long), [(job.0, 0)]);
}

#[test]
fn time_that_has_passed_is_not_left() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(1, |config| {
        config.time_limit = Some(Duration::from_secs(60))
    });
    bench.wait(Duration::from_secs(50));
    bench.submit(tasks_with(1, |task| {
        let request = ResourceRequest {
            min_time: Duration::from_secs(30),
            ..ResourceRequest::cpus(1)
        };
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    }));
    assert_eq!(bench.has(worker), []);
}

#[test]
fn the_second_variant_is_used_where_the_first_does_not_fit() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(tasks_with(1, |task| {
        let variants = vec![ResourceRequest::cpus(4), ResourceRequest::cpus(2)];
        task.requests = RequestVariants::new(variants).expect("valid");
    }));
    let worker = &bench.state.workers()[&worker];
    let variants: Vec<u32> = worker.assigned().values().map(|a| a.variant).collect();
    assert_eq!(variants, [1]);
}

/// A request that no worker can serve keeps the queue non-empty, and prevents the idle worker from
/// being examined again.
#[test]
fn what_fits_nowhere_keeps_no_task_behind_a_busy_worker() {
    let (mut bench, busy) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(busy, key(job, 0));
    bench.submit(tasks_with(1, |task| {
        task.requests = RequestVariants::new(vec![ResourceRequest::cpus(4)]).expect("valid");
    }));
    let idle = bench.worker(1);
    let effects = bench.wait(MOMENT);
    assert_eq!(asked_back(&effects, busy), [key(job, 1)]);
    bench.give_back(busy, key(job, 1));
    assert_eq!(bench.has(idle), [(1, 1)]);
}

#[test]
fn an_idle_worker_gets_what_was_sent_ahead_to_another() {
    let (mut bench, busy) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(busy, key(job, 0));
    assert_eq!(bench.has(busy), [(1, 0), (1, 1)]);
    let idle = bench.worker(1);
    let effects = bench.wait(MOMENT);
    assert_eq!(asked_back(&effects, busy), [key(job, 1)]);
    bench.give_back(busy, key(job, 1));
    assert_eq!(bench.has(idle), [(1, 1)]);
    assert_eq!(bench.instance(key(job, 1)), 0, "it never ran");
}

#[test]
fn a_task_that_started_before_it_was_asked_back_stays() {
    let (mut bench, busy) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(busy, key(job, 0));
    let idle = bench.worker(1);
    bench.wait(MOMENT);
    bench.finish(busy, key(job, 0));
    bench.start(busy, key(job, 1));
    assert_eq!(bench.phase(key(job, 1)), Phase::Running);
    assert_eq!(bench.has(idle), []);
    bench.finish(busy, key(job, 1));
    assert_eq!(bench.counts(job).finished, 2);
}

#[test]
fn nobody_is_asked_twice_for_one_task() {
    let (mut bench, busy) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(busy, key(job, 0));
    bench.worker(1);
    let effects = bench.wait(MOMENT * 20);
    assert_eq!(asked_back(&effects, busy).len(), 1);
}

#[test]
fn a_task_that_does_not_start_where_it_was_placed_is_asked_back() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(2));
    bench.start(worker, key(job, 0));
    let other = bench.worker(2);
    let effects = bench.wait(Duration::from_secs(2));
    assert_eq!(asked_back(&effects, worker), [key(job, 1)]);
    bench.give_back(worker, key(job, 1));
    assert_eq!(bench.has(other), [(1, 1)], "not there again");
}

#[test]
fn a_task_that_has_waited_long_on_its_worker_has_time_to_start_when_there_is_room() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.worker_with(2, |config| config.min_utilization = 1.0);
    let job = bench.submit(tasks(1_000));
    let sent: Vec<u32> = bench.has(worker).iter().map(|(_, task)| *task).collect();
    for task in &sent[..2] {
        bench.start(worker, key(job, *task));
    }
    bench.wait(Duration::from_secs(10));
    bench.finish(worker, key(job, sent[0]));
    bench.start(worker, key(job, sent[2]));
    // The next search for stuck tasks is due two milliseconds later.
    bench.wait(Duration::from_millis(248));
    bench.finish(worker, key(job, sent[1]));
    let effects = bench.wait(Duration::from_millis(3));
    assert_eq!(asked_back(&effects, worker), []);
}

/// Tasks queued on one worker are examined again only if that can change anything.
#[test]
fn what_nobody_else_can_take_stays_where_it_waits() {
    let demanding = |cpus| {
        move |config: &mut WorkerConfig| {
            config.resources = worker_config(cpus).resources;
            config.min_utilization = 1.0;
        }
    };
    // Each case has the number of tasks queued behind two running ones, the joining worker, and the
    // number of tasks that go there.
    let cases = [
        (2, demanding(4), 0),
        (2, demanding(2), 2),
        (1, demanding(2), 0),
    ];
    for (behind, join, moved) in cases {
        let (mut bench, worker) = Bench::with_worker(2);
        let job = bench.submit(tasks(2 + behind));
        for task in 0..2 {
            bench.start(worker, key(job, task));
        }
        assert_eq!(bench.has(worker).len(), 2 + behind as usize);
        bench.wait(Duration::from_secs(10));
        let other = bench.worker_with(1, join);
        for _ in 0..20 {
            let assigned = bench.state.workers()[&worker].assigned().iter();
            let asked = assigned.filter(|(_, assigned)| assigned.retracting);
            let asked: Vec<TaskKey> = asked.map(|(task, _)| *task).collect();
            if !asked.is_empty() {
                bench.give_all_back(worker, &asked);
            }
            bench.wait(Duration::from_millis(10));
        }
        assert_eq!(bench.has(other).len(), moved, "{behind}");
        for (_, task) in bench.has(other) {
            bench.start(other, key(job, task));
        }
        bench.wait(Duration::from_secs(10));
        assert!(bench.is_quiet(), "{behind}");
    }
}

#[test]
fn a_full_worker_and_a_backlog_elsewhere_wake_nobody_up() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(2));
    for task in 0..2 {
        bench.start(worker, key(job, task));
    }
    let other = bench.worker(2);
    let wide = bench.submit(wide(2, 2));
    bench.start(other, key(wide, 0));
    bench.finish(worker, key(job, 0));
    bench.wait(Duration::from_secs(10));
    assert_eq!(bench.has(other).len() + bench.has(worker).len(), 3);
    assert!(bench.is_quiet(), "the second one has nowhere to go");
}

#[test]
fn a_worker_is_sent_little_ahead_before_anybody_knows_how_fast_it_is() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(tasks(10_000));
    let first = bench.has(worker).len();
    assert!((2..=10).contains(&first), "{first}");
    for _ in 0..200 {
        bench.wait(Duration::from_millis(1));
        let (job, task) = first_placed(&bench, worker).expect("there is work");
        bench.finish(worker, key(JobId(job), task));
    }
    let later = bench.has(worker).len();
    assert!(later > first, "{later}: it ends a thousand in a second");
}

#[test]
fn what_cannot_be_killed_keeps_its_cpu_from_others() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    let task = key(job, 0);
    bench.start(worker, task);
    let hung = Unkillable {
        task,
        instance: bench.record(task).instance(),
        pid: Some(7),
    };
    bench.say(
        worker,
        WorkerMessage::Heartbeat {
            unkillable: vec![hung],
            held: Vec::new(),
            faults: Vec::new(),
            sent: None,
        },
    );
    bench.cancel(job);
    let next = bench.submit(tasks(1));
    assert_eq!(first_placed(&bench, worker), Some((job.0, 0)));
    assert_eq!(bench.state.workers()[&worker].unkillable(), [hung]);
    bench.end(worker, task, Outcome::Killed);
    assert_eq!(first_placed(&bench, worker), Some((next.0, 0)));
}

#[test]
fn a_worker_that_takes_enough_or_nothing_waits_for_enough() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(4, |config| config.min_utilization = 0.75);
    bench.submit(tasks(2));
    bench.wait(MOMENT);
    assert_eq!(bench.has(worker), []);
    bench.submit(tasks(1));
    bench.wait(MOMENT);
    assert_eq!(bench.has(worker).len(), 3);
}

#[test]
fn what_waits_at_a_worker_takes_its_place_with_all_that_fits_beside_it() {
    let (mut bench, worker) = Bench::with_worker(4);
    let first = bench.submit(wide(1, 4));
    bench.start(worker, key(first, 0));
    let high = bench.submit(tasks_with(1, |task| {
        task.requests = cpus_of(2);
        task.priority = 5;
    }));
    let low = bench.submit(tasks(1));
    bench.wait(MOMENT);
    let ahead = [(first.0, 0), (high.0, 0), (low.0, 0)];
    assert_eq!(bench.has(worker), ahead);
    let ended = bench.end_report(worker, key(first, 0), Outcome::Finished);
    bench.step(Input::WorkerMessage(worker, WorkerMessage::Report(ended)));
    assert_eq!(bench.state.workers()[&worker].placed_len(), 2);
}

#[test]
fn what_comes_back_together_with_what_is_waited_for_is_not_kept() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(4, |config| {
        config.resources.items.push(ResourceItem {
            name: "mem".into(),
            kind: ResourceKind::Sum(Amount::whole(4)),
        });
    });
    let with_memory = |cpus: u32, mem: u32, priority: i32| {
        tasks_with(1, |task| {
            let mut request = ResourceRequest::cpus(cpus);
            request.entries.push(ResourceEntry {
                resource: "mem".into(),
                amount: Amount::whole(mem),
                policy: Policy::Compact,
            });
            task.requests = RequestVariants::new(vec![request]).expect("valid");
            task.priority = priority;
        })
    };
    let first = bench.submit(with_memory(2, 2, 0));
    bench.start(worker, key(first, 0));
    // The request lacks a cpu. Any task end that frees a cpu also frees two units of memory.
    let urgent = bench.submit(with_memory(3, 2, 5));
    let small = bench.submit(with_memory(1, 2, 0));
    let is_placed = |job: JobId| {
        let assigned = bench.state.workers()[&worker].assigned();
        assigned.get(&key(job, 0)).is_some_and(|a| a.placed)
    };
    assert_eq!([urgent, small].map(is_placed), [false, true]);
}

/// Returns the number of workers with this many cpus that automatic allocation would request.
fn wanted(bench: &Bench, cpus: u64) -> u32 {
    workers_wanted(&bench.state, bench.now.mono, cpus)
}

#[test]
fn what_was_sent_ahead_asks_for_no_worker_once_one_has_room_for_it() {
    let (mut bench, busy) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    bench.start(busy, key(job, 0));
    bench.skip(Duration::from_secs(10));
    assert_eq!(wanted(&bench, 1), 2, "two wait behind the one that runs");
    bench.worker(1);
    assert_eq!(wanted(&bench, 1), 1, "one has gone there");
    let room = bench.worker_with(4, |config| {
        config.time_limit = Some(Duration::from_secs(60));
    });
    assert_eq!(bench.has(room), [], "it is asked back first");
    assert_eq!(wanted(&bench, 1), 0, "it will go there");
    bench.request(Command::StopWorkers(this(room)));
    assert_eq!(
        wanted(&bench, 1),
        1,
        "there is nothing where a worker is about to end"
    );
}

#[test]
fn room_for_something_smaller_is_none() {
    let (mut bench, busy) = Bench::with_worker(2);
    let job = bench.submit(wide(2, 2));
    bench.start(busy, key(job, 0));
    bench.skip(Duration::from_secs(10));
    bench.worker(1);
    assert_eq!(wanted(&bench, 2), 1);
}

#[test]
fn room_beside_a_backlog_is_none_because_nothing_is_moved_there() {
    let (mut bench, narrow) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(narrow, key(job, 0));
    let two_cpus = bench.submit(wide(3, 2));
    let roomy = bench.worker(3);
    bench.start(roomy, key(two_cpus, 0));
    assert!(bench.has(roomy).len() > 1, "something waits there");
    bench.skip(Duration::from_secs(10));
    assert!(bench.has(narrow).contains(&(job.0, 1)), "it stays");
    assert_eq!(wanted(&bench, 1), 1);
}
