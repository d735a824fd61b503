//! The rows of a query. They are read leniently: a missing value, or one of another type, counts as
//! null.

use hq_core::task::TaskState;
use serde_json::Value;

use crate::encode;

/// The result of a query.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rows(Vec<Vec<Value>>);

/// A row of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowRef<'a>(&'a [Value]);

impl Rows {
    /// Wraps the rows that a query has returned.
    #[must_use]
    pub const fn new(rows: Vec<Vec<Value>>) -> Self {
        Self(rows)
    }

    /// Creates rows from an array of arrays, for tests.
    #[must_use]
    pub fn from_json(rows: &Value) -> Self {
        let rows = rows.as_array().into_iter().flatten();
        Self(
            rows.map(|row| row.as_array().cloned().unwrap_or_default())
                .collect(),
        )
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RowRef<'_>> + '_ {
        self.0.iter().map(|row| RowRef(row))
    }
}

impl<'a> RowRef<'a> {
    pub(crate) fn int(self, column: usize) -> i64 {
        self.number(column).unwrap_or(0)
    }

    /// Returns a nullable integer.
    pub(crate) fn number(self, column: usize) -> Option<i64> {
        self.0.get(column).and_then(Value::as_i64)
    }

    pub(crate) fn uint(self, column: usize) -> u64 {
        u64::try_from(self.int(column)).unwrap_or(0)
    }

    pub(crate) fn small(self, column: usize) -> u32 {
        u32::try_from(self.int(column)).unwrap_or(0)
    }

    /// Returns a nullable id.
    pub(crate) fn id(self, column: usize) -> Option<u32> {
        u32::try_from(self.number(column)?).ok()
    }

    /// Returns a nullable number with a fraction.
    pub(crate) fn real(self, column: usize) -> Option<f64> {
        self.0.get(column).and_then(Value::as_f64)
    }

    pub(crate) fn text(self, column: usize) -> Option<&'a str> {
        self.0.get(column).and_then(Value::as_str)
    }

    /// Returns bytes that the statement encoded as hexadecimal digits.
    pub(crate) fn bytes(self, column: usize) -> Option<Box<[u8]>> {
        let digits = self.text(column)?.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.map(byte).collect()
    }

    pub(crate) fn owned(self, column: usize) -> Option<String> {
        self.text(column).map(str::to_owned)
    }

    /// Parses JSON text.
    pub(crate) fn json(self, column: usize) -> Value {
        self.text(column)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Returns a state. A number that no release writes counts as waiting.
    pub(crate) fn state(self, column: usize) -> TaskState {
        TaskState::from_number(self.int(column)).unwrap_or(TaskState::Waiting)
    }

    /// Returns the short form of a failure, based on `outcome` and the next column, `message`.
    pub(crate) fn failure_words(self, column: usize) -> String {
        encode::failure_words(self.int(column), self.text(column + 1))
    }
}
