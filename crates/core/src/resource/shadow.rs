//! How much others may take of a resource without delaying a request that waits for it.
//!
//! Run times are unknown, so any of the holders may be the next to end. A request that lacks `missing`
//! can start once holders of at least that much have ended. The smallest such set frees `reach`; as long
//! as others take no more than `reach - missing`, each set that would have been enough still is.

use std::collections::BTreeSet;

/// Sums looked at before the answer is "nothing".
const SUMS_MAX: usize = 64;

/// What others may take, given what is missing and what each holder would free: `(units, holders)`.
#[must_use]
pub fn slack(missing: u64, held: impl Iterator<Item = (u64, u32)>) -> u64 {
    if missing == 0 {
        return 0;
    }
    let mut sums = BTreeSet::from([0_u64]);
    let mut reach: Option<u64> = None;
    for (units, holders) in held.filter(|(units, holders)| *units > 0 && *holders > 0) {
        let useful = missing.div_ceil(units).min(u64::from(holders));
        let mut next = sums.clone();
        for sum in &sums {
            for count in 1..=useful {
                let reached = sum.saturating_add(units.saturating_mul(count));
                if reached >= missing {
                    reach = Some(reach.map_or(reached, |best| best.min(reached)));
                    break;
                }
                next.insert(reached);
                if next.len() > SUMS_MAX {
                    return 0;
                }
            }
        }
        sums = next;
    }
    reach.map_or(0, |reach| reach - missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_beyond_the_need_may_be_taken() {
        // 4 of 6 cpus run, 2 are free, 4 are asked for.
        assert_eq!(slack(2, [(4, 1)].into_iter()), 2);
        // One of two ends would do: nothing to give away.
        assert_eq!(slack(2, [(2, 2)].into_iter()), 0);
        assert_eq!(slack(3, [(2, 2)].into_iter()), 1);
        assert_eq!(slack(3, [(2, 1), (5, 1)].into_iter()), 2);
        assert_eq!(slack(7, [(2, 1)].into_iter()), 0, "never reached");
        assert_eq!(slack(0, [(2, 1)].into_iter()), 0);
    }

    #[test]
    fn many_holders_cost_little() {
        let held = (1..1_000).map(|units| (units * 7 + 1, 3));
        assert_eq!(slack(1_000_000, held), 0);
    }
}
