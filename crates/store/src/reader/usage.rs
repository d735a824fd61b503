//! Used and offered cpus over time.

use serde_json::Value;

use super::StepRow;
use super::run::LifeRow;

/// The number of units of a whole cpu.
const WHOLE: i64 = 10_000;

/// The usage at the end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageStep {
    /// The time, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The number of tasks running at that time.
    pub running: i64,
    /// The number of tasks that ended within the step.
    pub ended: u64,
    /// The cpus in use, in units, limited to the offered cpus.
    pub used: i64,
    /// The cpus that workers offer, in units.
    pub offered: i64,
}

/// Aggregates the rows of [`steps`](super::steps) and [`lives`](super::run::lives) over `count`
/// steps, starting at `from_ns`.
#[must_use]
pub fn usage(
    changes: &[StepRow],
    workers: &[LifeRow],
    from_ns: i64,
    width: i64,
    count: i64,
) -> Vec<UsageStep> {
    let lives: Vec<(i64, i64, i64)> = workers
        .iter()
        .map(|life| {
            let until = life.to_ns.unwrap_or(i64::MAX);
            (life.from_ns, until, cpus_of(&life.config))
        })
        .collect();
    let (mut running, mut used) = (0, 0);
    (0..count)
        .map(|number| {
            let at_ns = from_ns + (number + 1) * width;
            let mut ended = 0;
            // The last step includes the end of the period.
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
            let there = lives
                .iter()
                .filter(|(from, to, _)| *from <= at_ns && *to > at_ns);
            let offered = there.map(|(.., cpus)| *cpus).sum();
            UsageStep {
                at_ns,
                running: running.max(0),
                ended,
                // Each task of a graph counts as one cpu, which may be too much.
                used: used.clamp(0, offered),
                offered,
            }
        })
        .collect()
}

/// Returns the cpus of a worker in units, based on its configuration.
#[must_use]
pub fn cpus_of(config: &Value) -> i64 {
    let items = config.pointer("/resources/resources");
    let items = items.and_then(Value::as_array).into_iter().flatten();
    let is_cpus = |item: &&Value| item.get("name").and_then(Value::as_str) == Some("cpus");
    let Some(kind) = items
        .into_iter()
        .find(is_cpus)
        .and_then(|item| item.get("kind"))
    else {
        return 0;
    };
    let number = |path: &str| kind.pointer(path).and_then(Value::as_i64);
    if let Some(units) = number("/Sum/size") {
        return units;
    }
    if let (Some(first), Some(last)) = (number("/Range/start"), number("/Range/end")) {
        return (last - first + 1).max(0).saturating_mul(WHOLE);
    }
    let length = |list: &Value| list.as_array().map_or(0, Vec::len);
    let listed = kind.pointer("/List/values").map(length);
    let groups = kind.pointer("/Groups/groups").and_then(Value::as_array);
    let grouped = groups.map(|groups| groups.iter().map(length).sum());
    let count = listed.or(grouped).unwrap_or(0);
    i64::try_from(count)
        .unwrap_or(i64::MAX)
        .saturating_mul(WHOLE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn worker(kind: &Value) -> Value {
        json!({"resources": {"resources": [
            {"name": "mem", "kind": {"Sum": {"size": 7}}},
            {"name": "cpus", "kind": kind},
        ]}})
    }

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
        let workers = [LifeRow {
            from_ns: 0,
            to_ns: Some(35),
            config: worker(&json!({"List": {"values": ["0", "1", "2", "3"]}})),
        }];
        let steps = usage(&changes, &workers, 0, 10, 4);
        let shown: Vec<_> = steps
            .iter()
            .map(|step| {
                let whole = |units: i64| units / WHOLE;
                (
                    step.at_ns,
                    step.running,
                    step.ended,
                    whole(step.used),
                    whole(step.offered),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                (10, 3, 0, 3, 4),
                (20, 2, 2, 3, 4),
                (30, 2, 0, 3, 4),
                (40, 0, 2, 0, 0)
            ]
        );
    }

    #[test]
    fn never_more_is_in_use_than_there_is() {
        let changes = [StepRow {
            is_end: false,
            step: 0,
            tasks: 9,
            units: 9 * WHOLE,
        }];
        let workers = [LifeRow {
            from_ns: 0,
            to_ns: None,
            config: worker(&json!({"Range": {"start": 0, "end": 1}})),
        }];
        let steps = usage(&changes, &workers, 0, 10, 1);
        assert_eq!((steps[0].running, steps[0].used), (9, 2 * WHOLE));
    }

    #[test]
    fn cpus_are_counted_however_they_are_listed() {
        let groups = json!({"Groups": {"groups": [["0", "1"], ["2", "3", "4"]]}});
        assert_eq!(cpus_of(&worker(&groups)), 5 * WHOLE);
        assert_eq!(cpus_of(&worker(&json!({"Sum": {"size": 25_000}}))), 25_000);
        assert_eq!(cpus_of(&json!({})), 0);
    }
}
