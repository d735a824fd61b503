//! One entry per task: the lines of a file, or the items of a JSON array.

use std::path::Path;

use hq_core::range::{IdArray, IdRange};
use hq_core::template::{ArrayIds, Entries};

use serde_json::value::RawValue;

use super::{content, exact_json, read_file};
use crate::error::{CliError, CliResult};

/// Concatenated entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct EntryList {
    data: Vec<u8>,
    lengths: Vec<u32>,
}

impl EntryList {
    /// Adds an entry at the end.
    pub(crate) fn push(&mut self, entry: &[u8]) {
        self.data.extend_from_slice(entry);
        // An entry that is too long is rejected at the end, because the lengths do not add up.
        let length = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        self.lengths.push(length);
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Creates entries from texts.
    pub(crate) fn from_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut list = Self::default();
        for text in texts {
            list.push(text.as_bytes());
        }
        list
    }

    /// Splits a file into lines, which end with `end`. A last line without an end counts, but an
    /// empty one does not.
    pub(crate) fn from_lines(content: &[u8], end: u8) -> Self {
        let mut list = Self::default();
        let body = content.strip_suffix(&[end]).unwrap_or(content);
        if !content.is_empty() {
            for line in body.split(|b| *b == end) {
                list.push(line);
            }
        }
        list
    }

    /// Converts the entries to the form that is sent.
    pub(crate) fn finish(self) -> CliResult<Entries> {
        Entries::new(self.data, self.lengths.into_iter().map(u64::from))
            .ok_or_else(|| CliError::new("The entries of the tasks have more than 4 GiB"))
    }

    /// Keeps the entries whose index is in `wanted`, and uses that index as the id of their task.
    /// Ignores indices beyond the end.
    pub(crate) fn select(self, wanted: &IdArray) -> CliResult<(ArrayIds, Entries)> {
        let ids = ids_below(self.count()?, wanted)?;
        let all = self.finish()?;
        let mut chosen = Self::default();
        for index in ids.iter() {
            chosen.push(all.get(index).unwrap_or_default());
        }
        Ok((ArrayIds::Given(ids), chosen.finish()?))
    }

    /// Returns the number of entries as a number of tasks.
    pub(crate) fn count(&self) -> CliResult<u32> {
        u32::try_from(self.len())
            .map_err(|_| CliError::new("A job cannot have more than 4294967295 tasks"))
    }
}

/// Returns the wanted ids that are smaller than `count`.
pub(crate) fn ids_below(count: u32, wanted: &IdArray) -> CliResult<IdArray> {
    let too_large = || CliError::new("Invalid range");
    let mut ranges = Vec::new();
    for range in wanted.ranges().iter().filter(|range| range.first() < count) {
        let inside = (count - 1 - range.first()) / range.step() + 1;
        let kept = inside.min(range.count());
        let kept = IdRange::new(range.first(), kept, range.step()).map_err(|_| too_large())?;
        ranges.push(kept);
    }
    IdArray::new(ranges).map_err(|_| too_large())
}

/// Reads the lines of a file, which end with `end`.
pub(crate) fn read_lines(path: &Path, end: u8) -> CliResult<EntryList> {
    let bytes = read_file(path).map_err(|error| match content::list_hint(path) {
        Some(help) => error.with_help(help),
        None => error,
    })?;
    if let Some(kind) = content::kind(&bytes) {
        return Err(content::refuse_list(path, kind, "each-line"));
    }
    if end != 0 {
        check_lines(path, &bytes)?;
    }
    Ok(EntryList::from_lines(&bytes, end))
}

/// Checks that every line can be the value of an environment variable.
fn check_lines(path: &Path, content: &[u8]) -> CliResult<()> {
    let Some(at) = content.iter().position(|byte| *byte == 0) else {
        return Ok(());
    };
    let line = content[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    Err(CliError::new(format!(
        "{}: expected lines without NUL bytes, found one in line {line}",
        path.display()
    ))
    .with_help(
        "`--each-line FILE --null` takes texts that end with NUL, as `find -print0` writes them; `tr '\\0' '\\n' < FILE` makes lines of them",
    ))
}

/// Reads the items of a JSON array, each as compact text with sorted keys and unchanged numbers.
pub(crate) fn read_json(path: &Path) -> CliResult<EntryList> {
    let is_inline = path.as_os_str().as_encoded_bytes().starts_with(b"[") && !path.exists();
    if is_inline {
        return Err(CliError::new(format!("{}: this file does not exist", path.display())).with_help(
            "`--from-json` takes the name of a file; `echo '[1, 2]' | hq run --from-json - -- PROGRAM {}` reads standard input",
        ));
    }
    parse_json(path, &read_file(path)?)
}

fn parse_json(path: &Path, bytes: &[u8]) -> CliResult<EntryList> {
    let shown = path.display();
    let invalid = |error: serde_json::Error| {
        if let Some((what, command)) = content::kind(bytes) {
            let text = format!("{shown}: this is not JSON, but {what}");
            let error = CliError::new(text);
            return match command {
                "" => error,
                command => {
                    error.with_help(format!("`{command} {shown} | hq … --from-json -` reads it"))
                }
            };
        }
        let is_one_of = |ends: &[&str]| {
            let end = path.extension();
            end.is_some_and(|end| ends.iter().any(|known| end == *known))
        };
        let help = if is_one_of(&["csv", "tsv", "jsonl", "ndjson"]) {
            format!("for a task for each row, use `--each-row {shown}`")
        } else if is_one_of(&["txt", "list", "lst"]) {
            format!("this is not JSON; for a task for each line, use `--each-line {shown}`")
        } else if error.to_string().starts_with("trailing characters") {
            format!("one value per line is not an array; `jq -s . {shown} > items.json` makes one")
        } else {
            "the file is one array, such as `[\"a\", {\"b\": 1}]`, with a task for each item"
                .to_owned()
        };
        CliError::new(format!("{shown}: this is not valid JSON: {error}")).with_help(help)
    };
    let top: &RawValue = serde_json::from_slice(bytes).map_err(invalid)?;
    if !top.get().starts_with('[') {
        let text = "The top element of the provided JSON file has to be an array";
        return Err(CliError::new(format!("{shown}: {text}")).with_help(format!(
            "put what tasks get between `[` and `]`; of JSON lines `jq -s . {shown}` makes an array"
        )));
    }
    let items: Vec<&RawValue> = serde_json::from_str(top.get()).map_err(invalid)?;
    let mut list = EntryList::default();
    for (number, item) in items.into_iter().enumerate() {
        let text = exact_json::compact(item)
            .map_err(|problem| CliError::new(format!("{shown}: item {number}: {problem}")))?;
        list.push(text.as_bytes());
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::array::parse_id_array;

    fn lines(content: &[u8]) -> Vec<Vec<u8>> {
        let entries = EntryList::from_lines(content, b'\n')
            .finish()
            .expect("fits");
        let count = u32::try_from(entries.len()).expect("small");
        (0..count)
            .map(|i| entries.get(i).expect("inside").to_vec())
            .collect()
    }

    #[test]
    fn lines_keep_every_byte() {
        assert!(lines(b"").is_empty());
        assert_eq!(lines(b"a"), [b"a"]);
        assert_eq!(lines(b"a\n"), [b"a"]);
        assert_eq!(lines(b"\n"), [b""]);
        assert_eq!(
            lines(b"a\n\nb\r\n\xff\xfe"),
            [&b"a"[..], b"", b"b\r", b"\xff\xfe"]
        );
    }

    #[test]
    fn lines_that_no_variable_can_hold_are_refused() {
        let check = |content: &[u8]| check_lines(Path::new("f"), content);
        assert_eq!(check(b"a\n\xff\n"), Ok(()));
        let error = check(b"a\nb\0c\n").expect_err("a NUL byte").text();
        let wanted = "f: expected lines without NUL bytes, found one in line 2";
        assert_eq!(error.as_deref(), Some(wanted));
    }

    #[test]
    fn items_are_compact_with_sorted_keys() {
        let path = Path::new("f.json");
        let list = parse_json(path, br#"[{"b": 1, "a": [1, 2]}, "x", 3.0, null]"#).expect("array");
        let entries = list.finish().expect("fits");
        let texts: Vec<_> = (0..4).filter_map(|i| entries.get(i)).collect();
        assert_eq!(
            texts,
            [&br#"{"a":[1,2],"b":1}"#[..], b"\"x\"", b"3.0", b"null"]
        );
        let error = parse_json(path, b"{}").expect_err("no array").text();
        assert_eq!(
            error.as_deref(),
            Some("f.json: The top element of the provided JSON file has to be an array")
        );
    }

    #[test]
    fn numbers_of_items_stay_as_they_are_written() {
        let path = Path::new("f.json");
        let content =
            br#"[18446744073709551616, [123456789012345678901234567890 , 0.12345678901234567891],
                           {"b\u0061" : -0, "a": 1E400}, "\u00e4\n"]"#;
        let entries = parse_json(path, content)
            .expect("array")
            .finish()
            .expect("fits");
        let texts: Vec<_> = (0..5)
            .filter_map(|i| entries.get(i))
            .map(String::from_utf8_lossy)
            .collect();
        assert_eq!(
            texts,
            [
                "18446744073709551616",
                "[123456789012345678901234567890,0.12345678901234567891]",
                r#"{"a":1E400,"ba":-0}"#,
                r#""ä\n""#,
            ]
        );
    }

    #[test]
    fn items_that_would_lose_something_are_refused() {
        let refusal = |content: &str| {
            parse_json(Path::new("f.json"), content.as_bytes())
                .expect_err(content)
                .text()
                .expect("a text")
        };
        let text = refusal(r#"["x", [{"a": 1, "b": 3, "\u0061": 2}]]"#);
        assert!(
            text.starts_with("f.json: item 1") && text.contains("the key \"a\" twice"),
            "{text}"
        );
        let deep = format!("[{}{}]", "[".repeat(100_000), "]".repeat(100_000));
        assert!(refusal(&deep).contains("128"), "{}", refusal(&deep));
        assert!(refusal(r#"["\ud800"]"#).starts_with("f.json: "));
        assert!(refusal("[1, 2").contains("this is not valid JSON"));
    }

    #[test]
    fn an_array_selects_by_index() {
        let select = |array: &str| {
            let wanted = parse_id_array(array).expect("valid");
            let (ids, entries) = EntryList::from_texts(["a", "b", "c", "d"])
                .select(&wanted)
                .expect("fits");
            let ArrayIds::Given(ids) = ids else {
                panic!("ids are given")
            };
            let all: Vec<u8> = (0..ids.len())
                .filter_map(|i| entries.get(i))
                .flatten()
                .copied()
                .collect();
            (ids.to_string(), String::from_utf8(all).expect("letters"))
        };
        assert_eq!(select("1-2"), ("1-2".into(), "bc".into()));
        assert_eq!(select("3,0-10:2"), ("3,0-2:2".into(), "dac".into()));
        assert_eq!(select("7-9"), (String::new(), String::new()));
    }
}
