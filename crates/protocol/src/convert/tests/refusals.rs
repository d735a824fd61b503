//! Each test violates one rule and checks the rejection and the field that it names.

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::node_check::NodeFault;
use hq_core::range::IdArray;
use hq_core::resize::NewRequest;
use hq_core::resource::descriptor::ResourceDescriptor;
use hq_core::server_state::Command;
use hq_core::sizing::LearnSpec;
use hq_core::template::{ArrayIds, ArraySpec, GraphSpec, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::template::{CrashLimit, PinMode, StdioSpec, TaskFiles, TaskTemplate};
use hq_core::time::Timestamp;
use hq_core::worker_config::{MemoryLimits, OnServerLost, WorkerConfig};

use super::*;

fn template() -> common::TaskTemplate {
    let template = TaskTemplate {
        args: vec![b"/bin/true"[..].into()],
        env: Vec::new(),
        cwd: b"/tmp"[..].into(),
        stdout: StdioSpec::None,
        stderr: StdioSpec::None,
        stdin: None,
        task_dir: false,
        pin: PinMode::None,
        time_limit: None,
        priority: 0,
        crash_limit: CrashLimit::default(),
        requests: Default::default(),
        stop: Default::default(),
        retry: Default::default(),
        is_call: false,
        learn: LearnSpec::default(),
        params: None,
        files: TaskFiles::default(),
        enforce_memory: true,
        name: None,
        entry_in_args: false,
    };
    (&template).into()
}

fn submit() -> client::Submit {
    let template: TaskTemplate = template().try_into().expect("valid");
    let spec = SubmitSpec {
        target: SubmitTarget::NewJob {
            name: "job".into(),
            max_fails: None,
        },
        submit_dir: b"/home"[..].into(),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Next(2),
            entries: None,
            template: Arc::new(template),
        }),
    };
    (&spec).into()
}

fn config() -> common::WorkerConfig {
    let config = WorkerConfig {
        hostname: "node1".into(),
        group: "default".into(),
        listen_address: "node1:1".into(),
        work_dir: "/tmp".into(),
        heartbeat: Duration::from_secs(8),
        idle_timeout: None,
        time_limit: None,
        overview_interval: None,
        retract_check_interval: Duration::from_secs(30),
        min_utilization: 0.0,
        on_server_lost: OnServerLost::Stop,
        takes_successors: true,
        memory_limits: MemoryLimits::Enforced,
        process_pid: 1,
        allocation: None,
        return_digest: None,
        resources: ResourceDescriptor::cpus(4),
    };
    (&config).into()
}

/// Applies `change` to a valid message and returns the field that the rejection names.
fn refused<M, T>(mut message: M, change: impl FnOnce(&mut M)) -> String
where
    T: TryFrom<M, Error = ConvertError>,
{
    change(&mut message);
    match T::try_from(message) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.field().to_owned(),
    }
}

fn variable(name: &'static str, value: &'static [u8]) -> common::EnvVar {
    common::EnvVar {
        name: name.as_bytes().into(),
        value: value.into(),
    }
}

#[test]
fn templates() {
    type Change = fn(&mut common::TaskTemplate);
    let cases: [(&str, Change); 13] = [
        ("args", |t| t.args.clear()),
        ("args", |t| t.args[0].clear()),
        ("args", |t| t.args.push(b"a\0b"[..].into())),
        ("env[0].name", |t| t.env.push(variable("", b"x"))),
        ("env[0].name", |t| t.env.push(variable("A=B", b"x"))),
        ("env[0].value", |t| t.env.push(variable("A", b"\0"))),
        ("env", |t| {
            t.env
                .extend([variable("A", b""), variable("B", b""), variable("A", b"")])
        }),
        ("cwd", |t| t.cwd.clear()),
        ("stdout", |t| t.stdout = None),
        ("stderr.kind", |t| {
            t.stderr = Some(common::Stdio {
                kind: 9,
                ..Default::default()
            })
        }),
        ("pin", |t| t.pin = -1),
        ("crash_limit.max", |t| {
            t.crash_limit = Some(common::CrashLimit::default())
        }),
        ("requests", |t| t.requests.clear()),
    ];
    for (field, change) in cases {
        assert_eq!(refused::<_, TaskTemplate>(template(), change), field);
    }
}

#[test]
fn variables_are_sorted() {
    let mut message = template();
    message.env = vec![variable("B", b"2"), variable("A", b"1")];
    let template: TaskTemplate = message.try_into().expect("valid");
    let names: Vec<&[u8]> = template.env.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [b"A", b"B"]);
}

#[test]
fn submits() {
    fn array(submit: &mut client::Submit) -> &mut client::ArraySubmit {
        match &mut submit.body {
            Some(client::submit::Body::Array(array)) => array,
            other => panic!("{other:?}"),
        }
    }
    type Change = fn(&mut client::Submit);
    let cases: [(&str, Change); 7] = [
        ("target", |s| s.target = None),
        ("body", |s| s.body = None),
        ("submit_dir", |s| s.submit_dir = b"home"[..].into()),
        ("array.ids", |s| array(s).ids = None),
        ("array.entries", |s| {
            array(s).entries = Some(common::Entries::default())
        }),
        ("array.template.cwd", |s| {
            if let Some(template) = &mut array(s).template {
                template.cwd.clear();
            }
        }),
        ("stream_dir", |s| {
            if let Some(template) = &mut array(s).template {
                template.stdout = Some((&StdioSpec::Stream).into());
            }
        }),
    ];
    for (field, change) in cases {
        assert_eq!(refused::<_, SubmitSpec>(submit(), change), field);
    }
}

#[test]
fn graphs() {
    let graph = client::GraphSubmit {
        templates: vec![template()],
        task_ids: vec![1, 2],
        task_templates: vec![0, 0],
        dep_ends: vec![0, 1],
        deps: vec![1],
    };
    let spec: GraphSpec = graph.clone().try_into().expect("valid");
    assert_eq!(spec.tasks[1].deps.len(), 1);
    type Change = fn(&mut client::GraphSubmit);
    let cases: [(&str, Change); 6] = [
        ("task_templates", |g| g.task_templates[0] = 1),
        ("task_templates", |g| g.task_templates.truncate(1)),
        ("dep_ends", |g| g.dep_ends.truncate(1)),
        ("dep_ends", |g| g.dep_ends = vec![1, 0]),
        ("dep_ends", |g| g.dep_ends = vec![0, u64::MAX]),
        ("dep_ends", |g| g.deps.push(1)),
    ];
    for (field, change) in cases {
        assert_eq!(refused::<_, GraphSpec>(graph.clone(), change), field);
    }
}

#[test]
fn worker_configs() {
    type Change = fn(&mut common::WorkerConfig);
    let huge = |c: &mut common::WorkerConfig| {
        let span = common::IndexSpan {
            start: 0,
            end: u32::MAX,
        };
        let kind = Some(common::resource_item::Kind::Range(span));
        let item = common::ResourceItem {
            name: "x".into(),
            kind,
        };
        c.resources = Some(common::ResourceDescriptor {
            items: vec![item],
            coupling: Vec::new(),
        });
    };
    let cases: [(&str, Change); 9] = [
        ("heartbeat_ns", |c| c.heartbeat_ns = 100_000_000),
        ("min_utilization", |c| c.min_utilization = f32::NAN),
        ("min_utilization", |c| c.min_utilization = 1.5),
        ("min_utilization", |c| c.min_utilization = -0.1),
        ("hostname", |c| c.hostname.clear()),
        ("on_server_lost", |c| c.on_server_lost = 7),
        ("allocation.manager", |c| {
            c.allocation = Some(common::Allocation::default())
        }),
        ("resources", |c| c.resources = None),
        ("resources.items[0].range", huge),
    ];
    for (field, change) in cases {
        assert_eq!(refused::<_, WorkerConfig>(config(), change), field);
    }
}

#[test]
fn id_arrays() {
    let range = |first, count, step| common::IdRange {
        first,
        count,
        step,
        slack: 0,
    };
    let check = |ranges| refused::<_, IdArray>(common::IdArray { ranges }, |_| ());
    assert_eq!(check(vec![range(0, 0, 1)]), "ranges[0].count");
    assert_eq!(
        check(vec![range(5, 1, 1), range(u32::MAX, 2, 1)]),
        "ranges[1].count"
    );
    assert_eq!(check(vec![range(0, 5, 1), range(4, 1, 1)]), "ranges");
    // Thousands of interleaved ranges would take minutes to compare.
    let entangled = (0..3000).map(|i| range(i, 40_000, 100_003)).collect();
    assert_eq!(check(entangled), "ranges");
    // Many plain ranges are accepted.
    let plain = (0..100_000).map(|i| range(i * 3, 2, 1)).collect();
    let ids: IdArray = common::IdArray { ranges: plain }
        .try_into()
        .expect("disjoint");
    assert_eq!(ids.len(), 200_000);
}

#[test]
fn reports() {
    use hq_core::server_state::Report;
    let ended = worker::Ended {
        job: 1,
        tasks: vec![1],
        instances: vec![0],
        outcomes: vec![0],
        end_age_us: vec![0],
        run_us: vec![5],
        max_rss_kib: vec![0],
        user_us: vec![0],
        system_us: vec![0],
    };
    let report = worker::Report {
        ended: vec![ended],
        ..Default::default()
    };
    let parsed: Report = report.clone().try_into().expect("valid");
    assert_eq!(parsed.ended[0].run, Duration::from_micros(5));
    let failure = || worker::Failure {
        job: 1,
        task: 1,
        instance: 0,
        message: "x".into(),
    };
    type Change = fn(&mut worker::Report);
    let cases: [(&str, Change); 7] = [
        ("ended[0].instances", |r| r.ended[0].instances.push(1)),
        ("ended[0].user_us", |r| r.ended[0].user_us.clear()),
        ("ended[0].outcomes", |r| r.ended[0].outcomes[0] = -500),
        ("ended[0].outcomes", |r| r.ended[0].outcomes[0] = i32::MIN),
        ("ended[0].outcomes", |r| r.ended[0].outcomes[0] = -1002),
        ("started[0].age_us", |r| {
            let (tasks, instances) = (vec![1], vec![0]);
            r.started = vec![worker::Started {
                job: 1,
                tasks,
                instances,
                age_us: Vec::new(),
            }];
        }),
        ("retracted.groups[0].instances", |r| {
            let group = worker::TaskGroup {
                job: 1,
                tasks: vec![1],
                instances: Vec::new(),
            };
            r.retracted = Some(worker::TaskList {
                groups: vec![group],
                at_once: false,
            });
        }),
    ];
    for (field, change) in cases {
        assert_eq!(refused::<_, Report>(report.clone(), change), field);
    }
    let change = |r: &mut worker::Report| r.failures.push(failure());
    assert_eq!(refused::<_, Report>(report.clone(), change), "failures");
    let twice = |r: &mut worker::Report| r.failures.extend([failure(), failure()]);
    assert_eq!(refused::<_, Report>(report, twice), "failures");
}

#[test]
fn requests() {
    use client::request::Request;
    let check = |request| {
        let message = client::Request { request };
        refused::<_, ClientRequest>(message, |_| ())
    };
    assert_eq!(check(None), "request");
    assert_eq!(
        check(Some(Request::JobList(client::Selector::default()))),
        "job_list.selector"
    );
    let running = client::Forget {
        jobs: Some((&hq_core::selector::Selector::All).into()),
        states: vec![client::TaskState::Running.into()],
    };
    assert_eq!(
        check(Some(Request::JobForget(running))),
        "job_forget.states"
    );
    assert_eq!(
        check(Some(Request::Explain(client::Explain::default()))),
        "explain.job"
    );
}

#[test]
fn a_server_that_knows_no_new_requests_finds_no_jobs_to_submit_again() {
    use client::request::Request;
    let message = |requests: Vec<client::NewRequest>| {
        let requests = requests.into_iter().map(NewRequest::try_from);
        let command = Command::Resubmit {
            jobs: hq_core::selector::Selector::All,
            states: Vec::new(),
            requests: requests.collect::<Result<_, _>>().expect("valid"),
        };
        let Some(Request::JobResubmit(message)) = client::Request::from(&command).request else {
            panic!("{command:?}");
        };
        message
    };
    assert!(message(Vec::new()).jobs.is_some(), "as before");
    let new = client::NewRequest {
        memory_units: 10_000,
        ..client::NewRequest::default()
    };
    assert!(message(vec![new.clone()]).jobs.is_none());
    let nothing = client::NewRequest {
        memory_units: 0,
        ..new
    };
    assert!(NewRequest::try_from(nothing).is_err());
}

#[test]
fn errors_are_short_and_free_of_control_characters() {
    let mut message = template();
    message.env.push(common::EnvVar {
        name: vec![27; 5000].into(),
        value: Vec::new().into(),
    });
    message.env[0].name = [&b"=\x1b[31m\n"[..], &[b'x'; 5000]].concat().into();
    let text = TaskTemplate::try_from(message)
        .expect_err("invalid")
        .to_string();
    assert!(text.len() < 300, "{text}");
    assert!(text.chars().all(|c| !c.is_control()), "{text}");
}

#[test]
fn heartbeats_name_what_cannot_be_killed_and_older_ones_name_nothing() {
    use hq_core::server_state::WorkerMessage;
    use worker::to_server::Message;

    let heard = |message: worker::ToServer| {
        let message = worker::ToServer::decode(&message.encode_to_vec()[..]).expect("own message");
        FromWorker::try_from(message)
    };
    let one = |task| hq_core::worker::Unkillable {
        task: TaskKey::new(JobId(3), TaskId(task)),
        instance: InstanceId(2),
        pid: Some(77).filter(|_| task > 0),
    };
    for count in [0, 1, 256, 300] {
        let jobs = (0..count).map(JobId);
        let fault = |number| NodeFault::Broken {
            path: format!("/{number}").into(),
            error: "é".repeat(2_000).into(),
        };
        let faults: Vec<_> = (0..count).map(fault).collect();
        let sent = heard(heartbeat(
            (0..count).map(one),
            jobs,
            (&faults, Some(Timestamp(5))),
        ));
        let Ok(FromWorker::Message(WorkerMessage::Heartbeat {
            unkillable: found,
            held,
            faults: told,
            sent: Some(Timestamp(5)),
        })) = sent
        else {
            panic!("{sent:?}");
        };
        assert_eq!(held.len(), found.len());
        assert_eq!(told.len(), faults.len().min(16));
        let wanted: Vec<_> = (0..count.min(256)).map(one).collect();
        assert_eq!(found, wanted, "the first ones, up to the limit");
    }
    // A heartbeat of an earlier release is empty.
    let old = worker::ToServer::decode(&[0x12, 0][..]).expect("a message");
    assert!(matches!(
        FromWorker::try_from(old),
        Ok(FromWorker::Message(WorkerMessage::Heartbeat { unkillable, held, faults, sent: None }))
            if unkillable.is_empty() && held.is_empty() && faults.is_empty()
    ));
    let many = vec![worker::Unkillable::default(); 257];
    let unkillable = worker::Heartbeat {
        unkillable: many,
        ..worker::Heartbeat::default()
    };
    let held = worker::Heartbeat {
        held_jobs: vec![1; 257],
        ..worker::Heartbeat::default()
    };
    for many in [unkillable, held] {
        let refused = heard(worker::ToServer {
            message: Some(Message::Heartbeat(many)),
        });
        assert!(refused.is_err(), "{refused:?}");
    }
}

#[test]
fn faults_of_nodes_are_bounded_and_unknown_ones_left_out() {
    use hq_core::server_state::WorkerMessage;
    use worker::to_server::Message;

    let heard = |message: worker::Heartbeat| {
        FromWorker::try_from(worker::ToServer {
            message: Some(Message::Heartbeat(message)),
        })
    };
    let faults = worker::Heartbeat {
        node_faults: vec![worker::NodeFault::default(); 17],
        ..worker::Heartbeat::default()
    };
    let long = worker::Heartbeat {
        node_faults: vec![worker::NodeFault {
            path: "x".repeat(2_000),
            ..worker::NodeFault::default()
        }],
        ..worker::Heartbeat::default()
    };
    for many in [faults, long] {
        let refused = heard(many);
        assert!(refused.is_err(), "{refused:?}");
    }
    // This kind is known only to a later release.
    let later = heard(worker::Heartbeat {
        node_faults: vec![worker::NodeFault {
            kind: 99,
            ..worker::NodeFault::default()
        }],
        ..worker::Heartbeat::default()
    });
    assert!(matches!(
        later,
        Ok(FromWorker::Message(WorkerMessage::Heartbeat { faults, .. })) if faults.is_empty()
    ));
}

#[test]
fn a_worker_that_comes_back_shows_the_secret_of_its_hash() {
    let secret = crate::SecretKey::from_bytes([1; 32]);
    let other = crate::SecretKey::from_bytes([2; 32]);
    let mut config: WorkerConfig = config().try_into().expect("valid");
    let holding = hq_core::worker_state::Holding::default();
    for (digest, shown, is_accepted) in [
        (secret.digest(), &secret, true),
        (secret.digest(), &other, false),
        (None, &other, true),
    ] {
        config.return_digest = digest;
        let message = reattach((&config, shown), WorkerId(1), "uid", &holding, 1);
        let read = FromWorker::try_from(message);
        assert_eq!(read.is_ok(), is_accepted, "{read:?}");
    }
}
