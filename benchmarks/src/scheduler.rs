//! `scheduler`: the quality and speed of the scheduler's decisions on virtual clusters. These use the
//! real state machines of server and workers and virtual time, without processes or sockets. Only
//! the server's decisions are timed.

mod bound;
mod cluster;
mod decision;
mod kinds;
mod quality;
mod scale;
mod shapes;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use self::kinds::OPERATIONS;
use self::quality::{Quality, measure, small_cases};
use self::shapes::{
    Load, heterogeneous, map_reduce, merge, montage, plain_array, stencil, with_gangs,
};
use crate::figures::quantile;
use crate::plot::{self, Series};

/// How good are the scheduler's decisions, and how long does one take?
///
/// Runs published graph shapes and mixes on virtual clusters and compares each makespan with a lower
/// bound, compares small cases with the optimum, and times every decision of the server's state
/// machine, up to 1 000 workers and 1 000 000 ready tasks.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the largest clusters.
    #[arg(long)]
    short: bool,
    /// Run only the largest case.
    #[arg(long)]
    scale: bool,
    /// Run only cases with N of one thing: requests, priorities, templates, jobs, ended workers, or
    /// workers (a tenth) [default: 100000].
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "100000")]
    #[arg(conflicts_with_all = ["short", "scale", "plots"])]
    kinds: Option<u32>,
    /// Run only cases with this text in their names.
    #[arg(long, value_name = "WORD", requires = "kinds")]
    case: Option<String>,
    /// Where plots are written.
    #[arg(value_name = "DIR", conflicts_with = "scale")]
    plots: Option<PathBuf>,
}

/// Creates a load for a number of workers.
type Shape = fn(u32) -> Load;

const SHAPES: [Shape; 7] = [
    |workers| plain_array(workers * 16),
    |workers| map_reduce(workers * 16),
    |workers| merge(workers * 16),
    |workers| stencil(workers * 16),
    |workers| montage(workers * 16),
    heterogeneous,
    with_gangs,
];

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(many) = options.kinds {
        very_many(many, options.case.as_deref().unwrap_or_default());
        return Ok(());
    }
    if !options.scale {
        let clusters = [1, 4, 16, 64, 256];
        let count = if options.short { 3 } else { clusters.len() };
        shapes(&clusters[..count], options.plots.as_deref())?;
        small(300);
    }
    scale::run();
    Ok(())
}

/// Runs and prints the cases with a very large number of one kind of thing.
fn very_many(many: u32, part: &str) {
    println!(
        "| {many} | tasks | rounds | p50 | p99 | longest | {} | queues in a round |",
        OPERATIONS.join(" | ")
    );
    println!("|---|{}", "---:|".repeat(OPERATIONS.len() + 6));
    let mut longest = Vec::new();
    for row in kinds::measure(many, part) {
        let [p50, p99, _, max] = row.cpu;
        let took = |operation| row.took.get(operation).copied().unwrap_or_default();
        let took = OPERATIONS.map(|operation| format!("{:.1?}", took(operation)));
        println!(
            "| {} | {} | {} | {p50:.1?} | {p99:.1?} | {max:.1?} | {} | {} |",
            row.name,
            row.started,
            row.decisions,
            took.join(" | "),
            row.queues
        );
        longest.push((row.name, row.longest));
    }
    for (name, decision) in longest {
        println!("{name}: longest {decision}");
    }
}

/// Compares small cases with their optimum.
fn small(count: u32) {
    let mut ratios = small_cases(count);
    ratios.sort_by(f64::total_cmp);
    let (mean, optimal) = (
        ratios.iter().sum::<f64>() / ratios.len() as f64,
        ratios.iter().filter(|ratio| **ratio < 1.001).count() as f64 / ratios.len() as f64,
    );
    println!(
        "\n{count} small cases: makespan {mean:.3} of the optimum on average, p95 {:.3}, worst {:.3}; optimal in {:.1} %",
        quantile(&ratios, 0.95),
        quantile(&ratios, 1.0),
        optimal * 100.0
    );
}

fn shapes(clusters: &[u32], plots: Option<&Path>) -> Result<()> {
    println!(
        "| shape | workers | tasks | makespan | bound / makespan | busy while tasks wait | p50 | p99 | max |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut efficiency: Vec<Series> = Vec::new();
    let mut slowest: Vec<Series> = Vec::new();
    for shape in SHAPES {
        let series = |label: &str| Series {
            emphasis: false,
            label: label.to_owned(),
            medians: Vec::new(),
        };
        let name = shape(1).name;
        let (mut ratio, mut time) = (series(name), series(name));
        for workers in clusters {
            let quality = measure(shape(*workers), *workers);
            row(name, *workers, &quality);
            let x = f64::from(*workers);
            ratio.medians.push((x, quality.efficiency()));
            time.medians
                .push((x, quality.decisions[3].as_secs_f64() * 1e6));
        }
        efficiency.push(ratio);
        slowest.push(time);
    }
    if let Some(directory) = plots {
        std::fs::create_dir_all(directory)?;
        let title = "How close the makespan is to its lower bound";
        let svg = plot::svg(title, "workers", "bound / makespan", &efficiency);
        std::fs::write(directory.join("efficiency.svg"), svg)?;
        let svg = plot::svg("Longest decision", "workers", "microseconds", &slowest);
        std::fs::write(directory.join("decisions.svg"), svg)?;
    }
    Ok(())
}

fn row(name: &str, workers: u32, quality: &Quality) {
    let [p50, p99, _, max] = quality.decisions;
    println!(
        "| {name} | {workers} | {} | {:.1?} | {:.3} | {:.3} | {p50:.1?} | {p99:.1?} | {max:.1?} |",
        quality.tasks,
        quality.makespan,
        quality.efficiency(),
        quality.contended_use
    );
}
