//! Reads a table for `--each-row`. Each row becomes a task, and each column a parameter.
//!
//! The columns become parameters that are zipped with each other, as with
//! `--param a=1,2 --param +b=3,4`. No other code knows about tables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use hq_core::params::{Param, Params, Values};
use hq_core::range::{IdArray, IdRange};
use hq_core::template::Entries;
use hq_core::words::count;
use serde_json::value::RawValue;

use super::content::{self, BYTE_ORDER_MARK};
use super::entries::{EntryList, ids_below};
use super::{exact_json, read_file};
use crate::error::{CliError, CliResult};
use crate::parse::param::quoted_text;
use crate::text::{fit, lossy};

/// The length to which names and values in errors are cut.
const SHOWN_MAX: usize = 80;

/// The format of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Fields with this byte between them. The first line names the columns.
    Separated(u8),
    /// Objects, one after another or in one array. Their keys name the columns.
    Json,
}

impl Format {
    /// Returns the format that the name of the file declares. For other names, the first line
    /// decides.
    fn of(path: &Path, content: &[u8]) -> Self {
        let end = path.extension().unwrap_or_default().to_ascii_lowercase();
        let content = content.trim_ascii_start();
        let mut line = content.iter().take_while(|byte| **byte != b'\n');
        match end.to_str() {
            Some("csv") => Self::Separated(b','),
            Some("tsv" | "tab") => Self::Separated(b'\t'),
            Some("jsonl" | "ndjson" | "json") => Self::Json,
            // No name of a column begins like this.
            _ if content.starts_with(b"{") || content.starts_with(b"[") => Self::Json,
            _ if line.any(|byte| *byte == b'\t') => Self::Separated(b'\t'),
            _ => Self::Separated(b','),
        }
    }
}

/// The rows of a table that tasks use.
pub(super) struct Rows {
    /// The columns, from the first wanted row to the last one.
    pub(super) columns: Vec<Param>,
    /// The number of the first of these rows, counted from 0.
    pub(super) first: u32,
    /// The number of all rows of the table.
    pub(super) count: u32,
}

/// Reads a table. `None` = all rows are wanted.
pub(super) fn read(path: &Path, wanted: Option<&IdArray>) -> CliResult<Rows> {
    tracing::info!("Reading table: {}", path.display());
    let content = read_file(path)?;
    if let Some(kind) = content::kind(&content) {
        return Err(content::refuse_list(path, kind, "each-row"));
    }
    parse(path, &content, wanted)
}

fn parse(path: &Path, content: &[u8], wanted: Option<&IdArray>) -> CliResult<Rows> {
    let content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content);
    let table = Table {
        path,
        names: Vec::new(),
        columns: Vec::new(),
    };
    let table = match Format::of(path, content) {
        Format::Separated(separator) => read_fields(table, content, separator)?,
        Format::Json => read_objects(table, content)?,
    };
    let count = table.columns.first().map_or(Ok(0), EntryList::count)?;
    if count == 0 {
        return Err(table.refuse("the table has no rows, so there are no tasks"));
    }
    // Each job stores its rows, so a job with few rows of a large table must not have all of them.
    let inside = wanted.map(|wanted| ids_below(count, wanted)).transpose()?;
    let span = inside.map(|inside| {
        let first = inside.ranges().iter().map(IdRange::first).min();
        let (first, last) = (first.unwrap_or(0), inside.max().unwrap_or(0));
        IdArray::consecutive(first, last - first + 1).unwrap_or_default()
    });
    let pairs = table.names.iter().zip(table.columns).map(|(name, column)| {
        let values = match &span {
            Some(span) => column.select(span)?.1,
            None => column.finish()?,
        };
        Ok((&**name, values))
    });
    Ok(Rows {
        columns: zipped(pairs.collect::<CliResult<_>>()?),
        first: span.and_then(|span| span.get(0)).unwrap_or(0),
        count,
    })
}

/// Returns parameters that change together.
fn zipped(columns: Vec<(&str, Entries)>) -> Vec<Param> {
    let columns = columns.into_iter().enumerate();
    let params = columns.map(|(number, (name, values))| Param {
        name: name.into(),
        is_along: number > 0,
        values: vec![Values::Texts(values)],
    });
    params.collect()
}

struct Table<'a> {
    path: &'a Path,
    names: Vec<String>,
    columns: Vec<EntryList>,
}

impl Table<'_> {
    fn refuse(&self, text: impl std::fmt::Display) -> CliError {
        let shown = match self.path.to_str() {
            Some("-") => "standard input".into(),
            Some(_) | None => self.path.to_string_lossy(),
        };
        CliError::new(format!("{shown}: {text}"))
    }

    /// Adds a column without values.
    fn add(&mut self, place: &str, name: String) -> CliResult<()> {
        self.names.push(name);
        self.columns.push(EntryList::default());
        let Some(value) = Entries::new([], [0]) else {
            return Ok(());
        };
        let names = self.names.iter().map(|name| (&**name, value.clone()));
        // The names before this one have been checked.
        let Err(error) = Params::new(zipped(names.collect()), 0) else {
            return Ok(());
        };
        let number = self.names.len();
        let shown = fit(&error.to_string(), 3 * SHOWN_MAX);
        Err(self.refuse(format_args!("{place}, column {number}: {shown}")))
    }

    /// Adds a value to a column. `place` names the row in errors.
    fn push(&mut self, column: usize, value: &[u8], place: impl Fn() -> String) -> CliResult<()> {
        if value.contains(&0) {
            let place = place();
            let (number, name) = (column + 1, &self.names[column]);
            return Err(self.refuse(format_args!(
                "{place}, column {number} (`{name}`): expected a value without NUL bytes, found one"
            )));
        }
        self.columns[column].push(value);
        Ok(())
    }
}

/// The text of a file in CSV or TSV that has not been read.
struct Records<'a> {
    content: &'a [u8],
    rest: &'a [u8],
    separator: u8,
}

impl<'a> Records<'a> {
    /// Returns the line at which `rest` begins.
    fn line(&self, rest: &[u8]) -> String {
        let read = &self.content[..self.content.len() - rest.len()];
        let breaks = read.iter().filter(|byte| **byte == b'\n').count();
        format!("line {}", breaks + 1)
    }

    /// Reads the fields of the next record, and skips empty lines before it. Returns the text from
    /// the beginning of the record, or `None` at the end of the file.
    fn next(&mut self, fields: &mut Vec<Cow<'a, [u8]>>) -> Result<Option<&'a [u8]>, String> {
        while let Some(rest) = after_line_end(self.rest) {
            self.rest = rest;
        }
        fields.clear();
        let start = self.rest;
        let mut is_inside = !start.is_empty();
        while is_inside {
            let (field, rest) = self.field().map_err(|problem| {
                let line = self.line(self.rest);
                format!("{line}, column {}: {problem}", fields.len() + 1)
            })?;
            fields.push(field);
            is_inside = rest.starts_with(&[self.separator]);
            self.rest = match rest {
                [_, rest @ ..] if is_inside => rest,
                _ => after_line_end(rest).unwrap_or(rest),
            };
        }
        Ok(fields.first().map(|_| start))
    }

    /// Returns the field at the beginning of the rest, and the text after it: a separator, a line
    /// end, or nothing.
    fn field(&self) -> Result<(Cow<'a, [u8]>, &'a [u8]), String> {
        let is_end = |byte: &u8| *byte == self.separator || *byte == b'\n';
        if let Some(quoted) = self.rest.strip_prefix(b"\"") {
            let (field, rest) = quoted_text(quoted)?;
            return match rest.first() {
                Some(byte) if !is_end(byte) && after_line_end(rest).is_none() => {
                    let more = lossy(rest.split(is_end).next().unwrap_or_default());
                    let more = fit(&more, SHOWN_MAX);
                    Err(format!(
                        "found `{more}` after the closing `\"` of the field"
                    ))
                }
                Some(_) | None => Ok((field.into(), rest)),
            };
        }
        let end = self.rest.iter().position(is_end);
        let end = end.unwrap_or(self.rest.len());
        let line_end = self.rest[..end].strip_suffix(b"\r").map(<[u8]>::len);
        let end = line_end
            .filter(|at| after_line_end(&self.rest[*at..]).is_some())
            .unwrap_or(end);
        let (field, rest) = self.rest.split_at(end);
        Ok((field.into(), rest))
    }
}

/// Returns the text after a line end.
fn after_line_end(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'\n', rest @ ..] | [b'\r', b'\n', rest @ ..] => Some(rest),
        [b'\r'] => Some(&[]),
        _ => None,
    }
}

fn read_fields<'a>(mut table: Table<'a>, content: &[u8], separator: u8) -> CliResult<Table<'a>> {
    let mut records = Records {
        content,
        rest: content,
        separator,
    };
    let mut fields = Vec::new();
    loop {
        let next = records.next(&mut fields);
        let Some(start) = next.map_err(|problem| table.refuse(problem))? else {
            return Ok(table);
        };
        let place = || records.line(start);
        let (expected, found) = (table.names.len(), fields.len());
        if expected == 0 {
            for (number, name) in fields.iter().enumerate() {
                let added = table.add(&place(), lossy(name));
                added.map_err(|error| error.with_help(header_help(number, name)))?;
            }
        } else if found == expected {
            for (column, value) in fields.iter().enumerate() {
                table.push(column, value, place)?;
            }
        } else {
            let missing = table.names.get(found);
            let missing = missing.map_or_else(String::new, |name| format!(": `{name}` has none"));
            return Err(table.refuse(format_args!(
                "{}: expected {}, as in the header, found {found}{missing}",
                place(),
                count(expected as u64, "field"),
            )));
        }
    }
}

/// Returns the advice for an invalid name in the header.
fn header_help(number: usize, name: &[u8]) -> &'static str {
    if name.contains(&b';') {
        "columns are separated by commas, or by tabs in a `.tsv` file; this header has semicolons"
    } else if name.contains(&b'\t') {
        "this header has tabs: a file whose name ends in `.tsv` is separated by tabs"
    } else if name.contains(&b',') {
        "this header has commas: a file whose name ends in `.csv` is separated by commas"
    } else if name.is_empty() && number == 0 {
        "the first line names the columns; `to_csv(index=False)` of pandas writes no unnamed index"
    } else {
        "the first line names the columns, for `{NAME}` in the command and HQ_PARAM_NAME"
    }
}

fn read_objects<'a>(mut table: Table<'a>, content: &[u8]) -> CliResult<Table<'a>> {
    let is_array = content.trim_ascii_start().starts_with(b"[");
    let items: Result<Vec<&RawValue>, _> = if is_array {
        serde_json::from_slice(content)
    } else {
        let objects = serde_json::Deserializer::from_slice(content);
        objects.into_iter().collect()
    };
    let items = items.map_err(|error| {
        let error = table.refuse(format_args!("this is not valid JSON: {error}"));
        error.with_help("each row is an object, such as `{\"lr\": 0.1, \"seed\": 1}`")
    })?;
    for (number, item) in items.into_iter().enumerate() {
        let place = || {
            if is_array {
                return format!("item {number}");
            }
            let end = item.get().as_ptr().addr() - content.as_ptr().addr();
            let breaks = content[..end].iter().filter(|byte| **byte == b'\n').count();
            format!("line {}", breaks + 1)
        };
        let refuse = |table: &Table<'_>, problem: String| {
            table.refuse(format_args!("{}: {problem}", place()))
        };
        if number == 0 {
            let object = object(item.get()).map_err(|problem| refuse(&table, problem))?;
            let mut fields: Vec<_> = object.into_iter().collect();
            // The columns have the order of the keys in the file.
            fields.sort_by_key(|(_, value)| value.get().as_ptr());
            for (name, _) in fields {
                table.add(&place(), name)?;
            }
        }
        let values = values(item.get(), &table.names);
        let values = values.map_err(|problem| refuse(&table, problem))?;
        for (column, value) in values.iter().enumerate() {
            table.push(column, value.as_bytes(), place)?;
        }
    }
    Ok(table)
}

fn object(text: &str) -> Result<BTreeMap<String, &RawValue>, String> {
    if !text.starts_with('{') {
        let found = fit(text, SHOWN_MAX);
        return Err(format!("expected an object, found `{found}`"));
    }
    let object = exact_json::fields(text).map_err(reason)?;
    if object.is_empty() {
        return Err("expected an object with keys, found none".to_owned());
    }
    Ok(object)
}

/// Returns the values of a row as texts, in the order of the columns. Numbers stay as they are
/// written, and `null` is empty.
fn values(row: &str, columns: &[String]) -> Result<Vec<String>, String> {
    let mut object = object(row)?;
    let mut values = Vec::with_capacity(columns.len());
    for name in columns {
        let value = object.remove(name);
        let value = value.ok_or_else(|| format!("the key `{name}` of the first row is missing"))?;
        values.push(match value.get().as_bytes() {
            [b'"', ..] => serde_json::from_str(value.get())
                .map_err(|error| format!("the key `{name}`: {}", reason(error)))?,
            [first @ (b'[' | b'{'), ..] => {
                let found = if *first == b'[' { "a list" } else { "an object" };
                return Err(format!(
                    "the key `{name}`: expected a text, a number, true, false or null, found {found}"
                ));
            }
            [b'n', ..] => String::new(),
            _ => value.get().to_owned(),
        });
    }
    match object.pop_first() {
        Some((name, _)) => Err(format!(
            "the first row has no key `{}`",
            fit(&name, SHOWN_MAX)
        )),
        None => Ok(values),
    }
}

/// Returns an error without its position, which refers to a part of the file.
fn reason(error: serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
