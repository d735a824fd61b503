//! The resource requests of tasks: amounts with a policy, in one or more variants.

use std::fmt;
use std::time::Duration;

use super::amount::{Amount, UNITS_PER_WHOLE};

/// The maximum number of variants of a task.
pub const VARIANTS_MAX: usize = 32;

/// How indices are chosen when a pool has several groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Policy {
    /// Uses as few groups as currently possible, and fills them evenly.
    #[default]
    Compact,
    /// Uses only as many groups as the empty worker would need.
    ForceCompact,
    /// Uses as few groups as currently possible, and fills them one after the other.
    Tight,
    /// Like `Tight`, but uses only as many groups as the empty worker would need.
    ForceTight,
    /// Uses as many groups as possible.
    Scatter,
    /// Takes the whole pool. The amount is ignored.
    All,
}

/// A request for one resource.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceEntry {
    /// The name of the resource.
    pub resource: Box<str>,
    /// How indices are chosen.
    pub policy: Policy,
    /// The amount. Zero for [`Policy::All`].
    pub amount: Amount,
}

impl ResourceEntry {
    /// Returns whether a worker with this total amount could grant the request.
    #[must_use]
    pub fn fits(&self, total: Amount) -> bool {
        match self.units() {
            None => total > Amount::ZERO,
            Some(_) => total >= self.amount,
        }
    }

    /// Returns whether the entry asks for nothing. In a change of a task, it removes a request.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.units() == Some(0)
    }

    /// Returns the units that the entry asks for, or `None` for all units of a worker.
    pub(crate) fn units(&self) -> Option<u64> {
        (self.policy != Policy::All).then_some(self.amount.0)
    }
}

impl fmt::Display for ResourceEntry {
    /// Formats the text of `HQ_RESOURCE_REQUEST_*`, such as `2 compact`, `0.5 tight!` or `all`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = match self.policy {
            Policy::Compact => "compact",
            Policy::ForceCompact => "compact!",
            Policy::Tight => "tight",
            Policy::ForceTight => "tight!",
            Policy::Scatter => "scatter",
            Policy::All => return f.write_str("all"),
        };
        write!(f, "{} {policy}", self.amount)
    }
}

/// One variant of a task's request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceRequest {
    /// The single-node resources, `cpus` first and then by name. Empty for multi-node requests.
    pub entries: Vec<ResourceEntry>,
    /// The number of requested whole nodes. 0 for a single-node task.
    pub n_nodes: u32,
    /// The minimum remaining lifetime of the worker.
    pub min_time: Duration,
    /// The scheduling weight, in units of 1/10 000.
    pub weight: u32,
}

impl ResourceRequest {
    /// Returns a request for `count` cpus with the default policy and weight.
    #[must_use]
    pub fn cpus(count: u32) -> Self {
        let cpus = ResourceEntry {
            resource: "cpus".into(),
            policy: Policy::Compact,
            amount: Amount::whole(count),
        };
        Self {
            entries: vec![cpus],
            n_nodes: 0,
            min_time: Duration::ZERO,
            weight: u32::try_from(UNITS_PER_WHOLE).unwrap_or(u32::MAX),
        }
    }
}

/// All variants of a task's request in order of preference: at least one, and at most
/// [`VARIANTS_MAX`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestVariants(Vec<ResourceRequest>);

/// A request that violates a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no variant, or there are too many.
    #[error("a task needs between 1 and {VARIANTS_MAX} resource requests, found {0}")]
    VariantCount(usize),
    /// An amount is zero.
    #[error("Zero resources cannot be requested")]
    Zero,
    /// A variant names a resource twice.
    #[error("Resource '{0}' defined more than once")]
    Duplicate(Box<str>),
    /// A variant requests nodes together with other resources.
    #[error("a multi-node request cannot be combined with other resources")]
    NodesWithResources,
    /// A weight is zero.
    #[error("Resource weight has to be positive number")]
    Weight,
}

impl RequestVariants {
    /// Checks all rules and sorts the entries.
    ///
    /// # Errors
    ///
    /// Returns the first violated rule.
    pub fn new(mut variants: Vec<ResourceRequest>) -> Result<Self, RequestError> {
        if variants.is_empty() || variants.len() > VARIANTS_MAX {
            return Err(RequestError::VariantCount(variants.len()));
        }
        for request in &mut variants {
            normalize(request)?;
        }
        Ok(Self(variants))
    }

    /// Returns the variants, the preferred one first.
    #[must_use]
    pub fn as_slice(&self) -> &[ResourceRequest] {
        &self.0
    }

    /// Returns whether the task takes whole nodes.
    #[must_use]
    pub fn is_multi_node(&self) -> bool {
        self.0.iter().any(|request| request.n_nodes > 0)
    }
}

impl Default for RequestVariants {
    /// Returns a request for one cpu.
    fn default() -> Self {
        Self(vec![ResourceRequest::cpus(1)])
    }
}

fn normalize(request: &mut ResourceRequest) -> Result<(), RequestError> {
    if request.weight == 0 {
        return Err(RequestError::Weight);
    }
    if request.n_nodes > 0 && !request.entries.is_empty() {
        return Err(RequestError::NodesWithResources);
    }
    for entry in &mut request.entries {
        match entry.units() {
            None => entry.amount = Amount::ZERO,
            Some(0) => return Err(RequestError::Zero),
            Some(_) => {}
        }
    }
    request.entries.sort_by(|a, b| {
        (&*a.resource != "cpus", &a.resource).cmp(&(&*b.resource != "cpus", &b.resource))
    });
    for pair in request.entries.windows(2) {
        if pair[0].resource == pair[1].resource {
            return Err(RequestError::Duplicate(pair[0].resource.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_entries_as_users_write_them() {
        let mut entry = ResourceRequest::cpus(2).entries.remove(0);
        assert_eq!(entry.to_string(), "2 compact");
        entry.policy = Policy::ForceTight;
        entry.amount = Amount(5_000);
        assert_eq!(entry.to_string(), "0.5 tight!");
        entry.policy = Policy::All;
        assert_eq!(entry.to_string(), "all");
    }

    #[test]
    fn refuses_zero_duplicates_and_mixed_nodes() {
        let zero = ResourceRequest::cpus(0);
        assert_eq!(RequestVariants::new(vec![zero]), Err(RequestError::Zero));
        let mut twice = ResourceRequest::cpus(1);
        twice.entries.push(twice.entries[0].clone());
        assert_eq!(
            RequestVariants::new(vec![twice]),
            Err(RequestError::Duplicate("cpus".into()))
        );
        let mut mixed = ResourceRequest::cpus(1);
        mixed.n_nodes = 2;
        assert_eq!(
            RequestVariants::new(vec![mixed]),
            Err(RequestError::NodesWithResources)
        );
        assert_eq!(
            RequestVariants::new(Vec::new()),
            Err(RequestError::VariantCount(0))
        );
    }
}
