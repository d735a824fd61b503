//! Formats the answers to a question as a Markdown table. Does not know how they were measured.

use std::fmt::Write as _;

use super::questions::{Question, Unit};

/// The figures of one contestant.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name of the contestant.
    pub label: String,
    /// Whether to emphasize it.
    pub emphasis: bool,
    /// Points and medians, with points in ascending order.
    pub medians: Vec<(f64, f64)>,
}

/// Returns the median of the figures, or `None` if there are none.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Returns the name of the figures' unit.
#[must_use]
pub const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Rate => "processes a second",
        Unit::WaitNs => "nanoseconds",
        Unit::LatencyUs => "microseconds",
    }
}

/// Returns one row per series and one column per point, with the median and its ratio to the first
/// series.
#[must_use]
pub fn table(question: &Question, title: &str, series: &[Series]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_of_an_odd_number() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }
}
