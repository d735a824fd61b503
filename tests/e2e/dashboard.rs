//! Runs the terminal dashboard in a pseudo-terminal, whose screen a terminal emulator reads.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{Env, signal, wait_for};
use crate::web::{recorded, rendered};

/// A dashboard and the screen that it draws on.
pub(crate) struct Screen {
    keyboard: File,
    parser: Arc<Mutex<vt100::Parser>>,
    /// Everything that has been written to the terminal.
    written: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Screen {
    /// Starts `hq` on a separate terminal with 80 columns and 24 rows.
    pub(crate) fn start(env: &Env, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).expect("grant");
        unlockpt(&master).expect("unlock");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let open = || {
            let path = name.to_str().expect("a path");
            File::options()
                .read(true)
                .write(true)
                .open(path)
                .expect("the other side")
        };
        resize(&master, 80, 24);
        let hq = env.command(args);
        // The terminal must be that of the session. Otherwise the size of another terminal would be
        // used.
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg("--wait")
            .arg(hq.get_program())
            .args(hq.get_args());
        for (name, value) in hq.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(env.path(""));
        command
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()));
        let child = command.spawn().expect("setsid can be run");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("duplicate a descriptor");
        let screen = Arc::clone(&parser);
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // This fails when the other side is closed.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                all.lock().expect("bytes").extend(&bytes[..count]);
                screen.lock().expect("screen").process(&bytes[..count]);
            }
        });
        Self {
            keyboard,
            parser,
            written,
            child,
        }
    }

    /// Returns everything that has been written to the terminal.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("bytes")).into_owned()
    }

    fn text(&self) -> String {
        self.parser.lock().expect("screen").screen().contents()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("type");
    }

    /// Waits until all these texts are on the screen.
    #[track_caller]
    pub(crate) fn shows(&self, wanted: &[&str]) -> String {
        wait_for(&format!("the screen shows {wanted:?}"), || {
            let text = self.text();
            if wanted.iter().all(|part| text.contains(part)) {
                Ok(text)
            } else {
                Err(text)
            }
        })
    }

    /// Clicks on the first position that shows this text.
    #[track_caller]
    fn click(&mut self, wanted: &str) {
        let text = self.shows(&[wanted]);
        let found = text.lines().zip(1..).find_map(|(line, row)| {
            let column = line.find(wanted)?;
            Some((line[..column].chars().count() + 1, row))
        });
        let (column, row): (usize, usize) = found.expect("it is there");
        self.press(&format!("\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"));
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.parser
            .lock()
            .expect("screen")
            .screen_mut()
            .set_size(rows, columns);
        resize(&self.keyboard, columns, rows);
    }

    /// Waits until the dashboard ends. Returns the exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        wait_for("the dashboard ends", || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status.code()),
            other => Err(format!("{other:?}\n{}", self.text())),
        })
    }
}

fn resize(terminal: impl std::os::fd::AsFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("set the size");
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If a failed test left the dashboard running, closing its terminal ends it as well.
        let _ = self.keyboard.write_all(b"\x03");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_view_shows_a_real_run_and_jobs_can_be_acted_upon() {
    let env = Env::with_worker(4);
    let script = "echo problem of $HQ_TASK_ID >&2; exit $((HQ_TASK_ID % 10 == 3 ? 7 : 0))";
    let sweep = env.submit(&["--array=1-100", "--name=sweep", "--", "bash", "-c", script]);
    env.wait_job(&sweep);
    env.submit(&[
        "--array=1-500",
        "--cpus=64",
        "--name=<script>big",
        "--",
        "true",
    ]);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&[
        "10 failed",
        "500 waiting",
        "1 worker ",
        "Failing job 1 sweep: 10 of 100 tasks failed, mostly: exit code 7",
        "Starving job 2 <script>big: none of 500 waiting tasks runs",
        "last events",
    ]);
    screen.press("2");
    screen.shows(&["Jobs (2), by id down", "sweep", "failed"]);
    screen.press("/swe\r");
    screen.shows(&["Jobs (1)", "matching `swe`"]);
    screen.press("\r");
    screen.shows(&[
        "Tasks 1 to 100, in order",
        "10 failed, last first",
        "exit code 7",
        "Run times",
        "problem of",
    ]);
    let strip: String = screen.text().lines().skip(4).take(3).collect();
    assert_eq!(strip.matches('X').count(), 10, "{strip}");
    screen.press("Ry");
    screen.shows(&["10 tasks submitted as job 3"]);
    assert_eq!(env.tasks("3").len(), 10);
    screen.press("\x1b");
    screen.press("/big\r");
    screen.shows(&["Jobs (1)"]);
    screen.press("c");
    screen.shows(&["Cancel job 2 `<script>big`? This drops 500 waiting"]);
    screen.press("n");
    assert_eq!(env.stats("2")["waiting"], 500);
    screen.press("cy");
    screen.shows(&["500 tasks of job 2 canceled"]);
    assert_eq!(env.stats("2")["canceled"], 500);
    screen.press("3");
    screen.shows(&["Workers (1 of 1 connected)", "0/4", "Worker 1 on"]);
    screen.press("4");
    screen.shows(&["There is no queue of automatic allocation"]);
    screen.press("5");
    screen.shows(&["job created", "worker connected"]);
    screen.press("3x");
    screen.shows(&["Stop worker 1 on "]);
    screen.press("y");
    screen.shows(&["Workers (0 of 1 connected)", "stopped"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn limits_are_on_the_overview_and_name_what_keeps_a_job() {
    let env = Env::with_worker(4);
    let text = Screen::start(&env, &["dashboard"]).shows(&["0 running", "last events"]);
    assert!(!text.contains("Limits"), "{text}");
    env.hq(&["limit", "set", "db", "2"]).ok();
    env.submit(&[
        "--limit=db",
        "--array=1-9",
        "--name=a",
        "--",
        "sleep",
        "1000",
    ]);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&[
        "Limits",
        "db  2       2 in use         7 waiting  by job 1 (2)",
    ]);
    screen.press("2\r");
    screen.shows(&[
        "2 running  7 waiting",
        "waits for limit db: 2 of 2 in use by job 1 (2)",
    ]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

/// Waits until a file of the test exists.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.05; done";

#[test]
fn every_task_and_its_output_can_be_reached() {
    let env = Env::with_worker(2);
    let script = "if [ $HQ_TASK_ID = 7 ]; then seq -f 'noise %g.' 1 300 >&2; echo needle >&2; \
                  seq -f 'after %g.' 1 50 >&2; exit 3; fi; echo fine";
    let sweep = env.submit(&["--array=1-30", "--name=sweep", "--", "bash", "-c", script]);
    env.wait_job(&sweep);
    let mut screen = Screen::start(&env, &["dashboard"]);
    // Navigate from the problem to its job, its failure and its output.
    screen.shows(&["Problems (0, 1 of ended jobs)", "Failures in job 1 sweep"]);
    screen.press("\r");
    screen.shows(&["Job 1 `sweep`", "1 failed, last first", "after 50."]);
    screen.press("\r");
    screen.shows(&[
        "stderr of task 7 of job 1: line 351 of 351, following",
        "the task is failed",
    ]);
    screen.press("g");
    screen.shows(&["noise 1.", "line 19 of 351"]);
    screen.press("/needle\r");
    // The line that was found is the first one on the screen.
    screen.shows(&["needle", "after 1.", "line 319 of 351"]);
    screen.press("/nowhere\r");
    screen.shows(&["no line has `nowhere`"]);
    screen.press("o");
    screen.shows(&["stdout of task 7", "nothing was written yet"]);
    screen.press("\x1b");
    screen.shows(&["1 failed, last first"]);
    // Show all tasks of the job.
    screen.press("a");
    screen.shows(&["Tasks of job 1 (30)", "finished"]);
    screen.press("/failed\r");
    screen.shows(&["Tasks of job 1 (1), matching `failed`"]);
    screen.press("/20-22\r");
    screen.shows(&["Tasks of job 1 (3), matching `20-22`"]);
    screen.press("j\r");
    screen.shows(&["stdout of task 21", "fine"]);
    screen.press("y");
    screen.shows(&["copied, if the terminal allows it: "]);
    wait_for("the path is in the clipboard", || {
        let written = screen.written.lock().expect("bytes");
        let mark = b"\x1b]52;c;";
        let found = written.windows(mark.len()).any(|part| part == mark);
        if found {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    });
    // The worker's tasks are shown as well.
    screen.press("3");
    screen.shows(&["Workers (1 of 1"]);
    screen.press("\r");
    screen.shows(&["Tasks of worker 1, the last one first (30)"]);
    screen.press("5");
    screen.shows(&["Events, newest first", "job completed"]);
    screen.press("\r");
    screen.shows(&["Job 1 `sweep`"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn what_a_task_used_over_time_is_above_its_output() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource", "mem=sum(1024)"]);
    // The second attempt is too short for a curve.
    let script = "echo attempt $HQ_INSTANCE_ID; [ $HQ_INSTANCE_ID = 0 ] || exit 0; sleep 5; exit 3";
    let retried = ["--retries=1", "--retry-delay=10ms", "--resource=mem=300MiB"];
    let job = env.submit(&[&retried[..], &["--", "bash", "-c", script]].concat());
    env.submit(&["--wait", "--", "echo", "short"]);
    env.wait_job(&job);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&["2 finished"]);
    screen.press("2");
    screen.shows(&["Jobs (2)"]);
    screen.press("a");
    screen.shows(&["Tasks of job 2 (1)"]);
    screen.press("\r");
    let text = screen.shows(&["stdout of task 0 of job 2", "short", "following"]);
    assert!(!text.contains("MiB"), "{text}");
    screen.press("2");
    screen.shows(&["Jobs (2)"]);
    screen.press("/1\r");
    screen.shows(&["Jobs (1)"]);
    screen.press("a");
    screen.shows(&["Tasks of job 1 (1)"]);
    screen.press("\r");
    let text = screen.shows(&[
        "MiB: top ",
        " of 300 asked",
        "of 1 asked for",
        "attempt 1 of 2, over ",
        "stdout of task 0 of job 1",
        "│attempt 1 ",
        "u usage",
    ]);
    assert!(!text.contains("other attempts"), "{text}");
    screen.press("u");
    wait_for("the charts are gone", || {
        let text = screen.text();
        if text.contains("MiB") {
            Err(text)
        } else {
            Ok(())
        }
    });
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_log_is_followed_and_problems_are_acknowledged() {
    let env = Env::with_worker(2);
    let name = "a-name-that-is-much-longer-than-the-twenty-columns-of-before";
    let script = format!("[ $HQ_TASK_ID -gt 4 ] || exit 0; echo first; {UNTIL_GO}; echo second");
    let slow = env.submit(&["--array=1-9", "--name", name, "--", "bash", "-c", &script]);
    env.submit(&["--cpus=64", "--name=big", "--", "true"]);
    wait_for("some have ended and others run", || {
        let stats = env.stats(&slow);
        if stats["finished"] == 4 && stats["running"] == 2 {
            Ok(())
        } else {
            Err(stats.to_string())
        }
    });
    // Which of the tasks run is unknown: short tasks are launched ahead, and these turn out to be
    // long.
    let first_that_is = |state: &str| {
        let tasks = env.tasks(&slow);
        let task = tasks.iter().find(|task| task["state"] == state);
        task.expect("one of them")["id"].to_string()
    };
    let (running, waiting) = (first_that_is("running"), first_that_is("waiting"));
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&["Problems (1)", "Starving job 2 big"]);
    screen.press("A");
    screen.shows(&["Acknowledge this problem?"]);
    screen.press("n");
    screen.press("A");
    screen.shows(&["Acknowledge this problem?"]);
    screen.press("y");
    screen.shows(&["Problems (0, 1 acknowledged)"]);
    screen.press("Ay");
    screen.shows(&["Problems (1)"]);
    screen.resize(200, 50);
    screen.press("2");
    screen.shows(&[name, "Ended", "Rate", "Until", "44 %"]);
    screen.press("/a-name\r");
    screen.shows(&["Jobs (1)"]);
    screen.press("\r");
    screen.shows(&["3 waiting", " left, until "]);
    screen.press("a");
    screen.shows(&["Tasks of job 1 (9)"]);
    screen.press(&format!("/{waiting}\r"));
    screen.shows(&["Tasks of job 1 (1)", "waiting"]);
    screen.press("c");
    let question = format!("Cancel task {waiting} of job 1?");
    screen.shows(&[&question, "It is not run."]);
    screen.press("n");
    assert_eq!(env.stats(&slow)["canceled"], 0);
    screen.press("cy");
    screen.shows(&[&format!("task {waiting} of job 1 was canceled")]);
    assert_eq!(env.stats(&slow)["canceled"], 1);
    screen.press(&format!("/{running}\r"));
    let matching = format!("Tasks of job 1 (1), matching `{running}`");
    screen.shows(&[&matching, "running"]);
    screen.press("\r");
    let text = screen.shows(&[&format!("stdout of task {running}"), "first", "following"]);
    assert!(!text.contains("second"), "{text}");
    env.write("go", "");
    screen.shows(&["second", "the task is finished"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn jobs_and_tasks_are_held_released_and_signaled() {
    let mut env = Env::new();
    env.start_server();
    let script = "trap 'echo caught > got; exit' USR1; echo up > up; while :; do sleep 0.1; done";
    env.submit(&["--array=1-2", "--name=sweep", "--", "bash", "-c", script]);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.press("2");
    screen.shows(&["sweep", "h H hold"]);
    screen.press("h");
    screen.shows(&["Hold job 1 `sweep`? This keeps 2 waiting tasks"]);
    screen.press("y");
    screen.shows(&["job 1 held: 2 tasks will wait"]);
    env.start_worker_with(&["--cpus=2"]);
    screen.press("\r");
    screen.shows(&["waits: its tasks are held", "2 waiting"]);
    screen.press("a");
    screen.shows(&["Tasks of job 1 (2)"]);
    screen.press("j");
    screen.press("Hy");
    screen.shows(&["task 2 of job 1 is released", "running"]);
    wait_for("the task has its trap", || {
        let is_up = env.path("up").exists();
        is_up.then_some(()).ok_or_else(|| "not yet".to_owned())
    });
    screen.press("h");
    screen.shows(&["task 2 is running already"]);
    screen.press("S");
    screen.shows(&[
        "Send a signal to task 2 of job 1 on",
        "1  SIGUSR1",
        "7  SIGCONT",
    ]);
    screen.press("1");
    screen.shows(&["SIGUSR1 was sent to task 2 of job 1", "finished"]);
    assert_eq!(env.read("got"), "caught\n");
    assert_eq!(env.stats("1")["waiting"], 1);
    screen.press("\x1b");
    screen.shows(&["Tasks 1 to 2, in order"]);
    screen.press("Hy");
    screen.shows(&["job 1 released: 1 task", "1 running"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn the_mouse_and_other_sizes_work() {
    let env = Env::with_worker(2);
    env.submit(&["--name=clicked", "--wait", "--", "true"]);
    let mut screen = Screen::start(&env, &["dashboard", "stream"]);
    screen.shows(&["nothing is wrong"]);
    screen.click("2 Jobs");
    screen.shows(&["Jobs (1)"]);
    screen.click("clicked");
    screen.shows(&["Job 1 `clicked`", "No task has failed"]);
    screen.resize(132, 43);
    let text = screen.shows(&["Job 1 `clicked`", "Esc back"]);
    wait_for("the screen is filled", || {
        let text = screen.text();
        let rows = text.lines().count();
        if rows == 43 {
            Ok(())
        } else {
            Err(format!("{rows} rows\n{text}"))
        }
    });
    assert!(text.contains("Run times"));
    screen.resize(30, 8);
    screen.shows(&["the window is too small"]);
    screen.resize(80, 24);
    screen.shows(&["Job 1 `clicked`", "Esc back"]);
    screen.press("?");
    screen.shows(&["cancel a job", "(* asks first)"]);
    screen.press("\x03");
    screen.press("\x03");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn it_goes_on_when_the_server_was_started_again() {
    let mut env = Env::new();
    env.start_server();
    env.submit(&["--array=1-50", "--name=patient", "--", "true"]);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&["50 waiting"]);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    screen.shows(&["no server", "50 waiting"]);
    env.start_server_with(&["--resume"]);
    env.start_worker(2);
    let text = screen.shows(&["50 finished"]);
    assert!(!text.contains("no server"), "{text}");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn what_was_confirmed_is_done_after_a_restart_and_at_the_end() {
    let mut env = Env::new();
    env.start_server();
    for name in ["early", "middle", "late"] {
        env.submit(&["--array=1-2", "--name", name, "--", "true"]);
    }
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&["6 waiting"]);
    screen.press("2/early\r");
    screen.shows(&["Jobs (1)", "early"]);
    screen.press("cy");
    screen.shows(&["2 tasks of job 1 canceled"]);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    screen.shows(&["no server"]);
    env.start_server_with(&["--resume"]);
    screen.press("/middle\r");
    screen.shows(&["Jobs (1)", "middle"]);
    screen.press("cy");
    screen.shows(&["2 tasks of job 2 canceled"]);
    screen.press("/late\r");
    screen.shows(&["Jobs (1)", "late"]);
    screen.press("cyq");
    assert_eq!(screen.end(), Some(0));
    assert_eq!(env.stats("3")["canceled"], 2);
}

#[test]
fn a_journal_is_shown_at_any_time() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=run.db"]);
    env.start_worker(2);
    let job = env.submit(&[
        "--array=1-20",
        "--name=old",
        "--",
        "bash",
        "-c",
        "exit $((HQ_TASK_ID == 4))",
    ]);
    env.wait_job(&job);
    // When the server ends, there is still a worker.
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    let mut screen = Screen::start(&env, &["dashboard", "--journal=run.db"]);
    screen.shows(&[
        "19 finished",
        "1 failed",
        "cpus 0/2",
        "Failing job 1 old: 1 of 20 tasks failed, mostly: exit code 1",
        "100%",
    ]);
    screen.press("2\r");
    screen.shows(&["1 failed, last first", "exit code 1", "Tasks 1 to 20"]);
    screen.press("c");
    screen.shows(&["this is a journal"]);
    screen.press("1");
    for _ in 0..25 {
        screen.press("[");
    }
    screen.shows(&["0 finished", " 0%"]);
    screen.press(" ");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    env.hq(&["dashboard", "replay", "nowhere.db"])
        .exits_with(1)
        .says("needs a terminal");
}

#[test]
fn without_a_terminal_it_says_so() {
    let env = Env::new();
    env.hq(&["dashboard"])
        .exits_with(1)
        .says("needs a terminal");
}

/// The views of the report of [`a_journal_becomes_a_page`], and what they show.
const VIEWS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "27 tasks finished and 3 failed; ",
            "<span class=\"value\">27</span><span class=\"label\">tasks finished",
            "<span class=\"value bad\">3</span><span class=\"label\">tasks failed",
            "exit code 5",
            "<code>no index for chr",
            "Where the core-hours went",
            "&lt;script&gt;alert(1)&lt;/script&gt;",
            "Slowest tasks",
            "Workers over time",
            "What went wrong",
        ],
    ),
    (
        "overview",
        &[
            "None of 7 waiting tasks runs: they ask for 99 cpus, no worker has more than 2",
            "A recording of a journal. Costs and charts: ",
        ],
    ),
    ("jobs", &["2 of 2 jobs", "0 of 7", "30 of 30"]),
    (
        "job/2",
        &[
            "3 tasks of 30 failed",
            "All tasks, in the order of their ids",
            "exit code 5",
        ],
    ),
    ("job/2?state=failed", &["3 tasks</span>"]),
    ("workers", &["1 worker here, 0 gone"]),
    ("timeline", &["30 tasks on 1 worker"]),
    ("events", &["worker connected"]),
    (
        "job/2/task/999",
        &["task 999 in job 2 is not in this report"],
    ),
];

#[test]
fn a_journal_becomes_a_page() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=run.db"]);
    env.start_worker(2);
    let script =
        "[ $((HQ_TASK_ID % 10)) != 0 ] || { echo \"no index for chr$HQ_TASK_ID\" >&2; exit 5; }";
    let name = "--name=<script>alert(1)</script>";
    env.submit(&["--array=1-7", "--name=greedy", "--cpus=99", "--", "true"]);
    let job = env.submit(&["--array=1-30", name, "--", "bash", "-c", script]);
    env.wait_job(&job);
    env.hq(&["journal", "report", "run.db", "run.html"]).ok();
    let page = env.read("run.html");
    assert!(page.starts_with("<!doctype html>"), "{page}");
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    assert!(!page.contains("<script>alert"), "a name is no markup");
    let report = recorded(&page);
    let named = &report["answers"]["/jobs/2"]["name"];
    assert_eq!(named, "<script>alert(1)</script>");
    assert!(
        report["notes"]
            .as_array()
            .is_some_and(|notes| !notes.is_empty())
    );
    for (view, parts) in VIEWS {
        let Some(shown) = rendered(&env, "run.html", view) else {
            break;
        };
        for part in *parts {
            assert!(shown.contains(part), "no {part} in {view}:\n{shown}");
        }
        assert!(!shown.contains("<script>alert"), "{shown}");
        let buttons = shown.split("<button").skip(1);
        let mut actions = buttons.filter(|button| button.contains(" …</button>"));
        let is_hidden = |button: &str| button.contains("hidden=\"\"");
        assert!(actions.all(is_hidden), "{shown}");
    }
    env.hq(&["journal", "report", "run.db", "x.html", "--start-time=10h"])
        .exits_with(1)
        .says("The report would be empty");
    env.hq(&["journal", "report", "nowhere.db", "x.html"])
        .exits_with(1)
        .says("nowhere.db");
    env.hq(&["journal", "report", "run.db", "no/such/x.html"])
        .exits_with(1)
        .says("Cannot write the report");
}

#[test]
fn a_report_of_a_stopped_server_names_lost_workers_and_what_none_offered() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=run.db"]);
    env.start_worker(2);
    let killed = env.start_worker(1);
    env.submit(&["--name=greedy", "--cpus=99", "--", "true"]);
    signal(killed, "KILL");
    env.wait_exit_of(killed);
    wait_for("the worker is lost", || {
        let workers = env.json(&["worker", "list", "--all"]);
        let ended = |worker: &serde_json::Value| worker["ended"].is_object();
        match workers.as_array().expect("a list").iter().any(ended) {
            true => Ok(()),
            false => Err(workers.to_string()),
        }
    });
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.hq(&["journal", "report", "run.db", "run.html"]).ok();
    let answers = recorded(&env.read("run.html"))["answers"].take();
    let problems = &answers["/problems"]["problems"];
    let found = problems.as_array().expect("a list").iter();
    let found: Vec<_> = found.map(|one| (&one["kind"], &one["text"])).collect();
    let lacks = "its waiting task does not run: it asks for 99 cpus, no worker has more than 2";
    let lost = "its connection broke, or it sent no heartbeat";
    assert_eq!(found.len(), 2, "{problems}");
    assert_eq!(found[0], (&"lost-workers".into(), &lost.into()));
    assert_eq!(found[1], (&"starving-job".into(), &lacks.into()));
    let workers = &answers["/workers"]["workers"];
    let states = workers.as_array().expect("a list").iter();
    let states: Vec<_> = states.map(|worker| &worker["state"]).collect();
    assert_eq!(states, ["stopped", "connection-lost"], "{workers}");
}
