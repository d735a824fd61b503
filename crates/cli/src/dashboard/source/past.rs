//! What happened before the dashboard was there: the charts begin with it.

use hq_store::reader::run::{self, LifeRow};
use hq_store::reader::{self, StepRow};

use super::Ask;
use super::file::resources;
use crate::dashboard::model::PastStep;

/// Steps of equal width from one time to another.
pub(crate) async fn past<A: Ask>(
    asked: &mut A,
    (from_ns, to_ns): (i64, i64),
    count: i64,
) -> Result<Vec<PastStep>, A::Error> {
    let width = ((to_ns - from_ns) / count.max(1)).max(1);
    let changes = asked.ask(reader::steps(from_ns, to_ns, width)).await?;
    let workers = asked.ask(run::lives(from_ns, to_ns)).await?;
    Ok(add_up(&changes, &workers, from_ns, width, count))
}

fn add_up(
    changes: &[StepRow],
    workers: &[LifeRow],
    from_ns: i64,
    width: i64,
    count: i64,
) -> Vec<PastStep> {
    let lives: Vec<(i64, i64, i64)> = workers
        .iter()
        .map(|life| {
            let cpus = resources(&life.config)
                .iter()
                .find(|item| item.name == "cpus")
                .map_or(0, |item| i64::try_from(item.total).unwrap_or(i64::MAX));
            (life.from_ns, life.to_ns.unwrap_or(i64::MAX), cpus)
        })
        .collect();
    let (mut running, mut used) = (0, 0);
    (0..count)
        .map(|number| {
            let at_ns = from_ns + (number + 1) * width;
            let mut ended = 0;
            // The last step takes what lies on its end.
            let here = |step: i64| step == number || (number + 1 == count && step >= count);
            for row in changes.iter().filter(|row| here(row.step)) {
                if row.is_end {
                    ended += row.tasks.unsigned_abs();
                    running -= row.tasks;
                    used -= row.units;
                } else {
                    running += row.tasks;
                    used += row.units;
                }
            }
            let offered: i64 = lives
                .iter()
                .filter(|(from, to, _)| *from <= at_ns && *to > at_ns)
                .map(|(.., cpus)| *cpus)
                .sum();
            let percent = if offered > 0 { used * 100 / offered } else { 0 };
            PastStep {
                at_ns,
                running: u64::try_from(running).unwrap_or(0),
                ended,
                cpus_percent: u64::try_from(percent.clamp(0, 100)).unwrap_or(0),
            }
        })
        .collect()
}

/// When the first task started.
pub(crate) async fn first_start<A: Ask>(asked: &mut A) -> Result<Option<i64>, A::Error> {
    Ok(asked.ask_one(run::first_start()).await?.flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Units of a resource per whole one.
    const WHOLE: i64 = 10_000;

    #[test]
    fn starts_and_ends_become_what_ran() {
        let step = |is_end, step, tasks, units| StepRow {
            is_end,
            step,
            tasks,
            units,
        };
        let changes = [
            step(false, 0, 3, 3 * WHOLE),
            step(false, 1, 1, 2 * WHOLE),
            step(true, 1, 2, 2 * WHOLE),
            step(true, 4, 2, 3 * WHOLE),
        ];
        let config = json!({"resources": {"resources": [
            {"name": "cpus", "kind": {"List": {"values": ["0", "1", "2", "3"]}}}
        ]}});
        let workers = [LifeRow {
            from_ns: 0,
            to_ns: None,
            config,
        }];
        let steps = add_up(&changes, &workers, 0, 10, 4);
        let shown: Vec<_> = steps
            .iter()
            .map(|step| (step.at_ns, step.running, step.ended, step.cpus_percent))
            .collect();
        assert_eq!(
            shown,
            [
                (10, 3, 0, 75),
                (20, 2, 2, 75),
                (30, 2, 0, 75),
                (40, 0, 2, 0)
            ]
        );
    }
}
