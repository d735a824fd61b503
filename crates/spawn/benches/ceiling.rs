//! Question: how close is the launcher to the tightest C loop that spawns and reaps the same processes?
//!
//! Both run in turns, many short rounds each, so that a busy machine disturbs both alike. Printed are the median
//! rates and the median of the ratios of each round, for `/bin/true` and for a static program that does nothing.
//! *lanes*: as many lanes as threads, everything requested at once. *bare lanes*: the same for processes that get no
//! more than those of the C loop: no session, no parent-death signal, no streams of their own. *queued*: no lanes,
//! everything requested at once. *slots*: as many processes as threads live at a time, and the consumer requests the
//! next one when it hears of an end. Needs a C compiler.
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
    let mut theirs = Vec::new();
    let mut ours: [(&str, Vec<f64>); 4] =
        ["lanes", "bare lanes", "queued", "slots"].map(|name| (name, Vec::new()));
    for _ in 0..rounds {
        theirs.push(run_c(c_loop, program, count, threads, &launcher.env));
        for (index, (_, seconds)) in ours.iter_mut().enumerate() {
            seconds.push(match index {
                0 | 1 => launcher.run_in_lanes(program, count, threads, index == 1),
                2 => launcher.run(program, count, count),
                _ => launcher.run(program, count, threads),
            });
        }
    }
    let rate = |seconds: &[f64]| count as f64 / median(seconds.to_vec());
    println!("{}, {threads} threads", program.display());
    println!("  C loop      {:7.0}/s", rate(&theirs));
    for (name, seconds) in &ours {
        let ratio = ratio(&theirs, seconds);
        println!("  {name:10}  {:7.0}/s  ratio {ratio:.3}", rate(seconds));
    }
}
