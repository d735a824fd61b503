//! Rules that concern more than the value of one field; `bytes` checks those.

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::node_check::NodeFault;
use hq_core::range::IdArray;
use hq_core::template::{GraphSpec, TaskTemplate};
use hq_core::time::Timestamp;

use super::*;

fn template() -> common::TaskTemplate {
    (&hq_core::testing::template(&["/bin/true"])).into()
}

fn variable(name: &'static str, value: &'static [u8]) -> common::EnvVar {
    common::EnvVar {
        name: name.as_bytes().into(),
        value: value.into(),
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
fn ends_of_dependencies_ascend() {
    let graph = |dep_ends: [u64; 2]| {
        GraphSpec::try_from(client::GraphSubmit {
            templates: vec![template()],
            task_ids: vec![1, 2],
            task_templates: vec![0, 0],
            dep_ends: dep_ends.into(),
            deps: vec![1],
        })
    };
    assert_eq!(graph([0, 1]).expect("valid").tasks[1].deps.len(), 1);
    assert_eq!(graph([1, 0]).expect_err("refused").field(), "dep_ends");
}

#[test]
fn interleaved_ranges_are_limited() {
    let range = |first, count, step| common::IdRange {
        first,
        count,
        step,
        slack: 0,
    };
    // Thousands of them would take minutes to compare.
    let entangled = (0..3000).map(|i| range(i, 40_000, 100_003)).collect();
    let error = IdArray::try_from(common::IdArray { ranges: entangled }).expect_err("refused");
    assert_eq!(error.field(), "ranges");
    // Many plain ranges are accepted.
    let plain = (0..100_000).map(|i| range(i * 3, 2, 1)).collect();
    let ids: IdArray = common::IdArray { ranges: plain }
        .try_into()
        .expect("disjoint");
    assert_eq!(ids.len(), 200_000);
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
    let mut config = hq_core::testing::worker_config(4);
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
