//! Question: how close is the launcher to the tightest C loop that spawns and reaps the same processes?
//!
//! Both run in turns, many short rounds each, so that a busy machine disturbs both alike. Printed are the medians
//! and their ratio, for `/bin/true` and for a static program that does nothing. *queued*: all requests are made at
//! once. *slots*: as many processes as threads live at a time, and the consumer requests the next one when it hears
//! of an end, as a worker with that many CPUs does. Needs a C compiler.
//!
//! `cargo bench -p hq-spawn --bench ceiling -- [rounds [processes per round [threads]]]`
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use hq_spawn::{ArgBlock, EnvBlock, Event, Launcher, LauncherConfig, SpawnPlan, Token};

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
        theirs.push(run_c(c_loop, program, count, threads));
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

struct Bench {
    launcher: Launcher,
    woken: Receiver<()>,
    env: EnvBlock,
}

impl Bench {
    fn new(threads: usize) -> Self {
        let (sender, woken) = sync_channel(1);
        let mut config = LauncherConfig::new(Arc::new(move || {
            // A full channel means that the consumer will look anyway.
            let _ = sender.try_send(());
        }));
        config.threads = threads;
        Self {
            launcher: Launcher::start(config).expect("a launcher"),
            woken,
            env: EnvBlock::capture(),
        }
    }

    /// Seconds for `count` processes, at most `window` requested at a time.
    fn run(&mut self, program: &Path, count: usize, window: usize) -> f64 {
        let argv = ArgBlock::new([program]).expect("a valid path");
        let begin = Instant::now();
        let mut plans = (0..count as u64).map(|token| {
            let plan = SpawnPlan::new(argv.clone(), self.env.clone());
            (Token(token), plan)
        });
        self.launcher.spawn_batch(plans.by_ref().take(window));
        let mut ended = 0;
        let mut events = Vec::new();
        while ended < count {
            self.woken.recv().expect("the launcher holds the sender");
            self.launcher.drain_events(&mut events);
            let before = ended;
            for event in events.drain(..) {
                match event {
                    Event::Started { .. } => {}
                    Event::Exited { .. } => ended += 1,
                    Event::Failed { error, .. } => panic!("{error}"),
                }
            }
            self.launcher
                .spawn_batch(plans.by_ref().take(ended - before));
        }
        begin.elapsed().as_secs_f64()
    }
}

fn run_c(c_loop: &Path, program: &Path, count: usize, threads: usize) -> f64 {
    let output = Command::new(c_loop)
        .arg(program)
        .args([count.to_string(), threads.to_string()])
        .output()
        .expect("the compiled loop");
    let text = String::from_utf8(output.stdout).expect("a number");
    text.trim().parse().expect("a number")
}

fn compile(directory: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("benches")
        .join(format!("{name}.c"));
    let program = directory.join(name);
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .args([&program, &source])
        .status()
        .expect("a C compiler named cc");
    assert!(status.success(), "cannot compile {}", source.display());
    program
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
