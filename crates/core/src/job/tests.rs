//! Finding ids, counting phases, deriving states.

use super::*;
use crate::range::IdRange;
use crate::template::{GraphSpec, GraphTask};
use crate::testing::template;

fn array(first: u32, count: u32, step: u32) -> IdArray {
    IdArray::new(vec![IdRange::new(first, count, step).expect("valid")]).expect("disjoint")
}

fn submit(ids: IdArray) -> Submit {
    let asked = Arc::new(template(&["true"]));
    let template = Arc::new(SharedTemplate {
        id: TemplateId(0),
        header: crate::testing::header(JobId(1)),
        class: ClassId(0),
        task: Arc::clone(&asked),
    });
    Submit {
        tasks: TaskTable::new(ids.len()),
        ids,
        header: crate::testing::header(JobId(1)),
        asked_stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        limits: SubmitLimits::default(),
        kind: SubmitKind::Array {
            template,
            asked,
            entries: None,
        },
        priority_max: 0,
        spent: Spent::default(),
        asks: Asks::default(),
        held: IndexSet::new(),
        revisions: None,
    }
}

fn job(ids: Vec<IdArray>) -> Job {
    let mut job = Job::new(JobId(1), "x".into(), None, true, Timestamp(0));
    for array in ids {
        job.add_submit(submit(array));
    }
    job
}

#[test]
fn the_first_id_of_a_range_is_found_without_walking_it() {
    let job = job(vec![
        array(1_000_000_000, 1_000_000_000, 2),
        array(1_000_000_001, 10, 2),
        array(5, 1, 1),
    ]);
    let first = |first, count, step| {
        let wanted = IdRange::new(first, count, step).expect("valid");
        job.first_in(&wanted).map(TaskId::as_u32)
    };
    assert_eq!(first(0, u32::MAX, 1), Some(5));
    assert_eq!(first(6, u32::MAX - 6, 1), Some(1_000_000_000));
    assert_eq!(first(1_000_000_005, 10, 2), Some(1_000_000_005), "crosses");
    assert_eq!(first(1_000_000_021, 500_000_000, 2), None, "odd ones");
    assert_eq!(first(2_999_999_999, 1_000, 1), None, "behind the last");
    assert_eq!(
        job.first_existing(&array(1_000_000_021, 900_000_000, 2)),
        None
    );
}

#[test]
fn very_many_stepped_ids_stay_ranges() {
    let few = job(vec![array(0, 3, 2), array(1, 3, 2)]);
    assert_eq!(few.sorted_ids(|_| true).to_string(), "0-5");
    let gaps = job(vec![array(9, 2, 5), array(0, 3, 2)]);
    assert_eq!(gaps.sorted_ids(|_| true).to_string(), "0,2,4,9,14");
    let many = job(vec![array(1, 1 << 30, 2), array(0, 1 << 30, 2)]);
    let ids = many.sorted_ids(|_| true);
    assert_eq!(ids.ranges().len(), 2);
    assert_eq!(ids.to_string(), "0-2147483646:2,1-2147483647:2");
}

#[test]
fn finds_ids_of_interleaved_submits() {
    let job = job(vec![
        array(0, 10, 2),
        array(1, 10, 2),
        array(100, 1, 1),
        array(7_000, 50, 7),
    ]);
    assert_eq!(
        job.find(TaskId(4)),
        Some(TaskSlot {
            submit: 0,
            index: 2
        })
    );
    assert_eq!(
        job.find(TaskId(5)),
        Some(TaskSlot {
            submit: 1,
            index: 2
        })
    );
    assert_eq!(
        job.find(TaskId(100)),
        Some(TaskSlot {
            submit: 2,
            index: 0
        })
    );
    assert_eq!(
        job.find(TaskId(7_007)),
        Some(TaskSlot {
            submit: 3,
            index: 1
        })
    );
    assert_eq!(job.find(TaskId(21)), None);
    assert_eq!(job.max_task_id(), Some(7_343));
    assert_eq!(job.first_existing(&array(19, 3, 1)), Some(TaskId(19)));
    assert_eq!(job.first_existing(&array(7_344, 3, 1)), None);
    assert_eq!(job.sorted_ids(|_| true).ranges()[0].to_string(), "0-19");
}

#[test]
fn counts_follow_phases() {
    let mut job = job(vec![array(0, 1_000, 1)]);
    let slot = |index| TaskSlot { submit: 0, index };
    job.set_phase(slot(1), Phase::Running);
    job.set_phase(slot(2), Phase::Failed);
    assert_eq!(
        (
            job.counts().waiting,
            job.counts().running,
            job.counts().failed
        ),
        (998, 1, 1)
    );
    assert_eq!(job.state(), JobState::Running);
    assert_eq!(job.end_all(Phase::Canceled, Timestamp(9)), 999);
    assert_eq!(job.state(), JobState::Failed);
    assert_eq!(job.failed_lowest().collect::<Vec<_>>(), [TaskId(2)]);
    assert_eq!(job.counts().total(), 1_000);
    assert!(job.is_idle() && !job.is_completed());
}

#[test]
fn state_follows_the_first_rule_that_holds() {
    let counts = |waiting, running, failed, aborted, canceled| TaskCounts {
        waiting,
        running,
        failed,
        aborted,
        canceled,
        finished: 1,
    };
    assert_eq!(job_state(&counts(1, 1, 1, 1, 1), true), JobState::Running);
    assert_eq!(job_state(&counts(1, 0, 1, 1, 1), true), JobState::Waiting);
    assert_eq!(job_state(&counts(0, 0, 1, 1, 1), true), JobState::Failed);
    assert_eq!(job_state(&counts(0, 0, 0, 1, 1), true), JobState::Aborted);
    assert_eq!(job_state(&counts(0, 0, 0, 0, 1), true), JobState::Canceled);
    assert_eq!(job_state(&counts(0, 0, 0, 0, 0), true), JobState::Opened);
    assert_eq!(job_state(&TaskCounts::default(), false), JobState::Finished);
}

#[test]
fn graphs_are_sorted_by_id_and_checked() {
    let graph = |tasks: &[(u32, &[u32])]| GraphSpec {
        templates: Vec::new(),
        tasks: tasks
            .iter()
            .map(|(id, deps)| GraphTask {
                id: TaskId(*id),
                template: 0,
                deps: deps.iter().map(|d| TaskId(*d)).collect(),
            })
            .collect(),
    };
    let Ok(built) = build_graph(&graph(&[(9, &[3]), (3, &[])]), false) else {
        panic!("it is valid");
    };
    assert_eq!(
        (built.ids.to_string().as_str(), built.positions.as_slice()),
        ("3,9", [1, 0].as_slice())
    );
    assert_eq!(built.graph.deps(1), [0]);
    let err = |tasks: &[(u32, &[u32])]| build_graph(&graph(tasks), false).err().expect("invalid");
    assert_eq!(err(&[(1, &[]), (1, &[])]), GraphError::Duplicate(TaskId(1)));
    assert_eq!(err(&[(1, &[2]), (2, &[1])]), GraphError::Cycle(TaskId(1)));
    assert_eq!(err(&[(1, &[]), (2, &[8])]), GraphError::Cycle(TaskId(2)));
}
