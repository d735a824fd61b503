//! The slow part: runs the commands of batch systems and writes the files that they need.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::autoalloc::{Input, LookOutcome, Report, SubmitOutcome};
use hq_core::batch::{CommandTemplate, QueueParams};
use hq_core::id::{AllocationKey, QueueId};

use super::command::{self, CommandError, TIMEOUT};
use super::dirs;
use super::parse::{self, Answer};
use super::script::{Job, Program};

/// Longest wait for an answer to a question, or a cancellation.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// Linux marks the path of an executable that was replaced.
const DELETED: &str = " (deleted)";

/// Runs the commands of batch systems for one server.
#[derive(Debug)]
pub(super) struct BatchCommands {
    program: Program,
    server_dir: PathBuf,
}

impl BatchCommands {
    pub(super) fn new(instance: &Path) -> Self {
        let hq = std::env::current_exe()
            .and_then(|path| std::fs::canonicalize(&path).or(Ok(path)))
            .map_or_else(
                |_| "hq".to_owned(),
                |path| path.to_string_lossy().into_owned(),
            );
        let hq = hq.strip_suffix(DELETED).unwrap_or(&hq).to_owned();
        let rust_log = std::env::var("RUST_LOG").ok();
        Self {
            program: Program {
                hq,
                rust_log: rust_log.filter(|filter| !filter.is_empty()),
            },
            server_dir: instance.to_owned(),
        }
    }

    /// Writes the script of an allocation and submits it.
    pub(super) async fn submit(
        &self,
        params: &QueueParams,
        key: AllocationKey,
        workers: u32,
        (dir, excluded): (&Path, &str),
    ) -> SubmitOutcome {
        let name = job_name(params, key);
        let job = Job {
            params,
            program: &self.program,
            name: &name,
            dir,
            server_dir: &self.server_dir,
            workers,
            excluded,
            is_test: false,
        };
        let mut outcome = submit_script(params, &job).await;
        // Perhaps because it does not know a node by that name: an allocation with it is better than none.
        if let SubmitOutcome::Refused(text) = &outcome
            && !excluded.is_empty()
        {
            tracing::warn!(
                "an allocation that avoids {excluded} was refused, and is asked for without that: {text}"
            );
            let job = Job {
                excluded: "",
                ..job
            };
            outcome = submit_script(params, &job).await;
        }
        if let SubmitOutcome::Accepted(id) = &outcome
            && let Err(error) = dirs::write(dir.join(dirs::JOB_ID), id.to_string()).await
        {
            tracing::debug!(%error, "cannot write the id of an allocation");
        }
        outcome
    }

    /// Submits for a test, and cancels at once; the error is for people.
    pub(super) async fn try_out(&self, params: &QueueParams) -> Result<(), String> {
        let cannot =
            |error: std::io::Error| format!("Could not prepare a test submission: {error}");
        let instance = self.server_dir.clone();
        let temporary =
            tokio::task::spawn_blocking(move || hq_private::temp_dir(&instance, "dry-run-"));
        let temporary = temporary.await.map_err(std::io::Error::other);
        let temporary = temporary.and_then(|made| made).map_err(cannot)?;
        let dir = temporary.path().join("autoalloc/0/001");
        let key = AllocationKey {
            queue: QueueId(0),
            number: 1,
        };
        let name = job_name(params, key);
        let job = Job {
            params,
            program: &self.program,
            name: &name,
            dir: &dir,
            server_dir: temporary.path(),
            workers: params.max_workers_per_alloc,
            excluded: "",
            is_test: true,
        };
        let outcome = match submit_script(params, &job).await {
            SubmitOutcome::Accepted(id) => match cancel(params, &id, &dir).await {
                Ok(()) => return Ok(()),
                Err(text) => explained(&format!("Could not cancel allocation {id}: {text}")),
            },
            SubmitOutcome::Refused(text)
            | SubmitOutcome::Unreachable(text)
            | SubmitOutcome::Unclear(text) => {
                explained(&format!("Could not submit allocation: {text}"))
            }
        };
        let script = dir.join(dirs::SCRIPT);
        // Kept, for people to look at.
        let _ = temporary.keep();
        Err(format!(
            "{outcome}\n\nYou can find the submitted script at {}",
            script.display()
        ))
    }
}

/// The first line, and the others as its cause.
fn explained(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, cause)) => {
            format!(
                "{first}\n\nCaused by:\n    {}",
                cause.replace('\n', "\n    ")
            )
        }
        None => text.to_owned(),
    }
}

async fn submit_script(params: &QueueParams, job: &Job<'_>) -> SubmitOutcome {
    let script = match dirs::write_script(job.dir, &job.script()).await {
        Ok(script) => script,
        Err(error) => {
            let text = format!("cannot write {}: {error}", job.dir.display());
            return SubmitOutcome::Refused(text.into());
        }
    };
    let values = [
        ("script", &*script.to_string_lossy()),
        ("dir", &*job.dir.to_string_lossy()),
        ("name", job.name),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let values = values
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let argv = command::words(&params.system.submit, &values, &[]);
    let answer = command::run(&argv, job.dir, false, TIMEOUT).await;
    parse::submitted(&params.system, &answer)
}

/// Name of a job; unique together with the directory in which it was submitted.
fn job_name(params: &QueueParams, key: AllocationKey) -> String {
    match &params.name {
        Some(name) => format!("{name}-{}", key.number),
        None => format!("hq-{}-{}", key.queue, key.number),
    }
}

/// Asks for jobs, all at once if the batch system can do that.
pub(super) async fn poll(
    params: &QueueParams,
    jobs: Vec<(AllocationKey, Box<str>)>,
    dir: &Path,
) -> Vec<Input> {
    if params.system.status.takes_many() {
        return ask_status(params, &jobs, dir).await.0;
    }
    let mut inputs = Vec::new();
    let mut rest = &jobs[..];
    while let Some((job, later)) = rest.split_first() {
        let (found, is_silent) = ask_status(params, std::slice::from_ref(job), dir).await;
        inputs.extend(found);
        rest = later;
        if is_silent {
            break;
        }
    }
    // A batch system that does not answer for one will not answer for the others.
    let silent = |(key, _): &(AllocationKey, Box<str>)| {
        Input::Reported(
            *key,
            Report::Error("the batch system does not answer".into()),
        )
    };
    inputs.extend(rest.iter().map(silent));
    inputs
}

/// States of some jobs, and whether the batch system did not answer in time.
async fn ask_status(
    params: &QueueParams,
    jobs: &[(AllocationKey, Box<str>)],
    dir: &Path,
) -> (Vec<Input>, bool) {
    let ids: Vec<&str> = jobs.iter().map(|(_, job)| &**job).collect();
    let system = &params.system;
    let fallback = parse::status_fallback(system);
    let mut answer = ask(&system.status, &ids, &[], dir).await;
    let mut found = parse::reports(system, &answer, &ids);
    let keeps_history = !parse::keeps_no_history(system, &answer);
    let is_of_no_use = found.is_none() || !keeps_history;
    if is_of_no_use && !fallback.is_empty() && answer.is_ok() {
        let second = ask(&fallback, &ids, &[], dir).await;
        found = parse::reports(system, &second, &ids);
        answer = second;
    }
    let mut is_silent = matches!(answer, Err(CommandError::Timeout { .. }));
    let Some(found) = found else {
        let error = Report::Error(parse::complaint(&answer));
        let inputs = jobs.iter();
        let inputs = inputs.map(|(key, _)| Input::Reported(*key, error.clone()));
        return (inputs.collect(), is_silent);
    };
    // Each alone: an answer to a question about several may leave some out.
    let mut single = Vec::new();
    if keeps_history && jobs.len() > 1 {
        single.push(&system.status);
    }
    if !fallback.is_empty() && (jobs.len() > 1 || !is_of_no_use) {
        single.push(&fallback);
    }
    let mut inputs = Vec::new();
    for ((key, job), report) in jobs.iter().zip(found) {
        let report = match report {
            Some(report) => report,
            // A batch system that does not answer for one will not answer for the others.
            None if is_silent => Report::Silent,
            None => {
                let (report, timed_out) = ask_alone(params, &single, job, dir).await;
                is_silent = timed_out;
                report
            }
        };
        inputs.push(Input::Reported(*key, report));
    }
    (inputs, is_silent)
}

/// Asks for one job until there is an answer; whether the last question was not answered in time.
async fn ask_alone(
    params: &QueueParams,
    questions: &[&CommandTemplate],
    job: &str,
    dir: &Path,
) -> (Report, bool) {
    let mut last = Report::Silent;
    for question in questions {
        let answer = ask(question, &[job], &[], dir).await;
        match parse::reports(&params.system, &answer, &[job]).map(|mut all| all.pop()) {
            Some(Some(Some(report))) => return (report, false),
            Some(_) => last = Report::Silent,
            None => last = Report::Error(parse::complaint(&answer)),
        }
        if matches!(answer, Err(CommandError::Timeout { .. })) {
            return (last, true);
        }
    }
    (last, false)
}

/// Looks for the job of a submission by its name. That there is none takes more than an answer in which
/// it is not: a second job for the same allocation would be submitted.
pub(super) async fn look(params: &QueueParams, key: AllocationKey, dir: &Path) -> LookOutcome {
    let system = &params.system;
    let name = job_name(params, key);
    let shown = dir.to_string_lossy();
    let values = [("name", &*name), ("dir", &*shown)];
    let mut question = system.find.clone();
    let mut answer = ask(&question, &[], &values, dir).await;
    if let Some(other) = parse::find_without_history(system, &answer) {
        question = other;
        answer = ask(&question, &[], &values, dir).await;
    }
    let outcome = parse::looked(system, &answer, &name, &shown);
    match parse::find_again(system, &question) {
        Some(again) if outcome == LookOutcome::Absent => {
            let answer = ask(&again, &[], &values, dir).await;
            parse::looked_again(&answer, &name, &shown)
        }
        Some(_) | None => outcome,
    }
}

/// Cancels a job.
pub(super) async fn cancel(params: &QueueParams, job: &str, dir: &Path) -> Result<(), Box<str>> {
    let answer = ask(&params.system.cancel, &[job], &[], dir).await;
    parse::canceled(&params.system, &answer)
}

async fn ask(
    template: &CommandTemplate,
    jobs: &[&str],
    values: &[(&str, &str)],
    dir: &Path,
) -> Answer {
    let argv = command::words(template, values, jobs);
    command::run(&argv, dir, true, ASK_TIMEOUT).await
}
