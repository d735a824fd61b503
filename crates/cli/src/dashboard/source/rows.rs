//! Rows of a query, read leniently: what is missing or of another type counts as nothing.

use serde_json::Value;

/// Result of a query.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Rows(Vec<Vec<Value>>);

/// One row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowRef<'a>(&'a [Value]);

impl Rows {
    pub(crate) const fn new(rows: Vec<Vec<Value>>) -> Self {
        Self(rows)
    }

    /// From an array of arrays.
    #[cfg(test)]
    pub(crate) fn from_json(rows: &Value) -> Self {
        let rows = rows.as_array().into_iter().flatten();
        Self(
            rows.map(|row| row.as_array().cloned().unwrap_or_default())
                .collect(),
        )
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RowRef<'_>> + '_ {
        self.0.iter().map(|row| RowRef(row))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> RowRef<'a> {
    pub(crate) fn has(self, column: usize) -> bool {
        self.0.get(column).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn int(self, column: usize) -> i64 {
        self.0.get(column).and_then(Value::as_i64).unwrap_or(0)
    }

    pub(crate) fn uint(self, column: usize) -> u64 {
        u64::try_from(self.int(column)).unwrap_or(0)
    }

    pub(crate) fn small(self, column: usize) -> u32 {
        u32::try_from(self.int(column)).unwrap_or(0)
    }

    pub(crate) fn text(self, column: usize) -> Option<&'a str> {
        self.0.get(column).and_then(Value::as_str)
    }

    /// A time that may be missing.
    pub(crate) fn time(self, column: usize) -> Option<i64> {
        self.0.get(column).and_then(Value::as_i64)
    }
}
