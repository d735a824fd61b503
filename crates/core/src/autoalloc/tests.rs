//! Tests of single rules of automatic allocation.

use std::sync::Arc;
use std::time::Duration;

use crate::autoalloc::{
    AllocationRecord, AllocationState, AutoallocState, Effect, Input, Limits, LookupOutcome,
    QueueState, Report, SubmitOutcome,
};
use crate::batch::QueueParams;
use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::refusal::RefusalKind;
use crate::resource::amount::Amount;
use crate::scheduler::demand::{QueueDemand, QueueQuery, Unfit};
use crate::testing::{batch_worker, queue_params};
use crate::time::{Now, Time, Timestamp};

mod removal;
mod silence;

const QUEUE: QueueId = QueueId(1);

fn spec(backlog: u32, per_alloc: u32, max: Option<u32>) -> QueueParams {
    QueueParams {
        backlog,
        max_workers_per_alloc: per_alloc,
        max_worker_count: max,
        ..queue_params()
    }
}

/// A queue and a clock.
struct World {
    state: AutoallocState,
    secs: u64,
    effects: Vec<Effect>,
}

impl World {
    fn new(spec: QueueParams) -> Self {
        let mut world = Self {
            state: AutoallocState::new(Limits::default(), b""),
            secs: 0,
            effects: Vec::new(),
        };
        assert_eq!(world.state.add_queue(world.now(), Arc::new(spec)), QUEUE);
        world
    }

    fn now(&self) -> Now {
        let nanos = self.secs * 1_000_000_000;
        Now {
            mono: Time(nanos),
            wall: Timestamp(i64::try_from(nanos).expect("small")),
        }
    }

    fn apply(&mut self, input: Input) -> Vec<Effect> {
        self.state.apply(self.now(), input, &mut self.effects);
        std::mem::take(&mut self.effects)
    }

    /// Lets time pass until it asks for the demand.
    fn expect_question(&mut self) -> Vec<QueueQuery> {
        let effects = (0..60).flat_map(|_| self.pass(1)).collect::<Vec<_>>();
        for effect in effects {
            if let Effect::AskDemand(queries) = effect {
                return queries;
            }
        }
        panic!("it does not ask");
    }

    fn pass(&mut self, secs: u64) -> Vec<Effect> {
        self.secs += secs;
        self.apply(Input::Timer)
    }

    /// Answers the demand query. Returns the keys and sizes of the submissions, which are all
    /// accepted.
    fn demand(&mut self, workers: u32, gangs: &[u32]) -> Vec<u32> {
        let mut effects = self.answer(workers, gangs);
        let mut sizes = Vec::new();
        while let Some((key, workers)) = submitted(&effects) {
            sizes.push(workers);
            effects = self.accept(key);
        }
        sizes
    }

    fn answer(&mut self, workers: u32, gangs: &[u32]) -> Vec<Effect> {
        self.apply(Input::Demand(vec![demanded(workers, gangs)]))
    }

    /// Answers on behalf of a queue whose workers took none of the waiting tasks.
    fn answer_useless(&mut self, unused: &[u32]) -> Vec<Effect> {
        let mut answer = demanded(1, &[]);
        answer.unused = unused.iter().copied().map(WorkerId).collect();
        self.apply(Input::Demand(vec![answer]))
    }

    fn accept(&mut self, key: AllocationKey) -> Vec<Effect> {
        let job = key.number.to_string().into();
        self.apply(Input::Submitted(key, SubmitOutcome::Accepted(job)))
    }

    fn report(&mut self, number: u32, report: Report) -> Vec<Effect> {
        self.apply(Input::Reported(key(number), report))
    }

    fn connect(&mut self, number: u32, worker: u32) {
        self.apply(Input::WorkerConnected {
            job: number.to_string().into(),
            worker: WorkerId(worker),
            config: batch_worker(40_000, None),
        });
    }

    fn lose(&mut self, number: u32, worker: u32, crashed: bool, secs: u64) {
        self.apply(Input::WorkerLost {
            job: number.to_string().into(),
            worker: WorkerId(worker),
            crashed,
            lived: Duration::from_secs(secs),
            used: true,
        });
    }

    /// Makes a worker that never had a task leave with a goodbye.
    fn lose_unused(&mut self, number: u32, worker: u32) {
        self.apply(Input::WorkerLost {
            job: number.to_string().into(),
            worker: WorkerId(worker),
            crashed: false,
            lived: Duration::from_secs(5),
            used: false,
        });
    }

    fn record(&self, number: u32) -> &AllocationRecord {
        let queue = self.state.queue(QUEUE).expect("queue exists");
        let found = queue.allocations().find(|a| a.key().number == number);
        found.expect("allocation exists").record()
    }

    fn allocation(&self, number: u32) -> AllocationState {
        self.record(number).state
    }

    fn reason(&self) -> String {
        let reason = self.state.reason(self.now(), QUEUE);
        reason.expect("queue exists").to_string()
    }

    fn is_paused(&self) -> bool {
        self.state.queue(QUEUE).expect("exists").state() == QueueState::Paused
    }

    /// Fails one submission and waits until the next one is allowed.
    fn refuse(&mut self) {
        let effects = self.answer(1, &[]);
        let (key, _) = submitted(&effects).expect("submits");
        self.apply(Input::Submitted(key, SubmitOutcome::Refused("no".into())));
        self.pass(4_000);
    }
}

fn demanded(workers: u32, gangs: &[u32]) -> QueueDemand {
    QueueDemand {
        queue: QUEUE,
        workers,
        gangs: gangs.to_vec(),
        waiting: u64::from(workers),
        covered: false,
        unfit: None,
        larger: None,
        unneeded: Vec::new(),
        unused: Vec::new(),
    }
}

fn key(number: u32) -> AllocationKey {
    AllocationKey {
        queue: QUEUE,
        number,
    }
}

fn submitted(effects: &[Effect]) -> Option<(AllocationKey, u32)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Submit { key, workers } => Some((*key, *workers)),
        Effect::AskDemand(_)
        | Effect::Look(_)
        | Effect::Poll { .. }
        | Effect::Cancel { .. }
        | Effect::Event(_)
        | Effect::Retire(_)
        | Effect::Changed(_) => None,
    })
}

fn cancels(effects: &[Effect]) -> usize {
    let is_cancel = |effect: &&Effect| matches!(effect, Effect::Cancel { .. });
    effects.iter().filter(is_cancel).count()
}

#[test]
fn packs_workers_into_allocations_within_all_limits() {
    let sizes = |spec, workers| World::new(spec).demand(workers, &[]);
    assert_eq!(sizes(spec(4, 2, None), 5), [2, 2, 1]);
    assert_eq!(sizes(spec(2, 2, None), 9), [2, 2]);
    assert_eq!(sizes(spec(4, 4, Some(6)), 9), [4, 2]);
    assert_eq!(sizes(spec(4, 4, None), 0), [0; 0]);
}

#[test]
fn multi_node_tasks_come_first_and_get_exactly_their_nodes() {
    let mut world = World::new(spec(3, 4, Some(9)));
    assert_eq!(world.demand(4, &[3, 5, 2]), [3, 2, 4]);
}

#[test]
fn a_full_backlog_asks_for_nothing_and_says_so() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.report(1, Report::Queued("Priority".into()));
    // The queue only checks whether the allocation is still needed.
    assert!(submitted(&world.pass(60)).is_none());
    assert_eq!(world.answer(1, &[]), []);
    assert_eq!(
        world.reason(),
        "1 of at most 1 allocations wait in the batch system (Priority)"
    );
    world.connect(1, 1);
    let asked = |effect: &Effect| matches!(effect, Effect::AskDemand(_));
    assert!(world.pass(10).iter().any(asked));
}

#[test]
fn an_allocation_ends_with_its_last_worker() {
    let mut world = World::new(spec(1, 2, None));
    assert_eq!(world.demand(2, &[]), [2]);
    world.connect(1, 1);
    world.connect(1, 2);
    assert_eq!(world.allocation(1), AllocationState::Running);
    world.lose(1, 1, false, 5);
    assert_eq!(world.allocation(1), AllocationState::Running);
    world.lose(1, 2, false, 5);
    world.report(1, Report::Running);
    assert_eq!(world.allocation(1), AllocationState::Finished);
}

#[test]
fn workers_that_can_take_nothing_slow_the_queue_down() {
    // The worker's state while its tasks still wait: connected, or gone without a task.
    for has_left in [false, true] {
        let mut world = World::new(spec(9, 1, None));
        for number in 1..=3 {
            assert_eq!(world.demand(1, &[]), [1], "{}", world.reason());
            world.connect(number, number);
            if has_left {
                world.lose_unused(number, number);
                world.report(number, Report::Finished("COMPLETED".into()));
            }
            world.pass(6);
            let effects = world.answer_useless(&[number]);
            assert!(submitted(&effects).is_none(), "{number}");
            assert!(
                world
                    .reason()
                    .contains("could take none of the waiting tasks"),
                "{}",
                world.reason()
            );
            // The later end counts neither as a second failure nor as a success.
            world.lose_unused(number, number);
            world.report(number, Report::Finished("COMPLETED".into()));
            world.pass(4_000);
        }
        assert!(world.is_paused(), "{}", world.reason());
    }
}

#[test]
fn a_worker_without_a_task_is_no_failure_if_nothing_waits() {
    let mut world = World::new(spec(9, 1, None));
    world.demand(1, &[]);
    world.connect(1, 1);
    world.pass(6);
    let mut nothing = demanded(0, &[]);
    nothing.unused = vec![WorkerId(1)];
    world.apply(Input::Demand(vec![nothing]));
    world.lose_unused(1, 1);
    world.report(1, Report::Finished("COMPLETED".into()));
    world.answer(0, &[]);
    assert_eq!(world.demand(1, &[]), [1], "{}", world.reason());
}

#[test]
fn larger_workers_are_tried_for_a_few_times_only() {
    let mut world = World::new(spec(9, 1, None));
    let mut asked = 0;
    for _ in 0..400 {
        let mut answer = demanded(0, &[]);
        answer.waiting = 1;
        answer.larger = Some(1);
        let (name, needed, offered) = ("cpus".into(), Amount::whole(2), Amount::whole(1));
        answer.unfit = Some(Unfit::Resource {
            name,
            needed,
            offered,
        });
        let effects = world.apply(Input::Demand(vec![answer]));
        if let Some((key, workers)) = submitted(&effects) {
            assert_eq!(workers, 1);
            asked += 1;
            world.accept(key);
            world.connect(key.number, key.number);
            world.lose_unused(key.number, key.number);
            world.report(key.number, Report::Finished("COMPLETED".into()));
        }
        let figures = "workers of this queue offer 1 cpu; the task asks for 2 cpus";
        assert!(world.reason().contains(figures), "{}", world.reason());
        world.pass(60);
        if world.is_paused() {
            break;
        }
    }
    assert!(asked <= 2, "{asked}");
}

#[test]
fn an_allocation_that_no_task_needs_is_canceled_after_ten_minutes() {
    for (keep_waiting, minutes, canceled) in
        [(false, 9, false), (false, 11, true), (true, 30, false)]
    {
        let mut world = World::new(QueueParams {
            keep_waiting,
            ..spec(1, 1, None)
        });
        world.demand(1, &[]);
        let mut effects = Vec::new();
        let waits = || Report::Queued("Priority".into());
        let ended = || Report::Failed {
            text: "CANCELLED".into(),
            may_return: false,
        };
        world.report(1, waits());
        for _ in 0..=minutes {
            let mut answer = demanded(0, &[]);
            answer.unneeded = vec![1];
            effects.extend(world.apply(Input::Demand(vec![answer])));
            effects.extend(world.pass(60));
        }
        assert_eq!(cancels(&effects) > 0, canceled, "{keep_waiting} {minutes}");
        world.report(1, if canceled { ended() } else { waits() });
        let reason = if canceled {
            "no task waits for it"
        } else {
            "Priority"
        };
        assert_eq!(&*world.record(1).reason, reason);
    }
}

#[test]
fn late_answers_do_not_change_why_an_allocation_runs_or_ended() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.report(1, Report::Queued("Priority".into()));
    world.connect(1, 1);
    world.report(1, Report::Queued("Priority".into()));
    assert_eq!(&*world.record(1).reason, "");
    world.report(
        1,
        Report::Failed {
            text: "NODE_FAIL".into(),
            may_return: false,
        },
    );
    world.report(1, Report::Queued("Priority".into()));
    assert_eq!(&*world.record(1).reason, "NODE_FAIL");
}

#[test]
fn each_of_the_recent_workers_counts() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    let offers = [(1, 500), (2, 300), (1, 100)];
    for (cpus, secs) in offers {
        world.apply(Input::WorkerConnected {
            job: "1".into(),
            worker: WorkerId(1),
            config: batch_worker(cpus, Some(Duration::from_secs(secs))),
        });
    }
    let kinds = world.state.worker_kinds().into_iter();
    let kinds = kinds.map(|kind| (kind.resources["cpus"], kind.time_limit.as_secs()));
    assert!(kinds.eq(offers));
}

#[test]
fn what_the_batch_system_says_after_the_last_worker_decides() {
    use AllocationState::{Finished, Queued, Running};
    let failed = || Report::Failed {
        text: "PREEMPTED".into(),
        may_return: false,
    };
    for (report, state, is_alive) in [
        (Report::Queued("BeginTime".into()), Queued, true),
        (Report::Suspended("SUSPENDED".into()), Running, true),
        (Report::Completing("COMPLETING".into()), Running, true),
        (Report::Unreadable("garbage".into()), Running, true),
        // It may be about to be requeued.
        (Report::Running, Finished, true),
        (Report::Finished("COMPLETED".into()), Finished, false),
        (failed(), Finished, false),
        (Report::Foreign("theirs".into()), Finished, false),
        // The job may still exist, so its state is queried.
        (Report::Error("down".into()), Finished, true),
        (Report::Missing, Finished, true),
        (Report::Silent, Finished, true),
    ] {
        let mut world = World::new(spec(1, 1, None));
        world.demand(1, &[]);
        world.connect(1, 1);
        world.lose(1, 1, false, 100);
        assert_eq!(world.allocation(1), Running, "no end without an answer");
        let effects = world.report(1, report.clone());
        assert_eq!(world.allocation(1), state, "{report:?}");
        let words = report.words().unwrap_or_default();
        assert_eq!(&*world.record(1).reason, words, "{report:?}");
        let is_stored = effects.iter().any(|e| matches!(e, Effect::Changed(_)));
        assert!(is_stored || words.is_empty(), "{report:?}");
        assert_eq!(world.state.alive().count() == 1, is_alive, "{report:?}");
        // Queried again, and found in its place.
        if matches!(
            report,
            Report::Completing(_) | Report::Unreadable(_) | Report::Running
        ) {
            world.pass(11);
            world.report(1, Report::Queued("".into()));
            assert_eq!(world.allocation(1), Queued, "{report:?}");
        }
    }
}

#[test]
fn an_answer_from_before_the_last_worker_left_says_nothing() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.connect(1, 1);
    // A query is in progress.
    assert!(
        world
            .pass(4_000)
            .iter()
            .any(|e| matches!(e, Effect::Poll { .. }))
    );
    world.lose(1, 1, false, 100);
    let effects = world.report(1, Report::Running);
    assert!(
        effects.iter().any(|e| matches!(e, Effect::Poll { .. })),
        "asked again"
    );
    world.report(1, Report::Queued("".into()));
    assert_eq!(world.allocation(1), AllocationState::Queued);
}

#[test]
fn answers_that_cannot_be_read_never_give_an_allocation_up() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    let mut effects = Vec::new();
    for _ in 0..50 {
        effects.extend(world.report(1, Report::Unreadable("garbage".into())));
        effects.extend(world.pass(130));
    }
    assert_eq!(
        (world.allocation(1), cancels(&effects)),
        (AllocationState::Queued, 0)
    );
    // The same applies if the batch system is broken while workers are connected.
    world.connect(1, 1);
    for _ in 0..50 {
        world.report(1, Report::Error("broken".into()));
    }
    assert_eq!(world.allocation(1), AllocationState::Running);
}

#[test]
fn workers_that_crash_at_once_fail_their_allocation_and_pause_the_queue() {
    let mut world = World::new(spec(9, 1, None));
    for number in 1..=3 {
        world.demand(1, &[]);
        world.connect(number, number);
        world.lose(number, number, true, 5);
        world.report(number, Report::Running);
        assert_eq!(world.allocation(number), AllocationState::Failed);
        world.pass(4_000);
    }
    assert!(world.is_paused());
    assert!(
        world
            .reason()
            .starts_with("paused after too many failed allocations")
    );
    assert!(world.state.resume(world.now(), QUEUE));
    assert_eq!(world.demand(1, &[]), [1]);
    assert!(!world.is_paused());
}

#[test]
fn an_allocation_without_workers_counts_as_failed() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.report(1, Report::Finished("COMPLETED".into()));
    assert_eq!(world.allocation(1), AllocationState::Finished);
    assert!(
        world.reason().starts_with("next attempt in 60 s"),
        "{}",
        world.reason()
    );
}

#[test]
fn refused_submissions_back_off_and_pause() {
    let mut world = World::new(spec(1, 1, None));
    let effects = world.answer(1, &[]);
    let (key, _) = submitted(&effects).expect("submits");
    world.apply(Input::Submitted(
        key,
        SubmitOutcome::Refused("no\nway".into()),
    ));
    assert_eq!(
        world.reason(),
        "next attempt in 60 s, after a failure: no; way"
    );
    let failure = |world: &World| world.state.queue(QUEUE).expect("exists").record().failure;
    let first = failure(&world).expect("is recorded");
    assert_eq!(&*first.last, "no\nway");
    let workers_max = |world: &World| {
        let queue = world.state.queue(QUEUE).expect("exists");
        queue.query(world.now().mono).workers_max
    };
    assert_eq!(workers_max(&world), 0, "others get the demand");
    assert_eq!(world.answer(1, &[]), []);
    world.pass(61);
    assert_eq!(workers_max(&world), 1);
    world.refuse();
    assert_eq!(failure(&world).map(|later| later.since), Some(first.since));
    for _ in 0..8 {
        world.refuse();
    }
    assert!(world.is_paused());
}

#[test]
fn a_batch_system_that_is_away_is_no_refusal() {
    let mut world = World::new(spec(1, 1, None));
    for _ in 0..20 {
        let effects = world.answer(1, &[]);
        let (key, _) = submitted(&effects).expect("submits");
        let away = SubmitOutcome::Unreachable("cannot connect".into());
        world.apply(Input::Submitted(key, away));
        assert_eq!(
            world.reason(),
            "next attempt in 60 s, after a failure: cannot connect"
        );
        world.pass(61);
    }
    assert!(!world.is_paused());
}

#[test]
fn a_submit_limit_that_own_allocations_fill_is_no_failure() {
    let mut world = World::new(spec(2, 1, None));
    let effects = world.answer(2, &[]);
    let (first, _) = submitted(&effects).expect("submits");
    let effects = world.accept(first);
    let (second, _) = submitted(&effects).expect("submits");
    let full = || SubmitOutcome::Unreachable("AssocMaxSubmitJobLimit".into());
    world.apply(Input::Submitted(second, full()));
    assert_eq!(
        world.reason(),
        "next attempt in 60 s, the batch system accepts no more requests for now: AssocMaxSubmitJobLimit"
    );
    let queue = world.state.queue(QUEUE).expect("exists");
    assert!(!queue.reason(world.now().mono).kind().is_failing());
    assert_eq!(queue.record().failure, None);
}

#[test]
fn a_submission_without_an_answer_is_looked_for_before_another_is_made() {
    let mut world = World::new(spec(1, 1, None));
    let effects = world.answer(1, &[]);
    let (key, _) = submitted(&effects).expect("submits");
    let effects = world.apply(Input::Submitted(key, SubmitOutcome::Unclear("slow".into())));
    assert!(effects.contains(&Effect::Look(key)));
    assert!(world.reason().contains("not known whether"));
    world.apply(Input::Looked(key, LookupOutcome::Absent));
    assert!(
        world
            .pass(30)
            .iter()
            .all(|e| !matches!(e, Effect::AskDemand(_)))
    );
    assert!(world.pass(31).contains(&Effect::Look(key)));
    world.apply(Input::Looked(key, LookupOutcome::Found("77".into())));
    assert_eq!(world.allocation(1), AllocationState::Queued);
}

#[test]
fn an_unknown_id_is_asked_for_twice_and_then_canceled() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.report(1, Report::Missing);
    assert_eq!(world.allocation(1), AllocationState::Queued);
    let effects = world.report(1, Report::Missing);
    assert_eq!(world.allocation(1), AllocationState::Failed);
    assert_eq!(cancels(&effects), 1);
    // The place becomes free only after the batch system accepts the cancel.
    assert!(world.reason().contains("1 of at most 1"));
    world.apply(Input::Canceled(key(1), Ok(())));
    assert!(world.reason().starts_with("next attempt"));
}

#[test]
fn connected_workers_outweigh_a_batch_system_that_forgot() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.connect(1, 1);
    for _ in 0..5 {
        world.report(1, Report::Missing);
    }
    assert_eq!(world.allocation(1), AllocationState::Running);
}

#[test]
fn a_submission_that_cannot_be_looked_for_is_not_made_again() {
    let mut world = World::new(spec(1, 1, None));
    let effects = world.answer(1, &[]);
    let (key, _) = submitted(&effects).expect("submits");
    world.apply(Input::Submitted(key, SubmitOutcome::Unclear("slow".into())));
    for _ in 0..100 {
        world.pass(400);
        world.apply(Input::Looked(key, LookupOutcome::Error("down".into())));
    }
    for words in ["not known whether", "failed: down"] {
        assert!(world.reason().contains(words), "{}", world.reason());
    }
    world.apply(Input::Looked(key, LookupOutcome::Found("77".into())));
    assert_eq!(world.allocation(1), AllocationState::Queued);
}

#[test]
fn a_requeued_allocation_waits_again() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    world.report(1, Report::Running);
    assert_eq!(world.allocation(1), AllocationState::Running);
    world.report(1, Report::Queued("BeginTime".into()));
    assert_eq!(world.allocation(1), AllocationState::Queued);
}

#[test]
fn removing_cancels_what_waits_and_refuses_what_runs() {
    let mut world = World::new(spec(2, 1, None));
    assert_eq!(world.demand(2, &[]), [1, 1]);
    world.connect(1, 1);
    let mut effects = Vec::new();
    let now = world.now();
    let refused = world.state.remove_queue(now, QUEUE, false, &mut effects);
    let refused = refused.expect_err("it has running jobs");
    assert_eq!(refused.kind, RefusalKind::Conflict);
    let removed = world.state.remove_queue(now, QUEUE, true, &mut effects);
    assert_eq!((removed, cancels(&effects)), (Ok(()), 2));
    assert!(world.state.queue(QUEUE).is_none());
    world.apply(Input::Canceled(key(1), Ok(())));
    world.apply(Input::Canceled(key(2), Ok(())));
    assert_eq!(world.state.alive().count(), 0);
}

#[test]
fn workers_faster_than_the_answer_are_found_again() {
    let mut world = World::new(spec(1, 1, None));
    let effects = world.answer(1, &[]);
    let (key, _) = submitted(&effects).expect("submits");
    world.connect(1, 1);
    world.accept(key);
    assert_eq!(world.allocation(1), AllocationState::Running);
}

#[test]
fn the_same_id_on_two_clusters_is_two_allocations() {
    for (worker, expected) in [("7;b", 2), ("7;c", 1), ("7", 1)] {
        let mut world = World::new(spec(2, 1, None));
        for job in ["7", "7;b"] {
            let effects = world.answer(1, &[]);
            let (key, _) = submitted(&effects).expect("submits");
            world.apply(Input::Submitted(key, SubmitOutcome::Accepted(job.into())));
        }
        let found = world.state.find_job(worker).map(|key| key.number);
        assert_eq!(found, Some(expected), "{worker}");
        let finds = world.state.queue(QUEUE).expect("exists").allocations();
        assert!(finds.into_iter().all(|a| a.job_id() == Some("7")));
    }
}

#[test]
fn a_job_of_somebody_else_is_never_canceled() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    let mut effects = world.report(
        1,
        Report::Foreign("the job of this id is another one".into()),
    );
    effects.extend(world.pass(400));
    assert_eq!(
        (world.allocation(1), cancels(&effects)),
        (AllocationState::Failed, 0)
    );
    assert_eq!(world.state.alive().count(), 0);
}

/// Returns a queue with three running allocations and connected workers, after its server crashed
/// and was started again.
fn after_a_crash() -> World {
    let mut world = World::new(spec(3, 1, None));
    assert_eq!(world.demand(3, &[]), [1, 1, 1]);
    for number in 1..=3 {
        world.connect(number, number);
    }
    let record = world.state.queue(QUEUE).expect("exists").record();
    world.state = AutoallocState::new(Limits::default(), b"");
    world.state.restore_queue(world.now(), record);
    world
}

#[test]
fn allocations_that_end_while_no_server_is_there_are_nobodys_failure() {
    let failed = || Report::Failed {
        text: "Exit_status 1".into(),
        may_return: false,
    };
    let mut world = after_a_crash();
    world.report(1, failed());
    // The worker still finishes the task that was running when the server was lost.
    world.report(2, Report::Running);
    world.report(2, failed());
    world.report(3, failed());
    for number in 1..=3 {
        assert_eq!(world.allocation(number), AllocationState::Failed);
    }
    assert!(!world.is_paused());
    world.pass(10);
    assert_eq!(world.demand(1, &[]), [1], "{}", world.reason());
}

#[test]
fn a_worker_that_came_back_makes_its_allocation_count_again() {
    let mut world = after_a_crash();
    for number in 1..=3 {
        world.connect(number, number);
        world.lose(number, number, true, 5);
        // The first answer is older.
        world.report(number, Report::Running);
        world.report(number, Report::Running);
    }
    assert!(world.is_paused());
}

#[test]
fn restored_allocations_keep_their_places_and_are_asked_for_at_once() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    let record = world.state.queue(QUEUE).expect("exists").record();
    let mut state = AutoallocState::new(Limits::default(), b"");
    state.restore_queue(world.now(), record);
    let mut effects = Vec::new();
    state.apply(world.now(), Input::Timer, &mut effects);
    assert!(matches!(effects.as_slice(), [Effect::Poll { jobs, .. }] if jobs.len() == 1));
    assert_eq!(
        state.add_queue(world.now(), spec(1, 1, None).into()),
        QueueId(2)
    );
}
