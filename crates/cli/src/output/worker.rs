//! Workers, and the description of hardware.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hq_protocol::{client, common};
use serde_json::{Value, json};

use super::format::{amount, memory, rfc3339, seconds, words};
use super::grid::{Grid, Look, Text, worker_state_text};
use super::json::write_value;
use super::{Out, View, view};

/// The output of `hq worker list`.
pub(crate) struct WorkerListView<'a>(pub(crate) &'a [client::WorkerInfo]);

impl View for WorkerListView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let header = [
            "ID",
            "State",
            "Hostname",
            "Resources",
            "Manager",
            "Manager Job ID",
        ];
        let mut grid = Grid::horizontal(look, &header, 1);
        for worker in self.0 {
            let config = worker.config.clone().unwrap_or_default();
            let (manager, manager_job) = manager(&config);
            let resources = resource_lines(&config.resources.unwrap_or_default(), " ");
            grid.row([
                worker.id.to_string().into(),
                worker_state_text(worker),
                config.hostname.into(),
                resources.join("; ").into(),
                manager.into(),
                manager_job.into(),
            ]);
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &self.0.iter().map(worker_value).collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for worker in self.0 {
            writeln!(out, "{} {}", worker.id, view::worker_state_word(worker))?;
        }
        Ok(())
    }
}

/// The output of `hq worker info`.
pub(crate) struct WorkerInfosView<'a>(pub(crate) &'a [client::WorkerInfo]);

impl View for WorkerInfosView<'_> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        for (i, worker) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            worker.table(out, look)?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &self.0.iter().map(worker_value).collect())
    }
}

/// The output of `hq worker start` once the worker is registered.
impl View for client::WorkerInfo {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        let config = self.config.clone().unwrap_or_default();
        let (manager, manager_job) = manager(&config);
        let optional = |ns: Option<u64>| ns.map_or_else(|| "None".to_owned(), ns_words);
        let resources = resource_lines(&config.resources.unwrap_or_default(), ": ");
        let pid = match config.process_pid {
            0 => "N/A".to_owned(),
            pid => pid.to_string(),
        };
        let last_task = self.last_task.as_ref().map(|last| {
            format!(
                "{}@{}; Time: \"{}\"",
                last.job,
                last.task,
                rfc3339(last.started_unix_ns)
            )
        });
        let mut grid = Grid::vertical(look);
        grid.field("Worker", self.id.to_string());
        grid.field("State", worker_state_text(self));
        if let Some(quarantine) = &self.quarantine {
            grid.field("Gets no tasks", quarantine_text(quarantine));
        }
        if !self.node_faults.is_empty() {
            grid.field("Wrong with its node", self.node_faults.join("\n"));
        }
        if let Some(relay) = &self.via {
            grid.field("Through the relay", relay.clone());
        }
        grid.field("Hostname", config.hostname);
        grid.field("Started", format!("\"{}\"", rfc3339(self.started_unix_ns)));
        grid.field("Data provider", config.listen_address);
        grid.field("Working directory", config.work_dir);
        grid.field("Heartbeat", ns_words(config.heartbeat_ns));
        grid.field("Idle timeout", optional(config.idle_timeout_ns));
        grid.field("Overview interval", optional(config.overview_interval_ns));
        grid.field("Resources", resources.join("\n"));
        grid.field("Time Limit", optional(config.time_limit_ns));
        grid.field("Process pid", pid);
        grid.field("Group", config.group);
        grid.field("Manager", manager);
        grid.field("Manager Job ID", manager_job);
        grid.field("Last task started", last_task.unwrap_or_default());
        if !self.unkillable.is_empty() {
            let lines: Vec<String> = self.unkillable.iter().map(unkillable_text).collect();
            grid.field("Unkillable tasks", lines.join("\n"));
        }
        if let Some(runtime) = &self.runtime {
            grid.field("Runtime Info", runtime_text(runtime));
            if let Some(load) = &runtime.load {
                grid.field("Load", load_text(load));
            }
        }
        grid.write(out)
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &worker_value(self))
    }
}

/// The output of `hq worker hwdetect`.
impl View for common::ResourceDescriptor {
    fn table(&self, out: Out<'_>, _look: Look) -> io::Result<()> {
        writeln!(out, "Summary:")?;
        for line in resource_lines(self, ": ") {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "\nFull Description:")?;
        for item in &self.items {
            writeln!(out, "{}: {}", item.name, full_amount(item))?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &resources(self))
    }
}

fn ns_words(ns: u64) -> String {
    words(Duration::from_nanos(ns))
}

/// Returns why a worker gets no tasks or only a test task, and for how long.
fn quarantine_text(quarantine: &client::Quarantine) -> String {
    use client::quarantine::Stage;
    let until = quarantine.until_unix_ns.map(rfc3339);
    let until = until.map(|until| format!("until one is tried at {until}"));
    let state = match quarantine.stage() {
        Stage::Suspected => "until the tasks that failed there have run elsewhere".into(),
        Stage::Probed => "except a probe task".into(),
        Stage::Unfit => "until its node has no problem".into(),
        Stage::Quarantined => until.unwrap_or_default(),
    };
    let asked = if quarantine.is_asked { "asked for" } else { "" };
    // Problems of its node are shown on a separate line.
    let why = Some(&*quarantine.why).filter(|_| quarantine.stage() != Stage::Unfit);
    let lines = [Some(&*state), Some(asked), why];
    let lines: Vec<&str> = lines
        .into_iter()
        .flatten()
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("\n")
}

/// Describes a killed task that still holds its resources.
fn unkillable_text(one: &client::UnkillableTask) -> String {
    let pid = one
        .pid
        .map_or_else(String::new, |pid| format!("; pid {pid}"));
    format!("{}.{}{pid}", one.job, one.task)
}

fn runtime_text(runtime: &client::RuntimeInfo) -> Text {
    match runtime.multi_node_main {
        Some(true) => return "running multinode task; main node".into(),
        Some(false) => return "running multinode task; secondary node".into(),
        None => {}
    }
    let mut text = format!("assigned tasks: {}", runtime.assigned_tasks);
    if runtime.running_tasks > 0 {
        text.push_str(&format!("; running tasks: {}", runtime.running_tasks));
    }
    if runtime.is_reserved {
        text.push_str("; reserved for a multi-node task");
    }
    text.into()
}

/// Returns the hardware usage of the machine.
fn load_text(load: &client::WorkerLoad) -> Text {
    let percent = |share: u32| format!("{} %", share.div_euclid(100));
    let whole = |bytes: u64| bytes / (1 << 20) * hq_core::resource::amount::UNITS_PER_WHOLE;
    let mut text = format!(
        "cpus {}; memory {} of {}",
        percent(load.cpu_share),
        memory(whole(load.memory_used_bytes)),
        memory(whole(load.memory_total_bytes)),
    );
    if let Some(share) = load.gpu_share {
        text.push_str(&format!("; gpus {}", percent(share)));
    }
    text.into()
}

fn manager(config: &common::WorkerConfig) -> (String, String) {
    match &config.allocation {
        Some(allocation) if allocation.manager() != common::BatchSystem::None => (
            manager_name(allocation).to_uppercase(),
            allocation.id.clone(),
        ),
        _ => ("None".to_owned(), "N/A".to_owned()),
    }
}

fn manager_name(allocation: &common::Allocation) -> &'static str {
    match allocation.manager() {
        common::BatchSystem::Pbs => "PBS",
        common::BatchSystem::Slurm => "Slurm",
        common::BatchSystem::Other => "Other",
        common::BatchSystem::None => "None",
    }
}

/// Returns one line per resource: name, separator, amount, and a mark for coupled resources.
pub(super) fn resource_lines(
    resources: &common::ResourceDescriptor,
    separator: &str,
) -> Vec<String> {
    let coupled = |index: usize| {
        let is_it = |position: u32| usize::try_from(position).is_ok_and(|p| p == index);
        let mut pairs = resources.coupling.iter();
        if pairs.any(|pair| is_it(pair.resource1) || is_it(pair.resource2)) {
            " [coupled]"
        } else {
            ""
        }
    };
    resources
        .items
        .iter()
        .enumerate()
        .map(|(i, item)| {
            format!(
                "{}{separator}{}{}",
                item.name,
                short_amount(item),
                coupled(i)
            )
        })
        .collect()
}

fn short_amount(item: &common::ResourceItem) -> String {
    use common::resource_item::Kind;
    match &item.kind {
        None => "0".to_owned(),
        Some(Kind::List(list)) => list.values.len().to_string(),
        Some(Kind::Range(span)) => (u64::from(span.end.saturating_sub(span.start)) + 1).to_string(),
        Some(Kind::Groups(groups)) if groups.groups.len() == 1 => {
            groups.groups[0].values.len().to_string()
        }
        Some(Kind::Groups(groups)) => {
            let mut by_size: BTreeMap<usize, usize> = BTreeMap::new();
            for group in &groups.groups {
                *by_size.entry(group.values.len()).or_default() += 1;
            }
            let parts: Vec<_> = by_size
                .iter()
                .map(|(size, count)| format!("{count}x{size}"))
                .collect();
            parts.join(" ")
        }
        Some(Kind::SumUnits(units)) if item.name == "mem" => memory(*units),
        Some(Kind::SumUnits(units)) => amount(*units),
    }
}

fn full_amount(item: &common::ResourceItem) -> String {
    use common::resource_item::Kind;
    let list = |values: &[String]| format!("[{}]", values.join(","));
    match &item.kind {
        None => "[]".to_owned(),
        Some(Kind::List(group)) => list(&group.values),
        Some(Kind::Range(span)) if span.start == span.end => format!("[{}]", span.start),
        Some(Kind::Range(span)) => format!("range({}-{})", span.start, span.end),
        Some(Kind::Groups(groups)) => {
            let groups: Vec<String> = groups.groups.iter().map(|g| list(&g.values)).collect();
            format!("[{}]", groups.join(","))
        }
        Some(Kind::SumUnits(units)) => format!("sum({})", amount(*units)),
    }
}

/// Returns a worker as an object.
fn worker_value(worker: &client::WorkerInfo) -> Value {
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
    json!({ "id": allocation.id, "manager": manager_name(allocation) })
}

fn configuration(config: &common::WorkerConfig) -> Value {
    let on_server_lost = match config.on_server_lost() {
        common::OnServerLost::FinishRunning => "finish-running",
        common::OnServerLost::Reconnect => "reconnect",
        common::OnServerLost::Stop => "stop",
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
