//! Question: how close is the launcher to the tightest C loop that spawns and reaps the same processes?
//!
//! Both run in turns, many short rounds each, so that a busy machine disturbs both alike. Printed are the medians
//! and their ratio, for `/bin/true` and for a static program that does nothing. *queued*: all requests are made at
//! once. *slots*: as many processes as threads live at a time, and the consumer requests the next one when it hears
//! of an end, as a worker with that many CPUs does. Needs a C compiler.
//!
//! `cargo bench -p hq-spawn --bench ceiling -- [rounds [processes per round [threads]]]`
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

#[path = "support/common.rs"]
mod common;

use std::path::Path;

use common::{Bench, compile, median, run_c};

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let rounds = numbers.first().copied().unwrap_or(15);
    let count = numbers.get(1).copied().unwrap_or(1000);
    let threads = numbers.get(2).copied().unwrap_or(2);

    let directory = std::env::temp_dir().join(format!("hq-spawn-ceiling-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the compiled programs");
    let c_loop = compile(&directory, "loop", &["-O2", "-pthread"]);
    let noop = compile(&directory, "noop", &["-O2", "-static"]);
    for program in [Path::new("/bin/true"), &noop] {
        compare(&c_loop, program, rounds, count, threads);
    }
    std::fs::remove_dir_all(&directory).expect("the directory made above");
}

fn compare(c_loop: &Path, program: &Path, rounds: usize, count: usize, threads: usize) {
    let mut launcher = Bench::new(threads);
    let mut queued = Vec::new();
    let mut slots = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..rounds {
        theirs.push(run_c(c_loop, program, count, threads, &launcher.env));
        queued.push(launcher.run(program, count, count));
        slots.push(launcher.run(program, count, threads));
    }
    let theirs = median(theirs);
    let rate = |seconds: f64| count as f64 / seconds;
    println!("{}, {threads} threads", program.display());
    println!("  C loop           {:7.0}/s", rate(theirs));
    for (name, seconds) in [("queued", median(queued)), ("slots", median(slots))] {
        let ratio = theirs / seconds;
        println!(
            "  launcher, {name:6} {:7.0}/s  ratio {ratio:.3}",
            rate(seconds)
        );
    }
}
