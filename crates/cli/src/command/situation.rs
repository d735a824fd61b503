//! Explains in one sentence why jobs are not finished yet.

mod largest;

use std::collections::BTreeSet;

use hq_core::diagnosis::{queue_reason, why_waiting};
use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};
use hq_core::resource::request::RequestVariants;
use hq_core::words::{count, number, part};
use hq_core::worker_config::MemoryLimits;
use hq_protocol::client;
use hq_protocol::{could_run, reasons, why_nothing_runs};
use hq_worker::hardware::MEMORY;

use crate::client::{Client, JobInfo, JobList};
use crate::error::CliResult;
use crate::output::format::utc_seconds;
use crate::output::view::{is_idle, sum, totals};
use crate::parse::selector::Selector;
use crate::source::{is_connected, resources};
use crate::text::closest;

/// The maximum number of jobs without running tasks that are examined.
const LOOKED_AT_MAX: usize = 3;

/// Returns whether the job has unfinished tasks.
pub(super) fn is_unfinished(job: &client::JobSummary) -> bool {
    !is_idle(job) || job.is_open
}

/// Returns a text such as `Waiting for job 3: 23 of 100 tasks have ended, 4 run`.
pub(super) fn awaited(jobs: &[client::JobSummary]) -> String {
    let counts = sum(jobs);
    let what = match jobs {
        [job] => format!("job {}", job.id),
        _ => count(jobs.len() as u64, "job"),
    };
    if counts.unfinished() == 0 {
        let id = jobs.first().map_or(0, |job| job.id);
        return format!("Waiting for {what} to be closed, as by `hq job close {id}`");
    }
    format!(
        "Waiting for {what}: {} ended, {} running",
        part(counts.ended(), counts.total(), "task"),
        number(counts.running)
    )
}

/// Returns why unfinished jobs make no progress, or `None` if some of their tasks are running or no
/// reason is known.
pub(super) async fn reason(
    client: &mut Client,
    jobs: &[client::JobSummary],
) -> CliResult<Option<String>> {
    let starving: Vec<_> = jobs.iter().filter(|job| is_starving(job)).collect();
    if starving.is_empty() {
        return Ok(None);
    }
    let workers = running_workers(client).await?;
    if workers.is_empty() {
        return no_worker(client).await.map(Some);
    }
    for job in starving.iter().take(LOOKED_AT_MAX) {
        if let Some(why) = obstacle(client, job.id, &workers).await? {
            let waiting = totals(job).waiting;
            return Ok(Some(why_waiting(waiting, Some(job.id), &why)));
        }
    }
    if starving.len() < jobs.len() {
        return Ok(None);
    }
    match starving.first() {
        Some(job) => behind(client, job, &workers).await,
        None => Ok(None),
    }
}

/// Returns the resources of a new job that no worker has, or `None` if a worker has them or a
/// future worker may have them.
pub(super) async fn at_submit(
    client: &mut Client,
    job: u32,
    requests: &[&RequestVariants],
) -> CliResult<Option<String>> {
    // The job itself is requested first: it nearly always answers the question, and each further
    // request delays the submit.
    let Some((_, explanation)) = client.explain_first_waiting(job).await? else {
        return Ok(None);
    };
    let why = why_nothing_runs(&explanation);
    if why.is_none() && (!explanation.workers.is_empty() || requests.iter().all(|r| is_usual(r))) {
        return Ok(None);
    }
    let workers = running_workers(client).await?;
    let queues = queues(client).await?;
    if let Some(why) = why
        && queues.is_empty()
        && !workers.is_empty()
    {
        let hint = unit_hint(requests, &workers);
        let why = with_suggestion(why, &explanation, &workers);
        return Ok(Some(format!(
            "No connected worker can run tasks of job {job}: {why}{hint}; see `hq doc resources`"
        )));
    }
    let all = client.workers(&Selector::All, false).await?;
    let why = requests
        .iter()
        .find_map(|requests| largest::never_offered(requests, &all.workers, &queues));
    Ok(why.map(|why| {
        format!("No worker so far could have run tasks of job {job}: {why}; see `hq doc resources`")
    }))
}

/// Returns a worker that does not enforce the memory limits of a new job, and the reason.
pub(super) async fn unlimited(client: &mut Client, job: u32) -> CliResult<Option<String>> {
    let workers = running_workers(client).await?;
    let unlimited = workers.iter().find_map(|worker| {
        let config = worker.config.as_ref()?;
        let why = MemoryLimits::from(config.memory_limits()).obstacle()?;
        let has_memory = resources(worker).any(|one| one.name == MEMORY);
        has_memory.then_some((worker.id, &config.hostname, why))
    });
    Ok(unlimited.map(|(id, host, why)| {
        format!(
            "Tasks of job {job} ask for `mem`, and worker {id} ({host}) does not end tasks that use more: {why}"
        )
    }))
}

/// Returns whether tasks only request one cpu or a few nodes, which needs no check.
fn is_usual(requests: &RequestVariants) -> bool {
    let is_small = |entry: &hq_core::resource::request::ResourceEntry| {
        &*entry.resource == "cpus" && entry.amount <= Amount::whole(1)
    };
    requests
        .as_slice()
        .iter()
        .all(|request| request.entries.iter().all(is_small))
}

/// Returns the memory unit that was probably intended, if workers have less than the request.
fn unit_hint(requests: &[&RequestVariants], workers: &[client::WorkerInfo]) -> String {
    let entries = requests
        .iter()
        .flat_map(|requests| requests.as_slice())
        .flat_map(|request| &request.entries);
    let hints = entries.filter_map(|entry| {
        let most = largest::most(&entry.resource, workers, &[])?;
        (entry.amount > most).then(|| largest::meant(entry, most))
    });
    hints
        .into_iter()
        .find(|hint| !hint.is_empty())
        .unwrap_or_default()
}

fn is_starving(job: &client::JobSummary) -> bool {
    let counts = totals(job);
    counts.waiting > 0 && counts.running == 0
}

async fn running_workers(client: &mut Client) -> CliResult<Vec<client::WorkerInfo>> {
    let mut workers = client.workers(&Selector::All, true).await?.workers;
    workers.retain(is_connected);
    Ok(workers)
}

pub(super) async fn queues(client: &mut Client) -> CliResult<Vec<client::AllocQueue>> {
    // A server without automatic allocation has no queues.
    let found = client.ask(client::AllocListQuery {}).await;
    Ok(found.map_or_else(|_| Vec::new(), |found| found.queues))
}

async fn no_worker(client: &mut Client) -> CliResult<String> {
    let queues = queues(client).await?;
    let Some(queue) = queues.first() else {
        return Ok(
            "no worker is connected; start one with `hq worker start`, or have a batch system start them with `hq alloc add`"
                .to_owned(),
        );
    };
    let reason = match queue_reason(&queue.reason) {
        "" => "it requests some from the batch system".to_owned(),
        reason => reason.to_owned(),
    };
    let id = queue.id;
    Ok(if queue.is_paused {
        format!(
            "no worker is connected, and queue {id} is paused ({reason}); `hq alloc resume {id}` resumes it"
        )
    } else {
        format!("no worker is connected; queue {id}: {reason}; `hq alloc info {id}` shows more")
    })
}

/// Returns the resources that the first waiting task of a job requests and no worker has.
async fn obstacle(
    client: &mut Client,
    job: u32,
    workers: &[client::WorkerInfo],
) -> CliResult<Option<String>> {
    let stuck = stuck(client, job).await?;
    Ok(stuck.map(|(explanation, why)| with_suggestion(why, &explanation, workers)))
}

/// Returns the explanation of a job's first waiting task and why no worker can run it, or `None` if
/// a worker can or no task is waiting.
async fn stuck(client: &mut Client, job: u32) -> CliResult<Option<(client::Explanation, String)>> {
    let Some((_, explanation)) = client.explain_first_waiting(job).await? else {
        return Ok(None);
    };
    let why = why_nothing_runs(&explanation);
    Ok(why.map(|why| (explanation, why)))
}

fn with_suggestion(
    why: String,
    explanation: &client::Explanation,
    workers: &[client::WorkerInfo],
) -> String {
    match misspelled(explanation, workers) {
        Some((asked, meant)) => format!("{why} (did you mean `{meant}` instead of `{asked}`?)"),
        None => why,
    }
}

/// Returns a resource that no worker has, and an existing one with a similar name.
fn misspelled<'a>(
    explanation: &'a client::Explanation,
    workers: &'a [client::WorkerInfo],
) -> Option<(&'a str, &'a str)> {
    use client::explain_item::Item;
    let offered: BTreeSet<&str> = workers
        .iter()
        .flat_map(resources)
        .map(|one| one.name)
        .collect();
    let variants = explanation
        .workers
        .iter()
        .flat_map(|worker| &worker.variants);
    let asked = variants
        .flat_map(|variant| &variant.items)
        .filter_map(|item| match &item.item {
            Some(Item::Resource(amount)) => Some(amount.resource.as_str()),
            Some(Item::Time(_) | Item::Group(_)) | None => None,
        });
    let unknown: BTreeSet<&str> = asked.filter(|name| !offered.contains(name)).collect();
    unknown.into_iter().find_map(|name| {
        let meant = meant_by(name, &offered)?;
        Some((name, meant))
    })
}

/// Returns the existing resource that was probably intended by an unknown name.
fn meant_by<'a>(name: &str, offered: &BTreeSet<&'a str>) -> Option<&'a str> {
    if name == "gpus" {
        // The name is not a misspelled `cpus`: workers name GPUs by their manufacturer.
        return offered.iter().copied().find(|one| one.starts_with("gpus/"));
    }
    closest(name, offered.iter().copied())
}

/// Says how many waiting tasks of a job are held.
async fn held(client: &mut Client, job: &client::JobSummary) -> CliResult<String> {
    let found = client.ask(JobInfo(&Selector::one(job.id))).await?.jobs;
    let held = found.first().map_or(0, |job| job.held_count);
    // Other tasks may wait for something else.
    Ok(if held >= job.stats.unwrap_or_default().waiting {
        format!(
            "its tasks are held; `hq job release {}` releases them",
            job.id
        )
    } else {
        format!("{} of its tasks are held", number(held.into()))
    })
}

/// Returns the hold, limit or delay of the first waiting task, if other tasks of its job run.
pub(super) async fn hindrance(
    client: &mut Client,
    job: &client::JobSummary,
) -> CliResult<Option<String>> {
    let counts = totals(job);
    if counts.waiting == 0 || counts.running == 0 {
        return Ok(None);
    }
    match client.explain_first_waiting(job.id).await? {
        Some((task, found)) if found.waiting_dep_count == 0 => {
            own_reason(client, job, (&task, &found)).await
        }
        Some(_) | None => Ok(None),
    }
}

/// Returns why a task waits, apart from other tasks and workers.
async fn own_reason(
    client: &mut Client,
    job: &client::JobSummary,
    (task, explanation): (&client::TaskInfo, &client::Explanation),
) -> CliResult<Option<String>> {
    if explanation.is_held {
        return held(client, job).await.map(Some);
    }
    Ok(reasons(explanation).first().map(|reason| {
        let what = reason.strip_prefix("it ").unwrap_or(reason);
        format!("task {} {what}", task.id)
    }))
}

/// Returns why a job is waiting although some worker could run it.
async fn behind(
    client: &mut Client,
    job: &client::JobSummary,
    workers: &[client::WorkerInfo],
) -> CliResult<Option<String>> {
    let Some((task, explanation)) = client.explain_first_waiting(job.id).await? else {
        return Ok(None);
    };
    if explanation.waiting_dep_count > 0 {
        let after: Vec<String> = task
            .after
            .iter()
            .map(|after| after.job.to_string())
            .collect();
        return Ok(Some(if after.is_empty() {
            format!(
                "task {} waits for {}; `hq task info {}.{}` names them",
                task.id,
                count(explanation.waiting_dep_count.into(), "other task"),
                job.id,
                task.id
            )
        } else {
            format!("it starts after job {}", after.join(", "))
        }));
    }
    if let Some(reason) = own_reason(client, job, (&task, &explanation)).await? {
        return Ok(Some(reason));
    }
    if let Some(kept) = explanation.workers.iter().find_map(|row| row.kept.clone()) {
        return Ok(Some(kept));
    }
    let is_free = explanation.is_ready && explanation.sent_to.is_none();
    if is_free && let Some(why) = set_aside(&explanation, workers) {
        return Ok(Some(why));
    }
    let (total, used) = cpus(workers);
    let all = client.ask(JobList(&Selector::All)).await?.jobs;
    let before = sum(all.iter().filter(|other| other.id < job.id)).waiting;
    let mut parts = Vec::new();
    if total > 0 && used >= total {
        parts.push(match total {
            1 => "the only cpu is busy".to_owned(),
            _ => format!("all {} cpus are busy", number(total)),
        });
    } else if is_free {
        parts.push("other tasks use the resources that its tasks request".to_owned());
    } else {
        // The task will start in a moment.
        return Ok(None);
    }
    if before > 0 {
        parts.push(format!(
            "{} of earlier jobs also wait",
            count(before, "task")
        ));
    }
    Ok(Some(parts.join(", ")))
}

/// Returns why every worker that could run a task is excluded.
fn set_aside(explanation: &client::Explanation, workers: &[client::WorkerInfo]) -> Option<String> {
    use client::quarantine::Stage;
    let able = explanation
        .workers
        .iter()
        .filter(|worker| could_run(worker));
    let aside = able.map(|able| {
        let worker = workers.iter().find(|worker| worker.id == able.worker)?;
        let quarantine = worker.quarantine.as_ref()?;
        // A worker that is being tested still gets a task.
        (quarantine.stage() != Stage::Probed).then_some((worker.id, quarantine))
    });
    let aside: Vec<_> = aside.collect::<Option<_>>()?;
    let (id, quarantine) = aside.first()?;
    let others = match aside.len() - 1 {
        0 => String::new(),
        1 => ", and another one that could run its tasks is in quarantine as well".to_owned(),
        more => format!(", and {more} others that could run its tasks are in quarantine as well"),
    };
    let why = match quarantine.stage() {
        Stage::Unfit => format!("gets no tasks: {}", quarantine.why),
        Stage::Quarantined if quarantine.is_asked => {
            let until = quarantine.until_unix_ns.map(utc_seconds);
            let until = until.map_or_else(String::new, |until| format!(" until {until}"));
            let colon = if quarantine.why.is_empty() { "" } else { ": " };
            format!(
                "is in quarantine on request{until}{colon}{}",
                quarantine.why
            )
        }
        Stage::Suspected | Stage::Quarantined | Stage::Probed => {
            "is in quarantine because tasks fail there".to_owned()
        }
    };
    Some(format!(
        "worker {id} {why}{others}; `hq worker info {id}` shows more"
    ))
}

/// Returns the number of whole cpus of all workers, and how many of them are in use.
fn cpus(workers: &[client::WorkerInfo]) -> (u64, u64) {
    let cpus = || {
        workers
            .iter()
            .flat_map(resources)
            .filter(|one| one.name == "cpus")
    };
    let total: u64 = cpus().map(|one| one.total).sum();
    let used: u64 = cpus().filter_map(|one| one.used).sum();
    (total / UNITS_PER_WHOLE, used.div_ceil(UNITS_PER_WHOLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_meant_by_nothing_but_gpus() {
        let some = BTreeSet::from(["cpus", "mem"]);
        assert_eq!(meant_by("gpus", &some), None);
        assert_eq!(meant_by("cpu", &some), Some("cpus"));
        let more = BTreeSet::from(["cpus", "gpus/nvidia"]);
        assert_eq!(meant_by("gpus", &more), Some("gpus/nvidia"));
    }
}
