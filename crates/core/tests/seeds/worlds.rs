//! The seeded simulation: many seeds, with and without crashes of the server.

use std::ops::Range;

use hq_core::testing::ledger::Ledger;
use hq_core::testing::sim::{Course, Summary, World};

/// Seeds of one test run; `HQ_SIM_SEEDS` and `HQ_SIM_FIRST` choose others.
fn seeds(usual: u64) -> Range<u64> {
    let read = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first = read("HQ_SIM_FIRST", 0);
    first..first + read("HQ_SIM_SEEDS", usual)
}

#[test]
fn every_seed_ends_with_all_tasks_final() {
    for seed in seeds(300) {
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
fn runs_are_not_trivial() {
    let summary = World::run(9, 2_000);
    assert!(
        summary.tasks > 100
            && summary.lost_workers > 5
            && summary.reattached > 5
            && summary.partitions > 5
            && summary.lost_silent > 2,
        "{summary:?}"
    );
}

#[test]
fn what_was_told_survives_every_crash_without_a_store_too() {
    let mut all = Summary::default();
    let seeds = seeds(100);
    for seed in seeds.clone() {
        let play = || {
            let disk = Box::new(Ledger::new("SimUid"));
            World::survive(&Course::usual(seed, true), Some(disk))
        };
        let Ok(summary) = std::panic::catch_unwind(play) else {
            panic!(
                "seed {seed} failed; see it with: cargo xtask sim explain {seed} --world ledger"
            );
        };
        all.crashes += summary.crashes;
        all.went_on += summary.went_on;
    }
    // A failing seed alone may have none.
    if seeds.end - seeds.start >= 100 {
        assert!(all.crashes > 0 && all.went_on > 0, "{all:?}");
    }
}
