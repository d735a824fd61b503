//! Submits: the server accepts valid submits, and rejections have no other effects.

use std::collections::BTreeSet;

use super::bench::*;
use crate::id::{JobId, TaskId};
use crate::job::JobState;
use crate::server_state::{
    ChangeKind, Command, Effect, Input, Reply, RequestId, Submission, SubmitKey, SubmitRefusal,
    WorkerCommand,
};
use crate::task::TaskState;
use crate::template::{
    ArrayIds, Entries, NotifyEvent, NotifySpec, NotifyTarget, SubmitBody, SubmitSpec,
};

#[test]
fn a_submit_is_stored_before_anybody_hears_of_it() {
    let (mut bench, _) = Bench::with_worker(1);
    let effects = bench.request(Command::Submit(Box::new(tasks(1))));
    let stored = place(&effects, |effect| {
        matches!(effect, Effect::Persist(change)
            if matches!(change.kind, ChangeKind::Submitted { .. }))
    });
    let answered = place(&effects, |effect| matches!(effect, Effect::Reply(..)));
    let sent = place(&effects, |effect| matches!(effect, Effect::ToWorker(..)));
    assert!(stored < answered && stored < sent, "{effects:?}");
}

#[test]
fn jobs_are_numbered_from_one_and_tasks_have_the_ids_that_were_asked_for() {
    let mut bench = Bench::new();
    assert_eq!(bench.submit(tasks(1)), JobId(1));
    let job = bench.submit(numbered(given(7, 2), tasks(0)));
    assert_eq!(job, JobId(2));
    assert!(bench.state.jobs()[&job].find(TaskId(8)).is_some());
    assert!(bench.state.jobs()[&job].find(TaskId(0)).is_none());
}

#[test]
fn tasks_go_only_into_jobs_that_exist_and_are_open() {
    let mut bench = Bench::new();
    let refusal = bench.refused(into(JobId(9), tasks(1)));
    assert_eq!(refusal, SubmitRefusal::JobNotFound(JobId(9)));
    let closed = bench.submit(tasks(1));
    let refusal = bench.refused(into(closed, tasks(1)));
    assert_eq!(refusal, SubmitRefusal::JobNotOpen(closed));
}

#[test]
fn an_id_that_the_job_has_is_refused() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, tasks(5)));
    let refusal = bench.refused(into(job, numbered(given(3, 5), tasks(0))));
    assert_eq!(refusal, SubmitRefusal::TaskExists(TaskId(3), job));
    assert_eq!(bench.counts(job).total(), 5);
}

#[test]
fn a_submit_that_is_repeated_is_known_by_its_nonce_also_after_a_restart_and_in_a_closed_job() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    let five = |first, nonce| SubmitSpec {
        nonce: Some(nonce),
        ..into(job, numbered(given(first, 5), tasks(0)))
    };
    bench.submit(five(0, 7));
    assert_eq!(bench.submit(five(0, 7)), job, "its answer was lost");
    let refusal = bench.refused(five(0, 8));
    assert_eq!(refusal, SubmitRefusal::TaskExists(TaskId(0), job));
    let refusal = bench.refused(five(3, 7));
    assert_eq!(refusal, SubmitRefusal::TaskExists(TaskId(3), job));
    bench.restart();
    bench.close(job);
    assert_eq!(bench.submit(five(0, 7)), job);
    assert_eq!(bench.refused(five(0, 8)), SubmitRefusal::JobNotOpen(job));
    assert_eq!(bench.counts(job).total(), 5);
}

#[test]
fn tasks_without_ids_continue_behind_the_highest_of_the_job() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, numbered(ArrayIds::Next(2), tasks(0))));
    bench.submit(into(job, numbered(given(10, 1), tasks(0))));
    bench.submit(into(job, numbered(ArrayIds::Next(1), tasks(0))));
    let ids: Vec<u32> = bench.state.jobs()[&job]
        .sorted_ids(|_| true)
        .iter()
        .collect();
    assert_eq!(ids, [0, 1, 10, 11]);
}

#[test]
fn tasks_without_ids_are_refused_behind_the_last_number() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, numbered(given(u32::MAX, 1), tasks(0))));
    let refusal = bench.refused(into(job, numbered(ArrayIds::Next(1), tasks(0))));
    assert_eq!(refusal, SubmitRefusal::TooManyTasks);
}

#[test]
fn tasks_that_wait_for_each_other_are_refused() {
    let mut bench = Bench::new();
    let refusal = bench.refused(graph(&[(0, &[]), (1, &[2]), (2, &[1])]));
    assert!(matches!(refusal, SubmitRefusal::Cycle(_)), "{refusal:?}");
    let refusal = bench.refused(graph(&[(0, &[7])]));
    assert_eq!(refusal, SubmitRefusal::Cycle(TaskId(0)), "7 is not there");
    let refusal = bench.refused(graph(&[(4, &[]), (4, &[])]));
    assert_eq!(refusal, SubmitRefusal::TaskTwice(TaskId(4)));
}

#[test]
fn of_several_submits_each_is_accepted_or_refused_by_itself() {
    let mut bench = Bench::new();
    let specs = vec![tasks(1), into(JobId(9), tasks(1)), tasks(2)];
    let effects = bench.request(Command::SubmitAll(specs));
    let Reply::SubmittedAll(results) = reply(&effects) else {
        panic!("an answer for all");
    };
    let refusal = SubmitRefusal::JobNotFound(JobId(9));
    assert_eq!(results, [Ok(JobId(1)), Err(refusal), Ok(JobId(2))]);
}

#[test]
fn a_job_has_at_most_64_notifications_over_all_its_submits() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    let with = |numbers: std::ops::Range<u32>| {
        let mut spec = into(job, numbered(ArrayIds::Next(1), tasks(0)));
        spec.notify = numbers
            .map(|number| NotifySpec {
                target: NotifyTarget::Command(format!("mail {number}").into()),
                event: NotifyEvent::End,
            })
            .collect();
        spec
    };
    bench.submit(with(0..40));
    assert_eq!(bench.refused(with(40..65)), SubmitRefusal::TooManyNotices);
    bench.submit(with(40..64));
    bench.submit(with(0..0));
}

#[test]
fn an_argument_that_no_kernel_takes_is_refused_with_its_size() {
    let mut bench = Bench::new();
    let long = vec![b'x'; 3 << 20];
    let refusal = bench.refused(tasks_with(1, |task| task.args.push(long.into())));
    let SubmitRefusal::TooLarge(what) = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(what.found, 3 << 20);
}

#[test]
fn a_job_without_tasks_has_finished() {
    let mut bench = Bench::new();
    let job = bench.submit(tasks(0));
    assert_eq!(bench.job_state(job), JobState::Finished);
}

#[test]
fn entries_go_out_with_their_tasks() {
    let (mut bench, worker) = Bench::with_worker(3);
    let mut spec = tasks(3);
    let SubmitBody::Array(array) = &mut spec.body else {
        panic!("an array");
    };
    array.entries = Entries::new(*b"abbccc", [1, 2, 3]);
    let effects = bench.request(Command::Submit(Box::new(spec)));
    let commands = told(&effects, worker);
    let assignments = commands.iter().find_map(|command| {
        let WorkerCommand::Assign { assignments, .. } = command else {
            return None;
        };
        Some(assignments)
    });
    let assignment = &assignments.expect("tasks are sent")[0];
    let entries = assignment.entries.as_ref().expect("with entries");
    assert_eq!(entries.get(0), Some(&b"a"[..]));
    assert_eq!(entries.get(2), Some(&b"ccc"[..]));
}

#[test]
fn a_template_goes_to_a_worker_once_and_is_dropped_with_its_job() {
    let (mut bench, worker) = Bench::with_worker(1);
    let templates = |effects: &[Effect]| {
        let commands = told(effects, worker).into_iter();
        let counts = commands.map(|command| {
            let WorkerCommand::Assign { templates, .. } = command else {
                return 0;
            };
            templates.len()
        });
        counts.sum::<usize>()
    };
    let first = bench.request(Command::Submit(Box::new(tasks(40))));
    assert_eq!(templates(&first), 1);
    let mut last = Vec::new();
    while let Some((_, task)) = bench.has(worker).first().copied() {
        last = bench.finish(worker, key(JobId(1), task));
        assert_eq!(templates(&last), 0, "it knows the template");
    }
    let is_drop = |command: &&WorkerCommand| matches!(command, WorkerCommand::DropTemplates(_));
    assert!(told(&last, worker).iter().any(is_drop), "{last:?}");
    assert_eq!(bench.job_state(JobId(1)), JobState::Finished);
}

#[test]
fn submits_with_different_directories_share_no_template() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.open(None);
    let mut dirs = Vec::new();
    for (number, dir) in ["/streams/a", "/streams/b"].into_iter().enumerate() {
        let first = u32::try_from(number).expect("small");
        let mut spec = into(job, numbered(given(first, 1), tasks(0)));
        spec.stream_dir = Some(dir.as_bytes().into());
        for command in told(&bench.request(Command::Submit(Box::new(spec))), worker) {
            if let WorkerCommand::Assign { templates, .. } = command {
                let sent = templates
                    .iter()
                    .map(|template| template.header.stream_dir.clone());
                dirs.extend(sent.flatten());
            }
        }
    }
    assert_eq!(dirs, [Box::from(*b"/streams/a"), Box::from(*b"/streams/b")]);
}

#[test]
fn submits_that_ask_for_the_same_share_a_template() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.open(None);
    let mut sent = 0;
    for number in 0..20 {
        let spec = match number % 4 {
            0 => urgent(0, 7),
            _ => tasks(0),
        };
        let effects = {
            let spec = into(job, numbered(given(number, 1), spec));
            bench.request(Command::Submit(Box::new(spec)))
        };
        for command in told(&effects, worker) {
            if let WorkerCommand::Assign { templates, .. } = command {
                sent += templates.len();
            }
        }
    }
    assert_eq!(sent, 2, "once for each kind");
    let submits = &bench.state.jobs()[&job].submits;
    let templates = submits.iter().filter_map(|submit| submit.template(0));
    let different: BTreeSet<_> = templates.map(|template| template.id).collect();
    assert_eq!(different.len(), 2);
    bench.finish_all();
    bench.close(job);
    bench.restart();
    assert_eq!(bench.job_state(job), JobState::Finished);
}

/// Sends a submit with a key.
fn keyed(bench: &mut Bench, name: &str, digest: &str, spec: SubmitSpec) -> Reply {
    let (name, digest) = (name.into(), digest.into());
    let submission = Submission::one(Box::new(spec), Some(SubmitKey { name, digest }));
    let input = Input::Submit(RequestId(u64::MAX), Box::new(submission));
    reply(&bench.apply(input)).clone()
}

#[test]
fn a_submit_that_is_repeated_with_its_key_is_the_job_of_the_first_time() {
    let mut bench = Bench::new();
    assert_eq!(
        keyed(&mut bench, "a", "1", tasks(1)),
        Reply::Submitted(JobId(1))
    );
    assert_eq!(
        keyed(&mut bench, "a", "1", tasks(1)),
        Reply::Submitted(JobId(1))
    );
    let taken = Reply::Refused(SubmitRefusal::KeyTaken(JobId(1)));
    assert_eq!(keyed(&mut bench, "a", "2", tasks(2)), taken);
    assert_eq!(
        keyed(&mut bench, "b", "1", tasks(1)),
        Reply::Submitted(JobId(2))
    );
    // This also holds for a submit that would be rejected now, because the job was open.
    let open = bench.open(None);
    let more = || into(open, tasks(1));
    assert_eq!(keyed(&mut bench, "c", "3", more()), Reply::Submitted(open));
    bench.close(open);
    bench.restart();
    assert_eq!(keyed(&mut bench, "c", "3", more()), Reply::Submitted(open));
    assert_eq!(keyed(&mut bench, "a", "2", tasks(2)), taken);
    assert_eq!(bench.counts(open).total(), 1);
    assert_eq!(bench.state.last_job(), Some(open));
    // A key is kept as long as its job.
    bench.cancel(JobId(1));
    bench.request(Command::ForgetJobs {
        jobs: one(JobId(1)),
        states: vec![TaskState::Canceled],
    });
    assert_eq!(
        keyed(&mut bench, "a", "2", tasks(2)),
        Reply::Submitted(JobId(4))
    );
}

/// Opens a job with a key.
fn open_keyed(bench: &mut Bench, name: &str, key: &str, digest: &str) -> Reply {
    let (key, digest) = (key.into(), digest.into());
    let open = Command::OpenJob {
        name: name.into(),
        max_fails: Some(3),
        key: Some(SubmitKey { name: key, digest }),
    };
    reply(&bench.request(open)).clone()
}

#[test]
fn a_job_is_opened_once_for_each_key() {
    let mut bench = Bench::new();
    let opened = |id| Reply::Submitted(JobId(id));
    assert_eq!(open_keyed(&mut bench, "x", "a", "1"), opened(1));
    assert_eq!(open_keyed(&mut bench, "x", "a", "1"), opened(1));
    assert_eq!(open_keyed(&mut bench, "x", "b", "1"), opened(2));
    let taken = Reply::Refused(SubmitRefusal::KeyTaken(JobId(1)));
    assert_eq!(open_keyed(&mut bench, "y", "a", "2"), taken);
    // These keys share one namespace with the keys of submits.
    let more = into(JobId(1), tasks(1));
    assert_eq!(keyed(&mut bench, "a", "2", more), taken);
    assert_eq!(bench.counts(JobId(1)).total(), 0);
    bench.close(JobId(1));
    bench.restart();
    assert_eq!(open_keyed(&mut bench, "x", "a", "1"), opened(1));
    assert_eq!(bench.state.last_job(), Some(JobId(2)));
}
