//! Tests that every field of a task is restored as it was committed, after any history.

use hq_core::growth::{Grant, Scale};
use hq_core::id::TaskKey;
use hq_core::outcome::Outcome;
use hq_core::resource::amount::Amount;
use hq_core::server_state::{ChangeKind, EndAwaited};
use hq_core::task::Phase;

use super::*;
use crate::testing::{NOW, WORKER, change, submitted};
use crate::{group, schema};

/// Returns a start, and an end this many seconds later.
fn until(seconds: u64) -> [Option<Timestamp>; 2] {
    let end = NOW.wall.plus(Duration::from_secs(seconds));
    [Some(NOW.wall), Some(end)]
}

/// The compared fields: phase, instance, worker, crashes, retries, start and end, attempts.
type Seen = (
    Phase,
    u32,
    u32,
    u32,
    u16,
    [Option<Timestamp>; 2],
    Vec<Attempt>,
);

fn ended(seconds: u64, outcome: Outcome) -> TaskEnd {
    TaskEnd {
        outcome,
        at: NOW.wall.plus(Duration::from_secs(seconds)),
        run: Duration::from_secs(seconds),
        usage: Usage {
            max_rss_kib: 100 * seconds,
            user: Duration::from_millis(7 * seconds),
            system: Duration::from_millis(3 * seconds),
        },
    }
}

fn restored(changes: &[hq_core::server_state::Change], job: JobId) -> BTreeMap<u32, Seen> {
    let connection = stored(changes);
    let loaded = load(&connection, "TestUid", NOW, false).expect("it can be read");
    assert_eq!(loaded.dropped_count, 0);
    let job = &loaded.state.jobs()[&job];
    let mut all = BTreeMap::new();
    for id in 1..=7 {
        let slot = job.find(TaskId(id)).expect("the task");
        let submit = job.submit(slot).expect("its submit");
        let phase = job.phase(slot).expect("a phase");
        let attempts = submit.tasks.attempts(slot.index).to_vec();
        let seen =
            job.record(slot)
                .map_or((phase, 0, 0, 0, 0, [None; 2], attempts.clone()), |record| {
                    (
                        phase,
                        record.instance().as_u32(),
                        record.worker().as_u32(),
                        record.crash_count(),
                        record.retry_count(),
                        [record.started(), record.finished()],
                        attempts,
                    )
                });
        all.insert(id, seen);
    }
    all
}

#[test]
#[expect(clippy::too_many_lines, reason = "a course for each kind of task")]
fn what_comes_back_is_what_was_committed() {
    let job = JobId(3);
    let task = |id| TaskKey::new(job, TaskId(id));
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let mut changes = vec![change(submitted(job, &ids))];
    let mut add = |kind| changes.push(change(kind));
    let started = |id, instance| ChangeKind::TaskStarted {
        task: task(id),
        instance: InstanceId(instance),
        variant: 1,
        worker: WORKER,
        nodes: Box::default(),
    };
    let attempt = |instance| Attempt {
        instance: InstanceId(instance),
        worker: WORKER,
        end: ended(1 + u64::from(instance), Outcome::ExitCode(7)),
    };
    let requeued = |id, instance, crash_count, retry_count, attempt| ChangeKind::TaskRequeued {
        task: task(id),
        instance: InstanceId(instance),
        crash_count,
        retry_count,
        attempt,
        grown: None,
    };
    // Task 1 failed twice, crashed once, and is waiting. Task 2 did the same and then finished.
    // Task 3 is running after a retry, on a worker that does not reconnect. Task 4 failed, 5 was
    // canceled, and 6 never ran.
    for id in [1, 2] {
        add(started(id, 0));
        add(requeued(id, 1, 0, 1, Some(attempt(0))));
        add(started(id, 1));
        add(requeued(id, 2, 0, 2, Some(attempt(1))));
        add(started(id, 2));
        add(requeued(id, 3, 1, 2, None));
    }
    add(started(2, 3));
    let last = |id, instance, crash_count, end, is_finished| ChangeKind::TaskEnded {
        task: task(id),
        instance: InstanceId(instance),
        worker: WORKER,
        crash_count,
        end,
        is_finished,
        awaited: EndAwaited::No,
    };
    add(last(2, 3, 1, ended(4, Outcome::Finished), true));
    add(started(3, 0));
    add(requeued(3, 1, 0, 1, Some(attempt(0))));
    add(started(3, 1));
    add(started(4, 0));
    add(last(4, 0, 0, ended(2, Outcome::ExitCode(9)), false));
    add(ChangeKind::TasksDropped {
        job,
        ids: IdArray::single(5),
        to: TaskState::Canceled,
    });
    let all = restored(&changes, job);
    let worker = WORKER.as_u32();
    let twice = vec![attempt(0), attempt(1)];
    // When the server ends, the interrupted run is moved to the next instance and does not count as
    // a crash of the task.
    assert_eq!(
        all[&1],
        (Phase::Waiting, 3, worker, 1, 2, [None; 2], twice.clone())
    );
    assert_eq!(all[&2], (Phase::Finished, 3, worker, 1, 2, until(4), twice));
    assert_eq!(
        all[&3],
        (Phase::Waiting, 2, worker, 0, 1, [None; 2], vec![attempt(0)])
    );
    assert_eq!(
        all[&4],
        (Phase::Failed, 0, worker, 0, 0, until(2), Vec::new())
    );
    assert_eq!(
        all[&5],
        (Phase::Canceled, 0, 0, 0, 0, [None; 2], Vec::new())
    );
    assert_eq!(all[&6], (Phase::Waiting, 0, 0, 0, 0, [None; 2], Vec::new()));
}

#[test]
fn what_a_task_gets_more_of_comes_back_and_can_be_asked_for() {
    let job = JobId(3);
    let task = TaskKey::new(job, TaskId(2));
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let grant = |instance, memory, time| ChangeKind::TaskRequeued {
        task,
        instance: InstanceId(instance),
        crash_count: 0,
        retry_count: instance,
        attempt: None,
        grown: Scale::new(memory, time).map(|scale| Grant {
            scale,
            memory: Some(Amount::whole(memory)),
            time_limit: None,
        }),
    };
    let changes = [
        change(submitted(job, &ids)),
        change(grant(1, 2_000, 1_000)),
        change(grant(2, 0, 0)),
        change(grant(3, 4_000, 1_500)),
    ];
    let connection = stored(&changes);
    let loaded = load(&connection, "TestUid", NOW, false).expect("it can be read");
    let asks = &loaded.state.jobs()[&job].submits[0].asks;
    let at = |instance| Some(asks.own_at(1, InstanceId(instance)).scale);
    assert_eq!(at(0), Some(Scale::default()));
    assert_eq!(at(2), Scale::new(2_000, 1_000));
    assert_eq!(at(3), Scale::new(4_000, 1_500));
    assert_eq!(asks.own(0).scale, Scale::default());
    let sql =
        "SELECT group_concat(instance || ':' || memory_mib) FROM grown WHERE time_limit_s IS NULL";
    let seen: String = connection
        .query_row(sql, [], |row| row.get(0))
        .expect("a view");
    assert_eq!(seen, "1:2000.0,3:4000.0");
}

#[test]
fn what_was_canceled_while_it_ran_has_an_end() {
    let job = JobId(3);
    let task = TaskKey::new(job, TaskId(7));
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let started = ChangeKind::TaskStarted {
        task,
        instance: InstanceId(0),
        variant: 1,
        worker: WORKER,
        nodes: Box::default(),
    };
    let mut canceled = change(ChangeKind::TasksDropped {
        job,
        ids: IdArray::consecutive(6, 2).expect("fits"),
        to: TaskState::Canceled,
    });
    canceled.at = NOW.wall.plus(Duration::from_millis(70));
    let end = canceled.at;
    let changes = [change(submitted(job, &ids)), change(started), canceled];
    let all = restored(&changes, job);
    let span = [Some(NOW.wall), Some(end)];
    let worker = WORKER.as_u32();
    assert_eq!(
        all[&7],
        (Phase::Canceled, 0, worker, 0, 0, span, Vec::new())
    );
    assert_eq!(all[&6].5, [None; 2], "it waited");
}

#[test]
fn a_job_id_is_given_out_once_whatever_the_order_in_which_jobs_are_stored() {
    let ids = IdArray::consecutive(1, 6).expect("six ids");
    // Job 1 was larger, so its submit took longer.
    let changes = [
        change(submitted(JobId(2), &ids)),
        change(submitted(JobId(1), &ids)),
        change(ChangeKind::JobCompleted(JobId(2))),
        change(ChangeKind::JobsForgotten(vec![JobId(2)])),
    ];
    let connection = stored(&changes);
    let uid = "INSERT OR REPLACE INTO meta VALUES ('server_uid', 'TestUid')";
    connection.execute(uid, []).expect("a table");
    let last = |connection: &Connection| {
        let loaded = load(connection, "TestUid", NOW, false).expect("it can be read");
        loaded.state.last_job()
    };
    assert_eq!(last(&connection), Some(JobId(2)));
    let wrong = "INSERT OR REPLACE INTO meta VALUES ('last_job', 1)";
    connection.execute(wrong, []).expect("a table");
    assert_eq!(
        last(&connection),
        Some(JobId(2)),
        "as an earlier state of hq left it"
    );
}

/// Creates a database with these changes.
fn stored(changes: &[hq_core::server_state::Change]) -> Connection {
    let mut connection = Connection::open_in_memory().expect("a database in memory");
    schema::migrate(&mut connection, 0).expect("the schema is valid");
    let transaction = connection.transaction().expect("there is no other writer");
    group::write(&transaction, &mut 1, changes, None).expect("every change can be written");
    transaction.commit().expect("memory is never full");
    connection
}

#[test]
fn a_submit_that_is_damaged_and_can_still_be_read_is_left_out() {
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let changes = [2, 4].map(|job| change(submitted(JobId(job), &ids)));
    let connection = stored(&changes);
    let sql = "SELECT spec FROM submit_data WHERE job = 2";
    let mut spec: Vec<u8> = connection
        .query_row(sql, [], |row| row.get(0))
        .expect("a row");
    // The message contains a different program but has the same length.
    let mut words = spec.windows(4);
    let program = words.position(|word| word == b"bash").expect("it is there");
    spec[program] = b'd';
    let sql = "UPDATE submit_data SET spec = ? WHERE job = 2";
    connection.execute(sql, [spec]).expect("a table");
    let loaded = load(&connection, "TestUid", NOW, false).expect("it can be read");
    assert_eq!(loaded.dropped_count, 1);
    let tasks = |job| loaded.state.jobs()[&JobId(job)].counts().total();
    assert_eq!((tasks(2), tasks(4)), (0, 7));
}

#[test]
fn a_range_that_is_none_is_left_out_and_counted() {
    let job = JobId(3);
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let dropped = change(ChangeKind::TasksDropped {
        job,
        ids: IdArray::consecutive(6, 2).expect("fits"),
        to: TaskState::Canceled,
    });
    let changes = [change(submitted(job, &ids)), dropped];
    let connection = stored(&changes);
    let sql = "UPDATE dropped_data SET count = 0";
    connection.execute(sql, []).expect("a table");
    let loaded = load(&connection, "TestUid", NOW, false).expect("it can be read");
    assert_eq!(loaded.dropped_count, 1);
    assert_eq!(loaded.state.jobs()[&job].counts().waiting, 7);
}

#[test]
fn an_attempt_of_a_task_that_is_none_is_left_out_and_counted() {
    let job = JobId(3);
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let connection = stored(&[change(submitted(job, &ids))]);
    let sql = "INSERT INTO attempt_data (job, task, instance, worker, variant, outcome) \
               VALUES (3, ?, 0, 1, 0, 9)";
    for task in [7, 8] {
        connection.execute(sql, [task]).expect("a table");
    }
    let loaded = load(&connection, "TestUid", NOW, false).expect("it can be read");
    assert_eq!(loaded.dropped_count, 1, "the job has seven tasks");
    let job = &loaded.state.jobs()[&job];
    let slot = job.find(TaskId(7)).expect("the task");
    let tasks = &job.submit(slot).expect("its submit").tasks;
    assert_eq!(tasks.attempts(slot.index).len(), 1);
}

#[test]
fn ids_of_other_submits_are_known_although_one_cannot_be_read() {
    let ids = IdArray::consecutive(1, 7).expect("fits");
    let connection = stored(&[change(submitted(JobId(3), &ids))]);
    let again = "INSERT INTO submit_data SELECT job, 1, at_unix_ns, task_count, spec, spec_check \
                 FROM submit_data";
    connection.execute(again, []).expect("a table");
    let damage = "UPDATE submit_data SET spec = X'ff' WHERE number = 0";
    connection.execute(damage, []).expect("a table");
    let found = submitted_ids(&connection, 3).expect("it can be read");
    assert!(found.into_iter().eq(1..=7));
}

#[test]
fn a_store_was_used_if_it_has_the_uid_of_a_server_or_a_job() {
    let empty = stored(&[]);
    assert!(!is_used(&empty).expect("tables"));
    let uid = "INSERT INTO meta VALUES ('server_uid', 'TestUid')";
    empty.execute(uid, []).expect("a table");
    assert!(is_used(&empty).expect("tables"), "it has no job yet");
    let ids = IdArray::single(1);
    let without_uid = stored(&[change(submitted(JobId(1), &ids))]);
    assert!(is_used(&without_uid).expect("tables"), "the uid was lost");
}

#[test]
fn an_ended_worker_is_kept_only_for_reading() {
    let config = hq_core::testing::worker_config(4).into();
    let connected = ChangeKind::WorkerConnected {
        worker: WORKER,
        config,
    };
    let lost = ChangeKind::WorkerLost {
        worker: WORKER,
        reason: LostReason::HeartbeatLost,
    };
    let connection = stored(&[change(connected), change(lost)]);
    let loaded = |is_record| load(&connection, "TestUid", NOW, is_record).expect("rows");
    // Without a uid or a job, the store counts as unused.
    let uid = "INSERT INTO meta VALUES ('server_uid', 'TestUid')";
    connection.execute(uid, []).expect("a table");
    let next = loaded(false).state;
    assert!(next.ended_workers().is_empty() && next.comparable_workers().is_empty());
    let read = loaded(true).state;
    assert_eq!(read.last_lost(), Some(WORKER));
    assert_eq!(read.ended_counts()[&LostReason::HeartbeatLost], 1);
    assert!(read.workers().is_empty());
    let end = Some((NOW.wall, LostReason::HeartbeatLost));
    assert_eq!(read.comparable_workers()[&WORKER].ended(), end);
}
