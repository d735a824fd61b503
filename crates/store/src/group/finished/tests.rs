//! Tests that storing neighbors as rows or as a stretch makes no difference to readers, regardless
//! of their histories.

use std::time::Duration;

use hq_core::id::{InstanceId, JobId, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{Change, ChangeKind, EndAwaited};
use hq_core::task::TaskEnd;
use proptest::prelude::*;

use super::*;
use crate::group::{write, write_with};
use crate::testing::{NOW, change, fresh, rows as shown, submitted};
use crate::{load, values};

const VIEWS: [&str; 6] = [
    "task_data",
    "tasks",
    "attempts",
    "events",
    "task_nodes",
    "usage",
];
const JOB: JobId = JobId(1);

fn number(db: &Connection, sql: &str) -> u32 {
    db.query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// The history of a task.
#[derive(Clone, Debug)]
struct Life {
    /// The earlier instances, and how each of them was counted.
    requeues: Vec<Requeue>,
    variant: u32,
    worker: u32,
    run: Duration,
    /// `None` if the task is still running.
    outcome: Option<Outcome>,
    has_nodes: bool,
    has_value: bool,
    /// Whether the end is in a later group than the start.
    is_long: bool,
}

#[derive(Clone, Copy, Debug)]
enum Requeue {
    Free,
    Crash,
    Retry,
}

/// Returns the most common history.
fn plain() -> Life {
    Life {
        requeues: Vec::new(),
        variant: 0,
        worker: 1,
        run: Duration::from_micros(700),
        outcome: Some(Outcome::Finished),
        has_nodes: false,
        has_value: false,
        is_long: false,
    }
}

fn life() -> impl Strategy<Value = Life> {
    // Most tasks are alike, so they have neighbors.
    prop_oneof![
        12 => (1_u32..4, 0_u64..5_000_000).prop_map(|(worker, run)| Life {
            worker,
            run: Duration::from_micros(run),
            ..plain()
        }),
        6 => Just(Life { is_long: true, ..plain() }),
        1 => (requeues(), 0_u32..2)
            .prop_map(|(requeues, variant)| Life { requeues, variant, ..plain() }),
        1 => (requeues(), 0_u32..2)
            .prop_map(|(requeues, variant)| Life { requeues, variant, is_long: true, ..plain() }),
        1 => Just(Life { variant: 1, ..plain() }),
        1 => Just(Life { run: Duration::from_hours(200), ..plain() }),
        1 => prop_oneof![
            Just(None),
            Just(Some(Outcome::ExitCode(3))),
            Just(Some(Outcome::Message("no such file".into()))),
        ]
        .prop_map(|outcome| Life { outcome, ..plain() }),
        1 => Just(Life { has_nodes: true, ..plain() }),
        1 => Just(Life { has_value: true, ..plain() }),
    ]
}

fn requeues() -> impl Strategy<Value = Vec<Requeue>> {
    let how = prop_oneof![
        Just(Requeue::Free),
        Just(Requeue::Crash),
        Just(Requeue::Retry)
    ];
    prop::collection::vec(how, 1..3)
}

/// Returns the changes of two consecutive groups.
fn changes(id: u32, life: &Life) -> [Vec<Change>; 2] {
    let task = TaskKey::new(JOB, TaskId(id));
    let worker = WorkerId(life.worker);
    let mut nodes: Box<[WorkerId]> = Box::default();
    if life.has_nodes {
        nodes = Box::from([worker, WorkerId(9)]);
    }
    let start = |instance, variant| ChangeKind::TaskStarted {
        task,
        instance: InstanceId(instance),
        variant,
        nodes: nodes.clone(),
        worker,
    };
    let (mut first, mut instance) = (Vec::new(), 0);
    let (mut crash_count, mut retry_count) = (0, 0);
    for requeue in &life.requeues {
        first.push(start(instance, 0));
        instance += 1;
        crash_count += u32::from(matches!(requeue, Requeue::Crash));
        retry_count += u32::from(matches!(requeue, Requeue::Retry));
        first.push(ChangeKind::TaskRequeued {
            task,
            instance: InstanceId(instance),
            crash_count,
            retry_count,
            attempt: None,
            grown: None,
        });
    }
    if life.has_nodes {
        first.push(ChangeKind::NodesAssigned {
            task,
            instance: InstanceId(instance),
            variant: life.variant,
            nodes: nodes.clone(),
        });
    }
    first.push(start(instance, life.variant));
    let end = life.outcome.clone().map(|outcome| ChangeKind::TaskEnded {
        task,
        instance: InstanceId(instance),
        worker,
        crash_count,
        is_finished: outcome == Outcome::Finished,
        end: TaskEnd {
            outcome,
            at: NOW.wall,
            run: life.run,
            usage: Usage::default(),
        },
        awaited: EndAwaited::No,
    });
    let mut second = Vec::new();
    if life.is_long {
        second.extend(end);
    } else {
        first.extend(end);
    }
    [first, second].map(|kinds| kinds.into_iter().map(change).collect())
}

/// Creates a store with these tasks, starting with id 1. The changes of each group are ordered by
/// their keys.
fn store(stretch_min: u32, lives: &[(Life, u32)]) -> Connection {
    let db = fresh();
    let mut seq = 1;
    let count = u32::try_from(lives.len()).expect("few");
    let ids = IdArray::consecutive(1, count).expect("fits");
    write(&db, &mut seq, &[change(submitted(JOB, &ids))], None).expect("a job");
    let mut tasks: Vec<_> = (1..).zip(lives).collect();
    for (id, (life, _)) in &tasks {
        if life.has_value {
            let sql = "INSERT INTO value_data VALUES (1, ?, 0, 1, x'01')";
            db.execute(sql, [id]).expect("a table");
        }
    }
    tasks.sort_by_key(|(_, (_, key))| *key);
    for at in 0..2 {
        let group: Vec<Change> = tasks
            .iter()
            .flat_map(|(id, (life, _))| changes(*id, life)[at].clone())
            .collect();
        write_with(stretch_min, &db, &mut seq, &group, None).expect("it can be written");
    }
    db
}

/// Returns the data visible to readers, including values, and the state that the next server
/// restores.
fn seen(db: &Connection) -> (Vec<Vec<String>>, String) {
    let ids = IdArray::consecutive(1, 100).expect("fits");
    let values = values::read(db, 1, &ids, usize::MAX).expect("they can be read");
    let views = VIEWS.map(|view| shown(db, view)).to_vec();
    let loaded = load::load(db, "TestUid", NOW, false).expect("it can be read");
    assert_eq!(loaded.dropped_count, 0);
    let job = &loaded.state.jobs()[&JOB];
    let tasks = job
        .submits
        .iter()
        .map(|submit| format!("{:?}", submit.tasks));
    (views, tasks.chain([format!("{values:?}")]).collect())
}

proptest! {
    #[test]
    fn readers_see_no_difference(
        lives in prop::collection::vec((life(), any::<u32>()), 1..60),
        stretch_min in 1_u32..6,
    ) {
        let of_rows = store(u32::MAX, &lives);
        prop_assert_eq!(number(&of_rows, "SELECT count(*) FROM stretch_data"), 0);
        let db = store(stretch_min, &lives);
        prop_assert!(seen(&db) == seen(&of_rows), "as rows and as stretches");
        prop_assert_eq!(crate::stretch::broken(&db).expect("a table"), []);
        let both = "SELECT count(*) FROM task_row_data r JOIN stretch_data s ON r.job = s.job \
                    AND r.task BETWEEN s.first AND s.first + s.count - 1";
        prop_assert_eq!(number(&db, both), 0, "stored twice");
        let in_both = "SELECT count(*) FROM node_data n JOIN stretch_data s ON n.job = s.job \
                       AND n.task BETWEEN s.first AND s.first + s.count - 1";
        prop_assert_eq!(number(&db, in_both), 0, "nodes are looked for by rows");
    }
}

#[test]
fn what_starts_and_ends_together_never_has_a_row() {
    // The tasks are interleaved like reports of many workers.
    let lives: Vec<_> = (0..1_000_u32)
        .map(|n| (plain(), n * 7_919 % 1_000))
        .collect();
    let db = store(32, &lives);
    assert_eq!(number(&db, "SELECT count(*) FROM task_row_data"), 0);
    assert_eq!(number(&db, "SELECT sum(count) FROM stretch_data"), 1_000);
    assert!(number(&db, "SELECT count(*) FROM stretch_data") < 10);
}

#[test]
fn rows_of_starts_before_go_when_neighbours_end_together() {
    let life = Life {
        is_long: true,
        variant: 2,
        ..plain()
    };
    let lives: Vec<_> = (0..100).map(|key| (life.clone(), key)).collect();
    let db = store(32, &lives);
    assert_eq!(number(&db, "SELECT count(*) FROM task_row_data"), 0);
    let sql = "SELECT count(*) FROM task_data WHERE variant = 2 AND start_seq = task + 1 AND end_seq > 100";
    assert_eq!(number(&db, sql), 100);
}

#[test]
fn few_neighbours_stay_rows_that_are_folded_later() {
    let lives: Vec<_> = (0..31).map(|key| (plain(), key)).collect();
    let db = store(32, &lives);
    assert_eq!(number(&db, "SELECT count(*) FROM task_row_data"), 31);
    assert_eq!(number(&db, "SELECT count(*) FROM stretch_data"), 0);
}

/// Returns the ends of plain tasks, with their starts.
fn ended(ids: std::ops::RangeInclusive<u32>) -> Vec<Change> {
    ids.flat_map(|id| changes(id, &plain())[0].clone())
        .collect()
}

#[test]
fn two_ends_of_a_task_in_one_group_are_one() {
    let db = fresh();
    let twice = [ended(1..=50), ended(40..=90)].concat();
    write(&db, &mut 1, &twice, None).expect("it can be written");
    assert_eq!(number(&db, "SELECT count(*) FROM task_data"), 90);
}

#[test]
fn a_task_that_is_in_a_stretch_is_not_in_a_second_one() {
    let db = fresh();
    let mut seq = 1;
    for ids in [100..=200, 100..=150, 60..=130, 180..=240] {
        write(&db, &mut seq, &ended(ids), None).expect("it can be written");
    }
    assert_eq!(number(&db, "SELECT sum(count) FROM stretch_data"), 101);
}
