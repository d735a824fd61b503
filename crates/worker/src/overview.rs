//! Reports the load of the machine periodically (`--overview-interval`).
//!
//! Reads `/proc` below a root directory, so that tests can describe other machines, and runs the
//! vendors' tools for GPUs. Values that cannot be read are left out and logged once. Tasks never
//! wait for any of this.

mod gpus;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hq_core::hardware::{HardwareUsage, NetworkCounters, Share};
use hq_core::worker_config::WorkerConfig;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use gpus::GpuTools;

/// The shortest interval. More frequent reports would cost more than they show.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Samples the machine on a separate tokio task, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Overviews {
    usages: mpsc::Receiver<HardwareUsage>,
    looking: Option<JoinHandle<()>>,
}

impl Overviews {
    /// Starts sampling if the configuration asks for it.
    pub(crate) fn start(config: &WorkerConfig) -> Self {
        // If the server is slow, samples are dropped.
        let (sender, usages) = mpsc::channel(1);
        let looking = config.overview_interval.map(|interval| {
            let tools = GpuTools::of(&config.resources);
            tokio::spawn(look(interval.max(INTERVAL_MIN), tools, sender))
        });
        Self { usages, looking }
    }

    /// Returns the next sample. Waits forever if sampling is off.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> HardwareUsage {
        match self.usages.recv().await {
            Some(usage) => usage,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Overviews {
    fn drop(&mut self) {
        if let Some(looking) = &self.looking {
            looking.abort();
        }
    }
}

async fn look(interval: Duration, mut gpus: GpuTools, usages: mpsc::Sender<HardwareUsage>) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut machine = Machine::new("/");
    // Loads are relative to the last report, so the first report has none.
    ticks.tick().await;
    machine.cpus();
    loop {
        ticks.tick().await;
        let looked = tokio::task::spawn_blocking(move || (machine.usage(), machine)).await;
        let Ok((mut usage, back)) = looked else {
            return;
        };
        machine = back;
        usage.nvidia = gpus.nvidia().await;
        usage.amd = gpus.amd().await;
        match usages.try_send(usage) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => return,
        }
    }
}

/// The time of one cpu since boot, in clock ticks.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTime {
    busy: u64,
    total: u64,
}

/// The counters of a machine, now and at the previous sample.
#[derive(Debug)]
struct Machine {
    root: PathBuf,
    before: Vec<CpuTime>,
}

impl Machine {
    fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            before: Vec::new(),
        }
    }

    fn usage(&mut self) -> HardwareUsage {
        let (memory_free, memory_total) = memory(&self.read("proc/meminfo"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        HardwareUsage {
            unix_seconds: now.map_or(0, |now| now.as_secs()),
            cpus: self.cpus(),
            memory_free,
            memory_total,
            network: network(&self.read("proc/net/dev")),
            nvidia: None,
            amd: None,
        }
    }

    /// Returns the load of each cpu since the last call.
    fn cpus(&mut self) -> Vec<Share> {
        let now = cpu_times(&self.read("proc/stat"));
        let before = std::mem::replace(&mut self.before, now);
        let pairs = self.before.iter().zip(0..);
        let share = |(now, index): (&CpuTime, usize)| {
            let before = before.get(index).copied().unwrap_or_default();
            Share::of(
                now.busy.saturating_sub(before.busy),
                now.total.saturating_sub(before.total),
            )
        };
        pairs.map(share).collect()
    }

    fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}

/// See `proc_stat(5)`: user, nice, system, idle, iowait, irq, softirq, steal. Guest time is
/// included in user.
fn cpu_times(stat: &str) -> Vec<CpuTime> {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    let of_one = lines.filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let time = |rest: &str| {
        let ticks: Vec<u64> = rest
            .split_whitespace()
            .skip(1)
            .take(8)
            .map_while(|word| word.parse().ok())
            .collect();
        let total: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        CpuTime {
            busy: total - idle,
            total,
        }
    };
    of_one.map(time).collect()
}

/// Returns the memory of this machine that new processes can use, in bytes.
pub(crate) fn memory_available() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo");
    memory(&meminfo.unwrap_or_default()).0
}

/// Returns the available and total memory in bytes, from `proc_meminfo(5)`.
fn memory(meminfo: &str) -> (u64, u64) {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = number.and_then(|number| number.parse().ok()).unwrap_or(0);
        kib.saturating_mul(1024)
    };
    (field("MemAvailable:"), field("MemTotal:"))
}

/// Returns the sums over all interfaces except the loopback, from `proc_pid_net(5)`.
fn network(dev: &str) -> NetworkCounters {
    let mut sum = NetworkCounters::default();
    for (name, counters) in dev.lines().filter_map(|line| line.split_once(':')) {
        if name.trim() == "lo" {
            continue;
        }
        let counters: Vec<u64> = counters
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let at = |index: usize| counters.get(index).copied().unwrap_or(0);
        sum.rx_bytes = sum.rx_bytes.saturating_add(at(0));
        sum.rx_packets = sum.rx_packets.saturating_add(at(1));
        sum.rx_errors = sum.rx_errors.saturating_add(at(2));
        sum.tx_bytes = sum.tx_bytes.saturating_add(at(8));
        sum.tx_packets = sum.tx_packets.saturating_add(at(9));
        sum.tx_errors = sum.tx_errors.saturating_add(at(10));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().expect("directory");
        fs::create_dir_all(root.path().join("proc/net")).expect("directories");
        for (path, text) in files {
            fs::write(root.path().join(path), text).expect("file");
        }
        let machine = Machine::new(root.path());
        (root, machine)
    }

    #[test]
    fn loads_are_told_since_the_look_before() {
        let first = "cpu  30 0 10 60 0 0 0 0 0 0\ncpu0 20 0 0 30 0 0 0 0 0 0\ncpu1 10 0 10 30 0 0 0 0 0 0\n";
        let (root, mut machine) = machine(&[("proc/stat", first)]);
        machine.cpus();
        let second = "cpu  0\ncpu0 50 0 0 30 0 0 0 0 0 0\ncpu1 10 5 10 45 0 0 0 0 9 9\nintr 5 5\n";
        fs::write(root.path().join("proc/stat"), second).expect("file");
        let loads: Vec<f64> = machine.cpus().iter().map(|share| share.percent()).collect();
        assert_eq!(loads, [100.0, 25.0]);
    }

    #[test]
    fn memory_and_network_are_summed_up() {
        let dev = "Inter-|   Receive |  Transmit\n face |bytes packets errs\n\
                   \x20   lo: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\n\
                   \x20 eth0: 100 3 1 0 0 0 0 0 200 4 0 0 0 0 0 0\n\
                   \x20  ib0:1000 1 0 0 0 0 0 0 1 1 2 0 0 0 0 0\n";
        let meminfo = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    500 kB\n";
        let (_root, mut machine) = machine(&[("proc/net/dev", dev), ("proc/meminfo", meminfo)]);
        let usage = machine.usage();
        assert_eq!(
            (usage.memory_free, usage.memory_total),
            (512_000, 1_024_000)
        );
        let network = usage.network;
        let received = (network.rx_bytes, network.rx_packets, network.rx_errors);
        let sent = (network.tx_bytes, network.tx_packets, network.tx_errors);
        assert_eq!((received, sent), ((1100, 4, 1), (201, 5, 2)));
        assert!(usage.cpus.is_empty(), "there is no proc/stat");
    }
}
