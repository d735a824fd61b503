//! Tests of tasks that follow others on the same worker.

use super::*;
use crate::id::TaskId;

/// Returns a worker that runs task 0, with a chain of `behind` successors.
fn chain(behind: u32) -> (Bench, LaunchToken) {
    let mut bench = Bench::new(2);
    let effects = bench.assign(template(&["true"]), 0, 1);
    for task in 1..=behind {
        let effects = follow(&mut bench, task, task - 1);
        assert_eq!(ids(&effects), [0u32; 0], "it waits");
    }
    (bench, tokens(&effects)[0])
}

fn follow(bench: &mut Bench, task: u32, after: u32) -> Vec<Effect> {
    let mut input = assign(work(1, template(&["true"])), IdArray::single(task));
    if let Input::Assign { assignments, .. } = &mut input {
        assignments[0].follows = Some((TaskId(after), InstanceId(0)));
    }
    bench.apply(input)
}

/// Returns the tasks that are returned within a second.
fn given_back(bench: &mut Bench, mut effects: Vec<Effect>) -> Vec<InstanceKey> {
    effects.extend(bench.wait(Duration::from_secs(1)));
    let back = reports(&effects).into_iter();
    let mut back: Vec<InstanceKey> = back.flat_map(|r| r.retracted.clone()).collect();
    back.sort_unstable();
    back
}

#[test]
fn each_starts_when_the_one_before_it_has_finished() {
    let (mut bench, mut token) = chain(3);
    for task in 1..4 {
        let effects = bench.exited(token, ExitStatus::Code(0));
        assert_eq!(ids(&effects), [task]);
        token = tokens(&effects)[0];
    }
    let effects = bench.exited(token, ExitStatus::Code(0));
    assert_eq!(given_back(&mut bench, effects), []);
    assert_eq!(bench.state.queued_count(), 0);
}

#[test]
fn without_success_all_are_given_back_with_the_end() {
    let ends = [
        exited as fn(_, _, _) -> _,
        |token, _, _| LaunchEvent::Failed {
            token,
            failure: LaunchFailure::Permanent("no such program".into()),
        },
        |token, _, _| LaunchEvent::Failed {
            token,
            failure: LaunchFailure::Transient,
        },
    ];
    for end in ends {
        let (mut bench, token) = chain(3);
        let event = end(token, ExitStatus::Code(1), bench.now);
        let effects = bench.apply(Input::Launcher(vec![event]));
        assert_eq!(ids(&effects), [0u32; 0]);
        let back = given_back(&mut bench, effects);
        assert!(back.ends_with(&[key(1), key(2), key(3)]), "{back:?}");
        assert_eq!(bench.state.queued_count(), 0);
    }
}

#[test]
fn a_task_that_was_told_to_end_has_no_successor_even_if_it_exits_well() {
    let (mut bench, token) = chain(2);
    bench.started(token);
    bench.apply(Input::Kill(vec![key(0)]));
    let effects = bench.exited(token, ExitStatus::Code(0));
    assert_eq!(ids(&effects), [0u32; 0]);
    assert_eq!(given_back(&mut bench, effects), [key(1), key(2)]);
}

#[test]
fn what_is_asked_back_or_killed_before_its_turn_takes_its_successors_with_it() {
    for is_kill in [false, true] {
        let (mut bench, token) = chain(3);
        let keys = vec![key(2)];
        let effects = bench.apply(match is_kill {
            true => Input::Kill(keys),
            false => Input::Retract(keys),
        });
        let back = given_back(&mut bench, effects);
        let expected = if is_kill { &[3][..] } else { &[2, 3] };
        assert_eq!(back, Vec::from_iter(expected.iter().map(|task| key(*task))));
        let effects = bench.exited(token, ExitStatus::Code(0));
        assert_eq!(ids(&effects), [1], "what is before it goes on");
    }
}

#[test]
fn one_that_comes_behind_the_end_starts_at_once_unless_that_was_no_success() {
    for (code, expected) in [(0, &[1u32][..]), (1, &[])] {
        let (mut bench, token) = chain(0);
        bench.exited(token, ExitStatus::Code(code));
        let effects = follow(&mut bench, 1, 0);
        assert_eq!(ids(&effects), expected);
        let effects = follow(&mut bench, 2, 1);
        assert_eq!(ids(&effects), [0u32; 0]);
        let back = given_back(&mut bench, effects);
        assert_eq!(back.is_empty(), code == 0, "{back:?}");
    }
}

#[test]
fn one_that_is_sent_twice_waits_once() {
    let (mut bench, token) = chain(1);
    follow(&mut bench, 1, 0);
    let effects = bench.exited(token, ExitStatus::Code(0));
    assert_eq!(ids(&effects), [1]);
    follow(&mut bench, 1, 0);
    assert_eq!(bench.state.queued_count(), 0, "nor while it runs");
    assert_eq!(bench.state.ignored().assigned, 2);
}

#[test]
fn more_than_one_task_behind_another_makes_no_sense() {
    let (mut bench, _) = chain(0);
    let ids = IdArray::consecutive(1, 2).expect("valid");
    let mut input = assign(work(1, template(&["true"])), ids);
    if let Input::Assign { assignments, .. } = &mut input {
        assignments[0].follows = Some((TaskId(0), InstanceId(0)));
    }
    let mut effects = bench.apply(input);
    effects.extend(bench.wait(Duration::from_secs(1)));
    assert_eq!(outcomes(&effects).len(), 2, "both fail");
    assert_eq!(bench.state.ignored().malformed, 1);
}

#[test]
fn when_the_server_is_lost_they_are_its_again() {
    let mut bench = Bench::with(
        &WorkerConfig {
            on_server_lost: OnServerLost::Reconnect,
            ..worker_config(2)
        },
        None,
    );
    let effects = bench.assign(template(&["true"]), 0, 1);
    follow(&mut bench, 1, 0);
    bench.apply(Input::ServerLost);
    let effects = bench.exited(tokens(&effects)[0], ExitStatus::Code(0));
    assert_eq!(ids(&effects), [0u32; 0]);
    assert_eq!(bench.state.queued_count(), 0);
}

#[test]
fn a_worker_that_drains_gives_them_back_and_one_that_stops_at_its_end() {
    for interrupt in [Interrupt::Drain, Interrupt::Terminate] {
        let (mut bench, token) = chain(2);
        let mut effects = bench.apply(Input::Interrupt(interrupt));
        effects.extend(bench.exited(token, ExitStatus::Code(0)));
        assert_eq!(ids(&effects), [0u32; 0]);
        assert_eq!(given_back(&mut bench, effects), [key(1), key(2)]);
    }
}

#[test]
fn the_end_of_a_short_link_waits_for_others_and_the_last_is_told_at_once() {
    let (mut bench, mut token) = chain(20);
    for _ in 0..20 {
        bench.now = bench.now + Duration::from_millis(1);
        let event = exited_after(
            Duration::from_millis(1),
            token,
            ExitStatus::Code(0),
            bench.now,
        );
        let effects = bench.apply(Input::Launcher(vec![event]));
        token = tokens(&effects)[0];
    }
    bench.now = bench.now + Duration::from_millis(1);
    let effects = bench.exited(token, ExitStatus::Code(0));
    assert!(!outcomes(&effects).is_empty(), "nothing else is here to do");
}

#[test]
fn what_waits_for_a_task_that_takes_long_is_given_back() {
    let (mut bench, token) = chain(3);
    bench.started(token);
    let mut effects = bench.wait(SUCCESSOR_PATIENCE / 2);
    effects.extend(bench.wait(SUCCESSOR_PATIENCE / 2));
    effects.extend(bench.wait(SUCCESSOR_PATIENCE));
    let back = reports(&effects).into_iter();
    let back: Vec<InstanceKey> = back.flat_map(|r| r.retracted.clone()).collect();
    assert_eq!(back.len(), 3, "something more urgent may come: {back:?}");
    assert_eq!(bench.state.queued_count(), 0);
    assert!(
        bench.due_in().is_none_or(|due| due > SUCCESSOR_PATIENCE),
        "nothing more to look at"
    );
}

#[test]
fn what_waits_is_given_back_when_the_patience_is_over_and_not_later() {
    for before in [1, 50, 99, 140] {
        let (mut bench, token) = chain(3);
        bench.wait(Duration::from_millis(before));
        bench.started(token);
        let early = SUCCESSOR_PATIENCE - Duration::from_millis(1);
        let effects = bench.wait(early);
        let is_any = reports(&effects).iter().any(|r| !r.retracted.is_empty());
        assert!(!is_any, "started {before} ms after it came");
        assert!(
            bench
                .due_in()
                .is_some_and(|due| due <= Duration::from_millis(1))
        );
        bench.wait(Duration::from_millis(1));
        assert_eq!(bench.state.queued_count(), 0, "{before}");
    }
}

#[test]
fn what_comes_behind_a_task_that_runs_waits_for_the_rest_of_the_patience() {
    let mut bench = Bench::new(2);
    let token = tokens(&bench.assign(template(&["true"]), 0, 1))[0];
    bench.started(token);
    bench.wait(SUCCESSOR_PATIENCE / 2);
    follow(&mut bench, 1, 0);
    assert!(
        bench
            .due_in()
            .is_some_and(|due| due <= SUCCESSOR_PATIENCE / 2)
    );
    bench.wait(SUCCESSOR_PATIENCE / 2);
    assert_eq!(bench.state.queued_count(), 0);
    // Later, none is left.
    follow(&mut bench, 2, 0);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.state.queued_count(), 0);
}

#[test]
fn a_chain_does_not_hold_up_the_ends_of_others() {
    let (mut bench, _) = chain(20);
    let other = tokens(&bench.assign(template(&["true"]), 100, 2))[0];
    bench.wait(Duration::from_secs(1));
    let effects = bench.exited(other, ExitStatus::Code(0));
    assert_eq!(outcomes(&effects).len(), 1);
    let last = tokens(&effects)[0];
    let effects = bench.exited(last, ExitStatus::Code(0));
    let told = outcomes(&effects).len();
    assert_eq!(told, 1, "the server may have more for that cpu");
}
