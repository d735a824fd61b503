//! Finds the usable cpus by NUMA node.

use std::collections::BTreeSet;

use super::{Detector, parse_cpu_list};

/// Returns the cpus that this process may use, by NUMA node. Never empty.
pub(super) fn usable(detector: &Detector, one_per_core: bool) -> Vec<Vec<u32>> {
    let allowed = allowed(detector);
    let mut groups = numa_groups(detector);
    if groups.is_empty() {
        groups = vec![match &allowed {
            Some(allowed) => allowed.iter().copied().collect(),
            None => counted(),
        }];
    }
    if let Some(allowed) = &allowed {
        let before: usize = groups.iter().map(Vec::len).sum();
        keep(&mut groups, |cpu| allowed.contains(&cpu));
        let after: usize = groups.iter().map(Vec::len).sum();
        if after < before {
            tracing::info!(
                "Some cores were filtered by a CPU mask: {after} of {before} cpus are usable"
            );
        }
    }
    if one_per_core {
        let usable: BTreeSet<u32> = groups.iter().flatten().copied().collect();
        keep(&mut groups, |cpu| {
            is_first_of_its_core(detector, cpu, &usable)
        });
    }
    if groups.is_empty() {
        groups.push(counted());
    }
    groups
}

/// Keeps the first `count` cpus, in the order of the groups.
pub(super) fn limit(groups: &mut Vec<Vec<u32>>, count: u32, who: &str) {
    let mut left = count.max(1);
    let before: usize = groups.iter().map(Vec::len).sum();
    keep(groups, |_| {
        let kept = left > 0;
        left = left.saturating_sub(1);
        kept
    });
    let after: usize = groups.iter().map(Vec::len).sum();
    if after < before {
        tracing::info!("The {who} limits this process to {after} of {before} cpus");
    }
}

fn keep(groups: &mut Vec<Vec<u32>>, mut wanted: impl FnMut(u32) -> bool) {
    for group in &mut *groups {
        group.retain(|cpu| wanted(*cpu));
    }
    groups.retain(|group| !group.is_empty());
}

/// Returns the affinity mask. It is read as text, which has no upper limit on cpu numbers, unlike a
/// fixed-size mask.
fn allowed(detector: &Detector) -> Option<BTreeSet<u32>> {
    let status = detector.read("proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cpus: BTreeSet<u32> = parse_cpu_list(list).into_iter().collect();
    (!cpus.is_empty()).then_some(cpus)
}

fn numa_groups(detector: &Detector) -> Vec<Vec<u32>> {
    const NODES: &str = "sys/devices/system/node";
    let Some(possible) = detector.read(format!("{NODES}/possible")) else {
        return Vec::new();
    };
    let nodes = parse_cpu_list(&possible).into_iter();
    let cpus = nodes.filter_map(|node| detector.read(format!("{NODES}/node{node}/cpulist")));
    // Nodes that are offline or only have memory have no cpus.
    cpus.map(|list| parse_cpu_list(&list))
        .filter(|cpus| !cpus.is_empty())
        .collect()
}

fn is_first_of_its_core(detector: &Detector, cpu: u32, usable: &BTreeSet<u32>) -> bool {
    let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = detector
        .read(file)
        .map(|list| parse_cpu_list(&list))
        .unwrap_or_default();
    siblings
        .into_iter()
        .filter(|sibling| usable.contains(sibling))
        .min()
        .is_none_or(|f| f == cpu)
}

/// Returns `0, 1, …` up to the number of cpus that the standard library reports.
fn counted() -> Vec<u32> {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    (0..u32::try_from(count).unwrap_or(1)).collect()
}
