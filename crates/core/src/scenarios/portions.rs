//! Very large requests. They are processed in steps, so that other requests get their turn, and are
//! answered once at the end.

use std::sync::Arc;

use super::bench::*;
use crate::id::{JobId, TaskId, WorkerId};
use crate::job::JobState;
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::{
    Again, Command, Effect, Input, LinkId, Reply, RequestId, Resubmitted, WorkerCommand, specs,
};
use crate::task::TaskState;
use crate::template::{GraphSpec, GraphTask, SubmitBody, SubmitSpec};
use crate::testing::{template, worker_config};

/// Returns a graph with a separate template for each task.
fn various(count: u32) -> SubmitSpec {
    let task = |id| GraphTask {
        id: TaskId(id),
        template: id,
        deps: Vec::new(),
    };
    let body = SubmitBody::Graph(GraphSpec {
        templates: (0..count)
            .map(|id| {
                let mut task = template(&["true"]);
                task.priority = i32::try_from(id % 3).expect("small");
                Arc::new(task)
            })
            .collect(),
        tasks: (0..count).map(task).collect(),
    });
    SubmitSpec { body, ..tasks(0) }
}

/// Returns a graph with `count` tasks of ascending priorities, starting at `first`.
fn of_priorities(first: i32, count: u32) -> SubmitSpec {
    let mut spec = various(count);
    if let SubmitBody::Graph(graph) = &mut spec.body {
        for (template, priority) in graph.templates.iter_mut().zip(first..) {
            Arc::make_mut(template).priority = priority;
        }
    }
    spec
}

fn small_steps() -> Bench {
    let mut bench = Bench::new();
    bench.state.limit_portions(4);
    bench
}

fn submit(id: u64, spec: SubmitSpec) -> Input {
    Input::Request(RequestId(1_000 + id), Command::Submit(Box::new(spec)))
}

fn answered(effects: &[Effect]) -> Vec<u64> {
    let ids = effects.iter().filter_map(|effect| {
        let Effect::Reply(id, _) = effect else {
            return None;
        };
        Some(id.0 - 1_000)
    });
    ids.collect()
}

fn submit_all(id: u64, count: usize) -> Input {
    let specs = vec![tasks(1); count];
    Input::Request(RequestId(1_000 + id), Command::SubmitAll(specs))
}

#[test]
fn small_requests_are_answered_while_a_long_list_is_under_way() {
    let mut bench = small_steps();
    let effects = bench.step(submit_all(1, 20));
    assert!(answered(&effects).is_empty());
    assert_eq!(bench.state.unanswered(), 1);
    let effects = bench.step(submit(2, tasks(1)));
    assert_eq!(answered(&effects), [2]);
    let effects = bench.apply(Input::Timer);
    assert_eq!(answered(&effects), [1]);
    assert_eq!(bench.state.jobs().len(), 21);
}

#[test]
fn a_large_submit_is_answered_at_once_and_stored_before() {
    let mut bench = small_steps();
    let effects = bench.step(submit(1, various(20)));
    assert_eq!(answered(&effects), [1]);
    assert!(bench.state.has_portions_left(), "it is queued in steps");
    bench.restart();
    assert_eq!(bench.counts(JobId(1)).total(), 20);
}

#[test]
fn a_large_submit_that_waits_for_another_job_is_looked_at_before_and_queued_behind_it() {
    let (mut bench, worker) = Bench::with_worker(4);
    bench.state.limit_portions(4);
    let first = bench.submit(tasks(1));
    let after = crate::template::After {
        job: first,
        is_each: false,
        is_any: false,
    };
    let job = bench.submit(SubmitSpec {
        after: vec![after],
        ..various(20)
    });
    let submit = &bench.state.jobs()[&job].submits[0];
    let is_known = |index| submit.queue_key(index).is_some();
    assert!((0..20).all(is_known), "users may ask about any of them");
    assert_eq!(bench.has(worker), [(first.0, 0)]);
    bench.finish_all();
    assert_eq!(bench.job_state(job), JobState::Finished);
}

#[test]
fn a_large_graph_goes_out_most_urgent_first_although_it_is_queued_in_steps() {
    let mut bench = small_steps();
    let worker = bench.worker(1);
    let job = bench.submit(various(30));
    let mut order = Vec::new();
    while let Some((_, task)) = bench.has(worker).first().copied() {
        let state = &bench.state.workers()[&worker];
        let placed = state.assigned().iter().find(|(_, a)| a.placed);
        let task = placed.map_or(task, |(task, _)| task.task.0);
        order.push(task % 3);
        bench.finish(worker, key(job, task));
    }
    assert_eq!(order.len(), 30);
    assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
}

#[test]
fn tasks_of_a_large_graph_go_out_while_equally_urgent_ones_are_still_queued() {
    let mut bench = small_steps();
    let worker = bench.worker(8);
    bench.step(submit(1, various(40)));
    while bench.has(worker).is_empty() {
        assert!(
            bench.state.has_portions_left(),
            "they wait for the last one"
        );
        bench.step(Input::Timer);
    }
    assert!(bench.state.has_portions_left());
}

#[test]
fn very_many_jobs_are_canceled_in_steps_and_answered_once() {
    let mut bench = small_steps();
    for _ in 0..9 {
        bench.submit(tasks(1));
    }
    let (jobs, reason) = (Selector::All, "".into());
    let cancel = Command::CancelJobs { jobs, reason };
    let effects = bench.step(Input::Request(RequestId(1_001), cancel));
    assert!(answered(&effects).is_empty());
    assert_eq!(bench.state.unanswered(), 1);
    let effects = bench.apply(Input::Timer);
    let Reply::Jobs(found) = reply(&effects) else {
        panic!("about jobs");
    };
    assert_eq!(found.rows.len(), 9);
    assert!((1..=9).all(|id| bench.job_state(JobId(id)) == JobState::Canceled));
}

#[test]
fn nothing_starts_that_several_canceled_jobs_have_in_the_queue_although_they_leave_it_in_steps() {
    let mut bench = small_steps();
    // The less urgent job leaves first.
    bench.submit(of_priorities(0, 20));
    bench.submit(of_priorities(100, 20));
    let (jobs, reason) = (Selector::All, "".into());
    let cancel = Command::CancelJobs { jobs, reason };
    bench.step(Input::Request(RequestId(1_001), cancel));
    let (worker, mut steps) = (WorkerId(1), 0);
    bench.step(Input::WorkerConnected(LinkId(9), worker_config(20)));
    while bench.state.has_portions_left() {
        assert_eq!(bench.has(worker), [], "in step {steps}");
        bench.step(Input::Timer);
        steps += 1;
    }
    assert!(steps > 3, "some of both were there meanwhile");
    let job = bench.submit(tasks(1));
    assert_eq!(bench.has(worker), [(job.0, 0)]);
}

#[test]
fn a_forgotten_job_of_many_tasks_is_gone_at_once_and_freed_in_steps() {
    let mut bench = small_steps();
    let job = bench.submit(various(40));
    bench.cancel(job);
    let (jobs, states) = (one(job), vec![TaskState::Canceled]);
    let forget = Command::ForgetJobs { jobs, states };
    bench.step(Input::Request(RequestId(1_001), forget));
    assert!(bench.state.jobs().is_empty());
    bench.apply(Input::Timer);
    assert_eq!(bench.state.ready_len(), 0);
    assert!(bench.is_quiet(), "nothing is left to do");
}

#[test]
fn an_assignment_that_would_be_too_large_is_divided() {
    let mut bench = Bench::new();
    bench.state.limit_assignments(1_500);
    let worker = bench.worker(64);
    let spec = tasks_with(1, |_| {});
    let ids = IdArray::from_sorted((0..64).map(|id| id * 3)).expect("a set");
    let spec = numbered(crate::template::ArrayIds::Given(ids), spec);
    let effects = bench.request(Command::Submit(Box::new(spec)));
    let commands = told(&effects, worker);
    let assigns = commands.iter().filter_map(|command| {
        let WorkerCommand::Assign { .. } = command else {
            return None;
        };
        Some(command.wire_bytes())
    });
    assert!(assigns.clone().all(|bytes| bytes <= 3_000));
    assert_eq!(bench.has(worker).len(), 64);
}

#[test]
fn a_server_that_ends_answers_everybody_who_waits() {
    let mut bench = small_steps();
    bench.step(submit_all(1, 20));
    let keep_workers = true;
    let effects = bench.step(Input::Ending { keep_workers });
    assert_eq!(answered(&effects), [1]);
    assert_eq!(bench.state.jobs().len(), 20);
}

fn resubmit(id: u64, jobs: Selector) -> Input {
    let states = Vec::new();
    Input::Request(
        RequestId(1_000 + id),
        Command::Resubmit {
            jobs,
            states,
            requests: Vec::new(),
        },
    )
}

fn resubmitted(effects: &[Effect]) -> Vec<Resubmitted> {
    let Reply::Resubmitted(found) = reply(effects) else {
        panic!("about what was submitted again");
    };
    found.rows
}

#[test]
fn very_many_jobs_are_submitted_again_in_steps() {
    let mut bench = small_steps();
    for _ in 0..9 {
        bench.submit(tasks(1));
    }
    let effects = bench.step(resubmit(1, Selector::All));
    assert!(answered(&effects).is_empty());
    let made = bench.state.jobs().len() - 9;
    assert!((1..9).contains(&made), "{made} of 9 in one step");
    let effects = bench.apply(Input::Timer);
    assert_eq!(resubmitted(&effects).len(), 9);
    assert_eq!(bench.state.jobs().len(), 18);
}

#[test]
fn a_job_that_is_forgotten_before_its_turn_is_not_submitted_again() {
    let (mut bench, _) = Bench::with_worker(4);
    bench.state.limit_portions(12);
    let jobs = [bench.submit(various(20)), bench.submit(various(20))];
    let other = bench.submit(tasks(1));
    bench.finish_all();
    bench.step(resubmit(1, Selector::All));
    let (forgotten, states) = (Selector::All, vec![TaskState::Finished]);
    let forget = Command::ForgetJobs {
        jobs: forgotten,
        states,
    };
    let effects = bench.step(Input::Request(RequestId(1_002), forget));
    let found = effects.iter().find_map(|effect| {
        let Effect::Reply(_, Reply::Resubmitted(found)) = effect else {
            return None;
        };
        Some(found)
    });
    let found = found.expect("an answer");
    let rows = found.rows.iter().map(|row| match row {
        Resubmitted::Ok {
            job, task_count, ..
        } => (*job, *task_count),
        Resubmitted::Nothing(job) | Resubmitted::Refused(job, _) => (*job, 0),
    });
    assert_eq!(rows.collect::<Vec<_>>(), jobs.map(|job| (job, 20)));
    assert_eq!(found.not_found, IdArray::single(other.0), "it was too late");
}

#[test]
fn a_job_that_was_looked_at_beside_the_state_becomes_what_it_was_then() {
    let (mut bench, _) = Bench::with_worker(4);
    let alone = bench.submit(various(5));
    let open = bench.open(None);
    bench.submit(into(open, tasks(2)));
    bench.submit(into(open, graph(&[(7, &[1]), (8, &[7])])));
    let forgotten = bench.submit(tasks(1));
    let mut again = Again::states(
        Selector::All,
        vec![TaskState::Waiting, TaskState::Running],
        Vec::new(),
    );
    for job in [alone, open, forgotten] {
        again.look_at(&bench.state.jobs()[&job].outline(), None);
    }
    // If the current state were used, the jobs would have nothing left to run.
    bench.finish_all();
    let (jobs, states) = (one(forgotten), vec![TaskState::Finished]);
    bench.request(Command::ForgetJobs { jobs, states });
    let effects = bench.apply(Input::Resubmit(RequestId(1_001), Box::new(again)));
    let ok = |job, new, task_count| Resubmitted::Ok {
        job,
        new: JobId(new),
        task_count,
    };
    assert_eq!(resubmitted(&effects), [ok(alone, 4, 5), ok(open, 5, 4)]);
    let jobs = bench.state.jobs();
    let made = |job: JobId| specs(&jobs[&job]);
    assert_eq!(made(JobId(4)), made(alone));
    assert_eq!(made(JobId(5)), made(open));
    assert!(!jobs[&JobId(5)].is_open);
    assert_eq!(&*jobs[&JobId(5)].name, &*jobs[&open].name);
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(5)), JobState::Finished);
}

#[test]
fn jobs_of_many_tasks_are_to_be_looked_at_beside_the_state() {
    let mut bench = Bench::new();
    let large = bench.submit(various(3_000));
    // All tasks of this job share one template.
    bench.submit(tasks(100_000));
    bench.submit(various(20));
    assert_eq!(bench.state.find_again(&Selector::All).1, [large]);
    assert_eq!(bench.state.find_again(&one(JobId(2))).1, []);
}

#[test]
fn what_comes_while_large_jobs_are_looked_at_is_not_submitted_again() {
    for jobs in [Selector::Last, Selector::All] {
        let mut bench = Bench::new();
        let first = bench.submit(tasks(3));
        let mut again = Again::states(jobs.clone(), Vec::new(), Vec::new());
        again.keep_to(bench.state.find_again(&jobs).0);
        bench.submit(tasks(2));
        let effects = bench.apply(Input::Resubmit(RequestId(1_001), Box::new(again)));
        let (new, task_count) = (JobId(3), 3);
        let row = Resubmitted::Ok {
            job: first,
            new,
            task_count,
        };
        assert_eq!(resubmitted(&effects), [row], "{jobs:?}");
    }
}

#[test]
fn a_server_that_ends_answers_who_submits_again() {
    let mut bench = small_steps();
    for _ in 0..3 {
        bench.submit(various(20));
    }
    bench.step(resubmit(1, Selector::All));
    let effects = bench.step(Input::Ending { keep_workers: true });
    assert_eq!(answered(&effects), [1]);
    let effects = bench.step(resubmit(2, Selector::All));
    assert_eq!(answered(&effects), [2], "later ones at once");
}
