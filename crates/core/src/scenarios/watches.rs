//! Clients that follow jobs, messages from tasks, and notifications.

use std::sync::Arc;
use std::time::Duration;

use super::bench::*;
use crate::id::JobId;
use crate::range::{IdArray, IdRange};
use crate::selector::Selector;
use crate::server_state::{
    ChangeKind, Command, Effect, Input, NoticeKey, NoticeState, WatchSpec, WorkerMessage,
};
use crate::template::NotifyEvent;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_client_hears_at_once_how_things_are_and_at_the_end_that_it_is_the_end() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    let (id, effects) = bench.watch(one(job));
    let first = updates(&effects, id);
    assert_eq!(first.len(), 1);
    assert!(!first[0].done && !first[0].jobs[0].ended);
    let effects = bench.finish(worker, key(job, 0));
    let last = updates(&effects, id);
    assert_eq!(last.len(), 1, "at once, regardless of the interval");
    assert!(last[0].done && last[0].jobs[0].ended);
    assert_eq!(last[0].jobs[0].ended_tasks, [IdRange::single(0)]);
}

#[test]
fn changes_are_told_at_most_once_in_an_interval_and_none_is_lost() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(tasks(4));
    let (id, _) = bench.watch(one(job));
    let mut effects = bench.finish(worker, key(job, 2));
    effects.extend(bench.finish(worker, key(job, 1)));
    assert!(updates(&effects, id).is_empty(), "too soon");
    let effects = bench.wait(SECOND);
    let told = updates(&effects, id);
    assert_eq!(told.len(), 1);
    let expected = [2, 1].map(IdRange::single);
    assert_eq!(told[0].jobs[0].ended_tasks, expected, "in their order");
    let effects = bench.wait(SECOND * 10);
    assert!(updates(&effects, id).is_empty(), "nothing has changed");
}

#[test]
fn of_jobs_that_change_together_those_are_told_of_that_are_watched() {
    let mut bench = Bench::new();
    bench.submit(tasks(1));
    let watched = bench.submit(tasks(1));
    bench.submit(tasks(1));
    let (id, _) = bench.watch(one(watched));
    let effects = bench.request(Command::CancelJobs {
        jobs: Selector::All,
        reason: Box::default(),
    });
    let last = updates(&effects, id);
    assert!(last.len() == 1 && last[0].done, "{last:?}");
}

#[test]
fn a_client_that_wants_only_the_end_hears_nothing_before() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    let (id, effects) = bench.watch_with(WatchSpec {
        jobs: one(job),
        until_idle: false,
        with_progress: false,
        with_outcomes: false,
        with_notifications: false,
        interval: SECOND,
    });
    assert!(updates(&effects, id).is_empty());
    let mut effects = bench.finish(worker, key(job, 0));
    effects.extend(bench.wait(SECOND * 5));
    assert!(updates(&effects, id).is_empty());
    let effects = bench.finish(worker, key(job, 1));
    let last = updates(&effects, id);
    assert!(last[0].done);
    assert!(last[0].jobs[0].ended_tasks.is_empty(), "nor their names");
}

#[test]
fn who_asks_for_what_does_not_exist_hears_so_and_that_it_is_over() {
    let mut bench = Bench::new();
    let (id, effects) = bench.watch(Selector::Ids(IdArray::single(9)));
    let told = updates(&effects, id);
    assert!(told[0].done);
    assert!(told[0].not_found.iter().eq([9]));
}

#[test]
fn a_watch_of_all_jobs_means_those_that_are_not_over() {
    let (mut bench, worker) = Bench::with_worker(1);
    let over = bench.submit(tasks(1));
    bench.finish(worker, key(over, 0));
    let open = bench.submit(tasks(1));
    let (id, effects) = bench.watch(Selector::All);
    let jobs: Vec<JobId> = updates(&effects, id)[0]
        .jobs
        .iter()
        .map(|j| j.job)
        .collect();
    assert_eq!(jobs, [open]);
}

#[test]
fn an_open_job_without_work_is_the_end_only_for_those_who_say_so() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, tasks(1)));
    let spec = |until_idle| WatchSpec {
        jobs: one(job),
        until_idle,
        with_progress: false,
        with_outcomes: false,
        with_notifications: false,
        interval: SECOND,
    };
    let (idle, _) = bench.watch_with(spec(true));
    let (closed, _) = bench.watch_with(spec(false));
    let effects = bench.finish(worker, key(job, 0));
    assert!(updates(&effects, idle)[0].done);
    assert!(updates(&effects, closed).is_empty());
    let effects = bench.request(Command::CloseJobs(one(job)));
    assert!(updates(&effects, closed)[0].done);
}

#[test]
fn canceled_and_aborted_tasks_are_named_to_those_who_watch() {
    let mut bench = Bench::new();
    let job = bench.submit(tasks(3));
    let (id, _) = bench.watch(one(job));
    let effects = bench.cancel(job);
    let names = &updates(&effects, id)[0].jobs[0].ended_tasks;
    assert_eq!(*names, [IdRange::new(0, 3, 1).expect("a range")]);
}

#[test]
fn a_message_of_a_task_is_passed_on_at_once_to_those_who_want_it() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    let other = bench.submit(tasks(1));
    let (id, _) = bench.watch(one(job));
    let (elsewhere, _) = bench.watch(one(other));
    bench.start(worker, key(job, 0));
    let words: Arc<[u8]> = Arc::from(*b"half way");
    let message = WorkerMessage::Notify(key(job, 0), Arc::clone(&words));
    let effects = bench.say(worker, message);
    let told = updates(&effects, id);
    assert_eq!(told[0].notifications[0].message, words);
    assert_eq!(told[0].notifications[0].worker, worker);
    assert!(updates(&effects, elsewhere).is_empty());
}

#[test]
fn a_client_that_is_gone_hears_nothing_and_costs_no_timer() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    let (id, _) = bench.watch(one(job));
    bench.finish(worker, key(job, 0));
    bench.apply(Input::RequestGone(id));
    let mut effects = bench.wait(SECOND * 2);
    effects.extend(bench.finish(worker, key(job, 1)));
    assert!(updates(&effects, id).is_empty());
}

#[test]
fn a_watch_ends_when_its_job_is_forgotten() {
    use crate::server_state::Command;
    use crate::task::TaskState;
    let mut bench = Bench::new();
    let (over, open) = (bench.submit(tasks(1)), bench.submit(tasks(1)));
    bench.cancel(over);
    let both = Selector::Ids(IdArray::consecutive(over.0, 2).expect("valid"));
    let (id, _) = bench.watch(both);
    let (jobs, states) = (one(over), vec![TaskState::Canceled]);
    bench.request(Command::ForgetJobs { jobs, states });
    let effects = bench.cancel(open);
    let last = updates(&effects, id);
    assert!(last.last().is_some_and(|update| update.done), "{last:?}");
}

#[test]
fn the_first_failure_of_a_job_is_notified_once() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(notifying(NotifyEvent::Failure, tasks(3)));
    let first = NoticeKey { job, number: 0 };
    assert!(notices(&bench.finish(worker, key(job, 0))).is_empty());
    assert_eq!(notices(&bench.fail(worker, key(job, 1))), [first]);
    assert!(notices(&bench.fail(worker, key(job, 2))).is_empty());
}

#[test]
fn the_end_of_a_job_is_notified_when_it_is_closed_and_idle() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, notifying(NotifyEvent::End, tasks(1))));
    assert!(notices(&bench.finish(worker, key(job, 0))).is_empty());
    let effects = bench.request(Command::CloseJobs(one(job)));
    assert_eq!(notices(&effects), [NoticeKey { job, number: 0 }]);
}

#[test]
fn what_became_of_a_notification_is_kept_with_its_reason() {
    let mut bench = Bench::new();
    let job = bench.submit(notifying(NotifyEvent::End, tasks(1)));
    bench.cancel(job);
    let key = NoticeKey { job, number: 0 };
    let effects = bench.apply(Input::Notified {
        key,
        attempts: 3,
        error: Some("no answer".into()),
    });
    let is_it = |c: &&ChangeKind| matches!(c, ChangeKind::JobNotified { .. });
    assert_eq!(changes(&effects).iter().filter(|c| is_it(c)).count(), 1);
    let NoticeState::Done(outcome) = &bench.state.jobs()[&job].notices[0].state else {
        panic!("it is done");
    };
    assert_eq!(
        (outcome.attempts, outcome.error.as_deref()),
        (3, Some("no answer"))
    );
}

#[test]
fn how_busy_a_worker_is_is_stored_and_told_to_nobody() {
    let (mut bench, worker) = Bench::with_worker(1);
    let usage = crate::hardware::HardwareUsage::default();
    let effects = bench.say(worker, WorkerMessage::Overview(Box::new(usage)));
    let is_it = |c: &&ChangeKind| matches!(c, ChangeKind::WorkerOverview { .. });
    assert!(changes(&effects).iter().any(is_it));
    let is_message = |effect: &Effect| !matches!(effect, Effect::Persist(_));
    assert!(!effects.iter().any(is_message));
}
