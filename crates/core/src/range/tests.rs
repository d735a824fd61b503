//! Compares ranges and sets with brute force.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn range(first: u32, count: u32, step: u32) -> IdRange {
    IdRange::new(first, count, step).expect("valid range")
}

#[test]
fn array_maps_between_index_and_id() {
    let array = IdArray::new(vec![range(1, 3, 1), range(10, 3, 5)]).expect("disjoint");
    assert_eq!(array.iter().collect::<Vec<_>>(), [1, 2, 3, 10, 15, 20]);
    assert_eq!(array.to_string(), "1-3,10-20:5");
    assert_eq!(array.get(4), Some(15));
    assert_eq!(array.get(6), None);
    assert_eq!(array.position(20), Some(5));
    assert_eq!(array.position(11), None);
    assert_eq!(array.max(), Some(20));
}

#[test]
fn refuses_ranges_that_do_not_exist() {
    assert_eq!(IdRange::new(1, 0, 1), Err(RangeError::Invalid));
    assert_eq!(IdRange::new(1, 2, 0), Err(RangeError::Invalid));
    assert_eq!(IdRange::new(u32::MAX, 2, 1), Err(RangeError::Invalid));
    assert_eq!(
        IdArray::new(vec![range(0, 6, 2), range(5, 2, 3)]),
        Err(RangeError::Overlap)
    );
    assert!(IdArray::new(vec![range(0, 6, 2), range(1, 6, 2)]).is_ok());
    assert_eq!(IdArray::from_sorted([1, 1]), Err(RangeError::Overlap));
}

#[test]
fn the_rest_of_a_range_begins_at_a_position() {
    let array = IdArray::new(vec![range(1, 3, 1), range(10, 3, 5)]).expect("disjoint");
    assert_eq!(array.range_from(1), Some(range(2, 2, 1)));
    assert_eq!(array.range_from(3), Some(range(10, 3, 5)));
    assert_eq!(array.range_from(5), Some(range(20, 1, 1)));
    assert_eq!(array.range_from(6), None);
    assert_eq!(IdArray::default().range_from(0), None);
    let all = IdArray::new(vec![range(0, u32::MAX, 1)]).expect("fits");
    assert_eq!(all.range_from(u32::MAX), None);
}

#[test]
fn coprime_steps_meet_where_their_product_says() {
    let a = range(1, 65_535, 65_521);
    let b = range(0, 65_535, 65_519);
    let met = a.first_common(&b).expect("they meet below 2^32");
    assert!(a.position(met).is_some() && b.position(met).is_some());
    assert_eq!(a.first_common(&range(u32::MAX, 1, 1)), None);
}

#[test]
fn whole_id_space_costs_one_range() {
    let all = IdArray::new(vec![range(0, u32::MAX, 1)]).expect("fits");
    assert_eq!(all.get(u32::MAX - 1), Some(u32::MAX - 1));
    assert_eq!(
        IdArray::new(vec![range(0, u32::MAX, 1), range(u32::MAX, 1, 1)]),
        Err(RangeError::TooMany)
    );
}

prop_compose! {
    fn any_range()(first in 0u32..60, count in 1u32..12, step in 1u32..7) -> IdRange {
        range(first, count, step)
    }
}

proptest! {
    #[test]
    fn overlap_agrees_with_brute_force(ranges in proptest::collection::vec(any_range(), 1..5)) {
        let ids: Vec<u32> = ranges.iter().flat_map(IdRange::iter).collect();
        let distinct: BTreeSet<u32> = ids.iter().copied().collect();
        prop_assert_eq!(IdArray::new(ranges).is_ok(), distinct.len() == ids.len());
    }

    #[test]
    fn the_first_common_id_agrees_with_brute_force(a in any_range(), b in any_range()) {
        prop_assert_eq!(a.first_common(&b), a.iter().find(|id| b.position(*id).is_some()));
    }

    #[test]
    fn what_exists_and_what_does_not_are_told_apart(
        ranges in proptest::collection::vec(any_range(), 1..4),
        existing in proptest::collection::btree_set(0u32..80, 0..30),
    ) {
        if let Ok(array) = IdArray::new(ranges) {
            let (found, missing) = array.split(|span| existing.range(span).copied());
            let (expected, rest): (Vec<u32>, Vec<u32>) = array.iter().partition(|id| existing.contains(id));
            prop_assert_eq!(found, expected);
            prop_assert_eq!(missing.iter().collect::<Vec<_>>(), rest);
            prop_assert!(missing.ranges().len() <= array.ranges().len() + existing.len());
        }
    }

    /// The cost of a selector depends on the existing ids, not on the size of its ranges.
    #[test]
    fn separating_looks_at_each_existing_id_once(
        first in 0u32..1_000,
        count in 1u32..=1 << 31,
        step in 1u32..3,
        existing in proptest::collection::btree_set(any::<u32>(), 0..200),
    ) {
        let step = if count > 1 << 30 { 1 } else { step };
        let array = IdArray::new(vec![range(first, count, step)]).expect("disjoint");
        let looked_at = std::cell::Cell::new(0);
        let (found, missing) = array.split(|span| {
            existing.range(span).copied().inspect(|_| looked_at.set(looked_at.get() + 1))
        });
        prop_assert!(looked_at.get() <= existing.len());
        prop_assert!(missing.ranges().len() <= existing.len() + 1);
        prop_assert_eq!(found.len() + missing.len() as usize, count as usize);
    }

    #[test]
    fn slices_agree_with_iteration(ranges in proptest::collection::vec(any_range(), 1..4), from in 0u32..40, to in 0u32..40) {
        if let Ok(array) = IdArray::new(ranges) {
            let expected: Vec<u32> = array
                .iter().enumerate()
                .filter(|(i, _)| *i >= from as usize && *i < to as usize)
                .map(|(_, id)| id).collect();
            let sliced: Vec<u32> = array.slice(from, to).iter().flat_map(IdRange::iter).collect();
            prop_assert_eq!(sliced, expected);
            for (index, id) in array.iter().enumerate() {
                prop_assert_eq!(array.position(id), u32::try_from(index).ok());
                prop_assert_eq!(array.get(u32::try_from(index).expect("small")), Some(id));
            }
        }
    }

    #[test]
    fn index_set_agrees_with_reference(ops in proptest::collection::vec((0u8..4, 0u32..50, 0u32..20), 0..60)) {
        let mut set = IndexSet::new();
        let mut model = BTreeSet::new();
        for (op, from, width) in ops {
            match op {
                0 => { set.insert_range(from, from + width); model.extend(from..from + width); }
                1 => { set.remove_range(from, from + width); model.retain(|i| !(from..from + width).contains(i)); }
                2 => { prop_assert_eq!(set.remove(from), model.remove(&from)); }
                _ => {
                    if let Some((start, end)) = set.pop_front(width) {
                        prop_assert!(end - start <= width);
                        for i in start..end { prop_assert_eq!(model.pop_first(), Some(i)); }
                    } else {
                        prop_assert!(width == 0 || model.is_empty());
                    }
                }
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len() as usize, model.len());
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "adjacent ranges are merged");
        }
    }
}
