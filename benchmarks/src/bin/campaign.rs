//! Savings of learned sizes: `campaign [SEEDS]`, see docs/learning.md.

#![forbid(unsafe_code)]

use std::time::Duration;

use hq_benchmarks::campaign::{Asked, Campaign, Figures};

/// Ways to ask for it.
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

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn main() {
    let seeds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_u64);
    let campaign = Campaign {
        tasks: 2_000,
        workers: 8,
        cpus: 16,
        memory: 64 * 1_024,
        walltime: Duration::from_secs(2 * 3_600),
        run: Duration::from_secs(600),
        sigma: 0.7,
    };
    println!("{campaign:?}");
    println!(
        "seed | case | finished | out of memory | cut off | cpu h cut off | GiB h | makespan h"
    );
    let mut all = [const { Vec::new() }; CASES.len()];
    for seed in 1..=seeds {
        for ((name, asked), figures) in CASES.iter().zip(&mut all) {
            let found = campaign.play(seed, *asked);
            println!("{seed} | {name} | {}", line(&found));
            figures.push(found);
        }
    }
    let reserved = |figures: &Figures| figures.reserved;
    let cut_off = |figures: &Figures| figures.cut_off;
    for ((name, _), figures) in CASES.iter().zip(&all) {
        println!(
            "{name}: reserved {}, cut off {}, makespan {}",
            shares(figures, &all[0], reserved),
            shares(figures, &all[1], cut_off),
            shares(figures, &all[1], |figures| figures.makespan),
        );
    }
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
        "{finished} | {out_of_memory} | {cut_off_count} | {cut_off:.1} | {reserved:.0} | {makespan:.2}"
    )
}

/// Median and extremes of the quotients, seed by seed.
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
