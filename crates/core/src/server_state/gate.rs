//! Holds messages back until the changes that they reveal are on disk.
//!
//! This module decides which message waits for which commit, and keeps the order of messages; it
//! has no access to a store. `StoreGate` in the server (module `gate`) owns a [`Gate`], passes the
//! changes to the store and reports its progress. The simulation does the same with its disk.
//!
//! Messages to workers wait for urgent changes
//! ([`ChangeKind::is_urgent`](super::ChangeKind::is_urgent)), which are committed immediately: a
//! worker must not run tasks of a submit that a crash would undo. If dependencies of a task ended
//! on other workers, the task also waits until these ends are committed. Messages that reveal
//! results (replies, updates, acknowledgements of reports) wait for every earlier change, in a
//! separate queue.
//!
//! Messages to one worker stay in order, with one exception: new tasks may overtake tasks that wait
//! for ends, and messages about tasks that were sent before, because those tasks may be among the
//! waiting ones. Otherwise a disk that takes a second per commit would keep the worker idle for a
//! second. New tasks never overtake the start or end of a connection, of a task or of the worker. A
//! task that was returned and is sent again may overtake its retraction, and is then returned once
//! more.

use std::collections::{BTreeMap, VecDeque};

use super::{AwaitedEnds, Change, ChangeKind, Effect, WorkerCommand};
use crate::autoalloc;
use crate::id::WorkerId;

/// The commit that a message has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No commit. The message may overtake earlier messages: a heartbeat reply reveals no state.
    Nothing,
    /// Urgent changes, and earlier messages to this worker.
    Promised(WorkerId),
    /// Urgent changes and earlier messages, but later tasks may overtake the message.
    Aside(WorkerId),
    /// Urgent changes, these ends, and earlier messages to this worker of kind [`Self::Promised`].
    Work(WorkerId, AwaitedEnds),
    /// Every earlier change.
    All,
}

impl Effect {
    /// Returns the commit that the effect waits for. [`Effect::Persist`] is never sent to a peer.
    #[must_use]
    pub fn wait(&self) -> Wait {
        match self {
            // This does not wait for the disk, because a worker without replies gives up the
            // connection.
            Self::ToWorker(_, WorkerCommand::Ping(forgotten)) if forgotten.is_empty() => {
                Wait::Nothing
            }
            // The worker's unacknowledged reports would be lost with it.
            Self::ToWorker(_, WorkerCommand::StopDrained)
            // A worker deletes the values of forgotten jobs.
            | Self::ToWorker(_, WorkerCommand::Ping(_))
            // The worker forgets acknowledged reports.
            | Self::ToWorker(_, WorkerCommand::Acknowledge(_))
            | Self::Reply(..)
            | Self::Notify(_)
            // A restarted server must find the allocation in its store.
            | Self::Allocate(autoalloc::Effect::Submit { .. })
            | Self::WatchUpdate(..) => Wait::All,
            Self::ToWorker(worker, WorkerCommand::Assign { awaits, .. }) => {
                Wait::Work(*worker, *awaits)
            }
            // A task is sent again only after it has been returned. No later task uses these
            // templates.
            Self::ToWorker(
                worker,
                WorkerCommand::Retract(_) | WorkerCommand::DropTemplates(_) | WorkerCommand::Hold(_),
            ) => Wait::Aside(*worker),
            Self::Registered { worker, .. }
            | Self::ToWorker(
                worker,
                WorkerCommand::Kill(_)
                | WorkerCommand::KillNow(_)
                | WorkerCommand::Signal(..)
                | WorkerCommand::TimeLimit(..)
                | WorkerCommand::Stop
                | WorkerCommand::ServerEnds,
            )
            | Self::DropWorker(worker) => Wait::Promised(*worker),
            Self::Persist(_) | Self::Free(_) | Self::Allocate(_) => Wait::Nothing,
        }
    }

    /// Returns whether the recipient is blocked until the message arrives.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        match self {
            Self::Reply(..) | Self::Allocate(autoalloc::Effect::Submit { .. }) => true,
            Self::WatchUpdate(_, update) => update.done,
            Self::Persist(_)
            | Self::Free(_)
            | Self::Notify(_)
            | Self::Allocate(_)
            | Self::Registered { .. }
            | Self::ToWorker(..)
            | Self::DropWorker(_) => false,
        }
    }
}

/// The messages that wait for commits. Batches of changes are numbered from 1.
#[derive(Clone, Debug)]
pub struct Gate<T> {
    committed: u64,
    /// The numbers of the last batch, of the last batch with an urgent change, and of the last
    /// batch with an end that releases tasks.
    last: u64,
    last_urgent: u64,
    last_end: u64,
    ended: LastEnds,
    /// The messages, ordered by the batch that each waits for and then by arrival.
    to_workers: BTreeMap<(u64, u64), T>,
    /// The number of messages that have been put there.
    position: u64,
    /// What messages to each worker wait for. Workers without waiting messages may be missing.
    behind: BTreeMap<WorkerId, Behind>,
    for_all: VecDeque<(u64, T)>,
}

/// The batches that messages to a worker wait for.
#[derive(Clone, Copy, Default, Debug)]
struct Behind {
    /// The batch for any messages.
    any: u64,
    /// The batch for messages that tasks may not overtake.
    promised: u64,
}

/// The last batch in which any task ended, and the last batch in which a task ended on a worker
/// other than that task's worker.
#[derive(Clone, Copy, Default, Debug)]
struct LastEnds {
    last: Option<(WorkerId, u64)>,
    elsewhere: u64,
}

impl LastEnds {
    fn note(&mut self, worker: WorkerId, number: u64) {
        if let Some((before, at)) = self.last
            && before != worker
        {
            self.elsewhere = at;
        }
        self.last = Some((worker, number));
    }

    /// Returns the last batch in which a task ended on a worker other than this one.
    fn elsewhere(&self, worker: WorkerId) -> u64 {
        match self.last {
            Some((last, number)) if last != worker => number,
            Some(_) | None => self.elsewhere,
        }
    }
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self {
            committed: 0,
            last: 0,
            last_urgent: 0,
            last_end: 0,
            ended: LastEnds::default(),
            to_workers: BTreeMap::new(),
            position: 0,
            behind: BTreeMap::new(),
            for_all: VecDeque::new(),
        }
    }
}

impl<T> Gate<T> {
    /// Records a batch of changes that is being written to disk. Later messages wait for it.
    pub fn note(&mut self, number: u64, changes: &[Change]) {
        self.last = number;
        for change in changes {
            if change.kind.is_urgent() {
                self.last_urgent = number;
            }
            if change.kind.frees_tasks() {
                self.last_end = number;
            }
            if let ChangeKind::TaskEnded { worker, .. } = &change.kind {
                self.ended.note(*worker, number);
            }
        }
    }

    /// Returns the message if it may be sent now. Otherwise keeps it.
    pub fn pass(&mut self, wait: Wait, message: T) -> Option<T> {
        match wait {
            Wait::Nothing => Some(message),
            Wait::Promised(worker) | Wait::Aside(worker) => {
                let mut behind = self.behind(worker);
                behind.any = self.last_urgent.max(behind.any);
                if matches!(wait, Wait::Promised(_)) {
                    behind.promised = behind.any;
                }
                self.pass_to(worker, behind.any, behind, message)
            }
            Wait::Work(worker, ends) => {
                let ends = match ends {
                    AwaitedEnds::None => 0,
                    // With many dependencies, only the last one to end releases the task. The
                    // others may have ended in any earlier batch.
                    AwaitedEnds::Elsewhere => self.last_end.min(self.ended.elsewhere(worker)),
                    AwaitedEnds::All => self.last_end,
                };
                let mut behind = self.behind(worker);
                let number = self.last_urgent.max(ends).max(behind.promised);
                behind.any = number.max(behind.any);
                self.pass_to(worker, number, behind, message)
            }
            // Even a message that waits for no commit must not overtake earlier messages.
            Wait::All if self.for_all.is_empty() && self.last <= self.committed => Some(message),
            Wait::All => {
                self.for_all.push_back((self.last, message));
                None
            }
        }
    }

    fn behind(&self, worker: WorkerId) -> Behind {
        self.behind.get(&worker).copied().unwrap_or_default()
    }

    fn pass_to(&mut self, worker: WorkerId, number: u64, behind: Behind, message: T) -> Option<T> {
        let first = self.to_workers.first_key_value();
        // Messages released by earlier commits may not have been taken yet, and may be for this
        // worker.
        let is_behind = first.is_some_and(|((first, _), _)| *first <= self.committed);
        if number <= self.committed && !is_behind {
            return Some(message);
        }
        self.behind.insert(worker, behind);
        self.position += 1;
        self.to_workers.insert((number, self.position), message);
        None
    }

    /// Returns whether a message waits for a commit.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.to_workers.is_empty() || !self.for_all.is_empty()
    }

    /// Returns whether a message to a worker waits.
    #[must_use]
    pub fn keeps_from_workers(&self) -> bool {
        !self.to_workers.is_empty()
    }

    /// Notes that all batches up to this one are on disk. [`Gate::next_ready`] returns the released
    /// messages.
    pub const fn advance(&mut self, committed: u64) {
        self.committed = committed;
    }

    /// Returns the next released message.
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
    use proptest::option;
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
        // Each of these would cost a separate sync, and no peer is blocked without it.
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
        // Effects that arrive before the others have been taken follow them.
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

    const fn awaits(worker: WorkerId, ends: AwaitedEnds) -> Wait {
        Wait::Work(worker, ends)
    }

    fn end(worker: WorkerId, awaited: EndAwaited) -> Change {
        let end = TaskEnd {
            outcome: Outcome::Finished,
            at: Timestamp::default(),
            run: Duration::ZERO,
            usage: Usage::default(),
        };
        let kind = ChangeKind::TaskEnded {
            task: TaskKey::new(JobId(1), TaskId(1)),
            instance: InstanceId(0),
            worker,
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
        let join = |worker| Wait::Work(worker, AwaitedEnds::Elsewhere);
        gate.note(1, &[end(here, EndAwaited::ByTasks)]);
        assert_eq!(gate.pass(Wait::Promised(here), "next"), Some("next"));
        // This message passes in any case, because this worker knows all uncommitted ends.
        assert_eq!(gate.pass(join(here), "join"), Some("join"));
        assert_eq!(gate.pass(join(elsewhere), "join"), None);
        // The kill may concern the tasks of the previous message.
        assert_eq!(gate.pass(Wait::Promised(elsewhere), "kill"), None);
        assert_eq!(gate.pass(Wait::Promised(here), "kill"), Some("kill"));
        gate.advance(1);
        let left = std::iter::from_fn(|| gate.next_ready());
        assert_eq!(left.collect::<Vec<_>>(), ["join", "kill"]);
        assert_eq!(gate.pass(join(elsewhere), "join"), Some("join"));
        gate.note(2, &[end(here, EndAwaited::No)]);
        assert_eq!(gate.pass(join(elsewhere), "join"), Some("join"));
        gate.note(3, &[end(here, EndAwaited::ByJobs)]);
        assert_eq!(gate.pass(Wait::Promised(here), "job"), None, "of a job");
    }

    #[test]
    fn a_join_waits_for_ends_elsewhere_that_freed_nothing_by_themselves() {
        let (here, elsewhere) = (WorkerId(1), WorkerId(2));
        let mut gate = Gate::default();
        gate.note(1, &[end(elsewhere, EndAwaited::No)]);
        gate.note(2, &[end(here, EndAwaited::ByTasks)]);
        assert_eq!(gate.pass(awaits(here, AwaitedEnds::Elsewhere), 1), None);
        assert_eq!(gate.pass(awaits(here, AwaitedEnds::All), 2), None);
        gate.advance(1);
        assert_eq!(gate.next_ready(), Some(1));
        assert_eq!(gate.next_ready(), None, "it does not keep its own");
        gate.advance(2);
        assert_eq!(gate.next_ready(), Some(2));
    }

    #[test]
    fn new_work_overtakes_work_that_waits_for_ends_and_nothing_else() {
        let worker = WorkerId(1);
        let mut gate = Gate::default();
        gate.note(1, &[end(WorkerId(2), EndAwaited::ByTasks)]);
        let new = awaits(worker, AwaitedEnds::None);
        let join = awaits(worker, AwaitedEnds::Elsewhere);
        assert_eq!(gate.pass(join, "join"), None);
        assert_eq!(gate.pass(new, "new"), Some("new"));
        assert_eq!(gate.pass(Wait::Promised(worker), "kill"), None);
        assert_eq!(gate.pass(new, "newer"), None, "behind what is no work");
        gate.advance(1);
        let left = std::iter::from_fn(|| gate.next_ready());
        assert_eq!(left.collect::<Vec<_>>(), ["join", "kill", "newer"]);
    }

    #[test]
    fn what_is_about_tasks_sent_before_stays_behind_them_and_holds_up_no_work() {
        let worker = WorkerId(1);
        let aside = [
            WorkerCommand::Retract(Vec::new()),
            WorkerCommand::DropTemplates(Vec::new()),
            WorkerCommand::Hold(true),
        ];
        for command in aside {
            let wait = Effect::ToWorker(worker, command).wait();
            let mut gate = Gate::default();
            gate.note(1, &[end(WorkerId(2), EndAwaited::ByTasks)]);
            let join = awaits(worker, AwaitedEnds::Elsewhere);
            assert_eq!(gate.pass(join, "join"), None);
            assert_eq!(gate.pass(wait, "about it"), None);
            let new = awaits(worker, AwaitedEnds::None);
            assert_eq!(gate.pass(new, "new"), Some("new"));
            gate.advance(1);
            let left = std::iter::from_fn(|| gate.next_ready());
            assert_eq!(left.collect::<Vec<_>>(), ["join", "about it"]);
        }
        for command in [
            WorkerCommand::Kill(Vec::new()),
            WorkerCommand::Stop,
            WorkerCommand::ServerEnds,
        ] {
            let wait = Effect::ToWorker(worker, command).wait();
            assert_eq!(wait, Wait::Promised(worker));
        }
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum What {
        Promised,
        Aside,
        Work(AwaitedEnds),
    }

    #[derive(Clone, Debug)]
    enum Step {
        Note(Option<(u32, EndAwaited)>),
        Pass { worker: u32, what: What },
        Advance(u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let awaited = prop_oneof![
            Just(EndAwaited::No),
            Just(EndAwaited::ByTasks),
            Just(EndAwaited::ByJobs),
        ];
        let what = prop_oneof![
            Just(What::Promised),
            Just(What::Aside),
            Just(What::Work(AwaitedEnds::None)),
            Just(What::Work(AwaitedEnds::Elsewhere)),
            Just(What::Work(AwaitedEnds::All)),
        ];
        prop_oneof![
            option::of((0..3_u32, awaited)).prop_map(Step::Note),
            (0..3_u32, what).prop_map(|(worker, what)| Step::Pass { worker, what }),
            (0..4_u64).prop_map(Step::Advance),
            (0..4_usize).prop_map(Step::Take),
        ]
    }

    proptest! {
        /// For any interleaving, each worker gets all of its messages, and none before its commit.
        /// The messages stay in order, except that tasks may come before tasks that wait for ends,
        /// or before messages about those.
        #[test]
        fn what_goes_to_a_worker_stays_in_order_behind_its_commits(steps in vec(step(), 1..60)) {
            let mut gate = Gate::default();
            let (mut last, mut committed, mut promised, mut freed) = (0, 0, 0, 0);
            let mut ended = [0; 3];
            let mut sent = 0_u64;
            type Sent = (u64, What);
            let mut got = BTreeMap::<u32, Vec<Sent>>::new();
            let mut check = |committed, (worker, message, needs): (u32, Sent, u64)| {
                assert!(needs <= committed, "it came ahead of batch {needs}");
                got.entry(worker).or_default().push(message);
            };
            let rest = [Step::Advance(u64::MAX), Step::Take(usize::MAX)];
            for step in steps.into_iter().chain(rest) {
                match step {
                    Step::Note(awaited) => {
                        last += 1;
                        match awaited {
                            Some((_, EndAwaited::ByJobs)) => promised = last,
                            Some((_, EndAwaited::ByTasks)) => freed = last,
                            Some((_, EndAwaited::No)) | None => {}
                        }
                        if let Some((worker, _)) = awaited {
                            ended[worker as usize] = last;
                        }
                        let change = awaited.map(|(worker, by)| end(WorkerId(worker), by));
                        let changes: Vec<Change> = change.into_iter().collect();
                        gate.note(last, &changes);
                    }
                    Step::Pass { worker, what } => {
                        sent += 1;
                        let id = WorkerId(worker);
                        let others = (0..3).filter(|other| *other != worker);
                        let elsewhere = others.map(|other| ended[other as usize]).max();
                        let (wait, needs) = match what {
                            What::Promised => (Wait::Promised(id), 0),
                            What::Aside => (Wait::Aside(id), 0),
                            What::Work(ends) => {
                                let needs = match ends {
                                    AwaitedEnds::None => 0,
                                    AwaitedEnds::Elsewhere => freed.min(elsewhere.unwrap_or(0)),
                                    AwaitedEnds::All => freed,
                                };
                                (Wait::Work(id, ends), needs)
                            }
                        };
                        let message = (worker, (sent, what), needs.max(promised));
                        if let Some(message) = gate.pass(wait, message) {
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
            for (worker, messages) in got {
                for (place, (number, what)) in messages.iter().enumerate() {
                    let (before, _) = messages.split_at(place);
                    let later = before.iter().filter(|(other, _)| other > number);
                    let may_overtake = |(_, other): &Sent| {
                        let is_held = !matches!(what, What::Promised | What::Work(AwaitedEnds::None));
                        matches!(other, What::Work(_)) && is_held
                    };
                    let mut wrong = later.filter(|other| !may_overtake(other));
                    prop_assert_eq!(wrong.next(), None, "to worker {}: {:?}", worker, messages);
                }
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
