//! `job failures`: shows why tasks failed, grouped by the last line that they wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use hq_core::words::{count, noun_of, number, part};
use hq_protocol::access::ServerDir;
use hq_protocol::client::{self, task_page};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::args::global::OutputMode;
use crate::args::job::{FailuresArgs, GroupBy};
use crate::client::{Client, JobInfo};
use crate::command::missing::{JOBS, Missing, NO_JOB};
use crate::command::{Context, all_tasks};
use crate::error::{CliError, CliResult};
use crate::failures::{Failed, FailureGroup, Group, error_words, failure_groups, group, to_read};
use crate::output::console::Console;
use crate::output::format::{joined_ids, lossy};
use crate::output::json::write_value;
use crate::output::view::{hostnames, totals};
use crate::text::clean;
use crate::text::fit;

/// The maximum number of connections for reading outputs, and the number of outputs that justifies
/// another one.
const READERS_MAX: usize = 8;
const READS_MIN: usize = 8;
/// The maximum number of hosts, and of columns for ids, that are shown for a group.
const HOSTS_SHOWN_MAX: usize = 4;
const REASONS_SHOWN_MAX: usize = 3;
const IDS_WIDTH: usize = 40;
/// The width of a parameter value, which may be megabytes long.
const VALUE_WIDTH: usize = 60;

/// Runs `hq job failures`.
pub(in crate::command) async fn failures(
    args: FailuresArgs,
    context: &mut Context,
) -> CliResult<()> {
    let mut client = context.connect().await?;
    let dir = context.server_dir()?;
    let infos = client.ask(JobInfo(&args.selector)).await?;
    let missing = Missing::of(infos.not_found.as_ref());
    missing.report_not_found("Job");
    let mut rows = Vec::new();
    for job in infos.jobs.iter().filter_map(|job| job.summary.as_ref()) {
        let failed = failed_tasks(&mut client, job.id).await?;
        let wanted = to_read(&failed, args.read);
        let wanted = wanted.iter().map(|one| one.task).collect();
        let said = read_some(&mut client, &dir, job.id, wanted).await?;
        let groups = group(&failed, &said);
        if let Some(failure_groups) = groups_by(args.group_by, &failed, &groups) {
            match context.mode() {
                OutputMode::Json => {
                    rows.push(groups_shape(
                        job,
                        args.group_by,
                        &failure_groups,
                        said.len(),
                    ));
                }
                OutputMode::Quiet => {
                    for group in &failure_groups {
                        writeln!(
                            context.out,
                            "{} {} {}",
                            job.id,
                            group.tasks.len(),
                            group.name
                        )?;
                    }
                }
                OutputMode::Cli => {
                    write_failure_groups(&mut context.out, job, args.group_by, &failure_groups)?
                }
            }
            continue;
        }
        match context.mode() {
            OutputMode::Json => rows.push(shape(job, &groups, said.len())),
            OutputMode::Quiet => {
                for group in &groups {
                    let count = group.tasks.len();
                    let reason = clean(&group.reason(count));
                    writeln!(context.out, "{} {count} {reason}", job.id)?;
                }
            }
            OutputMode::Cli => {
                write(&mut context.out, job, &groups, said.len())?;
                if let Some((task, why)) = first_aborted(&mut client, job).await? {
                    let aborted = count(totals(job).aborted, "task");
                    writeln!(
                        context.out,
                        "{aborted} aborted, for example task {task}: {why}"
                    )?;
                }
            }
        }
    }
    if context.mode() == OutputMode::Json {
        write_value(&mut context.out, &Value::from(rows))?;
    }
    let missing = missing.or_none(&args.selector, infos.jobs.is_empty(), NO_JOB, context);
    missing.end(JOBS, context)
}

/// Returns the first task of a job that the server aborted, and why.
async fn first_aborted(
    client: &mut Client,
    job: &client::JobSummary,
) -> CliResult<Option<(u32, String)>> {
    if totals(job).aborted == 0 {
        return Ok(None);
    }
    let page = client.ask(client::TaskPage {
        job: Some(task_page::Job::Id(job.id)),
        states: vec![client::TaskState::Aborted.into()],
        limit: 1,
        with_definition: true,
        without_paths: true,
        ..client::TaskPage::default()
    });
    let first = page.await?.tasks.into_iter().next();
    Ok(first.and_then(|task| {
        let error = clean(&task.error?);
        let why = error.strip_prefix("Aborted: ").unwrap_or(&error);
        Some((task.id, why.to_owned()))
    }))
}

/// Groups failures by another property than their signature. Returns `None` if they are grouped by
/// signature.
fn groups_by(by: GroupBy, failed: &[Failed], groups: &[Group]) -> Option<Vec<FailureGroup>> {
    match by {
        GroupBy::Signature => None,
        GroupBy::Node => Some(failure_groups(failed, groups, |one| one.host.clone())),
        GroupBy::ExitCode => Some(failure_groups(failed, groups, |one| {
            error_words(&one.error)
        })),
    }
}

/// Returns the failed tasks, ordered by submit and id.
async fn failed_tasks(client: &mut Client, job: u32) -> CliResult<Vec<Failed>> {
    let mut failed = Vec::new();
    let mut next = Some(client::TaskPage {
        states: vec![client::TaskState::Failed.into()],
        without_paths: true,
        ..all_tasks(job)
    });
    while let Some(page) = client.next_page(&mut next).await? {
        failed.extend(page.tasks.into_iter().map(|task| {
            Failed {
                task: task.id,
                host: hostnames(&task.workers).next().unwrap_or("?").to_owned(),
                error: task.error.unwrap_or_default(),
                params: task
                    .params
                    .into_iter()
                    .map(|param| (param.name, lossy(&param.value)))
                    .collect(),
            }
        }));
    }
    Ok(failed)
}

/// Returns the last lines of some of the tasks, from standard error or else from standard output.
async fn read_some(
    client: &mut Client,
    dir: &ServerDir,
    job: u32,
    wanted: Vec<u32>,
) -> CliResult<LastLines> {
    let readers = READERS_MAX.min(wanted.len().div_ceil(READS_MIN));
    let wanted = Arc::new(ReadQueue {
        job,
        tasks: wanted,
        next: AtomicUsize::new(0),
    });
    // A connection handles one request at a time, and a request spends most of its time waiting for
    // a worker and its files.
    let mut others = JoinSet::new();
    for _ in 1..readers {
        let (dir, wanted) = (dir.clone(), Arc::clone(&wanted));
        others.spawn(async move {
            match Client::connect(&dir).await {
                Ok(mut client) => wanted.read(&mut client).await,
                // The other readers do the work of this one.
                Err(_) => Ok(LastLines::new()),
            }
        });
    }
    let mut said = wanted.read(client).await?;
    while let Some(found) = others.join_next().await {
        let found = found.map_err(|error| CliError::caused("Cannot read outputs", &error))?;
        said.extend(found?);
    }
    Ok(said)
}

/// The last words of the tasks that wrote something.
type LastLines = BTreeMap<u32, Option<String>>;

/// The tasks whose outputs several readers read concurrently.
struct ReadQueue {
    job: u32,
    tasks: Vec<u32>,
    /// The position of the next task that no reader has taken.
    next: AtomicUsize,
}

impl ReadQueue {
    /// Reads outputs until no task is left.
    async fn read(&self, client: &mut Client) -> CliResult<LastLines> {
        let mut said = LastLines::new();
        while let Some(task) = self.tasks.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            said.insert(*task, client.last_words((self.job, *task)).await?);
        }
        Ok(said)
    }
}

/// Writes how many tasks of a job have failed.
fn write_head(out: &mut Console, job: &client::JobSummary, failed: usize) -> CliResult<()> {
    let (id, total) = (job.id, job.task_count);
    let name = match &*job.name {
        "" => String::new(),
        name => format!(" `{}`", clean(name)),
    };
    if failed == 0 {
        writeln!(out, "No task of job {id}{name} has failed.")?;
        return Ok(());
    }
    writeln!(
        out,
        "{} of job {id}{name} failed:",
        part(failed as u64, total.into(), "task")
    )?;
    Ok(())
}

fn write_failure_groups(
    out: &mut Console,
    job: &client::JobSummary,
    by: GroupBy,
    failure_groups: &[FailureGroup],
) -> CliResult<()> {
    write_head(
        out,
        job,
        failure_groups.iter().map(|group| group.tasks.len()).sum(),
    )?;
    for group in failure_groups {
        let count = number(group.tasks.len() as u64);
        writeln!(out, "{count:>8}  {}", clean(&group.name))?;
        let tasks = joined_ids(group.tasks.iter().copied());
        let noun = noun_of(group.tasks.len() as u64, "task");
        let hosts = match by {
            GroupBy::Node => String::new(),
            GroupBy::Signature | GroupBy::ExitCode => {
                format!(" on {}", shown_hosts(&group.hosts))
            }
        };
        writeln!(out, "          {noun} {}{hosts}", fit(&tasks, IDS_WIDTH))?;
        for (reason, count) in group.reasons.iter().take(REASONS_SHOWN_MAX) {
            let count = number(*count as u64);
            writeln!(out, "          {count:>8}  {}", clean(reason))?;
        }
        let more = group.reasons.len().saturating_sub(REASONS_SHOWN_MAX);
        if more > 0 {
            writeln!(out, "          and {more} other reasons")?;
        }
    }
    Ok(())
}

fn shown_hosts(hosts: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = hosts
        .iter()
        .map(String::as_str)
        .take(HOSTS_SHOWN_MAX)
        .collect();
    let more = hosts.len() - shown.len();
    let shown = shown.join(", ");
    if more > 0 {
        format!("{shown} and {more} more")
    } else {
        shown
    }
}

fn groups_shape(
    job: &client::JobSummary,
    by: GroupBy,
    failure_groups: &[FailureGroup],
    read: usize,
) -> Value {
    let rows: Vec<Value> = failure_groups
        .iter()
        .map(|group| {
            let reasons = group.reasons.iter();
            let reasons: Vec<Value> = reasons
                .map(|(reason, count)| json!({ "reason": reason, "count": count }))
                .collect();
            json!({
                "count": group.tasks.len(),
                "name": group.name,
                "tasks": joined_ids(group.tasks.iter().copied()),
                "hosts": group.hosts,
                "reasons": reasons,
            })
        })
        .collect();
    let failed = failure_groups.iter().map(|group| group.tasks.len()).sum();
    let mut value = job_shape(job, failed, read, rows);
    let by = by.to_possible_value();
    value["group_by"] = json!(by.as_ref().map(PossibleValue::get_name));
    value
}

fn failed_count(groups: &[Group]) -> usize {
    groups.iter().map(|group| group.tasks.len()).sum()
}

fn write(
    out: &mut Console,
    job: &client::JobSummary,
    groups: &[Group],
    read: usize,
) -> CliResult<()> {
    let (id, failed) = (job.id, failed_count(groups));
    write_head(out, job, failed)?;
    for group in groups {
        writeln!(
            out,
            "{:>8}  {}",
            number(group.tasks.len() as u64),
            clean(&group.reason(group.tasks.len()))
        )?;
        let tasks = joined_ids(group.tasks.iter().copied());
        let hosts = shown_hosts(&group.hosts);
        let noun = noun_of(group.tasks.len() as u64, "task");
        let read = match group.read {
            0 => String::new(),
            all if all == group.tasks.len() => String::new(),
            some => format!("; output of {} read", number(some as u64)),
        };
        writeln!(
            out,
            "          {noun} {} on {hosts}{read}",
            fit(&tasks, IDS_WIDTH)
        )?;
        if !group.params.is_empty() {
            let pairs = group.params.iter();
            let pairs: Vec<String> = pairs
                .map(|(name, value)| format!("{name}={}", fit(value, VALUE_WIDTH)))
                .collect();
            writeln!(out, "          with {}", clean(&pairs.join(", ")))?;
        }
    }
    if let Some(task) = groups.first().and_then(|group| group.tasks.first()) {
        writeln!(
            out,
            "`hq job cat {id} stderr --tasks {task}` prints the output of one of them."
        )?;
    }
    if read < failed {
        writeln!(
            out,
            "The output of {} of them was read; `--read {failed}` reads the output of all.",
            number(read as u64)
        )?;
    }
    Ok(())
}

fn shape(job: &client::JobSummary, groups: &[Group], read: usize) -> Value {
    let rows: Vec<Value> = groups
        .iter()
        .map(|group| {
            let mut value = json!({
                "count": group.tasks.len(),
                "error": group.error,
                "last_words": group.words,
                "example": group.example,
                "is_read": group.read > 0,
                "read": group.read,
                "tasks": joined_ids(group.tasks.iter().copied()),
                "hosts": group.hosts,
            });
            if !group.params.is_empty() {
                let params = group.params.iter();
                let map: serde_json::Map<String, Value> = params
                    .map(|(name, value)| (name.clone(), json!(value)))
                    .collect();
                value["params"] = map.into();
            }
            value
        })
        .collect();
    job_shape(job, failed_count(groups), read, rows)
}

fn job_shape(job: &client::JobSummary, failed: usize, read: usize, groups: Vec<Value>) -> Value {
    json!({
        "job": job.id, "name": job.name, "task_count": job.task_count,
        "failed": failed, "read": read, "groups": groups,
    })
}
