//! Computes how much of a resource other tasks may take without delaying a waiting request.
//!
//! Run times are unknown, so any holder may be the next to end. A request that lacks `missing` can
//! start once holders of at least that much have ended. The smallest such set frees `reach`. As
//! long as others take no more than `reach - missing`, each set that would have been sufficient
//! still is.
//!
//! `reach` is a subset sum. Amounts are mostly small multiples of a unit, so a bit set of a few
//! words can represent all sums. Otherwise a bounded number of sums is tried, and beyond that
//! nothing may be taken.

/// The maximum number of words in the set of sums. 64 cpus in halves need two words.
const WORDS: usize = 64;
/// The maximum number of sums that are examined one by one. Beyond it, the result is 0.
const SUMS_MAX: usize = 64;

/// Holders of the same amount.
#[derive(Clone, Copy, Debug)]
struct Kind {
    units: u64,
    holders: u64,
}

/// Returns the amount that others may take, given the shortage and the amount that each holder
/// would free: `(units, holders)`.
#[must_use]
pub fn slack(missing: u64, held: impl Iterator<Item = (u64, u32)>) -> u64 {
    if missing == 0 {
        return 0;
    }
    let mut kinds: Vec<Kind> = Vec::new();
    let mut alone: Option<u64> = None;
    for (units, holders) in held.filter(|(units, holders)| *units > 0 && *holders > 0) {
        if units == missing {
            return 0;
        }
        if units > missing {
            alone = Some(alone.map_or(units, |least| least.min(units)));
            continue;
        }
        let holders = u64::from(holders);
        match kinds.binary_search_by_key(&units, |kind| kind.units) {
            Ok(at) => kinds[at].holders += holders,
            Err(at) => kinds.insert(at, Kind { units, holders }),
        }
    }
    let together = match by_bits(missing, &kinds) {
        Some(reach) => reach,
        None => match one_by_one(missing, &kinds) {
            Some(reach) => reach,
            None => return 0,
        },
    };
    let reach = alone.into_iter().chain(together).min();
    reach.map_or(0, |reach| reach - missing)
}

/// Returns the minimum sufficient sum over holders that are not sufficient alone. `None` if there
/// are too many steps for a bit set. Takes O(kinds × log holders × words).
fn by_bits(missing: u64, kinds: &[Kind]) -> Option<Option<u64>> {
    let step = kinds.iter().fold(0, |step, kind| gcd(step, kind.units));
    if step == 0 {
        return Some(None);
    }
    let target = usize::try_from(missing.div_ceil(step)).ok()?;
    // Without its last summand, which is below `missing`, the minimum sum is not sufficient.
    let words = target.checked_mul(2)?.div_ceil(64);
    if words > WORDS {
        return None;
    }
    let mut storage = [0_u64; WORDS];
    let sums = &mut storage[..words];
    sums[0] = 1;
    for kind in kinds {
        let width = usize::try_from(kind.units / step).ok()?;
        let mut left = kind.holders.min(missing.div_ceil(kind.units));
        let mut part = 1;
        while left > 0 {
            let count = left.min(part);
            left -= count;
            part *= 2;
            or_shifted(
                sums,
                width.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX)),
            );
        }
    }
    Some(first_from(sums, target).map(|sum| sum as u64 * step))
}

/// Adds to a set the sums that are larger by `by`. Drops sums beyond the end of the set.
fn or_shifted(sums: &mut [u64], by: usize) {
    let (words, bits) = (by / 64, by % 64);
    for at in (words..sums.len()).rev() {
        let mut moved = sums[at - words] << bits;
        if bits > 0 && at > words {
            moved |= sums[at - words - 1] >> (64 - bits);
        }
        sums[at] |= moved;
    }
}

fn first_from(sums: &[u64], from: usize) -> Option<usize> {
    (from / 64..sums.len()).find_map(|at| {
        let hidden = if at == from / 64 { from % 64 } else { 0 };
        let word = sums[at] >> hidden << hidden;
        (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
    })
}

/// Returns how many units of another resource are certain to become free before a request that
/// lacks `missing` of one resource can start. These units need no reservation. `held` contains each
/// holder's amounts of both resources, `(lacking, other)`.
#[must_use]
pub fn freed_alongside(missing: u64, held: impl Iterator<Item = (u64, u64)>) -> u64 {
    let (mut sum, mut most, mut least) = (0_u64, 0, u64::MAX);
    for (lacking, other) in held.filter(|(lacking, _)| *lacking > 0) {
        sum = sum.saturating_add(lacking);
        most = lacking.max(most);
        least = other.min(least);
    }
    if missing == 0 || sum < missing {
        return 0;
    }
    // At least this many holders must end, each with at least `least`.
    missing.div_ceil(most).saturating_mul(least)
}

/// Like [`by_bits`], for amounts of any granularity. `None` if there are too many sums.
fn one_by_one(missing: u64, kinds: &[Kind]) -> Option<Option<u64>> {
    let mut sums = vec![0_u64];
    let mut reach: Option<u64> = None;
    for kind in kinds {
        let useful = kind.holders.min(missing.div_ceil(kind.units));
        for at in 0..sums.len() {
            for count in 1..=useful {
                let sum = sums[at].saturating_add(kind.units.saturating_mul(count));
                if sum >= missing {
                    reach = Some(reach.map_or(sum, |least| least.min(sum)));
                    break;
                }
                if !sums.contains(&sum) {
                    sums.push(sum);
                }
                if sums.len() > SUMS_MAX {
                    return None;
                }
            }
        }
    }
    Some(reach)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_freed_beyond_the_need_may_be_taken() {
        // 4 of 6 cpus are busy, 2 are free, 4 are requested.
        assert_eq!(slack(2, [(4, 1)].into_iter()), 2);
        // The end of either holder would be sufficient, so nothing may be taken.
        assert_eq!(slack(2, [(2, 2)].into_iter()), 0);
        assert_eq!(slack(3, [(2, 2)].into_iter()), 1);
        assert_eq!(slack(3, [(2, 1), (5, 1)].into_iter()), 2);
        assert_eq!(slack(7, [(2, 1)].into_iter()), 0, "never reached");
        assert_eq!(slack(0, [(2, 1)].into_iter()), 0);
    }

    #[test]
    fn what_comes_back_with_the_lacking_resource_is_not_kept() {
        // Two of six licenses are missing. Three tasks hold two licenses and one cpu each.
        assert_eq!(freed_alongside(2, [(2, 1); 3].into_iter()), 1);
        assert_eq!(freed_alongside(3, [(2, 1); 3].into_iter()), 2);
        assert_eq!(freed_alongside(2, [(2, 4), (2, 0), (0, 9)].into_iter()), 0);
        assert_eq!(
            freed_alongside(9, [(2, 1); 3].into_iter()),
            0,
            "never enough"
        );
        assert_eq!(freed_alongside(0, [(2, 1); 3].into_iter()), 0);
    }

    #[test]
    fn many_holders_cost_little() {
        let held = (1..1_000).map(|units| (units * 7 + 1, 3));
        assert_eq!(slack(1_000_000, held), 0);
    }

    proptest! {
        /// Both algorithms agree with trying every set.
        #[test]
        fn the_least_set_that_is_enough_is_found(
            missing in 1_u64..400,
            held in prop::collection::vec((1_u64..60, 1_u32..3), 0..5),
            unit in prop_oneof![Just(1_u64), Just(10_000), Just(1 << 40)],
        ) {
            let each = || held.iter().flat_map(|(units, holders)| vec![*units; *holders as usize]);
            let every: Vec<u64> = each().collect();
            let sums = (0_u32..1 << every.len()).map(|set| {
                let chosen = every.iter().enumerate().filter(|(at, _)| (set >> at) & 1 == 1);
                chosen.map(|(_, units)| *units).sum::<u64>()
            });
            let least = sums.filter(|sum| *sum >= missing).min();
            let expected = least.map_or(0, |least| (least - missing) * unit);
            let scaled = held.iter().map(|(units, holders)| (units * unit, *holders));
            prop_assert_eq!(slack(missing * unit, scaled), expected);
            let kinds: Vec<Kind> = held
                .iter()
                .filter(|(units, _)| *units < missing)
                .map(|(units, holders)| Kind { units: *units, holders: u64::from(*holders) })
                .collect();
            if let Some(found) = one_by_one(missing, &kinds) {
                prop_assert_eq!(Some(found), by_bits(missing, &kinds));
            }
        }
    }
}
