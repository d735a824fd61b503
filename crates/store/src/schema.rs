//! Tables and views, and the steps from older versions to the present one.

use rusqlite::Connection;

/// `PRAGMA application_id` of our files: "hqst".
pub(crate) const APPLICATION_ID: i32 = 0x6871_7374;

/// Steps in order; step `n` makes version `n + 1`. Released steps never change.
const STEPS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
];

/// Present version of the schema.
pub(crate) fn version() -> i32 {
    i32::try_from(STEPS.len()).unwrap_or(i32::MAX)
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
