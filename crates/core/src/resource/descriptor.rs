//! The resources of a worker: named pools with indices, groups of indices, or a plain quantity.

use super::amount::Amount;

/// A named pool of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceItem {
    /// The name, such as `cpus`, `mem` or `gpus/nvidia`.
    pub name: Box<str>,
    /// The kind and size.
    pub kind: ResourceKind,
}

/// The kind of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResourceKind {
    /// Named indices in one group.
    List(Vec<Box<str>>),
    /// Indices `start..=end` in one group.
    Range {
        /// The first index.
        start: u32,
        /// The last index, inclusive, which is not below `start`.
        end: u32,
    },
    /// Named indices in several groups, such as sockets or NUMA nodes. No group is empty.
    Groups(Vec<Vec<Box<str>>>),
    /// A quantity without individual items.
    Sum(Amount),
}

impl ResourceKind {
    /// Returns the total amount of the pool.
    #[must_use]
    pub fn total(&self) -> Amount {
        let whole = |n: usize| Amount::whole(u32::try_from(n).unwrap_or(u32::MAX));
        match self {
            Self::List(values) => whole(values.len()),
            Self::Range { start, end } => {
                Amount::whole(end.saturating_sub(*start).saturating_add(1))
            }
            Self::Groups(groups) => whole(groups.iter().map(Vec::len).sum()),
            Self::Sum(amount) => *amount,
        }
    }

    /// Returns the names of the indices, group by group. Empty for a sum.
    #[must_use]
    pub fn indices(&self) -> Vec<Vec<Box<str>>> {
        match self {
            Self::List(values) => vec![values.clone()],
            Self::Range { start, end } => {
                vec![
                    (*start..=*end)
                        .map(|i| i.to_string().into_boxed_str())
                        .collect(),
                ]
            }
            Self::Groups(groups) => groups.clone(),
            Self::Sum(_) => Vec::new(),
        }
    }
}

/// The coupling of two groups, with its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CouplingWeight {
    /// The position of the first resource in [`ResourceDescriptor::items`].
    pub resource1: u32,
    /// The group of the first resource.
    pub group1: u32,
    /// The position of the second resource.
    pub resource2: u32,
    /// The group of the second resource.
    pub group2: u32,
    /// The strength of the coupling, 256 by default.
    pub weight: u32,
}

/// All pools of a worker, sorted by name. Names are unique.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResourceDescriptor {
    /// The pools.
    pub items: Vec<ResourceItem>,
    /// The coupled groups.
    pub coupling: Vec<CouplingWeight>,
}

/// A descriptor that violates a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Two pools have the same name.
    #[error("Resource {0} defined twice")]
    Duplicate(Box<str>),
    /// A pool is empty.
    #[error("Resource {0} is empty")]
    Empty(Box<str>),
    /// A pool contains an index name twice.
    #[error("Invalid resource definition for {0}: GenericError(\"Non unique indices\")")]
    NonUniqueIndices(Box<str>),
    /// The cpus are a sum.
    #[error("Resource kind `sum` cannot be used with CPUs. CPUs must have identity")]
    CpusWithoutIdentity,
    /// A coupling refers to an unknown resource or group.
    #[error("coupling refers to a resource or group that does not exist")]
    BadCoupling,
}

impl ResourceDescriptor {
    /// Sorts the pools by name and checks all rules of the type.
    ///
    /// # Errors
    ///
    /// Returns the first violated rule.
    pub fn new(
        mut items: Vec<ResourceItem>,
        coupling: Vec<CouplingWeight>,
    ) -> Result<Self, DescriptorError> {
        items.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in items.windows(2) {
            if pair[0].name == pair[1].name {
                return Err(DescriptorError::Duplicate(pair[0].name.clone()));
            }
        }
        for item in &items {
            check_item(item)?;
        }
        let group_exists = |resource: u32, group: u32| {
            items
                .get(resource as usize)
                .is_some_and(|item| match &item.kind {
                    ResourceKind::Groups(groups) => (group as usize) < groups.len(),
                    ResourceKind::List(_) | ResourceKind::Range { .. } => group == 0,
                    ResourceKind::Sum(_) => false,
                })
        };
        let all_exist = coupling
            .iter()
            .all(|c| group_exists(c.resource1, c.group1) && group_exists(c.resource2, c.group2));
        if !all_exist {
            return Err(DescriptorError::BadCoupling);
        }
        Ok(Self { items, coupling })
    }

    /// Returns the resources of a worker that offers only `count` cpus. For tests and embedded use.
    #[must_use]
    pub fn cpus(count: u32) -> Self {
        let kind = ResourceKind::Range {
            start: 0,
            end: count.max(1) - 1,
        };
        Self {
            items: vec![ResourceItem {
                name: "cpus".into(),
                kind,
            }],
            coupling: Vec::new(),
        }
    }
}

fn check_item(item: &ResourceItem) -> Result<(), DescriptorError> {
    let empty = || DescriptorError::Empty(item.name.clone());
    if let ResourceKind::Sum(amount) = &item.kind {
        if &*item.name == "cpus" {
            return Err(DescriptorError::CpusWithoutIdentity);
        }
        return if *amount == Amount::ZERO {
            Err(empty())
        } else {
            Ok(())
        };
    }
    if let ResourceKind::Range { start, end } = item.kind {
        return if start > end { Err(empty()) } else { Ok(()) };
    }
    let groups = item.kind.indices();
    if groups.is_empty() || groups.iter().any(Vec::is_empty) {
        return Err(empty());
    }
    let mut names: Vec<&str> = groups.iter().flatten().map(AsRef::as_ref).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(DescriptorError::NonUniqueIndices(item.name.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, kind: ResourceKind) -> ResourceItem {
        ResourceItem {
            name: name.into(),
            kind,
        }
    }

    #[test]
    fn sorts_and_counts() {
        let list = ResourceKind::List(vec!["a".into(), "b".into()]);
        let items = vec![
            item("mem", ResourceKind::Sum(Amount(105_000))),
            item("gpus", list),
        ];
        let descriptor = ResourceDescriptor::new(items, Vec::new()).expect("valid");
        assert_eq!(&*descriptor.items[0].name, "gpus");
        assert_eq!(descriptor.items[0].kind.total(), Amount::whole(2));
        assert_eq!(descriptor.items[1].kind.total().to_string(), "10.5");
    }

    #[test]
    fn refuses_broken_rules() {
        let twice = vec![
            item("x", ResourceKind::Sum(Amount(1))),
            item("x", ResourceKind::Sum(Amount(1))),
        ];
        let same = vec![item(
            "x",
            ResourceKind::Groups(vec![vec!["1".into()], vec!["1".into()]]),
        )];
        let none = vec![item("x", ResourceKind::Sum(Amount::ZERO))];
        let cpus = vec![item("cpus", ResourceKind::Sum(Amount(5)))];
        let check = |items| ResourceDescriptor::new(items, Vec::new()).expect_err("must fail");
        assert_eq!(check(twice), DescriptorError::Duplicate("x".into()));
        assert_eq!(check(same), DescriptorError::NonUniqueIndices("x".into()));
        assert_eq!(check(none), DescriptorError::Empty("x".into()));
        assert_eq!(check(cpus), DescriptorError::CpusWithoutIdentity);
    }
}
