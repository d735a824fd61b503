//! A command line tool for simulated worlds, used by `cargo xtask sim`. It runs seeds, and records,
//! replays, shrinks and explains the failing ones.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it talks to people")]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hq_core::testing::ledger::Ledger;
use hq_core::testing::sim::{Course, Disk, Summary, Trace, World};
use hq_store::memory_disk::MemoryDisk;

const USAGE: &str = "\
Usage: cargo xtask sim COMMAND [OPTION…]

Commands:
  run               play many seeds; of one that fails, the course is recorded
  record SEED FILE  write the course of a seed into a file
  replay WHAT       play one course: that of a seed, or one from a file
  shrink WHAT FILE  leave out of a failing course what its failure does not need
  explain WHAT      play one course and print what happens, step by step

Options:
  --world plain     no disk, and the server never crashes
  --world ledger    the server crashes; the disk is a reference of a few hundred lines
  --world store     the server crashes; the disk is the real database, in memory [default]
  --world graphs    the same, with graphs only, a slow disk, and machines that vanish
  --first N         first seed of `run` [default: 0]
  --seeds N         how many [default: 1000]
  --steps N         length of the course of a seed [default: that of the tests]
";

/// The maximum number of plays for shrinking a course.
const SHRINK_PLAYS_MAX: usize = 4_000;

/// The directory where `run` saves failing courses.
const FOLDER: &str = "target/sim";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Ledger,
    Store,
    Graphs,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ledger => "ledger",
            Self::Store => "store",
            Self::Graphs => "graphs",
        }
    }

    fn disk(self) -> Option<Box<dyn Disk>> {
        match self {
            Self::Plain => None,
            Self::Ledger => Some(Box::new(Ledger::new("SimUid"))),
            Self::Store | Self::Graphs => Some(MemoryDisk::create()),
        }
    }
}

#[derive(Debug)]
struct Options {
    words: Vec<String>,
    kind: Kind,
    first: u64,
    seeds: u64,
    steps: Option<u32>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            words: Vec::new(),
            kind: Kind::Store,
            first: 0,
            seeds: 1_000,
            steps: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            if !arg.starts_with("--") {
                options.words.push(arg);
                continue;
            }
            let value = args.next().ok_or(format!("{arg} needs a value"))?;
            let number = || {
                let number = value.parse::<u64>();
                number.map_err(|_| format!("{arg} needs a number, not '{value}'"))
            };
            match arg.as_str() {
                "--world" => {
                    let all = [Kind::Plain, Kind::Ledger, Kind::Store, Kind::Graphs];
                    let found = all.into_iter().find(|kind| kind.name() == value);
                    options.kind = found.ok_or(format!("there is no world '{value}'"))?;
                }
                "--first" => options.first = number()?,
                "--seeds" => options.seeds = number()?,
                "--steps" => {
                    let steps = u32::try_from(number()?);
                    options.steps = Some(steps.map_err(|_| "--steps is too large".to_owned())?);
                }
                _ => return Err(format!("there is no option {arg}")),
            }
        }
        Ok(options)
    }

    fn course_of(&self, seed: u64) -> Course {
        let is_durable = self.kind != Kind::Plain;
        match self.steps {
            steps if self.kind == Kind::Graphs => {
                Course::of_graphs(seed, steps.unwrap_or(Course::GRAPH_STEPS))
            }
            Some(steps) => Course::draw(seed, steps, is_durable),
            None => Course::usual(seed, is_durable),
        }
    }

    /// Returns the course of a seed or a file. A file without crashes is played without a disk.
    fn course(&mut self, what: &str) -> Result<Course, String> {
        if let Ok(seed) = what.parse() {
            return Ok(self.course_of(seed));
        }
        let text = std::fs::read_to_string(what).map_err(|error| {
            format!("'{what}' is no seed, and cannot be read as a file: {error}")
        })?;
        let course = Course::parse(&text).map_err(|error| format!("{what}: {error}"))?;
        if !course.is_durable {
            self.kind = Kind::Plain;
        }
        Ok(course)
    }
}

thread_local! {
    /// The message and location of the last panic of this thread.
    static FAILURE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Plays a course. Returns the message if it fails.
fn play(course: &Course, kind: Kind, trace: Option<Trace>) -> Result<Summary, String> {
    let run = AssertUnwindSafe(|| World::play(course, kind.disk(), trace));
    std::panic::catch_unwind(run).map_err(|_| FAILURE.take())
}

/// Returns a failure message without its numbers, which change when the course is shrunk.
fn nature(failure: &str) -> String {
    failure.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| FAILURE.set(info.to_string())));
    let result = Options::parse(std::env::args().skip(1)).and_then(|mut options| {
        let words = std::mem::take(&mut options.words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["run"] => Ok(run(&options)),
            ["record", seed, file] => record(&options, seed, Path::new(file)),
            ["replay", what] => replay(&mut options, what),
            ["shrink", what, file] => shrink(&mut options, what, Path::new(file)),
            ["explain", what] => explain(&mut options, what),
            [] | ["help"] => {
                print!("{USAGE}");
                Ok(true)
            }
            _ => Err(format!(
                "this is no command: {}\n\n{USAGE}",
                words.join(" ")
            )),
        }
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Plays many seeds on all cores. Returns whether all of them succeeded.
fn run(options: &Options) -> bool {
    let end = options.first.saturating_add(options.seeds);
    let (next, failed) = (AtomicU64::new(options.first), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let course = options.course_of(seed);
            if let Err(failure) = play(&course, options.kind, None) {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("{}", told(options.kind, seed, &course, &failure));
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner();
    let (kind, seeds) = (options.kind.name(), options.seeds);
    println!(
        "{kind}: {seeds} seeds from {}, {failed} failed",
        options.first
    );
    failed == 0
}

/// Records a failing course. Returns a message that explains how to continue.
fn told(kind: Kind, seed: u64, course: &Course, failure: &str) -> String {
    let file = PathBuf::from(FOLDER).join(format!("{}-{seed}.txt", kind.name()));
    let mut text = format!("seed {seed} failed: {failure}\n");
    let written =
        std::fs::create_dir_all(FOLDER).and_then(|()| std::fs::write(&file, course.record()));
    let world = kind.name();
    let _ = match written {
        Ok(()) => writeln!(
            text,
            "  next: cargo xtask sim shrink {} {FOLDER}/{world}-{seed}-short.txt --world {world}",
            file.display()
        ),
        Err(error) => writeln!(text, "  its course cannot be recorded: {error}"),
    };
    text
}

fn record(options: &Options, seed: &str, file: &Path) -> Result<bool, String> {
    let seed = seed.parse();
    let seed = seed.map_err(|_| "record needs the number of a seed".to_owned())?;
    write(file, &options.course_of(seed))?;
    Ok(true)
}

fn write(file: &Path, course: &Course) -> Result<(), String> {
    let result = std::fs::write(file, course.record());
    result.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn replay(options: &mut Options, what: &str) -> Result<bool, String> {
    let course = options.course(what)?;
    match play(&course, options.kind, None) {
        Ok(summary) => {
            println!("{summary:#?}");
            Ok(true)
        }
        Err(failure) => {
            println!("it fails: {failure}");
            Ok(false)
        }
    }
}

fn shrink(options: &mut Options, what: &str, file: &Path) -> Result<bool, String> {
    let (course, kind) = (options.course(what)?, options.kind);
    let Err(failure) = play(&course, kind, None) else {
        return Err("it does not fail, so there is nothing to shrink".to_owned());
    };
    let wanted = nature(&failure);
    let short = course.shrink(SHRINK_PLAYS_MAX, |shorter| {
        play(shorter, kind, None).is_err_and(|failure| nature(&failure) == wanted)
    });
    write(file, &short)?;
    let (before, after) = (course.steps.len(), short.steps.len());
    println!("{before} steps became {after}; the failure: {failure}");
    println!(
        "  next: cargo xtask sim explain {} --world {}",
        file.display(),
        kind.name()
    );
    Ok(true)
}

fn explain(options: &mut Options, what: &str) -> Result<bool, String> {
    let course = options.course(what)?;
    let trace = Trace::default();
    let result = play(&course, options.kind, Some(Arc::clone(&trace)));
    let lines = trace.lock().unwrap_or_else(|broken| broken.into_inner());
    println!("seconds     what happens");
    for line in lines.iter() {
        println!("{line}");
    }
    match &result {
        Ok(summary) => println!("it ends well: {summary:?}"),
        Err(failure) => println!("it fails: {failure}"),
    }
    Ok(result.is_ok())
}
