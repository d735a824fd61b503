//! Stores for tests: jobs with finished tasks, and the contents of files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{Change, ChangeKind, EndAwaited};
use hq_core::task::TaskEnd;
use hq_core::template::{ArrayIds, ArraySpec, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::testing::{template, worker_config};
use hq_core::time::{Now, Time, Timestamp};
use rusqlite::Connection;

use crate::lock::Lock;
use crate::pages::Pages;
use crate::{Store, StoreHandle, meta, schema};

pub(crate) const WORKER: WorkerId = WorkerId(1);

pub(crate) const NOW: Now = Now {
    mono: Time(0),
    wall: Timestamp(1_795_250_210_000_000_000),
};

pub(crate) fn change(kind: ChangeKind) -> Change {
    Change { at: NOW.wall, kind }
}

/// Creates an empty store in memory.
pub(crate) fn fresh() -> Connection {
    let mut connection = Connection::open_in_memory().expect("a database in memory");
    schema::migrate(&mut connection, 0).expect("the schema is valid");
    connection
}

/// Creates a cleanly closed store. It contains completed jobs with these numbers of tasks.
pub(crate) fn filled(path: &Path, jobs: &[u32]) {
    let mut handle = started(Store::open(path).expect("a fresh file"));
    for (job, count) in (1_u32..).zip(jobs) {
        add_rows(&mut handle, JobId(job), *count, true);
    }
}

/// Starts the writer of a store, with one worker.
pub(crate) fn started(store: Store) -> StoreHandle {
    let mut handle = store
        .start("TestUid", &[], NOW.wall, |_| {})
        .expect("a writer");
    handle.store(vec![change(ChangeKind::WorkerConnected {
        worker: WORKER,
        config: Arc::new(worker_config(4)),
    })]);
    handle
}

/// Adds a job where all tasks have finished, with neighbors in the same group.
pub(crate) fn add_job(handle: &mut StoreHandle, job: JobId, count: u32, is_completed: bool) {
    let ids = IdArray::consecutive(1, count).expect("fits");
    add_submitted(handle, job, (&ids, submitted(job, &ids)), is_completed);
}

/// Adds such a job with an argument of `arg_len` bytes.
pub(crate) fn add_large_job(
    handle: &mut StoreHandle,
    job: JobId,
    (count, arg_len): (u32, usize),
    is_completed: bool,
) {
    let ids = IdArray::consecutive(1, count).expect("fits");
    add_submitted(
        handle,
        job,
        (&ids, submitted_with(job, &ids, arg_len)),
        is_completed,
    );
}

fn add_submitted(
    handle: &mut StoreHandle,
    job: JobId,
    (ids, submitted): (&IdArray, ChangeKind),
    is_completed: bool,
) {
    handle.store(vec![change(submitted)]);
    let mut changes: Vec<_> = ids.iter().flat_map(|id| life(job, id)).collect();
    if is_completed {
        changes.push(change(ChangeKind::JobCompleted(job)));
    }
    handle.store(changes);
}

/// Adds such a job with neighbors in different groups, so that each task has a row until it is
/// folded.
pub(crate) fn add_rows(handle: &mut StoreHandle, job: JobId, count: u32, is_completed: bool) {
    let ids = IdArray::consecutive(1, count).expect("fits");
    handle.store(vec![change(submitted(job, &ids))]);
    let every_other = |rest| ids.iter().filter(move |id| id % 2 == rest);
    for rest in [1, 0] {
        handle.store(every_other(rest).flat_map(|id| life(job, id)).collect());
        handle.client().flush().expect("a store");
    }
    if is_completed {
        handle.store(vec![change(ChangeKind::JobCompleted(job))]);
    }
}

/// Returns the start and the end of a task.
pub(crate) fn life(job: JobId, id: u32) -> [Change; 2] {
    let task = TaskKey::new(job, TaskId(id));
    let instance = InstanceId(0);
    let start = ChangeKind::TaskStarted {
        task,
        instance,
        variant: 0,
        nodes: Box::default(),
        worker: WORKER,
    };
    let end = TaskEnd {
        outcome: Outcome::Finished,
        at: NOW.wall,
        run: Duration::from_millis(u64::from(id)),
        usage: Usage::default(),
    };
    let end = ChangeKind::TaskEnded {
        task,
        instance,
        worker: WORKER,
        crash_count: 0,
        end,
        is_finished: true,
        awaited: EndAwaited::No,
    };
    [change(start), change(end)]
}

pub(crate) fn submitted(job: JobId, ids: &IdArray) -> ChangeKind {
    // Some of the specs need overflow pages.
    submitted_with(job, ids, 9_000 * (job.as_u32() as usize % 2))
}

/// Returns a submit with an argument of `arg_len` bytes.
pub(crate) fn submitted_with(job: JobId, ids: &IdArray, arg_len: usize) -> ChangeKind {
    let mut long = template(&["bash", "-c"]);
    long.args.push("x".repeat(arg_len).into_bytes().into());
    let spec = SubmitSpec {
        target: SubmitTarget::NewJob {
            name: "job".into(),
            max_fails: None,
        },
        submit_dir: Box::from(*b"/w"),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        limits: hq_core::bound::SubmitLimits::default(),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(ids.clone()),
            entries: None,
            template: Arc::new(long),
        }),
    };
    ChangeKind::Submitted {
        job,
        is_new: true,
        name: "job".into(),
        max_fails: None,
        number: 0,
        ids: ids.clone(),
        spec: Arc::new(spec),
        encoded: None,
    }
}

/// Opens a reader that keeps later commits in the log. Closing it does not move the log into the
/// file.
pub(crate) fn keep_log(path: &Path) -> Connection {
    let connection = crate::reader::open_for_reading(path).expect("it is a store");
    connection.execute_batch("BEGIN").expect("a transaction");
    let sql = "SELECT count(*) FROM jobs";
    let _: u32 = connection
        .query_row(sql, [], |row| row.get(0))
        .expect("a view");
    connection
}

/// Opens the pages of a file that no process uses.
pub(crate) fn pages(path: &Path) -> Pages {
    let lock = Lock::for_looking(path).expect("a file");
    Pages::open(&lock.expect("it is free")).expect("a file")
}

/// Returns all results in a file, as (job, task).
pub(crate) fn results(path: &Path) -> BTreeSet<(u32, u32)> {
    let connection = Connection::open(path).expect("a database");
    let mut statement = connection
        .prepare("SELECT job, task FROM task_data")
        .expect("the table");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.expect("rows")
        .collect::<Result<_, _>>()
        .expect("whole rows")
}

pub(crate) fn events(path: &Path) -> u64 {
    let connection = Connection::open(path).expect("a database");
    let count: u32 = connection
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .expect("the view");
    u64::from(count)
}

/// How long to wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(240);

pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn number(path: &Path, sql: &str) -> u32 {
    let db = Connection::open(path).expect("a database");
    db.query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// Checks that the file is intact, that all missing events are counted, and that a server can start
/// with the file.
pub(crate) fn check_whole(path: &Path, handle: StoreHandle) {
    drop(handle);
    assert_eq!(crate::check(path).expect("the file"), Vec::<String>::new());
    let pages = pages(path);
    assert_eq!(pages.problems(), Vec::<String>::new());
    drop(pages);
    let db = Connection::open(path).expect("a database");
    let meta = |key| meta::number(&db, key).expect("a number");
    let known = meta("next_seq") - 1 - meta("pruned_count");
    drop(db);
    assert_eq!(u64::try_from(known).expect("positive"), events(path));
    let store = Store::open(path).expect("it is whole");
    let loaded = store.load("TestUid", NOW).expect("it can be read");
    assert_eq!(loaded.dropped_count, 0);
}

/// Returns all rows of a view as sorted strings.
pub(crate) fn rows(db: &Connection, view: &str) -> Vec<String> {
    let sql = format!("SELECT * FROM {view}");
    let mut statement = db.prepare(&sql).expect("a view");
    let width = statement.column_count();
    let found = statement.query_map([], |row| {
        let value = |at| Ok(format!("{:?}", row.get_ref(at)?));
        (0..width).map(value).collect::<rusqlite::Result<Vec<_>>>()
    });
    let found = found.expect("rows").collect::<Result<Vec<_>, _>>();
    let found = found.expect("values");
    let mut found: Vec<String> = found.iter().map(|row| row.join(" ")).collect();
    found.sort();
    found
}

/// Folds the finished tasks of a file that no process uses.
pub(crate) fn fold(path: &Path) {
    let mut db = Connection::open(path).expect("a database");
    // As in a store, deleted rows must leave no bytes behind.
    db.pragma_update(None, "secure_delete", "ON")
        .expect("a name");
    let transaction = db.transaction().expect("begins");
    let folded = crate::compact::fold_all(&transaction, 8).expect("it can be folded");
    transaction.commit().expect("committed");
    assert!(folded > 0, "there was something to fold");
}
