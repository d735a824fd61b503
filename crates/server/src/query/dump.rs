//! `server debug-dump`: the server's state as JSON, for debugging.

use std::collections::BTreeMap;

use hq_core::task::Phase;
use serde_json::{Value, json};

use crate::core_handle::View;

/// The maximum number of task runs. If there are more, only counters describe the rest.
const TASK_RUNS_MAX: usize = 10_000;

/// Returns the state as one object with the key `tako`, which tools expect. Consecutive tasks with
/// the same state form one run, so the size depends on the number of events and not on the number
/// of tasks.
pub(crate) fn dump(view: &View<'_>) -> Value {
    let state = view.state;
    let mut groups: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut workers = Vec::new();
    let ended = state.ended_workers().values();
    for worker in state.workers().values().chain(ended) {
        if worker.is_live() {
            let members = groups.entry(&worker.config.group).or_default();
            members.push(worker.id.as_u32());
        }
        workers.push(json!({
            "id": worker.id.as_u32(),
            "hostname": &*worker.config.hostname,
            "group": &*worker.config.group,
            "connected": worker.is_live(),
            "assigned": worker.assigned().len(),
            "running": worker.running(),
        }));
    }
    let (tasks, is_cut) = tasks(view);
    let ignored = state.ignored();
    json!({
        "tako": {
            "workers": workers,
            "worker_groups": groups,
            "tasks": tasks,
            "tasks_cut": is_cut,
            "ready": state.ready_len(),
            "ignored": {
                "stale_rows": ignored.stale_rows,
                "unknown_workers": ignored.unknown_workers,
            },
        },
    })
}

fn tasks(view: &View<'_>) -> (Vec<Value>, bool) {
    let mut runs = Vec::new();
    for job in view.state.jobs().values() {
        for submit in &job.submits {
            for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
                if runs.len() >= TASK_RUNS_MAX {
                    return (runs, true);
                }
                let first = submit.ids.get(from);
                let last = submit.ids.get(to.saturating_sub(1));
                runs.push(json!({
                    "job": job.id.as_u32(),
                    "first": first,
                    "last": last,
                    "count": to - from,
                    "state": name(phase),
                }));
            }
        }
    }
    (runs, false)
}

const fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Queued => "queued",
        Phase::Placed => "placed",
        Phase::Running => "running",
        Phase::Finished => "finished",
        Phase::Failed => "failed",
        Phase::Canceled => "canceled",
        Phase::Aborted => "aborted",
    }
}
