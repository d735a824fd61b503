//! Tests children that run one after another, with every backend.

use std::fs;
use std::time::Duration;

use hq_spawn::{Event, ExitStatus, Lane, SpawnErrorKind, Stdio, Termination, Token};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, rungs, sh};

#[track_caller]
fn succeeded(end: &End) {
    assert!(
        matches!(end, End::Exited(ExitStatus::Code(0), _)),
        "{end:?}"
    );
}

#[test]
fn children_of_a_lane_run_in_order_and_never_two_at_a_time() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let mut rig = Rig::new(backend);
        let tokens: Vec<Token> = (0..30).map(Token).collect();
        let plans = tokens.iter().map(|token| {
            // The script fails if another child of its lane is running.
            let lane = token.0 % 3;
            let script = format!(
                "mkdir {lane} && echo {token} >> log{lane} && rmdir {lane}",
                token = token.0
            );
            (
                Lane(lane),
                *token,
                sh(&script).cwd(dir.path()).stderr(Stdio::Inherit),
            )
        });
        rig.launcher.spawn_in_lanes(plans.collect::<Vec<_>>());
        rig.ends(&tokens).values().for_each(succeeded);
        for lane in 0..3 {
            let log = fs::read_to_string(dir.path().join(format!("log{lane}"))).unwrap();
            let order: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
            let expected: Vec<u64> = (0..30).filter(|token| token % 3 == lane).collect();
            assert_eq!(order, expected, "{backend:?}");
        }
        let of = |wanted: u64| {
            rig.events()
                .iter()
                .filter(move |event| event.token().0 == wanted)
        };
        for token in 3..30 {
            let before = of(token - 3).find_map(|event| match event {
                Event::Exited { ended, .. } => Some(*ended),
                Event::Started { .. }
                | Event::Stalled { .. }
                | Event::Unkillable { .. }
                | Event::Failed { .. } => None,
            });
            let started = of(token).find_map(|event| match event {
                Event::Started { at, .. } => Some(*at),
                Event::Exited { .. }
                | Event::Stalled { .. }
                | Event::Unkillable { .. }
                | Event::Failed { .. } => None,
            });
            assert!(before.unwrap() <= started.unwrap(), "{backend:?} {token}");
        }
        assert_eq!(rig.launcher.pending(), 0);
    }
}

#[test]
fn a_lane_goes_on_after_failures_and_signals() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        let plans = [
            command(&["/no/such/program"]),
            sh("kill -9 $$"),
            sh("exit 3"),
            sh("exit 0").cwd("/no/such/directory"),
            sh("exit 0"),
        ];
        let tokens: Vec<Token> = (0..5).map(Token).collect();
        let plans = tokens
            .iter()
            .zip(plans)
            .map(|(token, plan)| (Lane(7), *token, plan));
        rig.launcher.spawn_in_lanes(plans.collect::<Vec<_>>());
        let ends = rig.ends(&tokens);
        assert!(matches!(ends[&Token(0)], End::Failed(_)), "{backend:?}");
        assert!(matches!(ends[&Token(3)], End::Failed(_)), "{backend:?}");
        succeeded(&ends[&Token(4)]);
    }
}

#[test]
fn withdrawing_touches_only_what_waits() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        let plans = [(1, "exec sleep 1000"), (2, "exit 0"), (3, "exit 0")];
        let plans = plans.map(|(token, script)| (Lane(1), Token(token), sh(script)));
        rig.launcher.spawn_in_lanes(plans);
        rig.pid(Token(1));
        rig.launcher.withdraw(Token(1));
        rig.launcher.withdraw(Token(2));
        let End::Failed(error) = rig.end(Token(2)) else {
            panic!("a withdrawn child ran");
        };
        assert_eq!(error.kind(), SpawnErrorKind::Cancelled);
        rig.launcher.terminate(Token(1), Termination::KILL);
        let signal = ExitStatus::Signal {
            signal: 9,
            core_dumped: false,
        };
        let End::Exited(status, _) = rig.end(Token(1)) else {
            panic!("it ran");
        };
        assert_eq!(status, signal, "withdrawing did not end it");
        succeeded(&rig.end(Token(3)));
    }
}

#[test]
fn lanes_do_not_keep_others_from_running() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        // There are as many lanes as threads, each held by a child that does not end.
        let plans = [0, 1].map(|lane| (Lane(lane), Token(1_000 + lane), sh("exec sleep 1000")));
        rig.launcher.spawn_in_lanes(plans);
        for lane in 0..2 {
            rig.pid(Token(1_000 + lane));
        }
        for _ in 0..5 {
            rig.succeed(sh("exit 0"));
        }
        let plans = [2, 3].map(|lane| (Lane(lane), Token(1_000 + lane), sh("exit 0")));
        rig.launcher.spawn_in_lanes(plans);
        succeeded(&rig.end(Token(1_002)));
        succeeded(&rig.end(Token(1_003)));
        rig.launcher.kill_all();
        let held = [Token(1_000), Token(1_001)];
        assert_eq!(rig.ends(&held).len(), 2);
    }
}

#[test]
fn killing_all_empties_the_lanes() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        let tokens: Vec<Token> = (0..40).map(Token).collect();
        let plans = tokens
            .iter()
            .map(|token| (Lane(token.0 % 4), *token, sh("exec sleep 1000")));
        rig.launcher.spawn_in_lanes(plans.collect::<Vec<_>>());
        rig.pid(Token(0));
        rig.launcher.kill_all();
        let ends = rig.ends(&tokens);
        for (token, end) in &ends {
            let by_itself = matches!(end, End::Exited(ExitStatus::Code(_), _));
            assert!(!by_itself, "{backend:?} {token:?}: {end:?}");
        }
        assert_eq!(rig.launcher.pending(), 0);
        // The lane is free again.
        rig.launcher
            .spawn_in_lanes([(Lane(1), Token(99), sh("exit 0"))]);
        succeeded(&rig.end(Token(99)));
    }
}

/// After short-lived children, a thread waits for the next one to exit before it checks whether the
/// program is running.
#[test]
fn what_comes_after_short_children_is_told_like_anything_else() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let mut rig = Rig::new(backend);
        let short = |token: u64| (Lane(1), Token(token), command(&["/bin/true"]));
        let behind_short_ones = |rig: &mut Rig, first: u64, plan| {
            let mut plans: Vec<_> = (first..first + 20).map(short).collect();
            plans.push((Lane(1), Token(first + 20), plan));
            rig.launcher.spawn_in_lanes(plans);
            for token in first..first + 20 {
                succeeded(&rig.end(Token(token)));
            }
            Token(first + 20)
        };
        let missing = behind_short_ones(&mut rig, 0, command(&["/no/such/program"]));
        let End::Failed(error) = rig.end(missing) else {
            panic!("{backend:?}: it cannot have run");
        };
        assert_eq!(error.kind(), SpawnErrorKind::NotFound, "{backend:?}");
        let nowhere = command(&["/bin/true"]).cwd("/no/such/directory");
        let nowhere = behind_short_ones(&mut rig, 100, nowhere);
        let End::Failed(error) = rig.end(nowhere) else {
            panic!("{backend:?}: it cannot have run");
        };
        assert!(error.to_string().contains("/no/such/directory"), "{error}");
        // This child is long-lived: its start is reported, and it receives its signal.
        let script = "trap 'exit 7' TERM; echo ready > ready; while :; do sleep 0.01; done";
        let long = behind_short_ones(&mut rig, 200, sh(script).cwd(dir.path()));
        rig.pid(long);
        crate::harness::eventually_lines(&dir.path().join("ready"), 1);
        let soft = Termination {
            signal: libc::SIGTERM,
            grace: crate::harness::PATIENCE,
        };
        rig.launcher.terminate(long, soft);
        let End::Exited(status, _) = rig.end(long) else {
            panic!("{backend:?}: it ran");
        };
        assert_eq!(status, ExitStatus::Code(7), "{backend:?}");
        // This child blocks before its exec until a writer opens the FIFO.
        let held_up = sh("exit 3").stdin(Stdio::File { path: fifo.clone() });
        let held_up = behind_short_ones(&mut rig, 300, held_up);
        drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
        let End::Exited(status, _) = rig.end(held_up) else {
            panic!("{backend:?}: it ran");
        };
        assert_eq!(status, ExitStatus::Code(3), "{backend:?}");
    }
}

#[test]
fn a_child_of_a_lane_does_not_change_the_score_of_the_launcher() {
    let name = "lanes::a_child_of_a_lane_does_not_change_the_score_of_the_launcher";
    crate::isolated::alone(name, &[], || {
        let own = || fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let before = own();
        assert_ne!(before.trim(), "700");
        let mut rig = Rig::new(best());
        let tokens: Vec<Token> = (0..50).map(Token).collect();
        // After the first short-lived children, the thread continues while the next child still
        // shares this process's memory.
        let plans = tokens
            .iter()
            .map(|token| (Lane(1), *token, command(&["/bin/true"]).oom_score_adj(700)));
        rig.launcher.spawn_in_lanes(plans.collect::<Vec<_>>());
        rig.ends(&tokens).values().for_each(succeeded);
        assert_eq!(own(), before);
    });
}

#[test]
fn a_start_that_somebody_waits_for_is_told_at_once() {
    for backend in rungs() {
        // Without this setting, nothing would be reported while the first child runs.
        let mut rig = Rig::with(|config| {
            config.backend = Some(backend);
            config.event_delay = Duration::from_secs(1_000);
        });
        let plan = sh("exec sleep 1000").report_start_at_once(true);
        let token = rig.spawn(plan);
        rig.wait_started(&[token]);
        let kill = Termination {
            signal: 9,
            grace: Duration::ZERO,
        };
        rig.launcher.terminate(token, kill);
        rig.ends(&[token]);
    }
}
