//! Explains why a task runs or does not run by comparing each of its variants with each worker. It
//! uses the same numbers as the scheduler.

use std::fmt;
use std::time::Duration;

use super::worker_plan::WorkerPlan;
use crate::class::{Class, Classes, QueueKey, VariantDemand};
use crate::id::TaskKey;
use crate::resource::amount::Amount;
use crate::time::Time;
use crate::words::quantity;
use crate::worker::Worker;

/// A condition that a worker must meet to run a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Enough of the worker's lifetime must remain.
    Time {
        /// The requested time.
        min: Duration,
        /// The remaining time, or `None` if it is unlimited.
        remaining: Option<Duration>,
    },
    /// The worker must have enough of a resource in total.
    Resource {
        /// The name of the resource.
        name: Box<str>,
        /// The requested amount. For an `all` request, this is the smallest possible amount.
        request: Amount,
        /// The offered amount.
        offer: Amount,
    },
    /// The worker's group must have enough nodes.
    Group {
        /// The requested number of nodes.
        n_nodes: u32,
        /// The number of connected workers in the group.
        group_size: u32,
    },
}

impl Condition {
    /// Returns whether the worker meets the condition.
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

/// Returns the conditions that each variant of a class imposes on one worker.
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
            // All nodes must be in one group.
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

/// An obstacle to starting a ready task on a worker now. The `Display` output is for users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hindrance {
    /// The worker is about to end.
    Ending,
    /// The worker gets no new tasks.
    Draining,
    /// The worker is in quarantine.
    Quarantined,
    /// The worker's node has a problem.
    Unfit,
    /// The worker has no connection but is expected back.
    Away,
    /// The worker is a node of this multi-node task.
    Node(TaskKey),
    /// The worker is being drained for a multi-node task of at least the same priority.
    Kept,
    /// Not enough of a resource is free.
    Lacking {
        /// The name of the resource.
        name: Box<str>,
        /// The amount that the task lacks.
        missing: Amount,
        /// The amount that is not assigned to any task.
        free: Amount,
        /// The worker's total amount.
        total: Amount,
        /// The free amount that is reserved for more urgent tasks.
        kept: Amount,
    },
    /// Enough of the resource is free in total, but not in a single item or in the required groups.
    Scattered,
    /// The worker returned such a task unstarted.
    Unstarted,
    /// Not enough workers of the group are empty.
    Nodes {
        /// The requested number of nodes.
        n_nodes: u32,
        /// The number of empty workers.
        empty: u32,
    },
    /// The worker requires at least this percentage of its CPUs to be busy.
    Utilization(u8),
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ending => f.write_str("the worker is about to end"),
            Self::Draining => f.write_str("the worker is being drained"),
            Self::Quarantined => {
                f.write_str("the worker is in quarantine because tasks fail there")
            }
            Self::Unfit => f.write_str("something is wrong with the node of the worker"),
            Self::Away => f.write_str("the worker has lost its connection"),
            Self::Node(task) => write!(f, "the worker is a node of multi-node task {task}"),
            Self::Kept => f.write_str("the worker is being emptied for a multi-node task"),
            Self::Lacking {
                name,
                missing,
                free,
                total,
                kept,
            } => {
                let [missing, free, total] =
                    [missing, free, total].map(|amount| quantity(name, *amount));
                write!(f, "{name}: {missing} missing, {free} of {total} free")?;
                if *kept == Amount::ZERO {
                    return Ok(());
                }
                let kept = quantity(name, *kept);
                write!(f, ", {kept} of them kept for more urgent tasks")
            }
            Self::Scattered => f.write_str("enough is free, but not together"),
            Self::Unstarted => f.write_str(
                "it did not start such a task in time: what is free is not together, or is kept for \
                 a task that has waited longer",
            ),
            Self::Nodes { n_nodes, empty } => {
                write!(
                    f,
                    "nodes: {} missing, {empty} of {n_nodes} empty",
                    n_nodes - empty
                )
            }
            Self::Utilization(percent) => {
                write!(f, "too little work to keep {percent} % of the cpus busy")
            }
        }
    }
}

/// Returns the obstacles to starting a task of this queue with one variant on one worker. If there
/// are none, the task starts in the next round unless tasks of the same priority take precedence.
/// `empty_nodes` is the number of workers in the worker's group that a multi-node task could use.
#[must_use]
pub fn hindrances(
    key: QueueKey,
    number: u32,
    demand: &VariantDemand,
    classes: &Classes,
    worker: &Worker,
    empty_nodes: u32,
) -> Vec<Hindrance> {
    let mut plan = WorkerPlan::new(worker);
    let whole = if !worker.is_live() || worker.is_stopping() {
        Some(Hindrance::Ending)
    } else if worker.is_draining() {
        Some(Hindrance::Draining)
    } else if worker.is_away() {
        Some(Hindrance::Away)
    } else if (!worker.is_trusted() || worker.is_unfit()) && !worker.accepts_work() {
        Some(if worker.is_unfit() {
            Hindrance::Unfit
        } else {
            Hindrance::Quarantined
        })
    } else if let Some(node) = worker.node() {
        Some(Hindrance::Node(node.task))
    } else if demand.n_nodes == 0 && !plan.admits(key) {
        Some(Hindrance::Kept)
    } else {
        None
    };
    if let Some(whole) = whole {
        return vec![whole];
    }
    // Multi-node tasks take whole workers, so amounts do not matter for them.
    if demand.n_nodes > 0 {
        let is_short = empty_nodes < demand.n_nodes;
        let nodes = is_short.then_some(Hindrance::Nodes {
            n_nodes: demand.n_nodes,
            empty: empty_nodes,
        });
        return nodes.into_iter().collect();
    }
    plan.note_reservations(|_| true);
    plan.enter(key, classes);
    let lacking: Vec<Hindrance> = lacking(&plan, demand, classes);
    // Shortages come first, because users can resolve them.
    if !lacking.is_empty() {
        return lacking;
    }
    // Enough is free in total, but not within single items or in the required groups.
    if plan.room(demand) == 0 {
        return vec![Hindrance::Scattered];
    }
    if worker.is_stuck(key.class, number) {
        return vec![Hindrance::Unstarted];
    }
    let share = worker.config.min_utilization;
    if share > 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 100"
        )]
        let percent = (share * 100.0).clamp(0.0, 100.0).ceil() as u8;
        return vec![Hindrance::Utilization(percent)];
    }
    Vec::new()
}

fn lacking(plan: &WorkerPlan<'_>, demand: &VariantDemand, classes: &Classes) -> Vec<Hindrance> {
    let mut found = Vec::new();
    for (asked, (slot, need)) in demand.demands.iter().zip(plan.costs(demand)) {
        let available = plan.available(slot);
        // This resource is not the bottleneck.
        if available >= need {
            continue;
        }
        let amount = |units: i64| Amount(u64::try_from(units).unwrap_or(0));
        let free = plan.worker.free().get(slot).copied().unwrap_or(0);
        found.push(Hindrance::Lacking {
            name: classes.resource_name(asked.resource).into(),
            missing: amount(need - available.max(0)),
            free: amount(free),
            total: Amount(plan.worker.total(asked)),
            kept: amount(free.max(0) - available),
        });
    }
    found
}
