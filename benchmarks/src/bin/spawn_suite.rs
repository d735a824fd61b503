//! Question: what do different ways of spawning processes cost, and what makes that cost grow?
//!
//! Runs each question of `hq_benchmarks::spawn_suite` with all its contestants in turn, round by
//! round, and writes `results.md` and one SVG per question to a directory. See `docs/spawn.md`.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin spawn_suite -- [--out DIR] [--quick] [--only QUESTION]
//!     [--rounds N] [--limit-ms N]
//! ```

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use hq_benchmarks::scratch_dir;
use hq_benchmarks::spawn_suite::contestants::{Contestant, Programs};
use hq_benchmarks::spawn_suite::plot;
use hq_benchmarks::spawn_suite::questions::{self, Question, Unit};
use hq_benchmarks::spawn_suite::report::{self, Series, median};

struct Options {
    out: PathBuf,
    quick: bool,
    only: Option<String>,
    rounds: Option<usize>,
    limit_ms: Option<u32>,
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 7 })
    }

    /// Returns how long one contestant runs in one round.
    fn limit_ms(&self) -> u32 {
        self.limit_ms.unwrap_or(if self.quick { 150 } else { 1000 })
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        out: "spawn-suite".into(),
        quick: false,
        only: None,
        rounds: None,
        limit_ms: None,
    };
    while let Some(name) = args.next() {
        let mut value = || args.next().with_context(|| format!("{name} needs a value"));
        match name.as_str() {
            "--quick" => options.quick = true,
            "--out" => options.out = value()?.into(),
            "--only" => options.only = Some(value()?),
            "--rounds" => options.rounds = Some(value()?.parse()?),
            "--limit-ms" => options.limit_ms = Some(value()?.parse()?),
            _ => bail!("unknown option {name}"),
        }
    }
    Ok(options)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let wanted = |question: &Question| {
        options
            .only
            .as_ref()
            .is_none_or(|only| only == question.name)
    };
    let questions: Vec<_> = questions::all().into_iter().filter(wanted).collect();
    ensure!(!questions.is_empty(), "there is no such question");
    std::fs::create_dir_all(&options.out)?;
    let dir = scratch_dir("spawn-suite", &std::env::temp_dir())?;
    let programs = Programs::build(dir.path())?;
    if let Some(reason) = &programs.no_python {
        println!("Python is left out: 3.11 or later is needed, {reason}");
    }
    let mut text = heading(&options);
    for question in &questions {
        for answer in ask(&options, &programs, question)? {
            let Answer {
                name,
                title,
                series,
            } = answer;
            let table = report::table(question, &title, &series);
            println!("{table}");
            let _ = write!(text, "\n{table}\n![{title}]({name}.svg)\n");
            let unit = report::unit(question.unit);
            let svg = plot::svg(&title, question.x_label, unit, &series);
            std::fs::write(options.out.join(format!("{name}.svg")), svg)?;
        }
    }
    let name = options.only.as_deref().unwrap_or("results");
    std::fs::write(options.out.join(format!("{name}.md")), text)?;
    Ok(())
}

/// A table and a plot that answer a question.
struct Answer {
    /// The name of its file.
    name: String,
    title: String,
    series: Vec<Series>,
}

/// Describes the machine and the settings of the measurement.
fn heading(options: &Options) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpus, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
    };
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "# Spawn suite\n\n{} run, {} round(s) of {} ms. {threads} CPUs ({}), {} memory, Linux {}, \
         load average at the start {}.\n",
        if options.quick { "Quick" } else { "Full" },
        options.rounds(),
        options.limit_ms(),
        field(&cpus, "model name"),
        field(&memory, "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").trim(),
    )
}

#[expect(
    clippy::print_stdout,
    reason = "tells which contestant is left out and why"
)]
fn ask(options: &Options, programs: &Programs, question: &Question) -> Result<Vec<Answer>> {
    let points = if options.quick {
        question.quick_points
    } else {
        question.points
    };
    let mut contestants = question.contestants.clone();
    contestants.retain(|contestant| programs.has(contestant));
    let lines: &[(&str, &str)] = if question.unit == Unit::LatencyUs {
        &[("-p50", ", median"), ("-p99", ", 99th percentile")]
    } else {
        &[("", "")]
    };
    // Indexed by line, contestant and point, then by round.
    let mut figures = vec![vec![vec![Vec::new(); points.len()]; contestants.len()]; lines.len()];
    for _ in 0..options.rounds() {
        for (place, x) in points.iter().enumerate() {
            for (index, contestant) in contestants.iter().enumerate() {
                match measure(options, programs, question, contestant, *x) {
                    Ok(values) => {
                        for (line, value) in values.into_iter().enumerate() {
                            figures[line][index][place].push(value);
                        }
                    }
                    Err(error) => println!("{} at {x}: {error:#}", contestant.label),
                }
            }
        }
    }
    let series = |(contestant, by_point): (&Contestant, Vec<Vec<f64>>)| {
        let at = |(x, rounds): (&u32, _)| median(rounds).map(|y| (f64::from(*x), y));
        Series {
            label: contestant.label.to_owned(),
            emphasis: contestant.label.starts_with("ours"),
            medians: points.iter().zip(by_point).filter_map(at).collect(),
        }
    };
    let answer = |((suffix, of), figures): (&(&str, &str), Vec<_>)| Answer {
        name: format!("{}{suffix}", question.name),
        title: format!("{}{of}", question.title),
        series: contestants.iter().zip(figures).map(series).collect(),
    };
    Ok(lines.iter().zip(figures).map(answer).collect())
}

fn measure(
    options: &Options,
    programs: &Programs,
    question: &Question,
    contestant: &Contestant,
    x: u32,
) -> Result<Vec<f64>> {
    let mut setting = question.setting(programs, contestant, x);
    if !setting.args.iter().any(|arg| arg.starts_with("limit=")) {
        setting.args.push(format!("limit={}", options.limit_ms()));
    }
    let (numbers, late) = programs.run(contestant, &setting)?;
    match (question.unit, numbers.as_slice()) {
        (Unit::Rate, [done, seconds]) => Ok(vec![done / seconds]),
        (Unit::WaitNs, [nanoseconds]) => Ok(vec![*nanoseconds]),
        (Unit::LatencyUs, [_, _]) => {
            let at = |percent: usize| {
                let late = late.get(late.len() * percent / 100)?;
                // Below a second, so the nearest number is the same one.
                Some(
                    std::time::Duration::from_nanos(u64::try_from(*late).ok()?).as_secs_f64() * 1e6,
                )
            };
            let both = at(50).zip(at(99)).context("no process wrote its time")?;
            Ok(vec![both.0, both.1])
        }
        (Unit::Rate | Unit::WaitNs | Unit::LatencyUs, _) => bail!("{numbers:?}"),
    }
}
