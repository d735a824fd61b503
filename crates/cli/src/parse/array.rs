//! Parses id arrays: `1-10`, `1,3-5`, `0-100:10,200`.

use std::ops::Deref;

use hq_core::range::{ID_RANGES_MAX, IdArray, IdRange, RangeError};

use super::limit::parse_running;
use super::{Cursor, ParseError};

const WHAT: &str = "ID array";

/// The ids of a submit, such as `1-1000%50`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ArrayArg {
    pub(crate) ids: IdArray,
    /// The number behind `%`, which means the same as `--max-running`.
    pub(crate) max_running: Option<u32>,
}

impl From<IdArray> for ArrayArg {
    fn from(ids: IdArray) -> Self {
        Self {
            ids,
            max_running: None,
        }
    }
}

impl Deref for ArrayArg {
    type Target = IdArray;

    fn deref(&self) -> &IdArray {
        &self.ids
    }
}

/// Parses the ids of a submit.
pub(crate) fn parse_array(text: &str) -> Result<ArrayArg, String> {
    let (ids, max) = match text.rsplit_once('%') {
        Some((ids, max)) => (ids, Some(max.trim())),
        None => (text, None),
    };
    let max_running = max.map(parse_running).transpose();
    Ok(ArrayArg {
        ids: parse_id_array(ids).map_err(|error| error.to_string())?,
        max_running: max_running.map_err(|error| format!("{error} after `%`"))?,
    })
}

/// Parses an id array. Ids keep their order.
pub(crate) fn parse_id_array(text: &str) -> Result<IdArray, ParseError> {
    let mut cursor = Cursor::new(WHAT, text);
    let mut ranges = Vec::new();
    loop {
        cursor.skip_blanks();
        if ranges.len() == ID_RANGES_MAX {
            return Err(cursor.note_at(0, RangeError::TooManyRanges.to_string()));
        }
        ranges.push(parse_range(&mut cursor)?);
        cursor.skip_blanks();
        if !cursor.consume(",") {
            break;
        }
    }
    let expected: &[&str] = match ranges.last() {
        Some(range) if range.count() == 1 => &["`-`", "`,`", "end of input"],
        _ => &["`:`", "`,`", "end of input"],
    };
    if cursor.consume("%") {
        let text = "`%` and a number limit running tasks only in --array of a submit; max_running in a job file does it";
        return Err(cursor.note_at(0, text.to_owned()));
    }
    cursor.finish(expected)?;
    IdArray::from_user(ranges).map_err(|error| cursor.note_at(0, error.to_string()))
}

fn parse_range(cursor: &mut Cursor<'_>) -> Result<IdRange, ParseError> {
    let start = cursor.pos();
    let first = cursor.number(&["number"])?;
    if !cursor.consume("-") {
        return Ok(IdRange::single(first));
    }
    let last = cursor.number(&["number"])?;
    let step = if cursor.consume(":") {
        Some(cursor.number(&["number"])?)
    } else {
        None
    };
    let invalid =
        |cursor: &Cursor<'_>, why: &str| cursor.note_at(start, format!("Invalid range: {why}"));
    let Some(span) = last.checked_sub(first) else {
        return Err(invalid(cursor, "it ends before it begins"));
    };
    let step = match step {
        None => 1,
        Some(step) if step > 0 && step <= span => step,
        Some(_) => {
            let why = format!("expected a step from 1 to {}", span.max(1));
            return Err(invalid(cursor, &why));
        }
    };
    let too_many = "it has more than 4294967295 ids";
    let Some(count) = (span / step).checked_add(1) else {
        return Err(invalid(cursor, too_many));
    };
    let range = IdRange::new(first, count, step).map_err(|_| invalid(cursor, too_many))?;
    Ok(range.with_end(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ranges_steps_and_blanks() {
        for (text, shown, count) in [
            ("0", "0", 1),
            ("1-10", "1-10", 10),
            ("1,3-5", "1,3-5", 4),
            ("0-10:2", "0-10:2", 6),
            ("1-10:2", "1-10:2", 5),
            ("1-10:6,12", "1-10:6,12", 3),
            ("1_000-1_0_01", "1000-1001", 2),
            ("1 , 2,\t4-6:2", "1,2,4-6:2", 4),
            ("5-5", "5", 1),
            ("0-4294967294", "0-4294967294", u32::MAX),
        ] {
            let array = parse_id_array(text).expect(text);
            assert_eq!(
                (array.to_string().as_str(), array.len()),
                (shown, count),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_with_the_documented_notes() {
        for (text, note) in [
            ("3-1", "--- Invalid range: it ends before it begins"),
            ("1-3:0", "--- Invalid range: expected a step from 1 to 2"),
            ("1-3:3", "--- Invalid range: expected a step from 1 to 2"),
            (
                "0-4294967295",
                "--- Invalid range: it has more than 4294967295 ids",
            ),
            ("1,1", "--- Ranges overlap"),
            ("1-5,3", "--- Ranges overlap"),
            ("1x", "--- Unexpected token `x`"),
            ("a", "--- Unexpected token `a`"),
            ("1-", "--- Unexpected end of input"),
            ("1,", "--- Unexpected end of input"),
            ("1 - 2", "--- Unexpected token `-`"),
            ("_1", "--- Unexpected token `_`"),
            ("-1", "--- Unexpected token `-`"),
            ("4294967296", "--- Number is too large"),
            ("", "(the input was empty)"),
        ] {
            let error = parse_id_array(text).expect_err(text).to_string();
            assert!(error.contains(note), "{text}: {error}");
        }
    }

    #[test]
    fn refuses_ranges_whose_comparison_would_take_hours() {
        let range = |i: u32| format!("{i}-{}:1000003", 4_000_000_000 + i);
        let text: Vec<String> = (0..1_000_000).map(range).collect();
        let error = parse_id_array(&text.join(",")).expect_err("interleaved");
        assert!(error.to_string().contains("Too many interleaved ranges"));
    }

    #[test]
    fn a_submit_limits_running_tasks_as_in_slurm() {
        let found = |text| parse_array(text).map(|array| (array.to_string(), array.max_running));
        assert_eq!(found("1-9:2%3"), Ok(("1-9:2".to_owned(), Some(3))));
        assert_eq!(found("7"), Ok(("7".to_owned(), None)));
        for bad in ["1-9%", "1-9%0", "1-9%3/s", "%3", "1%2%3", "1-9%3,11"] {
            assert!(found(bad).is_err(), "{bad}");
        }
        let error = parse_id_array("1-9%3").expect_err("only in a submit");
        assert!(error.to_string().contains("--array"), "{error}");
    }

    #[test]
    fn draws_the_position() {
        insta::assert_snapshot!(parse_id_array("1,2x-3").expect_err("bad"), @r"
        Unexpected token found while attempting to parse ID array, expected `-`, `,` or end of input:
          1,2x-3
             |
             --- Unexpected token `x`
        ");
    }
}
