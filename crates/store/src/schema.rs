//! Tables and views, and the steps from older versions to the present one.

use rusqlite::Connection;

/// `PRAGMA application_id` of our files: "hqst".
pub(crate) const APPLICATION_ID: i32 = 0x6871_7374;

/// Steps in order; step `n` makes version `n + 1`. Released steps never change.
const STEPS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
];

/// Present version of the schema.
pub(crate) fn version() -> i32 {
    i32::try_from(STEPS.len()).unwrap_or(i32::MAX)
}

/// Has a file that is still empty made in such a way that it can shrink page by page.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")
}

/// Brings a file of version `from` up to date, in one transaction.
pub(crate) fn migrate(connection: &mut Connection, from: i32) -> rusqlite::Result<()> {
    let done = usize::try_from(from).unwrap_or(0);
    if done >= STEPS.len() {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for step in STEPS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", version())?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and definitions of everything in a file.
    fn shape(connection: &Connection) -> Vec<(String, String)> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
        let mut statement = connection.prepare(sql).expect("a database");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.expect("rows")
            .collect::<Result<_, _>>()
            .expect("texts")
    }

    #[test]
    fn every_earlier_version_becomes_the_present_one_and_keeps_its_rows() {
        let mut fresh = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut fresh, 0).expect("the steps are valid");
        for version in 1..=STEPS.len() {
            let mut old = Connection::open_in_memory().expect("a database in memory");
            for step in &STEPS[..version] {
                old.execute_batch(step).expect("the steps are valid");
            }
            old.execute(
                "INSERT INTO job_data VALUES (7, 'kept', NULL, 0, NULL, 1, NULL, 0)",
                [],
            )
            .expect("a row of the first version");
            migrate(&mut old, i32::try_from(version).expect("small")).expect("it can be migrated");
            assert_eq!(shape(&old), shape(&fresh), "from version {version}");
            let name: String = old
                .query_row("SELECT name FROM jobs WHERE id = 7", [], |row| row.get(0))
                .expect("the row");
            assert_eq!(name, "kept");
        }
    }
}
