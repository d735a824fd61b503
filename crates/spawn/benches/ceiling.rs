//! Question: how close does the launcher come to the tightest C loop that spawns and reaps the same
//! processes?
//!
//! Each variant runs many short rounds, alternating with rounds of the C loop, so that other load
//! on the machine affects both equally. The output contains the median rates and the median of the
//! per-round ratios with its standard error, for `/bin/true` and for a static program that does
//! nothing.
//!
//! - *lanes*: as many lanes as threads; everything is requested at once.
//! - *bare lanes*: the same for processes that are set up as in the C loop: no session, no
//!   parent-death signal, no redirected streams.
//! - *queued*: no lanes; everything is requested at once.
//! - *slots*: as many live processes as threads; the consumer requests the next process when one
//!   exits.
//!
//! Requires a C compiler.
//!
//! `cargo bench -p hq-spawn --bench ceiling -- [rounds [processes per round [threads]]]`
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

#[path = "support/common.rs"]
mod common;

use std::path::Path;

use common::{Bench, compile, median, ratio, run_c};

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let rounds = numbers.first().copied().unwrap_or(15);
    let count = numbers.get(1).copied().unwrap_or(1000);
    let threads = numbers.get(2).copied().unwrap_or(2);

    // The directory must be private, because the programs compiled there are executed.
    let directory = tempfile::tempdir().expect("a directory for the compiled programs");
    let c_loop = compile(directory.path(), "loop", &["-O2", "-pthread"]);
    let noop = compile(directory.path(), "noop", &["-O2", "-static"]);
    for program in [Path::new("/bin/true"), &noop] {
        compare(&c_loop, program, rounds, count, threads);
    }
}

const OURS: [&str; 4] = ["lanes", "bare lanes", "queued", "slots"];

fn compare(c_loop: &Path, program: &Path, rounds: usize, count: usize, threads: usize) {
    let mut launcher = Bench::new(threads);
    let mut seconds = OURS.map(|_| (Vec::new(), Vec::new()));
    for round in 0..rounds {
        for (name, (theirs, ours)) in OURS.iter().zip(&mut seconds) {
            for turn in 0..2 {
                if turn == round % 2 {
                    theirs.push(run_c(c_loop, program, count, threads, &launcher.env));
                    continue;
                }
                ours.push(match *name {
                    "lanes" => launcher.run_in_lanes(program, count, threads, false),
                    "bare lanes" => launcher.run_in_lanes(program, count, threads, true),
                    "queued" => launcher.run(program, count, count),
                    _ => launcher.run(program, count, threads),
                });
            }
        }
    }
    let rate = |seconds: &[f64]| count as f64 / median(seconds.to_vec());
    let c_loop: Vec<_> = seconds
        .iter()
        .flat_map(|(theirs, _)| theirs.clone())
        .collect();
    println!("{}, {threads} threads", program.display());
    println!("  C loop      {:7.0}/s", rate(&c_loop));
    for (name, (theirs, ours)) in OURS.iter().zip(&seconds) {
        let (ratio, error) = ratio(theirs, ours);
        println!(
            "  {name:10}  {:7.0}/s  ratio {ratio:.3} ± {error:.3}",
            rate(ours)
        );
    }
}
