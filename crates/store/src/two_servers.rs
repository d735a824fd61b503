//! Generated sequences of events around one store, with servers in separate processes: queries,
//! second servers, repairs, failed starts, kills, and earlier and later releases.
//!
//! After each event, everything that was acknowledged must be stored, and no two servers may use
//! the store at once. The processes run this test program with the test `server_process` and the
//! path in a variable. To run it for ten minutes:
//!
//! ```text
//! HQ_TWO_SERVERS_SECS=600 cargo test -p hq-store two_servers
//! ```
//!
//! `HQ_TWO_SERVERS_FIRST` sets the first seed. A failing seed is printed.

mod failing;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hq_core::id::JobId;
use hq_core::range::IdArray;
use hq_core::server_state::ChangeKind;
use rusqlite::Connection;

use crate::lock::with_suffix;
use crate::place::FileSystem;
use crate::testing::{
    NOW, add_job, add_rows, change, filled, keep_log, number, results, started, submitted_with,
    wait_for,
};
use crate::{FlushError, Health, Store, StoreError, StoreHandle, schema};

/// The environment variable with the path of the store for a server process.
const PATH_VARIABLE: &str = "HQ_TEST_STORE";
/// The environment variable that is set if the server must treat the file system as shared.
const SHARED_VARIABLE: &str = "HQ_TEST_SHARED";
/// The prefix of answers in the output of the test program.
const MARK: &str = "answer: ";
/// The number of events in a sequence.
const EVENTS: u32 = 40;
const JOBS_SQL: &str =
    "SELECT coalesce(group_concat(id), '') FROM (SELECT id FROM jobs ORDER BY id)";

/// The main function of a server process. It is not a test.
#[test]
fn server_process() {
    let Some(path) = std::env::var_os(PATH_VARIABLE) else {
        return;
    };
    let path = Path::new(&path);
    let is_shared = std::env::var_os(SHARED_VARIABLE).is_some();
    let mut server = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let mut words = line.split(' ');
        let word = words.next().expect("a word");
        let mut number = || {
            words
                .next()
                .map_or(0, |text| text.parse().expect("a number"))
        };
        let answer = match word {
            "open" => match Store::open_on(path, is_shared.then_some(FileSystem::Shared)) {
                Ok(store) => {
                    server = Some(started(store));
                    "open".to_owned()
                }
                Err(error) => error.to_string(),
            },
            // Simulates a server that fails after it has opened its store.
            "try" => match Store::open_on(path, is_shared.then_some(FileSystem::Shared)) {
                Ok(_) => "given up".to_owned(),
                Err(error) => error.to_string(),
            },
            "add" => {
                let server = server.as_mut().expect("a server");
                add_job(server, JobId(number()), number(), true);
                acknowledgement(server)
            }
            // Does the same with a row for each task.
            "rows" => {
                let server = server.as_mut().expect("a server");
                add_rows(server, JobId(number()), number(), true);
                acknowledgement(server)
            }
            // Writes more than the maximum size of the log, without waiting for the commit.
            "append" => {
                let server = server.as_mut().expect("a server");
                let ids = IdArray::single(1);
                let large = submitted_with(JobId(number()), &ids, 20 << 20);
                server.store(vec![change(large)]);
                "appended".to_owned()
            }
            "forget" => {
                let server = server.as_mut().expect("a server");
                let forgotten = ChangeKind::JobsForgotten(vec![JobId(number())]);
                server.store(vec![change(forgotten)]);
                acknowledgement(server)
            }
            "prune" => {
                let client = server.as_ref().expect("a server").client();
                client
                    .prune()
                    .map_or_else(|text| text, |_| "pruned".to_owned())
            }
            "jobs" => {
                let client = server.as_ref().expect("a server").client();
                let connection = client.read().expect("it is a store");
                let found = connection.query_row(JOBS_SQL, [], |row| row.get::<_, String>(0));
                found.expect("a view")
            }
            "stop" => {
                server = None;
                "stopped".to_owned()
            }
            other => panic!("unknown request {other}"),
        };
        println!("\n{MARK}{answer}");
    }
}

/// Returns whether all changes so far have been stored.
fn acknowledgement(server: &StoreHandle) -> String {
    let words = match server.client().flush() {
        Ok(()) | Err(FlushError::Reader(_)) => "acknowledged",
        Err(FlushError::NotWritten) => "not acknowledged",
    };
    words.to_owned()
}

/// A server process.
struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Server {
    fn new(path: &Path, is_shared: bool) -> Self {
        Self::behind(&[], path, is_shared)
    }

    /// Starts the process with a command prefix that sets something up.
    fn behind(prefix: &[&str], path: &Path, is_shared: bool) -> Self {
        let program = std::env::current_exe().expect("this program");
        let program = program.to_str().expect("a plain path");
        let test = ["--exact", "two_servers::server_process", "--nocapture"];
        let words: Vec<&str> = prefix
            .iter()
            .copied()
            .chain([program])
            .chain(test)
            .collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(PATH_VARIABLE, path);
        if is_shared {
            command.env(SHARED_VARIABLE, "1");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be run again");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, to, from }
    }

    fn ask(&mut self, text: &str) -> String {
        writeln!(self.to, "{text}").expect("it reads");
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.from.read_line(&mut line).expect("text");
            assert!(len > 0, "it ended when asked to {text}");
            if let Some(answer) = line.strip_prefix(MARK) {
                return answer.trim().to_owned();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A deterministic random number generator (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A store, its server, and a second server.
struct Course {
    path: PathBuf,
    is_shared: bool,
    /// `None` if the last server was stopped or killed.
    server: Option<Server>,
    other: Server,
    acknowledged: Vec<String>,
    /// The number of times that an intact store was rejected.
    false_alarms: u32,
}

impl Course {
    fn new(path: &Path, is_shared: bool) -> Self {
        Self {
            path: path.to_path_buf(),
            is_shared,
            server: None,
            other: Server::new(path, is_shared),
            acknowledged: Vec::new(),
            false_alarms: 0,
        }
    }

    fn step(&mut self, event: u64) {
        match event {
            0..6 => self.add(),
            6..9 => self.read(),
            9..12 => self.second_start(),
            12 => self.repair(),
            13 => self.look(),
            14 => self.earlier_release(),
            15 if self.server.is_none() => self.later_release(),
            15..18 => self.server = None,
            18 => self.stop(),
            _ => self.foreign_reader(),
        }
    }

    /// Returns the server, after starting it if there is none.
    fn server(&mut self) -> &mut Server {
        if self.server.is_none() {
            let next = Server::new(&self.path, self.is_shared);
            let mut server = std::mem::replace(&mut self.other, next);
            let mut said = server.ask("open");
            if said.contains("without its write-ahead log") && self.false_alarms == 0 {
                // The server was killed between the transaction that marks the file and the one
                // that removes the mark, and another program moved the first of them into the file.
                // Nothing is lost, as the repair shows.
                self.false_alarms += 1;
                crate::repair(&self.path).expect("it can be repaired");
                said = server.ask("open");
            }
            assert_eq!(said, "open");
            assert_eq!(
                server.ask("jobs"),
                self.acknowledged.join(","),
                "after a start"
            );
            self.server = Some(server);
        }
        self.server.as_mut().expect("it was started")
    }

    fn add(&mut self) {
        let job = self.acknowledged.len() + 1;
        assert_eq!(self.server().ask(&format!("add {job} 2")), "acknowledged");
        self.acknowledged.push(job.to_string());
    }

    fn read(&mut self) {
        assert_eq!(self.server().ask("jobs"), self.acknowledged.join(","));
    }

    /// Starts a second server. It is rejected, or it fails after opening the store if no server
    /// uses the store.
    fn second_start(&mut self) {
        let said = self.other.ask("try");
        if self.server.is_none() {
            assert_eq!(said, "given up");
        } else {
            assert!(said.contains("used by another server"), "{said}");
        }
    }

    fn repair(&mut self) {
        let found = crate::repair(&self.path);
        match (self.server.is_some(), found) {
            (true, Err(StoreError::InUse { .. })) | (false, Ok(None)) => {}
            // The file does not exist yet.
            (false, Err(_) | Ok(Some(_))) if self.acknowledged.is_empty() => {}
            (_, other) => panic!("{other:?}"),
        }
    }

    fn look(&mut self) {
        let found = crate::check(&self.path);
        let is_free = self.server.is_none() || !self.is_shared;
        if is_free && !self.acknowledged.is_empty() {
            assert_eq!(found.expect("a file"), Vec::<String>::new());
        }
    }

    /// Starts a server that has a lease and SQLite's locks but does not use the lock file.
    fn earlier_release(&mut self) {
        self.server();
        std::fs::remove_file(with_suffix(&self.path, ".lock")).expect("it is there");
        self.second_start();
        self.read();
    }

    fn later_release(&mut self) {
        self.add();
        self.stop();
        let set = |version| {
            let connection = Connection::open(&self.path).expect("a database");
            let done = connection.pragma_update(None, "user_version", version);
            done.expect("it can be written");
        };
        set(schema::version() + 1);
        let before = std::fs::read(&self.path).expect("the file");
        let said = self.other.ask("open");
        assert!(said.contains("use a newer version"), "{said}");
        assert_eq!(std::fs::read(&self.path).expect("the file"), before);
        set(schema::version());
    }

    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            assert_eq!(server.ask("stop"), "stopped");
        }
    }

    /// Reads the file and closes it like any other SQLite program.
    fn foreign_reader(&self) {
        let read = Connection::open(&self.path).and_then(|connection| {
            connection.busy_timeout(Duration::from_millis(1))?;
            connection.query_row(JOBS_SQL, [], |row| row.get::<_, String>(0))
        });
        let is_kept_out = self.is_shared && self.server.is_some();
        if !is_kept_out {
            assert_eq!(read.expect("a view"), self.acknowledged.join(","));
        }
    }
}

fn run(seed: u64) {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    // A database without tables is not a store, but SQLite creates one at any path.
    let mut course = Course::new(&path, seed % 2 == 1);
    course.add();
    let mut numbers = Numbers(seed);
    for _ in 0..EVENTS {
        course.step(numbers.below(20));
    }
    course.server = None;
    course.read();
}

#[test]
fn nothing_acknowledged_is_lost_and_no_two_servers_have_one_store() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    let first = number("HQ_TWO_SERVERS_FIRST").unwrap_or(0);
    let span = number("HQ_TWO_SERVERS_SECS").map(Duration::from_secs);
    let begin = Instant::now();
    let is_over = |done: u64| span.map_or(done >= 4, |span| begin.elapsed() >= span);
    let mut done = 0;
    while !is_over(done) {
        let seed = first + done;
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(
            result.is_ok(),
            "seed {seed} failed; again with: HQ_TWO_SERVERS_FIRST={seed} cargo test -p hq-store two_servers"
        );
        done += 1;
    }
    println!("{done} courses");
}

#[test]
fn a_second_start_after_a_query_takes_nothing_away() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().expect("directory");
        let mut course = Course::new(&dir.path().join("j.db"), is_shared);
        course.add();
        course.read();
        course.second_start();
        // The first server then looks like a release without the lock file.
        course.earlier_release();
        course.repair();
        course.add();
        course.server = None;
        course.read();
    }
}

#[test]
fn a_start_without_room_loses_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut server = Server::new(&path, false);
    assert_eq!(server.ask("open"), "open");
    // The log contains about 6 MB, which the next server moves into the file when it starts.
    let keeper = keep_log(&path);
    assert_eq!(server.ask("add 1 60000"), "acknowledged");
    drop(server);
    drop(keeper);
    // A write beyond 1 MB fails, as with a quota. According to its header, the file is then
    // truncated.
    let limit = [
        "bash",
        "-c",
        "trap '' XFSZ; ulimit -f 1024; exec \"$@\"",
        "limited",
    ];
    let mut limited = Server::behind(&limit, &path, false);
    let refused = limited.ask("open");
    assert!(refused.contains("cannot be opened at present"), "{refused}");
    assert!(refused.contains("start again"), "{refused}");
    drop(limited);
    assert!(!with_suffix(&path, ".damaged-1").exists());
    let mut server = Server::new(&path, false);
    assert_eq!(server.ask("open"), "open");
    assert_eq!(server.ask("jobs"), "1");
    assert_eq!(results(&path).len(), 60_000);
}

#[test]
fn a_store_is_for_its_owner_alone() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[1]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
    let store = Store::open(&path).expect("it is ours");
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let found = std::fs::metadata(with_suffix(&path, suffix)).expect("it is there");
        assert_eq!(found.mode() & 0o777, 0o600, "{suffix}");
    }
    drop(store);
    for suffix in ["-wal", "-shm", "-journal"] {
        let planted = with_suffix(&path, suffix);
        std::fs::write(&planted, "").expect("room");
        if std::os::unix::fs::chown(&planted, Some(12_345), None).is_ok() {
            let refused = Store::open(&path).expect_err("it is planted").to_string();
            assert!(refused.contains("belongs to user 12345"), "{refused}");
            crate::reader::open_for_reading(&path).expect_err("it is planted");
        }
        std::fs::remove_file(&planted).expect("it is there");
    }
    // Only root can change the owner of a file.
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        let refused = Store::open(&path).expect_err("it is not ours").to_string();
        assert!(refused.contains("belongs to user 12345"), "{refused}");
    }
}
