//! Request classes: tasks with equal requests are interchangeable, so the scheduler works with
//! counts of classes.
//!
//! This module handles the demands of a class, the offers of a worker, and the number of tasks of a
//! class that fit on a worker. It does not deal with individual tasks or workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::amount::UNITS_PER_WHOLE;
use crate::resource::descriptor::{ResourceDescriptor, ResourceKind};
use crate::resource::request::RequestVariants;

/// The number of tasks of a request without resources that fit on a worker. An arbitrary safe
/// limit.
const UNLIMITED_FIT: u64 = 4_096;

/// An interned [`RequestVariants`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

impl ClassId {
    /// The id of a request that has not been interned yet.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// An interned resource name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u32);

/// The demand of a variant for one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The number of the resource.
    pub resource: ResourceId,
    /// The requested units. `None` means the whole pool.
    pub units: Option<u64>,
}

/// A variant in interned form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantDemand {
    /// The amounts taken from one worker.
    pub demands: Vec<Demand>,
    /// The number of whole nodes. 0 means a part of one node.
    pub n_nodes: u32,
    /// The required remaining lifetime in nanoseconds.
    pub min_time_ns: u64,
    /// The value of the request in a mix, in units of 1/10 000.
    pub weight: u32,
}

/// The amount of one resource that a worker offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Offer {
    /// The total units.
    pub units: u64,
    /// Whether the resource consists of items, so that a fraction must come from a single item.
    pub has_items: bool,
}

/// A class: a request as users wrote it, and in interned form.
#[derive(Clone, Debug)]
pub struct Class {
    /// The request as users wrote it.
    pub request: RequestVariants,
    /// The interned variants, in the same order.
    pub variants: Vec<VariantDemand>,
}

/// Interns request classes and resource names for the life of the server. Their number grows with
/// the number of distinct requests, not with the number of tasks.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    by_request: BTreeMap<RequestVariants, ClassId>,
    classes: Vec<Arc<Class>>,
    resources: BTreeMap<Box<str>, ResourceId>,
    names: Vec<Box<str>>,
}

impl Classes {
    /// Returns the class of a request. Creates the class on first use.
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
                        units: entry.units(),
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

    /// Returns the class with this id.
    #[must_use]
    pub fn get(&self, id: ClassId) -> Option<&Arc<Class>> {
        self.classes.get(id.0 as usize)
    }

    /// Returns the number of cpus that a task of a variant takes, if the request gives a number.
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

    /// Returns the id of a resource name. Creates the id on first use.
    pub fn resource(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.resources.get(name) {
            return *id;
        }
        let id = ResourceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.resources.insert(name.into(), id);
        id
    }

    /// Returns the id of a known resource name.
    #[must_use]
    pub fn find_resource(&self, name: &str) -> Option<ResourceId> {
        self.resources.get(name).copied()
    }

    /// Returns the name of a resource.
    #[must_use]
    pub fn resource_name(&self, id: ResourceId) -> &str {
        self.names.get(id.0 as usize).map_or("", AsRef::as_ref)
    }

    /// Returns the names of all resources in the order of their numbers.
    pub(crate) fn resource_names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Returns the offers of a worker, by resource id.
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
    /// Returns the resource ids, each with the minimum number of units that any task takes.
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
    /// Returns the minimum number of whole nodes over all variants, or `None` if no variant takes
    /// whole nodes.
    #[must_use]
    pub fn nodes_min(&self) -> Option<u32> {
        let nodes = self.variants.iter().map(|variant| variant.n_nodes);
        nodes.filter(|nodes| *nodes > 0).min()
    }

    /// Returns whether some variant takes whole nodes.
    #[must_use]
    pub fn is_multi_node(&self) -> bool {
        self.variants.iter().any(|variant| variant.n_nodes > 0)
    }
}

/// The key of a queue. For the scheduler, the tasks in a queue are interchangeable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueKey {
    /// The priority, highest first.
    pub priority: Reverse<i32>,
    /// The request class.
    pub class: ClassId,
}

impl QueueKey {
    /// Creates a key.
    #[must_use]
    pub const fn new(priority: i32, class: ClassId) -> Self {
        Self {
            priority: Reverse(priority),
            class,
        }
    }

    /// Returns whether tasks of this queue take precedence over tasks of `other` on every worker
    /// that could run both.
    pub(crate) fn overtakes(self, other: Self) -> bool {
        self.class == other.class && self.priority < other.priority
    }
}

/// Returns how many tasks of a variant fit into the available amounts.
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

/// Returns how often an amount can be taken. The fraction of an item must come from a single item.
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
