//! Statements as templates: names stand for the numbers of task states, and for the numbers of one query.

use hq_core::task::TaskState;

/// Puts numbers into a statement: those of task states where it names them (`:finished`), and `values` by their names.
/// They are numbers, so nothing can be smuggled in. A name that is left over is a parameter without a value, which
/// SQLite refuses.
#[must_use]
pub fn fill(sql: &str, values: &[(&str, i64)]) -> String {
    let states = TaskState::ALL.map(|state| (format!(":{}", state.name()), state.number()));
    let filled = states.iter().fold(sql.to_owned(), |sql, (name, number)| {
        sql.replace(name, &number.to_string())
    });
    values.iter().fold(filled, |sql, (name, value)| {
        sql.replace(name, &value.to_string())
    })
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
