//! A strict parser for the text format of Prometheus, for tests. It accepts what `promtool check
//! metrics` accepts.

use std::collections::{BTreeMap, BTreeSet};

/// Samples by name and labels.
pub(crate) type Samples = BTreeMap<String, f64>;

/// Parses the text. Panics with the line that breaks a rule.
#[track_caller]
pub(crate) fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(line);
    }
    reader.check_histograms();
    reader.samples
}

#[derive(Default)]
struct Reader {
    /// The help and the type of each family.
    helps: BTreeSet<String>,
    types: BTreeMap<String, String>,
    /// The current family. The lines of a family are contiguous.
    family: String,
    done: BTreeSet<String>,
    samples: Samples,
}

impl Reader {
    #[track_caller]
    fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(!help.trim().is_empty(), "no help: {line}");
            assert!(self.helps.insert(name.to_owned()), "twice: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(
                ["counter", "gauge", "histogram"].contains(&kind),
                "unknown type: {line}"
            );
            assert!(self.helps.contains(name), "no help before: {line}");
            let before = self.types.insert(name.to_owned(), kind.to_owned());
            assert!(before.is_none(), "twice: {line}");
            assert_eq!(
                name.ends_with("_total"),
                kind == "counter",
                "counters, and only they, end in _total: {line}"
            );
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "stray: {line}");
            self.sample(line);
        }
    }

    #[track_caller]
    fn sample(&mut self, line: &str) {
        let (series, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value
            .parse()
            .unwrap_or_else(|_| panic!("no number: {line}"));
        let name = series.split('{').next().unwrap_or_default();
        assert!(is_name(name), "not a name: {line}");
        if let Some(labels) = series
            .strip_prefix(name)
            .filter(|labels| !labels.is_empty())
        {
            check_labels(labels, line);
        }
        let family = self.family_of(name, line);
        if family != self.family {
            assert!(self.done.insert(family.clone()), "torn apart: {line}");
            self.family = family;
        }
        let before = self.samples.insert(series.to_owned(), value);
        assert!(before.is_none(), "twice: {line}");
    }

    #[track_caller]
    fn family_of(&self, name: &str, line: &str) -> String {
        if let Some(kind) = self.types.get(name) {
            assert_ne!(
                kind, "histogram",
                "a sample with the name of a histogram: {line}"
            );
            return name.to_owned();
        }
        let bare = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .filter(|bare| {
                self.types
                    .get(*bare)
                    .is_some_and(|kind| kind == "histogram")
            });
        bare.unwrap_or_else(|| panic!("no type: {line}")).to_owned()
    }

    /// Checks that buckets grow up to the count.
    #[track_caller]
    fn check_histograms(&self) {
        for name in self
            .types
            .keys()
            .filter(|name| self.types[*name] == "histogram")
        {
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for (series, value) in &self.samples {
                let bound = series
                    .strip_prefix(&format!("{name}_bucket{{le=\""))
                    .and_then(|rest| rest.strip_suffix("\"}"));
                if let Some(bound) = bound {
                    buckets.push((bound.parse().expect(bound), *value));
                }
            }
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                buckets.is_sorted_by_key(|(_, count)| *count),
                "{name}: {buckets:?}"
            );
            let last = buckets.last().expect("buckets");
            assert!(last.0.is_infinite(), "{name} has no bucket without bound");
            assert_eq!(last.1, self.samples[&format!("{name}_count")], "{name}");
            assert!(self.samples[&format!("{name}_sum")] >= 0.0, "{name}");
        }
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Checks labels such as `{a="x",b="y"}`. Values contain no quotes here.
#[track_caller]
fn check_labels(labels: &str, line: &str) {
    let inner = labels
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .expect(line);
    for pair in inner.split(',') {
        let (name, value) = pair.split_once('=').expect(line);
        assert!(is_name(name), "not a label: {line}");
        let text = value
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        assert!(
            text.is_some_and(|text| !text.contains('"')),
            "not a value: {line}"
        );
    }
}
