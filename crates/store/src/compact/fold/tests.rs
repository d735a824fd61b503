//! Tests that a fold makes no difference to readers, regardless of the history of a task.

use hq_core::id::JobId;
use hq_core::job::Job;

use super::*;
use crate::testing::{NOW, add_rows, check_whole, filled, life, number, rows, started, wait_for};
use crate::{Store, stretch};

/// The views that contain rows of tasks.
const VIEWS: [&str; 4] = ["task_data", "tasks", "attempts", "events"];

/// The tasks of job 1 that did more than finish.
const EXCEPTIONS: &str = "\
    UPDATE task_row_data SET state = 3, outcome = 7 WHERE job = 1 AND task = 100; \
    UPDATE task_row_data SET retry_count = 1, instance = 1 WHERE job = 1 AND task = 200; \
    UPDATE task_row_data SET instance = 1, crash_count = 1 WHERE job = 1 AND task = 201; \
    UPDATE task_row_data SET variant = 1 WHERE job = 1 AND task BETWEEN 300 AND 400; \
    UPDATE task_row_data SET instance = 2 WHERE job = 1 AND task BETWEEN 1200 AND 2100; \
    UPDATE task_row_data SET instance = 3 WHERE job = 1 AND task BETWEEN 2101 AND 2400; \
    UPDATE task_row_data SET state = 1, run_us = NULL, outcome = NULL, end_seq = NULL WHERE job = 1 AND task = 500; \
    UPDATE task_row_data SET state = 0, start_seq = NULL, end_seq = NULL, outcome = NULL WHERE job = 1 AND task = 501; \
    UPDATE task_row_data SET state = 3, outcome = -1001, message = 'no such file' WHERE job = 1 AND task = 503; \
    UPDATE task_row_data SET user_ms = NULL WHERE job = 1 AND task = 600; \
    UPDATE task_row_data SET started_unix_ns = started_unix_ns + 400000000000000 WHERE job = 1 AND task = 700; \
    DELETE FROM task_row_data WHERE job = 1 AND task BETWEEN 800 AND 810; \
    INSERT INTO node_data VALUES (1, 900, 0, 0, 1, 0), (1, 900, 0, 1, 1, 0); \
    INSERT INTO value_data VALUES (1, 901, 0, 1, x'01'); \
    INSERT INTO attempt_data (job, task, instance, worker, variant, started_unix_ns, start_seq) \
    VALUES (1, 200, 0, 1, 0, 5, 3), (1, 1300, 1, 1, 0, 5, 3)";

#[test]
fn results_that_were_put_together_and_cannot_be_read_are_counted_and_their_tasks_wait() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[600]);
    let db = Connection::open(&path).expect("a database");
    assert!(fold_all(&db, LEN_MIN).expect("it can be folded") > 0);
    let stretches = number(&path, "SELECT count(*) FROM stretch_data");
    let first = number(&path, "SELECT count FROM stretch_data WHERE first = 1");
    db.execute(
        "UPDATE stretch_data SET check_sum = check_sum + 1 WHERE first = 1",
        [],
    )
    .expect("a row");
    drop(db);
    let store = Store::open(&path).expect("it is free");
    let loaded = store.load("TestUid", NOW).expect("the others can be read");
    assert!(stretches > 1);
    assert_eq!(loaded.dropped_count, 1);
    let counts = loaded.state.jobs()[&JobId(1)].counts().totals();
    assert_eq!(counts.waiting, u64::from(first));
    assert_eq!(counts.finished, 600 - u64::from(first));
    // The tasks finish again and are stored like any others. Until then, a prune must keep their
    // job.
    let mut handle = started(store);
    assert_eq!(handle.client().prune().expect("an answer").jobs, 0);
    let tasks = 1..=first;
    handle.store(tasks.flat_map(|id| life(JobId(1), id)).collect());
    handle.client().flush().expect("the server goes on");
    assert_eq!(number(&path, "SELECT count(*) FROM tasks"), 600);
    check_whole(&path, handle);
}

#[test]
fn readers_and_the_next_server_see_no_difference() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[3_000, 5, 40, 2_500]);
    let db = Connection::open(&path).expect("a database");
    db.execute_batch(EXCEPTIONS).expect("tables");
    db.execute_batch("UPDATE job_data SET completed_unix_ns = NULL WHERE id = 4")
        .expect("a row");
    let seen = |db: &Connection| VIEWS.map(|view| rows(db, view));
    let loaded = || {
        let store = Store::open(&path).expect("it is free");
        let loaded = store.load("TestUid", NOW).expect("it can be read");
        assert_eq!(loaded.dropped_count, 0);
        let jobs = loaded.state.jobs().values();
        let told = |job: &Job| {
            let records = job
                .submits
                .iter()
                .map(|submit| format!("{:?}", submit.tasks));
            (
                records.collect::<Vec<_>>(),
                job.counts().totals(),
                job.idle_since,
                job.workers.clone(),
            )
        };
        jobs.map(told).collect::<Vec<_>>()
    };
    let before = (seen(&db), loaded());
    let folded = fold_all(&db, LEN_MIN).expect("it can be folded");
    let stretches = number(&path, "SELECT count(*) FROM stretch_data");
    assert!(folded > 5_000 && stretches < 60, "{folded} in {stretches}");
    // `assert_eq` would print the whole data.
    assert!((seen(&db), loaded()) == before, "before and after");
    let fast = crate::reader::open_for_reading(&path).expect("a store");
    assert!(seen(&fast) == before.0, "by views of ours");
    assert_eq!(stretch::broken(&db).expect("a table"), []);
    for (rows, condition) in [
        (1, "job = 1 AND task IN (100, 200, 201, 500, 501, 503, 600)"),
        (1, "job = 1 AND task IN (700, 900, 901)"),
        (1, "job = 2"),
        (0, "job = 3"),
        (0, "job = 1 AND task BETWEEN 1200 AND 2400"),
    ] {
        let sql = format!("SELECT min(1, count(*)) FROM task_row_data WHERE {condition}");
        assert_eq!(number(&path, &sql), rows, "{condition}");
    }
    // While the job is running, a stretch is not written until it is long enough or the next task
    // has ended.
    let tail = number(&path, "SELECT count(*) FROM task_row_data WHERE job = 4");
    assert!(tail > 0 && tail < 256, "{tail}");
    assert_eq!(fold_all(&db, LEN_MIN).expect("nothing to do"), 0);
}

#[test]
fn the_writer_folds_what_finishes_and_forgets_it_like_rows() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_rows(&mut handle, JobId(1), 4_000, true);
    wait_for("its tasks are folded", || {
        number(&path, "SELECT count(*) FROM stretch_data") > 10
            && number(&path, "SELECT count(*) FROM task_row_data") == 0
    });
    assert_eq!(
        number(&path, "SELECT count(*) FROM tasks WHERE state = 'finished'"),
        4_000
    );
    // The numbers are distinct, so their count is the number of events.
    let sql = "SELECT count(DISTINCT seq) FROM events WHERE type = 'task-finished'";
    assert_eq!(number(&path, sql), 4_000);
    // The next server immediately folds the rows of this one.
    add_rows(&mut handle, JobId(2), 500, true);
    drop(handle);
    assert_eq!(number(&path, "SELECT count(*) FROM task_row_data"), 500);
    let mut handle = started(Store::open(&path).expect("it is free"));
    wait_for("the rows of the server before are folded", || {
        number(&path, "SELECT count(*) FROM task_row_data") == 0
    });
    handle.store(vec![crate::testing::change(
        hq_core::server_state::ChangeKind::JobsForgotten(vec![JobId(1), JobId(2)]),
    )]);
    wait_for("it is forgotten", || {
        number(&path, "SELECT count(*) FROM job_data") == 0
    });
    assert_eq!(number(&path, "SELECT count(*) FROM stretch_data"), 0);
    check_whole(&path, handle);
}

#[test]
fn rows_between_stretches_are_folded_while_their_job_goes_on() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    let ids = hq_core::range::IdArray::consecutive(1, 200).expect("fits");
    let submitted = crate::testing::submitted(JobId(1), &ids);
    handle.store(vec![crate::testing::change(submitted)]);
    for tasks in [1..=20, 21..=120] {
        handle.store(tasks.flat_map(|id| life(JobId(1), id)).collect());
        handle.client().flush().expect("a store");
    }
    drop(handle);
    let db = Connection::open(&path).expect("a database");
    assert_eq!(number(&path, "SELECT count(*) FROM task_row_data"), 20);
    assert_eq!(fold_all(&db, LEN_MIN).expect("it can be folded"), 20);
    assert_eq!(number(&path, "SELECT sum(count) FROM stretch_data"), 120);
}

#[test]
fn a_pass_that_another_server_interrupts_changes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[3_000]);
    let mut db = Connection::open(&path).expect("a database");
    let before = rows(&db, "tasks");
    for steps in 0..3 {
        let mut fold = Fold::new();
        let transaction = db.transaction().expect("begins");
        for _ in 0..steps {
            fold.step(&transaction).expect("a step");
        }
        transaction.rollback().expect("it was begun");
        assert_eq!(number(&path, "SELECT count(*) FROM task_row_data"), 3_000);
        assert_eq!(rows(&db, "tasks"), before);
    }
    // A crash after any step leaves the remaining tasks as rows.
    let mut fold = Fold::new();
    while !fold.step(&db).expect("a step") {
        assert_eq!(rows(&db, "tasks"), before);
    }
    assert_eq!(rows(&db, "tasks"), before);
    assert_eq!(fold.folded, 3_000);
}

#[test]
fn ends_are_counted_once_wherever_they_are_stored() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[900, 50]);
    let ends = || {
        let db = crate::reader::open_for_reading(&path).expect("a store");
        let mut ends = Vec::new();
        let mut take = |end: crate::event::EndedTask| ends.push(format!("{end:?}"));
        crate::event::ended_tasks(&db, 1_000, &mut take).expect("it can be read");
        ends.sort();
        ends
    };
    let before = ends();
    assert!(before.len() > 400 && before.len() < 500, "{}", before.len());
    crate::testing::fold(&path);
    assert!(
        ends() == before,
        "behind the number that was asked for is nothing"
    );
}
