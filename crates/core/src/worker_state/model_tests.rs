//! Compares random histories with a small reference model of assignments, running tasks and
//! reports.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{Bench, JOB, assign, cpus, exited_after, launches, reports, work};
use super::*;
use crate::id::InstanceId;
use crate::range::IdArray;
use crate::testing::worker_config;

const CPUS: u32 = 4;

/// The run time of tasks, which is so short that tasks are launched ahead.
const RUN: Duration = Duration::from_millis(4);

/// The state of an instance in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Waiting,
    Launched(LaunchToken),
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    cpus: u32,
    priority: i32,
    fate: Fate,
    start_reported: bool,
    /// The predecessor.
    follows: Option<InstanceKey>,
}

#[derive(Clone, Debug)]
enum Op {
    Assign {
        kind: usize,
        first: u32,
        count: u32,
        instance: u32,
    },
    /// Assigns a task with a predecessor.
    Follow {
        kind: usize,
        task: u32,
        after: (u32, u32),
    },
    Retract(Vec<(u32, u32)>),
    Kill(Vec<(u32, u32)>),
    Start(usize),
    Exit(usize, i32),
    Fail(usize, bool),
    TakeBack(usize),
    StrangeToken(u64),
    Wait(u64),
    DropTemplate(usize),
}

/// The cpus and the priority of each template.
const KINDS: [(u32, i32); 6] = [(1, 0), (2, 0), (4, 0), (1, 5), (3, 5), (5, 9)];

fn op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec((0u32..40, 0u32..2), 1..8);
    prop_oneof![
        4 => (0..KINDS.len(), 0u32..40, 1u32..8, 0u32..2)
            .prop_map(|(kind, first, count, instance)| Op::Assign { kind, first, count, instance }),
        4 => (0..KINDS.len(), 0u32..40, (0u32..40, 0u32..2))
            .prop_map(|(kind, task, after)| Op::Follow { kind, task, after }),
        2 => keys().prop_map(Op::Retract),
        1 => keys().prop_map(Op::Kill),
        4 => any::<usize>().prop_map(Op::Start),
        4 => (any::<usize>(), 0i32..3).prop_map(|(pick, code)| Op::Exit(pick, code)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(pick, transient)| Op::Fail(pick, transient)),
        1 => any::<usize>().prop_map(Op::TakeBack),
        1 => (1_000_000u64..1_000_005).prop_map(Op::StrangeToken),
        3 => (0u64..5_000_000).prop_map(Op::Wait),
        1 => (0u64..300_000_000).prop_map(Op::Wait),
        1 => (0..KINDS.len()).prop_map(Op::DropTemplate),
    ]
}

struct Model {
    bench: Bench,
    known: BTreeMap<InstanceKey, Known>,
    /// The launched instances that have not ended, and whether their starts were reported.
    live: Vec<(LaunchToken, InstanceKey, bool)>,
    /// The lane of each launch.
    lanes: BTreeMap<LaunchToken, LaunchToken>,
    /// The instances that were reported as exited with code 0.
    succeeded: BTreeSet<InstanceKey>,
    /// The launched instances that have a predecessor.
    launched_behind: BTreeMap<InstanceKey, InstanceKey>,
    /// The instances whose processes have finished.
    finished: BTreeSet<InstanceKey>,
    seen_tokens: BTreeSet<LaunchToken>,
}

impl Model {
    fn new() -> Self {
        Self {
            bench: Bench::with(&worker_config(CPUS), None),
            known: BTreeMap::new(),
            live: Vec::new(),
            lanes: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            launched_behind: BTreeMap::new(),
            finished: BTreeSet::new(),
            seen_tokens: BTreeSet::new(),
        }
    }

    fn free(&self) -> u32 {
        // The launches of one lane use the same cpus one after the other.
        let by_lane: BTreeMap<LaunchToken, u32> = self
            .live
            .iter()
            .map(|(token, key, _)| (self.lanes[token], self.known[key].cpus))
            .collect();
        CPUS - by_lane.values().sum::<u32>()
    }

    fn input(&mut self, input: Input) {
        let effects = self.bench.apply(input);
        self.check(&effects);
    }

    fn check(&mut self, effects: &[Effect]) {
        for report in reports(effects) {
            self.check_report(report);
        }
        for launch in launches(effects) {
            let known = self.known[&launch.key];
            assert_eq!(known.fate, Fate::Waiting, "{} is launched once", launch.key);
            assert!(
                !self.has_to_wait(&known),
                "{} waits for another one",
                launch.key
            );
            let shares = self
                .live
                .iter()
                .find(|(token, _, _)| self.lanes[token] == launch.lane);
            match shares {
                Some((_, other, _)) => {
                    assert_eq!(self.known[other].cpus, known.cpus, "a lane has one size");
                }
                None => assert!(known.cpus <= self.free(), "never over-commits"),
            }
            self.lanes.insert(launch.token, launch.lane);
            let better = self
                .waiting()
                .find(|other| other.priority > known.priority && other.cpus <= self.free());
            assert!(better.is_none(), "{better:?} goes before {}", launch.key);
            assert!(
                self.seen_tokens.insert(launch.token),
                "tokens are never used twice"
            );
            self.live.push((launch.token, launch.key, false));
            self.launched_behind
                .extend(known.follows.map(|after| (launch.key, after)));
            self.set(launch.key, Fate::Launched(launch.token));
        }
        if let Some(best) = self.waiting().map(|known| known.priority).max() {
            let peers = self.waiting().filter(|known| known.priority == best);
            let smallest = peers.map(|known| known.cpus).min().expect("there is one");
            assert!(
                smallest > self.free(),
                "an urgent task that fits is started"
            );
        }
    }

    /// Returns the tasks that wait and have not ended unreported.
    fn waiting(&self) -> impl Iterator<Item = &Known> {
        let here = |key: &InstanceKey| self.bench.state.knows(*key);
        let waiting = self
            .known
            .iter()
            .filter(|(_, known)| known.fate == Fate::Waiting && !self.has_to_wait(known));
        waiting
            .filter(move |(key, _)| here(key))
            .map(|(_, known)| known)
    }

    /// Returns whether the predecessor of a task has not succeeded.
    fn has_to_wait(&self, known: &Known) -> bool {
        known
            .follows
            .is_some_and(|after| !self.succeeded.contains(&after))
    }

    fn set(&mut self, key: InstanceKey, fate: Fate) {
        self.known.get_mut(&key).expect("known").fate = fate;
    }

    fn check_report(&mut self, report: &Report) {
        for row in &report.started {
            let known = self.known.get_mut(&row.key).expect("known");
            assert!(
                !std::mem::replace(&mut known.start_reported, true),
                "one start a report"
            );
            assert_ne!(known.fate, Fate::Done);
        }
        let finished = report
            .ended
            .iter()
            .filter(|row| row.outcome == Outcome::Finished);
        self.finished.extend(finished.map(|row| row.key));
        let ended = report.ended.iter().map(|row| row.key);
        for key in ended.chain(report.retracted.iter().copied()) {
            let known = self.known[&key];
            assert_ne!(known.fate, Fate::Done, "{key} ends once");
            let still_live = self.live.iter().any(|(_, live, _)| *live == key);
            assert!(!still_live, "{key} is not reported while it runs");
            self.set(key, Fate::Done);
        }
    }

    fn step(&mut self, op: Op) {
        let now = self.bench.now;
        match op {
            Op::Assign {
                kind,
                first,
                count,
                instance,
            } => {
                self.assign(kind, first, count, instance);
            }
            Op::Follow { kind, task, after } => {
                let after = InstanceKey::new(JOB, after.0, InstanceId(after.1));
                self.assign_behind(kind, task, after);
            }
            Op::Retract(keys) => self.input(Input::Retract(to_keys(&keys))),
            Op::Kill(keys) => self.input(Input::Kill(to_keys(&keys))),
            Op::Start(pick) if !self.live.is_empty() => {
                let at = pick % self.live.len();
                let token = self.live[at].0;
                self.live[at].2 = true;
                self.input(Input::Launcher(vec![LaunchEvent::Started {
                    token,
                    at: now,
                }]));
            }
            Op::Exit(pick, code) if !self.live.is_empty() => {
                let (token, key, _) = self.live.swap_remove(pick % self.live.len());
                if code == 0 {
                    self.succeeded.insert(key);
                }
                self.input(Input::Launcher(vec![exited_after(
                    RUN,
                    token,
                    ExitStatus::Code(code),
                    now,
                )]));
            }
            Op::Fail(pick, transient) if !self.live.is_empty() => {
                let (token, _, _) = self.live.swap_remove(pick % self.live.len());
                let failure = match transient {
                    true => LaunchFailure::Transient,
                    false => LaunchFailure::Permanent("x".into()),
                };
                self.input(Input::Launcher(vec![LaunchEvent::Failed {
                    token,
                    failure,
                }]));
            }
            Op::TakeBack(pick) if !self.live.is_empty() => self.take_back(pick % self.live.len()),
            Op::StrangeToken(token) => {
                let token = LaunchToken(token);
                self.input(Input::Launcher(vec![exited_after(
                    RUN,
                    token,
                    ExitStatus::Code(0),
                    now,
                )]));
            }
            Op::Wait(span) => {
                self.bench.now = now + Duration::from_nanos(span);
                self.input(Input::Timer);
            }
            Op::DropTemplate(kind) => self.input(Input::Assign {
                templates: Vec::new(),
                assignments: Vec::new(),
                drop_templates: vec![TemplateId(u32::try_from(kind).expect("small"))],
            }),
            Op::Start(_) | Op::Exit(..) | Op::Fail(..) | Op::TakeBack(_) => {}
        }
    }

    /// Retracts a task that has not started.
    fn take_back(&mut self, at: usize) {
        let (token, key, has_started) = self.live[at];
        if has_started {
            return;
        }
        self.live.swap_remove(at);
        self.set(key, Fate::Waiting);
        self.input(Input::Launcher(vec![LaunchEvent::Failed {
            token,
            failure: LaunchFailure::Cancelled,
        }]));
    }

    /// Assigns ids that have never been assigned with that instance, and some ids that the worker
    /// already has.
    fn assign(&mut self, kind: usize, first: u32, count: u32, instance: u32) {
        let (cpus_wanted, priority) = KINDS[kind];
        // A task that has ended but has not been reported yet is no longer on the worker. The model
        // does not cover that.
        let allowed: Vec<u32> = (first..first + count)
            .filter(|id| {
                let key = InstanceKey::new(JOB, *id, InstanceId(instance));
                let done = self
                    .known
                    .get(&key)
                    .is_some_and(|known| known.fate == Fate::Done);
                !done && !self.gone_unreported(key)
            })
            .collect();
        if allowed.is_empty() {
            return;
        }
        for id in &allowed {
            let fate = Fate::Waiting;
            let fresh = Known {
                cpus: cpus_wanted,
                priority,
                fate,
                start_reported: false,
                follows: None,
            };
            let key = InstanceKey::new(JOB, *id, InstanceId(instance));
            self.known.entry(key).or_insert(fresh);
        }
        let ids = IdArray::from_sorted(allowed).expect("sorted");
        let template = work(
            u32::try_from(kind).expect("small"),
            cpus(cpus_wanted, priority),
        );
        let mut input = assign(template, ids);
        if let Input::Assign { assignments, .. } = &mut input {
            assignments[0].instance = InstanceId(instance);
        }
        self.input(input);
    }

    /// Assigns an unknown task after any other task, but not after itself.
    fn assign_behind(&mut self, kind: usize, task: u32, after: InstanceKey) {
        let key = InstanceKey::new(JOB, task, InstanceId(2));
        if self.known.contains_key(&key) {
            return;
        }
        let (cpus_wanted, priority) = KINDS[kind];
        let known = Known {
            cpus: cpus_wanted,
            priority,
            fate: Fate::Waiting,
            start_reported: false,
            follows: Some(after),
        };
        self.known.insert(key, known);
        let id = u32::try_from(kind).expect("small");
        let mut input = assign(work(id, cpus(cpus_wanted, priority)), IdArray::single(task));
        if let Input::Assign { assignments, .. } = &mut input {
            assignments[0].instance = key.instance;
            assignments[0].follows = Some((after.task.task, after.instance));
        }
        self.input(input);
    }

    /// Returns whether an instance has ended but its report has not been sent.
    fn gone_unreported(&self, key: InstanceKey) -> bool {
        match self.known.get(&key).map(|known| known.fate) {
            Some(Fate::Launched(token)) => !self.live.iter().any(|(live, _, _)| *live == token),
            Some(Fate::Waiting) => !self.bench.state.knows(key),
            Some(Fate::Done) | None => false,
        }
    }

    fn finish(&mut self) {
        for _ in 0..10_000 {
            let Some((token, key, _)) = self.live.pop() else {
                break;
            };
            let now = self.bench.now;
            self.succeeded.insert(key);
            self.input(Input::Launcher(vec![exited_after(
                RUN,
                token,
                ExitStatus::Code(0),
                now,
            )]));
        }
        self.bench.now = self.bench.now + Duration::from_secs(1);
        self.input(Input::Timer);
        for (key, known) in &self.known {
            assert_eq!(
                known.fate,
                Fate::Done,
                "{key} was assigned and must be accounted for"
            );
        }
        for (key, after) in &self.launched_behind {
            assert!(self.finished.contains(after), "{key} went on from {after}");
        }
        assert_eq!(self.bench.state.queued_count(), 0);
        assert_eq!(self.bench.state.running_count(), 0);
    }
}

fn to_keys(keys: &[(u32, u32)]) -> Vec<InstanceKey> {
    keys.iter()
        .map(|(task, instance)| InstanceKey::new(JOB, *task, InstanceId(*instance)))
        .collect()
}

proptest! {
    #[test]
    fn every_assigned_instance_is_accounted_for(ops in prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in ops {
            model.step(op);
        }
        model.finish();
    }
}
