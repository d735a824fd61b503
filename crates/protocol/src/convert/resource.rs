//! Resources that workers offer and tasks request.

use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{
    CouplingWeight, ResourceDescriptor, ResourceItem, ResourceKind,
};
use hq_core::resource::request::{
    Policy, RequestVariants, ResourceEntry, ResourceRequest, VARIANTS_MAX,
};
use hq_core::time::nanos;

use super::{ConvertError, at_most, duration, each, known, name, required};
use crate::common;

/// The maximum number of pools of a worker and of resources in a request.
const RESOURCES_MAX: usize = 1 << 10;

/// The maximum number of indices in a pool. Each index becomes an object in the worker.
const INDICES_MAX: usize = 1 << 20;

/// The maximum number of coupled pairs of groups.
const COUPLINGS_MAX: usize = 1 << 16;

/// The maximum amount: `u32::MAX` whole items, the limit of user input.
const AMOUNT_MAX: Amount = Amount::whole(u32::MAX);

pub(super) fn amount(field: &str, units: u64) -> Result<Amount, ConvertError> {
    if units > AMOUNT_MAX.0 + 9_999 {
        return Err(ConvertError::invalid(
            field,
            "less than 2^32",
            Amount(units),
        ));
    }
    Ok(Amount(units))
}

impl TryFrom<common::ResourceDescriptor> for ResourceDescriptor {
    type Error = ConvertError;

    fn try_from(message: common::ResourceDescriptor) -> Result<Self, ConvertError> {
        at_most("items", message.items.len(), RESOURCES_MAX)?;
        at_most("coupling", message.coupling.len(), COUPLINGS_MAX)?;
        let items: Vec<ResourceItem> = each("items", message.items)?;
        // Couplings refer to positions in the sorted list of pools.
        if items.windows(2).any(|pair| pair[0].name > pair[1].name) {
            return Err(ConvertError::invalid(
                "items",
                "pools sorted by name",
                "another order",
            ));
        }
        let coupling = message.coupling.into_iter().map(coupling_weight).collect();
        Self::new(items, coupling).map_err(|error| ConvertError::rule("items", error))
    }
}

impl From<&ResourceDescriptor> for common::ResourceDescriptor {
    fn from(descriptor: &ResourceDescriptor) -> Self {
        Self {
            items: descriptor
                .items
                .iter()
                .map(common::ResourceItem::from)
                .collect(),
            coupling: descriptor.coupling.iter().map(coupling_message).collect(),
        }
    }
}

fn coupling_weight(message: common::CouplingWeight) -> CouplingWeight {
    let common::CouplingWeight {
        resource1,
        group1,
        resource2,
        group2,
        weight,
    } = message;
    CouplingWeight {
        resource1,
        group1,
        resource2,
        group2,
        weight,
    }
}

fn coupling_message(coupling: &CouplingWeight) -> common::CouplingWeight {
    let CouplingWeight {
        resource1,
        group1,
        resource2,
        group2,
        weight,
    } = *coupling;
    common::CouplingWeight {
        resource1,
        group1,
        resource2,
        group2,
        weight,
    }
}

impl TryFrom<common::ResourceItem> for ResourceItem {
    type Error = ConvertError;

    fn try_from(message: common::ResourceItem) -> Result<Self, ConvertError> {
        use common::resource_item::Kind;
        let kind = match required(message.kind, "kind")? {
            Kind::List(group) => {
                at_most("list", group.values.len(), INDICES_MAX)?;
                ResourceKind::List(index_names("list", group.values)?)
            }
            Kind::Range(common::IndexSpan { start, end }) => {
                at_most("range", end.saturating_sub(start) as usize, INDICES_MAX - 1)?;
                ResourceKind::Range { start, end }
            }
            Kind::Groups(groups) => {
                let count = groups
                    .groups
                    .iter()
                    .map(|group| group.values.len().max(1))
                    .sum();
                at_most("groups", count, INDICES_MAX)?;
                let groups = groups.groups.into_iter();
                let names = groups.map(|group| index_names("groups", group.values));
                ResourceKind::Groups(names.collect::<Result<_, _>>()?)
            }
            Kind::SumUnits(units) => ResourceKind::Sum(amount("sum_units", units)?),
        };
        Ok(Self {
            name: name("name", message.name)?,
            kind,
        })
    }
}

fn index_names(field: &str, values: Vec<String>) -> Result<Vec<Box<str>>, ConvertError> {
    values.into_iter().map(|value| name(field, value)).collect()
}

impl From<&ResourceItem> for common::ResourceItem {
    fn from(item: &ResourceItem) -> Self {
        use common::resource_item::Kind;
        let group = |values: &Vec<Box<str>>| common::IndexGroup {
            values: values.iter().map(|value| value.to_string()).collect(),
        };
        let kind = match &item.kind {
            ResourceKind::List(values) => Kind::List(group(values)),
            ResourceKind::Range { start, end } => Kind::Range(common::IndexSpan {
                start: *start,
                end: *end,
            }),
            ResourceKind::Groups(groups) => Kind::Groups(common::IndexGroups {
                groups: groups.iter().map(group).collect(),
            }),
            ResourceKind::Sum(amount) => Kind::SumUnits(amount.0),
        };
        Self {
            name: item.name.to_string(),
            kind: Some(kind),
        }
    }
}

impl From<Policy> for common::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Compact => Self::Compact,
            Policy::ForceCompact => Self::ForceCompact,
            Policy::Tight => Self::Tight,
            Policy::ForceTight => Self::ForceTight,
            Policy::Scatter => Self::Scatter,
            Policy::All => Self::All,
        }
    }
}

impl From<common::Policy> for Policy {
    fn from(policy: common::Policy) -> Self {
        match policy {
            common::Policy::Compact => Self::Compact,
            common::Policy::ForceCompact => Self::ForceCompact,
            common::Policy::Tight => Self::Tight,
            common::Policy::ForceTight => Self::ForceTight,
            common::Policy::Scatter => Self::Scatter,
            common::Policy::All => Self::All,
        }
    }
}

impl TryFrom<common::ResourceEntry> for ResourceEntry {
    type Error = ConvertError;

    fn try_from(message: common::ResourceEntry) -> Result<Self, ConvertError> {
        Ok(Self {
            resource: name("resource", message.resource)?,
            policy: known::<common::Policy>("policy", message.policy)?.into(),
            amount: amount("amount_units", message.amount_units)?,
        })
    }
}

impl From<&ResourceEntry> for common::ResourceEntry {
    fn from(entry: &ResourceEntry) -> Self {
        Self {
            resource: entry.resource.to_string(),
            policy: common::Policy::from(entry.policy).into(),
            amount_units: entry.amount.0,
        }
    }
}

impl TryFrom<common::ResourceRequest> for ResourceRequest {
    type Error = ConvertError;

    fn try_from(message: common::ResourceRequest) -> Result<Self, ConvertError> {
        at_most("entries", message.entries.len(), RESOURCES_MAX)?;
        Ok(Self {
            entries: each("entries", message.entries)?,
            n_nodes: message.n_nodes,
            min_time: duration(message.min_time_ns),
            weight: message.weight_units,
        })
    }
}

impl From<&ResourceRequest> for common::ResourceRequest {
    fn from(request: &ResourceRequest) -> Self {
        Self {
            entries: request
                .entries
                .iter()
                .map(common::ResourceEntry::from)
                .collect(),
            n_nodes: request.n_nodes,
            min_time_ns: nanos(request.min_time),
            weight_units: request.weight,
        }
    }
}

/// Converts the variants in a template's `requests`.
pub(super) fn request_variants(
    field: &str,
    messages: Vec<common::ResourceRequest>,
) -> Result<RequestVariants, ConvertError> {
    at_most(field, messages.len(), VARIANTS_MAX)?;
    let variants = each(field, messages)?;
    RequestVariants::new(variants).map_err(|error| ConvertError::rule(field, error))
}
