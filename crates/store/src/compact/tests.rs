//! Tests of compaction: which rows are deleted, which are kept, and that a crash between steps
//! loses nothing.

use hq_core::hardware::HardwareUsage;
use hq_core::id::{JobId, WorkerId};
use hq_core::server_state::ChangeKind;

use super::*;
use crate::testing::{
    NOW, add_job, add_large_job, change, check_whole, filled, number, results, started, wait_for,
};
use crate::{FlushError, Store};

fn file_len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("the file").len()
}

#[test]
fn forgotten_jobs_leave_the_file_and_it_shrinks_by_itself() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_large_job(&mut handle, JobId(1), (30_000, 5 << 20), true);
    add_job(&mut handle, JobId(2), 10_000, true);
    handle.client().flush().expect("a store");
    wait_for("everything is in the file", || {
        number(&path, "SELECT count(*) FROM task_data") == 40_000
    });
    let full = u64::from(number(&path, "PRAGMA page_count")) * 4_096;
    handle.store(vec![change(ChangeKind::JobsForgotten(vec![JobId(1)]))]);
    // 1 MiB is kept free for new rows.
    wait_for("the file is small", || file_len(&path) < full * 2 / 3);
    wait_for("the rows are gone", || {
        number(&path, "SELECT count(*) FROM job_data") == 1
    });
    assert_eq!(results(&path).len(), 10_000);
    assert_eq!(number(&path, "SELECT count(*) FROM submit_data"), 1);
    check_whole(&path, handle);
}

#[test]
fn a_full_file_drops_its_oldest_completed_jobs_and_nothing_else() {
    const SIZE_MAX: u64 = 2 << 20;
    const JOBS: u32 = 30;
    const TASKS: u32 = 2_000;
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let store = Store::open(&path).expect("a fresh file");
    let mut handle = started(store.with_size_max(Some(SIZE_MAX)));
    for job in 1..=JOBS {
        // Folding makes finished tasks smaller, but the submit keeps its size.
        add_large_job(&mut handle, JobId(job), (TASKS, 100_000), job != 1);
    }
    handle.client().flush().expect("a store");
    let jobs = || number(&path, "SELECT count(*) FROM job_data");
    // An idle file has spare pages.
    let len_max = SIZE_MAX + SPARE_PAGES * 4_096;
    wait_for("jobs are dropped and pages given back", || {
        jobs() < JOBS && file_len(&path) <= len_max
    });
    assert_eq!(
        number(&path, "SELECT count(*) FROM task_data WHERE job = 1"),
        TASKS,
        "what is not completed stays, however old"
    );
    let left = jobs();
    assert!(left > 5, "no more than needed: {left} are left");
    assert_eq!(
        number(&path, "SELECT min(id) FROM job_data WHERE id > 1"),
        JOBS + 2 - left,
        "the oldest went"
    );
    assert_eq!(
        results(&path).len(),
        (left * TASKS) as usize,
        "what is left is whole"
    );
    assert_eq!(number(&path, "SELECT count(*) FROM worker_data"), 1);
    let last = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'last_job'";
    assert_eq!(number(&path, last), JOBS, "ids are not used again");
    check_whole(&path, handle);
}

#[test]
fn a_crash_between_any_two_steps_is_made_good_by_the_next_server() {
    let dir = tempfile::tempdir().expect("directory");
    let whole = dir.path().join("whole.db");
    filled(&whole, &[5_000, 3_000]);
    let bytes = std::fs::read(&whole).expect("the file");
    for steps in 0..12 {
        let path = dir.path().join(format!("crash-{steps}.db"));
        std::fs::write(&path, &bytes).expect("room");
        let mut db = Connection::open(&path).expect("a database");
        db.execute("UPDATE job_data SET is_forgotten = 1 WHERE id = 1", [])
            .expect("a row");
        let mut compactor = Compactor::new(1, None);
        assert!(compactor.look(&mut db, &path).expect("a look"));
        for _ in 0..steps {
            if compactor.is_busy() {
                let stepped = compactor.step(&mut db).expect("a step");
                assert!(stepped.is_some(), "no other server has the store");
            }
        }
        drop(db);
        let store = Store::open(&path).expect("it is whole");
        let loaded = store.load("TestUid", NOW).expect("it can be read");
        assert_eq!(
            loaded.state.jobs().keys().collect::<Vec<_>>(),
            [&JobId(2)],
            "after {steps} steps"
        );
        let handle = started(store);
        wait_for("the next server finishes it", || {
            number(&path, "SELECT count(*) FROM job_data") == 1
        });
        check_whole(&path, handle);
    }
}

/// Runs steps until no work is left.
fn steps(compactor: &mut Compactor, db: &mut Connection) -> u32 {
    let mut steps = 0;
    while compactor.is_busy() {
        let stepped = compactor.step(db).expect("a step");
        assert!(stepped.is_some(), "no other server has the store");
        steps += 1;
    }
    steps
}

#[test]
fn many_small_jobs_take_few_steps() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[1; 600]);
    let mut db = Connection::open(&path).expect("a database");
    db.execute("UPDATE job_data SET is_forgotten = 1 WHERE id > 1", [])
        .expect("rows");
    let mut compactor = Compactor::new(1, None);
    assert!(compactor.look(&mut db, &path).expect("a look"));
    let steps = steps(&mut compactor, &mut db);
    assert!(steps < 30, "{steps} steps for 599 jobs");
    drop(db);
    assert_eq!(number(&path, "SELECT count(*) FROM job_data"), 1);
    assert_eq!(results(&path).len(), 1);
    check_whole(&path, started(Store::open(&path).expect("it is whole")));
}

#[test]
fn a_large_job_takes_many_steps() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[20_000]);
    let mut db = Connection::open(&path).expect("a database");
    let mut compactor = Compactor::new(1, None);
    assert!(compactor.prune(&mut db).expect("a prune"));
    let steps = steps(&mut compactor, &mut db);
    assert!(steps > 10, "others write between {steps} steps");
    drop(db);
    assert_eq!(results(&path).len(), 0);
}

#[test]
fn a_server_that_lost_its_lease_deletes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[30, 20]);
    let mut db = Connection::open(&path).expect("a database");
    db.execute_batch("VACUUM").expect("no free pages");
    db.execute("UPDATE lease SET fence = fence + 1", [])
        .expect("a lease");
    let mut full = Compactor::new(1, Some(1));
    assert!(!full.look(&mut db, &path).expect("a look"), "at the limit");
    let mut pruning = Compactor::new(1, None);
    assert!(!pruning.prune(&mut db).expect("an answer"), "a prune");
    assert!(!pruning.top_up(&mut db).expect("an answer"), "spare pages");
    let forgotten = "SELECT count(*) FROM job_data WHERE is_forgotten";
    assert_eq!(number(&path, forgotten), 0);
    db.execute("UPDATE job_data SET is_forgotten = 1 WHERE id = 1", [])
        .expect("a row");
    let mut sweeping = Compactor::new(1, None);
    assert!(sweeping.look(&mut db, &path).expect("a look"));
    assert_eq!(sweeping.step(&mut db).expect("an answer"), None, "a sweep");
    drop(db);
    assert_eq!(results(&path).len(), 50);
    assert_eq!(number(&path, "SELECT count(*) FROM job_data"), 2);
}

#[test]
fn a_prune_leaves_a_smaller_file_whenever_it_removed_something() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_job(&mut handle, JobId(1), 40, false);
    // The second job is too large for a rewrite.
    for (job, tasks) in [(2, 1), (3, 60_000), (4, 1)] {
        add_job(&mut handle, JobId(job), tasks, true);
        handle.client().flush().expect("a store");
        let before = file_len(&path);
        assert_eq!(handle.client().prune(), Ok(Pruned { jobs: 1 }));
        let after = file_len(&path);
        assert!(after < before, "{tasks} tasks: {before}, then {after}");
        assert_eq!(results(&path).len(), 40, "what is not completed stays");
    }
    // Prune again before the file is idle.
    add_job(&mut handle, JobId(5), 1, true);
    // When the writer replies, the commit is complete. There must be no earlier read, because a
    // reader keeps pages in the log, so the file would be short.
    let before = handle.client().position(0).map(|_| file_len(&path));
    assert_eq!(results(&path).len(), 41);
    assert_eq!(handle.client().prune(), Ok(Pruned { jobs: 1 }));
    assert!(Some(file_len(&path)) < before, "{before:?}");
    assert_eq!(number(&path, "SELECT count(*) FROM worker_data"), 1);
    check_whole(&path, handle);
}

#[test]
fn a_prune_drops_lost_workers_but_for_those_that_tasks_name() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_job(&mut handle, JobId(1), 3, false);
    for worker in [2, 3] {
        let config = std::sync::Arc::new(hq_core::testing::worker_config(4));
        let worker = WorkerId(worker);
        handle.store(vec![change(ChangeKind::WorkerConnected { worker, config })]);
    }
    let reason = hq_core::outcome::LostReason::Stopped;
    for worker in [1, 2] {
        let worker = WorkerId(worker);
        handle.store(vec![change(ChangeKind::WorkerLost { worker, reason })]);
    }
    assert_eq!(handle.client().prune(), Ok(Pruned { jobs: 0 }));
    let left = "SELECT group_concat(id) FROM worker_data";
    let db = Connection::open(&path).expect("a database");
    let left: String = db.query_row(left, [], |row| row.get(0)).expect("a row");
    assert_eq!(left, "1,3", "tasks of the first are still there");
    let told = "SELECT count(*) FROM event_log WHERE worker IS NOT NULL";
    assert_eq!(number(&path, told), 1, "only of the one that is connected");
    check_whole(&path, handle);
}

#[test]
fn overviews_of_workers_take_a_part_of_the_largest_size_and_no_job_goes_for_them() {
    const SIZE_MAX: u64 = 2 << 20;
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let store = Store::open(&path).expect("a fresh file");
    let mut handle = started(store.with_size_max(Some(SIZE_MAX)));
    add_job(&mut handle, JobId(1), 10, true);
    let overview = || {
        change(ChangeKind::WorkerOverview {
            worker: WorkerId(1),
            usage: Box::new(HardwareUsage::default()),
        })
    };
    let count = || {
        let sql = "SELECT count(*) FROM event_log WHERE type = 'worker-overview'";
        u64::from(number(&path, sql))
    };
    // The second round has the same number of jobs, which the writer knows only because it has
    // counted them.
    for _ in 0..2 {
        for _ in 0..100 {
            handle.store((0..100).map(|_| overview()).collect());
        }
        handle.client().flush().expect("a store");
        wait_for("the oldest are dropped and pages given back", || {
            count() < 2_000 && file_len(&path) <= SIZE_MAX
        });
        let left = count();
        assert!(left > 500, "no more than needed: {left}");
    }
    let newest = "SELECT max(seq) = (SELECT CAST(value AS INTEGER) - 1 FROM meta WHERE key = 'next_seq') FROM event_log";
    assert_eq!(number(&path, newest), 1, "the newest stay");
    assert_eq!(results(&path).len(), 10);
    check_whole(&path, handle);
}

#[test]
fn a_reader_that_stands_still_holds_up_no_commit() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_job(&mut handle, JobId(1), 100, true);
    handle.client().flush().expect("a store");
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN").expect("a transaction");
    let seen: u32 = reader
        .query_row("SELECT count(*) FROM task_data", [], |row| row.get(0))
        .expect("a snapshot");
    assert_eq!(seen, 100);
    let begun = Instant::now();
    handle.store(vec![change(ChangeKind::JobsForgotten(vec![JobId(1)]))]);
    // The prune ends with a checkpoint, which the reader blocks.
    assert_eq!(handle.client().prune(), Ok(Pruned { jobs: 1 }));
    add_job(&mut handle, JobId(2), 1, true);
    let flushed = handle.client().flush();
    assert!(matches!(flushed, Err(FlushError::Reader(_))), "{flushed:?}");
    let waited = begun.elapsed();
    assert!(
        waited < Duration::from_secs(4),
        "SQLite would have waited 5 s for the reader: {waited:?}"
    );
    drop(reader);
    check_whole(&path, handle);
}
