//! `spawn-suite`: the contestants, the questions, and tables and plots of the answers.
//!
//! Each contestant is a separate process, and all have the same command line (see
//! `baseline/spawn_mech.c`), so that memory, threads and other burdens are those of the spawning
//! process. See `docs/spawn.md`.

mod contestants;
mod questions;
mod report;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

use self::contestants::{Contestant, Programs};
use self::questions::{Question, Unit};
use crate::figures::{median, quantile};
use crate::plot::{self, Series};

/// What do different ways of spawning processes cost, and what makes that cost grow?
///
/// Runs each question with all its contestants in turn, round by round, and writes `results.md` and
/// one SVG per question. Needs a C compiler and cargo; Python takes part from 3.11.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory for the answers.
    #[arg(long, value_name = "DIR", default_value = "spawn-suite")]
    out: PathBuf,
    /// Fewer points, one round, 150 ms each.
    #[arg(long)]
    quick: bool,
    /// Ask only this question.
    #[arg(long, value_name = "QUESTION", value_parser = names())]
    only: Option<String>,
    /// The number of rounds [default: 7].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// How long one contestant runs in one round, in milliseconds [default: 1000].
    #[arg(long, value_name = "N")]
    limit_ms: Option<u32>,
}

fn names() -> Vec<&'static str> {
    let questions = questions::all().into_iter();
    questions.map(|question| question.name).collect()
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 7 })
    }

    fn limit_ms(&self) -> u32 {
        self.limit_ms.unwrap_or(if self.quick { 150 } else { 1000 })
    }
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    let mut questions = questions::all();
    if let Some(only) = &options.only {
        questions.retain(|question| question.name == only);
    }
    std::fs::create_dir_all(&options.out)?;
    let programs = Programs::build(dir)?;
    if let Some(reason) = &programs.no_python {
        println!("Python is left out: 3.11 or later is needed, {reason}");
    }
    let mut text = heading(options);
    for question in &questions {
        for answer in ask(options, &programs, question)? {
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
        let at = |(x, rounds): (&u32, Vec<f64>)| {
            (!rounds.is_empty()).then(|| (f64::from(*x), median(rounds)))
        };
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
        (Unit::Rate, [done, seconds, ..]) => Ok(vec![done / seconds]),
        (Unit::WaitNs, [nanoseconds]) => Ok(vec![*nanoseconds]),
        (Unit::LatencyUs, [_, _, ..]) => {
            ensure!(!late.is_empty(), "no process wrote its time");
            let at = |share| quantile(&late, share) as f64 / 1e3;
            Ok(vec![at(0.5), at(0.99)])
        }
        (Unit::Rate | Unit::WaitNs | Unit::LatencyUs, _) => bail!("{numbers:?}"),
    }
}
