//! Tests of a worker's inputs.

mod ending;
mod lanes;
mod successors;

use std::time::Duration;

use super::*;
use crate::id::{InstanceId, JobId};
use crate::range::{IdArray, IdRange};
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::template::{Entries, TaskTemplate};
use crate::testing::{template, worker_config};
use crate::time::Timestamp;

pub(super) const JOB: JobId = JobId(1);

/// A worker under test, with its clock.
pub(super) struct Bench {
    pub(super) state: WorkerState,
    pub(super) now: Time,
}

impl Bench {
    fn new(cpus: u32) -> Self {
        Self::with(&worker_config(cpus), None)
    }

    pub(super) fn with(config: &WorkerConfig, idle_default: Option<Duration>) -> Self {
        let now = Time(1_000_000_000_000);
        let state = WorkerState::new(at(now), config, idle_default);
        Self { state, now }
    }

    pub(super) fn apply(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.state.apply(at(self.now), input, &mut effects);
        self.state.check_invariants();
        effects
    }

    fn wait(&mut self, span: Duration) -> Vec<Effect> {
        self.now = self.now + span;
        self.apply(Input::Timer)
    }

    /// Returns the time until the next timer.
    fn due_in(&self) -> Option<Duration> {
        Some(self.state.next_deadline()?.since(self.now))
    }

    fn assign(&mut self, template: TaskTemplate, from: u32, count: u32) -> Vec<Effect> {
        let ids = IdArray::consecutive(from, count).expect("valid");
        self.apply(assign(work(1, template), ids))
    }

    fn started(&mut self, token: LaunchToken) -> Vec<Effect> {
        let at = self.now;
        self.apply(Input::Launcher(vec![LaunchEvent::Started { token, at }]))
    }

    fn exited(&mut self, token: LaunchToken, status: ExitStatus) -> Vec<Effect> {
        let event = exited(token, status, self.now);
        self.apply(Input::Launcher(vec![event]))
    }
}

pub(super) fn at(mono: Time) -> Now {
    Now {
        mono,
        wall: Timestamp(0),
    }
}

pub(super) fn exited(token: LaunchToken, status: ExitStatus, ended: Time) -> LaunchEvent {
    exited_after(Duration::from_millis(70), token, status, ended)
}

pub(super) fn exited_after(
    run: Duration,
    token: LaunchToken,
    status: ExitStatus,
    ended: Time,
) -> LaunchEvent {
    LaunchEvent::Exited {
        token,
        status,
        ended,
        run,
        usage: Default::default(),
        message: None,
    }
}

pub(super) fn work(id: u32, task: TaskTemplate) -> WorkTemplate {
    WorkTemplate {
        id: TemplateId(id),
        job: JOB,
        job_name: "job".into(),
        submit_dir: Box::from(*b"/s"),
        stream_dir: None,
        task: Arc::new(task),
    }
}

pub(super) fn assign(work: WorkTemplate, ids: IdArray) -> Input {
    let instance = InstanceId(0);
    let template = work.id;
    Input::Assign {
        templates: vec![Arc::new(work)],
        assignments: vec![WorkAssignment {
            template,
            ids,
            instance,
            variant: 0,
            entries: None,
            nodes: Arc::default(),
            follows: None,
        }],
        drop_templates: Vec::new(),
    }
}

pub(super) fn cpus(count: u32, priority: i32) -> TaskTemplate {
    let requests = RequestVariants::new(vec![ResourceRequest::cpus(count)]).expect("valid");
    TaskTemplate {
        requests,
        priority,
        ..template(&["true"])
    }
}

pub(super) fn key(task: u32) -> InstanceKey {
    InstanceKey::new(JOB, task, InstanceId(0))
}

pub(super) fn launches(effects: &[Effect]) -> Vec<&LaunchTask> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Launch(tasks) => Some(tasks),
            Effect::Terminate(_)
            | Effect::Kill(_)
            | Effect::Signal(..)
            | Effect::Withdraw(_)
            | Effect::Report(_)
            | Effect::DropTemplate(_)
            | Effect::Farewell
            | Effect::Exit(_) => None,
        })
        .flatten()
        .collect()
}

pub(super) fn reports(effects: &[Effect]) -> Vec<&Report> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Report(report) => Some(report),
            Effect::Launch(_)
            | Effect::Withdraw(_)
            | Effect::Terminate(_)
            | Effect::Kill(_)
            | Effect::Signal(..)
            | Effect::DropTemplate(_)
            | Effect::Farewell
            | Effect::Exit(_) => None,
        })
        .collect()
}

fn ids(effects: &[Effect]) -> Vec<u32> {
    launches(effects)
        .iter()
        .map(|launch| launch.task_id().0)
        .collect()
}

fn tokens(effects: &[Effect]) -> Vec<LaunchToken> {
    launches(effects)
        .iter()
        .map(|launch| launch.token)
        .collect()
}

fn outcomes(effects: &[Effect]) -> Vec<(u32, Outcome)> {
    let rows = reports(effects)
        .into_iter()
        .flat_map(|report| &report.ended);
    rows.map(|row| (row.key.task.task.0, row.outcome.clone()))
        .collect()
}

fn exit(effects: &[Effect]) -> Option<ExitReason> {
    effects.iter().find_map(|effect| match effect {
        Effect::Exit(reason) => Some(*reason),
        Effect::Launch(_)
        | Effect::Withdraw(_)
        | Effect::Terminate(_)
        | Effect::Kill(_)
        | Effect::Signal(..)
        | Effect::Report(_)
        | Effect::DropTemplate(_)
        | Effect::Farewell => None,
    })
}

const OK: ExitStatus = ExitStatus::Code(0);

#[test]
fn starts_as_many_as_fit_and_one_more_per_end() {
    let mut bench = Bench::new(2);
    let effects = bench.assign(cpus(1, 0), 10, 1000);
    assert_eq!(ids(&effects), [10, 11]);
    assert_eq!(bench.state.queued_count(), 998);
    let token = tokens(&effects)[0];
    assert_eq!(ids(&bench.exited(token, OK)), [12]);
}

#[test]
fn lone_task_is_reported_at_once() {
    let mut bench = Bench::new(1);
    let launched = bench.assign(cpus(1, 0), 0, 1);
    let effects = bench.started(tokens(&launched)[0]);
    assert_eq!(reports(&effects)[0].started[0].key, key(0));
    bench.now = bench.now + Duration::from_millis(1);
    let effects = bench.exited(tokens(&launched)[0], OK);
    assert_eq!(outcomes(&effects), [(0, Outcome::Finished)]);
    assert_eq!(reports(&effects)[0].ended[0].run, Duration::from_millis(70));
}

#[test]
fn busy_worker_collects_news_for_some_milliseconds() {
    let mut bench = Bench::new(1);
    let mut token = tokens(&bench.assign(cpus(1, 0), 0, 1_000))[0];
    let first = bench.exited(token, OK);
    assert_eq!(outcomes(&first).len(), 1, "nothing was said yet");
    for _ in 0..3 {
        token = LaunchToken(token.0 + 1);
        let effects = bench.exited(token, OK);
        assert!(reports(&effects).is_empty());
    }
    assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
    let effects = bench.wait(Duration::from_millis(50));
    assert_eq!(outcomes(&effects).len(), 3);
}

#[test]
fn busy_worker_tells_within_a_few_milliseconds_of_what_somebody_may_wait_for() {
    let busy = || {
        let mut bench = Bench::new(1);
        let first = tokens(&bench.assign(cpus(1, 0), 0, 1_000))[0];
        bench.exited(first, OK);
        bench.exited(LaunchToken(first.0 + 1), OK);
        assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
        (bench, LaunchToken(first.0 + 2))
    };
    // The task failed.
    let (mut bench, running) = busy();
    bench.exited(running, ExitStatus::Code(1));
    assert_eq!(bench.due_in(), Some(Duration::from_millis(3)));
    // The task was canceled.
    let (mut bench, _) = busy();
    bench.apply(Input::Kill(vec![key(500)]));
    assert_eq!(bench.due_in(), Some(Duration::from_millis(3)));
    // The task came alone, like a task of a chain.
    let (mut bench, running) = busy();
    bench.apply(assign(work(2, cpus(1, 9)), ids_of(&[2_000])));
    let lone = tokens(&bench.exited(running, OK))[0];
    assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
    bench.exited(lone, OK);
    assert_eq!(bench.due_in(), Some(Duration::from_millis(3)));
    // The next tasks again belong to the large assignment.
    bench.wait(Duration::from_millis(3));
    bench.exited(LaunchToken(lone.0 + 1), OK);
    assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
    // It is the last task of its job on this worker.
    let (mut bench, running) = busy();
    let ids = IdArray::consecutive(0, 8).expect("valid");
    let other = WorkTemplate {
        job: JobId(2),
        ..work(2, cpus(1, 9))
    };
    bench.apply(assign(other, ids));
    let first = tokens(&bench.exited(running, OK))[0];
    for task in 0..7 {
        assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
        bench.exited(LaunchToken(first.0 + task), OK);
    }
    assert_eq!(bench.due_in(), Some(Duration::from_millis(3)));
}

#[test]
fn busy_worker_tells_soon_of_the_start_of_what_takes_long_or_may_start_only_once() {
    for (crash_limit, run, due) in [
        (CrashLimit::NeverRestart, 1, 3),
        (CrashLimit::Max(5), 70, 3),
        (CrashLimit::Max(5), 1, 50),
    ] {
        let mut bench = Bench::new(1);
        let template = TaskTemplate {
            crash_limit,
            ..cpus(1, 0)
        };
        let first = tokens(&bench.assign(template, 0, 1_000))[0];
        let run = Duration::from_millis(run);
        let event = exited_after(run, first, OK, bench.now);
        bench.apply(Input::Launcher(vec![event]));
        bench.started(LaunchToken(first.0 + 1));
        assert_eq!(bench.due_in(), Some(Duration::from_millis(due)));
    }
}

#[test]
fn a_task_that_ended_in_time_has_finished_also_if_that_is_heard_later() {
    for (run, outcome) in [(49, Outcome::Finished), (50, Outcome::TimeLimit)] {
        let mut bench = Bench::new(1);
        let template = TaskTemplate {
            time_limit: Some(Duration::from_millis(50)),
            ..cpus(1, 0)
        };
        let token = tokens(&bench.assign(template, 0, 1))[0];
        bench.started(token);
        bench.wait(Duration::from_millis(51));
        let event = exited_after(Duration::from_millis(run), token, OK, bench.now);
        let effects = bench.apply(Input::Launcher(vec![event]));
        assert_eq!(outcomes(&effects), [(0, outcome)]);
    }
}

#[test]
fn busy_worker_tells_of_ends_before_it_runs_out_of_work() {
    let mut bench = Bench::new(1);
    let first = tokens(&bench.assign(cpus(1, 0), 0, 12))[0];
    bench.exited(first, OK);
    bench.exited(LaunchToken(first.0 + 1), OK);
    assert_eq!(bench.due_in(), Some(Duration::from_millis(50)));
    bench.exited(LaunchToken(first.0 + 2), OK);
    assert_eq!(bench.due_in(), Some(Duration::from_millis(3)), "8 wait");
}

#[test]
fn end_implies_an_unreported_start() {
    let mut bench = Bench::new(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 1))[0];
    let now = bench.now;
    let both = vec![
        LaunchEvent::Started { token, at: now },
        exited(token, OK, now),
    ];
    let effects = bench.apply(Input::Launcher(both));
    let report = reports(&effects)[0];
    assert_eq!((report.started.len(), report.ended.len()), (0, 1));
}

#[test]
fn higher_priority_starts_first_and_is_not_starved() {
    let mut bench = Bench::new(4);
    let running = tokens(&bench.assign(cpus(1, 0), 0, 1));
    assert!(ids(&bench.apply(assign(work(2, cpus(4, 5)), ids_of(&[50])))).is_empty());
    let low = bench.apply(assign(work(3, cpus(1, 1)), ids_of(&[60, 61])));
    assert!(
        ids(&low).is_empty(),
        "what the blocked task could use stays free"
    );
    assert_eq!(ids(&bench.exited(running[0], OK)), [50]);
}

#[test]
fn equal_priority_may_overtake_a_blocked_task_for_a_while() {
    let mut bench = Bench::new(4);
    bench.assign(cpus(1, 0), 0, 1);
    bench.apply(assign(work(2, cpus(4, 0)), ids_of(&[50])));
    assert_eq!(
        ids(&bench.apply(assign(work(3, cpus(1, 0)), ids_of(&[60])))),
        [60]
    );
    bench.wait(Duration::from_secs(6));
    assert!(ids(&bench.apply(assign(work(3, cpus(1, 0)), ids_of(&[61])))).is_empty());
}

#[test]
fn order_within_a_priority_is_job_then_task() {
    let mut bench = Bench::new(1);
    let mut token = tokens(&bench.assign(cpus(1, 0), 5, 2))[0];
    let mut later_job = work(2, cpus(1, 0));
    later_job.job = JobId(2);
    bench.apply(assign(later_job, ids_of(&[0])));
    bench.assign(cpus(1, 0), 1, 2);
    let mut order = Vec::new();
    for _ in 0..4 {
        let effects = bench.exited(token, OK);
        order.push(launches(&effects)[0].key.task.to_string());
        token = tokens(&effects)[0];
    }
    assert_eq!(order, ["1.1", "1.2", "1.6", "2.0"]);
}

#[test]
fn retract_returns_only_what_has_not_started() {
    let mut bench = Bench::new(1);
    bench.assign(cpus(1, 0), 0, 10);
    let wanted = vec![key(0), key(3), key(9), key(77)];
    let effects = bench.apply(Input::Retract(wanted.clone()));
    assert_eq!(reports(&effects)[0].retracted, [key(3), key(9)]);
    assert_eq!(bench.state.ignored().retracted, 2);
    assert!(
        reports(&bench.apply(Input::Retract(wanted))).is_empty(),
        "a duplicate says nothing"
    );
}

#[test]
fn kill_ends_running_and_waiting_instances() {
    let mut bench = Bench::new(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
    let effects = bench.apply(Input::Kill(vec![key(0), key(1), key(5)]));
    assert!(matches!(effects[..], [Effect::Terminate(t), Effect::Report(_)] if t == token));
    assert_eq!(outcomes(&effects), [(1, Outcome::Killed)]);
    assert_eq!(bench.state.ignored().killed, 1);
    assert!(
        bench.apply(Input::Kill(vec![key(0)])).is_empty(),
        "told once is enough"
    );
    // A program that exits with 0 on SIGINT still counts as killed.
    assert_eq!(outcomes(&bench.exited(token, OK)), [(0, Outcome::Killed)]);
}

#[test]
fn a_longer_limit_does_not_save_a_task_that_was_asked_to_end() {
    let ms = Duration::from_millis;
    for (changed_after, outcome) in [(49, Outcome::Finished), (51, Outcome::TimeLimit)] {
        let mut bench = Bench::new(1);
        let template = TaskTemplate {
            time_limit: Some(ms(50)),
            ..cpus(1, 0)
        };
        let token = tokens(&bench.assign(template, 0, 1))[0];
        bench.started(token);
        bench.wait(ms(changed_after));
        bench.apply(Input::TimeLimit(vec![key(0)], Some(ms(1_000))));
        bench.wait(ms(60 - changed_after));
        let event = exited_after(ms(60), token, OK, bench.now);
        let effects = bench.apply(Input::Launcher(vec![event]));
        assert_eq!(outcomes(&effects), [(0, outcome)], "{changed_after} ms");
    }
}

#[test]
fn time_limit_counts_from_the_start() {
    let mut bench = Bench::new(1);
    let task = TaskTemplate {
        time_limit: Some(Duration::from_secs(2)),
        ..cpus(1, 0)
    };
    let token = tokens(&bench.assign(task, 0, 1))[0];
    bench.wait(Duration::from_secs(10));
    bench.started(token);
    assert!(bench.wait(Duration::from_millis(1999)).is_empty());
    let effects = bench.wait(Duration::from_millis(1));
    assert!(matches!(effects[..], [Effect::Terminate(t)] if t == token));
    let event = exited_after(
        Duration::from_secs(2),
        token,
        ExitStatus::Signal(2),
        bench.now,
    );
    let effects = bench.apply(Input::Launcher(vec![event]));
    assert_eq!(outcomes(&effects), [(0, Outcome::TimeLimit)]);
}

#[test]
fn failed_launch_is_reported_and_frees_its_place() {
    let mut bench = Bench::new(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 3))[0];
    let failure = LaunchFailure::Permanent("no such program".into());
    let effects = bench.apply(Input::Launcher(vec![LaunchEvent::Failed {
        token,
        failure,
    }]));
    assert_eq!(
        outcomes(&effects),
        [(0, Outcome::Message("no such program".into()))]
    );
    let token = tokens(&effects)[0];
    let failure = LaunchFailure::Transient;
    let effects = bench.apply(Input::Launcher(vec![LaunchEvent::Failed {
        token,
        failure,
    }]));
    assert_eq!(
        reports(&effects)[0].retracted,
        [key(1)],
        "the machine's fault is not the task's"
    );
    assert_eq!(ids(&effects), [2]);
}

#[test]
fn exit_status_becomes_the_outcome() {
    let message = Some("own words".into());
    let own = Outcome::Message("own words".into());
    for (status, message, outcome) in [
        (ExitStatus::Code(0), message.clone(), Outcome::Finished),
        (ExitStatus::Code(3), message, own),
        (ExitStatus::Code(3), None, Outcome::ExitCode(3)),
        (ExitStatus::Signal(9), None, Outcome::Signal(9)),
    ] {
        assert_eq!(outcome_of(status, message), outcome);
    }
}

#[test]
fn duplicates_and_nonsense_are_ignored_and_counted() {
    let mut bench = Bench::new(1);
    bench.assign(cpus(1, 0), 0, 5);
    let again = bench.assign(cpus(1, 0), 0, 6);
    assert!(again.is_empty());
    assert_eq!(
        (bench.state.queued_count(), bench.state.ignored().assigned),
        (5, 5)
    );
    let unknown = WorkAssignment {
        template: TemplateId(99),
        ids: ids_of(&[20]),
        instance: InstanceId(0),
        variant: 0,
        entries: None,
        nodes: Arc::default(),
        follows: None,
    };
    let bad_variant = WorkAssignment {
        template: TemplateId(1),
        variant: 7,
        ..unknown.clone()
    };
    let entries = Entries::new(*b"ab", [2]);
    let bad_entries = WorkAssignment {
        template: TemplateId(1),
        ids: ids_of(&[21, 22]),
        entries,
        ..unknown.clone()
    };
    let effects = bench.apply(Input::Assign {
        templates: vec![Arc::new(work(1, cpus(2, 3)))],
        assignments: vec![unknown, bad_variant, bad_entries],
        drop_templates: vec![TemplateId(5)],
    });
    assert_eq!(bench.state.ignored().malformed, 3);
    assert_eq!(bench.state.ignored().templates, 2);
    assert_eq!(
        outcomes(&effects).len(),
        3,
        "tasks that can be named fail, they do not hang"
    );
    bench.started(LaunchToken(1234));
    bench.exited(LaunchToken(1234), OK);
    assert_eq!(bench.state.ignored().launcher, 2);
}

/// Returns a task for a worker with at least 50 s left.
fn asking_for_50_s() -> TaskTemplate {
    let mut request = ResourceRequest::cpus(1);
    request.min_time = Duration::from_secs(50);
    TaskTemplate {
        requests: RequestVariants::new(vec![request]).expect("valid"),
        ..template(&["true"])
    }
}

#[test]
fn tasks_that_can_never_run_here_are_returned() {
    let config = WorkerConfig {
        time_limit: Some(Duration::from_secs(100)),
        ..worker_config(2)
    };
    let mut bench = Bench::with(&config, None);
    let effects = bench.assign(cpus(3, 0), 0, 1);
    assert_eq!(reports(&effects)[0].retracted, [key(0)]);

    let launched = bench.apply(assign(work(2, asking_for_50_s()), ids_of(&[1, 2, 3])));
    assert_eq!(ids(&launched), [1, 2]);
    bench.wait(Duration::from_secs(40));
    let effects = bench.wait(Duration::from_secs(30));
    assert_eq!(reports(&effects)[0].retracted, [key(3)]);
}

#[test]
fn a_task_for_which_no_time_is_left_when_its_turn_comes_is_returned() {
    let config = WorkerConfig {
        time_limit: Some(Duration::from_secs(100)),
        retract_check_interval: Duration::from_secs(1_000),
        ..worker_config(1)
    };
    let mut bench = Bench::with(&config, None);
    let launched = bench.apply(assign(work(2, asking_for_50_s()), ids_of(&[1, 2, 3])));
    assert_eq!(ids(&launched), [1]);
    bench.wait(Duration::from_secs(49));
    let launched = bench.exited(tokens(&launched)[0], OK);
    assert_eq!(ids(&launched), [2]);
    bench.wait(Duration::from_secs(2));
    let effects = bench.exited(tokens(&launched)[0], OK);
    assert_eq!(ids(&effects), [] as [u32; 0]);
    assert_eq!(reports(&effects)[0].retracted, [key(3)]);
}

#[test]
fn million_ids_cost_one_entry_and_entries_follow_their_ids() {
    let mut bench = Bench::new(1);
    let ids = IdArray::new(vec![IdRange::new(7, 2, 10).expect("valid")]).expect("valid");
    let effects = bench.apply(Input::Assign {
        templates: vec![Arc::new(work(1, cpus(1, 0)))],
        assignments: vec![WorkAssignment {
            template: TemplateId(1),
            ids,
            instance: InstanceId(4),
            variant: 0,
            entries: Entries::new(*b"onetwo", [3, 3]),
            nodes: Arc::default(),
            follows: None,
        }],
        drop_templates: vec![TemplateId(1)],
    });
    assert!(matches!(
        effects[..],
        [Effect::DropTemplate(_), Effect::Launch(_)]
    ));
    assert_eq!(launches(&effects)[0].entry(), Some(&b"one"[..]));
    let effects = bench.exited(tokens(&effects)[0], OK);
    assert_eq!(launches(&effects)[0].entry(), Some(&b"two"[..]));
    assert_eq!(
        launches(&effects)[0].key,
        InstanceKey::new(JOB, 17, InstanceId(4))
    );
    bench.assign(cpus(1, 0), 100, 1_000_000);
    assert_eq!(bench.state.queued_count(), 1_000_000);
}

fn ids_of(ids: &[u32]) -> IdArray {
    IdArray::from_sorted(ids.iter().copied()).expect("valid")
}
