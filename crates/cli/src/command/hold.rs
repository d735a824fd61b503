//! `hq job hold`, `hq job release`, `hq task hold` and `hq task release`.

use hq_core::range::{IdArray, IndexSet};
use hq_core::server_state::HELD_RANGES_MAX;
use hq_core::words::{count, number};
use hq_protocol::{client, common};

use super::Context;
use super::missing::{self, Missing};
use super::task::{Action, IDS_SHOWN_MAX, end_without, named};
use crate::args::job::SelectorArgs;
use crate::args::task::ChosenArgs;
use crate::client::{Client, JobList};
use crate::error::{CliError, CliResult, exit};
use crate::output::format::{cut, joined_ids};
use crate::parse::selector::Selector;

const HOLD: Action = Action {
    doing: "Holding",
    all: ("hq job hold", "` holds all tasks of the job"),
};

const RELEASE: Action = Action {
    doing: "Releasing",
    all: ("hq job release", "` releases all tasks of the job"),
};

/// Runs `hq job hold` and `hq job release`.
pub(super) async fn jobs(
    args: &SelectorArgs,
    is_held: bool,
    context: &mut Context,
) -> CliResult<()> {
    let mut client = context.connect().await?;
    let jobs = client.ask(JobList(&args.selector)).await?.jobs;
    let missing = Missing::among(&jobs, &args.selector);
    let mut is_any = false;
    for job in &jobs {
        let id = job.id;
        let tasks = job.stats.unwrap_or_default();
        let has_ended = tasks.waiting + tasks.running == 0 && !job.is_open;
        if has_ended && !matches!(args.selector, Selector::All) {
            tracing::error!("{} job {id} failed; it has ended", action(is_held).doing);
        }
        if has_ended {
            continue;
        }
        is_any = true;
        let answer = change(&mut client, id, None, is_held).await?;
        tracing::info!("Job {id} {}", of_job(&answer, is_held));
    }
    if jobs.is_empty() && missing.is_empty() {
        tracing::info!("There is no job");
    }
    missing.report_failed(action(is_held).doing, "job");
    context.done()?;
    missing.end(missing::JOBS, context)?;
    match is_any || matches!(args.selector, Selector::All) {
        true => Ok(()),
        false => Err(CliError::AlreadyReported(exit::FAILURE)),
    }
}

/// Says what a hold or a release of a whole job has changed.
fn of_job(answer: &client::ChangedTasks, is_held: bool) -> String {
    let changed = total(answer.changed.as_ref());
    let (running, sent) = (total(answer.running.as_ref()), total(answer.sent.as_ref()));
    if !is_held {
        return format!("released: {}", count(changed, "task"));
    }
    let waiting = count(changed - running - sent, "task");
    let mut text = format!("held: {waiting} will wait");
    if sent > 0 {
        let sent = number(sent);
        text.push_str(&format!(
            ", {sent} that workers have received may still start"
        ));
    }
    if running > 0 {
        text.push_str(&format!(", {} will go on", count(running, "running task")));
    }
    text
}

/// Holds or releases a job, or one task of it. Returns the result as text.
pub(super) async fn job_or_task(
    client: &mut Client,
    (job, task): (u32, Option<u32>),
    is_held: bool,
) -> CliResult<String> {
    let answer = change(client, job, task.map(IdArray::single), is_held).await?;
    let Some(task) = task else {
        return Ok(format!("job {job} {}", of_job(&answer, is_held)));
    };
    let has = |found: &Option<common::IdArray>| total(found.as_ref()) > 0;
    let state = match (has(&answer.changed), is_held) {
        (true, true) if has(&answer.sent) => "is held, but a worker has it and may still start it",
        (true, true) => "is held",
        (true, false) => "is released",
        (false, true) if has(&answer.running) => "is running already",
        (false, true) => "has ended already",
        (false, false) => "is not held",
    };
    Ok(format!("task {task} of job {job} {state}"))
}

/// Runs `hq task hold` and `hq task release`.
pub(super) async fn tasks(
    args: &ChosenArgs,
    is_held: bool,
    context: &mut Context,
) -> CliResult<()> {
    let (selector, action) = (Selector::from(args.target.job), action(is_held));
    let tasks = named(args, action)?;
    let mut client = context.connect().await?;
    let found = client.ask(JobList(&selector)).await?.jobs;
    let Some(job) = found.first().map(|job| job.id) else {
        let name = args.target.job;
        tracing::error!("{} tasks of job {name} failed; job not found", action.doing);
        return Missing::one().end(missing::JOBS, context);
    };
    let (mut changed, mut running) = (IndexSet::new(), IndexSet::new());
    let mut sent = IndexSet::new();
    for part in portions(&tasks) {
        let answer = change(&mut client, job, Some(part), is_held).await?;
        add(&mut changed, answer.changed.as_ref());
        add(&mut running, answer.running.as_ref());
        add(&mut sent, answer.sent.as_ref());
    }
    let rest = tasks
        .iter()
        .filter(|id| !changed.contains(*id) && !running.contains(*id));
    let rest = IdArray::from_sorted(rest).unwrap_or_default();
    let (rest, missing) = split_known(&mut client, job, rest).await?;
    let what = |ids: &str, count: u32| shown(ids, (count, job));
    if !changed.is_empty() {
        let done = if is_held { "Held" } else { "Released" };
        tracing::info!(
            "{done} {}",
            what(&joined_ids(changed.iter()), changed.len())
        );
    }
    if !sent.is_empty() {
        let ids = what(&joined_ids(sent.iter()), sent.len());
        tracing::warn!("Workers have received {ids}, which may still start");
    }
    let failed = |ids: &str, count: u32, why: &str| {
        if count > 0 {
            tracing::error!("{} {} failed; {why}", action.doing, what(ids, count));
        }
    };
    failed(
        &joined_ids(running.iter()),
        running.len(),
        "already running",
    );
    let why = if is_held { "already ended" } else { "not held" };
    failed(&rest.to_string(), rest.len(), why);
    missing.report_failed(action.doing, "task");
    context.done()?;
    end_without((missing, job), &mut client, context).await?;
    match changed.is_empty() {
        true => Err(CliError::AlreadyReported(exit::FAILURE)),
        false => Ok(()),
    }
}

const fn action(is_held: bool) -> &'static Action {
    if is_held { &HOLD } else { &RELEASE }
}

async fn change(
    client: &mut Client,
    job: u32,
    tasks: Option<IdArray>,
    is_held: bool,
) -> CliResult<client::ChangedTasks> {
    let hold = client::HoldTasks {
        job,
        tasks: tasks.map(|tasks| (&tasks).into()),
        release: !is_held,
    };
    client.ask(hold).await
}

/// Returns a text such as `tasks 1-4 of job 2`, given the ids, their number and the job.
pub(super) fn shown(ids: &str, (count, job): (u32, u32)) -> String {
    let ids = cut(ids, IDS_SHOWN_MAX).unwrap_or_else(|| ids.to_owned());
    let noun = if count == 1 { "task" } else { "tasks" };
    format!("{noun} {ids} of job {job}")
}

/// Splits tasks into portions that the server accepts.
pub(super) fn portions(tasks: &IdArray) -> Vec<IdArray> {
    let max = u32::try_from(HELD_RANGES_MAX).unwrap_or(u32::MAX);
    let (mut portions, mut open, mut left) = (Vec::new(), Vec::new(), max);
    for range in tasks.ranges() {
        let mut from = 0;
        while from < range.count() {
            // The ids of a stepped range count one by one.
            let to = match range.step() {
                1 => range.count(),
                _ => range.count().min(from.saturating_add(left)),
            };
            open.extend(range.part(from, to));
            left -= if range.step() == 1 { 1 } else { to - from };
            from = to;
            if left == 0 {
                portions.push(std::mem::take(&mut open));
                left = max;
            }
        }
    }
    portions.push(open);
    let made = portions.into_iter().filter(|part| !part.is_empty());
    made.filter_map(|part| IdArray::new(part).ok()).collect()
}

/// Splits ids into those that a job has and those that it does not have.
pub(super) async fn split_known(
    client: &mut Client,
    job: u32,
    tasks: IdArray,
) -> CliResult<(IdArray, Missing)> {
    if tasks.is_empty() {
        return Ok((tasks, Missing::default()));
    }
    let all = client::TaskIds {
        jobs: Some(Selector::one(job).to_message()),
        states: Vec::new(),
    };
    let mut known = IndexSet::new();
    for found in client.ask(all).await?.jobs {
        add(&mut known, found.ids.as_ref());
    }
    let (known, missing) = tasks
        .iter()
        .partition::<Vec<u32>, _>(|id| known.contains(*id));
    let sorted = |ids: Vec<u32>| IdArray::from_sorted(ids).unwrap_or_default();
    Ok((sorted(known), Missing::of(Some(&(&sorted(missing)).into()))))
}

pub(super) fn add(set: &mut IndexSet, found: Option<&common::IdArray>) {
    for range in found.iter().flat_map(|found| &found.ranges) {
        let (first, step) = (range.first, range.step.max(1));
        match step {
            1 => set.insert_range(first, first.saturating_add(range.count)),
            _ => (0..range.count).for_each(|at| set.insert(first.saturating_add(at * step))),
        }
    }
}

fn total(found: Option<&common::IdArray>) -> u64 {
    let ranges = found.iter().flat_map(|found| &found.ranges);
    ranges.map(|range| u64::from(range.count)).sum()
}
