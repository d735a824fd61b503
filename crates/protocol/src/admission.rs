//! Shares of connections and of expensive requests, so that no holder of a lesser right can block
//! the owner or the workers.
//!
//! Every port and every kind of expensive request has an [`Occupancy`], a state machine without I/O
//! or a clock:
//!
//! ```text
//!            enter                 key proven              first message valid
//!   ──────▶ Stranger(address) ──────────▶ Silent ───────────────▶ Other(right) or Owner ──▶ leave
//!              │ yields to newer strangers   │ yields to newer silent ones      │ never yields
//! ```
//!
//! * At most [`Share::unproven`] strangers and as many silent holders are connected. A new stranger
//!   replaces the oldest one of the address with the most strangers, and a new silent holder
//!   replaces the oldest silent one.
//! * One right holds at most [`Share::each`] entries, all lesser rights together at most
//!   [`Share::others`], and all holders together at most [`Share::all`]. Further entries are
//!   rejected. `all - others` entries therefore remain for the owner.
//!
//! * A rejected holder can wait. A free place goes to the owner first, and otherwise to the holder
//!   that has waited longest and whose share has room.
//!
//! [`Pool`] shares an occupancy between tasks, and [`port`] accepts connections into a pool. See
//! `docs/network.md`.

mod pool;
pub mod port;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};

pub use pool::{Permit, Pool, acting_as, actor};

/// Limits of a port: the maximum numbers of entries (connections or requests) by the right of their
/// peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The maximum number of strangers, and of silent holders of a key.
    pub unproven: usize,
    /// The maximum number of entries of one lesser right.
    pub each: usize,
    /// The maximum number of entries of all lesser rights together.
    pub others: usize,
    /// The maximum number of entries of all rights together.
    pub all: usize,
}

/// The minimum number of entries in a part of a port's share, however few file descriptors there
/// are.
const PORT_MIN: usize = 4;

impl Share {
    /// For connections inside one process.
    pub const UNLIMITED: Self = Self::requests(usize::MAX, usize::MAX, usize::MAX);

    /// Creates limits for requests: per lesser right, for all lesser rights, and in total. Requests
    /// come only from peers that have proven who they are, so none is for strangers.
    #[must_use]
    pub const fn requests(each: usize, others: usize, all: usize) -> Self {
        Self {
            unproven: 0,
            each,
            others,
            all,
        }
    }

    /// Creates limits for connections. Of 32 parts of the file descriptors that this process may
    /// have, strangers get two and all other holders get `parts`. A quarter of the latter, but at
    /// most `owner_max`, is reserved for the owner.
    fn connections(descriptors: u64, unproven_max: usize, parts: u64, owner_max: usize) -> Self {
        let part = |parts: u64, max: usize| {
            let part = usize::try_from(descriptors / 32 * parts).unwrap_or(usize::MAX);
            part.clamp(PORT_MIN, max)
        };
        let all = part(parts, usize::MAX);
        let others = all - owner_max.min(all / 4);
        Self {
            unproven: part(2, unproven_max),
            each: others,
            others,
            all,
        }
    }
}

/// Returns the number of file descriptors that this process may have.
#[must_use]
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The holder of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Holder {
    /// A peer at this address that has proven nothing. A peer behind a relay counts for the address
    /// of the relay, which could otherwise invent addresses.
    Stranger(IpAddr),
    /// A peer that has proven a key but has not sent a message.
    Silent,
    /// The number of a lesser right: a key or token that is not the owner's.
    Other(u64),
    /// The owner of the server.
    Owner,
}

impl Holder {
    /// Returns whether entries of this holder yield to newer ones.
    const fn yields(self) -> bool {
        match self {
            Self::Stranger(_) | Self::Silent => true,
            Self::Other(_) | Self::Owner => false,
        }
    }
}

/// The number of an entry. Later entries have larger numbers.
pub type EntryId = u64;

/// The share of this holder is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareFull;

/// The entries of one share, by holder.
#[derive(Debug)]
pub struct Occupancy {
    share: Share,
    next: EntryId,
    entries: BTreeMap<EntryId, Holder>,
    by_holder: BTreeMap<Holder, BTreeSet<EntryId>>,
    /// The entries that holders wait for. None of these holders has room in its share.
    waiting: BTreeMap<Holder, BTreeSet<EntryId>>,
}

impl Occupancy {
    /// Creates an occupancy without entries.
    #[must_use]
    pub const fn new(share: Share) -> Self {
        Self {
            share,
            next: 0,
            entries: BTreeMap::new(),
            by_holder: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Adds an entry. Returns its number and the entry that yielded to it, if any.
    ///
    /// # Errors
    ///
    /// Returns [`ShareFull`] if the share of the holder is used up.
    pub fn enter(&mut self, holder: Holder) -> Result<(EntryId, Option<EntryId>), ShareFull> {
        let yielded = self.make_room(holder)?;
        self.next += 1;
        self.insert(self.next, holder);
        Ok((self.next, yielded))
    }

    /// Returns the number of an entry for a rejected holder to wait for. [`Self::leave`] gives it
    /// up.
    pub fn wait(&mut self, holder: Holder) -> EntryId {
        self.next += 1;
        self.waiting.entry(holder).or_default().insert(self.next);
        self.next
    }

    /// Gives a free place to a waiting holder. Returns its entry.
    pub fn admit_waiting(&mut self) -> Option<EntryId> {
        let firsts = self.waiting.iter().filter_map(|(holder, ids)| {
            let first = (*holder != Holder::Owner, *ids.first()?, *holder);
            (!self.is_full(*holder)).then_some(first)
        });
        let (_, id, holder) = firsts.min()?;
        remove(&mut self.waiting, holder, id);
        self.insert(id, holder);
        Some(id)
    }

    /// Changes the holder of an entry after it has proven more. Entries that have left and entries
    /// whose right is known do not change. Returns the entry that yielded, if any.
    ///
    /// # Errors
    ///
    /// Returns [`ShareFull`] if the share of the new holder is used up. The entry stays unchanged.
    pub fn prove(&mut self, id: EntryId, holder: Holder) -> Result<Option<EntryId>, ShareFull> {
        match self.entries.get(&id) {
            Some(before) if before.yields() => {}
            Some(_) | None => return Ok(None),
        }
        let yielded = self.make_room(holder)?;
        // If this entry was the oldest one, it has yielded itself.
        if self.leave(id) {
            self.insert(id, holder);
        }
        Ok(yielded)
    }

    /// Removes an entry, which may still be waiting. Returns whether it existed.
    pub fn leave(&mut self, id: EntryId) -> bool {
        if let Some(holder) = self.entries.remove(&id) {
            return remove(&mut self.by_holder, holder, id);
        }
        let mut waiting = self.waiting.iter();
        let holder = waiting.find_map(|(holder, ids)| ids.contains(&id).then_some(*holder));
        holder.is_some_and(|holder| remove(&mut self.waiting, holder, id))
    }

    /// Returns the holder of an entry, or `None` if the entry has left.
    #[must_use]
    pub fn holder(&self, id: EntryId) -> Option<Holder> {
        self.entries.get(&id).copied()
    }

    /// Returns the number of entries whose holder satisfies `fits`.
    #[must_use]
    pub fn count(&self, fits: impl Fn(Holder) -> bool) -> usize {
        let fitting = self.by_holder.iter().filter(|(holder, _)| fits(**holder));
        fitting.map(|(_, ids)| ids.len()).sum()
    }

    fn insert(&mut self, id: EntryId, holder: Holder) {
        self.entries.insert(id, holder);
        self.by_holder.entry(holder).or_default().insert(id);
    }

    /// Makes room for one more entry of a holder. Returns the entry that yielded, if any.
    fn make_room(&mut self, holder: Holder) -> Result<Option<EntryId>, ShareFull> {
        match holder {
            Holder::Stranger(_) => {
                Ok(self.yield_one(|holder| matches!(holder, Holder::Stranger(_))))
            }
            Holder::Silent => Ok(self.yield_one(|holder| holder == Holder::Silent)),
            Holder::Other(_) | Holder::Owner if self.is_full(holder) => Err(ShareFull),
            Holder::Other(_) | Holder::Owner => Ok(None),
        }
    }

    /// Returns whether the share of a holder whose entries do not yield is used up.
    fn is_full(&self, holder: Holder) -> bool {
        let is_other = |holder| matches!(holder, Holder::Other(_));
        let is_used_up = holder != Holder::Owner
            && (self.count(|one| one == holder) >= self.share.each
                || self.count(is_other) >= self.share.others);
        is_used_up || self.count(|one| !one.yields()) >= self.share.all
    }

    /// Removes the oldest entry of the holder with the most entries, if there is no room for
    /// another entry with a holder that satisfies `fits`.
    fn yield_one(&mut self, fits: impl Fn(Holder) -> bool) -> Option<EntryId> {
        if self.count(&fits) < self.share.unproven {
            return None;
        }
        let groups = self.by_holder.iter().filter(|(holder, _)| fits(**holder));
        let (_, ids) = groups.max_by_key(|(_, ids)| ids.len())?;
        let oldest = *ids.first()?;
        self.leave(oldest);
        Some(oldest)
    }
}

/// Removes an entry of a holder. Returns whether it existed.
fn remove(all: &mut BTreeMap<Holder, BTreeSet<EntryId>>, holder: Holder, id: EntryId) -> bool {
    let Some(ids) = all.get_mut(&holder) else {
        return false;
    };
    let was_there = ids.remove(&id);
    if ids.is_empty() {
        all.remove(&holder);
    }
    was_there
}

#[cfg(test)]
mod tests;
