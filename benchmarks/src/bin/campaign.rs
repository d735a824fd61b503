//! What learned sizes save, see docs/learning.md. Runs in virtual time, or with real processes on
//! this machine.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin campaign -- [SEEDS]
//! cargo run --release -p hq-benchmarks --bin campaign -- --real HQ [--seeds N] [--tasks N]
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::Result;
use hq_benchmarks::campaign::{Asked, Campaign, Figures, run_task};
use hq_benchmarks::options;

/// The ways to submit the campaign.
const CASES: [(&str, Asked); 5] = [
    (
        "largest need, no prediction",
        Asked {
            auto_memory: false,
            predict: 0,
        },
    ),
    (
        "auto, no prediction",
        Asked {
            auto_memory: true,
            predict: 0,
        },
    ),
    (
        "auto, 0.90",
        Asked {
            auto_memory: true,
            predict: 900,
        },
    ),
    (
        "auto, 0.95",
        Asked {
            auto_memory: true,
            predict: 950,
        },
    ),
    (
        "auto, 0.99",
        Asked {
            auto_memory: true,
            predict: 990,
        },
    ),
];

/// The cases that run with real processes. Each takes about a minute.
const REAL_CASES: [usize; 3] = [0, 1, 3];

/// Hours of virtual time.
const SIMULATED: Campaign = Campaign {
    tasks: 2_000,
    workers: 8,
    cpus: 16,
    memory: 64 * 1_024,
    memory_least: 400,
    walltime: Duration::from_secs(2 * 3_600),
    run: Duration::from_secs(600),
    sigma: 0.7,
};

/// The campaign in seconds, for a small machine. Tasks touch memory but do not use their cpus.
const REAL: Campaign = Campaign {
    tasks: 300,
    workers: 4,
    cpus: 8,
    memory: 4 * 1_024,
    memory_least: 48,
    walltime: Duration::from_secs(20),
    run: Duration::from_millis(1_600),
    sigma: 0.7,
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("task") => run_task(),
        Some("--real" | "--seeds" | "--tasks") => real(args),
        Some(seeds) => compare(
            &SIMULATED,
            seeds.parse()?,
            &[0, 1, 2, 3, 4],
            |seed, asked| Ok(SIMULATED.play(seed, asked)),
        ),
        None => compare(&SIMULATED, 20, &[0, 1, 2, 3, 4], |seed, asked| {
            Ok(SIMULATED.play(seed, asked))
        }),
    }
}

fn real(args: Vec<String>) -> Result<()> {
    let (mut hq, mut seeds, mut campaign) = (options::hq_beside()?, 3, REAL);
    options::each(args.into_iter(), |name, value| {
        match name {
            "--real" => hq = value.file()?,
            "--seeds" => seeds = value.get()?,
            "--tasks" => campaign.tasks = value.get()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    compare(&campaign, seeds, &REAL_CASES, |seed, asked| {
        campaign.play_real(&hq, seed, asked)
    })
}

/// Runs the cases. Compares them with the first case, and their cut-off work with the second case.
#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn compare(
    campaign: &Campaign,
    seeds: u64,
    cases: &[usize],
    play: impl Fn(u64, Asked) -> Result<Figures>,
) -> Result<()> {
    println!("{campaign:?}");
    println!(
        "seed | case | finished | out of memory | cut off | cpu h cut off | GiB h | makespan h"
    );
    let cases: Vec<(&str, Asked)> = cases
        .iter()
        .filter_map(|case| CASES.get(*case).copied())
        .collect();
    let mut all = vec![Vec::new(); cases.len()];
    for seed in 1..=seeds {
        for ((name, asked), figures) in cases.iter().zip(&mut all) {
            let found = play(seed, *asked)?;
            println!("{seed} | {name} | {}", line(&found));
            figures.push(found);
        }
    }
    let (Some(largest), Some(today)) = (all.first(), all.get(1)) else {
        return Ok(());
    };
    for ((name, _), figures) in cases.iter().zip(&all) {
        println!(
            "{name}: reserved {}, cut off {}, makespan {}",
            shares(figures, largest, |figures| figures.reserved),
            shares(figures, today, |figures| figures.cut_off),
            shares(figures, today, |figures| figures.makespan),
        );
    }
    Ok(())
}

fn line(figures: &Figures) -> String {
    let Figures {
        reserved,
        cut_off,
        cut_off_count,
        out_of_memory,
        finished,
        makespan,
    } = figures;
    format!(
        "{finished} | {out_of_memory} | {cut_off_count} | {cut_off:.3} | {reserved:.3} | {makespan:.3}"
    )
}

/// Returns the median and the extremes of the quotients, seed by seed.
fn shares(one: &[Figures], other: &[Figures], of: impl Fn(&Figures) -> f64) -> String {
    let quotients = one
        .iter()
        .zip(other)
        .map(|(one, other)| of(one) / of(other));
    let mut quotients: Vec<f64> = quotients.collect();
    quotients.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| quotients.get(index).copied().unwrap_or(f64::NAN);
    let last = quotients.len().saturating_sub(1);
    format!("{:.3} ({:.3} to {:.3})", at(last / 2), at(0), at(last))
}
