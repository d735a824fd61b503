//! Long answers come in parts.

use hq_core::id::{JobId, TaskId};
use hq_core::selector::Selector;
use hq_core::server_state::{Command, ServerState, WatchedJob};
use hq_core::template::{ArrayIds, SubmitBody, SubmitTarget, TaskTemplate};
use hq_core::testing::{array_submit, request, template};
use hq_core::time::{Now, Time, Timestamp};
use hq_protocol::convert::TaskPageQuery;
use hq_protocol::limits::PAGE_BYTES_MAX;

use super::*;

const NOW: Now = Now {
    mono: Time(0),
    wall: Timestamp(0),
};

fn submit(state: &mut ServerState, target: SubmitTarget, count: u32, template: TaskTemplate) {
    let mut spec = array_submit(count, template);
    if let SubmitBody::Array(array) = &mut spec.body {
        array.ids = ArrayIds::Next(count);
    }
    spec.target = target;
    request(state, Command::Submit(Box::new(spec)));
}

#[test]
fn an_update_of_many_tasks_comes_in_parts_and_ends_with_the_last() {
    let mut state = ServerState::new("uid");
    let target = SubmitTarget::NewJob {
        name: "job".into(),
        max_fails: None,
    };
    submit(&mut state, target, 100, template(&["true"]));
    let jobs = Selector::All;
    let reason = "".into();
    request(&mut state, Command::CancelJobs { jobs, reason });
    let update = WatchUpdate {
        jobs: vec![WatchedJob {
            job: JobId(1),
            ended: true,
            ended_tasks: (0..100).map(TaskId).collect(),
        }],
        done: true,
        ..WatchUpdate::default()
    };
    let parts = watch_updates(&state, &update, true, 128);
    assert!(parts.len() > 5, "{} parts", parts.len());
    let (last, before) = parts.split_last().expect("at least one");
    assert!(last.done && !last.more && last.jobs[0].ended);
    let goes_on = |part: &client::WatchUpdate| part.more && !part.done && !part.jobs[0].ended;
    assert!(before.iter().all(goes_on));
    let tasks = |part: &client::WatchUpdate| part.jobs[0].ended_tasks.clone();
    let told: Vec<u32> = parts.iter().flat_map(tasks).map(|task| task.id).collect();
    assert_eq!(told, Vec::from_iter(0..100));
    assert!(parts.iter().all(|part| part.encoded_len() <= 128));
    assert_eq!(watch_updates(&state, &update, true, 1 << 20).len(), 1);
}

#[test]
fn an_update_of_many_jobs_and_notifications_comes_in_parts() {
    const BYTES_MAX: usize = 4 << 10;
    let mut state = ServerState::new("uid");
    for number in 0..500 {
        let (name, max_fails) = (format!("{number:0>40}").into(), None);
        request(&mut state, Command::OpenJob { name, max_fails });
    }
    let jobs = (1..=500).map(|job| WatchedJob {
        job: JobId(job),
        ended: job % 2 == 0,
        ended_tasks: Vec::new(),
    });
    let notifications = (0..500).map(|number| Notification {
        task: hq_core::id::TaskKey::new(JobId(1), TaskId(number)),
        worker: hq_core::id::WorkerId(1),
        message: vec![b'x'; 100].into(),
    });
    let update = WatchUpdate {
        jobs: jobs.collect(),
        notifications: notifications.collect(),
        done: true,
        ..WatchUpdate::default()
    };
    let parts = watch_updates(&state, &update, false, BYTES_MAX);
    let sizes: Vec<usize> = parts.iter().map(|part| part.encoded_len()).collect();
    assert!(sizes.iter().all(|bytes| *bytes <= BYTES_MAX), "{sizes:?}");
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

#[test]
fn pages_end_before_they_are_too_large_and_leave_standard_input_out() {
    let mut state = ServerState::new("uid");
    let (name, max_fails) = ("job".into(), None);
    request(&mut state, Command::OpenJob { name, max_fails });
    let word = "x".repeat(1 << 20);
    for _ in 0..8 {
        let large = TaskTemplate {
            stdin: Some(vec![0; 8 << 20].into()),
            ..template(&["echo", &word])
        };
        submit(&mut state, SubmitTarget::Attach(JobId(1)), 2, large);
    }
    let view = View {
        state: &state,
        now: NOW,
    };
    for tasks in [
        None,
        Some(hq_core::range::IdArray::consecutive(0, 16).expect("few")),
    ] {
        let mut seen = Vec::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = task::page(
                &view,
                &TaskPageQuery {
                    job: JobRef::Last,
                    tasks: tasks.clone(),
                    states: Vec::new(),
                    cursor: from,
                    limit: 0,
                    with_definition: true,
                },
            );
            let bytes = page.encoded_len();
            assert!(bytes <= PAGE_BYTES_MAX + (2 << 20), "{bytes} bytes");
            seen.extend(page.tasks.iter().map(|task| task.id));
            cursor = page.next_cursor;
        }
        assert_eq!(seen, Vec::from_iter(0..16));
    }
}
