//! Tests of updates that wait for slow clients, and of the messages made from them.

use hq_core::id::{TaskId, TaskKey, WorkerId};
use hq_core::selector::Selector;
use hq_core::server_state::{Command, Notification, ServerState, WatchedJob};
use hq_core::template::{ArrayIds, SubmitBody, SubmitTarget};
use hq_core::testing::{array_submit, request, template};

use hq_protocol::Message as _;

use super::*;
use crate::query;

const EACH: Details = Details {
    with_values: false,
    with_ranges: false,
};

/// Returns a server with a canceled job of `count` tasks.
fn canceled(count: u32) -> ServerState {
    let mut state = ServerState::new("uid");
    let mut spec = array_submit(count, template(&["true"]));
    if let SubmitBody::Array(array) = &mut spec.body {
        array.ids = ArrayIds::Next(count);
    }
    spec.target = SubmitTarget::NewJob {
        name: "job".into(),
        max_fails: None,
    };
    request(&mut state, Command::Submit(Box::new(spec)));
    let (jobs, reason) = (Selector::All, "".into());
    request(&mut state, Command::CancelJobs { jobs, reason });
    state
}

/// Returns an update with ended tasks of the first job.
fn end_of(first: u32, count: u32, done: bool) -> WatchUpdate {
    WatchUpdate {
        jobs: vec![WatchedJob {
            job: JobId(1),
            ended: done,
            ended_tasks: VecDeque::from([IdRange::new(first, count, 1).expect("a range")]),
        }],
        done,
        ..WatchUpdate::default()
    }
}

fn messages(
    state: &ServerState,
    mut update: Update,
    details: Details,
    bytes_max: usize,
) -> Vec<client::WatchUpdate> {
    let mut messages = Vec::new();
    loop {
        query::make_details(state, &mut update, details, bytes_max);
        messages.push(update.take_message(bytes_max));
        if messages.last().is_some_and(|message| !message.more) {
            return messages;
        }
    }
}

fn ids(messages: &[client::WatchUpdate]) -> Vec<u32> {
    let tasks = messages.iter().flat_map(|message| &message.jobs);
    let tasks = tasks.flat_map(|job| &job.ended_tasks);
    tasks
        .flat_map(|task| task.id..=task.id + task.others)
        .collect()
}

#[test]
fn an_update_of_many_tasks_comes_in_parts_and_ends_with_the_last() {
    let state = canceled(100);
    let update = || query::update(&state, end_of(0, 100, true));
    let parts = messages(&state, update(), EACH, 128);
    assert!(parts.len() > 5, "{} parts", parts.len());
    let (last, before) = parts.split_last().expect("at least one");
    assert!(last.done && !last.more && last.jobs[0].ended);
    let goes_on = |part: &client::WatchUpdate| part.more && !part.done && !part.jobs[0].ended;
    assert!(before.iter().all(goes_on));
    assert_eq!(ids(&parts), Vec::from_iter(0..100));
    assert!(parts.iter().all(|part| part.encoded_len() <= 256));
    assert_eq!(messages(&state, update(), EACH, 1 << 20).len(), 1);
}

#[test]
fn tasks_that_never_started_are_one_outcome_for_those_who_want_ranges() {
    let state = canceled(1_000_000);
    let ranges = Details {
        with_ranges: true,
        ..EACH
    };
    let update = query::update(&state, end_of(0, 1_000_000, true));
    let parts = messages(&state, update, ranges, 1 << 20);
    assert_eq!(parts.len(), 1);
    assert!(parts[0].encoded_len() < 1_024);
    assert_eq!(ids(&parts), Vec::from_iter(0..1_000_000));
}

#[test]
fn many_jobs_and_notifications_come_in_parts() {
    const BYTES_MAX: usize = 4 << 10;
    let mut state = ServerState::new("uid");
    for number in 0..500 {
        let open = Command::OpenJob {
            name: format!("{number:0>40}").into(),
            max_fails: None,
            key: None,
        };
        request(&mut state, open);
    }
    let jobs = (1..=500).map(|job| WatchedJob {
        job: JobId(job),
        ended: job % 2 == 0,
        ended_tasks: VecDeque::new(),
    });
    let notifications = (0..500).map(|number| Notification {
        task: TaskKey::new(JobId(1), TaskId(number)),
        worker: WorkerId(1),
        message: vec![b'x'; 100].into(),
    });
    let update = WatchUpdate {
        jobs: jobs.collect(),
        notifications: notifications.collect(),
        done: true,
        ..WatchUpdate::default()
    };
    let parts = messages(&state, query::update(&state, update), EACH, BYTES_MAX);
    let sizes: Vec<usize> = parts.iter().map(|part| part.encoded_len()).collect();
    assert!(
        sizes.iter().all(|bytes| *bytes <= 2 * BYTES_MAX),
        "{sizes:?}"
    );
    let (last, before) = parts.split_last().expect("at least one");
    assert!(last.done && !last.more);
    assert!(before.iter().all(|part| part.more && !part.done));
    let jobs = parts.iter().flat_map(|part| &part.jobs);
    let ended: Vec<bool> = jobs.map(|job| job.ended).collect();
    assert_eq!(ended, Vec::from_iter((1..=500).map(|job| job % 2 == 0)));
    let notified = parts.iter().flat_map(|part| &part.notifications);
    let notified: Vec<u32> = notified.map(|sent| sent.task).collect();
    assert_eq!(notified, Vec::from_iter(0..500));
}

#[tokio::test]
async fn a_client_that_falls_behind_costs_ranges_and_misses_nothing() {
    let state = canceled(100_000);
    let (sender, mut receiver) = channel(EACH);
    for first in (0..100_000).step_by(100) {
        let update = query::update(&state, end_of(first, 100, first == 99_900));
        let sent = sender.send(update, |update| {
            query::make_details(&state, update, EACH, 1 << 20)
        });
        assert_eq!(sent, Ok(()));
    }
    {
        let waiting = lock(&sender.waiting);
        let job = &waiting.as_ref().expect("it waits").jobs[&JobId(1)];
        assert_eq!(job.tasks.len(), TASKS_MAX, "of one message");
        assert!(job.rest.len() < 2, "ranges join: {}", job.rest.len());
    }
    drop(sender);
    let update = receiver.recv().await.expect("an update");
    assert!(receiver.recv().await.is_none(), "it was the last one");
    let parts = messages(&state, update, EACH, 1 << 20);
    assert_eq!(ids(&parts), Vec::from_iter(0..100_000));
    assert!(parts.last().is_some_and(|part| part.done));
}

#[test]
fn a_job_with_many_tasks_does_not_keep_back_one_that_came_later() {
    let mut state = canceled(10_000);
    let mut spec = array_submit(5, template(&["true"]));
    spec.target = SubmitTarget::NewJob {
        name: "second".into(),
        max_fails: None,
    };
    request(&mut state, Command::Submit(Box::new(spec)));
    let (sender, receiver) = channel(EACH);
    for (job, count) in [(2, 5_000), (1, 1)] {
        let mut update = end_of(0, count, false);
        update.jobs[0].job = JobId(job);
        let update = query::update(&state, update);
        let sent = sender.send(update, |update| {
            query::make_details(&state, update, EACH, 1 << 20)
        });
        assert_eq!(sent, Ok(()));
    }
    let update = lock(&receiver.waiting).take().expect("it waits");
    let parts = messages(&state, update, EACH, 1 << 20);
    let first = parts.iter().flat_map(|part| &part.jobs);
    let first = first.filter(|job| job.summary.as_ref().is_some_and(|summary| summary.id == 1));
    assert_eq!(first.map(|job| job.ended_tasks.len()).sum::<usize>(), 1);
}

#[test]
fn tasks_of_a_job_that_was_forgotten_have_an_outcome() {
    let state = canceled(1);
    let mut update = end_of(0, 3, true);
    update.jobs[0].job = JobId(9);
    let parts = messages(&state, query::update(&state, update), EACH, 1 << 20);
    assert_eq!(ids(&parts), [0, 1, 2]);
    let lost = &parts[0].jobs[0].ended_tasks[0];
    assert_eq!(lost.state(), client::TaskState::Failed);
    assert!(
        lost.error
            .as_ref()
            .is_some_and(|error| error.contains("forgotten"))
    );
}

#[test]
fn a_client_that_does_not_take_its_updates_is_cut_off() {
    let state = ServerState::new("uid");
    let (sender, receiver) = channel(EACH);
    let say = || {
        let update = WatchUpdate {
            notifications: vec![Notification {
                task: TaskKey::new(JobId(1), TaskId(0)),
                worker: WorkerId(1),
                message: vec![b'x'; 100].into(),
            }],
            ..WatchUpdate::default()
        };
        sender.send(query::update(&state, update), |_| ())
    };
    for _ in 0..NOTIFICATIONS_MAX {
        assert_eq!(say(), Ok(()));
    }
    assert_eq!(say(), Err(SendError::Slow));
    drop(receiver);
    let (sender, _receiver) = channel(EACH);
    let mut update = end_of(0, 1, false);
    let apart = (0..=2 * RANGES_MAX).step_by(2);
    let apart = apart.map(|id| IdRange::single(u32::try_from(id).expect("small")));
    update.jobs[0].ended_tasks = apart.collect();
    let sent = sender.send(query::update(&state, update), |_| ());
    assert_eq!(sent, Err(SendError::Slow));
    let (sender, receiver) = channel(EACH);
    drop(receiver);
    let sent = sender.send(Update::default(), |_| ());
    assert_eq!(sent, Err(SendError::Gone));
}
