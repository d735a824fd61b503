//! The seeded simulation: many seeds, each to the end.

use crate::testing::sim::World;

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
        summary.tasks > 100 && summary.lost_workers > 5,
        "{summary:?}"
    );
}
