//! Formats the answers to a question as a Markdown table. Does not know how they were measured.

use std::fmt::Write as _;

use super::questions::{Question, Unit};
use crate::plot::Series;

/// Returns the name of the figures' unit.
pub(crate) const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Rate => "processes a second",
        Unit::WaitNs => "nanoseconds",
        Unit::LatencyUs => "microseconds",
    }
}

/// Returns one row per series and one column per point, with the median and its ratio to the first
/// series.
pub(crate) fn table(question: &Question, title: &str, series: &[Series]) -> String {
    let mut text = format!(
        "## {title}\n\nIn {}; in brackets the ratio to the first row.\n\n| {} |",
        unit(question.unit),
        question.x_label
    );
    let Some(first) = series.first() else {
        return text;
    };
    for (x, _) in &first.medians {
        let _ = write!(text, " {x} |");
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(first.medians.len()));
    for row in series {
        let _ = write!(text, "\n| {} |", row.label);
        for (x, base) in &first.medians {
            let _ = match row.medians.iter().find(|(at, _)| at == x) {
                Some((_, y)) => write!(text, " {y:.0} ({:.2}) |", y / base),
                None => write!(text, " failed |"),
            };
        }
    }
    text.push('\n');
    text
}
