//! Workers, and why a task does not run on them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use hq_core::class::{Class, QueueKey};
use hq_core::id::{JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::{Submit, TaskAt};
use hq_core::node_check::sentence;
use hq_core::refusal::Refusal;
use hq_core::scheduler::explain::{Condition, Hindrance, explain as explain_class, hindrances};
use hq_core::server_state::ServerState;
use hq_core::task::{Phase, TaskRecord, TaskState};
use hq_core::time::{Time, nanos};
use hq_core::worker::{Standing, Unkillable, Worker};
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::JobRef;
use hq_protocol::could_run;

use super::resolve;
use crate::core_handle::View;

/// The maximum number of a worker's unkillable tasks in an explanation. `worker info` lists all of
/// them.
const UNKILLABLE_TOLD_MAX: usize = 3;
/// How long a task may wait on a worker before its start counts as overdue. A worker with room
/// starts a task within milliseconds, and one that briefly lacks processes or memory within
/// seconds.
const START_OVERDUE: Duration = Duration::from_secs(10);

pub(super) fn worker_info(
    state: &ServerState,
    worker: &Worker,
    with_runtime: bool,
) -> client::WorkerInfo {
    let reason = worker.ended().map(|(_, reason)| reason);
    let runtime = (with_runtime && worker.is_live()).then(|| client::RuntimeInfo {
        assigned_tasks: u32::try_from(worker.placed_len()).unwrap_or(u32::MAX),
        running_tasks: u32::try_from(worker.placed_len()).unwrap_or(u32::MAX),
        is_reserved: worker.reserved_for().is_some(),
        multi_node_main: worker.node().map(|node| node.is_root),
        resources: resource_use(state, worker),
        load: worker.load().map(|load| client::WorkerLoad {
            at_unix_ns: load.at.0,
            cpu_share: load.cpus.hundredths().into(),
            memory_used_bytes: load.memory_used,
            memory_total_bytes: load.memory_total,
            gpu_share: load.gpus.map(|share| share.hundredths().into()),
        }),
    });
    client::WorkerInfo {
        id: worker.id.as_u32(),
        state: client::worker_info::State::from(reason).into(),
        config: Some(worker.config.as_ref().into()),
        started_unix_ns: worker.started.0,
        ended_unix_ns: worker.ended().map(|(time, _)| time.0),
        last_task: worker.last_task().map(|(task, started)| client::LastTask {
            job: task.job.as_u32(),
            task: task.task.as_u32(),
            started_unix_ns: started.0,
        }),
        runtime,
        is_draining: worker.is_draining() && worker.is_live(),
        unkillable: worker.unkillable().iter().map(unkillable_task).collect(),
        quarantine: quarantine(state, worker),
        // The core does not know which workers are connected through relays.
        via: None,
        node_faults: worker
            .node_faults()
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

/// Describes why a worker does not get a task.
fn obstacle(state: &ServerState, worker: &Worker, found: &Hindrance) -> String {
    let asked = on_request(state, worker.id).filter(|_| *found == Hindrance::Quarantined);
    asked.map_or_else(
        || found.to_string(),
        |asked| format!("the worker is in quarantine {asked}"),
    )
}

/// Describes the quarantine of a worker, if a user requested it and it has not expired.
pub(crate) fn on_request(state: &ServerState, worker: WorkerId) -> Option<String> {
    let asked = state.quarantine(worker).filter(|known| known.is_asked)?;
    // A probe task follows, as after any other quarantine.
    let standing = state.worker(worker).map(Worker::standing);
    if standing.is_some_and(|standing| standing != Standing::Quarantined) {
        return None;
    }
    let until = jiff::Timestamp::from_nanosecond(i128::from(asked.until.0)).unwrap_or_default();
    Some(asked.on_request(&until.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()))
}

fn quarantine(state: &ServerState, worker: &Worker) -> Option<client::Quarantine> {
    use client::quarantine::Stage;
    let stage = match worker.standing() {
        _ if !worker.is_live() => return None,
        Standing::Trusted if worker.is_unfit() => {
            return Some(client::Quarantine {
                stage: Stage::Unfit.into(),
                since_unix_ns: worker.faulty_since().map_or(0, |since| since.0),
                until_unix_ns: None,
                is_asked: false,
                why: sentence(worker.node_faults()),
            });
        }
        Standing::Trusted => return None,
        Standing::Suspected => Stage::Suspected,
        Standing::Quarantined => Stage::Quarantined,
        Standing::Probed => Stage::Probed,
    };
    let known = state.quarantine(worker.id);
    Some(client::Quarantine {
        stage: stage.into(),
        since_unix_ns: state.doubted_since(worker.id).map_or(0, |since| since.0),
        until_unix_ns: known.map(|known| known.until.0),
        is_asked: known.is_some_and(|known| known.is_asked),
        why: known.map_or(String::new(), |known| known.why.to_string()),
    })
}

fn unkillable_task(one: &Unkillable) -> client::UnkillableTask {
    client::UnkillableTask {
        job: one.task.job.as_u32(),
        task: one.task.task.as_u32(),
        pid: one.pid,
    }
}

/// Describes the location of a task that cannot be killed.
fn unkillable_at(state: &ServerState, task: TaskKey) -> Option<String> {
    state.workers().values().find_map(|worker| {
        let mut there = worker.unkillable().iter();
        let found = there.find(|one| one.task == task)?;
        Some(found.whereabouts(&worker.config.hostname))
    })
}

fn resource_use(state: &ServerState, worker: &Worker) -> Vec<client::ResourceUse> {
    let offered = worker.units().filter(|(_, total, _)| *total > 0);
    let rows = offered.map(|(resource, total, free)| client::ResourceUse {
        resource: state.classes().resource_name(resource).to_owned(),
        used_units: total.saturating_sub(u64::try_from(free).unwrap_or(0)),
    });
    rows.collect()
}

/// Explains why a task waits. Examines at most the given number of workers after the given one. If
/// the flag is set, it stops after the first worker that could run the task. The error is a
/// rejection.
pub(super) fn explain(
    view: &View<'_>,
    (job, task): (JobRef, TaskId),
    chosen: (WorkerId, usize, bool),
) -> Result<client::Explanation, Box<Reply>> {
    let refused = |refusal: Refusal| Err(Box::new(refusal.into()));
    let state = view.state;
    let Some(job) = resolve(state, job).and_then(|id| state.jobs().get(&id)) else {
        return refused(Refusal::not_found("Job not found"));
    };
    let found = job.find(task);
    let Some((slot, submit)) = found.and_then(|slot| Some((slot, job.submit(slot)?))) else {
        return refused(Refusal::not_found("Task not found").about(Some(job.id), Some(task)));
    };
    let task_state = submit.tasks.phase(slot.index).map(Phase::state);
    let unkillable = unkillable_at(state, TaskKey::new(job.id, task));
    if !matches!(task_state, Some(TaskState::Waiting | TaskState::Running)) {
        return refused(has_ended(
            TaskKey::new(job.id, task),
            task_state,
            unkillable,
        ));
    }
    let key = submit.queue_key(slot.index);
    let Some(class) = key.and_then(|key| state.classes().get(key.class)) else {
        return refused(Refusal::unavailable(
            "the task was submitted just now, and the server has not looked at it yet. Try again",
        ));
    };
    let deps = submit.deps(slot.index).len();
    let (awaited, pending) = state.awaited(job, slot);
    let graph = submit.graph();
    let unfinished = graph.map_or(0, |graph| graph.unfinished(slot.index));
    let waiting_dep_count = unfinished.saturating_add(pending);
    let phase = submit.tasks.phase(slot.index);
    let is_waiting = phase == Some(Phase::Waiting);
    let next_attempt = state.next_attempt(slot.of(job.id));
    let next_attempt = next_attempt.filter(|_| is_waiting);
    let is_held = submit.held.contains(slot.index) && phase != Some(Phase::Running);
    let is_free = waiting_dep_count == 0 && !is_held;
    let is_ready = is_waiting && is_free && next_attempt.is_none();
    let ready_key = key.filter(|_| is_ready);
    let record = submit.tasks.record(slot.index);
    let record = record.filter(|_| phase.is_some_and(Phase::is_sent));
    let holder = record.map(TaskRecord::worker);
    let sent_to = holder.map(WorkerId::as_u32);
    let start_overdue =
        holder.and_then(|id| start_overdue(state.workers().get(&id)?, job.id, task, view.now.mono));
    let is_queued = phase == Some(Phase::Queued) && is_free;
    let place = TaskPlace {
        ready_key,
        waiting_key: key.filter(|_| is_ready || is_queued),
        sent_to,
    };
    let workers = explain_workers(view, class, chosen, place);
    Ok(client::Explanation {
        job: job.id.as_u32(),
        task: task.as_u32(),
        dep_count: u32::try_from(deps)
            .unwrap_or(u32::MAX)
            .saturating_add(awaited),
        waiting_dep_count,
        workers,
        sent_to,
        is_ready: ready_key.is_some(),
        is_held,
        limits: limits_of(state, slot.of(job.id), is_ready),
        unkillable,
        start_overdue_ns: start_overdue.map(nanos),
        next_attempt_in_ns: next_attempt.map(|at| nanos(at.since(view.now.mono))),
        name: name_of(submit, slot.index),
    })
}

fn name_of(submit: &Submit, index: u32) -> Option<String> {
    submit.definition(index)?.name.as_deref().map(str::to_owned)
}

fn limits_of(state: &ServerState, task: TaskAt, is_ready: bool) -> Vec<String> {
    let limits = is_ready.then(|| state.blocking_limits(task.submit()));
    limits.unwrap_or_default()
}

/// Where a task is that has not started.
#[derive(Clone, Copy)]
struct TaskPlace {
    /// Its queue, if it is ready.
    ready_key: Option<QueueKey>,
    /// Its queue, if it is ready or waits on a worker.
    waiting_key: Option<QueueKey>,
    /// The worker that has it.
    sent_to: Option<u32>,
}

/// Returns the rows of [`explain`].
fn explain_workers(
    view: &View<'_>,
    class: &Class,
    (after, most, until_able): (WorkerId, usize, bool),
    place: TaskPlace,
) -> Vec<client::WorkerExplanation> {
    let all = view.state.comparable_workers();
    let groups = Groups::of(all.values());
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let mut workers = Vec::new();
    for (_, worker) in all.range(behind).take(most) {
        let is_sent = place.sent_to == Some(worker.id.as_u32());
        let is_possible = is_sent || place.sent_to.is_none();
        let waiting_key = place.waiting_key.filter(|_| is_possible);
        workers.push(client::WorkerExplanation {
            kept: waiting_key.and_then(|key| kept(view.state, class, worker, key)),
            ..explain_worker(view, class, worker, (place.ready_key, &groups), is_sent)
        });
        if until_able && workers.last().is_some_and(could_run) {
            break;
        }
    }
    workers
}

/// Returns the rejection for an ended task, which has nothing to explain.
fn has_ended(key: TaskKey, state: Option<TaskState>, unkillable: Option<String>) -> Refusal {
    let TaskKey { job, task } = key;
    let text = "Explain command works only for tasks in WAITING or RUNNING state";
    let left = unkillable.map_or_else(String::new, |place| {
        format!("\nIts process still exists and keeps its resources: {place}")
    });
    let has = matches!(state, Some(TaskState::Finished | TaskState::Failed));
    let (verb, state) = (
        if has { "has" } else { "was" },
        state.map_or("ended", TaskState::name),
    );
    let text = format!(
        "{text}\nTask {job}.{task} {verb} {state}; `hq task info {job}.{task}` shows how it ended{left}"
    );
    Refusal::conflict(text).about(Some(job), Some(task))
}

/// Returns how long ago a task was sent to a worker that has room for it, if the worker should have
/// reported its start by now.
fn start_overdue(worker: &Worker, job: JobId, task: TaskId, now: Time) -> Option<Duration> {
    let assigned = worker.assigned().get(&TaskKey::new(job, task))?;
    let age = now.since(assigned.at);
    (assigned.placed && !assigned.started && !worker.is_away() && age >= START_OVERDUE)
        .then_some(age)
}

/// Compares each variant with a worker, and lists why a ready task does not start there. `is_sent`
/// means that the task waits on this worker.
fn explain_worker(
    view: &View<'_>,
    class: &Class,
    worker: &Worker,
    (ready_key, groups): (Option<QueueKey>, &Groups<'_>),
    is_sent: bool,
) -> client::WorkerExplanation {
    let state = view.state;
    let group = groups.group_of(worker);
    let explained = explain_class(class, state.classes(), worker, group.members, view.now.mono);
    let variants = explained.iter().zip(class.variants.iter().zip(0..));
    let variants = variants.map(|(conditions, (demand, number))| {
        let fits = conditions.iter().all(Condition::holds);
        let found = ready_key
            .filter(|_| fits)
            .map(|key| hindrances(key, number, demand, state.classes(), worker, group.empty));
        let found = found.iter().flatten();
        let mut told: Vec<String> = found.map(|one| obstacle(state, worker, one)).collect();
        if !told.is_empty() || is_sent {
            let host = &worker.config.hostname;
            let lost = worker.unkillable().iter().take(UNKILLABLE_TOLD_MAX);
            told.extend(lost.map(|one| {
                format!(
                    "task {} keeps its resources: {}",
                    one.task,
                    one.whereabouts(host)
                )
            }));
        }
        client::VariantExplanation {
            items: conditions.iter().map(item).collect(),
            hindrances: told,
        }
    });
    client::WorkerExplanation {
        worker: worker.id.as_u32(),
        variants: variants.collect(),
        kept: None,
    }
}

/// Names the job that gets free resources of a worker before a task of this queue.
fn kept(state: &ServerState, class: &Class, worker: &Worker, key: QueueKey) -> Option<String> {
    let mut demands = class.variants.iter();
    let (job, is_urgent) = demands.find_map(|demand| state.kept_for(key, demand, worker))?;
    let (id, why) = (
        worker.id,
        if is_urgent {
            "is more urgent"
        } else {
            "needs more of them"
        },
    );
    Some(format!(
        "worker {id} keeps its free resources for job {job}, which {why}"
    ))
}

/// Facts about a group of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Group {
    /// The number of workers in the group.
    members: u32,
    /// The number of nodes that a multi-node task could have now.
    empty: u32,
}

/// All groups, counted once for all explained workers.
#[derive(Debug)]
struct Groups<'a>(BTreeMap<&'a str, Group>);

impl<'a> Groups<'a> {
    fn of(workers: impl Iterator<Item = &'a Worker>) -> Self {
        let mut groups = BTreeMap::<&str, Group>::new();
        for worker in workers {
            let group = groups.entry(&worker.config.group).or_default();
            group.members += 1;
            group.empty += u32::from(worker.accepts_work() && worker.assigned().is_empty());
        }
        Self(groups)
    }

    fn group_of(&self, worker: &Worker) -> Group {
        let found = self.0.get(&*worker.config.group);
        found.copied().unwrap_or_default()
    }
}

fn item(condition: &Condition) -> client::ExplainItem {
    use client::explain_item::Item;
    let item = match condition {
        Condition::Time { min, remaining } => Item::Time(client::TimeItem {
            min_time_ns: nanos(*min),
            remaining_ns: remaining.map(nanos),
        }),
        Condition::Resource {
            name,
            request,
            offer,
        } => Item::Resource(client::ResourceAmount {
            resource: name.to_string(),
            request_units: request.0,
            worker_units: offer.0,
        }),
        Condition::Group {
            n_nodes,
            group_size,
        } => Item::Group(client::GroupItem {
            n_nodes: *n_nodes,
            group_size: *group_size,
        }),
    };
    client::ExplainItem { item: Some(item) }
}

#[cfg(test)]
mod tests {
    use hq_core::server_state::{Input, LinkId};
    use hq_core::testing::{apply, worker_config};

    use super::*;

    #[test]
    fn each_worker_is_counted_in_its_group_and_only_there() {
        let mut state = ServerState::new("test");
        for (link, group) in [(1, "a"), (2, "b"), (3, "a")] {
            let mut config = worker_config(1);
            config.group = group.into();
            apply(&mut state, Input::WorkerConnected(LinkId(link), config));
        }
        let looked = std::cell::Cell::new(0);
        let workers = state.workers().values();
        let groups = Groups::of(workers.inspect(|_| looked.set(looked.get() + 1)));
        assert_eq!(looked.get(), 3, "once for each");
        let sizes = state.workers().values();
        let sizes: Vec<(u32, u32)> = sizes
            .map(|worker| groups.group_of(worker))
            .map(|group| (group.members, group.empty))
            .collect();
        assert_eq!(sizes, [(2, 2), (1, 1), (2, 2)]);
    }
}
