//! The table of children: being created, running, to be killed at some time.
//!
//! One rule makes signalling by number safe: a child is taken out of this table, under its lock, before it is
//! reaped. Whoever finds it here while holding the lock may signal its process id and group.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::event::{MonotonicNs, Token};
use crate::lanes::Lane;
use crate::sys;

/// How to end a child: a signal, some time, then SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Termination {
    /// The first signal, sent to the child's process group. Stopped processes are continued so that they see it.
    pub signal: i32,
    /// How long the child may take before everything that belongs to it gets SIGKILL.
    pub grace: Duration,
}

impl Termination {
    /// SIGKILL at once.
    pub const KILL: Self = Self {
        signal: libc::SIGKILL,
        grace: Duration::ZERO,
    };

    const fn is_hard(self) -> bool {
        self.signal == libc::SIGKILL || self.grace.is_zero()
    }
}

/// Names a place in the table and which of its successive occupants is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    fn new(index: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | (index as u64 & u64::from(u32::MAX)))
    }

    fn index(self) -> usize {
        usize::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
    }

    const fn generation(self) -> u64 {
        self.0 >> 32
    }
}

/// A child that executes its program.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) token: Token,
    pub(crate) pid: libc::pid_t,
    /// `None`: its spawner thread waits for it.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) started: MonotonicNs,
    /// Whether it leads a process group of its own.
    pub(crate) leader: bool,
    pub(crate) marker: Option<Vec<u8>>,
    /// What waits for its end.
    pub(crate) lane: Option<Lane>,
}

impl Running {
    /// The id to signal: the group when the child leads one.
    pub(crate) const fn target(&self) -> libc::pid_t {
        if self.leader { -self.pid } else { self.pid }
    }
}

#[derive(Debug)]
enum State {
    Free,
    Starting {
        token: Token,
        kill: Option<Termination>,
        in_flight: Arc<InFlight>,
    },
    Running(Running),
}

/// The pidfd of the child that a spawner thread is creating right now; -1 when there is none.
///
/// The kernel writes the number before the child runs, while the spawner thread sleeps until the child executes
/// its program. A child that hangs on the way there (opening a fifo, or a file on a dead server) can be killed
/// through it. The descriptor is closed only after the child has left the table of children, so whoever finds the
/// child there, under the table's lock, uses the right descriptor.
#[derive(Debug)]
pub(crate) struct InFlight(pub(crate) AtomicI32);

impl Default for InFlight {
    fn default() -> Self {
        Self(AtomicI32::new(-1))
    }
}

impl InFlight {
    fn kill(&self) {
        let fd = self.0.load(Ordering::Acquire);
        if fd >= 0 {
            sys::pidfd_kill_raw(fd);
        }
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
}

/// All children that have not been handed to the reaper for their last rites.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_token: HashMap<Token, usize>,
    /// When children get SIGKILL. May name children that have ended meanwhile.
    deadlines: BinaryHeap<Reverse<(Instant, Key)>>,
}

impl Table {
    /// Number of children that are being created or run.
    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// Enters a child that is about to be created.
    pub(crate) fn begin(&mut self, token: Token, in_flight: Arc<InFlight>) -> Key {
        let state = State::Starting {
            token,
            kill: None,
            in_flight,
        };
        let index = self.free.pop().unwrap_or(self.slots.len());
        if let Some(slot) = self.slots.get_mut(index) {
            slot.state = state;
        } else {
            self.slots.push(Slot {
                generation: 0,
                state,
            });
        }
        self.by_token.insert(token, index);
        Key::new(index, self.slots[index].generation)
    }

    /// Takes out a child that could not be created. Answers whether somebody asked for its end meanwhile.
    pub(crate) fn abandon(&mut self, key: Key) -> bool {
        match self.vacate(key) {
            Some(State::Starting { kill, .. }) => kill.is_some(),
            Some(State::Running(_) | State::Free) | None => false,
        }
    }

    /// The child runs. Answers with the termination that was asked for meanwhile.
    pub(crate) fn running(&mut self, key: Key, child: Running) -> Option<Termination> {
        let slot = self.slots.get_mut(key.index())?;
        let before = std::mem::replace(&mut slot.state, State::Running(child));
        match before {
            State::Starting { kill, .. } => kill,
            State::Running(_) | State::Free => None,
        }
    }

    /// Takes out a child that has ended, before it is reaped.
    pub(crate) fn take(&mut self, key: Key) -> Option<Running> {
        if !matches!(self.slots.get(key.index())?.state, State::Running(_)) {
            return None;
        }
        match self.vacate(key)? {
            State::Running(child) => Some(child),
            State::Starting { .. } | State::Free => None,
        }
    }

    /// The children that run.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            State::Running(child) => Some(child),
            State::Starting { .. } | State::Free => None,
        })
    }

    /// The child of this key, if it runs.
    pub(crate) fn get(&self, key: Key) -> Option<&Running> {
        let slot = self.slots.get(key.index())?;
        match &slot.state {
            State::Running(child) if u64::from(slot.generation) == key.generation() => Some(child),
            State::Running(_) | State::Starting { .. } | State::Free => None,
        }
    }

    /// Plans the end of a child: schedules SIGKILL and answers with the child and the signal to send now.
    pub(crate) fn terminate(
        &mut self,
        token: Token,
        how: Termination,
        now: Instant,
    ) -> Option<(&Running, i32)> {
        let index = *self.by_token.get(&token)?;
        let slot = self.slots.get_mut(index)?;
        let key = Key::new(index, slot.generation);
        match &mut slot.state {
            State::Free => None,
            State::Starting {
                kill, in_flight, ..
            } => {
                if how.is_hard() {
                    in_flight.kill();
                }
                // The hardest request counts.
                if kill.is_none_or(|earlier| !earlier.is_hard()) {
                    *kill = Some(how);
                }
                None
            }
            State::Running(child) => {
                let due = if how.is_hard() { now } else { now + how.grace };
                self.deadlines.push(Reverse((due, key)));
                // The hard signal is the reaper's business: it also finds the descendants.
                (!how.is_hard()).then_some((&*child, how.signal))
            }
        }
    }

    /// Plans SIGKILL for all children now.
    pub(crate) fn terminate_all(&mut self, now: Instant) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            match &mut slot.state {
                State::Free => {}
                State::Starting {
                    kill, in_flight, ..
                } => {
                    in_flight.kill();
                    *kill = Some(Termination::KILL);
                }
                State::Running(_) => {
                    let key = Key::new(index, slot.generation);
                    self.deadlines.push(Reverse((now, key)));
                }
            }
        }
    }

    /// Appends the children whose SIGKILL is due to `due`; answers when the next one is.
    pub(crate) fn due(&mut self, now: Instant, due: &mut Vec<Key>) -> Option<Instant> {
        while let Some(Reverse((at, key))) = self.deadlines.peek().copied() {
            if self.get(key).is_none() {
                self.deadlines.pop();
            } else if at <= now {
                self.deadlines.pop();
                due.push(key);
            } else {
                return Some(at);
            }
        }
        None
    }

    fn vacate(&mut self, key: Key) -> Option<State> {
        let slot = self.slots.get_mut(key.index())?;
        if u64::from(slot.generation) != key.generation() {
            return None;
        }
        let state = std::mem::replace(&mut slot.state, State::Free);
        let token = match &state {
            State::Free => return None,
            State::Starting { token, .. } => *token,
            State::Running(child) => child.token,
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index());
        // A token used twice at a time would have been replaced by its second child; leave that one alone.
        if self.by_token.get(&token) == Some(&key.index()) {
            self.by_token.remove(&token);
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut table = Table::default();
        let key = table.begin(Token(1), Arc::default());
        assert!(table.take(key).is_none(), "it does not run yet");
        assert_eq!(table.running(key, running(1)), None);
        assert_eq!(table.take(key).unwrap().token, Token(1));
        let next = table.begin(Token(2), Arc::default());
        table.running(next, running(2));
        assert!(table.take(key).is_none());
        assert!(table.get(key).is_none());
        assert_eq!(table.len(), 1);
        assert_eq!(table.take(next).unwrap().token, Token(2));
        assert!(table.is_empty());
    }

    #[test]
    fn a_termination_before_the_start_is_kept_and_the_hardest_wins() {
        let mut table = Table::default();
        let soft = Termination {
            signal: libc::SIGTERM,
            grace: Duration::from_secs(1),
        };
        let now = Instant::now();
        let key = table.begin(Token(1), Arc::default());
        for how in [soft, Termination::KILL, soft] {
            assert!(table.terminate(Token(1), how, now).is_none());
        }
        assert_eq!(table.running(key, running(1)), Some(Termination::KILL));
    }

    #[test]
    fn deadlines_come_due_in_order_and_forget_the_dead() {
        let mut table = Table::default();
        let now = Instant::now();
        let grace = Duration::from_secs(5);
        let soft = Termination {
            signal: libc::SIGTERM,
            grace,
        };
        let keys = [1, 2].map(|token| {
            let key = table.begin(Token(token), Arc::default());
            table.running(key, running(token));
            let (child, signal) = table.terminate(Token(token), soft, now).unwrap();
            assert_eq!((child.token, signal), (Token(token), libc::SIGTERM));
            key
        });
        let mut due = Vec::new();
        assert_eq!(table.due(now, &mut due), Some(now + grace));
        assert!(due.is_empty());
        table.take(keys[0]);
        assert_eq!(table.due(now + grace, &mut due), None);
        assert_eq!(due, [keys[1]]);
        assert!(table.terminate(Token(9), soft, now).is_none());
    }

    fn running(token: u64) -> Running {
        Running {
            token: Token(token),
            pid: 1,
            pidfd: None,
            started: MonotonicNs(0),
            leader: true,
            marker: None,
            lane: None,
        }
    }
}
