//! Tests plans of submits.

use std::path::Path;

use super::*;
use crate::args::submit::{Destination, TaskOptions};
use crate::parse::array::parse_array;
use crate::parse::learn::TimeRequest;
use crate::parse::request::{ResourceArg, parse_named_request};
use crate::parse::resource::parse_definition;
use crate::submit::build::{SubmitRequest, build};
use crate::submit::habits::{Front, Verb};

fn context() -> SubmitContext<'static> {
    SubmitContext {
        submit_dir: Path::new("/w"),
        server_uid: None,
        output_dir: None,
        reads_files: true,
    }
}

fn prepared(options: TaskOptions) -> PreparedSubmit {
    let request = SubmitRequest {
        options: TaskOptions {
            command: vec!["./x".into(), "a b".into()],
            ..options
        },
        destination: Destination::default(),
        after: Vec::new(),
        default_ids: None,
        typed: (Verb::Submit, Front::default()),
    };
    build(request, context()).expect("valid")
}

#[test]
fn first_and_last_task_of_ten_million_have_their_paths() {
    let options = TaskOptions {
        array: parse_array("5-10000004").ok(),
        cwd: Some("d/%{TASK_ID}".into()),
        ..TaskOptions::default()
    };
    let plan = plan(&prepared(options), context());
    assert_eq!(
        (plan.task_count, plan.ids.as_str()),
        (10_000_000, "5-10000004")
    );
    let [first, last] = plan.tasks.as_slice() else {
        panic!("{:?}", plan.tasks);
    };
    assert_eq!((first.id, last.id), (5, 10_000_004));
    assert_eq!(first.cwd, "/w/d/5");
    let stdout = "/w/d/10000004/job-%{JOB_ID}/10000004.stdout";
    assert_eq!(last.stdout.as_deref(), Some(stdout));
    assert_eq!(first.command, ["./x", "a b"]);
}

#[test]
fn workers_fit_if_they_have_enough_of_everything() {
    let items = |texts: &[&str]| -> Vec<(String, Amount)> {
        let items = texts.iter().map(|text| parse_definition(text).expect(text));
        items
            .map(|item| (item.name.to_string(), item.kind.total()))
            .collect()
    };
    let spec = |asked: &str, nodes: Option<u32>| {
        let options = TaskOptions {
            resource: parse_named_request(asked)
                .map(ResourceArg::Amount)
                .into_iter()
                .collect(),
            nodes,
            time_request: Some(TimeRequest::Given(std::time::Duration::from_secs(60))),
            ..TaskOptions::default()
        };
        prepared(options).spec
    };
    let fits = |spec: &SubmitSpec, offer| {
        let kinds = kinds(&spec.body);
        kinds.len() == 1 && fits(kinds[0], offer)
    };
    let small = items(&["cpus=[0]", "mem=sum(100)"]);
    let offer = WorkerCapacity {
        amounts: &small,
        group_size: 2,
        left: None,
    };
    assert!(fits(&spec("mem=100", None), offer));
    assert!(!fits(&spec("mem=101", None), offer));
    assert!(!fits(&spec("gpus=all", None), offer));
    assert!(fits(&spec("mem=all", None), offer));
    assert!(fits(&spec("", Some(2)), offer) && !fits(&spec("", Some(3)), offer));
    let ending = WorkerCapacity {
        left: Some(std::time::Duration::from_secs(59)),
        ..offer
    };
    assert!(!fits(&spec("mem=1", None), ending));
}
