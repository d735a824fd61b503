//! `spawn-suite`: the contestants, the questions, and tables and plots of the answers.
//!
//! Each contestant is a separate process, and all have the same command line (see
//! `baseline/spawn_mech.c`), so that memory, threads and other burdens are those of the spawning
//! process. See `docs/spawn.md`.

mod contestants;
mod questions;
mod report;
mod room;
mod seeds;
mod touched;

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

use self::contestants::{Contestant, Programs};
use self::questions::{Question, Unit};
use self::report::{Answer, Cell, Row};
use self::touched::Touched;
use crate::figures::{median, quantile};
use crate::plot;

/// The group of questions from the measurements that began this project.
const SEEDS: &str = "seeds";

/// What do different ways of spawning processes cost, and what makes that cost grow?
///
/// Runs each question with all its contestants in turn, round by round, and writes `results.md` and
/// one SVG per question. Needs a C compiler and cargo. Python (from 3.11), C++, Go and Java take
/// part where they are found.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory for the answers.
    #[arg(long, value_name = "DIR", default_value = "spawn-suite")]
    out: PathBuf,
    /// Fewer points, one round, less time each.
    #[arg(long)]
    quick: bool,
    /// Ask only this question, or the group `seeds`: the measurements that began this project.
    #[arg(long, value_name = "QUESTION", value_parser = names())]
    only: Option<String>,
    /// The number of rounds [default: 7; seeds: 1].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// How long one contestant runs in one round, in milliseconds [default: 1000; seeds:
    /// 7000 or 20000].
    #[arg(long, value_name = "N")]
    limit_ms: Option<u32>,
}

fn names() -> Vec<&'static str> {
    let names = questions().into_iter().map(|question| question.name);
    names.chain([SEEDS]).collect()
}

fn questions() -> Vec<Question> {
    [questions::all(), seeds::all()].concat()
}

impl Options {
    fn asks(&self, question: &Question) -> bool {
        self.only.as_deref().is_none_or(|only| {
            question.name == only || (only == SEEDS && question.name.starts_with("seeds-"))
        })
    }

    /// Returns the number of rounds and the milliseconds of one.
    fn effort(&self, question: &Question) -> (usize, u32) {
        let (rounds, limit_ms) = question.effort[usize::from(self.quick)];
        (
            self.rounds.unwrap_or(rounds),
            self.limit_ms.unwrap_or(limit_ms),
        )
    }
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    let mut questions = questions();
    questions.retain(|question| options.asks(question));
    std::fs::create_dir_all(&options.out)?;
    let contestants = questions.iter().flat_map(|question| &question.contestants);
    let programs = Programs::build(dir, contestants.map(|contestant| contestant.language))?;
    let mut text = heading(options);
    for question in &questions {
        for answer in ask(options, &programs, question) {
            let (name, title) = (&answer.name, &answer.title);
            let table = answer.table(question);
            println!("{table}");
            let _ = write!(text, "\n{table}\n![{title}]({name}.svg)\n");
            let unit = report::unit(question.unit);
            let svg = plot::svg(title, question.x_label, unit, &answer.series());
            std::fs::write(options.out.join(format!("{name}.svg")), svg)?;
        }
    }
    let name = options.only.as_deref().unwrap_or("results");
    std::fs::write(options.out.join(format!("{name}.md")), text)?;
    Ok(())
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
        "# Spawn suite\n\n{} run. {threads} CPUs ({}), {} memory, huge pages {}, Linux {}, load \
         average at the start {}.\n",
        if options.quick { "Quick" } else { "Full" },
        field(&cpus, "model name"),
        field(&memory, "MemTotal"),
        read("/sys/kernel/mm/transparent_hugepage/enabled").trim(),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").trim(),
    )
}

/// The figures of one contestant at one point, or at all points of a curve.
#[derive(Clone, Default)]
struct Measured {
    rounds: Vec<Figures>,
    /// Why a round has no figures.
    missing: Option<String>,
}

/// The figures of one round.
#[derive(Clone)]
struct Figures {
    values: Vec<f64>,
    scaled: bool,
}

impl Measured {
    /// Returns the medians of some of the figures.
    fn cell(&self, which: Range<usize>) -> Cell {
        let value = |index| {
            let round = |figures: &Figures| figures.values.get(index).copied();
            median(self.rounds.iter().filter_map(round).collect())
        };
        match (&self.missing, self.rounds.as_slice()) {
            (Some(reason), []) => Cell::Missing(reason.clone()),
            (None, []) => Cell::Skipped,
            (_, rounds) => Cell::Figures {
                values: which.map(value).collect(),
                scaled: rounds.iter().any(|round| round.scaled),
            },
        }
    }
}

fn ask(options: &Options, programs: &Programs, question: &Question) -> Vec<Answer> {
    let points = if options.quick {
        question.quick_points
    } else {
        question.points
    };
    let is_curve = question.unit == Unit::WaitUs;
    let asked = if is_curve {
        &points[points.len() - 1..]
    } else {
        points
    };
    let mut measured = vec![vec![Measured::default(); asked.len()]; question.contestants.len()];
    for _ in 0..options.effort(question).0 {
        for (place, x) in asked.iter().enumerate() {
            for (index, contestant) in question.contestants.iter().enumerate() {
                let to = &mut measured[index][place];
                match measure(options, programs, question, contestant, *x) {
                    Ok(figures) => to.rounds.extend(figures),
                    Err(error) => {
                        let reason = format!("{error:#}");
                        println!("{} at {x}: {reason}", contestant.label);
                        to.missing = Some(report::brief(&reason));
                    }
                }
            }
        }
    }
    let cells = |by_point: &Vec<Measured>, which: &Range<usize>| match by_point.as_slice() {
        [curve] if is_curve => (0..points.len()).map(|at| curve.cell(at..at + 1)).collect(),
        by_point => by_point
            .iter()
            .map(|measured| measured.cell(which.clone()))
            .collect(),
    };
    let answer = |(suffix, of, which): &(&str, &str, Range<usize>)| {
        let row = |(contestant, by_point): (&Contestant, _)| Row {
            label: contestant.label.to_owned(),
            cells: cells(by_point, which),
        };
        Answer {
            name: format!("{}{suffix}", question.name),
            title: format!("{}{of}", question.title),
            points: points.to_vec(),
            rows: question
                .contestants
                .iter()
                .zip(&measured)
                .map(row)
                .collect(),
        }
    };
    views(question.unit).iter().map(answer).collect()
}

/// Returns the tables of a question: what to add to its name and title, and which of the figures
/// of [`measure`] to show.
fn views(unit: Unit) -> Vec<(&'static str, &'static str, Range<usize>)> {
    match unit {
        Unit::LatencyUs => vec![
            ("-p50", ", median", 0..1),
            ("-p99", ", 99th percentile", 1..2),
        ],
        Unit::Creation => vec![("", "", 0..4)],
        Unit::CpuSeconds => vec![("", "", 0..3)],
        Unit::Rate | Unit::WaitNs | Unit::MeanUs | Unit::ParentUs | Unit::WaitUs => {
            vec![("", "", 0..1)]
        }
    }
}

/// Runs a contestant once. Returns nothing if it does not take part at this point.
fn measure(
    options: &Options,
    programs: &Programs,
    question: &Question,
    contestant: &Contestant,
    x: u32,
) -> Result<Option<Figures>> {
    let mut setting = question.setting(programs, contestant, x);
    if setting.skip {
        return Ok(None);
    }
    programs.command(contestant.language)?;
    if let Some(reason) = room::lacks(&setting) {
        bail!(reason);
    }
    if setting.text("limit").is_none() {
        let (_, limit_ms) = options.effort(question);
        setting.args.push(format!("limit={limit_ms}"));
    }
    let touched = setting.text("dir").map(|dir| Touched::new(dir.into()));
    let touched = touched.transpose()?;
    let (numbers, late) = programs.run(contestant, &setting)?;
    let count = setting.number("count").unwrap_or(0);
    if let (Some(touched), [done, ..]) = (touched, numbers.as_slice()) {
        touched.check(*done, count)?;
    }
    let count = f64::from(count);
    let exact = |values| Figures {
        values,
        scaled: false,
    };
    let scaled = |done: f64, values: Vec<f64>| Figures {
        values: values
            .into_iter()
            .map(|value| value * count / done)
            .collect(),
        scaled: done < count,
    };
    let figures = match (question.unit, numbers.as_slice()) {
        (Unit::Rate, [done, seconds, ..]) => exact(vec![done / seconds]),
        (Unit::WaitNs, [nanoseconds]) => exact(vec![*nanoseconds]),
        (Unit::LatencyUs, [_, _, ..]) => {
            ensure!(!late.is_empty(), "no process wrote its time");
            let at = |share| quantile(&late, share) as f64 / 1e3;
            exact(vec![at(0.5), at(0.99)])
        }
        (Unit::Creation, [done, seconds, creating, user, sys]) => {
            scaled(*done, vec![*creating, *seconds, *user, *sys])
        }
        (Unit::CpuSeconds, [done, seconds, _, user, sys]) => {
            scaled(*done, vec![*sys, *user, *seconds])
        }
        (Unit::MeanUs, [done, seconds, ..]) => exact(vec![seconds / done * 1e6]),
        (Unit::ParentUs, [nanoseconds]) => exact(vec![nanoseconds / 1e3]),
        (Unit::WaitUs, nanoseconds) => exact(nanoseconds.iter().map(|ns| ns / 1e3).collect()),
        (
            Unit::Rate
            | Unit::WaitNs
            | Unit::LatencyUs
            | Unit::Creation
            | Unit::CpuSeconds
            | Unit::MeanUs
            | Unit::ParentUs,
            _,
        ) => bail!("{numbers:?}"),
    };
    Ok(Some(figures))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn questions_and_contestants_have_names_of_their_own_and_points_ascend() {
        let questions = questions();
        let names: BTreeSet<_> = questions.iter().map(|question| question.name).collect();
        assert_eq!(names.len(), questions.len());
        for question in questions {
            let name = question.name;
            let labels: BTreeSet<_> = question.contestants.iter().map(|c| c.label).collect();
            assert_eq!(labels.len(), question.contestants.len(), "{name}");
            assert!(question.points.is_sorted(), "{name}");
            assert!(question.quick_points.is_sorted(), "{name}");
        }
    }
}
