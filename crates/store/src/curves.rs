//! Stores the resource usage of tasks over time. It is written in addition to the changes of the
//! core, which does not handle it.
//!
//! A worker sends the curve of a running instance again as it grows, and the complete curve when
//! the instance ends; the last one is kept. Curves of forgotten jobs are dropped, so none are left
//! when a job has been swept. See `docs/usage.md`.

use std::time::Duration;

use hq_core::curve::{Asked, Curve, GpuCurve, GpusGiven};
use hq_core::id::WorkerId;
use hq_core::worker_state::InstanceKey;
use rusqlite::{Connection, Row, Transaction, params};

/// The resource usage of one instance over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskCurve {
    /// The task and the instance.
    pub key: InstanceKey,
    /// The worker that ran the instance. For a multi-node task, this is the root worker.
    pub worker: WorkerId,
    /// The usage over time.
    pub curve: Curve,
}

/// Writes curves in the same transaction as the task ends that follow.
pub(crate) fn write(db: &Transaction<'_>, curves: &[TaskCurve]) -> rusqlite::Result<()> {
    if curves.is_empty() {
        return Ok(());
    }
    // A job is stored before its tasks start. A sweep deletes the curves of a forgotten job only
    // once.
    let mut insert = db.prepare_cached(
        "INSERT OR REPLACE INTO curve_data SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 \
         WHERE EXISTS (SELECT 1 FROM job_data WHERE id = ?1 AND NOT is_forgotten)",
    )?;
    for sent in curves {
        let TaskCurve { key, worker, curve } = sent;
        let spacing = u64::try_from(curve.spacing.as_millis()).unwrap_or(u64::MAX);
        insert.execute(params![
            key.task.job.as_u32(),
            key.task.task.as_u32(),
            key.instance.as_u32(),
            worker.as_u32(),
            number(spacing),
            number(curve.memory_peak_kib),
            number(curve.cpu_peak_milli),
            number(curve.asked.memory_kib),
            curve.asked.is_memory_limit,
            number(curve.asked.cpu_units),
            curve.memory,
            curve.cpu,
        ])?;
        match &curve.gpu {
            Some(gpu) => write_gpu(db, sent, gpu)?,
            None => forget_gpu(db, sent)?,
        }
    }
    Ok(())
}

fn write_gpu(db: &Transaction<'_>, sent: &TaskCurve, curve: &GpuCurve) -> rusqlite::Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT OR REPLACE INTO gpu_curve_data SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 \
         WHERE EXISTS (SELECT 1 FROM curve_data WHERE (job, task, instance, worker) = (?1, ?2, ?3, ?4))",
    )?;
    insert.execute(params![
        sent.key.task.job.as_u32(),
        sent.key.task.task.as_u32(),
        sent.key.instance.as_u32(),
        sent.worker.as_u32(),
        number(curve.busy_peak_milli),
        number(curve.memory_peak_kib),
        number(curve.given.units),
        number(curve.given.memory_kib),
        curve.given.is_memory_of_devices,
        curve.busy,
        curve.memory,
    ])?;
    Ok(())
}

/// Deletes the GPU curve of an earlier report, because its points do not match the new ones.
fn forget_gpu(db: &Transaction<'_>, sent: &TaskCurve) -> rusqlite::Result<()> {
    let mut delete = db.prepare_cached(
        "DELETE FROM gpu_curve_data WHERE (job, task, instance, worker) = (?1, ?2, ?3, ?4)",
    )?;
    delete.execute(params![
        sent.key.task.job.as_u32(),
        sent.key.task.task.as_u32(),
        sent.key.instance.as_u32(),
        sent.worker.as_u32(),
    ])?;
    Ok(())
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The instance, the worker and the curve.
pub type Found = (u32, u32, Curve);

/// Reads the curves of all instances of a task, starting with the first instance.
///
/// # Errors
///
/// Returns an error if the store cannot be read.
pub fn read(db: &Connection, job: u32, task: u32) -> Result<Vec<Found>, String> {
    let find = || {
        let mut select = db.prepare_cached(
            "SELECT c.instance, c.worker, spacing_ms, c.memory_peak_kib, cpu_peak_milli, memory_asked_kib, is_memory_limit, \
             cpu_asked_units, c.memory, cpu, busy_peak_milli, g.memory_peak_kib, asked_units, memory_of_devices_kib, \
             is_memory_of_devices, busy, g.memory \
             FROM curve_data c LEFT JOIN gpu_curve_data g USING (job, task, instance, worker) \
             WHERE c.job = ? AND c.task = ? ORDER BY c.instance",
        )?;
        let rows = select.query_map([job, task], found)?;
        rows.collect::<rusqlite::Result<Vec<Found>>>()
    };
    find().map_err(|error| format!("cannot read the usage curves of the task: {error}"))
}

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let number = |at: usize| -> rusqlite::Result<u64> {
        Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0))
    };
    let bytes = |at: usize| Ok::<Box<[u8]>, rusqlite::Error>(row.get::<_, Vec<u8>>(at)?.into());
    let curve = Curve {
        spacing: Duration::from_millis(number(2)?),
        memory_peak_kib: number(3)?,
        cpu_peak_milli: number(4)?,
        asked: Asked {
            memory_kib: number(5)?,
            is_memory_limit: row.get(6)?,
            cpu_units: number(7)?,
        },
        memory: bytes(8)?,
        cpu: bytes(9)?,
        gpu: found_gpu(row)?,
    };
    Ok((row.get(0)?, row.get(1)?, curve))
}

/// Reads the GPU curve. Returns `None` if there is no row for GPUs.
fn found_gpu(row: &Row<'_>) -> rusqlite::Result<Option<Box<GpuCurve>>> {
    let number = |at: usize| -> rusqlite::Result<u64> {
        Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0))
    };
    let Some(busy) = row.get::<_, Option<Vec<u8>>>(15)? else {
        return Ok(None);
    };
    Ok(Some(Box::new(GpuCurve {
        busy_peak_milli: number(10)?,
        memory_peak_kib: number(11)?,
        given: GpusGiven {
            units: number(12)?,
            memory_kib: number(13)?,
            is_memory_of_devices: row.get(14)?,
        },
        busy: busy.into(),
        memory: row.get::<_, Vec<u8>>(16)?.into(),
    })))
}

#[cfg(test)]
mod tests {
    use hq_core::id::{InstanceId, JobId};

    use super::*;

    fn curve(job: u32, instance: u32, memory: &[u8]) -> TaskCurve {
        TaskCurve {
            key: InstanceKey::new(JobId(job), 17, InstanceId(instance)),
            worker: WorkerId(4),
            curve: Curve {
                spacing: Duration::from_secs(2),
                memory_peak_kib: 2_048,
                cpu_peak_milli: 1_500,
                memory: memory.into(),
                cpu: vec![255; memory.len()].into(),
                asked: Asked {
                    memory_kib: 4_096,
                    is_memory_limit: true,
                    cpu_units: 20_000,
                },
                gpu: None,
            },
        }
    }

    fn with_gpu(mut sent: TaskCurve) -> TaskCurve {
        sent.curve.gpu = Some(Box::new(GpuCurve {
            busy_peak_milli: 2_000,
            memory_peak_kib: 254 * 1_024,
            busy: [255, 0, 1].into(),
            memory: [1, 0, 255].into(),
            given: GpusGiven {
                units: 15_000,
                memory_kib: 1 << 20,
                is_memory_of_devices: false,
            },
        }));
        sent
    }

    #[test]
    fn gpus_are_beside_the_rest_and_their_gaps_are_null() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        crate::schema::migrate_to(&mut db, 12).expect("the steps are valid");
        let job = "INSERT INTO job_data (id, name, is_open, is_forgotten, submitted_unix_ns) \
                   VALUES (3, 'kept', 0, 0, 1), (5, 'forgotten', 0, 1, 1)";
        db.execute_batch(job).expect("a job");
        let old = "INSERT INTO curve_data VALUES (3, 17, 0, 4, 2000, 1, 1, 0, 0, 0, x'FF', x'FF')";
        db.execute_batch(old).expect("a curve of before");
        crate::schema::migrate(&mut db, 12).expect("the steps are valid");
        let transaction = db.transaction().expect("begins");
        let sent = [
            with_gpu(curve(3, 1, &[1, 2, 3])),
            with_gpu(curve(5, 1, &[1, 2, 3])),
        ];
        write(&transaction, &sent).expect("stored");
        transaction.commit().expect("committed");
        let found = read(&db, 3, 17).expect("readable");
        assert_eq!(found[0].2.gpu, None);
        assert_eq!(found[1].2, sent[0].curve);
        let kept: i64 = db
            .query_row("SELECT count(*) FROM gpu_curve_data", [], |row| row.get(0))
            .expect("a table");
        assert_eq!(kept, 1, "nothing of a job that is forgotten");
        let sql = "SELECT group_concat(coalesce(gpus, '-') || ' ' || coalesce(gpu_memory_mib, '-'), ', ') || ' of ' || \
                   max(gpus_asked) || ' ' || max(gpu_memory_of_devices_mib) || ' ' || max(gpu_memory_of) \
                   FROM usage WHERE instance = 1";
        let shown: String = db.query_row(sql, [], |row| row.get(0)).expect("a view");
        assert_eq!(shown, "2.0 0.0, - -, 0.0 254.0 of 1.5 1024.0 processes");
        let sql = "SELECT count(*), count(gpus), count(gpus_asked), count(gpu_memory_of) FROM usage WHERE instance = 0";
        let counts: [i64; 4] = db
            .query_row(sql, [], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
            })
            .expect("a view");
        assert_eq!(counts, [1, 0, 0, 0]);
        // A later curve does not include GPUs, as if the worker did not measure them.
        let transaction = db.transaction().expect("begins");
        let later = curve(3, 1, &[1, 2]);
        write(&transaction, std::slice::from_ref(&later)).expect("stored");
        transaction.commit().expect("committed");
        assert_eq!(read(&db, 3, 17).expect("readable")[1].2, later.curve);
    }

    #[test]
    fn the_last_curve_of_an_instance_counts_and_forgotten_jobs_get_none() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        crate::schema::migrate(&mut db, 0).expect("the steps are valid");
        let jobs = "INSERT INTO job_data (id, name, is_open, is_forgotten, submitted_unix_ns) \
                    VALUES (3, 'kept', 0, 0, 1), (5, 'forgotten', 0, 1, 1)";
        db.execute_batch(jobs).expect("jobs");
        let transaction = db.transaction().expect("begins");
        let sent = [
            curve(3, 0, &[255, 0]),
            curve(3, 1, &[128]),
            curve(3, 1, &[128, 255, 1]),
            curve(5, 0, &[1, 2]),
            curve(6, 0, &[1, 2]),
        ];
        write(&transaction, &sent).expect("stored");
        transaction.commit().expect("committed");
        let expected = [(0, 4, sent[0].curve.clone()), (1, 4, sent[2].curve.clone())];
        assert_eq!(read(&db, 3, 17).expect("readable"), expected);
        for job in [5, 6] {
            assert_eq!(read(&db, job, 17).expect("readable"), []);
        }
        // The view shows the same values without application-defined SQL functions.
        let sql = "SELECT group_concat(until_s || ' ' || memory_mib || ' ' || cpus || ' ' || memory_asked_mib || ' ' || \
                   memory_limit_mib || ' ' || cpus_asked, ', ') FROM usage WHERE job = 3 AND instance = 0";
        let shown: String = db.query_row(sql, [], |row| row.get(0)).expect("a view");
        assert_eq!(shown, "2.0 2.0 1.5 4.0 4.0 2.0, 4.0 0.0 1.5 4.0 4.0 2.0");
    }
}
