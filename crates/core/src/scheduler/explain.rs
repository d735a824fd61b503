//! Why a task does or does not run: what each variant asks of each worker, from the same numbers
//! that the scheduler uses.

use std::time::Duration;

use super::{Class, Classes};
use crate::resource::amount::Amount;
use crate::time::Time;
use crate::worker::Worker;

/// One condition, fulfilled or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Remaining lifetime.
    Time {
        /// Asked for.
        min: Duration,
        /// Left; `None` = unlimited.
        remaining: Option<Duration>,
    },
    /// Amount of a resource that the worker has in all.
    Resource {
        /// Name.
        name: Box<str>,
        /// Asked for; for `all` the smallest amount there is.
        request: Amount,
        /// Offered.
        offer: Amount,
    },
    /// Nodes in the worker's group.
    Group {
        /// Asked for.
        n_nodes: u32,
        /// Connected workers of the group.
        group_size: u32,
    },
}

impl Condition {
    /// Whether the worker fulfils it.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self {
            Self::Time { min, remaining } => remaining.is_none_or(|left| left >= *min),
            Self::Resource { request, offer, .. } => offer >= request,
            Self::Group {
                n_nodes,
                group_size,
            } => group_size >= n_nodes,
        }
    }
}

/// Conditions of every variant of a class on one worker.
#[must_use]
pub fn explain(
    class: &Class,
    classes: &Classes,
    worker: &Worker,
    group_size: u32,
    now: Time,
) -> Vec<Vec<Condition>> {
    class
        .variants
        .iter()
        .map(|variant| {
            let mut conditions = Vec::new();
            if variant.min_time_ns > 0 {
                conditions.push(Condition::Time {
                    min: Duration::from_nanos(variant.min_time_ns),
                    remaining: worker.remaining(now),
                });
            }
            if variant.n_nodes > 0 {
                conditions.push(Condition::Group {
                    n_nodes: variant.n_nodes,
                    group_size,
                });
            }
            conditions.extend(variant.demands.iter().map(|demand| Condition::Resource {
                name: classes.resource_name(demand.resource).into(),
                request: Amount(demand.units.unwrap_or(1)),
                offer: Amount(worker.total(demand)),
            }));
            conditions
        })
        .collect()
}
