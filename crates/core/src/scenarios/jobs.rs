//! Open and closed jobs, resubmission, and forgetting of jobs.

use super::bench::*;
use crate::id::JobId;
use crate::job::JobState;
use crate::range::IndexSet;
use crate::selector::Selector;
use crate::server_state::{
    ChangeKind, Command, Effect, JobResult, Reply, Resubmitted, SubmitRefusal, specs,
};
use crate::task::{Phase, TaskState};
use crate::template::{ArrayIds, Entries, SubmitBody};

fn forget(bench: &mut Bench, jobs: Selector, states: &[TaskState]) -> (u32, u32, Vec<Effect>) {
    let states = states.to_vec();
    let effects = bench.request(Command::ForgetJobs { jobs, states });
    let Reply::Forgotten { forgotten, ignored } = reply(&effects) else {
        panic!("about what was forgotten");
    };
    (forgotten, ignored, effects)
}

#[test]
fn an_open_job_is_complete_when_it_is_closed_and_its_tasks_have_ended() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, tasks(1)));
    let effects = bench.request(Command::CloseJobs(one(job)));
    let is_complete = |c: &&ChangeKind| matches!(c, ChangeKind::JobCompleted(_));
    assert!(!changes(&effects).iter().any(is_complete), "a task is left");
    let effects = bench.finish(worker, key(job, 0));
    assert!(changes(&effects).iter().any(is_complete));
    assert_eq!(bench.job_state(job), JobState::Finished);
}

#[test]
fn closing_a_job_without_work_completes_it() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    assert_eq!(bench.job_state(job), JobState::Opened);
    let effects = bench.request(Command::CloseJobs(one(job)));
    let is_complete = |c: &&ChangeKind| matches!(c, ChangeKind::JobCompleted(_));
    assert!(changes(&effects).iter().any(is_complete));
    assert_eq!(bench.close(job), JobResult::Already(job));
}

#[test]
fn a_job_without_tasks_is_completed_when_it_is_submitted() {
    let mut bench = Bench::new();
    let effects = bench.request(Command::Submit(Box::new(numbered(given(1, 0), tasks(0)))));
    let stored = changes(&effects);
    assert!(
        stored
            .iter()
            .any(|c| matches!(c, ChangeKind::JobCompleted(_))),
        "{stored:?}"
    );
}

#[test]
fn closing_all_jobs_closes_those_that_are_open() {
    let mut bench = Bench::new();
    bench.submit(tasks(1));
    let open = bench.open(None);
    let row = job_row(&bench.request(Command::CloseJobs(Selector::All)));
    assert!(matches!(row, JobResult::Ok { job, .. } if job == open));
}

#[test]
fn only_tasks_in_the_chosen_states_are_submitted_again() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(numbered(given(10, 4), tasks(0)));
    bench.fail(worker, key(job, 10));
    bench.finish(worker, key(job, 11));
    bench.fail(worker, key(job, 12));
    let again = resubmit(&mut bench, job, &[TaskState::Failed]);
    let new = JobId(2);
    assert_eq!(
        again,
        Resubmitted::Ok {
            job,
            new,
            task_count: 2
        }
    );
    let ids = bench.state.jobs()[&new].sorted_ids(|_| true);
    assert!(ids.iter().eq([10, 12]), "with the ids that they had");
    assert_eq!(bench.counts(job).failed, 2, "the old ones stay");
}

#[test]
fn entries_follow_the_tasks_that_are_submitted_again() {
    let (mut bench, worker) = Bench::with_worker(1);
    let mut spec = tasks(3);
    let SubmitBody::Array(array) = &mut spec.body else {
        panic!("an array");
    };
    array.entries = Entries::new(*b"abbccc", [1, 2, 3]);
    let job = bench.submit(spec);
    bench.finish(worker, key(job, 0));
    bench.fail(worker, key(job, 1));
    bench.finish(worker, key(job, 2));
    resubmit(&mut bench, job, &[TaskState::Failed]);
    let submit = &bench.state.jobs()[&JobId(2)].submits[0];
    assert_eq!(submit.entry(0), Some(&b"bb"[..]));
}

#[test]
fn nothing_is_submitted_again_where_nothing_is_in_these_states() {
    let mut bench = Bench::new();
    let job = bench.submit(tasks(1));
    let again = resubmit(&mut bench, job, &[TaskState::Failed]);
    assert_eq!(again, Resubmitted::Nothing(job));
    assert_eq!(bench.state.last_job(), Some(job));
}

#[test]
fn a_task_is_not_submitted_again_without_what_it_depends_on() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[])]));
    bench.fail(worker, key(job, 0));
    let again = resubmit(&mut bench, job, &[TaskState::Aborted]);
    let refusal = SubmitRefusal::DependencyNotChosen(1.into_task(), 0.into_task());
    assert_eq!(again, Resubmitted::Refused(job, refusal));
    let both = [TaskState::Aborted, TaskState::Failed];
    let again = resubmit(&mut bench, job, &both);
    assert!(matches!(again, Resubmitted::Ok { task_count: 2, .. }));
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(2)), JobState::Finished);
}

#[test]
fn a_task_whose_dependency_finished_is_submitted_again_without_it() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0])]));
    bench.finish(worker, key(job, 0));
    bench.fail(worker, key(job, 1));
    let again = resubmit(&mut bench, job, &[TaskState::Failed]);
    assert!(matches!(again, Resubmitted::Ok { task_count: 1, .. }));
    assert_eq!(bench.has(worker), [(2, 1)], "it waits for nothing");
}

/// Resubmits the tasks at some positions of each submission.
fn resubmit_tasks(bench: &mut Bench, job: JobId, positions: &[&[u32]]) -> Resubmitted {
    let chosen = positions.iter().map(|submit| {
        let mut chosen = IndexSet::new();
        submit.iter().for_each(|at| chosen.insert(*at));
        chosen
    });
    let positions = chosen.collect();
    let effects = bench.request(Command::ResubmitTasks { job, positions });
    let Reply::Resubmitted(found) = reply(&effects) else {
        panic!("about what was submitted again");
    };
    found.rows[0].clone()
}

#[test]
fn chosen_tasks_are_submitted_again_and_what_else_they_depended_on_is_done() {
    let (mut bench, worker) = Bench::with_worker(1);
    // The first task fails, and the user does its work by other means.
    let job = bench.submit(graph(&[(3, &[]), (5, &[3]), (9, &[5])]));
    bench.fail(worker, key(job, 3));
    let again = resubmit_tasks(&mut bench, job, &[&[1, 2]]);
    assert!(matches!(again, Resubmitted::Ok { task_count: 2, .. }));
    assert_eq!(bench.has(worker), [(2, 5)], "only the last one waits");
    bench.finish_all();
    let ids = bench.state.jobs()[&JobId(2)].sorted_ids(|_| true);
    assert!(ids.iter().eq([5, 9]));
    assert_eq!(bench.state.jobs()[&job].resubmitted_as, Some(JobId(2)));
}

#[test]
fn tasks_are_chosen_by_their_places_in_each_submit() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    let mut spec = tasks(3);
    let SubmitBody::Array(array) = &mut spec.body else {
        panic!("an array");
    };
    array.entries = Entries::new(*b"abbccc", [1, 2, 3]);
    bench.submit(into(job, numbered(given(10, 3), spec)));
    bench.submit(into(job, graph(&[(20, &[11]), (21, &[12])])));
    bench.finish_all();
    // Another client may have added further positions and submissions since then.
    let again = resubmit_tasks(&mut bench, job, &[&[1, 7], &[0, 1], &[0]]);
    assert!(
        matches!(again, Resubmitted::Ok { task_count: 3, .. }),
        "{again:?}"
    );
    let new = JobId(2);
    let ids = bench.state.jobs()[&new].sorted_ids(|_| true);
    assert!(ids.iter().eq([11, 20, 21]));
    assert_eq!(
        bench.state.jobs()[&new].submits[0].entry(0),
        Some(&b"bb"[..])
    );
    assert_eq!(
        bench.has(worker),
        [(2, 11), (2, 21)],
        "what 21 depended on is done"
    );
    bench.finish_all();
    assert_eq!(bench.job_state(new), JobState::Finished);
    let nothing = resubmit_tasks(&mut bench, job, &[&[], &[]]);
    assert_eq!(nothing, Resubmitted::Nothing(job));
}

#[test]
fn what_a_job_was_made_of_is_told_submit_by_submit() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, tasks(2)));
    bench.submit(into(job, graph(&[(7, &[1]), (8, &[7])])));
    let specs = specs(&bench.state.jobs()[&job]);
    let [first, second] = &specs[..] else {
        panic!("{specs:?}");
    };
    assert!(
        matches!(&first.body, SubmitBody::Array(array) if matches!(&array.ids, ArrayIds::Given(ids) if ids.len() == 2))
    );
    let SubmitBody::Graph(graph) = &second.body else {
        panic!("a graph");
    };
    let deps = graph
        .tasks
        .iter()
        .map(|task| (task.id.as_u32(), task.deps[0].as_u32()));
    assert!(deps.eq([(7, 1), (8, 7)]));
}

#[test]
fn all_submits_of_an_open_job_become_one_closed_job() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, tasks(2)));
    bench.submit(into(job, numbered(given(5, 1), tasks(0))));
    let again = resubmit(&mut bench, job, &[]);
    assert!(matches!(again, Resubmitted::Ok { task_count: 3, .. }));
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(2)), JobState::Finished);
    assert_eq!(bench.has(worker), []);
}

#[test]
fn jobs_are_forgotten_when_they_are_over_and_in_the_chosen_state() {
    let (mut bench, worker) = Bench::with_worker(1);
    let (good, bad, open) = (
        bench.submit(tasks(1)),
        bench.submit(tasks(1)),
        bench.submit(tasks(1)),
    );
    bench.finish(worker, key(good, 0));
    bench.fail(worker, key(bad, 0));
    let (forgotten, ignored, effects) = forget(&mut bench, Selector::All, &[TaskState::Finished]);
    assert_eq!((forgotten, ignored), (1, 2));
    let is_it = |c: &ChangeKind| matches!(c, ChangeKind::JobsForgotten(jobs) if *jobs == [good]);
    assert!(is_stored_at_once(&effects, is_it));
    assert!(bench.state.jobs().contains_key(&bad) && bench.state.jobs().contains_key(&open));
}

#[test]
fn a_job_that_did_not_finish_is_kept_while_others_wait_for_what_became_of_it() {
    let (mut bench, worker) = Bench::with_worker(1);
    let bad = bench.submit(tasks(1));
    bench.fail(worker, key(bad, 0));
    let (forgotten, ..) = forget(&mut bench, one(bad), &[TaskState::Failed]);
    assert_eq!(forgotten, 1, "nobody waits for it");
    let slow = bench.mortal(1);
    let bad = bench.submit(tasks(1));
    bench.submit(after(bad, Waits::ForJob, tasks(1)));
    bench.cancel(bad);
    bench.restart();
    let (forgotten, ..) = forget(&mut bench, one(bad), &[TaskState::Canceled]);
    assert_eq!(forgotten, 0, "the waiting tasks were not examined yet");
    assert!(bench.knows(slow));
}

#[test]
fn totals_count_every_job_once_and_forget_none() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.finish(worker, key(job, 0));
    bench.fail(worker, key(job, 1));
    let before = *bench.state.totals();
    forget(&mut bench, one(job), &[TaskState::Failed]);
    let after = *bench.state.totals();
    assert_eq!((before.tasks.finished, before.tasks.failed), (1, 1));
    assert_eq!((after.tasks.finished, after.tasks.failed), (0, 0));
    assert_eq!(before.ended, after.ended, "what ended did end");
    assert_eq!((after.ended.finished, after.ended.failed), (1, 1));
    bench.state.check_invariants();
}

#[test]
fn a_job_runs_waits_fails_and_is_canceled_by_what_its_tasks_do() {
    let (mut bench, worker) = Bench::with_worker(1);
    let other = bench.submit(tasks(1));
    let job = bench.submit(tasks(3));
    assert_eq!(bench.job_state(job), JobState::Waiting);
    bench.finish(worker, key(other, 0));
    assert_eq!(bench.job_state(job), JobState::Running);
    bench.fail(worker, key(job, 0));
    assert_eq!(
        bench.job_state(job),
        JobState::Running,
        "the next one has room"
    );
    bench.cancel(job);
    assert_eq!(bench.job_state(job), JobState::Failed, "that comes first");
    assert_eq!(bench.phase(key(job, 2)), Phase::Canceled);
}

/// Lets tests write task ids as plain numbers.
trait IntoTask {
    fn into_task(self) -> crate::id::TaskId;
}

impl IntoTask for u32 {
    fn into_task(self) -> crate::id::TaskId {
        crate::id::TaskId(self)
    }
}
