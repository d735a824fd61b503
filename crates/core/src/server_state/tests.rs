//! The whole state: a few seeds of the simulation, each to the end, and single decisions.

mod after;
mod allocate;
mod attach;
mod control;
mod ending;
mod many;
mod restore;

use std::time::Duration;

use super::*;
use crate::id::TaskId;
use crate::id::{InstanceId, TaskKey};
use crate::outcome::{Outcome, Usage};
use crate::task::{Phase, TaskRecord};
use crate::template::TaskTemplate;
use crate::testing::sim::{Course, World};
use crate::testing::{apply, array_submit, request, template, worker_config};
use crate::worker_config::OnServerLost;

/// Limit of seeds in one test run; `tests/seeds` plays 300 of them.
const SEEDS_MAX: u64 = 10;

fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("HQ_SIM_SEEDS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    0..SEEDS_MAX.min(asked.unwrap_or(SEEDS_MAX))
}

/// A task of the first job.
const fn task(id: u32) -> TaskKey {
    TaskKey::new(JobId(1), TaskId(id))
}

/// A connected worker that reconnects, and a job of `count` tasks.
fn with_worker(cpus: u32, count: u32, template: TaskTemplate) -> ServerState {
    let mut state = ServerState::new("test");
    connect(&mut state, 1, cpus);
    let submit = array_submit(count, template);
    request(&mut state, Command::Submit(Box::new(submit)));
    state
}

fn connect(state: &mut ServerState, link: u64, cpus: u32) {
    let mut config = worker_config(cpus);
    config.on_server_lost = OnServerLost::Reconnect;
    apply(state, Input::WorkerConnected(LinkId(link), config));
}

fn say(state: &mut ServerState, report: Report) -> Vec<Effect> {
    let message = WorkerMessage::Report(report);
    let effects = apply(state, Input::WorkerMessage(WorkerId(1), message));
    state.check_invariants();
    effects
}

fn started(ids: &[u32]) -> Report {
    let row = |id: &u32| StartedRow {
        task: task(*id),
        instance: InstanceId(0),
        age: Duration::ZERO,
    };
    Report {
        started: ids.iter().map(row).collect(),
        ..Report::default()
    }
}

fn ended(id: u32, instance: u32, outcome: Outcome) -> EndedRow {
    EndedRow {
        task: task(id),
        instance: InstanceId(instance),
        outcome,
        age: Duration::ZERO,
        run: Duration::from_secs(1),
        usage: Usage::default(),
    }
}

fn record(state: &ServerState, key: TaskKey) -> TaskRecord {
    let job = &state.jobs()[&key.job];
    let slot = job.find(key.task).expect("it exists");
    job.record(slot).expect("it was handed out")
}

fn phase(state: &ServerState, key: TaskKey) -> Phase {
    let job = &state.jobs()[&key.job];
    job.phase(job.find(key.task).expect("it exists"))
        .expect("it exists")
}

fn is_urgently_stored(effects: &[Effect], is_it: impl Fn(&ChangeKind) -> bool) -> bool {
    effects.iter().any(|effect| {
        matches!(effect, Effect::Persist(change) if change.kind.is_urgent() && is_it(&change.kind))
    })
}

#[test]
fn some_seeds_end_with_all_tasks_final() {
    for seed in seeds() {
        let play = || World::survive(&Course::usual(seed, false), None);
        let result = std::panic::catch_unwind(play);
        if let Err(panic) = result {
            eprintln!(
                "seed {seed} failed; see it with: cargo xtask sim explain {seed} --world plain"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn one_seed_always_gives_the_same_log() {
    for seed in [3, 77, 4_711] {
        assert_eq!(World::run(seed, 300), World::run(seed, 300));
    }
}

#[test]
fn urgent_tasks_are_sent_ahead_of_what_is_queued_on_the_worker() {
    let mut state = ServerState::new("test");
    apply(
        &mut state,
        Input::WorkerConnected(LinkId(1), worker_config(1)),
    );
    for priority in [0, 0, 3, -2, 1] {
        let mut task = template(&["true"]);
        task.priority = priority;
        let submit = array_submit(1, task);
        request(&mut state, Command::Submit(Box::new(submit)));
    }
    let worker = &state.workers()[&WorkerId(1)];
    let sent: Vec<i32> = worker
        .assigned()
        .values()
        .map(|a| a.key.priority.0)
        .collect();
    assert_eq!(
        sent,
        [0, 0, 3, 1],
        "only the least urgent one waits at the server"
    );
}
