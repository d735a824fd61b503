//! Tests of packing, and of the records that tasks have afterwards.

use super::*;

fn end(outcome: Outcome) -> TaskEnd {
    let usage = Usage {
        max_rss_kib: 7,
        user: Duration::from_millis(3),
        system: Duration::ZERO,
    };
    TaskEnd {
        outcome,
        at: Timestamp(5_000_000),
        run: Duration::from_micros(20),
        usage,
    }
}

#[test]
fn states_have_numbers_and_names_that_never_change() {
    let names = [
        "waiting", "running", "finished", "failed", "canceled", "aborted",
    ];
    for (number, state) in TaskState::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(state.number()), number);
        assert_eq!(TaskState::from_number(state.number().into()), Some(state));
        assert_eq!(state.name(), names[number]);
        assert_eq!(TaskState::from_name(state.name()), Some(state));
    }
    assert_eq!(TaskState::from_number(-1), None);
    assert_eq!(TaskState::from_number(6), None);
    assert_eq!(TaskState::from_name("done"), None);
}

#[test]
fn untouched_tasks_have_no_record() {
    let mut table = TaskTable::new(1_000_000);
    assert!(table.record(3).is_none());
    table.touch(700_000);
    assert_eq!(
        table.record(700_001).map(TaskRecord::phase),
        Some(Phase::Waiting)
    );
    assert!(table.record(3).is_none());
    assert_eq!(table.phase(1_000_000), None);
}

#[test]
fn outcomes_survive_packing() {
    let mut table = TaskTable::new(300);
    for (index, outcome, phase) in [
        (0, Outcome::Finished, Phase::Finished),
        (1, Outcome::ExitCode(3), Phase::Failed),
        (2, Outcome::Signal(9), Phase::Failed),
        (3, Outcome::TimeLimit, Phase::Failed),
        (299, Outcome::Message("no such file".into()), Phase::Failed),
    ] {
        table.record_end(index, &end(outcome.clone()));
        table.set_phase(index, phase);
        assert_eq!(table.outcome(index), Some(outcome));
    }
    let record = table.record(1).expect("touched");
    assert_eq!(record.usage().max_rss_kib, 7);
    assert_eq!(record.finished(), Some(Timestamp(5_000_000)));
}

#[test]
fn neighbours_that_all_finished_tell_what_their_records_told() {
    let mut table = TaskTable::new(700);
    let finish = |table: &mut TaskTable, index: u32| {
        let record = table.touch(index).expect("it exists");
        record.assign(WorkerId(index % 5));
        let mut end = end(Outcome::Finished);
        end.at = Timestamp(9_000_000_000 + i64::from(index * index));
        table.record_end(index, &end);
        table.record(index)
    };
    let mut told = Vec::new();
    for index in 0..700 {
        // A task of the first chunk is lost, a task of the second chunk fails first, and the last
        // chunk is shorter.
        if index == 30 {
            table.touch(index).expect("it exists").supersede();
        }
        if index == 300 {
            table.touch(index).expect("it exists").count_retry();
        }
        told.push(finish(&mut table, index));
        table.set_phase(index, Phase::Finished);
    }
    let is_packed = |table: &TaskTable| -> Vec<bool> {
        let chunks = table.chunks.iter();
        chunks
            .map(|chunk| matches!(chunk, Chunk::Packed(_)))
            .collect()
    };
    assert_eq!(is_packed(&table), [true, false, true]);
    for (index, told) in (0..).zip(told) {
        let mut expected = told.expect("it was touched");
        expected.phase = Phase::Finished;
        assert_eq!(table.record(index), Some(expected), "{index}");
        assert_eq!(table.outcome(index), Some(Outcome::Finished));
    }
    assert_eq!(table.record(700), None);
    let runs: Vec<_> = table.runs(10, 690).collect();
    assert_eq!(runs, [(10, 690, Phase::Finished)]);
    assert_eq!(
        table.end_part(0..u32::MAX, Phase::Canceled, Timestamp(7)),
        (0, 0)
    );
    // Touching a task unpacks its record.
    let before = table.record(17);
    assert_eq!(table.touch(17).map(|record| *record), before);
    assert_eq!(is_packed(&table), [false, false, true]);
}

#[test]
fn what_is_canceled_keeps_how_long_it_ran() {
    let mut table = TaskTable::new(3);
    for (index, phase) in [(0, Phase::Running), (1, Phase::Waiting)] {
        table
            .touch(index)
            .expect("it exists")
            .start(Timestamp(1_000_000));
        table.set_phase(index, phase);
    }
    assert_eq!(
        table.end_part(0..u32::MAX, Phase::Canceled, Timestamp(5_000_000)),
        (2, 1)
    );
    let shown = |index| {
        let record = table.record(index).expect("touched");
        (record.has_run(), record.finished())
    };
    assert_eq!(shown(0), (true, Some(Timestamp(5_000_000))));
    assert_eq!(shown(1), (false, None), "it waited for its next instance");
    assert_eq!(shown(2), (false, None));
}

#[test]
fn runs_join_equal_neighbours_across_chunks() {
    let mut table = TaskTable::new(1_000);
    table.set_phase(500, Phase::Running);
    table.set_phase(999, Phase::Finished);
    let runs: Vec<_> = table.runs(0, 2_000).collect();
    assert_eq!(
        runs,
        [
            (0, 500, Phase::Waiting),
            (500, 501, Phase::Running),
            (501, 999, Phase::Waiting),
            (999, 1_000, Phase::Finished)
        ]
    );
    assert_eq!(
        table.end_part(0..u32::MAX, Phase::Canceled, Timestamp(7)),
        (998, 1)
    );
    assert_eq!(table.phase(0), Some(Phase::Canceled));
    assert_eq!(table.phase(999), Some(Phase::Finished));
}

/// Ending tasks in parts has the same result as ending them one by one, at every border of chunks.
/// Very large parts need no records.
/// no records.
#[test]
fn parts_end_as_their_tasks_do() {
    let at = Timestamp(7_000_000);
    for len in [1, 255, 256, 257, 1_000] {
        for (start, end) in [
            (0, len),
            (0, 1),
            (1, 256),
            (255, 257),
            (256, 512),
            (300, 900),
            (999, 1_000),
            (900, 2_000),
        ] {
            let mut table = TaskTable::new(len);
            for index in [0, 3, 256, 700, 701]
                .into_iter()
                .filter(|index| *index < len)
            {
                let phase = [Phase::Finished, Phase::Running, Phase::Queued][index as usize % 3];
                table.set_phase(index, phase);
            }
            let mut one_by_one = table.clone();
            let mut counts = (0, 0);
            for index in start..end.min(len) {
                let phase = one_by_one.phase(index).expect("it exists");
                if phase == Phase::Finished {
                    continue;
                }
                counts.0 += u32::from(phase != Phase::Running);
                counts.1 += u32::from(phase == Phase::Running);
                one_by_one.set_phase(index, Phase::Canceled);
            }
            assert_eq!(
                table.end_part(start..end, Phase::Canceled, at),
                counts,
                "{len} {start} {end}"
            );
            for index in 0..len {
                assert_eq!(
                    table.phase(index),
                    one_by_one.phase(index),
                    "{index} of {len} {start} {end}"
                );
            }
        }
    }
    let mut giant = TaskTable::new(1_000_000_000);
    for index in (0..5_000).chain([700_000]) {
        giant.set_phase(index, Phase::Finished);
    }
    assert_eq!(
        giant.end_part(5_000..700_000, Phase::Canceled, at),
        (695_000, 0)
    );
    assert_eq!(
        giant
            .end_part(700_001..1_000_000_000, Phase::Canceled, at)
            .0,
        999_299_999
    );
    let records = giant
        .chunks
        .iter()
        .filter(|chunk| matches!(chunk, Chunk::Records { .. }));
    assert!(records.count() < 40 && giant.chunks.len() < 3_000);
}
