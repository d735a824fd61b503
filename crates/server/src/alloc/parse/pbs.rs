//! Parses the output of `qstat -f -F json`. Numbers may be strings, and attributes differ between
//! states.
//!
//! A job that is missing from the output may exist: a server without history answers `-x` with no
//! jobs at all, and some releases print only the first of several jobs. Only a line on standard
//! error that names the job is conclusive.

use hq_core::autoalloc::Report;
use hq_core::batch::{CommandTemplate, SystemSpec, Words, qstat};
use serde_json::Value;

use super::super::command::ProgramResult;
use super::{ExpectedJob, Question, meaning, shown};

/// The error message of a server without history if ended jobs are requested.
const NO_HISTORY: &str = "not configured to maintain job history";
/// The error message of the server about an ended job if ended jobs are not requested.
const HAS_FINISHED: &str = "has finished";

/// Returns the state of each job, with `None` for missing jobs. Returns `None` for the whole answer
/// if the text is not output of `qstat`.
pub(super) fn reports(
    system: &SystemSpec,
    ran: &ProgramResult,
    jobs: &[Question<'_>],
) -> Option<Vec<Option<Report>>> {
    let answer = parse(&ran.stdout)?;
    let known = answer.get("Jobs");
    let of_job = |job: &Question<'_>| match known.and_then(|known| find_job(known, job.id)) {
        Some(found) => {
            let (name, dir) = identity(found);
            let foreign = job.ours.foreign(name, dir);
            Some(foreign.unwrap_or_else(|| report(system, found)))
        }
        None => complaint(system, ran, job.id),
    };
    Some(jobs.iter().map(of_job).collect())
}

/// Returns the state of the job with this id, as reported on standard error.
fn complaint(system: &SystemSpec, ran: &ProgramResult, job: &str) -> Option<Report> {
    // `qstat` succeeds if it found all jobs, or searched for none.
    if ran.is_ok() {
        return None;
    }
    let line = ran.stderr.lines().find(|line| names(line, job))?;
    if line.contains(HAS_FINISHED) {
        return Some(Report::Finished(shown(line)));
    }
    let is_missing = system.missing.iter().any(|text| line.contains(&**text));
    is_missing.then_some(Report::Missing)
}

/// Returns whether one of the words in a line is this job id, with or without parts of its domain.
pub(super) fn names(line: &str, job: &str) -> bool {
    let extends = |long: &str, short: &str| {
        let rest = long.strip_prefix(short);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    line.split_whitespace()
        .any(|word| extends(word, job) || extends(job, word))
}

/// Returns whether ended jobs were requested from a server without history, which then does not
/// report live jobs either.
pub(super) fn keeps_no_history(ran: &ProgramResult) -> bool {
    ran.stderr.contains(NO_HISTORY)
}

/// Returns the command without the option for ended jobs.
pub(super) fn without_history(command: &CommandTemplate) -> CommandTemplate {
    without(command, &["-x"])
}

/// Returns the command with plain output instead of JSON.
pub(super) fn in_plain_text(command: &CommandTemplate) -> CommandTemplate {
    without(command, &["-F", "json"])
}

fn without(command: &CommandTemplate, options: &[&str]) -> CommandTemplate {
    let groups = command.0.iter().map(|group| Words {
        words: group
            .words
            .iter()
            .filter(|word| !options.contains(&&***word))
            .cloned()
            .collect(),
        each_job: group.each_job,
    });
    CommandTemplate(groups.filter(|group| !group.words.is_empty()).collect())
}

fn parse(text: &str) -> Option<Value> {
    if text.trim_start().starts_with("Job Id:") {
        return serde_json::from_str(&qstat::plain_as_json(text)).ok();
    }
    let strict = serde_json::from_str(text);
    let answer: Value = strict
        .or_else(|_| serde_json::from_str(&qstat::strict_json(text)))
        .ok()?;
    // An empty object would mean that no job exists.
    let known = ["pbs_version", "timestamp", "Jobs"];
    known.iter().find_map(|key| answer.get(key))?;
    Some(answer)
}

/// Finds a job by its id. A server may add the domain to the id or omit it.
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
        Some(0) => Report::Finished(shown(&format!("Exit_status 0 {}", text("comment")))),
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

/// The text is not output of `qstat`.
pub(super) struct NotJson;

/// Returns the id of our job. If there are several, one with our name, then one that has not ended,
/// and the newest of these.
pub(super) fn find(text: &str, ours: &ExpectedJob) -> Result<Option<String>, NotJson> {
    let answer = parse(text).ok_or(NotJson)?;
    let Some(known) = answer.get("Jobs").and_then(Value::as_object) else {
        return Ok(None);
    };
    let is_ours = |job: &Value| {
        let (name, dir) = identity(job);
        ours.is_found(name, dir)
    };
    let found = known.iter().filter(|(_, job)| is_ours(job));
    let newest = found.max_by_key(|(id, job)| {
        let number = id.split(['.', '[']).next().map(str::parse::<u64>);
        let has_ended = job.get("job_state").and_then(Value::as_str) == Some("F");
        let number = number.and_then(Result::ok);
        (ours.has_name(identity(job).0), !has_ended, number)
    });
    Ok(newest.map(|(id, _)| id.clone()))
}

/// Returns the name of a job and the directory from which it was submitted.
fn identity(job: &Value) -> (Option<&str>, Option<&str>) {
    let dir = job
        .get("Variable_List")
        .and_then(|list| match list.as_str() {
            // The format of plain text: `A=1,PBS_O_WORKDIR=/dir,PBS_O_SYSTEM=Linux`.
            Some(text) => {
                let (_, rest) = text.split_once("PBS_O_WORKDIR=")?;
                let end = rest
                    .find(",PBS_O_")
                    .or(rest.find(','))
                    .unwrap_or(rest.len());
                rest.get(..end)
            }
            None => list.get("PBS_O_WORKDIR")?.as_str(),
        });
    (job.get("Job_Name").and_then(Value::as_str), dir)
}
