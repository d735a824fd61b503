//! Code shared by the benchmarks: a launcher with a blocking consumer, and the C programs to
//! compare it with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use hq_spawn::{
    ArgBlock, EnvBlock, Event, Lane, Launcher, LauncherConfig, SpawnPlan, Stdio, Strategy, Token,
};

/// A launcher with a blocking consumer.
pub(crate) struct Bench {
    pub(crate) launcher: Launcher,
    woken: Receiver<()>,
    pub(crate) env: EnvBlock,
}

impl Bench {
    /// Creates a launcher with this many threads. Its tasks get the environment of this process.
    pub(crate) fn new(threads: usize) -> Self {
        Self::with_strategy(threads, Strategy::Pool)
    }

    /// Creates a launcher with this strategy. Its tasks get the environment of this process.
    pub(crate) fn with_strategy(threads: usize, strategy: Strategy) -> Self {
        let (sender, woken) = sync_channel(1);
        let mut config = LauncherConfig::new(Arc::new(move || {
            // If the channel is full, the consumer is already being woken.
            let _ = sender.try_send(());
        }));
        config.threads = threads;
        config.strategy = strategy;
        Self {
            launcher: Launcher::start(config).expect("a launcher"),
            woken,
            env: EnvBlock::capture(),
        }
    }

    /// Returns how many seconds `count` processes take, run one after another in each lane. With
    /// `bare`, they are set up as in the C loop: they stay in this session, inherit the standard
    /// streams and may outlive this process.
    pub(crate) fn run_in_lanes(
        &mut self,
        program: &Path,
        count: usize,
        lanes: usize,
        bare: bool,
    ) -> f64 {
        let argv = ArgBlock::new([program]).expect("a valid path");
        let begin = Instant::now();
        self.launcher.spawn_in_lanes((0..count as u64).map(|token| {
            let mut plan = SpawnPlan::new(argv.clone(), self.env.clone());
            if bare {
                plan = plan
                    .new_session(false)
                    .death_signal(None)
                    .stdin(Stdio::Inherit)
                    .stdout(Stdio::Inherit)
                    .stderr(Stdio::Inherit);
            }
            (Lane(token % lanes as u64), Token(token), plan)
        }));
        let (mut ended, mut events) = (0, Vec::new());
        while ended < count {
            ended += self.wait_for_ends(&mut events);
        }
        begin.elapsed().as_secs_f64()
    }

    /// Waits for events and returns the number of processes that have ended.
    fn wait_for_ends(&self, events: &mut Vec<Event>) -> usize {
        self.woken.recv().expect("the launcher holds the sender");
        self.launcher.drain_events(events);
        let mut ended = 0;
        for event in events.drain(..) {
            match event {
                Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {}
                Event::Exited { .. } => ended += 1,
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        ended
    }

    /// Returns how many seconds `count` processes take, with at most `window` requested at a time.
    pub(crate) fn run(&mut self, program: &Path, count: usize, window: usize) -> f64 {
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
            let more = self.wait_for_ends(&mut events);
            ended += more;
            self.launcher.spawn_batch(plans.by_ref().take(more));
        }
        begin.elapsed().as_secs_f64()
    }
}

/// Returns how many seconds the C loop takes for `count` processes in this environment.
pub(crate) fn run_c(
    c_loop: &Path,
    program: &Path,
    count: usize,
    threads: usize,
    env: &EnvBlock,
) -> f64 {
    let output = Command::new(c_loop)
        .env_clear()
        .envs(env.iter())
        .arg(program)
        .args([count.to_string(), threads.to_string()])
        .output()
        .expect("the compiled loop");
    let text = String::from_utf8(output.stdout).expect("a number");
    text.trim().parse().expect("a number")
}

/// Compiles one of the C sources of this directory.
pub(crate) fn compile(directory: &Path, name: &str, flags: &[&str]) -> PathBuf {
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

/// Returns the median of the per-round ratios of two contestants' rates: 1 means that `ours` is as
/// fast as `theirs`. Also returns its standard error, assuming normally distributed ratios.
pub(crate) fn ratio(theirs: &[f64], ours: &[f64]) -> (f64, f64) {
    /// The standard error of a median, as a multiple of the standard error of the mean.
    const MEDIAN_ERROR: f64 = 1.253;
    let ratios: Vec<f64> = theirs
        .iter()
        .zip(ours)
        .map(|(theirs, ours)| theirs / ours)
        .collect();
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let variance = ratios
        .iter()
        .map(|ratio| (ratio - mean).powi(2))
        .sum::<f64>()
        / count;
    (median(ratios), MEDIAN_ERROR * (variance / count).sqrt())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
