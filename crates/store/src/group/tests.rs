//! Tests of the rows of changes that happen in one group, and of their size.

use hq_core::id::{AllocationKey, QueueId, TaskId};
use hq_core::range::{IdArray, IdRange, IndexSet};
use hq_core::template::{Entries, SubmitBody};

use super::*;
use crate::event;
use crate::testing::{NOW, change, fresh, submitted_with};

fn number(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get(0)).expect("a number")
}

#[test]
fn a_task_that_starts_and_is_lost_within_one_group_waits_with_its_next_instance() {
    let db = fresh();
    let task = TaskKey::new(JobId(1), TaskId(4));
    let changes = [
        change(ChangeKind::TaskStarted {
            task,
            instance: InstanceId(0),
            variant: 0,
            nodes: Box::default(),
            worker: WorkerId(2),
        }),
        change(ChangeKind::TaskRequeued {
            task,
            instance: InstanceId(1),
            crash_count: 1,
            retry_count: 0,
            attempt: None,
            grown: None,
        }),
    ];
    write(&db, &mut 1, &changes, None).expect("it can be written");
    let waits =
        "SELECT count(*) FROM task_data WHERE state = 0 AND instance = 1 AND crash_count = 1";
    assert_eq!(number(&db, waits), 1);
    let was =
        "SELECT count(*) FROM attempt_data WHERE instance = 0 AND worker = 2 AND start_seq = 1";
    assert_eq!(number(&db, was), 1);
}

#[test]
fn every_other_task_of_a_large_job_becomes_events_of_bounded_size() {
    const TASKS: u32 = 2_500;
    let db = fresh();
    let ranges = (0..TASKS).map(|id| IdRange::single(id * 7 % (TASKS * 7)));
    let ids = IdArray::new(ranges.collect()).expect("they differ");
    let dropped = change(ChangeKind::TasksDropped {
        job: JobId(1),
        ids,
        to: TaskState::Canceled,
    });
    let mut told = Vec::new();
    let mut seq = 1;
    write(&db, &mut seq, &[dropped], Some(&mut told)).expect("it can be written");
    assert_eq!((told.len(), seq), (3, 4));
    assert!(told.iter().all(|event| event.size() < 20_000));
    let mut read = Vec::new();
    event::events_since(&db, 0, i64::MAX, &mut |event| {
        read.push(event);
        true
    })
    .expect("the view");
    assert_eq!(read, told);
    assert_eq!(read[0].at, NOW.wall);
    assert_eq!(
        number(&db, "SELECT sum(count) FROM dropped_data"),
        i64::from(TASKS)
    );
}

#[test]
fn a_message_of_a_task_is_told_to_readers_and_not_stored() {
    let db = fresh();
    let said = change(ChangeKind::TaskNotified {
        task: TaskKey::new(JobId(3), TaskId(4)),
        worker: WorkerId(5),
        message: (*b"hi").into(),
    });
    let (mut told, mut seq) = (Vec::new(), 7);
    write(&db, &mut seq, &[said], Some(&mut told)).expect("it can be written");
    assert_eq!((seq, told.len()), (7, 1), "without a number of its own");
    let data = told[0].data.as_deref().expect("who said what");
    let data: Value = serde_json::from_str(data).expect("JSON");
    let expected = json!({
        "task_id": {"job_id": 3, "job_task_id": 4},
        "worker_id": 5,
        "message": [104, 105],
    });
    assert_eq!(data, expected);
}

#[test]
fn the_life_of_an_allocation_is_stored_and_told() {
    let db = fresh();
    let key = AllocationKey {
        queue: QueueId(3),
        number: 1,
    };
    let events = [
        AllocationEvent::Queued {
            key,
            job: "71.pbs".into(),
            workers: 2,
        },
        AllocationEvent::Started {
            key,
            job: "71.pbs".into(),
        },
        AllocationEvent::Finished {
            key,
            job: "71.pbs".into(),
        },
    ];
    let mut told = Vec::new();
    for (event, expected) in events.into_iter().zip(["queued", "running", "ended"]) {
        let stored = change(ChangeKind::Allocation(AllocationChange::Event(event)));
        let mut seq = i64::try_from(told.len()).expect("few") + 1;
        write(&db, &mut seq, &[stored], Some(&mut told)).expect("it can be written");
        let state: String = db
            .query_row(
                "SELECT state FROM allocation_data WHERE id = '71.pbs'",
                [],
                |row| row.get(0),
            )
            .expect("a row");
        assert_eq!(state, expected);
    }
    let kinds: Vec<_> = told.iter().map(|event| event.kind.as_ref()).collect();
    assert_eq!(
        kinds,
        [
            "autoalloc-allocation-queued",
            "autoalloc-allocation-started",
            "autoalloc-allocation-finished"
        ]
    );
}

/// Returns the number of bytes of the job's submit. Checks that it can be read.
fn spec_len(db: &Connection) -> i64 {
    let sql = "SELECT spec, spec_check FROM submit_data";
    let (spec, check): (Vec<u8>, i64) = db
        .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("a submit");
    assert_eq!(encode::checksum(&spec), check);
    number(db, "SELECT length(spec) FROM submit_data")
}

#[test]
fn dropped_arguments_leave_the_file_and_a_corrupt_submit_stays_as_it_is() {
    let db = fresh();
    let ids = IdArray::consecutive(0, 3).expect("fits");
    let mut submitted = submitted_with(JobId(1), &ids, 0);
    if let ChangeKind::Submitted { spec, .. } = &mut submitted
        && let SubmitBody::Array(array) = &mut std::sync::Arc::make_mut(spec).body
    {
        array.entries = Entries::new(vec![b'x'; 3_000], [1_000; 3]);
    }
    let drop = |from, to| {
        let mut calls = IndexSet::new();
        calls.insert_range(from, to);
        change(ChangeKind::EntriesDropped {
            job: JobId(1),
            number: 0,
            calls,
        })
    };
    let store = |change| write(&db, &mut 1, &[change], None).expect("it can be written");
    store(change(submitted));
    let whole = spec_len(&db);
    store(drop(1, 3));
    let left = spec_len(&db);
    assert!((whole - 2_010..whole - 1_990).contains(&left), "{left}");
    let corrupt = "UPDATE submit_data SET spec_check = spec_check + ?";
    db.execute(corrupt, [1]).expect("a table");
    store(drop(0, 3));
    db.execute(corrupt, [-1]).expect("a table");
    assert_eq!(spec_len(&db), left);
    store(drop(0, 3));
    assert!(spec_len(&db) < whole - 3_000, "no list of empty entries");
}
