//! The table of children that are being created, are running, or have a deadline for SIGKILL.
//!
//! One rule makes signaling by process id safe: a child is removed from this table, under its lock,
//! before it is reaped. A thread that finds the child here may signal its process id and group as
//! long as the thread holds the lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::event::{MonotonicNs, Token};
use crate::label::Label;
use crate::lanes::Lane;
use crate::procfs;
use crate::sys;

/// How to end a child: send a signal, wait, then send SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Termination {
    /// The first signal, sent to the child's process group. Stopped processes are continued so that
    /// they receive the signal.
    pub signal: i32,
    /// How long to wait before all processes of the child get SIGKILL.
    pub grace: Duration,
}

impl Termination {
    /// Sends SIGKILL immediately.
    pub const KILL: Self = Self {
        signal: libc::SIGKILL,
        grace: Duration::ZERO,
    };

    const fn is_hard(self) -> bool {
        self.signal == libc::SIGKILL || self.grace.is_zero()
    }
}

/// Identifies a slot of the table and one of its successive occupants.
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

/// A child that is executing its program.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) token: Token,
    pub(crate) pid: libc::pid_t,
    /// `None` if `waiter.rs` waits for the child.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) started: MonotonicNs,
    /// Whether the child leads its own process group.
    pub(crate) leader: bool,
    pub(crate) marker: Option<Vec<u8>>,
    /// The label that its descendants inherit; see `label.rs`.
    pub(crate) label: Option<Label>,
    /// The lane whose next request waits for this child to exit.
    pub(crate) lane: Option<Lane>,
    /// How long the event of its exit may wait if another child of its lane follows. `None` stands
    /// for the default time.
    pub(crate) event_delay: Option<Duration>,
    /// Whether SIGKILL was sent while the child was being created. That signal reached only the
    /// child and none of its descendants.
    pub(crate) killed_early: bool,
}

impl Running {
    /// Returns the id to signal: the process group if the child leads one.
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

/// The child that a spawner thread is currently creating, for threads that need to end it.
///
/// The kernel writes the number of the child's pidfd before the child runs, while the spawner
/// thread sleeps until the child's exec. A child that hangs before its exec (opening a FIFO, or a
/// file on a server that does not respond) can be killed through the pidfd. The descriptor is
/// closed only after the child has left the table of children, and the number is cleared before the
/// next child enters the table. A thread that finds the child in the table, under its lock,
/// therefore uses the right descriptor.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The number of the pidfd, or -1 if there is none.
    pidfd: AtomicI32,
    /// Whether the process was terminated while it was being created. If it does not exist yet, it
    /// must not be created.
    cancelled: AtomicBool,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            pidfd: AtomicI32::new(-1),
            cancelled: AtomicBool::new(false),
        }
    }
}

impl InFlight {
    /// Returns the address where the kernel writes the number.
    pub(crate) const fn as_ptr(&self) -> *mut i32 {
        self.pidfd.as_ptr()
    }

    /// Returns the number, or -1 if there is none.
    pub(crate) fn pidfd(&self) -> RawFd {
        self.pidfd.load(Ordering::Acquire)
    }

    /// Clears the number before a new process is created.
    pub(crate) fn forget(&self) {
        self.pidfd.store(-1, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Creates the state that an earlier child left behind, with its number.
    #[cfg(test)]
    fn stale(pidfd: RawFd) -> Self {
        Self {
            pidfd: AtomicI32::new(pidfd),
            cancelled: AtomicBool::new(true),
        }
    }

    fn kill(&self) {
        let fd = self.pidfd();
        if fd >= 0 {
            sys::pidfd_kill_raw(fd);
        }
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    /// Whether a deadline is set to check that SIGKILL has ended the child.
    is_doomed: bool,
}

/// The action on a child at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Sends SIGKILL.
    Kill,
    /// Reports the child as unkillable if it still exists.
    Report,
}

/// The actions that are due. The buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct DueActions {
    /// The running children that get SIGKILL.
    pub(crate) kill: Vec<Key>,
    /// The children that SIGKILL did not end, with their process ids if known.
    pub(crate) unkillable: Vec<(Token, Option<u32>)>,
}

impl DueActions {
    pub(crate) fn clear(&mut self) {
        self.kill.clear();
        self.unkillable.clear();
    }
}

/// The interval at which a child in creation gets SIGKILL again. The first SIGKILL may have been
/// sent before the process existed.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// All children that the reaper has not taken yet.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_token: HashMap<Token, usize>,
    /// The process ids of children that were removed and have not been reaped yet.
    ending: Vec<libc::pid_t>,
    /// The deadlines of children. Some may refer to children that have ended.
    deadlines: BinaryHeap<Reverse<(Instant, Key, Step)>>,
    /// How long a child can exist after SIGKILL before it is reported.
    unkillable_after: Duration,
}

impl Table {
    pub(crate) fn new(unkillable_after: Duration) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_token: HashMap::new(),
            ending: Vec::new(),
            deadlines: BinaryHeap::new(),
            unkillable_after,
        }
    }

    /// Returns the number of children that are being created or running.
    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// Adds a child that is about to be created.
    pub(crate) fn begin(&mut self, token: Token, in_flight: Arc<InFlight>) -> Key {
        // The thread may still have the number of its last child. That child's descriptor may be in
        // use or closed, so the number may have been reused. Clear it under the lock, so that no
        // thread finds it together with this child.
        in_flight.forget();
        in_flight.cancelled.store(false, Ordering::Release);
        let state = State::Starting {
            token,
            kill: None,
            in_flight,
        };
        let index = self.free.pop().unwrap_or(self.slots.len());
        if let Some(slot) = self.slots.get_mut(index) {
            slot.state = state;
            slot.is_doomed = false;
        } else {
            self.slots.push(Slot {
                generation: 0,
                state,
                is_doomed: false,
            });
        }
        self.by_token.insert(token, index);
        Key::new(index, self.slots[index].generation)
    }

    /// Removes a child that could not be created. Returns whether it was terminated in the
    /// meantime.
    pub(crate) fn abandon(&mut self, key: Key) -> bool {
        match self.vacate(key) {
            Some(State::Starting { kill, .. }) => kill.is_some(),
            Some(State::Running(_) | State::Free) | None => false,
        }
    }

    /// Marks a child as running. Returns a termination that was requested in the meantime.
    pub(crate) fn running(&mut self, key: Key, child: Running) -> Option<Termination> {
        let slot = self.slots.get_mut(key.index())?;
        let killed_early = slot.is_doomed;
        let child = Running {
            killed_early,
            ..child
        };
        let before = std::mem::replace(&mut slot.state, State::Running(child));
        match before {
            State::Starting { kill, .. } => kill,
            State::Running(_) | State::Free => None,
        }
    }

    /// Returns the running child with this token.
    pub(crate) fn child(&self, token: Token) -> Option<&Running> {
        match &self.slots.get(*self.by_token.get(&token)?)?.state {
            State::Running(child) => Some(child),
            State::Starting { .. } | State::Free => None,
        }
    }

    /// Removes a child that has ended, before it is reaped.
    pub(crate) fn take(&mut self, key: Key) -> Option<Running> {
        if !matches!(self.slots.get(key.index())?.state, State::Running(_)) {
            return None;
        }
        match self.vacate(key)? {
            State::Running(child) => {
                self.ending.push(child.pid);
                Some(child)
            }
            State::Starting { .. } | State::Free => None,
        }
    }

    /// Marks children as reaped.
    pub(crate) fn reaped(&mut self, children: &[libc::pid_t]) {
        self.ending.retain(|pid| !children.contains(pid));
    }

    /// Returns the children that were removed and have not been reaped yet.
    pub(crate) fn ending(&self) -> &[libc::pid_t] {
        &self.ending
    }

    /// Returns whether the child is still being created.
    pub(crate) fn is_starting(&self, key: Key) -> bool {
        self.slots.get(key.index()).is_some_and(|slot| {
            u64::from(slot.generation) == key.generation()
                && matches!(slot.state, State::Starting { .. })
        })
    }

    /// Iterates over the running children.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            State::Running(child) => Some(child),
            State::Starting { .. } | State::Free => None,
        })
    }

    /// Returns the known process ids of the children that are being created.
    pub(crate) fn creating(&self) -> Vec<Option<libc::pid_t>> {
        let creating = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Starting { in_flight, .. } => Some(in_flight.pidfd()),
            State::Running(_) | State::Free => None,
        });
        creating
            .map(|pidfd| procfs::pid_of(pidfd)?.try_into().ok())
            .collect()
    }

    /// Returns the child with this key if it is running.
    pub(crate) fn get(&self, key: Key) -> Option<&Running> {
        let slot = self.slots.get(key.index())?;
        match &slot.state {
            State::Running(child) if u64::from(slot.generation) == key.generation() => Some(child),
            State::Running(_) | State::Starting { .. } | State::Free => None,
        }
    }

    /// Starts to end a child: schedules SIGKILL and returns the child and the signal to send now.
    pub(crate) fn terminate(
        &mut self,
        token: Token,
        how: Termination,
        now: Instant,
    ) -> Option<(&Running, i32)> {
        let index = *self.by_token.get(&token)?;
        let slot = self.slots.get_mut(index)?;
        let key = Key::new(index, slot.generation);
        let due = if how.is_hard() { now } else { now + how.grace };
        match &mut slot.state {
            State::Free => None,
            State::Starting {
                kill, in_flight, ..
            } => {
                in_flight.cancelled.store(true, Ordering::Release);
                // If there are several requests, immediate SIGKILL takes precedence.
                if kill.is_none_or(|earlier| !earlier.is_hard()) {
                    *kill = Some(how);
                }
                // The program could not handle a gentle signal before it runs. The creation may
                // hang forever, so SIGKILL has a deadline.
                self.deadlines.push(Reverse((due, key, Step::Kill)));
                None
            }
            State::Running(child) => {
                self.deadlines.push(Reverse((due, key, Step::Kill)));
                // The reaper sends SIGKILL, because it also finds the descendants.
                (!how.is_hard()).then_some((&*child, how.signal))
            }
        }
    }

    /// Schedules SIGKILL for all children now.
    pub(crate) fn terminate_all(&mut self, now: Instant) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            match &mut slot.state {
                State::Free => continue,
                State::Starting {
                    kill, in_flight, ..
                } => {
                    in_flight.cancelled.store(true, Ordering::Release);
                    *kill = Some(Termination::KILL);
                }
                State::Running(_) => {}
            }
            let key = Key::new(index, slot.generation);
            self.deadlines.push(Reverse((now, key, Step::Kill)));
        }
    }

    /// Appends the actions that are due to `due`, and kills children in creation that are due.
    /// Returns the time of the next action.
    pub(crate) fn due(&mut self, now: Instant, due: &mut DueActions) -> Option<Instant> {
        while let Some(Reverse((at, key, step))) = self.deadlines.peek().copied() {
            let slot = self
                .slots
                .get_mut(key.index())
                .filter(|slot| u64::from(slot.generation) == key.generation());
            let Some(slot) = slot else {
                self.deadlines.pop();
                continue;
            };
            if at > now {
                return Some(at);
            }
            self.deadlines.pop();
            match (&slot.state, step) {
                (State::Free, _) => continue,
                (State::Starting { in_flight, .. }, Step::Kill) => {
                    in_flight.kill();
                    let again = now + KILL_AGAIN;
                    self.deadlines.push(Reverse((again, key, Step::Kill)));
                }
                (State::Running(_), Step::Kill) => due.kill.push(key),
                (
                    State::Starting {
                        token, in_flight, ..
                    },
                    Step::Report,
                ) => {
                    due.unkillable
                        .push((*token, procfs::pid_of(in_flight.pidfd())));
                }
                (State::Running(child), Step::Report) => {
                    due.unkillable
                        .push((child.token, Some(child.pid.unsigned_abs())));
                }
            }
            if step == Step::Kill && !std::mem::replace(&mut slot.is_doomed, true) {
                let report = now + self.unkillable_after;
                self.deadlines.push(Reverse((report, key, Step::Report)));
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
        // If a second child with the same token has replaced this one in the map, the entry must be
        // kept.
        if self.by_token.get(&token) == Some(&key.index()) {
            self.by_token.remove(&token);
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut table = table();
        let key = table.begin(Token(1), Arc::default());
        assert!(table.take(key).is_none(), "it does not run yet");
        assert_eq!(table.running(key, running(1)), None);
        assert_eq!(table.take(key).unwrap().token, Token(1));
        assert_eq!(table.ending(), [1], "it is still a child of this process");
        table.reaped(&[1]);
        assert!(table.ending().is_empty());
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
        let mut table = table();
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
        let mut table = table();
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
        let mut due = DueActions::default();
        assert_eq!(table.due(now, &mut due), Some(now + grace));
        assert!(due.kill.is_empty());
        table.take(keys[0]);
        let later = now + grace;
        assert_eq!(table.due(later, &mut due), Some(later + UNKILLABLE_AFTER));
        assert_eq!(due.kill, [keys[1]]);
        assert!(table.terminate(Token(9), soft, now).is_none());
    }

    #[test]
    fn who_survives_sigkill_is_reported_once() {
        let mut table = table();
        let begin = Instant::now();
        let starting = table.begin(Token(1), Arc::default());
        let key = table.begin(Token(2), Arc::default());
        table.running(key, running(2));
        let dying = table.begin(Token(3), Arc::default());
        table.running(dying, running(3));
        let mut due = DueActions::default();
        for token in 1..=3 {
            table.terminate(Token(token), Termination::KILL, begin);
            table.terminate(Token(token), Termination::KILL, begin);
        }
        assert!(table.due(begin, &mut due).is_some());
        table.take(dying);
        assert_eq!(due.unkillable, []);
        let end = begin + UNKILLABLE_AFTER;
        table.due(end, &mut due);
        assert_eq!(due.unkillable, [(Token(1), None), (Token(2), Some(1))]);
        table.terminate(Token(1), Termination::KILL, end);
        table.terminate(Token(2), Termination::KILL, end);
        table.due(end + UNKILLABLE_AFTER, &mut due);
        assert_eq!(due.unkillable.len(), 2, "each is told once");
        table.abandon(starting);
        table.take(key);
        due.clear();
        assert_eq!(table.due(end + 3 * UNKILLABLE_AFTER, &mut due), None);
        assert!(due.kill.is_empty() && due.unkillable.is_empty());
    }

    #[test]
    fn a_child_in_creation_is_killed_after_its_grace_and_again_until_it_is_gone() {
        let mut table = table();
        let begin = Instant::now();
        let mut victim = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let in_flight = Arc::new(InFlight::default());
        let key = table.begin(Token(1), Arc::clone(&in_flight));
        let grace = Duration::from_secs(1);
        let signal = libc::SIGTERM;
        table.terminate(Token(1), Termination { signal, grace }, begin);
        assert!(in_flight.is_cancelled());
        let mut due = DueActions::default();
        assert_eq!(table.due(begin, &mut due), Some(begin + grace));
        // The process does not exist yet when the first action is due.
        let next = table.due(begin + grace, &mut due);
        assert_eq!(next, Some(begin + grace + KILL_AGAIN));
        let pidfd = sys::pidfd_open(victim.id().cast_signed()).unwrap();
        in_flight.pidfd.store(sys::raw(&pidfd), Ordering::Release);
        table.due(begin + grace + KILL_AGAIN, &mut due);
        assert_eq!(victim.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(table.abandon(key));
    }

    #[test]
    fn a_child_that_was_killed_before_it_was_known_to_run_is_marked() {
        let mut table = table();
        let now = Instant::now();
        for is_early in [true, false] {
            let key = table.begin(Token(1), Arc::default());
            if !is_early {
                table.running(key, running(1));
            }
            table.terminate(Token(1), Termination::KILL, now);
            table.due(now, &mut DueActions::default());
            if is_early {
                table.running(key, running(1));
            }
            assert_eq!(table.take(key).unwrap().killed_early, is_early);
        }
    }

    #[test]
    fn a_child_in_creation_is_not_taken_for_the_threads_last_one() {
        let mut table = table();
        let mut other = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pidfd = sys::pidfd_open(other.id().cast_signed()).unwrap();
        let in_flight = Arc::new(InFlight::stale(sys::raw(&pidfd)));
        table.begin(Token(1), Arc::clone(&in_flight));
        assert!(!in_flight.is_cancelled());
        let now = Instant::now();
        table.terminate(Token(1), Termination::KILL, now);
        table.terminate_all(now);
        table.due(now, &mut DueActions::default());
        // The result is only meaningful if SIGKILL was not sent earlier.
        sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGTERM).unwrap();
        assert_eq!(other.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    const UNKILLABLE_AFTER: Duration = Duration::from_secs(10);

    fn table() -> Table {
        Table::new(UNKILLABLE_AFTER)
    }

    fn running(token: u64) -> Running {
        Running {
            token: Token(token),
            pid: 1,
            pidfd: None,
            started: MonotonicNs(0),
            leader: true,
            marker: None,
            label: None,
            lane: None,
            event_delay: None,
            killed_early: false,
        }
    }

    #[test]
    fn the_end_of_all_children_is_also_that_of_those_in_creation() {
        let mut table = table();
        let now = Instant::now();
        let mut victim = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pidfd = sys::pidfd_open(victim.id().cast_signed()).unwrap();
        let in_flight = Arc::new(InFlight::default());
        let starting = table.begin(Token(1), Arc::clone(&in_flight));
        in_flight.pidfd.store(sys::raw(&pidfd), Ordering::Release);
        let key = table.begin(Token(2), Arc::default());
        table.running(key, running(2));
        table.terminate_all(now);
        assert!(in_flight.is_cancelled(), "it must not come into being");
        let mut due = DueActions::default();
        table.due(now, &mut due);
        assert_eq!(due.kill, [key]);
        assert_eq!(victim.wait().unwrap().signal(), Some(libc::SIGKILL));
        let kept = table.running(starting, running(1));
        assert_eq!(kept, Some(Termination::KILL), "should it run after all");
    }

    #[test]
    fn a_hard_end_is_planned_at_once_and_signalled_by_the_reaper_alone() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let cases = [
            (libc::SIGKILL, second, None, now),
            (libc::SIGTERM, Duration::ZERO, None, now),
            (libc::SIGTERM, second, Some(libc::SIGTERM), now + second),
        ];
        for (signal, grace, at_once, at) in cases {
            let mut table = table();
            let key = table.begin(Token(1), Arc::default());
            table.running(key, running(1));
            let sent = table.terminate(Token(1), Termination { signal, grace }, now);
            assert_eq!(sent.map(|(_, signal)| signal), at_once);
            let mut due = DueActions::default();
            let next = table.due(now, &mut due);
            assert_eq!(due.kill.contains(&key), at == now, "{signal} {grace:?}");
            assert_eq!(next.is_some_and(|next| next == at), at != now);
        }
    }

    #[test]
    fn only_children_that_run_are_listed_and_only_with_their_own_key() {
        let mut table = table();
        let first = table.begin(Token(1), Arc::default());
        let second = table.begin(Token(2), Arc::default());
        table.running(second, running(2));
        assert!(table.is_starting(first) && !table.is_starting(second));
        assert_eq!(table.creating(), [None], "its number is not known yet");
        let listed: Vec<Token> = table.iter().map(|child| child.token).collect();
        assert_eq!(listed, [Token(2)]);
        assert!(table.get(first).is_none());
        assert!(
            table
                .get(second)
                .is_some_and(|child| child.token == Token(2))
        );
        assert_eq!(table.len(), 2);
        assert!(!table.abandon(first), "it was not terminated");
        let next = table.begin(Token(3), Arc::default());
        assert!(!table.is_starting(first), "the place has another child");
        assert!(table.is_starting(next));
    }
}
