//! Resources that workers offer and tasks request.

use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{
    CouplingWeight, ResourceDescriptor, ResourceItem, ResourceKind,
};
use hq_core::resource::request::{
    Policy, RequestVariants, ResourceEntry, ResourceRequest, VARIANTS_MAX,
};

use super::wire::{FromWire, ToWire, each, field, list, received, same_enum, wire};
use super::{ConvertError, Within, at_most, known, name, required};
use crate::common;

/// The maximum number of pools of a worker and of resources in a request.
pub(super) const RESOURCES_MAX: usize = 1 << 10;

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
        let items: Vec<ResourceItem> = each(RESOURCES_MAX)("items", message.items)?;
        let coupling = each(COUPLINGS_MAX)("coupling", message.coupling)?;
        // Couplings refer to positions in the sorted list of pools.
        if items.windows(2).any(|pair| pair[0].name > pair[1].name) {
            let expected = "pools sorted by name";
            return Err(ConvertError::invalid("items", expected, "another order"));
        }
        Self::new(items, coupling).map_err(|error| ConvertError::rule("items", error))
    }
}

impl From<&ResourceDescriptor> for common::ResourceDescriptor {
    fn from(descriptor: &ResourceDescriptor) -> Self {
        Self {
            items: descriptor.items.to_wire(),
            coupling: descriptor.coupling.to_wire(),
        }
    }
}

field!(ResourceDescriptor = common::ResourceDescriptor);

wire! {
    CouplingWeight = common::CouplingWeight { resource1, group1, resource2, group2, weight, }
}

wire! { ResourceItem = common::ResourceItem { kind, name: name, } }

impl FromWire<Option<common::resource_item::Kind>> for ResourceKind {
    fn from_wire(
        field: &str,
        found: Option<common::resource_item::Kind>,
    ) -> Result<Self, ConvertError> {
        use common::resource_item::Kind;
        Ok(match required(found, field)? {
            Kind::List(group) => Self::List(list(INDICES_MAX, name)("list", group.values)?),
            Kind::Range(common::IndexSpan { start, end }) => {
                at_most("range", end.saturating_sub(start) as usize, INDICES_MAX - 1)?;
                Self::Range { start, end }
            }
            Kind::Groups(common::IndexGroups { groups }) => {
                let count = groups.iter().map(|group| group.values.len().max(1));
                at_most("groups", count.sum(), INDICES_MAX)?;
                let names =
                    |group: common::IndexGroup| list(INDICES_MAX, name)("groups", group.values);
                Self::Groups(groups.into_iter().map(names).collect::<Result<_, _>>()?)
            }
            Kind::SumUnits(units) => Self::Sum(amount("sum_units", units)?),
        })
    }
}

impl ToWire<Option<common::resource_item::Kind>> for ResourceKind {
    fn to_wire(&self) -> Option<common::resource_item::Kind> {
        use common::resource_item::Kind;
        let group = |values: &Vec<Box<str>>| common::IndexGroup {
            values: values.to_wire(),
        };
        Some(match self {
            Self::List(values) => Kind::List(group(values)),
            Self::Range { start, end } => Kind::Range(common::IndexSpan {
                start: *start,
                end: *end,
            }),
            Self::Groups(groups) => Kind::Groups(common::IndexGroups {
                groups: groups.iter().map(group).collect(),
            }),
            Self::Sum(amount) => Kind::SumUnits(amount.0),
        })
    }
}

same_enum! { Policy = common::Policy { Compact ForceCompact Tight ForceTight Scatter All } }

wire! {
    ResourceEntry = common::ResourceEntry {
        resource: name,
        policy,
        amount = amount_units: amount,
    }
}

wire! {
    ResourceRequest = common::ResourceRequest {
        entries: each(RESOURCES_MAX),
        n_nodes,
        min_time = min_time_ns,
        weight = weight_units,
    }
}

impl FromWire<Vec<common::ResourceRequest>> for RequestVariants {
    fn from_wire(field: &str, found: Vec<common::ResourceRequest>) -> Result<Self, ConvertError> {
        Self::new(each(VARIANTS_MAX)(field, found)?)
            .map_err(|error| ConvertError::rule(field, error))
    }
}

impl ToWire<Vec<common::ResourceRequest>> for RequestVariants {
    fn to_wire(&self) -> Vec<common::ResourceRequest> {
        self.as_slice().to_wire()
    }
}
