//! Generators of pools and requests.

use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{
    CouplingWeight, ResourceDescriptor, ResourceItem, ResourceKind,
};
use hq_core::resource::request::{Policy, ResourceEntry, ResourceRequest};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::{name, nanos};

fn resource_kind() -> impl Strategy<Value = ResourceKind> {
    let indices = |from: usize, count: usize| {
        (from..from + count)
            .map(|i| i.to_string().into_boxed_str())
            .collect::<Vec<_>>()
    };
    prop_oneof![
        (1..5_usize).prop_map(move |count| ResourceKind::List(indices(0, count))),
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| ResourceKind::Range {
            start: a.min(b).into(),
            end: a.max(b).into()
        }),
        vec(1..4_usize, 1..4).prop_map(move |sizes| {
            let groups = sizes
                .iter()
                .enumerate()
                .map(|(i, size)| indices(10 * i, *size));
            ResourceKind::Groups(groups.collect())
        }),
        (1..u64::from(u32::MAX)).prop_map(|units| ResourceKind::Sum(Amount(units))),
    ]
}

pub(super) fn descriptor() -> impl Strategy<Value = ResourceDescriptor> {
    let items = btree_map("[a-b]{1,4}", resource_kind(), 0..5);
    (items, any::<u32>()).prop_map(|(items, weight)| {
        let items: Vec<ResourceItem> = items
            .into_iter()
            .map(|(name, kind)| ResourceItem {
                name: name.into(),
                kind,
            })
            .collect();
        let grouped = items
            .iter()
            .position(|item| !matches!(item.kind, ResourceKind::Sum(_)));
        let coupling = grouped.map(|at| {
            let at = u32::try_from(at).expect("few pools");
            CouplingWeight {
                resource1: at,
                group1: 0,
                resource2: at,
                group2: 0,
                weight,
            }
        });
        ResourceDescriptor::new(items, coupling.into_iter().collect()).expect("valid pools")
    })
}

pub(super) fn request() -> impl Strategy<Value = ResourceRequest> {
    let policy = select(vec![
        Policy::Compact,
        Policy::ForceCompact,
        Policy::Tight,
        Policy::ForceTight,
        Policy::Scatter,
        Policy::All,
    ]);
    let entries = btree_map(name(), (policy, 1..1_000_000_u64), 0..4);
    (entries, 0..3_u32, nanos(), 1..u32::MAX).prop_map(|(entries, nodes, min_time, weight)| {
        let entry = |(resource, (policy, units))| ResourceEntry {
            resource,
            policy,
            amount: Amount(units),
        };
        let entries: Vec<ResourceEntry> = entries.into_iter().map(entry).collect();
        let n_nodes = if entries.is_empty() { nodes } else { 0 };
        ResourceRequest {
            entries,
            n_nodes,
            min_time,
            weight,
        }
    })
}
