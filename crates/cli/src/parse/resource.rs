//! Parses definitions of a worker's resources: `4`, `2x4`, `[a,b]`, `[[0,1],[2,3]]`, `range(0-3)`,
//! `sum(10.5)`, and `sum(64GiB)` or `64GiB` for memory.

use hq_core::resource::descriptor::{ResourceItem, ResourceKind};

use super::request::{is_memory, parse_quantity, parse_resource_name};
use super::{Cursor, ParseError};

const WHAT: &str = "resource definition";

/// The maximum number of indices in a definition, so that a typing error does not exhaust the
/// memory.
const INDICES_MAX: u32 = 1 << 20;

/// A value of `--cpus`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CpuDefinition {
    /// A plain 0, which is rejected when the worker starts.
    Zero,
    /// A pool.
    Pool(ResourceKind),
}

/// Parses the value of `--cpus`: a count or any definition.
pub(crate) fn parse_cpus(text: &str) -> Result<CpuDefinition, ParseError> {
    let mut cursor = Cursor::new("cpu definition", text);
    cursor.skip_blanks();
    let mut count_cursor = cursor.clone();
    if let Ok(count) = count_cursor.number(&[]) {
        count_cursor.skip_blanks();
        if count_cursor.is_at_end() {
            return match count.checked_sub(1) {
                None => Ok(CpuDefinition::Zero),
                Some(end) if end < INDICES_MAX => {
                    Ok(CpuDefinition::Pool(ResourceKind::Range { start: 0, end }))
                }
                Some(_) => Err(cursor.note_at(0, "Too many cpus")),
            };
        }
    }
    parse_kind(&mut cursor, false).map(CpuDefinition::Pool)
}

/// Parses `NAME=DEF`.
pub(crate) fn parse_definition(text: &str) -> Result<ResourceItem, ParseError> {
    let mut cursor = Cursor::new(WHAT, text);
    let name = parse_resource_name(&mut cursor)?;
    cursor.set_what(WHAT);
    if !cursor.consume("=") {
        return Err(cursor.unexpected(&["`=`"]));
    }
    let kind = parse_kind(&mut cursor, is_memory(name))?;
    Ok(ResourceItem {
        name: name.into(),
        kind,
    })
}

fn parse_kind(cursor: &mut Cursor<'_>, is_memory: bool) -> Result<ResourceKind, ParseError> {
    const EXPECTED: &[&str] = &["`[`", "`range(`", "`sum(`", "`NxM`"];
    cursor.skip_blanks();
    if is_memory && let Some(sum) = parse_memory(cursor) {
        return Ok(sum);
    }
    let kind = match cursor.peek() {
        Some('[') => parse_brackets(cursor)?,
        Some(c) if c.is_ascii_digit() => parse_product(cursor)?,
        Some('r') => parse_span(cursor)?,
        Some('s') => parse_sum(cursor, is_memory)?,
        Some(_) | None => return Err(cursor.unexpected(EXPECTED)),
    };
    cursor.skip_blanks();
    cursor.finish(&["end of input"])?;
    Ok(kind)
}

/// Parses `64GiB`, which can only be a sum. A plain number is still an error, because it may be the
/// `2` of `2x4`.
fn parse_memory(cursor: &Cursor<'_>) -> Option<ResourceKind> {
    let mut ahead = cursor.clone();
    let amount = parse_quantity(&mut ahead, true).ok()?;
    let has_unit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic());
    let digits = |c: char| c.is_ascii_digit() || c == '_' || c == '.';
    if !has_unit(cursor.rest().trim_start_matches(digits)) {
        return None;
    }
    ahead.skip_blanks();
    ahead.is_at_end().then_some(ResourceKind::Sum(amount))
}

fn expect(
    cursor: &mut Cursor<'_>,
    token: &str,
    expected: &'static [&'static str],
) -> Result<(), ParseError> {
    cursor.skip_blanks();
    if !cursor.consume(token) {
        return Err(cursor.unexpected(expected));
    }
    cursor.skip_blanks();
    Ok(())
}

fn parse_product(cursor: &mut Cursor<'_>) -> Result<ResourceKind, ParseError> {
    let start = cursor.pos();
    let groups = cursor.number(&["number"])?;
    expect(cursor, "x", &["`x`"])?;
    let size = cursor.number(&["number"])?;
    if groups == 0 || size == 0 {
        return Err(cursor.note_at(start, "Resource has to contain at least a single element"));
    }
    if groups
        .checked_mul(size)
        .is_none_or(|total| total > INDICES_MAX)
    {
        return Err(cursor.note_at(start, "Resource has too many elements"));
    }
    let group = |g: u32| {
        (g * size..(g + 1) * size)
            .map(|i| i.to_string().into())
            .collect()
    };
    Ok(from_groups((0..groups).map(group).collect()))
}

fn parse_span(cursor: &mut Cursor<'_>) -> Result<ResourceKind, ParseError> {
    if !cursor.consume("range") {
        return Err(cursor.unexpected(&["`range(`"]));
    }
    expect(cursor, "(", &["`(`"])?;
    let at = cursor.pos();
    let start = cursor.number(&["number"])?;
    expect(cursor, "-", &["`-`"])?;
    let end = cursor.number(&["number"])?;
    expect(cursor, ")", &["`)`"])?;
    if start > end {
        return Err(cursor.note_at(at, "Start must be greater or equal to end"));
    }
    if end - start >= INDICES_MAX {
        return Err(cursor.note_at(at, "Resource has too many elements"));
    }
    Ok(ResourceKind::Range { start, end })
}

fn parse_sum(cursor: &mut Cursor<'_>, is_memory: bool) -> Result<ResourceKind, ParseError> {
    if !cursor.consume("sum") {
        return Err(cursor.unexpected(&["`sum(`"]));
    }
    expect(cursor, "(", &["`(`"])?;
    let amount = parse_quantity(cursor, is_memory)?;
    expect(cursor, ")", &["`)`"])?;
    Ok(ResourceKind::Sum(amount))
}

fn parse_brackets(cursor: &mut Cursor<'_>) -> Result<ResourceKind, ParseError> {
    let mut inner = cursor.clone();
    expect(&mut inner, "[", &["`[`"])?;
    if inner.peek() != Some('[') {
        let message = "List has to contain at least a single element";
        return Ok(ResourceKind::List(parse_list(cursor, message)?));
    }
    let mut groups = Vec::new();
    loop {
        inner.skip_blanks();
        groups.push(parse_list(
            &mut inner,
            "Each group has to contain at least a single element",
        )?);
        inner.skip_blanks();
        if !inner.consume(",") {
            break;
        }
    }
    expect(&mut inner, "]", &["`,`", "`]`"])?;
    *cursor = inner;
    Ok(from_groups(groups))
}

fn parse_list(cursor: &mut Cursor<'_>, if_empty: &str) -> Result<Vec<Box<str>>, ParseError> {
    let start = cursor.pos();
    expect(cursor, "[", &["`[`"])?;
    if cursor.peek() == Some(']') {
        return Err(cursor.note_at(start, if_empty));
    }
    let mut values: Vec<Box<str>> = Vec::new();
    loop {
        cursor.skip_blanks();
        values.push(parse_index_name(cursor)?);
        cursor.skip_blanks();
        if !cursor.consume(",") {
            break;
        }
    }
    expect(cursor, "]", &["`,`", "`]`"])?;
    let mut sorted: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(cursor.note_at(start, "List items have to be unique"));
    }
    Ok(values)
}

fn parse_index_name(cursor: &mut Cursor<'_>) -> Result<Box<str>, ParseError> {
    const EXPECTED: &[&str] = &["index", "quoted text"];
    if !cursor.consume("\"") {
        let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '[' | ']' | ',' | '"');
        let name = cursor.take_while(is_plain);
        return if name.is_empty() {
            Err(cursor.unexpected(EXPECTED))
        } else {
            Ok(name.into())
        };
    }
    let mut name = String::new();
    loop {
        match cursor.bump() {
            None => return Err(cursor.unexpected(&["`\"`"])),
            Some('"') => break,
            Some('\\') => name.extend(cursor.bump()),
            Some(c) => name.push(c),
        }
    }
    Ok(name.into())
}

/// Creates a pool from groups. A single group becomes a list.
fn from_groups(mut groups: Vec<Vec<Box<str>>>) -> ResourceKind {
    if groups.len() == 1 {
        return ResourceKind::List(groups.pop().unwrap_or_default());
    }
    ResourceKind::Groups(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_core::resource::amount::Amount;

    fn names(values: &[&str]) -> Vec<Box<str>> {
        values.iter().map(|value| (*value).into()).collect()
    }

    #[test]
    fn reads_every_kind() {
        for (text, kind) in [
            (
                "x=[a,b,\"c d\"]",
                ResourceKind::List(names(&["a", "b", "c d"])),
            ),
            (
                "x=[[0,1], [2 , 3]]",
                ResourceKind::Groups(vec![names(&["0", "1"]), names(&["2", "3"])]),
            ),
            (
                "x=2x2",
                ResourceKind::Groups(vec![names(&["0", "1"]), names(&["2", "3"])]),
            ),
            ("x=1x2", ResourceKind::List(names(&["0", "1"]))),
            ("x=range(2-5)", ResourceKind::Range { start: 2, end: 5 }),
            (
                "x= range( 2 - 5 ) ",
                ResourceKind::Range { start: 2, end: 5 },
            ),
            ("x=sum(100.5)", ResourceKind::Sum(Amount(1_005_000))),
            ("mem=sum(64GiB)", ResourceKind::Sum(Amount(655_360_000))),
            ("mem=sum(512)", ResourceKind::Sum(Amount(5_120_000))),
        ] {
            assert_eq!(parse_definition(text).expect(text).kind, kind, "{text}");
        }
        assert_eq!(
            parse_definition("gpus/amd=[1]").map(|item| item.name),
            Ok("gpus/amd".into())
        );
        assert_eq!(parse_cpus("0"), Ok(CpuDefinition::Zero));
        assert_eq!(
            parse_cpus("4"),
            Ok(CpuDefinition::Pool(ResourceKind::Range {
                start: 0,
                end: 3
            }))
        );
    }

    #[test]
    fn refuses_with_the_documented_notes() {
        for (text, note) in [
            ("x=[a,a]", "--- List items have to be unique"),
            ("x=[]", "--- List has to contain at least a single element"),
            (
                "x=[[]]",
                "--- Each group has to contain at least a single element",
            ),
            (
                "x=[[1],[]]",
                "--- Each group has to contain at least a single element",
            ),
            ("x=range(3-1)", "--- Start must be greater or equal to end"),
            ("x=sum(1.00001)", "--- Resource precision exceeded"),
            ("x=sum(1GiB)", "expected `)`"),
            ("mem=sum(9999999TiB)", "--- Number is too large"),
            (
                "x=0x4",
                "--- Resource has to contain at least a single element",
            ),
            (
                "x=4x0",
                "--- Resource has to contain at least a single element",
            ),
            ("x=99999x99999", "--- Resource has too many elements"),
            ("x=4", "--- Unexpected end of input"),
            ("x=[a,b", "--- Unexpected end of input"),
            ("x=[a b]", "--- Unexpected token `b`"),
            ("x=[a]]", "--- Unexpected token `]`"),
            ("x=[\"a]", "--- Unexpected end of input"),
            ("x=", "--- Unexpected end of input"),
            ("1=[1]", "while attempting to parse resource name, expected"),
        ] {
            let error = parse_definition(text).expect_err(text).to_string();
            assert!(error.contains(note), "{text}: {error}");
        }
        assert!(parse_cpus("x").is_err());
        assert!(parse_cpus("-1").is_err());
        assert!(parse_cpus("4294967295").is_err());
    }
}
