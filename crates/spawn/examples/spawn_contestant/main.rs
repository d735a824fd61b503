//! Spawns and reaps processes with each mechanism available in Rust, optionally with burdens on the
//! parent.
//!
//! This is a contestant of `hq-bench spawn-suite`. Its arguments and output are those of
//! `spawn_mech.c`; [`run`] lists the mechanisms. Processes inherit standard output.
#![expect(
    unsafe_code,
    reason = "a clock that other processes share, and `pre_exec`"
)]
#![expect(
    clippy::print_stderr,
    clippy::expect_used,
    reason = "a contestant either measures or says why not"
)]

mod after;
mod launcher;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hq_spawn::Strategy;

use launcher::Kind;

/// The stack size of a thread that only sleeps.
const SLEEPER_STACK: usize = 64 * 1024;

/// The arguments, by name.
struct Options {
    program: String,
    count: u64,
    limit_ms: u64,
    parallel: usize,
    interval_ns: u64,
    rss_mib: usize,
    threads: usize,
    children: usize,
    env: Vec<(String, String)>,
    arg: Option<String>,
    dir: Option<String>,
    after: bool,
}

fn parse(args: impl Iterator<Item = String>) -> Options {
    let args: Vec<String> = args.collect();
    let text = |name: &str| {
        let found = args.iter().find_map(|arg| arg.strip_prefix(name));
        found.and_then(|rest| rest.strip_prefix('='))
    };
    let number = |name: &str, default: u64| {
        text(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let small = |name: &str, default| usize::try_from(number(name, default)).expect("fits");
    let value = "x".repeat(small("envlen", 0));
    Options {
        program: text("program").expect("program=PATH").to_owned(),
        count: number("count", 1000),
        limit_ms: number("limit", 60_000),
        parallel: small("parallel", 2),
        interval_ns: number("interval", 0),
        rss_mib: small("rss", 0),
        threads: small("threads", 0),
        children: small("children", 0),
        env: (0..number("env", 0))
            .map(|index| (format!("HQ_BENCH_{index:03}"), value.clone()))
            .collect(),
        arg: text("arg").map(str::to_owned),
        dir: text("dir").map(str::to_owned),
        after: number("after", 0) != 0,
    }
}

fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer refers to a live `timespec`.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(result, 0, "every kernel has this clock");
    let part = |value: i64| u64::try_from(value).expect("positive");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Returns the user and system CPU seconds of this process and of the children it waited for.
fn cpu_seconds() -> [f64; 2] {
    let usages = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(|who| {
        // SAFETY: the structure consists of integers, and zero is a valid integer.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer refers to a live `rusage`.
        let result = unsafe { libc::getrusage(who, &raw mut usage) };
        assert_eq!(result, 0, "both arguments are valid");
        usage
    });
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let sum = |part: fn(&libc::rusage) -> libc::timeval| usages.iter().map(part).map(seconds).sum();
    [sum(|usage| usage.ru_utime), sum(|usage| usage.ru_stime)]
}

/// The processes of a measurement, which are taken one by one.
struct Work {
    options: Options,
    begin: u64,
    deadline: u64,
    next: AtomicU64,
    done: AtomicU64,
    /// When the last process was created; 0 if each was waited for before the next.
    created: AtomicU64,
}

/// A process to create.
#[derive(Clone, Copy)]
struct Due {
    index: u64,
    /// When it is scheduled, if it is not due at once.
    at: Option<u64>,
}

impl Work {
    fn new(options: Options) -> Self {
        let begin = now_ns();
        Self {
            deadline: begin + options.limit_ms * 1_000_000,
            options,
            begin,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            created: AtomicU64::new(0),
        }
    }

    /// Returns the next process, which may be scheduled for later.
    fn next(&self) -> Option<Due> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let at = self.begin + index * self.options.interval_ns;
        let over = index >= self.options.count || now_ns().max(at) >= self.deadline;
        (!over).then_some(Due {
            index,
            at: (self.options.interval_ns > 0).then_some(at),
        })
    }

    /// Returns the next process when its scheduled time has come.
    fn take(&self) -> Option<Due> {
        let due = self.next()?;
        std::thread::sleep(due.left());
        Some(due)
    }

    /// Returns the argument of a process, if each process has another one.
    fn own_argument(&self, due: Due) -> Option<String> {
        let file = |dir: &String| format!("{dir}/{}", due.index);
        let at = || due.at.map(|at| at.to_string());
        self.options.dir.as_ref().map(file).or_else(at)
    }

    /// Notes that all processes have been created.
    fn all_created(&self) {
        self.created.store(now_ns(), Ordering::Relaxed);
    }

    fn command(&self, due: Due) -> Command {
        let mut command = Command::new(&self.options.program);
        command.args(self.own_argument(due).or_else(|| self.options.arg.clone()));
        let env = self.options.env.iter().map(|(name, value)| (name, value));
        command.envs(env);
        command
    }
}

impl Due {
    fn left(self) -> Duration {
        Duration::from_nanos(self.at.map_or(0, |at| at.saturating_sub(now_ns())))
    }
}

/// Memory and children that burden the parent during the measurement.
struct Burdens {
    memory: Vec<u8>,
    children: Vec<Child>,
}

fn burdens(options: &Options) -> Burdens {
    for _ in 1..options.threads {
        std::thread::Builder::new()
            .stack_size(SLEEPER_STACK)
            .spawn(|| {
                loop {
                    std::thread::park();
                }
            })
            .expect("a thread");
    }
    let children = (0..options.children).map(|_| {
        let mut command = Command::new(&options.program);
        command.arg("pause").spawn().expect("a child")
    });
    Burdens {
        memory: vec![1; options.rss_mib << 20],
        children: children.collect(),
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mechanism = args.next().expect("a mechanism");
    let options = parse(args);
    // These report figures of their own, and have a launcher create the children.
    let own = match mechanism.as_str() {
        "one" => Some(launcher::one_among_others(&options)),
        "reverse" => Some(launcher::in_reverse(&options)),
        _ => None,
    };
    if let Some(figures) = own {
        for figure in figures {
            eprintln!("{figure}");
        }
        return;
    }
    let mut burdens = burdens(&options);
    let before = cpu_seconds();
    let work = Arc::new(Work::new(options));
    run(&mechanism, &work);
    let end = now_ns();
    let after = cpu_seconds();
    std::hint::black_box(&burdens.memory);
    for child in &mut burdens.children {
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
    }
    let created = match work.created.load(Ordering::Relaxed) {
        0 => end,
        at => at,
    };
    let [seconds, creating] =
        [end, created].map(|at| Duration::from_nanos(at - work.begin).as_secs_f64());
    let done = work.done.load(Ordering::Relaxed);
    let [user, sys] = [0, 1].map(|part| after[part] - before[part]);
    eprintln!("{done} {seconds:.6} {creating:.6} {user:.6} {sys:.6}");
}

fn run(mechanism: &str, work: &Arc<Work>) {
    if work.options.after {
        return after::run(mechanism, work);
    }
    match mechanism {
        "command" => with_command(work, |_| {}),
        "command-pre-exec" => with_command(work, pre_exec),
        "tokio" => with_tokio(work, |_| {}),
        "tokio-pre-exec" => with_tokio(work, pre_exec),
        "pool" => launcher::in_lanes(work, Strategy::Pool, Kind::Bare),
        "pool-task" => launcher::in_lanes(work, Strategy::Pool, Kind::Task),
        "single" => launcher::in_lanes(work, Strategy::Single, Kind::Bare),
        "requesters" => launcher::for_requesters(work),
        "spawn-blocking" => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime");
            let _inside = runtime.enter();
            launcher::in_lanes(work, Strategy::SpawnBlocking, Kind::Bare);
        }
        _ => panic!("no mechanism is called {mechanism}"),
    }
}

/// Makes the standard library fork. An empty closure is enough for this.
fn pre_exec(command: &mut Command) {
    // SAFETY: the closure does nothing, so it does nothing that is forbidden after a fork.
    unsafe { command.pre_exec(|| Ok(())) };
}

fn with_command(work: &Work, prepare: fn(&mut Command)) {
    std::thread::scope(|scope| {
        for _ in 0..work.options.parallel {
            scope.spawn(|| {
                while let Some(due) = work.take() {
                    let mut command = work.command(due);
                    prepare(&mut command);
                    let status = command.status().expect("a process");
                    assert!(status.success(), "a process failed");
                    work.done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

fn with_tokio(work: &Work, prepare: fn(&mut Command)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(work.options.parallel)
        .enable_all()
        .build()
        .expect("a runtime");
    let one = move |mut command: Command| async move {
        prepare(&mut command);
        let status = tokio::process::Command::from(command).status().await;
        assert!(status.expect("a process").success(), "a process failed");
    };
    if work.options.interval_ns > 0 {
        // Tokio's timers are too coarse, so the requests come from outside the runtime.
        let mut tasks = Vec::new();
        while let Some(due) = work.take() {
            tasks.push(runtime.spawn(one(work.command(due))));
        }
        for task in tasks {
            runtime.block_on(task).expect("no panic");
            work.done.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    let done = Arc::new(AtomicU64::new(0));
    // There are as many tasks as threads. Each runs an equal share of a fixed number of processes,
    // or runs until the time is up.
    let each = work.options.count / work.options.parallel as u64;
    let tasks: Vec<_> = (0..work.options.parallel)
        .map(|_| {
            let (done, deadline) = (Arc::clone(&done), work.deadline);
            let template = (work.options.program.clone(), work.options.env.clone());
            runtime.spawn(async move {
                for _ in 0..each {
                    if now_ns() >= deadline {
                        return;
                    }
                    let mut command = Command::new(&template.0);
                    let env = template.1.iter().map(|(name, value)| (name, value));
                    command.envs(env);
                    one(command).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }
    work.done
        .store(done.load(Ordering::Relaxed), Ordering::Relaxed);
}
