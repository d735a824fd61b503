//! Tests of how a worker ends.

use super::*;
use crate::worker_config::{Allocation, BatchSystem};

#[test]
fn stop_ends_tasks_then_the_worker() {
    let mut bench = Bench::new(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 5));
    bench.exited(launched[1], OK);
    let running = [launched[0], LaunchToken(2)];
    let effects = bench.apply(Input::Stop);
    let told = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Terminate(_)));
    assert_eq!(told.count(), 2);
    assert_eq!(exit(&effects), None);
    assert!(outcomes(&bench.exited(running[0], ExitStatus::Signal(2))).is_empty());
    let effects = bench.exited(running[1], OK);
    assert_eq!(exit(&effects), Some(ExitReason::Stopped));
    assert!(
        outcomes(&effects).is_empty(),
        "tasks of a stopped worker run again"
    );
    assert!(bench.assign(cpus(1, 0), 8, 1).is_empty());
}

#[test]
fn a_stop_knows_when_the_last_task_has_had_sigkill() {
    let mut bench = Bench::new(2);
    let mut saves = template(&["true"]);
    saves.stop.grace = Duration::from_secs(3);
    bench.apply(assign(
        work(1, template(&["true"])),
        IdArray::consecutive(0, 1).expect("valid"),
    ));
    bench.apply(assign(
        work(2, saves),
        IdArray::consecutive(1, 1).expect("valid"),
    ));
    assert_eq!(bench.state.all_killed_at(), None, "nothing is to end");
    let stop = bench.now;
    bench.apply(Input::Stop);
    let after = |seconds| Some(stop + Duration::from_secs(seconds));
    assert_eq!(bench.state.all_killed_at(), after(3), "one may be saving");
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.state.all_killed_at(), after(3));
}

#[test]
fn stop_does_not_wait_for_ever() {
    let mut bench = Bench::new(1);
    bench.assign(cpus(1, 0), 0, 1);
    bench.apply(Input::Stop);
    assert_eq!(exit(&bench.wait(Duration::from_millis(4_999))), None);
    assert_eq!(
        exit(&bench.wait(Duration::from_millis(1))),
        Some(ExitReason::Stopped)
    );
    assert_eq!(bench.state.next_deadline(), None);
}

#[test]
fn second_interrupt_does_not_wait() {
    let mut bench = Bench::new(1);
    bench.assign(cpus(1, 0), 0, 1);
    assert_eq!(
        exit(&bench.apply(Input::Interrupt(Interrupt::Terminate))),
        None
    );
    let effects = bench.apply(Input::Interrupt(Interrupt::Terminate));
    assert_eq!(exit(&effects), Some(ExitReason::Interrupted));
}

#[test]
fn drain_finishes_what_runs_and_returns_the_rest() {
    let mut bench = Bench::new(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 3))[0];
    let effects = bench.apply(Input::Interrupt(Interrupt::Drain));
    assert_eq!(reports(&effects)[0].retracted, [key(1), key(2)]);
    let effects = bench.exited(token, OK);
    assert_eq!(outcomes(&effects), [(0, Outcome::Finished)]);
    assert_eq!(exit(&effects), Some(ExitReason::Interrupted));
}

#[test]
fn idle_timeout_counts_from_the_last_end() {
    let config = worker_config(1);
    let mut bench = Bench::with(&config, Some(Duration::from_secs(10)));
    bench.wait(Duration::from_secs(9));
    let token = tokens(&bench.assign(cpus(1, 0), 0, 1))[0];
    bench.wait(Duration::from_secs(60));
    bench.exited(token, OK);
    assert_eq!(exit(&bench.wait(Duration::from_secs(9))), None);
    assert_eq!(
        exit(&bench.wait(Duration::from_secs(1))),
        Some(ExitReason::IdleTimeout)
    );
}

#[test]
fn a_held_node_is_not_idle_nor_is_a_relay() {
    is_not_idle(&Input::Hold);
    is_not_idle(&Input::Relaying);
}

fn is_not_idle(while_it_is: &dyn Fn(bool) -> Input) {
    let config = worker_config(1);
    let mut bench = Bench::with(&config, Some(Duration::from_secs(10)));
    bench.apply(while_it_is(true));
    assert_eq!(
        exit(&bench.wait(Duration::from_secs(60))),
        None,
        "others need it"
    );
    bench.apply(while_it_is(false));
    assert_eq!(exit(&bench.wait(Duration::from_secs(9))), None);
    assert_eq!(
        exit(&bench.wait(Duration::from_secs(1))),
        Some(ExitReason::IdleTimeout)
    );
}

#[test]
fn own_time_limit_ends_the_worker() {
    let config = WorkerConfig {
        time_limit: Some(Duration::from_secs(5)),
        ..worker_config(1)
    };
    let mut bench = Bench::with(&config, None);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 1))[0];
    assert_eq!(
        bench.state.next_deadline(),
        Some(bench.now + Duration::from_secs(5))
    );
    let effects = bench.wait(Duration::from_secs(5));
    assert!(matches!(effects[..], [Effect::Terminate(_)]));
    let effects = bench.exited(token, ExitStatus::Signal(9));
    assert_eq!(exit(&effects), Some(ExitReason::TimeLimit));
}

#[test]
fn loss_of_the_server_follows_the_configuration() {
    let check = |policy: OnServerLost| {
        let config = WorkerConfig {
            on_server_lost: policy,
            ..worker_config(1)
        };
        let mut bench = Bench::with(&config, None);
        let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
        let lost = bench.apply(Input::ServerLost);
        let told = lost
            .iter()
            .any(|effect| matches!(effect, Effect::Terminate(_)));
        assert_eq!(told, policy == OnServerLost::Stop);
        let ended = bench.exited(token, OK);
        assert!(
            reports(&ended)
                .iter()
                .all(|report| report.started.is_empty())
        );
        (bench, ended)
    };
    for policy in [OnServerLost::Stop, OnServerLost::FinishRunning] {
        let (_, ended) = check(policy);
        assert_eq!(exit(&ended), Some(ExitReason::ServerLost));
    }
    let (mut bench, ended) = check(OnServerLost::Reconnect);
    assert!(ended.is_empty(), "nobody can be told");
    let effects = bench.apply(Input::ServerBack { reattached: true });
    assert_eq!(outcomes(&effects), [(0, Outcome::Finished)]);
    assert_eq!(
        ids(&bench.assign(cpus(1, 0), 0, 1)),
        [0],
        "templates are learned again"
    );
}

fn that_does(on_server_lost: OnServerLost, cpus: u32) -> Bench {
    let config = WorkerConfig {
        on_server_lost,
        ..worker_config(cpus)
    };
    Bench::with(&config, None)
}

fn reconnecting(cpus: u32) -> Bench {
    that_does(OnServerLost::Reconnect, cpus)
}

#[test]
fn a_worker_that_finishes_what_runs_hands_it_over_to_a_server_that_is_back() {
    let wait = Duration::from_secs(120);
    for ends_before in [false, true] {
        let mut bench = that_does(OnServerLost::FinishRunning, 1);
        bench.state.wait_for_server(wait);
        let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
        bench.apply(Input::ServerLost);
        assert!(bench.wait(wait * 9).is_empty(), "a task runs");
        if ends_before {
            assert!(bench.exited(token, OK).is_empty(), "nobody can be told");
            assert!(bench.wait(wait - Duration::from_secs(1)).is_empty());
        }
        let mut said = bench.apply(Input::ServerBack { reattached: true });
        if !ends_before {
            said = bench.exited(token, OK);
        }
        assert_eq!(outcomes(&said), [(0, Outcome::Finished)]);
        assert_eq!(ids(&bench.assign(cpus(1, 0), 0, 1)), [0], "it goes on");
    }
}

#[test]
fn a_worker_that_finished_what_ran_waits_for_its_server_as_long_as_that_said() {
    for (runs, secs) in [(false, 0), (false, 120), (true, 0), (true, 120)] {
        let wait = Duration::from_secs(secs);
        let mut bench = that_does(OnServerLost::FinishRunning, 1);
        bench.state.wait_for_server(wait);
        let token = runs.then(|| tokens(&bench.assign(cpus(1, 0), 0, 1))[0]);
        let mut effects = bench.apply(Input::ServerLost);
        if let Some(token) = token {
            assert_eq!(exit(&effects), None);
            bench.wait(wait * 3);
            effects = bench.exited(token, OK);
        }
        if secs > 0 {
            assert!(effects.is_empty());
            assert_eq!(bench.state.next_deadline(), Some(bench.now + wait));
            effects = bench.wait(wait);
        }
        assert_eq!(
            exit(&effects),
            Some(ExitReason::ServerLost),
            "{runs} {secs}"
        );
    }
}

#[test]
fn ends_are_said_again_until_they_are_acknowledged() {
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 4));
    let said = bench.exited(launched[0], OK);
    assert_eq!(reports(&said)[0].seq, 1);
    bench.apply(Input::ServerLost);
    let now = bench.now;
    let first = bench.state.holding(now);
    assert_eq!(
        first.launching,
        [key(0), key(1), key(2)],
        "what had not started is given up, what has ended is still here"
    );
    bench.exited(launched[1], ExitStatus::Code(4));
    // The first attempt to register failed.
    assert_eq!(bench.state.holding(now), first);
    let said = bench.apply(Input::ServerBack { reattached: true });
    let ends = [(0, Outcome::Finished), (1, Outcome::ExitCode(4))];
    assert_eq!(outcomes(&said), ends);
    let seq = reports(&said)[0].seq;
    bench.apply(Input::Acknowledged(seq - 1));
    bench.apply(Input::ServerLost);
    bench.state.holding(now);
    let said = bench.apply(Input::ServerBack { reattached: true });
    assert_eq!(
        outcomes(&said),
        ends,
        "an older number says nothing of them"
    );
    let seq = reports(&said)[0].seq;
    bench.apply(Input::Acknowledged(seq));
    bench.apply(Input::ServerLost);
    assert_eq!(bench.state.holding(now).launching, [key(2)]);
    let said = bench.apply(Input::ServerBack { reattached: true });
    assert!(outcomes(&said).is_empty());
}

#[test]
fn a_draining_worker_keeps_what_ends_while_it_registers() {
    let mut bench = reconnecting(3);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 3));
    bench.apply(Input::Interrupt(Interrupt::Drain));
    bench.apply(Input::ServerLost);
    bench.state.holding(bench.now);
    assert!(
        reports(&bench.exited(launched[0], OK)).is_empty(),
        "the server would not receive it before the reply to the registration"
    );
    let said = bench.apply(Input::ServerBack { reattached: true });
    assert_eq!(outcomes(&said), [(0, Outcome::Finished)]);
    let said = bench.exited(launched[1], OK);
    assert_eq!(
        outcomes(&said),
        [(1, Outcome::Finished)],
        "nothing is acknowledged with a later report that was never said"
    );
}

#[test]
fn what_was_killed_on_request_is_not_here_any_more() {
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 2));
    bench.apply(Input::Kill(vec![key(0)]));
    bench.exited(launched[0], ExitStatus::Signal(2));
    bench.apply(Input::ServerLost);
    assert_eq!(bench.state.holding(bench.now).launching, [key(1)]);
    let said = bench.apply(Input::ServerBack { reattached: true });
    assert_eq!(outcomes(&said), [(0, Outcome::Killed)]);
}

#[test]
fn many_long_texts_are_told_in_reports_of_bounded_size() {
    let count = 1_000;
    let mut bench = reconnecting(count);
    bench.assign(cpus(1, 0), 0, count);
    let text = "x".repeat(1 << 20);
    let failed = |token| LaunchEvent::Failed {
        token: LaunchToken(token),
        failure: LaunchFailure::Permanent(text.clone().into()),
    };
    let check = |effects: &[Effect]| {
        let told = reports(effects);
        for report in &told {
            assert!(report.wire_bytes() <= crate::limits::REPORT_BYTES_MAX);
            assert!(!report.ended.is_empty());
        }
        assert_eq!(outcomes(effects).len(), count as usize);
        told.last().map(|report| report.seq).expect("reports")
    };
    let effects = bench.apply(Input::Launcher((0..count.into()).map(failed).collect()));
    check(&effects);
    bench.apply(Input::ServerLost);
    let holding = bench.state.holding(bench.now);
    assert_eq!(holding.launching.len(), count as usize);
    let seq = check(&bench.apply(Input::ServerBack { reattached: true }));
    bench.apply(Input::Acknowledged(seq));
    bench.apply(Input::ServerLost);
    assert_eq!(bench.state.holding(bench.now), Holding::default());
}

#[test]
fn a_server_that_does_not_know_the_worker_gets_none_of_its_tasks() {
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 2));
    bench.exited(launched[0], OK);
    bench.apply(Input::ServerLost);
    let effects = bench.apply(Input::ServerBack { reattached: false });
    assert!(matches!(effects[..], [Effect::Terminate(token)] if token == launched[1]));
    assert!(reports(&bench.exited(launched[1], OK)).is_empty());
    assert_eq!(bench.state.holding(bench.now), Holding::default());
    let effects = bench.assign(cpus(2, 0), 0, 1);
    assert_eq!(ids(&effects), [0], "its place is free");
}

#[test]
fn a_worker_that_is_not_acknowledged_starts_nothing_more() {
    let mut bench = reconnecting(1);
    let count = u32::try_from(crate::limits::UNACKNOWLEDGED_MAX).expect("small");
    bench.assign(cpus(1, 0), 0, count + 10);
    let keys = (1..=count).map(key).collect();
    bench.apply(Input::Kill(keys));
    let effects = bench.exited(LaunchToken(0), OK);
    let last = reports(&effects).last().map(|report| report.seq);
    assert!(launches(&effects).is_empty());
    let effects = bench.apply(Input::Acknowledged(last.expect("a report")));
    assert_eq!(launches(&effects).len(), 1);
}

#[test]
fn a_worker_without_a_server_gives_up_only_when_it_has_nothing_to_do_and_nothing_to_tell() {
    let hour = Duration::from_secs(3_600);
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 2));
    bench.exited(launched[0], OK);
    bench.apply(Input::ServerLost);
    assert!(bench.wait(hour * 9).is_empty(), "a task runs");
    bench.exited(launched[1], OK);
    assert!(bench.wait(hour * 9).is_empty(), "results are not delivered");
    bench.state.holding(bench.now);
    let said = bench.apply(Input::ServerBack { reattached: true });
    let seq = reports(&said)[0].seq;
    bench.apply(Input::Acknowledged(seq));
    bench.apply(Input::ServerLost);
    assert!(bench.wait(hour / 2).is_empty());
    bench.apply(Input::ServerBack { reattached: true });
    assert!(bench.wait(hour * 9).is_empty(), "there is a server");
    bench.apply(Input::ServerLost);
    assert_eq!(bench.state.next_deadline(), Some(bench.now + hour));
    assert_eq!(exit(&bench.wait(hour)), Some(ExitReason::ServerLost));
}

#[test]
fn when_the_server_is_gone_for_good_running_tasks_may_end() {
    let mut bench = reconnecting(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 1))[0];
    bench.apply(Input::ServerGone);
    assert!(bench.apply(Input::Timer).is_empty(), "there is a server");
    bench.apply(Input::ServerLost);
    assert!(bench.apply(Input::ServerGone).is_empty());
    let ended = bench.exited(token, OK);
    assert_eq!(exit(&ended), Some(ExitReason::ServerLost));
}

#[test]
fn what_is_sent_again_while_it_is_ended_comes_back_when_it_has() {
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 2));
    bench.apply(Input::ServerLost);
    bench.apply(Input::ServerBack { reattached: false });
    let again = bench.assign(cpus(1, 0), 0, 2);
    assert!(
        again.is_empty(),
        "neither started nor given back: {again:?}"
    );
    let effects = bench.apply(Input::Retract(vec![key(1)]));
    assert_eq!(reports(&effects)[0].retracted, [key(1)], "asked back");
    let effects = bench.exited(launched[0], OK);
    assert_eq!(reports(&effects)[0].retracted, [key(0)]);
    assert!(reports(&bench.exited(launched[1], OK)).is_empty());
    assert_eq!(ids(&bench.assign(cpus(1, 0), 0, 1)), [0]);
}

#[test]
fn what_a_worker_that_ends_did_not_start_is_given_back_once() {
    let mut bench = Bench::new(1);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
    bench.apply(Input::Stop);
    bench.assign(cpus(1, 0), 5, 1);
    let effects = bench.exited(token, OK);
    let retracted: Vec<_> = reports(&effects)
        .iter()
        .flat_map(|report| report.retracted.clone())
        .collect();
    assert_eq!(retracted, [key(1), key(5)], "and nothing of what ran");
    assert_eq!(exit(&effects), Some(ExitReason::Stopped));
}

#[test]
fn what_ended_with_the_worker_is_named_to_a_server_that_it_returns_to() {
    let mut bench = reconnecting(2);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 2));
    bench.started(launched[0]);
    bench.apply(Input::ServerLost);
    bench.apply(Input::Interrupt(Interrupt::Terminate));
    bench.exited(launched[0], OK);
    let now = bench.now;
    let mut named = bench.state.holding(now).launching;
    named.sort_unstable();
    assert_eq!(
        named,
        [key(0), key(1)],
        "neither may run elsewhere under its number"
    );
}

#[test]
fn an_end_of_the_server_that_was_announced_follows_the_configuration() {
    for policy in [OnServerLost::Stop, OnServerLost::Reconnect] {
        let config = WorkerConfig {
            on_server_lost: policy,
            ..worker_config(1)
        };
        let mut bench = Bench::with(&config, None);
        let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
        let told = bench.apply(Input::ServerEnds);
        assert!(matches!(told[..], [Effect::Terminate(_)]), "{told:?}");
        assert!(bench.state.is_dismissed());
        let effects = bench.exited(token, ExitStatus::Signal(2));
        assert_eq!(exit(&effects), Some(ExitReason::ServerEnded));
        assert!(outcomes(&effects).is_empty(), "it waits again");
    }
    let config = WorkerConfig {
        on_server_lost: OnServerLost::FinishRunning,
        ..worker_config(1)
    };
    let mut bench = Bench::with(&config, None);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
    let told = bench.apply(Input::ServerEnds);
    let [Effect::Report(report), Effect::Farewell] = &told[..] else {
        panic!("it says what it knows, and goodbye: {told:?}");
    };
    assert_eq!(report.retracted, [key(1)]);
    assert!(
        bench.state.is_dismissed(),
        "it does not look for the server"
    );
    bench.apply(Input::ServerLost);
    let effects = bench.exited(token, OK);
    assert_eq!(exit(&effects), Some(ExitReason::ServerLost));
}

#[test]
fn what_has_ended_is_told_before_the_goodbye_to_a_server_that_ends() {
    let config = WorkerConfig {
        on_server_lost: OnServerLost::FinishRunning,
        ..worker_config(4)
    };
    let mut bench = Bench::with(&config, None);
    let launched = tokens(&bench.assign(cpus(1, 0), 0, 9));
    bench.exited(launched[0], OK);
    // The next report would be due later.
    let mut said = outcomes(&bench.exited(launched[1], OK));
    let told = bench.apply(Input::ServerEnds);
    said.extend(outcomes(&told));
    assert!(said.contains(&(1, Outcome::Finished)), "{told:?}");
    assert!(matches!(told.last(), Some(Effect::Farewell)), "{told:?}");
}

#[test]
fn a_worker_that_was_to_end_with_its_tasks_does_not_keep_the_server_from_ending() {
    let config = WorkerConfig {
        on_server_lost: OnServerLost::FinishRunning,
        ..worker_config(1)
    };
    let mut bench = Bench::with(&config, None);
    let token = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
    bench.apply(Input::Interrupt(Interrupt::Drain));
    let told = bench.apply(Input::ServerEnds);
    assert!(matches!(told.last(), Some(Effect::Farewell)), "{told:?}");
    assert!(bench.apply(Input::ServerEnds).is_empty(), "it is said once");
    bench.apply(Input::ServerLost);
    let effects = bench.exited(token, OK);
    assert_eq!(exit(&effects), Some(ExitReason::Interrupted));
}

/// Returns a worker with one cpu in a batch job. The first of its two tasks has just failed.
fn failed_in_an_allocation() -> Bench {
    let config = WorkerConfig {
        allocation: Some(Allocation {
            manager: BatchSystem::Slurm,
            id: "105".into(),
            cluster: None,
            time_limit: None,
        }),
        ..worker_config(1)
    };
    let mut bench = Bench::with(&config, None);
    let first = tokens(&bench.assign(cpus(1, 0), 0, 2))[0];
    let (token, at) = (first, bench.now);
    let started = LaunchEvent::Started { token, at };
    let failed = exited(first, ExitStatus::Code(3), at);
    let effects = bench.apply(Input::Launcher(vec![started, failed]));
    assert_eq!(ids(&effects), [1], "its cpu is free at once");
    assert_eq!(outcomes(&effects), []);
    let told = reports(&effects);
    let told: Vec<_> = told
        .iter()
        .flat_map(|report| &report.started)
        .map(|row| row.key.task)
        .collect();
    assert_eq!(
        told,
        [key(0).task],
        "the server knows that others can start"
    );
    bench
}

const FAILED: Outcome = Outcome::ExitCode(3);

#[test]
fn a_failure_counts_unless_the_allocation_ends_at_the_same_time() {
    let signalled = Input::Interrupt(Interrupt::Signalled);
    let end = |interrupt| Input::Interrupt(interrupt);
    for (inputs, expected) in [
        (vec![], vec![(0, FAILED)]),
        (vec![end(Interrupt::Preempt)], vec![]),
        (vec![end(Interrupt::Terminate)], vec![]),
        (vec![signalled.clone(), end(Interrupt::Preempt)], vec![]),
        (vec![Input::Stop], vec![(0, FAILED)]),
        (vec![Input::Kill(vec![key(0)])], vec![(0, Outcome::Killed)]),
    ] {
        let mut bench = failed_in_an_allocation();
        let name = format!("{inputs:?}");
        let mut all = Vec::new();
        for input in inputs {
            all.extend(outcomes(&bench.apply(input)));
            // The answer of the batch system takes longer than any end is held.
            all.extend(outcomes(&bench.wait(Duration::from_secs(1))));
        }
        all.extend(outcomes(&bench.wait(Duration::from_secs(1))));
        assert_eq!(all, expected, "{name}");
    }
}

#[test]
fn a_failure_is_held_no_longer_than_it_takes_a_signal_and_a_returning_server_expects_it() {
    let mut bench = failed_in_an_allocation();
    let hold = bench.due_in().expect("it is to be reported");
    assert!(hold < Duration::from_millis(500), "{hold:?}");
    let now = bench.now;
    assert_eq!(bench.state.holding(now).launching, [key(0), key(1)]);
    assert_eq!(outcomes(&bench.wait(hold)), [(0, FAILED)]);
}

#[test]
fn a_worker_that_drains_waits_for_the_held_failure() {
    let mut bench = failed_in_an_allocation();
    bench.apply(Input::Interrupt(Interrupt::Drain));
    let effects = bench.exited(LaunchToken(1), OK);
    assert_eq!(exit(&effects), None);
    let effects = bench.wait(Duration::from_secs(1));
    assert_eq!(outcomes(&effects), [(0, FAILED)]);
    assert_eq!(exit(&effects), Some(ExitReason::Interrupted));
}
