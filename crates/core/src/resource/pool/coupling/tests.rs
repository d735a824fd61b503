//! Compares choices of coupled groups with brute force on small machines.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use crate::resource::pool::{Grant, GrantEntry, PoolSet, Reservation};
use crate::resource::request::{ResourceEntry, ResourceRequest};

/// Returns `cpus` with groups of 4, and `gpus` with groups of these sizes. Groups are coupled by
/// position unless `pairs` is given.
fn machine(gpus: &[u32], pairs: Option<&[(u32, u32, u32)]>) -> PoolSet {
    let groups = |sizes: &[u32]| {
        let mut next = 0;
        let groups = sizes.iter().map(|size| {
            let names = (next..next + size).map(|index| index.to_string().into_boxed_str());
            next += size;
            names.collect()
        });
        ResourceKind::Groups(groups.collect())
    };
    let item = |name: &str, kind| ResourceItem {
        name: name.into(),
        kind,
    };
    let items = vec![
        item("cpus", groups(&vec![4; gpus.len()])),
        item("gpus", groups(gpus)),
    ];
    let by_position: Vec<(u32, u32, u32)> = (0..gpus.len())
        .map(|group| u32::try_from(group).expect("few"))
        .map(|group| (group, group, 256))
        .collect();
    let coupling = pairs.unwrap_or(&by_position).iter();
    let coupling = coupling.map(|(cpus, gpus, weight)| CouplingWeight {
        resource1: 0,
        group1: *cpus,
        resource2: 1,
        group2: *gpus,
        weight: *weight,
    });
    let descriptor = ResourceDescriptor::new(items, coupling.collect()).expect("valid");
    PoolSet::new(&descriptor)
}

fn request(entries: &[(&str, Policy, u32)]) -> ResourceRequest {
    let entries = entries
        .iter()
        .map(|(resource, policy, amount)| ResourceEntry {
            resource: (*resource).into(),
            policy: *policy,
            amount: Amount::whole(*amount),
        });
    ResourceRequest {
        entries: entries.collect(),
        n_nodes: 0,
        min_time: Duration::ZERO,
        weight: 10_000,
    }
}

/// Takes a request. Returns the groups of each entry, or `None` if the request must wait.
fn take(set: &mut PoolSet, entries: &[(&str, Policy, u32)]) -> Option<(Grant, Vec<BTreeSet<u32>>)> {
    let compiled = set.compile(&request(entries)).expect("fits when empty");
    let fits = set.fits(&compiled, &Reservation::default());
    let grant = set.take(&compiled);
    assert_eq!(fits, grant.is_some(), "fits and take agree");
    let grant = grant?;
    let groups = grant.entries.iter().map(|entry| groups_of(set, entry));
    let groups = groups.collect();
    Some((grant, groups))
}

fn groups_of(set: &PoolSet, entry: &GrantEntry) -> BTreeSet<u32> {
    let PoolKind::Indexed(pool) = &set.pools[entry.pool as usize].kind else {
        panic!("indexed");
    };
    let groups = entry.indices.iter();
    groups
        .map(|granted| pool.group_of[granted.index as usize])
        .collect()
}

#[test]
fn sets_are_enumerated_once_each() {
    let mut set = vec![0, 1];
    let mut seen = vec![set.clone()];
    while next_set(&mut set, 4) {
        seen.push(set.clone());
    }
    let all = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
    assert_eq!(seen, all.map(Vec::from));
    assert!(!next_set(&mut [0, 1], 2));
    assert!(!next_set(&mut [], 3));
}

#[test]
fn coupled_groups_are_taken_together() {
    let mut set = machine(&[2, 2, 2], None);
    for _ in 0..3 {
        let both = [("cpus", Policy::Compact, 4), ("gpus", Policy::Tight, 2)];
        let (_, groups) = take(&mut set, &both).expect("free");
        assert_eq!(groups[0], groups[1]);
    }
    let mut crossed = machine(&[1, 1], Some(&[(0, 1, 5), (1, 0, 5), (0, 0, 4)]));
    let both = [("cpus", Policy::Compact, 1), ("gpus", Policy::Compact, 1)];
    let (_, groups) = take(&mut crossed, &both).expect("free");
    assert_ne!(groups[0], groups[1], "the larger weight wins");
}

#[test]
fn a_wish_gives_way_and_a_demand_waits() {
    let mut set = machine(&[1, 1], None);
    // The cpus of one group and the gpu of the other remain.
    let (cpus, taken) = take(&mut set, &[("cpus", Policy::Compact, 4)]).expect("free");
    let full = *taken[0].first().expect("one group");
    let both = [("cpus", Policy::Compact, 1), ("gpus", Policy::Compact, 1)];
    let (first, groups) = take(&mut set, &both).expect("free");
    assert!(groups.iter().all(|groups| !groups.contains(&full)));
    let (second, groups) = take(&mut set, &both).expect("a wish");
    assert_ne!(groups[0], groups[1]);
    set.release(&second);
    let demand = [
        ("cpus", Policy::ForceCompact, 1),
        ("gpus", Policy::Compact, 1),
    ];
    assert!(take(&mut set, &demand).is_none(), "the wrong gpu");
    set.release(&first);
    assert!(take(&mut set, &demand).is_some());
    set.release(&cpus);
}

#[test]
fn coupling_of_others_does_not_matter() {
    let mut set = machine(&[1, 1], None);
    let alone = set.compile(&request(&[("cpus", Policy::ForceCompact, 4)]));
    assert_eq!(alone.expect("fits").coupling_min, None);
    let spread = [("cpus", Policy::Scatter, 2), ("gpus", Policy::Compact, 1)];
    let (_, groups) = take(&mut set, &spread).expect("free");
    assert_eq!(groups[0].len(), 2);
}

proptest! {
    /// The weight of the choice is the maximum over all sets of the same sizes.
    #[test]
    fn best_weight_among_the_fewest_groups(
        pairs in prop::collection::vec((0u32..3, 0u32..3, 1u32..9), 1..6),
        taken in prop::collection::vec((0usize..2, 1u32..4), 0..4),
        cpus in 1u32..9,
        gpus in 1u32..4,
    ) {
        let mut unique = pairs;
        unique.sort_unstable();
        unique.dedup_by_key(|(cpus, gpus, _)| (*cpus, *gpus));
        let mut set = machine(&[2, 2, 2], Some(&unique));
        for (at, amount) in taken {
            let name = ["cpus", "gpus"][at];
            let _ = take(&mut set, &[(name, Policy::Tight, amount)]);
        }
        let before = set.clone();
        let asked = [("cpus", Policy::Compact, cpus), ("gpus", Policy::Compact, gpus)];
        if let Some((_, groups)) = take(&mut set, &asked) {
            let weight = |cpu: &BTreeSet<u32>, gpu: &BTreeSet<u32>| -> u32 {
                let held = unique.iter().filter(|(c, g, _)| cpu.contains(c) && gpu.contains(g));
                held.map(|(_, _, weight)| weight).sum()
            };
            let sets = |pool: usize, amount: u32, size: usize| -> Vec<BTreeSet<u32>> {
                let PoolKind::Indexed(indexed) = &before.pools[pool].kind else { panic!("indexed") };
                (0u32..8)
                    .map(|bits| (0u32..3).filter(|g| (bits >> g) & 1 == 1).collect::<BTreeSet<_>>())
                    .filter(|set| set.len() == size)
                    .filter(|set| set.iter().map(|g| indexed.groups[*g as usize].whole).sum::<u32>() >= amount)
                    .collect()
            };
            let mut best = 0;
            for cpu in sets(0, cpus, groups[0].len()) {
                for gpu in sets(1, gpus, groups[1].len()) {
                    best = best.max(weight(&cpu, &gpu));
                }
            }
            prop_assert_eq!(weight(&groups[0], &groups[1]), best);
            prop_assert!(sets(0, cpus, groups[0].len() - 1).is_empty(), "fewest groups");
        }
    }
}
