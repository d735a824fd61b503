//! The free indices of a worker's resources, and their assignment to tasks.
//!
//! Only the worker uses this module. The server counts amounts. A pool is either a quantity (`sum`)
//! or a set of named indices in groups. It has no notion of tasks or priorities.
//!
//! Invariants: an index is granted either whole to one task, or in fractions that add up to at most
//! one. Free and granted amounts add up to the whole pool. See `docs/architecture.md`.

mod choose;
mod coupling;

use std::sync::Arc;

use super::amount::{Amount, UNITS_PER_WHOLE};
use super::descriptor::{CouplingWeight, ResourceDescriptor, ResourceKind};
use super::request::{Policy, ResourceRequest};
use super::shadow::{freed_alongside, slack};
use crate::bug;

/// The units of a complete index, in the integer type used per index.
const FULL: u32 = 10_000;
const _: () = assert!(FULL as u64 == UNITS_PER_WHOLE);

/// All pools of a worker, in the order of its descriptor.
#[derive(Clone, Debug)]
pub struct PoolSet {
    pools: Vec<Pool>,
    coupling: Option<Arc<Coupling>>,
}

/// The coupling weights of groups.
#[derive(Debug)]
struct Coupling {
    pairs: Vec<CouplingWeight>,
    /// The pools when nothing is granted.
    empty: Vec<Pool>,
}

#[derive(Clone, Debug)]
struct Pool {
    name: Box<str>,
    total_units: u64,
    free_units: u64,
    kind: PoolKind,
}

#[derive(Clone, Debug)]
enum PoolKind {
    Sum,
    Indexed(IndexedPool),
}

#[derive(Clone, Debug)]
struct IndexedPool {
    /// The names of all indices, group by group.
    names: Vec<Box<str>>,
    /// The free units of each index.
    free: Vec<u32>,
    /// The group of each index.
    group_of: Vec<u32>,
    groups: Vec<Group>,
}

/// One group: a contiguous run of indices of its pool.
#[derive(Clone, Debug)]
struct Group {
    start: u32,
    size: u32,
    /// One bit per index of the group, set if the index is completely free.
    whole_bits: Vec<u64>,
    /// The number of completely free indices.
    whole: u32,
    /// The partly free indices, numbered as in the pool.
    partial: Vec<u32>,
}

/// A request in terms of one worker's pools.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoolRequest {
    entries: Vec<PoolEntry>,
    /// The minimum coupling weight of the chosen groups. `None` if coupling does not matter.
    coupling_min: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct PoolEntry {
    pool: u32,
    policy: Policy,
    /// The amount. For [`Policy::All`], the total of the pool.
    units: u64,
    /// The maximum number of groups that the choice may span. Only for forced policies.
    groups_max: u32,
}

/// The resources that one running instance holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// One entry per requested resource, in the order of the request.
    pub entries: Vec<GrantEntry>,
}

/// The part of one resource that one running instance holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantEntry {
    /// The position of the resource in the worker's descriptor.
    pub pool: u32,
    /// The granted amount.
    pub amount: Amount,
    /// The granted indices, with a fractional one last. Empty for a sum.
    pub indices: Vec<GrantedIndex>,
}

/// A granted index, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedIndex {
    /// The position of the index in its pool; see [`PoolSet::index_name`].
    pub index: u32,
    /// The granted units, 1 to 10 000.
    pub units: u32,
}

/// Free amounts that are withheld for blocked requests. Valid within one scheduling round.
#[derive(Clone, Debug, Default)]
pub struct Reservation {
    /// The reserved units of each pool.
    units: Vec<u64>,
}

impl Reservation {
    /// Removes all reservations.
    pub fn clear(&mut self) {
        self.units.clear();
    }

    /// Moves all reservations of `other` into this one.
    pub fn absorb(&mut self, other: &mut Reservation) {
        for (pool, units) in other.units.iter().enumerate() {
            self.add(pool, *units);
        }
        other.clear();
    }

    fn add(&mut self, pool: usize, units: u64) {
        if self.units.len() <= pool {
            self.units.resize(pool + 1, 0);
        }
        self.units[pool] = self.units[pool].saturating_add(units);
    }

    fn of(&self, pool: u32) -> u64 {
        self.units.get(pool as usize).copied().unwrap_or(0)
    }
}

impl PoolSet {
    /// Creates the pools of a worker with everything free.
    #[must_use]
    pub fn new(descriptor: &ResourceDescriptor) -> Self {
        let pools = descriptor.items.iter().map(|item| {
            let total = item.kind.total().0;
            let kind = match &item.kind {
                ResourceKind::Sum(_) => PoolKind::Sum,
                ResourceKind::List(_) | ResourceKind::Range { .. } | ResourceKind::Groups(_) => {
                    PoolKind::Indexed(IndexedPool::new(item.kind.indices()))
                }
            };
            Pool {
                name: item.name.clone(),
                total_units: total,
                free_units: total,
                kind,
            }
        });
        let pools: Vec<Pool> = pools.collect();
        let coupling = (!descriptor.coupling.is_empty()).then(|| {
            Arc::new(Coupling {
                pairs: descriptor.coupling.clone(),
                empty: pools.clone(),
            })
        });
        Self { pools, coupling }
    }

    /// Translates a request. Returns `None` if this worker could not serve it even when empty.
    #[must_use]
    pub fn compile(&self, request: &ResourceRequest) -> Option<PoolRequest> {
        let mut entries = Vec::with_capacity(request.entries.len());
        for entry in &request.entries {
            let index = self
                .pools
                .iter()
                .position(|pool| pool.name == entry.resource)?;
            let pool = &self.pools[index];
            let units = entry.units().unwrap_or(pool.total_units);
            if units == 0 || !pool.could_ever_serve(units) {
                return None;
            }
            let groups_max = pool.groups_max(entry.policy, units);
            let pool = u32::try_from(index).ok()?;
            entries.push(PoolEntry {
                pool,
                policy: entry.policy,
                units,
                groups_max,
            });
        }
        let coupling_min = match &self.coupling {
            Some(coupling) if coupling::is_coupled(&coupling.pairs, &entries) => {
                let best = coupling::choose(&coupling.empty, &coupling.pairs, &entries)?;
                Some(best.forced_weight())
            }
            Some(_) | None => None,
        };
        Some(PoolRequest {
            entries,
            coupling_min,
        })
    }

    /// Chooses groups for a request with coupling. Returns `None` if it cannot be served as
    /// requested.
    fn choose_coupled(&self, request: &PoolRequest) -> Option<coupling::Choice> {
        let (Some(coupling), Some(least)) = (&self.coupling, request.coupling_min) else {
            return Some(coupling::Choice::default());
        };
        coupling::choose(&self.pools, &coupling.pairs, &request.entries)
            .filter(|choice| choice.forced_weight() >= least)
    }

    /// Returns whether the request can be served now without using reserved amounts.
    #[must_use]
    pub fn fits(&self, request: &PoolRequest, reserved: &Reservation) -> bool {
        let each_fits = request.entries.iter().all(|entry| {
            let pool = &self.pools[entry.pool as usize];
            let spare = pool.free_units.saturating_sub(reserved.of(entry.pool));
            spare >= entry.units && pool.can_serve(entry)
        });
        // Without a minimum weight, coupling is only a preference.
        each_fits
            && (request.coupling_min.is_none_or(|least| least == 0)
                || self.choose_coupled(request).is_some())
    }

    /// Reserves amounts for a request that does not fit, so that later requests leave them alone.
    /// `held` contains the grants of running instances.
    ///
    /// If the request could be served, reserves its amount. Otherwise, reserves everything free
    /// that it may need, no matter which running instances end first.
    pub fn reserve<'a>(
        &self,
        request: &PoolRequest,
        reserved: &mut Reservation,
        held: impl Iterator<Item = &'a Grant> + Clone,
    ) {
        let spare_of = |entry: &PoolEntry, reserved: &Reservation| {
            let free = self.pools[entry.pool as usize].free_units;
            free.saturating_sub(reserved.of(entry.pool))
        };
        let amount_of = |grant: &Grant, pool: u32| {
            let entries = grant.entries.iter().filter(|entry| entry.pool == pool);
            entries.map(|entry| entry.amount.0).sum::<u64>()
        };
        let lacking: Vec<(u32, u64)> = request
            .entries
            .iter()
            .map(|entry| {
                let spare = spare_of(entry, reserved);
                (entry.pool, entry.units.saturating_sub(spare))
            })
            .filter(|(_, missing)| *missing > 0)
            .collect();
        for entry in &request.entries {
            let pool = &self.pools[entry.pool as usize];
            let spare = spare_of(entry, reserved);
            let units = if spare >= entry.units && pool.can_serve(entry) {
                let beside = lacking.iter().map(|(short, missing)| {
                    let held = held
                        .clone()
                        .map(|grant| (amount_of(grant, *short), amount_of(grant, entry.pool)));
                    freed_alongside(*missing, held)
                });
                entry.units.saturating_sub(beside.max().unwrap_or(0))
            } else {
                let missing = entry.units.saturating_sub(spare);
                let held = held.clone().flat_map(|grant| &grant.entries);
                let held = held.filter(|held| held.pool == entry.pool);
                spare.saturating_sub(slack(missing, held.map(|held| (held.amount.0, 1))))
            };
            reserved.add(entry.pool as usize, units);
        }
    }

    /// Takes everything that is requested. Returns `None`, without taking anything, if some of it
    /// is not free.
    pub fn take(&mut self, request: &PoolRequest) -> Option<Grant> {
        if !self.fits(request, &Reservation::default()) {
            return None;
        }
        let mut grant = Grant {
            entries: Vec::with_capacity(request.entries.len()),
        };
        let mut groups = self.choose_coupled(request)?.groups.into_iter();
        for entry in &request.entries {
            let groups = groups.next().flatten();
            match self.pools[entry.pool as usize].take(entry, groups) {
                Some(indices) => {
                    let amount = Amount(entry.units);
                    grant.entries.push(GrantEntry {
                        pool: entry.pool,
                        amount,
                        indices,
                    });
                }
                None => {
                    // This cannot happen after `fits`. The grant is released so that nothing leaks.
                    debug_assert!(false, "a pool refused what it said it can serve");
                    self.release(&grant);
                    return None;
                }
            }
        }
        Some(grant)
    }

    /// Releases a grant.
    pub fn release(&mut self, grant: &Grant) {
        for entry in &grant.entries {
            let Some(pool) = self.pools.get_mut(entry.pool as usize) else {
                bug!(
                    "a grant has something of pool {}, which is not there",
                    entry.pool
                );
                continue;
            };
            pool.release(entry);
        }
    }

    /// Returns whether nothing is granted.
    #[must_use]
    pub fn is_all_free(&self) -> bool {
        self.pools
            .iter()
            .all(|pool| pool.free_units == pool.total_units)
    }

    /// Returns the free amount of the pool at this position, or zero if there is none.
    #[must_use]
    pub fn free(&self, pool: u32) -> Amount {
        Amount(
            self.pools
                .get(pool as usize)
                .map_or(0, |pool| pool.free_units),
        )
    }

    /// Returns the size of the pool at this position, or zero if there is none.
    #[must_use]
    pub fn total(&self, pool: u32) -> Amount {
        Amount(
            self.pools
                .get(pool as usize)
                .map_or(0, |pool| pool.total_units),
        )
    }

    /// Returns the position of the pool with this name.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<u32> {
        let index = self.pools.iter().position(|pool| &*pool.name == name)?;
        u32::try_from(index).ok()
    }

    /// Returns the name of a pool.
    #[must_use]
    pub fn name(&self, pool: u32) -> &str {
        self.pools.get(pool as usize).map_or("", |pool| &pool.name)
    }

    /// Returns the name of an index of a pool.
    #[must_use]
    pub fn index_name(&self, pool: u32, index: u32) -> &str {
        match self.pools.get(pool as usize).map(|pool| &pool.kind) {
            Some(PoolKind::Indexed(indexed)) => {
                indexed.names.get(index as usize).map_or("", |name| name)
            }
            Some(PoolKind::Sum) | None => "",
        }
    }
}

impl Pool {
    fn could_ever_serve(&self, units: u64) -> bool {
        match &self.kind {
            PoolKind::Sum => units <= self.total_units,
            PoolKind::Indexed(indexed) => {
                units.div_ceil(UNITS_PER_WHOLE) <= indexed.free.len() as u64
            }
        }
    }

    /// Returns the minimum number of groups that the empty pool needs. Only for forced policies.
    fn groups_max(&self, policy: Policy, units: u64) -> u32 {
        match &self.kind {
            PoolKind::Indexed(indexed) if coupling::is_forced(policy) => {
                indexed.groups_needed_when_empty(units.div_ceil(UNITS_PER_WHOLE))
            }
            PoolKind::Sum | PoolKind::Indexed(_) => u32::MAX,
        }
    }

    fn can_serve(&self, entry: &PoolEntry) -> bool {
        if entry.units > self.free_units {
            return false;
        }
        match &self.kind {
            PoolKind::Sum => true,
            PoolKind::Indexed(indexed) => indexed.can_serve(entry),
        }
    }

    fn take(&mut self, entry: &PoolEntry, groups: Option<Vec<usize>>) -> Option<Vec<GrantedIndex>> {
        let indices = match &mut self.kind {
            PoolKind::Sum => Vec::new(),
            PoolKind::Indexed(indexed) => indexed.take(entry, groups)?,
        };
        self.free_units = self.free_units.checked_sub(entry.units)?;
        Some(indices)
    }

    fn release(&mut self, entry: &GrantEntry) {
        if let PoolKind::Indexed(indexed) = &mut self.kind {
            for granted in &entry.indices {
                indexed.give_back(*granted);
            }
        }
        self.free_units = (self.free_units + entry.amount.0).min(self.total_units);
    }
}

impl IndexedPool {
    fn new(groups: Vec<Vec<Box<str>>>) -> Self {
        let mut pool = Self {
            names: Vec::new(),
            free: Vec::new(),
            group_of: Vec::new(),
            groups: Vec::new(),
        };
        for (group, names) in groups.into_iter().enumerate() {
            let size = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let start = u32::try_from(pool.names.len()).unwrap_or(u32::MAX);
            pool.group_of.extend(
                names
                    .iter()
                    .map(|_| u32::try_from(group).unwrap_or(u32::MAX)),
            );
            pool.names.extend(names);
            pool.groups.push(Group::new(start, size));
        }
        pool.free = vec![FULL; pool.names.len()];
        pool
    }

    /// Takes the lowest completely free index of the group, or `units` of it.
    fn take_whole(&mut self, group: usize, units: u32) -> Option<GrantedIndex> {
        let index = self.groups.get_mut(group)?.pop_whole()?;
        self.free[index as usize] = FULL - units;
        if units < FULL {
            self.groups[group].partial.push(index);
        }
        Some(GrantedIndex { index, units })
    }

    /// Takes a fraction of an index that is already partly free.
    fn take_partial(&mut self, index: u32, units: u32) -> Option<GrantedIndex> {
        let free = self.free.get_mut(index as usize)?;
        *free = free.checked_sub(units)?;
        if *free == 0 {
            let group = self.group_of[index as usize] as usize;
            self.groups[group].partial.retain(|other| *other != index);
        }
        Some(GrantedIndex { index, units })
    }

    fn give_back(&mut self, granted: GrantedIndex) {
        let Some(free) = self.free.get_mut(granted.index as usize) else {
            return;
        };
        let before = *free;
        *free = (before + granted.units).min(FULL);
        let group = &mut self.groups[self.group_of[granted.index as usize] as usize];
        match (before, *free) {
            (FULL, _) => {}
            (0, FULL) => group.push_whole(granted.index),
            (0, _) => group.partial.push(granted.index),
            (_, FULL) => {
                group.partial.retain(|other| *other != granted.index);
                group.push_whole(granted.index);
            }
            (_, _) => {}
        }
    }
}

impl Group {
    fn new(start: u32, size: u32) -> Self {
        let mut group = Self {
            start,
            size,
            whole_bits: vec![0; (size as usize).div_ceil(64)],
            whole: 0,
            partial: Vec::new(),
        };
        for offset in 0..size {
            group.push_whole(start + offset);
        }
        group
    }

    fn push_whole(&mut self, index: u32) {
        let offset = index - self.start;
        self.whole_bits[(offset / 64) as usize] |= 1 << (offset % 64);
        self.whole += 1;
    }

    fn pop_whole(&mut self) -> Option<u32> {
        let word = self.whole_bits.iter().position(|word| *word != 0)?;
        let bit = self.whole_bits[word].trailing_zeros();
        self.whole_bits[word] &= !(1 << bit);
        self.whole -= 1;
        Some(self.start + u32::try_from(word * 64).ok()? + bit)
    }
}

#[cfg(test)]
mod tests;
