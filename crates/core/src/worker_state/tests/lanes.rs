//! Tests of short tasks that are launched ahead.

use super::super::running::AHEAD_OF_MANY;
use super::*;

const SHORT: Duration = Duration::from_millis(1);

/// Makes a worker learn the run time of template 1. Returns the token of a launched task.
fn learnt(bench: &mut Bench, run: Duration) -> (LaunchToken, Vec<Effect>) {
    let first = tokens(&bench.assign(cpus(1, 0), 0, 1_000))[0];
    let event = exited_after(run, first, OK, bench.now);
    let effects = bench.apply(Input::Launcher(vec![event]));
    (tokens(&effects)[0], effects)
}

fn withdrawn(effects: &[Effect]) -> Vec<LaunchToken> {
    let tokens = effects.iter().filter_map(|effect| match effect {
        Effect::Withdraw(tokens) => Some(tokens.as_slice()),
        Effect::Launch(_)
        | Effect::Terminate(_)
        | Effect::Kill(_)
        | Effect::Signal(..)
        | Effect::Report(_)
        | Effect::DropTemplate(_)
        | Effect::Farewell
        | Effect::Exit(_) => None,
    });
    tokens.flatten().copied().collect()
}

#[test]
fn short_tasks_follow_each_other_on_one_grant() {
    let mut bench = Bench::new(1);
    let (head, effects) = learnt(&mut bench, SHORT);
    let launched = launches(&effects);
    assert_eq!(launched.len(), 45, "45 ms of them");
    let same = |launch: &&LaunchTask| launch.lane == head && launch.grant == launched[0].grant;
    assert!(launched.iter().all(same));
    let expected: Vec<u32> = (1..46).collect();
    assert_eq!(ids(&effects), expected, "in order");
    let event = exited_after(SHORT, head, OK, bench.now);
    let next = bench.apply(Input::Launcher(vec![event]));
    assert_eq!(ids(&next), [46], "one more for each that ended");
}

#[test]
fn nothing_is_handed_over_ahead_of_unknown_or_long_tasks() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.assign(cpus(1, 0), 0, 10).len(), 1);
    let mut bench = Bench::new(1);
    let (_, effects) = learnt(&mut bench, AHEAD_OF_MANY);
    assert_eq!(launches(&effects).len(), 1);
}

#[test]
fn of_tasks_that_come_alone_less_is_handed_over_ahead() {
    let mut bench = Bench::new(1);
    let template = || cpus(1, 0);
    let first = tokens(&bench.assign(template(), 0, 1))[0];
    for task in 1..100 {
        assert!(tokens(&bench.assign(template(), task, 1)).is_empty());
    }
    let event = exited_after(SHORT, first, OK, bench.now);
    let effects = bench.apply(Input::Launcher(vec![event]));
    assert_eq!(launches(&effects).len(), 15, "15 ms of them");
    assert!(
        launches(&effects)
            .iter()
            .all(|launch| !launch.is_one_of_many)
    );
}

#[test]
fn a_more_urgent_task_that_waits_for_room_stops_it() {
    let mut bench = Bench::new(2);
    let first = tokens(&bench.assign(cpus(1, 0), 0, 1_000));
    assert!(ids(&bench.apply(assign(work(2, cpus(2, 9)), ids_of(&[2_000])))).is_empty());
    let event = exited_after(SHORT, first[0], OK, bench.now);
    assert!(ids(&bench.apply(Input::Launcher(vec![event]))).is_empty());
    let event = exited_after(SHORT, first[1], OK, bench.now);
    assert_eq!(ids(&bench.apply(Input::Launcher(vec![event]))), [2_000]);
}

#[test]
fn a_more_urgent_task_that_waits_for_room_takes_back_what_is_ahead() {
    let mut bench = Bench::new(1);
    let (head, effects) = learnt(&mut bench, SHORT);
    let behind = tokens(&effects)[1..].to_vec();
    let effects = bench.apply(assign(work(2, cpus(1, 0)), ids_of(&[2_000])));
    assert!(withdrawn(&effects).is_empty(), "as urgent as those");
    let effects = bench.apply(assign(work(3, cpus(1, 9)), ids_of(&[3_000])));
    assert_eq!(withdrawn(&effects), behind);
    let cancelled = behind.iter().map(|token| LaunchEvent::Failed {
        token: *token,
        failure: LaunchFailure::Cancelled,
    });
    assert!(ids(&bench.apply(Input::Launcher(cancelled.collect()))).is_empty());
    let event = exited_after(SHORT, head, OK, bench.now);
    assert_eq!(ids(&bench.apply(Input::Launcher(vec![event])))[0], 3_000);
}

#[test]
fn a_task_that_takes_unexpectedly_long_gives_the_others_back() {
    let mut bench = Bench::new(1);
    let (head, effects) = learnt(&mut bench, SHORT);
    let behind = tokens(&effects)[1..].to_vec();
    bench.started(head);
    let due = bench
        .state
        .next_deadline()
        .expect("somebody looks after it");
    assert!(due.since(bench.now) <= Duration::from_millis(100));
    let effects = bench.wait(Duration::from_millis(101));
    assert_eq!(withdrawn(&effects), behind);
    let failed = behind.iter().map(|token| LaunchEvent::Failed {
        token: *token,
        failure: LaunchFailure::Cancelled,
    });
    // The server retracts a task while the worker does not know yet that the tasks were taken back.
    bench.apply(Input::Retract(vec![key(3)]));
    let effects = bench.apply(Input::Launcher(failed.collect()));
    let returned: Vec<_> = reports(&effects)
        .iter()
        .flat_map(|report| report.retracted.clone())
        .collect();
    assert_eq!(returned, [key(3)]);
    assert!(withdrawn(&bench.wait(Duration::from_secs(1))).is_empty());
    assert_eq!(bench.state.running_count(), 1);
    let event = exited_after(Duration::from_secs(1), head, OK, bench.now);
    let next = ids(&bench.apply(Input::Launcher(vec![event])));
    assert_eq!(next, [2], "before later tasks");
}

#[test]
fn all_of_a_lane_end_with_the_worker() {
    let mut bench = Bench::new(1);
    let (_, effects) = learnt(&mut bench, SHORT);
    let all = tokens(&effects);
    let effects = bench.apply(Input::Stop);
    let told: Vec<LaunchToken> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Terminate(token) | Effect::Kill(token) => Some(*token),
            Effect::Launch(_)
            | Effect::Withdraw(_)
            | Effect::Report(_)
            | Effect::DropTemplate(_)
            | Effect::Farewell
            | Effect::Exit(_)
            | Effect::Signal(..) => None,
        })
        .collect();
    assert_eq!(told, all);
}
