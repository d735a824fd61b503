//! What goes, what stays, and that a crash on the way costs nothing.

use hq_core::id::JobId;
use hq_core::server_state::ChangeKind;

use super::*;
use crate::testing::{NOW, add_job, change, events, filled, results, started};
use crate::{Store, StoreHandle};

/// Longest that a condition may take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn file_len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("the file").len()
}

fn number(path: &Path, sql: &str) -> u32 {
    let db = Connection::open(path).expect("a database");
    db.query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// The file is whole, no event is missing without being counted, and a server can start with it.
fn check_whole(path: &Path, handle: StoreHandle) {
    drop(handle);
    assert_eq!(crate::check(path).expect("the file"), Vec::<String>::new());
    let pages = crate::pages::Pages::open(path).expect("the file");
    assert_eq!(pages.problems(), Vec::<String>::new());
    drop(pages);
    let db = Connection::open(path).expect("a database");
    let meta = |key| load::meta_number(&db, key).expect("a number");
    let known = meta("next_seq") - 1 - meta("pruned_count");
    drop(db);
    assert_eq!(u64::try_from(known).expect("positive"), events(path));
    let store = Store::open(path).expect("it is whole");
    let loaded = store.load("TestUid", NOW).expect("it can be read");
    assert_eq!(loaded.dropped_count, 0);
}

#[test]
fn forgotten_jobs_leave_the_file_and_it_shrinks_by_itself() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut handle = started(Store::open(&path).expect("a fresh file"));
    add_job(&mut handle, JobId(1), 30_000, true);
    add_job(&mut handle, JobId(2), 10_000, true);
    assert!(handle.client().flush());
    wait_for("everything is in the file", || {
        number(&path, "SELECT count(*) FROM task_data") == 40_000
    });
    let full = u64::from(number(&path, "PRAGMA page_count")) * 4_096;
    handle.store(vec![change(ChangeKind::JobsForgotten(vec![JobId(1)]))]);
    wait_for("the file is small", || file_len(&path) < full * 6 / 10);
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
        add_job(&mut handle, JobId(job), TASKS, job != 1);
    }
    assert!(handle.client().flush());
    let jobs = || number(&path, "SELECT count(*) FROM job_data");
    wait_for("jobs are dropped and pages given back", || {
        jobs() < JOBS && file_len(&path) <= SIZE_MAX
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
        let mut compactor = Compactor::new(None);
        compactor.look(&mut db, &path).expect("a look");
        for _ in 0..steps {
            if compactor.is_busy() {
                let stepped = compactor.step(&mut db, 1).expect("a step");
                assert!(stepped.is_some(), "nobody else has the store");
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
