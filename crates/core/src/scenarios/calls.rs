//! Arguments of calls, which are dropped when no client needs them anymore.

use super::bench::*;
use crate::id::{JobId, TaskId};
use crate::range::IdArray;
use crate::server_state::{Command, Reply, Resubmitted, SubmitRefusal};
use crate::task::TaskState;
use crate::template::{Entries, SubmitBody, SubmitSpec};

/// Returns calls with 10 bytes of arguments each, or other tasks with such entries.
fn calls(count: u32, is_call: bool) -> SubmitSpec {
    let mut spec = tasks_with(count, |task| task.is_call = is_call);
    if let SubmitBody::Array(array) = &mut spec.body {
        let lens = (0..count).map(|_| 10);
        array.entries = Entries::new(vec![b'x'; 10 * count as usize], lens);
    }
    spec
}

/// Returns the lengths of the entries of a job's tasks.
fn lens(bench: &Bench, job: JobId) -> Vec<usize> {
    let submits = bench.state.jobs()[&job].submits.iter();
    let lens = submits.flat_map(|submit| {
        (0..submit.ids.len()).map(|index| submit.entry(index).map_or(0, <[u8]>::len))
    });
    lens.collect()
}

/// Drops the arguments of `count` tasks. Returns how many of them the server had.
fn drop_entries(bench: &mut Bench, job: JobId, count: u32) -> u32 {
    let effects = bench.request(Command::DropEntries {
        job,
        tasks: IdArray::consecutive(0, count).expect("fits"),
    });
    let Reply::Forgotten { forgotten, ignored } = reply(&effects) else {
        panic!("about what was dropped");
    };
    assert_eq!(forgotten + ignored, count);
    forgotten
}

#[test]
fn arguments_of_ended_calls_are_dropped_when_half_of_the_bytes_are_unneeded() {
    let (mut bench, worker) = Bench::with_worker(8);
    let job = bench.open(None);
    bench.submit(into(job, calls(5, true)));
    assert_eq!(drop_entries(&mut bench, job, 5), 0, "all of them run");
    bench.finish(worker, key(job, 0));
    bench.fail(worker, key(job, 1));
    assert_eq!(drop_entries(&mut bench, job, 9), 2);
    assert_eq!(drop_entries(&mut bench, job, 9), 0, "only once");
    // Their files may be gone, although the server still has the entries.
    let why = SubmitRefusal::ArgumentsDropped(TaskId(0));
    let again = resubmit(&mut bench, job, &[TaskState::Finished]);
    assert_eq!(again, Resubmitted::Refused(job, why));
    assert_eq!(lens(&bench, job), [10; 5]);
    bench.finish(worker, key(job, 2));
    assert_eq!(drop_entries(&mut bench, job, 3), 1);
    assert_eq!(lens(&bench, job), [0, 0, 0, 10, 10]);
    bench.commit();
    bench.restart();
    assert_eq!(lens(&bench, job), [0, 0, 0, 10, 10]);
    // The job waits for submits until it is closed.
    bench.come_back(worker);
    bench.finish(worker, key(job, 3));
    bench.finish(worker, key(job, 4));
    assert_eq!(lens(&bench, job), [0, 0, 0, 10, 10]);
    bench.close(job);
    assert_eq!(lens(&bench, job), [0; 5]);
}

#[test]
fn a_completed_job_has_no_arguments_of_calls_and_is_not_submitted_again() {
    let (mut bench, worker) = Bench::with_worker(8);
    let job = bench.open(None);
    bench.submit(into(job, calls(2, true)));
    bench.close(job);
    bench.finish(worker, key(job, 0));
    assert_eq!(lens(&bench, job), [10; 2]);
    bench.fail(worker, key(job, 1));
    assert_eq!(lens(&bench, job), [0; 2]);
    bench.commit();
    bench.restart();
    assert_eq!(lens(&bench, job), [0; 2]);
    let why = SubmitRefusal::ArgumentsDropped(TaskId(0));
    let again = resubmit(&mut bench, job, &[]);
    assert_eq!(again, Resubmitted::Refused(job, why));
}

#[test]
fn other_tasks_keep_their_entries() {
    let (mut bench, worker) = Bench::with_worker(8);
    let job = bench.submit(calls(2, false));
    bench.finish(worker, key(job, 0));
    bench.finish(worker, key(job, 1));
    assert_eq!(drop_entries(&mut bench, job, 2), 0);
    assert_eq!(lens(&bench, job), [10; 2]);
}
