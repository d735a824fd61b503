//! Tests that stretches lose no data, and that all readers decode them in the same way.

use proptest::prelude::*;

use super::*;
use crate::schema;
use crate::testing::rows;

fn fresh() -> Connection {
    let mut db = Connection::open_in_memory().expect("a database in memory");
    schema::migrate(&mut db, 0).expect("the steps are valid");
    db
}

fn shared(job: u32, variant: u32, instance: u32) -> Shared {
    Shared {
        job,
        variant,
        instance,
    }
}

/// Generates tasks whose values differ from `around` by up to `spread` bits.
fn tasks() -> impl Strategy<Value = Vec<Values>> {
    let bits = prop::array::uniform8(0_u32..=50);
    let around = prop::array::uniform8(-(1_i64 << 60)..1 << 60);
    (bits, around, 1_usize..300).prop_flat_map(|(bits, around, count)| {
        let one = prop::array::uniform8(any::<u64>()).prop_map(move |random| {
            let mut values = around;
            for ((value, random), bits) in values.iter_mut().zip(random).zip(bits) {
                *value += (random & ((1 << bits) - 1)).cast_signed();
            }
            values
        });
        prop::collection::vec(one, count..=count)
    })
}

proptest! {
    // Each case creates two databases.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_reader_reads_what_was_written(tasks in tasks(), first in 0..u32::MAX, instance in 0_u32..3) {
        let mut stretch = Stretch::new(shared(7, 1, instance), first, tasks[0]);
        let taken = tasks[1..].iter().take_while(|values| stretch.push(**values)).count();
        let tasks = &tasks[..=taken];
        prop_assert!(stretch.row().iter().all(|value| !matches!(value, Value::Null)));

        let db = fresh();
        stretch.write(&db).expect("a row");
        let read = {
            let mut statement = db.prepare(&select(&db, "stretch_data s").expect("a table")).expect("a query");
            statement.query_row([], Stretch::read).expect("a row")
        };
        prop_assert_eq!(read.as_ref(), Some(&stretch));
        let of_stretch: Vec<_> = stretch.tasks().map(|(id, values)| (id, *values)).collect();
        let expected: Vec<_> = (first..).zip(tasks.iter().copied()).collect();
        prop_assert_eq!(of_stretch, expected);

        // The same tasks are also stored as rows.
        let plain = fresh();
        stretch.write_rows(&plain).expect("rows");
        for view in ["task_data", "tasks", "attempts", "events"] {
            prop_assert_eq!(rows(&db, view), rows(&plain, view), "{}", view);
        }
        read_fast(&db).expect("views of ours");
        for view in ["task_data", "tasks", "attempts", "events"] {
            prop_assert_eq!(rows(&db, view), rows(&plain, view), "{}", view);
        }
    }

    #[test]
    fn what_was_changed_is_no_stretch(at in 0..WIDTH, by in 1_i64..1_000, instance in 0_u32..3) {
        let mut stretch = Stretch::new(shared(3, 0, instance), 10, [1, 5_000, 7, 0, 0, 0, 1, 2]);
        for number in 1..40 {
            prop_assert!(stretch.push([number % 3, 5_000 + number * 300, 7, 0, 0, 0, number, number + 1]));
        }
        let mut row = stretch.row();
        let read = |row: &[Value]| {
            let row: Vec<ValueRef<'_>> = row.iter().map(ValueRef::from).collect();
            Stretch::of(&row)
        };
        prop_assert_eq!(read(&row), Some(stretch));
        match &mut row[at] {
            Value::Integer(number) => *number += by,
            Value::Blob(bytes) => bytes.push(1),
            Value::Null | Value::Real(_) | Value::Text(_) => unreachable!("numbers and bytes"),
        }
        prop_assert_eq!(read(&row), None);
    }
}

#[test]
fn a_stretch_ends_where_a_page_would_be_left_half_empty_or_ids_end() {
    let values = |number: i64| [number % 7, number << 20, 9, 0, 0, 0, 1, 2];
    let mut stretch = Stretch::new(shared(1, 0, 0), 0, values(0));
    let count = (1..)
        .take_while(|number| stretch.push(values(*number)))
        .count();
    assert_eq!(
        count + 1,
        TASKS_MAX,
        "a stretch of small values has the maximum length"
    );
    let wide = |number: i64| [number % 7, number << 32, number << 16, 0, 0, 0, 1, 2];
    let mut stretch = Stretch::new(shared(1, 0, 0), 0, wide(0));
    let count = (1..)
        .take_while(|number| stretch.push(wide(*number)))
        .count();
    let len: usize = (0..COLUMN_COUNT).map(|at| stretch.bytes(at).len()).sum();
    assert!(
        count > 100 && len <= BYTES_MAX && len > BYTES_MAX - 20,
        "{count} with {len} bytes"
    );
    assert!(
        !Stretch::new(shared(1, 0, 0), 0, wide(0)).push(wide(1 << 20)),
        "too far apart"
    );
    assert!(!Stretch::new(shared(1, 0, 0), u32::MAX, wide(0)).push(wide(0)));
}

/// The stretches are in the format of an earlier release, without a column for the instance.
#[test]
fn stretches_of_an_earlier_release_are_read_before_and_after_it_is_brought_up_to_date() {
    let mut stretch = Stretch::new(shared(7, 1, 0), 5, [1, 5_000, 7, 0, 0, 0, 1, 2]);
    for number in 1..40 {
        assert!(stretch.push([1, 5_000 + number, 7, 0, 0, 0, number, number + 1]));
    }
    let plain = fresh();
    stretch.write_rows(&plain).expect("rows");
    let mut old = Connection::open_in_memory().expect("a database in memory");
    schema::migrate_to(&mut old, 11).expect("the steps are valid");
    let marks = vec!["?"; WIDTH - 1].join(", ");
    let row = stretch.row();
    old.execute(
        &format!("INSERT INTO stretch_data VALUES ({marks})"),
        params_from_iter(&row[..WIDTH - 1]),
    )
    .expect("a row");
    let all = ["task_data", "tasks", "attempts", "events"];
    let is_same = |db: &Connection, views: &[&str]| {
        assert_eq!(broken(db).expect("a table"), []);
        views
            .iter()
            .all(|view| rows(db, view) == rows(&plain, view))
    };
    // The other views of that release do not have times as text.
    assert!(is_same(&old, &all[..1]), "by views of the file");
    read_fast(&old).expect("views of ours");
    assert!(is_same(&old, &all[..1]), "by views of ours");
    for view in ["events", "attempts", "tasks", "task_data"] {
        old.execute_batch(&format!("DROP VIEW temp.{view}"))
            .expect("a view");
    }
    schema::migrate(&mut old, 11).expect("it can be migrated");
    assert!(is_same(&old, &all), "brought up to date");
}
