//! The table `meta`, which has one value per key.

use hq_core::id::{InstanceId, JobId, WorkerId};
use hq_core::job::{Held, KeptChanges};
use hq_core::quarantine::Quarantine;
use hq_core::server_state::SubmitKey;
use hq_core::time::Timestamp;
use hq_protocol::{Message as _, client, common};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension as _, ToSql, params};
use serde_json::{Value, json};

/// Returns the text of a key if it exists.
pub(crate) fn text(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT CAST(value AS TEXT) FROM meta WHERE key = ?";
    connection
        .query_row(sql, [key], |row| row.get(0))
        .optional()
}

/// Returns the number of a key, or 0 if it does not exist.
pub(crate) fn number(connection: &Connection, key: &str) -> rusqlite::Result<i64> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?";
    let found = connection
        .query_row(sql, [key], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

/// Stores the number or text of a key.
pub(crate) fn set(connection: &Connection, key: &str, value: impl ToSql) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?, ?)")?
        .execute(params![key, value])?;
    Ok(())
}

/// Creates a key, or removes it.
pub(crate) fn set_flag(connection: &Connection, key: &str, is_set: bool) -> rusqlite::Result<()> {
    match is_set {
        true => set(connection, key, 1),
        false => remove(connection, key),
    }
}

/// Stores an instance of a submit under `<prefix><job>_<number>`.
pub(crate) fn note_instance(
    connection: &Connection,
    prefix: &str,
    (job, number): (JobId, u32),
    instance: InstanceId,
) -> rusqlite::Result<()> {
    let key = format!("{prefix}{job}_{number}");
    set(connection, &key, instance.as_u32())
}

/// Stores which job resubmitted tasks of a job.
pub(crate) fn note_resubmitted(
    connection: &Connection,
    job: JobId,
    new: JobId,
) -> rusqlite::Result<()> {
    set(connection, &format!("{RESUBMITTED}{job}"), new.as_u32())
}

/// Stores a hold or release of tasks as the change with this number. If it concerns the whole job, it
/// replaces the earlier ones.
pub(crate) fn note_held(
    connection: &Connection,
    job: JobId,
    number: i64,
    held: &Held,
) -> rusqlite::Result<()> {
    if held.is_whole {
        remove_all(connection, &format!("{HELD}{job}_"))?;
        if !held.is_held {
            return Ok(());
        }
    }
    // The keys are in the order of the changes.
    let key = format!("{HELD}{job}_{number:020}");
    let mut value = vec![u8::from(held.is_held) | u8::from(held.holds_new) << 1];
    value.extend(common::IdArray::from(&held.tasks).encode_to_vec());
    set(connection, &key, value)
}

/// Returns what [`note_held`] has stored, in order. Skips corrupt values.
pub(crate) fn held(connection: &Connection) -> rusqlite::Result<Vec<(JobId, Held)>> {
    let parsed = |(key, value): (String, Vec<u8>)| {
        let (job, _) = key.split_once('_')?;
        let (flags, tasks) = value.split_first()?;
        let held = Held {
            tasks: common::IdArray::decode(tasks).ok()?.try_into().ok()?,
            is_held: flags & 1 != 0,
            holds_new: flags & 2 != 0,
            is_whole: false,
        };
        Some((JobId(job.parse().ok()?), held))
    };
    let values = values(connection, HELD, "BLOB")?;
    Ok(values.into_iter().filter_map(parsed).collect())
}

/// Stores all changes of a job.
pub(crate) fn note_revised(
    connection: &Connection,
    job: JobId,
    kept: &KeptChanges,
) -> rusqlite::Result<()> {
    let value = client::KeptChanges::from(kept).encode_to_vec();
    set(connection, &format!("{REVISED}{job}"), value)
}

/// Returns what [`note_revised`] has stored. Skips corrupt values.
pub(crate) fn revised(connection: &Connection) -> rusqlite::Result<Vec<(JobId, KeptChanges)>> {
    let parsed = |(job, value): (String, Vec<u8>)| {
        let kept = client::KeptChanges::decode(&*value).ok()?.try_into().ok()?;
        Some((JobId(job.parse().ok()?), kept))
    };
    let values = values(connection, REVISED, "BLOB")?;
    Ok(values.into_iter().filter_map(parsed).collect())
}

pub(crate) fn remove(connection: &Connection, key: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM meta WHERE key = ?")?
        .execute([key])?;
    Ok(())
}

/// Removes all keys with this prefix. The prefix must end in `_`.
pub(crate) fn remove_all(connection: &Connection, prefix: &str) -> rusqlite::Result<()> {
    // This is a range of the primary key, up to the byte after `_`.
    connection
        .prepare_cached(
            "DELETE FROM meta WHERE key >= ?1 AND key < substr(?1, 1, length(?1) - 1) || '`'",
        )?
        .execute([prefix])?;
    Ok(())
}

/// Returns the numbers of all keys with this prefix, each with the rest of its key.
pub(crate) fn numbers(
    connection: &Connection,
    prefix: &str,
) -> rusqlite::Result<Vec<(String, i64)>> {
    values(connection, prefix, "INTEGER")
}

/// Returns the texts of all keys with this prefix, each with the rest of its key.
pub(crate) fn texts(
    connection: &Connection,
    prefix: &str,
) -> rusqlite::Result<Vec<(String, String)>> {
    values(connection, prefix, "TEXT")
}

fn values<T: FromSql>(
    connection: &Connection,
    prefix: &str,
    kind: &str,
) -> rusqlite::Result<Vec<(String, T)>> {
    let sql = format!(
        "SELECT substr(key, length(?1) + 1), CAST(value AS {kind}) FROM meta \
         WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key"
    );
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([prefix], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Stores the record of a token, or removes it.
pub(crate) fn note_token(
    connection: &Connection,
    name: &str,
    record: Option<&str>,
) -> rusqlite::Result<()> {
    let key = format!("{TOKEN}{name}");
    match record {
        Some(record) => set(connection, &key, record),
        None => remove(connection, &key),
    }
}

/// Stores the key of a submit.
pub(crate) fn note_key(
    connection: &Connection,
    job: JobId,
    key: &SubmitKey,
) -> rusqlite::Result<()> {
    let name = format!("{SUBMIT_KEY}{job}_{}", key.name);
    set(connection, &name, &key.digest)
}

/// The key for the report of a repair. It exists until the next server starts.
pub(crate) const REPAIRED: &str = "repaired";
/// The key prefix of acknowledged problems. The value is the extent of the problem.
pub(crate) const ACKNOWLEDGED: &str = "acknowledged_";
/// The key prefix of tokens for programs. The value is the record of the token.
pub(crate) const TOKEN: &str = "token_";
/// The key prefix of resubmitted jobs. The value is the id of the new job.
pub(crate) const RESUBMITTED: &str = "resubmitted_";

/// The key prefix of limits on tasks, followed by the name. The value is the limit as text.
pub(crate) const LIMIT: &str = "limit_";

/// The key prefix of changes of jobs, followed by the job. The value is a message with all of them.
pub(crate) const REVISED: &str = "revised_";

/// The key prefix of holds and releases of tasks, followed by `<job>_<number>`.
pub(crate) const HELD: &str = "held_";

/// The key prefix of submits that were repeated by a later attempt of their task, followed by
/// `<job>_<number>`. The value is that attempt.
pub(crate) const REPEATED: &str = "repeated_";
/// The key prefix of submits with skipped instances, followed by `<job>_<number>`. The value is the
/// first instance of tasks that were never sent to a worker.
pub(crate) const FIRST_INSTANCE: &str = "first_instance_";
/// This key exists after a worker has been abandoned, until the tasks that it may have started have
/// new instances.
pub(crate) const STARTS_UNKNOWN: &str = "starts_unknown";
/// The key prefix of submits with a key, followed by the job, `_` and the key. The value is the
/// digest of the submit.
pub(crate) const SUBMIT_KEY: &str = "submit_key_";

/// The key prefix of workers in quarantine. The value is the quarantine as JSON.
pub(crate) const QUARANTINE: &str = "quarantine_";

/// Records that a worker is in quarantine. Returns the complete quarantine as JSON, which events
/// also contain.
pub(crate) fn set_quarantine(
    connection: &Connection,
    quarantine: &Quarantine,
) -> rusqlite::Result<Value> {
    let value = json!({
        "id": quarantine.worker.as_u32(),
        "since_unix_ns": quarantine.since.0,
        "until_unix_ns": quarantine.until.0,
        "round": quarantine.round,
        "is_asked": quarantine.is_asked,
        "reason": quarantine.why,
    });
    let key = format!("{QUARANTINE}{}", quarantine.worker);
    set(connection, &key, value.to_string())?;
    Ok(value)
}

/// Returns all stored quarantines. If one cannot be read, it is ignored and its worker is trusted.
pub(crate) fn quarantines(connection: &Connection) -> rusqlite::Result<Vec<Quarantine>> {
    let stored = texts(connection, QUARANTINE)?.into_iter();
    let read = |(_, text): (_, String)| quarantine_of(&serde_json::from_str(&text).ok()?);
    Ok(stored.filter_map(read).collect())
}

fn quarantine_of(value: &Value) -> Option<Quarantine> {
    Some(Quarantine {
        worker: WorkerId(u32::try_from(value.get("id")?.as_u64()?).ok()?),
        since: Timestamp(value.get("since_unix_ns")?.as_i64()?),
        until: Timestamp(value.get("until_unix_ns")?.as_i64()?),
        round: u32::try_from(value.get("round")?.as_u64()?).ok()?.max(1),
        is_asked: value.get("is_asked")?.as_bool()?,
        why: value.get("reason")?.as_str()?.into(),
    })
}

/// Returns the key that exists while a worker is draining.
pub(crate) fn draining_key(worker: WorkerId) -> String {
    format!("draining_{worker}")
}
