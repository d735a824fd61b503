//! The description and the interface belong together.

use super::*;
use hq_core::job::JobState;

/// Paths and methods of the description, as `GET /jobs/{job}`.
fn described() -> Vec<String> {
    let mut found = Vec::new();
    let mut path = "";
    let text = String::from_utf8(OPEN_API.plain()).expect("text");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("  /") {
            path = rest.trim_end_matches(':');
        }
        for method in ["get", "post"] {
            if line == format!("    {method}:") {
                found.push(format!("{method} /{path}"));
            }
        }
    }
    found
}

/// From the description come the types of the pages, and so an order of states there that lacks none.
#[test]
fn every_state_of_a_job_is_described() {
    let states = JobState::ALL.map(JobState::name).join(", ");
    let text = String::from_utf8(OPEN_API.plain()).expect("text");
    let line = format!("state: {{ type: string, enum: [{states}],");
    assert!(text.contains(&line), "docs/openapi.yaml says: {line}");
}

#[test]
fn every_resource_is_described() {
    let source = include_str!("../api.rs");
    let mut routes = Vec::new();
    for line in source
        .lines()
        .filter_map(|line| line.trim().strip_prefix(".route(\""))
    {
        let (path, rest) = line.split_once("\", ").expect("a path and a handler");
        for method in ["get", "post"] {
            let has_it = rest.starts_with(method) || rest.contains(&format!(".{method}("));
            routes.extend(has_it.then(|| format!("{method} {path}")));
        }
    }
    let mut described = described();
    routes.sort();
    described.sort();
    assert_eq!(routes, described);
}
