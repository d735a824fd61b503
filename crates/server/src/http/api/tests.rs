//! Consistency of description and API. The answers in `docs/openapi.yaml` are generated from their
//! types, and routes, parameters and names of answers are compared with the handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use axum::Extension;
use axum::Json;
use axum::extract::{Path, Request, State};

use super::described::schema::{Asked, Components, Described, Schema};
use super::*;

/// The first line of the generated part, which extends to the end of the file.
const MADE: &str = "    # Generated from the types in crates/server/src/http/api/answers.rs; a test compares it.\n";
/// If set, the test writes the generated part instead of comparing it.
const WRITE: &str = "HQ_WRITE_DESCRIPTION";

fn description() -> String {
    String::from_utf8(OPEN_API.plain()).expect("text")
}

/// An argument of a handler.
trait Argument {
    /// Returns its parameters in the query string.
    fn fields() -> Vec<(&'static str, Schema)> {
        Vec::new()
    }

    /// Returns the number of path parameters.
    fn path_parts() -> usize {
        0
    }
}

impl Argument for State<Arc<App>> {}
impl Argument for HeaderMap {}
impl Argument for Request {}
impl<T> Argument for Extension<T> {}

impl Argument for Path<String> {
    fn path_parts() -> usize {
        1
    }
}

impl Argument for Path<(String, String)> {
    fn path_parts() -> usize {
        2
    }
}

impl<T: Asked> Argument for Parameters<T> {
    fn fields() -> Vec<(&'static str, Schema)> {
        T::fields()
    }
}

/// The body of an answer.
trait Body {
    type Of: Described;
}

impl<T: Described> Body for Json<T> {
    type Of = T;
}

impl<T: Described> Body for CachedJson<T> {
    type Of = T;
}

/// A handler's type as data.
struct Operation {
    handler: &'static str,
    fields: Vec<(&'static str, Schema)>,
    path_parts: usize,
    answer: Schema,
    note: fn(&mut Components),
}

trait Handler<Arguments> {
    fn operation(self, handler: &'static str) -> Operation;
}

macro_rules! handlers {
    ($($argument:ident),*) => {
        impl<F, Made, T, $($argument),*> Handler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Made,
            Made: Future<Output = Result<T, ApiError>>,
            T: Body,
            $($argument: Argument,)*
        {
            fn operation(self, handler: &'static str) -> Operation {
                Operation {
                    handler,
                    fields: [$($argument::fields()),*].concat(),
                    path_parts: [$($argument::path_parts()),*].iter().sum(),
                    answer: T::Of::schema(),
                    note: T::Of::note,
                }
            }
        }
    };
}
handlers!(A);
handlers!(A, B);
handlers!(A, B, C);
handlers!(A, B, C, D);

macro_rules! operations {
    ($($handler:path),* $(,)?) => { vec![$($handler.operation(stringify!($handler))),*] };
}

/// Returns all handlers with JSON answers.
fn operations() -> Vec<Operation> {
    operations![
        read::server,
        read::summary,
        read::jobs,
        submit::submit,
        submit::open,
        read::job,
        wait::wait,
        read::tasks,
        submit::attach,
        views::task,
        actions::cancel_task,
        actions::signal_task,
        actions::hold_task,
        actions::release_task,
        read::output,
        views::explain,
        views::strip,
        params::table,
        past::failures,
        signatures::signatures,
        views::graph,
        actions::close,
        actions::cancel,
        actions::hold,
        actions::release,
        actions::resubmit,
        read::workers,
        actions::stop_worker,
        actions::drain_worker,
        actions::release_worker,
        read::queues,
        actions::pause_queue,
        actions::resume_queue,
        limits::list,
        limits::set,
        limits::remove,
        read::history,
        costs::costs,
        past::ended,
        problems::problems,
        actions::acknowledge,
        actions::take_back,
        past::bars,
        past::log,
    ]
}

/// Handlers with other answers.
const OTHERS: [&str; 2] = ["open_api", "events::stream"];

/// The methods of routes.
const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

/// Returns the method, path and handler of each route.
fn routes() -> Vec<(&'static str, String, String)> {
    let source = include_str!("../api.rs");
    let mut routes = Vec::new();
    for route in source.split(".route(").skip(1) {
        let found = route.trim_start().strip_prefix('"');
        let found = found.and_then(|route| route.split_once("\","));
        let (path, rest) = found.expect("a path and a handler");
        // The last route is followed by other calls.
        let rest = rest.split("\n        .").next().unwrap_or(rest);
        for method in METHODS {
            let handler = rest.split_once(&format!("{method}(")).map(|(_, rest)| rest);
            let handler = handler.and_then(|rest| rest.split(')').next());
            routes.extend(handler.map(|handler| (method, path.to_owned(), handler.to_owned())));
        }
    }
    routes
}

/// Returns the description of each method of each path, including the parameters of its path.
fn described() -> Vec<(&'static str, String, String)> {
    let text = description();
    let paths = text.split_once("\npaths:\n").expect("paths").1;
    let paths = paths.split_once("\ncomponents:\n").expect("components").0;
    let mut found = Vec::new();
    for part in format!("\n{paths}").split("\n  /").skip(1) {
        let (path, rest) = part.split_once(":\n").expect("a path");
        let mut common = String::new();
        for line in rest.lines() {
            let method = METHODS
                .into_iter()
                .find(|method| line == format!("    {method}:"));
            if let Some(method) = method {
                found.push((method, format!("/{path}"), common.clone()));
                continue;
            }
            let text = match found.last_mut() {
                Some((_, known, text)) if known[1..] == *path => text,
                Some(_) | None => &mut common,
            };
            text.push_str(line);
            text.push('\n');
        }
    }
    found
}

/// Returns the elements of lists, each as one line.
fn elements(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("- ") {
            Some(line) => found.push(line.trim_start_matches("{ ").to_owned()),
            None => {
                if let Some(last) = found.last_mut() {
                    last.push_str(", ");
                    last.push_str(line);
                }
            }
        }
    }
    found
}

#[test]
fn every_resource_is_described() {
    let place = |(method, path, _): &(&str, String, String)| format!("{method} {path}");
    let mut routes: Vec<String> = routes().iter().map(place).collect();
    let mut described: Vec<String> = described().iter().map(place).collect();
    routes.sort();
    described.sort();
    assert_eq!(routes, described);
}

#[test]
fn the_description_has_what_handlers_take_and_give() {
    let (operations, described) = (operations(), described());
    for (method, path, handler) in routes() {
        let found = operations.iter().find(|known| known.handler == handler);
        let Some(operation) = found else {
            assert!(
                OTHERS.contains(&&*handler),
                "{handler} is to be one of the operations"
            );
            continue;
        };
        let place = format!("{method} {path} of docs/openapi.yaml");
        assert_eq!(path.matches('{').count(), operation.path_parts, "{place}");
        let (_, _, text) = described
            .iter()
            .find(|(its_method, its_path, _)| (*its_method, its_path) == (method, &path))
            .expect("every resource is described");
        let answer = operation
            .answer
            .keyword("$ref")
            .expect("answers have a name");
        let good = text.split_once("\"200\":").expect("a good answer").1;
        let good = good.split("\n        \"").next().unwrap_or_default();
        assert!(
            good.contains(answer),
            "{place}: the answer is {answer}, found {good}"
        );
        assert_same_parameters(operation, text, &place);
    }
}

/// Checks that a part of the description has the parameters of a handler.
fn assert_same_parameters(operation: &Operation, text: &str, place: &str) {
    let said: BTreeMap<String, String> = elements(text)
        .into_iter()
        .filter(|element| element.contains("in: query"))
        .map(|element| {
            let name = element.split_once("name: ").expect("a name").1;
            let name = name.split(',').next().unwrap_or_default();
            (name.to_owned(), element)
        })
        .collect();
    let expected: BTreeSet<&str> = operation.fields.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<&str> = said.keys().map(String::as_str).collect();
    assert_eq!(found, expected, "parameters of {place}");
    for (name, schema) in &operation.fields {
        let said = &said[*name];
        let is_required = said.contains("required: true");
        assert_eq!(is_required, !schema.can_be_null(), "{name} of {place}");
        let said = said.split_once("schema: {").expect("a schema").1;
        let kind = schema.keyword("type").expect("a type");
        let kind = kind.trim_start_matches('[').split(',').next();
        let kind = kind.unwrap_or_default();
        let is_id = said.contains("schemas/Id\"") && kind == "integer";
        let is_same = is_id || said.contains(&format!("type: {kind}"));
        assert!(is_same, "{name} of {place} is {kind}, found {said}");
    }
}

#[test]
fn answers_are_described_by_their_types() {
    let mut all = Components::default();
    Error::note(&mut all);
    for operation in operations() {
        (operation.note)(&mut all);
    }
    let made = all.yaml();
    let text = description();
    let (written, found) = text.split_once(MADE).expect("the line that begins it");
    if std::env::var_os(WRITE).is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.yaml");
        fs::write(path, format!("{written}{MADE}{made}")).expect("the description is written");
        return;
    }
    let different = made
        .lines()
        .zip(found.lines())
        .find(|(made, found)| made != found);
    assert!(
        made == found,
        "docs/openapi.yaml is not what the types say, first here: {different:#?}\nto write it: {WRITE}=1 cargo test -p hq-server --lib \
         answers_are_described"
    );
}

/// Covers names of core and answer values, fields named like Rust keywords, and optional fields.
#[test]
fn what_is_sent_is_what_the_description_says() {
    let event = answers::LoggedEvent {
        seq: 1,
        at_ms: 2,
        r#type: "job-opened".to_owned(),
        job: Some(3),
        worker: None,
        data: serde_json::Map::new(),
    };
    let blocked = |resource| answers::Blocked {
        kind: answers::BlockedKind::Resource,
        requested: 2.0,
        offered: 1.0,
        resource,
    };
    let sent = |value: &dyn erased::Sent| value.json();
    assert_eq!(
        sent(&event),
        "{\"seq\":1,\"at_ms\":2,\"type\":\"job-opened\",\"job\":3,\"worker\":null,\"data\":{}}"
    );
    assert_eq!(
        sent(&blocked(None)),
        "{\"kind\":\"resource\",\"requested\":2.0,\"offered\":1.0}"
    );
    assert_eq!(
        sent(&blocked(Some("mem".to_owned()))),
        "{\"kind\":\"resource\",\"requested\":2.0,\"offered\":1.0,\"resource\":\"mem\"}"
    );
    let states = hq_core::task::TaskState::ALL.map(described::Word);
    assert_eq!(
        sent(&states),
        "[\"waiting\",\"running\",\"finished\",\"failed\",\"canceled\",\"aborted\"]"
    );
    assert_eq!(sent(&ErrorKind::ReadOnly), "\"read-only\"");
}

/// Values of different types that can be sent.
mod erased {
    pub(super) trait Sent {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Sent for T {
        fn json(&self) -> String {
            serde_json::to_string(self).expect("JSON")
        }
    }
}
