//! What `qstat -f -F json` prints. Numbers may be strings, and attributes differ between states.

use hq_core::autoalloc::Report;
use hq_protocol::convert::SystemSpec;
use serde_json::Value;

use super::{meaning, shown};

/// `None` = that is not what `qstat` prints.
pub(super) fn reports(system: &SystemSpec, text: &str, jobs: &[&str]) -> Option<Vec<Report>> {
    let answer = parse(text)?;
    let known = answer.get("Jobs");
    let of_job = |job: &&str| match known.and_then(|known| find_job(known, job)) {
        Some(found) => report(system, found),
        None => Report::Missing,
    };
    Some(jobs.iter().map(of_job).collect())
}

fn parse(text: &str) -> Option<Value> {
    let answer: Value = serde_json::from_str(text).ok()?;
    // An empty object would say that no job exists.
    answer.get("pbs_version").or(answer.get("timestamp"))?;
    Some(answer)
}

/// By its id; a server may add or leave out the domain.
fn find_job<'a>(known: &'a Value, job: &str) -> Option<&'a Value> {
    let known = known.as_object()?;
    let number = |id: &str| id.split('.').next().map(str::to_owned);
    known.get(job).or_else(|| {
        let mut same = known.iter().filter(|(id, _)| number(id) == number(job));
        let (_, found) = same.next()?;
        same.next().is_none().then_some(found)
    })
}

fn report(system: &SystemSpec, job: &Value) -> Report {
    let text = |key: &str| job.get(key).and_then(Value::as_str).unwrap_or_default();
    let state = text("job_state");
    if state != "F" {
        return meaning(system, state, text("comment"));
    }
    match job.get("Exit_status").and_then(number) {
        Some(0) => Report::Finished,
        Some(code) => Report::Failed {
            text: shown(&format!("Exit_status {code} {}", text("comment"))),
            may_return: false,
        },
        None => Report::Failed {
            text: shown(&format!("it was deleted before it ran {}", text("comment"))),
            may_return: false,
        },
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// That is not what `qstat` prints.
pub(super) struct NotJson;

/// Id of the job of this name that was submitted in this directory, the last one if there are several.
pub(super) fn find(text: &str, name: &str, dir: &str) -> Result<Option<String>, NotJson> {
    let answer = parse(text).ok_or(NotJson)?;
    let Some(known) = answer.get("Jobs").and_then(Value::as_object) else {
        return Ok(None);
    };
    let is_ours = |job: &Value| {
        let has_name = job.get("Job_Name").and_then(Value::as_str) == Some(name);
        let variables = job.get("Variable_List");
        let submitted_in = variables.and_then(|list| list.get("PBS_O_WORKDIR"));
        has_name
            && submitted_in
                .and_then(Value::as_str)
                .is_none_or(|other| other == dir)
    };
    let mut ours = known.iter().filter(|(_, job)| is_ours(job));
    Ok(ours.next_back().map(|(id, _)| id.clone()))
}
