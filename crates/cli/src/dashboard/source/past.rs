//! Events before the start of the dashboard, for the beginning of the charts.

use hq_store::reader::{self, UsageStep, run};

use super::Ask;
use crate::dashboard::model::Sample;

/// Steps of equal width from one time to another.
pub(crate) async fn past<A: Ask>(
    asked: &mut A,
    (from_ns, to_ns): (i64, i64),
    count: i64,
) -> Result<Vec<Sample>, A::Error> {
    let width = ((to_ns - from_ns) / count.max(1)).max(1);
    let changes = asked.ask(reader::steps(from_ns, to_ns, width)).await?;
    let workers = asked.ask(run::lives(from_ns, to_ns)).await?;
    let steps = reader::usage(&changes, &workers, from_ns, width, count);
    Ok(steps.iter().map(shown).collect())
}

fn shown(step: &UsageStep) -> Sample {
    let percent = (step.used * 100).checked_div(step.offered).unwrap_or(0);
    Sample {
        at_ns: step.at_ns,
        running: u64::try_from(step.running).unwrap_or(0),
        ended: step.ended,
        cpus_percent: u64::try_from(percent.clamp(0, 100)).unwrap_or(0),
    }
}

/// When the first task started.
pub(crate) async fn first_start<A: Ask>(asked: &mut A) -> Result<Option<i64>, A::Error> {
    Ok(asked.ask_one(run::first_start()).await?.flatten())
}
