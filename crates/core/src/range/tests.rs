//! Ranges and sets against brute force.

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
