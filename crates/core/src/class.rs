//! Request classes: tasks with equal requests are interchangeable, so the scheduler decides on
//! counts of classes.
//!
//! This module knows the demands of a class, the offers of a worker, and how often one fits into
//! the other. It knows neither tasks nor workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::amount::UNITS_PER_WHOLE;
use crate::resource::descriptor::{ResourceDescriptor, ResourceKind};
use crate::resource::request::{Policy, RequestVariants};

/// Tasks per worker of a request without resources; an arbitrary safe bound.
const UNLIMITED_FIT: u64 = 4_096;

/// An interned [`RequestVariants`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

/// An interned resource name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u32);

/// One demand of a variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Number of the resource.
    pub resource: ResourceId,
    /// Requested units; `None` = the whole pool.
    pub units: Option<u64>,
}

/// A variant in interned form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantDemand {
    /// Amounts taken from one worker.
    pub demands: Vec<Demand>,
    /// Whole nodes; 0 = part of one node.
    pub n_nodes: u32,
    /// Required remaining lifetime in nanoseconds.
    pub min_time_ns: u64,
    /// Value of the request in a mix, in units of 1/10 000.
    pub weight: u32,
}

/// Amount of one resource that a worker offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Offer {
    /// Total units.
    pub units: u64,
    /// Whether it consists of items: then a fraction must come from a single item.
    pub has_items: bool,
}

/// A class: the request as users wrote it and in interned form.
#[derive(Clone, Debug)]
pub struct Class {
    /// As users wrote it.
    pub request: RequestVariants,
    /// Interned, same order.
    pub variants: Vec<VariantDemand>,
}

/// Interns request classes and resource names for the life of the server. Their number grows with
/// the distinct requests, not with the tasks.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    by_request: BTreeMap<RequestVariants, ClassId>,
    classes: Vec<Arc<Class>>,
    resources: BTreeMap<Box<str>, ResourceId>,
    names: Vec<Box<str>>,
}

impl Classes {
    /// The class of a request; created on first use.
    pub fn intern(&mut self, request: &RequestVariants) -> ClassId {
        if let Some(id) = self.by_request.get(request) {
            return *id;
        }
        let variants = request
            .as_slice()
            .iter()
            .map(|variant| VariantDemand {
                demands: variant
                    .entries
                    .iter()
                    .map(|entry| Demand {
                        resource: self.resource(&entry.resource),
                        units: match entry.policy {
                            Policy::All => None,
                            Policy::Compact
                            | Policy::ForceCompact
                            | Policy::Tight
                            | Policy::ForceTight
                            | Policy::Scatter => Some(entry.amount.0),
                        },
                    })
                    .collect(),
                n_nodes: variant.n_nodes,
                min_time_ns: crate::time::nanos(variant.min_time),
                weight: variant.weight,
            })
            .collect();
        let id = ClassId(u32::try_from(self.classes.len()).unwrap_or(u32::MAX));
        self.classes.push(Arc::new(Class {
            request: request.clone(),
            variants,
        }));
        self.by_request.insert(request.clone(), id);
        id
    }

    /// The class behind an id.
    #[must_use]
    pub fn get(&self, id: ClassId) -> Option<&Arc<Class>> {
        self.classes.get(id.0 as usize)
    }

    /// Cpus that a task of a variant takes, if the request gives a number.
    #[must_use]
    pub fn cpus(&self, id: ClassId, variant: u32) -> Option<f64> {
        let (class, cpus) = (self.get(id)?, self.find_resource("cpus")?);
        let variant = class.variants.get(variant as usize)?;
        let demand = variant
            .demands
            .iter()
            .find(|demand| demand.resource == cpus)?;
        #[expect(clippy::cast_precision_loss, reason = "no machine has 2^40 cpus")]
        let units = demand.units? as f64;
        #[expect(clippy::cast_precision_loss, reason = "10 000")]
        let whole = UNITS_PER_WHOLE as f64;
        Some(units / whole)
    }

    /// The id of a resource name; created on first use.
    pub fn resource(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.resources.get(name) {
            return *id;
        }
        let id = ResourceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.resources.insert(name.into(), id);
        id
    }

    /// The id of a known resource name.
    #[must_use]
    pub fn find_resource(&self, name: &str) -> Option<ResourceId> {
        self.resources.get(name).copied()
    }

    /// Name of a resource.
    #[must_use]
    pub fn resource_name(&self, id: ResourceId) -> &str {
        self.names.get(id.0 as usize).map_or("", AsRef::as_ref)
    }

    /// Names of all resources, by number.
    pub(crate) fn resource_names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Offers of a worker, by resource id.
    pub fn offers(&mut self, descriptor: &ResourceDescriptor) -> Vec<Offer> {
        let mut offers = Vec::new();
        for item in &descriptor.items {
            let slot = self.resource(&item.name).0 as usize;
            if offers.len() <= slot {
                offers.resize(slot + 1, Offer::default());
            }
            offers[slot] = Offer {
                units: item.kind.total().0,
                has_items: !matches!(item.kind, ResourceKind::Sum(_)),
            };
        }
        offers
    }
}

impl VariantDemand {
    /// Resource ids, each with the minimum that any task takes.
    pub(crate) fn least(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.demands.iter().map(|demand| {
            // A whole pool is at least one unit.
            let units = demand.units.unwrap_or(1);
            let least = i64::try_from(units).unwrap_or(i64::MAX);
            (demand.resource.0 as usize, least)
        })
    }
}

impl Class {
    /// The minimum of whole nodes over all variants; `None` = no variant takes whole nodes.
    #[must_use]
    pub fn nodes_min(&self) -> Option<u32> {
        let nodes = self.variants.iter().map(|variant| variant.n_nodes);
        nodes.filter(|nodes| *nodes > 0).min()
    }

    /// Whether some variant takes whole nodes.
    #[must_use]
    pub fn is_multi_node(&self) -> bool {
        self.variants.iter().any(|variant| variant.n_nodes > 0)
    }
}

/// Key of one queue: tasks in it are interchangeable for the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueKey {
    /// Priority, highest first.
    pub priority: Reverse<i32>,
    /// Request class.
    pub class: ClassId,
}

impl QueueKey {
    /// Builds a key.
    #[must_use]
    pub const fn new(priority: i32, class: ClassId) -> Self {
        Self {
            priority: Reverse(priority),
            class,
        }
    }

    /// Whether its tasks take precedence over tasks of `other` on every worker that could run
    /// either.
    pub(crate) fn overtakes(self, other: Self) -> bool {
        self.class == other.class && self.priority < other.priority
    }
}

/// How many tasks of a variant fit into what is available.
pub(crate) fn fitting(
    variant: &VariantDemand,
    offers: &[Offer],
    available: impl Fn(usize) -> i64,
) -> u32 {
    if variant.n_nodes > 0 {
        return 0;
    }
    let mut fit = UNLIMITED_FIT;
    for demand in &variant.demands {
        let slot = demand.resource.0 as usize;
        let offer = offers.get(slot).copied().unwrap_or_default();
        let have = u64::try_from(available(slot)).unwrap_or(0);
        fit = fit.min(match demand.units {
            Some(units) => times(have, units.max(1), offer.has_items),
            None => u64::from(offer.units > 0 && have == offer.units),
        });
        if fit == 0 {
            break;
        }
    }
    u32::try_from(fit).unwrap_or(u32::MAX)
}

/// How often an amount can be taken. A fraction of an item comes from one item.
fn times(have: u64, units: u64, has_items: bool) -> u64 {
    let by_units = have / units;
    let fraction = units % UNITS_PER_WHOLE;
    if !has_items || fraction == 0 {
        return by_units;
    }
    let per_item = UNITS_PER_WHOLE / fraction;
    let parts = have / UNITS_PER_WHOLE * per_item + have % UNITS_PER_WHOLE / fraction;
    by_units.min(parts / (units / UNITS_PER_WHOLE * per_item + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_come_from_single_items() {
        for (have, units, has_items, fit) in [
            (20_000, 6_000, true, 2),
            (20_000, 6_000, false, 3),
            (14_000, 6_000, true, 1),
            (20_000, 5_000, true, 4),
            (40_000, 15_000, true, 2),
            (50_000, 16_000, true, 2),
            (30_000, 10_000, true, 3),
        ] {
            assert_eq!(times(have, units, has_items), fit, "{units} of {have}");
        }
    }
}
