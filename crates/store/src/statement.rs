//! Statements as templates: names stand for the numbers of task states, and for the numbers of one query.

use hq_core::task::TaskState;
use rusqlite::Connection;

use crate::query::{QueryLimits, query};
use crate::rows::{RowRef, Rows};

/// Puts numbers into a statement: those of task states where it names them (`:finished`), and `values` by their names.
/// They are numbers, so nothing can be smuggled in. A name that is left over is a parameter without a value, which
/// SQLite refuses.
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

/// A statement that only reads, and the type of its rows. A caller with a way to the store, a file or a server, sends the
/// statement that way and reads what comes back; the words of the statement are for the store alone.
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

    /// The statement.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The result.
    #[must_use]
    pub fn read(&self, rows: &Rows) -> Vec<R> {
        rows.iter().map(self.read).collect()
    }

    /// Runs it; `true` if there are more rows than the limits allow.
    ///
    /// # Errors
    ///
    /// A sentence for users.
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
