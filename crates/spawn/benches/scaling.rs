//! Question: does the cost of a spawn grow with the size of the parent? The launcher is measured
//! with one burden at a time, alternating with the same launcher without it. The burdens are
//! resident memory, threads, open descriptors, other live children, and environment variables.
//!
//! The time that the kernel needs to copy a large environment into the child must not count. This
//! burden is therefore compared with a C loop that has the same environment, so its result is a
//! ratio of two ratios.
//!
//! `cargo bench -p hq-spawn --bench scaling -- [rounds [processes per round [GiB]]] [part of a
//! burden's name]`
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

#[path = "support/common.rs"]
#[expect(dead_code, reason = "this bench asks for lanes only")]
mod common;

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::channel;

use common::{Bench, compile, median, ratio, run_c};
use hq_spawn::{ArgBlock, Event, SpawnPlan, Token};

/// The numbers that the acceptance criteria of the design require.
const THREADS: usize = 512;
const CHILDREN: u64 = 5000;
const DESCRIPTORS: usize = 5000;
const VARIABLES: usize = 500;

fn main() {
    let (numbers, words): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .partition(|arg| arg.parse::<usize>().is_ok());
    let numbers: Vec<usize> = numbers.iter().filter_map(|arg| arg.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(7);
    let count = numbers.get(1).copied().unwrap_or(1000);
    let gib = numbers.get(2).copied().unwrap_or(4);
    let mut measure = Measure {
        bench: Bench::new(2),
        rounds,
        count,
        only: words.into_iter().next().unwrap_or_default(),
    };
    measure.burden(&format!("{gib} GiB resident"), || vec![1_u8; gib << 30]);
    measure.burden(&format!("{THREADS} threads"), threads);
    measure.burden(&format!("{DESCRIPTORS} descriptors"), || {
        (0..DESCRIPTORS)
            .map(|_| File::open("/dev/null").expect("a descriptor; raise the limit with ulimit -n"))
            .collect::<Vec<_>>()
    });
    measure.burden(&format!("{CHILDREN} live children"), children);
    measure.environment();
}

struct Measure {
    bench: Bench,
    rounds: usize,
    count: usize,
    /// A part of the names of the burdens to measure.
    only: String,
}

impl Measure {
    fn burden<T>(&mut self, name: &str, make: impl Fn() -> T) {
        if !name.contains(&self.only) {
            return;
        }
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let program = Path::new("/bin/true");
        for _ in 0..self.rounds {
            without.push(self.bench.run_in_lanes(program, self.count, 2, false));
            let burden = make();
            with.push(self.bench.run_in_lanes(program, self.count, 2, false));
            drop(burden);
        }
        self.report(name, &without, &with);
    }

    fn report(&self, name: &str, without: &[f64], with: &[f64]) {
        let rate = |seconds: &[f64]| self.count as f64 / median(seconds.to_vec());
        let (ratio, error) = ratio(without, with);
        println!(
            "{name:24} without {:6.0}/s, with {:6.0}/s, ratio {ratio:.3} ± {error:.3}",
            rate(without),
            rate(with),
        );
    }

    fn environment(&mut self) {
        let name = format!("{VARIABLES} more variables");
        if !name.contains(&self.only) {
            return;
        }
        // The directory must be private, because the programs compiled there are executed.
        let directory = tempfile::tempdir().expect("a directory for the compiled program");
        let c_loop = compile(directory.path(), "loop", &["-O2", "-pthread"]);
        let program = Path::new("/bin/true");
        let small = self.bench.env.clone();
        let large = small
            .overlay((0..VARIABLES).map(|index| {
                let name = format!("HQ_SPAWN_BENCH_{index}");
                (name.into(), "a value of usual length".into())
            }))
            .expect("valid names");
        let mut seconds: [Vec<f64>; 4] = Default::default();
        for _ in 0..self.rounds {
            for (index, env) in [&small, &large].into_iter().enumerate() {
                seconds[index].push(run_c(&c_loop, program, self.count, 2, env));
                self.bench.env = env.clone();
                seconds[2 + index].push(self.bench.run_in_lanes(program, self.count, 2, false));
            }
        }
        self.bench.env = small;
        let [c_small, c_large, our_small, our_large] = &seconds;
        self.report("C loop, more variables", c_small, c_large);
        self.report(&name, our_small, our_large);
        let (ours, theirs) = (ratio(our_small, our_large), ratio(c_small, c_large));
        println!("  beyond the C loop       ratio {:.3}", ours.0 / theirs.0);
    }
}

/// Creates threads that sleep until the value is dropped.
fn threads() -> impl Sized {
    (0..THREADS)
        .map(|_| {
            let (sender, receiver) = channel::<()>();
            std::thread::spawn(move || receiver.recv());
            sender
        })
        .collect::<Vec<_>>()
}

/// Creates children that sleep until the value is dropped. They belong to a separate launcher in
/// this process.
fn children() -> Bench {
    let bench = Bench::new(2);
    let argv = ArgBlock::new(["/bin/sleep", "1000"]).expect("valid");
    let plan = SpawnPlan::new(argv, bench.env.clone());
    bench
        .launcher
        .spawn_batch((0..CHILDREN).map(|token| (Token(token), plan.clone())));
    let mut started = Vec::new();
    while (started.len() as u64) < CHILDREN {
        std::thread::sleep(std::time::Duration::from_millis(10));
        bench.launcher.drain_events(&mut started);
    }
    // Most children are still loading libraries; wait until each of them sleeps.
    for event in started {
        if let Event::Started { pid, .. } = event {
            while !sleeps(pid) {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
    bench
}

fn sleeps(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| text.contains(") S "))
}
