//! Round trips of generated core types, and messages of random bytes.

mod bytes;
mod refusals;
mod strategies;

use std::fmt::Debug;
use std::sync::Arc;

use hq_core::template::SubmitSpec;
use hq_core::worker_config::WorkerConfig;
use hq_core::worker_state::Input;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::{client, common, worker};

/// Encodes a value, serializes and parses the message, and decodes it.
fn round_trip<'a, T, M>(value: &'a T) -> T
where
    T: TryFrom<M> + 'a,
    <T as TryFrom<M>>::Error: Debug,
    M: Message + Default + From<&'a T>,
{
    let bytes = M::from(value).encode_to_vec();
    T::try_from(M::decode(&bytes[..]).expect("own message")).expect("own value")
}

proptest! {
    #[test]
    fn submits_survive(spec in strategies::submit()) {
        prop_assert_eq!(&round_trip::<SubmitSpec, client::Submit>(&spec), &spec);
    }

    #[test]
    fn worker_configs_survive(config in strategies::worker_config()) {
        prop_assert_eq!(&round_trip::<WorkerConfig, common::WorkerConfig>(&config), &config);
    }

    #[test]
    fn id_arrays_survive(ids in strategies::id_array()) {
        prop_assert_eq!(&round_trip::<hq_core::range::IdArray, common::IdArray>(&ids), &ids);
    }

    #[test]
    fn reports_survive(report in strategies::report()) {
        let bytes = worker::ToServer::from(&report).encode_to_vec();
        let message = worker::ToServer::decode(&bytes[..]).expect("own message");
        let FromWorker::Message(hq_core::server_state::WorkerMessage::Report(received)) =
            message.try_into().expect("own report")
        else {
            panic!("not a report");
        };
        prop_assert_eq!(received.started.len(), report.started.len());
        for (received, sent) in received.started.iter().zip(&report.started) {
            prop_assert_eq!((received.task, received.instance), (sent.key.task, sent.key.instance));
            prop_assert_eq!(received.age, sent.age);
        }
        prop_assert_eq!(received.ended.len(), report.ended.len());
        for (received, sent) in received.ended.iter().zip(&report.ended) {
            prop_assert_eq!((received.task, received.instance), (sent.key.task, sent.key.instance));
            prop_assert_eq!((received.age, received.run), (sent.age, sent.run));
            prop_assert_eq!(&received.outcome, &sent.outcome);
            prop_assert_eq!(received.usage, sent.usage);
        }
        let retracted: Vec<_> =
            report.retracted.iter().map(|key| (key.task, key.instance)).collect();
        prop_assert_eq!(received.retracted, retracted);
        prop_assert_eq!(received.seq, report.seq);
    }

    #[test]
    fn assignments_survive(
        template in strategies::shared_template(),
        assignments in vec(strategies::assignment(), 0..4),
        drops in vec(any::<u32>().prop_map(hq_core::job::TemplateId), 0..4),
    ) {
        use hq_core::server_state::{AwaitedEnds, WorkerCommand};
        let command = WorkerCommand::Assign {
            templates: vec![Arc::new(template.clone())],
            assignments: assignments.clone(),
            awaits: AwaitedEnds::None,
        };
        let Input::Assign { templates, assignments: received, .. } = worker_input(&command) else {
            panic!("not an assignment");
        };
        prop_assert_eq!(templates.len(), 1);
        prop_assert_eq!(&templates[0].task, &template.task);
        prop_assert_eq!(&templates[0].submit_dir, &template.header.submit_dir);
        prop_assert_eq!((templates[0].id, templates[0].job), (template.id, template.header.job));
        prop_assert_eq!(received.len(), assignments.len());
        for (received, sent) in received.iter().zip(&assignments) {
            prop_assert_eq!(&received.ids, &sent.ids);
            prop_assert_eq!(&received.entries, &sent.entries);
            prop_assert_eq!((received.template, received.instance), (sent.template, sent.instance));
            prop_assert_eq!(received.variant, sent.variant);
            prop_assert_eq!(received.follows, sent.follows);
        }
        let Input::Assign { drop_templates, .. } =
            worker_input(&WorkerCommand::DropTemplates(drops.clone()))
        else {
            panic!("not an assignment");
        };
        prop_assert_eq!(drop_templates, drops);
    }

    #[test]
    fn instance_lists_survive(rows in strategies::instance_rows()) {
        use hq_core::server_state::WorkerCommand;
        let Input::Retract(keys) = worker_input(&WorkerCommand::Retract(rows.clone())) else {
            panic!("not a retraction");
        };
        let received: Vec<_> = keys.iter().map(|key| (key.task, key.instance)).collect();
        prop_assert_eq!(&received, &rows);
        let Input::Kill(keys) = worker_input(&WorkerCommand::Kill(rows.clone())) else {
            panic!("not a kill");
        };
        prop_assert_eq!(keys.len(), rows.len());
        let now = worker_input(&WorkerCommand::KillNow(rows));
        prop_assert!(matches!(now, Input::KillNow(also) if also == keys));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
    }

    #[test]
    fn damaged_submits_never_panic(
        spec in strategies::submit(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let request = Some(client::request::Request::Submit((&spec).into()));
        let mut bytes = client::Request { request }.encode_to_vec();
        for (at, byte) in changes {
            *at.get_mut(&mut bytes[..]) = byte;
        }
        decode_everything(&bytes);
    }

    #[test]
    fn damaged_reports_never_panic(
        report in strategies::report(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = worker::ToServer::from(&report).encode_to_vec();
        prop_assume!(!bytes.is_empty());
        for (at, byte) in changes {
            *at.get_mut(&mut bytes[..]) = byte;
        }
        decode_everything(&bytes);
    }
}

/// Returns a submit message with all combinations of two parameters.
fn params_submit() -> client::Submit {
    use hq_core::params::{Decimals, Param, Params, Values};
    use hq_core::template::{ArrayIds, Entries};
    let texts = Entries::new(*b"0.10.01", [3, 4]).expect("adds up");
    let seeds = Decimals {
        first: -5,
        step: 5,
        count: 3,
        digits: 1,
    };
    let param = |name: &str, values| Param {
        name: name.into(),
        is_along: false,
        values: vec![values],
    };
    let list = vec![
        param("lr", Values::Texts(texts)),
        param("seed", Values::Decimals(seeds)),
    ];
    let mut template = hq_core::testing::template(&["true"]);
    template.params = Some(Params::new(list, 0).expect("fits").into());
    let mut spec = hq_core::testing::array_submit(0, template);
    if let hq_core::template::SubmitBody::Array(array) = &mut spec.body {
        array.ids = ArrayIds::Next(6);
    }
    (&spec).into()
}

#[test]
fn parameters_survive_and_an_older_server_refuses_them() {
    use client::array_submit::Ids;
    let message = params_submit();
    let spec = SubmitSpec::try_from(message.clone()).expect("valid");
    assert_eq!(client::Submit::from(&spec), message);
    let Some(client::submit::Body::Array(mut array)) = message.body.clone() else {
        panic!("an array");
    };
    // Earlier releases skip this field and look only for `ids`.
    assert!(matches!(array.ids, Some(Ids::NextParams(6))));
    let refused = |change: &dyn Fn(&mut client::ArraySubmit)| {
        let mut array = array.clone();
        change(&mut array);
        let body = Some(client::submit::Body::Array(array));
        let changed = client::Submit {
            body,
            ..message.clone()
        };
        SubmitSpec::try_from(changed)
            .expect_err("refused")
            .field()
            .to_owned()
    };
    assert_eq!(refused(&|array| array.ids = None), "array.ids");
    assert_eq!(
        refused(&|array| array.ids = Some(Ids::Next(6))),
        "array.params"
    );
    assert_eq!(
        refused(&|array| array.ids = Some(Ids::NextParams(5))),
        "array.params"
    );
    let given = |first, count| {
        let ids = hq_core::range::IdArray::consecutive(first, count).expect("valid");
        Some(Ids::GivenParams((&ids).into()))
    };
    assert_eq!(refused(&|array| array.ids = given(1, 6)), "array.params");
    let template = |change: &dyn Fn(&mut common::TaskTemplate)| {
        refused(&|array| change(array.template.as_mut().expect("there is one")))
    };
    assert_eq!(template(&|task| task.params.clear()), "array.params");
    assert_eq!(template(&|task| task.is_call = true), "array.params");
    assert_eq!(
        template(&|task| task.params[1].name = "LR".to_owned()),
        "array.template.params"
    );
    assert_eq!(
        template(&|task| task.params[0].values[0].values = None),
        "array.template.params[0].values[0].values"
    );
    array.ids = given(4, 2);
    let body = Some(client::submit::Body::Array(array));
    assert!(SubmitSpec::try_from(client::Submit { body, ..message }).is_ok());
}

#[test]
fn an_older_worker_runs_nothing_without_its_values() {
    let Some(client::submit::Body::Array(array)) = params_submit().body else {
        panic!("an array");
    };
    let task = hq_core::template::TaskTemplate::try_from(array.template.expect("there is one"));
    let swept = task.expect("valid");
    assert_eq!(instead_of(&swept), (1, "`--param`".to_owned()));
    // A worker that knows parameters rejects it as well.
    let mut checked = swept.clone();
    checked.files = hq_core::template::TaskFiles {
        inputs: Vec::new(),
        outputs: vec![Box::from(*b"out")],
        must_exist: true,
        by_content: false,
    };
    assert_eq!(instead_of(&checked), (0, "`--check-outputs`".to_owned()));
    let mut forked = hq_core::testing::template(&["python3", "-c", "…"]);
    forked.stdin = Some(Arc::from(*b"{\"mode\": \"fork\"}\n\x80"));
    forked.is_call = true;
    assert_eq!(instead_of(&forked), (0, "mode=\"fork\"".to_owned()));
    // Modes that every worker supports are requested as before.
    forked.stdin = Some(Arc::from(*b"{\"mode\": \"direct\"}\n\x80"));
    let message = worker::Template::from(&shared(&forked));
    let known = message.task.map(|task| task.args).unwrap_or_default();
    assert_eq!(known.len(), 3);
}

/// Returns the number of arguments for a worker that knows parameters, and the feature that the
/// replacement command names.
fn instead_of(task: &hq_core::template::TaskTemplate) -> (usize, String) {
    let template = shared(task);
    let message = worker::Template::from(&template);
    // The arguments that every worker knows.
    let known = message.task.clone().expect("a task");
    let program = String::from_utf8_lossy(&known.args[0]).into_owned();
    assert_eq!(known.args.len(), 1);
    let words = program.strip_prefix("this worker is older than its server and does not support ");
    let words = words.and_then(|words| words.strip_suffix(". Drain it and start another one"));
    let found = (message.param_args.len(), words.unwrap_or_default().into());
    let read = hq_core::worker_state::WorkTemplate::try_from(message).expect("valid");
    assert_eq!(read.task, template.task);
    found
}

fn shared(task: &hq_core::template::TaskTemplate) -> hq_core::job::SharedTemplate {
    hq_core::job::SharedTemplate {
        id: hq_core::job::TemplateId(1),
        header: Arc::new(hq_core::job::SubmitHeader {
            job: hq_core::id::JobId(1),
            job_name: "sweep".into(),
            submit_dir: Box::from(*b"/"),
            stream_dir: None,
        }),
        class: hq_core::class::ClassId(0),
        task: Arc::new(task.clone()),
    }
}

fn worker_input(command: &hq_core::server_state::WorkerCommand) -> Input {
    let bytes = worker::ToWorker::from(command).encode_to_vec();
    let message = worker::ToWorker::decode(&bytes[..]).expect("own message");
    let FromServer::Input(input) = message.try_into().expect("own command") else {
        panic!("not for the state");
    };
    input
}

fn decode_everything(bytes: &[u8]) {
    fn decode<M: Message + Default, T: TryFrom<M>>(bytes: &[u8]) {
        if let Ok(message) = M::decode(bytes) {
            let _ = T::try_from(message);
        }
    }
    decode::<client::Request, ClientRequest>(bytes);
    decode::<client::Submit, SubmitSpec>(bytes);
    decode::<client::GraphSubmit, hq_core::template::GraphSpec>(bytes);
    decode::<client::Selector, hq_core::selector::Selector>(bytes);
    decode::<worker::ToServer, FromWorker>(bytes);
    decode::<worker::Report, hq_core::server_state::Report>(bytes);
    decode::<worker::ToWorker, FromServer>(bytes);
    decode::<common::WorkerConfig, WorkerConfig>(bytes);
    decode::<common::TaskTemplate, hq_core::template::TaskTemplate>(bytes);
    decode::<common::IdArray, hq_core::range::IdArray>(bytes);
    decode::<common::Entries, hq_core::template::Entries>(bytes);
    decode::<common::ResourceDescriptor, hq_core::resource::descriptor::ResourceDescriptor>(bytes);
}
