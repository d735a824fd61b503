//! Changes of jobs and tasks after their submit.

use std::time::Duration;

use super::bench::*;
use crate::growth::{GrowSpec, Growth, MEMORY};
use crate::id::{InstanceId, JobId, TaskId, WorkerId};
use crate::job::{JobChange, TaskChange};
use crate::outcome::{LostReason, Outcome};
use crate::range::IdArray;
use crate::refusal::Refusal;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, ResourceEntry};
use crate::server_state::{ChangedTasks, Command, Effect, Reply, WorkerCommand};
use crate::sizing::FirstMemory;
use crate::task::Phase;
use crate::template::{ArrayIds, CrashLimit, TaskTemplate};

const JOB: JobId = JobId(1);

fn ids(tasks: &[u32]) -> IdArray {
    IdArray::from_sorted(tasks.iter().copied()).expect("sorted")
}

fn ask(
    bench: &mut Bench,
    tasks: &[u32],
    change: JobChange,
) -> (Result<ChangedTasks, Refusal>, Vec<Effect>) {
    let effects = bench.request(Command::ChangeJob {
        job: JOB,
        tasks: (!tasks.is_empty()).then(|| ids(tasks)),
        change: Box::new(change),
    });
    let Reply::Changed(result) = reply(&effects) else {
        panic!("the answer names tasks");
    };
    (result, effects)
}

/// Changes tasks, or all tasks without a list. Returns the changed tasks.
fn set(bench: &mut Bench, tasks: &[u32], change: TaskChange) -> Vec<u32> {
    let change = JobChange {
        tasks: change,
        ..JobChange::default()
    };
    let (result, _) = ask(bench, tasks, change);
    result.expect("it is accepted").changed.iter().collect()
}

fn priority(value: i32) -> TaskChange {
    TaskChange {
        priority: Some(value),
        ..TaskChange::default()
    }
}

fn resource(name: &str, amount: u32) -> TaskChange {
    TaskChange {
        resources: vec![ResourceEntry {
            resource: name.into(),
            policy: Policy::default(),
            amount: Amount::whole(amount),
        }],
        ..TaskChange::default()
    }
}

fn definition(bench: &Bench, job: JobId, task: u32) -> TaskTemplate {
    let job = &bench.state.jobs()[&job];
    let slot = job.find(TaskId(task)).expect("it exists");
    let submit = job.submit(slot).expect("it exists");
    TaskTemplate::clone(&submit.definition(slot.index).expect("it has one"))
}

/// Returns the definitions of tasks that are sent to a worker, by task.
fn sent(effects: &[Effect], worker: WorkerId) -> Vec<(u32, TaskTemplate)> {
    let mut known = std::collections::BTreeMap::new();
    let mut sent = Vec::new();
    for effect in effects {
        if let Effect::ToWorker(
            to,
            WorkerCommand::Assign {
                templates,
                assignments,
                ..
            },
        ) = effect
            && *to == worker
        {
            known.extend(
                templates
                    .iter()
                    .map(|template| (template.id, &template.task)),
            );
            for assignment in assignments {
                let task = known[&assignment.template];
                sent.extend(
                    assignment
                        .ids
                        .iter()
                        .map(|id| (id, TaskTemplate::clone(task))),
                );
            }
        }
    }
    sent
}

#[test]
fn priorities_order_what_waits_also_after_a_restart_and_can_be_taken_back() {
    let mut bench = Bench::new();
    bench.submit(tasks(6));
    assert_eq!(set(&mut bench, &[2, 4, 9], priority(5)), [2, 4]);
    set(&mut bench, &[4], priority(7));
    set(&mut bench, &[0], priority(-1));
    bench.commit();
    bench.restart();
    let order = |bench: &mut Bench| {
        let worker = bench.worker(1);
        let mut order = Vec::new();
        while let Some((_, task)) = first_on(bench, worker).first().copied() {
            order.push(task);
            bench.finish(worker, key(JOB, task));
        }
        order
    };
    set(&mut bench, &[2], priority(0));
    assert_eq!(order(&mut bench), [4, 1, 2, 3, 5, 0]);
}

#[test]
fn tasks_of_graphs_change_too_also_those_that_wait_for_others() {
    for portions in [false, true] {
        let mut bench = Bench::new();
        if portions {
            bench.state.limit_portions(2);
        }
        bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[]), (4, &[3])]));
        set(&mut bench, &[1, 2], resource("cpus", 3));
        set(&mut bench, &[2, 3, 4], priority(2));
        bench.commit();
        bench.restart();
        let worker = bench.worker(4);
        assert_eq!(first_on(&bench, worker), [(1, 2), (1, 3)]);
        bench.finish(worker, key(JOB, 3));
        bench.finish(worker, key(JOB, 2));
        assert_eq!(first_on(&bench, worker), [(1, 0), (1, 4)]);
        bench.finish(worker, key(JOB, 0));
        assert_eq!(first_on(&bench, worker), [(1, 1), (1, 4)]);
        assert_eq!(definition(&bench, JOB, 1).requests, cpus_of(3));
        bench.finish_all();
        bench.state.check_invariants();
    }
}

#[test]
fn what_a_worker_has_not_started_is_sent_again_as_changed() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(tasks(4));
    bench.start(worker, key(JOB, 0));
    let change = JobChange {
        tasks: resource("cpus", 2),
        ..JobChange::default()
    };
    let (result, effects) = ask(&mut bench, &[], change);
    let answer = result.expect("it is accepted");
    assert_eq!(
        (answer.changed, answer.running),
        (ids(&[1, 2, 3]), ids(&[0]))
    );
    let back = asked_back(&effects, worker);
    assert!(back.contains(&key(JOB, 1)) && !back.contains(&key(JOB, 0)));
    let effects = bench.give_all_back(worker, &back);
    assert_eq!(sent(&effects, worker)[0].1.requests, cpus_of(2));
    assert_eq!(
        first_on(&bench, worker),
        [(1, 0)],
        "the other cpu is not enough"
    );
    assert_eq!(definition(&bench, JOB, 0).requests, cpus_of(1));
    bench.finish(worker, key(JOB, 0));
    assert_eq!(first_on(&bench, worker), [(1, 1)]);
    bench.finish_all();
}

#[test]
fn running_tasks_get_time_and_crash_limits() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, key(JOB, 0));
    let change = JobChange {
        tasks: TaskChange {
            time_limit: Some(Duration::from_secs(9)),
            crash_limit: Some(CrashLimit::Max(1)),
            ..priority(3)
        },
        ..JobChange::default()
    };
    let (result, effects) = ask(&mut bench, &[], change);
    assert_eq!(result.expect("it is accepted").changed, ids(&[0]));
    let limit = |effects: &[Effect]| {
        effects.iter().find_map(|effect| {
            let Effect::ToWorker(to, WorkerCommand::TimeLimit(tasks, limit)) = effect else {
                return None;
            };
            (*to == worker).then(|| (tasks.clone(), *limit))
        })
    };
    let told = (
        vec![(key(JOB, 0), InstanceId(0))],
        Some(Duration::from_secs(9)),
    );
    assert_eq!(limit(&effects), Some(told.clone()));
    bench.cut(worker);
    let effects = bench.come_back(worker);
    assert_eq!(limit(&effects), Some(told), "the first message may be lost");
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(key(JOB, 0)), Phase::Failed);
}

#[test]
fn growth_applies_to_the_changed_request() {
    let mut bench = Bench::new();
    bench.submit(tasks_with(2, |task| {
        let grow = Growth {
            permille: 2_000,
            max: None,
        };
        task.requests = with_memory(100);
        task.retry.limit = 5;
        task.retry.delay = Duration::from_secs(60);
        task.retry.on = vec![crate::retry::RetryCause::OutOfMemory];
        task.retry.grow = GrowSpec {
            memory: Some(grow),
            time: None,
        };
    }));
    let worker = worker_with_memory(&mut bench, 2);
    let outcome = Outcome::OutOfMemory(None);
    bench.end(worker, key(JOB, 0), outcome);
    let memory = |bench: &Bench, task| {
        let requests = definition(bench, JOB, task).requests;
        crate::growth::memory(&requests).map(Amount::whole_part)
    };
    assert_eq!(memory(&bench, 0), Some(200));
    set(&mut bench, &[], priority(1));
    assert_eq!(
        (memory(&bench, 0), memory(&bench, 1)),
        (Some(200), Some(100))
    );
    set(&mut bench, &[0], resource(MEMORY, 300));
    assert_eq!(memory(&bench, 0), Some(600));
    bench.commit();
    bench.restart();
    assert_eq!(
        (memory(&bench, 0), memory(&bench, 1)),
        (Some(600), Some(100))
    );
}

fn worker_with_memory(bench: &mut Bench, cpus: u32) -> WorkerId {
    bench.worker_with(cpus, |config| {
        config.resources.items.push(ResourceItem {
            name: MEMORY.into(),
            kind: ResourceKind::Sum(Amount::whole(4_000)),
        });
    })
}

fn with_memory(mebibytes: u32) -> crate::resource::request::RequestVariants {
    resource(MEMORY, mebibytes)
        .applied(&crate::testing::template(&["true"]))
        .requests
}

#[test]
fn refused_changes_change_nothing() {
    let many = |task: &mut TaskTemplate| {
        let variants = [1, 2].map(|cpus| cpus_of(cpus).as_slice()[0].clone());
        task.requests =
            crate::resource::request::RequestVariants::new(variants.to_vec()).expect("valid");
    };
    let learned = |task: &mut TaskTemplate| task.learn.memory = Some(FirstMemory::Share);
    for (spec, refused) in [
        (gang(1, 2), resource("cpus", 2)),
        (tasks_with(1, many), resource("cpus", 3)),
        (tasks_with(1, learned), resource(MEMORY, 3)),
    ] {
        let mut bench = Bench::new();
        bench.submit(spec);
        let before = definition(&bench, JOB, 0);
        let change = JobChange {
            tasks: TaskChange {
                priority: Some(1),
                ..refused
            },
            name: Some("other".into()),
            ..JobChange::default()
        };
        let (result, _) = ask(&mut bench, &[], change);
        assert!(result.is_err());
        assert_eq!(definition(&bench, JOB, 0), before);
        assert_ne!(&*bench.state.jobs()[&JOB].name, "other");
        assert_eq!(set(&mut bench, &[], priority(4)), [0], "this can change");
    }
}

#[test]
fn a_job_submitted_again_keeps_its_changes() {
    for (spec, parts) in [
        (tasks(4), 2),
        (graph(&[(0, &[]), (1, &[]), (2, &[0]), (3, &[])]), 1),
    ] {
        let (mut bench, _) = Bench::with_worker(8);
        bench.submit(spec);
        bench.cut(WorkerId(1));
        set(&mut bench, &[1, 2], priority(6));
        bench.cancel(JOB);
        resubmit(&mut bench, JOB, &[]);
        let new = JobId(2);
        assert_eq!(bench.state.jobs()[&new].submits.len(), parts);
        let priorities: Vec<_> = (0..4)
            .map(|task| definition(&bench, new, task).priority)
            .collect();
        assert_eq!(priorities, [0, 6, 6, 0]);
    }
}

#[test]
fn the_latest_limit_of_a_job_applies_after_a_restart() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, numbered(ArrayIds::Next(4), tasks(0))));
    let limit = |max| JobChange {
        max_running: Some(max),
        name: Some("renamed".into()),
        ..JobChange::default()
    };
    let (result, _) = ask(&mut bench, &[], limit(Some(2)));
    assert_eq!(result.expect("it is accepted"), ChangedTasks::default());
    bench.commit();
    bench.restart();
    assert_eq!(&*bench.state.jobs()[&JOB].name, "renamed");
    let worker = bench.worker(8);
    assert_eq!(first_on(&bench, worker).len(), 2);
    let mut spec = into(job, numbered(ArrayIds::Next(4), tasks(0)));
    spec.limits.max_running = Some(3);
    bench.submit(spec);
    bench.commit();
    bench.restart();
    assert_eq!(bench.state.jobs()[&JOB].max_running, Some(3));
    let (result, _) = ask(&mut bench, &[], limit(None));
    result.expect("it is accepted");
    bench.commit();
    bench.restart();
    assert_eq!(bench.state.jobs()[&JOB].max_running, None);
}

/// Returns the tasks of a worker that have room there.
fn first_on(bench: &Bench, worker: WorkerId) -> Vec<(u32, u32)> {
    let mut all = bench.has(worker);
    all.retain(|(job, task)| bench.phase(key(JobId(*job), *task)) != Phase::Queued);
    all
}

#[test]
fn a_running_task_that_has_grown_keeps_its_growth() {
    let mut bench = Bench::new();
    bench.submit(tasks_with(1, |task| {
        let grow = Growth {
            permille: 2_000,
            max: None,
        };
        task.requests = with_memory(100);
        task.retry.limit = 5;
        task.retry.delay = Duration::ZERO;
        task.time_limit = Some(Duration::from_secs(10));
        task.retry.on = vec![crate::retry::RetryCause::TimeLimit];
        task.retry.grow = GrowSpec {
            memory: None,
            time: Some(grow),
        };
    }));
    let worker = worker_with_memory(&mut bench, 1);
    bench.end(worker, key(JOB, 0), Outcome::TimeLimit);
    bench.start(worker, key(JOB, 0));
    let limit = |bench: &Bench| definition(bench, JOB, 0).time_limit.map(|t| t.as_secs());
    assert_eq!(limit(&bench), Some(20));
    set(&mut bench, &[], priority(1));
    assert_eq!(limit(&bench), Some(20));
    let change = JobChange {
        tasks: TaskChange {
            time_limit: Some(Duration::from_secs(15)),
            ..TaskChange::default()
        },
        ..JobChange::default()
    };
    let (_, effects) = ask(&mut bench, &[], change);
    assert_eq!(limit(&bench), Some(30));
    let told = effects.iter().find_map(|effect| {
        let Effect::ToWorker(_, WorkerCommand::TimeLimit(_, limit)) = effect else {
            return None;
        };
        *limit
    });
    assert_eq!(told, Some(Duration::from_secs(30)));
}

#[test]
fn running_tasks_of_large_graphs_run_again_after_a_change() {
    for (tasks, change) in [
        (&[0_u32][..], priority(2)),
        (&[], priority(2)),
        (
            &[],
            TaskChange {
                time_limit: Some(Duration::from_secs(9)),
                ..TaskChange::default()
            },
        ),
        (
            &[],
            TaskChange {
                crash_limit: Some(CrashLimit::Max(5)),
                ..TaskChange::default()
            },
        ),
    ] {
        let mut bench = Bench::new();
        bench.state.limit_portions(2);
        let worker = bench.worker(1);
        bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[]), (4, &[3])]));
        bench.start(worker, key(JOB, 0));
        set(&mut bench, tasks, change.clone());
        bench.cut(worker);
        bench.leave(worker, LostReason::ConnectionLost);
        bench.worker(1);
        bench.finish_all();
        assert_eq!(bench.counts(JOB).finished, 5, "{change:?}");
    }
}

#[test]
fn a_job_has_a_bounded_number_of_changes_and_all_can_be_taken_back() {
    let mut bench = Bench::new();
    bench.submit(tasks(1_010));
    let one = |value| JobChange {
        tasks: priority(value),
        ..JobChange::default()
    };
    let refused = (0..1_010).find(|task| {
        let value = i32::try_from(*task).expect("small") + 1;
        ask(&mut bench, &[*task], one(value)).0.is_err()
    });
    assert!(refused.is_some_and(|task| task >= 1_000), "{refused:?}");
    assert_eq!(set(&mut bench, &[], priority(0)).len(), 1_010);
    assert_eq!(bench.state.jobs()[&JOB].changes(), []);
    assert_eq!(set(&mut bench, &[7], priority(3)), [7]);
}
