//! The memory of the state after a restart, measured with a counting allocator.

use allocation_counter::measure;
use proptest::collection::vec;
use proptest::prelude::*;

use super::bench::*;
use crate::id::{JobId, WorkerId};
use crate::range::IdArray;
use crate::server_state::{Command, ServerState};
use crate::task::TaskState;

/// How many more bytes each job may need after a restart.
const BYTES_A_JOB: i64 = 1 << 10;
/// How many bytes the sizes of two states with the same content may differ by, because their
/// collections have different capacities.
const SLACK: i64 = 64 << 10;

#[derive(Clone, Debug)]
enum Step {
    /// Submits a new job with this many tasks, a limit of failures, and possibly an earlier job to
    /// wait for.
    Submit(u32, Option<u32>, Option<Waits>),
    /// Ends this many of the worker's tasks, successfully or not.
    End(usize, bool),
    Cancel(usize),
    CancelTasks(usize, u32, u32),
    Forget(usize),
    Resubmit(usize, bool),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![1u32..20, Just(1_000), Just(1_000_000), Just(1_000_000_000)];
    let waits = prop_oneof![
        Just(Waits::ForJob),
        Just(Waits::ForJobAnyEnd),
        Just(Waits::TaskByTask),
        Just(Waits::TaskByTaskAnyEnd)
    ];
    let job = 0usize..8;
    prop_oneof![
        4 => (count, proptest::option::of(0u32..3), proptest::option::of(waits))
            .prop_map(|(count, max_fails, waits)| Step::Submit(count, max_fails, waits)),
        4 => (1usize..20, any::<bool>()).prop_map(|(count, well)| Step::End(count, well)),
        2 => job.clone().prop_map(Step::Cancel),
        1 => (job.clone(), 0u32..2_000, 1u32..200)
            .prop_map(|(job, first, count)| Step::CancelTasks(job, first, count)),
        1 => job.clone().prop_map(Step::Forget),
        1 => (job, any::<bool>()).prop_map(|(job, failed)| Step::Resubmit(job, failed)),
        1 => Just(Step::Restart),
    ]
}

/// Returns the id of one of the last jobs.
fn recent(bench: &Bench, back: usize) -> Option<JobId> {
    bench.state.jobs().keys().rev().nth(back).copied()
}

fn take(bench: &mut Bench, worker: &mut WorkerId, step: Step) {
    let command = match step {
        Step::Submit(count, limit, waits) => {
            let mut spec = tasks(count);
            if let Some(limit) = limit {
                spec = max_fails(limit, spec);
            }
            if let Some((waits, job)) = waits.zip(recent(bench, 0)) {
                spec = after(job, waits, spec);
            }
            Some(Command::Submit(Box::new(spec)))
        }
        Step::End(count, well) => {
            for (job, task) in bench.has(*worker).into_iter().take(count) {
                let task = key(JobId(job), task);
                if well {
                    bench.finish(*worker, task);
                } else {
                    bench.fail(*worker, task);
                }
            }
            None
        }
        Step::Cancel(back) => recent(bench, back).map(|job| Command::CancelJobs {
            jobs: one(job),
            reason: Box::default(),
        }),
        Step::CancelTasks(back, first, count) => {
            recent(bench, back).map(|job| Command::CancelTasks {
                job,
                tasks: IdArray::consecutive(first, count).expect("small"),
                keep_running: false,
            })
        }
        Step::Forget(back) => recent(bench, back).map(|job| Command::ForgetJobs {
            jobs: one(job),
            states: TaskState::ALL.to_vec(),
        }),
        Step::Resubmit(back, failed) => recent(bench, back).map(|job| Command::Resubmit {
            jobs: one(job),
            states: if failed {
                vec![TaskState::Failed]
            } else {
                Vec::new()
            },
            requests: Vec::new(),
        }),
        Step::Restart => {
            bench.restart();
            *worker = bench.worker(4);
            None
        }
    };
    if let Some(command) = command {
        // A rejected command changes nothing.
        bench.request(command);
    }
}

/// Returns how many bytes are freed when a state is dropped.
fn footprint(state: ServerState) -> i64 {
    -measure(|| drop(state)).bytes_current
}

proptest! {
    /// The environment variable `PROPTEST_CASES` can request more cases.
    #[test]
    fn a_restart_needs_no_more_memory_than_the_server_before(steps in vec(step(), 1..24)) {
        let (mut bench, mut worker) = Bench::with_worker(4);
        bench.expect_giants();
        for step in steps {
            take(&mut bench, &mut worker, step);
        }
        let jobs = i64::try_from(bench.state.jobs().len()).expect("few");
        let empty = || ServerState::new("test");
        let before = std::mem::replace(&mut bench.state, empty());
        let before = footprint(before);
        bench.restart();
        let after = footprint(std::mem::replace(&mut bench.state, empty()));
        prop_assert!(
            after <= before + jobs * BYTES_A_JOB + SLACK,
            "{before} bytes before the restart, {after} after it, {jobs} jobs"
        );
    }
}
