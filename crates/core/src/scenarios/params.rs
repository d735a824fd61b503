//! Parameters: a task keeps its values, no matter where its id is sent.

use std::sync::Arc;

use super::bench::*;
use crate::id::{JobId, TaskId};
use crate::params::{Decimals, Param, Params, Values};
use crate::server_state::{Command, Reply};
use crate::task::TaskState;
use crate::template::{ArrayIds, SubmitSpec};

fn numbers(name: &str, count: u32) -> Param {
    Param {
        name: name.into(),
        is_along: false,
        values: vec![Values::Decimals(Decimals {
            first: 1,
            step: 1,
            count,
            digits: 0,
        })],
    }
}

/// Returns a submission with every combination of `a=1-3` and `b=1-2`.
fn combinations(job: Option<JobId>) -> SubmitSpec {
    let params = Params::new(vec![numbers("a", 3), numbers("b", 2)], 0).expect("fits");
    let spec = tasks_with(0, |task| task.params = Some(Arc::new(params)));
    let spec = numbered(ArrayIds::Next(6), spec);
    job.map_or_else(|| spec.clone(), |job| into(job, spec.clone()))
}

/// Returns the values of a task in the order of its parameters.
fn values(bench: &Bench, job: JobId, task: u32) -> String {
    let job = &bench.state.jobs()[&job];
    let slot = job.find(TaskId(task)).expect("a task of the job");
    let submit = job.submit(slot).expect("a submit of the job");
    let template = submit.template(slot.index).expect("a template");
    let params = template.task.params.as_deref().expect("parameters");
    let values = params.values(TaskId(task));
    let values = values
        .iter()
        .map(|(_, value)| String::from_utf8_lossy(value));
    values.collect::<Vec<_>>().join(" ")
}

#[test]
fn in_an_open_job_combinations_begin_behind_the_highest_id() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, numbered(given(3, 5), tasks(0))));
    bench.submit(combinations(Some(job)));
    bench.submit(combinations(Some(job)));
    let shown = [8, 9, 13, 14, 19].map(|task| values(&bench, job, task));
    assert_eq!(shown, ["1 1", "1 2", "3 2", "1 1", "3 2"]);
    bench.restart();
    let again = [8, 9, 13, 14, 19].map(|task| values(&bench, job, task));
    assert_eq!(again, shown);
}

#[test]
fn the_last_ids_have_values_too() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, numbered(given(u32::MAX - 6, 1), tasks(0))));
    bench.submit(combinations(Some(job)));
    let shown = [5, 0].map(|back| values(&bench, job, u32::MAX - back));
    assert_eq!(shown, ["1 1", "3 2"]);
    bench.restart();
    let again = [5, 0].map(|back| values(&bench, job, u32::MAX - back));
    assert_eq!(again, shown);
}

#[test]
fn what_is_submitted_again_has_the_values_that_it_had() {
    let (mut bench, worker) = Bench::with_worker(1);
    let open = bench.open(None);
    bench.submit(into(open, numbered(given(0, 10), tasks(0))));
    bench.submit(combinations(Some(open)));
    for task in 0..10 {
        bench.finish(worker, key(open, task));
    }
    bench.fail(worker, key(open, 10));
    bench.finish(worker, key(open, 11));
    bench.fail(worker, key(open, 12));
    let (jobs, states) = (one(open), vec![TaskState::Failed]);
    let effects = bench.request(Command::Resubmit {
        jobs,
        states,
        requests: Vec::new(),
    });
    assert!(matches!(reply(&effects), Reply::Resubmitted(_)));
    let new = JobId(open.as_u32() + 1);
    assert_eq!(bench.counts(new).total(), 2);
    let shown = [10, 12].map(|task| values(&bench, new, task));
    assert_eq!(shown, ["1 1", "2 1"]);
}
