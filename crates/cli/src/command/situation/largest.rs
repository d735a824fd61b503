//! Finds requests that are larger than any offer so far, and the unit that was probably intended.

use hq_core::diagnosis::lacking;
use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};
use hq_core::resource::request::{RequestVariants, ResourceEntry, ResourceRequest};
use hq_protocol::client;
use hq_protocol::common::ResourceItem;

use crate::output::view::total_units;
use crate::parse::request::is_memory;

/// A request counts as a mistake if it is at least this many times the largest offer.
const MEANT_FACTOR_MIN: u64 = 16;

/// Returns why no past worker, and no worker that a queue is known to start, could run such tasks.
/// Returns `None` if one could, or if that is unknown.
pub(super) fn never_offered(
    requests: &RequestVariants,
    workers: &[client::WorkerInfo],
    queues: &[client::AllocQueue],
) -> Option<String> {
    let mut texts = requests
        .as_slice()
        .iter()
        .map(|request| of_variant(request, workers, queues));
    // It is enough if one variant fits.
    let first = texts.next().flatten()?;
    texts.all(|text| text.is_some()).then_some(first)
}

fn of_variant(
    request: &ResourceRequest,
    workers: &[client::WorkerInfo],
    queues: &[client::AllocQueue],
) -> Option<String> {
    request.entries.iter().find_map(|entry| {
        let most = most(&entry.resource, workers, queues)?;
        if entry.amount <= most || most == Amount::ZERO {
            return None;
        }
        let why = lacking(&entry.resource, entry.amount, most)
            .replace("no worker has more than", "the most ever offered is");
        Some(format!("{why}{}", meant(entry, most)))
    })
}

/// Returns the largest offer of a resource so far, or `None` if a queue may bring any amount.
pub(super) fn most(
    resource: &str,
    workers: &[client::WorkerInfo],
    queues: &[client::AllocQueue],
) -> Option<Amount> {
    let of_items = |items: &[ResourceItem]| {
        let found = items.iter().filter(|item| item.name == resource);
        found.map(total_units).max()
    };
    let mut most = 0;
    for worker in workers {
        let resources = worker.config.as_ref()?.resources.as_ref()?;
        most = most.max(of_items(&resources.items).unwrap_or(0));
    }
    for queue in queues {
        let known = queue.known_resources.as_ref();
        let told = queue.spec.as_ref().and_then(|spec| {
            let amounts = spec.amounts.iter();
            amounts
                .filter(|amount| amount.resource == resource)
                .map(|amount| amount.units)
                .max()
        });
        let known = known.map(|known| of_items(&known.items).unwrap_or(0));
        // For a queue without workers so far, only its configured amounts are known.
        most = most.max(known.or(told)?);
    }
    Some(Amount(most))
}

/// Returns the amount in the unit that was probably intended, as the end of a sentence. Empty if no
/// unit fits.
pub(super) fn meant(entry: &ResourceEntry, most: Amount) -> String {
    if !is_memory(&entry.resource) {
        return String::new();
    }
    // A request for twice the offer is intentional. Units differ by a factor of about 1 000, and
    // requests for nearly a whole node are rare.
    if entry.amount.0 < most.0.saturating_mul(MEANT_FACTOR_MIN) {
        return String::new();
    }
    let kib = |amount: Amount| u128::from(amount.0) * 1_024 / u128::from(UNITS_PER_WHOLE);
    // The user probably meant KiB or bytes, or wrote G instead of M.
    let smaller = [1, 2].map(|steps| kib(entry.amount) >> (10 * steps));
    let fits = |amount: &u128| *amount >= 1_024 && *amount <= kib(most);
    match smaller.into_iter().find(fits) {
        Some(amount) => format!(
            "; was `mem={}` meant? Without a unit it is MiB",
            with_unit(amount)
        ),
        None => String::new(),
    }
}

/// Returns KiB in the largest unit that leaves no remainder.
fn with_unit(kib: u128) -> String {
    let units = [(1 << 20, "G"), (1 << 10, "M"), (1, "K")];
    let found = units
        .into_iter()
        .find(|(size, _)| kib.is_multiple_of(*size));
    let (size, unit) = found.unwrap_or((1, "K"));
    format!("{}{unit}", kib / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::request::parse_named_request;

    fn hint(asked: &str, most_mib: u64) -> String {
        let entry = parse_named_request(asked).expect(asked);
        meant(&entry, Amount(most_mib * UNITS_PER_WHOLE))
    }

    #[test]
    fn a_smaller_unit_is_proposed_if_it_fits() {
        for (asked, most, proposed) in [
            ("mem=4194304", 64_000, "`mem=4G`"),
            ("mem=4000000", 64_000, "`mem=4000000K`"),
            ("mem=4000G", 64_000, "`mem=4000M`"),
            ("mem=2147483648", 16_000, "`mem=2G`"),
        ] {
            assert!(
                hint(asked, most).contains(proposed),
                "{}",
                hint(asked, most)
            );
        }
        assert_eq!(hint("mem=128G", 64), "");
        assert!(hint("mem=60G", 64).contains("`mem=60M`"));
        assert_eq!(hint("cpus=4096", 8), "");
        for earnest in ["mem=128G", "mem=70000", "mem=512GiB"] {
            assert_eq!(hint(earnest, 64_000), "", "{earnest}");
        }
    }
}
