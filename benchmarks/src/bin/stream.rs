//! Question: how fast does the output of tasks go through one worker into a stream file, compared
//! with `cat > file` fed by the same producers?
//!
//! Each round runs the same number of producers with the same parallelism, once through `hq submit
//! --stream` and once through one pipe into one `cat`. In a third row, each producer writes to a
//! file itself, which is an upper bound for anything that reads the bytes. The figures are medians
//! and ratios to `cat` in the same round.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin stream -- [--hq PATH] [--tasks N] [--mib N] [--rounds N]
//!     [--cpus N] [--block BYTES[,BYTES…]] [--dir PATH] [--peer LABEL=PATH]…
//! ```

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hq_benchmarks::baseline;
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::stats::Rounds;
use hq_benchmarks::{options, scratch_dir};

struct Options {
    hq: PathBuf,
    tasks: u32,
    /// The output of each task, in MiB.
    mib: u32,
    rounds: u32,
    cpus: u32,
    /// The numbers of bytes that a task writes at a time.
    blocks: Vec<u32>,
    /// Where the files are written.
    dir: PathBuf,
    peers: Vec<(String, PathBuf)>,
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let dir = scratch_dir("stream", &options.dir)?;
    run(&options, dir.path())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
    let mut chosen = Options {
        hq: options::hq_beside()?,
        tasks: 8,
        mib: 128,
        rounds: 5,
        cpus: 2,
        blocks: vec![65_536, 4_096, 80],
        dir: std::env::temp_dir(),
        peers: Vec::new(),
    };
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--tasks" => chosen.tasks = value.get()?,
            "--mib" => chosen.mib = value.get()?,
            "--rounds" => chosen.rounds = value.get()?,
            "--cpus" => chosen.cpus = value.get()?,
            "--block" => chosen.blocks = value.list()?,
            "--dir" => chosen.dir = value.get()?,
            "--peer" => chosen.peers.push(value.labelled_file()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chosen)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let producer = baseline::compile(dir, "producer", &[])?;
    let mut contestants: Vec<(String, Cluster)> = Vec::new();
    let binaries = std::iter::once(("hq".to_owned(), options.hq.clone()));
    for (label, binary) in binaries.chain(options.peers.iter().cloned()) {
        let home = dir.join(&label);
        std::fs::create_dir_all(&home)?;
        let cluster = Cluster::start(&binary, &home, options.cpus, &[])?;
        contestants.push((label, cluster));
    }
    let (tasks, mib, cpus) = (options.tasks, options.mib, options.cpus);
    for block in &options.blocks {
        // Short writes are slow with any reader, so fewer of them are enough.
        let mib = if *block < 1_024 {
            (mib / 16).max(1)
        } else {
            mib
        };
        let work = Work {
            producer: &producer,
            tasks,
            mib,
            block: *block,
            cpus,
        };
        println!("{tasks} tasks, {cpus} at a time, write {mib} MiB each, {block} bytes at a time");
        compare(options.rounds, &work, &contestants, dir)?;
        println!();
    }
    for (label, cluster) in &contestants {
        if let Some(worker) = cluster.worker_pid() {
            println!(
                "{label}: the worker's memory is {} KiB",
                resident_kib(worker)?
            );
        }
    }
    Ok(())
}

/// The output to be written.
struct Work<'a> {
    producer: &'a Path,
    tasks: u32,
    mib: u32,
    block: u32,
    cpus: u32,
}

impl Work<'_> {
    const fn bytes(&self) -> u64 {
        self.tasks as u64 * ((self.mib as u64) << 20)
    }

    /// Writes through one pipe into one `cat`.
    fn cat(&self, dir: &Path) -> Result<Duration> {
        let (tasks, cpus, producer) = (self.tasks, self.cpus, self.producer_command());
        self.shell(
            dir,
            &format!("seq {tasks} | xargs -P{cpus} -I_ {producer} | cat > out"),
        )
    }

    /// Lets each producer write to a separate file.
    fn direct(&self, dir: &Path) -> Result<Duration> {
        let (tasks, cpus, producer) = (self.tasks, self.cpus, self.producer_command());
        self.shell(
            dir,
            &format!("seq {tasks} | xargs -P{cpus} -I_ sh -c 'exec {producer} > _'"),
        )
    }

    fn producer_command(&self) -> String {
        format!("{} {} {}", self.producer.display(), self.mib, self.block)
    }

    fn shell(&self, dir: &Path, script: &str) -> Result<Duration> {
        let home = dir.join("baseline");
        std::fs::create_dir_all(&home)?;
        let start = Instant::now();
        let status = Command::new("sh")
            .args(["-c", script])
            .current_dir(&home)
            .status()
            .context("cannot run sh")?;
        let took = start.elapsed();
        ensure!(status.success(), "the baseline failed");
        self.check_size(&home)?;
        std::fs::remove_dir_all(&home)?;
        Ok(took)
    }

    /// Writes through a worker into a stream file.
    fn stream(&self, cluster: &Cluster, dir: &Path) -> Result<Duration> {
        let log = dir.join("log");
        let array = format!("--array=1-{}", self.tasks);
        let [log_arg, program] =
            [&log, self.producer].map(|path| path.to_string_lossy().into_owned());
        let (mib, block) = (self.mib.to_string(), self.block.to_string());
        let submit = [
            "submit", &array, "--stream", &log_arg, "--wait", "--", &program, &mib, &block,
        ];
        let took = cluster.time_tasks(&submit, self.tasks)?;
        self.check_size(&log)?;
        std::fs::remove_dir_all(&log)?;
        Ok(took)
    }

    /// Checks that no output is missing. Otherwise the time would be meaningless.
    fn check_size(&self, dir: &Path) -> Result<()> {
        let mut size = 0;
        for entry in std::fs::read_dir(dir)? {
            size += entry?.metadata()?.len();
        }
        let expected = self.bytes();
        ensure!(
            size >= expected,
            "{} holds {size} bytes, expected at least {expected}",
            dir.display()
        );
        Ok(())
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn compare(
    rounds: u32,
    work: &Work<'_>,
    contestants: &[(String, Cluster)],
    dir: &Path,
) -> Result<()> {
    let mut rows = vec![("cat > file".to_owned(), Rounds::default())];
    let labels = contestants.iter().map(|(label, _)| label.clone());
    rows.extend(labels.map(|label| (label, Rounds::default())));
    rows.push(("a file each".to_owned(), Rounds::default()));
    // Round 0 warms the caches.
    for round in 0..=rounds {
        let mut took = vec![work.cat(dir)?];
        for (_, cluster) in contestants {
            took.push(work.stream(cluster, dir)?);
        }
        took.push(work.direct(dir)?);
        if round > 0 {
            rows.iter_mut()
                .zip(took)
                .for_each(|((_, rounds), took)| rounds.push(took));
        }
    }
    println!(
        "{:20} {:>8} {:>19} {:>8}",
        "", "MB/s", "(min - max)", "ratio"
    );
    let baseline = rows[0].1.clone();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let megabytes = work.bytes() as f64 / 1e6;
    for (label, rounds) in &rows {
        let Some((min, median, max)) = rounds.spread() else {
            continue;
        };
        let rate = |took: Duration| megabytes / took.as_secs_f64();
        println!(
            "{label:20} {:>8.0} {:>8.0} - {:>8.0} {:>8.2}",
            rate(median),
            rate(max),
            rate(min),
            rounds.ratio_to(&baseline).unwrap_or_default()
        );
    }
    Ok(())
}
