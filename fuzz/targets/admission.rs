//! Courses of arrivals, proofs and ends at a port: an occupancy does what a plain list with the rules written out does.

use std::net::IpAddr;

use hq_protocol::admission::{EntryId, Holder, Occupancy, Share, ShareFull};

/// Entries in the order of arrival at their present holder.
#[derive(Default)]
struct Model {
    here: Vec<(EntryId, Holder)>,
    /// Who waits, in order.
    waiting: Vec<(EntryId, Holder)>,
}

impl Model {
    fn count(&self, fits: impl Fn(Holder) -> bool) -> usize {
        self.here.iter().filter(|(_, holder)| fits(*holder)).count()
    }

    /// Whether one more entry has to be refused.
    fn is_full(&self, share: Share, holder: Holder) -> bool {
        let others = self.count(|one| matches!(one, Holder::Other(_)));
        let proven = others + self.count(|one| one == Holder::Owner);
        match holder {
            Holder::Stranger(_) | Holder::Silent => false,
            Holder::Other(_) => {
                self.count(|one| one == holder) >= share.each
                    || others >= share.others
                    || proven >= share.all
            }
            Holder::Owner => proven >= share.all,
        }
    }

    /// Checks that an entry had to yield to one more of this holder, and was the right one; or that none had to.
    fn check_yielded(&self, share: Share, holder: Holder, yielded: Option<EntryId>) {
        let is_same_kind = |one: Holder| match holder {
            Holder::Stranger(_) => matches!(one, Holder::Stranger(_)),
            Holder::Silent => one == Holder::Silent,
            Holder::Other(_) | Holder::Owner => false,
        };
        let kind = self.count(is_same_kind);
        let is_crowded = kind > 0 && kind >= share.unproven;
        assert_eq!(yielded.is_some(), is_crowded);
        let Some(yielded) = yielded else { return };
        let entry = self.here.iter().find(|(id, _)| *id == yielded);
        let (_, of) = *entry.expect("it was there");
        assert!(is_same_kind(of), "{of:?} yields to {holder:?}");
        let size = self.count(|one| one == of);
        for (id, other) in self.here.iter().filter(|(_, one)| is_same_kind(*one)) {
            assert!(self.count(|one| one == *other) <= size);
            assert!(*other != of || *id >= yielded, "an older one stays");
        }
    }

    fn remove(&mut self, id: EntryId) -> bool {
        let before = self.here.len() + self.waiting.len();
        self.here.retain(|(one, _)| *one != id);
        self.waiting.retain(|(one, _)| *one != id);
        self.here.len() + self.waiting.len() < before
    }

    /// Lets the owner in, else the one who has waited longest and has room.
    fn admit_waiting(&mut self, share: Share) -> Option<EntryId> {
        let has_room = |at: &usize| !self.is_full(share, self.waiting[*at].1);
        let is_owners = |at: &usize| self.waiting[*at].1 == Holder::Owner;
        let all = 0..self.waiting.len();
        let owners = all.clone().find(|at| is_owners(at) && has_room(at));
        let entry = self
            .waiting
            .remove(owners.or_else(|| all.clone().find(has_room))?);
        self.here.push(entry);
        Some(entry.0)
    }
}

fn holder(code: u8) -> Holder {
    match code % 8 {
        0..=2 => Holder::Stranger(IpAddr::from([10, 0, 0, code % 8])),
        3 => Holder::Silent,
        4..=6 => Holder::Other(u64::from(code % 8)),
        _ => Holder::Owner,
    }
}

/// Runs one input: four bytes of the share, then two for each step.
pub(crate) fn run(data: &[u8]) {
    let Some((numbers, steps)) = data.split_first_chunk::<4>() else {
        return;
    };
    let [unproven, each, others, owner] = numbers.map(|number| usize::from(number % 6));
    let share = Share {
        unproven,
        ..Share::requests(each, others, others + owner)
    };
    let (mut occupancy, mut model) = (Occupancy::new(share), Model::default());
    let mut last: EntryId = 0;
    for step in steps.chunks_exact(2) {
        let holder = holder(step[0] / 4);
        // An entry of before, which may have left.
        let id = last.saturating_sub(EntryId::from(step[1] % 16));
        match step[0] % 4 {
            0 | 1 => match occupancy.enter(holder) {
                Ok((id, yielded)) => {
                    assert!(id > last && !model.is_full(share, holder));
                    last = id;
                    model.check_yielded(share, holder, yielded);
                    yielded.map(|yielded| model.remove(yielded));
                    model.here.push((id, holder));
                }
                Err(ShareFull) => {
                    assert!(model.is_full(share, holder));
                    last = occupancy.wait(holder);
                    model.waiting.push((last, holder));
                }
            },
            2 => {
                let before = model.here.iter().find(|(one, _)| *one == id);
                let yields = |holder| matches!(holder, Holder::Stranger(_) | Holder::Silent);
                let may_change = before.is_some_and(|(_, holder)| yields(*holder));
                match occupancy.prove(id, holder) {
                    Ok(yielded) if may_change => {
                        assert!(!model.is_full(share, holder));
                        model.check_yielded(share, holder, yielded);
                        yielded.map(|yielded| model.remove(yielded));
                        if model.remove(id) {
                            model.here.push((id, holder));
                        }
                    }
                    Ok(yielded) => assert_eq!(yielded, None),
                    Err(ShareFull) => assert!(may_change && model.is_full(share, holder)),
                }
            }
            _ => assert_eq!(occupancy.leave(id), model.remove(id)),
        }
        while let Some(id) = model.admit_waiting(share) {
            assert_eq!(occupancy.admit_waiting(), Some(id));
        }
        assert_eq!(occupancy.admit_waiting(), None);
        for (id, holder) in &model.here {
            assert_eq!(occupancy.holder(*id), Some(*holder));
        }
        assert_eq!(occupancy.count(|_| true), model.here.len());
        // The owner gets the rest, regardless of the others.
        let owners = model.count(|one| one == Holder::Owner);
        assert!(owners >= owner || !model.is_full(share, Holder::Owner));
        let strangers = model.count(|one| matches!(one, Holder::Stranger(_)));
        assert!(strangers <= unproven.max(1));
    }
}
