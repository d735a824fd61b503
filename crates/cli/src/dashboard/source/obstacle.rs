//! Why nothing of a job runs, in a few words.

use hq_protocol::client::{self, ExplainItem, Explanation, explain_item::Item};

use crate::client::Client;
use crate::dashboard::model::{JobRow, Obstacle, clean};
use crate::error::CliResult;
use crate::output::format::{amount, words};
use crate::output::view::variant_fits;

/// Jobs about which the server is asked.
const JOBS_MAX: usize = 40;

/// Asks about the first waiting task of jobs of which nothing runs.
pub(crate) async fn obstacles(client: &mut Client, jobs: &[JobRow]) -> CliResult<Vec<Obstacle>> {
    let mut found = Vec::new();
    for job in jobs.iter().filter(|job| job.is_starving()).take(JOBS_MAX) {
        let page = client::TaskPage {
            job: Some(client::task_page::Job::Id(job.id)),
            states: vec![client::TaskState::Waiting.into()],
            limit: 1,
            ..client::TaskPage::default()
        };
        let page = client.task_page(page).await?;
        let Some(task) = page.tasks.first() else {
            continue;
        };
        let explain = client::Explain {
            job: Some(client::explain::Job::Id(job.id)),
            task: task.id,
        };
        // The job may have been forgotten meanwhile.
        let why = client.explain(explain).await.ok();
        if let Some(why) = why.and_then(|explanation| why_not(&explanation)) {
            found.push(Obstacle {
                job: job.id,
                why: clean(&why),
            });
        }
    }
    Ok(found)
}

/// The reason, unless waiting is normal: for other tasks, or for their resources.
fn why_not(explanation: &Explanation) -> Option<String> {
    if explanation.waiting_dep_count > 0 || explanation.sent_to.is_some() {
        return None;
    }
    let mut variants = explanation
        .workers
        .iter()
        .flat_map(|worker| &worker.variants);
    if explanation.workers.is_empty() || variants.any(variant_fits) {
        return None;
    }
    Some(missing(explanation).unwrap_or_else(|| "no worker fits".to_owned()))
}

/// What the first variant asks for and no worker has.
fn missing(explanation: &Explanation) -> Option<String> {
    let items = || {
        let firsts = explanation
            .workers
            .iter()
            .filter_map(|worker| worker.variants.first());
        firsts.flat_map(|variant| &variant.items)
    };
    items().find_map(|item| lacking(item, items()))
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
                let most = if most == 0 {
                    "no worker has any".to_owned()
                } else {
                    format!("no worker has more than {}", amount(most))
                };
                format!(
                    "they ask for {} {}, {most}",
                    amount(wanted.request_units),
                    wanted.resource
                )
            })
        }
        Item::Group(wanted) => (wanted.group_size < wanted.n_nodes).then(|| {
            format!(
                "they ask for {} nodes, the largest group has {}",
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
                    "they ask for {} and no worker lives that long",
                    words(std::time::Duration::from_nanos(wanted))
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use hq_protocol::client::{ResourceAmount, VariantExplanation, WorkerExplanation};

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
        }
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
            assert_eq!(why_not(&explanation).as_deref(), wanted);
        }
    }
}
