//! Statement templates, where names stand for the numbers of task states and for the parameters
//! of a query.

use hq_core::task::TaskState;
use rusqlite::{Connection, Row};

use crate::query::{QueryLimits, query};
use crate::rows::{RowRef, Rows};

/// Inserts numbers into a statement: the numbers of task states, referred to by name (`:finished`),
/// and `values`. Only numbers are inserted, so SQL injection is impossible. SQLite rejects an
/// unknown name as an unbound parameter.
#[must_use]
pub(crate) fn fill(sql: &str, values: &[(&str, i64)]) -> String {
    let states = TaskState::ALL.map(|state| (format!(":{}", state.name()), state.number()));
    let filled = states.iter().fold(sql.to_owned(), |sql, (name, number)| {
        sql.replace(name, &number.to_string())
    });
    values.iter().fold(filled, |sql, (name, value)| {
        sql.replace(name, &value.to_string())
    })
}

/// Calls `take` with each row of a statement.
pub(crate) fn each(
    connection: &Connection,
    sql: &str,
    mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

/// A read-only statement and the type of its rows. Callers send the statement to a server or run it
/// on a file, and then parse the result. Only this crate knows its SQL.
#[derive(Clone, Debug)]
pub struct Query<R> {
    sql: String,
    read: fn(RowRef<'_>) -> R,
}

impl<R> Query<R> {
    pub(crate) fn new(template: &str, values: &[(&str, i64)], read: fn(RowRef<'_>) -> R) -> Self {
        Self {
            sql: fill(template, values),
            read,
        }
    }

    /// Returns the statement.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Parses the result.
    #[must_use]
    pub fn read(&self, rows: &Rows) -> Vec<R> {
        rows.iter().map(self.read).collect()
    }

    /// Runs the statement. Returns `true` if there are more rows than the limits allow.
    ///
    /// # Errors
    ///
    /// Returns a human-readable message.
    pub fn run(
        &self,
        connection: &Connection,
        limits: QueryLimits,
    ) -> Result<(Vec<R>, bool), String> {
        let table = query(connection, &self.sql, limits)?;
        Ok((self.read(&Rows::new(table.rows)), table.is_cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers() {
        let sql = "state IN (:finished, :failed) AND at < ?T";
        assert_eq!(fill(sql, &[("?T", 7)]), "state IN (2, 3) AND at < 7");
    }
}
