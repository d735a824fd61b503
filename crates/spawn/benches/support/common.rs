//! Shared by the benchmarks: a launcher with a blocking consumer, and the C programs for
//! comparison.

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
    /// A launcher with this many threads; its tasks get this process's environment.
    pub(crate) fn new(threads: usize) -> Self {
        Self::with_strategy(threads, Strategy::Pool)
    }

    /// A launcher with this strategy; its tasks get this process's environment.
    pub(crate) fn with_strategy(threads: usize, strategy: Strategy) -> Self {
        let (sender, woken) = sync_channel(1);
        let mut config = LauncherConfig::new(Arc::new(move || {
            // A full channel already wakes the consumer.
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

    /// Seconds for `count` processes, one after the other in each of the lanes. `bare` ones are set
    /// up as in the C loop: they stay in this session, inherit the standard streams and outlive
    /// this process.
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

    /// Waits for events. Returns the number of ended processes.
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

    /// Seconds for `count` processes, at most `window` requested at a time.
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

/// Seconds of the C loop for `count` processes in this environment.
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

/// Median of the per-round ratios of two contestants, as rates: 1 = `ours` is as fast as `theirs`.
/// Also returns its standard error, assuming normally distributed ratios.
pub(crate) fn ratio(theirs: &[f64], ours: &[f64]) -> (f64, f64) {
    /// Standard error of a median, in standard errors of the mean.
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
