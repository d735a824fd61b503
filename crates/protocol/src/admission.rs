//! Shares of connections and of costly requests, so that no holder of a lesser right can shut out
//! the owner or the workers.
//!
//! Every port and every kind of costly request has an [`Occupancy`], a machine without I/O or time:
//!
//! ```text
//!            enter                 key proven              first message valid
//!   ──────▶ Stranger(address) ──────────▶ Silent ───────────────▶ Other(right) or Owner ──▶ leave
//!              │ yields to newer strangers   │ yields to newer silent ones      │ never yields
//! ```
//!
//! * At most [`Share::unproven`] strangers, and as many silent ones, are connected. A further one
//!   replaces the oldest of the address with the most strangers, or the oldest silent one.
//! * One right holds at most [`Share::each`] entries, all lesser rights together [`Share::others`],
//!   and all holders together [`Share::all`]. A further one is refused. So `all - others` entries are left for
//!   the owner.
//!
//! * A holder that is refused can wait. A free place goes to the owner first, else to the holder
//!   that has waited longest and whose share has room.
//!
//! [`Pool`] shares an occupancy between tasks, and [`port`] accepts connections into one. See
//! `docs/network.md`.

mod pool;
pub mod port;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};

pub use pool::{Permit, Pool, acting_as, actor};

/// How many entries each kind of holder can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Strangers; also: silent holders of a key.
    pub unproven: usize,
    /// Entries of one lesser right.
    pub each: usize,
    /// Entries of all lesser rights.
    pub others: usize,
    /// Entries of all rights.
    pub all: usize,
}

/// Fewest entries of a share of a port, however few descriptors there are.
const PORT_MIN: usize = 4;

impl Share {
    /// For connections inside one process.
    pub const UNLIMITED: Self = Self::requests(usize::MAX, usize::MAX, usize::MAX);

    /// A share of requests, whose holders are known.
    #[must_use]
    pub const fn requests(each: usize, others: usize, all: usize) -> Self {
        Self {
            unproven: 0,
            each,
            others,
            all,
        }
    }

    /// A share of connections: of 32 parts of the descriptors that this process may have, strangers
    /// get two and all others `parts`. A quarter of these, but at most `owner_max`, is the owner's
    /// only.
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

/// Number of descriptors that this process may have.
#[must_use]
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Holder of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Holder {
    /// A peer at this address that has proven nothing. A peer behind a relay counts for the address
    /// of the relay, which could invent others.
    Stranger(IpAddr),
    /// A peer that has a key and has sent no message.
    Silent,
    /// A lesser right: a key or token that is not the owner's, by number.
    Other(u64),
    /// The owner of the server.
    Owner,
}

impl Holder {
    /// Whether entries of this holder yield to newer ones.
    const fn yields(self) -> bool {
        match self {
            Self::Stranger(_) | Self::Silent => true,
            Self::Other(_) | Self::Owner => false,
        }
    }
}

/// Number of an entry; later ones are larger.
pub type EntryId = u64;

/// The share of this holder is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareFull;

/// Entries of one share by holder.
#[derive(Debug)]
pub struct Occupancy {
    share: Share,
    next: EntryId,
    entries: BTreeMap<EntryId, Holder>,
    by_holder: BTreeMap<Holder, BTreeSet<EntryId>>,
    /// Entries that holders wait for. The share of none of these holders has room.
    waiting: BTreeMap<Holder, BTreeSet<EntryId>>,
}

impl Occupancy {
    /// An occupancy without entries.
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

    /// Adds an entry. Returns its number, and the entry that yielded to it.
    ///
    /// # Errors
    ///
    /// [`ShareFull`] if the share of the holder is used up.
    pub fn enter(&mut self, holder: Holder) -> Result<(EntryId, Option<EntryId>), ShareFull> {
        let yielded = self.make_room(holder)?;
        self.next += 1;
        self.insert(self.next, holder);
        Ok((self.next, yielded))
    }

    /// The number of an entry that a holder who was refused waits for; [`Self::leave`] gives it up.
    pub fn wait(&mut self, holder: Holder) -> EntryId {
        self.next += 1;
        self.waiting.entry(holder).or_default().insert(self.next);
        self.next
    }

    /// Gives a free place to a holder that waits; returns its entry.
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

    /// The holder of an entry has proven more. An entry that has left, or whose right is known,
    /// does not change. Returns the entry that yielded.
    ///
    /// # Errors
    ///
    /// [`ShareFull`] if the share of the new holder is used up. The entry stays as it was.
    pub fn prove(&mut self, id: EntryId, holder: Holder) -> Result<Option<EntryId>, ShareFull> {
        match self.entries.get(&id) {
            Some(before) if before.yields() => {}
            Some(_) | None => return Ok(None),
        }
        let yielded = self.make_room(holder)?;
        // It may be the oldest itself; then it has yielded.
        if self.leave(id) {
            self.insert(id, holder);
        }
        Ok(yielded)
    }

    /// Removes an entry, or one that waits. Returns whether it was there.
    pub fn leave(&mut self, id: EntryId) -> bool {
        if let Some(holder) = self.entries.remove(&id) {
            return remove(&mut self.by_holder, holder, id);
        }
        let mut waiting = self.waiting.iter();
        let holder = waiting.find_map(|(holder, ids)| ids.contains(&id).then_some(*holder));
        holder.is_some_and(|holder| remove(&mut self.waiting, holder, id))
    }

    /// The holder of an entry; `None` = it has left.
    #[must_use]
    pub fn holder(&self, id: EntryId) -> Option<Holder> {
        self.entries.get(&id).copied()
    }

    /// Entries whose holder fits.
    #[must_use]
    pub fn count(&self, fits: impl Fn(Holder) -> bool) -> usize {
        let fitting = self.by_holder.iter().filter(|(holder, _)| fits(**holder));
        fitting.map(|(_, ids)| ids.len()).sum()
    }

    fn insert(&mut self, id: EntryId, holder: Holder) {
        self.entries.insert(id, holder);
        self.by_holder.entry(holder).or_default().insert(id);
    }

    /// Makes room for one more entry of a holder; returns the entry that yielded.
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

    /// Whether the share of a holder whose entries do not yield is used up.
    fn is_full(&self, holder: Holder) -> bool {
        let is_other = |holder| matches!(holder, Holder::Other(_));
        let is_used_up = holder != Holder::Owner
            && (self.count(|one| one == holder) >= self.share.each
                || self.count(is_other) >= self.share.others);
        is_used_up || self.count(|one| !one.yields()) >= self.share.all
    }

    /// Removes the oldest entry of the holder with the most entries, if the entries that `fits`
    /// selects have no room for one more.
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

/// Removes an entry of a holder. Returns whether it was there.
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
