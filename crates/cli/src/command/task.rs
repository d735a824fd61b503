//! `hq task …`.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;

use hq_core::outcome::SignalName;
use hq_core::range::IdArray;
use hq_core::server_state::CANCELED_MAX;
use hq_protocol::client::{self, explain, task_page};
use hq_protocol::common;

use super::missing::{self, Missing};
use super::{Context, all_tasks};
use crate::args::global::OutputMode;
use crate::args::task::{
    ChosenArgs, ExplainArgs, InfoArgs, ListArgs, SignalArgs, states_to_message,
};
use crate::client::{Client, JobList};
use crate::error::{CliError, CliResult, exit};
use crate::output::format::{cut, id_array, ids, joined_ids};
use crate::output::{ExplanationView, TaskInfos, TaskListView, TaskLists};
use crate::parse::selector::{Selector, SingleSelector};

/// The maximum number of tasks that `task cancel` and `task signal` look up.
const TASKS_MAX: usize = 2_000_000;

/// The maximum number of characters of a job's task ids in an error.
pub(super) const IDS_SHOWN_MAX: usize = 200;

/// The maximum number of failed tasks whose last words `task info -v` reads.
const WORDS_MAX: usize = 16;

/// Runs `hq task list`. Tasks are printed page by page.
pub(super) async fn list(args: ListArgs, context: &mut Context) -> CliResult<()> {
    let tasks = args.selector.tasks(args.tasks.as_ref())?;
    let mut client = context.connect().await?;
    let jobs = client.ask(JobList(&args.selector.job)).await?.jobs;
    let missing_jobs = Missing::among(&jobs, &args.selector.job);
    missing_jobs.warn("Job", |jobs, ids| format!("{jobs} {ids} not found"));
    let view = TaskListView {
        is_single_job: jobs.len() == 1,
        is_verbose: args.verbose,
    };
    let mut missing_tasks = (Missing::default(), 0);
    let mut shown = TaskLists::new(context.output, &mut context.out, view);
    for job in &jobs {
        shown.job(job.id)?;
        let mut next = Some(client::TaskPage {
            tasks: tasks.as_ref().map(Into::into),
            states: states_to_message(args.filter.as_deref()),
            ..all_tasks(job.id)
        });
        let mut missing = Missing::default();
        while let Some(page) = client.next_page(&mut next).await? {
            missing.add(page.not_found.as_ref());
            shown.tasks(&page)?;
        }
        warn_about_tasks(&missing, job.id);
        if !missing.is_empty() {
            missing_tasks = (missing, job.id);
        }
    }
    if shown.finish()? {
        context.flush()?;
        tracing::info!("An error message was truncated. Use -v to display the full error.");
    }
    missing_jobs.end(missing::JOBS, context)?;
    end_without(missing_tasks, &mut client, context).await
}

/// Ends a command that requested tasks which a job does not have.
pub(super) async fn end_without(
    (missing, job): (Missing, u32),
    client: &mut Client,
    context: &mut Context,
) -> CliResult<()> {
    if missing.is_empty() || context.mode() != OutputMode::Cli {
        return Ok(());
    }
    match known_tasks(&Selector::one(job), client).await {
        Some(help) => missing.end_with(&help, context),
        None => missing.end(&format!("hq task list {job}"), context),
    }
}

/// Warns about tasks that a job does not have.
pub(super) fn warn_about_tasks(missing: &Missing, job: u32) {
    missing.warn("Task", |tasks, ids| {
        format!("{tasks} {ids} of job {job} not found")
    });
}

/// Runs `hq task info`.
pub(super) async fn info(args: InfoArgs, context: &mut Context) -> CliResult<()> {
    let tasks = args.target.some_tasks(args.tasks.as_ref())?;
    let mut client = context.connect().await?;
    let name = args.target.job;
    let mut next = Some(client::TaskPage {
        job: Some(page_job(name)),
        tasks: Some((&tasks).into()),
        with_definition: true,
        with_curves: args.verbose,
        ..client::TaskPage::default()
    });
    let with_words = args.verbose && context.mode() == OutputMode::Cli;
    let mut shown = TaskInfos::new(context.output, &mut context.out, args.verbose);
    let (mut missing, mut missing_job) = (Missing::default(), Missing::default());
    let mut id = 0;
    while let Some(mut page) = client.next_page(&mut next).await? {
        if !page.job_found {
            tracing::error!("Cannot find job {name}");
            missing_job = Missing::one();
            break;
        }
        id = page.job;
        missing.add(page.not_found.as_ref());
        if with_words {
            add_last_words(&mut client, &mut page).await?;
        }
        shown.tasks(&page)?;
    }
    missing.warn("Task", |tasks, ids| format!("{tasks} {ids} not found"));
    shown.finish()?;
    missing_job.end(missing::JOBS, context)?;
    end_without((missing, id), &mut client, context).await
}

/// Adds the last line of their output to the errors of the first failed tasks of a page.
async fn add_last_words(client: &mut Client, page: &mut client::TaskPageReply) -> CliResult<()> {
    let job = page.job;
    let failed = page
        .tasks
        .iter_mut()
        .filter_map(|task| Some((task.id, task.error.as_mut()?)));
    for (task, error) in failed.take(WORDS_MAX) {
        if let Some(words) = client.last_words((job, task)).await? {
            error.push_str(&format!("\nLast words: {}", words.trim()));
        }
    }
    Ok(())
}

/// Runs `hq task explain`.
pub(super) async fn explain(args: ExplainArgs, context: &mut Context) -> CliResult<()> {
    let tasks = args.target.some_tasks(args.task.as_ref())?;
    let (Some(task), 1) = (tasks.iter().next(), tasks.len()) else {
        let job = args.target.job;
        let first = tasks.iter().next().unwrap_or_default();
        return Err(CliError::usage(&format!(
            "one task is explained at a time: `hq task explain {job}.{first}`; `hq task list {job}` lists all"
        )));
    };
    let job = match args.target.job {
        SingleSelector::Last => explain::Job::Last(client::Empty {}),
        SingleSelector::Id(id) => explain::Job::Id(id),
    };
    let request = client::Explain {
        job: Some(job),
        task,
        until_able: false,
    };
    let mut client = context.connect().await?;
    let explanation = match client.ask(request).await {
        Ok(explanation) => explanation,
        Err(error) => return Err(with_known_tasks(error, args.target.job, &mut client).await),
    };
    let is_verbose = args.verbose;
    context.show(&ExplanationView {
        explanation: &explanation,
        is_verbose,
    })?;
    context.flush()?;
    if !is_verbose && explanation.is_ready && has_reader(context) {
        let (job, task) = (explanation.job, explanation.task);
        tracing::info!("`hq task explain -v {job}.{task}` shows what it waits for now");
    }
    if is_verbose && explanation.waiting_dep_count > 0 {
        let (job, task) = (explanation.job, explanation.task);
        tracing::info!("`hq task info {job}.{task}` shows its dependencies");
    }
    if is_verbose && explanation.is_ready {
        for queue in client.ask(client::AllocListQuery {}).await?.queues {
            super::alloc::say_state(queue.id, queue.is_paused, &queue.reason);
        }
    }
    if is_verbose && explanation.workers.is_empty() {
        tracing::info!("No worker is connected; `hq worker start` starts one");
    }
    Ok(())
}

/// Runs `hq task cancel`.
pub(super) async fn cancel(args: &ChosenArgs, context: &mut Context) -> CliResult<()> {
    let Some((mut client, chosen)) = choose(args, &CANCEL, context).await? else {
        return Missing::one().end(missing::JOBS, context);
    };
    let (job, mut live) = (chosen.job, chosen.waiting);
    live.extend(chosen.running);
    live.sort_unstable();
    let mut canceled = 0;
    for ids in live.chunks(CANCELED_MAX) {
        let cancel = client::CancelTasks {
            job,
            tasks: Some(few(ids)),
            keep_running: false,
        };
        let results = client.ask(cancel).await?.results;
        canceled += results
            .iter()
            .map(|job| job.canceled as usize)
            .sum::<usize>();
    }
    if canceled < live.len() {
        let rest = live.len() - canceled;
        tracing::warn!("{rest} of these tasks of job {job} ended before they could be canceled");
    }
    if !live.is_empty() {
        tracing::info!("Canceled {} of job {job}", task_ids(live));
    }
    say_failed(("Canceling", job), chosen.over, "already finished");
    chosen.missing.report_failed("Canceling", "task");
    context.done()?;
    end_without((chosen.missing, job), &mut client, context).await
}

/// Why a worker cannot send a signal to a running task.
pub(super) const UNABLE: &str =
    "it is a Python call, or the worker is disconnected or too old to send signals";

/// Runs `hq task signal`.
pub(super) async fn signal(args: &SignalArgs, context: &mut Context) -> CliResult<()> {
    let Some((mut client, mut chosen)) = choose(&args.chosen, &SIGNAL, context).await? else {
        return Missing::one().end(missing::JOBS, context);
    };
    let job = chosen.job;
    let (mut sent, mut unable) = (Vec::new(), Vec::new());
    for named in chosen.running.chunks(CANCELED_MAX) {
        let signal = client::SignalTasks {
            job,
            tasks: Some(few(named)),
            signal: args.signal.cast_unsigned(),
        };
        let found = client.ask(signal).await?;
        let listed = |found: Option<_>| found.iter().flat_map(ids).collect::<BTreeSet<u32>>();
        let (now_sent, now_unable) = (listed(found.sent), listed(found.unable));
        let is_left = |id: &&u32| !now_sent.contains(id) && !now_unable.contains(id);
        // These tasks ended or were restarted after the server had listed them.
        chosen.over.extend(named.iter().filter(is_left));
        sent.extend(now_sent);
        unable.extend(now_unable);
    }
    let (name, what) = (SignalName(args.signal), ("Signaling", job));
    let has_failed = sent.is_empty() || !unable.is_empty();
    if !sent.is_empty() {
        tracing::info!("Sent {name} to {} of job {job}", task_ids(sent));
    }
    say_failed(what, chosen.waiting, "not running yet");
    say_failed(what, chosen.over, "no longer running");
    say_failed(what, unable, UNABLE);
    chosen.missing.report_failed("Signaling", "task");
    context.done()?;
    end_without((chosen.missing, job), &mut client, context).await?;
    match has_failed {
        true => Err(CliError::AlreadyReported(exit::FAILURE)),
        false => Ok(()),
    }
}

/// A command about chosen tasks.
pub(super) struct Action {
    /// Its name in errors.
    pub(super) doing: &'static str,
    /// The command for all tasks of a job, before and after the id of the job.
    pub(super) all: (&'static str, &'static str),
}

const CANCEL: Action = Action {
    doing: "Canceling",
    all: ("hq job cancel", "` cancels all tasks of the job"),
};

const SIGNAL: Action = Action {
    doing: "Signaling",
    all: (
        "hq job task-ids",
        " --filter running` lists the running tasks of the job",
    ),
};

/// The tasks that a user named, by state.
#[derive(Default)]
struct ChosenTasks {
    job: u32,
    waiting: Vec<u32>,
    running: Vec<u32>,
    over: Vec<u32>,
    missing: Missing,
}

/// Returns the ids that a user named.
pub(super) fn named(args: &ChosenArgs, action: &Action) -> CliResult<IdArray> {
    let (job, (command, effect)) = (args.target.job, action.all);
    args.target.tasks(args.tasks.as_ref())?.ok_or_else(|| {
        CliError::usage(&format!(
            "the ids of the tasks are missing; `3.7` is task 7 of job 3, and `{command} {job}{effect}"
        ))
    })
}

/// Looks up tasks that a user named. Returns `None`, after an error message, if the job does not
/// exist.
async fn choose(
    args: &ChosenArgs,
    action: &Action,
    context: &Context,
) -> CliResult<Option<(Client, ChosenTasks)>> {
    let (name, doing, (command, effect)) = (args.target.job, action.doing, action.all);
    let tasks = named(args, action)?;
    let mut next = Some(client::TaskPage {
        job: Some(page_job(name)),
        tasks: Some((&tasks).into()),
        without_paths: true,
        ..client::TaskPage::default()
    });
    let (mut client, mut chosen) = (context.connect().await?, ChosenTasks::default());
    while let Some(page) = client.next_page(&mut next).await? {
        if !page.job_found {
            tracing::error!("{doing} tasks of job {name} failed; job not found");
            return Ok(None);
        }
        chosen.job = page.job;
        chosen.missing.add(page.not_found.as_ref());
        for task in &page.tasks {
            let group = match task.state() {
                client::TaskState::Waiting => &mut chosen.waiting,
                client::TaskState::Running => &mut chosen.running,
                client::TaskState::Finished
                | client::TaskState::Failed
                | client::TaskState::Canceled
                | client::TaskState::Aborted => &mut chosen.over,
            };
            group.push(task.id);
        }
        if chosen.waiting.len() + chosen.running.len() + chosen.over.len() > TASKS_MAX {
            let job = chosen.job;
            return Err(CliError::usage(&format!(
                "expected at most {TASKS_MAX} tasks; `{command} {job}{effect}"
            )));
        }
    }
    // A user may name ids in any order.
    chosen.running.sort_unstable();
    Ok(Some((client, chosen)))
}

/// Converts sorted task ids for a message.
fn few(ids: &[u32]) -> common::IdArray {
    (&IdArray::from_sorted(ids.iter().copied()).unwrap_or_default()).into()
}

/// Reports tasks for which the command did nothing, and why.
fn say_failed((doing, job): (&str, u32), tasks: Vec<u32>, why: &str) {
    if !tasks.is_empty() {
        tracing::error!("{doing} {} of job {job} failed; {why}", task_ids(tasks));
    }
}

/// Converts a selector of one job.
const fn page_job(job: SingleSelector) -> task_page::Job {
    match job {
        SingleSelector::Last => task_page::Job::Last(client::Empty {}),
        SingleSelector::Id(id) => task_page::Job::Id(id),
    }
}

/// Formats task ids with the noun in the right number.
fn task_ids(mut ids: Vec<u32>) -> String {
    ids.sort_unstable();
    let noun = if ids.len() == 1 { "task" } else { "tasks" };
    format!("{noun} {}", joined_ids(ids))
}

/// Returns whether a person reads the table.
fn has_reader(context: &Context) -> bool {
    context.mode() == OutputMode::Cli && std::io::stdout().is_terminal()
}

/// Adds the existing task ids to the error about an unknown task.
async fn with_known_tasks(error: CliError, job: SingleSelector, client: &mut Client) -> CliError {
    let text = error.text().unwrap_or_default();
    if text.contains("Job not found") {
        return error.with_help(format!("`{}` lists all jobs", missing::JOBS));
    }
    if !text.contains("Task not found") {
        return error;
    }
    match known_tasks(&job.into(), client).await {
        Some(help) => error.with_help(help),
        None => error,
    }
}

/// Returns a text that names the tasks of a job.
async fn known_tasks(job: &Selector, client: &mut Client) -> Option<String> {
    let ids = client::TaskIds {
        jobs: Some(job.to_message()),
        states: Vec::new(),
    };
    let client::TaskIdsReply { jobs } = client.ask(ids).await.ok()?;
    let found = jobs.first()?;
    let ids = found.ids.as_ref().map(id_array).unwrap_or_default();
    let ids = cut(&ids, IDS_SHOWN_MAX).unwrap_or(ids);
    Some(match &*ids {
        "" => format!("job {} has no tasks", found.job),
        _ => format!("job {} has these tasks: {ids}", found.job),
    })
}
