//! Tests that long answers come in parts.

use hq_core::id::{InstanceId, JobId, TaskId};
use hq_core::range::IdArray;
use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use hq_core::selector::Selector;
use hq_core::server_state::{Command, Input, LinkId, ServerState};
use hq_core::template::{ArrayIds, SubmitBody, SubmitTarget, TaskTemplate};
use hq_core::testing::{apply, array_submit, request, template, worker_config};
use hq_core::time::{Now, Time, Timestamp};
use hq_core::worker_config::WorkerConfig;
use hq_protocol::convert::TaskPageQuery;
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_protocol::{Limits, Message as _, Plane};

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

/// Returns a worker whose fields all have the maximum length.
fn largest_worker() -> WorkerConfig {
    let mut config = worker_config(4);
    let name = |number: usize| format!("{number:0>200}").into_boxed_str();
    let kind = |number| match number % 3 {
        0 => ResourceKind::Sum(Amount::whole(u32::MAX)),
        1 => ResourceKind::Range {
            start: u32::MAX - 1_000,
            end: u32::MAX,
        },
        _ => ResourceKind::List((0..50).map(name).collect()),
    };
    let items = (0..1_000).map(|number| ResourceItem {
        name: name(number),
        kind: kind(number),
    });
    config.resources = ResourceDescriptor::new(items.collect(), Vec::new()).expect("own items");
    let long = || "é".repeat(32 << 10).into_boxed_str();
    (config.hostname, config.group, config.work_dir) = (long(), long(), long());
    config.time_limit = Some(std::time::Duration::from_nanos(u64::MAX));
    config
}

#[test]
fn every_answer_passes_the_reader_of_a_client() {
    let mut state = ServerState::new("uid");
    let config = largest_worker();
    apply(
        &mut state,
        Input::WorkerConnected(LinkId(1), config.clone()),
    );
    let name = "é".repeat(32 << 10).into_boxed_str();
    let max_fails = Some(u32::MAX);
    let mut large = template(&["echo", &"x".repeat(1 << 20)]);
    large.env = vec![(Box::from(*b"A"), vec![0xff; 1 << 20].into())];
    for _ in 0..3 {
        let (name, large) = (name.clone(), large.clone());
        submit(
            &mut state,
            SubmitTarget::NewJob { name, max_fails },
            20,
            large,
        );
    }
    let (jobs, reason) = (Selector::Ids(IdArray::single(2)), name);
    request(&mut state, Command::CancelJobs { jobs, reason });
    let some = IdArray::from_sorted([1, 2, 3, 5, 7, u32::MAX]).expect("sorted");
    let page = |tasks| {
        Query::TaskPage(TaskPageQuery {
            job: JobRef::Last,
            tasks,
            states: Vec::new(),
            cursor: 0,
            limit: 0,
            with_definition: true,
            with_curves: false,
            without_paths: false,
        })
    };
    for query in [
        Query::JobList(Selector::All),
        Query::JobInfo(Selector::Ids(some.clone())),
        page(None),
        page(Some(some.clone())),
        Query::TaskIds {
            jobs: Selector::All,
            states: Vec::new(),
        },
        Query::Workers {
            workers: Selector::Ids(some),
            with_runtime: true,
        },
        Query::Explain {
            job: JobRef::Last,
            task: TaskId(0),
            until_able: false,
        },
    ] {
        let sent = client::Reply {
            reply: Some(answer_in_steps(&state, NOW, query.clone(), || ())),
        };
        let is_error = matches!(sent.reply, Some(Reply::Error(_)));
        assert!(!is_error, "{query:?}");
        let bytes = sent.encode_to_vec();
        assert!(bytes.len() <= Limits::accepting(Plane::Client).send_max);
        let read = client::Reply::decode(&bytes[..]).expect("own message");
        assert!(read == sent, "{query:?}");
        if let Some(Reply::Workers(workers)) = read.reply {
            let shown = workers.workers.into_iter().next().expect("the worker");
            let shown = WorkerConfig::try_from(shown.config.expect("its configuration"));
            assert!(shown.expect("own configuration") == config);
        }
    }
}

#[test]
fn pages_end_before_they_are_too_large_and_leave_standard_input_out() {
    let mut state = ServerState::new("uid");
    let (name, max_fails) = ("job".into(), None);
    request(
        &mut state,
        Command::OpenJob {
            name,
            max_fails,
            key: None,
        },
    );
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
    for tasks in [None, Some(IdArray::consecutive(0, 16).expect("few"))] {
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
                    with_curves: false,
                    without_paths: false,
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

#[test]
fn a_task_that_was_never_handed_out_tells_of_instances_that_were_skipped() {
    let mut state = ServerState::new("uid");
    let (name, max_fails) = ("job".into(), None);
    let target = SubmitTarget::NewJob { name, max_fails };
    submit(&mut state, target, 2, template(&["true"]));
    state.restore_first_instance(JobId(1), 0, InstanceId(3));
    let view = View {
        state: &state,
        now: NOW,
    };
    let query = TaskPageQuery {
        job: JobRef::Last,
        tasks: None,
        states: Vec::new(),
        cursor: 0,
        limit: 0,
        with_definition: false,
        with_curves: false,
        without_paths: false,
    };
    let page = task::page(&view, &query);
    let instances: Vec<u32> = page.tasks.iter().map(|task| task.instance).collect();
    assert_eq!(instances, [3, 3]);
}

#[test]
fn a_task_that_a_worker_has_room_for_is_described_as_running() {
    let mut state = ServerState::new("uid");
    let connected = Input::WorkerConnected(LinkId(1), worker_config(1));
    apply(&mut state, connected);
    let (name, max_fails) = ("job".into(), None);
    let target = SubmitTarget::NewJob { name, max_fails };
    submit(&mut state, target, 2, template(&["true"]));
    let view = View {
        state: &state,
        now: NOW,
    };
    let query = TaskPageQuery {
        job: JobRef::Last,
        tasks: None,
        states: Vec::new(),
        cursor: 0,
        limit: 0,
        with_definition: false,
        with_curves: false,
        without_paths: false,
    };
    let page = task::page(&view, &query);
    let shown = page.tasks.iter().map(|task| {
        let workers: Vec<u32> = task.workers.iter().map(|worker| worker.id).collect();
        let is_started = task.started_unix_ns.is_some();
        (task.state(), workers, is_started, task.paths.is_some())
    });
    let running = (client::TaskState::Running, vec![1], true, true);
    let waiting = (client::TaskState::Waiting, vec![], false, false);
    assert_eq!(Vec::from_iter(shown), [running, waiting]);
    let stats = job::summary(&state.jobs()[&JobId(1)]).stats;
    assert_eq!(
        stats.map(|stats| (stats.running, stats.waiting)),
        Some((1, 1))
    );
    let worker = state.workers().values().next().expect("it is connected");
    let runtime = worker::worker_info(&state, worker, true).runtime;
    assert_eq!(runtime.map(|runtime| runtime.running_tasks), Some(1));
}
