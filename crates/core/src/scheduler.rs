//! Which waiting tasks go to which worker: decided on counts of request classes, not task by task.
//!
//! [`queue`] holds what is ready, [`solve`] decides one round, [`explain`] answers why a task does
//! not run, [`demand`] how many more workers would help. Tasks with an equal [`RequestVariants`] form
//! a *class*. Inside a round `lane` is one worker, `pack` finds the best mix for it, `gang` finds nodes
//! for multi-node tasks. With very many requests [`window`] chooses, by an `index`, what a round looks at.
//! See `docs/scheduling.md`.

pub mod demand;
pub mod explain;
mod gang;
mod index;
pub(crate) mod lane;
mod pack;
pub mod queue;
pub mod solve;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::descriptor::{ResourceDescriptor, ResourceKind};
use crate::resource::request::{Policy, RequestVariants};

/// An interned [`RequestVariants`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

/// An interned resource name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u32);

/// One demand of a variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Which resource.
    pub resource: ResourceId,
    /// Units asked for; `None` = the whole pool.
    pub units: Option<u64>,
}

/// A variant in interned form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantDemand {
    /// What it takes from one worker.
    pub demands: Vec<Demand>,
    /// Whole nodes; 0 = part of one node.
    pub n_nodes: u32,
    /// Least remaining lifetime in nanoseconds.
    pub min_time_ns: u64,
    /// Value of the request in a mix, in units of 1/10 000.
    pub weight: u32,
}

/// What a worker offers of one resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Offer {
    /// Units in all.
    pub units: u64,
    /// Whether it consists of items: a fraction must then come from a single one.
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

/// Interns request classes and resource names for the life of the server. Their number follows the
/// distinct requests that were submitted, not the tasks.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    by_request: BTreeMap<RequestVariants, ClassId>,
    classes: Vec<Arc<Class>>,
    resources: BTreeMap<Box<str>, ResourceId>,
    names: Vec<Box<str>>,
}

impl Classes {
    /// The class of a request, made on first sight.
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

    /// The number of a resource name, made on first sight.
    pub fn resource(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.resources.get(name) {
            return *id;
        }
        let id = ResourceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.resources.insert(name.into(), id);
        id
    }

    /// The number of a resource name that was seen before.
    #[must_use]
    pub fn find_resource(&self, name: &str) -> Option<ResourceId> {
        self.resources.get(name).copied()
    }

    /// Name of a resource.
    #[must_use]
    pub fn resource_name(&self, id: ResourceId) -> &str {
        self.names.get(id.0 as usize).map_or("", AsRef::as_ref)
    }

    /// What a worker offers, by resource number.
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

impl Class {
    /// The fewest whole nodes that a variant takes; `None` = none does.
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
