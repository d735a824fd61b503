//! Tests which server a start continues, in any state of the last one, and several simultaneous
//! starts.
//!
//! Generated sequences are compared with a model. Every test run includes a few. To run two
//! hundred:
//!
//! ```sh
//! HQ_START_SEQUENCES=200 cargo test -p hq-cli --test e2e starts::generated -- --nocapture
//! ```
//!
//! `HQ_FAULT_SEED` repeats the sequences of a run. Each run prints its seed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::campaign::{Moments, setting};
use crate::harness::{Env, signal, skip, wait_for};
use crate::server_dirs::remove_later_instances;

/// The number of events in a sequence.
const EVENTS: u64 = 14;

pub(crate) fn kill_server(env: &mut Env, pid: u32) {
    signal(pid, "KILL");
    env.wait_exit("server");
}

/// Returns the names of all jobs by id.
pub(crate) fn jobs(env: &Env) -> BTreeMap<u64, String> {
    let list = env.json(&["job", "list", "--all"]);
    let jobs = list.as_array().expect("a list").iter();
    let row = |job: &serde_json::Value| {
        let name = job["name"].as_str().expect("a name");
        (job["id"].as_u64().expect("an id"), name.to_owned())
    };
    jobs.map(row).collect()
}

/// How the last server of an instance ended, as far as the test knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Stopped,
    Left,
    /// A start that would have continued a stopped server was killed.
    Unknown,
}

/// A store, and the jobs that its servers acknowledged.
#[derive(Default, Debug)]
struct Kept {
    jobs: BTreeMap<u64, String>,
    /// Whether it had a worker or was created with `--fresh`.
    is_used: bool,
    end: Option<End>,
}

/// The test's model of a server directory.
struct Model {
    env: Env,
    moments: Moments,
    stores: Vec<Kept>,
    /// The stores of the instances, in order. Several instances may share a journal.
    instances: Vec<usize>,
    /// The store of each journal.
    journals: BTreeMap<u64, usize>,
    /// The pid and the store of the running server.
    running: Option<(u32, usize)>,
    worker: Option<u32>,
    submit_count: u32,
    log: Vec<String>,
}

impl Model {
    fn new(moments: Moments) -> Self {
        Self {
            env: Env::new(),
            moments,
            stores: Vec::new(),
            instances: Vec::new(),
            journals: BTreeMap::new(),
            running: None,
            worker: None,
            submit_count: 0,
            log: Vec::new(),
        }
    }

    /// Returns the last instance whose store was used.
    fn last(&self) -> Option<usize> {
        let used = |store: &&usize| {
            let store = &self.stores[**store];
            store.is_used || !store.jobs.is_empty()
        };
        self.instances.iter().rev().find(used).copied()
    }

    fn new_store(&mut self) -> usize {
        self.stores.push(Kept::default());
        self.stores.len() - 1
    }

    /// Returns the store that a plain start continues. `None` = it starts an empty server, or
    /// either result is correct.
    fn continued(&self) -> Option<usize> {
        let last = self.last()?;
        (self.stores[last].end == Some(End::Left)).then_some(last)
    }

    fn start(&mut self, args: &[&str]) -> u32 {
        self.log.push(format!("start {args:?}"));
        self.env.start_server_with(args)
    }

    /// Checks that everything acknowledged is there when the server `pid` runs with this store.
    fn runs(&mut self, pid: u32, store: usize) {
        let found = jobs(&self.env);
        for (id, name) in &self.stores[store].jobs {
            assert_eq!(found.get(id), Some(name), "job {id}; {found:?}");
        }
        let is_anew = self.stores[store].jobs.is_empty();
        assert!(!is_anew || found.is_empty(), "it begins anew: {found:?}");
        self.stores[store].end = Some(End::Left);
        self.instances.push(store);
        self.running = Some((pid, store));
    }

    fn start_plain(&mut self) {
        let pid = self.start(&[]);
        self.began(pid);
    }

    /// Updates the model after a plain start has succeeded.
    fn began(&mut self, pid: u32) {
        let either = self
            .last()
            .filter(|last| self.stores[*last].end == Some(End::Unknown));
        let found = either.filter(|_| !jobs(&self.env).is_empty());
        let store = self.continued().or(found).or_else(|| self.empty_journal());
        let store = store.unwrap_or_else(|| self.new_store());
        self.runs(pid, store);
    }

    /// Returns the store of the running server's journal, if an earlier `--journal` named that
    /// journal and it has no jobs.
    ///
    /// A plain start may reuse such a journal. Whether it does depends on the moment at which an
    /// earlier start was killed, so the model asks the server.
    fn empty_journal(&self) -> Option<usize> {
        let info = self.env.json(&["server", "info"]);
        let path = info["journal_path"].as_str()?;
        let mut journals = self.journals.iter();
        let (_, store) = journals.find(|(number, _)| path.ends_with(&format!("/j{number}.db")))?;
        self.stores[*store].jobs.is_empty().then_some(*store)
    }

    fn start_resume(&mut self) {
        let Some(store) = self.last() else {
            return self.start_plain();
        };
        let pid = self.start(&["--resume"]);
        self.runs(pid, store);
    }

    fn start_fresh(&mut self) {
        let pid = self.start(&["--fresh"]);
        let store = self.new_store();
        self.stores[store].is_used = true;
        self.runs(pid, store);
    }

    fn start_journal(&mut self) {
        let number = self.moments.below(2);
        let pid = self.start(&[&format!("--journal=j{number}.db")]);
        let known = self.journals.get(&number).copied();
        let store = known.unwrap_or_else(|| self.new_store());
        self.journals.insert(number, store);
        self.runs(pid, store);
    }

    /// Starts a server and kills it at a random moment.
    fn start_killed(&mut self) {
        let args: &[&str] = match self.moments.below(2) {
            0 => &["server", "start"],
            _ => &["server", "start", "--resume"],
        };
        self.log.push(format!("killed {args:?}"));
        let pid = self.env.spawn("killed", args);
        self.moments.pass(120);
        signal(pid, "KILL");
        self.env.wait_exit("killed");
        let resumed = self.last().filter(|_| args.contains(&"--resume"));
        if let Some(last) = resumed
            && self.stores[last].end == Some(End::Stopped)
        {
            self.stores[last].end = Some(End::Unknown);
        }
    }

    /// Starts several servers at the same time: one must run, and all others must fail and name its
    /// process.
    fn start_together(&mut self, count: usize) {
        self.log.push(format!("{count} starts"));
        let pids = start_together(&mut self.env, count);
        let winner = self.running.map(|(pid, _)| pid);
        let winner = check_one_server(&mut self.env, &pids, winner);
        if self.running.is_none() {
            self.began(winner);
        }
    }

    fn submit(&mut self, store: usize) {
        self.submit_count += 1;
        let name = format!("job-{}", self.submit_count);
        self.log.push(format!("submit {name}"));
        let id = self
            .env
            .submit(&[&format!("--name={name}"), "--cpus=99", "--", "true"]);
        let id = id.parse().expect("an id");
        self.stores[store].jobs.insert(id, name);
    }

    /// Submits a job and kills the server at the same time. If the job is acknowledged, it counts.
    fn submit_and_kill(&mut self, pid: u32, store: usize) {
        self.submit_count += 1;
        let name = format!("job-{}", self.submit_count);
        self.log.push(format!("submit {name} and kill"));
        let mut submit = self.env.command(&["submit", "--output-mode=quiet"]);
        submit.args([&format!("--name={name}"), "--cpus=99", "--", "true"]);
        let submit = submit
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be run");
        self.moments.pass(60);
        self.lose_power(pid);
        self.env.wait_exit("server");
        if let Some(worker) = self.worker.take() {
            self.env.wait_exit_of(worker);
        }
        let output = submit.wait_with_output().expect("it ends");
        if output.status.success() {
            let id = String::from_utf8_lossy(&output.stdout);
            let id = id.trim().parse().expect("an id");
            self.stores[store].jobs.insert(id, name);
        }
    }

    fn end(&mut self, pid: u32, store: usize, how: u64) {
        self.log.push(format!("end {how}"));
        let end = match how {
            0 => {
                self.env.hq(&["server", "stop"]).ok();
                End::Stopped
            }
            1 => {
                signal(pid, "INT");
                End::Stopped
            }
            2 => {
                self.env.hq(&["server", "stop", "--keep-workers"]).ok();
                End::Left
            }
            3 => {
                signal(pid, "TERM");
                End::Left
            }
            _ => {
                self.lose_power(pid);
                End::Left
            }
        };
        // The worker would join the next server, whichever that is.
        if let Some(worker) = self.worker.take() {
            signal(worker, "KILL");
            self.env.wait_exit_of(worker);
        }
        // A start that follows immediately finds a server that is ending.
        if how > 0 || self.moments.below(2) == 0 {
            self.env.wait_exit("server");
        } else {
            self.env.rename("server", &format!("server-{pid}"));
        }
        self.stores[store].end = Some(end);
        self.running = None;
    }

    /// Ends server and worker at the same moment.
    fn lose_power(&mut self, server: u32) {
        for pid in self.worker.into_iter().chain([server]) {
            signal(pid, "KILL");
        }
    }

    fn event(&mut self) {
        let Some((pid, store)) = self.running else {
            return match self.moments.below(12) {
                0..=3 => self.start_plain(),
                4 | 5 => self.start_resume(),
                6 => self.start_fresh(),
                7 => self.start_journal(),
                8 => self.start_together(2),
                _ => self.start_killed(),
            };
        };
        match self.moments.below(12) {
            0..=4 => self.submit(store),
            5 | 6 if !self.stores[store].jobs.is_empty() => {
                self.submit_and_kill(pid, store);
                self.stores[store].end = Some(End::Left);
                self.running = None;
            }
            7 => self.start_together(1),
            5 | 6 if self.worker.is_none() => {
                self.log.push("worker".to_owned());
                self.worker = Some(self.env.start_worker(1));
                self.stores[store].is_used = true;
            }
            how => {
                let how = how.saturating_sub(8) + self.moments.below(2);
                self.end(pid, store, how);
            }
        }
    }
}

/// Starts servers at the same moment. Returns their processes.
fn start_together(env: &mut Env, count: usize) -> Vec<u32> {
    let start = |number| env.spawn(&format!("start{number}"), &["server", "start"]);
    (0..count).map(start).collect()
}

/// Waits until all starts except the successful one have failed and named its process and host.
/// `winner` is a server that is already running. Returns the process of the server, which is named
/// `server` from then on.
fn check_one_server(env: &mut Env, pids: &[u32], winner: Option<u32>) -> u32 {
    let expected = pids.len() - usize::from(winner.is_none());
    let refused = env.wait_for("all but one start have ended", || {
        let ended: Vec<usize> = (0..pids.len())
            .filter(|number| {
                env.read(&format!("start{number}.log"))
                    .contains("is already online")
            })
            .collect();
        if ended.len() == expected {
            Ok(ended)
        } else {
            Err(format!("{ended:?}"))
        }
    });
    let winner = winner.unwrap_or_else(|| {
        let number = (0..pids.len()).find(|number| !refused.contains(number));
        let number = number.expect("one more than were refused");
        env.rename(&format!("start{number}"), "server");
        pids[number]
    });
    for number in refused {
        let name = format!("start{number}");
        assert_eq!(env.wait_exit(&name), Some(1));
        let log = env.read(&format!("{name}.log"));
        assert!(
            log.contains("is already online, please stop it first"),
            "{log}"
        );
        assert!(log.contains(&format!("process {winner} on ")), "{log}");
    }
    let info = wait_for("the server answers", || {
        let ran = env.hq(&["server", "info", "--output-mode=json"]);
        (ran.code == Some(0))
            .then_some(ran.stdout)
            .ok_or(ran.stderr)
    });
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["pid"], winner);
    winner
}

#[test]
fn generated_sequences_lose_no_acknowledged_job() {
    let mut moments = Moments::new("starts");
    for number in 0..setting("HQ_START_SEQUENCES", 3) {
        let mut model = Model::new(moments);
        let log = std::panic::AssertUnwindSafe(&mut model);
        let ran = std::panic::catch_unwind(move || {
            let model = log;
            for _ in 0..EVENTS {
                model.0.event();
            }
            if model.0.running.is_none() {
                model.0.start_plain();
            }
        });
        if let Err(cause) = ran {
            eprintln!("sequence {number}: {:#?}", model.log);
            eprintln!(
                "stores: {:#?}, instances: {:?}",
                model.stores, model.instances
            );
            std::panic::resume_unwind(cause);
        }
        moments = model.moments;
    }
}

#[test]
fn of_ten_starts_at_the_same_moment_one_succeeds() {
    let mut env = Env::new();
    for round in 0..setting("HQ_START_ROUNDS", 1) {
        let pids = start_together(&mut env, 10);
        let server = check_one_server(&mut env, &pids, None);
        assert_eq!(jobs(&env).len() as u64, round);
        env.submit(&["--cpus=99", "--", "true"]);
        kill_server(&mut env, server);
    }
}

/// A server that is not a child of the test. It is ended on drop.
struct Background(Env);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.hq(&["server", "stop"]);
    }
}

#[test]
fn of_two_starts_in_the_background_one_succeeds_and_both_commands_return() {
    let guard = Background(Env::new());
    let env = &guard.0;
    let ran = std::thread::scope(|scope| {
        let start = || scope.spawn(|| env.hq(&["server", "start", "--background"]));
        let starts = [start(), start()];
        starts.map(|start| start.join().expect("it ends"))
    });
    let pid = &env.json(&["server", "info"])["pid"];
    let [refused] = &ran
        .iter()
        .filter(|ran| ran.code != Some(0))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one of two: {:?}", ran.map(|ran| ran.stderr));
    };
    assert_eq!(refused.code, Some(1));
    let text = &refused.stderr;
    assert!(
        text.contains("is already online, please stop it first"),
        "{text}"
    );
    assert!(text.contains(&format!("process {pid} on ")), "{text}");
}

/// Different ends of a server, and how a plain start treats its unfinished job.
#[test]
fn a_plain_start_continues_what_was_not_stopped() {
    for (end, is_continued) in [
        (&["stop"][..], false),
        (&["INT"], false),
        (&["stop", "--keep-workers"], true),
        (&["TERM"], true),
        (&["KILL"], true),
    ] {
        let mut env = Env::new();
        let server = env.start_server();
        let job = env.submit(&["--name=kept", "--", "true"]);
        let uid = env.json(&["server", "info"])["server_uid"].clone();
        match end {
            ["stop", ..] => drop(env.hq(&[&["server"], end].concat()).ok()),
            _ => signal(server, end[0]),
        }
        env.wait_exit("server");
        let server = env.start_server();
        let log = env.read("server.log");
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        let [warning] = warnings[..] else {
            panic!("{end:?}: one warning, found {log}");
        };
        assert!(warning.contains("1 unfinished job"), "{warning}");
        if is_continued {
            assert_eq!(jobs(&env).len(), 1, "{end:?}");
            assert_eq!(env.json(&["server", "info"])["server_uid"], uid);
            assert!(warning.contains("/001)"), "{warning}");
            assert!(warning.contains("--fresh") && warning.contains("hq job cancel all"));
            continue;
        }
        assert!(jobs(&env).is_empty(), "{end:?}");
        // This server was never used and then stopped, so it does not hide the previous one.
        env.hq(&["server", "stop"]).ok();
        env.wait_exit("server");
        let _ = server;
        env.start_server_with(&["--resume"]);
        assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
    }
}

#[test]
fn a_fresh_start_leaves_the_old_state_closed_whatever_is_in_it() {
    let mut env = Env::new();
    let server = env.start_server();
    let job = env.submit(&["--name=kept", "--", "true"]);
    let state = env.path("server/001/state.db");
    env.copy_flushed("server/001/state.db", "whole.db");
    let whole = std::fs::read(env.path("whole.db")).expect("a copy");
    kill_server(&mut env, server);
    let mut later = whole.clone();
    later[60..64].copy_from_slice(&999_i32.to_be_bytes());
    let damaged = vec![0; whole.len()];
    std::fs::remove_file(env.path("server/001/state.db-wal")).expect("its log");
    for (bytes, reason) in [(&later, "format 999"), (&damaged, "zero")] {
        std::fs::write(&state, bytes).expect("room");
        env.hq(&["server", "start"])
            .exits_with(1)
            .says(reason)
            .says("--fresh");
        let server = env.start_server_with(&["--fresh"]);
        assert!(jobs(&env).is_empty());
        assert_eq!(&std::fs::read(&state).expect("the state"), bytes);
        // From now on it is the last server of the directory, although it was never used.
        kill_server(&mut env, server);
        let server = env.start_server();
        assert!(env.read("server.log").contains("no job is unfinished"));
        kill_server(&mut env, server);
        remove_later_instances(&env);
    }
    std::fs::write(&state, whole).expect("room");
    let server = env.start_server_with(&["--fresh"]);
    let said = env.read("server.log");
    let told = said.lines().find(|line| line.contains("is set aside"));
    let command = told.and_then(|told| told.split('`').nth(1));
    let command = command.unwrap_or_else(|| panic!("it names no command: {said}"));
    kill_server(&mut env, server);
    let args = command.strip_prefix("hq server start ").expect("a start");
    let args: Vec<_> = args.split(' ').map(|word| word.trim_matches('"')).collect();
    let server = env.start_server_with(&args);
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
    // The instance records that its state is elsewhere.
    kill_server(&mut env, server);
    env.start_server();
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
}

#[test]
fn a_start_finds_the_journal_of_the_last_server() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal=j.db"]);
    env.submit(&["--name=kept", "--", "true"]);
    kill_server(&mut env, server);
    env.hq(&["server", "start", "--fresh", "--resume"])
        .exits_with(2);
    env.hq(&["server", "start", "--fresh", "--journal=j.db"])
        .exits_with(1)
        .says("not empty");
    let moved = |env: &Env, from: &str, to: &str| {
        for suffix in ["", "-wal"] {
            let path = |name: &str| env.path(&format!("{name}{suffix}"));
            std::fs::rename(path(from), path(to)).expect("a journal");
        }
    };
    moved(&env, "j.db", "away.db");
    for args in [&["server", "start"][..], &["server", "start", "--resume"]] {
        env.hq(args).exits_with(1).says("/j.db, which is missing");
    }
    moved(&env, "away.db", "j.db");
    let server = env.start_server();
    assert_eq!(jobs(&env).len(), 1);
    kill_server(&mut env, server);
    let server = env.start_server_with(&["--journal=other.db"]);
    let log = env.read("server.log");
    assert!(
        log.contains("left 1 unfinished job,") && log.contains("/j.db"),
        "{log}"
    );
    assert!(jobs(&env).is_empty());
    kill_server(&mut env, server);
    // This server was never used.
    let server = env.start_server();
    assert_eq!(jobs(&env).len(), 1);
    kill_server(&mut env, server);
    let server = env.start_server_with(&["--no-journal"]);
    assert!(env.read("server.log").contains("left 1 unfinished job,"));
    env.hq(&["server", "start"])
        .exits_with(1)
        .says(&format!("process {server} on "));
    kill_server(&mut env, server);
    for args in [&["--no-journal"][..], &[]] {
        let server = env.start_server_with(args);
        let log = env.read("server.log");
        let is_plain = args.is_empty();
        assert_eq!(log.contains("its state was not kept"), is_plain, "{log}");
        let told = log
            .lines()
            .find(|line| line.contains("/001) left 1 unfinished job,"));
        let told = told.unwrap_or_else(|| panic!("{args:?}: {log}"));
        assert!(told.contains("An earlier server") && told.contains("/j.db"));
        assert!(jobs(&env).is_empty());
        kill_server(&mut env, server);
    }
}

#[test]
fn a_client_says_what_became_of_a_server_that_does_not_answer() {
    const FIRST: &str = "Access token found but HQ server ";
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--array=1-3", "--", "true"]);
    kill_server(&mut env, server);
    let before = std::fs::read_dir(env.path("server/001"))
        .expect("a directory")
        .count();
    env.hq(&["job", "list"])
        .exits_with(1)
        .says(FIRST)
        .says(" is unreachable.\nTry to (re)start the server using `hq server start --server-dir ")
        .says("help: the server has crashed; 1 unfinished job is kept")
        .says("server` continues it");
    let after = std::fs::read_dir(env.path("server/001"))
        .expect("a directory")
        .count();
    assert_eq!(before, after, "nothing is left besides the state");
    let quiet = env.hq(&["job", "list", "--output-mode=json"]).exits_with(1);
    assert!(!quiet.stderr.contains("help:"), "{}", quiet.stderr);
    // The lock looks like that of a process on another host that has ended or is invisible.
    let lock = env.path("server/001/state.db.lock");
    let text = std::fs::read_to_string(&lock).expect("a lock file");
    let words: Vec<&str> = text.split(' ').collect();
    let text = text.replace(words[words.len() - 2], "another-boot");
    std::fs::write(&lock, text).expect("room");
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("help: the server ran as process");
    let access = env.read("server/001/access.json");
    let access: String = access.replace(&hostname(), "login9.invalid");
    let other = env.path("other");
    std::fs::create_dir(&other).expect("a directory");
    let file = other.join("access.json");
    std::fs::write(&file, access).expect("room");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).expect("ours");
    env.hq(&["--server-dir", &other.to_string_lossy(), "job", "list"])
        .exits_with(1)
        .says("help: this is the access file of a server on login9.invalid")
        .says("hq doctor net");
}

pub(crate) fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[test]
fn a_server_in_the_background_keeps_nothing_of_its_caller() {
    let guard = Background(Env::new());
    let env = &guard.0;
    let held = env.write("held", "");
    let mut start = env.command(&["server", "start", "--background"]);
    let words: Vec<_> = std::iter::once(start.get_program().to_owned())
        .chain(start.get_args().map(ToOwned::to_owned))
        .collect();
    start = {
        let mut shell = env.user_command(&["sh", "-c", "exec 9>\"$0\"; flock 9; exec \"$@\""]);
        shell.arg(&held).args(words);
        shell.env("HQ_SERVER_DIR", env.server_dir());
        shell
    };
    assert!(start.output().expect("it runs").status.success());
    let free = Command::new("flock")
        .arg("-n")
        .arg(&held)
        .arg("true")
        .status();
    assert!(
        free.expect("flock can be run").success(),
        "the lock is free"
    );
}

/// Returns a command prefix that simulates a host with separate processes and a separate boot, or
/// `None` if that is not possible.
fn other_host(env: &Env) -> Option<Vec<String>> {
    let boot = env.write("boot", "11111111-2222-3333-4444-555555555555\n");
    let script =
        "hostname node7 && mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let words = [
        "unshare",
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
    words.extend(["sh", "-c", script, &boot.to_string_lossy()].map(str::to_owned));
    let tried = Command::new(&words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    match tried {
        Ok(output) if output.status.success() => Some(words),
        other => {
            skip(&format!("no namespaces can be had: {other:?}"));
            None
        }
    }
}

#[test]
fn a_server_of_another_host_is_watched_before_it_counts_as_crashed() {
    let mut env = Env::new();
    let Some(host) = other_host(&env) else {
        return;
    };
    let host: Vec<&str> = host.iter().map(String::as_str).collect();
    // Clients find it at an address that both hosts have.
    let server = env.start_server_behind(&host, &["--host=127.0.0.1"]);
    env.submit(&["--name=kept", "--", "true"]);
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("is already online, please stop it first")
        .says(" on node7");
    // The server seems unreachable, on a file system whose locks other hosts do not see.
    let lock = env.path("server/001/state.db.lock");
    std::fs::remove_file(&lock).expect("a lock file");
    std::fs::remove_file(env.path("server/001/access.json")).expect("an access file");
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("watching for 10 seconds")
        .says("is already online, please stop it first")
        .says(" on node7");
    kill_server(&mut env, server);
    env.start_server();
    assert!(env.read("server.log").contains("watching for 10 seconds"));
    assert_eq!(jobs(&env).len(), 1);
}

#[test]
fn a_database_of_another_program_is_refused_and_not_touched() {
    let env = Env::new();
    for sql in ["CREATE TABLE t (a)", "CREATE TABLE meta (key, value)"] {
        let path = env.path("o.db");
        let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\nc.execute(sys.argv[2])\nc.commit()";
        let made = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .arg(sql)
            .status();
        assert!(made.expect("python3 can be run").success());
        let mode = |path| {
            std::fs::metadata(path)
                .expect("a file")
                .permissions()
                .mode()
        };
        let before = (std::fs::read(&path).expect("a file"), mode(&path));
        env.hq(&["server", "start", "--journal=o.db"])
            .exits_with(1)
            .says("it is a database of another program");
        assert_eq!((std::fs::read(&path).expect("a file"), mode(&path)), before);
        std::fs::remove_file(&path).expect("a file");
    }
}

#[test]
fn a_journal_is_read_in_a_directory_that_cannot_be_written() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    env.start_server_with(&["--journal=j.db"]);
    env.submit(&["--", "true"]);
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    env.hq(&["journal", "export", "j.db"])
        .says("Outputted")
        .ok();
    assert!(!env.path("j.db-wal").exists() && !env.path("j.db-shm").exists());
    let set_mode = |path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .expect("root or ours");
    };
    set_mode(env.path("j.db"), 0o400);
    set_mode(env.path(""), 0o500);
    let ran = env.hq(&["journal", "export", "j.db"]);
    set_mode(env.path(""), 0o700);
    assert!(ran.ok().contains("job-created"));
}
