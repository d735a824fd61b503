//! A server and workers as separate processes of any binary with hq's command line, and their
//! figures from the kernel.

use std::collections::BTreeMap;
use std::fs::{File, create_dir_all, read_dir, read_to_string, remove_dir_all};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long a server or a worker may take to start. A server may have much to read.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take to end before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two checks whether a server is up.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The filter includes long turns of the core's thread.
const LOG_FILTER: &str = "info,hq_server::core_thread=debug";

/// A process that is given time to end when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.is_running() && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server and its workers that run until dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    server: Process,
    workers: Vec<Process>,
}

impl Cluster {
    /// Starts a server and a worker in `dir`. `server_args` go to `server start`.
    pub(crate) fn start(
        binary: &Path,
        dir: &Path,
        cpus: u32,
        server_args: &[&str],
    ) -> Result<Self> {
        let mut cluster = Self::start_server(binary, dir, server_args)?;
        cluster.start_worker(&[&format!("--cpus={cpus}")])?;
        Ok(cluster)
    }

    /// Starts a server without workers in `dir`.
    pub(crate) fn start_server(binary: &Path, dir: &Path, server_args: &[&str]) -> Result<Self> {
        Ok(Self::start_until(binary, dir, server_args, &["server", "info"])?.0)
    }

    /// Starts a server without workers in `dir`. Returns the time until it answered the command.
    pub(crate) fn start_until(
        binary: &Path,
        dir: &Path,
        server_args: &[&str],
        command: &[&str],
    ) -> Result<(Self, Duration)> {
        create_dir_all(dir)?;
        let begun = Instant::now();
        let cluster = Self {
            binary: binary.into(),
            dir: dir.into(),
            server: spawn(
                binary,
                dir,
                &[&["server", "start"], server_args].concat(),
                "server",
            )?,
            workers: Vec::new(),
        };
        cluster.wait_until(command, |output| !output.is_empty())?;
        Ok((cluster, begun.elapsed()))
    }

    /// Starts a worker that has only the resources in `args`.
    pub(crate) fn start_worker(&mut self, args: &[&str]) -> Result<()> {
        let worker = self.spawn_worker(args)?;
        self.workers.push(worker);
        let list = ["worker", "list", "--output-mode=json"];
        self.wait_until(&list, |output| output.contains("\"id\""))
    }

    /// Starts a worker that has only the resources in `args`, without waiting for it.
    pub(crate) fn spawn_worker(&self, args: &[&str]) -> Result<Process> {
        let start = ["worker", "start", "--detect-resources=none"];
        spawn(&self.binary, &self.dir, &[&start, args].concat(), "worker")
    }

    /// Kills the server without warning.
    pub(crate) fn kill_server(&mut self) -> Result<()> {
        ensure!(self.server.is_running(), "the server has ended by itself");
        self.server.0.kill()?;
        self.server.0.wait()?;
        Ok(())
    }

    /// Restarts a killed server. Returns the time until it answered.
    pub(crate) fn start_server_again(&mut self, server_args: &[&str]) -> Result<Duration> {
        let begun = Instant::now();
        let args = [&["server", "start"], server_args].concat();
        self.server = spawn(&self.binary, &self.dir, &args, "server")?;
        self.wait_until(&["server", "info"], |output| !output.is_empty())?;
        Ok(begun.elapsed())
    }

    /// Stops the server and the workers that it knows.
    pub(crate) fn stop(&self) -> Result<()> {
        self.time(&["server", "stop"]).map(drop)
    }

    /// Returns the CPU time and the parts of each long turn of the core's thread, for all servers
    /// so far.
    pub(crate) fn long_turns(&self) -> Result<Vec<(Duration, String)>> {
        let log = self.log()?;
        Ok(log.lines().filter_map(long_turn).collect())
    }

    /// Returns the log of all servers so far.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(read_to_string(self.dir.join("server.log"))?)
    }

    /// Returns the server directory.
    pub(crate) fn server_dir(&self) -> PathBuf {
        self.dir.join("server")
    }

    fn wait_until(&self, args: &[&str], ready: impl Fn(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            let output = self.command(args).output().context("cannot run a client")?;
            if output.status.success() && ready(&String::from_utf8_lossy(&output.stdout)) {
                return Ok(());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        bail!(
            "{} {args:?} did not answer as expected",
            self.binary.display()
        )
    }

    /// Returns a client command for this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        command(&self.binary, &self.dir, args)
    }

    /// Returns the output of a client command that must succeed.
    pub(crate) fn output(&self, args: &[&str]) -> Result<String> {
        let begun = Instant::now();
        let output = self.command(args).output().context("cannot run a client")?;
        ensure!(
            output.status.success(),
            "{} {args:?} failed after {:?}: {}",
            self.binary.display(),
            begun.elapsed(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the JSON output of a client command that must succeed.
    pub(crate) fn json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let output = self.output(&[args, &["--output-mode=json"]].concat())?;
        serde_json::from_str(&output).with_context(|| format!("{args:?} printed no JSON"))
    }

    /// Measures the time of a client command that must succeed.
    pub(crate) fn time(&self, args: &[&str]) -> Result<Duration> {
        let start = Instant::now();
        self.output(args)?;
        Ok(start.elapsed())
    }

    /// Measures the time of a submit that waits for its tasks. All of them must finish.
    ///
    /// A waiting submit also exits with 0 if tasks failed, and tasks that fail immediately are
    /// quick. So without the count, a server that cannot run the program would win.
    pub(crate) fn time_tasks(&self, submit: &[&str], count: u32) -> Result<Duration> {
        let took = self.time(submit)?;
        let jobs = self.json(&["job", "info", "last"])?;
        let stats = jobs.pointer("/0/info/task_stats");
        let stats = stats.context("`job info` printed no task_stats")?;
        ensure!(
            stats.get("finished").and_then(serde_json::Value::as_u64) == Some(u64::from(count)),
            "expected {count} finished tasks, found {stats}"
        );
        Ok(took)
    }

    /// Measures the time of an array of tasks without output files.
    pub(crate) fn time_array(&self, count: u32, program: &str) -> Result<Duration> {
        let array = format!("--array=1-{count}");
        self.time_tasks(&submit(&[&array, "--wait"], program), count)
    }

    /// Measures the time of an array of tasks with two output files each, and removes the files.
    pub(crate) fn time_array_with_files(&self, count: u32, program: &str) -> Result<Duration> {
        let array = format!("--array=1-{count}");
        let took = self.time_tasks(&["submit", &array, "--wait", "--", program], count)?;
        for entry in read_dir(&self.dir)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("job-") {
                remove_dir_all(entry.path())?;
            }
        }
        Ok(took)
    }

    /// Returns the id of the process that runs the tasks, which is a child of the started process.
    pub(crate) fn worker_pid(&self) -> Option<u32> {
        let front = self.workers.last()?.0.id();
        let children = format!("/proc/{front}/task/{front}/children");
        let children = read_to_string(children).ok()?;
        let child = children.split_whitespace().next()?.parse().ok();
        child.or(Some(front))
    }

    /// Returns the process id of the server.
    pub(crate) fn server_pid(&self) -> u32 {
        self.server.0.id()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A worker would otherwise wait for its server. Processes that do not end are killed.
        if self.server.is_running() {
            let _ = self.time(&["worker", "stop", "all"]);
            let _ = self.stop();
        }
    }
}

/// Returns a submit of tasks without output files.
pub(crate) fn submit<'a>(options: &[&'a str], program: &'a str) -> Vec<&'a str> {
    let quiet = ["--stdout=none", "--stderr=none", "--", program];
    [&["submit"], options, &quiet].concat()
}

fn command(binary: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command
        .args(args)
        .env("HQ_SERVER_DIR", dir.join("server"))
        .current_dir(dir)
        .stdin(Stdio::null());
    command
}

/// Starts a process in the background. `name` is the name of its log.
fn spawn(binary: &Path, dir: &Path, args: &[&str], name: &str) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(log);
    let child = command(binary, dir, args)
        .env("RUST_LOG", LOG_FILTER)
        .stdout(Stdio::null())
        .stderr(log.context("cannot create a log file")?)
        .spawn();
    let child = child.with_context(|| format!("cannot run {}", binary.display()))?;
    Ok(Process(child))
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
pub(crate) fn resident_kib(pid: u32) -> Result<u64> {
    status(pid, "VmRSS:")
}

/// Returns the peak resident memory of a process in KiB.
pub(crate) fn peak_kib(pid: u32) -> Result<u64> {
    status(pid, "VmHWM:")
}

fn status(pid: u32, name: &str) -> Result<u64> {
    let status = read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let value = value.and_then(|value| value.split_whitespace().next());
    let value = value.with_context(|| format!("no {name}"))?;
    value.parse().context("not a number")
}

/// Returns the CPU time of a process by thread name, without trailing numbers.
pub(crate) fn cpu_by_thread(pid: u32) -> Result<BTreeMap<String, Duration>> {
    let mut times: BTreeMap<String, Duration> = BTreeMap::new();
    for thread in read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let read = |name: &str| read_to_string(thread.join(name));
        // A thread may end at any moment.
        let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let name = name.trim();
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        let on_cpu = stat.split_whitespace().next().context("no time")?.parse()?;
        *times.entry(name.to_owned()).or_default() += Duration::from_nanos(on_cpu);
    }
    Ok(times)
}

/// Returns the CPU time of all threads of a process, without its children, to within 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = read_to_string(format!("/proc/{pid}/stat"))?;
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
