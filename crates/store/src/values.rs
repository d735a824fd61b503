//! The values of calls: bytes that the server stores without interpreting them.
//!
//! A value arrives before the report that its task has ended and bypasses the core, which does not
//! handle values. A worker may send a value for an outdated instance. It is stored but never read,
//! because readers select the recorded instance and worker.

use hq_core::id::{InstanceId, TaskKey, WorkerId};
use hq_core::range::IdArray;
use rusqlite::{Connection, Transaction, params};

/// The value of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallValue {
    /// The job and the id of the task.
    pub task: TaskKey,
    /// The number of the instance.
    pub instance: InstanceId,
    /// The worker that ran the task.
    pub worker: WorkerId,
    /// The value.
    pub data: Box<[u8]>,
}

/// Stores values. If a value is sent again, it is identical.
pub(crate) fn write(db: &Transaction<'_>, values: &[CallValue]) -> rusqlite::Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let mut insert =
        db.prepare_cached("INSERT OR REPLACE INTO value_data VALUES (?, ?, ?, ?, ?)")?;
    for value in values {
        insert.execute(params![
            value.task.job.as_u32(),
            value.task.task.as_u32(),
            value.instance.as_u32(),
            value.worker.as_u32(),
            value.data,
        ])?;
    }
    Ok(())
}

/// The values of tasks of one job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The values by task id.
    pub values: Vec<(u32, Vec<u8>)>,
    /// The first task that was not read because of the size limit.
    pub next: Option<u32>,
}

/// Reads the values of ended tasks until they reach `bytes_max` bytes.
///
/// # Errors
///
/// Returns an error if the store cannot be read.
pub fn read(db: &Connection, job: u32, tasks: &IdArray, bytes_max: usize) -> Result<Found, String> {
    find(db, job, tasks, bytes_max).map_err(|error| format!("the values cannot be read: {error}"))
}

fn find(db: &Connection, job: u32, tasks: &IdArray, bytes_max: usize) -> rusqlite::Result<Found> {
    let mut select = db.prepare_cached(
        "SELECT v.data FROM task_row_data t JOIN value_data v ON v.job = t.job AND v.task = t.task \
         AND v.instance = t.instance AND v.worker = t.worker WHERE t.job = ? AND t.task = ?",
    )?;
    let mut found = Found::default();
    let mut bytes = 0;
    for task in tasks.iter() {
        if bytes >= bytes_max {
            found.next = Some(task);
            break;
        }
        let mut rows = select.query([job, task])?;
        if let Some(row) = rows.next()? {
            let data: Vec<u8> = row.get(0)?;
            bytes += data.len();
            found.values.push((task, data));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use hq_core::id::{JobId, TaskId};

    use super::*;

    #[test]
    fn a_value_counts_if_it_is_of_the_end_that_was_recorded() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        crate::schema::migrate(&mut db, 0).expect("the steps are valid");
        let value = |task, instance, worker, data: &[u8]| CallValue {
            task: TaskKey::new(JobId(3), TaskId(task)),
            instance: InstanceId(instance),
            worker: WorkerId(worker),
            data: data.into(),
        };
        let transaction = db.transaction().expect("begins");
        let sent = [
            value(0, 0, 1, b"superseded"),
            value(0, 1, 9, b"forged"),
            value(0, 1, 2, b"first attempt to send"),
            value(0, 1, 2, b"right"),
            value(1, 0, 2, b"of a task that runs"),
            value(2, 0, 2, b"second"),
        ];
        write(&transaction, &sent).expect("stored");
        for (task, instance) in [(0, 1), (2, 0)] {
            let sql = "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant) \
                       VALUES (3, ?, 2, ?, 0, 2, 0)";
            transaction.execute(sql, [task, instance]).expect("a row");
        }
        transaction.commit().expect("committed");
        let tasks = IdArray::consecutive(0, 4).expect("valid");
        let all = read(&db, 3, &tasks, usize::MAX).expect("readable");
        let expected = [(0, b"right".to_vec()), (2, b"second".to_vec())];
        assert_eq!((&all.values[..], all.next), (&expected[..], None));
        let part = read(&db, 3, &tasks, 1).expect("readable");
        assert_eq!((part.values.len(), part.next), (1, Some(1)));
    }
}
