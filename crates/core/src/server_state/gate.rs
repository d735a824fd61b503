//! Nothing reveals a stored change before it is on disk: what follows from a change waits here.
//!
//! This decides what waits for what, and keeps it in order; it knows no store. `StoreGate` of the server (its module `gate`)
//! owns a [`Gate`], hands the changes to the store and says here how far the store has come; the simulation does the same
//! with its disk.
//!
//! What goes to workers waits for changes that somebody was promised
//! ([`ChangeKind::is_urgent`](super::ChangeKind::is_urgent)), which are committed at once: a worker must
//! not run tasks of a submit that a crash would undo. Work that goes on from where other workers ended waits for those ends
//! as well. What is sent to one worker stays in order. What tells of results (replies, updates, acknowledgements of reports)
//! waits for every earlier change, in a queue of its own.

use std::collections::{BTreeMap, VecDeque};

use super::{Change, Effect, WorkerCommand};
use crate::id::WorkerId;

/// Commit that a message has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// None, also not those of messages before it: a sign of life says nothing of what is stored.
    Nothing,
    /// Changes that somebody was promised, and what this worker is sent before it.
    Promised(WorkerId),
    /// Ends of tasks on account of which others can run as well.
    Ends(WorkerId),
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
            Self::ToWorker(
                worker,
                WorkerCommand::Assign {
                    follows_others: true,
                    ..
                },
            ) => Wait::Ends(*worker),
            Self::Registered { worker, .. }
            | Self::ToWorker(worker, _)
            | Self::DropWorker(worker) => Wait::Promised(*worker),
            Self::Persist(_) => Wait::Nothing,
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
    /// Numbers of the last batch, of the last one with an urgent change, and of the last one with an end that frees tasks.
    last: u64,
    last_urgent: u64,
    last_end: u64,
    /// By the batch that each waits for, then in order.
    to_workers: BTreeMap<(u64, u64), T>,
    /// How many were put there.
    position: u64,
    /// What the last message to each worker waits for; those that wait for nothing may be missing.
    behind: BTreeMap<WorkerId, u64>,
    for_all: VecDeque<(u64, T)>,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self {
            committed: 0,
            last: 0,
            last_urgent: 0,
            last_end: 0,
            to_workers: BTreeMap::new(),
            position: 0,
            behind: BTreeMap::new(),
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
        if changes.iter().any(|change| change.kind.frees_tasks()) {
            self.last_end = number;
        }
    }

    /// Gives the message back if it may go now; otherwise keeps it.
    pub fn pass(&mut self, wait: Wait, message: T) -> Option<T> {
        match wait {
            Wait::Nothing => Some(message),
            Wait::Promised(worker) => self.pass_to(worker, self.last_urgent, message),
            Wait::Ends(worker) => {
                self.pass_to(worker, self.last_urgent.max(self.last_end), message)
            }
            // Also what waits for nothing must not overtake what was passed before it.
            Wait::All if self.for_all.is_empty() && self.last <= self.committed => Some(message),
            Wait::All => {
                self.for_all.push_back((self.last, message));
                None
            }
        }
    }

    fn pass_to(&mut self, worker: WorkerId, number: u64, message: T) -> Option<T> {
        let behind = self.behind.get(&worker).copied().unwrap_or(0);
        let number = number.max(behind);
        let first = self.to_workers.first_key_value();
        // What may go by now was not taken yet, and can be for this worker.
        let is_behind = first.is_some_and(|((first, _), _)| *first <= self.committed);
        if number <= self.committed && !is_behind {
            return Some(message);
        }
        self.behind.insert(worker, number);
        self.position += 1;
        self.to_workers.insert((number, self.position), message);
        None
    }

    /// Whether a commit is due that a message waits for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.to_workers.is_empty() || !self.for_all.is_empty()
    }

    /// Everything up to this batch is on disk; [`Gate::next_ready`] gives what may go.
    pub const fn advance(&mut self, committed: u64) {
        self.committed = committed;
    }

    /// A message that may go meanwhile.
    pub fn next_ready(&mut self) -> Option<T> {
        if let Some(first) = self.to_workers.first_entry()
            && first.key().0 <= self.committed
        {
            let message = first.remove();
            if self.to_workers.is_empty() {
                self.behind.clear();
            }
            return Some(message);
        }
        let ready = self.for_all.pop_front_if(|(n, _)| *n <= self.committed);
        ready.map(|(_, message)| message)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use crate::id::{InstanceId, JobId, TaskId, TaskKey};
    use crate::outcome::{Outcome, Usage};
    use crate::server_state::{ChangeKind, EndAwaited, Reply, RequestId, WatchUpdate};
    use crate::task::TaskEnd;
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
        let to_worker = Wait::Promised(WorkerId(1));
        assert_eq!(gate.pass(to_worker, "to a worker"), Some("to a worker"));
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
            assert_eq!(gate.pass(Wait::Promised(WorkerId(1)), number), None);
        }
        gate.advance(3);
        // Effects that arrive before the others were taken go behind them.
        assert_eq!(gate.pass(Wait::Promised(WorkerId(1)), 4), None);
        let left = std::iter::from_fn(|| gate.next_ready());
        assert_eq!(left.collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(gate.pass(Wait::Promised(WorkerId(1)), 5), Some(5));
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

    fn end(awaited: EndAwaited) -> Change {
        let end = TaskEnd {
            outcome: Outcome::Finished,
            at: Timestamp::default(),
            run: Duration::ZERO,
            usage: Usage::default(),
        };
        let kind = ChangeKind::TaskEnded {
            task: TaskKey::new(JobId(1), TaskId(1)),
            instance: InstanceId(0),
            worker: WorkerId(1),
            crash_count: 0,
            end,
            is_finished: true,
            awaited,
        };
        Change {
            at: Timestamp::default(),
            kind,
        }
    }

    #[test]
    fn only_work_that_follows_an_end_elsewhere_waits_for_it() {
        let (here, elsewhere) = (WorkerId(1), WorkerId(2));
        let mut gate = Gate::default();
        gate.note(1, &[end(EndAwaited::ByTasks)]);
        assert_eq!(gate.pass(Wait::Promised(here), "next"), Some("next"));
        assert_eq!(gate.pass(Wait::Ends(elsewhere), "join"), None);
        // It may be about the tasks of the message before it.
        assert_eq!(gate.pass(Wait::Promised(elsewhere), "kill"), None);
        assert_eq!(gate.pass(Wait::Promised(here), "kill"), Some("kill"));
        gate.advance(1);
        let left = std::iter::from_fn(|| gate.next_ready());
        assert_eq!(left.collect::<Vec<_>>(), ["join", "kill"]);
        assert_eq!(gate.pass(Wait::Ends(elsewhere), "join"), Some("join"));
        gate.note(2, &[end(EndAwaited::No)]);
        assert_eq!(gate.pass(Wait::Ends(elsewhere), "join"), Some("join"));
        gate.note(3, &[end(EndAwaited::ByJobs)]);
        assert_eq!(gate.pass(Wait::Promised(here), "job"), None, "of a job");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Note(Option<EndAwaited>),
        Pass { worker: u32, follows: bool },
        Advance(u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let awaited = prop_oneof![
            Just(None),
            Just(Some(EndAwaited::No)),
            Just(Some(EndAwaited::ByTasks)),
            Just(Some(EndAwaited::ByJobs)),
        ];
        prop_oneof![
            awaited.prop_map(Step::Note),
            (0..3_u32, any::<bool>()).prop_map(|(worker, follows)| Step::Pass { worker, follows }),
            (0..4_u64).prop_map(Step::Advance),
            (0..4_usize).prop_map(Step::Take),
        ]
    }

    proptest! {
        /// Whatever comes in between: each worker gets all that is for it in order, and nothing ahead of what it waits for.
        #[test]
        fn what_goes_to_a_worker_stays_in_order_behind_its_commits(steps in vec(step(), 1..60)) {
            let mut gate = Gate::default();
            let (mut last, mut committed, mut promised, mut ended) = (0, 0, 0, 0);
            let mut sent = 0_u64;
            let mut got = BTreeMap::<u32, Vec<u64>>::new();
            let mut check = |committed, (worker, number, needs): (u32, u64, u64)| {
                assert!(needs <= committed, "it came ahead of batch {needs}");
                got.entry(worker).or_default().push(number);
            };
            let rest = [Step::Advance(u64::MAX), Step::Take(usize::MAX)];
            for step in steps.into_iter().chain(rest) {
                match step {
                    Step::Note(awaited) => {
                        last += 1;
                        match awaited {
                            Some(EndAwaited::ByJobs) => promised = last,
                            Some(EndAwaited::ByTasks) => ended = last,
                            Some(EndAwaited::No) | None => {}
                        }
                        let changes: Vec<Change> = awaited.map(end).into_iter().collect();
                        gate.note(last, &changes);
                    }
                    Step::Pass { worker, follows } => {
                        sent += 1;
                        let (wait, needs) = match follows {
                            true => (Wait::Ends(WorkerId(worker)), promised.max(ended)),
                            false => (Wait::Promised(WorkerId(worker)), promised),
                        };
                        if let Some(message) = gate.pass(wait, (worker, sent, needs)) {
                            check(committed, message);
                        }
                    }
                    Step::Advance(by) => {
                        committed = last.min(committed.saturating_add(by));
                        gate.advance(committed);
                    }
                    Step::Take(count) => {
                        for message in std::iter::from_fn(|| gate.next_ready()).take(count) {
                            check(committed, message);
                        }
                    }
                }
            }
            prop_assert!(!gate.is_waiting());
            prop_assert_eq!(got.values().map(Vec::len).sum::<usize>() as u64, sent);
            for (worker, numbers) in got {
                prop_assert!(numbers.is_sorted(), "to worker {worker}: {numbers:?}");
            }
        }
    }

    #[test]
    fn a_sign_of_life_waits_for_no_disk() {
        let mut gate = Gate {
            last: 1,
            last_urgent: 1,
            ..Gate::default()
        };
        assert_eq!(gate.pass(Wait::Promised(WorkerId(1)), "work"), None);
        assert_eq!(gate.pass(Wait::Nothing, "ping"), Some("ping"));
        gate.advance(1);
        assert_eq!(gate.next_ready(), Some("work"));
    }
}
