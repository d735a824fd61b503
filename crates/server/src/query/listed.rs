//! Jobs in lists of dashboards. They can be searched by command, host and failure.

use hq_core::id::{JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::{Job, Submit, SubmitKind};
use hq_core::pace::{Pace, PaceFacts, estimate};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::request::{Policy, ResourceRequest};
use hq_core::server_state::ServerState;
use hq_core::template::TaskTemplate;
use hq_core::time::Timestamp;
use hq_core::words::{amount, count};
use hq_protocol::client;

use super::job;
use crate::core_handle::View;

/// The number of jobs that a search examines in one step of the core's thread.
const LOOKED_MAX: usize = 1_024;
/// The maximum number of templates per submit, and of hosts per job, that a search examines.
const PARTS_MAX: usize = 64;
/// The maximum number of a worker's tasks that are named.
const NAMED_MAX: usize = 20;

/// A job with the additional data of a list.
pub(crate) struct ListedJob {
    pub(crate) summary: client::JobSummary,
    pub(crate) submitted: Timestamp,
    pub(crate) finished: Option<Timestamp>,
    pub(crate) worker_count: usize,
    pub(crate) asked: RequestedResources,
    /// The job's rate. `None` before the first task has ended, and when no tasks are left.
    pub(crate) pace: Option<Pace>,
}

/// The resources that one task of a job requests.
pub(crate) struct RequestedResources {
    /// The units of cpus. `None` for a whole worker.
    pub(crate) cpus: Option<u64>,
    /// All requested resources, such as `2 cpus, 1 gpus/nvidia`.
    pub(crate) words: String,
}

impl RequestedResources {
    /// Uses the preferred variant if there are several. Without a task, nothing is requested.
    pub(crate) fn of(task: Option<&TaskTemplate>) -> Self {
        let variants = task.map_or(&[][..], |task| task.requests.as_slice());
        let Some(first) = variants.first() else {
            return Self {
                cpus: Some(0),
                words: String::new(),
            };
        };
        let mut words = words(first);
        if variants.len() > 1 {
            words.push_str(&format!(", or {} other variants", variants.len() - 1));
        }
        Self {
            cpus: cpus(first),
            words,
        }
    }
}

fn cpus(request: &ResourceRequest) -> Option<u64> {
    if request.n_nodes > 0 {
        return None;
    }
    let Some(entry) = request
        .entries
        .iter()
        .find(|entry| &*entry.resource == "cpus")
    else {
        return Some(0);
    };
    (entry.policy != Policy::All).then_some(entry.amount.0)
}

fn words(request: &ResourceRequest) -> String {
    if request.n_nodes > 0 {
        return count(request.n_nodes.into(), "node");
    }
    let parts = request.entries.iter().map(|entry| {
        if entry.policy == Policy::All {
            format!("all {}", entry.resource)
        } else {
            amount(&entry.resource, entry.amount)
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

pub(crate) fn listed(view: &View<'_>, job: &Job) -> ListedJob {
    let summary = job::summary(job);
    let finished = (job.is_idle() && !job.is_open).then_some(job.idle_since);
    let first = job
        .submits
        .first()
        .and_then(|submit| submit.definitions().first());
    let counts = job.counts();
    let pace = job.pace().filter(|_| !job.is_idle());
    let pace = pace.map(|facts: PaceFacts| {
        let (waiting, running) = (counts.waiting.into(), counts.running.into());
        estimate(&facts, waiting, running, view.now.wall)
    });
    ListedJob {
        summary,
        submitted: job.submitted,
        finished,
        worker_count: job.workers.len(),
        asked: RequestedResources::of(first.map(|template| &**template)),
        pace,
    }
}

/// A job for dashboards, in a reduced form for frequent refreshes.
pub(crate) struct JobOverview {
    pub(crate) listed: ListedJob,
    pub(crate) max_fails: Option<u32>,
    pub(crate) held_count: u32,
    pub(crate) holds_new: bool,
    pub(crate) waits: Vec<String>,
    pub(crate) notifications: Vec<client::JobNotice>,
    pub(crate) submits: Vec<SubmitOverview>,
}

/// A submit with only its first template and without ids.
pub(crate) struct SubmitOverview {
    pub(crate) info: client::SubmitInfo,
    pub(crate) template_count: usize,
}

/// Returns a job for dashboards.
pub(crate) fn overview(view: &View<'_>, found: &Job) -> JobOverview {
    let submit = |submit: &Submit| SubmitOverview {
        info: job::submit_info(submit, 1),
        template_count: submit.definitions().len(),
    };
    JobOverview {
        listed: ListedJob {
            finished: job::finished(view, found),
            ..listed(view, found)
        },
        max_fails: found.max_fails,
        held_count: found.held().len(),
        holds_new: found.holds_new && found.is_open,
        waits: view.state.blocking_limits_of(found),
        notifications: found.notices.iter().map(job::notification).collect(),
        submits: found.submits.iter().map(submit).collect(),
    }
}

/// A part of the jobs, newest first.
pub(crate) struct JobsPart {
    pub(crate) jobs: Vec<ListedJob>,
    /// The id below which jobs have not been examined. `None` if all jobs have been examined.
    pub(crate) next: Option<JobId>,
}

/// Returns at most `limit` jobs below the id `before`. If `text`, which is in lower case, is given,
/// returns only jobs that contain it. Stops after a number of examined jobs; another step examines
/// the rest.
pub(crate) fn newest(
    view: &View<'_>,
    before: Option<JobId>,
    limit: usize,
    text: Option<&str>,
) -> JobsPart {
    let all = view.state.jobs();
    let below = match before {
        Some(before) => all.range(..before),
        None => all.range(..),
    };
    let mut jobs = Vec::new();
    let mut looked_at = 0;
    let mut last = None;
    let mut rest = below.rev();
    while jobs.len() < limit && (text.is_none() || looked_at < LOOKED_MAX) {
        let Some((id, job)) = rest.next() else {
            return JobsPart { jobs, next: None };
        };
        looked_at += 1;
        last = Some(*id);
        if text.is_none_or(|text| has(view.state, job, text)) {
            jobs.push(listed(view, job));
        }
    }
    JobsPart {
        jobs,
        next: last.filter(|_| rest.next().is_some()),
    }
}

/// Returns whether a job's name, commands, directory, hosts, or reason for a failure or cancel
/// contain a text.
fn has(state: &ServerState, job: &Job, text: &str) -> bool {
    let is_in = |place: &str| contains(place, text);
    let reasons = || {
        let failed = job
            .failed_lowest()
            .filter_map(|task| error(state, job, task));
        failed.chain(job.cancel_reason.as_deref().map(str::to_owned))
    };
    let hosts = || {
        let ids = job.workers.iter().take(PARTS_MAX);
        ids.filter_map(|id| state.hostname(*id))
    };
    is_in(&job.id.to_string())
        || is_in(&job.name)
        || job.submits.iter().any(|submit| {
            is_in(&String::from_utf8_lossy(&submit.header.submit_dir))
                || submit
                    .definitions()
                    .iter()
                    .take(PARTS_MAX)
                    .any(|template| is_in(&command(template)))
        })
        || hosts().any(is_in)
        || reasons().any(|reason| is_in(&reason))
}

fn error(state: &ServerState, job: &Job, task: TaskId) -> Option<String> {
    super::task::failed(state, job, task).map(|failed| failed.error)
}

fn command(task: &TaskTemplate) -> String {
    let words = task
        .args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns whether `place` contains `text`, which is in lower case.
pub(crate) fn contains(place: &str, text: &str) -> bool {
    place.to_lowercase().contains(text)
}

/// Returns the units of cpus that each task requested: `None` for a whole worker, and one cpu for
/// unknown tasks.
pub(crate) fn cpus_of(view: &View<'_>, tasks: &[(u32, u32)]) -> Vec<Option<u64>> {
    // All tasks of an array request the same.
    let mut known: Option<(u32, Option<u64>)> = None;
    let mut found = Vec::with_capacity(tasks.len());
    for (id, task) in tasks {
        if let Some((_, cpus)) = known.filter(|(known, _)| known == id) {
            found.push(cpus);
            continue;
        }
        let Some(job) = view.state.jobs().get(&JobId(*id)) else {
            found.push(Some(UNITS_PER_WHOLE));
            continue;
        };
        let only = match job.submits.as_slice() {
            [submit] => Some(submit),
            _ => None,
        };
        let is_alike = |submit: &&Submit| {
            matches!(submit.kind, SubmitKind::Array { .. }) && submit.revisions.is_none()
        };
        let array = only.filter(is_alike);
        let template = match array {
            Some(submit) => submit.definition(0),
            None => job
                .find(TaskId(*task))
                .and_then(|slot| job.submit(slot)?.definition(slot.index)),
        };
        let cpus = template.map_or(Some(UNITS_PER_WHOLE), |template| {
            RequestedResources::of(Some(&template)).cpus
        });
        known = array.map(|_| (*id, cpus));
        found.push(cpus);
    }
    found
}

/// Returns the first tasks that run on each worker.
pub(crate) fn running_on(view: &View<'_>) -> Vec<(WorkerId, Vec<TaskKey>)> {
    let workers = view.state.workers().values();
    workers
        .map(|worker| (worker.id, worker.placed_tasks().take(NAMED_MAX).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use hq_core::resource::amount::Amount;
    use hq_core::resource::request::ResourceEntry;
    use hq_core::server_state::Command;
    use hq_core::testing::{NOW, array_submit, request, template};

    use super::*;

    fn with_jobs(count: u32) -> ServerState {
        let mut state = ServerState::new("test");
        for number in 1..=count {
            let command = template(&["align", &format!("Sample-{number}.bam")]);
            let submit = array_submit(1, command);
            request(&mut state, Command::Submit(Box::new(submit)));
        }
        state
    }

    fn ids(part: &JobsPart) -> Vec<u32> {
        part.jobs.iter().map(|job| job.summary.id).collect()
    }

    #[test]
    fn jobs_are_found_by_their_commands_in_any_case() {
        let state = with_jobs(12);
        let view = View {
            state: &state,
            now: NOW,
        };
        let all = newest(&view, None, 5, None);
        assert_eq!(
            (ids(&all), all.next),
            (vec![12, 11, 10, 9, 8], Some(JobId(8)))
        );
        let found = newest(&view, None, 5, Some("sample-1.bam"));
        assert_eq!((ids(&found), found.next), (vec![1], None));
        let page = newest(&view, None, 2, Some("align"));
        assert_eq!((ids(&page), page.next), (vec![12, 11], Some(JobId(11))));
        let rest = newest(&view, page.next, 100, Some("align"));
        assert_eq!(rest.jobs.len(), 10);
        assert!(newest(&view, None, 5, Some("nothing")).jobs.is_empty());
    }

    #[test]
    fn a_search_leaves_the_rest_to_another_step() {
        let count = u32::try_from(LOOKED_MAX).expect("small") + 3;
        let state = with_jobs(count);
        let view = View {
            state: &state,
            now: NOW,
        };
        let first = newest(&view, None, 5, Some("sample-2.bam"));
        assert_eq!((ids(&first), first.next), (vec![], Some(JobId(4))));
        let second = newest(&view, first.next, 5, Some("sample-2.bam"));
        assert_eq!((ids(&second), second.next), (vec![2], None));
    }

    #[test]
    fn what_a_task_asks_for_is_said_in_words() {
        let entry = |resource: &str, policy, amount| ResourceEntry {
            resource: resource.into(),
            policy,
            amount: Amount(amount),
        };
        let asks = |entries, n_nodes| ResourceRequest {
            entries,
            n_nodes,
            ..ResourceRequest::cpus(1)
        };
        let said = |request: &ResourceRequest| (words(request), cpus(request));
        let two = asks(
            vec![
                entry("cpus", Policy::Compact, 20_000),
                entry("gpus/nvidia", Policy::Compact, 5_000),
            ],
            0,
        );
        assert_eq!(
            said(&two),
            ("2 cpus, 0.5 GPUs (gpus/nvidia)".into(), Some(20_000))
        );
        assert_eq!(said(&asks(Vec::new(), 3)), ("3 nodes".into(), None));
        let all = asks(vec![entry("cpus", Policy::All, 0)], 0);
        assert_eq!(said(&all), ("all cpus".into(), None));
        let other = asks(vec![entry("fpga", Policy::Compact, 10_000)], 0);
        assert_eq!(said(&other), ("1 of fpga".into(), Some(0)));
        assert_eq!(
            said(&ResourceRequest::cpus(1)),
            ("1 cpu".into(), Some(10_000))
        );
    }
}
