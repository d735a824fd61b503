//! Attempts that request more of the resource that the previous attempt exhausted.

use std::time::Duration;

use super::bench::*;
use crate::growth::{Growth, MEMORY, memory};
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome};
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::server_state::{Effect, WorkerCommand};
use crate::task::Phase;
use crate::template::{SubmitSpec, TaskTemplate};

const TASK: TaskKey = key(JobId(1), 0);
const MINUTE: Duration = Duration::from_secs(60);

fn request(mebibytes: u32) -> ResourceRequest {
    let mut request = ResourceRequest::cpus(1);
    request.entries.push(ResourceEntry {
        resource: MEMORY.into(),
        policy: Policy::Compact,
        amount: Amount::whole(mebibytes),
    });
    request
}

/// Returns tasks that request a gibibyte and a minute, which are doubled when exhausted.
fn growing(count: u32, change: impl FnOnce(&mut TaskTemplate)) -> SubmitSpec {
    tasks_with(count, |task| {
        task.requests = RequestVariants::new(vec![request(1_024)]).expect("valid");
        task.time_limit = Some(MINUTE);
        task.retry.limit = 9;
        task.retry.delay = Duration::ZERO;
        task.retry.grow.memory = Some(Growth {
            permille: 2_000,
            max: None,
        });
        task.retry.grow.time = Some(Growth {
            permille: 2_000,
            max: None,
        });
        change(task);
    })
}

fn worker_of(bench: &mut Bench, cpus: u32, mebibytes: u32) -> WorkerId {
    bench.worker_with(cpus, |config| {
        config.resources.items.push(ResourceItem {
            name: MEMORY.into(),
            kind: ResourceKind::Sum(Amount::whole(mebibytes)),
        });
    })
}

/// Returns the memory in MiB and the time limit that a task is granted.
fn gets(bench: &Bench, task: TaskKey) -> (u64, Duration) {
    let job = &bench.state.jobs()[&task.job];
    let slot = job.find(task.task).expect("it exists");
    let template = job.submits[slot.submit as usize]
        .template(slot.index)
        .expect("it has one");
    let memory = memory(&template.task.requests).expect("it asks for some");
    let limit = template.task.time_limit.expect("it has one");
    (memory.whole_part(), limit)
}

fn out_of_memory(bench: &mut Bench, worker: WorkerId, task: TaskKey) -> Vec<Effect> {
    bench.end(worker, task, Outcome::OutOfMemory(None))
}

#[test]
fn an_attempt_behind_one_that_was_out_of_memory_gets_more_of_it() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 8_192);
    bench.submit(growing(1, |_| {}));
    let effects = out_of_memory(&mut bench, worker, TASK);
    assert_eq!(gets(&bench, TASK), (2_048, MINUTE));
    // The worker receives the new template.
    let sent = effects.iter().find_map(|effect| {
        let Effect::ToWorker(_, WorkerCommand::Assign { templates, .. }) = effect else {
            return None;
        };
        templates.first()
    });
    let sent = sent.expect("it is sent a template");
    assert_eq!(memory(&sent.task.requests), Some(Amount::whole(2_048)));
    bench.end(worker, TASK, Outcome::TimeLimit);
    assert_eq!(gets(&bench, TASK), (2_048, MINUTE * 2));
    bench.fail(worker, TASK);
    assert_eq!(
        gets(&bench, TASK),
        (2_048, MINUTE * 2),
        "no more cures that"
    );
    bench.finish(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Finished);
}

#[test]
fn what_grew_waits_for_a_worker_that_is_large_enough() {
    let mut bench = Bench::new();
    let small = worker_of(&mut bench, 4, 1_024);
    let large = worker_of(&mut bench, 1, 4_096);
    // The large worker's only cpu is occupied.
    let busy = bench.submit(tasks_with(1, |task| {
        task.priority = 9;
        task.requests = RequestVariants::new(vec![request(3_000)]).expect("valid");
    }));
    bench.submit(growing(1, |_| {}));
    let task = key(JobId(2), 0);
    assert_eq!(bench.has(small), [(2, 0)]);
    out_of_memory(&mut bench, small, task);
    assert_eq!(bench.has(small), []);
    bench.finish(large, key(busy, 0));
    assert_eq!(bench.has(large), [(2, 0)]);
    assert_eq!(gets(&bench, task).0, 2_048);
}

#[test]
fn nothing_grows_beyond_the_largest_that_could_run_it() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 2, 3_000);
    // This worker has more memory, but not enough cpus.
    worker_of(&mut bench, 1, 64_000);
    bench.submit(growing(1, |task| {
        let mut request = request(1_000);
        request.entries[0].amount = Amount::whole(2);
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    }));
    let mut sizes = Vec::new();
    for _ in 0..3 {
        out_of_memory(&mut bench, worker, TASK);
        sizes.push(gets(&bench, TASK).0);
    }
    assert_eq!(sizes, [2_000, 3_000, 3_000]);
    assert_eq!(bench.has(worker), [(1, 0)], "it still fits");
}

#[test]
fn what_an_allocation_would_offer_counts() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 1_500);
    bench.add_queue(&[("cpus", 640_000), (MEMORY, 60_000_000)], MINUTE * 60);
    bench.submit(growing(1, |_| {}));
    out_of_memory(&mut bench, worker, TASK);
    assert_eq!(gets(&bench, TASK).0, 2_048);
    assert_eq!(bench.has(worker), []);
}

#[test]
fn tasks_that_grew_alike_share_a_template_and_the_others_keep_theirs() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 4, 64_000);
    let job = bench.submit(growing(4, |_| {}));
    for task in [1, 3] {
        out_of_memory(&mut bench, worker, key(job, task));
    }
    let submit = &bench.state.jobs()[&job].submits[0];
    let ids: Vec<_> = (0..4)
        .map(|index| submit.template(index).expect("it has one").id)
        .collect();
    assert_eq!(ids[1], ids[3]);
    assert_eq!(ids[0], ids[2]);
    assert_ne!(ids[0], ids[1]);
    let earlier = submit.definition_at(1, InstanceId(0)).expect("it has one");
    let asked = submit.definition(0).expect("it has one");
    assert_eq!(earlier, asked, "what the first attempt got is known");
    // The worker drops all templates when the job ends.
    bench.finish_all();
    assert!(!bench.state.workers()[&worker].knows_templates());
}

#[test]
fn a_restart_forgets_no_growth() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 2, 8_192);
    let job = bench.submit(growing(2, |task| {
        task.retry.delay = Duration::from_secs(5);
    }));
    out_of_memory(&mut bench, worker, TASK);
    bench.leave(worker, LostReason::Stopped);
    bench.restart();
    assert_eq!(gets(&bench, TASK).0, 2_048);
    assert_eq!(gets(&bench, key(job, 1)).0, 1_024);
    let small = worker_of(&mut bench, 2, 1_024);
    assert_eq!(bench.has(small), [(1, 1)]);
    let large = worker_of(&mut bench, 2, 2_048);
    bench.wait(Duration::from_secs(5));
    assert_eq!(bench.has(large), [(1, 0)]);
    out_of_memory(&mut bench, large, TASK);
    bench.restart();
    assert_eq!(gets(&bench, TASK).0, 2_048, "nobody offered more");
}

#[test]
fn a_cancel_ends_what_grew_and_what_did_not() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 1_500);
    worker_of(&mut bench, 2, 64_000);
    let job = bench.submit(growing(30, |_| {}));
    for _ in 0..3 {
        let (job, task) = bench.has(worker)[0];
        out_of_memory(&mut bench, worker, key(JobId(job), task));
    }
    bench.cancel(job);
    assert_eq!(bench.counts(job).unfinished(), 0);
    bench.state.check_invariants();
}

/// Returns a single-node task that requires a worker with eight minutes left, which is its time
/// limit.
fn timed(request: ResourceRequest) -> SubmitSpec {
    growing(1, |task| {
        let request = ResourceRequest {
            min_time: MINUTE * 8,
            ..request
        };
        task.requests = RequestVariants::new(vec![request]).expect("valid");
        task.time_limit = Some(MINUTE * 8);
    })
}

fn short_lived(bench: &mut Bench, minutes: u32, mebibytes: u32) -> WorkerId {
    bench.worker_with(4, |config| {
        config.time_limit = Some(MINUTE * minutes);
        config.resources.items.push(ResourceItem {
            name: MEMORY.into(),
            kind: ResourceKind::Sum(Amount::whole(mebibytes)),
        });
    })
}

#[test]
fn a_time_request_never_grows_beyond_what_a_worker_has_left() {
    let mut bench = Bench::new();
    let worker = short_lived(&mut bench, 20, 8_192);
    bench.skip(MINUTE);
    bench.submit(timed(request(1_024)));
    for _ in 0..3 {
        assert_eq!(bench.has(worker), [(1, 0)]);
        bench.end(worker, TASK, Outcome::TimeLimit);
    }
    // Nine tenths of the remaining lifetime, computed in thousandths of the request.
    assert_eq!(gets(&bench, TASK).1, MINUTE * 8 * 2_137 / 1_000);
    bench.skip(MINUTE);
    assert_eq!(bench.has(worker), [(1, 0)]);
}

#[test]
fn a_worker_that_was_just_allocated_can_run_what_grew_most() {
    let mut bench = Bench::new();
    bench.add_queue(&[("cpus", 40_000), (MEMORY, 80_000_000)], MINUTE * 20);
    let first = short_lived(&mut bench, 9, 8_192);
    bench.submit(timed(request(1_024)));
    bench.end(first, TASK, Outcome::TimeLimit);
    assert_eq!(gets(&bench, TASK).1, MINUTE * 16);
    bench.wait(MINUTE);
    let second = bench.worker_with(1, |config| config.time_limit = Some(MINUTE * 60));
    assert_eq!(bench.has(second), []);
    bench.leave(second, LostReason::Stopped);
    for _ in 0..2 {
        let worker = short_lived(&mut bench, 20, 8_192);
        bench.skip(Duration::from_secs(9));
        bench.end(worker, TASK, Outcome::TimeLimit);
        assert_eq!(gets(&bench, TASK).1, MINUTE * 18);
        bench.leave(worker, LostReason::Stopped);
    }
    bench.skip(Duration::from_secs(9));
    let worker = short_lived(&mut bench, 20, 8_192);
    assert_eq!(bench.has(worker), [(1, 0)]);
}

#[test]
fn memory_and_time_that_grew_fit_one_worker_together() {
    let mut bench = Bench::new();
    let large = short_lived(&mut bench, 10, 8_192);
    bench.submit(timed(request(1_024)));
    out_of_memory(&mut bench, large, TASK);
    // This worker lives long enough for more time, but has too little memory for the grown request.
    let long = worker_of(&mut bench, 4, 1_500);
    bench.end(large, TASK, Outcome::TimeLimit);
    assert_eq!(gets(&bench, TASK), (2_048, MINUTE * 9));
    assert_eq!(bench.has(large), [(1, 0)]);
    // The other way around.
    bench.leave(large, LostReason::Stopped);
    let task = key(bench.submit(timed(request(1_024))), 0);
    bench.end(long, task, Outcome::TimeLimit);
    let _short = short_lived(&mut bench, 10, 8_192);
    out_of_memory(&mut bench, long, task);
    assert_eq!(gets(&bench, task), (1_499, MINUTE * 16));
    assert!(bench.has(long).contains(&(2, 0)));
}

#[test]
fn nodes_bound_what_a_task_on_several_of_them_requests() {
    let mut bench = Bench::new();
    let nodes = [20, 20, 90].map(|minutes| short_lived(&mut bench, minutes, 8_192));
    bench.submit(timed(ResourceRequest {
        entries: Vec::new(),
        n_nodes: 2,
        ..request(1)
    }));
    for _ in 0..3 {
        let root = nodes.into_iter().find(|node| !bench.has(*node).is_empty());
        bench.end(
            root.expect("two nodes live long enough"),
            TASK,
            Outcome::TimeLimit,
        );
    }
    let job = &bench.state.jobs()[&JobId(1)];
    let slot = job.find(TASK.task).expect("it exists");
    let template = job.submits[0].template(slot.index).expect("it has one");
    assert_eq!(template.task.time_limit, Some(MINUTE * 18));
    assert_eq!(bench.phase(TASK), Phase::Placed);
}
