//! A server and a worker as separate processes of any binary with hq's command line.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long a server or a worker may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The filter includes long turns of the core's thread.
const LOG_FILTER: &str = "info,hq_server::core_thread=debug";

/// A server and a worker that run until dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    /// The processes; the server is the first.
    children: Vec<Child>,
}

impl Cluster {
    /// Starts both in `dir`, which must exist. `server_args` go to `server start`.
    ///
    /// # Errors
    ///
    /// If either of them is not up in time.
    pub fn start(binary: &Path, dir: &Path, cpus: u32, server_args: &[&str]) -> Result<Self> {
        let mut cluster = Self::start_server(binary, dir, server_args)?;
        cluster.start_worker(&[&format!("--cpus={cpus}")])?;
        Ok(cluster)
    }

    /// Starts a worker that has only the resources in `args`.
    ///
    /// # Errors
    ///
    /// If it is not up in time.
    pub fn start_worker(&mut self, args: &[&str]) -> Result<()> {
        let start = ["worker", "start", "--detect-resources=none"];
        self.run_in_background(&[&start, args].concat(), "worker")?;
        let list = ["worker", "list", "--output-mode=json"];
        self.wait_until(&list, |output| output.contains("\"id\""))
    }

    /// Starts a server without workers in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// If it is not up in time.
    pub fn start_server(binary: &Path, dir: &Path, server_args: &[&str]) -> Result<Self> {
        let mut cluster = Self {
            binary: binary.into(),
            dir: dir.into(),
            children: Vec::new(),
        };
        cluster.run_in_background(&[&["server", "start"], server_args].concat(), "server")?;
        cluster.wait_until(&["server", "info"], |output| !output.is_empty())?;
        Ok(cluster)
    }

    /// Kills the server without warning.
    ///
    /// # Errors
    ///
    /// If it has already ended.
    pub fn kill_server(&mut self) -> Result<()> {
        let server = self.children.first_mut().context("no server")?;
        ensure!(
            server.try_wait()?.is_none(),
            "the server has ended by itself"
        );
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Restarts a killed server. Returns the time until it answered.
    ///
    /// # Errors
    ///
    /// If it is not up in time.
    pub fn start_server_again(&mut self, server_args: &[&str]) -> Result<Duration> {
        let begun = Instant::now();
        self.run_in_background(&[&["server", "start"], server_args].concat(), "server")?;
        // The new process replaces the killed one.
        self.children.swap_remove(0).wait()?;
        self.wait_until(&["server", "info"], |output| !output.is_empty())?;
        Ok(begun.elapsed())
    }

    /// Returns the CPU time and the parts of each long turn of the core's thread, for all servers
    /// so far.
    ///
    /// # Errors
    ///
    /// If the server's log cannot be read.
    pub fn long_turns(&self) -> Result<Vec<(Duration, String)>> {
        let log = std::fs::read_to_string(self.dir.join("server.log"))?;
        Ok(log.lines().filter_map(long_turn).collect())
    }

    /// Returns the server directory.
    #[must_use]
    pub fn server_dir(&self) -> PathBuf {
        self.dir.join("server")
    }

    fn run_in_background(&mut self, args: &[&str], name: &str) -> Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{name}.log")))
            .context("cannot create a log file")?;
        let mut command = self.command(args);
        let child = command
            .env("RUST_LOG", LOG_FILTER)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        self.children.push(child);
        Ok(())
    }

    fn wait_until(&self, args: &[&str], ready: impl Fn(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            let output = self.command(args).output().context("cannot run a client")?;
            if output.status.success() && ready(&String::from_utf8_lossy(&output.stdout)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!(
            "{} {args:?} did not answer as expected",
            self.binary.display()
        )
    }

    /// Returns a client command for this server.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .env("HQ_SERVER_DIR", self.server_dir())
            .current_dir(&self.dir);
        command.stdin(Stdio::null());
        command
    }

    /// Measures the time of a client command that must succeed.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn time(&self, args: &[&str]) -> Result<Duration> {
        let start = Instant::now();
        let output = self
            .command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        ensure!(
            output.status.success(),
            "{} {args:?} failed after {:?}: {}",
            self.binary.display(),
            start.elapsed(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(start.elapsed())
    }

    /// Measures the time of a submit that waits for its tasks. All of them must finish.
    ///
    /// A waiting submit also exits with 0 if tasks failed, and tasks that fail immediately are
    /// quick. So without the count, a server that cannot run the program would win.
    ///
    /// # Errors
    ///
    /// If the client fails, or if the number of finished tasks is not `count`.
    pub fn time_tasks(&self, submit: &[&str], count: u32) -> Result<Duration> {
        let took = self.time(submit)?;
        let info = self
            .command(&["job", "info", "last", "--output-mode=json"])
            .output()
            .context("cannot run a client")?;
        let jobs: serde_json::Value =
            serde_json::from_slice(&info.stdout).context("`job info` printed no JSON")?;
        let stats = jobs
            .pointer("/0/info/task_stats")
            .context("`job info` printed no task_stats")?;
        ensure!(
            stats.get("finished").and_then(serde_json::Value::as_u64) == Some(u64::from(count)),
            "expected {count} finished tasks, found {stats}"
        );
        Ok(took)
    }

    /// Returns the id of the process that runs the tasks, which is a child of the started process.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        let front = self.children.last()?.id();
        let children = format!("/proc/{front}/task/{front}/children");
        let children = std::fs::read_to_string(children).ok()?;
        let child = children.split_whitespace().next()?.parse().ok();
        child.or(Some(front))
    }

    /// Returns the process id of the server.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.children.first().map_or(0, Child::id)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Processes that do not end are killed. A worker would otherwise wait for its server.
        let _ = self
            .command(&["worker", "stop", "all"])
            .stderr(Stdio::null())
            .status();
        let _ = self
            .command(&["server", "stop"])
            .stderr(Stdio::null())
            .status();
        for child in &mut self.children {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(5) {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Parses a log line about a long turn.
fn long_turn(line: &str) -> Option<(Duration, String)> {
    if !line.contains("a long turn of the core's thread") {
        return None;
    }
    let (_, value) = line.split_once("cpu_ms=")?;
    let millis = value.split_whitespace().next()?.parse::<f64>().ok()?;
    let parts = value.split_once("parts_ms=").map_or("", |(_, parts)| parts);
    Some((Duration::from_secs_f64(millis / 1e3), parts.to_owned()))
}

/// Returns the resident memory of a process in KiB.
///
/// # Errors
///
/// If the process is gone.
pub fn resident_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("no VmRSS")?;
    line.split_whitespace()
        .nth(1)
        .context("no value")?
        .parse()
        .context("not a number")
}

/// Returns the CPU time of all threads of a process, without its children, to within 10 ms.
///
/// # Errors
///
/// If the process is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before these fields may contain any characters.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("too short")?.parse()?) };
    // On Linux, this unit is always a hundredth of a second.
    Ok(Duration::from_millis((ticks()? + ticks()?) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_turns_are_read_from_the_log() {
        let line = "2026-01-01T00:00:00Z DEBUG a long turn of the core's thread cpu_ms=12.5 rows=3 \
                    parts_ms=requests 12.0, reports 0.5";
        let parts = "requests 12.0, reports 0.5".to_owned();
        let expected = (Duration::from_micros(12_500), parts);
        assert_eq!(long_turn(line), Some(expected));
        assert_eq!(long_turn("INFO something else cpu_ms=12.5"), None);
    }
}
