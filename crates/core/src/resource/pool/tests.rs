//! Compares the choice of indices with brute force on small pools.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::resource::descriptor::ResourceItem;
use crate::resource::request::{RequestVariants, ResourceEntry};

/// Returns a pool `r` with groups of these sizes. The indices are named `0`, `1`, ….
fn grouped(sizes: &[u32]) -> PoolSet {
    let mut next = 0;
    let groups = sizes.iter().map(|size| {
        let names = (next..next + size).map(|index| index.to_string().into_boxed_str());
        next += size;
        names.collect()
    });
    pools(vec![("r", ResourceKind::Groups(groups.collect()))])
}

fn pools(items: Vec<(&str, ResourceKind)>) -> PoolSet {
    let items = items
        .into_iter()
        .map(|(name, kind)| ResourceItem {
            name: name.into(),
            kind,
        })
        .collect();
    PoolSet::new(&ResourceDescriptor::new(items, Vec::new()).expect("valid descriptor"))
}

fn request(entries: &[(&str, Policy, &str)]) -> ResourceRequest {
    let entries = entries
        .iter()
        .map(|(resource, policy, amount)| ResourceEntry {
            resource: (*resource).into(),
            policy: *policy,
            amount: Amount::parse(amount).expect("valid amount"),
        });
    let request = ResourceRequest {
        entries: entries.collect(),
        n_nodes: 0,
        min_time: Duration::ZERO,
        weight: 10_000,
    };
    RequestVariants::new(vec![request])
        .expect("valid request")
        .as_slice()[0]
        .clone()
}

fn compile(set: &PoolSet, policy: Policy, amount: &str) -> PoolRequest {
    set.compile(&request(&[("r", policy, amount)]))
        .expect("can be served when empty")
}

/// Takes `amount` of `r`. Returns the index names, or `None` if the amount does not fit.
fn take(set: &mut PoolSet, policy: Policy, amount: &str) -> Option<(Grant, String)> {
    let request = compile(set, policy, amount);
    let grant = set.take(&request)?;
    let names: Vec<&str> = grant.entries[0]
        .indices
        .iter()
        .map(|granted| set.index_name(0, granted.index))
        .collect();
    let names = names.join(",");
    Some((grant, names))
}

/// Returns the number of indices that each group contributes to a request, largest share first.
fn shares(sizes: &[u32], policy: Policy, amount: &str) -> Vec<usize> {
    let mut set = grouped(sizes);
    let (grant, _) = take(&mut set, policy, amount).expect("fits");
    let PoolKind::Indexed(pool) = &set.pools[0].kind else {
        panic!("indexed")
    };
    let mut counts = vec![0; sizes.len()];
    for granted in &grant.entries[0].indices {
        counts[pool.group_of[granted.index as usize] as usize] += 1;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

#[test]
fn policies_spread_six_of_three_groups_of_four() {
    let sizes = [4, 4, 4];
    assert_eq!(shares(&sizes, Policy::Compact, "6"), [3, 3, 0]);
    assert_eq!(shares(&sizes, Policy::ForceCompact, "6"), [3, 3, 0]);
    assert_eq!(shares(&sizes, Policy::Tight, "6"), [4, 2, 0]);
    assert_eq!(shares(&sizes, Policy::ForceTight, "6"), [4, 2, 0]);
    assert_eq!(shares(&sizes, Policy::Scatter, "6"), [2, 2, 2]);
    assert_eq!(shares(&sizes, Policy::All, "1"), [4, 4, 4]);
}

#[test]
fn forced_policies_wait_for_what_the_empty_worker_could_do() {
    let mut set = grouped(&[4, 4]);
    let blockers = [
        take(&mut set, Policy::Scatter, "2").expect("fits"),
        take(&mut set, Policy::Scatter, "2").expect("fits"),
    ];
    // Two indices are left in each group. Four indices need both groups, but the empty pool would
    // need only one.
    for forced in [Policy::ForceCompact, Policy::ForceTight] {
        assert!(take(&mut set, forced, "4").is_none());
    }
    let (loose, _) = take(&mut set, Policy::Compact, "4").expect("compact takes any free cpus");
    set.release(&loose);
    for (grant, _) in &blockers {
        set.release(grant);
    }
    assert!(take(&mut set, Policy::ForceCompact, "4").is_some());
}

#[test]
fn all_needs_a_completely_free_pool() {
    let mut set = grouped(&[2, 2]);
    let (grant, _) = take(&mut set, Policy::Compact, "0.1").expect("fits");
    assert!(take(&mut set, Policy::All, "1").is_none());
    set.release(&grant);
    let (grant, _) = take(&mut set, Policy::All, "1").expect("free again");
    assert_eq!(grant.entries[0].amount, Amount::whole(4));
    assert_eq!(set.free(0), Amount::ZERO);
    set.release(&grant);
    assert!(set.is_all_free());
}

#[test]
fn fraction_comes_from_one_index_and_is_listed_last() {
    let mut set = grouped(&[3]);
    let (_, names) = take(&mut set, Policy::Compact, "2.5").expect("fits");
    assert_eq!(names, "0,1,2");
    let (_, names) = take(&mut set, Policy::Compact, "0.5").expect("rest of the last index");
    assert_eq!(names, "2");

    let mut set = grouped(&[2]);
    for _ in 0..2 {
        take(&mut set, Policy::Scatter, "0.75").expect("one on each index");
    }
    assert_eq!(set.free(0), Amount(5_000));
    assert!(
        take(&mut set, Policy::Compact, "0.5").is_none(),
        "no single index has half left"
    );
    assert!(take(&mut set, Policy::Compact, "0.25").is_some());
}

#[test]
fn fractions_fill_used_indices_before_fresh_ones() {
    let mut set = grouped(&[4]);
    let names: Vec<String> = (0..4)
        .map(|_| take(&mut set, Policy::Compact, "0.5").expect("fits").1)
        .collect();
    assert_eq!(names, ["0", "0", "1", "1"]);
}

#[test]
fn small_requests_leave_large_groups_whole() {
    let mut set = grouped(&[4, 2]);
    assert_eq!(take(&mut set, Policy::Compact, "2").expect("fits").1, "4,5");
    assert_eq!(
        take(&mut set, Policy::ForceCompact, "4").expect("fits").1,
        "0,1,2,3"
    );
}

#[test]
fn takes_several_resources_together_or_none() {
    let sum = ResourceKind::Sum(Amount::parse("10.5").expect("valid"));
    let mut set = pools(vec![
        ("cpus", ResourceKind::Range { start: 5, end: 8 }),
        ("mem", sum),
    ]);
    let both = [
        ("cpus", Policy::Compact, "2"),
        ("mem", Policy::Compact, "6.25"),
    ];
    let both = set.compile(&request(&both)).expect("known resources");
    let grant = set.take(&both).expect("fits");
    assert_eq!(set.index_name(0, grant.entries[0].indices[0].index), "5");
    assert!(grant.entries[1].indices.is_empty());
    assert!(set.take(&both).is_none(), "memory is short");
    assert_eq!(set.free(0), Amount::whole(2), "cpus were not taken either");
    assert_eq!((set.name(1), set.position("mem")), ("mem", Some(1)));
    set.release(&grant);
    assert!(set.is_all_free());
}

#[test]
fn knows_what_it_can_never_serve() {
    let set = grouped(&[2, 2]);
    for (resource, amount) in [("r", "5"), ("r", "3.5001"), ("other", "1")] {
        let never = request(&[(resource, Policy::Compact, amount)]);
        assert_eq!(
            set.compile(&never).is_none(),
            amount != "3.5001",
            "{resource} {amount}"
        );
    }
}

#[test]
fn reservation_keeps_free_amounts_for_the_blocked() {
    let mut set = grouped(&[4]);
    take(&mut set, Policy::Compact, "2").expect("fits");
    let (big, small) = (
        compile(&set, Policy::Compact, "3"),
        compile(&set, Policy::Compact, "1"),
    );
    let mut reserved = Reservation::default();
    assert!(!set.fits(&big, &reserved) && set.fits(&small, &reserved));
    set.reserve(&big, &mut reserved, std::iter::empty());
    assert!(!set.fits(&small, &reserved));
    reserved.clear();
    assert!(set.fits(&small, &reserved));
}

/// Returns the set of groups used by each possible way to serve `units` from the free indices.
fn all_choices(free: &[u32], group_of: &[u32], units: u64) -> BTreeSet<Vec<usize>> {
    let whole = usize::try_from(units / UNITS_PER_WHOLE).expect("small");
    let fraction = u32::try_from(units % UNITS_PER_WHOLE).expect("small");
    let mut found = BTreeSet::new();
    for mask in 0u32..(1 << free.len()) {
        let picked: Vec<usize> = (0..free.len()).filter(|i| mask & (1 << i) != 0).collect();
        if picked.len() != whole || picked.iter().any(|i| free[*i] != FULL) {
            continue;
        }
        let parts = (0..free.len()).filter(|i| !picked.contains(i) && free[*i] >= fraction);
        let parts: Vec<Option<usize>> = if fraction == 0 {
            vec![None]
        } else {
            parts.map(Some).collect()
        };
        for part in parts {
            let used = picked.iter().copied().chain(part);
            let groups: BTreeSet<usize> = used.map(|i| group_of[i] as usize).collect();
            found.insert(groups.into_iter().collect());
        }
    }
    found
}

/// Compares one take with brute force. Returns the grant.
fn check_take(set: &mut PoolSet, policy: Policy, units: u64) -> Option<Grant> {
    let entry = ResourceEntry {
        resource: "r".into(),
        policy,
        amount: Amount(units),
    };
    let mut request = ResourceRequest::cpus(1);
    request.entries = vec![entry];
    let compiled = set.compile(&request)?;
    let PoolKind::Indexed(before) = set.pools[0].kind.clone() else {
        panic!("indexed")
    };
    let empty = vec![FULL; before.free.len()];
    let wanted = if policy == Policy::All {
        set.pools[0].total_units
    } else {
        units
    };
    let choices = all_choices(&before.free, &before.group_of, wanted);
    let ever = all_choices(&empty, &before.group_of, wanted);
    let fewest = choices.iter().map(Vec::len).min();
    let fewest_ever = ever.iter().map(Vec::len).min();
    let expected = match policy {
        Policy::Compact | Policy::Tight => fewest,
        Policy::ForceCompact | Policy::ForceTight => fewest.filter(|_| fewest == fewest_ever),
        Policy::Scatter | Policy::All => choices.iter().map(Vec::len).max(),
    };
    let grant = set.take(&compiled);
    let indices = grant.as_ref().map(|grant| grant.entries[0].indices.clone());
    let used = indices.as_ref().map(|indices| {
        let groups = indices
            .iter()
            .map(|granted| before.group_of[granted.index as usize]);
        groups.collect::<BTreeSet<u32>>().len()
    });
    assert_eq!(used, expected, "{policy:?} {wanted} of {:?}", before.free);
    if let Some(indices) = &indices {
        let sum: u64 = indices.iter().map(|granted| u64::from(granted.units)).sum();
        assert_eq!(sum, wanted);
        let (last, rest) = indices.split_last().expect("not empty");
        assert!(rest.iter().all(|granted| granted.units == FULL));
        assert!(
            indices
                .iter()
                .all(|granted| before.free[granted.index as usize] >= granted.units)
        );
        assert!(rest.iter().all(|granted| granted.index != last.index));
    }
    grant
}

fn check_books(set: &PoolSet, held: &[Grant]) {
    let PoolKind::Indexed(pool) = &set.pools[0].kind else {
        panic!("indexed")
    };
    let mut used = vec![0u32; pool.free.len()];
    for granted in held.iter().flat_map(|grant| &grant.entries[0].indices) {
        used[granted.index as usize] += granted.units;
    }
    for (index, used) in used.iter().enumerate() {
        assert_eq!(used + pool.free[index], FULL, "index {index}");
    }
    let free: u64 = pool.free.iter().map(|units| u64::from(*units)).sum();
    assert_eq!(free, set.pools[0].free_units);
    for group in &pool.groups {
        let range = group.start as usize..(group.start + group.size) as usize;
        let whole = pool.free[range.clone()]
            .iter()
            .filter(|units| **units == FULL)
            .count();
        assert_eq!(whole, group.whole as usize);
        let partial = pool.free[range]
            .iter()
            .filter(|units| **units > 0 && **units < FULL);
        assert_eq!(partial.count(), group.partial.len());
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![
        Policy::Compact,
        Policy::ForceCompact,
        Policy::Tight,
        Policy::ForceTight,
        Policy::Scatter,
        Policy::All,
    ])
}

#[derive(Clone, Debug)]
enum Op {
    Take(Policy, u64),
    Release(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let units = prop_oneof![
        (1u64..4).prop_map(|n| n * UNITS_PER_WHOLE),
        (1u64..14).prop_map(|n| n * 2_500),
        Just(1u64),
    ];
    prop_oneof![
        3 => (policy(), units).prop_map(|(policy, units)| Op::Take(policy, units)),
        2 => any::<usize>().prop_map(Op::Release),
    ]
}

proptest! {
    #[test]
    fn choices_equal_brute_force(
        sizes in prop::collection::vec(1u32..4, 1..4),
        ops in prop::collection::vec(op(), 1..30),
    ) {
        let mut set = grouped(&sizes);
        let mut held: Vec<Grant> = Vec::new();
        for op in ops {
            match op {
                Op::Take(policy, units) => held.extend(check_take(&mut set, policy, units)),
                Op::Release(pick) if !held.is_empty() => {
                    let grant = held.swap_remove(pick % held.len());
                    set.release(&grant);
                }
                Op::Release(_) => {}
            }
            check_books(&set, &held);
        }
        for grant in held.drain(..) {
            set.release(&grant);
        }
        prop_assert!(set.is_all_free());
    }
}
