//! Interprets messages for human-readable output: states and counts that the client derives.

use hq_core::job::{JobState, TaskTotals};
use hq_protocol::{client, common};

use crate::text::lossy;

/// Returns the word for a job's state.
pub(crate) fn job_state_name(state: JobState) -> String {
    state.name().to_uppercase()
}

/// The states that `job summary` counts, in display order. Scripts expect a table of six lines.
pub(crate) const SUMMARY_STATES: [JobState; 6] = [
    JobState::Running,
    JobState::Waiting,
    JobState::Finished,
    JobState::Failed,
    JobState::Aborted,
    JobState::Canceled,
];

/// Returns the state of a job.
pub(crate) fn job_state(job: &client::JobSummary) -> JobState {
    totals(job).state(job.is_open)
}

/// Returns the number of a job's tasks in each state.
pub(crate) fn totals(job: &client::JobSummary) -> TaskTotals {
    job.stats.as_ref().map(TaskTotals::from).unwrap_or_default()
}

/// Returns the number of tasks of all jobs in each state.
pub(crate) fn sum<'a>(jobs: impl IntoIterator<Item = &'a client::JobSummary>) -> TaskTotals {
    let mut sum = TaskTotals::default();
    for job in jobs {
        sum.add(totals(job));
    }
    sum
}

/// Returns the given states that have tasks, each with the number of its tasks.
pub(crate) fn nonzero<const N: usize>(
    mut counts: TaskTotals,
    states: [client::TaskState; N],
) -> impl Iterator<Item = (client::TaskState, u64)> {
    let counts = states.map(|state| (state, *counts.of(state.into())));
    counts.into_iter().filter(|(_, count)| *count > 0)
}

/// Returns the counts as a JSON object.
pub(crate) fn counts_value(counts: &TaskTotals) -> serde_json::Value {
    serde_json::json!({
        "aborted": counts.aborted,
        "canceled": counts.canceled,
        "failed": counts.failed,
        "finished": counts.finished,
        "running": counts.running,
        "waiting": counts.waiting,
    })
}

/// Returns a bar such as `[####....]` with the share of the tasks that have ended.
pub(crate) fn bar(counts: &TaskTotals, width: usize) -> String {
    let filled = (counts.ended() * width as u64).checked_div(counts.total());
    let filled = filled.map_or(width, |cells| usize::try_from(cells).unwrap_or(width));
    format!("[{}{}]", "#".repeat(filled), ".".repeat(width - filled))
}

/// Returns the template of a task of a page that was fetched with definitions.
pub(crate) fn template_of<'a>(
    task: &client::TaskInfo,
    page: &'a client::TaskPageReply,
) -> Option<&'a common::TaskTemplate> {
    page.templates.get(usize::try_from(task.template).ok()?)
}

/// Returns whether no task of the job is waiting or running.
pub(crate) fn is_idle(job: &client::JobSummary) -> bool {
    totals(job).unfinished() == 0
}

/// Returns the lower-case word for a task's state.
pub(crate) fn task_state_word(state: client::TaskState) -> String {
    task_state_name(state).to_lowercase()
}

/// Returns the upper-case word for a task's state.
pub(crate) const fn task_state_name(state: client::TaskState) -> &'static str {
    match state {
        client::TaskState::Waiting => "WAITING",
        client::TaskState::Running => "RUNNING",
        client::TaskState::Finished => "FINISHED",
        client::TaskState::Failed => "FAILED",
        client::TaskState::Canceled => "CANCELED",
        client::TaskState::Aborted => "ABORTED",
    }
}

/// Returns the state of a worker. A state that only newer servers know counts as lost.
pub(crate) fn worker_state(worker: &client::WorkerInfo) -> client::worker_info::State {
    use client::worker_info::State;
    State::try_from(worker.state).unwrap_or(State::ConnectionLost)
}

/// Returns the word for a worker's state.
pub(crate) const fn worker_state_name(state: client::worker_info::State) -> &'static str {
    use client::worker_info::State;
    match state {
        State::Running => "RUNNING",
        State::ConnectionLost => "CONNECTION LOST",
        State::HeartbeatLost => "HEARTBEAT LOST",
        State::IdleTimeout => "IDLE TIMEOUT",
        State::Stopped => "STOPPED",
        State::TimeLimitReached => "TIME LIMIT REACHED",
    }
}

/// Returns the state of a worker that gets no tasks or only a test task, because tasks fail there
/// or its node has a problem.
pub(crate) fn quarantine_word(worker: &client::WorkerInfo) -> Option<&'static str> {
    use client::quarantine::Stage;
    let quarantine = worker.quarantine.as_ref()?;
    Some(match Stage::try_from(quarantine.stage) {
        Ok(Stage::Suspected) => "SUSPECTED",
        Ok(Stage::Probed) => "PROBED",
        Ok(Stage::Unfit) => "UNFIT",
        Ok(Stage::Quarantined) | Err(_) => "QUARANTINED",
    })
}

/// Returns the word for a worker's state, including quarantine.
pub(crate) fn worker_state_word(worker: &client::WorkerInfo) -> &'static str {
    let state = worker_state(worker);
    if worker.is_draining && state == client::worker_info::State::Running {
        return "DRAINING";
    }
    if state == client::worker_info::State::Running
        && let Some(word) = quarantine_word(worker)
    {
        return word;
    }
    worker_state_name(state)
}

/// Returns the array submit of a job that has exactly one submit.
pub(crate) fn single_array(job: &client::JobDetail) -> Option<&client::SubmitInfo> {
    match job.submits.as_slice() {
        [submit] if !submit.is_graph => Some(submit),
        _ => None,
    }
}

/// Returns when the job ended. An open job without unfinished tasks counts as ended now.
pub(crate) fn finished_at(job: &client::JobDetail) -> Option<i64> {
    let summary = job.summary.as_ref()?;
    if summary.is_open && is_idle(summary) {
        return Some(job.finished_unix_ns.unwrap_or(job.now_unix_ns));
    }
    job.finished_unix_ns
}

/// Returns the host names of the workers, by id.
pub(crate) fn hostnames(workers: &[client::WorkerRef]) -> impl Iterator<Item = &str> {
    workers.iter().map(|worker| worker.hostname.as_str())
}

/// Returns a path of a submit with the job's id, which was unknown at the time of the submit.
pub(crate) fn job_path(path: &[u8], job: u32) -> String {
    let id = job.to_string();
    let replaced = crate::submit::placeholder::replace(path, &[("JOB_ID", id.as_bytes())]);
    lossy(&replaced)
}

/// Returns the absolute path of a standard stream for `job info`. Relative paths start at the
/// task's working directory.
pub(crate) fn stdio_path(path: &[u8], cwd: &[u8], job: u32) -> String {
    let path = job_path(path, job);
    if path.starts_with('/') {
        return path;
    }
    format!("{}/{path}", job_path(cwd, job))
}

/// Returns the parameters of a task in one line: `lr=0.1, seed=3`.
pub(crate) fn params_text(params: &[client::Param]) -> String {
    let pairs = params.iter();
    let pairs: Vec<String> = pairs
        .map(|param| format!("{}={}", param.name, lossy(&param.value)))
        .collect();
    pairs.join(", ")
}

/// A crash limit, as a number or a word.
pub(crate) enum CrashLimitView {
    /// The number of crashes that a task survives.
    Number(u32),
    /// `never-restart` or `unlimited`.
    Word(&'static str),
}

/// Returns a crash limit for display.
pub(crate) fn crash_limit(limit: &common::CrashLimit) -> CrashLimitView {
    use common::crash_limit::Kind;
    match limit.kind() {
        Kind::Max => CrashLimitView::Number(limit.max),
        Kind::NeverRestart => CrashLimitView::Word("never-restart"),
        Kind::Unlimited => CrashLimitView::Word("unlimited"),
    }
}

/// Returns the name of a queue's batch system.
pub(crate) fn batch_system_name(spec: &client::AllocQueueSpec) -> String {
    let system = spec.system.clone().unwrap_or_default();
    match &*system.manager {
        "slurm" => "Slurm".to_owned(),
        "pbs" => "PBS".to_owned(),
        _ => system.name,
    }
}

/// Returns the lower-case word for an allocation's state.
pub(crate) fn allocation_state(allocation: &client::AllocAllocation) -> &'static str {
    use client::alloc_allocation::State;
    match allocation.state() {
        State::Queued => "queued",
        State::Running => "running",
        State::Finished => "finished",
        State::Failed => "failed",
    }
}

/// Returns the directory of an allocation.
pub(crate) fn allocation_dir(allocation: &client::AllocAllocation) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::OsStr::from_bytes(&allocation.work_dir).into()
}

/// Returns whether one condition of an explanation is met.
pub(crate) fn item_fits(item: &client::ExplainItem) -> bool {
    use client::explain_item::Item;
    match &item.item {
        Some(Item::Time(time)) => time
            .remaining_ns
            .is_none_or(|left| left >= time.min_time_ns),
        Some(Item::Resource(resource)) => resource.worker_units >= resource.request_units,
        Some(Item::Group(group)) => group.group_size >= group.n_nodes,
        None => true,
    }
}

/// Returns the total amount of a resource on a worker, in units of 1/10 000.
pub(crate) fn total_units(item: &common::ResourceItem) -> u64 {
    use common::resource_item::Kind;
    let whole = match &item.kind {
        Some(Kind::List(list)) => list.values.len() as u64,
        Some(Kind::Range(span)) => u64::from(span.end.saturating_sub(span.start)) + 1,
        Some(Kind::Groups(groups)) => {
            let sizes = groups.groups.iter().map(|group| group.values.len() as u64);
            sizes.sum()
        }
        Some(Kind::SumUnits(units)) => return *units,
        None => 0,
    };
    whole.saturating_mul(hq_core::resource::amount::UNITS_PER_WHOLE)
}

/// Returns whether a worker can run a variant.
pub(crate) fn variant_fits(variant: &client::VariantExplanation) -> bool {
    variant.items.iter().all(item_fits)
}

/// Returns the probable mistakes that were found when the job was submitted.
pub(crate) fn notes(job: &client::JobDetail) -> Vec<&str> {
    let submits = job.submits.iter();
    let notes = submits.flat_map(|submit| &submit.notes);
    notes.map(String::as_str).collect()
}
