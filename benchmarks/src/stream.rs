//! `stream`: the output of tasks on its way into a stream file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::baseline;
use crate::figures::Rounds;
use crate::options::Contestants;
use crate::processes::{Cluster, resident_kib};

/// How fast does the output of tasks go through one worker into a stream file, compared with `cat >
/// file` fed by the same producers?
///
/// Each round runs the same number of producers with the same parallelism, once through `hq submit
/// --stream` and once through one pipe into one `cat`. In a third row, each producer writes to a
/// file itself, which is an upper bound for anything that reads the bytes. The figures are medians
/// and ratios to `cat` in the same round. Needs a C compiler and `xargs`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    contestants: Contestants,
    /// The number of tasks in a round.
    #[arg(long, value_name = "N", default_value_t = 8)]
    tasks: u32,
    /// The output of each task in MiB; a sixteenth of that for short writes.
    #[arg(long, value_name = "N", default_value_t = 128)]
    mib: u32,
    /// The numbers of bytes that a task writes at a time, each with its own table.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [65_536, 4_096, 80])]
    block: Vec<u32>,
    /// Where the files are written.
    #[arg(long, value_name = "PATH", default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    let producer = baseline::compile(dir, "producer", &[])?;
    let contestants = options.contestants.start(dir)?;
    let Contestants { cpus, rounds, .. } = options.contestants;
    let tasks = options.tasks;
    for block in &options.block {
        // Short writes are slow with any reader, so fewer of them are enough.
        let mib = if *block < 1_024 {
            (options.mib / 16).max(1)
        } else {
            options.mib
        };
        let work = Work {
            producer: &producer,
            tasks,
            mib,
            block: *block,
            cpus,
        };
        println!("{tasks} tasks, {cpus} at a time, write {mib} MiB each, {block} bytes at a time");
        compare(rounds, &work, &contestants, dir)?;
        println!();
    }
    for (label, cluster) in &contestants {
        if let Some(worker) = cluster.worker_pid() {
            let memory = resident_kib(worker)?;
            println!("{label}: the worker's memory is {memory} KiB");
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
        let took = baseline::time(Command::new("sh").args(["-c", script]).current_dir(&home))?;
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

fn compare(
    rounds: u32,
    work: &Work<'_>,
    contestants: &[(String, Cluster)],
    dir: &Path,
) -> Result<()> {
    let labels = contestants.iter().map(|(label, _)| label.as_str());
    let labels = ["cat > file"].into_iter().chain(labels);
    let mut rows: Vec<(&str, Rounds)> = labels
        .chain(["a file each"])
        .map(|label| (label, Rounds::default()))
        .collect();
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
    let megabytes = work.bytes() as f64 / 1e6;
    for (label, rounds) in &rows {
        let [most, median, least] = rounds.rates(megabytes);
        let ratio = rounds.ratio_to(&baseline);
        println!("{label:20} {median:>8.0} {least:>8.0} - {most:>8.0} {ratio:>8.2}");
    }
    Ok(())
}
