//! Tests of the keeper: no process survives, whichever one is killed, and each signal arrives once.
//!
//! The binary has two roles. When cargo runs it, it is the test. With [`ROLE`] set, it is a program
//! that splits itself with the keeper and launches tasks. It has its own `main`, because the split
//! must happen before there is a second thread.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "a test runner reports")]
#![expect(unsafe_code, reason = "dispositions of signals, a descriptor")]

#[expect(dead_code, reason = "shared with tests that refuse more")]
#[path = "spawn/filter.rs"]
mod filter;
#[path = "../../../tests/skip.rs"]
mod skip;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use hq_spawn::keeper::{self, KeeperContext};
use hq_spawn::leftovers::{self, Launched};
use hq_spawn::{
    ArgBlock, Backend, EnvBlock, Event, ExitStatus, Launcher, LauncherConfig, SpawnPlan, TaskEnv,
    Token,
};

use skip::skip;

/// The environment variable with the role of the program. It is not set in the test itself.
const ROLE: &str = "HQ_SPAWN_TEST_ROLE";
/// The environment variable with the directory for the program's reports; it identifies its tasks.
const DIRECTORY: &str = "HQ_SPAWN_TEST_DIRECTORY";

/// The environment variable that names the launcher of a task.
const LAUNCHER: &str = "HQ_SPAWN_TEST_LAUNCHER";

/// Generous for a busy machine; survivors are checked against [`NO_SURVIVOR`].
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit that users are promised.
const NO_SURVIVOR: Duration = Duration::from_secs(2);

fn reset_signals() {
    // Under `nohup`, or when started with `&` in a shell, some signals are ignored. Programs
    // inherit this, and a shell cannot trap signals that were ignored when it started.
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGTSTP,
        libc::SIGUSR1,
    ] {
        // SAFETY: no handler is installed, and there is no second thread yet.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Filters on the command line select tests by these names.
const TESTS: [(&str, fn()); 16] = [
    (
        "a_proc_of_another_namespace_is_refused",
        a_proc_of_another_namespace_is_refused,
    ),
    (
        "children_die_with_a_launcher_without_keeper",
        children_die_with_a_launcher_without_keeper,
    ),
    (
        "no_survivor_when_the_worker_is_killed",
        no_survivor_when_the_worker_is_killed,
    ),
    (
        "no_survivor_when_the_front_is_killed",
        no_survivor_when_the_front_is_killed,
    ),
    (
        "no_survivor_when_the_fronts_group_is_killed",
        no_survivor_when_the_fronts_group_is_killed,
    ),
    (
        "no_survivor_when_the_worker_ends",
        no_survivor_when_the_worker_ends,
    ),
    (
        "the_front_ends_as_the_worker_does",
        the_front_ends_as_the_worker_does,
    ),
    ("signals_arrive_once", signals_arrive_once),
    (
        "stopping_the_front_stops_the_worker",
        stopping_the_front_stops_the_worker,
    ),
    (
        "leaked_processes_of_a_finished_task_are_ended",
        leaked_processes_of_a_finished_task_are_ended,
    ),
    (
        "daemons_that_hide_their_environment_are_ended_with_their_task",
        daemons_that_hide_their_environment_are_ended_with_their_task,
    ),
    (
        "what_outlives_front_and_worker_is_ended_at_the_next_start",
        what_outlives_front_and_worker_is_ended_at_the_next_start,
    ),
    (
        "tasks_end_with_front_and_worker_where_nothing_can_be_adopted",
        tasks_end_with_front_and_worker_where_nothing_can_be_adopted,
    ),
    (
        "an_unknown_orphan_lives_while_tasks_run",
        an_unknown_orphan_lives_while_tasks_run,
    ),
    (
        "leaked_processes_are_found_without_a_list_of_children",
        leaked_processes_are_found_without_a_list_of_children,
    ),
    (
        "orphans_of_running_tasks_are_reaped_with_and_without_a_list",
        orphans_of_running_tasks_are_reaped_with_and_without_a_list,
    ),
];

fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(ROLE) {
        let role = role.into_string().unwrap();
        if role == "alone" {
            return plain_tasks(&told_directory());
        }
        if role == "unadopted" {
            filter::deny(&filter::WITHOUT_ADOPTION, libc::EINVAL);
        }
        return keeper::run(move |context| play(&role, &context)).unwrap();
    }
    reset_signals();
    let filter: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let listing = std::env::args().any(|arg| arg == "--list");
    for (name, test) in TESTS {
        if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        if listing {
            println!("{name}: test");
            continue;
        }
        print!("test {name} ... ");
        std::io::stdout().flush().unwrap();
        test();
        println!("ok");
    }
    ExitCode::SUCCESS
}

fn play(role: &str, context: &KeeperContext) -> ExitCode {
    let directory = told_directory();
    assert_eq!(context.front_pid, std::os::unix::process::parent_id());
    match role.split_once(' ').unwrap_or((role, "")) {
        ("tasks", count) => {
            let plain = script("sleep 1000 & wait");
            let detached =
                "(setsid sh -c 'setsid sleep 1000 & exec sleep 1000' &) ; exec sleep 1000";
            tasks(
                &directory,
                &[plain, script(detached)],
                count.parse().unwrap(),
            )
        }
        ("unadopted", _) => plain_tasks(&directory),
        ("exit", code) => ExitCode::from(code.parse::<u8>().unwrap()),
        ("die", signal) => {
            let own = std::process::id().to_string();
            Command::new("kill")
                .args(["-s", signal, &own])
                .status()
                .unwrap();
            wait_forever()
        }
        ("signals", _) => signals(&directory),
        ("leave", _) => {
            // The processes detach from the task; then the worker ends on its own.
            let script = "setsid sleep 1000 & (setsid sleep 1000 &) ; setsid sh -c 'sleep 1000 & sleep 1000' &";
            Command::new("sh").args(["-c", script]).status().unwrap();
            ExitCode::from(4)
        }
        ("leak", how) => leak(&directory, how),
        ("daemons", how) => daemons(&directory, how),
        ("zombies", how) => zombies(&directory, how),
        ("survivors", _) => survivors(&directory),
        _ => panic!("unknown role {role}"),
    }
}

fn told_directory() -> PathBuf {
    PathBuf::from(std::env::var_os(DIRECTORY).unwrap())
}

fn wait_forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Makes a program behave as on a kernel that does not list children.
const UNLISTED: &str = "unlisted";

/// Starts a launcher. `how` is [`UNLISTED`], the name of a backend, or empty.
fn launcher(how: &str) -> (Launcher, std::sync::mpsc::Receiver<()>) {
    let (sender, woken) = sync_channel(1);
    let mut config = LauncherConfig::new(Arc::new(move || {
        let _ = sender.try_send(());
    }));
    config.list_children = how.is_empty();
    config.backend = Backend::from_name(how);
    (Launcher::start(config).unwrap(), woken)
}

fn script(text: &str) -> SpawnPlan {
    SpawnPlan::new(
        ArgBlock::new(["sh", "-c", text]).unwrap(),
        EnvBlock::capture(),
    )
}

/// Runs `count` tasks of these kinds in turn until the program is killed.
fn tasks(directory: &Path, kinds: &[SpawnPlan], count: u64) -> ExitCode {
    let (launcher, woken) = launcher("");
    let plans = kinds.iter().cycle().cloned();
    launcher.spawn_batch((0..count).map(Token).zip(plans));
    let mut events = Vec::new();
    while events.len() < usize::try_from(count).unwrap() {
        woken.recv().unwrap();
        launcher.drain_events(&mut events);
    }
    tell(directory, "ready", &std::process::id().to_string());
    wait_forever()
}

fn plain_tasks(directory: &Path) -> ExitCode {
    tasks(directory, &[script("exec sleep 1000")], 20)
}

/// Records each signal that it receives until the test ends it.
fn signals(directory: &Path) -> ExitCode {
    let path = directory.join("signals");
    let trap = |name: &str| format!("trap 'echo {name} >> {}' {name}; ", path.display());
    let text = ["INT", "TERM", "HUP", "USR1", "CONT"].map(trap).concat();
    let ready = directory.join("ready");
    let text = format!(
        "{text} echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.01; done",
        ready.display()
    );
    // The worker itself becomes the shell, so that it receives the signals.
    panic!("{}", Command::new("sh").args(["-c", &text]).exec())
}

/// Runs two tasks that leave daemons without any environment behind. The first task has a marker
/// and ends; the second one has no marker and runs until the test ends it.
fn daemons(directory: &Path, how: &str) -> ExitCode {
    let (launcher, woken) = launcher(how);
    let daemon = |name: &str| {
        let path = directory.join(name);
        format!(
            "(env -i setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' &); \
             while [ ! -e {0} ]; do sleep 0.01; done;",
            path.display()
        )
    };
    let end = directory.join("end");
    let second = format!(
        "{} while [ ! -e {} ]; do sleep 0.01; done",
        daemon("unknown"),
        end.display()
    );
    launcher.spawn(Token(2), script(&second));
    let first = script(&format!(
        "{} while [ ! -e {} ]; do sleep 0.01; done",
        daemon("cleared"),
        directory.join("unknown").display()
    ));
    launcher.spawn(Token(1), first.marker("HQ_SPAWN_TEST_TASK=1"));
    let mut events = Vec::new();
    for token in [1, 2].map(Token) {
        let has_ended = |event: &Event| {
            event.token() == token && matches!(event, Event::Exited { .. } | Event::Failed { .. })
        };
        while !events.iter().any(has_ended) {
            woken.recv().unwrap();
            launcher.drain_events(&mut events);
        }
        tell(directory, &format!("ended{}", token.0), "");
    }
    wait_forever()
}

/// Runs two tasks whose children outlive them: a label identifies one, a variable the other.
fn survivors(directory: &Path) -> ExitCode {
    let own = Launched::own().unwrap();
    let mut env = TaskEnv::new();
    env.set(LAUNCHER, format!("{}-{}", own.pid, own.began))
        .unwrap();
    let child = |clear: &str, name: &str| {
        let path = directory.join(name);
        format!(
            "{clear} sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000'; true",
            path.display()
        )
    };
    let labelled = script(&child("env -i", "labelled")).marker("HQ_SPAWN_TEST_TASK=1");
    let marked = script(&child("", "marked")).task_env(env);
    tasks(directory, &[labelled, marked], 2)
}

/// Runs a task that leaks processes while another one runs. Reports the launcher's event about the
/// first one.
fn leak(directory: &Path, how: &str) -> ExitCode {
    let (launcher, woken) = launcher(how);
    let marked = |token: u64, text: String| {
        let marker = format!("HQ_SPAWN_TEST_TASK={token}");
        let mut env = TaskEnv::new();
        env.set("HQ_SPAWN_TEST_TASK", token.to_string()).unwrap();
        (Token(token), script(&text).task_env(env).marker(marker))
    };
    // Each task reports when it has two processes in another session; only the first task ends.
    let ready = |name: &str| {
        let path = directory.join(name);
        format!(
            "(setsid sh -c 'sleep 1000 & echo $$ > {0}.new; mv {0}.new {0}; wait' &); while [ ! -e {0} ]; do sleep 0.01; done;",
            path.display()
        )
    };
    launcher.spawn_batch([marked(2, ready("second") + "exec sleep 1000")]);
    launcher.spawn_batch([marked(
        1,
        format!(
            "{} sleep 1000 & while [ ! -e {} ]; do sleep 0.01; done; exit 0",
            ready("first"),
            directory.join("second").display()
        ),
    )]);
    let mut events = Vec::new();
    let leaked = loop {
        woken.recv().unwrap();
        launcher.drain_events(&mut events);
        let found = events.iter().find_map(|event| match event {
            Event::Exited {
                token: Token(1),
                leaked,
                ..
            } => Some(*leaked),
            Event::Exited { .. }
            | Event::Started { .. }
            | Event::Stalled { .. }
            | Event::Unkillable { .. } => None,
            Event::Failed { error, .. } => panic!("{error}"),
        });
        if let Some(leaked) = found {
            break leaked;
        }
    };
    tell(directory, "leaked", &leaked.to_string());
    wait_forever()
}

/// Runs a task whose orphans end while it runs, next to short tasks. The exits of all short tasks
/// must be reported.
fn zombies(directory: &Path, how: &str) -> ExitCode {
    const SHORT: u64 = 300;
    let (launcher, woken) = launcher(how);
    let text = "for i in 1 2 3 4 5; do (setsid sleep 0 &); done; exec sleep 1000";
    launcher.spawn(Token(SHORT), script(text).marker("HQ_SPAWN_TEST_TASK=1"));
    launcher.spawn_batch((0..SHORT).map(|token| (Token(token), script("exit 7"))));
    let mut events = Vec::new();
    let mut ended = 0;
    while ended < SHORT {
        woken.recv().unwrap();
        launcher.drain_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Exited { status, leaked, .. } => {
                    assert_eq!((status, leaked), (ExitStatus::Code(7), 0));
                    ended += 1;
                }
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {}
            }
        }
    }
    tell(directory, "ready", &std::process::id().to_string());
    wait_forever()
}

/// Writes a file atomically.
fn tell(directory: &Path, name: &str, text: &str) {
    let temporary = directory.join(format!("{name}.new"));
    fs::write(&temporary, format!("{text}\n")).unwrap();
    fs::rename(temporary, directory.join(name)).unwrap();
}

struct Program {
    directory: tempfile::TempDir,
    front: Child,
}

impl Program {
    fn start(role: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let front = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(DIRECTORY, directory.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { directory, front }
    }

    /// Waits for a file that the program writes, and returns its contents.
    fn told(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        eventually(name, || fs::read_to_string(&path).ok())
            .trim()
            .to_owned()
    }

    /// Returns all processes with this program's mark in their environment, except zombies.
    fn processes(&self) -> HashSet<u32> {
        let entry = format!("{DIRECTORY}={}", self.directory.path().display());
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|found| found.unwrap().file_name().to_str()?.parse().ok())
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| {
                    text.split(|byte| *byte == 0)
                        .any(|found| found == entry.as_bytes())
                })
            })
            .collect()
    }

    fn signal(&self, signal: &str, target: &str) {
        let status = Command::new("kill")
            .args(["-s", signal, "--", target])
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn front_pid(&self) -> String {
        self.front.id().to_string()
    }

    #[track_caller]
    fn expect_no_survivor(&self) {
        let begin = Instant::now();
        eventually("nothing survives", || {
            self.processes().is_empty().then_some(())
        });
        let took = begin.elapsed();
        // Averaged over a minute: hundreds of processes take longer to end on a busy machine.
        let load = fs::read_to_string("/proc/loadavg").unwrap();
        let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
        let share = load / std::thread::available_parallelism().unwrap().get() as f64;
        let bound = NO_SURVIVOR.mul_f64(share.max(1.0));
        assert!(took < bound, "it took {took:?}, at a load of {load}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
        // In one role, the worker executes another program and loses the thread that watches the
        // front.
        for pid in self.processes() {
            let _ = Command::new("kill")
                .args(["-s", "KILL", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }
}

#[track_caller]
fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < limit, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const TASKS: usize = 200;

/// Starts the tasks, waits until all their processes run, and returns the worker's pid.
fn start_tasks() -> (Program, String) {
    let program = Program::start(&format!("tasks {TASKS}"));
    let worker = program.told("ready");
    // There are two processes for the front and the worker, two per plain task, and three per
    // detached one.
    let expected = 2 + TASKS / 2 * 2 + TASKS / 2 * 3;
    eventually("all tasks run", || {
        (program.processes().len() >= expected).then_some(())
    });
    (program, worker)
}

fn repeats() -> usize {
    std::env::var("HQ_SPAWN_TEST_REPEATS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2)
}

fn children_die_with_a_launcher_without_keeper() {
    // They are killed by their parent-death signal.
    let program = Program::start("alone");
    program.told("ready");
    eventually("all children are seen", || {
        (program.processes().len() == 21).then_some(())
    });
    program.signal("KILL", &program.front_pid());
    program.expect_no_survivor();
}

/// Simulates an emulator of a single process, where only detached processes can escape.
fn tasks_end_with_front_and_worker_where_nothing_can_be_adopted() {
    if !filter::has_filters() {
        skip("no filters of system calls here");
        return;
    }
    for is_worker in [true, false] {
        let program = Program::start("unadopted");
        let worker = program.told("ready");
        eventually("all tasks run", || {
            (program.processes().len() == 22).then_some(())
        });
        let target = if is_worker {
            worker
        } else {
            program.front_pid()
        };
        program.signal("KILL", &target);
        program.expect_no_survivor();
    }
}

fn no_survivor_when_the_worker_is_killed() {
    for _ in 0..repeats() {
        let (mut program, worker) = start_tasks();
        program.signal("KILL", &worker);
        program.expect_no_survivor();
        assert_eq!(program.front.wait().unwrap().signal(), Some(9));
    }
}

fn no_survivor_when_the_front_is_killed() {
    for _ in 0..repeats() {
        let (program, _) = start_tasks();
        program.signal("KILL", &program.front_pid());
        program.expect_no_survivor();
    }
}

fn no_survivor_when_the_fronts_group_is_killed() {
    let (program, _) = start_tasks();
    program.signal("KILL", &format!("-{}", program.front_pid()));
    program.expect_no_survivor();
}

fn no_survivor_when_the_worker_ends() {
    let mut program = Program::start("leave");
    let status = program.front.wait().unwrap();
    assert_eq!(status.code(), Some(4));
    assert!(
        program.processes().is_empty(),
        "the front waits until everything is gone"
    );
}

fn the_front_ends_as_the_worker_does() {
    for code in [0, 1, 42, 255] {
        let mut program = Program::start(&format!("exit {code}"));
        assert_eq!(program.front.wait().unwrap().code(), Some(code));
    }
    for (name, number) in [("TERM", 15), ("ABRT", 6), ("KILL", 9)] {
        let mut program = Program::start(&format!("die {name}"));
        assert_eq!(program.front.wait().unwrap().signal(), Some(number));
    }
}

fn signals_arrive_once() {
    let program = Program::start("signals");
    program.told("ready");
    let path = program.directory.path().join("signals");
    let mut expected = Vec::new();
    let front = program.front_pid();
    // Signals go to the front alone, and to its group, as a terminal or a shell does.
    for (signal, target) in [
        ("INT", front.clone()),
        ("TERM", format!("-{front}")),
        ("HUP", front.clone()),
        ("USR1", format!("-{front}")),
        ("INT", format!("-{front}")),
    ] {
        program.signal(signal, &target);
        expected.push(signal);
        eventually("the signal arrives", || {
            let text = fs::read_to_string(&path).ok()?;
            (text.lines().count() >= expected.len()).then_some(())
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}

fn stopping_the_front_stops_the_worker() {
    let state = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    let program = Program::start("signals");
    let worker = program.told("ready");
    let front = program.front_pid();
    program.signal("TSTP", &format!("-{front}"));
    eventually("both stop", || {
        (state(&front) == 'T' && state(&worker) == 'T').then_some(())
    });
    program.signal("CONT", &front);
    eventually("both run", || {
        (state(&front) != 'T' && state(&worker) != 'T').then_some(())
    });
}

fn leaked_processes_of_a_finished_task_are_ended() {
    // Processes that are found after the task has ended are not counted.
    let counted_min = if lists_children() { 3 } else { 1 };
    leaked_processes_are_ended("leak", counted_min);
}

/// Returns whether the kernel lists children (`CONFIG_PROC_CHILDREN`). Opens the list in the same
/// way as the launcher, because `cargo xtask profiles` hides the lists only from that function of
/// the C library.
fn lists_children() -> bool {
    let own = std::process::id();
    let path = std::ffi::CString::new(format!("/proc/{own}/task/{own}/children")).unwrap();
    // SAFETY: the path is a C string; without O_CREAT no further argument is read.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: the descriptor is known to no other code; -1 is rejected.
    let closed = unsafe { libc::close(fd) };
    closed == 0
}

fn leaked_processes_are_found_without_a_list_of_children() {
    leaked_processes_are_ended(&format!("leak {UNLISTED}"), 1);
    for how in [UNLISTED, "posix-spawn-wait"] {
        let program = Program::start(&format!("daemons {how}"));
        program.told("ended1");
        eventually("the daemon ends while another task runs", || {
            (!daemon_is_alive(&program, "cleared")).then_some(())
        });
        assert!(daemon_is_alive(&program, "unknown"));
        end_second_task(&program);
    }
}

fn orphans_of_running_tasks_are_reaped_with_and_without_a_list() {
    for how in ["", UNLISTED, "posix-spawn-wait", "fork"] {
        let program = Program::start(&format!("zombies {how}"));
        let worker = program.told("ready");
        eventually("only the task is left of its children", || {
            let tasks = fs::read_dir(format!("/proc/{worker}/task")).unwrap();
            let children = tasks.map(|task| {
                fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
            });
            let children: String = children.collect();
            (children.split_whitespace().count() == 1).then_some(())
        });
    }
}

fn leaked_processes_are_ended(role: &str, counted_min: u32) {
    let program = Program::start(role);
    let leaked: u32 = program.told("leaked").parse().unwrap();
    // These are the background sleep, the detached shell and its sleep.
    assert!((counted_min..=3).contains(&leaked), "{leaked}");
    let alive = |name: &str| {
        let pid: u32 = program.told(name).parse().unwrap();
        program.processes().contains(&pid)
    };
    eventually("the leaked process ends", || {
        (!alive("first")).then_some(())
    });
    assert!(alive("second"), "orphans of running tasks are left alone");
}

fn what_outlives_front_and_worker_is_ended_at_the_next_start() {
    let program = Program::start("survivors");
    let worker = program.told("ready");
    let both = ["labelled", "marked"];
    let alive = || both.map(|name| daemon_is_alive(&program, name));
    assert_eq!(alive(), [true; 2]);
    let of_others = leftovers::kill();
    let pids = both.map(|name| program.told(name).parse().unwrap());
    assert!(!of_others.iter().any(|ended| pids.contains(&ended.pid)));
    assert_eq!(alive(), [true; 2], "their launcher lives");
    // Both are stopped first, so that neither has time to end the processes of the other.
    for signal in ["STOP", "KILL"] {
        program.signal(signal, &worker);
        program.signal(signal, &program.front_pid());
    }
    eventually("the worker is gone", || {
        (!is_running(&worker)).then_some(())
    });
    // Both processes are still alive, unless a worker that has just started on this machine has
    // killed them. The front may take longer to end than the worker, and processes of a living
    // launcher are not killed.
    eventually("nothing with a label survives the next start", || {
        let ended = leftovers::kill();
        assert!(ended.iter().all(|ended| !ended.program.is_empty()));
        (alive() == [false, true]).then_some(())
    });
    // A variable alone may come from another machine or may have been passed on by a batch system.
    program.signal("KILL", &program.told("marked"));
}

/// If `/proc` showed ids of another namespace, the worker would kill the wrong processes, or
/// itself.
fn a_proc_of_another_namespace_is_refused() {
    let unshare = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        command.arg(program).stdin(Stdio::null());
        command
    };
    if !unshare("true")
        .output()
        .is_ok_and(|out| out.status.success())
    {
        skip("no namespaces can be made here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let refused = unshare(own.to_str().unwrap())
        .env(ROLE, "exit 4")
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_ne!(refused.status.code(), Some(4));
    assert!(text.contains("ForeignProc"), "{text}");
}

fn daemon_is_alive(program: &Program, name: &str) -> bool {
    is_running(&program.told(name))
}

fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|text| !text.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

fn daemons_that_hide_their_environment_are_ended_with_their_task() {
    let program = Program::start("daemons");
    program.told("ended1");
    eventually("the daemon ends while another task runs", || {
        (!daemon_is_alive(&program, "cleared")).then_some(())
    });
    end_second_task(&program);
}

fn end_second_task(program: &Program) {
    tell(program.directory.path(), "end", "");
    program.told("ended2");
    eventually("no task is left that it could belong to", || {
        (!daemon_is_alive(program, "unknown")).then_some(())
    });
}

fn an_unknown_orphan_lives_while_tasks_run() {
    let program = Program::start("daemons");
    program.told("ended1");
    eventually("what the first task left is ended", || {
        (!daemon_is_alive(&program, "cleared")).then_some(())
    });
    assert!(daemon_is_alive(&program, "unknown"));
    end_second_task(&program);
}
