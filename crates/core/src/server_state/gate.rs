//! Nothing reveals a stored change before it is on disk: what follows from a change waits here.
//!
//! This decides what waits for what, and keeps it in order; it knows no store. `StoreGate` of the server (its module `gate`)
//! owns a [`Gate`], hands the changes to the store and says here how far the store has come; the simulation does the same
//! with its disk.
//!
//! Two queues, each in order. What goes to workers waits for changes that somebody was promised
//! ([`ChangeKind::is_urgent`](super::ChangeKind::is_urgent)), which are committed at once: a worker must
//! not run tasks of a submit that a crash would undo. What tells of results (replies, updates,
//! acknowledgements of reports) waits for every earlier change.

use std::collections::VecDeque;

use super::{Change, Effect, WorkerCommand};

/// Commit that a message has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// None, also not those of messages before it: a sign of life says nothing of what is stored.
    Nothing,
    /// Changes that somebody was promised.
    Urgent,
    /// Every change that was made before.
    All,
}

impl Effect {
    /// The commit that it waits for. [`Effect::Persist`] is never sent to a peer.
    #[must_use]
    pub const fn wait(&self) -> Wait {
        match self {
            // However long the disk takes nothing: a worker that hears nothing gives the connection up.
            Self::ToWorker(_, WorkerCommand::Ping(forgotten)) if forgotten.is_empty() => {
                Wait::Nothing
            }
            // What it has told is known to nobody else when it has gone.
            Self::ToWorker(_, WorkerCommand::StopDrained)
            // A worker deletes the values of forgotten jobs.
            | Self::ToWorker(_, WorkerCommand::Ping(_))
            // And it forgets what is acknowledged.
            | Self::ToWorker(_, WorkerCommand::Acknowledge(_))
            | Self::Reply(..)
            | Self::Notify(_)
            | Self::WatchUpdate(..) => Wait::All,
            Self::Persist(_)
            | Self::Registered { .. }
            | Self::ToWorker(..)
            | Self::DropWorker(_) => Wait::Urgent,
        }
    }

    /// Whether somebody waits for just this and can do nothing before it.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        match self {
            Self::Reply(..) => true,
            Self::WatchUpdate(_, update) => update.done,
            Self::Persist(_)
            | Self::Notify(_)
            | Self::Registered { .. }
            | Self::ToWorker(..)
            | Self::DropWorker(_) => false,
        }
    }
}

/// Messages that wait for commits. Batches of changes are numbered from 1.
#[derive(Clone, Debug)]
pub struct Gate<T> {
    committed: u64,
    /// Numbers of the last batch, and of the last one with an urgent change.
    last: u64,
    last_urgent: u64,
    for_urgent: VecDeque<(u64, T)>,
    for_all: VecDeque<(u64, T)>,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self {
            committed: 0,
            last: 0,
            last_urgent: 0,
            for_urgent: VecDeque::new(),
            for_all: VecDeque::new(),
        }
    }
}

impl<T> Gate<T> {
    /// Notes a batch of changes on its way to the disk; what is passed afterwards waits for it.
    pub fn note(&mut self, number: u64, changes: &[Change]) {
        self.last = number;
        if changes.iter().any(|change| change.kind.is_urgent()) {
            self.last_urgent = number;
        }
    }

    /// Gives the message back if it may go now; otherwise keeps it.
    pub fn pass(&mut self, wait: Wait, message: T) -> Option<T> {
        let (queue, number) = match wait {
            Wait::Nothing => return Some(message),
            Wait::Urgent => (&mut self.for_urgent, self.last_urgent),
            Wait::All => (&mut self.for_all, self.last),
        };
        // Also what waits for nothing must not overtake what was passed before it.
        if queue.is_empty() && number <= self.committed {
            return Some(message);
        }
        queue.push_back((number, message));
        None
    }

    /// Whether a commit is due that a message waits for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.for_urgent.is_empty() || !self.for_all.is_empty()
    }

    /// Everything up to this batch is on disk; [`Gate::next_ready`] gives what may go.
    pub const fn advance(&mut self, committed: u64) {
        self.committed = committed;
    }

    /// A message that may go meanwhile.
    pub fn next_ready(&mut self) -> Option<T> {
        for queue in [&mut self.for_urgent, &mut self.for_all] {
            if queue
                .front()
                .is_some_and(|(number, _)| *number <= self.committed)
            {
                return queue.pop_front().map(|(_, message)| message);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::id::{JobId, WorkerId};
    use crate::server_state::{ChangeKind, Reply, RequestId, WatchUpdate};
    use crate::time::Timestamp;

    use super::*;

    #[test]
    fn an_answer_waits_for_all_and_a_message_to_a_worker_for_what_is_urgent() {
        let completed = Change {
            at: Timestamp::default(),
            kind: ChangeKind::JobCompleted(JobId(1)),
        };
        assert!(!completed.kind.is_urgent());
        let mut gate = Gate::default();
        gate.note(1, &[completed]);
        assert_eq!(gate.pass(Wait::Urgent, "to a worker"), Some("to a worker"));
        assert!(!gate.is_waiting());
        assert_eq!(gate.pass(Wait::All, "answer"), None);
        assert!(gate.is_waiting());
        gate.advance(1);
        assert_eq!(gate.next_ready(), Some("answer"));
        assert!(!gate.is_waiting());
    }

    #[test]
    fn only_answers_and_the_last_update_of_a_watch_are_awaited() {
        let update = |done| {
            let update = WatchUpdate {
                done,
                ..WatchUpdate::default()
            };
            Effect::WatchUpdate(RequestId(1), update)
        };
        let reply = Effect::Reply(RequestId(1), Reply::Submitted(JobId(1)));
        assert!(reply.is_awaited() && update(true).is_awaited());
        // Each of these would cost a sync of its own, and nobody is stopped by its absence.
        assert!(!update(false).is_awaited());
        let worker = WorkerId(1);
        assert!(!Effect::ToWorker(worker, WorkerCommand::Acknowledge(1)).is_awaited());
        assert!(!Effect::DropWorker(worker).is_awaited());
    }

    #[test]
    fn messages_leave_in_order() {
        let urgent = Change {
            at: Timestamp::default(),
            kind: ChangeKind::JobClosed(JobId(1)),
        };
        assert!(urgent.kind.is_urgent());
        let mut gate = Gate::default();
        for number in 1..=3 {
            gate.note(number, std::slice::from_ref(&urgent));
            assert_eq!(gate.pass(Wait::Urgent, number), None);
        }
        gate.advance(3);
        // Effects that arrive before the others were taken go behind them.
        assert_eq!(gate.pass(Wait::Urgent, 4), None);
        let left = std::iter::from_fn(|| gate.next_ready());
        assert_eq!(left.collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(gate.pass(Wait::Urgent, 5), Some(5));
    }

    #[test]
    fn a_message_waits_for_its_own_batch_and_for_none_behind_it() {
        let mut gate = Gate::default();
        for number in 1..=2 {
            gate.note(number, &[]);
            assert_eq!(gate.pass(Wait::All, number), None);
        }
        assert_eq!(gate.next_ready(), None);
        gate.advance(1);
        assert_eq!(gate.next_ready(), Some(1));
        assert_eq!(gate.next_ready(), None, "its batch is still on its way");
        gate.advance(2);
        assert_eq!(gate.next_ready(), Some(2));
    }

    #[test]
    fn an_acknowledgement_waits_for_all() {
        let worker = WorkerId(1);
        let acknowledge = Effect::ToWorker(worker, WorkerCommand::Acknowledge(1));
        assert_eq!(acknowledge.wait(), Wait::All);
        let ping = |forgotten| Effect::ToWorker(worker, WorkerCommand::Ping(forgotten));
        assert_eq!(ping(vec![]).wait(), Wait::Nothing);
        assert_eq!(ping(vec![JobId(1)]).wait(), Wait::All);
        let drained = Effect::ToWorker(worker, WorkerCommand::StopDrained);
        assert_eq!(drained.wait(), Wait::All);
        let done = Effect::WatchUpdate(RequestId(1), WatchUpdate::default());
        assert_eq!(done.wait(), Wait::All);
    }

    #[test]
    fn a_sign_of_life_waits_for_no_disk() {
        let mut gate = Gate {
            last: 1,
            last_urgent: 1,
            ..Gate::default()
        };
        assert_eq!(gate.pass(Wait::Urgent, "work"), None);
        assert_eq!(gate.pass(Wait::Nothing, "ping"), Some("ping"));
        gate.advance(1);
        assert_eq!(gate.next_ready(), Some("work"));
    }
}
