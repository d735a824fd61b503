//! Simulates the core, the store and virtual workers in one world whose server crashes at every
//! boundary.
//!
//! The disk is a database of this crate in memory. A crash discards uncommitted changes.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use hq_core::testing::sim::{Course, World};

use crate::memory_disk::MemoryDisk;

/// The seeds of one test run. `HQ_SIM_SEEDS` and `HQ_SIM_FIRST` override them.
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
fn what_was_told_survives_every_crash_and_running_tasks_go_on() {
    play_all("store", |seed| Course::usual(seed, true));
}

#[test]
fn what_goes_on_from_unstored_ends_is_lost_with_them_or_not_at_all() {
    play_all("graphs", |seed| {
        Course::of_graphs(seed, Course::GRAPH_STEPS)
    });
}

fn play_all(world: &str, course: impl Fn(u64) -> Course + Sync) {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let (crashes, adopted) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let play =
                AssertUnwindSafe(|| World::survive(&course(seed), Some(MemoryDisk::create())));
            let result = std::panic::catch_unwind(play);
            let Ok(summary) = result else {
                panic!(
                    "seed {seed} failed; see it with: cargo xtask sim explain {seed} --world {world}"
                );
            };
            crashes.fetch_add(summary.crashes, Ordering::Relaxed);
            adopted.fetch_add(summary.went_on, Ordering::Relaxed);
        }
    };
    // Each seed uses one core.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(run);
        }
    });
    println!("{seeds:?}: {crashes:?} crashes, {adopted:?} tasks went on");
    // If a single seed is replayed, there may be no crashes.
    if seeds.end - seeds.start >= 100 {
        assert!(crashes.into_inner() > 0, "no server crashed");
        assert!(adopted.into_inner() > 0, "no task went on");
    }
}

#[test]
fn a_seed_gives_one_course_of_events() {
    for seed in [3, 17] {
        let run = || World::run_durable(seed, 400, MemoryDisk::create());
        assert_eq!(run(), run());
    }
}
