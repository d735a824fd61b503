//! `job failures`: shows why tasks failed, grouped by the last line that they wrote.

use std::borrow::Cow;
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
use crate::error::{Caused as _, CliResult};
use crate::failures::{Failed, FailureGroup, Group, error_words, failure_groups, group, to_read};
use crate::output::console::Console;
use crate::output::format::joined_ids;
use crate::output::json::write_value;
use crate::output::view::{hostnames, totals};
use crate::text::lossy;
use crate::text::{clean, fit};

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
        let shown: Vec<Shown<'_>> = match args.group_by {
            GroupBy::Signature => groups.iter().map(Shown::of_signature).collect(),
            GroupBy::Node => by_property(&failed, &groups, |one| one.host.clone()),
            GroupBy::ExitCode => by_property(&failed, &groups, |one| error_words(&one.error)),
        };
        match context.mode() {
            OutputMode::Json => rows.push(shape(job, args.group_by, shown, said.len())),
            OutputMode::Quiet => {
                for group in &shown {
                    let (id, count) = (job.id, group.tasks.len());
                    writeln!(context.out, "{id} {count} {}", clean(&group.name))?;
                }
            }
            OutputMode::Cli => {
                write(&mut context.out, job, args.group_by, &shown)?;
                if args.group_by == GroupBy::Signature {
                    write_hints(&mut context.out, job, &shown, said.len())?;
                    write_first_aborted(&mut client, job, &mut context.out).await?;
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

/// Writes the first task of a job that the server aborted, and why.
async fn write_first_aborted(
    client: &mut Client,
    job: &client::JobSummary,
    out: &mut Console,
) -> CliResult<()> {
    let aborted = totals(job).aborted;
    if aborted == 0 {
        return Ok(());
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
    if let Some((task, error)) = first.and_then(|task| Some((task.id, clean(&task.error?)))) {
        let why = error.strip_prefix("Aborted: ").unwrap_or(&error);
        let aborted = count(aborted, "task");
        writeln!(out, "{aborted} aborted, for example task {task}: {why}")?;
    }
    Ok(())
}

/// Groups failures by another property than their signature.
fn by_property<'a>(
    failed: &[Failed],
    groups: &[Group],
    name: impl Fn(&Failed) -> String,
) -> Vec<Shown<'a>> {
    let groups = failure_groups(failed, groups, name).into_iter();
    groups.map(Shown::of_property).collect()
}

/// A group of failed tasks as it is printed.
struct Shown<'a> {
    name: String,
    tasks: Cow<'a, [u32]>,
    hosts: Cow<'a, BTreeSet<String>>,
    /// The text after the hosts.
    note: String,
    /// Further lines.
    lines: Vec<String>,
    /// The keys of JSON that only this kind of group has.
    value: Value,
}

impl<'a> Shown<'a> {
    fn of_signature(group: &'a Group) -> Self {
        let count = group.tasks.len();
        let pairs = || group.params.iter();
        let mut value = json!({
            "error": group.error,
            "last_words": group.words,
            "example": group.example,
            "is_read": group.read > 0,
            "read": group.read,
        });
        let mut lines = Vec::new();
        if !group.params.is_empty() {
            let texts: Vec<String> = pairs()
                .map(|(name, value)| format!("{name}={}", fit(value, VALUE_WIDTH)))
                .collect();
            lines.push(format!("with {}", clean(&texts.join(", "))));
            let map: serde_json::Map<String, Value> = pairs()
                .map(|(name, value)| (name.clone(), json!(value)))
                .collect();
            value["params"] = map.into();
        }
        Self {
            name: group.reason(count),
            tasks: Cow::Borrowed(&group.tasks),
            hosts: Cow::Borrowed(&group.hosts),
            note: match group.read {
                some if some > 0 && some < count => {
                    format!("; output of {} read", number(some as u64))
                }
                _ => String::new(),
            },
            lines,
            value,
        }
    }

    fn of_property(group: FailureGroup) -> Self {
        let reasons = group.reasons.iter();
        let shown = reasons.clone().take(REASONS_SHOWN_MAX);
        let shown =
            shown.map(|(reason, count)| format!("{:>8}  {}", number(*count as u64), clean(reason)));
        let more = group.reasons.len().saturating_sub(REASONS_SHOWN_MAX);
        let more = (more > 0).then(|| format!("and {more} other reasons"));
        let values = reasons
            .clone()
            .map(|(reason, count)| json!({ "reason": reason, "count": count }));
        Self {
            lines: shown.chain(more).collect(),
            value: json!({ "name": group.name, "reasons": values.collect::<Value>() }),
            name: group.name,
            tasks: Cow::Owned(group.tasks),
            hosts: Cow::Owned(group.hosts),
            note: String::new(),
        }
    }
}

fn failed_count(groups: &[Shown<'_>]) -> usize {
    groups.iter().map(|group| group.tasks.len()).sum()
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
        let found = found.caused("Cannot read outputs")?;
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

/// Writes how many tasks of a job have failed, and the groups.
fn write(
    out: &mut Console,
    job: &client::JobSummary,
    by: GroupBy,
    groups: &[Shown<'_>],
) -> CliResult<()> {
    let (id, total, failed) = (job.id, job.task_count, failed_count(groups));
    let name = match &*job.name {
        "" => String::new(),
        name => format!(" `{}`", clean(name)),
    };
    if failed == 0 {
        writeln!(out, "No task of job {id}{name} has failed.")?;
    } else {
        let failed = part(failed as u64, total.into(), "task");
        writeln!(out, "{failed} of job {id}{name} failed:")?;
    }
    for group in groups {
        let count = group.tasks.len() as u64;
        writeln!(out, "{:>8}  {}", number(count), clean(&group.name))?;
        let (noun, tasks) = (
            noun_of(count, "task"),
            joined_ids(group.tasks.iter().copied()),
        );
        let hosts = match by {
            GroupBy::Node => String::new(),
            GroupBy::Signature | GroupBy::ExitCode => format!(" on {}", shown_hosts(&group.hosts)),
        };
        let (tasks, note) = (fit(&tasks, IDS_WIDTH), &group.note);
        writeln!(out, "          {noun} {tasks}{hosts}{note}")?;
        for line in &group.lines {
            writeln!(out, "          {line}")?;
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

/// Writes how to see more. `read` is the number of tasks whose output was read.
fn write_hints(
    out: &mut Console,
    job: &client::JobSummary,
    groups: &[Shown<'_>],
    read: usize,
) -> CliResult<()> {
    let (id, failed) = (job.id, failed_count(groups));
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

fn shape(job: &client::JobSummary, by: GroupBy, groups: Vec<Shown<'_>>, read: usize) -> Value {
    let failed = failed_count(&groups);
    let groups = groups.into_iter().map(|group| {
        let mut value = group.value;
        value["count"] = json!(group.tasks.len());
        value["tasks"] = json!(joined_ids(group.tasks.iter().copied()));
        value["hosts"] = json!(group.hosts);
        value
    });
    let mut value = json!({
        "job": job.id, "name": job.name, "task_count": job.task_count,
        "failed": failed, "read": read, "groups": groups.collect::<Value>(),
    });
    if by != GroupBy::Signature {
        let by = by.to_possible_value();
        value["group_by"] = json!(by.as_ref().map(PossibleValue::get_name));
    }
    value
}
