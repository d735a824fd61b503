//! Tables about workers, and the description of hardware.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hq_protocol::{client, common};

use super::grid::{Grid, Look, Text, worker_state_text};
use crate::output::Out;
use crate::output::format::{amount, memory, rfc3339, words};
use crate::output::view;

/// Writes the output of `hq worker list`.
pub(super) fn write_list(
    out: Out<'_>,
    look: Look,
    workers: &[client::WorkerInfo],
) -> io::Result<()> {
    let header = [
        "ID",
        "State",
        "Hostname",
        "Resources",
        "Manager",
        "Manager Job ID",
    ];
    let mut grid = Grid::horizontal(look, &header, 1);
    for worker in workers {
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

/// Writes the output of `hq worker info`.
pub(super) fn write_info(out: Out<'_>, look: Look, worker: &client::WorkerInfo) -> io::Result<()> {
    let config = worker.config.clone().unwrap_or_default();
    let (manager, manager_job) = manager(&config);
    let optional = |ns: Option<u64>| ns.map_or_else(|| "None".to_owned(), ns_words);
    let resources = resource_lines(&config.resources.unwrap_or_default(), ": ");
    let pid = match config.process_pid {
        0 => "N/A".to_owned(),
        pid => pid.to_string(),
    };
    let last_task = worker.last_task.as_ref().map(|last| {
        format!(
            "{}@{}; Time: \"{}\"",
            last.job,
            last.task,
            rfc3339(last.started_unix_ns)
        )
    });
    let mut grid = Grid::vertical(look);
    grid.field("Worker", worker.id.to_string());
    grid.field("State", worker_state_text(worker));
    if let Some(quarantine) = &worker.quarantine {
        grid.field("Gets no tasks", quarantine_text(quarantine));
    }
    if !worker.node_faults.is_empty() {
        grid.field("Wrong with its node", worker.node_faults.join("\n"));
    }
    if let Some(relay) = &worker.via {
        grid.field("Through the relay", relay.clone());
    }
    grid.field("Hostname", config.hostname);
    grid.field(
        "Started",
        format!("\"{}\"", rfc3339(worker.started_unix_ns)),
    );
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
    if !worker.unkillable.is_empty() {
        let lines: Vec<String> = worker.unkillable.iter().map(unkillable_text).collect();
        grid.field("Unkillable tasks", lines.join("\n"));
    }
    if let Some(runtime) = &worker.runtime {
        grid.field("Runtime Info", runtime_text(runtime));
        if let Some(load) = &runtime.load {
            grid.field("Load", load_text(load));
        }
    }
    grid.write(out)
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

fn manager(config: &common::WorkerConfig) -> (&'static str, String) {
    let Some(allocation) = &config.allocation else {
        return ("None", "N/A".to_owned());
    };
    let name = match view::manager(allocation) {
        common::BatchSystem::Pbs => "PBS",
        common::BatchSystem::Slurm => "SLURM",
        common::BatchSystem::Other => "OTHER",
        common::BatchSystem::None => return ("None", "N/A".to_owned()),
    };
    (name, allocation.id.clone())
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

/// Writes the output of `hq worker hwdetect`.
pub(super) fn write_hardware(
    out: Out<'_>,
    resources: &common::ResourceDescriptor,
) -> io::Result<()> {
    writeln!(out, "Summary:")?;
    for line in resource_lines(resources, ": ") {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nFull Description:")?;
    for item in &resources.items {
        writeln!(out, "{}: {}", item.name, full_amount(item))?;
    }
    Ok(())
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
