//! A server and a worker as separate processes of any binary that speaks hq's command line.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long server and worker may take to come up.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Server and worker that run until dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    server_pid: u32,
    /// Server first.
    children: Vec<Child>,
}

impl Cluster {
    /// Starts both in `dir`, which must exist. `server_args` go to `server start`.
    ///
    /// # Errors
    ///
    /// If one of them does not come up in time.
    pub fn start(binary: &Path, dir: &Path, cpus: u32, server_args: &[&str]) -> Result<Self> {
        let mut cluster = Self::start_server(binary, dir, server_args)?;
        let cpus = format!("--cpus={cpus}");
        cluster.run_in_background(
            &["worker", "start", &cpus, "--detect-resources=none"],
            "worker",
        )?;
        let list = ["worker", "list", "--output-mode=json"];
        cluster.wait_until(&list, |output| output.contains("\"id\""))?;
        Ok(cluster)
    }

    /// Starts a server without workers in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// If it does not come up in time.
    pub fn start_server(binary: &Path, dir: &Path, server_args: &[&str]) -> Result<Self> {
        let mut cluster = Self {
            binary: binary.into(),
            dir: dir.into(),
            server_pid: 0,
            children: Vec::new(),
        };
        cluster.server_pid =
            cluster.run_in_background(&[&["server", "start"], server_args].concat(), "server")?;
        cluster.wait_until(&["server", "info"], |output| !output.is_empty())?;
        Ok(cluster)
    }

    /// The server directory.
    #[must_use]
    pub fn server_dir(&self) -> PathBuf {
        self.dir.join("server")
    }

    fn run_in_background(&mut self, args: &[&str], name: &str) -> Result<u32> {
        let log = std::fs::File::create(self.dir.join(format!("{name}.log")))
            .context("cannot create a log file")?;
        let mut command = self.command(args);
        let child = command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
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

    /// A client command against this server.
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

    /// Time of one client command that must succeed.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn time(&self, args: &[&str]) -> Result<Duration> {
        let start = Instant::now();
        let status = self
            .command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(
            status.success(),
            "{} {args:?} failed",
            self.binary.display()
        );
        Ok(start.elapsed())
    }

    /// Time of a submit that waits for its tasks, all of which must finish.
    ///
    /// A submit that waits exits with 0 when tasks failed, too, and tasks that fail at once are quick: without the
    /// count a server that cannot run the program would win.
    ///
    /// # Errors
    ///
    /// If the client fails, or anything but `count` tasks finished.
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

    /// Process id of the process that runs the tasks: the child of the one that was started.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        let front = self.children.last()?.id();
        let children = format!("/proc/{front}/task/{front}/children");
        let children = std::fs::read_to_string(children).ok()?;
        let child = children.split_whitespace().next()?.parse().ok();
        child.or(Some(front))
    }

    /// Process id of the server.
    #[must_use]
    pub const fn server_pid(&self) -> u32 {
        self.server_pid
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // They are killed if they do not end. A worker would wait for its server.
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

/// Resident memory of a process in KiB.
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
/// CPU time a process has used in all its threads, without that of its children. Exact to 10 ms.
///
/// # Errors
///
/// If the process is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in front may contain anything.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("too short")?.parse()?) };
    // Linux counts in hundredths of a second for all of its users.
    Ok(Duration::from_millis((ticks()? + ticks()?) * 10))
}
