//! Computes distributions of numbers, and formats the tables of `job stats`.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::format::{peak_memory, short_words};
use super::grid::{Grid, Look, Text};
use super::json::write_value;
use super::{Out, View};

/// The percentiles that are shown, with their names.
const PERCENTILES: [(&str, f64); 5] = [
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p99", 0.99),
];

/// The order statistics of some numbers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Distribution {
    /// The number of samples.
    pub(crate) count: usize,
    /// The values as `(name, value)`: min, percentiles, max, mean. Empty without samples.
    pub(crate) values: Vec<(&'static str, f64)>,
}

impl Distribution {
    /// Computes percentiles by nearest rank: the smallest sample that is at least as large as that
    /// share of all samples.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let count = samples.len();
        let (Some(min), Some(max)) = (samples.first(), samples.last()) else {
            return Self {
                count,
                values: Vec::new(),
            };
        };
        #[expect(clippy::cast_precision_loss, reason = "there are at most 2^32 tasks")]
        let len = count as f64;
        let at = |share: f64| samples.get(rank(count, share)).copied().unwrap_or(*max);
        let mut values = vec![("min", *min)];
        values.extend(PERCENTILES.map(|(name, share)| (name, at(share))));
        values.push(("max", *max));
        values.push(("mean", samples.iter().sum::<f64>() / len));
        Self { count, values }
    }
}

/// Returns the index of a percentile among `len` sorted numbers.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is an index"
)]
fn rank(len: usize, share: f64) -> usize {
    ((len as f64 * share).ceil() as usize).saturating_sub(1)
}

/// The contents of `job stats`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct JobStatsView {
    /// The quantities and their distributions: seconds, seconds, bytes, share of the requested
    /// cpus, seconds.
    pub(crate) rows: [(&'static str, Distribution); 5],
}

impl JobStatsView {
    /// Returns the names of the columns after the quantity's name and the count.
    fn columns() -> Vec<&'static str> {
        let middle = PERCENTILES.map(|(name, _)| name);
        [&["min"], &middle[..], &["max", "mean"]].concat()
    }

    /// Writes a header, and a line per quantity. Fields without a value are empty.
    pub(crate) fn write_csv(&self, out: Out<'_>) -> io::Result<()> {
        writeln!(out, "metric,count,{}", Self::columns().join(","))?;
        for (name, distribution) in &self.rows {
            write!(out, "{name},{}", distribution.count)?;
            for index in 0..Self::columns().len() {
                match distribution.values.get(index) {
                    Some((_, value)) => write!(out, ",{value}")?,
                    None => write!(out, ",")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Returns the cells of a row in human-readable form.
    fn cells(name: &str, distribution: &Distribution) -> Vec<String> {
        let seconds = |value: f64| {
            let duration = Duration::try_from_secs_f64(value).unwrap_or_default();
            short_words(duration)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "sizes are whole and positive"
        )]
        let shown = |value: f64| match name {
            "max_rss" => peak_memory(value as u64),
            "cpu_efficiency" => format!("{:.0} %", value * 100.0),
            _ => seconds(value),
        };
        let values = distribution.values.iter().map(|(_, value)| shown(*value));
        let mut cells: Vec<String> = values.collect();
        cells.resize(Self::columns().len(), String::new());
        cells
    }
}

impl View for JobStatsView {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        // Columns are quantities and rows are numbers, because a quantity has too many numbers for one
        // row.
        let names = self.rows.iter().map(|(name, _)| *name);
        let header: Vec<&str> = std::iter::once("").chain(names).collect();
        let mut grid = Grid::horizontal(look, &header, 0);
        let mut row = |label: &str, cells: Vec<String>| {
            let cells = cells.into_iter().map(Text::from);
            grid.row(std::iter::once(Text::from(label)).chain(cells));
        };
        let counts = self.rows.iter().map(|(_, values)| values.count.to_string());
        row("tasks", counts.collect());
        let columns = self.rows.iter();
        let columns: Vec<_> = columns
            .map(|(name, values)| Self::cells(name, values))
            .collect();
        for (index, label) in Self::columns().into_iter().enumerate() {
            let cells = columns.iter().map(|cells| cells[index].clone());
            row(label, cells.collect());
        }
        grid.write(out)
    }

    /// Writes an object per quantity.
    fn json(&self, out: Out<'_>) -> io::Result<()> {
        let rows = self.rows.iter().map(|(name, distribution)| {
            let mut value = json!({ "count": distribution.count });
            for (key, number) in &distribution.values {
                value[*key] = json!(number);
            }
            ((*name).to_owned(), value)
        });
        write_value(out, &Value::Object(rows.collect()))
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        self.write_csv(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let distribution = Distribution::of((1..=100).rev().map(f64::from).collect());
        let value = |name| distribution.values.iter().find(|(key, _)| *key == name);
        assert_eq!(value("min"), Some(&("min", 1.0)));
        assert_eq!(value("p50"), Some(&("p50", 50.0)));
        assert_eq!(value("p99"), Some(&("p99", 99.0)));
        assert_eq!(value("mean"), Some(&("mean", 50.5)));
        assert_eq!(Distribution::of(vec![7.0]).values[3], ("p75", 7.0));
    }

    #[test]
    fn csv_has_a_line_for_what_is_unknown() {
        let none = || Distribution::of(Vec::new());
        let view = JobStatsView {
            rows: [
                ("run_time", Distribution::of(vec![1.5])),
                ("waiting_time", none()),
                ("max_rss", none()),
                ("cpu_efficiency", none()),
                ("run_until_cancel", none()),
            ],
        };
        let mut out = Vec::new();
        view.write_csv(&mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("metric,count,min,p25,p50,p75,p90,p99,max,mean\nrun_time,1,1.5,"));
        assert!(text.contains("\nwaiting_time,0,,,,,,,,\n"), "{text}");
    }
}
