//! Compares the index with a scan of all requests.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::class::Classes;
use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Requests as `(priority, weight, amounts of each resource)`. 0 means not requested, 1 means all
/// of it.
type Asked = (i32, u32, [u32; 3]);

fn request((_, weight, amounts): &Asked) -> RequestVariants {
    let entries = NAMES.iter().zip(amounts).filter(|(_, amount)| **amount > 0);
    let entries = entries.map(|(name, amount)| ResourceEntry {
        resource: (*name).into(),
        policy: if *amount == 1 {
            Policy::All
        } else {
            Policy::Compact
        },
        amount: Amount(u64::from(*amount) * 7),
    });
    let mut request = ResourceRequest::cpus(1);
    request.entries.extend(entries);
    request.weight = *weight;
    RequestVariants::new(vec![request]).expect("valid")
}

fn offers(classes: &mut Classes, totals: [u64; 3]) -> Vec<Offer> {
    let mut offers = vec![Offer::default(); 4];
    for (name, units) in [("cpus", 40_000)]
        .into_iter()
        .chain(NAMES.into_iter().zip(totals))
    {
        let slot = classes.resource(name).0 as usize;
        offers[slot].units = units;
    }
    offers
}

fn view<'v>(offers: &'v [Offer], available: &'v [i64], resource_weights: &'v [u64]) -> View<'v> {
    View {
        bin: Bin {
            offers,
            available,
            resource_weights,
        },
        time_left_ns: u64::MAX,
    }
}

proptest! {
    #[test]
    fn a_search_finds_what_fits_the_most_urgent_and_valuable_first(
        asked in vec((-1_i32..2, 1_u32..4, prop::array::uniform3(0_u32..400)), 1..200),
        totals in prop::array::uniform3(0_u64..3_000),
        taken in prop::array::uniform3(0_u64..3_000),
        removed in vec(any::<bool>(), 200),
    ) {
        let mut classes = Classes::default();
        let offers = offers(&mut classes, totals);
        let mut index = RequestIndex::default();
        let mut ready = BTreeSet::new();
        for asked in &asked {
            let key = QueueKey::new(asked.0, classes.intern(&request(asked)));
            index.insert(key, classes.get(key.class).expect("interned"));
            ready.insert(key);
        }
        let gone: Vec<QueueKey> =
            ready.iter().zip(removed).filter(|(_, is_gone)| *is_gone).map(|(key, _)| *key).collect();
        for key in gone {
            index.remove(key, classes.get(key.class).expect("interned"));
            ready.remove(&key);
        }
        let mut available: Vec<i64> =
            offers.iter().map(|offer| i64::try_from(offer.units).expect("small")).collect();
        for (slot, taken) in taken.into_iter().enumerate() {
            let slot = slot + 1;
            available[slot] = (available[slot] - i64::try_from(taken).expect("small")).max(0);
        }
        let resource_weights = index.resource_weights(&offers);
        let view = view(&offers, &available, &resource_weights);
        let mut expected: Vec<(Reverse<i32>, Reverse<u64>, u32)> = ready
            .iter()
            .filter_map(|key| {
                let demand = &classes.get(key.class)?.variants[0];
                let rank = (key.priority, Reverse(view.bin.value(demand)), key.class.0);
                view.bin.has_room(demand).then_some(rank)
            })
            .collect();
        expected.sort_unstable();
        let mut search = Search::new(&index);
        let mut steps = u32::MAX;
        let found: Vec<_> = std::iter::from_fn(|| search.next(&view, &mut steps))
            .map(|(key, _, class)| {
                (key.priority, Reverse(view.bin.value(&class.variants[0])), key.class.0)
            })
            .collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_request_whose_time_is_just_left_is_found() {
    let mut classes = Classes::default();
    let offers = offers(&mut classes, [0; 3]);
    let mut index = RequestIndex::default();
    let mut request = ResourceRequest::cpus(1);
    request.min_time = std::time::Duration::from_secs(60);
    let request = RequestVariants::new(vec![request]).expect("valid");
    let key = QueueKey::new(0, classes.intern(&request));
    index.insert(key, classes.get(key.class).expect("interned"));
    let resource_weights = index.resource_weights(&offers);
    let available = vec![40_000; offers.len()];
    let found = |time_left_ns| {
        let view = View {
            time_left_ns,
            ..view(&offers, &available, &resource_weights)
        };
        Search::new(&index).next(&view, &mut 100).is_some()
    };
    let minute = 60_000_000_000;
    assert_eq!((found(minute - 1), found(minute)), (false, true));
}

/// Among a hundred thousand amounts of one resource, a few hundred steps find those that fit.
#[test]
fn few_steps_find_the_largest_that_fits_among_very_many() {
    let mut classes = Classes::default();
    let offers = offers(&mut classes, [10_000_000, 0, 0]);
    let mut index = RequestIndex::default();
    for number in 0..100_000 {
        let mut request = ResourceRequest::cpus(1);
        request.entries.push(ResourceEntry {
            resource: "a".into(),
            policy: Policy::Compact,
            amount: Amount(100 * number + 1),
        });
        let request = RequestVariants::new(vec![request]).expect("valid");
        let key = QueueKey::new(0, classes.intern(&request));
        index.insert(key, classes.get(key.class).expect("interned"));
    }
    let resource_weights = index.resource_weights(&offers);
    for room in [9_999_999, 1_234_567, 1_001, 1] {
        let mut available = vec![0; offers.len()];
        available[classes.resource("cpus").0 as usize] = 40_000;
        available[classes.resource("a").0 as usize] = room;
        let mut steps = 2_000;
        let mut search = Search::new(&index);
        let found = search.next(&view(&offers, &available, &resource_weights), &mut steps);
        let (key, ..) = found.expect("one fits");
        assert_eq!(
            i64::from(key.class.0),
            (room - 1) / 100,
            "{steps} steps are left"
        );
    }
    let available = vec![0; offers.len()];
    let mut steps = 2_000;
    let nothing = view(&offers, &available, &resource_weights);
    assert!(Search::new(&index).next(&nothing, &mut steps).is_none());
    assert!(
        steps > 1_900,
        "what does not fit is left out at once: {steps} are left"
    );
}

#[test]
fn a_request_counts_once_however_often_it_is_put_in_or_taken_out() {
    let mut classes = Classes::default();
    let offers = offers(&mut classes, [1_000; 3]);
    let [first, second] = [[100, 0, 0], [50, 200, 0]].map(|amounts| {
        let class = classes.intern(&request(&(0, 1, amounts)));
        QueueKey::new(0, class)
    });
    let class = |key: QueueKey| classes.get(key.class).expect("interned");
    let mut index = RequestIndex::default();
    index.insert(second, class(second));
    let expected = index.resource_weights(&offers);
    for _ in 0..2 {
        index.insert(first, class(first));
    }
    assert_ne!(index.resource_weights(&offers), expected);
    for _ in 0..2 {
        index.remove(first, class(first));
    }
    assert_eq!(index.resource_weights(&offers), expected);
}
