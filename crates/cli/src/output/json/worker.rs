//! Workers and resources as JSON.

use hq_protocol::{client, common};
use serde_json::{Value, json};

use crate::output::format::{rfc3339, seconds};
use crate::output::view;

/// Returns a worker as an object.
pub(super) fn worker(worker: &client::WorkerInfo) -> Value {
    let config = worker.config.clone().unwrap_or_default();
    let mut value = json!({
        "allocation": config.allocation.as_ref().map(allocation),
        "configuration": configuration(&config),
        "ended": worker.ended_unix_ns.map(|at| json!({ "at": rfc3339(at) })),
        "id": worker.id,
        "last_task_started": worker.last_task.as_ref().map(|last| json!({
            "task_id": { "job_id": last.job, "job_task_id": last.task },
            "time": rfc3339(last.started_unix_ns),
        })),
        "runtime_info": worker.runtime.as_ref().map(runtime),
        "started": rfc3339(worker.started_unix_ns),
    });
    // An additional key of hq that is present only if it applies. Scripts for HyperQueue read the
    // other keys.
    if worker.is_draining {
        value["is_draining"] = true.into();
    }
    if let Some(quarantine) = &worker.quarantine {
        value["quarantine"] = json!({
            "stage": view::quarantine_word(worker).unwrap_or_default().to_lowercase(),
            "since": rfc3339(quarantine.since_unix_ns),
            "until": quarantine.until_unix_ns.map(rfc3339),
            "is_asked": quarantine.is_asked,
            "reason": quarantine.why,
        });
    }
    if !worker.node_faults.is_empty() {
        value["node_faults"] = json!(worker.node_faults);
    }
    if let Some(relay) = &worker.via {
        value["via"] = json!(relay);
    }
    if !worker.unkillable.is_empty() {
        let tasks = worker.unkillable.iter().map(|one| {
            json!({ "task_id": { "job_id": one.job, "job_task_id": one.task }, "pid": one.pid })
        });
        value["unkillable_tasks"] = tasks.collect();
    }
    value
}

fn allocation(allocation: &common::Allocation) -> Value {
    let manager = match view::manager(allocation) {
        common::BatchSystem::Pbs => "PBS",
        common::BatchSystem::Slurm => "Slurm",
        common::BatchSystem::Other => "Other",
        common::BatchSystem::None => "None",
    };
    json!({ "id": allocation.id, "manager": manager })
}

fn configuration(config: &common::WorkerConfig) -> Value {
    let on_server_lost = match common::OnServerLost::try_from(config.on_server_lost) {
        Ok(common::OnServerLost::FinishRunning) => "finish-running",
        Ok(common::OnServerLost::Reconnect) => "reconnect",
        Ok(common::OnServerLost::Stop) | Err(_) => "stop",
    };
    // Converts the shortest text form, so that 0.1 does not become 0.10000000149011612.
    let min_utilization: f64 = config
        .min_utilization
        .to_string()
        .parse()
        .unwrap_or_default();
    json!({
        "group": config.group,
        "heartbeat_interval": seconds(config.heartbeat_ns),
        "hostname": config.hostname,
        "idle_timeout": config.idle_timeout_ns.map(seconds),
        "listen_address": config.listen_address,
        "min_utilization": min_utilization,
        "on_server_lost": on_server_lost,
        "resources": resources(&config.resources.clone().unwrap_or_default()),
        "time_limit": config.time_limit_ns.map(seconds),
        "work_dir": config.work_dir,
    })
}

/// Returns `{"coupling": …, "resources": …}`.
pub(super) fn resources(descriptor: &common::ResourceDescriptor) -> Value {
    let weights: Vec<Value> = descriptor
        .coupling
        .iter()
        .map(|pair| {
            json!({
                "group1_idx": pair.group1,
                "group2_idx": pair.group2,
                "resource1_idx": pair.resource1,
                "resource2_idx": pair.resource2,
                "weight": pair.weight,
            })
        })
        .collect();
    let items: Vec<Value> = descriptor.items.iter().map(resource).collect();
    json!({ "coupling": { "weights": weights }, "resources": items })
}

fn resource(item: &common::ResourceItem) -> Value {
    use common::resource_item::Kind;
    let name = &item.name;
    match &item.kind {
        Some(Kind::List(list)) => json!({ "kind": "list", "name": name, "values": list.values }),
        Some(Kind::Range(span)) => {
            json!({ "kind": "range", "name": name, "start": span.start, "end": span.end })
        }
        Some(Kind::Groups(groups)) => {
            let groups: Vec<&Vec<String>> = groups.groups.iter().map(|g| &g.values).collect();
            json!({ "kind": "groups", "name": name, "groups": groups })
        }
        Some(Kind::SumUnits(units)) => json!({ "kind": "sum", "name": name, "size": units }),
        None => json!({ "kind": "list", "name": name, "values": [] }),
    }
}

fn runtime(runtime: &client::RuntimeInfo) -> Value {
    if let Some(main_node) = runtime.multi_node_main {
        return json!({ "MultiNodeTask": { "main_node": main_node } });
    }
    json!({ "SingleNodeTasks": {
        "assigned_tasks": runtime.assigned_tasks,
        "is_reserved": runtime.is_reserved,
        "running_tasks": runtime.running_tasks,
    } })
}
