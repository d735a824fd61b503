//! Runs the commands of batch systems and writes the files for them. Both can be slow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::autoalloc::{Input, LookupOutcome, Report, SubmitOutcome};
use hq_core::batch::{CommandTemplate, QueueParams, job_parts};
use hq_core::id::{AllocationKey, QueueId};

use super::command::{self, CommandError, TIMEOUT};
use super::dirs;
use super::parse::{self, Answer, ExpectedJob, Question, Search};
use super::script::{Job, Program};

/// How long to wait for a status or cancel command.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// Linux appends this to the path of an executable that was replaced.
const DELETED: &str = " (deleted)";

/// How long to wait for the name of a job before canceling it.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a second search for the job of a test submission.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);
/// The number of attempts to cancel the job of a test submission, and the pause between them.
const TRIAL_CANCELS: u32 = 60;
const TRIAL_CANCEL_PAUSE: Duration = Duration::from_secs(30);

/// An allocation whose state is requested.
#[derive(Clone, Debug)]
pub(super) struct QueriedAllocation {
    pub(super) key: AllocationKey,
    /// The batch system's id and cluster. Empty while the id is unknown.
    pub(super) job: Box<str>,
    /// The directory of the allocation, which need not exist.
    pub(super) dir: PathBuf,
}

impl QueriedAllocation {
    /// Returns the name and directories that identify the allocation's job.
    async fn ours(&self, params: &QueueParams) -> ExpectedJob {
        let mut dirs = Vec::new();
        // A user's option may select another directory or name.
        if params.own_dir().is_none() && !self.dir.as_os_str().is_empty() {
            dirs.push(self.dir.to_string_lossy().into_owned());
            if let Ok(real) = tokio::fs::canonicalize(&self.dir).await {
                dirs.push(real.to_string_lossy().into_owned());
            }
        }
        ExpectedJob {
            name: params
                .own_name()
                .is_none()
                .then(|| job_name(params, self.key)),
            dirs,
        }
    }

    /// Adds the last line of the job's standard error to a failure, because it usually gives the
    /// reason.
    async fn with_last_words(&self, report: Report) -> Report {
        let Report::Failed { text, may_return } = report else {
            return report;
        };
        let path = self.dir.join(dirs::STDERR);
        let last = tokio::task::spawn_blocking(move || dirs::last_line(&path)).await;
        let text = match last {
            Ok(Some(line)) => format!("{text}; the last line of its stderr: {line}").into(),
            Ok(None) | Err(_) => text,
        };
        Report::Failed { text, may_return }
    }

    async fn question(&self, params: &QueueParams) -> Question<'_> {
        Question {
            id: job_parts(&self.job).0,
            ours: self.ours(params).await,
        }
    }

    /// Returns an existing working directory for commands about the allocation.
    fn cwd(&self) -> &Path {
        if self.dir.is_dir() {
            &self.dir
        } else {
            Path::new("/")
        }
    }

    async fn ask(
        &self,
        template: &CommandTemplate,
        jobs: &[&str],
        cluster: Option<&str>,
    ) -> Answer {
        let values: Vec<_> = cluster
            .map(|cluster| ("cluster", cluster))
            .into_iter()
            .collect();
        let argv = command::words(template, &values, jobs);
        command::run(&argv, self.cwd(), true, cluster, ASK_TIMEOUT).await
    }
}

/// A test submission that failed.
pub(super) struct FailedTrial {
    /// The reason, for users.
    pub(super) text: String,
    /// The allocation, if its job could not be canceled.
    pub(super) left: Option<QueriedAllocation>,
}

/// Runs the commands of batch systems for one server.
#[derive(Debug)]
pub(crate) struct BatchCommands {
    program: Program,
    server_dir: PathBuf,
}

impl BatchCommands {
    pub(crate) fn new(instance: &Path) -> Self {
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
        // The batch system may not know a node by that name. An allocation that includes the node
        // is better than none.
        if let SubmitOutcome::Refused(text) = &outcome
            && !excluded.is_empty()
        {
            tracing::warn!(
                "the batch system rejected an allocation that avoids {excluded}; requesting one without that: {text}"
            );
            let job = Job {
                excluded: "",
                ..job
            };
            outcome = submit_script(params, &job).await;
        }
        if let SubmitOutcome::Accepted(id) = &outcome {
            note_job(params, key, dir, id).await;
        }
        outcome
    }

    /// Submits an allocation as a test and cancels it immediately.
    pub(super) async fn try_out(&self, params: &QueueParams) -> Result<(), FailedTrial> {
        let cannot = |error: std::io::Error| FailedTrial {
            text: format!("Could not prepare a test submission: {error}"),
            left: None,
        };
        let instance = self.server_dir.clone();
        let temporary =
            tokio::task::spawn_blocking(move || hq_private::temp_dir(&instance, "dry-run-"));
        let temporary = temporary.await.map_err(std::io::Error::other);
        let temporary = temporary.and_then(|made| made).map_err(cannot)?;
        let mut trial = QueriedAllocation {
            key: AllocationKey {
                queue: QueueId(0),
                number: 1,
            },
            job: "".into(),
            dir: temporary.path().join("autoalloc/0/001"),
        };
        let name = job_name(params, trial.key);
        let job = Job {
            params,
            program: &self.program,
            name: &name,
            dir: &trial.dir,
            server_dir: temporary.path(),
            workers: params.max_workers_per_alloc,
            excluded: "",
            is_test: true,
        };
        let outcome = submit_script(params, &job).await;
        let mut text = match &outcome {
            SubmitOutcome::Accepted(_) => None,
            SubmitOutcome::Refused(text)
            | SubmitOutcome::Unreachable(text)
            | SubmitOutcome::Unclear(text) => Some(format!("Could not submit allocation: {text}")),
        };
        let found = match outcome {
            SubmitOutcome::Accepted(id) => Some(id),
            // The test must not leave a job behind, even if the answer is unclear.
            SubmitOutcome::Unclear(_) => find_trial(params, &trial).await,
            SubmitOutcome::Refused(_) | SubmitOutcome::Unreachable(_) => None,
        };
        let mut left = None;
        if let Some(id) = found {
            trial.job = id;
            if let Err(error) = cancel(params, &trial).await {
                let id = job_parts(&trial.job).0;
                text = Some(format!("Could not cancel allocation {id}: {error}"));
                left = Some(trial.clone());
            }
        }
        let Some(text) = text else { return Ok(()) };
        let script = trial.dir.join(dirs::SCRIPT);
        // The directory is kept so that the user can inspect it.
        let _ = temporary.keep();
        let text = format!(
            "{}\n\nYou can find the submitted script at {}",
            explained(&text),
            script.display()
        );
        Err(FailedTrial { text, left })
    }
}

/// Finds the job of a test submission that had no clear answer. A batch system may show the job
/// with a delay.
async fn find_trial(params: &QueueParams, trial: &QueriedAllocation) -> Option<Box<str>> {
    for _ in 0..3 {
        if let LookupOutcome::Found(id) = look(params, trial).await {
            return Some(id);
        }
        tokio::time::sleep(TRIAL_PAUSE).await;
    }
    None
}

/// Repeats the attempt to cancel a job, up to a limit.
pub(super) async fn cancel_in_time(params: &QueueParams, job: &QueriedAllocation) {
    for _ in 0..TRIAL_CANCELS {
        tokio::time::sleep(TRIAL_CANCEL_PAUSE).await;
        if cancel(params, job).await.is_ok() {
            return;
        }
    }
}

/// Formats a message, with its first line as the error and the other lines as the cause.
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
    let answer = command::run(&argv, job.dir, false, None, TIMEOUT).await;
    match (parse::submitted(&params.system, &answer), params.clusters()) {
        // If there are several clusters, a search by name finds the right one.
        (SubmitOutcome::Accepted(id), Some(clusters))
            if !id.contains(';') && (clusters.contains(',') || clusters == "all") =>
        {
            SubmitOutcome::Unclear(format!("job {id} is on one of the clusters {clusters}").into())
        }
        (SubmitOutcome::Accepted(id), Some(cluster)) if !id.contains(';') => {
            SubmitOutcome::Accepted(format!("{id};{cluster}").into())
        }
        (outcome, _) => outcome,
    }
}

/// Returns the name of a job, which is unique together with its submit directory.
fn job_name(params: &QueueParams, key: AllocationKey) -> String {
    match &params.name {
        Some(name) => format!("{name}-{}", key.number),
        None => format!("hq-{}-{}", key.queue, key.number),
    }
}

/// Like `job_name`, unless the user's options set another name.
fn real_name(params: &QueueParams, key: AllocationKey) -> String {
    let own = params.own_name().map(str::to_owned);
    own.unwrap_or_else(|| job_name(params, key))
}

/// Requests the states of jobs, in one command if the batch system supports it.
pub(super) async fn poll(params: &QueueParams, jobs: Vec<QueriedAllocation>) -> Vec<Input> {
    if params.system.status.takes_many() {
        return ask_status(params, &jobs).await.0;
    }
    let mut inputs = Vec::new();
    let mut rest = &jobs[..];
    while let Some((job, later)) = rest.split_first() {
        let (found, is_silent) = ask_status(params, std::slice::from_ref(job)).await;
        inputs.extend(found);
        rest = later;
        if is_silent {
            break;
        }
    }
    // A batch system that does not answer for one job will not answer for the others.
    let silent = |job: &QueriedAllocation| {
        let error = Report::Error("the batch system does not answer".into());
        Input::Reported(job.key, error)
    };
    inputs.extend(rest.iter().map(silent));
    inputs
}

/// Returns the states of some jobs, and whether the batch system timed out.
async fn ask_status(params: &QueueParams, jobs: &[QueriedAllocation]) -> (Vec<Input>, bool) {
    let Some(first) = jobs.first() else {
        return (Vec::new(), false);
    };
    let mut questions = Vec::new();
    for job in jobs {
        questions.push(job.question(params).await);
    }
    let ids: Vec<&str> = questions.iter().map(|question| question.id).collect();
    let (_, cluster) = job_parts(&first.job);
    let system = &params.system;
    let fallback = parse::status_fallback(system);
    let mut answer = first.ask(&system.status, &ids, cluster).await;
    let mut found = parse::reports(system, &answer, &questions);
    let keeps_history = !parse::keeps_no_history(system, &answer);
    let is_of_no_use = found.is_none() || !keeps_history;
    if is_of_no_use && !fallback.is_empty() && answer.is_ok() {
        let second = first.ask(&fallback, &ids, cluster).await;
        found = parse::reports(system, &second, &questions);
        answer = second;
    }
    let plain = parse::status_plain(system);
    if found.is_none() && !plain.is_empty() && answer.is_ok() {
        let third = first.ask(&plain, &ids, cluster).await;
        found = parse::reports(system, &third, &questions);
    }
    let mut is_silent = matches!(answer, Err(CommandError::Timeout { .. }));
    let Some(found) = found else {
        let inputs = jobs.iter().zip(&questions);
        let inputs =
            inputs.map(|(job, asked)| Input::Reported(job.key, parse::unread(&answer, asked.id)));
        return (inputs.collect(), is_silent);
    };
    // Each job is requested separately, because an answer about several jobs may omit some.
    let mut single = Vec::new();
    if keeps_history && jobs.len() > 1 {
        single.push(&system.status);
    }
    if !fallback.is_empty() && (jobs.len() > 1 || !is_of_no_use) {
        single.push(&fallback);
    }
    let mut inputs = Vec::new();
    for ((job, question), report) in jobs.iter().zip(&questions).zip(found) {
        let report = match report {
            Some(report) => report,
            // A batch system that does not answer for one job will not answer for the others.
            None if is_silent => Report::Silent,
            None => {
                let (report, timed_out) = ask_alone(params, &single, job, question).await;
                is_silent = timed_out;
                report
            }
        };
        inputs.push(Input::Reported(job.key, job.with_last_words(report).await));
    }
    (inputs, is_silent)
}

/// Requests the state of one job until there is an answer. Also returns whether the last request
/// timed out.
async fn ask_alone(
    params: &QueueParams,
    templates: &[&CommandTemplate],
    job: &QueriedAllocation,
    question: &Question<'_>,
) -> (Report, bool) {
    let mut last = Report::Silent;
    for template in templates {
        let answer = job
            .ask(template, &[question.id], job_parts(&job.job).1)
            .await;
        let found = parse::reports(&params.system, &answer, std::slice::from_ref(question));
        match found.map(|mut all| all.pop()) {
            Some(Some(Some(report))) => return (report, false),
            Some(_) => last = Report::Silent,
            None => last = parse::unread(&answer, question.id),
        }
        if matches!(answer, Err(CommandError::Timeout { .. })) {
            return (last, true);
        }
    }
    (last, false)
}

/// Writes the id of an allocation's job to its directory, and links the outputs.
async fn note_job(params: &QueueParams, key: AllocationKey, dir: &Path, job: &str) {
    let id = job_parts(job).0;
    let outputs = params.own_outputs(id, &real_name(params, key));
    if let Err(error) = dirs::note_job(dir.to_owned(), id.to_owned(), outputs).await {
        tracing::debug!(%error, "cannot note the job of an allocation in its directory");
    }
}

/// Searches for the job of a submission. A single answer without the job does not prove that it does
/// not exist, and a wrong conclusion would lead to a second job for the same allocation.
pub(super) async fn look(params: &QueueParams, asked: &QueriedAllocation) -> LookupOutcome {
    let mut outcome = LookupOutcome::Absent;
    for search in parse::searches(&params.system) {
        match run_search(params, asked, search).await {
            LookupOutcome::Found(job) => {
                note_job(params, asked.key, &asked.dir, &job).await;
                return LookupOutcome::Found(job);
            }
            error @ LookupOutcome::Error(_) => outcome = error,
            LookupOutcome::Absent => {}
        }
    }
    outcome
}

async fn run_search(
    params: &QueueParams,
    asked: &QueriedAllocation,
    search: Search,
) -> LookupOutcome {
    let system = &params.system;
    let ours = asked.ours(params).await;
    let name = real_name(params, asked.key);
    let shown = asked.dir.to_string_lossy();
    let cluster = params.clusters();
    let mut values = vec![("name", &*name), ("dir", &*shown)];
    values.extend(cluster.map(|cluster| ("cluster", cluster)));
    let ask = async |template: &CommandTemplate, jobs: &[&str]| {
        let argv = command::words(template, &values, jobs);
        let answer = command::run(&argv, asked.cwd(), true, cluster, ASK_TIMEOUT).await;
        let Some(other) = parse::find_without_history(system, template, &answer) else {
            return answer;
        };
        let argv = command::words(&other, &values, jobs);
        command::run(&argv, asked.cwd(), true, cluster, ASK_TIMEOUT).await
    };
    let answer = ask(&search.find, &[]).await;
    let outcome = match parse::found_ids(system, &answer) {
        None => parse::parse_lookup(system, &answer, &ours),
        Some(ids) => {
            let mut outcome = LookupOutcome::Absent;
            let at_once = if search.status.takes_many() {
                ids.len().max(1)
            } else {
                1
            };
            for ids in ids.chunks(at_once) {
                outcome = parse::parse_lookup(system, &ask(&search.status, ids).await, &ours);
                if outcome != LookupOutcome::Absent {
                    break;
                }
            }
            outcome
        }
    };
    match (outcome, cluster) {
        (LookupOutcome::Found(id), Some(cluster)) if !id.contains(';') => {
            LookupOutcome::Found(format!("{id};{cluster}").into())
        }
        (outcome, _) => outcome,
    }
}

/// Cancels a job, unless the batch system reports another job under that id.
pub(super) async fn cancel(
    params: &QueueParams,
    asked: &QueriedAllocation,
) -> Result<(), Box<str>> {
    let known = ask_status(params, std::slice::from_ref(asked));
    if let Ok((inputs, _)) = tokio::time::timeout(IDENTITY_TIMEOUT, known).await
        && let Some(Input::Reported(_, Report::Foreign(text))) = inputs.first()
    {
        tracing::warn!("Job {} is not canceled: {text}", job_parts(&asked.job).0);
        return Ok(());
    }
    let (id, cluster) = job_parts(&asked.job);
    let answer = asked.ask(&params.system.cancel, &[id], cluster).await;
    parse::canceled(&params.system, &answer)
}
