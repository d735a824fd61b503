//! `strangers`: connections that never authenticate, and those with a lesser right.

mod load;
mod rights;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use self::load::{GARBAGE, Load, Right};
use crate::figures::Rounds;
use crate::options::Hq;
use crate::processes::{Cluster, resident_kib};

/// The pause before a stranger that was rejected tries again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two checks whether all strangers are there.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the wave without a job takes.
const IDLE_WAVE: Duration = Duration::from_secs(10);
/// The pause between closing the connections and measuring the memory.
const SETTLE: Duration = Duration::from_secs(8);

/// What do a thousand unauthenticated connections cost a busy server; what can the holder of a
/// lesser right take from the owner?
///
/// Half of the connections send garbage, and half send nothing. A connection that the server closes
/// is reopened a second later. Both ports are used. Meanwhile a job runs repeatedly, alternating
/// with the same job without the connections. Also prints the server's memory before, at its peak
/// and afterwards; its memory after one more wave without a job, because jobs also leave something
/// in memory; and whether its log contains received bytes.
///
/// With `--right`, connections with that right send long-lasting requests, nothing, or incomplete
/// requests, and reconnect when they are closed. Another program gets the same load for the same
/// time. Prints the durations of the owner's `job list` for both, and for hq also a worker's
/// registration time and the memory. Run it on one cpu: `taskset -c 0`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    hq: Hq,
    /// The number of tasks of the job.
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    count: u32,
    /// The number of connections.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    connections: usize,
    /// How long the connections are there, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Try this right instead: that of a stranger, of the key of workers or of clients, or of a token that reads or submits; with
    /// commas one after the other.
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    right: Vec<Right>,
}

impl Options {
    const fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    if options.right.is_empty() {
        return siege(options, dir);
    }
    let mut rights = options.right.iter();
    rights.try_for_each(|right| rights::run(*right, options, &dir.join(right.name())))
}

fn siege(options: &Options, dir: &Path) -> Result<()> {
    let cluster = Cluster::start(&options.hq.path()?, dir, 2, &[])?;
    let load = Load {
        ports: ports(&cluster)?.into(),
        pause: REOPEN_PAUSE,
        ..Load::default()
    };
    let run = || cluster.time_array(options.count, "/bin/true");
    let resident = || resident_kib(cluster.server_pid());
    run()?;
    let before = resident()?;
    let (mut alone, mut among) = (Rounds::default(), Rounds::default());
    let (mut peak, mut under_siege) = (before, Duration::ZERO);
    while under_siege < options.time() {
        alone.push(run()?);
        let start = Instant::now();
        let opened = load.opened();
        let strangers = load.start(options.connections)?;
        // Wait until all connections have been opened once.
        while load.opened() - opened < options.connections {
            std::thread::sleep(LOOK_INTERVAL);
        }
        among.push(run()?);
        peak = peak.max(resident()?);
        strangers.shutdown_background();
        under_siege += start.elapsed();
    }
    std::thread::sleep(SETTLE);
    let after = resident()?;
    let strangers = load.start(options.connections)?;
    std::thread::sleep(IDLE_WAVE);
    strangers.shutdown_background();
    std::thread::sleep(SETTLE);
    let after_idle = resident()?;
    let rate = |rounds: &Rounds| rounds.rates(f64::from(options.count))[1];
    println!(
        "{} tasks: {:.0} /s alone, {:.0} /s among {} strangers ({} connections in {under_siege:.0?})",
        options.count,
        rate(&alone),
        rate(&among),
        options.connections,
        load.opened()
    );
    println!("ratio: {:.2}", among.ratio_to(&alone));
    println!(
        "server: {before} KiB before, {peak} KiB among them, {after} KiB after, {after_idle} KiB after one more wave"
    );
    println!(
        "received bytes in its log: {}",
        cluster.log()?.contains(GARBAGE)
    );
    Ok(())
}

/// Returns the client port and the worker port.
fn ports(cluster: &Cluster) -> Result<[u16; 2]> {
    let info = cluster.json(&["server", "info"])?;
    let port =
        |name: &str| -> Result<u16> { Ok(info[name].as_u64().context("no port")?.try_into()?) };
    Ok([port("client_port")?, port("worker_port")?])
}
