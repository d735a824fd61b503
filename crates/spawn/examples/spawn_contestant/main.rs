//! Spawns and reaps processes with each mechanism available in Rust, optionally with burdens on the
//! parent.
//!
//! This is a contestant of `hq-bench spawn-suite`. Its arguments and output are those of
//! `spawn_mech.c`: `spawn_contestant MECHANISM [key=value]…` prints `PROCESSES SECONDS` to standard
//! error. [`run`] lists the mechanisms. Processes inherit standard output.
#![expect(
    unsafe_code,
    reason = "a clock that other processes share, and `pre_exec`"
)]
#![expect(
    clippy::print_stderr,
    clippy::expect_used,
    reason = "a contestant either measures or says why not"
)]

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use hq_spawn::{
    ArgBlock, EnvBlock, Event, Lane, Launcher, LauncherConfig, SpawnPlan, Stdio, Strategy, Token,
};

/// The stack size of a thread that only sleeps.
const SLEEPER_STACK: usize = 64 * 1024;

/// The number of requests submitted per lane at a time: enough for the consumer to sleep for a few
/// milliseconds.
const LANE_DEPTH: u64 = 32;

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
    }
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer refers to a live `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(result, 0, "every kernel has this clock");
    let part = |value: i64| u64::try_from(value).expect("positive");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The processes of a measurement, which are taken one by one.
struct Work {
    options: Options,
    begin: u64,
    deadline: u64,
    next: AtomicU64,
    done: AtomicU64,
}

/// A process to create, and when it is scheduled.
#[derive(Clone, Copy)]
struct Due(Option<u64>);

impl Work {
    fn new(options: Options) -> Self {
        let begin = now_ns();
        Self {
            deadline: begin + options.limit_ms * 1_000_000,
            options,
            begin,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Returns the next process, which may be scheduled for later.
    fn next(&self) -> Option<Due> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.begin + index * self.options.interval_ns;
        let over = index >= self.options.count || now_ns().max(due) >= self.deadline;
        (!over).then_some(Due((self.options.interval_ns > 0).then_some(due)))
    }

    /// Returns the next process when its scheduled time has come.
    fn take(&self) -> Option<Due> {
        let due = self.next()?;
        std::thread::sleep(due.left());
        Some(due)
    }

    fn command(&self, due: Due) -> Command {
        let mut command = Command::new(&self.options.program);
        command.args(due.0.map(|due| due.to_string()));
        let env = self.options.env.iter().map(|(name, value)| (name, value));
        command.envs(env);
        command
    }
}

impl Due {
    fn left(self) -> Duration {
        Duration::from_nanos(self.0.map_or(0, |due| due.saturating_sub(now_ns())))
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
    let mut burdens = burdens(&options);
    let work = Work::new(options);
    run(&mechanism, &work);
    let seconds = Duration::from_nanos(now_ns() - work.begin).as_secs_f64();
    std::hint::black_box(&burdens.memory);
    for child in &mut burdens.children {
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
    }
    eprintln!("{} {seconds:.6}", work.done.load(Ordering::Relaxed));
}

fn run(mechanism: &str, work: &Work) {
    match mechanism {
        "command" => with_command(work, |_| {}),
        "command-pre-exec" => with_command(work, pre_exec),
        "tokio" => with_tokio(work, |_| {}),
        "tokio-pre-exec" => with_tokio(work, pre_exec),
        "pool" => with_launcher(work, Strategy::Pool, Kind::Bare),
        "pool-task" => with_launcher(work, Strategy::Pool, Kind::Task),
        "single" => with_launcher(work, Strategy::Single, Kind::Bare),
        "spawn-blocking" => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime");
            let _inside = runtime.enter();
            with_launcher(work, Strategy::SpawnBlocking, Kind::Bare);
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

/// The kind of process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A process that shares its parent's settings, as with the other mechanisms.
    Bare,
    /// A process like a batch task: it has a separate session, no input and no output, and is
    /// killed with its parent.
    Task,
}

fn with_launcher(work: &Work, strategy: Strategy, kind: Kind) {
    let (sender, woken) = sync_channel(1);
    let mut config = LauncherConfig::new(Arc::new(move || {
        // If the channel is full, the consumer is already being woken.
        let _ = sender.try_send(());
    }));
    config.threads = work.options.parallel;
    config.strategy = strategy;
    config.raise_descriptor_limit = true;
    let launcher = Launcher::start(config).expect("a launcher");
    let env = EnvBlock::capture()
        .overlay(
            work.options
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        )
        .expect("valid variables");
    Requests {
        work,
        plain: ArgBlock::new([&work.options.program]).expect("a valid path"),
        env,
        kind,
        load: vec![0; work.options.parallel],
        requested: 0,
    }
    .run(&launcher, &woken);
}

struct Requests<'a> {
    work: &'a Work,
    plain: ArgBlock,
    env: EnvBlock,
    kind: Kind,
    /// The number of unfinished requests in each lane. The lanes advance at different speeds.
    load: Vec<u64>,
    requested: u64,
}

impl Requests<'_> {
    fn plan(&mut self, due: Due) -> (Lane, Token, SpawnPlan) {
        let argv = due.0.map_or_else(
            || self.plain.clone(),
            |due| {
                let argv = [self.work.options.program.clone(), due.to_string()];
                ArgBlock::new(argv).expect("a valid path")
            },
        );
        self.requested += 1;
        let lanes = self.load.len();
        let (lane, load) = self
            .load
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, load)| **load)
            .expect("a lane");
        *load += 1;
        let mut plan = SpawnPlan::new(argv, self.env.clone());
        if due.0.is_some() {
            // The program produces output.
            plan = plan.stdout(Stdio::Inherit);
        }
        if self.kind == Kind::Bare {
            plan = plan
                .new_session(false)
                .death_signal(None)
                .stdin(Stdio::Inherit)
                .stdout(Stdio::Inherit)
                .stderr(Stdio::Inherit);
        }
        let token = Token(self.requested * lanes as u64 + lane as u64);
        (Lane(lane as u64), token, plan)
    }

    fn run(mut self, launcher: &Launcher, woken: &Receiver<()>) {
        // There is one lane per concurrent process, as many as with the other mechanisms, because
        // more processes would get a larger share of a busy machine.
        let lanes = self.work.options.parallel as u64;
        let window = lanes * LANE_DEPTH;
        let (mut ended, mut events) = (0, Vec::new());
        let mut next = self.work.next();
        while next.is_some() || ended < self.requested {
            let mut batch = Vec::new();
            while let Some(due) = next {
                // Scheduled requests do not wait for other processes to end.
                if !due.left().is_zero() || (due.0.is_none() && self.requested - ended >= window) {
                    break;
                }
                batch.push(self.plan(due));
                next = self.work.next();
            }
            launcher.spawn_in_lanes(batch);
            let left = match next {
                Some(due @ Due(Some(_))) => due.left(),
                Some(Due(None)) | None => Duration::from_secs(60),
            };
            if woken.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                panic!("the launcher holds the sender");
            }
            launcher.drain_events(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {}
                    Event::Exited { token, status, .. } => {
                        let lane = usize::try_from(token.0 % lanes).expect("few lanes");
                        self.load[lane] -= 1;
                        assert!(status.success(), "a process failed: {status}");
                        ended += 1;
                    }
                    Event::Failed { error, .. } => panic!("{error}"),
                }
            }
        }
        self.work.done.store(ended, Ordering::Relaxed);
    }
}
