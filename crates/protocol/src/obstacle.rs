//! A short reason why no task of a job runs, derived from the answer to `task explain`.

use std::time::Duration;

use hq_core::diagnosis;
use hq_core::resource::amount::Amount;
use hq_core::words::{count, duration};

use crate::client::{
    ExplainItem, Explanation, VariantExplanation, WorkerExplanation, explain_item::Item,
};

/// Returns why a task waits, apart from workers, most important first: dependencies, a hold, limits,
/// the delay of its next attempt. Each reason is a sentence without a full stop.
#[must_use]
pub fn reasons(explanation: &Explanation) -> Vec<String> {
    let mut reasons = Vec::new();
    if explanation.waiting_dep_count > 0 {
        let others = count(explanation.waiting_dep_count.into(), "other task");
        reasons.push(format!("it waits for {others}"));
    }
    if explanation.is_held {
        reasons.push("it is held by a user".to_owned());
    }
    let limits = explanation.limits.iter();
    reasons.extend(limits.map(|limit| format!("it waits for {limit}")));
    if let Some(wait) = explanation.next_attempt_in_ns {
        let wait = duration(Duration::from_nanos(wait));
        reasons.push(format!(
            "it failed, and waits for its next attempt in {wait}"
        ));
    }
    reasons
}

/// Returns the reason. `None` if waiting is normal, because the tasks wait for other tasks or for
/// busy resources.
#[must_use]
pub fn why_nothing_runs(explanation: &Explanation) -> Option<String> {
    if !reasons(explanation).is_empty() || explanation.sent_to.is_some() {
        return None;
    }
    if explanation.workers.is_empty() || explanation.workers.iter().any(could_run) {
        return None;
    }
    Some(missing(explanation).unwrap_or_else(|| {
        "each of their requested resources exists, but no worker has all of them".to_owned()
    }))
}

/// Returns whether the worker could run the task if no other task ran on it.
#[must_use]
pub fn could_run(worker: &WorkerExplanation) -> bool {
    worker.variants.iter().any(variant_fits)
}

/// Lists everything that the first variant requests and that no worker has, because fixing only one
/// item would not help.
fn missing(explanation: &Explanation) -> Option<String> {
    let items = || {
        let firsts = explanation
            .workers
            .iter()
            .filter_map(|worker| worker.variants.first());
        firsts.flat_map(|variant| &variant.items)
    };
    let mut lacks: Vec<String> = Vec::new();
    // Every worker lists the same conditions, so duplicates are dropped.
    for text in items().filter_map(|item| lacking(item, items())) {
        if !lacks.contains(&text) {
            lacks.push(text);
        }
    }
    let (first, others) = lacks.split_first()?;
    let mut text = first.clone();
    for other in others {
        // The joined sentence repeats no subject.
        let rest = other.strip_prefix("they ask ").unwrap_or(other);
        text.push_str(&format!(", and {rest}"));
    }
    Some(text)
}

fn lacking<'a>(item: &ExplainItem, all: impl Iterator<Item = &'a ExplainItem>) -> Option<String> {
    match item.item.as_ref()? {
        Item::Resource(wanted) => {
            let most = all.filter_map(|other| match other.item.as_ref() {
                Some(Item::Resource(offer)) if offer.resource == wanted.resource => {
                    Some(offer.worker_units)
                }
                _ => None,
            });
            let most = most.max().unwrap_or(0);
            (most < wanted.request_units).then(|| {
                diagnosis::lacking(&wanted.resource, Amount(wanted.request_units), Amount(most))
            })
        }
        Item::Group(wanted) => (wanted.group_size < wanted.n_nodes).then(|| {
            format!(
                "they request {} nodes, and the largest group has {}",
                wanted.n_nodes, wanted.group_size
            )
        }),
        Item::Time(wanted) => {
            let wanted = wanted.min_time_ns;
            let mut longest = Some(0);
            for other in all {
                if let Some(Item::Time(time)) = other.item.as_ref() {
                    longest = longest
                        .zip(time.remaining_ns)
                        .map(|(a, b): (u64, u64)| a.max(b));
                }
            }
            longest.is_some_and(|longest| longest < wanted).then(|| {
                format!(
                    "they request {}, and no worker has that much time left",
                    words(Duration::from_nanos(wanted))
                )
            })
        }
    }
}

/// Returns whether all conditions of a variant are met.
fn variant_fits(variant: &VariantExplanation) -> bool {
    let holds = |item: &ExplainItem| match &item.item {
        Some(Item::Resource(found)) => found.request_units <= found.worker_units,
        Some(Item::Group(found)) => found.n_nodes <= found.group_size,
        Some(Item::Time(found)) => found
            .remaining_ns
            .is_none_or(|left| found.min_time_ns <= left),
        None => true,
    };
    variant.items.iter().all(holds)
}

/// Formats a duration, such as `2h 5m` or `40s`.
fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [
        (seconds / 3_600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let shown = parts.iter().filter(|(count, _)| *count > 0);
    let shown: Vec<String> = shown
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if shown.is_empty() {
        return "0s".to_owned();
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use crate::client::{ResourceAmount, WorkerExplanation};

    use super::*;

    fn worker(cpus: u64, wanted: u64, hindrances: &[&str]) -> WorkerExplanation {
        let item = Item::Resource(ResourceAmount {
            resource: "cpus".to_owned(),
            request_units: wanted * 10_000,
            worker_units: cpus * 10_000,
        });
        WorkerExplanation {
            worker: 1,
            variants: vec![VariantExplanation {
                items: vec![ExplainItem { item: Some(item) }],
                hindrances: hindrances.iter().map(|text| (*text).to_owned()).collect(),
            }],
            kept: None,
        }
    }

    #[test]
    fn all_that_is_lacking_is_told_at_once() {
        let mut needy = worker(4, 8, &[]);
        let gpus = Item::Resource(ResourceAmount {
            resource: "gpus/amd".to_owned(),
            request_units: 10_000,
            worker_units: 0,
        });
        needy.variants[0]
            .items
            .push(ExplainItem { item: Some(gpus) });
        let explanation = Explanation {
            workers: vec![needy.clone(), needy],
            is_ready: true,
            ..Explanation::default()
        };
        assert_eq!(
            why_nothing_runs(&explanation).as_deref(),
            Some(
                "they ask for 8 cpus, no worker has more than 4, and for 1 GPU (gpus/amd), no worker has any"
            )
        );
    }

    #[test]
    fn the_reason_is_what_no_worker_can_give() {
        let explanation = |workers| Explanation {
            workers,
            is_ready: true,
            ..Explanation::default()
        };
        let cases = [
            (explanation(vec![]), None),
            (
                explanation(vec![worker(4, 64, &[]), worker(8, 64, &[])]),
                Some("they ask for 64 cpus, no worker has more than 8"),
            ),
            (
                explanation(vec![
                    worker(4, 64, &[]),
                    worker(64, 64, &["cpus are taken"]),
                ]),
                None,
            ),
            (
                Explanation {
                    task: 7,
                    dep_count: 3,
                    waiting_dep_count: 2,
                    ..Explanation::default()
                },
                None,
            ),
        ];
        for (explanation, wanted) in cases {
            assert_eq!(why_nothing_runs(&explanation).as_deref(), wanted);
        }
    }
}
