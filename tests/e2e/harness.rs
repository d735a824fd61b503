//! A server directory per test, processes that end with the test, and functions that wait for
//! conditions.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[path = "../skip.rs"]
mod skip;
pub(crate) use skip::skip;

/// The limit of every wait. It is generous because test machines are slow and shared.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A private server directory and working directory, with the processes started in them.
pub(crate) struct Env {
    dir: tempfile::TempDir,
    children: Vec<(String, Child)>,
    variables: Vec<(String, String)>,
    /// The command prefix that switches to another user; empty = the user of the tests.
    user: Vec<String>,
    /// The program to run; `None` = the program under test.
    program: Option<PathBuf>,
    /// The limit of waits for its processes.
    patience: Duration,
}

/// Numbers for users that no other test uses, because the system counts processes per user.
static USERS: AtomicU32 = AtomicU32::new(0);

/// The output of a command that has ended.
pub(crate) struct Ran {
    pub(crate) command: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl Ran {
    fn new(command: String, output: &Output) -> Self {
        Self {
            command,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        }
    }

    /// Requires exit code 0 and returns standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        self.exits_with(0).stdout
    }

    #[track_caller]
    pub(crate) fn exits_with(self, code: i32) -> Self {
        let Self {
            command,
            stdout,
            stderr,
            ..
        } = &self;
        assert_eq!(
            self.code,
            Some(code),
            "`{command}`\nstdout: {stdout}\nstderr: {stderr}"
        );
        self
    }

    /// Requires a text on standard error.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let Self {
            command,
            stdout,
            stderr,
            ..
        } = &self;
        assert!(
            stderr.contains(text) || stdout.contains(text),
            "`{command}` does not say {text:?}\nstdout: {stdout}\nstderr: {stderr}"
        );
        self
    }
}

impl Env {
    /// Creates an empty environment.
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("temporary directory"),
            children: Vec::new(),
            variables: Vec::new(),
            program: None,
            patience: TIMEOUT,
            user: Vec::new(),
        }
    }

    /// Creates an empty environment that runs all commands as an ordinary user, because root has no
    /// limits. Returns `None` and prints a reason if there is no such user.
    pub(crate) fn of_ordinary_user() -> Option<Self> {
        let mut env = Self::new();
        if !rustix::process::geteuid().is_root() {
            return Some(env);
        }
        let number = USERS.fetch_add(1, Ordering::Relaxed);
        let id = 2_000_000 + std::process::id() % 1_000_000 * 100 + number;
        std::os::unix::fs::chown(env.dir.path(), Some(id), Some(id)).expect("root may do that");
        env.user = vec![
            "setpriv".into(),
            format!("--reuid={id}"),
            format!("--regid={id}"),
            "--clear-groups".into(),
        ];
        match env.command(&["--version"]).output() {
            Ok(output) if output.status.success() => Some(env),
            other => {
                skip(&format!(
                    "an ordinary user cannot run the program: {other:?}"
                ));
                None
            }
        }
    }

    /// Sets a variable for all later commands.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Runs another program for all later commands.
    pub(crate) fn use_program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// Creates an environment with a server and one worker with `cpus` cpus.
    pub(crate) fn with_worker(cpus: u32) -> Self {
        let mut env = Self::new();
        env.start_server();
        env.start_worker(cpus);
        env
    }

    /// Returns a path in the working directory of commands.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn server_dir(&self) -> PathBuf {
        self.path("server")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("write a test file");
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Returns the current content of a file, or an empty text if it does not exist yet.
    pub(crate) fn read_so_far(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns a replacement for `printenv` that costs a fifth as much, for tens of thousands of
    /// tasks, or `printenv` itself if it cannot be compiled.
    pub(crate) fn quick_printenv(&self) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/quick.c");
        let program = self.path("quick-printenv");
        let status = Command::new("cc")
            .args(["-O1", "-static", "-nostdlib", "-ffreestanding"])
            .args(["-fno-stack-protector", "-o"])
            .args([&program, &source])
            .stderr(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            program.to_str().expect("a path in Unicode").to_owned()
        } else {
            "printenv".to_owned()
        }
    }

    /// Returns a command of the program in this environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.command_behind(&[], args)
    }

    /// Returns a command that is run through another program, such as `prlimit --nofile=64`.
    fn command_behind(&self, prefix: &[&str], args: &[&str]) -> Command {
        let own = Path::new(env!("CARGO_BIN_EXE_hq"));
        let program = self.program.as_deref().unwrap_or(own);
        let program = program.to_str().expect("a path in Unicode");
        let user: Vec<&str> = self.user.iter().map(String::as_str).collect();
        let words = [&user, prefix, &[program], args].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("HQ_SERVER_DIR", self.server_dir())
            .env_remove("RUST_LOG")
            // Settings of the user who runs the tests must not have any effect.
            .env("HQ_CONFIG", "/dev/null")
            .env("HQ_SITE_CONFIG", "/dev/null")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Returns a command for any other program, as the user of this environment.
    pub(crate) fn user_command(&self, words: &[&str]) -> Command {
        let user: Vec<&str> = self.user.iter().map(String::as_str).collect();
        let words = [&user, words].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.dir.path());
        command
    }

    /// Raises the limit of waits, for peers whose pauses are as long as the usual limit.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Polls until the condition returns a value. Fails with the last state seen.
    #[track_caller]
    pub(crate) fn wait_for<T>(&self, what: &str, look: impl FnMut() -> Result<T, String>) -> T {
        wait_for_up_to(self.patience, what, look)
    }

    /// Copies the journal of the running server after a flush has completed it. Soon after a start,
    /// a reader can block the flush.
    pub(crate) fn copy_flushed(&self, journal: &str, copy: &str) {
        self.wait_for("a flushed journal is whole", || {
            self.hq(&["journal", "flush"]).ok();
            std::fs::copy(self.path(journal), self.path(copy)).expect("room");
            let ran = self.hq(&["journal", "check", copy]);
            (ran.code == Some(0)).then_some(()).ok_or(ran.stderr)
        });
    }

    /// Runs a command until it ends. The caller checks the exit code.
    #[must_use]
    pub(crate) fn hq(&self, args: &[&str]) -> Ran {
        let name = format!("hq {}", args.join(" "));
        Ran::new(
            name.clone(),
            &output_in_time(&mut self.command(args), &name, 2 * self.patience),
        )
    }

    /// Runs a command that must succeed, in JSON mode, and parses its output.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.hq(&[args, &["--output-mode=json"]].concat()).ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?} printed {text:?}: {e}"))
    }

    /// Starts a process that lives until it is killed or the test is over. Its output goes to a
    /// file.
    pub(crate) fn spawn(&mut self, name: &str, args: &[&str]) -> u32 {
        self.spawn_behind(&[], name, args)
    }

    /// Starts a process through a program that executes it, such as `prlimit --nofile=64`.
    pub(crate) fn spawn_behind(&mut self, prefix: &[&str], name: &str, args: &[&str]) -> u32 {
        let log = std::fs::File::create(self.path(&format!("{name}.log"))).expect("log file");
        let out = log.try_clone().expect("duplicate a descriptor");
        let child = self
            .command_behind(prefix, args)
            .stdout(out)
            .stderr(log)
            .spawn()
            .expect("the program can be run");
        let pid = child.id();
        self.children.push((name.to_owned(), child));
        pid
    }

    pub(crate) fn start_server(&mut self) -> u32 {
        self.start_server_with(&[])
    }

    pub(crate) fn start_server_with(&mut self, args: &[&str]) -> u32 {
        self.start_server_behind(&[], args)
    }

    pub(crate) fn start_server_behind(&mut self, prefix: &[&str], args: &[&str]) -> u32 {
        let pid = self.spawn_behind(prefix, "server", &[&["server", "start"], args].concat());
        wait_for("the server answers", || {
            let ran = self.hq(&["server", "info"]);
            (ran.code == Some(0)).then_some(()).ok_or(ran.stderr)
        });
        pid
    }

    /// Starts a worker and waits until it is registered. Returns the pid to signal.
    pub(crate) fn start_worker(&mut self, cpus: u32) -> u32 {
        self.start_worker_with(&[&format!("--cpus={cpus}")])
    }

    pub(crate) fn start_worker_with(&mut self, args: &[&str]) -> u32 {
        self.start_worker_behind(&[], args)
    }

    pub(crate) fn start_worker_behind(&mut self, prefix: &[&str], args: &[&str]) -> u32 {
        let before = self.workers().len();
        // A worker that was declared lost and came back was counted twice.
        let is_free = |name: &String| self.children.iter().all(|(other, _)| other != name);
        let mut names = (before + 1..).map(|number| format!("worker{number}"));
        let name = names.find(is_free).expect("there is no end of numbers");
        let pid = self.spawn_behind(
            prefix,
            &name,
            &[&["worker", "start", "--detect-resources=cpus"], args].concat(),
        );
        wait_for("the worker is registered", || {
            let workers = self.workers();
            if workers.len() > before {
                Ok(())
            } else {
                Err(self.read(&format!("{name}.log")))
            }
        });
        pid
    }

    /// Returns the states of all workers, ordered by id.
    pub(crate) fn workers(&self) -> Vec<String> {
        let ran = self
            .hq(&["worker", "list", "--all", "--output-mode=quiet"])
            .ok();
        ran.lines()
            .map(|line| line.split_once(' ').expect("ID STATE").1.to_owned())
            .collect()
    }

    /// Submits in quiet mode and returns the job id.
    #[track_caller]
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        let ran = self.hq(&[&["submit", "--output-mode=quiet"], args].concat());
        ran.ok().trim().to_owned()
    }

    pub(crate) fn wait_job(&self, job: &str) {
        self.hq(&["job", "wait", job]).ok();
    }

    /// Returns the counts of a job's tasks by state.
    pub(crate) fn stats(&self, job: &str) -> serde_json::Value {
        // `job info` would list every task.
        let jobs = self.json(&["job", "list", "--all"]);
        let wanted = job.parse::<u64>().ok();
        let mut listed = jobs.as_array().expect("jobs").iter();
        let listed = listed.find(|listed| listed["id"].as_u64() == wanted);
        listed.unwrap_or(&serde_json::Value::Null)["task_stats"].clone()
    }

    /// Waits until workers have reported the starts of `count` tasks of a job. Lists show a task as
    /// running earlier.
    pub(crate) fn wait_running(&self, job: &str, count: u32) {
        let sql =
            format!("SELECT count(*) AS n FROM tasks WHERE job = {job} AND state = 'running'");
        self.wait_for(&format!("{count} tasks run"), || {
            let started = &self.json(&["query", &sql])[0]["n"];
            if *started == count {
                Ok(())
            } else {
                Err(format!("{started} of {}", self.stats(job)))
            }
        });
    }

    /// Returns all task objects of a job.
    pub(crate) fn tasks(&self, job: &str) -> Vec<serde_json::Value> {
        self.json(&["task", "list", job])[job]
            .as_array()
            .expect("tasks of the job")
            .clone()
    }

    /// Waits until a file has this many lines, and returns its content.
    pub(crate) fn wait_lines(&self, name: &str, count: usize) -> String {
        self.wait_for(&format!("{name} has {count} lines"), || {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            if text.lines().count() >= count {
                Ok(text)
            } else {
                Err(text)
            }
        })
    }

    /// Renames a started process, so that the next one can have its name.
    pub(crate) fn rename(&mut self, name: &str, new: &str) {
        let mut children = self.children.iter_mut();
        let child = children.find(|(other, _)| other == name);
        new.clone_into(&mut child.unwrap_or_else(|| panic!("{name} was not started")).0);
    }

    /// Waits until a started process has ended. Returns its exit code.
    pub(crate) fn wait_exit(&mut self, name: &str) -> Option<i32> {
        let position = self
            .children
            .iter()
            .position(|(other, _)| other == name)
            .unwrap_or_else(|| panic!("{name} was not started"));
        self.wait_exit_at(position)
    }

    /// Like `wait_exit`, for the process with this id.
    pub(crate) fn wait_exit_of(&mut self, pid: u32) -> Option<i32> {
        let mut children = self.children.iter();
        let position = children.position(|(_, child)| child.id() == pid);
        self.wait_exit_at(position.unwrap_or_else(|| panic!("process {pid} was not started")))
    }

    fn wait_exit_at(&mut self, position: usize) -> Option<i32> {
        // It stays listed until it has ended, because leftovers of a failed test must be killed as
        // well.
        let (name, child) = &mut self.children[position];
        let code = wait_for_up_to(self.patience, &format!("{name} ends"), || {
            match child.try_wait() {
                Ok(Some(status)) => Ok(status.code()),
                other => Err(format!("{other:?}")),
            }
        });
        self.children.remove(position);
        code
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // Workers come first, so that they end their tasks. A worker's front process forwards the
        // signal.
        for (_, child) in self.children.iter_mut().rev() {
            signal(child.id(), "TERM");
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(10) {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            // A process that did not end by itself must not outlive the test.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    status.expect("kill can be run");
}

/// Returns the output of a command. A command that does not end is killed and fails the test.
#[track_caller]
fn output_in_time(command: &mut Command, name: &str, bound: Duration) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be run");
    let pid = child.id();
    let (sender, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = output.recv_timeout(bound) {
        return output.expect("its output can be read");
    }
    signal(pid, "KILL");
    let printed = output.recv_timeout(TIMEOUT);
    panic!("`{name}` did not end; it printed {printed:?}");
}

/// Polls until the condition returns a value. Fails with the last state seen.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    wait_for_up_to(TIMEOUT, what, look)
}

/// Like `wait_for`, for peers whose pauses are as long as the usual limit.
#[track_caller]
pub(crate) fn wait_for_up_to<T>(
    bound: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) => {
                assert!(
                    start.elapsed() < bound,
                    "gave up waiting: {what}; last seen: {last}"
                );
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the pids of live processes whose command line contains `text`. Zombies do not count.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read = |file: &str| std::fs::read(Path::new("/proc").join(pid.to_string()).join(file));
        let line = read("cmdline").unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let status = read("status").unwrap_or_default();
        let is_zombie = String::from_utf8_lossy(&status).contains("State:\tZ");
        line.contains(text) && !is_zombie && *pid != std::process::id()
    })
    .collect()
}
