//! What happened before the dashboard was there: the charts begin with it.

use hq_store::runs;
use hq_store::statement::fill;
use serde_json::Value;

use super::Ask;
use super::file::resources;
use super::rows::Rows;
use crate::dashboard::model::PastStep;

const WORKERS_SQL: &str = "SELECT started_unix_ns, ended_unix_ns, config FROM worker_data \
     WHERE started_unix_ns <= ?T AND coalesce(ended_unix_ns, ?T) >= ?F";

/// Steps of equal width from one time to another.
pub(crate) async fn past<A: Ask>(
    asked: &mut A,
    (from_ns, to_ns): (i64, i64),
    count: i64,
) -> Result<Vec<PastStep>, A::Error> {
    let width = ((to_ns - from_ns) / count.max(1)).max(1);
    let values = [("?F", from_ns), ("?T", to_ns), ("?W", width)];
    let changes = asked.ask(&fill(&runs::steps_sql(), &values)).await?;
    let workers = asked.ask(&fill(WORKERS_SQL, &values)).await?;
    Ok(add_up(&changes, &workers, from_ns, width, count))
}

fn add_up(changes: &Rows, workers: &Rows, from_ns: i64, width: i64, count: i64) -> Vec<PastStep> {
    let lives: Vec<(i64, i64, i64)> = workers
        .iter()
        .map(|row| {
            let config: Value = row
                .text(2)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            let cpus = resources(&config)
                .iter()
                .find(|item| item.name == "cpus")
                .map_or(0, |item| i64::try_from(item.total).unwrap_or(i64::MAX));
            (row.int(0), row.time(1).unwrap_or(i64::MAX), cpus)
        })
        .collect();
    let (mut running, mut used) = (0, 0);
    (0..count)
        .map(|number| {
            let at_ns = from_ns + (number + 1) * width;
            let mut ended = 0;
            // The last step takes what lies on its end.
            let here = |step: i64| step == number || (number + 1 == count && step >= count);
            for row in changes.iter().filter(|row| here(row.int(1))) {
                if row.int(0) == 1 {
                    ended += row.uint(2);
                    running -= row.int(2);
                    used -= row.int(3);
                } else {
                    running += row.int(2);
                    used += row.int(3);
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
    let rows = asked
        .ask("SELECT min(started_unix_ns) FROM task_data")
        .await?;
    Ok(rows.iter().next().and_then(|row| row.time(0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Units of a resource per whole one.
    const WHOLE: i64 = 10_000;

    #[test]
    fn starts_and_ends_become_what_ran() {
        let changes = Rows::from_json(&json!([
            [0, 0, 3, 3 * WHOLE],
            [0, 1, 1, 2 * WHOLE],
            [1, 1, 2, 2 * WHOLE],
            [1, 4, 2, 3 * WHOLE]
        ]));
        let config = json!({"resources": {"resources": [
            {"name": "cpus", "kind": {"List": {"values": ["0", "1", "2", "3"]}}}
        ]}});
        let workers = Rows::from_json(&json!([[0, null, config.to_string()]]));
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
