//! `campaign`: what learned sizes save, see docs/learning.md.
//!
//! A campaign has many tasks, with long-tailed memory and lognormal run times, on workers with
//! walltimes.

mod real;
mod simulated;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

pub(crate) use self::real::task as run_task;
use crate::figures::{STEP, mix, unit};
use crate::options::Hq;

/// How much memory, cut-off work and time do learned sizes save in a campaign of many tasks?
///
/// The campaign runs in virtual time, or with `--real` in seconds instead of hours, with a real
/// server, real workers, and processes that sleep and allocate memory. Compares ways to submit it,
/// seed by seed.
#[derive(Args)]
pub(crate) struct Options {
    /// Run real processes on this machine; each case takes about a minute.
    #[arg(long)]
    real: bool,
    #[command(flatten)]
    hq: Hq,
    /// The number of campaigns with other random numbers [default: 20, with --real 3].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The number of tasks [default: 2000, with --real 300].
    #[arg(long, value_name = "N")]
    tasks: Option<u32>,
}

/// The ways to submit the campaign.
const CASES: [(&str, Asked); 5] = [
    ("largest need, no prediction", Asked::new(false, 0)),
    ("auto, no prediction", Asked::new(true, 0)),
    ("auto, 0.90", Asked::new(true, 900)),
    ("auto, 0.95", Asked::new(true, 950)),
    ("auto, 0.99", Asked::new(true, 990)),
];

/// The cases that run with real processes.
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

/// The parameters of a simulated campaign.
#[derive(Clone, Copy, Debug)]
struct Campaign {
    /// The number of tasks.
    tasks: u32,
    /// The number of simultaneous workers. When one ends, another replaces it.
    workers: u32,
    /// The cpus of a worker. A task takes one.
    cpus: u32,
    /// The memory of a worker in MiB.
    memory: u32,
    /// The memory of the smallest task in MiB.
    memory_least: u32,
    /// The lifetime of a worker.
    walltime: Duration,
    /// The median of the run times.
    run: Duration,
    /// The standard deviation of the logarithms of the run times.
    sigma: f64,
}

/// The request of the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    /// Whether to use `mem=auto` instead of the largest need for all tasks.
    auto_memory: bool,
    /// The value of `--predict` in thousandths; 0 = `--no-predict`.
    predict: u16,
}

impl Asked {
    const fn new(auto_memory: bool, predict: u16) -> Self {
        Self {
            auto_memory,
            predict,
        }
    }
}

/// The results of a campaign.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Figures {
    /// The sum of reserved memory times duration over all attempts, in GiB · h.
    reserved: f64,
    /// The cpu hours of attempts that were cut off when their worker ended.
    cut_off: f64,
    /// The number of these attempts.
    cut_off_count: u32,
    /// The number of attempts that ran out of memory.
    out_of_memory: u32,
    /// The number of tasks that finished.
    finished: u32,
    /// Hours until the last task finished.
    makespan: f64,
}

/// The real needs of a task, independent of its grant.
#[derive(Clone, Copy, Debug)]
struct Need {
    mebibytes: u32,
    run: Duration,
    /// Fraction of its run after which its memory peaks.
    peak: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (mut campaign, seeds, cases) = if options.real {
        (REAL, 3, &REAL_CASES[..])
    } else {
        (SIMULATED, 20, &[0, 1, 2, 3, 4][..])
    };
    campaign.tasks = options.tasks.unwrap_or(campaign.tasks);
    let cases: Vec<(&str, Asked)> = cases.iter().map(|case| CASES[*case]).collect();
    let seeds = options.seeds.unwrap_or(seeds);
    compare(&campaign, seeds, &cases, |seed, asked| {
        if options.real {
            campaign.play_real(&options.hq.path()?, seed, asked)
        } else {
            Ok(campaign.play(seed, asked))
        }
    })
}

/// Runs the cases. Compares them with the first case, and their cut-off work with the second case.
fn compare(
    campaign: &Campaign,
    seeds: u64,
    cases: &[(&str, Asked)],
    play: impl Fn(u64, Asked) -> Result<Figures>,
) -> Result<()> {
    println!("{campaign:?}");
    println!(
        "seed | case | finished | out of memory | cut off | cpu h cut off | GiB h | makespan h"
    );
    let mut all = vec![Vec::new(); cases.len()];
    for seed in 1..=seeds {
        for ((name, asked), figures) in cases.iter().zip(&mut all) {
            let found = play(seed, *asked)?;
            println!(
                "{seed} | {name} | {} | {} | {} | {:.3} | {:.3} | {:.3}",
                found.finished,
                found.out_of_memory,
                found.cut_off_count,
                found.cut_off,
                found.reserved,
                found.makespan
            );
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

impl Campaign {
    /// Returns the needs of all tasks. The memory has a Pareto distribution: every hundredth task
    /// needs about 25 times as much as the smallest one.
    fn needs(&self, seed: u64) -> Vec<Need> {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9));
        let need = |_| {
            let tail = (1.0 - chance.next() * 0.999_999).powf(-1.0 / 1.3);
            let most = f64::from(self.memory) * 0.9;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "at most the memory of a worker"
            )]
            let mebibytes = (f64::from(self.memory_least) * tail).min(most) as u32;
            let factor = (self.sigma * chance.normal()).exp();
            Need {
                mebibytes,
                // A task longer than the lifetime of a worker could never end.
                run: self.run.mul_f64(factor).min(self.walltime.mul_f64(0.8)),
                peak: 0.2 + 0.8 * chance.next(),
            }
        };
        (0..self.tasks).map(need).collect()
    }
}

/// A reproducible random generator (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(STEP);
        unit(mix(self.0))
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next() * 0.999_999).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next()).cos()
    }
}

fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3_600.0
}
