//! Formats the answers to a question as a Markdown table. Does not know how they were measured.

use std::fmt::Write as _;

use super::questions::{Question, Unit};
use crate::plot::Series;

/// The most columns of a table. If there are more points, it shows every tenth.
const COLUMNS_MAX: usize = 12;

/// The figures of one contestant at one point.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    /// The medians. They are scaled if the contestant made fewer processes than asked for.
    Figures { values: Vec<f64>, scaled: bool },
    /// Why there are none.
    Missing(String),
    /// The contestant does not take part at this point.
    Skipped,
}

impl Cell {
    /// Returns the figure that plots show.
    fn first(&self) -> Option<f64> {
        match self {
            Self::Figures { values, .. } => values.first().copied(),
            Self::Missing(_) | Self::Skipped => None,
        }
    }
}

/// The figures of one contestant.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The name of the contestant.
    pub(crate) label: String,
    /// One cell for each point.
    pub(crate) cells: Vec<Cell>,
}

/// A table and a plot that answer a question.
pub(crate) struct Answer {
    /// The name of its file.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) points: Vec<u32>,
    pub(crate) rows: Vec<Row>,
}

impl Answer {
    /// Returns the lines of the plot.
    pub(crate) fn series(&self) -> Vec<Series> {
        let points = self.points.iter().map(|x| f64::from(*x));
        let line = |row: &Row| {
            let medians = points.clone().zip(&row.cells);
            Series {
                label: row.label.clone(),
                emphasis: row.label.starts_with("ours"),
                medians: medians
                    .filter_map(|(x, cell)| Some((x, cell.first()?)))
                    .collect(),
            }
        };
        self.rows.iter().map(line).collect()
    }

    /// Returns one row per contestant and one column per point.
    pub(crate) fn table(&self, question: &Question) -> String {
        let taken = |place: &usize| {
            let mut cells = self.rows.iter().map(|row| &row.cells[*place]);
            cells.any(|cell| !matches!(cell, Cell::Skipped))
        };
        let shown: Vec<usize> = if self.points.len() > COLUMNS_MAX {
            (9..self.points.len()).step_by(10).collect()
        } else {
            (0..self.points.len()).filter(taken).collect()
        };
        let mut text = format!(
            "## {}\n\n{}\n\n| {} |",
            self.title,
            caption(question.unit),
            question.x_label
        );
        for place in &shown {
            let _ = write!(text, " {} |", self.points[*place]);
        }
        text.push_str("\n|---|");
        text.push_str(&"---:|".repeat(shown.len()));
        for row in &self.rows {
            let _ = write!(text, "\n| {} |", row.label);
            for place in &shown {
                let base = self.rows[0].cells[*place].first();
                let _ = write!(text, " {} |", show(question.unit, &row.cells[*place], base));
            }
        }
        text.push('\n');
        text
    }
}

/// Returns the line of an error that says what happened, short enough for a cell.
pub(crate) fn brief(error: &str) -> String {
    /// The most characters of it.
    const LENGTH: usize = 80;
    let frames = |line: &&str| {
        let is_frame = line.starts_with([' ', '\t']) || line.is_empty();
        !is_frame && !line.contains("panicked at") && !line.starts_with("Traceback")
    };
    let line = error.lines().find(frames).unwrap_or("failed");
    line.replace('|', "/").chars().take(LENGTH).collect()
}

fn show(unit: Unit, cell: &Cell, base: Option<f64>) -> String {
    let (values, scaled) = match cell {
        Cell::Figures { values, scaled } => (values, *scaled),
        Cell::Missing(reason) => return reason.clone(),
        Cell::Skipped => return "–".to_owned(),
    };
    let about = if scaled { "≈ " } else { "" };
    let digits = match unit {
        Unit::Creation | Unit::CpuSeconds => 2,
        Unit::MeanUs | Unit::ParentUs | Unit::WaitUs => 1,
        Unit::Rate | Unit::WaitNs | Unit::LatencyUs => 0,
    };
    match (values.as_slice(), base) {
        ([value], Some(base)) => format!("{about}{value:.digits$} ({:.2})", value / base),
        (values, _) => {
            let texts: Vec<_> = values.iter().map(|v| format!("{v:.digits$}")).collect();
            format!("{about}{}", texts.join(" / "))
        }
    }
}

/// Returns the name of the unit of the figures that plots show.
pub(crate) const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Rate => "processes a second",
        Unit::WaitNs => "nanoseconds",
        Unit::LatencyUs | Unit::MeanUs | Unit::WaitUs => "microseconds",
        Unit::Creation => "seconds",
        Unit::CpuSeconds => "system seconds",
        Unit::ParentUs => "microseconds of CPU",
    }
}

fn caption(of: Unit) -> String {
    match of {
        Unit::Creation => "Seconds to create all / until all were waited for as well / user / system, the last two \
                           of parent and children. ≈: scaled from fewer processes."
            .to_owned(),
        Unit::CpuSeconds => "Seconds: system / user, of parent and children / on the clock. ≈: scaled from fewer \
                             processes."
            .to_owned(),
        Unit::Rate
        | Unit::WaitNs
        | Unit::LatencyUs
        | Unit::MeanUs
        | Unit::ParentUs
        | Unit::WaitUs => {
            format!("In {}; in brackets the ratio to the first row.", unit(of))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_all_languages_fit_into_a_cell() {
        for (error, expected) in [
            ("spawn_mech: fork: No memory", "spawn_mech: fork: No memory"),
            (
                "\nthread 'main' panicked at a.rs:1:2:\na process: Os",
                "a process: Os",
            ),
            (
                "Traceback (most recent):\n  File x\nOSError: a | b",
                "OSError: a / b",
            ),
            ("", "failed"),
        ] {
            assert_eq!(brief(error), expected);
        }
    }
}
