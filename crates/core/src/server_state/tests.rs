//! The seeded simulation: many seeds, each to the end.

mod many;

use super::*;
use crate::testing::sim::World;
use crate::testing::{apply, array_submit, request, template, worker_config};

/// Seeds of one test run; `HQ_SIM_SEEDS` and `HQ_SIM_FIRST` choose others.
fn seeds() -> std::ops::Range<u64> {
    let read = |name: &str, default| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let first = read("HQ_SIM_FIRST", 0);
    first..first + read("HQ_SIM_SEEDS", 300)
}

#[test]
fn every_seed_ends_with_all_tasks_final() {
    for seed in seeds() {
        let result = std::panic::catch_unwind(|| World::run(seed, 400));
        if let Err(panic) = result {
            eprintln!(
                "seed {seed} failed; again with: HQ_SIM_FIRST={seed} HQ_SIM_SEEDS=1 \
                 cargo test -p hq-core every_seed_ends"
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
fn runs_are_not_trivial() {
    let summary = World::run(5, 2_000);
    assert!(
        summary.tasks > 100 && summary.lost_workers > 5 && summary.reattached > 5,
        "{summary:?}"
    );
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
